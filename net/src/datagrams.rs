//! Datagrams over connections: selects the connection to each peer. This module is pure: it makes and uses connections through
//! [`Links`], receives their [`LinkEvent`]s, and receives the time as a parameter.
//!
//! A peer is an address. The first datagram to a peer makes a connection, or uses the connection that the peer has made. Two peers
//! that dial each other simultaneously get one connection in each direction, and both connections stay. Each side sends over its
//! first connection until that connection closes, so datagrams stay in order. An unused connection is closed after both sides have
//! announced the end of their data. Only then is another connection used in its place.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;
use tieline_plugin_api::abi::Event;
use tieline_plugin_api::{Events, Status, address_hash, event};

/// The limit on queued bytes per peer, and thus on the length of a datagram.
pub const QUEUE: usize = 256 << 10;
/// The limit on queued datagrams per peer, and on notices for the core before progress stops.
pub const WAITING: usize = 1024;

/// A note about the connection itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// The request to close: the sender sends no more datagrams over this connection, and asks the other side to do the same.
    MayClose,
    /// The answer to `MayClose`: its sender sends nothing more either. The side that asked then closes.
    Bye,
    /// The final notice: the sender's connector is closed.
    Gone,
}

/// The connections below the peers.
pub trait Links {
    /// Starts a connection to a peer. Unless it is canceled, the dial ends in [`LinkEvent::Up`] or [`LinkEvent::DialFailed`] with
    /// the returned number.
    fn dial(&mut self, peer: &[u8]) -> u64;
    /// Abandons a dial. Links that cannot do so may let the dial end: a failure is ignored, a connection is adopted.
    fn cancel(&mut self, dial: u64) {
        let _ = dial;
    }
    /// Checks whether the link takes another datagram at present.
    fn has_room(&self, link: u64) -> bool;
    /// Checks whether the link has sent everything, so that it may close.
    fn is_quiet(&self, link: u64) -> bool {
        self.has_room(link)
    }
    /// Checks whether the link can send at all. Earlier data of the peer may still arrive over a link that cannot.
    fn is_usable(&self, link: u64) -> bool {
        let _ = link;
        true
    }
    /// Returns ` at ADDRESS` for error texts, or nothing.
    fn place(&self, link: u64) -> String {
        let _ = link;
        String::new()
    }
    /// Returns the start of the error text for a peer to which no route leads.
    fn unreachable(&self) -> &'static str;
    /// Returns the words that follow an unexpected frame in this phase, in an error text.
    fn when(&self, phase: Phase) -> String;
    /// Sends a datagram. The link queues the datagram if it cannot post it immediately.
    fn send(&mut self, link: u64, datagram: &[u8]);
    /// Sends a note after everything sent earlier.
    fn note(&mut self, link: u64, note: Note);
    /// Closes the link immediately.
    fn close(&mut self, link: u64);
    /// Closes the link after everything that was sent before. The closing ends in [`LinkEvent::Finished`] or [`LinkEvent::Lost`].
    fn finish(&mut self, link: u64);
}

/// An event of a connection, of which `link` is the number.
#[derive(Debug)]
#[allow(missing_docs)] // the fields are those of every event
pub enum LinkEvent {
    /// A connection to a peer is established, dialled by this side or by the peer.
    Up { link: u64, peer: Vec<u8>, dial: Option<u64> },
    /// The dial failed.
    DialFailed { dial: u64, status: Status, words: String },
    /// A datagram arrived.
    Datagram { link: u64, bytes: Vec<u8> },
    /// A note arrived.
    Note { link: u64, note: Note },
    /// The link can take more data.
    Room { link: u64 },
    /// A connection broke, or the other side has closed the connection. All data that arrived was reported before.
    Lost { link: u64, status: Status, words: String },
    /// A connection broke, and the peer may not have received everything.
    Broke { link: u64, status: Status, words: String },
    /// A finishing connection is closed.
    Finished { link: u64 },
}

/// A notice for the core.
#[derive(Debug, PartialEq, Eq)]
pub enum Notice {
    /// A datagram, with the hash of the sender's address.
    Datagram(u64, Vec<u8>),
    /// The peer with this address hash has left or cannot be reached, or its connection broke.
    Left {
        /// The hash of the peer's address.
        hash: u64,
        /// The status of the event.
        status: Status,
        /// The reason.
        words: String,
    },
}

/// The progress of the two sides in closing a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not closing: the connection is in use or idle.
    Open,
    /// This side has asked to close. The answer confirms that the peer has received everything from this side.
    Asked,
    /// This side has answered that nothing follows. The peer closes when it has received the answer.
    Done,
    /// Both sides have asked, and the last frames of this side are in flight. The connection closes after these frames.
    Last,
}

/// A connection to a peer.
#[derive(Debug)]
struct Link {
    peer: Rc<[u8]>,
    incoming: bool,
    phase: Phase,
    used: Duration,
    /// The number of the last use, in the order of the uses of all links.
    order: u64,
}

/// A peer, identified by its address.
#[derive(Debug, Default)]
struct Peer {
    queue: VecDeque<Vec<u8>>,
    queued: usize,
    links: Vec<u64>,
    /// The connection for datagrams to this peer.
    sending: Option<u64>,
    dial: Option<u64>,
}

/// All peers of a connector, and the datagrams to and from them.
#[derive(Debug)]
pub struct Datagrams {
    /// The notices for the core.
    pub notices: VecDeque<Notice>,
    own: Vec<u8>,
    most: usize,
    idle: Duration,
    now: Duration,
    order: u64,
    peers: HashMap<Rc<[u8]>, Peer>,
    links: HashMap<u64, Link>,
    dials: HashMap<u64, Rc<[u8]>>,
}

impl Datagrams {
    /// Makes the peers of the connector at address `own`. If a new connection exceeds the number `most`, an unused one is closed.
    /// Connections unused for the time `idle` are closed, those that the peer dialled after one and a half times `idle`.
    #[must_use]
    pub fn new(own: Vec<u8>, most: usize, idle: Duration) -> Datagrams {
        Datagrams {
            notices: VecDeque::new(),
            own,
            most,
            idle,
            now: Duration::ZERO,
            order: 0,
            peers: HashMap::new(),
            links: HashMap::new(),
            dials: HashMap::new(),
        }
    }

    /// Queues a datagram of at most [`QUEUE`] bytes for a peer, or for this connector itself. The address must be valid.
    ///
    /// # Errors
    /// [`Status::Again`]: the queue is full.
    pub fn send(
        &mut self,
        net: &mut impl Links,
        address: &[u8],
        datagram: &[u8],
    ) -> Result<(), Status> {
        debug_assert!(datagram.len() <= QUEUE);
        if address == self.own {
            if self.notices.len() >= WAITING {
                return Err(Status::Again);
            }
            self.notices.push_back(Notice::Datagram(address_hash(address), datagram.to_vec()));
            return Ok(());
        }
        let key = self.key(address);
        let peer = self.peers.entry(Rc::clone(&key)).or_default();
        if peer.queued + datagram.len() > QUEUE || peer.queue.len() >= WAITING {
            return Err(Status::Again);
        }
        peer.queued += datagram.len();
        peer.queue.push_back(datagram.to_vec());
        self.serve(net, &key);
        Ok(())
    }

    /// Handles an event.
    pub fn handle(&mut self, net: &mut impl Links, event: LinkEvent) {
        match event {
            LinkEvent::Up { link, peer, dial } => {
                let key = self.key(&peer);
                match dial {
                    Some(dial) => self.dial_ended(dial),
                    None => self.welcome(net, &key),
                }
                self.adopt(net, link, key, dial.is_none());
            }
            LinkEvent::DialFailed { dial, status, words } => {
                let Some(key) = self.dials.get(&dial).cloned() else { return };
                self.dial_ended(dial);
                self.give_up(net, &key, status, &words);
            }
            LinkEvent::Datagram { link, bytes } => match self.links.get_mut(&link) {
                Some(at) if matches!(at.phase, Phase::Open | Phase::Asked) => {
                    self.order += 1;
                    (at.used, at.order) = (self.now, self.order);
                    self.notices.push_back(Notice::Datagram(address_hash(&at.peer), bytes));
                }
                _ => self.broke_protocol(net, link, "a datagram"),
            },
            LinkEvent::Note { link, note } => self.take_note(net, link, note),
            LinkEvent::Room { link } => self.flush(net, link),
            LinkEvent::Lost { link, status, words } => match self.links.get(&link).map(|l| l.phase)
            {
                // The peer closes when it has received the answer of this side, or when its own last frame has arrived.
                Some(Phase::Done | Phase::Last) => self.remove(net, link),
                Some(Phase::Open | Phase::Asked) => self.lost(net, link, status, &words),
                None => {}
            },
            LinkEvent::Broke { link, status, words } => self.lost(net, link, status, &words),
            LinkEvent::Finished { link } => self.remove(net, link),
        }
    }

    /// Advances the time to `now` and asks to close the connections that have been idle for long enough.
    pub fn close_idle(&mut self, net: &mut impl Links, now: Duration) {
        self.now = self.now.max(now);
        let idle: Vec<u64> = self
            .links
            .iter()
            .filter(|(at, link)| {
                // The dialled side waits longer, because two simultaneous requests would be correct but needless.
                let limit = if link.incoming { self.idle * 3 / 2 } else { self.idle };
                self.now - link.used >= limit && self.is_unused(net, **at, link)
            })
            .map(|(at, _)| *at)
            .collect();
        for link in idle {
            self.ask_to_close(net, link);
        }
    }

    /// Checks whether there is a connection, so that timers must run.
    pub fn has_links(&self) -> bool {
        !self.links.is_empty()
    }

    /// Returns the number of peers that are known at present.
    #[must_use]
    pub fn peers(&self) -> usize {
        self.peers.len()
    }

    /// Returns the number of datagrams that wait for a connection or its room.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.peers.values().map(|peer| peer.queue.len()).sum()
    }

    /// Returns the open connections that this peer has made. A new connection of the peer replaces them.
    #[must_use]
    pub fn replaced_by(&self, address: &[u8]) -> Vec<u64> {
        let open = |link: &&u64| {
            self.links.get(link).is_some_and(|l| l.incoming && l.phase == Phase::Open)
        };
        self.peers
            .get(address)
            .map_or_else(Vec::new, |p| p.links.iter().filter(open).copied().collect())
    }

    /// Moves the notices into the caller's array until it is full. `shown` keeps the bytes to which the events point.
    pub fn show(&mut self, shown: &mut Vec<Vec<u8>>, events: &mut Events<'_>) {
        while events.room() > 0 {
            let Some(notice) = self.notices.pop_front() else { return };
            let mut event = Event::empty();
            let bytes = match notice {
                Notice::Datagram(from, bytes) => {
                    event.kind = event::DATAGRAM;
                    event.header = from;
                    bytes
                }
                Notice::Left { hash, status, words } => {
                    event.kind = event::PEER_LEFT;
                    event.header = hash;
                    event.status = status as i32;
                    words.into_bytes()
                }
            };
            event.data = bytes.as_ptr();
            event.len = bytes.len();
            shown.push(bytes); // moves the vector; its heap bytes stay in place
            let _ = events.push(event);
        }
    }

    /// Returns all open connections, for a goodbye.
    pub fn open_links(&self) -> Vec<u64> {
        self.links.iter().filter(|(_, l)| l.phase == Phase::Open).map(|(at, _)| *at).collect()
    }

    fn key(&self, address: &[u8]) -> Rc<[u8]> {
        match self.peers.get_key_value(address) {
            Some((key, _)) => Rc::clone(key),
            None => address.into(),
        }
    }

    /// Ends the earlier incoming connections of a peer that has connected anew: they have broken at the peer.
    fn welcome(&mut self, net: &mut impl Links, key: &Rc<[u8]>) {
        for link in self.replaced_by(key) {
            self.lost(net, link, Status::Io, "the peer has connected anew");
        }
    }

    /// Adds an established connection.
    fn adopt(&mut self, net: &mut impl Links, link: u64, key: Rc<[u8]>, incoming: bool) {
        let (peer, used, order) = (Rc::clone(&key), self.now, self.order);
        let entry = Link { peer, incoming, phase: Phase::Open, used, order };
        let _ = self.links.insert(link, entry);
        self.peers.entry(Rc::clone(&key)).or_default().links.push(link);
        self.serve(net, &key);
        self.close_unused(net, link);
    }

    /// Sends a peer's queue over an existing connection, or dials the peer. Removes a peer without a queue, connection and dial.
    fn serve(&mut self, net: &mut impl Links, key: &Rc<[u8]>) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        if peer.sending.is_none() {
            if is_closing(peer, &self.links) {
                return; // new datagrams must not overtake those on the closing connection
            }
            let open = |link: &&u64| {
                let is_open = self.links.get(link).is_some_and(|l| l.phase == Phase::Open);
                is_open && net.is_usable(**link)
            };
            peer.sending = peer.links.iter().find(open).copied();
        }
        match (peer.sending, peer.dial) {
            (Some(link), _) => self.flush(net, link),
            (None, None) if !peer.queue.is_empty() => {
                let dial = net.dial(key);
                peer.dial = Some(dial);
                let _ = self.dials.insert(dial, Rc::clone(key));
            }
            (None, None) if peer.links.is_empty() => drop(self.peers.remove(key)),
            _ => {}
        }
    }

    /// Moves a peer's queued datagrams to its connection until the connection is full.
    fn flush(&mut self, net: &mut impl Links, link: u64) {
        let Some(at) = self.links.get_mut(&link) else { return };
        let Some(peer) = self.peers.get_mut(&at.peer) else { return };
        if peer.sending != Some(link) {
            return;
        }
        while net.has_room(link) {
            let Some(datagram) = peer.queue.pop_front() else { break };
            peer.queued -= datagram.len();
            self.order += 1;
            (at.used, at.order) = (self.now, self.order);
            net.send(link, &datagram);
        }
    }

    fn take_note(&mut self, net: &mut impl Links, link: u64, note: Note) {
        let Some(at) = self.links.get_mut(&link) else { return };
        match (note, at.phase) {
            (Note::MayClose, Phase::Open) => {
                at.phase = Phase::Done;
                net.note(link, Note::Bye);
                self.stop_sending(net, link);
            }
            (Note::MayClose, Phase::Asked) => {
                at.phase = Phase::Last;
                net.finish(link);
            }
            (Note::Bye, Phase::Asked) => {
                net.close(link);
                self.remove(net, link);
            }
            (Note::Gone, _) => {
                let (key, place) = (Rc::clone(&at.peer), net.place(link));
                net.close(link);
                // The peer sends the same note on its other connections, after their remaining data.
                if let Some(peer) = self.peers.get(&key).filter(|peer| peer.links.len() == 1) {
                    if let Some(dial) = peer.dial {
                        net.cancel(dial);
                        self.dial_ended(dial);
                    }
                    self.drop_queue(&key);
                    let words = format!("the peer{place} has closed its connector");
                    self.left(&key, Status::Closed, words);
                }
                self.remove(net, link);
            }
            _ => self.broke_protocol(net, link, "a note"),
        }
    }

    fn broke_protocol(&mut self, net: &mut impl Links, link: u64, what: &str) {
        let Some(at) = self.links.get(&link) else { return };
        let why = format!("the peer broke the protocol: {what}{}", net.when(at.phase));
        self.lost(net, link, Status::BadData, &why);
    }

    /// Stops sending on a connection. The queue gets another connection when this one is closed.
    fn stop_sending(&mut self, net: &mut impl Links, link: u64) {
        let Some(at) = self.links.get(&link) else { return };
        let key = Rc::clone(&at.peer);
        if let Some(peer) = self.peers.get_mut(&key) {
            if peer.sending == Some(link) {
                peer.sending = None;
            }
        }
        self.serve(net, &key);
    }

    /// Handles a broken connection. The core is notified if the connection was in use or was the last one of its peer.
    fn lost(&mut self, net: &mut impl Links, link: u64, status: Status, why: &str) {
        let Some(at) = self.links.get(&link) else { return };
        let (key, place) = (Rc::clone(&at.peer), net.place(link));
        net.close(link);
        let peer = self.peers.get(&key);
        if peer.is_some_and(|peer| peer.sending == Some(link) || peer.links.len() == 1) {
            self.drop_queue(&key);
            self.left(&key, status, format!("the connection to the peer{place} broke: {why}"));
        }
        self.remove(net, link);
    }

    /// Removes a closed connection.
    fn remove(&mut self, net: &mut impl Links, link: u64) {
        let Some(at) = self.links.remove(&link) else { return };
        net.close(link);
        if let Some(peer) = self.peers.get_mut(&at.peer) {
            peer.links.retain(|other| *other != link);
            if peer.sending == Some(link) {
                peer.sending = None;
            }
        }
        self.serve(net, &at.peer);
    }

    fn dial_ended(&mut self, dial: u64) {
        let Some(key) = self.dials.remove(&dial) else { return };
        if let Some(peer) = self.peers.get_mut(&key) {
            peer.dial = None;
        }
    }

    /// Reports a peer as unreachable, unless the peer has connected meanwhile.
    fn give_up(&mut self, net: &mut impl Links, key: &Rc<[u8]>, status: Status, why: &str) {
        let Some(peer) = self.peers.get(key) else { return };
        if peer.sending.is_none() && peer.links.is_empty() {
            self.drop_queue(key);
            self.left(key, status, format!("{}: {why}", net.unreachable()));
        }
        self.serve(net, key);
    }

    fn drop_queue(&mut self, key: &Rc<[u8]>) {
        if let Some(peer) = self.peers.get_mut(key) {
            peer.queue.clear();
            peer.queued = 0;
        }
    }

    fn left(&mut self, key: &[u8], status: Status, words: String) {
        self.notices.push_back(Notice::Left { hash: address_hash(key), status, words });
    }

    fn is_unused(&self, net: &impl Links, at: u64, link: &Link) -> bool {
        let peer = self.peers.get(&link.peer);
        let busy = peer.is_some_and(|p| !p.queue.is_empty() || is_closing(p, &self.links));
        link.phase == Phase::Open && net.is_quiet(at) && !busy
    }

    /// Asks to close the connection whose last use is the oldest, among those not in use, if the limit is exceeded.
    fn close_unused(&mut self, net: &mut impl Links, newest: u64) {
        if self.links.values().filter(|link| link.phase == Phase::Open).count() <= self.most {
            return;
        }
        let unused = self
            .links
            .iter()
            .filter(|(at, link)| **at != newest && self.is_unused(net, **at, link))
            .min_by_key(|(at, link)| (link.order, **at))
            .map(|(at, _)| *at);
        if let Some(link) = unused {
            self.ask_to_close(net, link);
        }
    }

    fn ask_to_close(&mut self, net: &mut impl Links, link: u64) {
        let Some(at) = self.links.get_mut(&link) else { return };
        at.phase = Phase::Asked;
        net.note(link, Note::MayClose);
        self.stop_sending(net, link);
    }
}

/// Checks whether one of a peer's connections is closing. Until that connection is closed, the peer may not have read all of its
/// data.
fn is_closing(peer: &Peer, links: &HashMap<u64, Link>) -> bool {
    peer.links.iter().any(|at| links.get(at).is_some_and(|link| link.phase != Phase::Open))
}

#[cfg(test)]
#[path = "datagrams_tests.rs"]
mod tests;
