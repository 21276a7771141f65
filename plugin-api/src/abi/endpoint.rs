//! Endpoints: the data path.

use super::*;

/// One piece of a gathered buffer. This record is frozen.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy, Debug)]
pub struct Iov {
    /// The address of the first byte.
    pub base: *mut u8,
    /// The length in bytes.
    pub len: usize,
    /// The region of the interface's domain that contains the piece, or null if the piece may be any memory. The field is always
    /// null without TAKES_REGIONS of the module, and for operations of SYNCHRONOUS modules. A piece with a null region is host
    /// memory.
    pub region: *mut RegionHandle,
}

/// A put or get. This record is frozen.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy)]
pub struct Rma {
    /// The local pieces, read by put and written by get.
    pub iov: *const Iov,
    /// The number of pieces.
    pub iov_count: usize,
    /// The sum of the pieces' lengths, in bytes.
    pub len: usize,
    /// The key, from `import_key` on the same endpoint or on its interface.
    pub key: *mut KeyHandle,
    /// The offset into the range that the key covers.
    pub offset: u64,
    /// The cookie of the operation's EVENT_COMPLETION.
    pub cookie: u64,
    /// The flags, `TIELINE_OP_*`.
    pub flags: u64,
    /// Zero, reserved.
    pub reserved: u64,
}

/// A remote atomic. This record is frozen.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy)]
pub struct Atomic {
    /// The operation, `TIELINE_ATOMIC_*`.
    pub op: u32,
    /// The width of the word: 4 or 8 bytes.
    pub width: u32,
    /// The key, from `import_key` on the same endpoint or on its interface.
    pub key: *mut KeyHandle,
    /// The offset into the range that the key covers. An offset that is no multiple of the width is MISALIGNED.
    pub offset: u64,
    /// The operand.
    pub operand: u64,
    /// The value that COMPARE_SWAP compares with the word.
    pub compare: u64,
    /// The place for the previous value if the call returns 0 and FETCH is set. For a pending operation the event has the value.
    pub result: *mut u64,
    /// The cookie of the operation's EVENT_COMPLETION.
    pub cookie: u64,
    /// The flags, `TIELINE_OP_*`.
    pub flags: u64,
}

/// One put or get of a list. This record is frozen.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy, Debug)]
pub struct RmaPart {
    /// The local piece, read by a put and written by a get.
    pub local: Iov,
    /// The key, from `import_key` on the same endpoint or on its interface. The parts of a list may have different keys.
    pub key: *mut KeyHandle,
    /// The offset into the range that the key covers.
    pub offset: u64,
}

/// A list of puts or of gets.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy)]
pub struct RmaList {
    /// The size of this record.
    pub size: usize,
    /// The parts. The array is borrowed for the call, the bytes until the completion.
    pub parts: *const RmaPart,
    /// The number of parts, at least 1.
    pub count: usize,
    /// The cookie of the EVENT_COMPLETION of the parts that the call takes.
    pub cookie: u64,
    /// The flags of each part, `TIELINE_OP_*`.
    pub flags: u64,
    /// The kind of all parts, `TIELINE_RMA_*`.
    pub kind: u32,
    /// Zero, reserved.
    pub reserved: u32,
}

/// A packed key to import.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy)]
pub struct ImportParams {
    /// The size of this record.
    pub size: usize,
    /// The output of `pack_key` of the peer's domain. The bytes come from the peer, so the callee checks every byte.
    pub bytes: *const u8,
    /// The number of bytes.
    pub len: usize,
    /// The flags; none are defined yet.
    pub flags: u64,
}

/// The peer's endpoint, for a connect-to-endpoint module.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy)]
pub struct ConnectParams {
    /// The size of this record.
    pub size: usize,
    /// The peer's endpoint address. The bytes come from the peer, so the callee checks every byte.
    pub address: *const u8,
    /// The length of `address`, in bytes.
    pub address_len: usize,
    /// The flags; none are defined yet.
    pub flags: u64,
}

/// The limits of one endpoint. The lower of the endpoint's and the module's limit applies; 0 means the module's limit.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointLimits {
    /// The size of this record, set by the caller.
    pub size: usize,
    /// The longest payload of am_short, in bytes.
    pub max_short: usize,
    /// The longest payload of am_packed, in bytes.
    pub max_packed: usize,
    /// The longest payload of am_zcopy, in bytes.
    pub max_zcopy: usize,
    /// The longest put, and put_notify, in bytes.
    pub max_put: usize,
    /// The longest get, in bytes.
    pub max_get: usize,
}

/// Packs a message. Returns the number of bytes written, or a negative status. The buffer is initialised memory (its content does
/// not matter), and belongs to the callback during the call.
pub type PackFn =
    Option<unsafe extern "C" fn(argument: *mut c_void, buffer: *mut u8, capacity: usize) -> i64>;

/// The functions of an endpoint. One thread at a time may call them: the thread of its interface.
///
/// Data calls return 0 (done), 1 (pending: an EVENT_COMPLETION with the cookie follows, with OP_NO_EVENT only after a failure) or a
/// negative status. `am_packed` returns a length instead of 0, and a call without a cookie is never pending.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy)]
pub struct EndpointOps {
    /// The size of this table as the provider compiled it.
    pub size: usize,
    /// Sends a message with a payload of at most `max_short` bytes, which are copied before the call returns.
    pub am_short: Option<
        unsafe extern "C" fn(
            endpoint: *mut EndpointHandle,
            id: u32,
            header: u64,
            payload: *const u8,
            len: usize,
        ) -> i32,
    >,
    /// Sends a message whose payload `pack` writes: at most `most` bytes. Returns the payload's length or a negative status.
    // abi_stable cannot inspect a function that takes a function: it compares the slot by name and size.
    #[cfg_attr(test, sabi(unsafe_opaque_field))]
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
    /// Reads remote memory. The borrowing rules are those of `put`.
    pub get: Option<unsafe extern "C" fn(endpoint: *mut EndpointHandle, op: *const Rma) -> i32>,
    /// Executes a remote atomic.
    pub atomic:
        Option<unsafe extern "C" fn(endpoint: *mut EndpointHandle, op: *const Atomic) -> i32>,
    /// Completes when puts, gets and atomics that were posted before are complete at the target, and messages are in a place where
    /// no event at their sender can lose them. A module that only has messages may return UNSUPPORTED if every accepted message
    /// already is in such a place.
    pub flush: Option<unsafe extern "C" fn(endpoint: *mut EndpointHandle, cookie: u64) -> i32>,
    /// Orders everything posted before on this endpoint, including messages, ahead of everything posted after. It does not wait.
    /// UNSUPPORTED: this lane cannot keep order. AGAIN: the lane cannot keep order at the moment. The core then waits for a flush.
    pub fence: Option<unsafe extern "C" fn(endpoint: *mut EndpointHandle) -> i32>,
    /// Closes the endpoint. Pending operations on the application's memory are dropped without an event; accepted messages are
    /// still delivered.
    pub close: Option<unsafe extern "C" fn(endpoint: *mut EndpointHandle)>,
    /// Makes a packed key usable on this endpoint. AGAIN: call again after progress.
    pub import_key: Option<
        unsafe extern "C" fn(
            endpoint: *mut EndpointHandle,
            params: *const ImportParams,
            out: *mut *mut KeyHandle,
        ) -> i32,
    >,
    /// Releases an imported key.
    pub drop_key: Option<unsafe extern "C" fn(endpoint: *mut EndpointHandle, key: *mut KeyHandle)>,
    /// Connect-to-endpoint modules: writes this endpoint's address, and returns its length. The peer may use the address before
    /// `connect` is called on this endpoint; the peer's messages are kept until that call.
    pub address: Option<
        unsafe extern "C" fn(
            endpoint: *mut EndpointHandle,
            buffer: *mut u8,
            capacity: usize,
        ) -> i64,
    >,
    /// Connect-to-endpoint modules: connects to the peer's endpoint address. The function does not wait: data calls return AGAIN
    /// until the connection is established. If that fails after the call, EVENT_ENDPOINT_FAILED reports it.
    pub connect: Option<
        unsafe extern "C" fn(endpoint: *mut EndpointHandle, params: *const ConnectParams) -> i32,
    >,
    /// CAP_PUT_NOTIFY: a put with a notification. The target gets EVENT_NOTIFIED with the low `notify_bits` of `word`. The event
    /// comes once, when all bytes of this put have arrived, and those of every put that this endpoint has posted before it. The put
    /// may be empty: length 0 only notifies, and its key is still not null.
    pub put_notify: Option<
        unsafe extern "C" fn(endpoint: *mut EndpointHandle, op: *const Rma, word: u32) -> i32,
    >,
    /// CAP_KEY_POINTER: returns the address at which `len` bytes from `offset` on are mapped in this process. Loads and stores at
    /// this address access the peer's memory. The mapping stays until the key is dropped. After the owner has ended its region, the
    /// mapping leads to memory without an owner, where loads and stores have no meaning; with CAP_DIES_WITH_OWNER they may end the
    /// process.
    pub key_pointer: Option<
        unsafe extern "C" fn(
            endpoint: *mut EndpointHandle,
            key: *mut KeyHandle,
            offset: u64,
            len: u64,
            out: *mut *mut u8,
        ) -> i32,
    >,
    /// CAP_CANCEL: requests that a pending operation ends soon. 0: its completion still comes, with CANCELED if no part of
    /// the operation has happened. INVALID: no operation with this cookie is pending.
    pub cancel: Option<unsafe extern "C" fn(endpoint: *mut EndpointHandle, cookie: u64) -> i32>,
    /// Writes the limits of this endpoint. The core calls it after `connect`, and again when a connection that was still being
    /// formed is established.
    pub limits: Option<
        unsafe extern "C" fn(endpoint: *mut EndpointHandle, out: *mut EndpointLimits) -> i32,
    >,
    /// CAP_RMA_LIST, since 1.1: takes parts of a list, from the first one on, and writes their number to `taken`: at least 1 for a
    /// result that is not negative. 0: the taken parts are done. 1: one EVENT_COMPLETION with the list's cookie follows for all of
    /// them; if it failed, `id` is the index of the first part that failed. A negative status is that of the first part, with the
    /// meaning that it has for `put` and `get`: no other part was begun, and `taken` is 0. The core calls again for the rest.
    pub rma_list: Option<
        unsafe extern "C" fn(
            endpoint: *mut EndpointHandle,
            list: *const RmaList,
            taken: *mut usize,
        ) -> i32,
    >,
}
