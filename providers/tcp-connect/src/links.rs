//! The connections: sockets that carry frames, and connections being established.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use tieline_net::datagrams::{LinkEvent, Links, Note, Phase};
use tieline_net::{
    Contact, Dial, Hello, Interest, Key, Mailbox, Poller, Progress, Timer, routes, tune,
};
use tieline_plugin_api::Status;

use crate::config::Settings;
use crate::wire::Wire;

/// The number of unsent bytes from which on a connection has no room for datagrams, and the size of one read.
pub(crate) const BATCH: usize = 64 << 10;
/// The purpose in a dialler's hello: to exchange datagrams. The payload is the dialler's own address.
pub(crate) const PURPOSE: u8 = 1;

pub(crate) const HUB: u64 = 0;
pub(crate) const MAILBOX: u64 = 1;
pub(crate) const TIMER: u64 = 2;
const FIRST: u64 = 16;

/// All connections of this connector.
pub(crate) struct Wires {
    /// The events for the peers, in order.
    pub(crate) events: VecDeque<LinkEvent>,
    /// The addresses that failed before another one succeeded, to be logged.
    pub(crate) detours: Vec<String>,
    pub(crate) mailbox: Mailbox,
    pub(crate) own: Vec<u8>,
    pub(crate) poller: Poller,
    pub(crate) wires: HashMap<u64, Wire>,
    pub(crate) dials: HashMap<u64, Dialling>,
    secret: Vec<u8>,
    silence: Duration,
    connect_timeout: Duration,
    /// The timer of the connection attempts, made for the first of them.
    timer: Option<Timer>,
    timer_at: Option<Instant>,
    next: u64,
    /// The connections with new data to write, or with a pending end of their sending direction.
    fresh: Vec<u64>,
}

/// A connection being established.
pub(crate) struct Dialling {
    pub(crate) dial: Dial,
    peer: Vec<u8>,
}

impl Wires {
    pub(crate) fn open(mailbox: Mailbox, own: Vec<u8>, settings: &Settings) -> io::Result<Wires> {
        let poller = Poller::new()?;
        poller.watch(mailbox.hub().fd().as_raw_fd(), Interest::READ, HUB)?;
        poller.watch(mailbox.fd().as_raw_fd(), Interest::READ, MAILBOX)?;
        Ok(Wires {
            events: VecDeque::new(),
            detours: Vec::new(),
            mailbox,
            own,
            poller,
            wires: HashMap::new(),
            dials: HashMap::new(),
            secret: settings.net.secret.clone(),
            silence: settings.silence,
            connect_timeout: settings.connect_timeout,
            timer: None,
            timer_at: None,
            next: FIRST,
            fresh: Vec::new(),
        })
    }

    /// Adds an established connection, and returns its number.
    pub(crate) fn adopt(&mut self, stream: TcpStream) -> u64 {
        tune(&stream, self.silence);
        let link = self.token();
        let _ = self.wires.insert(link, Wire::new(stream));
        self.watch(link);
        link
    }

    /// Writes a connection's pending data.
    pub(crate) fn write(&mut self, link: u64) {
        let Some(wire) = self.wires.get_mut(&link) else { return };
        wire.write();
        if wire.unsent() == 0 && wire.finishing {
            wire.end();
        }
        self.watch(link);
    }

    /// Checks whether no connection has new data to write.
    pub(crate) fn is_written(&self) -> bool {
        self.fresh.is_empty()
    }

    /// Writes the data of every connection that has got new data.
    pub(crate) fn write_fresh(&mut self) {
        for link in std::mem::take(&mut self.fresh) {
            self.write(link);
        }
    }

    /// Watches a connection for the events that matter in its state.
    pub(crate) fn watch(&mut self, link: u64) {
        let Some(wire) = self.wires.get_mut(&link) else { return };
        let interest = Interest { readable: true, writable: wire.unsent() > 0 };
        if wire.watched == Some(interest) {
            return;
        }
        wire.watched = Some(interest);
        if let Err(error) = self.poller.watch(wire.fd(), interest, link) {
            let (status, words) = (Status::NoMemory, error.to_string());
            self.events.push_back(LinkEvent::Broke { link, status, words });
        }
    }

    /// Advances the connection attempts whose time has come.
    pub(crate) fn advance_late(&mut self, now: Instant) {
        let is_late = |dialling: &Dialling| dialling.dial.timeout() <= now;
        let late: Vec<u64> =
            self.dials.iter().filter(|(_, one)| is_late(one)).map(|(token, _)| *token).collect();
        late.into_iter().for_each(|token| self.advance(token, now));
    }

    /// Advances a connection attempt.
    pub(crate) fn advance(&mut self, token: u64, now: Instant) {
        let Some(dialling) = self.dials.get_mut(&token) else { return };
        // The dial may close its socket for the next one. The close ends the watching only if no forked child holds a copy.
        dialling.dial.fd().iter().for_each(|fd| self.poller.forget(*fd));
        let progress = match dialling.dial.advance(now) {
            Progress::Waiting => {
                let dial = &dialling.dial;
                match self.poller.watch(dial.fd().unwrap_or(-1), dial.wants(), token) {
                    Ok(()) => return,
                    Err(error) => Progress::Failed(format!("waiting for a socket: {error}")),
                }
            }
            over => over,
        };
        let Some(Dialling { peer, dial }) = self.dials.remove(&token) else { return };
        match progress {
            Progress::Done(stream) => {
                if !dial.failures().is_empty() {
                    let there =
                        stream.peer_addr().map_or_else(|_| "another".into(), |at| at.to_string());
                    let failures = dial.failures().join("; ");
                    self.detours.push(format!("{failures}; {there} is used instead"));
                }
                let link = self.adopt(stream);
                self.events.push_back(LinkEvent::Up { link, peer, dial: Some(token) });
            }
            Progress::Failed(words) => {
                let status = if dial.is_refused() {
                    Status::PeerFailed
                } else if dial.is_wrong_secret() {
                    Status::Permission
                } else if dial.is_other_version() {
                    Status::Unsupported
                } else if dial.is_starved() {
                    Status::NoMemory
                } else {
                    Status::Unreachable
                };
                self.events.push_back(LinkEvent::DialFailed { dial: token, status, words });
            }
            Progress::Waiting => {}
        }
    }

    /// Makes the timer, if there is none yet.
    fn make_timer(&mut self) -> io::Result<()> {
        if self.timer.is_none() {
            let timer = Timer::new()?;
            self.poller.watch(timer.as_fd().as_raw_fd(), Interest::READ, TIMER)?;
            self.timer = Some(timer);
        }
        Ok(())
    }

    /// Sets the timer to the next deadline of a connection attempt.
    pub(crate) fn set_timer(&mut self) {
        let next = self.dials.values().map(|dialling| dialling.dial.timeout()).min();
        if let Some(timer) = self.timer.as_ref().filter(|_| next != self.timer_at) {
            self.timer_at = next;
            timer.set(next);
        }
    }

    fn token(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Links for Wires {
    fn dial(&mut self, peer: &[u8]) -> u64 {
        let token = self.token();
        if let Err(error) = self.make_timer() {
            let (status, words) = (Status::NoMemory, format!("a timer of the connection: {error}"));
            self.events.push_back(LinkEvent::DialFailed { dial: token, status, words });
            return token;
        }
        let begun = Contact::parse(peer).map_err(|why| why.to_string()).and_then(|contact| {
            let ways = routes(self.mailbox.hub().local(), &contact)?;
            let hello = Hello::new(PURPOSE, contact.target, &self.own)?;
            // The attempt ends before the caller's deadline, so that the caller learns the reason of a failure.
            let deadline = Instant::now() + self.connect_timeout / 8 * 7;
            let key = Key::derive(&self.secret, &contact.cookie);
            Ok(Dial::start(ways, key, hello, deadline))
        });
        match begun {
            Ok(dial) => {
                let _ = self.dials.insert(token, Dialling { dial, peer: peer.to_vec() });
                self.advance(token, Instant::now());
            }
            Err(words) => {
                let status = Status::Unreachable;
                self.events.push_back(LinkEvent::DialFailed { dial: token, status, words });
            }
        }
        token
    }

    fn cancel(&mut self, dial: u64) {
        if let Some(fd) = self.dials.remove(&dial).and_then(|dialling| dialling.dial.fd()) {
            self.poller.forget(fd);
        }
    }

    fn has_room(&self, link: u64) -> bool {
        self.wires.get(&link).is_some_and(|wire| wire.unsent() < BATCH && wire.failed.is_none())
    }

    fn is_quiet(&self, link: u64) -> bool {
        self.wires.get(&link).is_some_and(|wire| wire.unsent() == 0)
    }

    fn is_usable(&self, link: u64) -> bool {
        self.wires.get(&link).is_some_and(|wire| wire.failed.is_none())
    }

    fn place(&self, link: u64) -> String {
        self.wires.get(&link).map_or_else(String::new, |wire| format!(" at {}", wire.at()))
    }

    fn unreachable(&self) -> &'static str {
        "no address of the peer can be reached"
    }

    fn when(&self, phase: Phase) -> String {
        format!(" in phase {phase:?}")
    }

    fn send(&mut self, link: u64, datagram: &[u8]) {
        let Some(wire) = self.wires.get_mut(&link) else { return };
        wire.put(datagram);
        match wire.unsent() < BATCH {
            true => self.fresh.push(link),
            false => self.write(link),
        }
    }

    fn note(&mut self, link: u64, note: Note) {
        if let Some(wire) = self.wires.get_mut(&link) {
            wire.note(note);
            self.fresh.push(link);
        }
    }

    fn close(&mut self, link: u64) {
        if let Some(wire) = self.wires.remove(&link) {
            // Closing a socket ends its watching only if no forked child holds a copy.
            self.poller.forget(wire.fd());
        }
    }

    fn finish(&mut self, link: u64) {
        if let Some(wire) = self.wires.get_mut(&link) {
            wire.finishing = true;
            self.fresh.push(link);
        }
    }
}
