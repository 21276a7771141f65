//! Counters of an endpoint.

use std::collections::BTreeMap;

/// The event counts of an endpoint. Eager messages and native operations that a lane accepts immediately are not counted, because
/// that would cost time in every post. `queued` excludes operations that wait in the internal endpoint to the peer's progress
/// thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointCounters {
    /// The number of operations that were queued when they were posted: to wait for the lane, for a connection, or for earlier
    /// operations.
    pub queued: u64,
    /// The number of calls that returned `Again`, because a limit of pending operations, queued bytes or copied bytes was reached.
    pub refused: u64,
    /// The number of rendezvous messages that this endpoint has posted.
    pub announced: u64,
    /// The number of puts, gets and atomics requested by messages. Each part of an operation that the library splits counts.
    pub emulated: u64,
    /// The number of large puts and gets of which the peer copied a part.
    pub shared: u64,
}

impl EndpointCounters {
    /// Returns the counters that are not 0, by name.
    pub(super) fn named(&self) -> BTreeMap<String, u64> {
        tieline_explain::counted!(
            *self,
            EndpointCounters { queued, refused, announced, emulated, shared }
        )
    }
}
