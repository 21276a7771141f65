//! Which endpoint is which: to the program that has it, and to whom messages come from.

use super::{Endpoint, Inner};
use crate::interface::PeerId;
use std::fmt;
use std::rc::Rc;

/// The number of an endpoint, which no other one of its worker ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId(u64);

impl EndpointId {
    /// The number itself, which is never 0. Another worker gives its endpoints the same ones.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "endpoint {:#x}", self.0)
    }
}

impl Inner {
    /// Whether the application holds it.
    pub(crate) fn is_named(&self) -> bool {
        self.handles.named.get()
    }
}

impl Endpoint {
    /// A handle for the application.
    pub(crate) fn new(inner: Rc<Inner>) -> Endpoint {
        let endpoint = Endpoint::internal(inner);
        if !endpoint.inner.handles.named.replace(true) {
            endpoint.inner.worker.named(&endpoint.inner);
        }
        endpoint
    }

    /// A handle of the library's own.
    pub(crate) fn internal(inner: Rc<Inner>) -> Endpoint {
        inner.handles.count.set(inner.handles.count.get() + 1);
        Endpoint { inner }
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> EndpointId {
        EndpointId(self.inner.id.raw())
    }

    /// The worker that it leads to, by its number here: that of the [messages](crate::Message::peer) and notifications that come from
    /// there. It stays as long as an endpoint is held that leads there, whatever becomes of its connections. From the first call on the
    /// worker keeps that peer's address; an endpoint that nobody asks costs nothing.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.inner.worker.peer_of(&self.inner)
    }

    /// Keeps a word of the application's, for [`user`](Endpoint::user) to return: an index, an address. When the last handle (a clone
    /// of this) has been dropped the word is handed to nobody any more, whatever is still under way.
    pub fn set_user(&self, word: u64) {
        self.inner.word.set(word);
    }

    /// The word that was kept last; 0 at first. All clones have one.
    #[must_use]
    pub fn user(&self) -> u64 {
        self.inner.word.get()
    }
}

impl Clone for Endpoint {
    fn clone(&self) -> Endpoint {
        Endpoint::internal(self.inner.clone())
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let handles = &self.inner.handles;
        let left = handles.count.get() - 1;
        handles.count.set(left);
        if left == 0 && handles.named.replace(false) {
            self.inner.worker.not_named(&self.inner);
        }
        if left == 0 {
            // They hold the endpoint, which nobody can ask for them any more.
            self.inner.forget_keys();
        }
    }
}

/// Clones are equal, and nothing else is: two endpoints to one peer are not. In a map [`Endpoint::id`] is the key.
impl PartialEq for Endpoint {
    fn eq(&self, other: &Endpoint) -> bool {
        Rc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Endpoint {}
