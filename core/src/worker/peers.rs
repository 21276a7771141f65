//! The numbers of a worker's peers. A peer is a worker that has connected to this one, or to which an endpoint leads.
//!
//! A number is kept while the peer has a connection or the application has an endpoint to the peer. Up to [`REMEMBERED`] other
//! peers are remembered; older ones are forgotten. A number is not reused before all others have been used.

use super::keyed_hash::Keyed;
use crate::Error;
use crate::address::WorkerAddress;
use crate::endpoint::{EndpointState, ServiceWorker};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::rc::{Rc, Weak};
use tieline_order::Id;

/// The maximum number of peers without a connection that are remembered, so that a peer that reconnects soon gets its old number.
const REMEMBERED: usize = 1024;

/// A peer of this worker.
#[derive(Default)]
pub(super) struct Peer {
    pub(super) address: Option<WorkerAddress>,
    /// An internal endpoint to the peer.
    pub(super) reply: Option<Rc<EndpointState>>,
    /// The endpoint for answers: `reply`, or an endpoint of another owner, which may close it.
    pub(super) borrowed: Weak<EndpointState>,
    /// The number of malformed messages that the peer has sent.
    pub(super) bad: u64,
    /// The number of interface numbers that belong to this peer.
    ways: u32,
    /// The time at which the peer last lost all its connections, as the number of such losses on this worker.
    left: u64,
    /// Whether the peer has been in the idle list since that time.
    rests: bool,
    /// Whether the report that the peer left was made.
    parted: bool,
    /// Whether the report that the peer failed was made.
    told: bool,
    /// A failure that was observed or claimed and is not reported yet.
    lost: Option<Error>,
    /// The number of operations that had not completed when the peer's process called `exit`.
    pub(super) exited: Option<u64>,
    /// Whether the peer has closed its end of an endpoint in good order, so that its other connections will close too.
    leaves: bool,
}

/// All known peers, by number.
#[derive(Default)]
pub(super) struct Peers {
    /// The numbers are consecutive and chosen by this worker, so no peer can choose ones that collide.
    known: HashMap<u32, Peer, Keyed>,
    numbers: HashMap<[u8; 16], u32>,
    /// The endpoints that the application holds, by destination worker, oldest first.
    endpoints: HashMap<[u8; 16], BTreeSet<Id>>,
    /// The endpoints that the application has dropped and that still exist, because operations or keys hold them.
    let_go: HashMap<[u8; 16], BTreeSet<Id>>,
    /// The service workers of peers, while endpoints use them.
    service_workers: HashMap<[u8; 16], Weak<ServiceWorker>>,
    /// The failure of the peer that failed last, until any peer connects or leaves.
    last_failure: Option<Error>,
    /// The peers without a connection, the longest idle first. Entries of peers that have reconnected meanwhile stay until they are
    /// first, and are then skipped.
    idle: VecDeque<(u32, u64)>,
    next: u32,
    events: u64,
}

impl Peers {
    /// Returns the number of a worker, and the second result of [`Peers::add`] if the worker is new.
    pub(super) fn number(&mut self, address: &WorkerAddress) -> (u32, Option<Rc<EndpointState>>) {
        match self.numbers.get(&address.entry.worker) {
            Some(number) => (self.renamed(*number, &address.name), None),
            None => self.add(Some(address.clone())),
        }
    }

    /// Records the name in a newer address of a known peer that had none.
    fn renamed(&mut self, number: u32, name: &[u8]) -> u32 {
        let known = self.known.get_mut(&number).and_then(|peer| peer.address.as_mut());
        if let Some(known) = known.filter(|known| known.name.is_empty() && !name.is_empty()) {
            known.name = name.into();
        }
        number
    }

    /// Returns the peers that have a connection to this worker.
    pub(super) fn with_connections(&self) -> impl Iterator<Item = u32> + '_ {
        self.known.iter().filter(|(_, peer)| peer.ways > 0).map(|(number, _)| *number)
    }

    /// Returns the number of a known worker.
    pub(super) fn known_number(&self, worker: &[u8; 16]) -> Option<u32> {
        self.numbers.get(worker).copied()
    }

    /// Assigns a number to a peer with a malformed address (`None`), or to one that is not known yet. Also returns the endpoint of
    /// a peer that is forgotten as a result; the caller drops it while nothing is borrowed.
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

    /// Records that the application holds an endpoint to a worker. The worker's number is kept as long as the application holds the
    /// endpoint.
    pub(super) fn named(&mut self, worker: [u8; 16], endpoint: Id) {
        let _ = self.endpoints.entry(worker).or_default().insert(endpoint);
        self.gone(&worker, endpoint);
    }

    /// Records that the application has dropped the endpoint. Returns the endpoint of a peer that is forgotten as a result; the
    /// caller drops it while nothing is borrowed.
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

    /// Removes an endpoint that the application had dropped and that does not exist any more.
    pub(super) fn gone(&mut self, worker: &[u8; 16], endpoint: Id) {
        let Some(all) = self.let_go.get_mut(worker) else { return };
        let _ = all.remove(&endpoint);
        if all.is_empty() {
            let _ = self.let_go.remove(worker);
        }
    }

    /// Takes all internal endpoints of a closed worker, which sends no more answers. The numbers stay valid.
    pub(super) fn take_replies(&mut self) -> Vec<Rc<EndpointState>> {
        let all = self.known.values_mut();
        let replies = all.filter_map(|peer| {
            peer.borrowed = Weak::new();
            peer.reply.take()
        });
        replies.collect()
    }

    /// Returns the service worker with this address.
    pub(super) fn service_worker(&mut self, address: WorkerAddress) -> Rc<ServiceWorker> {
        let id = address.entry.worker;
        if let Some(known) = self.service_workers.get(&id).and_then(Weak::upgrade) {
            return known;
        }
        if self.service_workers.len() == self.service_workers.capacity() {
            self.service_workers.retain(|_, known| known.strong_count() > 0);
        }
        let new = Rc::new(ServiceWorker::new(address));
        let _ = self.service_workers.insert(id, Rc::downgrade(&new));
        new
    }

    /// Returns the application's endpoints to a peer, oldest first.
    pub(super) fn endpoints_to(&self, number: u32) -> impl Iterator<Item = Id> + '_ {
        self.ids_to_worker(&self.endpoints, number)
    }

    /// Returns the endpoints to a peer that the application has dropped and that still exist.
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

    /// Returns the number of known peers.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    pub(super) fn get(&self, number: u32) -> Option<&Peer> {
        self.known.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Peer> {
        self.known.get_mut(&number)
    }

    /// Records that an interface has a number for the peer, for a connection that may still be forming.
    pub(super) fn arrived(&mut self, number: u32) {
        if let Some(peer) = self.known.get_mut(&number) {
            (peer.ways, peer.rests) = (peer.ways + 1, false);
        }
    }

    /// Records that a connection of the peer is connected, possibly again.
    pub(super) fn stands(&mut self, number: u32) {
        if let Some(peer) = self.known.get_mut(&number) {
            (peer.parted, peer.told, peer.lost) = (false, false, None);
            (peer.leaves, peer.exited) = (false, None);
        }
        self.forget_last_failure(number);
    }

    /// A peer of the application has connected or left, so the failure of an earlier peer does not explain a wait.
    fn forget_last_failure(&mut self, number: u32) {
        if self.last_failure.is_some() && !self.is_service(number) {
            self.last_failure = None;
        }
    }

    /// Records that the peer's end of an endpoint of this worker has closed in good order, so that the peer's other connections
    /// will end as well.
    pub(super) fn leaves(&mut self, number: u32) {
        if let Some(peer) = self.known.get_mut(&number) {
            peer.leaves = true;
        }
    }

    /// Checks whether the peer is the worker of a progress thread, according to the address of a known peer. The application is not
    /// notified of such peers.
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

    /// Checks whether the leaving of the peer has been or will be reported to the application.
    pub(super) fn tells_of_leaving(&self, worker: &[u8; 16]) -> bool {
        let peer = self.known_number(worker).and_then(|number| self.get(number));
        peer.is_some_and(|peer| peer.parted || peer.leaves)
    }

    /// Returns whether to report the leaving of this peer: once, until a connection of the peer is connected again.
    pub(super) fn part(&mut self, number: u32) -> bool {
        let peer = self.known.get_mut(&number);
        let is_first = peer.is_some_and(|peer| !std::mem::replace(&mut peer.parted, true));
        if is_first {
            self.forget_last_failure(number);
        }
        is_first
    }

    /// Records that an interface has one number less for the peer. Returns the endpoint of a peer that is forgotten as a result;
    /// the caller drops it while nothing is borrowed.
    pub(super) fn left(&mut self, number: u32) -> Option<Rc<EndpointState>> {
        let peer = self.known.get_mut(&number)?;
        peer.ways = peer.ways.saturating_sub(1);
        if peer.ways > 0 {
            return None;
        }
        self.rests(number)
    }

    /// Returns the number of interface numbers that belong to the peer.
    pub(super) fn ways(&self, number: u32) -> u32 {
        self.known.get(&number).map_or(0, |peer| peer.ways)
    }

    /// Checks whether the peer is gone: it is unknown, or it has no connection and its leaving or failure has been reported.
    pub(super) fn is_gone(&self, number: u32) -> bool {
        self.known.get(&number).is_none_or(|peer| peer.ways == 0 && (peer.parted || peer.told))
    }

    /// Records a claim that this peer has failed, which may repeat an earlier one. Returns the id of the peer's worker, if it is
    /// known.
    pub(super) fn lose(&mut self, number: u32, error: &Error) -> Option<[u8; 16]> {
        let peer = self.known.get_mut(&number)?;
        let _ = peer.lost.get_or_insert_with(|| error.clone());
        peer.address.as_ref().map(|address| address.entry.worker)
    }

    /// Returns the number and the first error of a worker that is claimed to have failed, if the failure has not been reported.
    pub(super) fn lost(&self, worker: &[u8; 16]) -> Option<(u32, Error)> {
        let number = self.known_number(worker)?;
        Some((number, self.known.get(&number)?.lost.clone()?))
    }

    /// Returns whether to report the failure of this peer to the application: once, until the peer reconnects.
    pub(super) fn tell(&mut self, number: u32, error: &Error) -> bool {
        let Some(peer) = self.known.get_mut(&number) else { return false };
        peer.lost = None;
        let is_first = !std::mem::replace(&mut peer.told, true);
        if is_first && !self.is_service(number) {
            self.last_failure = Some(error.clone());
        }
        is_first
    }

    /// Returns the failure of the peer that failed last, if no peer of the application has a connection to this worker.
    pub(super) fn last_failure(&self) -> Option<&Error> {
        let is_here = |(number, peer): (&u32, &Peer)| peer.ways > 0 && !self.is_service(*number);
        let nobody = || !self.known.iter().any(is_here);
        self.last_failure.as_ref().filter(|_| nobody())
    }

    /// Adds a peer without a connection to the idle list. If the list is too long, its first peer is forgotten, unless that peer
    /// has reconnected or the application has an endpoint to it.
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
mod tests;
