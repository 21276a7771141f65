//! Endpoints: the data path.

use super::*;

/// One piece of a gathered buffer: frozen.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct Iov {
    /// First byte.
    pub base: *mut u8,
    /// Length in bytes.
    pub len: usize,
    /// The region of the interface's domain that the piece lies in, or null: it lies anywhere. Null, too, unless the module says
    /// TAKES_REGIONS, and for operations of modules that are SYNCHRONOUS. A piece whose region is null is memory of the host.
    pub region: *mut RegionHandle,
}

/// A put or get: frozen.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct Rma {
    /// Local pieces: read by put, written by get.
    pub iov: *const Iov,
    /// How many.
    pub iov_count: usize,
    /// Sum of their lengths.
    pub len: usize,
    /// The key, from `import_key` on the same endpoint or on its interface.
    pub key: *mut KeyHandle,
    /// Offset into what the key leads to.
    pub offset: u64,
    /// Comes back in EVENT_COMPLETION when the call returned PENDING.
    pub cookie: u64,
    /// `TIELINE_OP_*`.
    pub flags: u64,
    /// Zero.
    pub reserved: u64,
}

/// A remote atomic: frozen.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct Atomic {
    /// `TIELINE_ATOMIC_*`.
    pub op: u32,
    /// 4 or 8 bytes.
    pub width: u32,
    /// The key, from `import_key` on the same endpoint or on its interface.
    pub key: *mut KeyHandle,
    /// Offset into what the key leads to, a multiple of the width.
    pub offset: u64,
    /// The operand.
    pub operand: u64,
    /// What COMPARE_SWAP compares with.
    pub compare: u64,
    /// Where the value from before goes when the call returns 0 and FETCH is set; a pending one brings it in the event.
    pub result: *mut u64,
    /// Comes back in EVENT_COMPLETION when the call returned PENDING.
    pub cookie: u64,
    /// `TIELINE_OP_*`.
    pub flags: u64,
}

/// A packed key that is to be made usable.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct ImportParams {
    /// Size of this record.
    pub size: usize,
    /// What `pack_key` of the peer's domain has written. The bytes come from the peer: check every one.
    pub bytes: *const u8,
    /// Their number.
    pub len: usize,
    /// None yet.
    pub flags: u64,
}

/// What a connect-to-endpoint module connects an endpoint to.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct ConnectParams {
    /// Size of this record.
    pub size: usize,
    /// The peer's endpoint address. The bytes come from the peer: check every one.
    pub address: *const u8,
    /// Its length.
    pub address_len: usize,
    /// None yet.
    pub flags: u64,
}

/// What one endpoint can carry, where that is less than its module can: 0, as the module says.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointLimits {
    /// Size of this record, set by the caller.
    pub size: usize,
    /// Longest payload of am_short.
    pub max_short: usize,
    /// Longest payload of am_packed.
    pub max_packed: usize,
    /// Longest payload of am_zcopy.
    pub max_zcopy: usize,
    /// Longest put, and put_notify.
    pub max_put: usize,
    /// Longest get.
    pub max_get: usize,
}

/// Packs a message: returns how many bytes were written, or a negative status.
/// The buffer is initialised memory (its content does not matter), the callback's alone during the call.
pub type PackFn =
    Option<unsafe extern "C" fn(argument: *mut c_void, buffer: *mut u8, capacity: usize) -> i64>;

/// Functions of an endpoint. One thread at a time, the interface's.
///
/// Data calls return 0 (done), 1 (pending: an EVENT_COMPLETION with the cookie follows) or a negative status.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct EndpointOps {
    /// Size of this table as the provider compiled it.
    pub size: usize,
    /// Sends a message of at most `max_short` bytes, which are copied before the call returns.
    pub am_short: Option<
        unsafe extern "C" fn(
            endpoint: *mut EndpointHandle,
            id: u32,
            header: u64,
            payload: *const u8,
            len: usize,
        ) -> i32,
    >,
    /// Sends a message that `pack` writes, of at most `most` bytes: returns its length or a negative status.
    // abi_stable cannot look inside a function that takes a function: the slot is compared by name and size.
    #[sabi(unsafe_opaque_field)]
    pub am_packed: Option<
        unsafe extern "C" fn(
            endpoint: *mut EndpointHandle,
            id: u32,
            header: u64,
            pack: PackFn,
            argument: *mut c_void,
            most: usize,
        ) -> i64,
    >,
    /// Sends a message that is gathered from pieces. The array is borrowed for the call, the bytes until the completion.
    pub am_zcopy: Option<
        unsafe extern "C" fn(
            endpoint: *mut EndpointHandle,
            id: u32,
            header: u64,
            iov: *const Iov,
            iov_count: usize,
            cookie: u64,
        ) -> i32,
    >,
    /// Writes remote memory. The record and the array are borrowed for the call, the bytes until the completion.
    pub put: Option<unsafe extern "C" fn(endpoint: *mut EndpointHandle, op: *const Rma) -> i32>,
    /// Reads remote memory, in the same way.
    pub get: Option<unsafe extern "C" fn(endpoint: *mut EndpointHandle, op: *const Rma) -> i32>,
    /// Does a remote atomic.
    pub atomic:
        Option<unsafe extern "C" fn(endpoint: *mut EndpointHandle, op: *const Atomic) -> i32>,
    /// Completes when puts, gets and atomics that were posted before are complete at the target, and messages are where nothing that
    /// happens to their sender can lose them. UNSUPPORTED, of a module of messages alone: they are, once they were taken.
    pub flush: Option<unsafe extern "C" fn(endpoint: *mut EndpointHandle, cookie: u64) -> i32>,
    /// Orders what was posted before on this endpoint, messages too, ahead of what is posted after, and waits for nothing.
    /// UNSUPPORTED: this lane cannot keep order; AGAIN: not now. The core then waits for a flush.
    pub fence: Option<unsafe extern "C" fn(endpoint: *mut EndpointHandle) -> i32>,
    /// Closes the endpoint. Pending operations are dropped without an event.
    pub close: Option<unsafe extern "C" fn(endpoint: *mut EndpointHandle)>,
    /// Makes a packed key usable on this endpoint. AGAIN: ask again after progress.
    pub import_key: Option<
        unsafe extern "C" fn(
            endpoint: *mut EndpointHandle,
            params: *const ImportParams,
            out: *mut *mut KeyHandle,
        ) -> i32,
    >,
    /// Lets go of an imported key.
    pub drop_key: Option<unsafe extern "C" fn(endpoint: *mut EndpointHandle, key: *mut KeyHandle)>,
    /// Connect-to-endpoint: writes this endpoint's address: returns its length. The peer may use it before
    /// `connect` is called here; what it sends then is kept until that call.
    pub address: Option<
        unsafe extern "C" fn(
            endpoint: *mut EndpointHandle,
            buffer: *mut u8,
            capacity: usize,
        ) -> i64,
    >,
    /// Connect-to-endpoint: connects to the peer's endpoint address. Does not wait: data calls return AGAIN until the
    /// connection stands; one that never does ends in EVENT_ENDPOINT_FAILED.
    pub connect: Option<
        unsafe extern "C" fn(endpoint: *mut EndpointHandle, params: *const ConnectParams) -> i32,
    >,
    /// CAP_PUT_NOTIFY: a put behind which the target gets EVENT_NOTIFIED with `word`, of which `notify_bits` count. The event comes
    /// once, when all bytes of this put are there, and those of every put that this endpoint has posted before it. It may be empty:
    /// length 0 notifies alone, and its key is not null all the same.
    pub put_notify: Option<
        unsafe extern "C" fn(endpoint: *mut EndpointHandle, op: *const Rma, word: u32) -> i32,
    >,
    /// CAP_KEY_POINTER: where `len` bytes from `offset` on are mapped here: loads and stores there are the peer's memory. The
    /// mapping stays until the key is dropped. When the owner has ended its region, what is mapped is nobody's memory any more.
    pub key_pointer: Option<
        unsafe extern "C" fn(
            endpoint: *mut EndpointHandle,
            key: *mut KeyHandle,
            offset: u64,
            len: u64,
            out: *mut *mut u8,
        ) -> i32,
    >,
    /// CAP_CANCEL: asks that a pending operation end soon. 0: its completion comes as it would have, with CANCELED where nothing of
    /// it has happened; INVALID: nothing with this cookie is pending.
    pub cancel: Option<unsafe extern "C" fn(endpoint: *mut EndpointHandle, cookie: u64) -> i32>,
    /// What this endpoint can carry, asked behind `connect`; of one that is formed again when it stands.
    pub limits: Option<
        unsafe extern "C" fn(endpoint: *mut EndpointHandle, out: *mut EndpointLimits) -> i32,
    >,
}
