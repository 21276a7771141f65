//! Detects whether the processes of peers are alive.
//!
//! libfabric does not report the death of an idle peer, and operations posted to a dead peer may return EAGAIN without end. Kernels
//! can detect the death. An interface keeps an idle, authenticated TCP connection with every interface that its channels lead to or
//! come from. While a process computes or is stopped, its kernel keeps the connection alive. If a process dies, its kernel closes
//! the connection. If a host answers no probe within `TIELINE_FAILURE_TIMEOUT`, it is considered dead. The interface that connects
//! a channel also dials the watch connection, if there is none. An orderly close is announced with one byte.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tieline_net::{
    Contact, Dial, Hello, Hub, Incoming, Interest, Key, Mailbox, Poller, Progress, Ready, routes,
    tune,
};
use tieline_plugin_api::{Failure, NO_GOODBYE, Status};

/// The purpose that a dialler states: to watch each other. The payload is the number of the dialler's interface.
const PURPOSE: u8 = 1;
/// The bytes that are sent before a connection is closed: one if no channel needs it, the other if the interface ends.
const UNUSED: u8 = b'u';
const CLOSING: u8 = b'c';
/// The number of processes without channels whose connections are kept for a later channel.
const KEPT: usize = 64;
/// The time that a peer has to accept the watch, if this time is longer than the connect timeout: a peer that computes is alive and
/// answers late.
const PATIENCE: Duration = Duration::from_secs(120);
/// The least time of one dial attempt, unless the connect timeout is shorter: several routes may have to be tried.
const LEAST_DIAL: Duration = Duration::from_secs(10);
/// The interval between dial attempts, and between checks for missing peers.
const PAUSE: Duration = Duration::from_millis(250);
/// The number of peers without a channel from which on no further unknown peer is accepted.
const UNHEARD: usize = 1024;

const HUB: u64 = 0;
const MAILBOX: u64 = 1;
const FIRST: u64 = 16;

/// The settings of the watch.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) net: tieline_net::Settings,
    pub(crate) silence: Duration,
    pub(crate) connect_timeout: Duration,
}

/// The end of an interface that channels lead to or come from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// The number of that interface.
    pub(crate) epoch: u64,
    pub(crate) status: Status,
    pub(crate) words: String,
}

/// All peers that one interface watches.
pub(crate) struct Watch {
    mailbox: Mailbox,
    settings: Settings,
    poller: Poller,
    /// The number of the own interface.
    own: u64,
    /// The watched peers, keyed by the numbers of their interfaces.
    peers: HashMap<u64, Peer>,
    /// The interface to which a dial or a connection belongs.
    tokens: HashMap<u64, u64>,
    /// The connected peers whose last channel has ended, oldest first.
    idle: VecDeque<u64>,
    next: u64,
    ready: Vec<Ready>,
    ended: Vec<Ended>,
    /// The time of the last check for missing peers.
    looked: Instant,
}

/// A connection in progress.
struct Dialling {
    token: u64,
    dial: Dial,
}

struct Peer {
    /// The number of channels to and from the peer.
    channels: usize,
    contact: Option<Contact>,
    dial: Option<Dialling>,
    streams: Vec<(u64, TcpStream)>,
    /// The time since which there is no connection with the peer, and the time of the next attempt.
    since: Instant,
    again: Option<Instant>,
    /// The already reported end of the peer.
    over: Option<(Status, String)>,
}

impl Peer {
    fn new() -> Peer {
        Peer {
            channels: 0,
            contact: None,
            dial: None,
            streams: Vec::new(),
            since: Instant::now(),
            again: None,
            over: None,
        }
    }
}

impl Watch {
    /// Makes a watch. `own` is the random number by which peers identify this interface.
    pub(crate) fn open(hub: &Arc<Hub>, settings: &Settings, own: u64) -> Result<Watch, Failure> {
        let failed = |why: String| Failure::new(Status::Io, format!("watching peers: {why}"));
        let mut target = [0; 16];
        tieline_net::random(&mut target).map_err(|error| failed(error.to_string()))?;
        let mailbox = hub.register(target).map_err(failed)?;
        let watched = || {
            let poller = Poller::new()?;
            poller.watch(hub.fd().as_raw_fd(), Interest::READ, HUB)?;
            poller.watch(mailbox.fd().as_raw_fd(), Interest::READ, MAILBOX)?;
            Ok(poller)
        };
        let poller = watched().map_err(|error: std::io::Error| failed(error.to_string()))?;
        Ok(Watch {
            mailbox,
            settings: settings.clone(),
            poller,
            own,
            peers: HashMap::new(),
            tokens: HashMap::new(),
            idle: VecDeque::new(),
            next: FIRST,
            ready: Vec::new(),
            ended: Vec::new(),
            looked: Instant::now(),
        })
    }

    /// Returns the contact by which a peer watches this interface.
    pub(crate) fn contact(&self) -> Contact {
        self.mailbox.contact()
    }

    /// Returns the descriptor that is readable when [`Watch::turn`] has work.
    pub(crate) fn fd(&self) -> RawFd {
        self.poller.as_fd().as_raw_fd()
    }

    /// Records that a channel to or from that interface begins. A channel from that interface has no contact.
    pub(crate) fn join(&mut self, epoch: u64, contact: Option<&Contact>) {
        if epoch == self.own {
            return;
        }
        self.idle.retain(|idle| *idle != epoch);
        let peer = self.peers.entry(epoch).or_insert_with(Peer::new);
        peer.channels += 1;
        if let Some((status, words)) = peer.over.clone() {
            // A channel that begins after the peer's end gets the same report.
            return self.ended.push(Ended { epoch, status, words });
        }
        if let Some(contact) = contact {
            peer.contact = Some(contact.clone());
            self.reach(epoch);
        }
    }

    /// Returns the number of channels, keyed by the number of the other interface.
    #[cfg(test)]
    pub(crate) fn channels(&self) -> std::collections::BTreeMap<u64, usize> {
        let there = self.peers.iter().filter(|(_, peer)| peer.channels > 0);
        there.map(|(epoch, peer)| (*epoch, peer.channels)).collect()
    }

    /// Records that a channel has ended.
    pub(crate) fn leave(&mut self, epoch: u64) {
        let Some(peer) = self.peers.get_mut(&epoch) else { return };
        peer.channels = peer.channels.saturating_sub(1);
        if peer.channels > 0 {
            return;
        }
        if peer.over.is_some() || peer.streams.is_empty() {
            return self.forget(epoch);
        }
        self.idle.push_back(epoch);
        while self.idle.len() > KEPT {
            let Some(oldest) = self.idle.pop_front() else { return };
            self.forget(oldest);
        }
    }

    /// Checks whether a connection is being formed.
    pub(crate) fn is_dialling(&self) -> bool {
        self.tokens.len() > self.peers.values().map(|peer| peer.streams.len()).sum()
    }

    /// Returns the time at which [`Watch::turn`] must be called even if nothing has arrived.
    pub(crate) fn next_turn(&self) -> Option<Instant> {
        let patience = self.patience();
        let turn = |peer: &Peer| match &peer.dial {
            Some(dialling) => Some(dialling.dial.timeout()),
            None if peer.over.is_none() && peer.streams.is_empty() => {
                Some(peer.again.unwrap_or(peer.since + patience))
            }
            None => None,
        };
        self.peers.values().filter_map(turn).min()
    }

    fn patience(&self) -> Duration {
        self.settings.connect_timeout.max(PATIENCE)
    }

    /// Handles all pending events; returns the interfaces that have ended.
    pub(crate) fn turn(&mut self, now: Instant) -> Vec<Ended> {
        let mut ready = core::mem::take(&mut self.ready);
        // If the wait fails, the next call tries again.
        let _ = self.poller.wait(&mut ready, Some(Duration::ZERO));
        for event in &ready {
            match event.token {
                HUB => self.mailbox.hub().poll(),
                MAILBOX => {}
                token => {
                    let Some(&epoch) = self.tokens.get(&token) else { continue };
                    let dials =
                        |peer: &Peer| peer.dial.as_ref().is_some_and(|of| of.token == token);
                    match self.peers.get(&epoch).is_some_and(dials) {
                        true => self.advance(epoch, now),
                        false => self.read(epoch, token),
                    }
                }
            }
        }
        self.ready = ready;
        while !self.mailbox.is_empty() {
            let Some(incoming) = self.mailbox.take() else { break };
            self.welcome(incoming);
        }
        let late = |(epoch, peer): (&u64, &Peer)| {
            peer.dial.as_ref().is_some_and(|of| of.dial.timeout() <= now).then_some(*epoch)
        };
        let late: Vec<u64> = match self.is_dialling() {
            true => self.peers.iter().filter_map(late).collect(),
            false => Vec::new(),
        };
        late.into_iter().for_each(|epoch| self.advance(epoch, now));
        if now.saturating_duration_since(self.looked) >= PAUSE {
            self.looked = now;
            self.look_for_missing(now);
        }
        core::mem::take(&mut self.ended)
    }

    /// Retries the connections that are due, and times out missing peers.
    fn look_for_missing(&mut self, now: Instant) {
        let is_missing = |peer: &Peer| {
            peer.channels > 0
                && peer.over.is_none()
                && peer.dial.is_none()
                && peer.streams.is_empty()
        };
        let missing = self.peers.iter().filter(|(_, peer)| is_missing(peer));
        for epoch in missing.map(|(epoch, _)| *epoch).collect::<Vec<u64>>() {
            let Some(peer) = self.peers.get_mut(&epoch) else { continue };
            if peer.again.take_if(|again| *again <= now).is_some() {
                self.reach(epoch);
            } else if now.saturating_duration_since(peer.since) >= self.patience() {
                let text = "it has not come to be watched";
                self.unreached(epoch, Status::PeerFailed, text.into());
            }
        }
    }

    fn token(&mut self, epoch: u64) -> u64 {
        self.next += 1;
        let _ = self.tokens.insert(self.next, epoch);
        self.next
    }

    /// Dials a peer that is not connected.
    fn reach(&mut self, epoch: u64) {
        let Some(peer) = self.peers.get(&epoch) else { return };
        if peer.over.is_some() || peer.dial.is_some() || !peer.streams.is_empty() {
            return;
        }
        let Some(contact) = peer.contact.clone() else { return };
        let begun = || {
            let ways = routes(self.mailbox.hub().local(), &contact)?;
            let hello = Hello::new(PURPOSE, contact.target, &self.own.to_le_bytes())?;
            let key = Key::derive(&self.settings.net.secret, &contact.cookie);
            let limit = self.settings.silence.max(LEAST_DIAL).min(self.settings.connect_timeout);
            Ok(Dial::start(ways, key, hello, Instant::now() + limit))
        };
        match begun() {
            Ok(dial) => {
                let token = self.token(epoch);
                if let Some(peer) = self.peers.get_mut(&epoch) {
                    peer.dial = Some(Dialling { token, dial });
                }
                self.advance(epoch, Instant::now());
            }
            Err(why) => self.unreached(epoch, Status::Unreachable, why),
        }
    }

    /// Advances a connection in progress.
    fn advance(&mut self, epoch: u64, now: Instant) {
        // The kernel of a process that computes accepts connections for it.
        let (silence, all) = (self.settings.silence, self.patience());
        let patience = |dial: &Dial| if dial.is_unanswered() { silence } else { all };
        let Some(peer) = self.peers.get_mut(&epoch) else { return };
        let Some(Dialling { token, dial }) = &mut peer.dial else { return };
        // The dial may close its socket for the next one. That ends the watching only if no forked child holds a copy.
        dial.fd().iter().for_each(|fd| self.poller.forget(*fd));
        let progress = match dial.advance(now) {
            Progress::Waiting => {
                match self.poller.watch(dial.fd().unwrap_or(-1), dial.wants(), *token) {
                    Ok(()) => return,
                    Err(error) => Progress::Failed(format!("waiting for a socket: {error}")),
                }
            }
            over => over,
        };
        let Some(Dialling { token, dial, .. }) = peer.dial.take() else { return };
        let _ = self.tokens.remove(&token);
        match progress {
            Progress::Done(stream) => {
                self.adopt(epoch, stream);
            }
            Progress::Failed(why) => {
                if dial.is_refused() {
                    self.unreached(epoch, Status::PeerFailed, why);
                } else if dial.is_wrong_secret() {
                    self.unreached(epoch, Status::Permission, why);
                } else if dial.is_starved() {
                    self.unreached(epoch, Status::NoMemory, why);
                } else if now.saturating_duration_since(peer.since) >= patience(&dial) {
                    self.unreached(epoch, Status::Unreachable, why);
                } else {
                    // The peer may be computing, and may therefore have left the dial unanswered.
                    peer.again = Some(now + PAUSE);
                }
            }
            Progress::Waiting => {}
        }
    }

    /// Handles a peer that has connected to this interface.
    fn welcome(&mut self, incoming: Incoming) {
        let Ok(epoch) = <[u8; 8]>::try_from(incoming.hello.payload()).map(u64::from_le_bytes)
        else {
            return;
        };
        let unheard = || self.peers.values().filter(|peer| peer.channels == 0).count();
        if incoming.hello.purpose != PURPOSE || epoch == self.own {
            return; // the dialler is a member of the job with another purpose: close the socket
        }
        if self.peers.contains_key(&epoch) || unheard() < UNHEARD {
            let _ = self.peers.entry(epoch).or_insert_with(Peer::new);
            self.adopt(epoch, incoming.stream);
        }
    }

    fn adopt(&mut self, epoch: u64, stream: TcpStream) {
        tune(&stream, self.settings.silence);
        let token = self.token(epoch);
        match self.poller.watch(stream.as_raw_fd(), Interest::READ, token) {
            Ok(()) => {
                if let Some(peer) = self.peers.get_mut(&epoch) {
                    peer.streams.push((token, stream));
                    peer.again = None;
                }
            }
            Err(error) => {
                let _ = self.tokens.remove(&token);
                self.unreached(epoch, Status::Io, format!("waiting for a socket: {error}"));
            }
        }
    }

    /// Reads a peer's announcement of an orderly close, or the end of its connection.
    fn read(&mut self, epoch: u64, token: u64) {
        let Some(peer) = self.peers.get_mut(&epoch) else { return };
        let Some(at) = peer.streams.iter().position(|stream| stream.0 == token) else { return };
        let (mut said, mut room) = (None, [0; 16]);
        let why = loop {
            match peer.streams[at].1.read(&mut room) {
                Ok(0) => break None,
                Ok(len) => said = Some(room[len - 1]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && said.is_none() => return,
                // A peer sends nothing else.
                Err(error) if error.kind() == ErrorKind::WouldBlock => break None,
                Err(error) => break Some(error),
            }
        };
        let (_, stream) = peer.streams.swap_remove(at);
        let _ = self.tokens.remove(&token);
        self.poller.forget(stream.as_raw_fd());
        drop(stream);
        peer.since = Instant::now();
        match (said, why) {
            (Some(UNUSED), _) if peer.channels == 0 && peer.streams.is_empty() => {
                self.drop_idle(epoch)
            }
            // The peer does not know of the channel of this side yet.
            (Some(UNUSED), _) => self.reach(epoch),
            (Some(CLOSING), _) => {
                self.end(epoch, Status::Closed, "the peer has closed its interface".into());
            }
            (_, Some(error)) => {
                let text = format!("the connection to the process of this peer broke: {error}");
                self.end(epoch, Status::PeerFailed, text);
            }
            (_, None) => {
                self.end(epoch, Status::PeerFailed, NO_GOODBYE.into());
            }
        }
    }

    fn unreached(&mut self, epoch: u64, status: Status, why: String) {
        // The peer may have connected to this side meanwhile.
        if self.peers.get(&epoch).is_some_and(|peer| peer.streams.is_empty()) {
            let text = format!(
                "the process of this peer cannot be watched: {why} (TIELINE_TCP_INTERFACES; TIELINE_OFI_WATCH=off does without)"
            );
            self.end(epoch, status, text);
        }
    }

    fn end(&mut self, epoch: u64, status: Status, words: String) {
        let Some(peer) = self.peers.get_mut(&epoch) else { return };
        if peer.channels == 0 {
            return self.drop_idle(epoch);
        }
        if peer.over.is_none() {
            peer.over = Some((status, words.clone()));
            self.ended.push(Ended { epoch, status, words });
        }
    }

    fn drop_idle(&mut self, epoch: u64) {
        self.idle.retain(|idle| *idle != epoch);
        self.forget(epoch);
    }

    fn forget(&mut self, epoch: u64) {
        let Some(mut peer) = self.peers.remove(&epoch) else { return };
        for (token, stream) in &mut peer.streams {
            let _ = (stream.write(&[UNUSED]), self.tokens.remove(token));
            self.poller.forget(stream.as_raw_fd());
        }
        if let Some(dialling) = peer.dial {
            let _ = self.tokens.remove(&dialling.token);
            dialling.dial.fd().iter().for_each(|fd| self.poller.forget(*fd));
        }
    }
}

impl Drop for Watch {
    /// Announces an orderly close to the peers; a killed process announces nothing.
    fn drop(&mut self) {
        for (_, stream) in self.peers.values_mut().flat_map(|peer| &mut peer.streams) {
            let _ = stream.write(&[CLOSING]);
        }
    }
}
