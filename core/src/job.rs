//! A job: the processes that one launcher started, and the exchange through which they hand each other
//! the few bytes that it takes to connect.
//!
//! ```no_run
//! use tieline::job::Job;
//!
//! fn main() -> Result<(), tieline::Error> {
//!     let job = Job::from_env()?; // rank 0 of 1 when nobody launched us
//!     let address = b"what worker.address() gave".to_vec();
//!     let everyone = job.exchange(&address)?; // everyone[r] came from rank r
//!     assert_eq!(everyone.len(), job.size());
//!     job.barrier()
//! }
//! ```
//!
//! `tieline run -n 4 -- program` starts such a job on one machine. `TIELINE_EXCHANGE` says how its processes
//! reach each other: `unix:@NAME` is the launcher's own socket. Every other way (PMIx, a rendezvous over TCP)
//! is one more scheme before the colon and one more implementation of `Exchange`.
//!
//! Nothing here waits without end: a rank that dies ends the exchange for all others with that rank's number
//! and the way it ended, and a deadline bounds what is merely slow.

use crate::{Error, Status};
use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub mod wire;

use wire::{Decoder, Frame};

/// How long one exchange may take unless [`Job::set_deadline`] says otherwise.
pub const DEADLINE: Duration = Duration::from_secs(120);

const FIX_LAUNCH: &str = "start the program with `tieline run -n N -- program`";

/// This process's place in its job.
pub struct Job {
    place: Place,
    deadline: Duration,
    exchange: Mutex<Box<dyn Exchange + Send>>,
}

/// What the launcher's variables say.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    rank: usize,
    size: usize,
    local_rank: usize,
    id: String,
}

/// One way to hand every process's bytes to every other one. All processes call it equally often.
trait Exchange {
    fn allgather(&mut self, mine: &[u8], until: Instant) -> Result<Vec<Vec<u8>>, Error>;
}

impl Job {
    /// Joins the job that the environment names; rank 0 of 1 when it names none.
    ///
    /// # Errors
    /// `Invalid` when the variables contradict each other, `PeerFailed` when the launcher cannot be reached.
    pub fn from_env() -> Result<Job, Error> {
        Job::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Job, Error> {
        let Some(place) = Place::parse(&get)? else {
            let place = Place { rank: 0, size: 1, local_rank: 0, id: String::new() };
            return Ok(Job::new(place, Box::new(Alone)));
        };
        let spoken = get("TIELINE_EXCHANGE").unwrap_or_default();
        let exchange: Box<dyn Exchange + Send> = match spoken.split_once(':') {
            Some(("unix", name)) => Box::new(Launcher::connect(name, &place)?),
            _ if place.size == 1 && spoken.is_empty() => Box::new(Alone),
            _ => {
                return Err(Error::new(
                    Status::Invalid,
                    "cannot join the job",
                    format!(
                        "TIELINE_EXCHANGE is `{spoken}`, and this version knows only `unix:@NAME`"
                    ),
                    FIX_LAUNCH,
                ));
            }
        };
        Ok(Job::new(place, exchange))
    }

    fn new(place: Place, exchange: Box<dyn Exchange + Send>) -> Job {
        Job { place, deadline: DEADLINE, exchange: Mutex::new(exchange) }
    }

    /// Number of this process, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.place.rank
    }

    /// Number of processes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.place.size
    }

    /// Number of this process among those of its host, from 0.
    #[must_use]
    pub fn local_rank(&self) -> usize {
        self.place.local_rank
    }

    /// The job's random identity; empty without a launcher.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.place.id
    }

    /// How long one exchange may take; [`DEADLINE`] by default.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    /// Hands `mine` to every process and returns everyone's bytes, in rank order. Collective: every process
    /// calls it, equally often. At most [`wire::MAX_CONTRIBUTION`] bytes.
    ///
    /// # Errors
    /// `TooLarge`; `PeerFailed` with the rank that ended and how; `TimedOut` after the deadline. The exchange
    /// is unusable after any of them but the first.
    pub fn exchange(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        if mine.len() > wire::MAX_CONTRIBUTION {
            return Err(Error::new(
                Status::TooLarge,
                "cannot exchange that much",
                format!("{} bytes were given, at most {} fit", mine.len(), wire::MAX_CONTRIBUTION),
                "exchange addresses and keys, and move data through endpoints",
            ));
        }
        let until = Instant::now() + self.deadline;
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner).allgather(mine, until)
    }

    /// Returns when every process has called it.
    ///
    /// # Errors
    /// As [`Job::exchange`].
    pub fn barrier(&self) -> Result<(), Error> {
        self.exchange(&[]).map(drop)
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)
    }
}

impl Place {
    fn parse(get: &impl Fn(&str) -> Option<String>) -> Result<Option<Place>, Error> {
        if get("TIELINE_RANK").is_none() && get("TIELINE_SIZE").is_none() {
            return Ok(None);
        }
        let number = |name: &str| -> Result<usize, Error> {
            let text = get(name).unwrap_or_default();
            text.parse().map_err(|_| {
                let found = if text.is_empty() { "not set".into() } else { format!("`{text}`") };
                refuse(format!("{name} is {found}, and should be a number"))
            })
        };
        let place = Place {
            rank: number("TIELINE_RANK")?,
            size: number("TIELINE_SIZE")?,
            local_rank: match get("TIELINE_LOCAL_RANK") {
                Some(_) => number("TIELINE_LOCAL_RANK")?,
                None => 0,
            },
            id: get("TIELINE_JOB").unwrap_or_default(),
        };
        if place.rank >= place.size || u32::try_from(place.size).is_err() {
            return Err(refuse(format!(
                "TIELINE_RANK is {} and TIELINE_SIZE is {}: ranks run from 0 to size - 1",
                place.rank, place.size
            )));
        }
        Ok(Some(place))
    }
}

fn refuse(why: String) -> Error {
    Error::new(Status::Invalid, "cannot join the job", why, FIX_LAUNCH)
}

/// A job of one process.
struct Alone;

impl Exchange for Alone {
    fn allgather(&mut self, mine: &[u8], _until: Instant) -> Result<Vec<Vec<u8>>, Error> {
        Ok(vec![mine.to_vec()])
    }
}

/// The launcher's socket.
struct Launcher {
    stream: UnixStream,
    decoder: Decoder,
    size: usize,
    round: u64,
    broken: Option<Error>,
}

impl Launcher {
    fn connect(name: &str, place: &Place) -> Result<Launcher, Error> {
        let unreachable = |why: String| {
            Error::new(
                Status::PeerFailed,
                "cannot reach the launcher",
                why,
                "see that `tieline run` still runs, in the same network namespace",
            )
        };
        let name = name
            .strip_prefix('@')
            .ok_or_else(|| refuse("TIELINE_EXCHANGE has a socket name without `@`".into()))?;
        let address = SocketAddr::from_abstract_name(name.as_bytes())
            .map_err(|e| refuse(format!("TIELINE_EXCHANGE names no possible socket: {e}")))?;
        let mut stream = UnixStream::connect_addr(&address)
            .map_err(|e| unreachable(format!("socket @{name}: {e}")))?;
        let rank = u32::try_from(place.rank).map_err(|_| refuse("the rank is too large".into()))?;
        let hello = Frame::Hello { rank, job: place.id.clone() };
        stream.write_all(&hello.encode()).map_err(|e| unreachable(e.to_string()))?;
        let decoder = Decoder::new(wire::gathered_limit(place.size));
        Ok(Launcher { stream, decoder, size: place.size, round: 0, broken: None })
    }

    fn send(&mut self, frame: &Frame, until: Instant) -> Result<(), Error> {
        let bytes = frame.encode();
        let mut sent = 0;
        while sent < bytes.len() {
            let left = remaining(until)?;
            let outcome = self.stream.set_write_timeout(Some(left));
            match outcome.and_then(|()| self.stream.write(&bytes[sent..])) {
                Ok(n) => sent += n,
                Err(e) if retries(&e) => {}
                // The launcher closes after its last word: that word, not the broken pipe, is the reason.
                Err(e) => {
                    return Err(self.last_word(until).unwrap_or_else(|| lost(&e.to_string())));
                }
            }
        }
        Ok(())
    }

    fn last_word(&mut self, until: Instant) -> Option<Error> {
        match self.receive(until) {
            Ok(Frame::Lost { text }) => Some(lost(&text)),
            _ => None,
        }
    }

    fn receive(&mut self, until: Instant) -> Result<Frame, Error> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            match self.decoder.next() {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => {}
                Err(why) => {
                    return Err(Error::new(
                        Status::BadData,
                        "the launcher spoke nonsense",
                        why,
                        "use a `tieline run` of the same version as the library",
                    ));
                }
            }
            let left = remaining(until)?;
            let outcome = self.stream.set_read_timeout(Some(left));
            match outcome.and_then(|()| self.stream.read(&mut buffer)) {
                Ok(0) => return Err(lost("the launcher is gone")),
                Ok(n) => self.decoder.push(&buffer[..n]),
                Err(e) if retries(&e) => {}
                Err(e) => return Err(lost(&e.to_string())),
            }
        }
    }

    fn round(&mut self, mine: &[u8], until: Instant) -> Result<Vec<Vec<u8>>, Error> {
        let round = self.round;
        self.send(&Frame::Contribute { round, bytes: mine.to_vec() }, until)?;
        match self.receive(until)? {
            Frame::Gathered { round: told, parts } if told == round && parts.len() == self.size => {
                self.round += 1;
                Ok(parts)
            }
            Frame::Lost { text } => Err(lost(&text)),
            _ => Err(Error::new(
                Status::BadData,
                "the launcher spoke out of turn",
                "its answer belongs to another exchange",
                "use a `tieline run` of the same version as the library",
            )),
        }
    }
}

impl Exchange for Launcher {
    fn allgather(&mut self, mine: &[u8], until: Instant) -> Result<Vec<Vec<u8>>, Error> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let outcome = self.round(mine, until);
        self.broken = outcome.as_ref().err().cloned();
        outcome
    }
}

fn remaining(until: Instant) -> Result<Duration, Error> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Error::new(
            Status::TimedOut,
            "the exchange did not end in time",
            "another rank has not called it",
            "see that every rank calls exchange and barrier equally often, or set a longer deadline",
        ));
    }
    Ok(left)
}

fn retries(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn lost(why: &str) -> Error {
    Error::new(Status::PeerFailed, "the exchange failed", why, "see that rank's own output")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(set: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        let set: Vec<(String, String)> =
            set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        move |name| set.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone())
    }

    #[test]
    fn without_a_launcher_the_job_is_one_process() {
        let job = Job::from_variables(variables(&[])).unwrap();
        assert_eq!((job.rank(), job.size()), (0, 1));
        assert_eq!(job.exchange(b"me").unwrap(), vec![b"me".to_vec()]);
        job.barrier().unwrap();
    }

    #[test]
    fn variables_that_contradict_each_other_are_refused_by_name() {
        for (set, says) in [
            (&[("TIELINE_RANK", "0")][..], "TIELINE_SIZE is not set"),
            (&[("TIELINE_RANK", "x"), ("TIELINE_SIZE", "2")], "TIELINE_RANK is `x`"),
            (&[("TIELINE_RANK", "2"), ("TIELINE_SIZE", "2")], "ranks run from 0"),
            (&[("TIELINE_RANK", "0"), ("TIELINE_SIZE", "2")], "TIELINE_EXCHANGE is ``"),
        ] {
            let error = Job::from_variables(variables(set)).unwrap_err();
            assert_eq!(error.status(), Status::Invalid);
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn a_launcher_that_is_gone_is_an_error_and_not_a_wait() {
        let set = [
            ("TIELINE_RANK", "0"),
            ("TIELINE_SIZE", "2"),
            ("TIELINE_EXCHANGE", "unix:@tieline-nobody-listens-here"),
        ];
        let error = Job::from_variables(variables(&set)).unwrap_err();
        assert_eq!(error.status(), Status::PeerFailed);
    }

    #[test]
    fn too_much_is_refused_and_the_exchange_lives_on() {
        let job = Job::from_variables(variables(&[])).unwrap();
        let error = job.exchange(&vec![0; wire::MAX_CONTRIBUTION + 1]).unwrap_err();
        assert_eq!(error.status(), Status::TooLarge);
        job.barrier().unwrap();
    }
}
