//! The cases of the fake provider: lying peers, failing providers, slow lanes, and rules of the interface.

mod alone;
mod announced;
mod bounds;
mod circuits;
mod closing;
mod completed;
mod connectors;
mod contract;
mod declined;
mod endings;
mod forged;
mod gathered;
mod giving_up;
mod handles;
mod headed;
mod identity;
mod keys;
mod lanes;
mod late;
mod limits;
mod lists;
mod notices;
mod notify;
mod numbers;
mod order;
mod panics;
mod pieces;
mod pointers;
mod progress_thread;
mod resting;
mod shared;
mod short_puts;
mod small;
mod stage;
mod strided;
mod swapping;
mod to_itself;
mod waiting;
mod watching;
mod ways;
mod workers;

/// Declares cases: each name becomes a test.
macro_rules! cases {
    ($( $(#[$doc:meta])* fn $name:ident() $body:block )*) => {
        $( $(#[$doc])* #[test] fn $name() $body )*
    };
}
pub(crate) use cases;
