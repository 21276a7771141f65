//! Checks with another process, which opens the same module of the same file.

use super::atomics;
use super::messages::check;
use crate::case::{ALL_RIGHTS, Case, Desk, Mailbox, NEAR_COOKIE};
use crate::peer::{ARGUMENT, FILL, REGION, hex, is_hard, unhex};
use crate::random::Random;
use crate::report::{Checked, Stop, equal, holds, same_bytes, succeeds};
use crate::watch::{dies_with_us, stop, waits_for};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use tieline_plugin_api::caps;

pub(super) struct Partner {
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
}

impl Partner {
    pub(super) fn start(case: &Case) -> Result<Partner, Stop> {
        let failed =
            |e: std::io::Error| Stop::Fail(format!("the peer process does not start: {e}"));
        let mut command = Command::new(&case.peer_program);
        let _ = command.arg(ARGUMENT).arg(&case.path).arg(case.name());
        let _ = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = dies_with_us(&mut command).spawn().map_err(failed)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Stop::Fail("the peer process has no pipes".to_string()));
        };
        let (lines, answers) = channel();
        let _ = std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if lines.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Partner { child, input, answers })
    }

    pub(super) fn tell(&mut self, command: &str) -> Checked {
        waits_for(format!("the other process, after the command `{command}`"));
        writeln!(self.input, "{command}")
            .map_err(|e| Stop::Fail(format!("the peer process is gone: {e}")))
    }

    pub(super) fn answer(&mut self, desk: &mut Desk) -> Result<String, Stop> {
        self.answer_while(|| desk.turn())
    }

    pub(super) fn answer_while(
        &mut self,
        mut work: impl FnMut() -> Checked,
    ) -> Result<String, Stop> {
        loop {
            match self.try_answer()? {
                Some(line) => return Ok(line),
                None => work()?,
            }
        }
    }

    pub(super) fn try_answer(&mut self) -> Result<Option<String>, Stop> {
        match self.answers.try_recv() {
            Ok(line) if line.starts_with("error: ") => {
                Err(Stop::Fail(format!("peer process: {line}")))
            }
            Ok(line) => Ok(Some(line)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => {
                Err(Stop::Fail("the peer process ended without an answer".to_string()))
            }
        }
    }

    fn ask(&mut self, desk: &mut Desk, command: &str) -> Result<String, Stop> {
        self.tell(command)?;
        self.answer(desk)
    }

    pub(super) fn stop(&mut self) {
        stop(&self.child);
    }

    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(super) fn meet(case: &Case) -> Result<(Desk, Partner), Stop> {
    let mut desk = Desk::of(case, Mailbox::new(case.interface()?));
    let partner = join(case, &mut desk, NEAR_COOKIE)?;
    Ok((desk, partner))
}

/// Starts another process and connects it in both directions; from then on the desk's endpoint leads to that process.
pub(super) fn join(case: &Case, desk: &mut Desk, cookie: u64) -> Result<Partner, Stop> {
    let mut partner = Partner::start(case)?;
    if case.connects_to_endpoint() {
        desk.connect_as(&[], &case.identity(), cookie)?;
        let there = unhex(&partner.ask(desk, "connect ")?[1..]);
        let capacity = case.attr.max_endpoint_address_len as usize;
        let here = succeeds("the endpoint's address", desk.endpoint().address(capacity))?;
        let _ = partner.ask(desk, &format!("bind {}", hex(&here)))?;
        succeeds("connecting to the endpoint", desk.endpoint().connect(&there))?;
        return Ok(partner);
    }
    let there = unhex(&partner.ask(desk, "address")?);
    if let Err(why) = desk.boxes[0].interface.reachable(&there) {
        return Err(Stop::Skip(format!("another process is not reachable: {}", why.text)));
    }
    desk.connect_as(&there, &case.identity(), cookie)?;
    let here = case.address_of(&desk.boxes[0].interface)?;
    let _ = partner.ask(desk, &format!("connect {}", hex(&here)))?;
    Ok(partner)
}

pub(super) fn two_processes_exchange_messages(case: &Case) -> Checked {
    let (mut desk, mut partner) = meet(case)?;
    let mut random = Random(11);
    let messages: Vec<Vec<u8>> = (0..2000)
        .map(|_| {
            let len = random.below(case.attr.max_short.min(2048) + 1);
            random.bytes(len)
        })
        .collect();
    partner.tell(&format!("echo {}", messages.len()))?;
    let mut echoed = 0;
    for (n, data) in messages.iter().enumerate() {
        desk.send(40, n as u64, data)?;
        // Only a few messages are in flight: neither end may fill the other's queue permanently.
        while echoed + 8 < n {
            check(&desk.receive()?, 41, !(echoed as u64), &messages[echoed])?;
            echoed += 1;
        }
    }
    for (n, data) in messages.iter().enumerate().skip(echoed) {
        check(&desk.receive()?, 41, !(n as u64), data)?;
    }
    let _ = partner.answer(&mut desk)?;
    if case.connects_to_endpoint() {
        return equal("arrivals", 0, desk.boxes[0].arrived.len());
    }
    equal("arrivals", 1, desk.boxes[0].arrived.len())?;
    same_bytes("the peer's identity", &case.identity(), &desk.boxes[0].arrived[0].data)
}

pub(super) fn put_and_get_reach_another_process(case: &Case) -> Checked {
    let (mut desk, mut partner) = meet(case)?;
    let packed = unhex(&partner.ask(&mut desk, "key")?);
    let key = desk.import(&packed)?;
    let key = succeeds("import_key", key)?;
    let local = case.memory(REGION, ALL_RIGHTS)?;
    let (mut random, mut model) = (Random(12), vec![FILL; REGION]);
    for n in 0..40 {
        let limit = |max: usize| if max == 0 { REGION } else { max.min(REGION) };
        let len = random.below(limit(case.attr.max_put).min(limit(case.attr.max_get)) + 1);
        let offset = random.below(REGION - len + 1);
        let data = random.bytes(len);
        local.write(0, &data);
        let put = desk.rma(true, &[local.piece(0..len)], &key, offset as u64)?;
        equal(format!("put {n} of {len} bytes"), Ok(()), put)?;
        model[offset..offset + len].copy_from_slice(&data);
        if !case.has(caps::REMOTE_COMPLETION) {
            let endpoint = desk.endpoint();
            let code = desk.retry(|| endpoint.flush(9))?;
            equal("flush", Ok(()), desk.complete(code, 9)?.map(|_| ()))?;
        }
        let there = unhex(&partner.ask(&mut desk, "dump")?);
        same_bytes("the other process's memory", &model, &there)?;
        local.write(0, &vec![0; len]);
        let got = desk.rma(false, &[local.piece(0..len)], &key, offset as u64)?;
        equal(format!("get {n} of {len} bytes"), Ok(()), got)?;
        same_bytes("what was read back", &data, &local.read(0..len))?;
    }
    Ok(())
}

pub(super) fn two_processes_that_count_together_lose_nothing(case: &Case) -> Checked {
    const EACH: u64 = 5_000;
    let (mut desk, mut partner) = meet(case)?;
    let counter = case.memory(64, ALL_RIGHTS)?;
    counter.write(0, &[0; 64]);
    let packed = case.key_of(&counter)?;
    partner.tell(&format!("count {} {EACH}", hex(&packed)))?;
    // This process counts through an endpoint to itself, while it serves the other.
    let mut own = case.self_desk()?;
    let mut counted = 0;
    let answer = loop {
        if counted < EACH {
            atomics::count(case, &mut own, &packed, 10)?;
            counted += 10;
        }
        desk.turn()?;
        match partner.answers.try_recv() {
            Ok(line) => break line,
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                return Err(Stop::Fail("the peer process ended while it counted".to_string()));
            }
        }
    };
    equal("the peer process's answer", "done", answer.as_str())?;
    while counted < EACH {
        atomics::count(case, &mut own, &packed, 10)?;
        counted += 10;
    }
    let mut sum = [0; 8];
    let width = atomics::add_width(case)?;
    sum[..width].copy_from_slice(&counter.read(8..8 + width));
    equal("the sum of two processes", 2 * EACH, u64::from_ne_bytes(sum))
}

/// Makes progress until the peer's death is reported in either form.
fn await_death(desk: &mut Desk) -> Checked {
    waits_for("ENDPOINT_FAILED or PEER_LEFT of a process that was killed");
    loop {
        let near = &desk.boxes[0];
        if let Some(event) = near.failed.first() {
            equal("the cookie of ENDPOINT_FAILED", NEAR_COOKIE, event.cookie)?;
            holds(!event.data.is_empty(), "the reason in ENDPOINT_FAILED", "words", "nothing")?;
            return holds(
                event.status < 0,
                "the status of ENDPOINT_FAILED",
                "an error",
                event.status,
            );
        }
        if !near.left.is_empty() {
            return Ok(());
        }
        desk.turn()?;
    }
}

pub(super) fn a_killed_peer_is_reported_and_posting_to_it_fails(case: &Case) -> Checked {
    let (mut desk, mut partner) = meet(case)?;
    partner.tell("echo 1")?;
    desk.send(1, 1, b"alive?")?;
    check(&desk.receive()?, 2, !1, b"alive?")?;
    let _ = partner.answer(&mut desk)?;
    partner.kill();
    await_death(&mut desk)?;
    // Posts are refused permanently, at the latest when the queue to the dead peer is full.
    let endpoint = desk.endpoint();
    for n in 0.. {
        match endpoint.am_short(1, n, b"hello?") {
            Err(status) if is_hard(status) => break,
            _ => desk.turn()?,
        }
    }
    let again = endpoint.am_short(1, 0, b"hello?").err();
    holds(again.is_some_and(is_hard), "posting once more", "a hard error", format!("{again:?}"))?;
    desk.close_endpoints();
    desk.turn()
}

pub(super) fn a_peer_killed_in_mid_stream_leaves_whole_messages(case: &Case) -> Checked {
    for kill_after in [1u64, 500, 3000] {
        let (mut desk, mut partner) = meet(case)?;
        partner.tell("send 1000000000")?;
        let mut received = 0;
        while received < kill_after {
            check(&desk.receive()?, 2, received, &received.to_le_bytes())?;
            received += 1;
        }
        partner.kill();
        await_death(&mut desk)?;
        for _ in 0..100 {
            desk.turn()?;
        }
        while let Some(message) = desk.boxes[0].messages.pop_front() {
            check(&message, 2, received, &received.to_le_bytes())?;
            received += 1;
        }
    }
    Ok(())
}

pub(super) fn a_put_to_a_killed_peer_fails(case: &Case) -> Checked {
    case.survives_the_owner()?;
    let (mut desk, mut partner) = meet(case)?;
    let packed = unhex(&partner.ask(&mut desk, "key")?);
    let key = desk.import(&packed)?;
    let key = succeeds("import_key", key)?;
    let local = case.memory(64, ALL_RIGHTS)?;
    let put = desk.rma(true, &[local.piece(0..8)], &key, 0)?;
    equal("put before", Ok(()), put)?;
    partner.kill();
    if case.has(caps::PEER_FAILURE) {
        await_death(&mut desk)?;
    }
    loop {
        match desk.rma(true, &[local.piece(0..8)], &key, 0)? {
            // If memory of a dead process stays mapped, the death need not be detected.
            Ok(()) if case.has(caps::SYNCHRONOUS) && !case.has(caps::PEER_FAILURE) => {
                let why = "lacks capability peer_failure, and a put to a dead process does no harm";
                return Err(Stop::Skip(why.to_string()));
            }
            Ok(()) => desk.turn()?,
            Err(_) => return Ok(()),
        }
    }
}
