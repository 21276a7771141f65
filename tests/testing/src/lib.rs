//! Common parts of tests and their runners: time limits, reports of waits, bounded wait loops, and the files of this build.
//!
//! It has no dependencies, so that test runners can use it before anything else is built.

pub mod built;
pub mod hang;
pub mod libfabric;
mod sys;
mod wait;

pub use sys::holds_in_child;
pub use wait::Wait;

/// Set by `cargo xtask test --all`, which runs long tests at full length.
pub const WHOLE: &str = "TESTS_WHOLE";

/// Whether long tests run at full length: all sizes, all programs.
#[must_use]
pub fn is_whole() -> bool {
    std::env::var_os(WHOLE).is_some()
}
