//! The unsafe calls of a provider's endpoint, which take memory or a key or close the provider's endpoint, and the reasons why they
//! are sound.
//!
//! *The endpoint is open.* A lane that an endpoint owns is closed when the endpoint is dropped, or before it is added to the
//! endpoint's lanes. A circuit is closed after its last endpoint has released it. Keys hold their endpoint, and queued operations
//! on remote memory hold their key.
//!
//! *The key belongs to the endpoint.* An `ImportedKey`, like the fast path, consists of values that were imported together. Their
//! `KeyInner` releases a key once, and not while a pointer leads to memory mapped through the key. It posts nothing with the key
//! after that.
//!
//! *The memory remains valid.* An operation that may use memory after the call is in the operation table with that memory
//! (`LocalBuffer`) before it is posted. If the operation ends before the provider has reported its end, the memory is in `op::held`
//! until the provider reports it, or is closed. Memory in no region (`Memory::Raw`) is kept by its owner, who has promised that
//! (`by_address.rs`, `Descriptor::raw`). An operation of a synchronous module is complete when the call returns, and so is
//! the module's access to the bytes of a short put (`max_short_put`). The call borrows such memory (`RmaRecord`).

#![allow(unsafe_code)]

use super::fast_path::FastPath;
use super::fetch::KeyForOnce;
use super::key::ImportedKey;
use super::queued::GatheredMessage;
use super::record::{ListRecord, RmaRecord};
use super::{EndpointState, Lane};
use crate::Status;
use crate::mem::local::{LocalBuffer, Memory};
use crate::sys::Span;
use tieline_plugin_api::abi::Atomic;

impl ImportedKey {
    /// Posts a put or get.
    #[inline(always)]
    pub(super) fn post(&self, put: bool, op: &RmaRecord<'_>) -> i32 {
        // SAFETY: see the module documentation; the record was made with this key.
        unsafe { if put { self.raw.put(op) } else { self.raw.get(op) } }
    }

    /// Posts a put with a notification.
    #[inline(always)]
    pub(super) fn post_notify(&self, op: &RmaRecord<'_>, word: u32) -> i32 {
        // SAFETY: see the module documentation; the record was made with this key.
        unsafe { self.raw.put_notify(op, word) }
    }

    /// Posts an atomic.
    #[inline(always)]
    pub(super) fn post_atomic(&self, op: &Atomic) -> i32 {
        // SAFETY: see the module documentation; the record was made with this key, and the caller provides the place for the
        // result.
        unsafe { self.raw.atomic(op) }
    }

    /// Returns the address at which the first `len` bytes are mapped in this process, valid while the provider has the key. A
    /// pointer keeps the key from being released.
    pub(super) fn map(&self, len: usize) -> Result<Span, i32> {
        // SAFETY: see the module documentation.
        let base = unsafe { self.raw.key_pointer(self.key, 0, len as u64) }?;
        // SAFETY: by the ABI the range stays mapped, for loads and stores, until the key is released.
        Ok(unsafe { Span::new(base, len) })
    }

    /// Releases a key of its endpoint. The caller posts nothing with the key any more.
    pub(super) fn let_go(self) {
        // SAFETY: see the module documentation.
        unsafe { self.raw.drop_key(self.key) }
    }
}

impl FastPath {
    /// Posts a put. If the put may complete later, its operation holds the memory, or the provider consumes the bytes within the
    /// call.
    #[inline(always)]
    pub(super) fn put(&self, op: &RmaRecord<'_>) -> i32 {
        // SAFETY: see the module documentation; the record was made with this key.
        unsafe { self.raw.get().put(op) }
    }

    /// Posts a put with a notification, as [`Self::put`] does.
    #[inline(always)]
    pub(super) fn put_notify(&self, op: &RmaRecord<'_>, word: u32) -> i32 {
        // SAFETY: the conditions are those of `put` above.
        unsafe { self.raw.get().put_notify(op, word) }
    }

    /// Posts a get. If the get may complete later, its operation holds the memory.
    #[inline(always)]
    pub(super) fn get(&self, op: &RmaRecord<'_>) -> i32 {
        // SAFETY: the conditions are those of `put` above; the piece was checked to be inside a region, which is written without
        // references.
        unsafe { self.raw.get().get(op) }
    }

    /// Posts parts of a list to a module that completes them within the call. Returns the status and the number of taken parts.
    #[inline]
    pub(super) fn list(&self, op: &ListRecord<'_>) -> (i32, usize) {
        // SAFETY: see the module documentation. Each part was made with the key of a fast path of this endpoint; its piece is inside a
        // region or was promised by its owner.
        unsafe { self.raw.get().rma_list(op) }
    }

    /// Posts an atomic to a module that completes atomics within the call.
    #[inline(always)]
    pub(super) fn atomic(&self, op: &Atomic) -> i32 {
        // SAFETY: the conditions are those of `put` above; the caller provides the place for the result.
        unsafe { self.raw.get().atomic(op) }
    }
}

impl KeyForOnce {
    /// Posts a get to a module that completes it within the call.
    pub(super) fn get(&self, op: &RmaRecord<'_>) -> i32 {
        // SAFETY: see the module documentation; the record was made with this key, and the caller's piece is inside a region.
        unsafe { self.raw.get(op) }
    }
}

impl Drop for KeyForOnce {
    fn drop(&mut self) {
        // SAFETY: see the module documentation; the lane belongs to the endpoint that uses the key in this call, and the get has
        // ended.
        unsafe { self.raw.drop_key(self.key) }
    }
}

impl EndpointState {
    /// Posts a message of pieces to the message lane; `lane` is the lane's capabilities and interface. The operation holds the
    /// pieces from this call on.
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
            // SAFETY: see the module documentation; the pieces belong to the memory that the operation holds since the call above.
            unsafe { self.message.raw().am_zcopy(u32::from(id), header, &iov, request.raw()) }
        });
        self.shared.iov.set(iov);
        code
    }
}

impl Lane {
    /// Closes a lane that its endpoint owns. No object of the endpoint uses the lane any more.
    pub(super) fn close(self) {
        // SAFETY: the lane was removed from the endpoint's lanes when the endpoint was dropped, which keys would have prevented, or
        // was never added to the lanes.
        unsafe { self.raw.close() }
    }
}
