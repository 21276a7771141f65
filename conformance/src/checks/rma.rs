//! Checks of put and get: their range, their keys, and their errors.

use super::messages::cut;
use crate::case::{ALL_RIGHTS, Case, Desk};
use crate::endpoint::{Key, Target};
use crate::random::Random;
use crate::report::{Checked, Stop, equal, holds, refused, same_bytes, succeeds};
use crate::sys::{Asked, Memory};
use tieline_plugin_api::abi::{AllocParams, Iov, KeyParams, RegisterParams};
use tieline_plugin_api::{Status, access, caps, memory_caps, op_flags};

/// The length of a region, in bytes.
pub(super) const TARGET: usize = 64 << 10;
const GUARD: usize = 512;

/// The setup of a check: a desk, a target at the far end with its key, and local memory.
pub(super) struct Bench {
    pub(super) desk: Desk,
    pub(super) target: Memory,
    pub(super) packed: Vec<u8>,
    pub(super) key: Key,
    pub(super) local: Memory,
}

pub(super) fn bench(case: &Case, rights: u64) -> Result<Bench, Stop> {
    let mut desk = case.desk()?;
    let target = case.memory(TARGET, rights)?;
    target.write(0, &[0xee; TARGET]);
    let local = case.memory(TARGET, access::REMOTE_READ | access::REMOTE_WRITE)?;
    let packed = case.key_of(&target)?;
    let key = desk.import(&packed)?;
    let key = succeeds("import_key", key)?;
    Ok(Bench { desk, target, packed, key, local })
}

impl Bench {
    /// Puts `len` local bytes (or gets them) at `offset`, in `count` pieces.
    fn move_bytes(
        &mut self,
        put: bool,
        len: usize,
        offset: u64,
        count: usize,
    ) -> Result<Result<(), Status>, Stop> {
        let mut random = Random(offset | 77);
        let pieces = cut(&mut random, len, count);
        let iov: Vec<Iov> = pieces.into_iter().map(|range| self.local.piece(range)).collect();
        let Bench { desk, key, .. } = self;
        desk.rma(put, &iov, key, offset)
    }
}

/// Returns the length of the longest operation that the module's limits for puts and gets, and the guarded region, allow.
pub(super) fn most(case: &Case) -> usize {
    let limit = |max: usize| if max == 0 { usize::MAX } else { max };
    limit(case.attr.max_put).min(limit(case.attr.max_get)).min(TARGET - 2 * GUARD)
}

pub(super) fn a_put_writes_exactly_its_range(case: &Case) -> Checked {
    let mut bench = bench(case, ALL_RIGHTS)?;
    let (mut random, mut model) = (Random(5), vec![0xee; TARGET]);
    for n in 0..300 {
        let len = if n < 20 { n.min(most(case)) } else { random.below(most(case) + 1) };
        let offset = GUARD + random.below(TARGET - 2 * GUARD - len + 1);
        let data = random.bytes(len);
        bench.local.write(0, &data);
        let count = 1 + n % case.attr.max_iov.clamp(1, 40) as usize;
        let put = bench.move_bytes(true, len, offset as u64, count)?;
        equal(format!("put of {len} bytes in {count} pieces"), Ok(()), put)?;
        model[offset..offset + len].copy_from_slice(&data);
        settle(case, &mut bench.desk)?;
        same_bytes("the target after a put", &model, &bench.target.all())?;
    }
    Ok(())
}

pub(super) fn bytes_of_a_short_put_are_taken_when_it_returns(case: &Case) -> Checked {
    const COOKIE: u64 = 4712;
    let most = case.attr.max_short_put.min(most(case));
    if most == 0 {
        return Err(Stop::Skip("copies no bytes of a put while it is called".to_string()));
    }
    let mut bench = bench(case, ALL_RIGHTS)?;
    let mut random = Random(9);
    for n in 0..200 {
        let len = if n < 4 { most - n.min(most - 1) } else { 1 + random.below(most) };
        let data = random.bytes(len);
        let flags = if n % 2 == 0 { 0 } else { op_flags::REMOTE_COMPLETION };
        let Bench { desk, key, local, target, .. } = &mut bench;
        local.write(0, &data);
        let (endpoint, iov) = (desk.endpoint(), [local.piece(0..len)]);
        let asked = || Target { key, offset: GUARD as u64, cookie: COOKIE, flags };
        let code = desk.retry(|| endpoint.rma(true, &iov, asked()))?;
        local.write(0, &vec![0xdd; len]);
        if flags == 0 {
            equal("a short put that completes locally", Ok(0), code)?;
            flush(desk)?;
        } else {
            equal("a short put", Ok(()), desk.complete(code, COOKIE)?.map(drop))?;
            settle(case, desk)?;
        }
        same_bytes("the target", &data, &target.read(GUARD..GUARD + len))?;
    }
    Ok(())
}

/// Makes puts visible: without remote completion a put may be visible only after a flush.
fn settle(case: &Case, desk: &mut Desk) -> Checked {
    if case.has(caps::REMOTE_COMPLETION) {
        return Ok(());
    }
    flush(desk)
}

fn flush(desk: &mut Desk) -> Checked {
    let endpoint = desk.endpoint();
    let code = desk.retry(|| endpoint.flush(4711))?;
    equal("flush", Ok(()), desk.complete(code, 4711)?.map(|_| ()))
}

pub(super) fn a_get_reads_exactly_its_range(case: &Case) -> Checked {
    let mut bench = bench(case, ALL_RIGHTS)?;
    let mut random = Random(6);
    let model = random.bytes(TARGET);
    bench.target.write(0, &model);
    for n in 0..300 {
        let len = if n < 20 { n.min(most(case)) } else { random.below(most(case) + 1) };
        let offset = random.below(TARGET - len + 1);
        bench.local.write(0, &[0x11; TARGET]);
        let count = 1 + n % case.attr.max_iov.clamp(1, 40) as usize;
        let got = bench.move_bytes(false, len, offset as u64, count)?;
        equal(format!("get of {len} bytes in {count} pieces"), Ok(()), got)?;
        let mut expected = vec![0x11; TARGET];
        expected[..len].copy_from_slice(&model[offset..offset + len]);
        same_bytes("local memory after a get", &expected, &bench.local.all())?;
    }
    same_bytes("the target after gets", &model, &bench.target.all())
}

pub(super) fn an_iov_of_the_greatest_length_works(case: &Case) -> Checked {
    let mut bench = bench(case, ALL_RIGHTS)?;
    let count = case.attr.max_iov.min(4096) as usize;
    let len = most(case).min(count * 3);
    let data = Random(7).bytes(len);
    bench.local.write(0, &data);
    equal("put with max_iov pieces", Ok(()), bench.move_bytes(true, len, 0, count)?)?;
    settle(case, &mut bench.desk)?;
    same_bytes("the target", &data, &bench.target.read(0..len))?;
    bench.local.write(0, &vec![0; len]);
    equal("get with max_iov pieces", Ok(()), bench.move_bytes(false, len, 0, count)?)?;
    same_bytes("local memory", &data, &bench.local.read(0..len))
}

pub(super) fn a_range_outside_the_region_is_refused(case: &Case) -> Checked {
    let mut bench = bench(case, ALL_RIGHTS)?;
    let end = TARGET as u64;
    for (offset, len) in
        [(end, 1), (end - 7, 8), (end + 4096, 8), (u64::MAX - 3, 8), (u64::MAX, 1), (1 << 63, 8)]
    {
        for put in [true, false] {
            let what = format!("{} of {len} bytes at {offset:#x}", if put { "put" } else { "get" });
            let done = bench.move_bytes(put, len, offset, 1)?;
            refused(what, done, &[Status::OutOfRange, Status::Invalid])?;
        }
    }
    same_bytes("the target", &[0xee; TARGET], &bench.target.all())?;
    equal("the endpoint afterwards: a put", Ok(()), bench.move_bytes(true, 8, 0, 1)?)
}

pub(super) const WRONG_KEY: &[Status] =
    &[Status::KeyRejected, Status::OutOfRange, Status::Invalid, Status::BadData];

pub(super) fn a_key_with_any_byte_changed_is_rejected(case: &Case) -> Checked {
    let mut bench = bench(case, ALL_RIGHTS)?;
    let good = bench.packed.clone();
    bench.local.write(0, &[0x33; TARGET]);
    for at in 0..good.len() {
        for flip in [0x01, 0x80, 0xff, 1 << (at % 8)] {
            let mut forged = good.clone();
            forged[at] ^= flip;
            let key = match bench.desk.import(&forged)? {
                Ok(key) => key,
                Err(failure) => {
                    refused(
                        format!("a key with byte {at} changed"),
                        Err::<(), _>(failure),
                        WRONG_KEY,
                    )?;
                    continue;
                }
            };
            for put in [true, false] {
                let piece = bench.local.piece(0..8);
                let Bench { desk, .. } = &mut bench;
                let done = desk.rma(put, &[piece], &key, 0)?;
                let verb = if put { "put" } else { "get" };
                refused(format!("{verb} with byte {at} of the key changed"), done, WRONG_KEY)?;
            }
        }
    }
    flush(&mut bench.desk)?;
    same_bytes("the target", &[0xee; TARGET], &bench.target.all())?;
    equal("put with the true key afterwards", Ok(()), bench.move_bytes(true, 8, 0, 1)?)
}

pub(super) fn bytes_that_are_no_key_do_no_harm(case: &Case) -> Checked {
    let mut bench = bench(case, ALL_RIGHTS)?;
    let (good, mut random) = (bench.packed.clone(), Random(8));
    let cuts = (0..good.len()).map(|len| good[..len].to_vec());
    let noise: Vec<Vec<u8>> = (0..200).map(|n| random.bytes(n)).collect();
    let longer = [good.as_slice(), &[0; 9]].concat();
    for bytes in cuts.chain(noise).chain([longer]) {
        let Ok(key) = bench.desk.import(&bytes)? else { continue };
        if !case.has(caps::CHECKS_KEYS) {
            continue;
        }
        let found = format!("{} bytes imported", bytes.len());
        let what = "bytes that are no key, by their number";
        holds(bytes.len() == good.len(), what, "a refusal of import_key", found)?;
        // Possibly only the target knows that no region has this noise, which has the length of a key.
        let done = bench.desk.rma(true, &[bench.local.piece(0..8)], &key, 0)?;
        refused("a put by noise that is as long as a key", done, WRONG_KEY)?;
    }
    equal("put with the true key afterwards", Ok(()), bench.move_bytes(true, 8, 0, 1)?)
}

pub(super) fn a_revoked_key_is_rejected(case: &Case) -> Checked {
    let mut bench = bench(case, ALL_RIGHTS)?;
    equal("put before deregister", Ok(()), bench.move_bytes(true, 8, 0, 1)?)?;
    succeeds("deregister", bench.desk.revoke(&mut bench.target)?)?;
    for put in [true, false] {
        let done = bench.move_bytes(put, 8, 0, 1)?;
        refused("an operation with a key that was just revoked", done, &[Status::KeyRejected])?;
    }
    // Another region takes the place of the old one, if the domain allows it.
    let next = case.memory(TARGET, ALL_RIGHTS)?;
    next.write(0, &[0xdd; TARGET]);
    for put in [true, false] {
        let done = bench.move_bytes(put, 8, 0, 1)?;
        refused("an operation with a revoked key", done, &[Status::KeyRejected])?;
    }
    let packed = bench.packed.clone();
    if let Ok(key) = bench.desk.import(&packed)? {
        let piece = bench.local.piece(0..8);
        let Bench { desk, .. } = &mut bench;
        let done = desk.rma(true, &[piece], &key, 0)?;
        refused("a put with a revoked key, imported again", done, &[Status::KeyRejected])?;
    }
    same_bytes("the later region", &[0xdd; TARGET], &next.all())
}

pub(super) fn rights_that_a_region_does_not_give_are_refused(case: &Case) -> Checked {
    for (rights, put) in [(access::REMOTE_READ, true), (access::REMOTE_WRITE, false)] {
        let mut bench = bench(case, rights)?;
        let verb = if put { "put" } else { "get" };
        let done = bench.move_bytes(put, 8, 0, 1)?;
        refused(
            format!("{verb} without the right to"),
            done,
            &[Status::KeyRejected, Status::Permission],
        )?;
        same_bytes("the target", &[0xee; TARGET], &bench.target.all())?;
        equal("the other direction", Ok(()), bench.move_bytes(!put, 8, 0, 1)?)?;
    }
    Ok(())
}

pub(super) fn a_key_of_another_domain_is_rejected(case: &Case) -> Checked {
    let mut bench = bench(case, ALL_RIGHTS)?;
    let name = tieline_plugin_api::abi::fixed_str(&case.domain_attr.name).unwrap_or("");
    let other = succeeds("opening the domain a second time", case.provider.open_domain(name))?;
    let register = if case.has(caps::OWN_MEMORY_ONLY) { 0 } else { case.domain_attr.caps };
    let foreign = succeeds("register", other.memory(register, TARGET, ALL_RIGHTS))?;
    foreign.write(0, &[0xaa; TARGET]);
    let packed = case.key_of(&foreign)?;
    if let Ok(key) = bench.desk.import(&packed)? {
        let piece = bench.local.piece(0..8);
        let Bench { desk, .. } = &mut bench;
        let done = desk.rma(true, &[piece], &key, 0)?;
        refused("a put with another domain's key", done, WRONG_KEY)?;
    }
    same_bytes("the other domain's memory", &[0xaa; TARGET], &foreign.all())
}

pub(super) fn a_key_fits_its_stated_length(case: &Case) -> Checked {
    let memory = case.memory(64, ALL_RIGHTS)?;
    let packed = case.key_of(&memory)?;
    holds(!packed.is_empty(), "the length of a key", "more than 0", packed.len())?;
    for capacity in [0, packed.len() - 1] {
        refused(
            format!("pack_key into {capacity} bytes"),
            memory.key(capacity),
            &[Status::TooLarge],
        )?;
    }
    Ok(())
}

pub(super) fn operations_longer_than_the_limit_are_refused(case: &Case) -> Checked {
    for (put, limit) in [(true, case.attr.max_put), (false, case.attr.max_get)] {
        if limit == 0 || limit >= 64 << 20 {
            continue;
        }
        let mut desk = case.desk()?;
        let target = case.memory(limit + 8, ALL_RIGHTS)?;
        let local = case.memory(limit + 8, ALL_RIGHTS)?;
        let packed = case.key_of(&target)?;
        let key = desk.import(&packed)?;
        let key = succeeds("import_key", key)?;
        let done = desk.rma(put, &[local.piece(0..limit)], &key, 0)?;
        equal("an operation of the greatest length", Ok(()), done)?;
        let done = desk.rma(put, &[local.piece(0..limit + 1)], &key, 0)?;
        refused("an operation one byte longer", done, &[Status::TooLarge, Status::Invalid])?;
    }
    Ok(())
}

pub(super) fn a_passive_target_needs_no_poll(case: &Case) -> Checked {
    let mut bench = bench(case, ALL_RIGHTS)?;
    // Only the near end makes progress from here on.
    let far_end = if bench.desk.boxes.len() == 2 { bench.desk.boxes.pop() } else { None };
    let len = most(case).min(4096);
    bench.local.write(0, &vec![0x42; len]);
    equal("put", Ok(()), bench.move_bytes(true, len, 8, 1)?)?;
    flush(&mut bench.desk)?;
    same_bytes("the target", &vec![0x42; len], &bench.target.read(8..8 + len))?;
    bench.local.write(0, &vec![0; len]);
    equal("get", Ok(()), bench.move_bytes(false, len, 8, 1)?)?;
    same_bytes("local memory", &vec![0x42; len], &bench.local.read(0..len))?;
    drop(far_end);
    Ok(())
}

pub(super) fn flush_and_fence_complete(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    let endpoint = desk.endpoint();
    let moves = caps::PUT | caps::GET | caps::ATOMICS;
    let said = desk.retry(|| endpoint.flush_itself(4710))?;
    if said == Err(Status::Unsupported) && case.attr.caps & moves == 0 {
        return Err(Stop::Skip("has no flush: accepted messages are delivered".to_string()));
    }
    equal("flush", Ok(()), desk.complete(said, 4710)?.map(drop))?;
    match desk.fence() {
        Err(Stop::Skip(_)) => {} // the core waits for a flush instead
        said => said?,
    }
    flush(&mut desk)
}

pub(super) const BOTH: u64 = caps::PUT | caps::GET;
pub(super) const CHECKED: u64 = BOTH | caps::CHECKS_KEYS;
pub(super) const PASSIVE: u64 = BOTH | caps::PASSIVE_TARGET;

/// An unknown flag of the kind that a provider must refuse; below, an unknown hint.
const UNKNOWN: u64 = 1 << 31;
const UNKNOWN_HINT: u64 = 1 << 63;

pub(super) fn an_unknown_flag_is_refused_and_an_unknown_hint_ignored(case: &Case) -> Checked {
    let mut bench = bench(case, ALL_RIGHTS)?;
    let iov = [bench.local.piece(0..8)];
    let Bench { desk, key, target, .. } = &mut bench;
    for put in [true, false] {
        let verb = if put { "put" } else { "get" };
        let done = desk.rma_with(put, &iov, key, 0, op_flags::REMOTE_COMPLETION | UNKNOWN)?;
        refused(format!("{verb} with an unknown flag"), done, &[Status::UnsupportedParam])?;
        same_bytes("the target", &[0xee; TARGET], &target.all())?;
    }
    for put in [false, true] {
        let verb = if put { "put" } else { "get" };
        let done = desk.rma_with(put, &iov, key, 0, op_flags::REMOTE_COMPLETION | UNKNOWN_HINT)?;
        equal(format!("{verb} with an unknown hint"), Ok(()), done)?;
    }
    Ok(())
}

pub(super) fn memory_that_a_domain_does_not_know_is_refused(case: &Case) -> Checked {
    const NO_KIND: u32 = 77;
    let (mut words, rights) = ([0u64; 64], access::REMOTE_READ);
    let (base, len) = (words.as_mut_ptr().cast::<u8>(), size_of_val(&words));
    let (register, alloc) =
        (RegisterParams::new(base, len, rights), AllocParams::new(4096, rights));
    let mut asked = Vec::new();
    if case.domain_attr.caps & memory_caps::REGISTER != 0 && !case.has(caps::OWN_MEMORY_ONLY) {
        let with = |access, flags, kind| RegisterParams { access, flags, kind, ..register };
        asked.extend([
            (Asked::Register(with(rights, UNKNOWN_HINT, 0)), None),
            (Asked::Register(with(rights | UNKNOWN_HINT, 0, 0)), Some(Status::UnsupportedParam)),
            (Asked::Register(with(rights | UNKNOWN, 0, 0)), Some(Status::UnsupportedParam)),
            (Asked::Register(with(rights, UNKNOWN, 0)), Some(Status::UnsupportedParam)),
            (Asked::Register(with(rights, 0, NO_KIND)), Some(Status::Unsupported)),
        ]);
    }
    if case.domain_attr.caps & memory_caps::ALLOC != 0 {
        let with = |access, flags, kind| AllocParams { access, flags, kind, ..alloc };
        asked.extend([
            (Asked::Alloc(with(rights, UNKNOWN_HINT, 0)), None),
            (Asked::Alloc(with(rights | UNKNOWN_HINT, 0, 0)), Some(Status::UnsupportedParam)),
            (Asked::Alloc(with(rights | UNKNOWN, 0, 0)), Some(Status::UnsupportedParam)),
            (Asked::Alloc(with(rights, UNKNOWN, 0)), Some(Status::UnsupportedParam)),
            (Asked::Alloc(with(rights, 0, NO_KIND)), Some(Status::Unsupported)),
        ]);
    }
    for (asked, refusal) in asked {
        let said = case.domain.says(&asked).map_err(|failure| failure.status);
        let what = match &asked {
            Asked::Alloc(p) => ("alloc", p.access, p.flags, p.kind),
            Asked::Register(p) => ("register", p.access, p.flags, p.kind),
        };
        let (verb, access, flags, kind) = what;
        let what = format!("{verb} with access {access:#x}, flags {flags:#x}, kind {kind}");
        match refusal {
            None => succeeds(what, said)?,
            Some(status) => refused(what, said, &[status])?,
        }
    }
    Ok(())
}

pub(super) fn a_key_to_a_part_of_a_region_leads_nowhere_else_or_is_refused(case: &Case) -> Checked {
    let mut bench = bench(case, ALL_RIGHTS)?;
    let capacity = case.domain_attr.max_key_len as usize;
    for unknown in [UNKNOWN, UNKNOWN_HINT] {
        let part = KeyParams { access: unknown, ..KeyParams::empty() };
        let said = bench.target.key_to(part, capacity);
        refused("a key with an unknown right", said, &[Status::UnsupportedParam])?;
    }
    let part = KeyParams { offset: 64, len: 64, ..KeyParams::empty() };
    let packed = match bench.target.key_to(part, capacity) {
        Err(status) => return equal("a key to a part of a region", Status::Unsupported, status),
        Ok(packed) => packed,
    };
    let key = bench.desk.import(&packed)?;
    let key = succeeds("import_key of a key to a part", key)?;
    let word = [bench.local.piece(0..8)];
    bench.local.write(0, &[0x11; 16]);
    equal("put by a key to a part", Ok(()), bench.desk.rma(true, &word, &key, 0)?)?;
    let done = bench.desk.rma(true, &word, &key, 60)?;
    refused("put beyond the part", done, &[Status::OutOfRange, Status::KeyRejected])?;
    let mut expected = vec![0xee; TARGET];
    expected[64..72].fill(0x11);
    same_bytes("the target", &expected, &bench.target.all())
}
