//! The state of an open context that its workers share: configuration, providers, composition, memory.
//!
//! The module uses configuration, providers, ranking, composition and memory. Workers, endpoints and the public [`crate::Context`]
//! use the module.

mod assemble;
mod connectors;
mod ports;
mod selftest;
mod spin;
mod unusable;

use crate::address::{Location, WorkerEntry};
use crate::compose::Composition;
use crate::config::{Config, vars};
use crate::error::Scope;
use crate::explain::Record;
use crate::mem::Memory;
use crate::sys::{ForkGuard, Poller, limits};
use crate::{Error, Status};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;
use tieline_explain::journal::Journal;
use tieline_explain::{Log, live, snapshot};
use tieline_host::Discovery;
use tieline_lookup::{self as lookup, NameService, Names, WorkerName};
use tieline_plugin_api::abi::ModuleAttr;

pub(crate) use connectors::Tested;
pub(crate) use spin::Spin;

/// The roles of a module on a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roles {
    pub(crate) message: bool,
    pub(crate) memory: bool,
}

/// A module that each worker tries to open.
pub(crate) struct ModuleUse {
    pub(crate) domain: usize,
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) roles: Roles,
    pub(crate) attr: ModuleAttr,
}

/// What the program chooses for a context besides the configuration.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extras {
    /// Whether the application may carry wire-up datagrams.
    pub(crate) out_of_band: bool,
    /// Whether files are loaded whose providers have no device.
    pub(crate) load_all: bool,
}

/// The state of a context that its workers and regions share. Providers, composition and modules do not change after opening.
/// Notes, names and the state of the progress thread do.
pub(crate) struct Core {
    pub(crate) id: [u8; 16],
    /// The location of this process, read at the first use: the report of a context without a worker needs none.
    location: OnceLock<Location>,
    pub(crate) config: Arc<Config>,
    pub(crate) discovery: Discovery,
    pub(crate) composition: Composition,
    /// The decisions made while the context was opened, apart from those of the discovery and the composition.
    pub(crate) records: Vec<Record>,
    pub(crate) modules: Vec<ModuleUse>,
    /// The connection-only modules that some path needs. Each worker tries to open them.
    pub(crate) connectors: Vec<ModuleUse>,
    /// The connectors that were opened as a test, until the first worker takes them.
    tested: Mutex<Option<Tested>>,
    /// The providers that read the range of ports on which to listen.
    pub(crate) listening: Vec<String>,
    /// Whether the application may carry wire-up datagrams.
    pub(crate) out_of_band: bool,
    pub(crate) connect_timeout: Duration,
    pub(crate) queue_bytes: usize,
    /// The maximum number of rendezvous messages that a worker keeps for all its peers, and of the bytes of their keys. Each peer
    /// has a small share beyond this.
    pub(crate) announced: (usize, usize),
    pub(crate) assist_size: usize,
    /// Whether the program or an operator declares that the context's workers make progress continuously.
    pub(crate) polls_often: bool,
    /// The spin time of waits.
    pub(crate) spin: Spin,
    guard: Arc<ForkGuard>,
    /// The file in which workers publish their state, once the context is open.
    live: OnceLock<Arc<live::File>>,
    notes: Arc<Log<String>>,
    /// The destination of the report that is written as events occur, once the context is open.
    journal: OnceLock<Arc<Journal>>,
    service: OnceLock<WorkerEntry>,
    /// The reason that the progress thread ended without a request.
    service_stopped: OnceLock<Error>,
    /// The poller on which the progress thread sleeps.
    service_poller: OnceLock<Poller>,
    /// The responder for name requests, while a worker with a name is open.
    pub(crate) names: Names,
    /// The memory, declared last: all fields above that point into a domain are dropped first.
    pub(crate) memory: Arc<Memory>,
}

impl Core {
    /// Checks whether this process opened the context, rather than being a forked child.
    #[inline]
    pub(crate) fn same_process(&self) -> bool {
        self.guard.same_process()
    }

    /// Returns the location of this process.
    pub(crate) fn location(&self) -> &Location {
        self.location.get_or_init(Location::here)
    }

    /// Returns the guard that identifies the process, for objects that may outlive the context and must not keep its memory.
    pub(crate) fn guard(&self) -> Weak<ForkGuard> {
        Arc::downgrade(&self.guard)
    }

    /// Fails in a forked child, which must not use anything of the context.
    pub(crate) fn check_process(&self, what: &str) -> Result<(), Error> {
        self.guard.check(what)
    }

    /// Returns the connectors that were opened as a test, for the first worker.
    pub(crate) fn take_tested(&self) -> Option<Tested> {
        self.tested.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    #[cfg(test)]
    pub(crate) fn tested(&self) -> &Mutex<Option<Tested>> {
        &self.tested
    }

    /// Adds a line to the report.
    pub(crate) fn note(&self, text: String) {
        self.notes.add_once(text);
    }

    /// Adds a line to the report; `false` if the report already contains it.
    pub(crate) fn note_if_new(&self, text: String) -> bool {
        self.notes.add_if_new(text)
    }

    /// Passes each line that is added later to a function.
    pub(crate) fn pass_notes_on(&self, to: impl Fn(&str) + Send + Sync + 'static) {
        self.notes.pass_on(move |note: &String| to(note));
    }

    /// Returns the lines added so far.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.notes.lines()
    }

    /// Returns the writer of events, if `TIELINE_REPORT` enables it. `None` in a forked child, because the lines carry the parent's
    /// process number.
    pub(crate) fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.get().filter(|_| self.same_process())
    }

    /// Returns the service worker's entry, for the address of another worker. `None` while no progress thread serves.
    pub(crate) fn service_entry(&self, worker: &[u8; 16]) -> Option<WorkerEntry> {
        let serves = || self.service_stopped.get().is_none();
        self.service.get().filter(|entry| entry.worker != *worker && serves()).cloned()
    }

    /// Checks whether the context's workers promise to make progress continuously. While a progress thread serves, there is no
    /// promise, since that thread sleeps and serves instead. If waits do not spin, there is no promise either, since the workers
    /// run too rarely.
    pub(crate) fn promises_to_poll(&self) -> bool {
        self.polls_often && self.breaks_promise().is_none()
    }

    /// Returns the reason that the workers make no promise, regardless of the setting.
    fn breaks_promise(&self) -> Option<&'static str> {
        match () {
            () if self.service.get().is_some() && self.service_stopped.get().is_none() => {
                Some("the progress thread serves peers, and sleeps when it is idle")
            }
            () if self.spin.budget(None).is_zero() => Some("waits do not spin here"),
            () => None,
        }
    }

    /// Returns the text for the report if a promise was requested and cannot be made.
    pub(crate) fn promise_not_given(&self) -> Option<String> {
        let why = self.breaks_promise().filter(|_| self.polls_often)?;
        Some(format!("{} is on, and peers are not told: {why}", vars::POLLS_OFTEN))
    }

    /// Records that the progress thread has ended without a request.
    pub(crate) fn service_stopped(&self, error: Error) {
        self.note(format!("the progress thread stopped: {error}"));
        let _ = self.service_stopped.set(error);
    }

    /// Fails if the progress thread has ended unexpectedly.
    pub(crate) fn check_service(&self) -> Result<(), Error> {
        let Some(error) = self.service_stopped.get() else { return Ok(()) };
        Err(Error::new(
            error.status(),
            "the progress thread of this context has stopped",
            format!("{}: {}", error.what(), error.why()),
            "what peers ask of this context's memory waits for its workers' progress; open a new context",
        )
        .of(Scope::Context))
    }

    /// Lets workers publish their state. If that fails, the context is still opened, and its state is not visible.
    fn show(&self) -> Result<(), Error> {
        if self.config.bool(vars::LIVE)? {
            match live::File::create(&self.id, limits().file_bytes) {
                Ok(file) => drop(self.live.set(file)),
                Err(error) => self.note(format!("`tieline info --pid` will show nothing: {error}")),
            }
        }
        Ok(())
    }

    /// Takes a page in which one more worker can publish its state.
    pub(crate) fn live_page(&self) -> Option<live::Page> {
        self.live.get()?.place()
    }

    /// Returns the state that the workers publish; empty in a forked child.
    pub(crate) fn status(&self) -> snapshot::Status {
        self.live.get().and_then(|file| live::own(file)).unwrap_or_default()
    }

    /// Makes the name of a worker; lookups get this address, until the worker states a newer one.
    pub(crate) fn publish_name(
        &self,
        worker: &[u8; 16],
        address: Vec<u8>,
    ) -> Result<(Arc<NameService>, WorkerName), Error> {
        self.names.publish(worker, address, || self.open_names())
    }

    fn open_names(&self) -> Result<NameService, Error> {
        let opened = NameService::open(&self.name_settings()?);
        let names = opened.map_err(|why| {
            let fix = format!(
                "see {} and {}, or carry the worker's address",
                vars::TCP_INTERFACES,
                vars::TCP_PORTS
            );
            Error::new(Status::NoDevice, "a worker's name", why, fix)
        })?;
        if let Some(poller) = self.service_poller.get() {
            poller.add_all(&names.fds())?;
        }
        Ok(names)
    }

    /// Removes the name of a worker. When the last name is removed, the listener closes, so later requests are refused immediately.
    pub(crate) fn forget_name(&self, worker: &[u8; 16]) {
        let closed = self.names.forget(worker);
        if let (Some(names), Some(poller)) = (closed, self.service_poller.get()) {
            // Closing the descriptors is not sufficient, because a forked child may hold the same descriptors.
            poller.remove_all(&names.fds());
        }
    }

    /// Returns the settings of the responder for names: where it listens, and the secret that it requires.
    pub(crate) fn name_settings(&self) -> Result<tieline_net::Settings, Error> {
        let config = &self.config;
        let (interfaces, ports) = (config.text(vars::TCP_INTERFACES), config.text(vars::TCP_PORTS));
        lookup::settings(config.secret()?.unwrap_or_default(), &interfaces, &ports)
            .map_err(|why| Error::new(Status::Invalid, "the settings of TCP", why, ""))
    }

    /// Sets the poller on which the progress thread sleeps.
    pub(crate) fn set_service_poller(&self, poller: Poller) {
        let _ = self.service_poller.set(poller);
    }

    /// Publishes the service worker.
    pub(crate) fn set_service(&self, entry: WorkerEntry) {
        let _ = self.service.set(entry);
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if !self.same_process() {
            // If a provider closed its domains in a forked child, it would say goodbye in its parent's name, and might wait for a
            // lock of a thread that does not exist in the child.
            std::mem::forget(std::mem::take(&mut self.discovery.providers));
            std::mem::forget(self.take_tested());
            self.names.abandon();
        }
    }
}
