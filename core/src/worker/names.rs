//! A worker's short name, and endpoints by one: what goes between the two sides is in `crate::names`.

use super::{Inner, Worker};
use crate::endpoint::{Endpoint, Owner};
use crate::names::{Asking, WorkerName};
use crate::sys::Poller;
use crate::{ConnectError, Error};
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tieline_plugin_api::Failure;

/// Longer than anybody waits.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// A question for the address that a name stands for, on its way: see [`Worker::ask_name`]. Dropping it gives it up.
pub struct NameCall {
    worker: Rc<Inner>,
    asking: RefCell<Asking>,
}

impl fmt::Debug for NameCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NameCall({:?})", self.asking.borrow().name())
    }
}

impl NameCall {
    /// Goes on with the question, without waiting, and says how it ended: once, with an endpoint as [`Worker::connect`] makes it, or
    /// with why there is none. Nothing else goes on with it: what it is called between is the worker's progress.
    #[must_use]
    pub fn test(&self) -> Option<Result<Endpoint, ConnectError>> {
        if let Err(error) = self.worker.check_open() {
            return Some(Err(error.into()));
        }
        let answer = self.asking.borrow_mut().advance(Instant::now())?;
        let opened = answer.and_then(|address| {
            self.worker.open_endpoint(address, Owner::Application).map(Endpoint::new)
        });
        Some(opened.map_err(ConnectError::from))
    }
}

impl Worker {
    /// A name of this worker, in 48 bytes at most, for channels that carry no more: a peer has an endpoint by it
    /// ([`Worker::endpoint_by_name`]), for which it asks this process for the [`address`](Worker::address) that it has now. The first call in a
    /// context opens a listener of the context's own on the TCP interfaces and ports that are allowed (`TIELINE_TCP_INTERFACES`,
    /// `TIELINE_TCP_PORTS`), which stays until the last worker that has a name is closed; what carries data later does not depend on it.
    ///
    /// Who asks is answered in this worker's progress, also asleep, and by the context's progress thread where it has one. Whoever has the
    /// name may connect, as with the address, but for the job's secret where there is one: carry it over channels that only the job can read.
    ///
    /// # Errors
    /// `NoDevice`, with the reason, where nothing can be listened on; `Closed` when the worker is.
    pub fn name(&self) -> Result<WorkerName, Error> {
        let inner = &self.inner;
        inner.check_open()?;
        let (names, name) = inner.shared.core.publish_name(&inner.shared.id, inner.identity()?)?;
        if inner.names.own.borrow().is_none() {
            if let Err(error) = names.watch_by(&inner.poller) {
                inner.shared.core.forget_name(&inner.shared.id);
                return Err(error);
            }
            *inner.names.own.borrow_mut() = Some(names);
        }
        Ok(name)
    }

    /// Asks for the address of the worker with this name; [`NameCall::test`] brings the endpoint. Nothing is kept of a name that is not
    /// asked for, nor of the question when it is over.
    ///
    /// # Errors
    /// [`ConnectError::Configure`] where no interface that may be used leads there.
    pub fn ask_name(&self, name: &WorkerName) -> Result<NameCall, ConnectError> {
        let core = &self.inner.shared.core;
        self.inner.check_open()?;
        let deadline = Instant::now() + core.connect_timeout.min(YEAR);
        let asking = Asking::start(name, &core.name_settings()?, deadline)?;
        Ok(NameCall { worker: self.inner.clone(), asking: RefCell::new(asking) })
    }

    /// An endpoint that leads to the worker with this name: makes progress until the worker's address is there, which takes a
    /// round trip or two, and [connects](Worker::connect) to it.
    ///
    /// ```
    /// # fn main() -> Result<(), tieline::Error> {
    /// use tieline::WorkerName;
    /// # let context = tieline::Context::builder().set("TIELINE_TCP_INTERFACES", "127.0.0.0/8").open()?;
    /// # let worker = context.worker()?;
    /// let name = worker.name()?;
    /// let carried: Vec<u8> = name.as_bytes().into(); // at most 48
    /// let there = worker.endpoint_by_name(&WorkerName::from_bytes(&carried)?)?;
    /// # let _ = worker.finish(there.send(7, 0, b"hello")?)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Worker::ask_name`] and [`Worker::connect`]; why nobody was reached at the addresses in the name, or was the worker that it
    /// means; [`ConnectError::Correct`] inside a handler.
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

impl Inner {
    /// The progress thread's worker answers for all others.
    pub(crate) fn serve_names(&self) -> Result<(), Error> {
        self.names.for_all.set(true);
        // The same one by another descriptor: it is changed by the thread that opens the listener.
        let epoll = self.poller.epoll.try_clone();
        let epoll = epoll.map_err(|e| Failure::from_io("a descriptor to wait on (dup)", &e))?;
        self.shared.core.set_service_poller(Poller { epoll });
        Ok(())
    }

    /// Answers who has asked by a name, of which the application is told nothing.
    pub(super) fn answer_names(&self) {
        if self.names.for_all.get() {
            self.shared.core.names().into_iter().for_each(|names| names.poll(|| None));
        } else if let Some(names) = &*self.names.own.borrow() {
            // What it said with its name may have changed since.
            names.poll(|| Some((self.shared.id, self.identity().ok()?)));
        }
    }

    /// The worker is closed.
    pub(super) fn forget_name(&self) {
        let Some(names) = self.names.own.take() else { return };
        if !self.shared.same_process() {
            // Before any lock: in a forked child its holder may be a thread that is not there.
            std::mem::forget(names);
            return;
        }
        names.unwatch_by(&self.poller);
        self.shared.core.forget_name(&self.shared.id);
    }
}
