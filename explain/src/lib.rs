//! What explains a failure or a decision: errors, records, and the lines of a report.
//!
//! Every other crate above the provider interface uses this one, so it knows nothing about settings, providers or peers. An
//! [`Error`] states an event, its reason and the remedy. A [`Record`] states one decision about a provider, module or peer. A
//! [`Log`] keeps the first and the last lines until a report shows them.

mod error;
mod log;
pub mod record;
mod setting;

pub use error::{Error, Scope};
pub use log::{Line, Log, LogLine, is_plain};
pub use record::{Record, Verdict};
pub use setting::{Origin, Setting, upper};
pub use tieline_plugin_api::Status;
