//! Who serves the exchange: the launcher, or rank 0's thread where there is none. A thin shell of I/O around
//! `Gather`; nothing in it waits but [`Server::turn`], and that only for what it was told.
//!
//! ```no_run
//! # fn main() -> Result<(), tieline_config::Error> {
//! use tieline_job::server::Server;
//! let mut server = Server::new(4, "c0ffee");
//! let exchange = server.listen_unix()?; // `unix:@tieline-...`, for TIELINE_EXCHANGE
//! loop {
//!     server.turn(&[], None)?;
//! }
//! # }
//! ```

use super::connection::{Connection, encoded};
use super::gather::{Gather, Reply};
use super::handshake::Handshake;
use super::stream::Stream;
use super::sys::{self, Interest};
use super::wire::{CONTRIBUTION_LIMIT, Frame};
use crate::{Error, Status};
use std::io::{ErrorKind, Read};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

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

/// Serves one job.
pub struct Server {
    gather: Gather,
    listeners: Vec<Listener>,
    connections: Vec<Connection>,
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
    #[must_use]
    pub fn new(size: usize, job: &str) -> Server {
        Server {
            gather: Gather::new(size, job),
            listeners: Vec::new(),
            connections: Vec::new(),
            hung_up: None,
            grace: Duration::ZERO,
            turned_away: 0,
            accept_at: None,
        }
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
        self.listeners.push(Listener::Unix(listener));
        Ok(())
    }

    /// Listens on this socket, for whoever knows the secret.
    ///
    /// # Errors
    /// What the system says.
    pub fn listen_tcp(&mut self, listener: TcpListener, secret: &[u8]) -> Result<(), Error> {
        let ready = listener.set_nonblocking(true).and_then(|()| sys::deepen(&listener));
        ready.map_err(|e| cannot_listen(&e))?;
        self.listeners.push(Listener::Tcp(listener, secret.to_vec()));
        Ok(())
    }

    /// A connection that needs no proof: the process made both ends.
    pub(super) fn adopt(&mut self, stream: UnixStream) -> std::io::Result<()> {
        stream.set_nonblocking(true)?;
        self.connections.push(Connection::new(Stream::Unix(stream), None));
        Ok(())
    }

    /// Waits until there is something to do or a timeout has passed, and does it. Says which of the `others`
    /// can be read.
    ///
    /// # Errors
    /// What the system says.
    pub fn turn(
        &mut self,
        others: &[RawFd],
        timeout: Option<Duration>,
    ) -> Result<Vec<bool>, Error> {
        let accepts = self.accepts(Instant::now());
        let listening = if accepts { self.listeners.len() } else { 0 };
        let mut interests: Vec<Interest> =
            others.iter().map(|&fd| Interest { fd, read: true, write: false }).collect();
        let listeners = self.listeners.iter().take(listening);
        interests.extend(listeners.map(|l| Interest { fd: l.fd(), read: true, write: false }));
        interests.extend(
            self.connections
                .iter()
                // What comes from who only has to hear a last word is not kept.
                .map(|c| Interest {
                    fd: c.stream.as_raw_fd(),
                    read: !c.closing,
                    write: !c.out.is_empty(),
                }),
        );
        let timeout = [timeout, self.next_due(accepts)].into_iter().flatten().min();
        let mut ready = sys::wait(&interests, timeout).map_err(|e| {
            Error::new(Status::Io, "cannot wait for the job's processes", e.to_string(), "")
        })?;
        let mine = ready.split_off(others.len());
        self.serve(&mine, listening);
        self.expire();
        Ok(ready)
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
        self.connections.iter().any(|c| c.open && c.rank == Some(rank))
    }

    /// Whether everything said was handed to the system.
    pub(super) fn is_flushed(&self) -> bool {
        self.connections.iter().all(|c| c.out.is_empty() || !c.open)
    }

    fn serve(&mut self, ready: &[bool], listening: usize) {
        for (index, _) in ready.iter().enumerate().skip(listening).filter(|(_, ready)| **ready) {
            self.connections[index - listening].write();
            if !self.connections[index - listening].closing {
                self.read(index - listening);
            }
        }
        for (index, _) in ready.iter().take(listening).enumerate().filter(|(_, ready)| **ready) {
            self.accept(index);
        }
        self.connections.retain(|c| c.open);
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
                    connection.greet();
                    self.connections.push(connection);
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
        let room = self.gather.absent().saturating_add(RESERVE);
        self.connections.iter().filter(|c| c.rank.is_none()).count() >= room
    }

    /// Whether one more may be taken in, at the cost of a nameless one where there must be.
    fn make_room(&mut self) -> bool {
        !self.is_full() || self.evict(|c| c.handshake.is_some()) || self.evict(|_| true)
    }

    /// Drops the oldest nameless connection of this kind that has had its time.
    fn evict(&mut self, which: impl Fn(&Connection) -> bool) -> bool {
        let now = Instant::now();
        let goes = |c: &Connection| c.rank.is_none() && now >= c.since + HOLD && which(c);
        let Some(oldest) = self.connections.iter().position(goes) else { return false };
        drop(self.connections.remove(oldest));
        self.turned_away += 1;
        true
    }

    /// Whether listeners are to be looked at now.
    fn accepts(&mut self, now: Instant) -> bool {
        if self.accept_at.is_some_and(|at| now < at) {
            return false;
        }
        self.accept_at = None;
        let hold_is_over = |c: &Connection| c.rank.is_none() && now >= c.since + HOLD;
        !self.is_full() || self.connections.iter().any(hold_is_over)
    }

    fn read(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        let mut buffer = [0; 64 << 10];
        // What does not fit is there at the next turn.
        let got = match connection.stream.read(&mut buffer) {
            Ok(n) if n > 0 => &buffer[..n],
            Err(e) if super::retries(&e) => return,
            _ => return self.hung_up(index),
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
        while self.connections[index].open && !self.connections[index].closing {
            match self.connections[index].decoder.next() {
                Ok(Some(frame)) => {
                    if let Err(text) = self.heard(index, frame) {
                        self.refuse(index, text);
                    }
                }
                Ok(None) => return,
                Err(text) => {
                    let text = self.gather.turn_away(text);
                    self.refuse(index, text);
                }
            }
        }
    }

    fn heard(&mut self, index: usize, frame: Frame) -> Result<(), String> {
        match (frame, self.connections[index].rank) {
            (Frame::Hello(hello), None) => {
                match self.gather.join(&hello) {
                    Ok(rank) => {
                        self.connections[index].rank = Some(rank);
                        self.connections[index].decoder.set_limit(CONTRIBUTION_LIMIT);
                    }
                    Err((text, told)) => {
                        self.refuse(index, text);
                        self.tell(told);
                    }
                }
                Ok(())
            }
            // Whoever has heard the last answer has left nothing of it here.
            (Frame::Contribute { .. }, Some(_)) if !self.connections[index].out.is_empty() => {
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
            _ => Err("a frame out of turn".into()),
        }
    }

    fn hung_up(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        connection.open = false;
        match (connection.rank, self.hung_up) {
            (Some(rank), None) => self.hung_up = Some((rank, Instant::now() + self.grace)),
            (None, _) if connection.handshake.is_some() => self.turned_away += 1,
            _ => {}
        }
    }

    /// When there is something to do even if nobody says anything.
    fn next_due(&self, accepts: bool) -> Option<Duration> {
        let nameless = self.connections.iter().filter(|c| c.rank.is_none()).map(|c| c.since).min();
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
        let before = self.connections.len();
        self.connections.retain(|c| c.rank.is_some() || now < c.since + PATIENCE);
        self.turned_away += (before - self.connections.len()) as u64;
    }

    /// Says a last word to this connection. If it was a rank's, nobody is to wait for that rank any longer.
    fn refuse(&mut self, index: usize, text: String) {
        self.turned_away += 1;
        let connection = &mut self.connections[index];
        connection.say(&encoded(&Frame::Refused { text: text.clone() }));
        connection.closing = true;
        connection.since = Instant::now(); // as long as one that is new it has to hear it
        connection.write();
        if let Some(rank) = connection.rank.take() {
            let name = self.gather.name(rank);
            self.ended(&format!("{name} was turned away: {text}"));
        }
    }

    fn tell(&mut self, told: Reply) {
        // One that is dying cannot be told; its end is noticed on its own.
        match told {
            Reply::Nobody => {}
            Reply::One(rank, frame) => self.say(&encoded(&frame), |c| c.rank == Some(rank)),
            Reply::All(frame) => {
                let bytes = encoded(&frame);
                drop(frame);
                // Rank 0 comes last: where it serves the exchange itself, its end would come before the others' answer.
                self.say(&bytes, |c| c.rank.is_some_and(|rank| rank != 0));
                self.say(&bytes, |c| c.rank == Some(0));
            }
        }
    }

    fn say(&mut self, bytes: &Arc<[u8]>, to: impl Fn(&Connection) -> bool) {
        for connection in self.connections.iter_mut().filter(|c| c.open && to(c)) {
            connection.say(bytes);
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
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    /// A server whose listener cannot take anybody in, as where no descriptor is left.
    fn without_descriptors() -> Server {
        let mut server = Server::new(2, "j");
        let (socket, _) = UnixStream::pair().expect("a socket that does not listen");
        server.listeners.push(Listener::Unix(UnixListener::from(OwnedFd::from(socket))));
        server
    }

    #[test]
    fn where_the_system_has_no_room_nobody_is_taken_in_for_a_while_and_then_it_is_tried_again() {
        let mut server = without_descriptors();
        let before = Instant::now();
        assert!(server.accepts(before));
        assert_eq!(server.next_due(true), None, "there is nothing to wake up for");
        server.accept(0);
        let after = Instant::now();
        assert!(!server.accepts(before), "the listener would be asked without end");
        assert!(server.next_due(false).is_some_and(|due| due <= PAUSE), "it wakes up for it");
        assert!(server.accepts(after + PAUSE));
        assert_eq!((server.next_due(true), server.connections.len()), (None, 0));
        server.accept(0);
        assert!(!server.accepts(after), "and again");
    }

    #[test]
    fn who_says_nothing_is_waited_for_and_then_sent_away() {
        let mut server = Server::new(2, "j");
        let (ours, _theirs) = UnixStream::pair().expect("two sockets");
        let began = Instant::now();
        server.adopt(ours).expect("a flag");
        let due = server.next_due(true).expect("somebody is waited for");
        assert!(due <= PATIENCE && due + began.elapsed() >= PATIENCE, "{due:?}");
        server.expire();
        assert_eq!((server.connections.len(), server.turned_away), (1, 0));
        server.connections[0].since = began.checked_sub(PATIENCE).expect("an earlier time");
        assert_eq!(server.next_due(true), Some(Duration::ZERO));
        server.expire();
        assert_eq!((server.connections.len(), server.turned_away), (0, 1));
    }

    #[test]
    fn a_listener_without_a_caller_is_no_trouble() {
        let mut server = Server::new(2, "j");
        let _ = server.listen_unix().expect("a name of its own");
        match &server.listeners[0] {
            Listener::Unix(listener) => listener.set_nonblocking(true).expect("a flag"),
            Listener::Tcp(..) => panic!("it was asked for another"),
        }
        server.accept(0);
        assert!(server.accepts(Instant::now()) && server.connections.is_empty());
        assert_eq!(server.turned_away, 0);
    }
}
