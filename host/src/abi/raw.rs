//! An open endpoint of a provider, with the calls that the core makes.

use super::pack::{Pack, PackCall, pack_here};
use super::{EndpointTable, FAILED_ENDPOINT, grown};
use std::ffi::c_void;
use std::panic::resume_unwind;
use tieline_plugin_api::Status;
use tieline_plugin_api::abi::{
    Atomic, ConnectParams, EndpointLimits, ImportParams, Iov, Rma, RmaList,
};

/// An open endpoint: the provider's handle and its functions. It is not `Send`: it belongs to its interface's thread.
#[derive(Clone, Copy, Debug)]
pub struct RawEndpoint {
    handle: *mut c_void,
    table: &'static EndpointTable,
}

impl RawEndpoint {
    /// Makes an endpoint from a handle that `connect` has just returned.
    pub fn new(handle: *mut c_void, table: &'static EndpointTable) -> RawEndpoint {
        RawEndpoint { handle, table }
    }

    /// Returns the provider's handle.
    #[must_use]
    pub fn handle(&self) -> *mut c_void {
        self.handle
    }

    /// Makes an endpoint without a peer, for a lane that failed or is not connected yet.
    #[inline]
    pub fn nowhere() -> RawEndpoint {
        RawEndpoint { handle: std::ptr::null_mut(), table: &FAILED_ENDPOINT }
    }

    /// Disables this value: its later calls do not reach the provider, and return `PROVIDER_FAILED` if they return a status. Copies
    /// are not affected.
    #[inline]
    pub fn fail(&mut self) {
        self.table = &FAILED_ENDPOINT;
    }

    /// Checks whether calls do not reach a provider.
    #[cfg(test)]
    pub fn failed(&self) -> bool {
        std::ptr::eq(self.table, &FAILED_ENDPOINT)
    }

    /// Sends a short message. Returns 0, 1 (pending) or a negative status.
    #[inline(always)]
    pub fn am_short(&self, id: u32, header: u64, payload: &[u8]) -> i32 {
        // SAFETY: the handle is open (its owner has not closed it) and this is its thread; the payload is
        // borrowed for the call.
        unsafe { (self.table.am_short)(self.handle, id, header, payload.as_ptr(), payload.len()) }
    }

    /// Sends a message of at most `max` bytes that `pack` writes. A panic of `pack` resumes after the provider has returned; it
    /// never unwinds through the provider.
    #[inline]
    pub fn am_packed(
        &self,
        id: u32,
        header: u64,
        max: usize,
        pack: Pack<'_>,
    ) -> Result<usize, Status> {
        let mut call = PackCall { pack, max, panic: None };
        let argument = std::ptr::from_mut(&mut call).cast::<c_void>();
        // SAFETY: the handle is open and this is its thread; the argument lives until the call returns, and a provider calls `pack`
        // only before that.
        let written = unsafe {
            (self.table.am_packed)(self.handle, id, header, Some(pack_here), argument, max)
        };
        if let Some(panic) = call.panic {
            resume_unwind(panic);
        }
        usize::try_from(written).map_err(|_| Status::from_code(written as i32))
    }

    /// Sends a message from several pieces.
    ///
    /// # Safety
    /// The endpoint is open. The pieces are readable until the call returns; after PENDING, until the completion, or until the
    /// endpoint is closed.
    #[inline]
    pub unsafe fn am_zcopy(&self, id: u32, header: u64, iov: &[Iov], cookie: u64) -> i32 {
        // SAFETY: the caller guarantees the conditions above; the array is borrowed for the call.
        unsafe { (self.table.am_zcopy)(self.handle, id, header, iov.as_ptr(), iov.len(), cookie) }
    }

    /// Writes remote memory.
    ///
    /// # Safety
    /// The endpoint is open. The key was imported by `import_key` of this endpoint or of its interface, and was not dropped. The
    /// pieces are readable until the call returns; after PENDING, until the completion, or until the endpoint is closed.
    #[inline(always)]
    pub unsafe fn put(&self, op: &Rma) -> i32 {
        // SAFETY: the caller guarantees the conditions above.
        unsafe { (self.table.put)(self.handle, op) }
    }

    /// Writes remote memory and notifies the target.
    ///
    /// # Safety
    /// The conditions are those of [`RawEndpoint::put`].
    #[inline(always)]
    pub unsafe fn put_notify(&self, op: &Rma, word: u32) -> i32 {
        // SAFETY: the caller guarantees the conditions above.
        unsafe { (self.table.put_notify)(self.handle, op, word) }
    }

    /// Checks whether both are the same provider endpoint.
    #[inline]
    pub fn is(&self, other: &RawEndpoint) -> bool {
        self.handle == other.handle
    }

    /// Reads remote memory.
    ///
    /// # Safety
    /// The conditions are those of [`RawEndpoint::put`], with writable pieces.
    #[inline(always)]
    pub unsafe fn get(&self, op: &Rma) -> i32 {
        // SAFETY: the caller guarantees the conditions above.
        unsafe { (self.table.get)(self.handle, op) }
    }

    /// Takes parts of a list of puts or gets, from the first one on. Returns the status and the number of taken parts.
    ///
    /// # Safety
    /// The conditions of [`RawEndpoint::put`], or of [`RawEndpoint::get`], apply to each part.
    #[inline(always)]
    pub unsafe fn rma_list(&self, list: &RmaList) -> (i32, usize) {
        let mut taken = 0;
        // SAFETY: the caller guarantees the conditions above.
        let code = unsafe { (self.table.rma_list)(self.handle, list, &mut taken) };
        (code, taken)
    }

    /// Executes a remote atomic.
    ///
    /// # Safety
    /// For the key, the conditions of [`RawEndpoint::put`] apply; `result` is null or writable for the call.
    #[inline(always)]
    pub unsafe fn atomic(&self, op: &Atomic) -> i32 {
        // SAFETY: the caller guarantees the conditions above.
        unsafe { (self.table.atomic)(self.handle, op) }
    }

    /// Posts a flush, which completes when every operation posted before is complete at the target.
    #[inline(always)]
    pub fn flush(&self, cookie: u64) -> i32 {
        // SAFETY: the handle is open and this is its thread.
        unsafe { (self.table.flush)(self.handle, cookie) }
    }

    /// Orders operations posted before ahead of operations posted after.
    #[inline(always)]
    pub fn fence(&self) -> i32 {
        // SAFETY: the handle is open and this is its thread.
        unsafe { (self.table.fence)(self.handle) }
    }

    /// Imports a packed key for this endpoint. Returns the provider's key, or the negative status (AGAIN: retry after progress).
    pub fn import_key(&self, key: &[u8]) -> Result<*mut c_void, i32> {
        let mut out = std::ptr::null_mut();
        let params = ImportParams { bytes: key.as_ptr(), len: key.len(), ..ImportParams::empty() };
        // SAFETY: the handle is open and this is its thread; the record and the bytes are borrowed for the call.
        let code = unsafe { (self.table.import_key)(self.handle, &params, &mut out) };
        if code < 0 { Err(code) } else { Ok(out) }
    }

    /// Drops a key.
    ///
    /// # Safety
    /// The endpoint is open, its `import_key` made the key, and the key is not used afterwards.
    #[inline]
    pub unsafe fn drop_key(&self, key: *mut c_void) {
        // SAFETY: the caller guarantees the conditions above.
        unsafe { (self.table.drop_key)(self.handle, key) }
    }

    /// Returns the local mapping of a range of a key's memory, or the negative status.
    ///
    /// # Safety
    /// For the key, the conditions of [`RawEndpoint::put`] apply.
    #[inline]
    pub unsafe fn key_pointer(
        &self,
        key: *mut c_void,
        offset: u64,
        len: u64,
    ) -> Result<*mut u8, i32> {
        let mut out = std::ptr::null_mut();
        // SAFETY: the caller guarantees the conditions above; the variable lives for the call.
        let code = unsafe { (self.table.key_pointer)(self.handle, key, offset, len, &mut out) };
        match code {
            code if code < 0 => Err(code),
            _ if out.is_null() => Err(Status::ProviderFailed as i32),
            _ => Ok(out),
        }
    }

    /// Requests the provider to end a pending operation soon. Returns 0, or a negative status.
    #[inline]
    pub fn cancel(&self, cookie: u64) -> i32 {
        // SAFETY: the handle is open and this is its thread.
        unsafe { (self.table.cancel)(self.handle, cookie) }
    }

    /// Returns the limits that this endpoint reports below those of its module.
    pub fn limits(&self) -> Result<EndpointLimits, i32> {
        let mut limits = EndpointLimits::empty();
        // SAFETY: the handle is open and this is its thread; the record lives for the call.
        let code = unsafe { (self.table.limits)(self.handle, &mut limits) };
        if code < 0 { Err(code) } else { Ok(limits) }
    }

    /// Returns the address of an endpoint whose module connects to an endpoint.
    pub fn address(&self) -> Result<Vec<u8>, Status> {
        grown::grown(|buffer, capacity| {
            // SAFETY: the handle is open and this is its thread; the buffer has that capacity.
            unsafe { (self.table.address)(self.handle, buffer, capacity) }
        })
    }

    /// Connects to the peer's endpoint address, for a module that connects to an endpoint.
    pub fn connect(&self, address: &[u8]) -> i32 {
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
    /// The endpoint is open, its keys are dropped, and no copy of it is used afterwards.
    #[inline]
    pub unsafe fn close(self) {
        // SAFETY: the caller guarantees the conditions above.
        unsafe { (self.table.close)(self.handle) }
    }
}

/// The owner of an endpoint, which closes it: there is one owner for each `connect`, and it is not copied. Users of the endpoint
/// hold a [`RawEndpoint`].
#[derive(Debug)]
pub struct OwnedEndpoint(RawEndpoint);

impl OwnedEndpoint {
    /// Makes an endpoint from a handle that `connect` has just returned.
    pub(crate) fn new(handle: *mut c_void, table: &'static EndpointTable) -> OwnedEndpoint {
        OwnedEndpoint(RawEndpoint::new(handle, table))
    }

    /// Makes an endpoint without a peer, which needs no closing.
    #[inline]
    pub fn nowhere() -> OwnedEndpoint {
        OwnedEndpoint(RawEndpoint::nowhere())
    }

    /// Returns the endpoint for its users, valid while the endpoint is open.
    #[inline]
    pub fn get(&self) -> RawEndpoint {
        self.0
    }

    /// Disables the endpoint like [`RawEndpoint::fail`], for all later users; [`OwnedEndpoint::close`] then does not reach the
    /// provider either.
    #[inline]
    pub fn fail(&mut self) {
        self.0.fail();
    }

    /// Closes the endpoint.
    ///
    /// # Safety
    /// The endpoint's keys are dropped, and no copy from [`OwnedEndpoint::get`] is used any more.
    #[inline]
    pub unsafe fn close(self) {
        // SAFETY: the endpoint is open, since only this function closes it; the caller guarantees the rest.
        unsafe { self.0.close() }
    }
}
