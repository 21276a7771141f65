//! The requirements of every Tieline provider, as checks that run against a provider file. `tieline check` runs them.
//!
//! ```text
//! tieline check target/debug/libmine.so
//! ```
//!
//! The checks use the provider through the C ABI. They test a module against the capabilities that it claims; a check that needs
//! others is skipped by name. Each check that is not skipped runs in a separate process, so a crash or hang in a check fails only
//! that check. These processes run the program that [`Plan::program`] names, which must call [`child`] before it reads its
//! arguments.

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
mod page;
mod peer;
mod promises;
mod random;
mod report;
mod runner;
mod sys;
mod watch;
mod words;

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
