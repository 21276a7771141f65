//! Tieline: a transport layer whose transports are found at run time.

pub mod error;
pub mod explain;

pub use error::{Error, Kind};
pub use tieline_plugin_api::Status;
