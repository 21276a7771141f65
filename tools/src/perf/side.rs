//! One side of a test: a context, its worker, the endpoint to the other side, and what handlers have seen.

use super::args::Memory;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use tieline::{Context, Endpoint, Error, Outcome, PostError, Region, RemoteKey, Status, Worker};

/// Message ids.
pub(crate) mod id {
    /// To be answered with a pong.
    pub(crate) const PING: u16 = 1;
    pub(crate) const PONG: u16 = 2;
    /// One of a stream.
    pub(crate) const STREAM: u16 = 3;
    /// The end of a stream; to be acknowledged.
    pub(crate) const END: u16 = 4;
    /// How many bytes of the stream arrived.
    pub(crate) const ACK: u16 = 5;
    /// The test is over.
    pub(crate) const STOP: u16 = 6;
}

/// How long a wait goes on before the peer process is looked at, and how many progress calls without one.
const LOOK: Duration = Duration::from_millis(100);
const STEPS: u32 = 1 << 16;

/// The messages that handlers have received since the test began.
#[derive(Default)]
pub(crate) struct Seen {
    /// Pings or pongs.
    pub(crate) turns: Cell<u64>,
    /// Bytes of the stream.
    pub(crate) bytes: Cell<u64>,
    pub(crate) ended: Cell<bool>,
    /// The content of the other side's ACK.
    pub(crate) acknowledged: Cell<Option<u64>>,
    pub(crate) stopped: Cell<bool>,
    /// Payloads that were not what they should be.
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

/// Bytes that say which operation they belong to.
pub(crate) mod pattern {
    /// Fills a payload of operation `number`.
    pub(crate) fn fill(number: u64, payload: &mut [u8]) {
        for (at, byte) in payload.iter_mut().enumerate() {
            *byte = expected(number, at);
        }
    }

    /// Whether a payload is that of operation `number`.
    pub(crate) fn holds(number: u64, payload: &[u8]) -> bool {
        payload.iter().enumerate().all(|(at, byte)| *byte == expected(number, at))
    }

    /// Differs from one number to the next at every place, and from place to place.
    fn expected(number: u64, at: usize) -> u8 {
        (number as u8).wrapping_add((at as u8).wrapping_mul(37)).wrapping_add((at >> 8) as u8)
    }
}

/// One side.
pub(crate) struct Side<'a> {
    pub(crate) worker: Worker,
    pub(crate) seen: Rc<Seen>,
    context: Context,
    endpoint: Option<Endpoint>,
    /// Whether the other process is still there, asked now and then.
    alive: &'a dyn Fn() -> Result<(), Error>,
    steps: Cell<u32>,
}

impl<'a> Side<'a> {
    /// Opens a context over `path`, and listens.
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

    /// How long a message to the other side may be that is measured as one: the connection stands, before which it may be less.
    pub(crate) fn longest_message(&self) -> Result<usize, Error> {
        let endpoint = self.endpoint()?;
        let heard = self.post(|| endpoint.flush_messages())?;
        let _ = self.finish(heard)?;
        Ok(endpoint.max_message()?)
    }

    /// The endpoint to the other side.
    pub(crate) fn endpoint(&self) -> Result<&Endpoint, Error> {
        self.endpoint.as_ref().ok_or_else(|| Error::from_status(Status::Closed))
    }

    /// Forgets what was seen before.
    pub(crate) fn begin(&self, verify: bool) {
        self.seen.reset(verify);
    }

    /// A region that the other side may use.
    pub(crate) fn region(&self, memory: Memory, len: usize) -> Result<Region, Error> {
        match memory {
            Memory::Alloc => Ok(self.context.alloc(len)?),
            Memory::Ordinary => self.buffer(len),
        }
    }

    /// A buffer of this side. With the usual rights: a peer may then copy a part of a large put or get.
    pub(crate) fn buffer(&self, len: usize) -> Result<Region, Error> {
        Ok(self.context.register(vec![0; len])?)
    }

    /// Imports a key and waits until its path stands.
    pub(crate) fn key(&self, bytes: &[u8]) -> Result<RemoteKey, Error> {
        let key = self.endpoint()?.import_key(bytes)?;
        self.wait_until(|| !key.is_settling())?;
        Ok(key)
    }

    /// Progress, and now and then a look at the other process: for what is done between operations.
    #[inline]
    pub(crate) fn step(&self) -> Result<(), Error> {
        if self.worker.progress() > 0 {
            return Ok(());
        }
        let steps = self.steps.get().wrapping_add(1);
        self.steps.set(steps);
        if steps % STEPS == 0 { self.look() } else { Ok(()) }
    }

    /// Makes progress until `done`, with a look at the other process now and then.
    #[inline]
    pub(crate) fn wait_until(&self, mut done: impl FnMut() -> bool) -> Result<(), Error> {
        while !self.worker.wait_until(&mut done, Some(LOOK))? {
            self.look()?;
        }
        Ok(())
    }

    /// Looks whether the other process and the way to it are still there.
    #[cold]
    fn look(&self) -> Result<(), Error> {
        (self.alive)()?;
        if let Some(error) = self.seen.failed.take() {
            return Err(error);
        }
        let ended = self.endpoint.as_ref().and_then(Endpoint::error);
        Ok(ended.map_or(Ok(()), Err)?)
    }

    /// Sends, however often it takes.
    #[inline]
    pub(crate) fn send(&self, id: u16, header: u64, payload: &[u8]) -> Result<(), Error> {
        let endpoint = self.endpoint()?;
        self.post(|| endpoint.send(id, header, payload)).map(drop)
    }

    /// Posts, however often it takes.
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

    /// Waits for an operation.
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

    /// Waits until everything posted is complete at the other side.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        let endpoint = self.endpoint()?;
        let outcome = self.post(|| endpoint.flush())?;
        self.finish(outcome).map(drop)
    }
}

fn is_again(posted: &Result<Outcome, PostError>) -> bool {
    matches!(posted, Err(PostError::Retry(_)))
}

/// The selection that makes `path` the only one: single-copy providers move no messages, so shm comes along.
fn providers_of(path: &str) -> String {
    match path {
        "emulated" => "shm".into(),
        // It connects to an endpoint: something else forms the connection.
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
