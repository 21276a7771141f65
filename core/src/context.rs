//! Contexts: they find providers, rank their modules and compose paths. Workers and regions keep the state of their context.

use crate::OpenError;
use crate::config::{Config, ConfigBuilder, vars};
use crate::driven::DrivenWorker;
use crate::live::Status;
use crate::mem::region::{Access, Backing, Region};
use crate::report::{self, Report};
use crate::service::Service;
use crate::setup::{Core, Extras};
use crate::sys::{OwnedBuffer, Span};
use crate::worker::Worker;
use std::sync::Arc;

/// A lease that keeps the progress thread running. Contexts and the application's workers hold a lease; the thread itself holds
/// none.
pub(crate) struct Lease {
    #[allow(dead_code)] // held for its drop, which ends the thread
    service: Option<Service>,
}

/// The entry point of the library: the providers that were found, and the memory registered with them.
///
/// Clones share one context. A context can be used from every thread.
#[derive(Clone)]
pub struct Context {
    core: Arc<Core>,
    lease: Arc<Lease>,
}

/// The configuration of a context before it is opened. Values set by the program override the environment and the configuration
/// files.
#[must_use]
pub struct ContextBuilder {
    config: ConfigBuilder,
    extras: Extras,
    /// Whether keys contain addresses, and whether peers may request keys by numbers.
    key_rules: (bool, bool),
}

impl Context {
    /// Opens a context as configured by the environment and the configuration files.
    ///
    /// # Errors
    /// [`OpenError::Configure`], for example if a variable is malformed, a `required:` provider is missing, or no module can carry
    /// messages. [`OpenError::Release`] if memory, descriptors or threads ran out.
    pub fn open() -> Result<Context, OpenError> {
        Context::builder().open()
    }

    /// Returns a builder, for programs that set variables themselves.
    pub fn builder() -> ContextBuilder {
        let config = Config::builder().process_environment();
        ContextBuilder { config, extras: Extras::default(), key_rules: (false, false) }
    }

    /// Opens a worker, which belongs to the calling thread.
    ///
    /// A module that cannot be opened is left out as long as another one carries messages; [`Context::report`] contains the reason.
    ///
    /// # Errors
    /// [`OpenError::Release`] or [`OpenError::Configure`] if no module remains that carries messages, for example because
    /// descriptors or memory ran out. [`OpenError::Reopen`] after the progress thread has stopped, and in a forked child.
    pub fn worker(&self) -> Result<Worker, OpenError> {
        self.core.check_service()?;
        Worker::open(self.core.clone(), Some(self.lease.clone())).map_err(|error| {
            if let Some(journal) = self.core.journal() {
                journal.tell_of_failure(None, &format!("no worker: {error}"));
            }
            error.into()
        })
    }

    /// Opens a driven worker: a worker with a progress thread, which any thread may use at the same time.
    ///
    /// Modules that are bound to the thread that opens them (without `ANY_THREAD`, docs/abi.md) stay closed for a driven worker, and
    /// [`Context::report`] names them.
    ///
    /// # Errors
    /// The errors of [`Context::worker`]. [`OpenError::Release`] also if the system refuses a thread.
    pub fn driven_worker(&self) -> Result<DrivenWorker, OpenError> {
        self.core.check_service()?;
        DrivenWorker::open(self.core.clone(), self.lease.clone()).map_err(|error| {
            if let Some(journal) = self.core.journal() {
                journal.tell_of_failure(None, &format!("no driven worker: {error}"));
            }
            error.into()
        })
    }

    /// Allocates `len` bytes of zeroed memory with [`Access::ALL`]. If a provider offers shared memory, peers on this host can
    /// access the memory by load and store.
    ///
    /// A region of 0 bytes is valid: its key can be exported, and it is closed like any other region.
    ///
    /// If no provider can share the memory, the region is ordinary memory, and [`Region::is_shared`] returns `false`. If the system
    /// forbids shared memory files or one of this size, the report contains the reason.
    ///
    /// # Errors
    /// [`OpenError::Release`] if `len` exceeds the memory that the machine, the process's limits or a memory control group leave
    /// free. The limits are checked before a page is touched. [`OpenError::Reopen`] as for [`Context::worker`].
    pub fn alloc(&self, len: usize) -> Result<Region, OpenError> {
        self.alloc_with(len, Access::ALL)
    }

    /// Does the same as [`Context::alloc`], with a choice of the access rights that peers get.
    ///
    /// # Errors
    /// The errors of [`Context::alloc`].
    pub fn alloc_with(&self, len: usize, access: Access) -> Result<Region, OpenError> {
        self.core.check_service()?;
        Ok(self.core.memory.alloc(len, access)?)
    }

    /// Registers a buffer with [`Access::ALL`]. The region owns the buffer from then on.
    ///
    /// A provider that refuses the memory does not make this call fail. Peers then reach the memory through other providers or by
    /// messages, and [`Context::report`] contains the refusal.
    ///
    /// # Errors
    /// [`OpenError::Reopen`] as for [`Context::worker`].
    pub fn register(&self, buffer: impl Into<Box<[u8]>>) -> Result<Region, OpenError> {
        self.register_with(buffer, Access::ALL)
    }

    /// Does the same as [`Context::register`], with a choice of the access rights that peers get.
    ///
    /// # Errors
    /// The errors of [`Context::register`].
    pub fn register_with(
        &self,
        buffer: impl Into<Box<[u8]>>,
        access: Access,
    ) -> Result<Region, OpenError> {
        self.core.check_service()?;
        let buffer = OwnedBuffer::new(buffer.into());
        Ok(self.core.memory.register_owned(buffer, access)?)
    }

    /// Registers memory that the application owns.
    ///
    /// The whole range must be mapped with the rights that peers get: readable for gets, writable for puts, both for atomics.
    /// [`Access::COMMITTED_LATER`] skips that check. If the memory is unmapped, protected or truncated later, accesses by peers
    /// fail and this process continues, with the exceptions that `docs/guide.md` ("Registered memory that disappears") names.
    ///
    /// # Safety
    /// `base` must be valid for reads and writes of `len` bytes until [`Region::close`] has returned `Ok` for this region, or until
    /// the process ends. It is not sufficient to drop the region or the context: pending operations and copies by peers continue.
    /// No Rust reference to the bytes may be used while a peer may write them.
    ///
    /// # Errors
    /// The errors of [`Context::register`]. `Permission` if the memory is not mapped or not mapped with the required rights.
    #[allow(unsafe_code)] // the caller upholds the contract
    pub unsafe fn register_raw(
        &self,
        base: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Region, OpenError> {
        self.core.check_service()?;
        // SAFETY: the caller upholds this function's contract.
        let span = unsafe { Span::new(base, len) };
        Ok(self.core.memory.register_borrowed(span, access)?)
    }

    /// Wraps a buffer as local memory for operations, without registering it (a transient registration).
    ///
    /// Puts and messages read the buffer, and gets and rendezvous receives write the buffer. The region has no key. If a device
    /// needs a registration for an operation, its provider makes one, or copies the bytes through its own memory.
    /// [`Region::into_buffer`] returns the buffer.
    ///
    /// ```
    /// # fn main() -> Result<(), tieline::Error> {
    /// # let context = tieline::Context::open()?;
    /// # let worker = context.worker()?;
    /// # let me = worker.connect(&worker.address()?)?;
    /// # let there = context.alloc(64)?;
    /// # let key = me.import_key(&there.remote_key()?)?;
    /// let block = context.register_transient(vec![7; 64])?;
    /// let put = me.put(&block, 0..64, &key, 0)?;
    /// worker.finish(put)?;
    /// let buffer: Box<[u8]> = block.into_buffer()?; // the same buffer
    /// # assert_eq!(*buffer, [7; 64]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`OpenError::Reopen`] in a forked child.
    pub fn register_transient(&self, buffer: impl Into<Box<[u8]>>) -> Result<Region, OpenError> {
        let buffer = OwnedBuffer::new(buffer.into());
        Ok(self.core.memory.lend_owned(buffer)?)
    }

    /// Does the same as [`Context::register_transient`], of which this is the earlier name.
    ///
    /// # Errors
    /// The errors of [`Context::register_transient`].
    #[deprecated(since = "0.2.0", note = "renamed to `register_transient`")]
    pub fn lend(&self, buffer: impl Into<Box<[u8]>>) -> Result<Region, OpenError> {
        self.register_transient(buffer)
    }

    /// Does the same as [`Context::register_transient`], for memory that the application keeps and owns.
    ///
    /// # Safety
    /// As for [`Context::register_raw`]: `base` must be valid for reads and writes of `len` bytes until [`Region::close`] has
    /// returned `Ok`, or until the process ends, regardless of what is dropped before. Memory that is only a source of puts and
    /// messages needs to be valid for reads alone.
    ///
    /// After an operation has succeeded, no device or peer writes its memory any more. After an operation has failed, a device or
    /// peer may still write until the operation's endpoint is dropped; `close` reports when that is over. If the memory was sent as
    /// a rendezvous message, a receiver that violates the protocol may read it until `close` returns `Ok`, even after that receiver
    /// has reported that it is finished.
    ///
    /// While an operation writes the memory, the program must not access it. While an operation reads the memory, the program must
    /// not write it.
    ///
    /// # Errors
    /// The errors of [`Context::register_transient`].
    #[allow(unsafe_code)] // the caller upholds the contract
    pub unsafe fn register_transient_raw(
        &self,
        base: *mut u8,
        len: usize,
    ) -> Result<Region, OpenError> {
        // SAFETY: the caller upholds this function's contract.
        let span = unsafe { Span::new(base, len) };
        Ok(self.core.memory.lend(span, Backing::Borrowed)?)
    }

    /// Does the same as [`Context::register_transient_raw`], of which this is the earlier name.
    ///
    /// # Safety
    /// As [`Context::register_transient_raw`].
    ///
    /// # Errors
    /// The errors of [`Context::register_transient`].
    #[allow(unsafe_code)] // the promise is the caller's
    #[deprecated(since = "0.2.0", note = "renamed to `register_transient_raw`")]
    pub unsafe fn lend_raw(&self, base: *mut u8, len: usize) -> Result<Region, OpenError> {
        // SAFETY: the caller's promise.
        unsafe { self.register_transient_raw(base, len) }
    }

    /// Returns the state of the context's workers and the operations for which they wait. `tieline info --pid` shows the same from
    /// another process ([`crate::live`]).
    ///
    /// Each entry is the worker's latest published state; [`WorkerStatus::age_ms`](crate::live::WorkerStatus) is its age. A worker
    /// that makes progress in a loop publishes about every tenth of a second, or less often if that takes long. The method may be
    /// called from any thread.
    ///
    /// The result is empty with `TIELINE_LIVE=off`, if memory or a descriptor was missing, and in a forked child. It lacks workers
    /// for which no place was free. [`Worker::status`] needs neither the setting nor a place.
    #[must_use]
    pub fn status(&self) -> Status {
        self.core.status()
    }

    #[cfg(test)]
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Returns the modules that were found, the modules in use, and the reasons why others are not used.
    #[must_use]
    pub fn report(&self) -> Report {
        report::report(&self.core)
    }
}

impl ContextBuilder {
    /// Sets a variable, for example `.set("TIELINE_PROVIDERS", "^shm-cma")`.
    pub fn set(mut self, name: &str, value: &str) -> ContextBuilder {
        self.config = self.config.set(name, value);
        self
    }

    /// Sets whether a thread of the library serves peers' accesses to this context's memory while the application computes. The
    /// thread sleeps when it is idle. The variable is `TIELINE_PROGRESS_THREAD`.
    ///
    /// If the thread fails, existing workers and memory remain usable, and the workers' own progress serves peers as in a context
    /// without the thread. Operations that peers had sent to the thread fail; the workers serve requests that wait for a connection
    /// to the thread. The next [`Worker::wait`], [`Worker::wait_until`] or [`Worker::arm`] of each worker returns the reason as an
    /// error, once. From then on, opening a worker and allocating or registering memory fail; transient registrations still work.
    pub fn progress_thread(self, on: bool) -> ContextBuilder {
        self.set(vars::PROGRESS_THREAD, if on { "on" } else { "off" })
    }

    /// Sets whether to promise to peers that all workers of this context make progress every few microseconds. The variable is
    /// `TIELINE_POLLS_OFTEN`. The default is off, because a target that computes breaks the promise.
    ///
    /// A worker's address carries the promise. A peer with that address sends small puts and gets as messages if that is faster
    /// than the module that reaches the memory: within a host, two messages can be faster than one system call. The costs that the
    /// modules declare determine the maximum length of these puts and gets ([`RemoteKey::path`](crate::RemoteKey::path),
    /// [`Endpoint::report`](crate::Endpoint::report)).
    ///
    /// The meaning of an operation is the same on both routes: `Done` means that the bytes have arrived, except for puts with
    /// [`Completion::Local`](crate::Completion::Local). The timing of an operation differs between the routes:
    ///
    /// - An operation that the module would complete within the call can be `Pending`. A pending operation needs progress of both
    ///   workers. If the target breaks its promise, the operation waits for the target's next progress call.
    /// - After a fence, a small put waits for the answer to the small put before it, and for progress on this side. The module that
    ///   reaches the memory needs neither.
    /// - Without a fence, no operation waits for these messages. Small operations use the module that reaches the memory while 16
    ///   requests to the peer are unanswered. They also use it while the message lane (the module that carries messages to this
    ///   peer) accepts no message.
    /// - Modules that complete asynchronously execute their small operations themselves, because many of these can be in flight
    ///   together.
    ///
    /// The first small put or get that messages may carry opens the message lane, even on an endpoint that sends no messages. From
    /// then on the endpoint fails when that lane fails. If the target's worker is closed, puts fail although the module could
    /// complete them, and a new endpoint finds no route to that worker within `TIELINE_CONNECT_TIMEOUT`.
    ///
    /// The promise is not advertised while a progress thread serves peers, nor if waits do not spin (`TIELINE_SPIN`), as in a job
    /// with more processes than processors. [`Context::report`] contains a warning in these cases. A promise that a peer has
    /// received stays valid for its endpoints.
    pub fn polls_often(self, on: bool) -> ContextBuilder {
        self.set(vars::POLLS_OFTEN, if on { "on" } else { "off" })
    }

    /// Sets whether the application can carry the few datagrams that establish a connection, as [`Worker::set_out_of_band`]
    /// describes. The position of `oob` in `TIELINE_CONNECT` determines when this channel is used.
    pub fn out_of_band(mut self, on: bool) -> ContextBuilder {
        self.extras.out_of_band = on;
        self
    }

    /// Sets whether to load every admitted provider file, also that of a provider whose device is missing. The default is off: the
    /// core reports such a provider without loading its file.
    ///
    /// The variables of a provider are known only if its file is loaded. `tieline config` therefore loads all.
    pub fn load_all_providers(mut self, on: bool) -> ContextBuilder {
        self.extras.load_all = on;
        self
    }

    /// Sets whether every remote key of this context contains the address of its region in this process
    /// ([`RemoteKey::address`](crate::RemoteKey::address)), also the keys of handles and numbers. The default is off.
    /// [`Region::remote_key_with_address`](crate::Region::remote_key_with_address) does this for one key.
    ///
    /// **The addresses reveal the layout of the address space to everybody who gets a key.** An attacker can use that to exploit another
    /// defect of the process. So switch this on only if all holders of keys may know it. No setting of the environment does.
    pub fn keys_with_addresses(mut self, on: bool) -> ContextBuilder {
        self.key_rules.0 = on;
        self
    }

    /// Sets whether regions of this context can be published under numbers ([`Region::publish`](crate::Region::publish)), by which
    /// peers then request their keys. The default is off.
    ///
    /// **Every process that can connect to a worker of this context may request every number**, and may try all numbers. It then has
    /// the rights of the keys that it gets. If the job has a secret (`TIELINE_SECRET`), only processes with that secret can connect over
    /// TCP. So switch this on only if all such processes may access the published memory.
    pub fn publish_keys(mut self, on: bool) -> ContextBuilder {
        self.key_rules.1 = on;
        self
    }

    /// Returns the report of a context with this configuration, even if the context is unusable; the error is then the reason that
    /// it cannot be opened.
    ///
    /// # Errors
    /// [`OpenError::Configure`] for a malformed variable or file; [`OpenError::Release`] if the system lacks memory or descriptors.
    pub fn report(self) -> Result<(Report, Option<OpenError>), OpenError> {
        let core = Core::assemble(self.config.build()?, self.extras)?;
        let unusable = core.check_usable().err().map(OpenError::from);
        Ok((report::report(&core), unusable))
    }

    /// Opens the context.
    ///
    /// # Errors
    /// The errors of [`Context::open`].
    pub fn open(self) -> Result<Context, OpenError> {
        let report_to = self.config.report_to();
        let config = self.config.build().inspect_err(|error| {
            let _ = report_to.map(|to| Core::tell_unopened(&to, error));
        })?;
        let core = Core::open(config, self.extras)?;
        core.memory.permit(self.key_rules.0, self.key_rules.1);
        report::write_while_made(&core);
        let service = if core.config.bool(vars::PROGRESS_THREAD)? {
            let started = Service::start(core.clone());
            Some(started.inspect_err(|error| core.tell_unfinished(error))?)
        } else {
            None
        };
        Ok(Context { core, lease: Arc::new(Lease { service }) })
    }
}
