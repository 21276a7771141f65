//! Received messages: as a handler gets them, and as kept after the handler.

pub(crate) mod abi;
pub(crate) mod announced;

pub use crate::interface::PeerId;
#[expect(deprecated, reason = "earlier names")]
pub use announced::{Announcement, Untaken};
pub use announced::{NotReceived, Rendezvous};

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

/// The part of a worker that its messages use.
pub(crate) struct Inbox {
    /// The worker itself.
    pub(crate) worker: OnceCell<Weak<crate::worker::WorkerState>>,
    /// The rendezvous message whose handler runs.
    pub(crate) current: Cell<Option<Rendezvous>>,
    shared: Rc<Shared>,
}

impl Inbox {
    pub(crate) fn new(shared: Rc<Shared>) -> Inbox {
        Inbox { worker: OnceCell::new(), current: Cell::default(), shared }
    }

    /// Returns a value whose drop removes a rendezvous message that its handler has not taken, even if the handler has panicked.
    pub(crate) fn clear(&self) -> impl Drop + '_ {
        struct Clear<'a>(&'a Inbox);
        impl Drop for Clear<'_> {
            fn drop(&mut self) {
                drop(self.0.current.take());
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

    /// Keeps the payload beyond the handler's call. If the transport lends its buffers, the first call copies nothing. A
    /// [rendezvous message](Message::rendezvous) has no payload yet: the kept message is empty, and the message is refused unless
    /// [`Message::rendezvous`] is called.
    #[must_use]
    pub fn keep(&self) -> KeptMessage {
        let copied = || Payload::Copied(self.payload().into());
        let payload = self.keep_lent().map_or_else(copied, Payload::Lent);
        KeptMessage { id: self.id(), header: self.header(), peer: self.peer(), payload }
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
