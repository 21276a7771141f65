//! Checks of keys: pointers to memory, keys for all endpoints of an interface, and operations that outlive their key.

use super::flight::settled;
use super::offers::at_once;
use super::processes::meet;
use super::rma::{Bench, TARGET, bench, most};
use crate::case::{ALL_RIGHTS, Case, Desk};
use crate::endpoint::{Endpoint, Key, Target};
use crate::peer::unhex;
use crate::random::Random;
use crate::report::{Checked, Stop, equal, refused, same_bytes, succeeds};
use crate::watch::Patience;
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{Failure, Status, access, caps, op_flags};

pub(super) fn a_pointer_leads_to_the_bytes_of_its_region(case: &Case) -> Checked {
    let Bench { mut desk, target, key, .. } = bench(case, ALL_RIGHTS)?;
    let endpoint = desk.endpoint();
    for (n, (offset, len)) in
        [(0, TARGET), (0, 1), (4096, 4096), (517, 33), (TARGET - 1, 1)].into_iter().enumerate()
    {
        target.write(0, &Random(n as u64 + 1).bytes(TARGET));
        let what = format!("key_pointer to {len} bytes at {offset}");
        let at = desk.retry(|| endpoint.pointer(&key, offset as u64, len as u64))?;
        let at = succeeds(&what, at)?;
        same_bytes(format!("{what}, loaded"), &target.read(offset..offset + len), &at.load(len))?;
        let (mut model, data) = (target.all(), Random(n as u64 + 100).bytes(len));
        at.store(&data);
        model[offset..offset + len].copy_from_slice(&data);
        same_bytes(format!("{what}: the region after a store"), &model, &target.all())?;
    }
    let end = TARGET as u64;
    for (offset, len) in [(end, 1), (1, end), (u64::MAX - 3, 8), (0, u64::MAX)] {
        let at = desk.retry(|| endpoint.pointer(&key, offset, len).map(drop))?;
        let what = format!("key_pointer to {len} bytes at {offset} of {end}");
        refused(what, at, &[Status::OutOfRange])?;
    }
    for rights in [access::REMOTE_READ, access::REMOTE_WRITE, access::REMOTE_ATOMIC] {
        let region = case.memory(4096, rights)?;
        // A provider that checks rights at import fails at this call.
        let at = match desk.import(&case.key_of(&region)?)? {
            Ok(key) => desk.retry(|| endpoint.pointer(&key, 0, 8).map(drop))?,
            Err(failure) => Err(failure.status),
        };
        let what = "key_pointer by a key that does not grant both reading and writing";
        refused(what, at, &[Status::KeyRejected])?;
    }
    Ok(())
}

pub(super) fn a_pointer_is_safe_when_its_region_has_ended(case: &Case) -> Checked {
    case.survives_the_owner()?;
    let Bench { mut desk, mut target, key, .. } = bench(case, ALL_RIGHTS)?;
    let endpoint = desk.endpoint();
    let at = desk.retry(|| endpoint.pointer(&key, 0, TARGET as u64))?;
    let at = succeeds("key_pointer", at)?;
    succeeds("deregister of a region that a pointer leads to", desk.revoke(&mut target)?)?;
    let mut others = Vec::new();
    for _ in 0..8 {
        let other = case.memory(TARGET, ALL_RIGHTS)?;
        other.write(0, &[0x33; TARGET]);
        others.push(other);
    }
    // A load and a store at this address neither end a process, which this one would notice, nor reach other memory.
    let _ = at.load(TARGET);
    at.store(&[0x44; TARGET]);
    for other in &others {
        let what = "a region that was made after the end of the one that a pointer leads to";
        same_bytes(what, &[0x33; TARGET], &other.all())?;
    }
    let late = desk.retry(|| endpoint.pointer(&key, 0, 8).map(drop))?;
    refused("key_pointer after deregister", late, &[Status::KeyRejected])
}

pub(super) fn a_pointer_is_safe_when_its_owner_is_dead(case: &Case) -> Checked {
    case.survives_the_owner()?;
    let (mut desk, mut partner) = meet(case)?;
    partner.tell("key")?;
    let packed = unhex(&partner.answer(&mut desk)?);
    let key = succeeds("import_key", desk.import(&packed)?)?;
    let endpoint = desk.endpoint();
    let at = desk.retry(|| endpoint.pointer(&key, 0, 4096))?;
    let at = succeeds("key_pointer", at)?;
    at.store(&[0x2d; 4096]);
    partner.kill();
    let patience = Patience::new();
    while case.has(caps::PEER_FAILURE) && desk.boxes[0].failed.is_empty() {
        desk.turn()?;
        patience.still(
            "the endpoint to a process that was killed",
            "ENDPOINT_FAILED",
            "nothing",
        )?;
    }
    // The mapping stays until the key is dropped, but its contents have no meaning any more.
    let _ = at.load(4096);
    at.store(&[0x2e; 4096]);
    Ok(())
}

fn done(
    desk: &mut Desk,
    endpoint: &Endpoint,
    put: bool,
    iov: &[Iov],
    key: &Key,
    offset: usize,
) -> Result<Result<(), Status>, Stop> {
    let (cookie, flags) = (0x1_0000 + offset as u64, op_flags::REMOTE_COMPLETION);
    let target = Target { key, offset: offset as u64, cookie, flags };
    let code = desk.retry(|| endpoint.rma(put, iov, target))?;
    Ok(desk.complete(code, cookie)?.map(drop))
}

/// Imports a key for all endpoints of the near interface, with progress while the provider returns AGAIN.
fn import_for_all(desk: &mut Desk, packed: &[u8]) -> Result<Result<Key, Failure>, Stop> {
    let near = desk.boxes[0].interface.clone();
    let mut failure = None;
    let key = desk.retry(|| {
        Key::for_all_endpoints(&near, packed).map_err(|why| failure.insert(why).status)
    })?;
    Ok(key.map_err(|status| failure.unwrap_or_else(|| status.into())))
}

pub(super) fn a_key_of_the_interface_serves_all_its_endpoints(case: &Case) -> Checked {
    let Bench { mut desk, mut target, packed, key, local } = bench(case, ALL_RIGHTS)?;
    drop(key);
    let key = import_for_all(&mut desk, &packed)?;
    let key = succeeds("import_key of the interface", key)?;
    let mut endpoints = vec![desk.endpoint()];
    for _ in 0..2 {
        endpoints.extend(desk.second(case)?);
    }
    let len = most(case).min(64);
    for round in 0..3 {
        for (n, endpoint) in endpoints.iter().enumerate() {
            let (offset, data) =
                (n * 512 + round * 64, Random((n * 8 + round) as u64 + 1).bytes(len));
            let what =
                format!("by one key of the interface, on endpoint {n} of {}", endpoints.len());
            local.write(0, &data);
            let iov = [local.piece(0..len)];
            let put = done(&mut desk, endpoint, true, &iov, &key, offset)?;
            equal(format!("put {what}"), Ok(()), put)?;
            settled(&mut desk)?;
            same_bytes(format!("put {what}"), &data, &target.read(offset..offset + len))?;
            local.write(0, &[0; 64]);
            let got = done(&mut desk, endpoint, false, &iov, &key, offset)?;
            equal(format!("get {what}"), Ok(()), got)?;
            same_bytes(format!("get {what}"), &data, &local.read(0..len))?;
        }
        // The close of one endpoint must not drop the key of the others.
        if round == 0 {
            endpoints.truncate(2);
        }
    }
    let mut random = Random(31);
    for len in [0, 1, packed.len().saturating_sub(1), packed.len(), packed.len() + 1] {
        let noise = import_for_all(&mut desk, &random.bytes(len))?;
        if let (Ok(noise), true) = (noise, case.has(caps::CHECKS_KEYS)) {
            // Possibly only the target knows whether such a key exists.
            let put = done(&mut desk, &endpoints[0], true, &[local.piece(0..8)], &noise, 0)?;
            refused("put by noise in place of a key", put, &[Status::KeyRejected])?;
        }
    }
    if case.has(caps::CHECKS_KEYS) {
        succeeds("deregister", desk.revoke(&mut target)?)?;
        let put = done(&mut desk, &endpoints[0], true, &[local.piece(0..8)], &key, 0)?;
        refused("put by a key of the interface after deregister", put, &[Status::KeyRejected])?;
    }
    Ok(())
}

pub(super) fn operations_go_on_though_their_key_is_dropped(case: &Case) -> Checked {
    const COUNT: usize = 40;
    for for_all_endpoints in [false, true] {
        let Bench { mut desk, target, packed, mut key, local } = bench(case, ALL_RIGHTS)?;
        if for_all_endpoints && !case.has(caps::INTERFACE_KEYS) {
            break;
        }
        if for_all_endpoints {
            key = succeeds("import_key", import_for_all(&mut desk, &packed)?)?;
        }
        let len = most(case).min(512);
        let bytes = |n: usize| Random(n as u64 + 1).bytes(len);
        let (endpoint, mut posted, mut pending) = (desk.endpoint(), 0, Vec::new());
        for n in 0..COUNT {
            let (range, put) = (n * 512..n * 512 + len, n % 2 == 0);
            if put { &local } else { &target }.write(range.start, &bytes(n));
            let flags = op_flags::REMOTE_COMPLETION;
            let to = Target { key: &key, offset: range.start as u64, cookie: n as u64, flags };
            match at_once(|| endpoint.rma(put, &[local.piece(range.clone())], to)) {
                Err(Status::Again) => break,
                code => {
                    if succeeds("a put or get", code)? == 1 {
                        pending.push(n as u64);
                    }
                }
            }
            posted = n + 1;
        }
        drop(key);
        for cookie in pending {
            let ended = desk.complete(Ok(1), cookie)?.map(drop);
            equal("a put or get whose key was dropped while it was pending", Ok(()), ended)?;
        }
        for n in 0..posted {
            let memory = if n % 2 == 0 { &target } else { &local };
            let what = "what was put or got by a key that was dropped meanwhile";
            same_bytes(what, &bytes(n), &memory.read(n * 512..n * 512 + len))?;
        }
    }
    Ok(())
}
