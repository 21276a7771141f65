//! Counters of a worker.

/// Event counts of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages without a handler for their id, and notifications without a handler. They were dropped.
    pub unknown_ids: u64,
    /// Malformed messages of the library's own protocols, and answers to operations that had ended. They were dropped.
    pub malformed: u64,
    /// Messages by which peers requested puts, gets and atomics, because no module executes them or because messages are faster.
    pub emulated: u64,
    /// Pieces of peers' large puts and gets that this worker copied for them.
    pub assisted_chunks: u64,
    /// Connections established with peers by modules that connect to an endpoint.
    pub connections: u64,
    /// Connections of this kind that could not be established.
    pub failed_connections: u64,
    /// Wire-up messages that were retransmitted because no answer arrived.
    pub wireup_retransmissions: u64,
    /// Connection requests that were rejected.
    pub wireup_rejections: u64,
}
