//! Access rights of peers to a region.

use std::ops::BitOr;
use tieline_plugin_api::access;

/// What peers may do with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(u64);

impl Access {
    /// Peers may get.
    pub const READ: Access = Access(access::REMOTE_READ);
    /// Peers may put.
    pub const WRITE: Access = Access(access::REMOTE_WRITE);
    /// Peers may do atomics.
    pub const ATOMIC: Access = Access(access::REMOTE_ATOMIC);
    /// All three.
    pub const ALL: Access =
        Access(access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC);
    /// None: only a local buffer for puts and gets.
    pub const LOCAL: Access = Access(0);

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    pub(crate) fn from_bits(bits: u64) -> Access {
        Access(bits & Access::ALL.0)
    }

    pub(super) fn without_atomics(self) -> Access {
        Access(self.0 & !access::REMOTE_ATOMIC)
    }

    pub(crate) fn allows(self, needed: Access) -> bool {
        self.0 & needed.0 == needed.0
    }
}

impl BitOr for Access {
    type Output = Access;
    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}
