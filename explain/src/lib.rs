//! What explains a failure, a decision or a state: as data, as text and JSON, and in the files that show it.
//!
//! Every other crate above the provider interface uses this one, so it knows nothing about providers, peers or the core.
//!
//! | module | contents |
//! |---|---|
//! | [`error`], [`record`] | a failure, its reason and the remedy; a decision about a provider, module or peer |
//! | [`snapshot`] | a context as plain data: its set-up and decisions ([`Report`]), and the state of its workers ([`Status`]) |
//! | [`text`] | the texts of a snapshot for users. Its JSON is made from the data by [`json`] |
//! | [`journal`] | events as lines in the file that `TIELINE_REPORT` names |
//! | [`live`] | the file in which a context publishes its state, and its reader |
//! | [`log`] | the lines that a report keeps |
//!
//! [`Status`]: snapshot::Status

pub mod error;
pub mod journal;
pub mod live;
pub mod log;
pub mod record;
pub mod snapshot;
pub mod text;

mod setting;

pub use error::{Error, Scope};
pub use log::{Line, Log, LogLine, is_plain};
pub use record::{Record, Verdict};
pub use setting::{FileView, Origin, Setting, ValueView, upper};
pub use snapshot::{Report, json};
pub use tieline_plugin_api::Status;
