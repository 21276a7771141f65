//! The endpoint's side of the traits: a connection to one peer, and the records of its operations.

use super::{Packer, Posted, Posting};
use crate::abi::{Atomic, EndpointLimits, Iov};
use crate::{Failure, Status};

/// The result of [`Endpoint::am_short_at_once`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtOnce {
    /// The message is sent.
    Sent,
    /// The message is sent, and the caller calls [`Endpoint::after_at_once`].
    SentWithRest,
    /// Nothing has changed, and the caller calls [`Endpoint::am_short`].
    NotSent,
}

/// A put or get: local pieces, and the offset in the range of the key.
#[derive(Clone, Copy, Debug)]
pub struct RmaOp<'a> {
    /// The local pieces, read by put and written by get.
    pub iov: &'a [Iov],
    /// The sum of the pieces' lengths, in bytes.
    pub len: usize,
    /// The offset into the range that the key covers.
    pub offset: u64,
    /// The cookie of the completion event.
    pub cookie: u64,
    /// The flags, [`crate::op_flags`].
    pub flags: u64,
}

/// One put or get of a list.
#[repr(C)]
#[derive(Debug)]
pub struct ListPart<'a, K> {
    /// The local piece, read by a put and written by a get.
    pub local: Iov,
    /// The key.
    pub key: &'a K,
    /// The offset into the range that the key covers.
    pub offset: u64,
}

/// A list of puts or of gets.
#[derive(Debug)]
pub struct ListOp<'a, K> {
    /// Whether the parts are puts. Otherwise they are gets.
    pub put: bool,
    /// The parts, at least one.
    pub parts: &'a [ListPart<'a, K>],
    /// The cookie of the completion event.
    pub cookie: u64,
    /// The flags of each part, [`crate::op_flags`].
    pub flags: u64,
}

/// A connection to one peer.
pub trait Endpoint: Sized + 'static {
    /// The provider's own record of an imported remote key.
    type Key: 'static;

    /// Sends a short message; the payload is copied before the call returns.
    ///
    /// # Errors
    /// [`Status::Again`]: nothing was sent. [`Status::PeerFailed`], [`Status::Closed`], [`Status::BadData`] and [`Status::Io`]: the
    /// core ends the endpoint. [`Status::ProviderFailed`]: the core takes the provider out of use. Any other status: the core fails
    /// this message alone.
    fn am_short(&self, id: u32, header: u64, payload: &[u8]) -> Posted {
        let _ = (id, header, payload);
        Err(Status::Unsupported)
    }

    /// Whether the module implements [`Endpoint::am_short_at_once`].
    const SENDS_AT_ONCE: bool = false;

    /// Sends the most frequent message, of which only the bytes have to be written. The implementation calls no function, so that it
    /// needs no frame: a processor that waits for the line of a message has room for a limited number of other stores. The caller
    /// uses this method only if [`Endpoint::SENDS_AT_ONCE`] holds.
    #[inline]
    fn am_short_at_once(&self, id: u32, header: u64, payload: &[u8]) -> AtOnce {
        let _ = (id, header, payload);
        AtOnce::NotSent
    }

    /// Does what [`Endpoint::am_short_at_once`] has left after it sent a message, such as waking the receiver.
    fn after_at_once(&self) {}

    /// Sends a message that `packer` writes into the transport's buffer. Returns the message's length.
    ///
    /// # Errors
    /// As [`Endpoint::am_short`], or the packer's error.
    fn am_packed(
        &self,
        id: u32,
        header: u64,
        packer: Packer<'_>,
        most: usize,
    ) -> Result<usize, Status> {
        let _ = (id, header, packer, most);
        Err(Status::Unsupported)
    }

    /// Sends a message gathered from `iov`, whose bytes stay unchanged until completion.
    ///
    /// # Errors
    /// As [`Endpoint::am_short`].
    fn am_zcopy(&self, id: u32, header: u64, iov: &[Iov], cookie: u64) -> Posted {
        let _ = (id, header, iov, cookie);
        Err(Status::Unsupported)
    }

    /// Writes remote memory.
    ///
    /// # Errors
    /// [`Status::KeyRejected`] and [`Status::OutOfRange`] belong to this operation: the endpoint stays usable.
    fn put(&self, key: &Self::Key, op: &RmaOp<'_>) -> Posted {
        let _ = (key, op);
        Err(Status::Unsupported)
    }

    /// Reads remote memory.
    ///
    /// # Errors
    /// As [`Endpoint::put`].
    fn get(&self, key: &Self::Key, op: &RmaOp<'_>) -> Posted {
        let _ = (key, op);
        Err(Status::Unsupported)
    }

    /// Makes a put with a notification. The target gets [`NOTIFIED`](crate::event::NOTIFIED) with `word`, once all bytes of this
    /// put, and of every put that this endpoint has posted before, have arrived. The put may be empty.
    ///
    /// # Errors
    /// As [`Endpoint::put`].
    fn put_notify(&self, key: &Self::Key, op: &RmaOp<'_>, word: u32) -> Posted {
        let _ = (key, op, word);
        Err(Status::Unsupported)
    }

    /// Takes parts of a list of puts or gets, from the first one on, and sets `taken` to their number, which is at least 1 for a
    /// success. After [`Posting::Pending`], one completion with the list's cookie follows for all of them; if it failed, the event's
    /// `id` is the index of the first part that failed. The core calls again for the rest. The module states
    /// [`RMA_LIST`](crate::caps::RMA_LIST).
    ///
    /// # Errors
    /// The status of the first part, as [`Endpoint::put`]: no other part was begun.
    fn rma_list(&self, list: &ListOp<'_, Self::Key>, taken: &mut usize) -> Posted {
        let _ = (list, taken);
        Err(Status::Unsupported)
    }

    /// Returns the address at which `len` bytes from `offset` on are mapped in this process, until the key is dropped. After the
    /// owner has ended its region, the mapping leads to memory without an owner, where loads and stores have no meaning; with
    /// [`crate::caps::DIES_WITH_OWNER`] they may end the process.
    ///
    /// # Errors
    /// [`Status::OutOfRange`], [`Status::KeyRejected`], or the reason why there is no such address.
    fn key_pointer(&self, key: &Self::Key, offset: u64, len: u64) -> Result<*mut u8, Failure> {
        let _ = (key, offset, len);
        Err(Status::Unsupported.into())
    }

    /// Requests that a pending operation ends soon. The operation's completion still comes, with [`Status::Canceled`] if no part of
    /// the operation has happened.
    ///
    /// # Errors
    /// [`Status::Invalid`]: no operation with this cookie is pending.
    fn cancel(&self, cookie: u64) -> Result<(), Status> {
        let _ = cookie;
        Err(Status::Unsupported)
    }

    /// Returns the limits of this endpoint, if they are lower than those of its module. The core calls the method after
    /// [`Interface::connect`](super::Interface::connect) or [`Endpoint::connect`], and again when a connection that was still being
    /// formed is established.
    fn limits(&self) -> EndpointLimits {
        EndpointLimits::empty()
    }

    /// Executes a remote atomic. If the call completes the atomic, the previous value is returned through `result`.
    ///
    /// # Errors
    /// As [`Endpoint::put`], and [`Status::Misaligned`].
    fn atomic(&self, key: &Self::Key, op: &Atomic, result: &mut u64) -> Posted {
        let _ = (key, op, result);
        Err(Status::Unsupported)
    }

    /// Completes when puts, gets and atomics posted before are complete at the target, and messages posted before cannot be lost
    /// any more if this process ends. The default is for a module whose calls have these effects before they return.
    ///
    /// # Errors
    /// The first failure of the operations that the flush waited for.
    fn flush(&self, cookie: u64) -> Posted {
        let _ = cookie;
        Ok(Posting::Done)
    }

    /// Orders everything posted before ahead of everything posted after, without waiting. The default is for a module that keeps
    /// the order of its calls.
    ///
    /// # Errors
    /// Any failure: the core waits for a flush before it posts later operations.
    fn fence(&self) -> Result<(), Status> {
        Ok(())
    }

    /// Makes a packed key usable on this endpoint. The bytes come from the peer, so the method checks every byte.
    ///
    /// # Errors
    /// [`Status::Again`]: call again after progress. [`Status::KeyRejected`]: the key is malformed, or not for this endpoint.
    fn import_key(&self, bytes: &[u8]) -> Result<Self::Key, Failure> {
        let _ = bytes;
        Err(Status::Unsupported.into())
    }

    /// Returns, for connect-to-endpoint modules, this endpoint's address. The peer may use the address before [`Endpoint::connect`]
    /// is called on this endpoint; the peer's messages are kept until that call.
    fn address(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Connects, for connect-to-endpoint modules, to the peer's endpoint address. Both sides call it, in any order. It does not
    /// wait: data calls return [`Status::Again`] until the connection is established. If that fails after the call,
    /// [`ENDPOINT_FAILED`](crate::event::ENDPOINT_FAILED) reports it. The bytes come from the peer, so the method checks every
    /// byte.
    ///
    /// # Errors
    /// The reason why the endpoint could not be connected.
    fn connect(&self, address: &[u8]) -> Result<(), Failure> {
        let _ = address;
        Err(Status::Unsupported.into())
    }
}
