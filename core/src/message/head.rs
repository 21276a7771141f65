//! The header bytes of a message, and the acknowledgement that its sender has requested.

use crate::Status;
use crate::proto::Origin;
use crate::worker::WorkerState;
use std::fmt;
use std::ops::Deref;
use std::rc::Weak;

/// The maximum number of header bytes of a message.
pub const MAX_HEADER_BYTES: usize = 32;

/// The header bytes of a message: up to [`MAX_HEADER_BYTES`] bytes beside the id and the 8-byte header.
#[derive(Clone, Copy, Default)]
pub struct HeaderBytes {
    bytes: [u8; MAX_HEADER_BYTES],
    len: u8,
}

impl HeaderBytes {
    /// Copies these bytes. `None`: there are more than [`MAX_HEADER_BYTES`].
    pub(crate) fn new(from: &[u8]) -> Option<HeaderBytes> {
        let mut bytes = [0; MAX_HEADER_BYTES];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        Some(HeaderBytes { bytes, len: from.len() as u8 })
    }
}

impl Deref for HeaderBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl PartialEq for HeaderBytes {
    fn eq(&self, other: &HeaderBytes) -> bool {
        **self == **other
    }
}

impl Eq for HeaderBytes {}

impl fmt::Debug for HeaderBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// The acknowledgement of a message whose sender has requested one ([`SendOptions::delivered`](crate::SendOptions::delivered)).
///
/// Without a call of [`Message::acknowledgement`](crate::Message::acknowledgement), the message is acknowledged when its handler
/// has returned. A handler that calls it decides itself: [`Acknowledgement::give`] completes the sender's operation, in the handler
/// or at any later time. Dropping the acknowledgement, or a panic of the handler, ends the sender's operation with
/// [`CompletionError::Canceled`](crate::CompletionError::Canceled).
///
/// A kept message ([`Message::keep`](crate::Message::keep)) has no influence on the acknowledgement. The worker sends the
/// acknowledgements of a progress call to a peer together, at the end of that call. An acknowledgement that was given outside a
/// progress call is sent by the next one.
#[must_use = "dropped, it cancels the sender's operation"]
pub struct Acknowledgement {
    worker: Weak<WorkerState>,
    from: Origin,
    number: u64,
    given: bool,
}

impl Acknowledgement {
    pub(crate) fn new(worker: Weak<WorkerState>, from: Origin, number: u64) -> Acknowledgement {
        Acknowledgement { worker, from, number, given: false }
    }

    /// Completes the sender's operation. If the worker is closed or the sender has left, the call has no effect.
    pub fn give(mut self) {
        self.given = true;
        self.say(0);
    }

    fn say(&self, status: i32) {
        let worker = self.worker.upgrade().filter(|worker| worker.shared.same_process());
        if let Some(worker) = worker {
            worker.note_delivery(self.from, self.number, status);
        }
    }
}

impl Drop for Acknowledgement {
    fn drop(&mut self) {
        if !self.given {
            self.say(Status::Canceled as i32);
        }
    }
}

impl fmt::Debug for Acknowledgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Acknowledgement({:#x} of peer {})", self.number, self.from.peer)
    }
}
