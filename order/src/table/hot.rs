//! The kind and the state of an operation, in the part that every use of it touches.

use crate::held::narrow;

/// The event for which an operation waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// The sending of the operation: a message in the queue, or an emulated put that completes locally.
    #[default]
    Send,
    /// A provider's completion, after the operation is posted.
    Native,
    /// A peer's answer to an emulated put.
    Put,
    /// The data of an emulated get.
    Get,
    /// A peer's answer to an emulated atomic.
    Atomic,
    /// A peer's answer to an emulated atomic that returns the previous value.
    Fetch,
    /// A peer's answer that it has handled everything sent before.
    Ping,
    /// The end of both sides' parts of a shared copy.
    Copy,
    /// The end of all operations before it in the list, and then the flush of its lanes.
    Flush,
    /// The end of its parts, which are operations as well.
    Whole,
    /// The receiver's answer to a rendezvous message. No flush waits for this answer: see `apart`.
    Announced,
    /// The key for a handle, which the owner of the memory sends.
    Key,
    /// The receiver's acknowledgement of a message. No flush waits for it: see `apart`.
    Delivery,
    /// The end of the operations that a notification follows, or the sending of the notification: see `follow`.
    Notice,
}

/// The kinds by number; four bits hold the number.
const KINDS: [Kind; 16] = {
    use Kind::*;
    [
        Send, Native, Put, Get, Atomic, Fetch, Ping, Copy, Flush, Whole, Announced, Key, Delivery,
        Notice, Send, Send,
    ]
};

impl Kind {
    /// Checks whether a peer's answer ends an operation of this kind.
    #[inline]
    pub(super) fn is_asked(self) -> bool {
        use Kind::*;
        matches!(self, Put | Get | Atomic | Fetch | Ping | Announced | Key | Delivery)
    }
}

pub(super) const ENDED: u16 = 1;
/// Flag: the operation has ended with an error.
pub(super) const FAILED: u16 = 2;
/// Flag: the operation is detached, so its result will not be requested.
pub(super) const DETACHED: u16 = 4;
/// Flag: the operation was posted to a provider, which may access the memory until it reports the outcome.
pub(super) const POSTED: u16 = 8;
/// Flag: the operation is a flush that has lanes to flush when it reaches the head.
pub(super) const THEN_LANES: u16 = 16;
/// Flag: the operation is a flush that has reached the head, or an operation that `fail` ends.
pub(super) const REACHED: u16 = 32;
/// Flag: the operation returns no value, even if its completion carries one.
pub(super) const SILENT: u16 = 64;
/// Flag: the failure has been reported, or no flush is to report it.
pub(super) const TOLD: u16 = 128;
/// Flag: the operation is tracked, so the worker's completion list receives its outcome with the application's value.
pub(super) const TRACKED: u16 = 256;
/// Flag: the operation is only counted; the application's value is the number of the counter.
pub(super) const COUNTED: u16 = 512;
/// Flag: the end of the operation needs handling. The operation is the transfer of a rendezvous message at the receiver (see
/// `apart`), or the end of the operations that a notification follows.
pub(super) const TAKES: u16 = 1024;
/// Flag: the cold part is empty, see `plain`.
pub(super) const PLAIN: u16 = 2048;
/// The position of the kind, above the flags.
pub(super) const KIND_SHIFT: u32 = 12;

pub(super) const NOBODY: u32 = 0x00ff_ffff;
pub(super) const NOWHERE: u8 = u8::MAX;
pub(super) const NONE: u32 = u32::MAX;

/// The part that every use of an operation touches. Together with the number it takes 32 bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct Hot {
    pub(super) kind_and_flags: u16,
    /// The number of events that are still needed to complete the operation.
    pub(super) parts: u16,
    /// The endpoint's index; the highest byte is the interface to which the operation is posted.
    pub(super) owner_and_interface: u32,
    /// The neighbours in the owner's list, while the operation is open. After an unreported failure, these fields are the
    /// neighbours in the list of such failures. Otherwise they hold the value.
    pub(super) before: u32,
    pub(super) after: u32,
    /// The application's value of a tracked operation, or the counter's number of a counted one.
    pub(super) user: u64,
}

const _: () = assert!(size_of::<Hot>() == 24);

impl Hot {
    #[inline]
    pub(super) fn owner(&self) -> u32 {
        self.owner_and_interface & NOBODY
    }

    #[inline]
    pub(super) fn interface(&self) -> u8 {
        (self.owner_and_interface >> 24) as u8
    }

    #[inline]
    pub(super) fn is(&self, flag: u16) -> bool {
        self.kind_and_flags & flag != 0
    }

    #[inline]
    pub(super) fn set(&mut self, flags: u16) {
        self.kind_and_flags |= flags;
    }

    #[inline]
    pub(super) fn kind(&self) -> Kind {
        KINDS[usize::from(self.kind_and_flags >> KIND_SHIFT)]
    }

    /// Compares the kind without decoding it, which is cheaper than decoding.
    #[inline]
    pub(super) fn is_kind(&self, kind: Kind) -> bool {
        self.kind_and_flags >> KIND_SHIFT == kind as u16
    }

    /// Checks whether the operation has failed and the holder of its request may still request the error.
    #[inline]
    pub(super) fn is_untold(&self) -> bool {
        self.kind_and_flags & (FAILED | TOLD) == FAILED
    }

    /// Checks whether the operation is posted to this interface and not complete.
    #[inline]
    pub(super) fn is_posted_to(&self, interface: usize) -> bool {
        self.is(POSTED) && usize::from(self.interface()) == narrow(interface)
    }

    #[inline]
    pub(super) fn value(&self) -> u64 {
        u64::from(self.before) | u64::from(self.after) << 32
    }

    #[inline]
    pub(super) fn set_value(&mut self, value: u64) {
        (self.before, self.after) = (value as u32, (value >> 32) as u32);
    }
}
