//! Unsafe calls of a provider's endpoint, those that take memory or a key or close something, and why they are sound.
//!
//! *It is open.* A lane is closed when its endpoint is dropped, a circuit when the last endpoint that uses it has let go of
//! it; keys and operations hold their endpoint.
//!
//! *The key is its own.* A `ImportedKey`, and the fast path, are made of what was imported together; their `KeyInner` takes one
//! out of its lanes before it lets the key go, once, and not while a pointer leads to what it has mapped.
//!
//! *The memory stays.* What may end later stands in the table of operations with its memory (`LocalBuffer`) before it is
//! posted, and after its end in `op::held` until the provider has said how it ended, or is closed. What a synchronous module
//! does is over when the call returns, and so is what a module does with the bytes of a short put (`max_short_put`): such memory is
//! borrowed for the call (`RmaRecord`).

#![allow(unsafe_code)]

use super::fast_path::FastPath;
use super::key::ImportedKey;
use super::queued::GatheredMessage;
use super::record::RmaRecord;
use super::{Inner, Lane};
use crate::Status;
use crate::op::{LocalBuffer, Memory};
use crate::sys::Span;
use tieline_plugin_api::abi::Atomic;

impl ImportedKey {
    /// Posts a put or get.
    #[inline(always)]
    pub(super) fn post(&self, put: bool, op: &RmaRecord<'_>) -> i32 {
        // SAFETY: see above; the record was made with this key.
        unsafe { if put { self.raw.put(op) } else { self.raw.get(op) } }
    }

    /// Posts a put that tells the target.
    #[inline(always)]
    pub(super) fn post_notify(&self, op: &RmaRecord<'_>, word: u32) -> i32 {
        // SAFETY: see above; the record was made with this key.
        unsafe { self.raw.put_notify(op, word) }
    }

    /// Posts an atomic.
    #[inline(always)]
    pub(super) fn post_atomic(&self, op: &Atomic) -> i32 {
        // SAFETY: see above; the record was made with this key, and its place for the result is the caller's.
        unsafe { self.raw.atomic(op) }
    }

    /// Where the first `len` bytes are mapped here, while the provider has the key: who has a pointer keeps it from being let go.
    pub(super) fn map(&self, len: usize) -> Result<Span, i32> {
        // SAFETY: see above.
        let base = unsafe { self.raw.key_pointer(self.key, 0, len as u64) }?;
        // SAFETY: by the ABI the range stays mapped, for loads and stores, until the key is let go.
        Ok(unsafe { Span::new(base, len) })
    }

    /// Lets go of a key of its endpoint's; this was taken out of the key's lanes before.
    pub(super) fn let_go(self) {
        // SAFETY: see above.
        unsafe { self.raw.drop_key(self.key) }
    }
}

impl FastPath {
    /// A put that is over when this returns, or whose bytes are taken then.
    #[inline(always)]
    pub(super) fn put(&self, op: &RmaRecord<'_>) -> i32 {
        // SAFETY: see above; the record was made with this key.
        unsafe { self.raw.get().put(op) }
    }

    /// The same for one that tells the target.
    #[inline(always)]
    pub(super) fn put_notify(&self, op: &RmaRecord<'_>, word: u32) -> i32 {
        // SAFETY: as `put`.
        unsafe { self.raw.get().put_notify(op, word) }
    }

    /// The same for a get.
    #[inline(always)]
    pub(super) fn get(&self, op: &RmaRecord<'_>) -> i32 {
        // SAFETY: as `put`; the piece was checked to be inside a region, which is written without references.
        unsafe { self.raw.get().get(op) }
    }

    /// The same for an atomic.
    #[inline(always)]
    pub(super) fn atomic(&self, op: &Atomic) -> i32 {
        // SAFETY: as `put`; the place for the result is the caller's.
        unsafe { self.raw.get().atomic(op) }
    }
}

impl Inner {
    /// Posts a message of pieces to the message lane, whose capabilities and interface these are: its operation has the pieces from here on.
    pub(super) fn gather_now(
        &self,
        message: &GatheredMessage,
        lane: (u64, usize),
    ) -> Result<i32, Status> {
        let &GatheredMessage { id, header, ref pieces, len, request } = message;
        let mut iov = self.shared.iov.take();
        let listed = self.list(lane, pieces, 0, len, &mut iov);
        let memory = LocalBuffer::held(Memory::Pieces(pieces.clone()), 0, len);
        self.shared.ops.borrow_mut().set_local_buffer(request, memory);
        let code = listed.map(|()| {
            // SAFETY: see above; the pieces are those of the memory that the operation has just got.
            unsafe { self.message.get().am_zcopy(u32::from(id), header, &iov, request.raw()) }
        });
        self.shared.iov.set(iov);
        code
    }
}

impl Lane {
    /// Closes a lane that its endpoint owns: nothing of the endpoint's is left that would use it.
    pub(super) fn close(self) {
        // SAFETY: taken out of the endpoint's lanes as it is dropped, when keys would have kept it, or never among them.
        unsafe { self.raw.close() }
    }
}
