//! Tieline: a transport library that finds its transports at run time.
//!
//! The library offers active messages, put, get, atomics and registered memory with completions, over connections that are
//! established on demand. With no provider installed, the built-in ones (feature `builtin`, on by default) connect the processes of
//! one host:
//!
//! ```
//! fn main() -> Result<(), tieline::Error> {
//!     let context = tieline::Context::open()?;
//!     let worker = context.worker()?;
//!     let memory = context.alloc(4096)?;
//!     let endpoint = worker.connect(&worker.address()?)?; // the peer's address, over a private channel of the job; here our own
//!     let key = endpoint.import_key(&memory.remote_key()?)?;
//!     let put = endpoint.put_bytes(b"moved", &key, 100)?;
//!     let _ = worker.finish(put)?;
//!     assert_eq!(memory.to_vec(100..105)?, b"moved");
//!     Ok(())
//! }
//! ```
//!
//! A [`Context`] finds providers, ranks their modules and composes paths. Its [`Report`] lists the modules in use, and the reasons
//! why other modules are not. A [`Worker`] is a progress engine that belongs to one thread at a time. An [`Endpoint`] leads to one
//! peer. A [`Region`] is memory for operations; peers access a registered one with its [`RemoteKey`].
//!
//! An [`Error`] has a text for a person. The error types of the operations tell a program which reaction is possible ([`error`]).
//! The library prints nothing unless `TIELINE_REPORT` is set. The library installs no signal handler and does not end the process.
//! It registers one function with `atexit`, which says goodbye to the peers of the exiting thread's open workers.

mod builtin;
pub mod context;
pub mod driven;
pub mod endpoint;
pub mod error;
mod exit;
#[cfg(test)]
mod golden_tests;
mod interface;
pub mod live;
mod mem;
pub mod message;
mod proto;
pub mod report;
mod request;
mod service;
mod setup;
mod shared;
mod sys;
pub mod worker;

pub use mem::region;
use tieline_choose::{address, compose, lanes, rank};
use tieline_config as config;
use tieline_config::select;
pub use tieline_explain::record as explain;
pub use tieline_job as job;
use tieline_wireup::{self as wireup, wire};

#[doc(hidden)]
pub use builtin::link_provider;
pub use builtin::{configuration_file, configuration_markdown};
pub use context::{Context, ContextBuilder};
pub use driven::DrivenWorker;
pub use endpoint::{
    After, AtomicOp, Blocks, Close, Completion, Descriptor, Endpoint, EndpointCounters, EndpointId,
    EndpointLimits, KeyLimits, KeyLookup, MAX_MESSAGE_ID, PreparedList, RemoteKey, RemotePointer,
    SendOptions, Width,
};
pub use error::{CompletionError, ConfigureError, ConnectError, Error, OpenError, PostError};
pub use job::Job;
pub use message::{
    Acknowledgement, HeaderBytes, KeptMessage, MAX_HEADER_BYTES, Message, NotReceived, PeerId,
    Rendezvous,
};
#[expect(deprecated, reason = "earlier names")]
pub use message::{Announcement, Untaken};
pub use region::{Access, KeyHandle, NotClosed, Region};
pub use report::Report;
pub use request::{CompletionCounter, Outcome, Request};
pub use tieline_lookup::WorkerName;
pub use tieline_plugin_api::Status;
/// The C library uses this module, because it keeps per-process state as well.
#[doc(hidden)]
pub use tieline_plugin_api::process;
pub use worker::services::{ServiceAnswer, ServiceCall, ServiceRequest};
pub use worker::threads::{Movable, NotTaken, Remote, WaitSet, Waker};
pub use worker::{Counters, Loss, MemoryUse, NameCall, Undelivered, Waited, Worker};
