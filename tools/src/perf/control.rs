//! The control connection between the measuring process and its peer, a pipe or a TCP connection. The connection carries requests
//! and replies, one JSON object per line, and empty lines as signs of life, but no measured data.

use super::args::{Memory, Test};
use crate::{sys, system_error};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tieline::{Error, Status, Worker};

/// The interval of keep-alive messages to a peer on another host.
const BEAT: Duration = Duration::from_secs(2);

/// The time limit for an answer of the peer.
const DEADLINE: Duration = Duration::from_secs(30);

/// The time limit for a peer on this host to end after the request to end.
const PATIENCE_MS: i32 = 1000;

/// The parameters of one test that the peer needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) test: Test,
    pub(crate) size: usize,
    pub(crate) memory: Memory,
    pub(crate) verify: bool,
    pub(crate) key: Vec<u8>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// The first request, with the host of the measuring process.
    Hello {
        address: Vec<u8>,
        path: Option<String>,
        /// The version of the program, which must be the same on both sides.
        version: String,
    },
    /// Requests that the peer prepare for this test, answer, and serve the test until it receives the request to stop.
    Serve(Spec),
}

impl Request {
    pub(crate) fn hello(address: Vec<u8>, path: Option<&str>) -> Request {
        let path = path.map(str::to_owned);
        Request::Hello { address, path, version: env!("CARGO_PKG_VERSION").to_owned() }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Hello {
        address: Vec<u8>,
    },
    /// The reply of a peer that is ready, with the key of the peer's region.
    Ready {
        key: Vec<u8>,
    },
    /// The reply after a test: the number of wrong payloads, and the number of preemptions of the peer.
    Served {
        wrong: u64,
        preempted: u64,
    },
    /// The reply of a peer that cannot serve the request.
    Failed {
        text: String,
    },
}

/// The connection to the peer. Dropping this value ends a peer process that was started on this host.
pub(crate) struct Peer {
    other: Other,
    requests: Arc<Mutex<Box<dyn Write + Send>>>,
    replies: RefCell<BufReader<Replies>>,
}

/// The object by which the end of the peer is detected.
enum Other {
    Child(RefCell<Child>),
    Remote(TcpStream),
}

enum Replies {
    Child(ChildStdout),
    Remote(TcpStream),
}

impl Peer {
    pub(crate) fn start(cpu: Option<usize>) -> Result<Peer, Error> {
        let failed = |e: &std::io::Error| {
            system_error(
                "cannot start the peer process",
                e,
                "check --cpus and the limits of this shell",
            )
        };
        let program = std::env::current_exe().map_err(|e| failed(&e))?;
        let mut command = Command::new(program);
        let _ = command.arg("perf-peer").stdin(Stdio::piped()).stdout(Stdio::piped());
        sys::tie(&mut command, cpu);
        let mut child = command.spawn().map_err(|e| failed(&e))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(requests), Some(replies)) => Ok(Peer {
                other: Other::Child(RefCell::new(child)),
                requests: Arc::new(Mutex::new(Box::new(requests))),
                replies: RefCell::new(BufReader::new(Replies::Child(replies))),
            }),
            _ => Err(lost("it has no pipe")),
        }
    }

    /// Makes the peer for an established connection to another host. Keep-alive messages are sent at intervals, because a test may
    /// send no other message over this connection.
    pub(crate) fn remote(stream: TcpStream) -> std::io::Result<Peer> {
        let requests: Box<dyn Write + Send> = Box::new(stream.try_clone()?);
        let requests = Arc::new(Mutex::new(requests));
        let to = Arc::downgrade(&requests);
        let beat = move || {
            loop {
                std::thread::sleep(BEAT);
                let Some(to) = to.upgrade() else { return };
                let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
                if to.write_all(b"\n").is_err() {
                    return;
                }
            }
        };
        let _ = std::thread::Builder::new().name("tieline-beat".into()).spawn(beat)?;
        Ok(Peer {
            other: Other::Remote(stream.try_clone()?),
            requests,
            replies: RefCell::new(BufReader::new(Replies::Remote(stream))),
        })
    }

    pub(crate) fn ask(&self, request: &Request) -> Result<(), Error> {
        let mut line = serde_json::to_vec(request).unwrap_or_default();
        line.push(b'\n');
        let written = self.requests.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line);
        written.map_err(|e| self.lost(&e.to_string()))
    }

    pub(crate) fn reply(&self, worker: &Worker) -> Result<Reply, Error> {
        let mut replies = self.replies.borrow_mut();
        let fd = [replies.get_ref().as_raw_fd()];
        let answered = || sys::wait_readable(&fd, 0).is_ok_and(|ready| ready[0]);
        if !worker.wait_until(answered, Some(DEADLINE))? {
            return Err(lost(
                "it has not answered for 30 s (one that listens serves one client at a time)",
            ));
        }
        let mut line = String::new();
        let read = replies.read_line(&mut line);
        match serde_json::from_str(&line) {
            Ok(Reply::Failed { text }) => Err(Error::new(
                Status::PeerFailed,
                "the peer process gave up",
                text,
                "see `tieline info --why`",
            )),
            Ok(reply) => Ok(reply),
            Err(_) if line.is_empty() => {
                Err(self.lost(&read.err().map_or("it closed its pipe".into(), |e| e.to_string())))
            }
            Err(e) => Err(lost(&format!("it answered nonsense: {e}"))),
        }
    }

    /// Returns an error if the peer has ended.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match &self.other {
            Other::Child(child) => match child.borrow_mut().try_wait() {
                Ok(Some(status)) => Err(lost(&status.to_string())),
                _ => Ok(()),
            },
            Other::Remote(stream) => connected(stream),
        }
    }

    fn lost(&self, otherwise: &str) -> Error {
        // When the pipe is broken, the end of the peer follows within a short time.
        let until = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until {
            if let Err(error) = self.check() {
                return error;
            }
            std::thread::yield_now();
        }
        lost(otherwise)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let Other::Child(child) = &self.other else { return };
        // The peer ends when the connection is closed, and closes its sockets. A peer does not read the connection during a test.
        *self.requests.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(std::io::sink());
        let replies = self.replies.get_mut().get_mut();
        let fd = [replies.as_raw_fd()];
        let said = |ready: Vec<bool>| ready.first() == Some(&true);
        while sys::wait_readable(&fd, PATIENCE_MS).is_ok_and(said)
            && replies.read(&mut [0; 512]).is_ok_and(|read| read > 0)
        {}
        let mut child = child.borrow_mut();
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// The time of the last sign of life of a client on another host: a request, or an empty line, which the client sends at intervals.
pub(crate) struct Life {
    patience: Duration,
    heard: Cell<Instant>,
}

impl Life {
    pub(crate) fn new(patience: Duration) -> Life {
        Life { patience, heard: Cell::new(Instant::now()) }
    }

    pub(crate) fn heard(&self) {
        self.heard.set(Instant::now());
    }

    /// Returns an error if the client is gone or has been silent for too long. A test calls this function when no request arrives.
    pub(crate) fn check(&self, stream: &TcpStream) -> Result<(), Error> {
        while sys::wait_readable(&[stream.as_raw_fd()], 0).is_ok_and(|ready| ready[0]) {
            let mut byte = [0];
            match stream.peek(&mut byte) {
                Ok(0) => return Err(lost("it closed the connection")),
                Err(e) => return Err(lost(&e.to_string())),
                Ok(_) if byte != *b"\n" => break, // a request, which waits for its turn
                Ok(_) => {
                    let _ = (&*stream).read(&mut byte).map_err(|e| lost(&e.to_string()))?;
                    self.heard();
                }
            }
        }
        if self.heard.get().elapsed() > self.patience { Err(silent()) } else { Ok(()) }
    }
}

/// Makes the error for a client that is stopped or whose host is gone.
pub(crate) fn silent() -> Error {
    lost("it has given no sign of life for too long")
}

/// Returns an error if the other end has closed the connection.
fn connected(stream: &TcpStream) -> Result<(), Error> {
    match sys::wait_readable(&[stream.as_raw_fd()], 0) {
        Ok(ready) if ready[0] => match stream.peek(&mut [0]) {
            Ok(0) => Err(lost("it closed the connection")),
            Err(e) => Err(lost(&e.to_string())),
            Ok(_) => Ok(()),
        },
        _ => Ok(()),
    }
}

impl Read for Replies {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Replies::Child(from) => from.read(to),
            Replies::Remote(from) => from.read(to),
        }
    }
}

impl AsRawFd for Replies {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Replies::Child(from) => from.as_raw_fd(),
            Replies::Remote(from) => from.as_raw_fd(),
        }
    }
}

fn lost(why: &str) -> Error {
    Error::new(
        Status::PeerFailed,
        "the peer process is lost",
        why,
        "run it again; if nobody ended it, please report what it printed",
    )
}
