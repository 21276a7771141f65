//! The snapshot of a context as plain data. The texts ([`crate::text`]) and the JSON are made from it.
//!
//! [`Report`] shows the set-up of the context, with the warnings and log lines so far. [`Status`] shows the state at one moment.
//! Later versions only add fields to both.

mod report;
mod status;

pub use report::{DomainView, LaneView, LogView, ModuleView, PathView, ProviderView, Report};
pub use status::{
    Doing, EndpointStatus, FormingStatus, InterfaceStatus, MOST_SHOWN, PeerStatus, Status, Waits,
    WorkerStatus, cut, short,
};

/// Returns the counters of a record that are not 0, by name. The pattern of the record has no `..`, so that the compiler reports a
/// counter that is missing.
#[macro_export]
macro_rules! counted {
    ($record:expr, $type:ident { $($name:ident),+ $(,)? }) => {{
        let $type { $($name),+ } = $record;
        let counted = [$((stringify!($name), $name)),+].into_iter().filter(|(_, n)| *n > 0);
        counted.map(|(name, n)| (name.to_owned(), n)).collect()
    }};
}

/// Returns a part of a snapshot as JSON.
#[must_use]
pub fn json(part: &impl serde::Serialize) -> String {
    // The keys of all maps are strings, and the text is written to memory, so the conversion does not fail.
    serde_json::to_string_pretty(part).unwrap_or_default()
}
