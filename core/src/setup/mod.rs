//! The state of an open context that its workers share: configuration, providers, composition, memory.
//!
//! It uses configuration, registry, ranking, composition and memory. Workers, endpoints and the public [`crate::Context`] use it.

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
use crate::journal::Journal;
use crate::live;
use crate::log::Log;
use crate::mem::Memory;
use crate::names::{self, NameService, WorkerName};
use crate::registry::Discovery;
use crate::sys::{ForkGuard, Poller};
use crate::{Error, Status};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;
use tieline_plugin_api::abi::ModuleAttr;

pub(crate) use spin::Spin;

/// The roles of a module on a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roles {
    pub(crate) message: bool,
    pub(crate) memory: bool,
}

/// A module that every worker opens.
pub(crate) struct ModuleUse {
    pub(crate) domain: usize,
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) roles: Roles,
    pub(crate) attr: ModuleAttr,
}

/// All state of a context that its workers and regions share. Immutable except for counters.
pub(crate) struct Core {
    pub(crate) id: [u8; 16],
    pub(crate) location: Location,
    pub(crate) config: Arc<Config>,
    pub(crate) discovery: Discovery,
    pub(crate) composition: Composition,
    /// The other decisions that were made while opening.
    pub(crate) records: Vec<Record>,
    pub(crate) modules: Vec<ModuleUse>,
    /// Connection-only modules that some path needs; every worker opens them.
    pub(crate) connectors: Vec<ModuleUse>,
    /// Providers that read the range of ports to listen on.
    pub(crate) listening: Vec<String>,
    /// Whether the application may carry wire-up datagrams.
    pub(crate) out_of_band: bool,
    pub(crate) connect_timeout: Duration,
    pub(crate) queue_bytes: usize,
    /// The limits of rendezvous messages that a worker keeps for all its peers, and of the bytes of their keys.
    pub(crate) announced: (usize, usize),
    pub(crate) assist_size: usize,
    /// Whether the program, or an operator, declares that its workers make progress all the time.
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
    /// The poller that the progress thread sleeps on.
    service_poller: OnceLock<Poller>,
    /// Answers name requests, while a worker with a name is open.
    names: Mutex<Option<Arc<NameService>>>,
    /// Last: everything above that points into a domain is dropped first.
    pub(crate) memory: Arc<Memory>,
}

impl Core {
    /// Whether this process opened the context and is not a forked child.
    #[inline]
    pub(crate) fn same_process(&self) -> bool {
        self.guard.same_process()
    }

    /// The guard that identifies the process, for objects that may outlive the context and must not keep its memory.
    pub(crate) fn guard(&self) -> Weak<ForkGuard> {
        Arc::downgrade(&self.guard)
    }

    /// An error in a forked child, which must not use anything of the context.
    pub(crate) fn check_process(&self, what: &str) -> Result<(), Error> {
        self.guard.check(what)
    }

    /// Adds a line to the report.
    pub(crate) fn note(&self, text: String) {
        self.notes.add_once(text);
    }

    /// Adds a line to the report; `false` if it is present.
    pub(crate) fn note_if_new(&self, text: String) -> bool {
        self.notes.add_if_new(text)
    }

    /// Passes each later line to a function.
    pub(crate) fn pass_notes_on(&self, to: impl Fn(&str) + Send + Sync + 'static) {
        self.notes.pass_on(move |note: &String| to(note));
    }

    /// The lines so far.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.notes.lines()
    }

    /// The writer of events, if `TIELINE_REPORT` enables it. `None` in a forked child, because the lines carry the parent's process
    /// number.
    pub(crate) fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.get().filter(|_| self.same_process())
    }

    /// The service worker, for every worker but itself.
    pub(crate) fn service_entry(&self, worker: &[u8; 16]) -> Option<WorkerEntry> {
        let serves = || self.service_stopped.get().is_none();
        self.service.get().filter(|entry| entry.worker != *worker && serves()).cloned()
    }

    /// Whether this worker promises peers that it makes progress all the time. A worker with a progress thread makes no promise,
    /// since that thread sleeps and serves instead. Without spinning waits it makes none either, since it runs too rarely.
    pub(crate) fn promises_to_poll(&self) -> bool {
        self.polls_often && self.breaks_promise().is_none()
    }

    /// The reason that it makes no promise, regardless of the setting.
    fn breaks_promise(&self) -> Option<&'static str> {
        match () {
            () if self.service.get().is_some() && self.service_stopped.get().is_none() => {
                Some("the progress thread serves peers, and sleeps when it is idle")
            }
            () if self.spin.budget(None).is_zero() => Some("waits do not spin here"),
            () => None,
        }
    }

    /// For the report: that a requested promise is not given.
    pub(crate) fn promise_not_given(&self) -> Option<String> {
        let why = self.breaks_promise().filter(|_| self.polls_often)?;
        Some(format!("{} is on, and peers are not told: {why}", vars::POLLS_OFTEN))
    }

    /// The progress thread has ended without a request.
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

    /// Lets workers publish their state. A failure does not prevent opening: the state is then not visible.
    fn show(&self) -> Result<(), Error> {
        if self.config.bool(vars::LIVE)? {
            match live::File::create(&self.id, self.guard.clone()) {
                Ok(file) => drop(self.live.set(file)),
                Err(error) => self.note(format!("`tieline info --pid` will show nothing: {error}")),
            }
        }
        Ok(())
    }

    /// A page for one more worker to publish its state.
    pub(crate) fn live_page(&self) -> Option<live::Page> {
        self.live.get()?.place()
    }

    /// The state that its workers publish; empty in a forked child.
    pub(crate) fn status(&self) -> live::Status {
        self.live.get().and_then(|file| live::own(file)).unwrap_or_default()
    }

    /// The responder for name requests, if there is one.
    pub(crate) fn names(&self) -> Option<Arc<NameService>> {
        self.lock_names().clone()
    }

    /// A worker has a name from here on, and requests get this address.
    pub(crate) fn publish_name(
        &self,
        worker: &[u8; 16],
        address: Vec<u8>,
    ) -> Result<(Arc<NameService>, WorkerName), Error> {
        let mut open = self.lock_names();
        let names = match &*open {
            Some(names) => names.clone(),
            None => open.insert(Arc::new(self.open_names()?)).clone(),
        };
        let name = names.publish(worker, address);
        Ok((names, name))
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
            names.watch_by(poller)?;
        }
        Ok(names)
    }

    /// A worker with a name is closed. With the last one the listener closes, so later requests are refused immediately.
    pub(crate) fn forget_name(&self, worker: &[u8; 16]) {
        let mut open = self.lock_names();
        let closed = open.take_if(|names| names.forget(worker));
        drop(open);
        if let (Some(names), Some(poller)) = (closed, self.service_poller.get()) {
            names.unwatch_by(poller);
        }
    }

    fn lock_names(&self) -> MutexGuard<'_, Option<Arc<NameService>>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The addresses at which the responder for names listens, and the proof that it requires.
    pub(crate) fn name_settings(&self) -> Result<tieline_net::Settings, Error> {
        let config = &self.config;
        let (interfaces, ports) = (config.text(vars::TCP_INTERFACES), config.text(vars::TCP_PORTS));
        names::settings(config.secret()?.unwrap_or_default(), &interfaces, &ports)
            .map_err(|why| Error::new(Status::Invalid, "the settings of TCP", why, ""))
    }

    /// Sets the poller that the progress thread sleeps on.
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
            // lock of a thread that does not exist there.
            std::mem::forget(std::mem::take(&mut self.discovery.providers));
            let names = self.names.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(names.take());
        }
    }
}
