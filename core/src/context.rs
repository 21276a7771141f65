//! Contexts: providers found, ranked and composed; the home of workers and registered memory.

use crate::OpenError;
use crate::config::{Config, ConfigBuilder, vars};
use crate::live::Status;
use crate::mem::region::{Access, Backing, Region};
use crate::report::Report;
use crate::service::Service;
use crate::setup::Core;
use crate::sys::{OwnedBuffer, Span};
use crate::worker::Worker;
use std::sync::Arc;

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

impl Context {
    /// Opens a context as environment and configuration files say.
    ///
    /// # Errors
    /// [`OpenError::Configure`]: a malformed variable, a `required:` provider that is missing, or no module at all that carries
    /// messages. [`OpenError::Release`]: memory, descriptors or threads ran out.
    pub fn open() -> Result<Context, OpenError> {
        Context::builder().open()
    }

    /// A builder, for programs that set something themselves.
    pub fn builder() -> ContextBuilder {
        ContextBuilder { config: Config::builder().process_environment(), out_of_band: false }
    }

    /// Opens a worker, which belongs to the calling thread.
    ///
    /// # Errors
    /// When no module is left that carries messages: mostly [`OpenError::Release`], descriptors or memory ran out. One that
    /// cannot be opened beside others is left out, and [`Context::report`] says why. [`OpenError::Reopen`] when the progress
    /// thread has stopped, once it is known, and in a forked child.
    pub fn worker(&self) -> Result<Worker, OpenError> {
        self.core.check_service()?;
        Worker::open(self.core.clone(), Some(self.lease.clone())).map_err(|error| {
            if let Some(journal) = self.core.journal() {
                journal.tell_of_failure(None, &format!("no worker: {error}"));
            }
            error.into()
        })
    }

    /// Allocates zeroed memory that is shared from birth where a provider offers that: local peers reach it
    /// by load and store. All access. 0 bytes are a region without any: it can be passed on and closed like others.
    ///
    /// Where no provider can give such memory (shared memory files are forbidden, say), it is ordinary memory,
    /// [`Region::is_shared`] is `false`, and the report says why.
    ///
    /// # Errors
    /// [`OpenError::Release`] for more than the machine has available, or than the process's limits or the memory control
    /// groups around it allow, before a page is touched. [`OpenError::Reopen`] as of [`Context::worker`].
    pub fn alloc(&self, len: usize) -> Result<Region, OpenError> {
        self.alloc_with(len, Access::ALL)
    }

    /// [`Context::alloc`] with a choice of what peers may do.
    ///
    /// # Errors
    /// As [`Context::alloc`].
    pub fn alloc_with(&self, len: usize, access: Access) -> Result<Region, OpenError> {
        self.core.check_service()?;
        Ok(self.core.memory.alloc(len, access)?)
    }

    /// Registers a buffer, which the region owns from here on. All access.
    ///
    /// # Errors
    /// [`OpenError::Reopen`] as of [`Context::worker`]. A provider that refuses the memory is no error: peers reach it through
    /// the others, or by messages, and [`Context::report`] says so.
    pub fn register(&self, buffer: impl Into<Box<[u8]>>) -> Result<Region, OpenError> {
        self.register_with(buffer, Access::ALL)
    }

    /// [`Context::register`] with a choice of what peers may do.
    ///
    /// # Errors
    /// As [`Context::register`].
    pub fn register_with(
        &self,
        buffer: impl Into<Box<[u8]>>,
        access: Access,
    ) -> Result<Region, OpenError> {
        self.core.check_service()?;
        let buffer = OwnedBuffer::new(buffer.into());
        Ok(self.core.memory.register_owned(buffer, access)?)
    }

    /// Registers memory that the application owns. All of it has to be mapped with the rights that peers get: to be read for gets, to be
    /// written for puts, both for atomics; [`Access::COMMITTED_LATER`] leaves that check out. If the memory is unmapped, protected or cut
    /// off later all the same, accesses of peers fail there, and this process goes on.
    ///
    /// # Safety
    /// `base` is valid for reads and writes of `len` bytes until [`Region::close`] has returned `Ok` for this region, or
    /// to the end of the process: dropping the region is not enough, since operations that are pending and peers in the
    /// middle of a copy go on, nor is dropping the context. No Rust reference to the bytes is used while a peer
    /// may write them.
    ///
    /// # Errors
    /// As [`Context::register`]; `Permission` where the memory is not mapped, or lacks a right.
    #[allow(unsafe_code)] // the promise is the caller's
    pub unsafe fn register_raw(
        &self,
        base: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Region, OpenError> {
        self.core.check_service()?;
        // SAFETY: the caller's promise.
        let span = unsafe { Span::new(base, len) };
        Ok(self.core.memory.register_borrowed(span, access)?)
    }

    /// Takes a buffer as local memory of operations, in place and for as long as they last: puts read from it, gets and messages that
    /// are taken write to it, messages are sent from it. It is registered with nobody, has no key, and costs an allocation: where a device
    /// needs a registration it is made for the time of an operation. [`Region::into_buffer`] gives the buffer back.
    ///
    /// ```
    /// # fn main() -> Result<(), tieline::Error> {
    /// # let context = tieline::Context::open()?;
    /// # let worker = context.worker()?;
    /// # let me = worker.connect(&worker.address()?)?;
    /// # let there = context.alloc(64)?;
    /// # let key = me.import_key(&there.remote_key()?)?;
    /// let block = context.lend(vec![7; 64])?;
    /// let put = me.put(&block, 0..64, &key, 0)?;
    /// worker.finish(put)?;
    /// let buffer: Box<[u8]> = block.into_buffer()?; // the same one
    /// # assert_eq!(*buffer, [7; 64]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`OpenError::Reopen`] in a forked child.
    pub fn lend(&self, buffer: impl Into<Box<[u8]>>) -> Result<Region, OpenError> {
        let buffer = OwnedBuffer::new(buffer.into());
        Ok(self.core.memory.lend_owned(buffer)?)
    }

    /// The same for memory that stays where it is and whose it is.
    ///
    /// # Safety
    /// As of [`Context::register_raw`]: `base` is valid for reads and writes of `len` bytes (for reads alone, where it is only put and sent from)
    /// until [`Region::close`] has returned `Ok`, or to the end of the process, whatever is dropped meanwhile. That an operation has ended
    /// well says that nobody writes there any more; one that has failed may, until its endpoint is dropped, and `close` says it. Of a message
    /// that was announced a receiver that breaks the rules may go on reading until then, also where it has said that it is through.
    /// While an operation writes there nobody else looks, and while one reads nobody writes.
    ///
    /// # Errors
    /// As [`Context::lend`].
    #[allow(unsafe_code)] // the promise is the caller's
    pub unsafe fn lend_raw(&self, base: *mut u8, len: usize) -> Result<Region, OpenError> {
        // SAFETY: the caller's promise.
        let span = unsafe { Span::new(base, len) };
        Ok(self.core.memory.lend(span, Backing::Borrowed)?)
    }

    /// What the context's workers do and what they wait for, as `tieline info --pid` sees it from outside ([`crate::live`]): each
    /// worker as it has shown itself last ([`WorkerStatus::age_ms`](crate::live::WorkerStatus) says when), which is about a tenth of a
    /// second ago while it makes progress in a loop. From any thread. Empty with `TIELINE_LIVE=off`, where there was no memory or
    /// descriptor for it, and in a forked child; [`Worker::status`] needs neither.
    #[must_use]
    pub fn status(&self) -> Status {
        self.core.status()
    }

    #[cfg(test)]
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
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
    ///
    /// Should the thread end early, what is there goes on, served by the workers' own progress as without it; what peers had on
    /// its way to the thread ends, and what waits for a connection to it goes to the workers. The owner hears of it from the next
    /// [`Worker::wait`], `wait_until` or [`Worker::arm`] of each worker, which returns the reason once, and from everything new that the
    /// context is asked for: workers and memory.
    pub fn progress_thread(self, on: bool) -> ContextBuilder {
        self.set(vars::PROGRESS_THREAD, if on { "on" } else { "off" })
    }

    /// Whether this context promises its peers that all of its workers make progress all the time, every few microseconds while they
    /// have nothing else to do: `TIELINE_POLLS_OFTEN`. Off by default, since a target that computes would break it.
    ///
    /// A worker's address carries the promise. Who has the address does small puts and gets by messages where those are quicker than
    /// the module that reaches the memory, as two messages within a host are than a system call; the modules' stated costs say up to
    /// how many bytes ([`RemoteKey::path`](crate::RemoteKey::path), [`Endpoint::report`](crate::Endpoint::report)). What an
    /// operation means is the same by either way: `Done` is said when the bytes are there. It may be `Pending` now where the module was
    /// through when the call returned, and needs the progress of both workers until then: of a target that does not keep
    /// its promise it waits for the next progress call. So does what stands behind a fence: between two small puts it waits for the
    /// answer to the first, and for this side's own progress, where the module had needed neither. Without a fence nothing waits behind
    /// them: while 16 are unanswered, or the message lane has no room, small ones go by the module too. Modules that complete later
    /// keep what is small, since many of them are under way at once.
    ///
    /// The first small put or get opens the message lane to the peer, also on an endpoint that sends no messages. From then on the
    /// endpoint ends with that lane: where the target's worker is closed, puts that the module would have done fail as well, and a new
    /// endpoint finds no way to that worker within `TIELINE_CONNECT_TIMEOUT`.
    ///
    /// It is not told to peers while a progress thread serves them, nor where waits do not spin (`TIELINE_SPIN`), as in a job of more
    /// processes than processors: [`Context::report`] has a warning then. What a peer has been told holds for its endpoints.
    pub fn polls_often(self, on: bool) -> ContextBuilder {
        self.set(vars::POLLS_OFTEN, if on { "on" } else { "off" })
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
    /// [`OpenError::Configure`]: a malformed variable or file.
    pub fn report(self) -> Result<(Report, Option<OpenError>), OpenError> {
        let core = Core::assemble(self.config.build()?, self.out_of_band)?;
        let unusable = core.check_usable().err().map(OpenError::from);
        Ok((Report::of(&core), unusable))
    }

    /// Opens the context.
    ///
    /// # Errors
    /// As [`Context::open`].
    pub fn open(self) -> Result<Context, OpenError> {
        let report_to = self.config.report_to();
        let config = self.config.build().inspect_err(|error| {
            let _ = report_to.map(|to| Core::tell_unopened(&to, error));
        })?;
        let core = Core::open(config, self.out_of_band)?;
        Report::write_while_made(&core);
        let service = if core.config.bool(vars::PROGRESS_THREAD)? {
            let started = Service::start(core.clone());
            Some(started.inspect_err(|error| core.tell_unfinished(error))?)
        } else {
            None
        };
        Ok(Context { core, lease: Arc::new(Lease { service }) })
    }
}
