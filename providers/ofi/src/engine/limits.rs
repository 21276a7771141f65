//! The limits of an interface.

use crate::config::Settings;
use crate::offers::sys::Info;

/// The limits on operations that the library holds, and on one transfer.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// The numbers of messages and of transfers: half of the queue each, at least 4.
    pub(super) operations: usize,
    /// The share of one peer in these numbers. A peer that receives nothing does not block the others.
    pub(super) of_peer: usize,
    /// The numbers of bytes and of pieces of one transfer.
    pub(super) bytes: usize,
    pub(super) pieces: usize,
}

impl Limits {
    pub(super) fn new(info: &Info, settings: &Settings) -> Limits {
        let operations = (settings.queue.min(info.tx().size.max(8)) / 2).max(4);
        let (bytes, pieces) = (longest_transfer(info), most_pieces(info));
        Limits { operations, of_peer: share(operations), bytes, pieces }
    }
}

/// Returns the share of one peer.
fn share(most: usize) -> usize {
    (most / 4).max(4)
}

/// Returns the maximum number of bytes of one transfer.
pub(crate) fn longest_transfer(info: &Info) -> usize {
    info.ep().max_msg_size.min(1 << 30)
}

/// Returns the maximum number of pieces of one transfer.
pub(crate) fn most_pieces(info: &Info) -> usize {
    info.tx().iov_limit.clamp(1, crate::sys::MAX_IOV)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peer_has_a_quarter_and_never_less_than_four() {
        assert_eq!([0, 4, 16, 19, 20, 256].map(share), [4, 4, 4, 4, 5, 64]);
    }
}
