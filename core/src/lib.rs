//! Tieline: a transport layer whose transports are found at run time.

mod address;
mod assist;
mod compose;
mod config;
pub mod context;
mod emulate;
pub mod endpoint;
pub mod error;
pub mod explain;
pub mod job;
mod key;
pub mod message;
mod rank;
mod reach;
pub mod region;
#[allow(dead_code)] // until the context uses all of it
mod registry;
pub mod report;
pub mod request;
mod select;
mod selftest;
mod service;
mod sys;
mod wire;
pub mod worker;

pub use config::configuration_markdown;
pub use context::{Context, ContextBuilder};
pub use endpoint::{AtomicOp, Completion, Endpoint, MAX_MESSAGE_ID, RemoteKey, Width};
pub use error::{Error, Kind};
pub use job::Job;
pub use message::{KeptMessage, Message, PeerId};
pub use region::{Access, Region};
pub use report::Report;
pub use request::{Outcome, Request};
pub use tieline_plugin_api::Status;
pub use worker::{Counters, MemoryUse, Worker};
