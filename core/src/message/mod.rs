//! Received messages, as a handler sees them, and those that it keeps.

pub(crate) mod abi;
pub(crate) mod announced;

pub use crate::interface::PeerId;
pub use announced::{Announcement, Untaken};

use crate::endpoint::Endpoint;
use crate::interface::InterfaceSlot;
use crate::shared::Shared;
use abi::{Lent, Polled, Readers};
use std::cell::Cell;
use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::rc::Rc;

/// The kind of the events that messages of the core's own making are made of: no event of a provider's with it comes to a handler.
pub(crate) const ANNOUNCED: u32 = u32::MAX;

/// A message, for the length of the handler's call.
///
/// The payload lies in the transport's buffer: it is not copied. A handler that needs it for longer calls
/// [`Message::keep`].
///
/// A message that is longer than its lane carries at once comes without its payload: it [is announced](Message::is_announced), and what
/// [`announcement`](Message::announcement) gives says where it goes. A handler that does not ask for that refuses the message.
pub struct Message<'a> {
    event: &'a Polled,
    shared: &'a Rc<Shared>,
    interface: usize,
    /// Who reads a lent payload, once it was kept. Taken by [`abi::LentMessage::hand_to`], which lent payloads alone come to:
    /// the others need not look at it on the way out.
    kept: ManuallyDrop<Cell<Option<Rc<Readers>>>>,
    /// Its payload is lent, and goes back behind the handler.
    lent: Option<abi::GoesBack>,
}

impl<'a> Message<'a> {
    #[inline]
    pub(crate) fn new(event: &'a Polled, shared: &'a Rc<Shared>, interface: usize) -> Message<'a> {
        let kept = ManuallyDrop::new(Cell::new(None));
        Message { event, shared, interface, kept, lent: None }
    }

    /// The next message of the same batch: nobody keeps what is not lent.
    #[inline]
    pub(crate) fn turn_to(&mut self, event: &'a Polled) {
        self.event = event;
    }

    fn slot(&self) -> &'a InterfaceSlot {
        &self.shared.interfaces[self.interface]
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

    /// How long it is, whether its bytes are here or were only announced.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        if self.is_announced() { self.event.cookie as usize } else { self.payload().len() }
    }

    /// Whether it has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether its bytes are still with its sender.
    #[inline]
    #[must_use]
    pub fn is_announced(&self) -> bool {
        self.event.kind == ANNOUNCED
    }

    /// What is to be taken of a message that was announced, or refused: once, to who asks first. One that nobody asks for is refused when
    /// its handler returns. `None` for a message whose bytes are here.
    #[must_use]
    pub fn announcement(&self) -> Option<Announcement> {
        if !self.is_announced() {
            return None;
        }
        let worker = self.shared.senders.get()?.upgrade()?;
        worker.take_announcement()?.downcast().ok().map(|announcement| *announcement)
    }

    /// The payload, valid during this call; of a message that was announced there is none.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        abi::payload(self.event)
    }

    /// Where the payload lies, and how long it is: [`payload`](Message::payload) for who hands both on.
    #[doc(hidden)]
    #[inline(always)]
    #[must_use]
    pub fn raw_payload(&self) -> (*const c_void, usize) {
        let (data, len) = (self.event.data, self.event.len);
        (data.cast(), if data.is_null() { 0 } else { len })
    }

    /// Who sent it: the number of that worker here, which an [`Endpoint`] to it gives too ([`Endpoint::peer`]).
    #[inline]
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.slot().peer(self.event.peer)
    }

    /// The endpoint back to whoever sent it, if the application holds one that leads there, however it came by it: of several that have
    /// not failed the one that was made first. [`Worker::endpoint_to`](crate::Worker::endpoint_to) makes one where there is none.
    #[must_use]
    pub fn endpoint(&self) -> Option<Endpoint> {
        endpoint_to(self.shared, self.peer())
    }

    /// Keeps the payload beyond this call: where the transport lends its buffers, nothing is copied. A message that was
    /// [announced](Message::announcement) has none yet: what is kept is empty, and the message is refused unless it is asked for.
    #[must_use]
    pub fn keep(&self) -> KeptMessage {
        let copied = || Payload::Copied(self.payload().into());
        let payload = self.keep_lent().map_or_else(copied, Payload::Lent);
        KeptMessage { id: self.id(), header: self.header(), peer: self.peer(), payload }
    }
}

/// The endpoint of the application's that leads to a peer, if there is one.
fn endpoint_to(shared: &Shared, peer: PeerId) -> Option<Endpoint> {
    let worker = shared.senders.get()?.upgrade()?;
    let inner = worker.endpoint_to(peer.0)?.downcast().ok()?;
    Some(Endpoint::new(inner))
}

enum Payload {
    Copied(Box<[u8]>),
    Lent(Lent),
}

/// A message that outlives its handler.
pub struct KeptMessage {
    id: u16,
    header: u64,
    peer: PeerId,
    payload: Payload,
}

impl KeptMessage {
    /// The id that it was sent with.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.id
    }

    /// The header that it was sent with.
    #[must_use]
    pub fn header(&self) -> u64 {
        self.header
    }

    /// Who sent it.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// The payload.
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
