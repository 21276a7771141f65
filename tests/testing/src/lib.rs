//! Code that tests and their runners share: time limits, reports of waits, bounded wait loops, provider files,
//! libfabric, and litmus tests.
//!
//! The crate has no dependencies, so that test runners can use it before other crates are built.

pub mod built;
pub mod hang;
pub mod libfabric;
pub mod litmus;
mod sys;
mod wait;

pub use sys::{Copies, holds_in_child};
pub use wait::Wait;

/// The variable that `cargo xtask test --all` sets; long tests then run at full length.
pub const WHOLE: &str = "TESTS_WHOLE";

/// Checks whether long tests run at full length: all sizes, all programs.
#[must_use]
pub fn is_whole() -> bool {
    std::env::var_os(WHOLE).is_some()
}
