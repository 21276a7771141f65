//! Who serves the exchange: the launcher, or rank 0's thread where there is none. A thin shell of I/O around
//! `Gather`; nothing in it waits but [`Server::turn`], and that only for what it was told.
//!
//! ```no_run
//! # fn main() -> Result<(), tieline::Error> {
//! use tieline::job::server::Server;
//! let mut server = Server::new(4, "c0ffee");
//! let exchange = server.listen_unix()?; // `unix:@tieline-...`, for TIELINE_EXCHANGE
//! loop {
//!     server.turn(&[], None)?;
//! }
//! # }
//! ```

use super::door::Door;
use super::gather::{Gather, Tell};
use super::stream::Stream;
use super::sys::{self, Interest};
use super::wire::{CONTRIBUTION_LIMIT, Decoder, Frame};
use crate::{Error, Status};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// How long a connection may take to name itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many connections may be about to name themselves; the oldest goes when one more comes.
const MAX_NAMELESS: usize = 256;

/// Serves one job.
pub struct Server {
    gather: Gather,
    listeners: Vec<Listener>,
    connections: Vec<Connection>,
    /// A rank that hung up, until its end is told: by [`Server::ended`], which knows better, or at this time.
    hung_up: Option<(usize, Instant)>,
    grace: Duration,
    turned_away: u64,
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener, Vec<u8>),
}

struct Connection {
    stream: Stream,
    /// Still to be passed; none for sockets whose other end the kernel vouches for.
    door: Option<Door>,
    decoder: Decoder,
    out: Vec<u8>,
    rank: Option<usize>,
    since: Instant,
    /// Closed once `out` is written.
    closing: bool,
    open: bool,
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
        let id = crate::sys::random_id()?;
        let name = format!("tieline-{}", id.map(|byte| format!("{byte:02x}")).concat());
        let listen = || {
            let address = SocketAddr::from_abstract_name(name.as_bytes())?;
            let listener = UnixListener::bind_addr(&address)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        self.listeners.push(Listener::Unix(listen().map_err(|e| cannot_listen(&e))?));
        Ok(format!("unix:@{name}"))
    }

    /// Listens on this socket, for whoever knows the secret.
    ///
    /// # Errors
    /// What the system says.
    pub fn listen_tcp(&mut self, listener: TcpListener, secret: &[u8]) -> Result<(), Error> {
        listener.set_nonblocking(true).map_err(|e| cannot_listen(&e))?;
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
        let mut interests: Vec<Interest> =
            others.iter().map(|&fd| Interest { fd, write: false }).collect();
        interests.extend(self.listeners.iter().map(|l| Interest { fd: l.fd(), write: false }));
        interests.extend(
            self.connections
                .iter()
                .map(|c| Interest { fd: c.stream.as_raw_fd(), write: !c.out.is_empty() }),
        );
        let timeout = [timeout, self.next_due()].into_iter().flatten().min();
        let mut ready = sys::wait(&interests, timeout).map_err(|e| {
            Error::new(Status::Io, "cannot wait for the job's processes", e.to_string(), "")
        })?;
        let mine = ready.split_off(others.len());
        self.serve(&mine);
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

    fn serve(&mut self, ready: &[bool]) {
        let listeners = self.listeners.len();
        for (index, _) in ready.iter().enumerate().skip(listeners).filter(|(_, ready)| **ready) {
            self.connections[index - listeners].write();
            self.read(index - listeners);
        }
        for (index, _) in ready.iter().take(listeners).enumerate().filter(|(_, ready)| **ready) {
            self.accept(index);
        }
        self.connections.retain(|c| c.open);
    }

    fn accept(&mut self, index: usize) {
        loop {
            let connection = match &self.listeners[index] {
                Listener::Unix(listener) => {
                    let Ok((stream, _)) = listener.accept() else { return };
                    let ours = sys::user_of(&stream).is_ok_and(|user| user == sys::user());
                    ours.then(|| Connection::new(Stream::Unix(stream), None))
                }
                Listener::Tcp(listener, secret) => {
                    let Ok((stream, _)) = listener.accept() else { return };
                    let _ = stream.set_nodelay(true);
                    Door::accept(secret)
                        .map(|door| Connection::new(Stream::Tcp(stream), Some(door)))
                }
            };
            match connection {
                Some(mut connection) if connection.stream.set_nonblocking(true).is_ok() => {
                    connection.greet();
                    self.connections.push(connection);
                }
                _ => self.turned_away += 1,
            }
            let nameless = self.connections.iter().filter(|c| c.rank.is_none()).count();
            if nameless > MAX_NAMELESS {
                if let Some(oldest) = self.connections.iter().position(|c| c.rank.is_none()) {
                    drop(self.connections.remove(oldest));
                    self.turned_away += 1;
                }
            }
        }
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
        if let Some(door) = &mut connection.door {
            match door.push(got) {
                Ok(passed) => {
                    connection.out.extend(door.take_output());
                    if let Some(rest) = passed {
                        connection.decoder.push(&rest);
                        connection.door = None;
                    }
                    connection.write();
                }
                Err(why) => {
                    // What there is to answer leaves before the connection closes.
                    connection.out.extend(door.take_output());
                    connection.closing = true;
                    connection.write();
                    self.turned_away += 1;
                    let _ = self.gather.turn_away(Frame::Refused { text: why });
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
                        self.refuse(index, Frame::Refused { text });
                    }
                }
                Ok(None) => return,
                Err(text) => self.refuse(index, Frame::Refused { text }),
            }
        }
    }

    fn heard(&mut self, index: usize, frame: Frame) -> Result<(), String> {
        match (frame, self.connections[index].rank) {
            (Frame::Hello(hello), None) => {
                match self.gather.join(&hello) {
                    Ok(rank) => self.connections[index].rank = Some(rank),
                    Err((last_word, told)) => {
                        self.refuse(index, last_word);
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
            _ => Err("a frame out of turn".into()),
        }
    }

    fn hung_up(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        connection.open = false;
        match (connection.rank, self.hung_up) {
            (Some(rank), None) => self.hung_up = Some((rank, Instant::now() + self.grace)),
            (None, _) if connection.door.is_some() => self.turned_away += 1,
            _ => {}
        }
    }

    /// When there is something to do even if nobody says anything.
    fn next_due(&self) -> Option<Duration> {
        let nameless = self.connections.iter().filter(|c| c.rank.is_none());
        let nameless = nameless.map(|c| c.since + PATIENCE).min();
        let due = [self.hung_up.map(|(_, at)| at), nameless].into_iter().flatten().min();
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

    fn refuse(&mut self, index: usize, last_word: Frame) {
        self.turned_away += 1;
        self.connections[index].say(&last_word);
        self.connections[index].closing = true;
        self.connections[index].write();
    }

    fn tell(&mut self, told: Vec<Tell>) {
        for (rank, frame) in told {
            let to = self.connections.iter_mut().find(|c| c.open && c.rank == Some(rank));
            if let Some(connection) = to {
                // One that is dying cannot be told; its end is noticed on its own.
                connection.say(&frame);
            }
        }
    }
}

impl Connection {
    fn new(stream: Stream, door: Option<Door>) -> Connection {
        Connection {
            stream,
            door,
            decoder: Decoder::new(CONTRIBUTION_LIMIT),
            out: Vec::new(),
            rank: None,
            since: Instant::now(),
            closing: false,
            open: true,
        }
    }

    fn greet(&mut self) {
        if let Some(door) = &mut self.door {
            self.out.extend(door.take_output());
            self.write();
        }
    }

    fn say(&mut self, frame: &Frame) {
        self.out.extend(frame.encode());
        self.write();
    }

    fn write(&mut self) {
        let mut sent = 0;
        while sent < self.out.len() {
            match self.stream.write(&self.out[sent..]) {
                Ok(n) => sent += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                // Its end is read as one; what was to be said has no reader any more.
                Err(_) => sent = self.out.len(),
            }
        }
        let _ = self.out.drain(..sent);
        if self.closing && self.out.is_empty() {
            self.open = false;
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
