//! Received messages: as a handler gets them, and as kept after the handler.

pub(crate) mod abi;
pub(crate) mod announced;
pub(crate) mod head;

pub use crate::interface::PeerId;
#[expect(deprecated, reason = "earlier names")]
pub use announced::{Announcement, Untaken};
pub use announced::{NotReceived, Rendezvous};
pub use head::{Acknowledgement, HeaderBytes, MAX_HEADER_BYTES};

use crate::endpoint::Endpoint;
use crate::interface::InterfaceSlot;
use crate::shared::Shared;
use abi::{Lent, Polled, Readers};
use std::cell::{Cell, OnceCell};
use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::rc::{Rc, Weak};

/// The kind of the events by which the core passes rendezvous messages to handlers. The core passes no provider's event with this
/// kind to a handler.
pub(crate) const ANNOUNCED: u32 = u32::MAX;

/// The kind of the events by which the core passes messages with a head to handlers ([`crate::proto::head`]).
pub(crate) const HEADED: u32 = u32::MAX - 1;

/// The part of a worker that its messages use.
pub(crate) struct Inbox {
    /// The worker itself.
    pub(crate) worker: OnceCell<Weak<crate::worker::WorkerState>>,
    /// The rendezvous message whose handler runs.
    pub(crate) current: Cell<Option<Rendezvous>>,
    /// The header bytes of the message of kind [`ANNOUNCED`] or [`HEADED`] whose handler runs.
    pub(crate) header_bytes: Cell<HeaderBytes>,
    /// The requested acknowledgement of the message whose handler runs.
    pub(crate) acknowledgement: Cell<Option<Acknowledgement>>,
    shared: Rc<Shared>,
}

impl Inbox {
    pub(crate) fn new(shared: Rc<Shared>) -> Inbox {
        Inbox {
            worker: OnceCell::new(),
            current: Cell::default(),
            header_bytes: Cell::default(),
            acknowledgement: Cell::default(),
            shared,
        }
    }

    /// Returns a value whose drop removes a rendezvous message or an acknowledgement that the handler has not taken, even if the
    /// handler has panicked.
    pub(crate) fn clear(&self) -> impl Drop + '_ {
        struct Clear<'a>(&'a Inbox);
        impl Drop for Clear<'_> {
            fn drop(&mut self) {
                drop((self.0.current.take(), self.0.acknowledgement.take()));
            }
        }
        Clear(self)
    }
}

/// A received message, valid during the handler's call.
///
/// The payload lies in the transport's buffer; the core does not copy it. A handler that needs the payload after its return calls
/// [`Message::keep`].
///
/// A message that is longer than its sender's [`Endpoint::max_message`] is a rendezvous message: it arrives without its payload
/// ([`Message::is_rendezvous`]), and [`Message::rendezvous`] returns the object by which its bytes are received. If a handler does
/// not call [`Message::rendezvous`], the message is refused.
pub struct Message<'a> {
    event: &'a Polled,
    inbox: &'a Inbox,
    interface: usize,
    /// The readers of a lent payload, if it was kept. [`abi::LentMessage::hand_to`] takes this value. Only lent payloads pass
    /// through that function, so other messages need no check after the handler.
    kept: ManuallyDrop<Cell<Option<Rc<Readers>>>>,
    /// The mark of a lent payload, which returns to the provider after the handler.
    lent: Option<abi::GoesBack>,
}

impl<'a> Message<'a> {
    #[inline]
    pub(crate) fn new(event: &'a Polled, inbox: &'a Inbox, interface: usize) -> Message<'a> {
        let kept = ManuallyDrop::new(Cell::new(None));
        Message { event, inbox, interface, kept, lent: None }
    }

    /// Switches to the next message of the same batch. A payload that is not lent has no other readers.
    #[inline]
    pub(crate) fn turn_to(&mut self, event: &'a Polled) {
        self.event = event;
    }

    fn slot(&self) -> &'a InterfaceSlot {
        &self.inbox.shared.interfaces[self.interface]
    }

    /// Returns the message id.
    #[inline]
    #[must_use]
    pub fn id(&self) -> u16 {
        self.event.id as u16
    }

    /// Returns the 8-byte header.
    #[inline]
    #[must_use]
    pub fn header(&self) -> u64 {
        self.event.header
    }

    /// Returns the header bytes: those that the sender has passed by
    /// [`SendOptions::header_bytes`](crate::SendOptions::header_bytes), also for a rendezvous message. Other messages have none.
    #[inline]
    #[must_use]
    pub fn header_bytes(&self) -> HeaderBytes {
        match self.event.kind {
            ANNOUNCED | HEADED => self.inbox.header_bytes.get(),
            _ => HeaderBytes::default(),
        }
    }

    /// Returns the object by which the message is acknowledged, if the sender has requested that for an eager message. Only the
    /// first call returns it. If the handler does not call this method, the message is acknowledged when the handler has returned.
    #[must_use = "dropped, it cancels the sender's operation"]
    pub fn acknowledgement(&self) -> Option<Acknowledgement> {
        if self.event.kind == HEADED { self.inbox.acknowledgement.take() } else { None }
    }

    /// Returns the length in bytes, also for a rendezvous message whose bytes have not been received.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        if self.is_rendezvous() { self.event.cookie as usize } else { self.payload().len() }
    }

    /// Checks whether the length is 0.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks whether this is a rendezvous message, which arrives without its bytes.
    #[inline]
    #[must_use]
    pub fn is_rendezvous(&self) -> bool {
        self.event.kind == ANNOUNCED
    }

    /// Does the same as [`Message::is_rendezvous`], of which this is the earlier name.
    #[deprecated(since = "0.2.0", note = "renamed to `is_rendezvous`")]
    #[must_use]
    pub fn is_announced(&self) -> bool {
        self.is_rendezvous()
    }

    /// Does the same as [`Message::rendezvous`], of which this is the earlier name.
    #[deprecated(since = "0.2.0", note = "renamed to `rendezvous`")]
    #[must_use]
    pub fn announcement(&self) -> Option<Rendezvous> {
        self.rendezvous()
    }

    /// Returns the object by which a rendezvous message is received or refused. Only the first call returns it. If the handler does
    /// not call this method, the message is refused when the handler returns. `None` for a message with a payload.
    #[must_use]
    pub fn rendezvous(&self) -> Option<Rendezvous> {
        if self.is_rendezvous() { self.inbox.current.take() } else { None }
    }

    /// Returns the payload, valid during the handler's call. The payload of a rendezvous message is empty.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        abi::payload(self.event)
    }

    /// Returns the address and length of the payload, for bindings that pass both on; see [`payload`](Message::payload).
    #[doc(hidden)]
    #[inline(always)]
    #[must_use]
    pub fn raw_payload(&self) -> (*const c_void, usize) {
        let (data, len) = (self.event.data, self.event.len);
        (data.cast(), if data.is_null() { 0 } else { len })
    }

    /// Returns the sender: the number of that worker on this worker, as [`Endpoint::peer`] returns it.
    #[inline]
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.slot().peer(self.event.peer)
    }

    /// Returns an endpoint to the sender that has not failed, if the application holds one, regardless of how the application
    /// obtained it. If there are several, returns the oldest one. [`Worker::endpoint_to`](crate::Worker::endpoint_to) makes an
    /// endpoint if there is none.
    #[must_use]
    pub fn endpoint(&self) -> Option<Endpoint> {
        let worker = self.inbox.worker.get()?.upgrade()?;
        worker.known_endpoint(self.peer().0).map(Endpoint::new)
    }

    /// Keeps a lent payload beyond the handler's call, without a copy. `None`: the payload is not lent, or was kept before.
    pub(crate) fn keep_if_lent(&self) -> Option<KeptMessage> {
        let payload = Payload::Lent(self.keep_lent()?);
        let (id, header, peer) = (self.id(), self.header(), self.peer());
        Some(KeptMessage { id, header, peer, payload, header_bytes: None })
    }

    /// Keeps the payload beyond the handler's call. If the transport lends its buffers, the first call copies nothing. A
    /// [rendezvous message](Message::rendezvous) has no payload yet: the kept message is empty, and the message is refused unless
    /// [`Message::rendezvous`] is called.
    #[must_use]
    pub fn keep(&self) -> KeptMessage {
        let copied = || Payload::Copied(self.payload().into());
        let payload = self.keep_lent().map_or_else(copied, Payload::Lent);
        let header_bytes = match self.event.kind {
            ANNOUNCED | HEADED => Some(Box::new(self.inbox.header_bytes.get())),
            _ => None,
        };
        KeptMessage {
            id: self.id(),
            header: self.header(),
            peer: self.peer(),
            payload,
            header_bytes,
        }
    }
}

enum Payload {
    Copied(Box<[u8]>),
    Lent(Lent),
}

/// A message that outlives its handler. The kept message holds the transport's buffer or a copy of the payload.
pub struct KeptMessage {
    id: u16,
    header: u64,
    peer: PeerId,
    payload: Payload,
    header_bytes: Option<Box<HeaderBytes>>,
}

impl KeptMessage {
    /// Returns the message id.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Returns the 8-byte header.
    #[must_use]
    pub fn header(&self) -> u64 {
        self.header
    }

    /// Returns the header bytes, as [`Message::header_bytes`] does.
    #[must_use]
    pub fn header_bytes(&self) -> &[u8] {
        self.header_bytes.as_ref().map_or(&[], |bytes| bytes)
    }

    /// Returns the sender.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// Returns the payload.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        match &self.payload {
            Payload::Copied(bytes) => bytes,
            Payload::Lent(lent) => lent.bytes(),
        }
    }
}

impl fmt::Debug for KeptMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeptMessage({}, {} bytes from {})", self.id, self.payload().len(), self.peer)
    }
}
