//! The peers of a worker: a number for each worker that has sent messages to it or has a connection with it.
//!
//! A number is kept while a connection from the peer exists. The last [`REMEMBERED`] peers without one are remembered; then the
//! peer is forgotten. Numbers are not reused.

use crate::Error;
use crate::address::WorkerAddress;
use crate::endpoint::EndpointState;
use crate::op::Id;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::rc::{Rc, Weak};

/// Number of peers without a connection that are still known, so that a peer that reconnects soon gets its old number.
const REMEMBERED: usize = 1024;

/// A peer of this worker.
#[derive(Default)]
pub(super) struct Peer {
    pub(super) address: Option<WorkerAddress>,
    /// An internal endpoint to the peer.
    pub(super) reply: Option<Rc<EndpointState>>,
    /// The endpoint for answers: `reply`, or one whose other owner may close it.
    pub(super) borrowed: Weak<EndpointState>,
    /// The number of invalid messages it has sent.
    pub(super) bad: u64,
    /// The number of interface numbers that mean this peer.
    ways: u32,
    /// The time of its last loss of all connections, counted in such events.
    left: u64,
    /// It has been in the idle list since then.
    rests: bool,
    /// Its leaving has been reported to the application.
    parted: bool,
    /// Its failure has been reported to the application.
    told: bool,
    /// A failure was observed or claimed.
    lost: Option<Error>,
    /// Its process has called `exit` with so many operations that had not completed.
    pub(super) exited: Option<u64>,
    /// An interface of its own has closed in good order: the rest follows.
    leaves: bool,
}

/// All known peers, by number.
#[derive(Default)]
pub(super) struct Peers {
    known: HashMap<u32, Peer>,
    numbers: HashMap<[u8; 16], u32>,
    /// The endpoints that the application holds, by destination worker, oldest first.
    endpoints: HashMap<[u8; 16], BTreeSet<Id>>,
    /// Endpoints that the application has dropped and that still exist, because operations or keys hold them.
    let_go: HashMap<[u8; 16], BTreeSet<Id>>,
    /// The failure of the peer that failed last, until a peer stands or leaves.
    last_failure: Option<Error>,
    /// Those without a way, the longest first; one that has come back stands here in vain.
    idle: VecDeque<(u32, u64)>,
    next: u32,
    events: u64,
}

impl Peers {
    /// The number of a worker, which may be new; and the result of [`Peers::add`].
    pub(super) fn number(&mut self, address: &WorkerAddress) -> (u32, Option<Rc<EndpointState>>) {
        match self.numbers.get(&address.entry.worker) {
            Some(number) => (*number, None),
            None => self.add(Some(address.clone())),
        }
    }

    /// The number of a known worker.
    pub(super) fn known_number(&self, worker: &[u8; 16]) -> Option<u32> {
        self.numbers.get(worker).copied()
    }

    /// Assigns a number to a peer with a malformed address (`None`), or to one that is not known yet. Returns also the endpoint of
    /// a peer that is forgotten as a result; the caller drops it when nothing here is borrowed.
    pub(super) fn add(
        &mut self,
        address: Option<WorkerAddress>,
    ) -> (u32, Option<Rc<EndpointState>>) {
        while self.next == u32::MAX || self.known.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        if let Some(address) = &address {
            let _ = self.numbers.insert(address.entry.worker, number);
        }
        let _ = self.known.insert(number, Peer { address, ..Peer::default() });
        (number, self.rests(number))
    }

    /// The application holds an endpoint to a worker. The worker's number is kept as long as it does.
    pub(super) fn named(&mut self, worker: [u8; 16], endpoint: Id) {
        let _ = self.endpoints.entry(worker).or_default().insert(endpoint);
        self.gone(&worker, endpoint);
    }

    /// The application has dropped the endpoint. Returns the endpoint of a peer that is forgotten as a result; the caller drops it
    /// when nothing here is borrowed.
    pub(super) fn not_named(
        &mut self,
        worker: &[u8; 16],
        endpoint: Id,
    ) -> Option<Rc<EndpointState>> {
        let all = self.endpoints.get_mut(worker)?;
        if !all.remove(&endpoint) {
            return None;
        }
        let held = !all.is_empty();
        let _ = self.let_go.entry(*worker).or_default().insert(endpoint);
        if held {
            return None;
        }
        let _ = self.endpoints.remove(worker);
        let number = self.known_number(worker)?;
        let rests = self.get(number).is_some_and(|peer| peer.ways > 0 || peer.rests);
        if rests { None } else { self.rests(number) }
    }

    /// An endpoint that the application had dropped no longer exists.
    pub(super) fn gone(&mut self, worker: &[u8; 16], endpoint: Id) {
        let Some(all) = self.let_go.get_mut(worker) else { return };
        let _ = all.remove(&endpoint);
        if all.is_empty() {
            let _ = self.let_go.remove(worker);
        }
    }

    /// The worker is closed: no more answers are sent. Numbers stay valid.
    pub(super) fn take_replies(&mut self) -> Vec<Rc<EndpointState>> {
        let all = self.known.values_mut();
        let replies = all.filter_map(|peer| {
            peer.borrowed = Weak::new();
            peer.reply.take()
        });
        replies.collect()
    }

    /// The application's endpoints to a peer, oldest first.
    pub(super) fn endpoints_to(&self, number: u32) -> impl Iterator<Item = Id> + '_ {
        self.ids_to_worker(&self.endpoints, number)
    }

    /// The endpoints that the application has dropped and that still exist.
    pub(super) fn let_go_to(&self, number: u32) -> impl Iterator<Item = Id> + '_ {
        self.ids_to_worker(&self.let_go, number)
    }

    fn ids_to_worker<'a>(
        &self,
        endpoints: &'a HashMap<[u8; 16], BTreeSet<Id>>,
        number: u32,
    ) -> impl Iterator<Item = Id> + use<'a> {
        let worker = self.get(number).and_then(|peer| peer.address.as_ref());
        let all = worker.and_then(|address| endpoints.get(&address.entry.worker));
        all.into_iter().flatten().copied()
    }

    /// The number of known peers.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    pub(super) fn get(&self, number: u32) -> Option<&Peer> {
        self.known.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Peer> {
        self.known.get_mut(&number)
    }

    /// An interface has a number for the peer, for a connection that may still be forming.
    pub(super) fn arrived(&mut self, number: u32) {
        if let Some(peer) = self.known.get_mut(&number) {
            (peer.ways, peer.rests) = (peer.ways + 1, false);
        }
    }

    /// A connection of the peer stands: the peer has arrived, possibly again.
    pub(super) fn stands(&mut self, number: u32) {
        if let Some(peer) = self.known.get_mut(&number) {
            (peer.parted, peer.told, peer.lost) = (false, false, None);
            (peer.leaves, peer.exited) = (false, None);
            self.last_failure = None;
        }
    }

    /// An interface that an endpoint of this worker led to has closed in good order: the peer's other connections will end as well.
    pub(super) fn leaves(&mut self, number: u32) {
        if let Some(peer) = self.known.get_mut(&number) {
            peer.leaves = true;
        }
    }

    /// Whether it is the worker of a peer's progress thread, according to that peer's address. The application is not notified of
    /// it.
    pub(super) fn is_service(&self, number: u32) -> bool {
        let Some(address) = self.get(number).and_then(|peer| peer.address.as_ref()) else {
            return false;
        };
        let worker = address.entry.worker;
        let serves = |other: &WorkerAddress| {
            other.service.as_ref().map(|entry| entry.worker) == Some(worker)
        };
        self.known.values().filter_map(|peer| peer.address.as_ref()).any(serves)
    }

    /// Whether the leaving of the peer has been or will be reported to the application.
    pub(super) fn tells_of_leaving(&self, worker: &[u8; 16]) -> bool {
        let peer = self.known_number(worker).and_then(|number| self.get(number));
        peer.is_some_and(|peer| peer.parted || peer.leaves)
    }

    /// Whether to report the leaving of this peer: once, until a connection of it stands again.
    pub(super) fn part(&mut self, number: u32) -> bool {
        self.last_failure = None;
        self.known.get_mut(&number).is_some_and(|peer| !std::mem::replace(&mut peer.parted, true))
    }

    /// An interface reuses its number for another peer. Returns the endpoint of a peer that is forgotten as a result; the caller
    /// drops it when nothing here is borrowed.
    pub(super) fn left(&mut self, number: u32) -> Option<Rc<EndpointState>> {
        let peer = self.known.get_mut(&number)?;
        peer.ways = peer.ways.saturating_sub(1);
        if peer.ways > 0 {
            return None;
        }
        self.rests(number)
    }

    /// The number of interface numbers that mean the peer.
    pub(super) fn ways(&self, number: u32) -> u32 {
        self.known.get(&number).map_or(0, |peer| peer.ways)
    }

    /// Whether the peer has no connection and its failure has been reported: it is gone until a connection of it stands again.
    pub(super) fn is_gone(&self, number: u32) -> bool {
        self.known.get(&number).is_none_or(|peer| peer.ways == 0 && (peer.parted || peer.told))
    }

    /// Records a claim that this peer has failed; it may not be the first. Returns the number of its worker, if known.
    pub(super) fn lose(&mut self, number: u32, error: &Error) -> Option<[u8; 16]> {
        let peer = self.known.get_mut(&number)?;
        let _ = peer.lost.get_or_insert_with(|| error.clone());
        peer.address.as_ref().map(|address| address.entry.worker)
    }

    /// A worker that is claimed to have failed, and not reported yet: its number, and the first error.
    pub(super) fn lost(&self, worker: &[u8; 16]) -> Option<(u32, Error)> {
        let number = self.known_number(worker)?;
        Some((number, self.known.get(&number)?.lost.clone()?))
    }

    /// Whether the application receives the failure of this peer: once, until the peer comes back.
    pub(super) fn tell(&mut self, number: u32, error: &Error) -> bool {
        let Some(peer) = self.known.get_mut(&number) else { return false };
        peer.lost = None;
        let is_first = !std::mem::replace(&mut peer.told, true);
        if is_first && !self.is_service(number) {
            self.last_failure = Some(error.clone());
        }
        is_first
    }

    /// The failure of the peer that failed last, if no peer has a connection to this worker.
    pub(super) fn last_failure(&self) -> Option<&Error> {
        let is_here = |(number, peer): (&u32, &Peer)| peer.ways > 0 && !self.is_service(*number);
        let nobody = || !self.known.iter().any(is_here);
        self.last_failure.as_ref().filter(|_| nobody())
    }

    /// The peer has no connection. The peer that has been idle longest is forgotten if there are too many.
    fn rests(&mut self, number: u32) -> Option<Rc<EndpointState>> {
        self.events += 1;
        if let Some(peer) = self.known.get_mut(&number) {
            (peer.left, peer.rests) = (self.events, true);
        }
        self.idle.push_back((number, self.events));
        if self.idle.len() <= REMEMBERED {
            return None;
        }
        let (number, since) = self.idle.pop_front()?;
        let peer = self.known.get_mut(&number)?;
        if peer.ways > 0 || peer.left != since {
            return None;
        }
        let led_to = |a: &WorkerAddress| self.endpoints.contains_key(&a.entry.worker);
        if peer.address.as_ref().is_some_and(led_to) {
            peer.rests = false;
            return None;
        }
        let peer = self.known.remove(&number)?;
        if let Some(address) = &peer.address {
            let _ = self.numbers.remove(&address.entry.worker);
        }
        peer.reply
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stranger(peers: &mut Peers) -> u32 {
        peers.add(None).0
    }

    #[test]
    fn connected_peer_is_kept_and_idle_one_forgotten_after_1024_others() {
        let mut peers = Peers::default();
        let (stays, goes) = (stranger(&mut peers), stranger(&mut peers));
        peers.arrived(stays);
        peers.arrived(goes);
        assert!(peers.left(goes).is_none());
        for _ in 0..4 * REMEMBERED {
            let number = stranger(&mut peers);
            peers.arrived(number);
            let _ = peers.left(number);
        }
        assert!(peers.get(stays).is_some());
        assert!(peers.get(goes).is_none());
        assert!(peers.known.len() <= REMEMBERED + 2, "{}", peers.known.len());
    }

    #[test]
    fn peer_that_reconnects_in_time_keeps_its_number() {
        let mut peers = Peers::default();
        let number = stranger(&mut peers);
        peers.arrived(number);
        let _ = peers.left(number);
        peers.arrived(number);
        for _ in 0..2 * REMEMBERED {
            let _ = stranger(&mut peers);
        }
        assert!(peers.get(number).is_some());
    }

    #[test]
    fn a_number_is_not_given_to_somebody_else() {
        let mut peers = Peers::default();
        let first = stranger(&mut peers);
        for _ in 0..2 * REMEMBERED {
            assert_ne!(stranger(&mut peers), first);
        }
        assert!(peers.get(first).is_none());
    }

    #[test]
    fn peer_failure_is_reported_once_per_reconnection() {
        let mut peers = Peers::default();
        let number = stranger(&mut peers);
        peers.arrived(number);
        peers.arrived(number); // two connections
        assert!(peers.tell(number, &gone("gone")));
        assert!(
            !peers.tell(number, &gone("gone")),
            "the second connection's end is no second failure"
        );
        peers.arrived(number);
        assert!(
            !peers.tell(number, &gone("gone")),
            "a connection that is forming, and may never stand, says nothing"
        );
        peers.stands(number);
        assert!(peers.tell(number, &gone("gone")));
        assert!(!peers.tell(77, &gone("gone")), "nobody has that number");
    }

    fn gone(words: &str) -> Error {
        Error::new(crate::Status::PeerFailed, words, "", "")
    }

    /// A peer whose worker is known by this byte.
    fn known(peers: &mut Peers, worker: u8) -> u32 {
        let address = WorkerAddress {
            context: [1; 16],
            messages: crate::address::MESSAGES,
            location: crate::address::Location::here(),
            entry: crate::address::WorkerEntry {
                worker: [worker; 16],
                candidates: Vec::new(),
                schemes: Vec::new(),
            },
            service: None,
            polls_often: false,
        };
        peers.number(&address).0
    }

    #[test]
    fn first_error_of_lost_peer_is_kept_until_reported() {
        let mut peers = Peers::default();
        let number = known(&mut peers, 7);
        assert!(peers.lost(&[7; 16]).is_none(), "nobody has said so");
        assert_eq!(peers.lose(number, &gone("first")), Some([7; 16]));
        assert_eq!(peers.lose(number, &gone("second")), Some([7; 16]));
        let (who, error) = peers.lost(&[7; 16]).expect("it is lost");
        assert_eq!((who, error.what()), (number, "first"));
        assert!(peers.tell(number, &gone("gone")));
        assert!(peers.lost(&[7; 16]).is_none(), "it has been told");
    }

    #[test]
    fn a_peer_that_stands_again_is_not_lost_and_can_be_lost_and_leave_anew() {
        let mut peers = Peers::default();
        let number = known(&mut peers, 7);
        let _ = peers.lose(number, &gone("before"));
        assert!(peers.part(number));
        assert!(!peers.part(number), "it leaves once");
        peers.stands(number);
        assert!(peers.lost(&[7; 16]).is_none());
        assert!(peers.part(number));
        let _ = peers.lose(number, &gone("after"));
        assert_eq!(peers.lost(&[7; 16]).expect("it is lost").1.what(), "after");
    }

    #[test]
    fn last_failure_is_kept_until_a_peer_stands_or_leaves() {
        let mut peers = Peers::default();
        let (one, other) = (known(&mut peers, 7), known(&mut peers, 8));
        assert!(peers.tell(one, &gone("it died")));
        assert_eq!(peers.last_failure().map(Error::what), Some("it died"));
        peers.arrived(other);
        assert!(peers.last_failure().is_none(), "a peer is here");
        let _ = peers.left(other);
        assert!(peers.last_failure().is_some());
        assert!(peers.part(other) && peers.last_failure().is_none());
        assert!(peers.tell(other, &gone("it died")));
        peers.stands(one);
        assert!(peers.last_failure().is_none());
    }

    #[test]
    fn unknown_peer_number_neither_leaves_nor_fails() {
        let mut peers = Peers::default();
        let stranger = stranger(&mut peers);
        assert_eq!(peers.lose(stranger, &gone("here")), None, "its worker is not known");
        assert_eq!(peers.lose(77, &gone("here")), None);
        assert!(!peers.part(77));
        assert!(peers.left(77).is_none());
        assert_eq!((peers.ways(77), peers.known_number(&[7; 16])), (0, None));
    }

    #[test]
    fn a_peer_rests_when_the_last_way_to_it_is_gone_and_not_before() {
        let mut peers = Peers::default();
        let number = stranger(&mut peers);
        peers.arrived(number);
        peers.arrived(number);
        let _ = peers.left(number);
        assert_eq!(peers.ways(number), 1);
        for _ in 0..2 * REMEMBERED {
            let _ = stranger(&mut peers);
        }
        assert!(peers.get(number).is_some(), "one leads to it still");
        let _ = peers.left(number);
        let _ = peers.left(number); // reported more often than there were connections
        assert_eq!(peers.ways(number), 0);
    }

    #[test]
    fn remembered_worker_keeps_its_number_and_forgotten_one_gets_another() {
        let mut peers = Peers::default();
        let first = known(&mut peers, 7);
        assert_eq!((known(&mut peers, 7), peers.known_number(&[7; 16])), (first, Some(first)));
        for _ in 0..2 * REMEMBERED {
            let _ = stranger(&mut peers);
        }
        assert_eq!(peers.known_number(&[7; 16]), None);
        assert_ne!(known(&mut peers, 7), first);
    }

    #[test]
    fn repeated_endpoints_to_one_peer_evict_no_other_peer() {
        let (mut peers, mut ids) = (Peers::default(), crate::op::slab::Slab::<()>::default());
        let (rests, number) = (stranger(&mut peers), known(&mut peers, 7));
        for _ in 0..2 * REMEMBERED {
            let id = ids.insert(()).unwrap();
            peers.named([7; 16], id);
            assert_eq!(peers.endpoints_to(number).collect::<Vec<_>>(), [id]);
            assert!(peers.not_named(&[7; 16], id).is_none());
            assert_eq!(peers.let_go_to(number).collect::<Vec<_>>(), [id]);
            peers.gone(&[7; 16], id);
        }
        assert!(peers.get(rests).is_some() && peers.get(number).is_some());
        assert!(peers.endpoints.is_empty() && peers.let_go.is_empty());
    }

    #[test]
    fn peer_is_forgotten_1024_others_after_its_endpoint_was_dropped() {
        let (mut peers, mut ids) = (Peers::default(), crate::op::slab::Slab::<()>::default());
        let (number, id) = (known(&mut peers, 7), ids.insert(()).unwrap());
        peers.named([7; 16], id);
        let crowd = |peers: &mut Peers| {
            for _ in 0..REMEMBERED - 1 {
                let _ = stranger(peers);
            }
        };
        crowd(&mut peers);
        crowd(&mut peers);
        assert!(peers.get(number).is_some());
        let _ = peers.not_named(&[7; 16], id);
        crowd(&mut peers);
        assert!(peers.get(number).is_some());
        crowd(&mut peers);
        assert!(peers.get(number).is_none());
    }

    #[test]
    fn a_number_is_never_one_that_is_in_use_nor_the_highest() {
        let mut peers = Peers::default();
        let first = stranger(&mut peers);
        peers.next = u32::MAX;
        assert_eq!((stranger(&mut peers), first), (1, 0));
    }

    #[test]
    fn oldest_idle_peer_is_evicted_beyond_the_maximum() {
        let mut peers = Peers::default();
        let all: Vec<u32> = (0..REMEMBERED).map(|_| stranger(&mut peers)).collect();
        assert!(peers.get(all[0]).is_some() && peers.len() == REMEMBERED);
        let more = stranger(&mut peers);
        assert!(peers.get(all[0]).is_none() && peers.get(all[1]).is_some());
        assert_eq!((peers.len(), more), (REMEMBERED, REMEMBERED as u32));
    }

    #[test]
    fn that_a_peer_has_left_or_is_gone_is_told_once_until_it_stands_again() {
        let mut peers = Peers::default();
        let number = stranger(&mut peers);
        peers.arrived(number);
        peers.arrived(number);
        assert_eq!(peers.ways(number), 2);
        let twice = |peers: &mut Peers| {
            [
                peers.part(number),
                peers.part(number),
                peers.tell(number, &gone("gone")),
                peers.tell(number, &gone("gone")),
            ]
        };
        for _ in 0..2 {
            assert_eq!(twice(&mut peers), [true, false, true, false]);
            peers.stands(number);
        }
        assert!(peers.part(number) && !peers.is_gone(number), "two connections lead here");
        assert!(peers.left(number).is_none());
        assert_eq!((peers.ways(number), peers.ways(7)), (1, 0));
        assert!(peers.left(number).is_none() && peers.is_gone(number) && peers.is_gone(7));
        peers.arrived(number);
        peers.stands(number);
        assert!(!peers.is_gone(number), "it is back");
        assert!(!peers.part(7) && !peers.tell(7, &gone("gone")), "nobody has that number");
        assert_eq!(peers.lose(number, &Error::from_status(crate::Status::Io)), None);
    }
}
