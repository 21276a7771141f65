//! The state of an open context that its workers share: configuration, providers, composition, memory.
//!
//! It uses configuration, registry, ranking, composition and memory; workers, endpoints and the public [`crate::Context`]
//! use it.

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

/// What a module is used for on a worker.
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

/// Everything of a context that its workers and regions share. Immutable but for what is counted.
pub(crate) struct Core {
    pub(crate) id: [u8; 16],
    pub(crate) location: Location,
    pub(crate) config: Arc<Config>,
    pub(crate) discovery: Discovery,
    pub(crate) composition: Composition,
    /// What else was decided while opening.
    pub(crate) records: Vec<Record>,
    pub(crate) modules: Vec<ModuleUse>,
    /// Connection-only modules that some path needs; every worker opens them.
    pub(crate) connectors: Vec<ModuleUse>,
    /// Providers that read the range of ports to listen on.
    pub(crate) listening: Vec<String>,
    /// Whether datagrams of wire-up may go through the application.
    pub(crate) out_of_band: bool,
    pub(crate) connect_timeout: Duration,
    pub(crate) queue_bytes: usize,
    /// Announced messages that a worker keeps of all its peers, and the bytes of their keys.
    pub(crate) announced: (usize, usize),
    pub(crate) assist_size: usize,
    /// Whether the program, or an operator, says that its workers make progress all the time.
    pub(crate) polls_often: bool,
    /// How long a wait spins.
    pub(crate) spin: Spin,
    guard: Arc<ForkGuard>,
    /// Where workers show what they do, once the context is open.
    live: OnceLock<Arc<live::File>>,
    notes: Arc<Log<String>>,
    /// Where the report is written while it is made, once the context is open.
    journal: OnceLock<Arc<Journal>>,
    service: OnceLock<WorkerEntry>,
    /// Why the progress thread has ended before it was told to.
    service_stopped: OnceLock<Error>,
    /// What the progress thread sleeps on.
    service_poller: OnceLock<Poller>,
    /// Answers who asks by a name, while a worker is open that has one.
    names: Mutex<Option<Arc<NameService>>>,
    /// Last: everything above that points into a domain goes first.
    pub(crate) memory: Arc<Memory>,
}

impl Core {
    /// Whether this process is the one that opened the context, and not a forked child of it.
    #[inline]
    pub(crate) fn same_process(&self) -> bool {
        self.guard.same_process()
    }

    /// What knows which process it is, for who may outlive the context, and must not keep a page of it.
    pub(crate) fn guard(&self) -> Weak<ForkGuard> {
        Arc::downgrade(&self.guard)
    }

    /// An error in a forked child, where nothing of the context's may be used.
    pub(crate) fn check_process(&self, what: &str) -> Result<(), Error> {
        self.guard.check(what)
    }

    /// Keeps a line for the report.
    pub(crate) fn note(&self, text: String) {
        self.notes.add_once(text);
    }

    /// Keeps a line for the report; `false` where the same stands there.
    pub(crate) fn note_if_new(&self, text: String) -> bool {
        self.notes.add_if_new(text)
    }

    /// Tells somebody of each further line that is kept.
    pub(crate) fn pass_notes_on(&self, to: impl Fn(&str) + Send + Sync + 'static) {
        self.notes.pass_on(move |note: &String| to(note));
    }

    /// The lines kept so far.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.notes.lines()
    }

    /// Who writes what happens, if `TIELINE_REPORT` asks for it. Nobody does in a forked child, whose number it would not be.
    pub(crate) fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.get().filter(|_| self.same_process())
    }

    /// The service worker, for every worker but itself.
    pub(crate) fn service_entry(&self, worker: &[u8; 16]) -> Option<WorkerEntry> {
        let serves = || self.service_stopped.get().is_none();
        self.service.get().filter(|entry| entry.worker != *worker && serves()).cloned()
    }

    /// Whether this worker promises peers that it makes progress all the time. A progress thread sleeps, and serves in its stead; where
    /// waits do not spin, it is too seldom on a processor.
    pub(crate) fn promises_to_poll(&self) -> bool {
        self.polls_often && self.breaks_promise().is_none()
    }

    /// Why it does not, whoever asked for it.
    fn breaks_promise(&self) -> Option<&'static str> {
        match () {
            () if self.service.get().is_some() && self.service_stopped.get().is_none() => {
                Some("the progress thread serves peers, and sleeps when it is idle")
            }
            () if self.spin.budget(None).is_zero() => Some("waits do not spin here"),
            () => None,
        }
    }

    /// For people: that a promise that was asked for is not given.
    pub(crate) fn promise_not_given(&self) -> Option<String> {
        let why = self.breaks_promise().filter(|_| self.polls_often)?;
        Some(format!("{} is on, and peers are not told: {why}", vars::POLLS_OFTEN))
    }

    /// The progress thread has ended before it was told to.
    pub(crate) fn service_stopped(&self, error: Error) {
        self.note(format!("the progress thread stopped: {error}"));
        let _ = self.service_stopped.set(error);
    }

    /// Whether who counts on the progress thread still may.
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

    /// Lets workers show what they do from now on. It is no reason not to open: without it nobody can look.
    fn show(&self) -> Result<(), Error> {
        if self.config.bool(vars::LIVE)? {
            match live::File::create(&self.id, self.guard.clone()) {
                Ok(file) => drop(self.live.set(file)),
                Err(error) => self.note(format!("`tieline info --pid` will show nothing: {error}")),
            }
        }
        Ok(())
    }

    /// A place for one more worker to show what it does.
    pub(crate) fn live_page(&self) -> Option<live::Page> {
        self.live.get()?.place()
    }

    /// What its workers show; nothing in a forked child.
    pub(crate) fn status(&self) -> live::Status {
        self.live.get().and_then(|file| live::own(file)).unwrap_or_default()
    }

    /// Answers who asks by a name, if there is any.
    pub(crate) fn names(&self) -> Option<Arc<NameService>> {
        self.lock_names().clone()
    }

    /// A worker has a name from now on, and whoever asks is given this address.
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

    /// A worker that had a name is closed. With the last of them nobody listens any more, so that who asks is refused at once.
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

    /// Where those listen who answer for names, and what they want to see.
    pub(crate) fn name_settings(&self) -> Result<tieline_net::Settings, Error> {
        let config = &self.config;
        let (interfaces, ports) = (config.text(vars::TCP_INTERFACES), config.text(vars::TCP_PORTS));
        names::settings(config.secret()?.unwrap_or_default(), &interfaces, &ports)
            .map_err(|why| Error::new(Status::Invalid, "the settings of TCP", why, ""))
    }

    /// What the progress thread sleeps on.
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
            // A provider that closed its domains in a forked child would say good-bye in its parent's name, and may
            // wait for a lock of a thread that is not there.
            std::mem::forget(std::mem::take(&mut self.discovery.providers));
            let names = self.names.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(names.take());
        }
    }
}
