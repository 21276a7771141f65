//! Checks of operations of several endpoints at a time, and of operations that cross each other.

use super::atomics;
use super::offers::at_once;
use super::rma::{Bench, TARGET, WRONG_KEY, bench, most};
use crate::case::{ALL_RIGHTS, Case, Mailbox};
use crate::endpoint::{Endpoint, Key, Target};
use crate::hub::Hub;
use crate::random::Random;
use crate::report::{Checked, Stop, equal, fail, refused, same_bytes, succeeds};
use crate::sys::{Domain, Memory};
use crate::watch::Patience;
use core::cell::RefCell;
use std::sync::Arc;
use tieline_plugin_api::abi::fixed_str;
use tieline_plugin_api::{Status, caps, op_flags};

/// One direction between the central interface of a hub and a peer, with memory at both ends.
struct Way {
    endpoint: Endpoint,
    key: Key,
    local: Memory,
    target: Memory,
    /// The index of the sending peer; `None` for the central interface.
    spoke: Option<usize>,
    pending: Vec<usize>,
}

const STRIDE: usize = 1024;
/// The number of operations; every other one is a get.
const COUNT: usize = 24;

impl Way {
    fn of(
        case: &Case,
        hub: &mut Hub<'_>,
        endpoint: Endpoint,
        spoke: Option<usize>,
    ) -> Result<Way, Stop> {
        let len = COUNT * STRIDE;
        let (local, target) = (case.memory(len, ALL_RIGHTS)?, case.memory(len, ALL_RIGHTS)?);
        let packed = case.key_of(&target)?;
        let patience = Patience::new();
        let key = loop {
            match endpoint.import(&packed) {
                Err(failure) if failure.status == Status::Again => {
                    hub.turn()?;
                    patience.still("import_key", "a key while all sides are polled", "AGAIN")?;
                }
                other => break succeeds("import_key", other)?,
            }
        };
        Ok(Way { endpoint, key, local, target, spoke, pending: Vec::new() })
    }

    /// Posts operation `n`, whose bytes are those of direction `number`. Returns `false` if there is no room.
    fn post(&mut self, number: usize, n: usize, len: usize) -> Result<bool, Stop> {
        let (range, put) = (n * STRIDE..n * STRIDE + len, n % 2 == 0);
        if put { &self.local } else { &self.target }.write(range.start, &data(number, n, len));
        let (offset, cookie) = (range.start as u64, (number * COUNT + n) as u64);
        let target = Target { key: &self.key, offset, cookie, flags: op_flags::REMOTE_COMPLETION };
        let iov = [self.local.piece(range)];
        match at_once(|| self.endpoint.rma(put, &iov, target)) {
            Err(Status::Again) => return Ok(false),
            Ok(1) => self.pending.push(n),
            code => drop(succeeds("a put or get", code)?),
        }
        Ok(true)
    }

    fn has_happened(&self, number: usize, posted: usize, len: usize, when: &str) -> Checked {
        for n in 0..posted {
            let memory = if n % 2 == 0 { &self.target } else { &self.local };
            let verb = if n % 2 == 0 { "put" } else { "get" };
            let what = format!("{verb} {n} of endpoint {number} of several, {when}");
            let found = memory.read(n * STRIDE..n * STRIDE + len);
            same_bytes(what, &data(number, n, len), &found)?;
        }
        Ok(())
    }
}

fn data(number: usize, n: usize, len: usize) -> Vec<u8> {
    Random((number * COUNT + n) as u64 + 3).bytes(len)
}

fn collect(hub: &mut Hub<'_>, ways: &mut [Way]) -> Checked {
    hub.turn()?;
    let spokes = hub.spokes.len();
    for at in (0..spokes).map(Some).chain([None]) {
        let mailbox = match at {
            Some(at) => hub.spokes[at].mailbox.as_mut(),
            None => Some(&mut hub.middle),
        };
        for done in mailbox.map(|m| core::mem::take(&mut m.completions)).unwrap_or_default() {
            let (number, n) = (done.cookie as usize / COUNT, done.cookie as usize % COUNT);
            let way = ways.get_mut(number).filter(|way| way.spoke == at);
            let place = way.and_then(|way| {
                let place = way.pending.iter().position(|pending| *pending == n)?;
                Some(way.pending.swap_remove(place))
            });
            if place.is_none() {
                let expected = "the cookie of an operation that is pending on that interface";
                return Err(fail("COMPLETION", expected, format!("{:#x}", done.cookie)));
            }
            equal("the status of one of several peers' operations", 0, done.status)?;
        }
    }
    Ok(())
}

fn ways(case: &Case, hub: &mut Hub<'_>) -> Result<Vec<Way>, Stop> {
    let mut ways = Vec::new();
    for at in 0..hub.spokes.len() {
        let (out, back) = (hub.spokes[at].out.clone(), hub.spokes[at].back.clone());
        ways.push(Way::of(case, hub, out, None)?);
        if let Some(back) = back {
            ways.push(Way::of(case, hub, back, Some(at))?);
        }
    }
    Ok(ways)
}

pub(super) fn operations_of_many_peers_at_once_have_each_its_bytes_and_end(case: &Case) -> Checked {
    let mut hub = Hub::of(case, 6)?;
    let mut ways = ways(case, &mut hub)?;
    let len = most(case).min(200);
    for round in 0..3 {
        for way in &ways {
            way.local.write(0, &vec![0xee; COUNT * STRIDE]);
            way.target.write(0, &vec![0xee; COUNT * STRIDE]);
        }
        let patience = Patience::new();
        for n in 0..COUNT {
            for number in 0..ways.len() {
                // The order alternates between ascending and descending.
                let number = if round % 2 == 0 { number } else { ways.len() - 1 - number };
                while !ways[number].post(number, n, len)? {
                    collect(&mut hub, &mut ways)?;
                    patience.still("a put or get", "room while all are polled", "AGAIN")?;
                }
            }
        }
        while ways.iter().any(|way| !way.pending.is_empty()) {
            collect(&mut hub, &mut ways)?;
            let what = "operations of a dozen endpoints at once";
            patience.still(what, "a COMPLETION of each", "none for some")?;
        }
        for (number, way) in ways.iter().enumerate() {
            flush(&mut hub, &way.endpoint, way.spoke)?;
            way.has_happened(number, COUNT, len, "posted beside the others'")?;
        }
    }
    Ok(())
}

const FLUSH: u64 = 0xf1_0000_0000;

/// Makes progress until a flush of `endpoint` has ended. The endpoint belongs to the peer at `spoke`, or to the central interface.
fn flush(hub: &mut Hub<'_>, endpoint: &Endpoint, spoke: Option<usize>) -> Checked {
    let patience = Patience::new();
    let mut code = endpoint.flush(FLUSH);
    while code == Err(Status::Again) {
        hub.turn()?;
        patience.still("flush", "room while all sides are polled", "AGAIN for ever")?;
        code = endpoint.flush(FLUSH);
    }
    while succeeds("flush", code)? == 1 {
        let mailbox = match spoke {
            Some(at) => hub.spokes[at].mailbox.as_mut(),
            None => Some(&mut hub.middle),
        };
        let done = mailbox.map(|m| core::mem::take(&mut m.completions)).unwrap_or_default();
        if let Some(flush) = done.iter().find(|done| done.cookie == FLUSH) {
            return equal("the status of a flush", 0, flush.status);
        }
        hub.turn()?;
        patience.still("a flush", "its COMPLETION", "nothing")?;
    }
    Ok(())
}

pub(super) fn a_flush_of_one_endpoint_stands_for_no_other(case: &Case) -> Checked {
    let len = most(case).min(100);
    for first in [0, 1] {
        let mut hub = Hub::of(case, 2)?;
        if !hub.reaches_others() {
            return Err(Stop::Skip("the module connects only to itself".to_string()));
        }
        let mut ways: Vec<Way> = Vec::new();
        for at in 0..2 {
            let out = hub.spokes[at].out.clone();
            ways.push(Way::of(case, &mut hub, out, None)?);
        }
        let mut posted = [0; 2];
        for n in 0..3 {
            for number in 0..2 {
                posted[number] += usize::from(ways[number].post(number, n, len)?);
            }
        }
        // Only the first endpoint's peer makes progress until its flush has ended.
        let (second, patience) = (1 - first, Patience::new());
        let mut ended = match ways[first].endpoint.flush(FLUSH) {
            Err(Status::Again) => continue,
            code => succeeds("flush", code)? == 0,
        };
        while !ended {
            let _ = hub.middle.turn()?;
            if let Some(mailbox) = &mut hub.spokes[first].mailbox {
                let _ = mailbox.turn()?;
            }
            ended = hub.middle.completions.iter().any(|done| done.cookie == FLUSH);
            patience.still("a flush", "its COMPLETION while its peer polls", "nothing")?;
        }
        ways[first].has_happened(first, posted[first], len, "when its flush has ended")?;
        hub.middle.completions.retain(|done| done.cookie != FLUSH);
        let endpoint = ways[second].endpoint.clone();
        flush(&mut hub, &endpoint, None)?;
        let when = "when its own flush has ended, behind that of another endpoint";
        ways[second].has_happened(second, posted[second], len, when)?;
    }
    Ok(())
}

pub(super) fn a_flush_covers_what_was_posted_while_another_one_was_under_way(
    case: &Case,
) -> Checked {
    let len = most(case).min(100);
    let mut any = false;
    for early in [1, 4] {
        let mut bench = bench(case, ALL_RIGHTS)?;
        let endpoint = bench.desk.endpoint();
        let put = |bench: &Bench, n: usize| {
            bench.local.write(n * STRIDE, &data(0, n, len));
            let offset = (n * STRIDE) as u64;
            let to = Target { key: &bench.key, offset, cookie: n as u64, flags: 0 };
            let iov = [bench.local.piece(n * STRIDE..n * STRIDE + len)];
            at_once(|| endpoint.rma(true, &iov, to))
        };
        let mut posted = 0;
        while posted < early && put(&bench, posted).is_ok() {
            posted += 1;
        }
        if at_once(|| endpoint.flush(FLUSH)) != Ok(1) {
            continue; // the operation has completed, or there is no room for it
        }
        while posted < early + 4 && put(&bench, posted).is_ok() {
            posted += 1;
        }
        // The target handles a few operations per poll, so that the first flush is likely to end before the rest is done.
        for mailbox in &mut bench.desk.boxes {
            mailbox.at_once = 1;
        }
        let patience = Patience::new();
        while !bench.desk.boxes[0].completions.iter().any(|done| done.cookie == FLUSH) {
            bench.desk.turn()?;
            patience.still("a flush", "its COMPLETION", "nothing")?;
        }
        any |= posted > early;
        let mut code = endpoint.flush(FLUSH + 1);
        while code == Err(Status::Again) {
            bench.desk.turn()?;
            code = endpoint.flush(FLUSH + 1);
        }
        let _ = succeeds("flush", bench.desk.complete(code, FLUSH + 1)?)?;
        for n in 0..posted {
            let found = bench.target.read(n * STRIDE..n * STRIDE + len);
            let what =
                format!("put {n} of {posted}, posted around a flush, when a second one has ended");
            same_bytes(what, &data(0, n, len), &found)?;
        }
    }
    match any {
        true => Ok(()),
        false => Err(Stop::Skip("no flush was pending".to_string())),
    }
}

pub(super) fn two_that_get_from_each_other_at_once_both_end(case: &Case) -> Checked {
    let len = most(case).min(TARGET / 2);
    let mut hub = Hub::of(case, 1)?;
    let Some(back) = hub.spokes[0].back.clone() else {
        return Err(Stop::Skip("the module connects only to itself".to_string()));
    };
    let out = hub.spokes[0].out.clone();
    let both = [(out, None), (back, Some(0))];
    let mut ends = Vec::new();
    for (endpoint, spoke) in both {
        // The regions are as long as the longest get.
        let mut way = Way::of(case, &mut hub, endpoint, spoke)?;
        let (local, target) = (case.memory(len, ALL_RIGHTS)?, case.memory(len, ALL_RIGHTS)?);
        target.write(0, &Random(9).bytes(len));
        way.key = succeeds("import_key", way.endpoint.import(&case.key_of(&target)?))?;
        (way.local, way.target) = (local, target);
        ends.push(way);
    }
    let mut pending = [0u64; 2];
    for round in 0..3 {
        // Operations are posted up to a bound or until there is no room; meanwhile the other side does not poll.
        let patience = Patience::new();
        for (number, way) in ends.iter().enumerate() {
            let mut n = 0;
            while n < 200 {
                let target = Target { key: &way.key, offset: 0, cookie: n, flags: 0 };
                let iov = [way.local.piece(0..len)];
                match at_once(|| way.endpoint.rma(false, &iov, target)) {
                    // The endpoint may not be connected yet.
                    Err(Status::Again) if n == 0 => hub.turn()?,
                    Err(Status::Again) => break,
                    code => {
                        pending[number] += succeeds("get", code)? as u64;
                        n += 1;
                    }
                }
            }
        }
        while pending != [0, 0] {
            hub.turn()?;
            let spoke = hub.spokes[0].mailbox.as_mut();
            for (number, mailbox) in [Some(&mut hub.middle), spoke].into_iter().enumerate() {
                for done in mailbox.into_iter().flat_map(|m| m.completions.drain(..)) {
                    equal("the status of one of many gets", 0, done.status)?;
                    pending[number] = pending[number].saturating_sub(1);
                }
            }
            let what = format!("gets of two that get from each other (round {round})");
            let found = format!(
                "none for {} of the one and {} of the other: each waits for room at the other",
                pending[0], pending[1]
            );
            patience.still(&what, "a COMPLETION of each while both are polled", &found)?;
        }
        for way in &ends {
            same_bytes("what a get has brought", &Random(9).bytes(len), &way.local.all())?;
        }
    }
    Ok(())
}

pub(super) fn an_atomic_whose_answer_waits_is_done_once(case: &Case) -> Checked {
    const MANY: u64 = 400;
    let (op, width, fetch) = atomics::add(case)?;
    let Bench { mut desk, target, key, local, .. } = bench(case, ALL_RIGHTS)?;
    target.write(0, &[0; 64]);
    let (endpoint, result, len) = (desk.endpoint(), RefCell::new(0), most(case).min(TARGET));
    let (mut adds, mut pending, mut is_get) = (0, 0, true);
    let patience = Patience::new();
    while adds < MANY || pending > 0 {
        // The answers are long, so that later ones find no room. The target makes progress alone until there is none.
        while adds < MANY {
            let iov = [local.piece(0..len)];
            let code = at_once(|| match is_get {
                true => {
                    let to = Target { key: &key, offset: 0, cookie: adds, flags: 0 };
                    endpoint.rma(false, &iov, to)
                }
                false => {
                    endpoint.atomic(&key, atomics::operation(op, width, 8, 1, 0, fetch), &result)
                }
            });
            if code == Err(Status::Again) {
                break;
            }
            pending += succeeds("an atomic or a get", code)?;
            adds += u64::from(!is_get);
            is_get = !is_get;
        }
        for _ in 0..20 {
            let _ = desk.far().turn()?;
        }
        desk.turn()?;
        for done in desk.boxes[0].completions.drain(..) {
            equal("the status of an atomic among gets", 0, done.status)?;
            pending -= 1;
        }
        patience.still("atomics among gets", "a COMPLETION of each", "none for some")?;
    }
    let code = desk.retry(|| endpoint.flush(FLUSH))?;
    equal("flush", Ok(()), desk.complete(code, FLUSH)?.map(drop))?;
    let mut sum = [0; 8];
    sum[..width as usize].copy_from_slice(&target.read(8..8 + width as usize));
    equal("the sum of adds of 1 among long gets", MANY, u64::from_ne_bytes(sum))
}

fn to_domain(
    case: &Case,
    near: &mut Mailbox,
    domain: &Arc<Domain>,
    cookie: u64,
) -> Result<(Endpoint, Mailbox, Option<Endpoint>), Stop> {
    let module = fixed_str(&case.attr.name).unwrap_or("");
    let mut far = Mailbox::new(succeeds("open_interface", domain.open_interface(module))?);
    if case.connects_to_endpoint() {
        near.cookies.push(cookie);
        far.cookies.push(1);
        let out = succeeds("connect", near.interface.connect(&[], &[], cookie))?;
        let back = succeeds("connect", far.interface.connect(&[], &[], 1))?;
        let address = |endpoint| super::waiting::address_of(case, endpoint);
        succeeds("connecting to the endpoint", out.connect(&address(&back)?))?;
        succeeds("connecting to the endpoint", back.connect(&address(&out)?))?;
        return Ok((out, far, Some(back)));
    }
    let address = case.address_of(&far.interface)?;
    super::waiting::reach(&near.interface, &address)?;
    let patience = Patience::new();
    loop {
        match near.interface.connect(&address, &case.identity(), cookie) {
            Err(failure) if failure.status == Status::Again => {
                let _ = (near.turn()?, far.turn()?);
                patience.still("connect", "success", "AGAIN for ever")?;
            }
            other => return Ok((succeeds("connect", other)?, far, None)),
        }
    }
}

pub(super) fn a_key_serves_the_endpoint_to_its_owner_and_no_other(case: &Case) -> Checked {
    let name = fixed_str(&case.domain_attr.name).unwrap_or("");
    let other = succeeds("opening the domain a second time", case.provider.open_domain(name))?;
    let register = if case.has(caps::OWN_MEMORY_ONLY) { 0 } else { case.domain_attr.caps };
    let domains = [case.domain.clone(), other];
    // The check runs for either order of connecting.
    for first in [0, 1] {
        let mut near = Mailbox::new(case.interface()?);
        let local = case.memory(64, ALL_RIGHTS)?;
        let (mut fars, mut memories, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for n in [first, 1 - first] {
            let (out, far, back) = to_domain(case, &mut near, &domains[n], 10 + n as u64)?;
            let memory = succeeds("register", domains[n].memory(register, 64, ALL_RIGHTS))?;
            memory.write(0, &[0xee; 64]);
            memories.push((case.key_of(&memory)?, memory));
            ends.push((out, back));
            fars.push(far);
        }
        for (number, (endpoint, _)) in ends.iter().enumerate() {
            for (of, (packed, memory)) in memories.iter().enumerate() {
                let key = import(&mut near, &mut fars, endpoint, packed)?;
                let key = match (key, of == number) {
                    (Ok(key), _) => key,
                    (Err(status), false) => {
                        let what = "import_key of a key of another peer's domain";
                        equal(what, Status::KeyRejected, status)?;
                        continue;
                    }
                    (Err(status), true) => {
                        let what = "import_key on the endpoint to the key's owner, beside another";
                        return Err(fail(what, "success", status));
                    }
                };
                local.write(0, &[0x33; 8]);
                memory.write(0, &[0xee; 64]);
                let done = put(&mut near, &mut fars, endpoint, &key, &local)?;
                if of == number {
                    equal("put on the endpoint to the key's owner", Ok(()), done)?;
                } else {
                    let what = "put by a key of another peer's domain";
                    refused(what, done, WRONG_KEY)?;
                    same_bytes("that domain's memory", &[0xee; 64], &memory.all())?;
                }
            }
        }
        drop(ends);
    }
    Ok(())
}

fn all(near: &mut Mailbox, fars: &mut [Mailbox]) -> Checked {
    let mut any = near.turn()?;
    for far in fars {
        any |= far.turn()?;
    }
    if !any {
        std::thread::yield_now();
    }
    Ok(())
}

fn import(
    near: &mut Mailbox,
    fars: &mut [Mailbox],
    endpoint: &Endpoint,
    packed: &[u8],
) -> Result<Result<Key, Status>, Stop> {
    let patience = Patience::new();
    loop {
        match endpoint.import(packed) {
            Err(failure) if failure.status == Status::Again => {
                all(near, fars)?;
                patience.still("import_key", "a key while all are polled", "AGAIN for ever")?;
            }
            other => return Ok(other.map_err(|failure| failure.status)),
        }
    }
}

fn put(
    near: &mut Mailbox,
    fars: &mut [Mailbox],
    endpoint: &Endpoint,
    key: &Key,
    local: &Memory,
) -> Result<Result<(), Status>, Stop> {
    const COOKIE: u64 = 0x77;
    let patience = Patience::new();
    let target = Target { key, offset: 0, cookie: COOKIE, flags: op_flags::REMOTE_COMPLETION };
    let mut code = endpoint.rma(true, &[local.piece(0..8)], target);
    while code == Err(Status::Again) {
        all(near, fars)?;
        patience.still("put", "room while all are polled", "AGAIN for ever")?;
        code = endpoint.rma(true, &[local.piece(0..8)], target);
    }
    while code == Ok(1) {
        all(near, fars)?;
        if let Some(done) = near.completions.pop() {
            equal("the cookie of a COMPLETION", COOKIE, done.cookie)?;
            return Ok(match done.status {
                0 => Ok(()),
                status => Err(Status::from_code(status)),
            });
        }
        patience.still("put", "its COMPLETION", "nothing")?;
    }
    Ok(code.map(drop))
}

pub(super) fn a_key_that_is_imported_twice_is_dropped_twice(case: &Case) -> Checked {
    let Bench { mut desk, target: _target, key, packed, local } = bench(case, ALL_RIGHTS)?;
    let second = succeeds("import_key for a second time", desk.import(&packed)?)?;
    let third = succeeds("import_key for a third time", desk.import(&packed)?)?;
    for gone in [key, third] {
        drop(gone);
        for put in [true, false] {
            let done = desk.rma(put, &[local.piece(0..8)], &second, 0)?;
            let what = "a put or get by one of several imports of a key, when another was dropped";
            equal(what, Ok(()), done)?;
        }
    }
    Ok(())
}
