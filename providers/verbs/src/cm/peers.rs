//! Selects the connection to each peer. This module is pure: it makes and uses connections through [`Net`], receives their
//! [`Event`]s, and receives the time as a parameter.
//!
//! A peer is an address. The first datagram to a peer makes a connection, or uses the connection that the peer has made. Two peers
//! that dial each other simultaneously get one connection in each direction, and both connections stay. Each side sends over its
//! first connection for as long as that connection lives, so datagrams stay in order. A connection is closed after both sides have
//! announced the end of their data. Only then is another connection used in its place.

use super::MAX_DATAGRAM;
use super::frame::Kind;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;
use tieline_plugin_api::{Status, address_hash};

/// The limit on queued bytes per peer. A datagram always fits into an empty queue.
const QUEUE: usize = 256 << 10;
const _: () = assert!(MAX_DATAGRAM <= QUEUE);
/// The limit on queued datagrams per peer, and on notices for the core before progress stops.
pub(super) const WAITING: usize = 1024;

/// The transport below the peers.
pub(super) trait Net {
    /// Starts a connection to a peer. The dial ends in [`Event::Up`] or [`Event::DialFailed`] with the returned number.
    fn dial(&mut self, peer: &[u8]) -> u64;
    /// Checks whether the next datagram could be posted immediately.
    fn has_room(&self, link: u64) -> bool;
    /// Sends a datagram. The link queues the datagram if it cannot be posted immediately.
    fn send(&mut self, link: u64, datagram: &[u8]);
    /// Sends a note after everything sent earlier.
    fn note(&mut self, link: u64, note: Kind);
    /// Closes the link immediately.
    fn close(&mut self, link: u64);
    /// Closes the link when the other side has received everything; the closing ends in [`Event::Finished`].
    fn finish(&mut self, link: u64);
}

/// An event of a connection.
#[derive(Debug)]
pub(super) enum Event {
    /// A connection to a peer is established, dialled by this side or by the peer.
    Up { link: u64, peer: Vec<u8>, dial: Option<u64> },
    /// No route leads to the peer.
    DialFailed { dial: u64, status: Status, words: String },
    /// A datagram arrived.
    Datagram { link: u64, bytes: Vec<u8> },
    /// A note ([`Kind`]) arrived.
    Note { link: u64, note: Kind },
    /// The link can take more data.
    Room { link: u64 },
    /// A connection broke, or the other side has closed the connection. All data from the peer was reported before.
    Lost { link: u64, status: Status, words: String },
    /// A finishing connection is closed.
    Finished { link: u64 },
}

/// A notice for the core.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// A datagram, with the hash of the sender's address, which is known from the connection.
    Datagram(u64, Vec<u8>),
    Left {
        hash: u64,
        status: Status,
        words: String,
    },
}

/// The state of the closing handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    /// Not closing: the connection is in use or idle.
    No,
    /// This side has asked to close. The answer confirms that the peer has received everything from this side.
    Requested,
    /// This side has answered that nothing follows. The peer closes when it has received the answer.
    Answered,
    /// Both sides have asked, and the last frames of this side are in flight. The connection closes when they are acknowledged.
    Last,
}

/// A connection to a peer.
#[derive(Debug)]
struct Link {
    peer: Rc<[u8]>,
    incoming: bool,
    closing: Closing,
    used: Duration,
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

/// All peers of this connector.
pub(super) struct Peers {
    pub(super) notices: VecDeque<Notice>,
    own: Vec<u8>,
    most: usize,
    idle: Duration,
    now: Duration,
    peers: HashMap<Rc<[u8]>, Peer>,
    links: HashMap<u64, Link>,
    dials: HashMap<u64, Rc<[u8]>>,
}

impl Peers {
    /// Makes the peers of the connector at address `own`. Connections beyond the number `most`, and connections unused for the time
    /// `idle`, are closed.
    pub(super) fn new(own: Vec<u8>, most: usize, idle: Duration) -> Peers {
        Peers {
            notices: VecDeque::new(),
            own,
            most,
            idle,
            now: Duration::ZERO,
            peers: HashMap::new(),
            links: HashMap::new(),
            dials: HashMap::new(),
        }
    }

    /// Queues a datagram for a peer. The address must be valid.
    pub(super) fn send(
        &mut self,
        net: &mut impl Net,
        address: &[u8],
        datagram: &[u8],
    ) -> Result<(), Status> {
        debug_assert!(datagram.len() <= MAX_DATAGRAM);
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
    pub(super) fn handle(&mut self, net: &mut impl Net, event: Event) {
        match event {
            Event::Up { link, peer, dial } => {
                let key = self.key(&peer);
                match dial {
                    Some(dial) => self.dial_ended(dial),
                    None => self.welcome(net, &key),
                }
                self.adopt(net, link, key, dial.is_none());
            }
            Event::DialFailed { dial, status, words } => {
                let Some(key) = self.dials.get(&dial).cloned() else { return };
                self.dial_ended(dial);
                self.give_up(net, &key, status, &words);
            }
            Event::Datagram { link, bytes } => match self.links.get_mut(&link) {
                Some(at) if matches!(at.closing, Closing::No | Closing::Requested) => {
                    at.used = self.now;
                    self.notices.push_back(Notice::Datagram(address_hash(&at.peer), bytes));
                }
                _ => self.broke_protocol(net, link, "a datagram"),
            },
            Event::Note { link, note } => self.take_note(net, link, note),
            Event::Room { link } => self.flush(net, link),
            Event::Lost { link, status, words } => match self.links.get(&link).map(|l| l.closing) {
                // The peer closes when it has received the answer of this side, or when its own last frame has arrived.
                Some(Closing::Answered | Closing::Last) => self.remove(net, link),
                Some(Closing::No | Closing::Requested) => self.lost(net, link, status, &words),
                None => {}
            },
            Event::Finished { link } => self.remove(net, link),
        }
    }

    /// Advances the time to `now` and asks to close the connections that have been idle.
    pub(super) fn close_idle(&mut self, net: &mut impl Net, now: Duration) {
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
    pub(super) fn has_links(&self) -> bool {
        !self.links.is_empty()
    }

    #[cfg(test)]
    fn peers(&self) -> usize {
        self.peers.len()
    }

    /// Returns all open connections, for a goodbye.
    pub(super) fn open_links(&self) -> Vec<u64> {
        self.links.iter().filter(|(_, l)| l.closing == Closing::No).map(|(at, _)| *at).collect()
    }

    fn key(&self, address: &[u8]) -> Rc<[u8]> {
        match self.peers.get_key_value(address) {
            Some((key, _)) => Rc::clone(key),
            None => address.into(),
        }
    }

    /// Replaces an earlier incoming connection of the same peer by a new one: the earlier connection has broken at the peer.
    fn welcome(&mut self, net: &mut impl Net, key: &Rc<[u8]>) {
        let links = self.peers.get(key).map(|peer| peer.links.clone()).unwrap_or_default();
        for link in links {
            if self.links.get(&link).is_some_and(|l| l.incoming && l.closing == Closing::No) {
                self.lost(net, link, Status::Io, "the peer has connected anew");
            }
        }
    }

    /// Adds an established connection.
    fn adopt(&mut self, net: &mut impl Net, link: u64, key: Rc<[u8]>, incoming: bool) {
        let entry = Link { peer: Rc::clone(&key), incoming, closing: Closing::No, used: self.now };
        let _ = self.links.insert(link, entry);
        self.peers.entry(Rc::clone(&key)).or_default().links.push(link);
        self.serve(net, &key);
        self.close_unused(net, link);
    }

    /// Finds a connection for a peer's queue: an existing one, or a new one.
    fn serve(&mut self, net: &mut impl Net, key: &Rc<[u8]>) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        if peer.sending.is_none() {
            if is_closing(peer, &self.links) {
                return; // new datagrams must not overtake those on the closing connection
            }
            let open = |link: &&u64| self.links.get(link).is_some_and(|l| l.closing == Closing::No);
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
    fn flush(&mut self, net: &mut impl Net, link: u64) {
        let Some(at) = self.links.get_mut(&link) else { return };
        let Some(peer) = self.peers.get_mut(&at.peer) else { return };
        if peer.sending != Some(link) {
            return;
        }
        while net.has_room(link) {
            let Some(datagram) = peer.queue.pop_front() else { break };
            peer.queued -= datagram.len();
            at.used = self.now;
            net.send(link, &datagram);
        }
    }

    fn take_note(&mut self, net: &mut impl Net, link: u64, note: Kind) {
        let Some(at) = self.links.get_mut(&link) else { return };
        match (note, at.closing) {
            (Kind::MayClose, Closing::No) => {
                at.closing = Closing::Answered;
                net.note(link, Kind::Bye);
                self.stop_sending(net, link);
            }
            (Kind::MayClose, Closing::Requested) => {
                at.closing = Closing::Last;
                net.finish(link);
            }
            (Kind::Bye, Closing::Requested) => {
                net.close(link);
                self.remove(net, link);
            }
            (Kind::Gone, _) => {
                net.close(link);
                let key = Rc::clone(&at.peer);
                // The peer sends the same note on its other connections, after their remaining data.
                let only = self.peers.get(&key).is_some_and(|peer| peer.links.len() == 1);
                if only {
                    self.drop_queue(&key);
                    self.left(&key, Status::Closed, "the peer has closed its connector".into());
                }
                self.remove(net, link);
            }
            _ => self.broke_protocol(net, link, "a note"),
        }
    }

    fn broke_protocol(&mut self, net: &mut impl Net, link: u64, what: &str) {
        let Some(at) = self.links.get(&link) else { return };
        let when = if at.closing == Closing::No { "" } else { " while the connection closes" };
        let why = format!("the peer broke the protocol: {what}{when}");
        net.close(link);
        self.lost(net, link, Status::BadData, &why);
    }

    /// Stops sending on a connection. The queue gets another connection when this one is closed.
    fn stop_sending(&mut self, net: &mut impl Net, link: u64) {
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
    fn lost(&mut self, net: &mut impl Net, link: u64, status: Status, why: &str) {
        let Some(at) = self.links.get(&link) else { return };
        let key = Rc::clone(&at.peer);
        net.close(link);
        let peer = self.peers.get(&key);
        if peer.is_some_and(|peer| peer.sending == Some(link) || peer.links.len() == 1) {
            self.drop_queue(&key);
            self.left(&key, status, format!("the connection to the peer broke: {why}"));
        }
        self.remove(net, link);
    }

    /// Removes a closed connection.
    fn remove(&mut self, net: &mut impl Net, link: u64) {
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
    fn give_up(&mut self, net: &mut impl Net, key: &Rc<[u8]>, status: Status, why: &str) {
        let Some(peer) = self.peers.get(key) else { return };
        if peer.sending.is_none() && peer.links.is_empty() {
            self.drop_queue(key);
            self.left(key, status, format!("the peer cannot be reached: {why}"));
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

    fn is_unused(&self, net: &impl Net, at: u64, link: &Link) -> bool {
        let peer = self.peers.get(&link.peer);
        let busy = peer.is_some_and(|p| !p.queue.is_empty() || is_closing(p, &self.links));
        link.closing == Closing::No && net.has_room(at) && !busy
    }

    /// Asks to close the least recently used connection if the limit is exceeded.
    fn close_unused(&mut self, net: &mut impl Net, newest: u64) {
        if self.links.values().filter(|link| link.closing == Closing::No).count() <= self.most {
            return;
        }
        let unused = self
            .links
            .iter()
            .filter(|(at, link)| **at != newest && self.is_unused(net, **at, link))
            .min_by_key(|(at, link)| (link.used, **at))
            .map(|(at, _)| *at);
        if let Some(link) = unused {
            self.ask_to_close(net, link);
        }
    }

    fn ask_to_close(&mut self, net: &mut impl Net, link: u64) {
        let Some(at) = self.links.get_mut(&link) else { return };
        at.closing = Closing::Requested;
        net.note(link, Kind::MayClose);
        self.stop_sending(net, link);
    }
}

/// Checks whether one of a peer's connections is closing. Until that connection is closed, the peer may not have read all of its
/// data.
fn is_closing(peer: &Peer, links: &HashMap<u64, Link>) -> bool {
    peer.links.iter().any(|at| links.get(at).is_some_and(|link| link.closing != Closing::No))
}

#[cfg(test)]
#[path = "peers_tests.rs"]
mod tests;
