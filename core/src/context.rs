//! Contexts: providers found, ranked and composed; the home of workers and registered memory.

mod assemble;

use crate::address::{Party, Place};
use crate::compose::Composition;
use crate::config::{Config, ConfigBuilder, vars};
use crate::explain::Record;
use crate::region::{Access, Backing, Inner as RegionInner, Region, Registration, Table};
use crate::registry::abi::objects::OpenDomain;
use crate::registry::{Discovery, LoadedProvider};
use crate::report::Report;
use crate::service::Service;
use crate::sys::{ForkGuard, OwnedBuffer, Span};
use crate::worker::{Roles, Worker};
use crate::{Error, Status};
use once_cell::sync::OnceCell;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tieline_plugin_api::abi::{DomainAttr, ModuleAttr};
use tieline_plugin_api::memory_caps;

/// An open domain of a provider in use.
pub(crate) struct DomainSlot {
    pub(crate) provider: Arc<LoadedProvider>,
    pub(crate) name: String,
    pub(crate) attr: DomainAttr,
    pub(crate) domain: OpenDomain,
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
    pub(crate) place: Place,
    pub(crate) config: Arc<Config>,
    pub(crate) discovery: Discovery,
    pub(crate) composition: Composition,
    /// What else was decided while opening.
    pub(crate) records: Vec<Record>,
    pub(crate) modules: Vec<ModuleUse>,
    /// Connection-only modules that some path needs; every worker opens them.
    pub(crate) connectors: Vec<ModuleUse>,
    /// Whether datagrams of wire-up may go through the application.
    pub(crate) out_of_band: bool,
    /// The domain whose device executes atomics on memory of this context; none: processors do.
    device_atomics: Option<usize>,
    pub(crate) connect_timeout: Duration,
    pub(crate) queue_bytes: usize,
    pub(crate) assist_size: usize,
    pub(crate) regions: Table,
    guard: ForkGuard,
    notes: Mutex<Vec<String>>,
    service: OnceLock<Party>,
    /// Last: everything above that points into a domain goes first.
    pub(crate) domains: Vec<DomainSlot>,
}

/// Keeps the progress thread alive: every handle of the application holds one, the thread itself does not.
pub(crate) struct Lease {
    #[allow(dead_code)] // held for its drop, which ends the thread
    service: Option<Service>,
}

/// What a program opens first. Clones are the same context; usable from every thread.
#[derive(Clone)]
pub struct Context {
    core: Arc<Core>,
    lease: Arc<Lease>,
}

/// How to open a context: values that the program sets beat the environment and the files.
#[must_use]
pub struct ContextBuilder {
    config: ConfigBuilder,
    out_of_band: bool,
}

const NOTES: usize = 256;

impl Context {
    /// Opens a context as environment and configuration files say.
    ///
    /// # Errors
    /// A malformed variable, a `required:` provider that is missing, or no module at all that carries messages.
    pub fn open() -> Result<Context, Error> {
        Context::builder().open()
    }

    /// A builder, for programs that set something themselves.
    pub fn builder() -> ContextBuilder {
        ContextBuilder { config: Config::builder().process_environment(), out_of_band: false }
    }

    /// Opens a worker, which belongs to the calling thread.
    ///
    /// # Errors
    /// When a module cannot be opened: descriptors or memory ran out.
    pub fn worker(&self) -> Result<Worker, Error> {
        Worker::open(self.core.clone(), Some(self.lease.clone()))
    }

    /// Allocates zeroed memory that is shared from birth where a provider offers that: local peers reach it
    /// by load and store. All access.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn alloc(&self, len: usize) -> Result<Region, Error> {
        self.core.alloc(len, Access::ALL)
    }

    /// [`Context::alloc`] with a choice of what peers may do.
    ///
    /// # Errors
    /// As [`Context::alloc`].
    pub fn alloc_with(&self, len: usize, access: Access) -> Result<Region, Error> {
        self.core.alloc(len, access)
    }

    /// Registers a buffer, which the region owns from here on. All access.
    ///
    /// # Errors
    /// When a provider refuses it.
    pub fn register(&self, buffer: impl Into<Box<[u8]>>) -> Result<Region, Error> {
        let buffer = OwnedBuffer::new(buffer.into());
        self.core.register(buffer.span(), Access::ALL, Backing::Owned(buffer))
    }

    /// [`Context::register`] with a choice of what peers may do.
    ///
    /// # Errors
    /// As [`Context::register`].
    pub fn register_with(
        &self,
        buffer: impl Into<Box<[u8]>>,
        access: Access,
    ) -> Result<Region, Error> {
        let buffer = OwnedBuffer::new(buffer.into());
        self.core.register(buffer.span(), access, Backing::Owned(buffer))
    }

    /// Registers memory that the application owns.
    ///
    /// # Safety
    /// `base` is valid for reads and writes of `len` bytes until the region is dropped, and no Rust
    /// reference to the bytes is used while a peer may write them.
    ///
    /// # Errors
    /// As [`Context::register`].
    #[allow(unsafe_code)] // the promise is the caller's; nothing unsafe is done here
    pub unsafe fn register_raw(
        &self,
        base: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Region, Error> {
        // SAFETY: the caller's promise.
        let span = unsafe { Span::new(base, len) };
        self.core.register(span, access, Backing::Borrowed)
    }

    /// What was found, what is used, and why everything else is not.
    #[must_use]
    pub fn report(&self) -> Report {
        Report::of(&self.core)
    }
}

impl ContextBuilder {
    /// Sets a variable: `.set("TIELINE_PROVIDERS", "^shm-cma")`.
    pub fn set(mut self, name: &str, value: &str) -> ContextBuilder {
        self.config = self.config.set(name, value);
        self
    }

    /// Whether a thread of the library serves what peers ask of this context's memory while the
    /// application computes. It sleeps when idle.
    pub fn progress_thread(self, on: bool) -> ContextBuilder {
        self.set(vars::PROGRESS_THREAD, if on { "on" } else { "off" })
    }

    /// Whether the application carries the few datagrams that form a connection, as
    /// [`Worker::set_out_of_band`] describes; the connection module `oob` then takes its place in
    /// `TIELINE_CONNECT`.
    pub fn out_of_band(mut self, on: bool) -> ContextBuilder {
        self.out_of_band = on;
        self
    }

    /// What a context opened like this finds and chooses, and the error with which it cannot be used, if
    /// so: for tools that explain.
    ///
    /// # Errors
    /// A malformed variable or file.
    pub fn report(self) -> Result<(Report, Option<Error>), Error> {
        let core = Core::assemble(self.config.build()?, self.out_of_band)?;
        let unusable = core.check_usable().err();
        Ok((Report::of(&core), unusable))
    }

    /// Opens the context.
    ///
    /// # Errors
    /// As [`Context::open`].
    pub fn open(self) -> Result<Context, Error> {
        let core = Core::open(self.config.build()?, self.out_of_band)?;
        let service = if core.config.bool(vars::PROGRESS_THREAD)? {
            Some(Service::start(core.clone())?)
        } else {
            None
        };
        Ok(Context { core, lease: Arc::new(Lease { service }) })
    }
}

impl Core {
    /// Whether this process is the one that opened the context, and not a forked child of it.
    #[inline]
    pub(crate) fn same_process(&self) -> bool {
        self.guard.same_process()
    }

    /// An error in a forked child, where nothing of the context's may be used: shared memory is not
    /// mapped there, and descriptors are the parent's.
    pub(crate) fn check_process(&self, what: &str) -> Result<(), Error> {
        if self.same_process() {
            return Ok(());
        }
        Err(Error::new(
            Status::Invalid,
            format!("{what} was used in a forked child"),
            "connections and shared memory belong to the process that made them",
            "open a new Context in the child",
        ))
    }

    /// Keeps a line for the report: a library does not print.
    pub(crate) fn note(&self, text: String) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() < NOTES && !notes.contains(&text) {
            notes.push(text);
        }
    }

    /// The lines kept so far.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The service worker, for every worker but itself.
    pub(crate) fn service_party(&self, worker: &[u8; 16]) -> Option<Party> {
        self.service.get().filter(|party| party.worker != *worker).cloned()
    }

    /// Publishes the service worker.
    pub(crate) fn set_service(&self, party: Party) {
        let _ = self.service.set(party);
    }

    /// Memory from the first domain that provides some, else from the heap.
    pub(crate) fn alloc(self: &Arc<Self>, len: usize, access: Access) -> Result<Region, Error> {
        self.check_process("a context")?;
        let giver = self.domains.iter().position(|d| d.attr.caps & memory_caps::ALLOC != 0);
        let Some(index) = giver else {
            let buffer = OwnedBuffer::new(vec![0; len].into());
            return self.register(buffer.span(), access, Backing::Owned(buffer));
        };
        let got = self.domains[index].domain.alloc(len, access.bits())?;
        let first = Registration { domain: index, handle: got.handle as usize };
        let span = Span::of_region(got.base, len);
        self.complete(span, access, vec![first], Backing::Domain)
    }

    fn register(
        self: &Arc<Self>,
        span: Span,
        access: Access,
        backing: Backing,
    ) -> Result<Region, Error> {
        self.complete(span, access, Vec::new(), backing)
    }

    /// Registers a span with every domain that can, besides those that know it already.
    fn complete(
        self: &Arc<Self>,
        span: Span,
        access: Access,
        registrations: Vec<Registration>,
        backing: Backing,
    ) -> Result<Region, Error> {
        self.check_process("a context")?;
        let core = self.clone();
        let (id, generation) = self.regions.insert(span, access);
        let packed = OnceCell::new();
        let mut inner = RegionInner {
            core,
            id,
            generation,
            span,
            access,
            registrations,
            device_atomics: None,
            packed,
            backing,
        };
        for (index, slot) in self.domains.iter().enumerate() {
            let known = inner.registrations.iter().any(|r| r.domain == index);
            if known || slot.attr.caps & memory_caps::REGISTER == 0 || span.len() == 0 {
                continue;
            }
            let region = match slot.domain.register(span.base(), span.len(), access.bits()) {
                Ok(region) => region,
                // Peers reach it through the other domains, or by messages.
                Err(error) => {
                    self.note(format!("{} does not know some memory: {error}", slot.name));
                    continue;
                }
            };
            let handle = region.handle as usize;
            inner.registrations.push(Registration { domain: index, handle });
        }
        if let Some(home) = self.device_atomics {
            if inner.registrations.iter().any(|r| r.domain == home) {
                inner.device_atomics = Some(home);
                self.regions.leave_atomics_to_device(id);
            }
        }
        Ok(Region { inner: Arc::new(inner) })
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if !self.same_process() {
            // A provider that closed its domains in a forked child would say good-bye in its parent's name.
            std::mem::forget(std::mem::take(&mut self.domains));
        }
    }
}
