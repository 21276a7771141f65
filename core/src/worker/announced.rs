//! The rendezvous messages (announcements) of peers. Each message is an entry of this table until it has ended or its sender has
//! left. The number of entries per peer is bounded. The bytes of a message are neither fetched nor allocated before the application
//! requests them.

use crate::message::announced::{Announced, Stage};
use crate::op::Id;
use crate::proto::Origin;
use crate::request::Request;
use crate::{RemoteKey, Status};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;

/// The maximum number of announcements of one peer that have not ended, and of bytes of their keys. The worker refuses further
/// announcements.
const MOST: usize = 65_536;
const MOST_BYTES: usize = 32 << 20;
/// The number of announcements and of key bytes that each peer may have regardless of other peers.
const SHARE: usize = 64;
const SHARE_BYTES: usize = 64 << 10;

/// A transfer in progress.
pub(super) struct Taking {
    pub(super) announced: Rc<Announced>,
    pub(super) transfer: Request,
    /// The operation that the application holds.
    pub(super) whole: Id,
    /// The sender's key, which belongs to an endpoint and holds it.
    pub(super) key: RemoteKey,
}

/// The identity of an announcement of a peer: the circuit that carried it, if any, and the sender's number.
type Number = (Option<u64>, u64);

/// The announcements of one peer.
#[derive(Default)]
struct PeerAnnouncements {
    known: HashMap<Number, Rc<Announced>>,
    /// The total length of their keys in bytes.
    bytes: usize,
}

/// The announcements that have not ended, of peers that have not left.
pub(super) struct Announcements {
    /// The maximum number of announcements, and of bytes of their keys, for all peers together. Beyond the maximum each peer still
    /// has its share.
    most: (usize, usize),
    peers: RefCell<HashMap<u32, PeerAnnouncements>>,
    all: Cell<(usize, usize)>,
    /// The transfers in progress, by the number of the transfer.
    pub(super) taking: RefCell<HashMap<Id, Taking>>,
}

impl Announcements {
    /// Makes an empty table with this maximum for all peers together.
    pub(super) fn new(most: (usize, usize)) -> Announcements {
        Announcements {
            most,
            peers: RefCell::default(),
            all: Cell::default(),
            taking: RefCell::default(),
        }
    }

    /// Returns the number of a peer's announcements.
    pub(super) fn of(&self, peer: u32) -> usize {
        self.peers.borrow().get(&peer).map_or(0, |of| of.known.len())
    }

    /// Returns the announcement with this number.
    pub(super) fn get(&self, from: Origin, token: u64) -> Option<Rc<Announced>> {
        self.peers.borrow().get(&from.peer)?.known.get(&(from.circuit, token)).cloned()
    }

    /// Returns all announcements of all peers.
    pub(super) fn all(&self) -> Vec<Rc<Announced>> {
        self.peers.borrow().values().flat_map(|of| of.known.values()).cloned().collect()
    }

    /// Adds an announcement. The error is the reason that the announcement must not be dispatched.
    pub(super) fn insert(&self, announced: &Rc<Announced>) -> Result<(), Status> {
        let len = announced.key.borrow().len();
        let (count, bytes) = self.all.get();
        let mut peers = self.peers.borrow_mut();
        let of = peers.entry(announced.from.peer).or_default();
        let (its, its_bytes) = (of.known.len() + 1, of.bytes + len);
        let too_much = its > MOST || its_bytes > MOST_BYTES;
        let no_share = its > SHARE || its_bytes > SHARE_BYTES;
        let none_left = count >= self.most.0 || bytes + len > self.most.1;
        if too_much || no_share && none_left {
            return Err(Status::NoMemory);
        }
        match of.known.entry((announced.from.circuit, announced.token)) {
            // The message was announced twice, but the sender expects only one answer.
            Entry::Occupied(_) => Err(Status::BadData),
            Entry::Vacant(place) => {
                let _ = place.insert(announced.clone());
                of.bytes = its_bytes;
                self.all.set((count + 1, bytes + len));
                Ok(())
            }
        }
    }

    pub(super) fn remove(&self, announced: &Announced) {
        let mut peers = self.peers.borrow_mut();
        let Some(of) = peers.get_mut(&announced.from.peer) else { return };
        let number = (announced.from.circuit, announced.token);
        // A peer that left and reconnected may have reused its number.
        if !of.known.get(&number).is_some_and(|known| std::ptr::eq(&raw const **known, announced)) {
            return;
        }
        let _ = of.known.remove(&number);
        let len = announced.key.borrow().len();
        of.bytes -= len;
        if of.known.is_empty() {
            let _ = peers.remove(&announced.from.peer);
        }
        let (count, bytes) = self.all.get();
        self.all.set((count - 1, bytes - len));
    }

    /// Removes the announcements of a peer that has left. These announcements get no answer. Transfers in progress end on their
    /// own.
    pub(super) fn left_behind(&self, peer: u32) {
        let gone = self.peers.borrow_mut().remove(&peer);
        let Some(gone) = gone else { return };
        let (count, bytes) = self.all.get();
        self.all.set((count - gone.known.len(), bytes - gone.bytes));
        for announced in gone.known.into_values() {
            if announced.stage.get() == Stage::Waiting {
                announced.stage.set(Stage::Left);
                drop(announced.key.take());
            }
        }
    }

    /// Returns the number of transfers in progress over an endpoint.
    pub(super) fn taken_over(&self, endpoint: usize) -> usize {
        let taking = self.taking.borrow();
        taking.values().filter(|taking| taking.key.inner.endpoint.index == endpoint).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(peer: u32, token: u64, key: usize) -> Rc<Announced> {
        let from = Origin { peer, circuit: None };
        let (key, stage) = (RefCell::new(vec![0; key].into()), Cell::default());
        Rc::new(Announced { from, token, id: 1, header: 2, len: 3, key, stage })
    }

    fn unbounded() -> Announcements {
        Announcements::new((usize::MAX, usize::MAX))
    }

    #[test]
    fn a_peer_may_have_so_many_announced_and_each_has_its_own_number() {
        let all = unbounded();
        let seventh = announced(1, 7, 0);
        for token in 0..MOST as u64 - 1 {
            let next = if token == 7 { seventh.clone() } else { announced(1, token, 0) };
            assert_eq!(all.insert(&next), Ok(()));
        }
        assert_eq!(all.insert(&announced(1, 7, 0)), Err(Status::BadData), "it is announced");
        assert_eq!(all.insert(&announced(1, 1 << 40, 0)), Ok(()));
        assert_eq!(all.insert(&announced(1, 1 << 41, 0)), Err(Status::NoMemory));
        let other = announced(2, 7, 0);
        assert_eq!(all.insert(&other), Ok(()), "another peer has its own");
        assert_eq!([all.of(1), all.of(2), all.of(3)], [MOST, 1, 0]);
        all.remove(&announced(1, 7, 0));
        assert_eq!(all.of(1), MOST, "one that only has the same number is another one");
        all.remove(&seventh);
        all.remove(&seventh);
        assert_eq!((all.of(1), all.insert(&announced(1, 1 << 41, 0))), (MOST - 1, Ok(())));
        all.remove(&other);
        assert_eq!((all.of(2), all.peers.borrow().len(), all.all.get().0), (0, 1, MOST));
    }

    #[test]
    fn the_keys_of_a_peer_take_so_many_bytes() {
        let all = unbounded();
        assert_eq!(all.insert(&announced(1, 1, MOST_BYTES - 5)), Ok(()));
        assert_eq!(all.insert(&announced(1, 2, 6)), Err(Status::NoMemory));
        let five = announced(1, 2, 5);
        assert_eq!(all.insert(&five), Ok(()));
        assert_eq!(all.insert(&announced(1, 3, 1)), Err(Status::NoMemory));
        all.remove(&five);
        assert_eq!(all.insert(&announced(1, 3, 5)), Ok(()));
        assert_eq!(all.all.get(), (2, MOST_BYTES));
    }

    #[test]
    fn all_peers_together_may_have_so_many_and_each_has_its_share_beside_that() {
        let all = Announcements::new((1000, 1 << 20));
        let insert = |peer, count: usize, key| {
            (0..count).filter(|n| all.insert(&announced(peer, *n as u64, key)).is_ok()).count()
        };
        assert_eq!(insert(1, 5000, 8), 1000);
        assert_eq!(insert(2, 5000, 8), SHARE, "however much another one has");
        assert_eq!(insert(3, 5000, 8), SHARE);
        all.left_behind(1);
        assert_eq!(all.all.get(), (2 * SHARE, 2 * SHARE * 8));
        assert_eq!(insert(4, 5000, 8), 1000 - 2 * SHARE);
        [2, 3, 4].into_iter().for_each(|peer| all.left_behind(peer));
        assert_eq!(all.all.get(), (0, 0));
        // The limit of bytes applies in the same manner.
        assert_eq!(insert(1, 50, 1 << 15), 32);
        assert_eq!(insert(2, 50, 1 << 15), SHARE_BYTES >> 15);
    }

    #[test]
    fn a_peer_that_left_leaves_nothing_and_what_is_being_taken_goes_on() {
        let all = unbounded();
        let (waits, taken, other) = (announced(1, 1, 9), announced(1, 2, 9), announced(2, 1, 9));
        for one in [&waits, &taken, &other] {
            assert_eq!(all.insert(one), Ok(()));
        }
        taken.stage.set(Stage::Taking);
        all.left_behind(1);
        all.left_behind(1);
        assert_eq!([waits.stage.get(), taken.stage.get()], [Stage::Left, Stage::Taking]);
        assert_eq!((waits.key.borrow().len(), taken.key.borrow().len()), (0, 9));
        assert_eq!((all.of(1), all.of(2), all.all.get()), (0, 1, (1, 9)));
        // The peer reconnects, and numbers its announcements from the start again.
        let again = announced(1, 1, 3);
        assert_eq!(all.insert(&again), Ok(()));
        all.remove(&waits);
        assert!(all.get(again.from, 1).is_some() && all.all().len() == 2);
    }
}
