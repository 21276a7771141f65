//! Checks of leaks, in the counters of the kernel and the allocator about this process.

use super::messages::check;
use crate::case::{ALL_RIGHTS, Case};
use crate::hub::Hub;
use crate::measure::{Held, files_of};
use crate::report::{Checked, Stop, holds, succeeds};
use crate::watch::share;
use std::time::Instant;
use tieline_plugin_api::{caps, memory_caps};

/// Repeats `work` `times` times, or until a tenth of the limit has passed, but at least `least` times. Returns the number.
fn repeated(
    times: usize,
    least: usize,
    mut work: impl FnMut(usize) -> Checked,
) -> Result<usize, Stop> {
    let end = Instant::now() + share(10);
    for n in 0..times {
        if n >= least && Instant::now() > end {
            return Ok(n);
        }
        work(n)?;
    }
    Ok(times)
}

/// Checks that `work` leaves nothing behind. Pools may fill up to a bound: growth in each of three series is a leak.
pub(super) fn leaves_nothing(
    what: &str,
    (times, least): (usize, usize),
    mut work: impl FnMut(usize) -> Checked,
) -> Checked {
    for n in 0..least / 2 {
        work(n)?;
    }
    let mut grown = Ok(());
    for _ in 0..3 {
        let before = Held::now();
        let done = repeated(times / 3, least / 3, &mut work)?;
        grown = before.is_as_it_was(&format!("{done} {what}"), done);
        if grown.is_ok() {
            break;
        }
    }
    grown
}

pub(super) fn a_thousand_connections_leave_nothing_behind(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    if desk.boxes.len() < 2 && case.connects_to_endpoint() {
        return Err(Stop::Skip("the module connects only to itself".to_string()));
    }
    let mut target = None;
    if case.has(caps::PUT) {
        let memory = case.memory(4096, ALL_RIGHTS)?;
        target = Some((case.key_of(&memory)?, memory));
    }
    desk.close_endpoints();
    leaves_nothing("connections that were opened and closed", (1000, 60), |n| {
        desk.connect_ends(case)?;
        if case.has(caps::AM_SHORT) {
            desk.send(1, n as u64, b"")?;
            check(&desk.receive()?, 1, n as u64, b"")?;
        }
        if let Some((packed, _)) = &target {
            drop(succeeds("import_key", desk.import(packed)?)?);
        }
        desk.close_endpoints();
        desk.turn()?;
        desk.forget();
        Ok(())
    })
}

pub(super) fn a_hundred_interfaces_leave_nothing_behind(case: &Case) -> Checked {
    leaves_nothing("interfaces that were opened and closed", (100, 20), |n| {
        let mut desk = case.desk()?;
        if case.has(caps::AM_SHORT) {
            desk.send(1, n as u64, b"")?;
            check(&desk.receive()?, 1, n as u64, b"")?;
        }
        Ok(())
    })
}

pub(super) fn polls_and_messages_leave_no_memory_behind(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    leaves_nothing("polls that brought nothing", (20_000, 4000), |_| {
        desk.boxes[0].turn().map(drop)
    })?;
    if !case.has(caps::AM_SHORT) {
        return Ok(());
    }
    let data = vec![7; case.attr.max_short.min(200)];
    leaves_nothing("messages", (10_000, 2000), |n| {
        desk.send(1, n as u64, &data)?;
        check(&desk.receive()?, 1, n as u64, &data)
    })
}

pub(super) fn keys_and_regions_leave_nothing_behind(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    let memory = case.memory(4096, ALL_RIGHTS)?;
    let packed = case.key_of(&memory)?;
    leaves_nothing("keys that were imported and dropped", (5000, 400), |_| {
        drop(succeeds("import_key", desk.import(&packed)?)?);
        Ok(())
    })?;
    leaves_nothing("regions that were made, given a key and deregistered", (2000, 200), |_| {
        let mut memory = case.memory(4096, ALL_RIGHTS)?;
        let packed = case.key_of(&memory)?;
        drop(succeeds("import_key", desk.import(&packed)?)?);
        let revoked = desk.revoke(&mut memory)?;
        succeeds("deregister", revoked)
    })?;
    let local = case.memory(64, ALL_RIGHTS)?;
    let key = succeeds("import_key", desk.import(&packed)?)?;
    for (put, verb) in [(true, "puts"), (false, "gets")] {
        leaves_nothing(verb, (3000, 600), |_| {
            succeeds(verb, desk.rma(put, &[local.piece(0..8)], &key, 0)?)
        })?;
    }
    if case.domain_attr.caps & memory_caps::ALLOC == 0 {
        return Ok(());
    }
    leaves_nothing("allocated regions that were deregistered", (1000, 100), |_| {
        succeeds("alloc", case.domain.memory(0, 64 << 10, ALL_RIGHTS)).map(drop)
    })
}

pub(super) fn endpoints_that_never_connect_leave_nothing_behind(case: &Case) -> Checked {
    let interface = case.interface()?;
    let address = match case.connects_to_endpoint() {
        true => Vec::new(),
        false => case.address_of(&interface)?,
    };
    leaves_nothing("endpoints that were closed immediately", (900, 90), |_| {
        let endpoint = super::waiting::connect(case, &interface, &address, &mut [])?;
        drop(endpoint);
        // One poll may deliver a single event only.
        while !succeeds("poll", interface.poll(16))?.is_empty() {}
        Ok(())
    })
}

pub(super) fn no_file_stays_behind(case: &Case) -> Checked {
    leaves_no_file(|| {
        let mut hub = Hub::of(case, 2)?;
        for at in 0..2 {
            if case.has(caps::AM_SHORT) {
                hub.send(at, true, 1, b"")?;
                let _ = hub.receive(Some(at))?;
            }
        }
        let region = case.has(caps::PUT).then(|| case.memory(4096, ALL_RIGHTS)).transpose()?;
        drop((hub, region));
        Ok(())
    })
}

pub(super) fn leaves_no_file(round: impl Fn() -> Checked) -> Checked {
    round()?; // these files stay for the life of the process, or of the user
    let before = files_of();
    let mut left: Option<Vec<String>> = None;
    // Other processes make files, too: only new files of the same kind after each of several rounds belong to this provider.
    for _ in 0..4 {
        let earlier = files_of();
        round()?;
        let new: Vec<String> = files_of().difference(&earlier).map(|file| file.kind()).collect();
        left = Some(match left {
            None => new,
            Some(mut all) => {
                all.retain(|kind| new.contains(kind));
                all
            }
        });
    }
    let (kinds, now) = (left.unwrap_or_default(), files_of());
    let files: Vec<String> = now
        .difference(&before)
        .filter(|file| kinds.contains(&file.kind()))
        .map(|file| file.path.display().to_string())
        .collect();
    holds(
        files.is_empty(),
        "files after everything was closed",
        "those from before",
        format!("also {}", files.join(", ")),
    )
}
