//! The messages that peers have announced: each is an entry here until it is over, of which each peer has a bounded number, and no
//! byte of what it announces is fetched or allocated for unasked.

use crate::message::announced::{Announced, Announcement};
use crate::op::Id;
use crate::proto::Origin;
use crate::request::Request;
use crate::{RemoteKey, Status};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;

/// Announcements of one peer that wait to be taken, and the bytes of their keys. What comes beyond is refused.
const MOST: u32 = 65_536;
const MOST_BYTES: usize = 32 << 20;

/// A transfer that is under way.
pub(super) struct Taking {
    pub(super) announced: Rc<Announced>,
    pub(super) transfer: Request,
    /// What the application has of it.
    pub(super) whole: Id,
    /// The key goes through an endpoint, which it keeps.
    pub(super) key: RemoteKey,
}

/// Everything that is announced and not over.
#[derive(Default)]
pub(super) struct Announcements {
    pub(super) known: RefCell<HashMap<(Origin, u64), Rc<Announced>>>,
    /// How many, and the bytes of their keys.
    of_peer: RefCell<HashMap<u32, (u32, usize)>>,
    /// By the transfer's number.
    pub(super) taking: RefCell<HashMap<Id, Taking>>,
    /// The one whose handler runs.
    pub(super) current: Cell<Option<Announcement>>,
}

impl Announcements {
    /// That one, once.
    pub(super) fn take_current(&self) -> Option<Announcement> {
        self.current.take()
    }

    /// How many of a peer's there are.
    pub(super) fn of(&self, peer: u32) -> u32 {
        self.of_peer.borrow().get(&peer).map_or(0, |(count, _)| *count)
    }

    /// Notes a new one. The error: why it is not to be handed on.
    pub(super) fn insert(&self, announced: &Rc<Announced>) -> Result<(), Status> {
        let mut known = self.known.borrow_mut();
        let mut of_peer = self.of_peer.borrow_mut();
        let (count, bytes) = of_peer.entry(announced.from.peer).or_default();
        if *count >= MOST || *bytes + announced.key.len() > MOST_BYTES {
            return Err(Status::NoMemory);
        }
        match known.entry((announced.from, announced.token)) {
            // Announced twice: there is one answer.
            Entry::Occupied(_) => Err(Status::BadData),
            Entry::Vacant(place) => {
                let _ = place.insert(announced.clone());
                (*count, *bytes) = (*count + 1, *bytes + announced.key.len());
                Ok(())
            }
        }
    }

    pub(super) fn remove(&self, announced: &Announced) {
        let gone = self.known.borrow_mut().remove(&(announced.from, announced.token));
        let mut of_peer = self.of_peer.borrow_mut();
        let (Some(gone), Some((count, bytes))) = (gone, of_peer.get_mut(&announced.from.peer))
        else {
            return;
        };
        (*count, *bytes) = (*count - 1, *bytes - gone.key.len());
        if *count == 0 {
            let _ = of_peer.remove(&announced.from.peer);
        }
    }

    /// How many are being taken over an endpoint.
    pub(super) fn taken_over(&self, endpoint: usize) -> usize {
        let taking = self.taking.borrow();
        taking.values().filter(|taking| taking.key.inner.endpoint.index == endpoint).count()
    }

    /// Nothing is left of the one whose handler ran, also where that has panicked.
    pub(super) fn clear(&self) -> impl Drop + '_ {
        struct Clear<'a>(&'a Announcements);
        impl Drop for Clear<'_> {
            fn drop(&mut self) {
                drop(self.0.current.take());
            }
        }
        Clear(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(peer: u32, token: u64, key: usize) -> Rc<Announced> {
        let from = Origin { peer, circuit: None };
        let (key, stage) = (vec![0; key].into(), Cell::default());
        Rc::new(Announced { from, token, id: 1, header: 2, len: 3, key, stage })
    }

    #[test]
    fn a_peer_may_have_so_many_announced_and_each_has_its_own_number() {
        let all = Announcements::default();
        for token in 0..u64::from(MOST) - 1 {
            assert_eq!(all.insert(&announced(1, token, 0)), Ok(()));
        }
        assert_eq!(all.insert(&announced(1, 7, 0)), Err(Status::BadData), "it is announced");
        assert_eq!(all.insert(&announced(1, 1 << 40, 0)), Ok(()));
        assert_eq!(all.insert(&announced(1, 1 << 41, 0)), Err(Status::NoMemory));
        assert_eq!(all.insert(&announced(2, 7, 0)), Ok(()), "another peer has its own");
        assert_eq!([all.of(1), all.of(2), all.of(3)], [MOST, 1, 0]);
        all.remove(&announced(1, 7, 0));
        all.remove(&announced(1, 7, 0));
        assert_eq!((all.of(1), all.insert(&announced(1, 1 << 41, 0))), (MOST - 1, Ok(())));
        all.remove(&announced(2, 7, 0));
        assert_eq!((all.of(2), all.of_peer.borrow().len()), (0, 1));
    }

    #[test]
    fn the_keys_of_a_peer_take_so_many_bytes() {
        let all = Announcements::default();
        assert_eq!(all.insert(&announced(1, 1, MOST_BYTES - 5)), Ok(()));
        assert_eq!(all.insert(&announced(1, 2, 6)), Err(Status::NoMemory));
        assert_eq!(all.insert(&announced(1, 2, 5)), Ok(()));
        assert_eq!(all.insert(&announced(1, 3, 1)), Err(Status::NoMemory));
        all.remove(&announced(1, 2, 0));
        assert_eq!(all.insert(&announced(1, 3, 5)), Ok(()));
    }
}
