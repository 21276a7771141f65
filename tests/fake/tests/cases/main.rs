//! One promise each: what a peer that lies, a provider that breaks, a lane that is late must not do to the application.
//!
//! A case that waits for its repair stands in [`KNOWN`]: it has to fail, and one that passes has to be taken out.

mod bounds;
mod circuits;
mod closing;
mod connectors;
mod contract;
mod declined;
mod forged;
mod gathered;
mod giving_up;
mod keys;
mod lanes;
mod limits;
mod notify;
mod order;
mod panics;
mod pieces;
mod pointers;
mod progress_thread;
mod shared;
mod stage;
mod swapping;
mod ways;
mod workers;

/// The cases that fail today, and what is wrong.
const KNOWN: &[(&str, &str)] = &[];

/// Runs a case; one of [`KNOWN`] has to fail.
fn case(name: &str, body: impl FnOnce()) {
    let known = KNOWN.iter().find(|(known, _)| *known == name);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
    match (known, result) {
        (None, Ok(())) => {}
        (None, Err(panic)) => std::panic::resume_unwind(panic),
        (Some((_, wrong)), Err(_)) => println!("fails, as is known: {wrong}"),
        (Some(_), Ok(())) => panic!("`{name}` passes: take it out of KNOWN"),
    }
}

/// Declares cases: each is a test of the same name.
macro_rules! cases {
    ($( $(#[$doc:meta])* fn $name:ident() $body:block )*) => {
        $( $(#[$doc])* #[test] fn $name() { crate::case(stringify!($name), || $body) } )*
    };
}
pub(crate) use cases;

#[test]
fn every_known_case_is_a_case() {
    let sources = [
        include_str!("bounds.rs"),
        include_str!("circuits.rs"),
        include_str!("closing.rs"),
        include_str!("connectors.rs"),
        include_str!("contract.rs"),
        include_str!("declined.rs"),
        include_str!("forged.rs"),
        include_str!("giving_up.rs"),
        include_str!("keys.rs"),
        include_str!("lanes.rs"),
        include_str!("notify.rs"),
        include_str!("limits.rs"),
        include_str!("order.rs"),
        include_str!("panics.rs"),
        include_str!("pieces.rs"),
        include_str!("pointers.rs"),
        include_str!("progress_thread.rs"),
        include_str!("shared.rs"),
        include_str!("ways.rs"),
        include_str!("workers.rs"),
    ];
    for (name, _) in KNOWN {
        let declared = format!("fn {name}()");
        assert!(sources.iter().any(|source| source.contains(&declared)), "no case `{name}`");
    }
}
