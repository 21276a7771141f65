//! Checks of calls that must not wait, and of peers that cannot exist on this host.

use crate::case::{Case, Mailbox};
use crate::report::{Checked, Stop, holds, succeeds};
use std::time::{Duration, Instant};
use tieline_plugin_api::Status;

/// The minimum duration that every attempt of a waiting call takes. A call that does not wait may take this long on a busy machine,
/// but not every time.
const WAITS: Duration = Duration::from_millis(100);

pub(super) fn connect_does_not_wait_for_its_peer(case: &Case) -> Checked {
    let (near, mut far) = (case.interface()?, Mailbox::new(case.interface()?));
    let mut address = case.address_of(&far.interface)?;
    if case.connects_to_endpoint() {
        address.clear();
    } else if near.reachable(&address).is_err() {
        address = case.address_of(&near)?;
    }
    let (mut fastest, mut endpoints) = (Duration::MAX, Vec::new());
    for n in 0..6 {
        // The peer is inactive: it does not even poll.
        let began = Instant::now();
        let endpoint = match near.connect(&address, &case.identity(), 40 + n) {
            Err(failure) if failure.status == Status::Again => {
                let _ = far.turn()?;
                continue;
            }
            other => succeeds("connect", other)?,
        };
        if case.connects_to_endpoint() {
            far.cookies.push(40 + n);
            let there = super::waiting::connect(case, &far.interface, &[], &mut [])?;
            let there_address = super::waiting::address_of(case, &there)?;
            let began = Instant::now();
            succeeds("connect", endpoint.connect(&there_address))?;
            fastest = fastest.min(began.elapsed());
            endpoints.push(there);
        } else {
            fastest = fastest.min(began.elapsed());
        }
        endpoints.push(endpoint);
    }
    let what = "connect to a peer that does not poll, at its fastest";
    let expected =
        "an immediate return: data calls return AGAIN until the connection is established";
    holds(fastest < WAITS || fastest == Duration::MAX, what, expected, format!("{fastest:?}"))
}

pub(super) fn a_peer_under_another_kernel_is_not_reachable(case: &Case) -> Checked {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let (text, bytes) = (id.trim().as_bytes(), crate::peer::unhex(&id.trim().replace('-', "")));
    let packed: Vec<u8> = id.trim().bytes().filter(|byte| *byte != b'-').collect();
    let interface = case.interface()?;
    let address = case.address_of(&interface)?;
    succeeds("reachable with the interface's own address", interface.reachable(&address))?;
    let halves = [bytes.get(..8).unwrap_or(&[]).to_vec(), bytes.get(8..).unwrap_or(&[]).to_vec()];
    let forms: [&[u8]; 5] = [text, &packed, &bytes, &halves[0], &halves[1]];
    let found = forms.iter().filter(|form| form.len() >= 8).find_map(|form| {
        address.windows(form.len()).position(|window| window == *form).map(|at| (at, form.len()))
    });
    let Some((at, len)) = found else {
        return Err(Stop::Skip("the address does not contain the plain boot id".to_string()));
    };
    for changed in [at, at + len / 2, at + len - 1] {
        let mut foreign = address.clone();
        foreign[changed] = if foreign[changed] == b'0' { b'1' } else { b'0' };
        if foreign == address {
            continue;
        }
        holds(
            interface.reachable(&foreign).is_err(),
            "an address with the boot id of another kernel",
            "a refusal: it reaches no peer here, or another one",
            "reachable",
        )?;
    }
    Ok(())
}
