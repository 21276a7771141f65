//! Order and completion: flush, fence, and the operations that they cover.
//!
//! A **flush** covers the endpoint's operations that are in the operation table at the time of the call, except rendezvous messages
//! that the transport has accepted. The table contains all operations that complete later, but no puts that have completed locally.
//! The lanes of those puts are flushed after every operation before the flush has ended; such an operation has been posted on some
//! lane by that point.
//!
//! A **fence** is weak if all operations in flight that the next operation could overtake are on a single lane, and that lane can
//! keep the order. The core then requests the lane to keep the order, and no operation waits. A later operation that takes another
//! route first makes the fence strong. A strong fence is a flush for which later operations wait in the queue. The endpoint's next
//! flush reports its failure.

use super::full_fence::full_fence;
use super::post::Posted;
use super::queued::QueuedOp;
use super::{EndpointState, ModulePair, State};
use crate::request::{Outcome, Request};
use crate::shared::Shared;
use crate::worker::WorkerState;
use crate::{Error, Status};
use std::rc::Rc;
use tieline_host::abi::RawEndpoint;
use tieline_order::{Fence, Id, Kind, way};
use tieline_plugin_api::{OK, caps};

impl EndpointState {
    /// Checks whether an operation may use these lanes, and records them. An operation that could overtake a weak fence makes the
    /// fence strong. `false`: the operation has to be queued after the fence. Open the operation after this call, because the fence
    /// waits for every operation that is open.
    #[inline]
    pub(super) fn may_go(&self, ways: u64) -> bool {
        if !self.order.passes(ways) {
            return self.make_fence_strong(ways);
        }
        self.order.note_posted(ways);
        true
    }

    #[cold]
    fn make_fence_strong(&self, ways: u64) -> bool {
        self.strong_fence();
        self.order.note_posted(ways);
        self.queue_len() == 0
    }

    /// Checks whether a queued operation may use this lane, which may differ from the lane for which it was queued. `false`: the
    /// operation has to wait, because an operation before the fence is still in flight on the lane that keeps the order.
    pub(super) fn may_leave(&self, request: Id, fenced: u64, way: u64) -> bool {
        let under_way = |rank: usize| {
            let interface = self.route.memory.get(rank).map(|pair| pair.interface);
            interface.is_some_and(|at| self.shared.ops.borrow().posted_before(request, at))
        };
        if fenced != way && way::lanes(fenced).any(under_way) {
            return false;
        }
        self.order.note_posted(way);
        true
    }

    pub(crate) fn flush(&self) -> Result<Outcome, Error> {
        self.check_alive()?;
        self.shared.check_no_handler("a flush")?;
        let late = self.take_late();
        if late.is_none() && !self.has_under_way() {
            return Ok(Outcome::Done(0));
        }
        let opened = self.shared.ops.borrow_mut().open(self.index, Kind::Flush);
        let id = match opened {
            Ok(id) => id,
            Err(status) => {
                // The next flush that can be posted reports this failure.
                self.give_back_late(late);
                return Err(status.into());
            }
        };
        self.begin_flush(id, late);
        let _ = run_due(&self.shared, &self.worker);
        if self.shared.ops.borrow().has_failed(id) {
            // The failure concerns an operation for which the flush waited; the flush's own result reports it.
            return Ok(Outcome::Pending(Request::new(self.shared.clone(), id)));
        }
        self.outcome(id)
    }

    /// Checks whether an operation of this endpoint is pending, apart from rendezvous messages.
    pub(super) fn has_pending(&self) -> bool {
        self.shared.ops.borrow().open_of(self.index) > 0
    }

    /// Takes the failure of an operation that no flush has reported.
    pub(crate) fn take_late(&self) -> Option<Error> {
        self.shared.ops.borrow_mut().take_late(self.index)
    }

    fn give_back_late(&self, late: Option<Error>) {
        if let Some(late) = late {
            self.shared.ops.borrow_mut().keep_late(self.index, late);
        }
    }

    /// Starts an opened flush, and determines its lanes.
    pub(super) fn begin_flush(&self, id: Id, late: Option<Error>) {
        let covered = self.order.cover();
        // Queued operations may complete locally on any lane.
        let lanes = if self.queue_len() > 0 { u64::MAX } else { covered };
        self.shared.with_ops(|ops| ops.start_flush(id, lanes, late));
    }

    /// Starts the flush of these lanes, each of which completes when its operations are complete at the target. `true`: no lane
    /// remains. `false`: a lane does not accept its flush at present, and `lanes` contains the lanes that remain.
    pub(super) fn flush_lanes(&self, request: Id, lanes: &mut u64) -> bool {
        for rank in way::lanes(*lanes) {
            let bit = way::lane(rank);
            let opened = self.shared.ops.borrow_mut().open_part(request, self.index, Kind::Native);
            let asked = opened.map(|ask| (ask, self.flush_lane(rank, ask)));
            if let Ok((ask, Ok(Posted::NoRoom))) = asked {
                self.shared.with_ops(|ops| ops.withdraw(ask));
                return false;
            }
            *lanes &= !bit;
            self.order.flushed(bit);
            self.shared.with_ops(|ops| match asked {
                Ok((ask, Ok(Posted::Pending))) => ops.asks(ask, bit),
                Ok((ask, Ok(_))) => drop(ops.part(ask, Ok(0))),
                Ok((ask, Err(error))) => {
                    ops.asks(ask, bit);
                    let _ = ops.part(ask, Err(error));
                }
                Err(status) => ops.spoil(request, status.into()),
            });
        }
        true
    }

    /// Starts the flush of one lane, as the operation `ask`.
    fn flush_lane(&self, rank: usize, ask: Id) -> Result<Posted, Error> {
        let pair = self.route.memory.get(rank).ok_or_else(|| Error::from_status(Status::Closed))?;
        // An interface out of use would never report the end of the flush.
        self.shared.interfaces[pair.interface].check_in_use()?;
        let lane = self.memory_lane(*pair).map_err(|error| match error.status() {
            // Operations that had completed locally may not have arrived: a connection that is only being formed has carried
            // nothing.
            Status::Again => Status::Closed.into(),
            _ => error,
        })?;
        let posted = self.posted(ask, pair.interface, lane.raw.flush(ask.raw()), 0);
        if matches!(posted, Ok(Posted::Pending)) {
            self.ask_for_others(ask, pair.interface, &lane.raw);
        }
        posted.map_err(|failed| self.failed(failed))
    }

    /// Shares the result of a connection's flush with the other endpoints that use the connection. The connection reports a failure
    /// only once, so their flushes wait for the same result.
    fn ask_for_others(&self, ask: Id, interface: usize, raw: &RawEndpoint) {
        // Other endpoints to workers of the same process may use a lane to their service worker.
        if self.lanes.has(interface, raw) && !self.worker.is_shared(self, interface) {
            return;
        }
        let all = self.worker.all_endpoints();
        let others = all.iter().filter(|one| one.index != self.index);
        ask_for(&self.shared, others, ask, interface, raw);
    }

    /// Returns the lane over an interface on which operations completed locally and for which this connection has not been flushed.
    fn unasked(&self, interface: usize, raw: &RawEndpoint) -> Option<u64> {
        let rank = self.route.memory.iter().position(|pair| pair.interface == interface)?;
        let bit = way::lane(rank);
        let mut leads = false;
        self.each_way(|one| leads |= one.lanes.has(interface, raw));
        (leads && self.order.unflushed() & bit != 0).then_some(bit)
    }

    /// Returns the circuits that have not been flushed for puts of this endpoint.
    pub(super) fn unasked_circuits(&self) -> Vec<u64> {
        let lanes = way::lanes(self.order.unflushed());
        let mut circuits = Vec::new();
        for pair in lanes.filter_map(|rank| self.route.memory.get(rank)) {
            self.each_way(|one| circuits.extend(self.worker.circuit_over(one, pair.interface)));
        }
        circuits
    }

    pub(super) fn fence(&self) -> Result<(), Error> {
        self.check_alive()?;
        // Operations that complete within their calls are in no table.
        full_fence();
        if !self.has_under_way() {
            self.order.clear();
            return Ok(());
        }
        if matches!(self.queue.entries().back(), Some(QueuedOp::Barrier { .. })) {
            return Ok(()); // nothing was posted since
        }
        match self.order.fence(self.queue_len() > 0) {
            Fence::Free => {} // messages only
            Fence::Lane(rank) if self.keeps_order_itself(rank) => self.order.rely_on(rank),
            Fence::Lane(_) | Fence::Strong => self.strong_fence(),
        }
        Ok(())
    }

    /// Requests the only lane with operations in flight to keep the order. `false`: the lane cannot keep the order.
    fn keeps_order_itself(&self, rank: usize) -> bool {
        // A lane that completes within the call ignores the order, so no such lane may be involved.
        let at_once = |pair: &ModulePair| {
            self.shared.interfaces[pair.interface].attr.caps & caps::SYNCHRONOUS != 0
        };
        if self.route.memory.len() > way::LAST_LANE || self.route.memory.iter().any(at_once) {
            return false;
        }
        let Some(pair) = self.route.memory.get(rank) else { return false };
        let Ok(lane) = self.memory_lane(*pair) else { return false };
        let code = lane.raw.fence();
        self.shared.interfaces[pair.interface].provider.heard(code);
        code == OK
    }

    /// Prepares for a flush of all lanes by the worker, while the queue is empty. Later posts take the slow path, which records
    /// them.
    pub(crate) fn watch_for_more(&self) {
        self.watched.set(true);
        if self.state.get() == State::Ready {
            self.state.set(State::Queueing);
        }
        // If the flush ends before it has flushed these lanes, the next flush has to include them.
        let _ = self.order.cover();
    }

    /// Checks whether an operation was posted since `watch_for_more` that no table contains: a message, or a put that completed
    /// locally. Answers to the peer do not count, because peers may send requests without end.
    pub(crate) fn has_sent_more(&self) -> bool {
        self.state.get() == State::Ready || self.order.local() != 0
    }

    /// Makes all later operations of this endpoint wait until the earlier ones are complete, apart from rendezvous messages.
    fn strong_fence(&self) {
        let opened = self.shared.ops.borrow_mut().open_late(self.index, Kind::Flush);
        self.order.clear();
        let Ok(request) = opened else {
            // The fence could not be opened, so no later operation of this endpoint may be posted: it could overtake earlier ones.
            return self.fail(Status::NoMemory.into());
        };
        self.begin_flush(request, None);
        if self.shared.ops.borrow().is_open(request) {
            self.post(QueuedOp::Barrier { request });
        }
    }
}

/// Flushes the lanes of each flush whose earlier operations have ended. Returns the number of these flushes.
#[cold]
pub(crate) fn run_due(shared: &Shared, worker: &WorkerState) -> usize {
    let mut count = 0;
    loop {
        let due = shared.ops.borrow_mut().take_due();
        let Some((request, owner, lanes)) = due else { return count };
        count += 1;
        let Some(endpoint) = worker.endpoint_at(owner) else {
            shared.part(request, Err(Status::Closed.into()));
            continue;
        };
        // The queue may have carried out operations that completed within their calls.
        full_fence();
        let mut left = endpoint.order.unflushed() & lanes;
        if endpoint.flush_lanes(request, &mut left) {
            shared.part(request, Ok(0));
        } else {
            // The lane does not accept the flush yet.
            endpoint.put_first(QueuedOp::FlushLanes { request, lanes: left });
        }
    }
}

/// Passes the result of a connection's flush on to these endpoints, if they have locally completed operations on that connection
/// that no flush has checked.
pub(crate) fn ask_for<'a>(
    shared: &Shared,
    endpoints: impl Iterator<Item = &'a Rc<EndpointState>>,
    ask: Id,
    interface: usize,
    raw: &RawEndpoint,
) {
    for endpoint in endpoints.filter(|endpoint| endpoint.is_alive()) {
        let Some(lane) = endpoint.unasked(interface, raw) else { continue };
        if shared.with_ops(|ops| ops.asks_for(ask, endpoint.index, lane)) {
            endpoint.order.flushed(lane);
        }
    }
}
