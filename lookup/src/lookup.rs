//! The lookup of the worker behind a name.

use crate::name::{PURPOSE, WorkerName, tag};
use crate::{Error, Status};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::time::Instant;
use tieline_net::{Dial, Hello, Key, Progress, Settings, local_addresses, routes};

/// The maximum length of a worker's address in bytes.
pub(crate) const MOST: usize = 1 << 20;

/// A request for the address of a named worker.
pub struct Lookup {
    name: WorkerName,
    stage: Stage,
    deadline: Instant,
}

enum Stage {
    Dials(Box<Dial>),
    Reads(TcpStream, Vec<u8>),
    Over,
}

impl Lookup {
    /// Starts a request.
    ///
    /// # Errors
    /// `NoMemory` without a free descriptor, `Unreachable` if no permitted interface leads to an address in the name.
    pub fn start(
        name: &WorkerName,
        settings: &Settings,
        deadline: Instant,
    ) -> Result<Lookup, Error> {
        let contact = name.contact();
        let found = local_addresses(&settings.filter).and_then(|local| {
            let hello = Hello::new(PURPOSE, contact.target, &name.worker())?;
            Ok((routes(&local, &contact)?, hello))
        });
        let (routes, hello) = found.map_err(|why| {
            failed(if is_starved() { Status::NoMemory } else { Status::Unreachable }, name, why)
        })?;
        let key = Key::derive(&settings.secret, &contact.cookie);
        let stage = Stage::Dials(Box::new(Dial::start(routes, key, hello, deadline)));
        Ok(Lookup { name: *name, stage, deadline })
    }

    /// Returns the name that is being resolved.
    pub fn name(&self) -> &WorkerName {
        &self.name
    }

    /// Makes progress without waiting. Returns the address or the failure once; before and after that, `None`. `parse` reads an
    /// address, and returns with it the id of its worker.
    pub fn advance<A>(
        &mut self,
        now: Instant,
        parse: impl FnOnce(&[u8]) -> Result<([u8; 16], A), Error>,
    ) -> Option<Result<A, Error>> {
        if let Stage::Dials(dial) = &mut self.stage {
            match dial.advance(now) {
                Progress::Waiting => {}
                Progress::Done(stream) => self.stage = Stage::Reads(stream, Vec::new()),
                Progress::Failed(why) => {
                    let status = match () {
                        () if dial.is_wrong_secret() => Status::Permission,
                        () if dial.is_other_version() => Status::Unsupported,
                        () if dial.is_refused() => Status::PeerFailed,
                        () if dial.is_starved() => Status::NoMemory,
                        () if dial.is_busy() => Status::Again,
                        () if now >= self.deadline => Status::TimedOut,
                        () => Status::Unreachable,
                    };
                    return self.over(Err(failed(status, &self.name, why)));
                }
            }
        }
        let Stage::Reads(stream, bytes) = &mut self.stage else { return None };
        let ended = match read_on(stream, bytes) {
            Ok(ended) => ended,
            Err(why) => return self.over(Err(failed(Status::PeerFailed, &self.name, why))),
        };
        if let Some(address) = whole(bytes) {
            let read = match address {
                Ok(address) => self.check(&address, parse),
                Err(why) => Err(failed(Status::BadData, &self.name, why)),
            };
            return self.over(read);
        }
        let (status, why) = match (ended, now >= self.deadline) {
            (true, _) => {
                (Status::PeerFailed, "it closed the connection in the middle of its address")
            }
            (false, true) => (Status::TimedOut, "its address did not come in time"),
            (false, false) => return None,
        };
        self.over(Err(failed(status, &self.name, why.into())))
    }

    fn over<T>(&mut self, result: T) -> Option<T> {
        self.stage = Stage::Over;
        Some(result)
    }

    /// Returns the received address, if it belongs to the named worker.
    fn check<A>(
        &self,
        bytes: &[u8],
        parse: impl FnOnce(&[u8]) -> Result<([u8; 16], A), Error>,
    ) -> Result<A, Error> {
        if bytes.is_empty() {
            let why = "its process has no such worker (any more)".into();
            return Err(failed(Status::PeerFailed, &self.name, why));
        }
        let (worker, address) = parse(bytes)
            .map_err(|error| failed(error.status(), &self.name, error.why().to_owned()))?;
        if tag(&worker) == self.name.worker() {
            return Ok(address);
        }
        let why = "what came is the address of another worker".into();
        Err(failed(Status::BadData, &self.name, why))
    }
}

/// Checks whether this process or the system has no free descriptor, so that not even the interfaces can be listed.
fn is_starved() -> bool {
    let number = File::open("/dev/null").err().and_then(|error| error.raw_os_error());
    matches!(number, Some(libc::EMFILE | libc::ENFILE))
}

fn failed(status: Status, name: &WorkerName, why: String) -> Error {
    let fix = match status {
        Status::Permission => "give all processes the same TIELINE_SECRET",
        Status::PeerFailed => "exchange names again if the process was restarted",
        Status::NoMemory => "allow more open files (ulimit -n), or ask for fewer names at a time",
        Status::Again => "ask again: it answers many others now",
        Status::BadData => "see what else listens there, and who was given the name",
        Status::Unsupported => "use versions of Tieline that go together on both sides",
        Status::TimedOut => {
            "let it make progress, or have TIELINE_PROGRESS_THREAD=on there; raise TIELINE_CONNECT_TIMEOUT"
        }
        _ => {
            "see that its process is there, and that TIELINE_TCP_INTERFACES and firewalls let it be reached"
        }
    };
    Error::new(status, format!("the lookup of the worker behind {name:?}"), why, fix)
}

/// Reads the available bytes; `true` at the end, or if there are too many.
fn read_on(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Result<bool, String> {
    let mut piece = [0; 4096];
    while bytes.len() <= MOST + 4 {
        match stream.read(&mut piece) {
            Ok(0) => return Ok(true),
            Ok(count) => bytes.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(true)
}

/// Returns the address once it has been received completely, or an error if it is too long.
pub(crate) fn whole(bytes: &[u8]) -> Option<Result<Vec<u8>, String>> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let len = u32::from_le_bytes(*len) as usize;
    if len > MOST {
        return Some(Err(format!("an address of {len} bytes is announced, and none is so long")));
    }
    rest.get(..len).map(|address| Ok(address.to_vec()))
}
