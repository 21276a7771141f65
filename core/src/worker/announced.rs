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
