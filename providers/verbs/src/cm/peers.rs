//! Who is reached over which connection. Pure: connections are made and used through [`Net`], what happens to them
//! comes in as [`Event`]s, and time is told.
//!
//! A peer is an address. The first datagram to it makes a connection, or uses the one that the peer has made. Two that
//! dial each other at once end with a connection each way: both stay, and each side sends over the one that was there
//! first for it, for as long as it lives, so that nothing overtakes. A connection is closed when both have said that
//! nothing follows, and only then is another one used in its place.

use super::MAX_DATAGRAM;
use super::frame::Kind;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;
use tieline_plugin_api::{Status, address_hash};

/// Bytes that may wait for one peer; a datagram always fits into an empty queue.
const QUEUE: usize = 256 << 10;
const _: () = assert!(MAX_DATAGRAM <= QUEUE);
/// Datagrams that may wait for one peer, and for the core before no more are taken.
pub(super) const WAITING: usize = 1024;

/// What moves the bytes.
pub(super) trait Net {
    /// Begins a connection to a peer; ends in [`Event::Up`] or [`Event::DialFailed`] with the number returned.
    fn dial(&mut self, peer: &[u8]) -> u64;
    /// Whether the next datagram could leave at once.
    fn has_room(&self, link: u64) -> bool;
    /// Sends a datagram; what cannot leave at once waits in the link.
    fn send(&mut self, link: u64, datagram: &[u8]);
    /// Sends a note behind what was sent before.
    fn note(&mut self, link: u64, note: Kind);
    /// Closes at once.
    fn close(&mut self, link: u64);
    /// Closes when the other side has everything; ends in [`Event::Finished`].
    fn finish(&mut self, link: u64);
}

/// What happened.
#[derive(Debug)]
pub(super) enum Event {
    /// A connection to a peer stands: one that was dialled, or one that the peer has made.
    Up { link: u64, peer: Vec<u8>, dial: Option<u64> },
    /// No way leads to the peer.
    DialFailed { dial: u64, status: Status, words: String },
    /// A datagram came.
    Datagram { link: u64, bytes: Vec<u8> },
    /// A note came.
    Note { link: u64, note: Kind },
    /// There is room again.
    Room { link: u64 },
    /// A connection broke, or the other side has closed it. Everything that came over it came before this.
    Lost { link: u64, status: Status, words: String },
    /// A connection that was to be finished is closed.
    Finished { link: u64 },
}

/// What the core is to hear of.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// From whom, as their connection says, and what.
    Datagram(u64, Vec<u8>),
    Left {
        hash: u64,
        status: Status,
        words: String,
    },
}

/// How far the two sides have agreed to close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    /// In use, or free to be.
    No,
    /// We have asked to close; the answer says that the peer has taken all of ours.
    Requested,
    /// We have said that nothing follows; the peer closes when it has taken that.
    Answered,
    /// Both have asked, and ours is on its way: closed when it is there.
    Last,
}

/// A connection.
#[derive(Debug)]
struct Link {
    peer: Rc<[u8]>,
    incoming: bool,
    closing: Closing,
    used: Duration,
}

/// One address.
#[derive(Debug, Default)]
struct Peer {
    queue: VecDeque<Vec<u8>>,
    queued: usize,
    links: Vec<u64>,
    /// The connection that datagrams to this peer take.
    sending: Option<u64>,
    dial: Option<u64>,
}

/// Everybody this connector talks to.
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
    /// The peers of whoever is reached at `own`. More than `most` connections, and those that were not used for `idle`,
    /// are closed again.
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

    /// Takes a datagram for a peer, whose address makes sense.
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

    /// Takes note of what happened.
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
                // The peer closes when it has our answer, or when its last frame is here.
                Some(Closing::Answered | Closing::Last) => self.remove(net, link),
                Some(Closing::No | Closing::Requested) => self.lost(net, link, status, &words),
                None => {}
            },
            Event::Finished { link } => self.remove(net, link),
        }
    }

    /// Time has come to `now`: connections that nobody uses are asked to close.
    pub(super) fn close_idle(&mut self, net: &mut impl Net, now: Duration) {
        self.now = self.now.max(now);
        let idle: Vec<u64> = self
            .links
            .iter()
            .filter(|(at, link)| {
                // Who was dialled waits longer: both asking at once is right, and needless.
                let limit = if link.incoming { self.idle * 3 / 2 } else { self.idle };
                self.now - link.used >= limit && self.is_unused(net, **at, link)
            })
            .map(|(at, _)| *at)
            .collect();
        for link in idle {
            self.ask_to_close(net, link);
        }
    }

    /// Whether time matters: there is a connection.
    pub(super) fn has_links(&self) -> bool {
        !self.links.is_empty()
    }

    #[cfg(test)]
    fn peers(&self) -> usize {
        self.peers.len()
    }

    /// Every connection, for a goodbye.
    pub(super) fn open_links(&self) -> Vec<u64> {
        self.links.iter().filter(|(_, l)| l.closing == Closing::No).map(|(at, _)| *at).collect()
    }

    fn key(&self, address: &[u8]) -> Rc<[u8]> {
        match self.peers.get_key_value(address) {
            Some((key, _)) => Rc::clone(key),
            None => address.into(),
        }
    }

    /// A peer that has a connection of its own making makes no second one: the first has broken over there.
    fn welcome(&mut self, net: &mut impl Net, key: &Rc<[u8]>) {
        let links = self.peers.get(key).map(|peer| peer.links.clone()).unwrap_or_default();
        for link in links {
            if self.links.get(&link).is_some_and(|l| l.incoming && l.closing == Closing::No) {
                self.lost(net, link, Status::Io, "the peer has connected anew");
            }
        }
    }

    /// A connection stands.
    fn adopt(&mut self, net: &mut impl Net, link: u64, key: Rc<[u8]>, incoming: bool) {
        let entry = Link { peer: Rc::clone(&key), incoming, closing: Closing::No, used: self.now };
        let _ = self.links.insert(link, entry);
        self.peers.entry(Rc::clone(&key)).or_default().links.push(link);
        self.serve(net, &key);
        self.close_unused(net, link);
    }

    /// Gives a peer's queue a connection: the one it has, or a new one.
    fn serve(&mut self, net: &mut impl Net, key: &Rc<[u8]>) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        if peer.sending.is_none() {
            if is_closing(peer, &self.links) {
                return; // what follows must not overtake what that one has carried
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

    /// Hands a connection what its peer's queue holds, as far as there is room.
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
                // Its other connections bring the same note, behind what they still carry.
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

    /// Our side of a connection is over; the queue finds another when it is gone.
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

    /// A connection broke. The core hears of it when it was in use, or the last.
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

    /// Forgets a connection that is closed.
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

    /// No way leads to a peer, unless it has come to us meanwhile.
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

    /// Asks for the end of the connection that has been unused the longest, when there are too many.
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

/// Whether one of a peer's connections is being closed: until it is gone, the peer may not have read all of it.
fn is_closing(peer: &Peer, links: &HashMap<u64, Link>) -> bool {
    peer.links.iter().any(|at| links.get(at).is_some_and(|link| link.closing != Closing::No))
}

#[cfg(test)]
#[path = "peers_tests.rs"]
mod tests;
