//! A worker's counters.

/// What a worker has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages with an id that has no handler, and notifications where nothing handles any: dropped.
    pub unknown_ids: u64,
    /// Malformed messages of the library's own protocols, and answers to what has ended meanwhile: dropped.
    pub malformed: u64,
    /// Messages by which peers asked for puts, gets and atomics that no module does for them, or that are quicker so.
    pub emulated: u64,
    /// Pieces of peers' large puts and gets that this worker copied for them.
    pub assisted_chunks: u64,
    /// Connections that were formed with peers, by modules that connect to an endpoint.
    pub connections: u64,
    /// Of such, those that did not come about.
    pub failed_connections: u64,
    /// Messages of wire-up that were sent again because no answer came.
    pub wireup_retransmissions: u64,
    /// Requests for a connection that were rejected.
    pub wireup_rejections: u64,
}
