//! Access rights of peers to a region.

use std::ops::BitOr;
use tieline_plugin_api::{access, register_flags};

/// A flag outside the low bits, which hold the rights. Remote keys do not contain the flag.
const RELAXED: u64 = 1 << 63;
/// A second flag of the same kind.
const UNCHECKED: u64 = 1 << 62;

/// The access rights of peers to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(u64);

impl Access {
    /// The right of peers to get.
    pub const READ: Access = Access(access::REMOTE_READ);
    /// The right of peers to put.
    pub const WRITE: Access = Access(access::REMOTE_WRITE);
    /// The right of peers to do atomics.
    pub const ATOMIC: Access = Access(access::REMOTE_ATOMIC);
    /// The rights of peers to get, put and do atomics.
    pub const ALL: Access =
        Access(access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC);
    /// No access by peers: a local buffer for puts and gets.
    pub const LOCAL: Access = Access(0);

    /// A promise rather than a right. The application detects the arrival of a peer's put in this memory only by a completion, a
    /// notification or a message, never by reading the memory. A device may then let peers' writes pass each other on the bus,
    /// which some processors (AMD) need for full speed. Other devices are not affected. `docs/ordering.md` has the details.
    ///
    /// ```
    /// # fn main() -> Result<(), tieline::Error> {
    /// # let context = tieline::Context::builder().set("TIELINE_PROVIDERS", "shm").open()?;
    /// use tieline::Access;
    /// let landing = context.alloc_with(1 << 20, Access::ALL | Access::RELAXED_ORDERING)?;
    /// # drop(landing);
    /// # Ok(()) }
    /// ```
    pub const RELAXED_ORDERING: Access = Access(RELAXED);

    /// A promise rather than a right. At registration ([`Context::register_raw`](crate::Context::register_raw)), the memory need
    /// not be mapped with these rights yet, because it is reserved and will be committed later, as in some heaps. Before the memory
    /// is committed, accesses by peers fail; other calls are not affected.
    pub const COMMITTED_LATER: Access = Access(UNCHECKED);

    /// Returns the rights as the bits that keys and providers use.
    pub(crate) fn bits(self) -> u64 {
        self.0 & Access::ALL.0
    }

    /// Returns the flags that providers get at registration.
    pub(crate) fn register_flags(self) -> u64 {
        if self.0 & RELAXED != 0 { register_flags::RELAXED_ORDERING } else { 0 }
    }

    /// Checks whether memory must be mapped with these rights when it is registered.
    pub(super) fn is_checked(self) -> bool {
        self.bits() != 0 && self.0 & UNCHECKED == 0
    }

    pub(crate) fn from_bits(bits: u64) -> Access {
        Access(bits & Access::ALL.0)
    }

    pub(super) fn without_atomics(self) -> Access {
        Access(self.0 & !access::REMOTE_ATOMIC)
    }

    /// Returns the operation that needs this right, as text.
    pub(crate) fn operation(self) -> &'static str {
        match self {
            Access::READ => "a get from",
            Access::WRITE => "a put to",
            _ => "an atomic on",
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_kept_apart_from_the_promise_and_no_key_has_more_than_rights() {
        let all = Access::ALL | Access::RELAXED_ORDERING | Access::COMMITTED_LATER;
        assert_eq!(Access::READ | Access::WRITE | Access::ATOMIC, Access::ALL);
        assert_eq!((all.bits(), Access::LOCAL.bits()), (Access::ALL.bits(), 0));
        assert_eq!(all.register_flags(), register_flags::RELAXED_ORDERING);
        assert_eq!(Access::ALL.register_flags(), 0);
        assert!(Access::READ.is_checked() && !Access::LOCAL.is_checked() && !all.is_checked());
        assert_eq!(Access::from_bits(u64::MAX), Access::ALL);
        assert_eq!(Access::from_bits(access::REMOTE_READ), Access::READ);
        assert_eq!(Access::ALL.without_atomics(), Access::READ | Access::WRITE);
    }

    #[test]
    fn access_allows_only_if_all_rights_are_present() {
        let both = Access::READ | Access::WRITE;
        assert!(both.allows(Access::READ) && both.allows(both) && both.allows(Access::LOCAL));
        assert!(!both.allows(Access::ATOMIC) && !both.allows(Access::ALL));
        assert!(!Access::READ.allows(both) && !Access::LOCAL.allows(Access::READ));
    }
}
