//! Access rights of peers to a region.

use std::ops::BitOr;
use tieline_plugin_api::{access, register_flags};

/// A flag next to the rights, which are the low bits. Peers and keys never see it.
const RELAXED: u64 = 1 << 63;
/// A second such flag.
const UNCHECKED: u64 = 1 << 62;

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

    /// Not a right, but a promise of who registers: nobody looks at this memory to see whether a peer's put has arrived, before a
    /// completion, a notification or a message has said so. A device may then let writes of peers pass each other on the bus,
    /// which some processors (AMD) need for full speed; others do as ever: `docs/ordering.md` has the row.
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

    /// Not a right either: the memory need not have these rights yet when it is registered
    /// ([`Context::register_raw`](crate::Context::register_raw)), because it is reserved now and committed later, as some heaps are. Until
    /// then, accesses of peers fail, and nothing else does.
    pub const COMMITTED_LATER: Access = Access(UNCHECKED);

    /// The rights, as keys and providers represent them.
    pub(crate) fn bits(self) -> u64 {
        self.0 & Access::ALL.0
    }

    /// Flags of a registration.
    pub(crate) fn register_flags(self) -> u64 {
        if self.0 & RELAXED != 0 { register_flags::RELAXED_ORDERING } else { 0 }
    }

    /// Whether memory must have these rights when it is registered.
    pub(super) fn is_checked(self) -> bool {
        self.bits() != 0 && self.0 & UNCHECKED == 0
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
    fn what_is_allowed_is_all_that_is_needed() {
        let both = Access::READ | Access::WRITE;
        assert!(both.allows(Access::READ) && both.allows(both) && both.allows(Access::LOCAL));
        assert!(!both.allows(Access::ATOMIC) && !both.allows(Access::ALL));
        assert!(!Access::READ.allows(both) && !Access::LOCAL.allows(Access::READ));
    }
}
