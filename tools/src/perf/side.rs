//! One side of a test: a context, its worker, the endpoint to the other side, and the messages that handlers have received.

use super::args::Memory;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use tieline::{Context, Endpoint, Error, Outcome, PostError, Region, RemoteKey, Status, Worker};

pub(crate) mod id {
    /// The id of a message that is answered with a pong.
    pub(crate) const PING: u16 = 1;
    pub(crate) const PONG: u16 = 2;
    pub(crate) const STREAM: u16 = 3;
    /// The id of the end of a stream, which the receiver acknowledges.
    pub(crate) const END: u16 = 4;
    /// The id of the message with the number of received bytes of the stream.
    pub(crate) const ACK: u16 = 5;
    /// The id of the message that ends the test.
    pub(crate) const STOP: u16 = 6;
}

/// The interval at which a wait checks the peer process.
const LOOK: Duration = Duration::from_millis(100);
/// The number of progress calls between two checks of the peer process.
const STEPS: u32 = 1 << 16;

/// The messages that handlers have received since the beginning of the test.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) turns: Cell<u64>,
    /// The number of bytes of the stream.
    pub(crate) bytes: Cell<u64>,
    pub(crate) ended: Cell<bool>,
    /// The number of bytes in the other side's ACK.
    pub(crate) acknowledged: Cell<Option<u64>>,
    pub(crate) stopped: Cell<bool>,
    pub(crate) wrong: Cell<u64>,
    pub(crate) verify: Cell<bool>,
    failed: Cell<Option<Error>>,
}

impl Seen {
    fn reset(&self, verify: bool) {
        self.turns.set(0);
        self.bytes.set(0);
        self.ended.set(false);
        self.acknowledged.set(None);
        self.stopped.set(false);
        self.wrong.set(0);
        self.verify.set(verify);
    }

    fn check(&self, number: u64, payload: &[u8]) {
        if self.verify.get() && !pattern::holds(number, payload) {
            self.wrong.set(self.wrong.get() + 1);
        }
    }
}

/// The payloads, which identify the operation to which they belong.
pub(crate) mod pattern {
    #[inline(never)] // keeps this loop out of the measured one, which has no pattern
    pub(crate) fn fill(number: u64, payload: &mut [u8]) {
        for (at, byte) in payload.iter_mut().enumerate() {
            *byte = expected(number, at);
        }
    }

    #[inline(never)]
    pub(crate) fn holds(number: u64, payload: &[u8]) -> bool {
        payload.iter().enumerate().all(|(at, byte)| *byte == expected(number, at))
    }

    /// Returns the byte of a payload at a position.
    fn expected(number: u64, at: usize) -> u8 {
        (number as u8).wrapping_add((at as u8).wrapping_mul(37)).wrapping_add((at >> 8) as u8)
    }
}

pub(crate) struct Side<'a> {
    pub(crate) worker: Worker,
    pub(crate) seen: Rc<Seen>,
    context: Context,
    endpoint: Option<Endpoint>,
    /// A function that checks whether the other process is alive; waits call it at intervals.
    alive: &'a dyn Fn() -> Result<(), Error>,
    steps: Cell<u32>,
}

impl<'a> Side<'a> {
    pub(crate) fn open(
        path: Option<&str>,
        secret: &str,
        alive: &'a dyn Fn() -> Result<(), Error>,
    ) -> Result<Side<'a>, Error> {
        let mut builder = Context::builder();
        if let Some(path) = path {
            builder = builder.set("TIELINE_PROVIDERS", &providers_of(path));
        }
        if !secret.is_empty() {
            builder = builder.set("TIELINE_SECRET", secret);
        }
        let context = builder.open()?;
        let worker = context.worker()?;
        let seen = Rc::new(Seen::default());
        listen(&worker, &seen)?;
        Ok(Side { worker, seen, context, endpoint: None, alive, steps: Cell::new(0) })
    }

    pub(crate) fn connect(&mut self, address: &[u8]) -> Result<(), Error> {
        self.endpoint = Some(self.worker.connect(address)?);
        Ok(())
    }

    /// Returns the length of the longest message to the other side that is measured as one message. The connection must be
    /// established, because before that the length may be smaller.
    pub(crate) fn longest_message(&self) -> Result<usize, Error> {
        let endpoint = self.endpoint()?;
        let heard = self.post(|| endpoint.flush_messages())?;
        let _ = self.finish(heard)?;
        Ok(endpoint.max_message()?)
    }

    pub(crate) fn endpoint(&self) -> Result<&Endpoint, Error> {
        self.endpoint.as_ref().ok_or_else(|| Error::from_status(Status::Closed))
    }

    pub(crate) fn begin(&self, verify: bool) {
        self.seen.reset(verify);
    }

    pub(crate) fn region(&self, memory: Memory, len: usize) -> Result<Region, Error> {
        match memory {
            Memory::Alloc => Ok(self.context.alloc(len)?),
            Memory::Ordinary => self.buffer(len),
        }
    }

    /// Makes a buffer of this side with the usual rights: a peer may then copy a part of a large put or get.
    pub(crate) fn buffer(&self, len: usize) -> Result<Region, Error> {
        Ok(self.context.register(vec![0; len])?)
    }

    /// Imports a key and waits until the key's path is established.
    pub(crate) fn key(&self, bytes: &[u8]) -> Result<RemoteKey, Error> {
        let key = self.endpoint()?.import_key(bytes)?;
        self.wait_until(|| !key.is_settling())?;
        Ok(key)
    }

    #[inline]
    pub(crate) fn step(&self) -> Result<(), Error> {
        if self.worker.progress() > 0 {
            return Ok(());
        }
        let steps = self.steps.get().wrapping_add(1);
        self.steps.set(steps);
        if steps % STEPS == 0 { self.look() } else { Ok(()) }
    }

    /// Makes progress until `done` returns true. If that takes long, checks the other process at intervals.
    #[inline]
    pub(crate) fn wait_until(&self, mut done: impl FnMut() -> bool) -> Result<(), Error> {
        while !self.worker.wait_until(&mut done, Some(LOOK))? {
            self.look()?;
        }
        Ok(())
    }

    #[cold]
    fn look(&self) -> Result<(), Error> {
        (self.alive)()?;
        if let Some(error) = self.seen.failed.take() {
            return Err(error);
        }
        let ended = self.endpoint.as_ref().and_then(Endpoint::error);
        Ok(ended.map_or(Ok(()), Err)?)
    }

    /// Sends a message, and retries until it is accepted. The first attempt is inline in the measured loop, which so writes little
    /// besides the message.
    #[inline(always)]
    pub(crate) fn send(&self, id: u16, header: u64, payload: &[u8]) -> Result<(), Error> {
        let endpoint = self.endpoint()?;
        match send_once(endpoint, id, header, payload) {
            Ok(()) => Ok(()),
            Err(error) => self.send_again(id, header, payload, error),
        }
    }

    /// Continues after the first attempt.
    #[cold]
    #[inline(never)]
    fn send_again(
        &self,
        id: u16,
        header: u64,
        payload: &[u8],
        error: PostError,
    ) -> Result<(), Error> {
        let endpoint = self.endpoint()?;
        let mut first = Some(error);
        let again = || first.take().map_or_else(|| endpoint.send(id, header, payload), Err);
        self.post(again).map(drop)
    }

    /// Posts an operation, and retries until it is accepted.
    #[inline]
    pub(crate) fn post(
        &self,
        mut post: impl FnMut() -> Result<Outcome, PostError>,
    ) -> Result<Outcome, Error> {
        let mut posted = post();
        if is_again(&posted) {
            self.wait_until(|| {
                posted = post();
                !is_again(&posted)
            })?;
        }
        Ok(posted?)
    }

    #[inline]
    pub(crate) fn finish(&self, outcome: Outcome) -> Result<u64, Error> {
        let request = match outcome {
            Outcome::Done(value) => return Ok(value),
            Outcome::Pending(request) => request,
        };
        let mut ended = None;
        self.wait_until(|| {
            ended = self.worker.test(&request);
            ended.is_some()
        })?;
        Ok(ended.unwrap_or(Ok(0))?)
    }

    /// Waits until all posted operations are complete at the other side.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        let endpoint = self.endpoint()?;
        let outcome = self.post(|| endpoint.flush())?;
        self.finish(outcome).map(drop)
    }
}

#[inline(always)]
fn send_once(endpoint: &Endpoint, id: u16, header: u64, payload: &[u8]) -> Result<(), PostError> {
    let _ = endpoint.send(id, header, payload)?;
    Ok(())
}

fn is_again(posted: &Result<Outcome, PostError>) -> bool {
    matches!(posted, Err(PostError::Retry(_)))
}

/// Returns the selection of providers for which `path` is the only path: single-copy providers carry no messages, so shm is
/// included.
fn providers_of(path: &str) -> String {
    match path {
        "emulated" => "shm".into(),
        // The module connects to an endpoint, so another module must form the connection.
        "tcp" => "tcp,tcp-connect".into(),
        _ if path.starts_with("shm-") && !path.split(',').any(|name| name == "shm") => {
            format!("{path},shm")
        }
        _ => path.into(),
    }
}

fn listen(worker: &Worker, seen: &Rc<Seen>) -> Result<(), Error> {
    for id in [id::PING, id::PONG] {
        let seen = seen.clone();
        worker.on_message(id, move |m| {
            seen.check(m.header(), m.payload());
            seen.turns.set(seen.turns.get() + 1);
        })?;
    }
    let stream = seen.clone();
    worker.on_message(id::STREAM, move |m| {
        stream.check(m.header(), m.payload());
        stream.bytes.set(stream.bytes.get() + m.payload().len() as u64);
    })?;
    let end = seen.clone();
    worker.on_message(id::END, move |_| end.ended.set(true))?;
    let ack = seen.clone();
    worker.on_message(id::ACK, move |m| ack.acknowledged.set(Some(m.header())))?;
    let stop = seen.clone();
    worker.on_message(id::STOP, move |_| stop.stopped.set(true))?;
    let failed = seen.clone();
    worker.on_peer_failure(move |_, error| failed.failed.set(Some(error.clone())));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_of_another_operation_or_with_one_wrong_byte_is_noticed() {
        let mut payload = vec![0; 1000];
        pattern::fill(7, &mut payload);
        assert!(pattern::holds(7, &payload));
        assert!(!pattern::holds(8, &payload));
        payload[999] ^= 1;
        assert!(!pattern::holds(7, &payload));
    }

    #[test]
    fn a_single_copy_path_takes_shm_along_for_its_messages() {
        assert_eq!(providers_of("shm-cma"), "shm-cma,shm");
        assert_eq!(providers_of("shm"), "shm");
        assert_eq!(providers_of("tcp"), "tcp,tcp-connect");
        assert_eq!(providers_of("emulated"), "shm");
        assert_eq!(providers_of("shm-cma,shm"), "shm-cma,shm");
    }
}
