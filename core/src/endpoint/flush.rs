//! Order and completion: flush, fence, and the operations that they cover.
//!
//! A **flush** covers the endpoint's operations that are in the operation table at the time of the call, except rendezvous messages
//! that the transport has accepted. These include those of the endpoint to the peer's service worker. The table contains all
//! operations that complete later, but no puts that have completed locally. The lanes of those puts are flushed after every
//! operation before the flush has ended; such an operation has been posted on some lane by that point.
//!
//! A **fence** is weak if all operations in flight that the next operation could overtake are on a single lane, and that lane can
//! keep the order. The core then requests the lane to keep the order, and no operation waits. A later operation that takes another
//! route first makes the fence strong. A strong fence is a flush for which later operations wait in the queue. The endpoint's next
//! flush reports its failure.

use super::post::Posted;
use super::queued::QueuedOp;
use super::{EndpointState, ModulePair, State};
use crate::op::{Fence, Id, Kind, way};
use crate::registry::abi::RawEndpoint;
use crate::request::{Outcome, Request};
use crate::shared::Shared;
use crate::worker::WorkerState;
use crate::{Error, Status};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tieline_plugin_api::{OK, caps};

/// The time for which the peer's own worker serves requests after its service worker could not be reached. A service worker that
/// has ended is not tried again.
const UNSERVED: Duration = Duration::from_secs(60);

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

    /// Checks whether an operation of this endpoint, or of its endpoint to the service worker, is pending, apart from rendezvous
    /// messages.
    pub(super) fn has_pending(&self) -> bool {
        let ops = self.shared.ops.borrow();
        let of_control = |control: Rc<EndpointState>| ops.open_of(control.index) > 0;
        ops.open_of(self.index) > 0 || self.open_control().is_some_and(of_control)
    }

    /// Takes the failure of an operation that no flush has reported.
    pub(crate) fn take_late(&self) -> Option<Error> {
        let mut ops = self.shared.ops.borrow_mut();
        let own = ops.take_late(self.index);
        own.or_else(|| ops.take_late(self.open_control()?.index))
    }

    fn give_back_late(&self, late: Option<Error>) {
        if let Some(late) = late {
            self.shared.ops.borrow_mut().keep_late(self.index, late);
        }
    }

    /// Starts an opened flush: determines its lanes, and makes it wait for the operations to the peer's service worker.
    fn begin_flush(&self, id: Id, late: Option<Error>) {
        let covered = self.order.cover();
        // Queued operations may complete locally on any lane.
        let lanes = if self.queue_len() > 0 { u64::MAX } else { covered };
        self.wait_for_control(id);
        self.shared.with_ops(|ops| ops.start_flush(id, lanes, late));
    }

    /// Starts the flush of these lanes, each of which completes when its operations are complete at the target. `true`: no lane
    /// remains. `false`: a lane does not accept its flush at present, and `lanes` contains the lanes that remain.
    pub(super) fn flush_lanes(&self, request: Id, lanes: &mut u64) -> bool {
        for rank in way::lanes(*lanes) {
            let bit = way::lane(rank);
            let opened = self.shared.ops.borrow_mut().open_part(request, self.index, Kind::Native);
            let asked = match opened {
                Ok(ask) => self.flush_lane(rank, ask).map(|posted| (ask, posted)),
                Err(status) => Err(status.into()),
            };
            if let Ok((ask, Posted::NoRoom)) = asked {
                self.shared.with_ops(|ops| ops.withdraw(ask));
                return false;
            }
            *lanes &= !bit;
            self.order.flushed(bit);
            self.shared.with_ops(|ops| match (opened, asked) {
                (Ok(ask), Ok((_, Posted::Pending))) => ops.asks(ask, bit),
                (Ok(ask), Ok(_)) => drop(ops.part(ask, Ok(0))),
                (Ok(ask), Err(error)) => {
                    ops.asks(ask, bit);
                    let _ = ops.part(ask, Err(error));
                }
                (Err(_), Err(error)) => ops.spoil(request, error),
                (Err(_), Ok(_)) => {}
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
            Status::Again => {
                let past = self.past_controls.borrow();
                past.last().map_or(Status::Closed.into(), |control| control.dead_error())
            }
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
        let shared = |one: &EndpointState| self.worker.is_shared(one, interface);
        let past = self.past_controls.borrow();
        if !shared(self) && !self.open_control().iter().chain(past.iter()).any(|one| shared(one)) {
            return;
        }
        drop(past);
        let all = self.worker.all_endpoints();
        ask_for(
            &self.shared,
            all.iter().filter(|one| one.index != self.index),
            ask,
            interface,
            raw,
        );
    }

    /// Returns the lane over an interface on which operations completed locally and for which this connection has not been flushed.
    fn unasked(&self, interface: usize, raw: &RawEndpoint) -> Option<u64> {
        let rank = self.route.memory.iter().position(|pair| pair.interface == interface)?;
        let bit = way::lane(rank);
        let noted = self.order.unflushed() & bit != 0;
        let past = self.past_controls.borrow();
        let leads = |one: &EndpointState| one.is_own(interface, raw);
        let there = noted
            && (leads(self) || self.open_control().iter().chain(past.iter()).any(|one| leads(one)));
        there.then_some(bit)
    }

    /// Returns the circuits that have not been flushed for puts of this endpoint.
    pub(super) fn unasked_circuits(&self) -> Vec<u64> {
        let lanes = way::lanes(self.order.unflushed());
        let interfaces = lanes.filter_map(|rank| Some(self.route.memory.get(rank)?.interface));
        let past = self.past_controls.borrow();
        let control = self.open_control();
        let over = |interface: usize| {
            let ways = std::iter::once(self).chain(control.iter().chain(past.iter()).map(|c| &**c));
            ways.filter_map(move |one| self.worker.circuit_over(one, interface)).collect::<Vec<_>>()
        };
        interfaces.flat_map(over).collect()
    }

    pub(super) fn fence(&self) -> Result<(), Error> {
        self.check_alive()?;
        if !self.has_under_way() {
            self.order.clear();
            return Ok(());
        }
        if matches!(self.queue.borrow().back(), Some(QueuedOp::Barrier { .. })) {
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

    /// Returns the circuits among the lanes that operations of this endpoint use, including lanes to the peer's service worker.
    /// Circuits belong to the worker and may outlive this endpoint.
    pub(super) fn all_circuits(&self) -> Vec<u64> {
        let mut circuits = self.worker.circuits_of(self);
        let past = self.past_controls.borrow();
        for control in self.open_control().iter().chain(past.iter()) {
            circuits.extend(self.worker.circuits_of(control));
        }
        circuits
    }

    /// Returns the endpoint for emulated operations: that to the peer's service worker if there is one; `None` for the peer's own
    /// worker.
    pub(crate) fn control(&self) -> Result<Option<Rc<EndpointState>>, Error> {
        let address = self.address.service_address().filter(|_| self.has_service());
        let Some(address) = address else { return Ok(None) };
        let there = self.open_control();
        if let Some(control) = there.filter(|control| control.is_alive() || !self.is_alive()) {
            return Ok(Some(control));
        }
        // A failed endpoint is replaced: its operations have ended, and the route may work again.
        let control = match self.worker.clone().connect_internal(address) {
            Err(error) if ends_service(&error) => {
                self.unserved.set(Some(Instant::now()));
                return Ok(None);
            }
            opened => opened?,
        };
        self.unserved.set(None);
        control.user.set(Some(self.index));
        let failed = self.control.replace(Some(control.clone()));
        if let Some(failed) = failed {
            self.shared.ops.borrow_mut().inherit(failed.index, self.index);
            // The lanes of the failed endpoint stay open for the keys that use them.
            if failed.reaches_memory.get() {
                self.past_controls.borrow_mut().push(failed);
            }
        }
        Ok(Some(control))
    }

    /// Checks whether the peer has a service worker that is not known to be unreachable. The peer's progress thread may stop while
    /// the service worker's address is still in circulation.
    pub(super) fn has_service(&self) -> bool {
        if self.address.service.is_none() {
            return false;
        }
        let error = self.open_control().and_then(|control| control.error.borrow().clone());
        let ended = error.filter(|error| self.is_alive() && ends_service(error));
        match (self.unserved.get(), ended) {
            // A service worker that was only unreachable may become reachable again.
            (Some(since), error) => {
                since.elapsed() > UNSERVED
                    && error.is_none_or(|error| error.status() == Status::Unreachable)
            }
            (None, Some(_)) => {
                self.unserved.set(Some(Instant::now()));
                false
            }
            (None, None) => true,
        }
    }

    /// Handles the failure of the endpoint to the peer's service worker, or the loss of its lanes over one interface. Operations in
    /// flight on these lanes end. Operations that had completed locally on them may not have arrived, and the replacement has no
    /// record of them.
    pub(super) fn control_failed(
        &self,
        control: &EndpointState,
        only: Option<usize>,
        error: &Error,
    ) {
        let through = |pair: &ModulePair| {
            only.is_none_or(|only| only == pair.interface) && self.pair_of(control, pair).is_some()
        };
        for pair in self.route.memory.iter().filter(|pair| through(pair)) {
            let interface = pair.interface;
            let ended = self.shared.with_ops(|ops| ops.fail_posted(self.index, interface, error));
            self.hold(ended);
        }
        let lost = |lanes: u64| {
            let pair = |rank: usize| self.route.memory.get(rank);
            let ranks = way::lanes(lanes).filter(|rank| pair(*rank).is_some_and(through));
            ranks.fold(0, |lost, rank| lost | way::lane(rank))
        };
        let local = lost(self.order.local());
        let gone = lost(self.order.unflushed());
        self.order.flushed(gone);
        let mut ops = self.shared.ops.borrow_mut();
        for op in self.queue.borrow_mut().iter_mut() {
            match op {
                QueuedOp::FlushLanes { lanes, .. } => *lanes &= !lost(*lanes),
                QueuedOp::Notify { lanes: Some(lanes), request, .. } if lost(*lanes) != 0 => {
                    *lanes &= !lost(*lanes);
                    ops.spoil(*request, error.clone());
                }
                // This notification has yet to determine the lanes to flush, and would not find the lost lanes.
                QueuedOp::Notify { lanes: None, request, .. } if gone != 0 => {
                    ops.spoil(*request, error.clone());
                }
                _ => {}
            }
        }
        if gone != 0 {
            let told = ops.lost_lanes(self.index, gone, error);
            // An open flush may be older than operations that no flush covers, so the next flush reports the error, too.
            if !told || local != 0 {
                ops.keep_late(self.index, error.clone());
            }
        }
    }
}

/// Checks whether this error means that the service worker has ended or cannot be reached.
pub(super) fn ends_service(error: &Error) -> bool {
    matches!(error.status(), Status::Closed | Status::PeerFailed | Status::Unreachable)
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

#[cfg(test)]
mod tests {
    use crate::Context;
    use tieline_testing::Wait;

    #[test]
    fn idle_service_endpoint_leaves_nothing_pending() {
        let open = |progress_thread: &str| {
            let context = Context::builder().set("TIELINE_PROVIDERS", "shm");
            context.set("TIELINE_PROGRESS_THREAD", progress_thread).open().unwrap()
        };
        let (here, there) = (open("0"), open("1"));
        let (worker, target) = (here.worker().unwrap(), there.worker().unwrap());
        let (source, region) = (here.alloc(64).unwrap(), there.register(vec![0; 64]).unwrap());
        let endpoint = worker.connect(&target.address().unwrap()).unwrap();
        let key = endpoint.import_key(&region.remote_key().unwrap()).unwrap();
        let put = endpoint.put(&source, 0..64, &key, 0).unwrap();
        assert!(!put.is_done() && endpoint.inner.has_pending(), "{}", key.path());
        let _ = worker.finish(put).unwrap();
        let control = endpoint.inner.open_control().expect("a peer with a progress thread");
        let wait = Wait::new("the end of all to the service worker");
        while worker.inner.shared.ops.borrow().open_of(control.index) > 0 {
            wait.goes_on();
            let _ = worker.progress();
        }
        assert!(!endpoint.inner.has_pending());
        // The fence completes immediately, so that no order has to be kept.
        endpoint.fence().unwrap();
        assert_eq!(endpoint.inner.order.posted(), 0);
    }
}
