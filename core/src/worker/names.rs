//! A worker's short name, and endpoints made from such names. The protocol is in the crate `tieline-lookup`.

use super::{Worker, WorkerState};
use crate::address::WorkerAddress;
use crate::endpoint::{Endpoint, Owner};
use crate::sys::Poller;
use crate::{ConnectError, Error, PeerId, Status};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tieline_lookup::{Lookup, WorkerName};
use tieline_plugin_api::Failure;

/// The maximum time of a lookup, so that its deadline can be computed.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// A lookup of the address of a named worker: see [`Worker::ask_name`]. Dropping the value abandons the lookup.
pub struct NameCall {
    worker: Rc<WorkerState>,
    lookup: RefCell<Lookup>,
    /// Whether the lookup counts among the worker's open ones.
    is_open: Cell<bool>,
}

impl Drop for NameCall {
    fn drop(&mut self) {
        self.ended();
    }
}

impl fmt::Debug for NameCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NameCall({:?})", self.lookup.borrow().name())
    }
}

impl NameCall {
    /// Advances the lookup without waiting. Returns the result once: an endpoint, as [`Worker::connect`] returns it, or the reason
    /// for the failure. Only this method advances the lookup; make progress on the worker between two calls. While a lookup is open,
    /// [`Worker::wait`] and the worker's [`fd`](Worker::fd) wake up every millisecond, so that a loop around them calls it.
    #[must_use]
    pub fn test(&self) -> Option<Result<Endpoint, ConnectError>> {
        if let Err(error) = self.worker.check_open() {
            return Some(Err(error.into()));
        }
        let parse = |bytes: &[u8]| WorkerAddress::parse(bytes).map(|at| (at.entry.worker, at));
        let answer = self.lookup.borrow_mut().advance(Instant::now(), parse)?;
        self.ended();
        let opened = answer.and_then(|address| {
            self.worker.open_endpoint(address, Owner::Application).map(Endpoint::new)
        });
        Some(opened.map_err(ConnectError::from))
    }

    fn ended(&self) {
        if self.is_open.replace(false) {
            let open = &self.worker.names.open;
            open.set(open.get() - 1);
        }
    }
}

impl Worker {
    /// Returns a name of this worker, at most 48 bytes long, for channels that cannot carry an address.
    /// [`Worker::endpoint_by_name`] makes an endpoint from a name, and requests the current [`address`](Worker::address) from this
    /// process.
    ///
    /// If no worker of the context has a name, the call opens a listener on the TCP interfaces and ports that
    /// `TIELINE_TCP_INTERFACES` and `TIELINE_TCP_PORTS` allow. The listener stays open until the last worker with a name is closed.
    ///
    /// Call it before [`Worker::address`] if peers shall know the name ([`Worker::name_of_peer`]) without a message.
    ///
    /// The worker's progress answers lookups, also while the worker sleeps in a call that waits; so does the context's progress
    /// thread if there is one. As with the address, a process that has the name may connect, unless the job has a secret. Carry the
    /// name over channels that only the job can read.
    ///
    /// # Errors
    /// `NoDevice`, with the reason, if no listener can be opened; `Closed` if the worker is closed; `Invalid` in a forked child.
    pub fn name(&self) -> Result<WorkerName, Error> {
        let inner = &self.inner;
        inner.check_open()?;
        let (names, name) = inner.shared.core.publish_name(&inner.shared.id, inner.identity()?)?;
        if inner.names.own.borrow().is_none() {
            if let Err(error) = inner.poller.add_all(&names.fds()) {
                inner.shared.core.forget_name(&inner.shared.id);
                return Err(error);
            }
            *inner.names.own.borrow_mut() = Some(names);
            // From now on, the address contains the name.
            let _ = inner.shared.core.publish_name(&inner.shared.id, inner.identity()?)?;
            inner.tell_name_to_all();
        }
        Ok(name)
    }

    /// Returns the name of a peer's worker, if the peer is connected and has one. The library sends nothing for this call. The name
    /// is a part of the peer's address. If a worker gets its name after it has given its address, it sends the name once to each
    /// connected peer, and to each peer that connects later: progress then delivers it. A peer of an older release has no name.
    ///
    /// # Errors
    /// `Invalid` for a number that is no peer of this worker.
    pub fn name_of_peer(&self, peer: PeerId) -> Result<Option<WorkerName>, Error> {
        let Some(address) = self.inner.address_of_peer(peer.0) else {
            return Err(Error::new(
                Status::Invalid,
                format!("the name of {peer}"),
                "this worker has no such peer, or does not know its address",
                "pass the number that an endpoint or a message of this worker returned",
            ));
        };
        // A name of a later format is no name for this version.
        Ok(WorkerName::from_bytes(&address.name).ok())
    }

    /// Begins a lookup of the worker with this name; [`NameCall::test`] returns the endpoint. The library keeps no state for names
    /// that are not looked up, nor for a lookup that has ended.
    ///
    /// # Errors
    /// [`ConnectError::Configure`] if no permitted interface leads to the addresses in the name. [`ConnectError::Correct`] if the
    /// worker is closed, and in a forked child.
    pub fn ask_name(&self, name: &WorkerName) -> Result<NameCall, ConnectError> {
        let core = &self.inner.shared.core;
        self.inner.check_open()?;
        let deadline = Instant::now() + core.connect_timeout.min(YEAR);
        let lookup = Lookup::start(name, &core.name_settings()?, deadline)?;
        let open = &self.inner.names.open;
        open.set(open.get() + 1);
        let (worker, lookup) = (self.inner.clone(), RefCell::new(lookup));
        Ok(NameCall { worker, lookup, is_open: Cell::new(true) })
    }

    /// Returns an endpoint to the worker with this name. Makes progress until the worker's address has arrived, at most
    /// `TIELINE_CONNECT_TIMEOUT`, and [connects](Worker::connect) to it.
    ///
    /// ```
    /// # fn main() -> Result<(), tieline::Error> {
    /// use tieline::WorkerName;
    /// # let context = tieline::Context::builder().set("TIELINE_TCP_INTERFACES", "127.0.0.0/8").open()?;
    /// # let worker = context.worker()?;
    /// let name = worker.name()?;
    /// let carried: Vec<u8> = name.as_bytes().into(); // at most 48 bytes
    /// let there = worker.endpoint_by_name(&WorkerName::from_bytes(&carried)?)?;
    /// # let _ = worker.finish(there.send(7, 0, b"hello")?)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Worker::ask_name`] and [`Worker::connect`]. Otherwise the error contains the reason why no listener was
    /// reached at the addresses in the name, or why a listener was not the named worker's. [`ConnectError::Correct`] inside a
    /// handler.
    pub fn endpoint_by_name(&self, name: &WorkerName) -> Result<Endpoint, ConnectError> {
        self.inner.shared.check_no_handler("endpoint_by_name")?;
        let call = self.ask_name(name)?;
        loop {
            if let Some(found) = self.inner.wait_for(None, false, || call.test())? {
                return found;
            }
        }
    }
}

impl WorkerState {
    /// Returns the worker's name, if it has been requested.
    pub(super) fn known_name(&self) -> Option<WorkerName> {
        Some(self.names.own.borrow().as_ref()?.name_of(&self.shared.id))
    }

    /// Makes the progress thread's worker answer for all names of the context.
    pub(crate) fn serve_names(&self) -> Result<(), Error> {
        self.names.for_all.set(true);
        // The descriptor is duplicated, because another thread, which opens the listener, modifies the epoll set.
        let epoll = self.poller.epoll.try_clone();
        let epoll = epoll.map_err(|e| Failure::from_io("a descriptor to wait on (dup)", &e))?;
        self.shared.core.set_service_poller(Poller { epoll });
        Ok(())
    }

    /// Answers lookups; the application is not notified.
    pub(super) fn answer_names(&self) {
        if self.names.for_all.get() {
            self.shared.core.names.listener().into_iter().for_each(|names| names.poll(|| None));
        } else if let Some(names) = &*self.names.own.borrow() {
            // The address may have changed since the name was made.
            names.poll(|| Some((self.shared.id, self.identity().ok()?)));
        }
    }

    /// Removes the name of a closed worker.
    pub(super) fn forget_name(&self) {
        let Some(names) = self.names.own.take() else { return };
        if !self.shared.same_process() {
            // The process is checked before any lock: in a forked child the lock's holder may be a thread that does not exist.
            std::mem::forget(names);
            return;
        }
        self.poller.remove_all(&names.fds());
        self.shared.core.forget_name(&self.shared.id);
    }
}
