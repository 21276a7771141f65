//! A process's side of the exchange: one connection to the server.

use super::local;
use super::stream::Stream;
use super::wire::{self, Decoder, Frame, Hello, MAX_LOOKUPS};
use super::{Deadline, Exchange, retries};
use crate::{Error, Status};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tieline_plugin_api::process::Mark;

/// The time limit for the server's report of the missing ranks, after the deadline has passed.
const LAST_WORD: Duration = Duration::from_secs(2);

/// A connection to the server. Any thread may use it: one waiting thread reads for all waiting threads.
pub(super) struct Link {
    stream: Stream,
    /// The lock that a thread holds while it writes a frame. The lock contains the rest of a frame whose write timed out; that rest
    /// precedes all later frames.
    writing: Mutex<Vec<u8>>,
    state: Mutex<State>,
    /// The condition that input was read, or that the reading thread has stopped.
    came: Condvar,
    /// The lock that a thread holds during an exchange.
    exchanging: Mutex<()>,
    size: usize,
    /// The process that opened the link: a forked child does not read its parent's connection.
    process: Mark,
    /// The description of the server in error texts: `the launcher`, `rank 0, which serves the exchange`.
    server: &'static str,
}

struct State {
    decoder: Decoder,
    /// Whether a thread is reading.
    reading: bool,
    round: u64,
    /// The answer to the current exchange.
    gathered: Option<Frame>,
    /// The reason why there will be no more exchanges, from the server's final frame.
    over: Option<Error>,
    /// The reason why the server refused or excluded this process. The server closes the connection afterwards.
    refused: Option<Error>,
    /// The reason why nothing more is read.
    gone: Option<Error>,
    /// The pending lookups, and the answers that have arrived.
    lookups: HashMap<u64, Option<Result<Vec<u8>, String>>>,
    next_lookup: u64,
}

impl Link {
    /// Joins the exchange over an established connection.
    pub(super) fn open(
        stream: Stream,
        hello: Hello,
        server: &'static str,
        deadline: &Deadline,
    ) -> Result<Link, Error> {
        let size = hello.size as usize;
        let state = State {
            decoder: Decoder::new(wire::gathered_limit(size)),
            reading: false,
            round: 0,
            gathered: None,
            over: None,
            refused: None,
            gone: None,
            lookups: HashMap::new(),
            next_lookup: 0,
        };
        let link = Link {
            stream,
            writing: Mutex::default(),
            state: Mutex::new(state),
            came: Condvar::new(),
            exchanging: Mutex::new(()),
            size,
            process: Mark::new(),
            server,
        };
        link.send(&Frame::Hello(hello), deadline)?;
        Ok(link)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a frame. After a timeout, either no byte of the frame was sent, or the rest of the frame precedes the next frame.
    fn send(&self, frame: &Frame, deadline: &Deadline) -> Result<(), Error> {
        let mut left = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = left.len();
        left.extend(frame.encode());
        let mut sent = 0;
        while sent < left.len() {
            let Some(time) = deadline.left() else {
                // If no byte of this frame was sent, the frame is dropped; otherwise its rest is kept.
                if sent <= begun {
                    left.truncate(begun);
                }
                drop(left.drain(..sent));
                return Err(self.late(deadline));
            };
            let outcome = self.stream.set_write_timeout(Some(time));
            match outcome.and_then(|()| (&self.stream).write(&left[sent..])) {
                Ok(n) => sent += n,
                Err(e) if retries(&e) => {}
                Err(e) => {
                    drop(left);
                    return Err(self.refused(&e.to_string()));
                }
            }
        }
        *left = Vec::new();
        Ok(())
    }

    /// Makes the error of a failed write. The server closes the connection after a refusal: then the refusal is the reason, not the
    /// broken pipe.
    fn refused(&self, why: &str) -> Error {
        let _ = self.wait::<()>(Instant::now() + LAST_WORD, |_| None);
        self.state().refused.clone().unwrap_or_else(|| self.gone(why))
    }

    /// Reads until `pick` finds a value. Returns `None` on a timeout.
    fn wait<T>(
        &self,
        until: Instant,
        pick: impl Fn(&mut State) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let mut state = self.state();
        loop {
            if let Some(found) = pick(&mut state) {
                return Ok(Some(found));
            }
            if let Some(why) = state.refused.as_ref().or(state.gone.as_ref()) {
                return Err(why.clone());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            if state.reading {
                let waited = self.came.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            state.reading = true;
            drop(state);
            let mut buffer = [0; 64 << 10];
            let outcome = self.stream.set_read_timeout(Some(left));
            let outcome = outcome.and_then(|()| (&self.stream).read(&mut buffer));
            state = self.state();
            state.reading = false;
            match outcome {
                Ok(0) => state.gone = Some(self.gone("")),
                Ok(n) => self.take(&mut state, &buffer[..n]),
                Err(e) if retries(&e) => {}
                Err(e) => state.gone = Some(self.gone(&e.to_string())),
            }
            self.came.notify_all();
        }
    }

    /// Stores received frames for the threads that wait for them.
    fn take(&self, state: &mut State, bytes: &[u8]) {
        state.decoder.push(bytes);
        loop {
            match state.decoder.next() {
                Ok(Some(Frame::Found { id, bytes })) => answer(state, id, Ok(bytes)),
                Ok(Some(Frame::Unknown { id, text })) => answer(state, id, Err(text)),
                Ok(Some(frame @ Frame::Gathered { .. })) if state.gathered.is_none() => {
                    state.gathered = Some(frame);
                }
                Ok(Some(frame)) => {
                    let refused = matches!(frame, Frame::Refused { .. });
                    let last_word = self.last_word(frame);
                    if refused {
                        let _ = state.refused.get_or_insert(last_word.clone());
                    }
                    let _ = state.over.get_or_insert(last_word);
                }
                Ok(None) => return,
                Err(why) => {
                    state.gone = Some(Error::new(
                        Status::BadData,
                        format!("{} sent malformed data", self.server),
                        why,
                        "use the same version of the library and of `tieline` in the whole job",
                    ));
                    return;
                }
            }
        }
    }

    fn round(&self, mine: &[u8], deadline: &Deadline) -> Result<Vec<Vec<u8>>, Error> {
        let round = self.state().round;
        let sent = self.send(&Frame::Contribute { round, bytes: mine.to_vec() }, deadline);
        // A final frame that the server sent before it closed is the reason.
        sent.map_err(|error| self.state().over.clone().unwrap_or(error))?;
        let told = |state: &mut State| {
            let gathered = state.gathered.take().map(Ok);
            gathered.or_else(|| state.over.clone().map(Err))
        };
        let answer = match self.wait(deadline.at(), told)? {
            Some(answer) => answer?,
            None => {
                // The server knows the missing ranks.
                let waited_ms = u64::try_from(deadline.length.as_millis()).unwrap_or(u64::MAX);
                let extended = Deadline::new(LAST_WORD);
                let _ = self.send(&Frame::GiveUp { waited_ms }, &extended);
                match self.wait(extended.at(), told)? {
                    Some(answer) => answer?,
                    None => return Err(self.late(deadline)),
                }
            }
        };
        match answer {
            Frame::Gathered { round: told, parts } if told == round && parts.len() == self.size => {
                self.state().round += 1;
                Ok(parts)
            }
            frame => Err(self.last_word(frame)),
        }
    }

    fn ask(&self, rank: u32, key: u32, id: u64, deadline: &Deadline) -> Result<Vec<u8>, Error> {
        self.send(&Frame::Lookup { id, rank, key }, deadline)?;
        let told = |state: &mut State| state.lookups.get_mut(&id)?.take();
        let unknown = |why: &str| {
            Error::new(
                Status::PeerFailed,
                format!("rank {rank} has published nothing as {key}"),
                why,
                "see that rank's own output",
            )
        };
        if let Some(answer) = self.wait(deadline.at(), told)? {
            return answer.map_err(|why| unknown(&why));
        }
        // The server knows the state of that rank.
        let extended = Deadline::new(LAST_WORD);
        let _ = self.send(&Frame::Forget { id }, &extended);
        match self.wait(extended.at(), told)? {
            Some(Ok(bytes)) => Ok(bytes),
            Some(Err(why)) => {
                Err(late_lookup(rank, key, &format!("{why} within {:?}", deadline.length)))
            }
            None => Err(self.late(deadline)),
        }
    }

    fn last_word(&self, frame: Frame) -> Error {
        match frame {
            Frame::Lost { text } => lost(&text),
            Frame::Late { text } => late(&text),
            Frame::Refused { text } => Error::new(
                Status::Invalid,
                "cannot join the job",
                text,
                "see that the job's processes were given their ranks, their number and their job by one launcher",
            ),
            _ => Error::new(
                Status::BadData,
                format!("{} spoke out of turn", self.server),
                "its answer belongs to another exchange",
                "use the same version of the library and of `tieline` in the whole job",
            ),
        }
    }

    fn late(&self, deadline: &Deadline) -> Error {
        late(&format!("{} has not answered within {:?}", self.server, deadline.length))
    }

    fn gone(&self, why: &str) -> Error {
        let end = if why.is_empty() { String::new() } else { format!(" ({why})") };
        lost(&format!("{} is gone{end}", self.server))
    }
}

/// Reads the pending input before the close. A TCP connection that is closed with unread input is reset. The other side may then
/// lose data that it has not read yet, such as the last publication.
impl Drop for Link {
    fn drop(&mut self) {
        let is_own = self.process.is_here();
        if is_own && self.stream.set_nonblocking(true).is_ok() {
            let (mut unread, mut buffer) = (&self.stream, [0; 4096]);
            while unread.read(&mut buffer).is_ok_and(|count| count > 0) {}
        }
        if is_own {
            // A forked child may hold a copy of the connection, and the server waits for its end.
            self.stream.shutdown();
        }
    }
}

impl Exchange for Link {
    fn allgather(&self, mine: &[u8], deadline: &Deadline) -> Result<Vec<Vec<u8>>, Error> {
        let _one = self.exchanging.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = &self.state().over {
            return Err(error.clone());
        }
        let outcome = self.round(mine, deadline);
        if let Err(error) = &outcome {
            // Later frames belong to no exchange.
            let _ = self.state().over.get_or_insert(error.clone());
        }
        outcome
    }

    fn publish(&self, key: u32, bytes: &[u8], deadline: &Deadline) -> Result<(), Error> {
        self.send(&Frame::Publish { key, bytes: bytes.to_vec() }, deadline)
    }

    fn lookup(&self, rank: usize, key: u32, deadline: &Deadline) -> Result<Vec<u8>, Error> {
        let id = {
            let mut state = self.state();
            if state.lookups.len() >= MAX_LOOKUPS {
                return Err(Error::new(
                    Status::Again,
                    format!("rank {rank} cannot be asked for {key} now"),
                    format!("{MAX_LOOKUPS} lookups of this process wait already"),
                    "look it up again when one of them has its answer",
                ));
            }
            state.next_lookup += 1;
            let id = state.next_lookup;
            let _ = state.lookups.insert(id, None);
            id
        };
        let outcome = self.ask(u32::try_from(rank).unwrap_or(u32::MAX), key, id, deadline);
        let _ = self.state().lookups.remove(&id);
        outcome
    }
}

/// Stores an answer to a lookup. An answer to a lookup that is not pending is dropped.
fn answer(state: &mut State, id: u64, found: Result<Vec<u8>, String>) {
    if let Some(waited) = state.lookups.get_mut(&id) {
        *waited = Some(found);
    }
}

pub(super) fn late_lookup(rank: u32, key: u32, why: &str) -> Error {
    Error::new(
        Status::TimedOut,
        format!("rank {rank} has not published {key} in time"),
        why,
        "see that every rank publishes what others look up; TIELINE_BOOTSTRAP_TIMEOUT or the job's deadline gives it longer",
    )
}

/// Connects to the socket of a launcher on this host.
pub(super) fn launcher(name: &str, hello: Hello, deadline: &Deadline) -> Result<Link, Error> {
    let timeout = deadline.left().unwrap_or_default();
    let stream = local::connect(name, timeout).map_err(|refused| {
        let (status, why) = match refused {
            local::Refused::System(e) => (Status::PeerFailed, e.to_string()),
            local::Refused::User(user) => (Status::Permission, format!("{user} listens there")),
        };
        Error::new(
            status,
            "cannot reach the launcher",
            format!("socket @{name}: {why}"),
            "see that `tieline run` still runs, as the same user and in the same network namespace",
        )
    })?;
    Link::open(Stream::Unix(stream), hello, "the launcher", deadline)
}

fn lost(why: &str) -> Error {
    Error::new(Status::PeerFailed, "the exchange failed", why, "see that rank's own output")
}

pub(super) fn late(why: &str) -> Error {
    Error::new(
        Status::TimedOut,
        "the exchange did not end in time",
        why,
        "see that every rank was started, and that all call exchange and barrier equally often; \
         TIELINE_BOOTSTRAP_TIMEOUT or Job::set_deadline gives them longer",
    )
}

#[cfg(test)]
mod tests;
