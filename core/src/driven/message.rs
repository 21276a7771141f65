//! Messages of a driven worker: as its handlers get them, and as kept.

use super::abi::{Belonging, Carried};
use super::engine::{Engine, Entered};
use super::request::DrivenOutcome;
use super::{DrivenEndpoint, PeerId};
use crate::message::{Acknowledgement, HeaderBytes, KeptMessage, Message, NotReceived, Rendezvous};
use crate::region::Region;
use crate::{Error, PostError};
use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A message as received under the lock.
pub(super) struct Arrived {
    id: u16,
    header: u64,
    peer: PeerId,
    len: usize,
    header_bytes: HeaderBytes,
    payload: Received,
    rendezvous: Option<Carried<Rendezvous>>,
    acknowledgement: Option<Carried<Acknowledgement>>,
}

enum Received {
    Copied(Arc<[u8]>),
    Lent(Carried<KeptMessage>),
}

impl Arrived {
    /// Takes over what outlives the progress call in which the message is received.
    pub(super) fn new(message: &Message<'_>) -> Arrived {
        let payload = match message.keep_if_lent() {
            Some(kept) => Received::Lent(Carried::new(kept)),
            None => Received::Copied(message.payload().into()),
        };
        Arrived {
            id: message.id(),
            header: message.header(),
            peer: message.peer(),
            len: message.len(),
            header_bytes: message.header_bytes(),
            payload,
            rendezvous: message.rendezvous().map(Carried::new),
            acknowledgement: message.acknowledgement().map(Carried::new),
        }
    }

    /// Returns the number of bytes that the event occupies.
    pub(super) fn copied_len(&self) -> usize {
        if self.rendezvous.is_some() { 0 } else { self.len }
    }

    pub(super) fn message(self, engine: &Arc<Engine>) -> DrivenMessage {
        let payload = match self.payload {
            Received::Copied(bytes) => Payload::Copied(bytes),
            Received::Lent(kept) => Payload::Lent(Arc::new(kept.belonging(engine))),
        };
        DrivenMessage {
            id: self.id,
            header: self.header,
            peer: self.peer,
            len: self.len,
            is_rendezvous: self.rendezvous.is_some(),
            header_bytes: self.header_bytes,
            payload,
            rendezvous: Cell::new(self.rendezvous.map(|one| one.belonging(engine))),
            acknowledgement: Cell::new(self.acknowledgement.map(|one| one.belonging(engine))),
            engine: engine.clone(),
        }
    }
}

#[derive(Clone)]
enum Payload {
    Copied(Arc<[u8]>),
    Lent(Arc<Belonging<KeptMessage>>),
}

impl Payload {
    fn bytes(&self) -> &[u8] {
        match self {
            Payload::Copied(bytes) => bytes,
            Payload::Lent(kept) => kept.bytes(),
        }
    }
}

/// A message that a handler of a driven worker gets.
///
/// The message lies in memory of the library or, if the transport lends its buffers, in the transport's buffer. The handler runs
/// outside the worker's lock, and may make every call of the worker that does not wait. [`keep`](DrivenMessage::keep) extends the
/// life of the payload beyond the handler without a copy.
pub struct DrivenMessage {
    id: u16,
    header: u64,
    peer: PeerId,
    len: usize,
    is_rendezvous: bool,
    header_bytes: HeaderBytes,
    payload: Payload,
    rendezvous: Cell<Option<Belonging<Rendezvous>>>,
    acknowledgement: Cell<Option<Belonging<Acknowledgement>>>,
    engine: Arc<Engine>,
}

impl DrivenMessage {
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

    /// Returns the header bytes; see [`Message::header_bytes`].
    #[must_use]
    pub fn header_bytes(&self) -> HeaderBytes {
        self.header_bytes
    }

    /// Returns the payload. The payload of a rendezvous message is empty.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.payload.bytes()
    }

    /// Returns the length in bytes, also for a rendezvous message whose bytes have not been received.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Checks whether the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the sender.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// Checks whether this is a rendezvous message, which arrives without its bytes.
    #[must_use]
    pub fn is_rendezvous(&self) -> bool {
        self.is_rendezvous
    }

    /// Returns the object by which a rendezvous message is received or refused. Only the first call returns it. If the handler does
    /// not call this method, the message is refused when the handler returns.
    #[must_use]
    pub fn rendezvous(&self) -> Option<DrivenRendezvous> {
        Some(DrivenRendezvous { inner: self.rendezvous.take()?, len: self.len })
    }

    /// Returns the object by which the message is acknowledged, if the sender has requested that
    /// ([`SendOptions::delivered`](crate::SendOptions::delivered)). Only the first call returns it. If the handler does not call
    /// this method, the message is acknowledged when the handler has returned, and canceled if the handler panics.
    #[must_use = "dropped, it cancels the sender's operation"]
    pub fn acknowledgement(&self) -> Option<DrivenAcknowledgement> {
        Some(DrivenAcknowledgement { inner: self.acknowledgement.take()? })
    }

    /// Returns an endpoint to the sender that the application holds and that has not failed, as [`Message::endpoint`] does.
    #[must_use]
    pub fn endpoint(&self) -> Option<DrivenEndpoint> {
        let entered = self.engine.enter().ok()?;
        let endpoint = entered.worker().ok()?.known_endpoint(self.peer)?;
        Some(DrivenEndpoint::new(Belonging::new(&entered, endpoint)))
    }

    /// Keeps the message beyond the handler's call, without a copy.
    #[must_use]
    pub fn keep(&self) -> DrivenKept {
        DrivenKept {
            id: self.id,
            header: self.header,
            peer: self.peer,
            header_bytes: self.header_bytes,
            payload: self.payload.clone(),
        }
    }

    /// Acknowledges the message after its handler, unless the handler has decided itself.
    pub(super) fn returned(self) {
        if let Some(acknowledgement) = self.acknowledgement.take() {
            DrivenAcknowledgement { inner: acknowledgement }.give();
        }
    }
}

impl fmt::Debug for DrivenMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DrivenMessage({}, {} bytes from {})", self.id, self.len, self.peer)
    }
}

/// A message of a driven worker that was kept beyond its handler. Clones share the bytes.
#[derive(Clone)]
pub struct DrivenKept {
    id: u16,
    header: u64,
    peer: PeerId,
    header_bytes: HeaderBytes,
    payload: Payload,
}

impl DrivenKept {
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

    /// Returns the header bytes.
    #[must_use]
    pub fn header_bytes(&self) -> &[u8] {
        &self.header_bytes
    }

    /// Returns the sender.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// Returns the payload.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.payload.bytes()
    }
}

impl fmt::Debug for DrivenKept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DrivenKept({}, {} bytes from {})", self.id, self.payload().len(), self.peer)
    }
}

/// A rendezvous message that a driven worker has received, without its bytes. Dropping it refuses the message. See [`Rendezvous`].
#[must_use = "dropped, it is refused"]
pub struct DrivenRendezvous {
    pub(super) inner: Belonging<Rendezvous>,
    len: usize,
}

impl DrivenRendezvous {
    /// Returns the length in bytes that the sender states. Bound the memory that you allocate for it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Checks whether the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Receives the message's first `range.len()` bytes into a range of a region, as [`Rendezvous::receive_into`] does.
    ///
    /// # Errors
    /// [`DrivenNotReceived`] returns the message, with the errors of [`Rendezvous::receive_into`].
    pub fn receive_into(
        self,
        local: &Region,
        range: Range<usize>,
    ) -> Result<DrivenOutcome, DrivenNotReceived> {
        self.receive_into_pieces(&[(local, range)])
    }

    /// Receives the message's first bytes into pieces of regions, as [`Rendezvous::receive_into_pieces`] does.
    ///
    /// # Errors
    /// The errors of [`DrivenRendezvous::receive_into`].
    pub fn receive_into_pieces(
        self,
        pieces: &[(&Region, Range<usize>)],
    ) -> Result<DrivenOutcome, DrivenNotReceived> {
        let (len, mut why) = (self.len, None);
        let received = self.inner.consume(|entered: &mut Entered<'_>, rendezvous| {
            if let Err(error) = entered.check_open() {
                why = Some(error.into());
                return Err(rendezvous);
            }
            match rendezvous.receive_into_pieces(pieces) {
                Ok(outcome) => Ok(DrivenOutcome::new(entered, outcome)),
                Err(NotReceived { announcement, error }) => {
                    why = Some(error);
                    Err(announcement)
                }
            }
        });
        received.map_err(|(inner, refused)| DrivenNotReceived {
            rendezvous: DrivenRendezvous { inner, len },
            error: why
                .or(refused.map(PostError::from))
                .unwrap_or_else(|| crate::Status::Invalid.into()),
        })
    }

    /// Refuses the message. The sender's operation ends with [`CompletionError::Refused`](crate::CompletionError::Refused).
    pub fn refuse(self) {}
}

impl fmt::Debug for DrivenRendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DrivenRendezvous({} bytes)", self.len)
    }
}

/// The error of [`DrivenRendezvous::receive_into`]: the message could not be received at this time.
pub struct DrivenNotReceived {
    /// The message, to be received again or refused.
    pub rendezvous: DrivenRendezvous,
    /// The reason.
    pub error: PostError,
}

impl fmt::Debug for DrivenNotReceived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DrivenNotReceived({:?}, {:?})", self.rendezvous, self.error)
    }
}

impl fmt::Display for DrivenNotReceived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for DrivenNotReceived {}

impl From<DrivenNotReceived> for Error {
    fn from(not: DrivenNotReceived) -> Error {
        not.error.into()
    }
}

/// The acknowledgement of a message of a driven worker; see [`Acknowledgement`]. Any thread may give it. Dropping it ends the
/// sender's operation with [`CompletionError::Canceled`](crate::CompletionError::Canceled).
#[must_use = "dropped, it cancels the sender's operation"]
pub struct DrivenAcknowledgement {
    pub(super) inner: Belonging<Acknowledgement>,
}

impl DrivenAcknowledgement {
    /// Completes the sender's operation. If the worker is closed or the sender has left, the call has no effect.
    pub fn give(self) {
        let given = self.inner.consume(|_, acknowledgement| -> Result<(), Acknowledgement> {
            acknowledgement.give();
            Ok(())
        });
        // In a forked child the acknowledgement stays where it is.
        drop(given);
    }
}

impl fmt::Debug for DrivenAcknowledgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DrivenAcknowledgement")
    }
}
