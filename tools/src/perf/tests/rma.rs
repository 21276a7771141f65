//! The tests put_lat, put_bw, get_lat and get_bw.

use super::Asked;
use crate::perf::side::{Side, pattern};
use crate::perf::stats::{Samples, measure};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tieline::{Completion, Endpoint, Error, Outcome, PostError, Region, RemoteKey};

/// The number of checks for an arrived put between two progress calls.
const LOOKS: u32 = 16;
/// The size from which on a stream makes progress between operations.
const LARGE: usize = 4096;
/// The size up to which a put sends bytes from unregistered memory, if such a put completes inline. In that case no side waits
/// until each put is visible: the answer of a ping-pong, or the flush of a stream, covers all puts. Short puts of the compared
/// programs work in the same manner.
const SHORT: usize = 256;
/// The time after which a payload whose last byte is visible counts as wrong.
const LATEST: Duration = Duration::from_secs(2);

fn completion(size: usize) -> Completion {
    if size <= SHORT { Completion::Local } else { Completion::Remote }
}

/// The state of a ping-pong by put, on either side.
struct Table<'a> {
    side: &'a Side<'a>,
    endpoint: &'a Endpoint,
    key: &'a RemoteKey,
    landing: &'a Region,
    source: Region,
    payload: Vec<u8>,
    /// The preceding put, if it did not complete inline: its buffer must not be written until the put has completed.
    before: Option<Outcome>,
    at_once: bool,
    verify: bool,
}

impl Table<'_> {
    fn new<'a>(
        side: &'a Side<'a>,
        key: &'a RemoteKey,
        landing: &'a Region,
        size: usize,
        verify: bool,
    ) -> Result<Table<'a>, Error> {
        let (endpoint, source) = (side.endpoint()?, side.buffer(size)?);
        let (payload, at_once) = (vec![0; size], size <= SHORT);
        Ok(Table { side, endpoint, key, landing, source, payload, before: None, at_once, verify })
    }

    /// Puts turn `number` to the other side; the last byte of the put contains the number, cyclically from 1 to 255.
    fn put(&mut self, number: u64) -> Result<(), Error> {
        let size = self.payload.len();
        if self.verify {
            pattern::fill(number, &mut self.payload[..size - 1]);
        }
        self.payload[size - 1] = mark(number);
        if self.at_once {
            // The bytes can be reused. The other side's answer implies that they arrived.
            let outcome = self.side.post(|| self.endpoint.put_bytes(&self.payload, self.key, 0))?;
            self.at_once = outcome.is_done();
            return Ok(());
        }
        if let Some(before) = self.before.take() {
            let _ = self.side.finish(before)?;
        }
        if self.verify {
            self.source.write(0, &self.payload)?;
        } else {
            self.source.write(size - 1, &[mark(number)])?;
        }
        let (source, key) = (&self.source, self.key);
        // The last byte of a put in several pieces may arrive before others. If the other side checks the payload, the byte for
        // which it waits is put after the rest has arrived.
        let first = if self.verify && size > SHORT { size - 1 } else { 0 };
        if first > 0 {
            let put = || self.endpoint.put_with(source, 0..first, key, 0, Completion::Remote);
            let _ = self.side.finish(self.side.post(put)?)?;
        }
        let put =
            || self.endpoint.put_with(source, first..size, key, first as u64, completion(size));
        let outcome = self.side.post(put)?;
        if size <= SHORT {
            self.before = Some(outcome);
            return Ok(());
        }
        // A put in several pieces has arrived when it completes, and not when its last byte is visible.
        self.side.finish(outcome).map(drop)
    }

    /// Checks whether the payload of turn `number` arrives. An earlier version of this program puts the last byte together with the
    /// others, so it may be visible before them.
    fn is_whole(&self, number: u64, len: usize) -> Result<bool, Error> {
        let until = Instant::now() + LATEST;
        while !pattern::holds(number, &self.landing.to_vec(0..len)?) {
            if Instant::now() >= until {
                return Ok(false);
            }
            self.side.step()?;
        }
        Ok(true)
    }

    /// Waits for turn `number` of the other side; returns false if the other side has ended the test.
    fn wait(&self, number: u64) -> Result<bool, Error> {
        let last = self.payload.len() - 1;
        let word = self.landing.atomic_u64(last & !7)?;
        let shift = (last & 7) * 8;
        let arrived = || (word.load(Ordering::Acquire) >> shift) as u8 == mark(number);
        // The loop makes progress at intervals, because it waits for a change of memory.
        let mut there = false;
        self.side.wait_until(|| {
            there = (0..LOOKS).any(|_| arrived());
            there || self.side.seen.stopped.get()
        })?;
        if !there {
            return Ok(false);
        }
        if self.verify && !self.is_whole(number, last)? {
            self.side.seen.wrong.set(self.side.seen.wrong.get() + 1);
        }
        Ok(true)
    }
}

fn mark(number: u64) -> u8 {
    (number % 255) as u8 + 1
}

pub(super) fn put_latency(
    side: &Side<'_>,
    asked: &Asked<'_>,
    key: &RemoteKey,
    landing: &Region,
) -> Result<Samples, Error> {
    let mut table = Table::new(side, key, landing, asked.spec.size, asked.spec.verify)?;
    let turn = |number| {
        table.put(number)?;
        table.wait(number).map(drop)
    };
    measure(asked.limit, turn, |_| Ok(()))
}

pub(super) fn serve_put_latency(
    side: &Side<'_>,
    key: &RemoteKey,
    landing: &Region,
    size: usize,
    verify: bool,
) -> Result<(), Error> {
    let mut table = Table::new(side, key, landing, size, verify)?;
    for number in 0.. {
        if !table.wait(number)? {
            break;
        }
        table.put(number)?;
    }
    Ok(())
}

fn stream(
    side: &Side<'_>,
    asked: &Asked<'_>,
    window: usize,
    mut post: impl FnMut(u64) -> Result<Outcome, PostError>,
) -> Result<Samples, Error> {
    let under_way = std::cell::RefCell::new(VecDeque::with_capacity(window));
    let one = |number| {
        let outcome = side.post(|| post(number))?;
        if asked.spec.size >= LARGE {
            // Like a program, the loop makes progress and thereby serves requests of the peer, so that the peer can help.
            side.step()?;
        }
        if outcome.is_done() {
            return Ok(());
        }
        let mut under_way = under_way.borrow_mut();
        under_way.push_back(outcome);
        match under_way.len() < window {
            true => Ok(()),
            false => under_way.pop_front().map_or(Ok(()), |o| side.finish(o).map(drop)),
        }
    };
    measure(asked.limit, one, |_| {
        for outcome in under_way.borrow_mut().drain(..) {
            let _ = side.finish(outcome)?;
        }
        side.flush()
    })
}

pub(super) fn put_bandwidth(
    side: &Side<'_>,
    asked: &Asked<'_>,
    key: &RemoteKey,
) -> Result<Samples, Error> {
    let (size, endpoint) = (asked.spec.size, side.endpoint()?);
    let source = side.buffer(size)?;
    if asked.spec.verify {
        return verified(side, asked, key, &source);
    }
    let put = |_| endpoint.put_with(&source, 0..size, key, 0, completion(size));
    stream(side, asked, asked.window, put)
}

/// Reads each put back and compares the bytes.
fn verified(
    side: &Side<'_>,
    asked: &Asked<'_>,
    key: &RemoteKey,
    source: &Region,
) -> Result<Samples, Error> {
    let (size, endpoint) = (asked.spec.size, side.endpoint()?);
    let back = side.buffer(size)?;
    let mut payload = vec![0; size];
    let one = |number| {
        pattern::fill(number, &mut payload);
        source.write(0, &payload)?;
        let put = side.post(|| endpoint.put(source, 0..size, key, 0))?;
        let _ = side.finish(put)?;
        side.flush()?;
        let get = side.post(|| endpoint.get(&back, 0..size, key, 0))?;
        let _ = side.finish(get)?;
        back.read(0, &mut payload)?;
        if pattern::holds(number, &payload) {
            Ok(())
        } else {
            Err(super::differs(format!("put number {number} reads back as something else")))
        }
    };
    measure(asked.limit, one, |_| Ok(()))
}

/// Measures gets. `window` is 1 for get_lat. The target holds the pattern of number 0.
pub(super) fn get(
    side: &Side<'_>,
    asked: &Asked<'_>,
    key: &RemoteKey,
    latency: bool,
) -> Result<Samples, Error> {
    let (size, endpoint) = (asked.spec.size, side.endpoint()?);
    let target = side.buffer(size)?;
    if !asked.spec.verify {
        let window = if latency { 1 } else { asked.window };
        return stream(side, asked, window, |_| endpoint.get(&target, 0..size, key, 0));
    }
    let (mut seen, blank) = (vec![0; size], vec![0xa5; size]);
    let one = |number| {
        target.write(0, &blank)?;
        let get = side.post(|| endpoint.get(&target, 0..size, key, 0))?;
        let _ = side.finish(get)?;
        target.read(0, &mut seen)?;
        if pattern::holds(0, &seen) {
            Ok(())
        } else {
            Err(super::differs(format!("get number {number} brought something else")))
        }
    };
    measure(asked.limit, one, |_| Ok(()))
}
