//! The rendezvous messages (announcements) of peers. Each message is an entry of this table until it has ended or its sender has
//! left. The number of entries per peer is bounded. The bytes of a message are neither fetched nor allocated before the application
//! requests them.

use super::keyed_hash::Keyed;
use crate::message::announced::{Announced, Stage};
use crate::proto::Origin;
use crate::proto::announce::Announce;
use crate::request::Request;
use crate::{RemoteKey, Status};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;
use tieline_order::Id;

/// The maximum number of announcements of one peer that have not ended, and of bytes of their keys. The worker refuses further
/// announcements.
const MOST: usize = 65_536;
const MOST_BYTES: usize = 32 << 20;
/// The number of announcements and of key bytes that each peer may have regardless of other peers.
const SHARE: usize = 64;
const SHARE_BYTES: usize = 64 << 10;

/// The maximum number of announcements in the short list, which is searched from the start.
const FEW: usize = 8;

/// The length of a key whose memory the next announcement uses.
const MOST_REUSED: usize = 4096;

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
    known: HashMap<Number, Rc<Announced>, Keyed>,
    /// The total length of their keys in bytes.
    bytes: usize,
}

/// The announcements that have not ended, of peers that have not left.
pub(super) struct Announcements {
    /// The maximum number of announcements, and of bytes of their keys, for all peers together. Beyond the maximum each peer still
    /// has its share.
    most: (usize, usize),
    peers: RefCell<HashMap<u32, PeerAnnouncements, Keyed>>,
    /// The first announcements, at most [`FEW`], which are not in `peers`.
    few: RefCell<Vec<Rc<Announced>>>,
    /// The empty table of a peer whose last announcement has ended, for the next peer that announces.
    spare: RefCell<Option<PeerAnnouncements>>,
    all: Cell<(usize, usize)>,
    /// Entries of announcements that have ended, for the next ones.
    unused: RefCell<Vec<Rc<Announced>>>,
    /// The transfers in progress, by the number of the transfer.
    pub(super) taking: RefCell<HashMap<Id, Taking>>,
}

impl Announcements {
    /// Makes an empty table with this maximum for all peers together.
    pub(super) fn new(most: (usize, usize)) -> Announcements {
        Announcements {
            most,
            peers: RefCell::default(),
            few: RefCell::default(),
            spare: RefCell::default(),
            all: Cell::default(),
            unused: RefCell::default(),
            taking: RefCell::default(),
        }
    }

    /// Makes the entry of an announcement, from a dropped one if there is any. `whose`: the sender and its number.
    pub(super) fn make(
        &self,
        (from, token): (Origin, u64),
        announce: Announce<'_>,
    ) -> Rc<Announced> {
        let Announce { id, header, len, key, header_bytes } = announce;
        let (key_len, len, stage) = (key.len(), len as usize, Cell::default());
        let mut unused = self.unused.borrow_mut().pop();
        let mut bytes = match unused.as_mut().and_then(Rc::get_mut) {
            Some(old) => std::mem::take(old.key.get_mut()),
            None => Vec::new(),
        };
        bytes.clear();
        bytes.extend_from_slice(key);
        let key = RefCell::new(bytes);
        if let Some(mut unused) = unused {
            if let Some(place) = Rc::get_mut(&mut unused) {
                (place.from, place.token, place.id, place.header) = (from, token, id, header);
                (place.len, place.key_len, place.key, place.stage) = (len, key_len, key, stage);
                // Most messages have none, also if the message before had none.
                if !(header_bytes.is_empty() && place.header_bytes.is_empty()) {
                    place.header_bytes = header_bytes;
                }
                return unused;
            }
        }
        Rc::new(Announced { from, token, id, header, len, header_bytes, key_len, key, stage })
    }

    /// Keeps the entry of an announcement that has ended and that only the caller holds, so that the next one costs no
    /// allocation.
    pub(super) fn reuse(&self, announced: &Rc<Announced>) {
        let mut unused = self.unused.borrow_mut();
        let is_small = announced.key.try_borrow().is_ok_and(|key| key.capacity() <= MOST_REUSED);
        if is_small && unused.len() < SHARE && Rc::strong_count(announced) == 1 {
            unused.push(announced.clone());
        }
    }

    /// Returns the number of a peer's announcements.
    pub(super) fn of(&self, peer: u32) -> usize {
        let few = self.few.borrow();
        let few = few.iter().filter(|one| one.from.peer == peer).count();
        few + self.peers.borrow().get(&peer).map_or(0, |of| of.known.len())
    }

    /// Returns the announcement with this number.
    pub(super) fn get(&self, from: Origin, token: u64) -> Option<Rc<Announced>> {
        let few = self.few.borrow();
        let found = few.iter().find(|one| (one.from, one.token) == (from, token)).cloned();
        found.or_else(|| {
            self.peers.borrow().get(&from.peer)?.known.get(&(from.circuit, token)).cloned()
        })
    }

    /// Returns all announcements of all peers.
    pub(super) fn all(&self) -> Vec<Rc<Announced>> {
        let (few, peers) = (self.few.borrow(), self.peers.borrow());
        few.iter().chain(peers.values().flat_map(|of| of.known.values())).cloned().collect()
    }

    /// Adds an announcement. The error is the reason that the announcement must not be dispatched.
    pub(super) fn insert(&self, announced: &Rc<Announced>) -> Result<(), Status> {
        let (from, token, len) = (announced.from, announced.token, announced.key_len);
        let (count, bytes) = self.all.get();
        let (mut few, mut peers) = (self.few.borrow_mut(), self.peers.borrow_mut());
        // The number and the bytes of the peer's announcements with this one.
        let (mut its, mut its_bytes, mut is_known) = (1, len, false);
        for other in few.iter().filter(|other| other.from.peer == from.peer) {
            (its, its_bytes) = (its + 1, its_bytes + other.key_len);
            is_known |= (other.from, other.token) == (from, token);
        }
        if few.len() < count {
            if let Some(of) = peers.get(&from.peer) {
                (its, its_bytes) = (its + of.known.len(), its_bytes + of.bytes);
                is_known |= of.known.contains_key(&(from.circuit, token));
            }
        }
        let too_much = its > MOST || its_bytes > MOST_BYTES;
        let no_share = its > SHARE || its_bytes > SHARE_BYTES;
        let none_left = count >= self.most.0 || bytes + len > self.most.1;
        if too_much || no_share && none_left {
            return Err(Status::NoMemory);
        }
        if is_known {
            // The message was announced twice, but the sender expects only one answer.
            return Err(Status::BadData);
        }
        if few.len() < FEW {
            few.push(announced.clone());
        } else {
            let spare = || self.spare.take().unwrap_or_default();
            let of = peers.entry(from.peer).or_insert_with(spare);
            let _ = of.known.insert((from.circuit, token), announced.clone());
            of.bytes += len;
        }
        self.all.set((count + 1, bytes + len));
        Ok(())
    }

    pub(super) fn remove(&self, announced: &Announced) {
        if !self.remove_from_few(announced) && !self.remove_from_peers(announced) {
            return;
        }
        let (count, bytes) = self.all.get();
        self.all.set((count - 1, bytes - announced.key_len));
    }

    fn remove_from_few(&self, announced: &Announced) -> bool {
        let mut few = self.few.borrow_mut();
        let at = few.iter().position(|one| std::ptr::eq(&raw const **one, announced));
        at.map(|at| few.swap_remove(at)).is_some()
    }

    fn remove_from_peers(&self, announced: &Announced) -> bool {
        let mut peers = self.peers.borrow_mut();
        let Some(of) = peers.get_mut(&announced.from.peer) else { return false };
        let number = (announced.from.circuit, announced.token);
        // A peer that left and reconnected may have reused its number.
        match of.known.entry(number) {
            Entry::Occupied(known) if std::ptr::eq(&raw const **known.get(), announced) => {
                drop(known.remove());
            }
            _ => return false,
        }
        of.bytes -= announced.key_len;
        if of.known.is_empty() {
            let empty = peers.remove(&announced.from.peer);
            let small = empty.filter(|of| of.known.capacity() <= SHARE);
            if small.is_some() {
                *self.spare.borrow_mut() = small;
            }
        }
        true
    }

    /// Removes the announcements of a peer that has left. These announcements get no answer. Transfers in progress end on their
    /// own.
    pub(super) fn left_behind(&self, peer: u32) {
        let few = self.few.take();
        let (mut gone, stay) = few.into_iter().partition::<Vec<_>, _>(|one| one.from.peer == peer);
        *self.few.borrow_mut() = stay;
        let others = self.peers.borrow_mut().remove(&peer);
        gone.extend(others.into_iter().flat_map(|of| of.known.into_values()));
        let (count, bytes) = self.all.get();
        let gone_bytes: usize = gone.iter().map(|one| one.key_len).sum();
        self.all.set((count - gone.len(), bytes - gone_bytes));
        for announced in gone {
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
    use crate::message::HeaderBytes;

    fn announced(peer: u32, token: u64, key: usize) -> Rc<Announced> {
        let from = Origin { peer, circuit: None };
        let (key_len, key) = (key, RefCell::new(vec![0; key]));
        let (header_bytes, stage) = (HeaderBytes::default(), Cell::default());
        Rc::new(Announced {
            from,
            token,
            id: 1,
            header: 2,
            len: 3,
            header_bytes,
            key_len,
            key,
            stage,
        })
    }

    fn rts((id, header, len): (u16, u64, u64), key: &[u8]) -> Announce<'_> {
        Announce { id, header, len, key, header_bytes: HeaderBytes::default() }
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
    fn the_entry_of_an_ended_announcement_is_used_again_unless_one_holds_it() {
        let all = unbounded();
        let from = |peer| Origin { peer, circuit: None };
        let first = all.make((from(1), 7), rts((1, 2, 3), &[4; 9]));
        let held = first.clone();
        all.reuse(&first);
        assert!(all.unused.borrow().is_empty(), "another one holds it");
        drop(held);
        first.stage.set(Stage::Over);
        all.reuse(&first);
        let place = Rc::as_ptr(&first);
        drop(first);
        let next = all.make((from(2), 8), rts((5, 6, 7), &[1, 2]));
        assert_eq!(Rc::as_ptr(&next), place);
        assert_eq!((next.from, next.token, next.id, next.header, next.len), (from(2), 8, 5, 6, 7));
        assert_eq!((next.key_len, &next.key.borrow()[..]), (2, &[1, 2][..]));
        assert_eq!(next.stage.get(), Stage::Waiting);
        let long = all.make((from(1), 9), rts((1, 2, 3), &[0; MOST_REUSED + 1]));
        all.reuse(&long);
        assert!(all.unused.borrow().is_empty(), "its key is long");
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
