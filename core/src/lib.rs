//! Tieline: a transport layer whose transports are found at run time.

#[allow(dead_code)] // until the context uses all of it
mod compose;
#[allow(dead_code)] // until the context uses all of it
mod config;
pub mod error;
pub mod explain;
pub mod job;
#[allow(dead_code)] // until the context uses all of it
mod rank;
#[allow(dead_code)] // until the context uses all of it
mod registry;
pub mod report;
#[allow(dead_code)] // until the context uses all of it
mod select;

pub use config::configuration_markdown;
pub use error::{Error, Kind};
pub use job::Job;
pub use tieline_plugin_api::Status;
