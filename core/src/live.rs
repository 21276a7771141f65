//! The state that a running process publishes for outside observers (`tieline info --pid`), unless `TIELINE_LIVE` is off.
//!
//! ```no_run
//! for context in tieline::live::status_of(4242)? {
//!     print!("{context}");        // what `tieline info --pid 4242` prints
//! }
//! # Ok::<(), tieline::Error>(())
//! ```
//!
//! The crate `tieline-explain` has the file in which a context publishes its state, and the reader of other processes' files.

#[expect(deprecated, reason = "an earlier name")]
pub use tieline_explain::live::of_process;
pub use tieline_explain::live::status_of;
pub use tieline_explain::snapshot::{
    Doing, EndpointStatus, FormingStatus, InterfaceStatus, PeerStatus, Status, Waits, WorkerStatus,
};
