//! What every Tieline provider must do, as checks that run against a provider file.
//!
//! ```text
//! tieline-conformance target/debug/libmine.so
//! ```
//!
//! The checks know the provider only through the C ABI and ask for its capabilities: a module is held to
//! what it claims, and a check that needs more is skipped by name. Each check runs in a process of its own, so
//! that a provider which crashes or hangs fails that check and no other.

mod abi;
pub mod case;
pub mod checks;
mod connector;
mod endpoint;
mod interface;
mod load;
mod note;
pub mod peer;
pub mod report;
pub mod runner;
mod sys;

/// The guide's Rust code is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/writing-a-provider.md")]
struct Guide;
