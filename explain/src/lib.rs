//! The explanation of a failure, a decision or a state: as data, as text and JSON, and in the files that show it.
//!
//! Most crates above the provider interface use this one, so it depends on that interface only.
//!
//! | module | contents |
//! |---|---|
//! | [`error`], [`record`] | a failure, its reason and the remedy; a decision about a provider, module or peer |
//! | [`snapshot`] | a context as plain data: its set-up and decisions ([`Report`]), and the state of its workers ([`Status`]) |
//! | [`text`] | the texts of a snapshot for users. Its JSON is made from the data by [`json`] |
//! | [`journal`] | events as lines on stderr or in a file, as `TIELINE_REPORT` selects |
//! | [`live`] | the file in which a context publishes its state, and its reader |
//! | [`log`] | the lines that a report keeps |
//! | [`Setting`], [`ValueView`], [`FileView`] | a setting with its origin, a variable, and a settings file |
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
pub use setting::{FileView, Origin, Setting, ValueView, upper, upper_char};
pub use snapshot::{Report, json};
pub use tieline_plugin_api::Status;
