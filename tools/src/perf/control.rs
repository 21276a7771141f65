//! The pipe between the measuring process and its peer: one JSON object per line, a request and its reply.
//! Addresses and keys travel here, measurements do not.

use super::args::{Memory, Test};
use crate::{sys, system_error};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tieline::{Error, Status, Worker};

/// How long the peer may take to answer.
const DEADLINE: Duration = Duration::from_secs(30);

/// What the peer needs to know for one test.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) test: Test,
    pub(crate) size: usize,
    pub(crate) memory: Memory,
    pub(crate) verify: bool,
    /// The key of the region of the one who asks.
    pub(crate) key: Vec<u8>,
}

/// From the measuring process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Where the measuring process is.
    Hello { address: Vec<u8> },
    /// Make ready for this test, answer, and serve it until told to stop.
    Serve(Spec),
}

/// From the peer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// Where the peer is.
    Hello { address: Vec<u8> },
    /// Ready: the key of the peer's region.
    Ready { key: Vec<u8> },
    /// The test is over; so many payloads were not what they should be.
    Served { wrong: u64 },
    /// It cannot be done.
    Failed { text: String },
}

/// The peer process, ended with this value.
pub(crate) struct Peer {
    child: RefCell<Child>,
    requests: RefCell<ChildStdin>,
    replies: RefCell<BufReader<ChildStdout>>,
}

impl Peer {
    /// Starts this program once more as a peer.
    pub(crate) fn start(path: Option<&str>, cpu: Option<usize>) -> Result<Peer, Error> {
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
        if let Some(path) = path {
            let _ = command.args(["--path", path]);
        }
        sys::tie(&mut command, cpu);
        let mut child = command.spawn().map_err(|e| failed(&e))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(requests), Some(replies)) => Ok(Peer {
                child: RefCell::new(child),
                requests: RefCell::new(requests),
                replies: RefCell::new(BufReader::new(replies)),
            }),
            _ => Err(lost("it has no pipe")),
        }
    }

    /// Tells the peer something.
    pub(crate) fn ask(&self, request: &Request) -> Result<(), Error> {
        let mut line = serde_json::to_vec(request).unwrap_or_default();
        line.push(b'\n');
        self.requests.borrow_mut().write_all(&line).map_err(|e| self.lost(&e.to_string()))
    }

    /// Waits for the answer, and makes progress meanwhile.
    pub(crate) fn reply(&self, worker: &Worker) -> Result<Reply, Error> {
        let mut replies = self.replies.borrow_mut();
        let until = Instant::now() + DEADLINE;
        let fd = [replies.get_ref().as_raw_fd()];
        while !sys::wait_readable(&fd, 0).is_ok_and(|ready| ready[0]) {
            let _ = worker.progress();
            std::thread::yield_now();
            if Instant::now() > until {
                return Err(lost("it has not answered for 30 s"));
            }
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

    /// An error once the peer has ended.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.child.borrow_mut().try_wait() {
            Ok(Some(status)) => Err(lost(&status.to_string())),
            _ => Ok(()),
        }
    }

    fn lost(&self, otherwise: &str) -> Error {
        // Its end follows at once when the pipe is broken.
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
        let mut child = self.child.borrow_mut();
        let _ = child.kill();
        let _ = child.wait();
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
