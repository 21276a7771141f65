//! Registered memory, and the remote keys of peers.
//!
//! A key of libfabric is a number of 8 bytes, which the provider or the application has chosen. The first operation with a number
//! asks the owner for the remote key, and later operations use the answer. If an operation is refused for its key, its range or its
//! alignment, the number may stand for other memory than before, so the owner is asked once more.

use crate::counter::Counter;
use crate::endpoint::{Ep, id, one};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use tieline::{Message, PeerId, PostError, Region, RemoteKey};
use tieline_libfabric_abi::FI_EAGAIN;

/// The most keys of a peer that an endpoint keeps.
const KEPT: usize = 1024;

/// The length of a reply before the remote key: flags, and the address of the memory.
const REPLY: usize = 16;
/// The owner wants to learn of each put and atomic.
const NOTICED: u8 = 1;
/// Remote addresses of the owner are virtual addresses.
const VIRTUAL: u8 = 2;

/// Registered memory.
pub(crate) struct Memory {
    /// The region, until the memory is being closed.
    pub(crate) region: RefCell<Option<Region>>,
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) key: u64,
    pub(crate) is_remote: bool,
    /// The counter of peers' operations on this memory.
    pub(crate) counter: OnceCell<Rc<Counter>>,
    /// Whether peers have to report operations on the memory (`FI_RMA_EVENT`).
    pub(crate) is_noticed: Cell<bool>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes)", self.len)
    }
}

/// A key of a peer.
pub(crate) struct Known {
    pub(crate) key: RemoteKey,
    /// The remote address of the memory's first byte.
    pub(crate) base: u64,
    pub(crate) is_noticed: bool,
}

enum State {
    Asked,
    Refused,
    Ready(Rc<Known>),
}

/// The keys of a peer, by number.
#[derive(Default)]
pub(crate) struct Keys {
    known: HashMap<u64, State>,
    /// The key of the last operation.
    last: Option<(u64, Rc<Known>)>,
}

/// The result of looking for a key.
pub(crate) enum Found {
    Ready(Rc<Known>),
    /// The owner has to be asked.
    Missing,
    /// The owner has been asked, and has not replied.
    Asked,
    /// The owner has no such memory.
    Refused,
}

impl Keys {
    #[inline]
    pub(crate) fn find(&mut self, number: u64) -> Found {
        match &self.last {
            Some((last, known)) if *last == number => return Found::Ready(known.clone()),
            _ => {}
        }
        match self.known.get(&number) {
            Some(State::Ready(known)) => {
                let known = known.clone();
                self.last = Some((number, known.clone()));
                Found::Ready(known)
            }
            Some(State::Asked) => Found::Asked,
            Some(State::Refused) => {
                let _ = self.known.remove(&number);
                Found::Refused
            }
            None => Found::Missing,
        }
    }

    pub(crate) fn forget(&mut self, number: u64) {
        let _ = self.known.remove(&number);
        self.last = None;
    }

    fn set(&mut self, number: u64, state: State) {
        if self.known.len() >= KEPT {
            self.known.retain(|_, state| !matches!(state, State::Ready(_)));
            self.last = None;
        }
        let _ = self.known.insert(number, state);
    }
}

/// A request of a peer for the key of a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyRequest {
    from: PeerId,
    number: u64,
}

impl KeyRequest {
    pub(crate) fn of(message: &Message<'_>) -> KeyRequest {
        KeyRequest { from: message.peer(), number: message.header() }
    }
}

impl Ep {
    /// Asks the owner for the key of a number.
    pub(crate) fn ask_key(&self, address: u64, number: u64) -> Result<(), PostError> {
        let peers = self.peers.borrow();
        let peer = &peers[address as usize];
        let Some(endpoint) = peer.endpoint() else { return Ok(()) };
        let _ = endpoint.send(id::KEY, number, &[])?;
        one(&self.counts.keys);
        peer.keys.borrow_mut().set(number, State::Asked);
        Ok(())
    }

    /// Answers the requests of peers.
    pub(crate) fn answer_keys(&self) {
        let requests = self.requests.take();
        for request in requests {
            if self.answer(request) == Err(FI_EAGAIN) {
                self.requests.borrow_mut().push(request);
            }
        }
    }

    fn answer(&self, request: KeyRequest) -> Result<(), i32> {
        // A requester that has left needs no answer.
        let Ok(endpoint) = self.worker.endpoint_to(request.from) else { return Ok(()) };
        let reply = self.reply_to(request.number).unwrap_or_default();
        match endpoint.send(id::KEY_REPLY, request.number, &reply) {
            Err(PostError::Retry(_)) => Err(FI_EAGAIN),
            _ => Ok(()),
        }
    }

    fn reply_to(&self, number: u64) -> Option<Vec<u8>> {
        let memory = self.domain.memory.borrow().get(&number).cloned()?;
        let key = memory.region.borrow().as_ref()?.remote_key().ok()?;
        let is_virtual = self.domain.choices.virtual_addresses;
        let mut reply = vec![0; REPLY];
        let noticed = memory.is_noticed.get() || self.counts_peers();
        reply[0] = if noticed { NOTICED } else { 0 } | if is_virtual { VIRTUAL } else { 0 };
        let base = if is_virtual { memory.start as u64 } else { 0 };
        reply[8..REPLY].copy_from_slice(&base.to_le_bytes());
        reply.extend_from_slice(&key);
        Some(reply)
    }

    /// Handles the reply of an owner: the key, or nothing.
    pub(crate) fn key_arrived(&self, message: &Message<'_>) {
        let (number, source) = (message.header(), self.source_of(message.peer()));
        let (payload, from) = (message.payload(), message.peer());
        for peer in self.peers.borrow().iter().filter(|peer| peer.source == Some(source)) {
            let Some(endpoint) = peer.endpoint().filter(|it| it.peer() == from) else { continue };
            let mut keys = peer.keys.borrow_mut();
            if !matches!(keys.known.get(&number), Some(State::Asked)) {
                continue;
            }
            let known = payload.split_at_checked(REPLY).and_then(|(head, key)| {
                let key = endpoint.import_key(key).ok()?;
                let base = u64::from_le_bytes(head[8..].try_into().ok()?);
                Some(Rc::new(Known { key, base, is_noticed: head[0] & NOTICED != 0 }))
            });
            keys.set(number, known.map_or(State::Refused, State::Ready));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Found, KEPT, Keys, State};

    #[test]
    fn refused_key_is_asked_for_again() {
        let mut keys = Keys::default();
        assert!(matches!(keys.find(7), Found::Missing));
        keys.set(7, State::Asked);
        assert!(matches!(keys.find(7), Found::Asked));
        keys.set(7, State::Refused);
        assert!(matches!(keys.find(7), Found::Refused));
        assert!(matches!(keys.find(7), Found::Missing));
    }

    #[test]
    fn requests_are_kept_when_the_cache_is_emptied() {
        let mut keys = Keys::default();
        (0..=KEPT as u64).for_each(|number| keys.set(number, State::Asked));
        assert!(matches!(keys.find(0), Found::Asked));
    }
}
