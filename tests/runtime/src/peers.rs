//! The other ranks: the endpoints to them, and the ranks of the peers that send.

use std::cell::Cell;
use tieline::{Endpoint, Error, PeerId, Status};

/// A rank to which this rank has an endpoint.
pub(crate) struct Peer {
    pub(crate) endpoint: Endpoint,
    /// The length of the longest inline message.
    pub(crate) eager: Cell<usize>,
}

impl Peer {
    /// Returns the length of the longest inline message, which may have changed.
    pub(crate) fn eager_now(&self) -> Result<usize, Error> {
        self.eager.set(self.endpoint.max_message()?);
        Ok(self.eager.get())
    }
}

/// Returns the rank of a peer by the ranks that peers have sent.
#[inline]
pub(crate) fn rank(ranks: &[Option<usize>], peer: PeerId) -> Result<usize, Error> {
    let rank = ranks.get(peer.get() as usize).copied().flatten();
    rank.ok_or_else(|| Status::BadData.into())
}
