//! An endpoint's counters.

use std::collections::BTreeMap;

/// What an endpoint has counted. What a lane took at once is not among it: that is counted nowhere, since it would cost every post;
/// and of what goes through the peer's progress thread the waiting is not counted here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointCounters {
    /// Operations that had to wait, for room, a connection, or what was posted before them.
    pub queued: u64,
    /// Calls that were answered `Again`: as much was pending as may be.
    pub refused: u64,
    /// Long messages that were announced.
    pub announced: u64,
    /// Puts, gets and atomics that were asked for by messages; of one that the library cut, each part.
    pub emulated: u64,
    /// Large puts and gets of which the peer copied a part.
    pub shared: u64,
}

impl EndpointCounters {
    /// What is not 0, by its name.
    pub(super) fn named(&self) -> BTreeMap<String, u64> {
        let EndpointCounters { queued, refused, announced, emulated, shared } = *self;
        let all = [
            ("queued", queued),
            ("refused", refused),
            ("announced", announced),
            ("emulated", emulated),
            ("shared", shared),
        ];
        let counted = all.into_iter().filter(|(_, n)| *n > 0);
        counted.map(|(name, n)| (name.to_owned(), n)).collect()
    }
}
