//! Counters of a worker.

/// The event counts of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The number of messages without a handler for their id, and of notifications without a handler. The worker dropped these, and
    /// refused those that were rendezvous messages.
    pub unknown_ids: u64,
    /// The number of malformed messages and addresses of the library's own protocols, of unknown events of providers, and of
    /// answers to operations that had ended. The worker dropped these.
    pub malformed: u64,
    /// The number of messages by which peers requested puts, gets and atomics (emulation).
    pub emulated: u64,
    /// The number of chunks of peers' large puts and gets that this worker copied for them.
    pub assisted_chunks: u64,
    /// The number of connections established with peers by modules that connect to an endpoint.
    pub connections: u64,
    /// The number of such connections that could not be established.
    pub failed_connections: u64,
    /// The number of wire-up messages that were retransmitted because no answer had arrived.
    pub wireup_retransmissions: u64,
    /// The number of rejections that the worker sent to peers: of their connection requests, and of unfinished connections that it
    /// ended.
    pub wireup_rejections: u64,
}
