//! Checks of regions, of memory that is not registered, of hints, and of a capability's guarantees beyond its slot.

use super::offers::at_once;
use super::rma::{Bench, bench, most};
use super::waiting::fall_asleep;
use crate::case::{ALL_RIGHTS, Case};
use crate::endpoint::Target;
use crate::hub::Hub;
use crate::interface::readable;
use crate::random::Random;
use crate::report::{Checked, Stop, equal, fail, holds, refused, same_bytes, succeeds};
use crate::sys::{Asked, Moved};
use crate::watch::{Patience, patience_ms};
use core::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::fs::File;
use std::os::fd::IntoRawFd;
use tieline_plugin_api::abi::{Iov, RegisterParams};
use tieline_plugin_api::{Status, memory_caps, op_flags, register_flags};

pub(super) fn pieces_that_lie_in_no_region_are_taken_all_the_same(case: &Case) -> Checked {
    let Bench { mut desk, target, key, local, .. } = bench(case, ALL_RIGHTS)?;
    let len = most(case).min(1500);
    // This memory is unknown to every domain.
    let plain: Vec<AtomicU8> = (0..len).map(|_| AtomicU8::new(0)).collect();
    let at = |from: usize, to: usize| {
        Iov::new(plain[from..].as_ptr().cast_mut().cast::<u8>(), to - from)
    };
    let mut random = Random(81);
    for round in 0..20 {
        let (data, half) = (random.bytes(len), len / 2);
        plain.iter().zip(&data).for_each(|(place, byte)| place.store(*byte, SeqCst));
        local.write(0, &data);
        // Either all pieces name no region, or one of them beside a piece that names its region.
        let iov = match (round % 2, case.attr.max_iov) {
            (0, _) | (_, 0 | 1) => vec![at(0, len)],
            _ => vec![local.piece(0..half), at(half, len)],
        };
        let offset = (round * 64) as u64;
        let what = "of pieces without a region, of a module with TAKES_REGIONS";
        let put = desk.rma(true, &iov, &key, offset)?;
        equal(format!("put {what}"), Ok(()), put)?;
        super::flight::settled(&mut desk)?;
        let there = target.read(offset as usize..offset as usize + len);
        same_bytes("the target of a put without regions", &data, &there)?;
        plain.iter().for_each(|place| place.store(0, SeqCst));
        local.write(0, &vec![0; len]);
        let got = desk.rma(false, &iov, &key, offset)?;
        equal(format!("get {what}"), Ok(()), got)?;
        let mut found: Vec<u8> = plain.iter().map(|place| place.load(SeqCst)).collect();
        if iov.len() > 1 {
            found[..half].copy_from_slice(&local.read(0..half));
        }
        same_bytes("what a get without regions has brought", &data, &found)?;
    }
    Ok(())
}

pub(super) fn a_module_for_its_own_memory_only_provides_it_and_refuses_other(
    case: &Case,
) -> Checked {
    let what = "a domain whose module reaches only memory of its own alloc";
    let allocates = case.domain_attr.caps & memory_caps::ALLOC != 0;
    holds(allocates, what, "ALLOC", "none")?;
    if !case.provider.tables.domain.has("register") {
        return Ok(());
    }
    let Bench { mut desk, local, .. } = bench(case, ALL_RIGHTS)?;
    let Ok(memory) = case.domain.memory(memory_caps::REGISTER, 4096, ALL_RIGHTS) else {
        return Ok(());
    };
    // The memory may serve as local memory, or for another module of the domain.
    let Ok(packed) = case.key_of(&memory) else { return Ok(()) };
    let Ok(key) = desk.import(&packed)? else { return Ok(()) };
    memory.write(0, &[0xee; 64]);
    local.write(0, &[0x71; 8]);
    if desk.rma(true, &[local.piece(0..8)], &key, 0)?.is_ok() {
        super::flight::settled(&mut desk)?;
        let what = "memory that a module claims not to reach, after a successful put";
        same_bytes(what, &[0x71; 8], &memory.read(0..8))?;
    }
    Ok(())
}

pub(super) fn operations_hinted_as_not_the_last_go_with_a_flush_or_a_poll(case: &Case) -> Checked {
    const STRIDE: usize = 512;
    let len = most(case).min(STRIDE);
    for flushes in [true, false, true, false] {
        for many in [1, 2, 5] {
            let mut bench = bench(case, ALL_RIGHTS)?;
            let Bench { desk, target, key, local, .. } = &mut bench;
            let endpoint = desk.endpoint();
            let bytes = |n: usize| Random(n as u64 + 7).bytes(len);
            let (mut posted, mut pending) = (0, Vec::new());
            for n in 0..many {
                local.write(n * STRIDE, &bytes(n));
                let iov = [local.piece(n * STRIDE..n * STRIDE + len)];
                let flags = op_flags::MORE | op_flags::REMOTE_COMPLETION;
                let to = Target { key, offset: (n * STRIDE) as u64, cookie: n as u64, flags };
                match at_once(|| endpoint.rma(true, &iov, to)) {
                    Err(Status::Again) => break,
                    code if succeeds("put with MORE", code)? == 1 => pending.push(n as u64),
                    _ => {}
                }
                posted = n + 1;
            }
            if flushes {
                let code = desk.retry(|| endpoint.flush(4711))?;
                let ended = desk.complete(code, 4711)?.map(drop);
                equal("flush behind puts, the last with MORE", Ok(()), ended)?;
            } else {
                let patience = Patience::new();
                let ended = |done: &crate::interface::Received| pending.contains(&done.cookie);
                while desk.boxes[0].completions.iter().filter(|done| ended(done)).count()
                    < pending.len()
                {
                    desk.turn()?;
                    let what = "puts, the last with MORE, followed only by polls";
                    patience.still(what, "a COMPLETION of each", "none for some")?;
                }
            }
            for n in 0..posted {
                let what = format!("put {n} of {posted}, all with MORE");
                same_bytes(what, &bytes(n), &target.read(n * STRIDE..n * STRIDE + len))?;
            }
        }
    }
    Ok(())
}

pub(super) fn operations_of_one_thread_end_in_another(case: &Case) -> Checked {
    const STRIDE: usize = 512;
    let len = most(case).min(STRIDE);
    let mut bench = bench(case, ALL_RIGHTS)?;
    for round in 0..6u64 {
        let bytes = move |n: u64| Random(n + 20 * round + 1).bytes(len);
        let (endpoint, mut pending) = (bench.desk.endpoint(), Vec::new());
        let mut posted = 0;
        for n in 0..8u64 {
            let (at, put) = (n as usize * STRIDE, n % 2 == 0);
            let from = if put { &bench.local } else { &bench.target };
            from.write(at, &bytes(n));
            let iov = [bench.local.piece(at..at + len)];
            let (offset, flags) = (at as u64, op_flags::REMOTE_COMPLETION);
            let to = Target { key: &bench.key, offset, cookie: n, flags };
            match at_once(|| endpoint.rma(put, &iov, to)) {
                Err(Status::Again) => break,
                code if succeeds("a put or get", code)? == 1 => pending.push(n),
                _ => {}
            }
            posted = n + 1;
        }
        drop(endpoint);
        let moved = Moved((bench, pending));
        let there = move || -> Result<Moved<Bench>, Stop> {
            let (mut bench, pending) = moved.into_inner();
            for cookie in pending {
                let ended = bench.desk.complete(Ok(1), cookie)?.map(drop);
                equal("what one thread has posted, and another one polls for", Ok(()), ended)?;
            }
            super::flight::settled(&mut bench.desk)?;
            for n in 0..posted {
                let at = n as usize * STRIDE;
                let memory = if n % 2 == 0 { &bench.target } else { &bench.local };
                let what = "what one thread has put or got, when another one has seen its end";
                same_bytes(what, &bytes(n), &memory.read(at..at + len))?;
            }
            // The check uses a key of the other thread, which then ends.
            let iov = [bench.local.piece(0..8)];
            let put = bench.desk.rma(true, &iov, &bench.key, 0)?;
            equal("put by a key that another thread has imported", Ok(()), put)?;
            let key = bench.desk.import(&bench.packed)?;
            bench.key = succeeds("import_key in another thread", key)?;
            if case.needs(super::waiting::WAITS).is_ok() {
                let fd = fall_asleep(bench.desk.far())?;
                bench.desk.send(3, 0, b"")?;
                let what = "the descriptor of an interface that another thread has opened";
                holds(readable(fd, patience_ms()), what, "readable", "silent")?;
                let _ = bench.desk.receive()?;
            }
            Ok(Moved(bench))
        };
        let back = std::thread::scope(|scope| scope.spawn(there).join());
        bench = back.map_err(|_| Stop::Fail("a thread panicked".to_string()))??.into_inner();
        bench.desk.forget();
    }
    Ok(())
}

pub(super) fn memory_of_devices_that_are_not_here_is_refused_and_nothing_lost(
    case: &Case,
) -> Checked {
    let registers = case.domain_attr.caps & memory_caps::REGISTER != 0;
    if !registers || !case.provider.tables.domain.has("register") {
        return Err(Stop::Skip("the domain registers no memory".to_string()));
    }
    let words: Vec<u64> = vec![0; 512];
    let base = words.as_ptr().cast_mut().cast::<u8>();
    let plain = RegisterParams::new(base, 4096, ALL_RIGHTS);
    // Without the flag for a descriptor, the field is not read.
    let other = RegisterParams { dmabuf: -1, dmabuf_offset: 77, ..plain };
    let what = "register without REGISTER_DMABUF, whatever its dmabuf says";
    succeeds(what, case.domain.says(&Asked::Register(other)))?;
    let file = File::open("/dev/null").map_err(|e| Stop::Fail(format!("/dev/null: {e}")))?;
    let dmabuf = file.into_raw_fd(); // stays open for the life of this process
    let is_open = || std::fs::metadata(format!("/proc/self/fd/{dmabuf}")).is_ok();
    let flags = register_flags::DMABUF;
    let no_buffer = RegisterParams { flags, dmabuf, ..plain };
    let mut asked = vec![("a descriptor that is no DMA buffer".to_string(), no_buffer)];
    for kind in [1, 2, 3, 77] {
        asked.push((format!("memory of kind {kind}"), RegisterParams { kind, ..plain }));
    }
    let ask = |last: bool| -> Checked {
        for (what, params) in &asked {
            // This is the text of another failure, which must not be reported again.
            let before = case.provider.open_domain("no-such-domain").err().map(|e| e.text);
            let what = format!("register of {what}");
            match case.domain.says(&Asked::Register(*params)) {
                Ok(()) => return Err(fail(what, "a refusal", "success")),
                Err(failure) if last => {
                    let own = !failure.text.is_empty() && Some(&failure.text) != before.as_ref();
                    let found = format!("`{}`", failure.text);
                    holds(own, format!("the text of {what}"), "its own", found)?;
                    let with = &[Status::Unsupported, Status::NoDevice, Status::Invalid];
                    refused(what, Err::<(), _>(failure.status), with)?;
                }
                Err(_) => {}
            }
        }
        Ok(())
    };
    ask(true)?;
    let what = "the descriptor of a DMA buffer, behind register";
    holds(is_open(), what, "open: it was lent", "closed")?;
    super::resources::leaves_nothing("registrations that were refused", (300, 60), |_| ask(false))
}

pub(super) fn a_disconnected_peer_learns_it_and_is_received_no_more(case: &Case) -> Checked {
    if !case.provider.tables.interface.has("hang_up") || case.connects_to_endpoint() {
        return Err(Stop::Skip("has no slot hang_up".to_string()));
    }
    let mut hub = Hub::of(case, 3)?;
    if !hub.reaches_others() {
        return Err(Stop::Skip("the module connects only to itself".to_string()));
    }
    let mut numbers = Vec::new();
    for at in 0..3 {
        hub.send(at, false, 1, b"")?;
        numbers.push(hub.receive(None)?.peer);
    }
    // Messages that are in flight at the disconnect are not delivered any more.
    for n in 0..3 {
        hub.send(1, false, 10 + n, b"")?;
    }
    hub.middle.messages.clear(); // these messages were polled while there was no room
    succeeds("hang_up", hub.middle.interface.hang_up(numbers[1]))?;
    let patience = Patience::new();
    while hub.spokes[1].mailbox.as_ref().is_some_and(|mailbox| mailbox.failed.is_empty()) {
        hub.turn()?;
        let what = "a disconnected peer";
        patience.still(what, "ENDPOINT_FAILED, so that it waits no more", "nothing")?;
    }
    for mailbox in hub.spokes[1].mailbox.iter() {
        let event = &mailbox.failed[0];
        holds(event.status < 0, "the status of a disconnected peer", "an error", event.status)?;
        holds(!event.data.is_empty(), "its reason", "words", "nothing")?;
    }
    let back = hub.spokes[1].back.clone();
    let said = back.map(|back| back.am_short(1, 1, b""));
    let refused = said.as_ref().is_some_and(|said| matches!(said, Err(s) if *s != Status::Again));
    holds(refused, "am_short of a disconnected peer", "a hard error", format!("{said:?}"))?;
    equal("messages of a disconnected peer", 0, hub.middle.messages.len())?;
    // The other peers are still received, and so is the disconnected one over a new endpoint.
    for at in [0, 2] {
        hub.send(at, false, 7, b"")?;
        let message = hub.receive(None)?;
        equal("the sender beside a disconnected peer", numbers[at], message.peer)?;
    }
    drop(hub.spokes.remove(1));
    hub.add()?;
    hub.send(2, false, 8, b"")?;
    equal("a message of a newcomer", 8, hub.receive(None)?.header)
}
