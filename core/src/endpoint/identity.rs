//! The identity of endpoints: for the program that holds them, and for incoming messages.

use super::{Endpoint, EndpointState};
use crate::interface::PeerId;
use std::fmt;
use std::rc::Rc;

/// The number of an endpoint, unique among all endpoints that its worker ever had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId(u64);

impl EndpointId {
    /// Returns the number, which is never 0. Another worker's endpoints may have the same numbers.
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

impl EndpointState {
    /// Checks whether the application holds the endpoint.
    pub(crate) fn is_named(&self) -> bool {
        self.handles.named.get()
    }
}

impl Endpoint {
    /// Makes a handle for the application.
    pub(crate) fn new(inner: Rc<EndpointState>) -> Endpoint {
        let endpoint = Endpoint::internal(inner);
        if !endpoint.inner.handles.named.replace(true) {
            endpoint.inner.worker.named(&endpoint.inner);
        }
        endpoint
    }

    /// Makes an internal handle.
    pub(crate) fn internal(inner: Rc<EndpointState>) -> Endpoint {
        inner.handles.count.set(inner.handles.count.get() + 1);
        Endpoint { inner }
    }

    /// Returns the endpoint's number.
    #[must_use]
    pub fn id(&self) -> EndpointId {
        EndpointId(self.inner.id.raw())
    }

    /// Returns the peer: the number, on this worker, of the worker to which the endpoint leads. [Messages](crate::Message::peer)
    /// and notifications from that worker have the same number. The number stays the same as long as an endpoint to that worker is
    /// held, regardless of its connections.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.inner.worker.peer_of(&self.inner)
    }

    /// Stores a word of the application, for example an index or an address; [`user`](Endpoint::user) returns this word. After the
    /// last handle (all clones included) has been dropped, the word is not passed to any callback, even if operations are in
    /// flight.
    pub fn set_user(&self, word: u64) {
        self.inner.word.set(word);
    }

    /// Returns the word stored last; 0 at first. All clones share the word.
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
            // The cached keys hold the endpoint, and no code can request them any more.
            self.inner.forget_keys();
        }
    }
}

/// Clones are equal. Two endpoints to the same peer differ unless they are clones. Use [`Endpoint::id`] as a key in maps.
impl PartialEq for Endpoint {
    fn eq(&self, other: &Endpoint) -> bool {
        Rc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Endpoint {}
