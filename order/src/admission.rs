//! Admission: the conditions under which an operation may be posted.

use tieline_explain::Status;

/// A region, as its key or its owner describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The rights of peers, one bit each.
    pub rights: u64,
    /// The length of the region in bytes.
    pub len: u64,
}

impl Grant {
    /// Checks that the region grants all of `right`, and that a range lies inside it.
    ///
    /// # Errors
    /// [`Refused::Right`] or [`Refused::Range`].
    #[inline]
    pub fn check(&self, right: u64, offset: u64, len: u64) -> Result<(), Refused> {
        if self.rights & right != right {
            return Err(Refused::Right);
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Refused::Range),
        }
    }
}

/// The facts about an operation that decide whether it may be posted.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Whether the operation has no local region, or one that belongs to the endpoint's context.
    pub own_memory: bool,
    /// Whether the endpoint takes operations, and the calling process made it.
    pub open: bool,
    /// Whether the key was imported on the endpoint.
    pub own_key: bool,
    /// The region that the operation accesses.
    pub grant: Grant,
    /// The right that the operation needs.
    pub right: u64,
    /// The first byte of the accessed range.
    pub offset: u64,
    /// The number of bytes.
    pub len: u64,
}

/// The reason why an operation is not admitted. The conditions are checked in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The local region belongs to another context.
    Memory,
    /// The endpoint takes no operations, or the calling process did not make it.
    Endpoint,
    /// The key was imported on another endpoint.
    Key,
    /// The region does not grant the right.
    Right,
    /// The range is not inside the region.
    Range,
    /// The operation could overtake an earlier one that a fence orders before it.
    Fence,
}

impl Refused {
    /// Returns the status that reports the reason.
    #[must_use]
    pub fn status(self) -> Status {
        match self {
            Refused::Memory => Status::Invalid,
            Refused::Endpoint => Status::Closed,
            Refused::Key | Refused::Right => Status::KeyRejected,
            Refused::Range => Status::OutOfRange,
            Refused::Fence => Status::Again,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Order, way};

    const GRANT: Grant = Grant { rights: 0b011, len: 64 };

    #[test]
    fn operation_needs_every_right_and_a_range_inside_the_region() {
        for (offset, len) in [(0, 64), (64, 0), (63, 1), (0, 0)] {
            assert_eq!(GRANT.check(0b011, offset, len), Ok(()), "{offset} {len}");
        }
        for (offset, len) in [(0, 65), (64, 1), (65, 0), (u64::MAX, 2), (1, u64::MAX)] {
            assert_eq!(GRANT.check(0b001, offset, len), Err(Refused::Range), "{offset} {len}");
        }
        for right in [0b100, 0b101, 0b111] {
            assert_eq!(GRANT.check(right, 0, 1), Err(Refused::Right), "{right:b}");
        }
    }

    #[test]
    fn first_condition_that_is_not_met_refuses_the_operation() {
        let (order, lane) = (Order::default(), way::lane(0));
        order.rely_on(1);
        let mut asked = Asked {
            own_memory: false,
            open: false,
            own_key: false,
            grant: GRANT,
            right: 0b100,
            offset: 64,
            len: 1,
        };
        let admit = |asked: &Asked, way| order.admit(asked, way);
        assert_eq!(admit(&asked, Some(lane)), Err(Refused::Memory));
        asked.own_memory = true;
        assert_eq!(admit(&asked, Some(lane)), Err(Refused::Endpoint));
        asked.open = true;
        assert_eq!(admit(&asked, Some(lane)), Err(Refused::Key));
        asked.own_key = true;
        assert_eq!(admit(&asked, Some(lane)), Err(Refused::Right));
        asked.right = 0b001;
        assert_eq!(admit(&asked, Some(lane)), Err(Refused::Range));
        asked.offset = 63;
        assert_eq!(admit(&asked, Some(lane)), Err(Refused::Fence));
        assert_eq!(admit(&asked, Some(way::lane(1))), Ok(()), "the lane that keeps the order");
        assert_eq!(admit(&asked, None), Ok(()), "it waits in the queue");
    }
}
