//! What every Tieline provider must do, as checks that run against a provider file. `tieline check` is the way in.
//!
//! ```text
//! tieline check target/debug/libmine.so
//! ```
//!
//! The checks know the provider only through the C ABI and ask for its capabilities: a module is held to
//! what it claims, and a check that needs more is skipped by name. Each check runs in a process of its own, so
//! that a provider which crashes or hangs fails that check and no other. These processes are the caller's own program,
//! started again: it calls [`child`] before it looks at its arguments.

mod abi;
mod case;
pub mod checks;
mod connector;
mod endpoint;
mod enter;
mod hold;
mod hub;
mod interface;
mod load;
mod mailbox;
mod measure;
mod note;
mod page;
mod peer;
mod promises;
mod random;
mod report;
mod runner;
mod sys;
mod watch;

pub use page::page;
pub use report::Verdict;
pub use runner::{Contents, Listed, Outcome, Plan, Tally, child, contents, run};
pub use watch::LIMIT;

/// The first argument of a process that is a peer of [`child`]; the file and `domain/module` follow.
pub const PEER: &str = peer::ARGUMENT;

/// The guide's Rust code is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/writing-a-provider.md")]
struct Guide;
