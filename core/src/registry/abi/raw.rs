//! An open endpoint, as the core calls it.

use super::pack::{Pack, PackCall, pack_here};
use super::{EndpointTable, FAILED_ENDPOINT, grown};
use std::ffi::c_void;
use std::panic::resume_unwind;
use tieline_plugin_api::Status;
use tieline_plugin_api::abi::{Atomic, ConnectParams, EndpointLimits, ImportParams, Iov, Rma};

/// An open endpoint: the provider's handle and its functions. Not `Send`: it belongs to its interface's thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawEndpoint {
    handle: *mut c_void,
    table: &'static EndpointTable,
}

impl RawEndpoint {
    /// An endpoint from what `connect` has just returned.
    pub(super) fn new(handle: *mut c_void, table: &'static EndpointTable) -> RawEndpoint {
        RawEndpoint { handle, table }
    }

    /// An endpoint that leads nowhere: what a failed or not yet connected lane holds.
    pub(crate) fn nowhere() -> RawEndpoint {
        RawEndpoint { handle: std::ptr::null_mut(), table: &FAILED_ENDPOINT }
    }

    /// From now on every call answers `PROVIDER_FAILED` and none reaches the provider.
    pub(crate) fn fail(&mut self) {
        self.table = &FAILED_ENDPOINT;
    }

    /// Whether [`RawEndpoint::fail`] was called.
    #[cfg(test)]
    pub(crate) fn failed(&self) -> bool {
        std::ptr::eq(self.table, &FAILED_ENDPOINT)
    }

    /// Sends a short message: 0, 1 (pending) or a negative status.
    #[inline(always)]
    pub(crate) fn am_short(&self, id: u32, header: u64, payload: &[u8]) -> i32 {
        // SAFETY: the handle is open (its owner has not closed it) and this is its thread; the payload is
        // borrowed for the call.
        unsafe { (self.table.am_short)(self.handle, id, header, payload.as_ptr(), payload.len()) }
    }

    /// Sends a message that `pack` writes: at most `max` bytes. A panic of `pack` goes on in the caller
    /// after the provider has returned; it never crosses the provider.
    pub(crate) fn am_packed(
        &self,
        id: u32,
        header: u64,
        max: usize,
        pack: Pack<'_>,
    ) -> Result<usize, Status> {
        let mut call = PackCall { pack, max, panic: None };
        let argument = std::ptr::from_mut(&mut call).cast::<c_void>();
        // SAFETY: the handle is open and this is its thread; the argument lives until the call returns,
        // and a provider calls `pack` only before that.
        let written = unsafe {
            (self.table.am_packed)(self.handle, id, header, Some(pack_here), argument, max)
        };
        if let Some(panic) = call.panic {
            resume_unwind(panic);
        }
        usize::try_from(written).map_err(|_| Status::from_code(written as i32))
    }

    /// Sends a message that lies in pieces.
    ///
    /// # Safety
    /// The endpoint is open. The pieces are readable until the call returns; where it says PENDING, until the completion, or until
    /// the endpoint is closed.
    pub(crate) unsafe fn am_zcopy(&self, id: u32, header: u64, iov: &[Iov], cookie: u64) -> i32 {
        // SAFETY: the caller's promise; the array is borrowed for the call.
        unsafe { (self.table.am_zcopy)(self.handle, id, header, iov.as_ptr(), iov.len(), cookie) }
    }

    /// Writes remote memory.
    ///
    /// # Safety
    /// The endpoint is open. The key is from its `import_key` and was not dropped. The pieces are readable until the call
    /// returns; where it says PENDING, until the completion, or until the endpoint is closed.
    #[inline(always)]
    pub(crate) unsafe fn put(&self, op: &Rma) -> i32 {
        // SAFETY: the caller's promise.
        unsafe { (self.table.put)(self.handle, op) }
    }

    /// Writes remote memory, and tells the target.
    ///
    /// # Safety
    /// As [`RawEndpoint::put`].
    #[inline(always)]
    pub(crate) unsafe fn put_notify(&self, op: &Rma, word: u32) -> i32 {
        // SAFETY: the caller's promise.
        unsafe { (self.table.put_notify)(self.handle, op, word) }
    }

    /// Whether both are the same endpoint of a provider.
    pub(crate) fn is(&self, other: &RawEndpoint) -> bool {
        self.handle == other.handle
    }

    /// Reads remote memory.
    ///
    /// # Safety
    /// As [`RawEndpoint::put`], with pieces that are writable.
    #[inline(always)]
    pub(crate) unsafe fn get(&self, op: &Rma) -> i32 {
        // SAFETY: the caller's promise.
        unsafe { (self.table.get)(self.handle, op) }
    }

    /// Does a remote atomic.
    ///
    /// # Safety
    /// As [`RawEndpoint::put`] for the key; `result` is null or writable for the call.
    #[inline(always)]
    pub(crate) unsafe fn atomic(&self, op: &Atomic) -> i32 {
        // SAFETY: the caller's promise.
        unsafe { (self.table.atomic)(self.handle, op) }
    }

    /// Completes when all that was posted before is complete at the target.
    #[inline(always)]
    pub(crate) fn flush(&self, cookie: u64) -> i32 {
        // SAFETY: the handle is open and this is its thread.
        unsafe { (self.table.flush)(self.handle, cookie) }
    }

    /// Orders what was posted before ahead of what is posted after.
    #[inline(always)]
    pub(crate) fn fence(&self) -> i32 {
        // SAFETY: the handle is open and this is its thread.
        unsafe { (self.table.fence)(self.handle) }
    }

    /// Makes a packed key usable on this endpoint, or the negative status (AGAIN: ask again after progress).
    pub(crate) fn import_key(&self, key: &[u8]) -> Result<*mut c_void, i32> {
        let mut out = std::ptr::null_mut();
        let params = ImportParams { bytes: key.as_ptr(), len: key.len(), ..ImportParams::empty() };
        // SAFETY: the handle is open and this is its thread; the record and the bytes are borrowed for the call.
        let code = unsafe { (self.table.import_key)(self.handle, &params, &mut out) };
        if code < 0 { Err(code) } else { Ok(out) }
    }

    /// Lets go of a key.
    ///
    /// # Safety
    /// The endpoint is open, the key is from its `import_key`, and nobody uses it afterwards.
    pub(crate) unsafe fn drop_key(&self, key: *mut c_void) {
        // SAFETY: the caller's promise.
        unsafe { (self.table.drop_key)(self.handle, key) }
    }

    /// Where a range of what a key leads to is mapped here, or the negative status.
    ///
    /// # Safety
    /// As [`RawEndpoint::put`] for the key.
    pub(crate) unsafe fn key_pointer(
        &self,
        key: *mut c_void,
        offset: u64,
        len: u64,
    ) -> Result<*mut u8, i32> {
        let mut out = std::ptr::null_mut();
        // SAFETY: the caller's promise; the place lives for the call.
        let code = unsafe { (self.table.key_pointer)(self.handle, key, offset, len, &mut out) };
        match code {
            code if code < 0 => Err(code),
            _ if out.is_null() => Err(Status::ProviderFailed as i32),
            _ => Ok(out),
        }
    }

    /// Asks that a pending operation end soon: 0, or a negative status.
    pub(crate) fn cancel(&self, cookie: u64) -> i32 {
        // SAFETY: the handle is open and this is its thread.
        unsafe { (self.table.cancel)(self.handle, cookie) }
    }

    /// What it says that it carries, where that is less than its module does.
    pub(crate) fn limits(&self) -> Result<EndpointLimits, i32> {
        let mut limits = EndpointLimits::empty();
        // SAFETY: the handle is open and this is its thread; the record lives for the call.
        let code = unsafe { (self.table.limits)(self.handle, &mut limits) };
        if code < 0 { Err(code) } else { Ok(limits) }
    }

    /// Connect-to-endpoint modules: this endpoint's address.
    pub(crate) fn address(&self) -> Result<Vec<u8>, Status> {
        grown::grown(|buffer, capacity| {
            // SAFETY: the handle is open and this is its thread; the buffer has that capacity.
            unsafe { (self.table.address)(self.handle, buffer, capacity) }
        })
    }

    /// Connect-to-endpoint modules: connects to the peer's endpoint address.
    pub(crate) fn connect(&self, address: &[u8]) -> i32 {
        let params = ConnectParams {
            address: address.as_ptr(),
            address_len: address.len(),
            ..ConnectParams::empty()
        };
        // SAFETY: the handle is open and this is its thread; the record and the bytes are borrowed for the call.
        unsafe { (self.table.connect)(self.handle, &params) }
    }

    /// Closes the endpoint.
    ///
    /// # Safety
    /// It is open, its keys are dropped, and nobody uses a copy of it afterwards.
    pub(crate) unsafe fn close(self) {
        // SAFETY: the caller's promise.
        unsafe { (self.table.close)(self.handle) }
    }
}

/// An endpoint for whoever closes it: one for each that `connect` makes, and not copied. Who uses it has a [`RawEndpoint`].
#[derive(Debug)]
pub(crate) struct OwnedEndpoint(RawEndpoint);

impl OwnedEndpoint {
    /// An endpoint from what `connect` has just returned.
    pub(super) fn new(handle: *mut c_void, table: &'static EndpointTable) -> OwnedEndpoint {
        OwnedEndpoint(RawEndpoint::new(handle, table))
    }

    /// One that leads nowhere, of which there is nothing to close.
    pub(crate) fn nowhere() -> OwnedEndpoint {
        OwnedEndpoint(RawEndpoint::nowhere())
    }

    /// What it is used by, while it is open.
    pub(crate) fn get(&self) -> RawEndpoint {
        self.0
    }

    /// As [`RawEndpoint::fail`], of what is used of it from now on; and it is not closed either.
    pub(crate) fn fail(&mut self) {
        self.0.fail();
    }

    /// Closes the endpoint.
    ///
    /// # Safety
    /// Its keys are dropped, and nobody uses what [`OwnedEndpoint::get`] gave.
    pub(crate) unsafe fn close(self) {
        // SAFETY: it is open, since this alone closes it; the rest is the caller's promise.
        unsafe { self.0.close() }
    }
}
