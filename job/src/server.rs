//! The server of the exchange: the launcher, or rank 0's thread if there is none. The server adds I/O to `Gather` and `Directory`.
//! Only [`Server::turn`] waits, up to its timeout.
//!
//! ```no_run
//! # fn main() -> Result<(), tieline_explain::Error> {
//! use tieline_job::server::Server;
//! let mut server = Server::new(4, "c0ffee")?;
//! let exchange = server.listen_unix()?; // `unix:@tieline-...`, for TIELINE_EXCHANGE
//! loop {
//!     server.turn(&[], None)?;
//! }
//! # }
//! ```

use super::connection::{Connection, What, encoded};
use super::directory::{Answer, Directory};
use super::gather::{Gather, Reply};
use super::seats::Seats;
use super::stream::Stream;
use super::sys;
use super::wire::{CONTRIBUTION_LIMIT, Frame, found_head};
use crate::{Error, Status};
use std::collections::{HashMap, VecDeque};
use std::io::Read;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tieline_net::Poller;
use tieline_net::admission::{LOOK, Source};

mod coming;

/// The time limit within which a connection has to send its hello.
const PATIENCE: Duration = Duration::from_secs(10);

/// The maximum number of frames of one process that are handled in one turn.
const FRAMES_PER_TURN: usize = 64;

/// The maximum number of reads of the unread input of a process that has ended.
const READS_AT_END: usize = 64;

/// The length in bytes up to which a payload is copied after its head: one packet and one call instead of two.
const SMALL: usize = 4096;

/// The first token of listeners in the poller; connections use their seats as tokens.
const LISTENERS: u64 = 1 << 48;

/// The server of one job.
pub struct Server {
    gather: Gather,
    directory: Directory,
    poller: Poller,
    listeners: Vec<Listener>,
    /// Whether the poller watches the listeners.
    listening: bool,
    seats: Seats,
    /// Ranks that have disconnected. [`Server::ended`], which knows the reason, reports their end; otherwise it is reported at this
    /// time.
    hung_up: VecDeque<(usize, Instant)>,
    /// The reasons of ranks that have ended but not disconnected: their earlier frames are still to be handled.
    ends: HashMap<usize, String>,
    grace: Duration,
    turned_away: u64,
    /// The time before which no connection is accepted.
    accept_at: Option<Instant>,
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener, Vec<u8>),
}

impl Server {
    /// Makes a server for a job of `size` processes that know the job's identity.
    ///
    /// # Errors
    /// Returns an error if there is no descriptor or memory for the poller.
    pub fn new(size: usize, job: &str) -> Result<Server, Error> {
        Ok(Server {
            gather: Gather::new(size, job),
            directory: Directory::default(),
            poller: Poller::new().map_err(|e| cannot_listen(&e))?,
            listeners: Vec::new(),
            listening: false,
            seats: Seats::default(),
            hung_up: VecDeque::new(),
            ends: HashMap::new(),
            grace: Duration::ZERO,
            turned_away: 0,
            accept_at: None,
        })
    }

    /// Sets the time after a disconnect within which [`Server::ended`] may report how the process ended, which is more precise than
    /// the disconnect.
    pub fn set_grace(&mut self, grace: Duration) {
        self.grace = grace;
    }

    /// Listens on a socket with a random abstract name, for processes of the same user in the same network namespace. Returns the
    /// value that these processes need in `TIELINE_EXCHANGE`.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn listen_unix(&mut self) -> Result<String, Error> {
        let mut id = [0; 16];
        tieline_net::random(&mut id).map_err(|e| cannot_listen(&e))?;
        let name = format!("tieline-{}", id.map(|byte| format!("{byte:02x}")).concat());
        let bound =
            SocketAddr::from_abstract_name(&name).and_then(|at| UnixListener::bind_addr(&at));
        bound.and_then(|bound| self.listen_at(bound)).map_err(|e| cannot_listen(&e))?;
        Ok(format!("unix:@{name}"))
    }

    /// Listens as [`Server::listen_unix`] does, on abstract names that the ranks know.
    pub(super) fn listen_named(&mut self, name: &str) -> std::io::Result<()> {
        self.listen_at(super::local::bind(name)?)
    }

    fn listen_at(&mut self, listener: UnixListener) -> std::io::Result<()> {
        listener.set_nonblocking(true)?;
        sys::deepen(&listener)?;
        self.add(Listener::Unix(listener));
        Ok(())
    }

    /// Listens on this socket, for processes that know the secret.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn listen_tcp(&mut self, listener: TcpListener, secret: &[u8]) -> Result<(), Error> {
        let ready = listener.set_nonblocking(true).and_then(|()| sys::deepen(&listener));
        ready.map_err(|e| cannot_listen(&e))?;
        self.add(Listener::Tcp(listener, secret.to_vec()));
        Ok(())
    }

    /// Stops accepting connections permanently.
    pub(super) fn stop_listening(&self) {
        for listener in &self.listeners {
            match listener {
                Listener::Unix(listener) => tieline_net::stop_listening(listener),
                Listener::Tcp(listener, _) => tieline_net::stop_listening(listener),
            }
        }
    }

    fn add(&mut self, listener: Listener) {
        self.listeners.push(listener);
        self.listening = false; // the next turn registers all of them with the poller
    }

    /// Adds a connection that needs no proof, because this process made both ends.
    pub(super) fn adopt(&mut self, stream: UnixStream) -> std::io::Result<()> {
        stream.set_nonblocking(true)?;
        self.insert(Connection::new(Stream::Unix(stream), Source::Local, None));
        Ok(())
    }

    /// Waits until there is input, one of the `others` is readable or the timeout has passed, and then handles input, with a limit
    /// for each connection.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn turn(&mut self, others: &[RawFd], timeout: Option<Duration>) -> Result<(), Error> {
        let cannot = |e: std::io::Error| {
            Error::new(Status::Io, "cannot wait for the job's processes", e.to_string(), "")
        };
        let accepts = self.accepts(Instant::now());
        self.listen(accepts).map_err(cannot)?;
        let timeout = [timeout, self.next_due(accepts)].into_iter().flatten().min();
        let mut ready = Vec::new();
        if others.is_empty() {
            self.poller.wait(&mut ready, timeout).map_err(cannot)?;
        } else {
            let own = [self.poller.as_fd().as_raw_fd()];
            sys::wait_readable(&[&own, others].concat(), timeout).map_err(cannot)?;
            self.poller.wait(&mut ready, Some(Duration::ZERO)).map_err(cannot)?;
        }
        // Existing connections are handled before new ones.
        for ready in ready.iter().filter(|ready| ready.token < LISTENERS) {
            self.serve(ready.token as usize);
        }
        for ready in ready.iter().filter(|ready| ready.token >= LISTENERS) {
            self.accept((ready.token - LISTENERS) as usize);
        }
        self.expire();
        Ok(())
    }

    /// Records that a rank's process has ended: every process that waits for the rank gets this text as the reason.
    pub fn ended(&mut self, rank: usize, text: &str) {
        self.hung_up.retain(|(other, _)| *other != rank);
        if self.has(rank) {
            let _ = self.ends.insert(rank, text.to_owned());
            self.hear_out(rank, text);
        } else {
            self.leaves(rank, text);
        }
        self.over(text);
    }

    /// Handles the frames that a rank of this host sent before it ended, and then fails pending lookups of its bytes: a forked
    /// child may keep the connection open and use it. Frames from another host may still be in flight: the server waits for the
    /// disconnect.
    fn hear_out(&mut self, rank: usize, why: &str) {
        for _ in 0..READS_AT_END {
            let Some(seat) = self.seats.seat_of_rank(rank) else { return };
            let Some(connection) = self.seats.get(seat) else { return };
            let Stream::Unix(stream) = &connection.stream else { return };
            let is_silent = matches!(sys::unread(stream), Ok(0));
            if is_silent && !connection.paused {
                let told = self.directory.ended(rank, why);
                return told.into_iter().for_each(|answer| self.answer(answer));
            }
            self.serve(seat);
        }
    }

    /// Ends all exchanges with this reason.
    fn over(&mut self, text: &str) {
        let told = self.gather.gone(text);
        self.tell(told);
    }

    /// Returns the number of refused connections: foreign clients, wrong secrets, second processes of one rank.
    #[must_use]
    pub fn turned_away(&self) -> u64 {
        self.turned_away
    }

    /// Checks whether this rank is connected.
    pub(super) fn has(&self, rank: usize) -> bool {
        self.seats.seat_of_rank(rank).is_some()
    }

    /// Checks whether all output was passed to the system.
    pub(super) fn is_flushed(&self) -> bool {
        self.seats.all().all(|c| c.out.is_empty())
    }

    fn insert(&mut self, connection: Connection) {
        let seat = self.seats.insert(connection);
        self.settle(seat);
    }

    /// Updates the state after a change of a connection.
    fn settle(&mut self, seat: usize) {
        if self.seats.settle(seat, &self.poller).is_err() {
            self.hung_up(seat); // the poller would never report it again
            let _ = self.seats.settle(seat, &self.poller);
        }
    }

    fn serve(&mut self, seat: usize) {
        if let Some(connection) = self.seats.get(seat) {
            connection.write();
            // Received frames that were not handled are handled first.
            self.hear(seat);
            if self.seats.get(seat).is_some_and(|c| c.is_heard() && !c.paused) {
                self.read(seat);
            }
        }
        self.settle(seat);
    }

    fn read(&mut self, seat: usize) {
        let Some(connection) = self.seats.get(seat) else { return };
        let mut buffer = [0; 64 << 10];
        // The next turn reads the rest.
        let got = match (&connection.stream).read(&mut buffer) {
            Ok(n) if n > 0 => &buffer[..n],
            Err(e) if super::retries(&e) => return,
            _ => return self.hung_up(seat),
        };
        if let Some(handshake) = &mut connection.handshake {
            let passed = handshake.push(got);
            connection.answer();
            match passed {
                Ok(passed) => {
                    if let Some(rest) = passed {
                        connection.decoder.push(&rest);
                        connection.handshake = None;
                    }
                    connection.write();
                    if connection.handshake.is_none() {
                        self.seats.nameless.prove(seat);
                    }
                }
                Err(why) => {
                    // The answer is sent before the connection closes.
                    connection.closing = true;
                    connection.write();
                    self.turned_away += 1;
                    let _ = self.gather.turn_away(why);
                    return;
                }
            }
        } else {
            connection.decoder.push(got);
        }
        self.hear(seat);
    }

    /// Handles the received frames until the server stops processing the connection's input.
    fn hear(&mut self, seat: usize) {
        for turn in 0.. {
            let Some(connection) = self.seats.get(seat) else { return };
            let ends = turn == FRAMES_PER_TURN || !connection.is_heard();
            connection.paused = ends && connection.open && !connection.closing;
            if ends {
                return;
            }
            match connection.decoder.next() {
                Ok(Some(frame)) => {
                    if let Err(text) = self.heard(seat, frame) {
                        self.refuse(seat, text);
                    }
                }
                Ok(None) => return,
                Err(text) => {
                    let text = self.gather.turn_away(text);
                    self.refuse(seat, text);
                }
            }
        }
    }

    fn heard(&mut self, seat: usize, frame: Frame) -> Result<(), String> {
        let Some(connection) = self.seats.get(seat) else { return Ok(()) };
        match (frame, connection.rank) {
            (Frame::Hello(hello), None) => {
                match self.gather.join(&hello) {
                    Ok(rank) => {
                        connection.decoder.set_limit(CONTRIBUTION_LIMIT);
                        self.seats.name(seat, rank);
                    }
                    Err((text, told)) => {
                        self.refuse(seat, text);
                        self.tell(told);
                    }
                }
                Ok(())
            }
            // A process that has read the last answer has no pending answer.
            (Frame::Contribute { .. }, Some(_)) if connection.out.has_round() => {
                Err("it goes on without having heard the answer".into())
            }
            (Frame::Contribute { round, bytes }, Some(rank)) => {
                let told = self.gather.contribute(rank, round, bytes)?;
                self.tell(told);
                Ok(())
            }
            (Frame::GiveUp { waited_ms }, Some(_)) => {
                let told = self.gather.give_up(Duration::from_millis(waited_ms));
                self.tell(told);
                Ok(())
            }
            (Frame::Publish { key, bytes }, Some(rank)) => {
                let told = self.directory.publish(rank, key, bytes)?;
                told.into_iter().for_each(|answer| self.answer(answer));
                Ok(())
            }
            (Frame::Lookup { id, rank, key }, Some(asker)) => {
                let told = self.directory.lookup(asker, id, (rank as usize, key))?;
                told.into_iter().for_each(|answer| self.answer(answer));
                Ok(())
            }
            (Frame::Forget { id }, Some(asker)) => {
                if let Some(of) = self.directory.forget(asker, id) {
                    let found = Err(self.gather.has_come(of));
                    self.answer(Answer { to: asker, id, found });
                }
                Ok(())
            }
            _ => Err("a frame out of turn".into()),
        }
    }

    fn hung_up(&mut self, seat: usize) {
        let Some(connection) = self.seats.get(seat) else { return };
        connection.open = false;
        match connection.rank {
            Some(rank) => match self.ends.remove(&rank) {
                Some(how) => self.leaves(rank, &how),
                None => self.hung_up.push_back((rank, Instant::now() + self.grace)),
            },
            None if connection.handshake.is_some() => self.turned_away += 1,
            None => {}
        }
    }

    /// Fails pending lookups of this rank's bytes, and drops the rank's own lookups.
    fn leaves(&mut self, rank: usize, why: &str) {
        for answer in self.directory.gone(rank, why) {
            self.answer(answer);
        }
    }

    /// Returns the time until the server must act without input.
    fn next_due(&self, accepts: bool) -> Option<Duration> {
        let nameless = self.seats.nameless.oldest();
        let look = self.seats.nameless.room_at().map(|at| at.min(Instant::now() + LOOK));
        let room = if accepts { None } else { self.accept_at.or(look) };
        let hung_up = self.hung_up.front().map(|(_, at)| *at);
        let due = [hung_up, nameless.map(|at| at + PATIENCE), room].into_iter().flatten().min();
        due.map(|at| at.saturating_duration_since(Instant::now()))
    }

    fn expire(&mut self) {
        let now = Instant::now();
        while let Some((rank, _)) = self.hung_up.front().copied().filter(|(_, at)| now >= *at) {
            let text = format!("{} has left the exchange", self.gather.name(rank));
            self.ended(rank, &text);
        }
        let Some(by) = now.checked_sub(PATIENCE) else { return };
        while let Some(oldest) = self.seats.nameless.oldest_by(by) {
            self.drop_nameless(oldest);
        }
    }

    /// Sends a final frame to this connection. If the connection belonged to a rank, that rank has ended for all other ranks.
    fn refuse(&mut self, seat: usize, text: String) {
        self.turned_away += 1;
        let Some(connection) = self.seats.get(seat) else { return };
        connection.say(&encoded(&Frame::Refused { text: text.clone() }), What::Word);
        connection.closing = true;
        connection.write();
        // The connection has the time limit of a new connection to read the frame.
        if let Some(rank) = self.seats.unname(seat, Instant::now()) {
            let text = format!("{} was turned away: {text}", self.gather.name(rank));
            self.ended(rank, &text);
        }
    }

    fn tell(&mut self, told: Reply) {
        // A dying connection cannot be notified; its end is detected separately.
        match told {
            Reply::Nobody => {}
            Reply::One(rank, frame) => self.say(rank, &[encoded(&frame)], What::Word),
            Reply::All(frame) => {
                let what = match frame {
                    Frame::Gathered { .. } => What::Round,
                    _ => What::Word,
                };
                let bytes = [encoded(&frame)];
                drop(frame);
                // Rank 0 is handled last: if it serves the exchange itself, its end would precede the answers for the other ranks.
                let ranks: Vec<usize> = self.seats.ranks().filter(|rank| *rank != 0).collect();
                ranks.into_iter().for_each(|rank| self.say(rank, &bytes, what));
                self.say(0, &bytes, what);
            }
        }
    }

    fn answer(&mut self, answer: Answer) {
        let Answer { to, id, found } = answer;
        match found {
            Ok(bytes) => {
                let head = found_head(id, bytes.len());
                if bytes.len() < SMALL {
                    let whole = [&head[..], &bytes].concat();
                    self.say(to, &[whole.into()], What::Asked);
                } else {
                    self.say(to, &[Arc::from(head), bytes], What::Asked);
                }
            }
            Err(text) => self.say(to, &[encoded(&Frame::Unknown { id, text })], What::Asked),
        }
    }

    fn say(&mut self, rank: usize, parts: &[Arc<[u8]>], what: What) {
        let Some(seat) = self.seats.seat_of_rank(rank) else { return };
        if let Some(connection) = self.seats.get(seat).filter(|c| c.open) {
            parts.iter().for_each(|part| connection.out.push(part, what));
            connection.write();
            self.settle(seat);
        }
    }
}

impl Listener {
    fn fd(&self) -> RawFd {
        match self {
            Listener::Unix(listener) => listener.as_raw_fd(),
            Listener::Tcp(listener, _) => listener.as_raw_fd(),
        }
    }
}

fn cannot_listen(error: &std::io::Error) -> Error {
    let fix = match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (ulimit -n)",
        _ => "",
    };
    Error::new(Status::Io, "cannot open the exchange of the job", error.to_string(), fix)
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
