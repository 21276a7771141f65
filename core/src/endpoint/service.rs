//! The lane to a peer's service worker, which executes emulated operations while the peer's own worker computes.
//!
//! All endpoints to workers of one process share this lane. Each endpoint keeps its own requests until the lane accepts them. If the
//! service worker is gone before the lane was connected, the endpoint sends its requests to the peer's own worker instead. Modules
//! that need the target's progress also reach the peer's memory over connections of this lane.

use super::queued::{Failed, QueuedOp};
use super::{EndpointState, ModulePair, State};
use crate::address::WorkerAddress;
use crate::worker::WorkerState;
use crate::{Error, Status};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};
use tieline_host::abi::RawEndpoint;
use tieline_order::way;

/// The time for which the peer's own worker serves requests after its service worker could not be reached. A service worker that
/// has ended is not tried again.
const UNSERVED: Duration = Duration::from_secs(60);

/// A peer's service worker, as the endpoints to the workers of its process use it.
pub(crate) struct ServiceWorker {
    address: WorkerAddress,
    /// The endpoint to the service worker, once it was made. A failed one stays until it is replaced.
    endpoint: RefCell<Option<Rc<EndpointState>>>,
    /// The time since which the service worker is not reached, and whether it may become reachable again.
    unserved: Cell<Option<(Instant, bool)>>,
}

impl ServiceWorker {
    pub(crate) fn new(address: WorkerAddress) -> ServiceWorker {
        ServiceWorker { address, endpoint: RefCell::default(), unserved: Cell::new(None) }
    }

    /// Checks whether the service worker is not known to be unreachable. The peer's progress thread may stop while the service
    /// worker's address is still in circulation.
    fn serves(&self) -> bool {
        self.unserved.get().is_none_or(|(since, returns)| returns && since.elapsed() > UNSERVED)
    }

    /// Records an error of the connection to the service worker.
    fn lost(&self, error: &Error) {
        if ends_service(error) {
            let returns = error.status() == Status::Unreachable;
            self.unserved.set(Some((Instant::now(), returns)));
        }
    }

    /// Returns the endpoint to the service worker, made if necessary; `None` if the service worker cannot be reached.
    fn open(self: &Rc<Self>, worker: &Rc<WorkerState>) -> Result<Option<Rc<EndpointState>>, Error> {
        if !self.serves() {
            return Ok(None);
        }
        let known = self.endpoint.borrow().clone();
        if let Some(endpoint) = known.filter(|endpoint| endpoint.is_alive()) {
            return Ok(Some(endpoint));
        }
        let endpoint = match worker.clone().connect_internal(self.address.clone()) {
            Err(error) if ends_service(&error) => {
                self.lost(&error);
                return Ok(None);
            }
            opened => opened?,
        };
        self.unserved.set(None);
        let _ = endpoint.leads_to.set(Rc::downgrade(self));
        // The operations of a failed endpoint have ended, and the route may work again.
        let failed = self.endpoint.replace(Some(endpoint.clone()));
        drop(failed);
        Ok(Some(endpoint))
    }
}

/// Checks whether this error means that the service worker has ended or cannot be reached.
fn ends_service(error: &Error) -> bool {
    matches!(error.status(), Status::Closed | Status::PeerFailed | Status::Unreachable)
}

impl EndpointState {
    fn service_worker(&self) -> Option<&Rc<ServiceWorker>> {
        if self.address.service.is_some() && self.service_worker.get().is_none() {
            let address = self.address.service_address()?;
            let _ = self.service_worker.set(self.worker.service_worker(address));
        }
        self.service_worker.get()
    }

    /// Checks whether the peer has a service worker that is not known to be unreachable.
    pub(super) fn has_service(&self) -> bool {
        self.service_worker().is_some_and(|service| service.serves())
    }

    /// Returns the endpoint to the peer's service worker; `None` if the peer's own worker executes emulated operations.
    pub(crate) fn service(&self) -> Result<Option<Rc<EndpointState>>, Error> {
        self.service_worker().map_or(Ok(None), |service| service.open(&self.worker))
    }

    /// Returns the endpoint to the peer's service worker, if one was made; it may have failed.
    pub(crate) fn open_service(&self) -> Option<Rc<EndpointState>> {
        self.service_worker.get()?.endpoint.borrow().clone()
    }

    /// Calls a function with this endpoint, and with the endpoint to the peer's service worker.
    pub(super) fn each_way(&self, mut each: impl FnMut(&EndpointState)) {
        each(self);
        self.open_service().iter().for_each(|service| each(service));
    }

    /// Returns the endpoint for emulated operations, with an open or forming message lane: that to the peer's service worker, or
    /// `None` for this one.
    pub(super) fn emulates(&self) -> Result<Option<Rc<EndpointState>>, Error> {
        let there = self.service()?;
        // This call may be the first to find that the service worker is gone.
        if there.as_ref().is_some_and(|service| service.ready_or_opened().is_ok()) {
            return Ok(there);
        }
        let service = self.service()?;
        service.as_deref().unwrap_or(self).check_alive()?;
        Ok(service)
    }

    /// Posts a request of emulation to the peer's service worker, if there is one. Returns an entry that this endpoint sends itself.
    pub(super) fn pass_on(&self, op: QueuedOp) -> Option<QueuedOp> {
        if !op.is_emulated() || !self.is_alive() || !self.has_service() {
            return Some(op);
        }
        self.requests.push_back(op);
        if self.requests.len() > 1 || self.run_requests(1).1 {
            self.count(|counters| counters.queued += 1);
            self.worker.make_busy(self);
        }
        None
    }

    /// Sends up to `budget` requests to the peer's service worker; returns the number done and whether some remain.
    pub(super) fn run_requests(&self, budget: usize) -> (usize, bool) {
        let mut done = 0;
        while done < budget && self.requests.len() > 0 {
            // The requests stay in the queue meanwhile: connecting may call the application, whose requests follow them.
            let service = match self.emulates() {
                Ok(Some(service)) if service.state.get() == State::Ready => Ok(service),
                Ok(Some(_)) => break,
                Ok(None) => {
                    self.take_over_requests();
                    break;
                }
                Err(error) => Err(error),
            };
            let Some(mut op) = self.requests.pop_front() else { break };
            let sent = service.and_then(|service| self.request_over(&service, &mut op));
            if let Ok(false) = sent {
                self.requests.push_front(op);
                break;
            }
            done += 1;
            match sent {
                Ok(_) => self.left(&op),
                Err(error) => self.end_entry(&op, error),
            }
        }
        (done, self.requests.len() > 0)
    }

    /// Sends the part of a request that the lane to the service worker accepts.
    fn request_over(&self, service: &EndpointState, op: &mut QueuedOp) -> Result<bool, Error> {
        let sent = service.attempt(op);
        if sent == Ok(true) || !op.is_emulated() {
            let answered = op.unsaid().or(op.request());
            answered.iter().for_each(|id| self.shared.ops.borrow_mut().carry(*id, service.index));
        }
        sent.map_err(|failed: Failed| service.failed(failed))
    }

    /// Queues the requests ahead of the other operations of this endpoint, which may wait for them: the peer's service worker is
    /// gone, and nothing was sent to it.
    fn take_over_requests(&self) {
        self.requests.take().into_iter().rev().for_each(|op| self.put_first(op));
    }

    /// Returns the endpoints that use this endpoint to a peer's service worker.
    pub(crate) fn users(&self) -> Vec<Rc<EndpointState>> {
        let Some(service) = self.leads_to.get().and_then(Weak::upgrade) else { return Vec::new() };
        let mut users = self.worker.all_endpoints();
        let uses = |user: &Rc<ServiceWorker>| Rc::ptr_eq(user, &service);
        users.retain(|user| user.is_alive() && user.service_worker.get().is_some_and(uses));
        users
    }

    /// Ends the operations of other endpoints that this endpoint to a service worker carries. `unsent`: nothing was sent, so requests
    /// wait for another route.
    pub(super) fn fail_users(&self, unsent: bool, error: &Error) {
        let Some(service) = self.leads_to.get().and_then(Weak::upgrade) else { return };
        service.lost(error);
        let unsent = unsent && ends_service(error);
        self.lost_nothing.set(unsent);
        for user in self.users() {
            if !unsent {
                let carried =
                    self.shared.with_ops(|ops| ops.fail_carried(user.index, self.index, error));
                user.hold(carried);
                let requests = user.requests.take();
                requests.iter().for_each(|op| user.end_entry(op, error.clone()));
            }
            user.lost_lanes(self, None, error);
        }
    }

    /// Returns the lane of the endpoint to the peer's service worker over the same interface, if that worker serves it.
    pub(super) fn pair_of(&self, service: &EndpointState, pair: &ModulePair) -> Option<ModulePair> {
        let serves = self.needs_progress(pair.interface);
        let same = |other: &&ModulePair| serves && other.interface == pair.interface;
        service.route.memory.iter().find(same).copied()
    }

    /// Handles the loss of lanes to memory of the endpoint to the peer's service worker: of all lanes, or of those over one interface.
    /// Operations in flight on these lanes end. Operations that had completed locally on them may not have arrived, and the
    /// replacement has no record of them.
    pub(super) fn lost_lanes(&self, service: &EndpointState, only: Option<usize>, error: &Error) {
        if !self.reaches_memory.get() {
            return;
        }
        let is_lost = |interface: usize, raw: &RawEndpoint| {
            only.is_none_or(|only| only == interface) && service.lanes.has(interface, raw)
        };
        self.live_keys().iter().for_each(|key| key.let_go_of(is_lost));
        let mut lost = 0;
        for (rank, pair) in self.route.memory.iter().enumerate() {
            let over = only.is_none_or(|only| only == pair.interface);
            if over && self.pair_of(service, pair).is_some() {
                lost |= way::lane(rank);
                let failed = |ops: &mut tieline_order::Table<_>| {
                    ops.fail_posted(self.index, pair.interface, error)
                };
                let ended = self.shared.with_ops(failed);
                self.hold(ended);
            }
        }
        let local = self.order.local() & lost;
        let gone = self.order.unflushed() & lost;
        self.order.flushed(gone);
        let mut ops = self.shared.ops.borrow_mut();
        self.queue.change(|op| match op {
            QueuedOp::FlushLanes { lanes, .. } => *lanes &= !lost,
            // A notification that has yet to determine the lanes to flush would not find the lost lanes.
            QueuedOp::Notify { lanes, request, .. } => {
                if lanes.unwrap_or(gone) & lost != 0 {
                    ops.spoil(*request, error.clone());
                }
                *lanes = lanes.map(|lanes| lanes & !lost);
            }
            _ => {}
        });
        if gone != 0 {
            drop(ops);
            self.worker.spoil_notices(self.index, error);
            let mut ops = self.shared.ops.borrow_mut();
            let told = ops.lost_lanes(self.index, gone, error);
            // An open flush may be older than operations that no flush covers, so the next flush reports the error, too.
            if !told || local != 0 {
                ops.keep_late(self.index, error.clone());
            }
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
        assert!(endpoint.inner.open_service().is_some(), "a peer with a progress thread");
        let wait = Wait::new("the end of all to the service worker");
        while worker.inner.shared.ops.borrow().open_of(endpoint.inner.index) > 0 {
            wait.goes_on();
            let _ = worker.progress();
        }
        assert!(!endpoint.inner.has_pending());
        // The fence completes immediately, so that no order has to be kept.
        endpoint.fence().unwrap();
        assert_eq!(endpoint.inner.order.posted(), 0);
    }
}
