//! The helping side of a copy that two peers share; see [`crate::proto::shared_copy`].

use crate::endpoint::{AtomicOp, Endpoint, RemoteKey, Width};
use crate::proto::emulate::Target;
use crate::proto::shared_copy::{
    CLAIMS, Claims, FINISHED, Plan, SLOT_BYTES, TROUBLE, parse_request,
};
use crate::region::{Access, Table};
use crate::request::Outcome;
use crate::{PostError, Status};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use tieline_order::admission::Refused;

/// The maximum number of attempts to copy a piece in one progress call, for all requesters together, so that the call's other work
/// continues.
const HELP_AT_ONCE: usize = 8;

/// The maximum number of imported keys that are kept.
const MOST_KEYS: usize = 16;

/// A peer's transfer of which this worker copies a part.
struct Help {
    /// The requester's number on this worker.
    peer: u32,
    plan: Plan,
    control: RemoteKey,
    memory: RemoteKey,
}

/// The transfers with which a worker helps. Pieces are copied and keys imported while nothing is borrowed: the import of a key may
/// call the application's `oob`, which may drop the worker.
#[derive(Default)]
pub(super) struct Helps {
    /// Whether the worker has ended, so that nothing is kept any more.
    is_closed: Cell<bool>,
    /// The transfers, at most one for each peer and slot: an earlier request for the same slot has ended.
    all: RefCell<VecDeque<Help>>,
    /// The imported keys that were used last, at most [`MOST_KEYS`].
    keys: RefCell<Vec<(u32, Vec<u8>, RemoteKey)>>,
}

impl Helps {
    pub(super) fn is_empty(&self) -> bool {
        self.all.borrow().is_empty()
    }

    pub(super) fn close(&self) {
        self.is_closed.set(true);
        // Dropping a key may drop the last handle of an endpoint, and with it memory of the application.
        drop((self.all.take(), self.keys.take()));
    }

    /// Handles a peer's request for help; `endpoint` leads to the peer. Help is optional: if a condition is not met, the peer
    /// copies the whole transfer itself.
    pub(super) fn ask(
        &self,
        peer: u32,
        request: &[u8],
        endpoint: impl FnOnce() -> Option<Endpoint>,
    ) -> Result<(), Status> {
        let (plan, control, memory) = parse_request(request)?;
        let Some(endpoint) = endpoint() else { return Ok(()) };
        let (Some(control), Some(memory)) = (
            self.imported(&endpoint, peer, control, true),
            self.imported(&endpoint, peer, memory, false),
        ) else {
            return Ok(());
        };
        self.add(Help { peer, plan, control, memory });
        Ok(())
    }

    /// Adds a request. An earlier request of the same peer for the same slot has ended, because the peer uses the slot again.
    fn add(&self, help: Help) {
        if self.is_closed.get() {
            return;
        }
        let before = {
            let mut all = self.all.borrow_mut();
            let same = |h: &Help| (h.peer, h.plan.slot) == (help.peer, help.plan.slot);
            let before = all.iter().position(same).and_then(|at| all.remove(at));
            all.push_back(help);
            before
        };
        drop(before);
    }

    /// Returns a peer's key, imported now or before; `None` while the key has no suitable native path.
    fn imported(
        &self,
        endpoint: &Endpoint,
        peer: u32,
        bytes: &[u8],
        control: bool,
    ) -> Option<RemoteKey> {
        let key = match self.known(endpoint, peer, bytes) {
            Some(key) => key,
            None => {
                let key = endpoint.import_key(bytes).ok()?;
                self.keep(peer, bytes, &key);
                key
            }
        };
        let native = key.inner.native_now()?;
        let fits = if control { native.maps_memory() } else { native.copies_between_processes() };
        fits.then_some(key)
    }

    /// Returns a peer's key that was imported before.
    fn known(&self, endpoint: &Endpoint, peer: u32, bytes: &[u8]) -> Option<RemoteKey> {
        let mut keys = self.keys.borrow_mut();
        let index = keys.iter().position(|(p, b, key)| {
            *p == peer && b == bytes && Rc::ptr_eq(&key.inner.endpoint, &endpoint.inner)
        })?;
        keys[index..].rotate_left(1);
        keys.last().map(|(_, _, key)| key.clone())
    }

    /// Keeps an imported key for the next request. The least recently used key is evicted first. Each transfer has its own memory
    /// key, and all share one key of the slots.
    fn keep(&self, peer: u32, bytes: &[u8], key: &RemoteKey) {
        if self.is_closed.get() {
            return;
        }
        let gone = {
            let mut keys = self.keys.borrow_mut();
            let gone = (keys.len() >= MOST_KEYS).then(|| keys.remove(0));
            keys.push((peer, bytes.to_vec(), key.clone()));
            gone
        };
        // This key may hold the last handle of its endpoint.
        drop(gone);
    }

    /// Helps the requesters in order, with a bounded number of attempts for all of them together. Returns the number of requests
    /// handled and the number of chunks copied.
    pub(super) fn run(&self, regions: &Table) -> (usize, u64) {
        let (mut left, mut count, mut chunks) = (HELP_AT_ONCE, 0, 0);
        let waiting = self.all.borrow().len();
        for _ in 0..waiting {
            let Some(help) = self.all.borrow_mut().pop_front() else { break };
            count += 1;
            if copy(regions, &help, &mut left, &mut chunks) {
                self.all.borrow_mut().push_back(help);
            }
            if left == 0 {
                break;
            }
        }
        (count, chunks)
    }
}

/// Copies chunks from the back, in at most `left` attempts; `true`: chunks may remain.
fn copy(regions: &Table, help: &Help, left: &mut usize, chunks: &mut u64) -> bool {
    let endpoint = Endpoint::internal(help.memory.inner.endpoint.clone());
    if endpoint.inner.check_alive().is_err() {
        return false;
    }
    let plan = &help.plan;
    let base = u64::from(plan.slot) * SLOT_BYTES as u64;
    let at = |word: usize| base + word as u64;
    let done_now = |outcome: Result<Outcome, PostError>| match outcome {
        Ok(Outcome::Done(value)) => Some(value),
        _ => None,
    };
    while *left > 0 {
        *left -= 1;
        let read = endpoint.fetch(AtomicOp::Or, Width::Bits64, &help.control, at(CLAIMS), 0);
        let Some(seen) = done_now(read) else { return false };
        let claims = Claims::unpack(seen);
        if claims.sequence != plan.sequence {
            return false;
        }
        let Some((run, next)) = claims.take_back(plan.chunks()) else { return false };
        let swapped =
            endpoint.compare_swap(Width::Bits64, &help.control, at(CLAIMS), seen, next.pack());
        match done_now(swapped) {
            Some(before) if before == seen => {}
            Some(_) => continue,
            None => return false,
        }
        let (from, n) = plan.piece(run);
        let needed = if plan.put { Access::WRITE } else { Access::READ };
        let target = Target { offset: plan.target.offset.saturating_add(from), ..plan.target };
        let copied = target.reach(regions, n, needed, |bytes, offset| {
            let base = bytes.span().range(offset, n as usize)?;
            // The peer chose the position in its memory, so the sum may overflow.
            let at = plan.at.checked_add(from).ok_or(Status::OutOfRange)?;
            // A put of the peer is a get for this side.
            let needed = if plan.put { Access::READ } else { Access::WRITE };
            let granted = help.memory.inner.record.grant().check(needed.bits(), at, n);
            granted.map_err(Refused::status)?;
            help.memory.inner.copy(None, !plan.put, base, n as usize, at)
        });
        let (word, by) = if copied.is_ok() { (FINISHED, run.count) } else { (TROUBLE, 1) };
        let told = endpoint.fetch(AtomicOp::Add, Width::Bits64, &help.control, at(word), by);
        if done_now(told).is_none() || copied.is_err() {
            return false;
        }
        *chunks += run.count;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Context;

    #[test]
    fn a_key_that_a_peer_sends_again_is_not_imported_again() {
        let context = Context::builder().set("TIELINE_PROVIDERS", "shm,shm-cma").open().unwrap();
        let worker = context.worker().unwrap();
        let endpoint = worker.connect(&worker.address().unwrap()).unwrap();
        let [one, other] =
            [64, 128].map(|len| context.alloc(len).unwrap().remote_key().unwrap().to_vec());
        let helps = Helps::default();
        let count = |peer, key: &[u8]| {
            let _ = helps.imported(&endpoint, peer, key, false);
            helps.keys.borrow().len()
        };
        assert_eq!([count(1, &one), count(1, &one), count(1, &other)], [1, 1, 2]);
        // The same key of another peer is separate, because its connection may fail separately.
        assert_eq!([count(2, &one), count(1, &one), count(2, &one)], [3, 3, 3]);
        // The application may drop the worker during an import: the key then keeps no endpoint.
        helps.close();
        assert_eq!([count(1, &one), count(3, &other)], [0, 0]);
    }
}
