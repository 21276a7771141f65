//! What tests and their runners share: limits, what processes wait for, loops that wait and end, and the files that this
//! build has made.
//!
//! It depends on nothing, so that what runs tests can use it before anything else is built.

pub mod built;
pub mod hang;
pub mod libfabric;
mod sys;
mod wait;

pub use sys::holds_in_child;
pub use wait::Wait;

/// Set for `cargo xtask test --all`, where long tests run in their whole length.
pub const WHOLE: &str = "TESTS_WHOLE";

/// Whether long tests run in their whole length: all sizes, all programs.
#[must_use]
pub fn is_whole() -> bool {
    std::env::var_os(WHOLE).is_some()
}
