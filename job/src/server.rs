//! Who serves the exchange: the launcher, or rank 0's thread where there is none. A thin shell of I/O around
//! `Gather`; nothing in it waits but [`Server::turn`], and that only for what it was told.
//!
//! ```no_run
//! # fn main() -> Result<(), tieline_config::Error> {
//! use tieline_job::server::Server;
//! let mut server = Server::new(4, "c0ffee")?;
//! let exchange = server.listen_unix()?; // `unix:@tieline-...`, for TIELINE_EXCHANGE
//! loop {
//!     server.turn(&[], None)?;
//! }
//! # }
//! ```

use super::connection::{Connection, encoded};
use super::directory::{Answer, Directory};
use super::gather::{Gather, Reply};
use super::handshake::Handshake;
use super::seats::Seats;
use super::stream::Stream;
use super::sys;
use super::wire::{CONTRIBUTION_LIMIT, Frame, found_head};
use crate::{Error, Status};
use std::io::{ErrorKind, Read};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tieline_net::{Interest, Poller};

/// How long a connection may take to name itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many connections may be about to name themselves, beside one for each rank that has not come.
const RESERVE: usize = 256;

/// Where there is no room for one more, a connection that has not named itself for so long makes it: a rank says who it
/// is in a fraction of this, and whoever only fills the room holds it up by no more.
const HOLD: Duration = Duration::from_millis(100);

/// How many are taken in before those who are there have their turn again.
const PER_TURN: usize = 256;

/// How long nobody is taken in when the system has no descriptor or memory for one more.
const PAUSE: Duration = Duration::from_millis(100);

/// The numbers of listeners at the poller; connections have those of their places.
const LISTENERS: u64 = 1 << 48;

/// Serves one job.
pub struct Server {
    gather: Gather,
    directory: Directory,
    poller: Poller,
    listeners: Vec<Listener>,
    /// Whether the poller looks for who comes.
    listening: bool,
    seats: Seats,
    /// A rank that hung up, until its end is told: by [`Server::ended`], which knows better, or at this time.
    hung_up: Option<(usize, Instant)>,
    grace: Duration,
    turned_away: u64,
    /// Nobody is taken in before.
    accept_at: Option<Instant>,
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener, Vec<u8>),
}

impl Server {
    /// Serves a job of `size` processes that know its identity.
    ///
    /// # Errors
    /// No descriptor or memory for waiting on them.
    pub fn new(size: usize, job: &str) -> Result<Server, Error> {
        Ok(Server {
            gather: Gather::new(size, job),
            directory: Directory::default(),
            poller: Poller::new().map_err(|e| cannot_listen(&e))?,
            listeners: Vec::new(),
            listening: false,
            seats: Seats::default(),
            hung_up: None,
            grace: Duration::ZERO,
            turned_away: 0,
            accept_at: None,
        })
    }

    /// How long after a hang-up [`Server::ended`] may say how the process ended, which is the better reason.
    pub fn set_grace(&mut self, grace: Duration) {
        self.grace = grace;
    }

    /// Listens on a socket of a random abstract name, for processes of the same user in the same network
    /// namespace; returns what they need as `TIELINE_EXCHANGE`.
    ///
    /// # Errors
    /// What the system says.
    pub fn listen_unix(&mut self) -> Result<String, Error> {
        let mut id = [0; 16];
        tieline_net::random(&mut id).map_err(|e| cannot_listen(&e))?;
        let name = format!("tieline-{}", id.map(|byte| format!("{byte:02x}")).concat());
        self.listen_named(&name).map_err(|e| cannot_listen(&e))?;
        Ok(format!("unix:@{name}"))
    }

    /// As [`Server::listen_unix`], on an abstract name that the others know.
    pub(super) fn listen_named(&mut self, name: &str) -> std::io::Result<()> {
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        listener.set_nonblocking(true)?;
        sys::deepen(&listener)?;
        self.add(Listener::Unix(listener));
        Ok(())
    }

    /// Listens on this socket, for whoever knows the secret.
    ///
    /// # Errors
    /// What the system says.
    pub fn listen_tcp(&mut self, listener: TcpListener, secret: &[u8]) -> Result<(), Error> {
        let ready = listener.set_nonblocking(true).and_then(|()| sys::deepen(&listener));
        ready.map_err(|e| cannot_listen(&e))?;
        self.add(Listener::Tcp(listener, secret.to_vec()));
        Ok(())
    }

    fn add(&mut self, listener: Listener) {
        self.listeners.push(listener);
        self.listening = false; // the next turn has the poller look at all of them
    }

    /// A connection that needs no proof: the process made both ends.
    pub(super) fn adopt(&mut self, stream: UnixStream) -> std::io::Result<()> {
        stream.set_nonblocking(true)?;
        self.insert(Connection::new(Stream::Unix(stream), None));
        Ok(())
    }

    /// Waits until there is something to do, one of the `others` can be read or a timeout has passed, and does what there is.
    ///
    /// # Errors
    /// What the system says.
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
        // Who is there has its turn before who comes.
        for ready in ready.iter().filter(|ready| ready.token < LISTENERS) {
            self.serve(ready.token as usize);
        }
        for ready in ready.iter().filter(|ready| ready.token >= LISTENERS) {
            self.accept((ready.token - LISTENERS) as usize);
        }
        self.expire();
        Ok(())
    }

    /// A process ended: whoever waits for it is told how.
    pub fn ended(&mut self, text: &str) {
        let told = self.gather.gone(text);
        self.tell(told);
    }

    /// Connections that were turned away: strangers, wrong secrets, second processes of one rank.
    #[must_use]
    pub fn turned_away(&self) -> u64 {
        self.turned_away
    }

    /// Whether this rank is connected.
    pub(super) fn has(&self, rank: usize) -> bool {
        self.seats.of_rank(rank).is_some()
    }

    /// Whether everything said was handed to the system.
    pub(super) fn is_flushed(&self) -> bool {
        self.seats.all().all(|c| c.out.is_empty())
    }

    /// Has the poller look for who comes, or not.
    fn listen(&mut self, accepts: bool) -> std::io::Result<()> {
        if accepts != self.listening {
            let interest = if accepts { Interest::READ } else { Interest::NONE };
            for (index, listener) in self.listeners.iter().enumerate() {
                self.poller.watch(listener.fd(), interest, LISTENERS + index as u64)?;
            }
            self.listening = accepts;
        }
        Ok(())
    }

    fn insert(&mut self, connection: Connection) {
        let seat = self.seats.insert(connection);
        self.settle(seat);
    }

    /// After something was done with a connection.
    fn settle(&mut self, seat: usize) {
        if self.seats.settle(seat, &self.poller).is_err() {
            self.hung_up(seat); // nobody would ever look at it again
            let _ = self.seats.settle(seat, &self.poller);
        }
    }

    fn serve(&mut self, seat: usize) {
        if let Some(connection) = self.seats.get(seat) {
            connection.write();
            // What it said before it was not listened to comes first.
            self.hear(seat);
            if self.seats.get(seat).is_some_and(|connection| connection.is_heard()) {
                self.read(seat);
            }
        }
        self.settle(seat);
    }

    fn accept(&mut self, index: usize) {
        for _ in 0..PER_TURN {
            if !self.make_room() {
                return;
            }
            let accepted = match &self.listeners[index] {
                Listener::Unix(listener) => {
                    listener.accept().map(|(stream, _)| match sys::user_of(&stream) {
                        Ok(user) if user == sys::user() => {
                            Ok(Connection::new(Stream::Unix(stream), None))
                        }
                        Ok(user) => Err(format!("a process of user {user}")),
                        Err(_) => Err("a process of an unknown user".to_owned()),
                    })
                }
                Listener::Tcp(listener, secret) => listener.accept().map(|(stream, _)| {
                    let _ = stream.set_nodelay(true);
                    let handshake =
                        Handshake::accept(secret).ok_or("no random numbers for a challenge")?;
                    Ok(Connection::new(Stream::Tcp(stream), Some(handshake)))
                }),
            };
            match accepted {
                Ok(Ok(mut connection)) if connection.stream.set_nonblocking(true).is_ok() => {
                    connection.answer();
                    connection.write();
                    self.insert(connection);
                }
                Ok(Ok(_)) => self.turned_away += 1,
                Ok(Err(text)) => {
                    self.turned_away += 1;
                    let _ = self.gather.turn_away(text);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                // It left before it was taken in.
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                    ) => {}
                // No descriptor, or no memory: a stranger's place may be had; else it is tried again after a pause,
                // since the listener stays readable and would be asked without end.
                Err(_) if self.evict(|c| c.handshake.is_some()) => {}
                Err(_) => {
                    self.accept_at = Some(Instant::now() + PAUSE);
                    return;
                }
            }
        }
    }

    /// Connections that have not named themselves: as many as ranks are still to come, and a reserve.
    fn is_full(&self) -> bool {
        self.seats.nameless() >= self.gather.absent().saturating_add(RESERVE)
    }

    /// Whether one more may be taken in, at the cost of a nameless one where there must be.
    fn make_room(&mut self) -> bool {
        !self.is_full() || self.evict(|c| c.handshake.is_some()) || self.evict(|_| true)
    }

    /// Drops the oldest nameless connection of this kind that has had its time.
    fn evict(&mut self, which: impl Fn(&Connection) -> bool) -> bool {
        let Some(by) = Instant::now().checked_sub(HOLD) else { return false };
        let Some(oldest) = self.seats.oldest_of(by, which) else { return false };
        self.drop_nameless(oldest);
        true
    }

    fn drop_nameless(&mut self, seat: usize) {
        if let Some(connection) = self.seats.get(seat) {
            connection.open = false;
            self.turned_away += 1;
        }
        self.settle(seat);
    }

    /// Whether listeners are to be looked at now.
    fn accepts(&mut self, now: Instant) -> bool {
        if self.accept_at.is_some_and(|at| now < at) {
            return false;
        }
        self.accept_at = None;
        !self.is_full() || self.seats.oldest().is_some_and(|since| now >= since + HOLD)
    }

    fn read(&mut self, seat: usize) {
        let Some(connection) = self.seats.get(seat) else { return };
        let mut buffer = [0; 64 << 10];
        // What does not fit is there at the next turn.
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
                }
                Err(why) => {
                    // What there is to answer leaves before the connection closes.
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

    /// Hears what came, as long as it is listened to.
    fn hear(&mut self, seat: usize) {
        while let Some(connection) = self.seats.get(seat) {
            connection.paused = !connection.is_heard() && connection.open && !connection.closing;
            if !connection.is_heard() {
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
            Some(rank) => {
                if self.hung_up.is_none() {
                    self.hung_up = Some((rank, Instant::now() + self.grace));
                }
                self.leaves(rank, "has left the exchange");
            }
            None if connection.handshake.is_some() => self.turned_away += 1,
            None => {}
        }
    }

    /// Whoever waits for what this rank publishes waits in vain.
    fn leaves(&mut self, rank: usize, how: &str) {
        let why = format!("{} {how}", self.gather.name(rank));
        for answer in self.directory.gone(rank, &why) {
            self.answer(answer);
        }
    }

    /// When there is something to do even if nobody says anything.
    fn next_due(&self, accepts: bool) -> Option<Duration> {
        let nameless = self.seats.oldest();
        let room = if accepts { None } else { self.accept_at.or(nameless.map(|at| at + HOLD)) };
        let hung_up = self.hung_up.map(|(_, at)| at);
        let due = [hung_up, nameless.map(|at| at + PATIENCE), room].into_iter().flatten().min();
        due.map(|at| at.saturating_duration_since(Instant::now()))
    }

    fn expire(&mut self) {
        let now = Instant::now();
        if let Some((rank, at)) = self.hung_up {
            if now >= at {
                self.hung_up = None;
                let name = self.gather.name(rank);
                self.ended(&format!("{name} has left the exchange"));
            }
        }
        let Some(by) = now.checked_sub(PATIENCE) else { return };
        while let Some(oldest) = self.seats.oldest_of(by, |_| true) {
            self.drop_nameless(oldest);
        }
    }

    /// Says a last word to this connection. If it was a rank's, nobody is to wait for that rank any longer.
    fn refuse(&mut self, seat: usize, text: String) {
        self.turned_away += 1;
        let Some(connection) = self.seats.get(seat) else { return };
        connection.say(&encoded(&Frame::Refused { text: text.clone() }));
        connection.closing = true;
        connection.write();
        // As long as one that is new it has to hear it.
        if let Some(rank) = self.seats.unname(seat, Instant::now()) {
            self.leaves(rank, "was turned away");
            let name = self.gather.name(rank);
            self.ended(&format!("{name} was turned away: {text}"));
        }
    }

    fn tell(&mut self, told: Reply) {
        // One that is dying cannot be told; its end is noticed on its own.
        match told {
            Reply::Nobody => {}
            Reply::One(rank, frame) => self.say(rank, &[encoded(&frame)]),
            Reply::All(frame) => {
                let bytes = [encoded(&frame)];
                drop(frame);
                // Rank 0 comes last: where it serves the exchange itself, its end would come before the others' answer.
                let ranks: Vec<usize> = self.seats.ranks().filter(|rank| *rank != 0).collect();
                ranks.into_iter().for_each(|rank| self.say(rank, &bytes));
                self.say(0, &bytes);
            }
        }
    }

    fn answer(&mut self, answer: Answer) {
        let Answer { to, id, found } = answer;
        match found {
            Ok(bytes) => self.say(to, &[Arc::from(found_head(id, bytes.len())), bytes]),
            Err(text) => self.say(to, &[encoded(&Frame::Unknown { id, text })]),
        }
    }

    fn say(&mut self, rank: usize, parts: &[Arc<[u8]>]) {
        let Some(seat) = self.seats.of_rank(rank) else { return };
        if let Some(connection) = self.seats.get(seat).filter(|c| c.open) {
            parts.iter().for_each(|part| connection.out.push(part));
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
    Error::new(
        Status::Io,
        "cannot open the exchange of the job",
        error.to_string(),
        "check the limit of open files (ulimit -n)",
    )
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
