//! The peers and their connections.
//!
//! A peer is an address. The first datagram to a peer makes a connection, or uses the connection that the peer has made. If two
//! peers dial each other simultaneously, there is a connection in each direction, and both stay. Each side sends over the
//! connection that it had first, as long as that connection lives, so datagrams do not overtake each other.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tieline_net::{Contact, Hub, Incoming, Interest, Mailbox, Poller, Ready, Timer, tune};
use tieline_plugin_api::Status;

use crate::config::Settings;
use crate::connector::name_of;
use crate::frame::{Frame, MAX_DATAGRAM, Note};
use crate::wire::{Arrival, Phase, Wire};

#[path = "dialling.rs"]
mod dialling;
use dialling::Dialling;

/// The limit on queued bytes per peer. A datagram always fits into an empty queue.
const QUEUE: usize = 256 << 10;
/// The limit on received datagrams that wait for the core. Beyond the limit no more are read.
const WAITING: usize = 1024;
/// The limit on reads from one connection per turn, so that the others are served.
const READS: usize = 4;
/// The limit on bytes passed to a socket in one call.
const BATCH: usize = 64 << 10;
/// The purpose in a dialler's hello: to exchange datagrams. The payload is the dialler's own address.
const PURPOSE: u8 = 1;

const HUB: u64 = 0;
const MAILBOX: u64 = 1;
const TIMER: u64 = 2;
const FIRST: u64 = 16;

/// A notice for the core.
#[derive(Debug)]
pub(crate) enum Notice {
    /// A datagram: the number of the sender's connection, and the bytes.
    Datagram(u64, Vec<u8>),
    Left {
        hash: u64,
        status: Status,
        words: String,
    },
}

/// All peers of this connector.
pub(crate) struct Peers {
    pub(crate) notices: VecDeque<Notice>,
    mailbox: Mailbox,
    own: Vec<u8>,
    secret: Vec<u8>,
    silence: Duration,
    connect_timeout: Duration,
    max_wires: usize,
    poller: Poller,
    timer: Timer,
    timer_at: Option<Instant>,
    peers: HashMap<Rc<[u8]>, Peer>,
    wires: HashMap<u64, Wire>,
    dials: HashMap<u64, Dialling>,
    next: u64,
    clock: u64,
    ready: Vec<Ready>,
    /// The addresses that failed before another one succeeded, to be logged.
    pub(crate) detours: Vec<String>,
    scratch: Vec<u8>,
}

/// A peer, identified by its address.
#[derive(Default)]
struct Peer {
    queue: VecDeque<Vec<u8>>,
    queued: usize,
    wires: Vec<u64>,
    /// The connection that carries datagrams to this peer.
    sending: Option<u64>,
    dial: Option<u64>,
}

impl Peers {
    pub(crate) fn open(mailbox: Mailbox, own: Vec<u8>, settings: &Settings) -> io::Result<Peers> {
        let (poller, timer) = (Poller::new()?, Timer::new()?);
        poller.watch(mailbox.hub().fd().as_raw_fd(), Interest::READ, HUB)?;
        poller.watch(mailbox.fd().as_raw_fd(), Interest::READ, MAILBOX)?;
        poller.watch(timer.as_fd().as_raw_fd(), Interest::READ, TIMER)?;
        Ok(Peers {
            notices: VecDeque::new(),
            mailbox,
            own,
            secret: settings.net.secret.clone(),
            silence: settings.silence,
            connect_timeout: settings.connect_timeout,
            max_wires: settings.max_wires,
            poller,
            timer,
            timer_at: None,
            peers: HashMap::new(),
            wires: HashMap::new(),
            dials: HashMap::new(),
            next: FIRST,
            clock: 0,
            ready: Vec::new(),
            detours: Vec::new(),
            scratch: vec![0; BATCH],
        })
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        self.mailbox.hub()
    }

    /// Returns the descriptor that is readable when [`Peers::turn`] has work.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    /// Accepts a datagram for a peer.
    pub(crate) fn send(&mut self, address: &[u8], datagram: &[u8]) -> Result<(), Status> {
        if address == self.own {
            if self.notices.len() >= WAITING {
                return Err(Status::Again);
            }
            self.notices.push_back(Notice::Datagram(name_of(address), datagram.to_vec()));
            return Ok(());
        }
        if !self.peers.contains_key(address) {
            let _ = Contact::parse(address).map_err(|_| Status::Invalid)?;
            let _ = self.peers.insert(address.into(), Peer::default());
        }
        let Some((key, _)) = self.peers.get_key_value(address) else { return Err(Status::Invalid) };
        let key = Rc::clone(key);
        let Some(peer) = self.peers.get_mut(&key) else { return Err(Status::Invalid) };
        if peer.queued + datagram.len() > QUEUE || peer.queue.len() >= WAITING {
            return Err(Status::Again);
        }
        peer.queued += datagram.len();
        peer.queue.push_back(datagram.to_vec());
        self.serve(&key);
        self.set_timer();
        Ok(())
    }

    /// Makes progress: accepts, advances and closes connections; sends and receives datagrams.
    pub(crate) fn turn(&mut self) -> io::Result<()> {
        let mut ready = std::mem::take(&mut self.ready);
        let waited = self.poller.wait(&mut ready, Some(Duration::ZERO));
        if waited.is_ok() && !ready.is_empty() {
            let now = Instant::now();
            for event in &ready {
                match event.token {
                    HUB => self.mailbox.hub().poll(),
                    MAILBOX | TIMER => {}
                    token if self.dials.contains_key(&token) => self.advance(token, now),
                    token => {
                        if event.writable {
                            self.flush(token);
                        }
                        if event.readable {
                            self.read(token);
                        }
                    }
                }
            }
            let late: Vec<u64> = self
                .dials
                .iter()
                .filter(|(_, dialling)| dialling.dial.timeout() <= now)
                .map(|(token, _)| *token)
                .collect();
            for token in late {
                self.advance(token, now);
            }
        }
        self.ready = ready;
        while let Some(incoming) = self.mailbox_take() {
            self.welcome(incoming);
        }
        self.set_timer();
        waited
    }

    fn mailbox_take(&self) -> Option<Incoming> {
        if self.mailbox.is_empty() { None } else { self.mailbox.take() }
    }

    /// Handles a connection that a peer has made to this side.
    fn welcome(&mut self, incoming: Incoming) {
        let address = incoming.hello.payload();
        let known = incoming.hello.purpose == PURPOSE && Contact::parse(address).is_ok();
        if !known || address == self.own {
            return; // the dialler is a member of the job with another purpose: its socket is closed
        }
        let key: Rc<[u8]> = match self.peers.get_key_value(address) {
            Some((key, _)) => Rc::clone(key),
            None => address.into(),
        };
        let peer = self.peers.entry(Rc::clone(&key)).or_default();
        // A peer makes a second connection only if its first one has broken on its side.
        let broken: Vec<u64> = peer
            .wires
            .iter()
            .copied()
            .filter(|token| {
                self.wires.get(token).is_some_and(|w| w.incoming && w.phase == Phase::Open)
            })
            .collect();
        for token in broken {
            self.read(token);
            self.lost(token, Status::Io, "the peer has connected anew");
        }
        self.adopt(incoming.stream, key, true);
    }

    /// Adds an established connection.
    fn adopt(&mut self, stream: TcpStream, key: Rc<[u8]>, incoming: bool) {
        tune(&stream, self.silence);
        let token = self.token();
        let mut wire = Wire::new(stream, Rc::clone(&key), incoming);
        wire.used = self.clock;
        let _ = self.wires.insert(token, wire);
        self.peers.entry(Rc::clone(&key)).or_default().wires.push(token);
        self.watch(token);
        self.serve(&key);
        self.close_unused(token);
    }

    /// Assigns a connection to a peer's queue: the existing one, or a new one.
    fn serve(&mut self, key: &Rc<[u8]>) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        if peer.sending.is_none() {
            if is_closing(peer, &self.wires) {
                return; // later datagrams must not overtake those on that connection
            }
            let open = |wire: &Wire| wire.phase == Phase::Open && wire.failed.is_none();
            peer.sending =
                peer.wires.iter().copied().find(|token| self.wires.get(token).is_some_and(open));
        }
        match (peer.sending, peer.dial) {
            (Some(token), _) => self.flush(token),
            (None, None) if !peer.queue.is_empty() => self.dial(key),
            (None, None) if peer.wires.is_empty() => drop(self.peers.remove(key)),
            _ => {}
        }
    }

    fn left(&mut self, key: &[u8], status: Status, words: String) {
        self.notices.push_back(Notice::Left { hash: name_of(key), status, words });
    }

    /// Writes a connection's pending data, and moves more of its peer's queue to it.
    fn flush(&mut self, token: u64) {
        let Some(wire) = self.wires.get_mut(&token) else { return };
        let key = Rc::clone(&wire.peer);
        let mut peer = self.peers.get_mut(&key);
        loop {
            if wire.unsent() == 0 && wire.failed.is_none() {
                if let Some(peer) = peer.as_mut().filter(|p| p.sending == Some(token)) {
                    while wire.unsent() < BATCH {
                        let Some(datagram) = peer.queue.pop_front() else { break };
                        peer.queued -= datagram.len();
                        self.clock += 1;
                        wire.used = self.clock;
                        wire.put(&datagram);
                    }
                }
            }
            if wire.unsent() == 0 {
                break;
            }
            wire.write();
            if wire.unsent() > 0 {
                break;
            }
        }
        if wire.phase == Phase::Last && wire.unsent() == 0 {
            wire.end();
        }
        self.watch(token);
    }

    /// Reads from a connection.
    fn read(&mut self, token: u64) {
        let mut scratch = std::mem::take(&mut self.scratch);
        for _ in 0..READS {
            if self.notices.len() >= WAITING {
                break;
            }
            let Some(wire) = self.wires.get_mut(&token) else { break };
            match wire.read(&mut scratch) {
                Ok(Arrival::Quiet) => break,
                Ok(Arrival::Frames(frames)) => {
                    self.clock += 1;
                    wire.used = self.clock;
                    for frame in frames {
                        self.take(token, frame);
                    }
                }
                Ok(Arrival::End) => {
                    let why = wire.failed.take().unwrap_or_else(|| "the peer has closed it".into());
                    match wire.phase {
                        Phase::Done | Phase::Last => self.remove(token),
                        _ => self.lost(token, Status::Io, &why),
                    }
                    break;
                }
                Err(why) => {
                    self.lost(token, Status::Io, &why);
                    break;
                }
            }
        }
        self.scratch = scratch;
        self.watch(token);
    }

    fn take(&mut self, token: u64, frame: Frame) {
        let Some(wire) = self.wires.get_mut(&token) else { return };
        match (frame, wire.phase) {
            (Frame::Datagram(datagram), Phase::Open | Phase::Asked) => {
                self.notices.push_back(Notice::Datagram(name_of(&wire.peer), datagram));
            }
            (Frame::Note(Note::MayClose), Phase::Open) => {
                wire.note(Note::Bye);
                wire.phase = Phase::Done;
                self.stop_sending(token);
            }
            (Frame::Note(Note::MayClose), Phase::Asked) => {
                wire.phase = Phase::Last;
                self.flush(token);
            }
            (Frame::Note(Note::Bye), Phase::Asked) => self.remove(token),
            (Frame::Note(Note::Gone), _) => {
                let key = Rc::clone(&wire.peer);
                let words = format!("the peer at {} has closed its connector", wire.at());
                // The peer sends the same note on its other connections, after their remaining data.
                if self.peers.get(&key).is_some_and(|peer| peer.wires.len() == 1) {
                    self.forget(&key);
                    self.left(&key, Status::Closed, words);
                } else {
                    self.remove(token);
                }
            }
            (frame, phase) => {
                let kind = match frame {
                    Frame::Datagram(_) => "a datagram",
                    Frame::Note(_) => "a note",
                };
                let why = format!("the peer broke the protocol: {kind} in phase {phase:?}");
                self.lost(token, Status::BadData, &why);
            }
        }
    }

    /// Ends this side's use of a connection. The queue gets another connection when this one is closed.
    fn stop_sending(&mut self, token: u64) {
        let Some(wire) = self.wires.get(&token) else { return };
        let key = Rc::clone(&wire.peer);
        if let Some(peer) = self.peers.get_mut(&key) {
            if peer.sending == Some(token) {
                peer.sending = None;
            }
        }
        self.flush(token);
        self.serve(&key);
    }

    /// Handles a broken connection. The core is notified if the connection was in use, or was the last one of its peer.
    fn lost(&mut self, token: u64, status: Status, why: &str) {
        let Some(wire) = self.wires.get(&token) else { return };
        let (key, at) = (Rc::clone(&wire.peer), wire.at());
        if let Some(peer) = self.peers.get_mut(&key) {
            if peer.sending == Some(token) || peer.wires.len() == 1 {
                peer.queue.clear();
                peer.queued = 0;
                let words = format!("the connection to the peer at {at} broke: {why}");
                self.left(&key, status, words);
            }
        }
        self.remove(token);
    }

    /// Closes a connection that is not needed any more.
    fn remove(&mut self, token: u64) {
        let Some(wire) = self.wires.remove(&token) else { return };
        // Closing a socket ends its watching only if no forked child holds a copy.
        self.poller.forget(wire.fd());
        if let Some(peer) = self.peers.get_mut(&wire.peer) {
            peer.wires.retain(|other| *other != token);
            if peer.sending == Some(token) {
                peer.sending = None;
            }
        }
        self.serve(&wire.peer);
    }

    /// Closes all connections to a peer that no longer exists.
    fn forget(&mut self, key: &Rc<[u8]>) {
        let Some(peer) = self.peers.remove(key) else { return };
        for token in peer.wires {
            if let Some(wire) = self.wires.remove(&token) {
                self.poller.forget(wire.fd());
            }
        }
        if let Some(token) = peer.dial {
            if let Some(fd) = self.dials.remove(&token).and_then(|dialling| dialling.dial.fd()) {
                self.poller.forget(fd);
            }
        }
    }

    /// Watches a connection for the events that matter in its state.
    fn watch(&mut self, token: u64) {
        let Some(wire) = self.wires.get_mut(&token) else { return };
        let interest = Interest { readable: true, writable: wire.unsent() > 0 };
        if wire.watched == Some(interest) {
            return;
        }
        wire.watched = Some(interest);
        if let Err(error) = self.poller.watch(wire.fd(), interest, token) {
            self.lost(token, Status::NoMemory, &error.to_string());
        }
    }

    /// Asks the peer of the longest unused connection to close it if there are too many connections.
    fn close_unused(&mut self, newest: u64) {
        let open = |wire: &Wire| wire.phase == Phase::Open;
        if self.wires.values().filter(|wire| open(wire)).count() <= self.max_wires {
            return;
        }
        let idle = |token: &u64, wire: &Wire| {
            let peer = self.peers.get(&wire.peer);
            let busy = peer.is_some_and(|p| !p.queue.is_empty() || is_closing(p, &self.wires));
            *token != newest && open(wire) && wire.unsent() == 0 && !busy
        };
        let unused =
            self.wires.iter().filter(|(token, wire)| idle(token, wire)).min_by_key(|(_, w)| w.used);
        let Some(token) = unused.map(|(token, _)| *token) else { return };
        let Some(wire) = self.wires.get_mut(&token) else { return };
        wire.phase = Phase::Asked;
        wire.note(Note::MayClose);
        self.stop_sending(token);
    }

    fn token(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn set_timer(&mut self) {
        let next = self.dials.values().map(|dialling| dialling.dial.timeout()).min();
        if next != self.timer_at {
            self.timer_at = next;
            self.timer.set(next);
        }
    }
}

/// Checks whether one of a peer's connections is being closed. Until that connection is closed, the peer may not have read all of
/// its data.
fn is_closing(peer: &Peer, wires: &HashMap<u64, Wire>) -> bool {
    peer.wires.iter().any(|token| wires.get(token).is_some_and(|w| w.phase != Phase::Open))
}

impl Drop for Peers {
    fn drop(&mut self) {
        let tokens: Vec<u64> = self.wires.keys().copied().collect();
        for token in tokens {
            self.flush(token);
            if let Some(wire) = self.wires.remove(&token) {
                wire.leave(&mut self.scratch);
            }
        }
    }
}

const _: () = assert!(MAX_DATAGRAM <= QUEUE);

#[cfg(test)]
#[path = "peers_tests.rs"]
mod tests;
