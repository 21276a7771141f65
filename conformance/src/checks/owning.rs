//! Checks of the ownership of memory: deregistered memory is refused to keys and not accessed, allocated memory is zeroed.

use super::rma::{Bench, TARGET, bench, most};
use crate::case::{ALL_RIGHTS, Case};
use crate::endpoint::{Key, Target};
use crate::random::Random;
use crate::report::{Checked, Stop, equal, holds, refused, same_bytes, succeeds};
use crate::sys::Memory;
use crate::watch::waits_for;
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{Status, access, caps, memory_caps, op_flags};

pub(super) fn memory_that_was_given_back_is_touched_by_nobody(case: &Case) -> Checked {
    if case.domain_attr.caps & memory_caps::REGISTER == 0 || case.has(caps::OWN_MEMORY_ONLY) {
        return Err(Stop::Skip("the memory is the domain's own".to_string()));
    }
    let limit = |most: usize| if most == 0 { TARGET } else { most.min(TARGET) };
    for round in 0..40usize {
        let mut bench = bench(case, ALL_RIGHTS)?;
        let put = round % 2 == 0;
        let len = limit(if put { case.attr.max_put } else { case.attr.max_get }) >> (round % 5);
        bench.local.write(0, &[0x33; TARGET]);
        let endpoint = bench.desk.endpoint();
        let mut pending = Vec::new();
        for n in 0..32u64 {
            let target = Target {
                key: &bench.key,
                offset: 0,
                cookie: n,
                flags: op_flags::REMOTE_COMPLETION,
            };
            match endpoint.rma(put, &[bench.local.piece(0..len)], target) {
                Ok(1) => pending.push(n),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        // For a while the owner makes progress and its peer does not: answers wait.
        for _ in 0..round / 4 {
            let _ = bench.desk.far().turn()?;
        }
        let mut given_back = bench.target.revoke();
        waits_for("deregister to succeed once the region is not used any more");
        while given_back.as_ref().is_err_and(|failure| failure.status == Status::Again) {
            bench.desk.turn()?;
            given_back = bench.target.revoke();
        }
        succeeds("deregister", given_back)?;
        // The memory belongs to the application.
        bench.target.write(0, &[0x99; TARGET]);
        let done = bench.desk.boxes[0].completions.len();
        for cookie in pending {
            let _ = bench.desk.complete(Ok(1), cookie)?;
        }
        let what = "deregistered memory, with operations on it in flight before";
        same_bytes(what, &[0x99; TARGET], &bench.target.all())?;
        let read = !put && bench.local.all().contains(&0x99);
        let found = format!("bytes of it, with {done} of the gets complete by then");
        holds(!read, "the bytes of gets from deregistered memory", "old bytes or an error", found)?;
    }
    Ok(())
}

pub(super) fn memory_of_the_domain_is_zeroed_and_begins_with_a_page(case: &Case) -> Checked {
    if case.domain_attr.caps & memory_caps::ALLOC == 0 {
        return Err(Stop::Skip("the domain has no memory of its own".to_string()));
    }
    for round in 0..20 {
        let len = 5000 + round * 1000;
        let memory = succeeds("alloc", case.domain.memory(0, len, ALL_RIGHTS))?;
        holds(memory.len() >= len, "the length of memory from alloc", len, memory.len())?;
        let address = memory.piece(0..0).base.addr();
        equal("where memory from alloc begins within its page", 0, address % 4096)?;
        let whole = memory.all();
        same_bytes("memory from alloc", &vec![0; whole.len()], &whole)?;
        memory.write(0, &vec![0xd7; whole.len()]);
    }
    Ok(())
}

pub(super) fn a_part_of_allocated_memory_is_read_until_it_is_deregistered(case: &Case) -> Checked {
    if case.domain_attr.caps & memory_caps::REGISTER_PARTS == 0 {
        return Err(Stop::Skip("the domain registers no parts of its own memory".to_string()));
    }
    let read_only = access::REMOTE_READ;
    let mut other = vec![0u64; 64];
    let foreign = case.domain.register(other.as_mut_ptr().cast(), 512, read_only);
    let foreign = foreign.map(drop).map_err(|failure| failure.status);
    equal("register of memory of another origin", Err(Status::Unsupported), foreign)?;
    let whole = case.domain.memory(0, TARGET, 0);
    let whole = succeeds("alloc", whole)?;
    let data = Random(9).bytes(TARGET);
    whole.write(0, &data);
    let base = whole.piece(0..0).base;
    let part = |at: usize, len| {
        let part = case.domain.register(base.wrapping_add(at), len, read_only);
        succeeds("register of a part of memory from alloc", part)
    };
    let (mut first, mut second) = (part(8, 4000)?, part(4000, 8)?);
    let Bench { mut desk, local, .. } = bench(case, ALL_RIGHTS)?;
    let mut import = |part: &Memory| {
        let key = desk.import(&case.key_of(part)?)?;
        succeeds("import_key", key)
    };
    let (one, two) = (import(&first)?, import(&second)?);
    let mut get = |key: &Key, at: u64, len: usize| desk.rma(false, &[local.piece(0..len)], key, at);
    equal("get of a whole part", Ok(()), get(&one, 0, 4000)?)?;
    same_bytes("a part of allocated memory", &data[8..4008], &local.read(0..4000))?;
    equal("get of another part", Ok(()), get(&two, 0, 8)?)?;
    same_bytes("another part", &data[4000..4008], &local.read(0..8))?;
    refused("get beyond a part", get(&two, 1, 8)?, &[Status::OutOfRange])?;
    succeeds("deregister", first.revoke())?;
    if case.has(caps::CHECKS_KEYS) {
        refused("get from a deregistered part", get(&one, 0, 8)?, &[Status::KeyRejected])?;
    }
    equal("get from the other part", Ok(()), get(&two, 0, 8)?)?;
    succeeds("deregister", second.revoke())
}

pub(super) fn local_pieces_may_lie_anywhere(case: &Case) -> Checked {
    let Bench { mut desk, target, key, .. } = bench(case, ALL_RIGHTS)?;
    let len = most(case).min(2000);
    for round in 0..8 {
        // The memory is not registered, and its pieces name no region.
        let mut memory = vec![0u64; len.div_ceil(8) + 1];
        let base = memory.as_mut_ptr().cast::<u8>().wrapping_add(round);
        let data = Random(round as u64 + 1).bytes(len);
        target.write(512, &data);
        let got = desk.rma(false, &[Iov::new(base, len)], &key, 512)?;
        equal("get into unregistered memory", Ok(()), got)?;
        let put = desk.rma(true, &[Iov::new(base, len)], &key, 4096)?;
        equal("put from unregistered memory", Ok(()), put)?;
        super::flight::settled(&mut desk)?;
        same_bytes("what a get and then a put have copied", &data, &target.read(4096..4096 + len))?;
    }
    Ok(())
}
