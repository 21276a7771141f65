//! What a receive handler sees.

use crate::worker::{InterfaceSlot, abi};
use std::cell::Cell;
use std::fmt;
use tieline_plugin_api::abi::Event;

/// A peer that has written to this worker, by its number on this worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub(crate) u32);

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer {}", self.0)
    }
}

/// A message, for the length of the handler's call.
///
/// The payload lies in the transport's buffer: it is not copied. A handler that needs it for longer calls
/// [`Message::keep`].
pub struct Message<'a> {
    event: &'a Event,
    slot: &'a InterfaceSlot,
    kept: Cell<bool>,
}

impl<'a> Message<'a> {
    #[inline]
    pub(crate) fn new(event: &'a Event, slot: &'a InterfaceSlot) -> Message<'a> {
        Message { event, slot, kept: Cell::new(false) }
    }

    /// The id that it was sent with.
    #[inline]
    #[must_use]
    pub fn id(&self) -> u16 {
        self.event.id as u16
    }

    /// The eight bytes of header that it was sent with.
    #[inline]
    #[must_use]
    pub fn header(&self) -> u64 {
        self.event.header
    }

    /// The payload, valid during this call.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        abi::payload(self.event)
    }

    /// Who sent it: an answer goes to `worker.endpoint_to(message.peer())`.
    #[inline]
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.slot.peer(self.event.peer)
    }

    /// Keeps the payload beyond this call. Where the transport lends its buffers nothing is copied.
    #[must_use]
    pub fn keep(&self) -> KeptMessage {
        self.kept.set(true);
        KeptMessage {
            id: self.id(),
            header: self.header(),
            peer: self.peer(),
            payload: self.payload().into(),
        }
    }
}

/// A message that outlives its handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptMessage {
    /// The id that it was sent with.
    pub id: u16,
    /// The header that it was sent with.
    pub header: u64,
    /// Who sent it.
    pub peer: PeerId,
    /// The payload.
    pub payload: Box<[u8]>,
}
