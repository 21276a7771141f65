//! The peers of an endpoint: the addresses that it has used, and the senders of its messages.

use crate::address::{Source, Target};
use crate::endpoint::Ep;
use crate::keys::Keys;
use crate::place::Call;
use crate::status::Failed;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use tieline::{Endpoint, NameCall, PeerId};
use tieline_libfabric_abi::*;

/// The state of a peer.
enum State {
    /// Nothing was posted to the peer.
    New,
    /// The name is being fetched from its host and port.
    Called(Box<Call>),
    /// The name is being resolved.
    Asked(NameCall),
    Ready(Endpoint),
    Failed(Failed),
}

/// A peer, by its address in the vector.
pub(crate) struct Peer {
    state: State,
    pub(crate) source: Option<Source>,
    /// Messages that wait until the peer is resolved or has room, in order.
    pub(crate) waiting: RefCell<VecDeque<u32>>,
    pub(crate) keys: RefCell<Keys>,
    /// The number of posted atomics that have not completed.
    pub(crate) atomics: Cell<usize>,
    /// The number of masked swaps of which a step is posted.
    pub(crate) swaps: Rc<Cell<usize>>,
    /// The number of bytes that may be sent, if the receiver holds messages back (`flow`).
    pub(crate) credit: Cell<Option<u64>>,
    /// The kinds of messages of which the receiver was told since its last grant.
    pub(crate) told: Cell<u64>,
    /// No message waits, and none has to.
    pub(crate) is_clear: Cell<bool>,
}

impl Peer {
    fn new() -> Peer {
        Peer {
            state: State::New,
            source: None,
            waiting: RefCell::default(),
            keys: RefCell::default(),
            atomics: Cell::new(0),
            swaps: Rc::default(),
            credit: Cell::new(None),
            told: Cell::new(0),
            is_clear: Cell::new(true),
        }
    }

    /// Determines whether a message has to wait.
    pub(crate) fn set_clear(&self) {
        self.is_clear.set(self.credit.get().is_none() && self.waiting.borrow().is_empty());
    }

    /// Returns the endpoint if the peer is resolved.
    #[inline]
    pub(crate) fn endpoint(&self) -> Option<&Endpoint> {
        match &self.state {
            State::Ready(endpoint) => Some(endpoint),
            _ => None,
        }
    }

    /// Returns the failure of the resolution.
    pub(crate) fn failed(&self) -> Option<Failed> {
        match &self.state {
            State::Failed(failed) => Some(*failed),
            _ => None,
        }
    }

    /// Takes the endpoint and the keys of a peer that is not reachable any more. Dropping those of all addresses closes the endpoint.
    pub(crate) fn close(&mut self, failed: Failed) -> impl Sized + use<> {
        (std::mem::replace(&mut self.state, State::Failed(failed)), self.keys.take())
    }

    /// Returns the transports that carry the traffic with this peer.
    pub(crate) fn path(&self) -> Option<String> {
        self.endpoint().map(Endpoint::path)
    }
}

/// The state of a peer when an operation is posted.
pub(crate) enum Reached {
    Ready,
    /// The name is being resolved.
    Resolving,
}

impl Ep {
    /// Begins to resolve an address if that was not done.
    pub(crate) fn reach(&self, address: u64) -> Result<Reached, i32> {
        let index = usize::try_from(address).map_err(|_| FI_EINVAL)?;
        if let Some(peer) = self.peers.borrow().get(index) {
            match &peer.state {
                State::Ready(_) => return Ok(Reached::Ready),
                State::Called(_) | State::Asked(_) => return Ok(Reached::Resolving),
                State::Failed(failed) => return Err(failed.error),
                State::New => {}
            }
        }
        let av = self.av.get().ok_or(FI_EOPBADSTATE)?;
        let target = av.entry(address).ok_or(FI_EINVAL)?;
        let mut peers = self.peers.borrow_mut();
        while peers.len() <= index {
            peers.push(Peer::new());
        }
        match target {
            Target::Name(name, source) => {
                // Two addresses with one name share the endpoint: it needs no further lookup, and keeps the order of all messages.
                let first = usize::try_from(av.address_of(source)).ok();
                let known = first.and_then(|first| peers.get(first)?.endpoint());
                let known = known.and_then(|endpoint| self.worker.known_endpoint(endpoint.peer()));
                if let Some(endpoint) = known {
                    peers[index].state = State::Ready(endpoint);
                    peers[index].source = Some(source);
                    return Ok(Reached::Ready);
                }
                let call =
                    self.worker.ask_name(&name).map_err(|error| Failed::from(error).error)?;
                peers[index].state = State::Asked(call);
                peers[index].source = Some(source);
            }
            Target::Place(place) => peers[index].state = State::Called(Box::new(Call::new(place))),
        }
        self.resolving.borrow_mut().push(address);
        self.todo.set(true);
        Ok(Reached::Resolving)
    }

    /// Advances the resolution of names.
    pub(crate) fn resolve(&self) {
        let resolving = self.resolving.take();
        for address in resolving {
            if !self.resolve_one(address) {
                self.resolving.borrow_mut().push(address);
            }
        }
    }

    /// Advances one resolution, and returns whether it has ended.
    fn resolve_one(&self, address: u64) -> bool {
        let mut peers = self.peers.borrow_mut();
        let peer = &mut peers[address as usize];
        if let State::Called(call) = &mut peer.state {
            let Some(found) = call.advance() else { return false };
            let asked = found.and_then(|name| {
                peer.source = self.av.get().and_then(|av| av.resolved(address, name));
                self.worker.ask_name(&name).map_err(Failed::from)
            });
            peer.state = match asked {
                Ok(call) => State::Asked(call),
                Err(failed) => State::Failed(Failed { error: FI_EHOSTUNREACH, ..failed }),
            };
        }
        let State::Asked(call) = &peer.state else {
            drop(peers);
            self.send_waiting(address);
            return true;
        };
        let Some(answer) = call.test() else { return false };
        match answer {
            Ok(endpoint) => {
                let (number, source) = (endpoint.peer(), peer.source);
                peer.state = State::Ready(endpoint);
                drop(peers);
                if let Some(source) = source {
                    self.note_source(number, source);
                }
            }
            Err(error) => {
                crate::abi::warn(&error.to_string());
                let failed = Failed { error: FI_EHOSTUNREACH, ..Failed::from(error) };
                peer.state = State::Failed(failed);
                let source = peer.source;
                drop(peers);
                if let Some(source) = source {
                    self.source_ended(source, true);
                }
            }
        }
        self.send_waiting(address);
        true
    }

    /// Returns the sender at an address: the only one from which a receive accepts messages.
    pub(crate) fn only_source(&self, address: u64) -> Result<Option<Source>, i32> {
        let Some(av) = self.av.get() else { return Ok(None) };
        if let Some(source) = av.source(address) {
            return Ok(Some(source));
        }
        let _ = av.entry(address).ok_or(FI_EINVAL)?;
        let _ = self.reach(address)?;
        self.progress();
        Err(FI_EAGAIN)
    }

    /// Returns the source of a message.
    #[inline]
    pub(crate) fn source_of(&self, peer: PeerId) -> Source {
        let known = self.sources.borrow().get(peer.get() as usize).copied().flatten();
        known.unwrap_or_else(|| self.learn_source(peer))
    }

    #[cold]
    fn learn_source(&self, peer: PeerId) -> Source {
        let name = self.worker.name_of_peer(peer).ok().flatten();
        let mut names = self.domain.names.borrow_mut();
        let source = match name {
            Some(name) => names.number(name.as_bytes()),
            None => names.unnamed(),
        };
        drop(names);
        self.note_source(peer, source);
        source
    }

    fn note_source(&self, peer: PeerId, source: Source) {
        let mut sources = self.sources.borrow_mut();
        let index = peer.get() as usize;
        // The library counts its peers from 0, so the list has as many entries as there have been peers.
        if sources.len() <= index {
            sources.resize(index + 1, None);
        }
        sources[index] = Some(source);
    }

    /// Returns the address of a sender, if completions report it.
    #[inline]
    pub(crate) fn address_of(&self, source: Source) -> u64 {
        match (self.reports_source, self.av.get()) {
            (true, Some(av)) => av.address_of(source),
            _ => FI_ADDR_NOTAVAIL,
        }
    }

    /// Handles the end of a peer: receives that wait for it alone end.
    ///
    /// `returns`: the peer has only left, or a connection has failed, so a later message shows that it has connected again.
    pub(crate) fn peer_ended(&self, peer: PeerId, returns: bool) {
        let source = self.source_of(peer);
        self.source_ended(source, returns);
    }

    fn source_ended(&self, source: Source, returns: bool) {
        let mut dead = self.dead.borrow_mut();
        match dead.iter_mut().find(|dead| dead.0 == source) {
            Some(known) => known.1 &= returns,
            None => dead.push((source, returns)),
        }
        drop(dead);
        // Messages that were held back fail.
        self.end_hold(source);
        self.end_receives_from(source);
    }

    /// Notes that a peer has sent a message: a peer that had left has connected again.
    #[inline]
    pub(crate) fn revive(&self, source: Source) {
        if !self.dead.borrow().is_empty() {
            self.dead.borrow_mut().retain(|dead| *dead != (source, true));
        }
    }

    /// Checks whether the peer with this source has ended.
    pub(crate) fn is_dead(&self, source: Source) -> bool {
        let dead = self.dead.borrow();
        dead.iter().any(|dead| dead.0 == source)
    }
}
