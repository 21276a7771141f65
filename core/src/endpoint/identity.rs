//! Which endpoint is which: to the program that has it, and to whom messages come from.

use super::Endpoint;
use crate::interface::PeerId;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

/// The number of an endpoint, which no other one of its worker ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId(u64);

impl fmt::Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "endpoint {:#x}", self.0)
    }
}

impl Endpoint {
    /// Its number.
    #[must_use]
    pub fn id(&self) -> EndpointId {
        EndpointId(self.inner.id.raw())
    }

    /// The worker that it leads to, by its number here: that of the [messages](crate::Message::peer) and notifications that come from
    /// there. It stays as long as an endpoint is held that leads there, whatever becomes of its connections.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.inner.worker.peer_of(&self.inner)
    }

    /// Keeps a word of the application's, for [`user`](Endpoint::user) to return: an index, an address.
    pub fn set_user(&self, word: u64) {
        self.inner.word.set(word);
    }

    /// The word that was kept last; 0 at first. All clones have one.
    #[must_use]
    pub fn user(&self) -> u64 {
        self.inner.word.get()
    }
}

/// Clones are equal, and nothing else is: two endpoints to one peer are not.
impl PartialEq for Endpoint {
    fn eq(&self, other: &Endpoint) -> bool {
        Rc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Endpoint {}

impl Hash for Endpoint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}
