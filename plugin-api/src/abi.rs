//! Everything that crosses the `.so` boundary: plain C records and tables of functions.
//!
//! The rules, which `docs/abi.md` explains with examples:
//!
//! * Every record and table begins with `size`, the size as its writer compiled it, and only grows at
//!   the end. The records of the data path ([`Event`], [`Iov`], [`Rma`], [`Atomic`]) have no size: they
//!   are frozen, and a changed one comes with a new slot.
//! * A slot never changes its type or meaning. Parameters: a short record is zero-filled, an unknown
//!   non-zero tail is `UNSUPPORTED_PARAM`. Attributes: the callee writes `min(size)`. Tables: extra
//!   slots are ignored, missing ones are replaced by stubs that return `UNSUPPORTED`.
//! * No bit-fields, no enums, no `bool`, no struct by value. Text is a pointer and a length, UTF-8,
//!   without a terminating zero; fixed-size names are zero-padded.
//! * Each side frees what it allocated. Pointers that are passed in are borrowed for the call.
//! * Functions of one interface and its endpoints are called by one thread at a time. Functions of a
//!   provider or a domain may be called by several threads at once.

#![allow(unsafe_code)] // abi_stable's derive implements an unsafe trait

#[doc(hidden)]
pub mod golden;
pub mod host;
pub mod layout;
mod records;
mod rights;
pub mod shims;

pub use records::{fixed, fixed_str};
pub use rights::raised_rights;

use abi_stable::StableAbi;
use core::ffi::c_void;

/// The major number: in the note, the directory and the entry symbol. Only equal majors work together.
pub const ABI_MAJOR: u16 = 1;
/// The minor number: what this version of the header added at the ends of records and tables.
pub const ABI_MINOR: u16 = 0;
/// The symbol that a provider exports.
pub const ENTRY_SYMBOL: &str = "tieline_provider_v1";
/// The owner name of the ELF note, with its zero.
pub const NOTE_OWNER: &[u8; 8] = b"tieline\0";
/// The type of the ELF note.
pub const NOTE_TYPE: u32 = 1;
/// The section that holds the ELF note.
pub const NOTE_SECTION: &str = ".note.tieline.provider";

/// What the ELF note says: a provider's identity, read from the file before any of its code runs.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoteDesc {
    /// Size of this record as the provider compiled it.
    pub desc_len: u16,
    /// Revision of the record: 1.
    pub note_rev: u16,
    /// ABI major that the provider was built for.
    pub abi_major: u16,
    /// ABI minor that the provider was built for.
    pub abi_minor: u16,
    /// The least minor of the core that it can work with.
    pub min_core_minor: u16,
    /// `TIELINE_NOTE_*`.
    pub flags: u16,
    /// Provider name, zero-padded: `verbs`.
    pub name: [u8; 32],
    /// Provider version, zero-padded, semver: `1.2.0`.
    pub version: [u8; 32],
}

/// What the host offers a provider. Stays valid for the life of the process.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct Host {
    /// Size of this table as the core compiled it.
    pub size: usize,
    /// The core's ABI major.
    pub abi_major: u32,
    /// The core's ABI minor.
    pub abi_minor: u32,
    /// Passed back as the first argument of every function below.
    pub context: *mut c_void,
    /// Log one line: `(context, TIELINE_LOG_*, text, length)`.
    pub log: Option<unsafe extern "C" fn(*mut c_void, u32, *const u8, usize)>,
    /// The value of a configuration variable: `(context, name, name length, buffer, capacity)` returns
    /// the value's length (which may exceed the capacity: nothing more than that is written), or
    /// `NO_DEVICE` when it is not set anywhere and has no default.
    pub config_get:
        Option<unsafe extern "C" fn(*mut c_void, *const u8, usize, *mut u8, usize) -> i64>,
    /// Nanoseconds of a clock that never goes backwards.
    pub clock_ns: Option<unsafe extern "C" fn(*mut c_void) -> u64>,
    /// Reports something that no call is waiting for, from any thread: `(context, status, text, length)`.
    pub async_event: Option<unsafe extern "C" fn(*mut c_void, i32, *const u8, usize)>,
    /// Page-aligned zeroed memory, for buffers of a provider that should be accounted to the context:
    /// `(context, length)`; null when there is none.
    pub pages_alloc: Option<unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void>,
    /// Gives memory of `pages_alloc` back: `(context, pointer, length)`.
    pub pages_free: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, usize)>,
}

/// The provider's table: written by the entry function.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct ProviderOps {
    /// In: the core's size. Out: the size as the provider compiled it.
    pub size: usize,
    /// The minor that the provider was compiled for.
    pub abi_minor: u32,
    /// Zero.
    pub reserved: u32,
    /// Passed back as the first argument of the functions below.
    pub state: *mut c_void,
    /// Lists domains: `(state, out, capacity, count)`. Writes up to `capacity` records, and to `count`
    /// how many there are. Each record's `size` is set by the caller.
    pub query_domains:
        Option<unsafe extern "C" fn(*mut c_void, *mut DomainAttr, usize, *mut usize) -> i32>,
    /// Opens a domain by name.
    pub open_domain:
        Option<unsafe extern "C" fn(*mut c_void, *const DomainParams, *mut *mut c_void) -> i32>,
    /// Lists the provider's configuration variables, like `query_domains`.
    pub query_config:
        Option<unsafe extern "C" fn(*mut c_void, *mut ConfigVar, usize, *mut usize) -> i32>,
    /// The calling thread's last error in words: `(state, buffer, capacity)` returns the length.
    pub last_error: Option<unsafe extern "C" fn(*mut c_void, *mut u8, usize) -> i64>,
    /// Stops threads and lets go of system resources. No other call follows. The code stays mapped.
    pub quiesce: Option<unsafe extern "C" fn(*mut c_void)>,
    /// Rust-built providers: the layouts of the ABI's types as the provider compiled them; otherwise null.
    pub layouts: Option<unsafe extern "C" fn(*mut c_void, *mut Layouts) -> i32>,
    /// The domain functions.
    pub domain: *const DomainOps,
    /// The interface functions; null when the provider has no data-path module.
    pub interface: *const InterfaceOps,
    /// The endpoint functions; null when the provider has no data-path module.
    pub endpoint: *const EndpointOps,
    /// The connector functions; null when the provider has no connection-only module.
    pub connector: *const ConnectorOps,
}

/// Where a Rust-built provider's abi_stable layouts lie. Compared only when `abi_stable` is the core's own version.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct Layouts {
    /// Size of this record.
    pub size: usize,
    /// The version of abi_stable, zero-padded text: `0.11`.
    pub abi_stable: [u8; 16],
    /// Array of `count` pointers to `abi_stable::type_layout::TypeLayout`.
    pub layouts: *const *const c_void,
    /// Length of the array.
    pub count: usize,
}

/// One configuration variable of a provider: the report, the docs and the check for unknown names use it.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct ConfigVar {
    /// Size of this record.
    pub size: usize,
    /// `TIELINE_SHM_FASTBOX_SIZE`.
    pub name: *const u8,
    /// Its length.
    pub name_len: usize,
    /// The default, as a user would write it: `4k`.
    pub default_value: *const u8,
    /// Its length.
    pub default_value_len: usize,
    /// What it does, in one sentence.
    pub doc: *const u8,
    /// Its length.
    pub doc_len: usize,
    /// `size`, `count`, `duration`, `bool`, `text` or `list`.
    pub kind: *const u8,
    /// Its length.
    pub kind_len: usize,
}

/// What a domain is.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct DomainAttr {
    /// Size of this record, set by the caller.
    pub size: usize,
    /// The domain's full name, zero-padded: `shm`, `verbs:mlx5_0`.
    pub name: [u8; 64],
    /// `TIELINE_MEMORY_CAP_*`.
    pub caps: u64,
    /// The longest packed key.
    pub max_key_len: u32,
    /// Zero.
    pub reserved: u32,
    /// Fixed cost of registering memory, ns.
    pub register_ns: f64,
    /// Cost of registering per byte, ns.
    pub register_ns_per_byte: f64,
}

/// How to open a domain.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct DomainParams {
    /// Size of this record.
    pub size: usize,
    /// Name, as `query_domains` gave it.
    pub name: *const u8,
    /// Its length.
    pub name_len: usize,
    /// A number that is different for every context on the machine, for telling lives apart.
    pub context_id: [u8; 16],
}

/// Overhead, latency and bandwidth of one class of operation.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Time of the calling CPU, ns.
    pub overhead_ns: f64,
    /// Time on the way, ns.
    pub latency_ns: f64,
    /// Bytes per second; 0 when size does not matter.
    pub bytes_per_second: f64,
}

/// What a module is and can do.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct ModuleAttr {
    /// Size of this record, set by the caller.
    pub size: usize,
    /// Name within its domain, zero-padded: `rc`.
    pub name: [u8; 32],
    /// `TIELINE_ROLE_*`.
    pub role: u32,
    /// `TIELINE_CONNECTS_*`.
    pub connects: u32,
    /// `TIELINE_CAP_*`.
    pub caps: u64,
    /// Rank among the modules that can do the same; higher first; negative: not used unless asked for.
    pub priority: i32,
    /// Most entries of an iov.
    pub max_iov: u32,
    /// Longest payload of am_short.
    pub max_short: usize,
    /// Longest payload of am_packed.
    pub max_packed: usize,
    /// Longest payload of am_zcopy.
    pub max_zcopy: usize,
    /// Longest put; 0: no limit.
    pub max_put: usize,
    /// Longest get; 0: no limit.
    pub max_get: usize,
    /// Masks of `1 << TIELINE_ATOMIC_*` without a result: 32 bit.
    pub atomic_post32: u32,
    /// 64 bit, without a result.
    pub atomic_post64: u32,
    /// 32 bit, with the value from before.
    pub atomic_fetch32: u32,
    /// 64 bit, with the value from before.
    pub atomic_fetch64: u32,
    /// Cost by class: `TIELINE_COST_*`.
    pub cost: [Cost; 5],
    /// Longest interface (or connector) address.
    pub max_address_len: u32,
    /// Longest endpoint address; connect-to-endpoint only.
    pub max_endpoint_address_len: u32,
    /// Longest identity that connect can carry.
    pub max_identity_len: u32,
    /// Connectors: longest datagram.
    pub max_datagram: u32,
    /// Connectors: 1 if datagrams arrive exactly once and in order while the peer lives.
    pub reliable: u32,
    /// Zero.
    pub reserved: u32,
}

/// A piece of memory that a domain knows.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct MemoryRegion {
    /// Size of this record, set by the caller.
    pub size: usize,
    /// The domain's handle.
    pub handle: *mut c_void,
    /// First byte.
    pub base: *mut u8,
    /// Length in bytes.
    pub len: usize,
}

/// Functions of a domain. Any thread.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct DomainOps {
    /// Size of this table as the provider compiled it.
    pub size: usize,
    /// Closes the domain; everything opened from it is closed already.
    pub close: Option<unsafe extern "C" fn(*mut c_void)>,
    /// Lists modules: `(domain, out, capacity, count)`.
    pub query_modules:
        Option<unsafe extern "C" fn(*mut c_void, *mut ModuleAttr, usize, *mut usize) -> i32>,
    /// Opens a data-path module. The interface belongs to the calling thread's worker.
    pub open_interface:
        Option<unsafe extern "C" fn(*mut c_void, *const InterfaceParams, *mut *mut c_void) -> i32>,
    /// Opens a connection-only module.
    pub open_connector:
        Option<unsafe extern "C" fn(*mut c_void, *const InterfaceParams, *mut *mut c_void) -> i32>,
    /// Provides memory that this domain's peers reach best: `(domain, length, access, out)`.
    pub alloc: Option<unsafe extern "C" fn(*mut c_void, usize, u64, *mut MemoryRegion) -> i32>,
    /// Registers memory of the process: `(domain, base, length, access, out)`.
    pub register:
        Option<unsafe extern "C" fn(*mut c_void, *mut u8, usize, u64, *mut MemoryRegion) -> i32>,
    /// Ends a registration, and frees the memory if it came from alloc. Keys stop working at once. `AGAIN`: keys are
    /// refused from now on, but an access that began before is not through; the region is still there: call again.
    pub deregister: Option<unsafe extern "C" fn(*mut c_void, *mut c_void) -> i32>,
    /// Writes a region's remote key: `(domain, region, buffer, capacity)` returns its length.
    pub pack_key: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, *mut u8, usize) -> i64>,
    /// Refuses every new access by a key of this region, as far as that can be done while the process itself still uses
    /// the registration: 0, or `AGAIN` when an access that began before is not through. The region stays, and
    /// `deregister` follows; the core may call this several times.
    pub revoke: Option<unsafe extern "C" fn(*mut c_void, *mut c_void) -> i32>,
}

/// How to open an interface or a connector.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct InterfaceParams {
    /// Size of this record.
    pub size: usize,
    /// Module name within the domain.
    pub module: *const u8,
    /// Its length.
    pub module_len: usize,
    /// The worker's number, different for every worker of every context.
    pub worker_id: [u8; 16],
}

/// How to make an endpoint.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct EndpointParams {
    /// Size of this record.
    pub size: usize,
    /// Connect-to-interface: the peer's interface address; connect-to-endpoint: null.
    pub address: *const u8,
    /// Its length.
    pub address_len: usize,
    /// Who we are: handed to the peer in EVENT_PEER_ARRIVED.
    pub identity: *const u8,
    /// Its length.
    pub identity_len: usize,
    /// Comes back in EVENT_ENDPOINT_FAILED.
    pub cookie: u64,
}

/// What `poll` writes: 64 bytes, frozen. Which fields count depends on `kind`.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct Event {
    /// `TIELINE_EVENT_*`.
    pub kind: u32,
    /// Message id.
    pub id: u32,
    /// 0 or a negative status.
    pub status: i32,
    /// `TIELINE_EVENT_FLAG_*`.
    pub flags: u32,
    /// The sender's number on this interface.
    pub peer: u64,
    /// Message header, or fetched value.
    pub header: u64,
    /// Payload: valid until the next poll or close of this interface.
    pub data: *const u8,
    /// Its length.
    pub len: usize,
    /// The operation's or endpoint's cookie, or the number to release a lent buffer with.
    pub cookie: u64,
    /// Zero.
    pub reserved: u64,
}

/// Functions of an interface. One thread at a time.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct InterfaceOps {
    /// Size of this table as the provider compiled it.
    pub size: usize,
    /// Progress: writes up to `max` events and returns how many, or a negative status. What the events
    /// of the call before pointed to is released by this call.
    pub poll: Option<unsafe extern "C" fn(*mut c_void, *mut Event, u32) -> i64>,
    /// Closes the interface; its endpoints are closed already.
    pub close: Option<unsafe extern "C" fn(*mut c_void)>,
    /// Writes the interface's address: `(interface, buffer, capacity)` returns its length.
    pub address: Option<unsafe extern "C" fn(*mut c_void, *mut u8, usize) -> i64>,
    /// Can a peer with this address be reached? `(interface, address, length, reason, reason capacity)`:
    /// 0, or a negative status with the reason in words.
    pub reachable:
        Option<unsafe extern "C" fn(*mut c_void, *const u8, usize, *mut u8, usize) -> i32>,
    /// Makes an endpoint. Connect-to-interface: it is usable at once, or `am_*` says AGAIN until it is.
    /// Connect-to-endpoint: no address and no identity; `peer` of every message that arrives on it is its cookie.
    pub connect:
        Option<unsafe extern "C" fn(*mut c_void, *const EndpointParams, *mut *mut c_void) -> i32>,
    /// Prepares to sleep: 0 means that `event_fd` becomes readable on the next event; 1 that there is
    /// something to poll right now.
    pub arm: Option<unsafe extern "C" fn(*mut c_void) -> i32>,
    /// A descriptor for poll(2) or epoll, or a negative status.
    pub event_fd: Option<unsafe extern "C" fn(*mut c_void) -> i32>,
    /// Gives a lent payload back.
    pub release: Option<unsafe extern "C" fn(*mut c_void, u64)>,
    /// Memory held by the interface and its endpoints.
    pub memory: Option<unsafe extern "C" fn(*mut c_void, *mut MemoryUse) -> i32>,
    /// Ends what a peer has towards us, by the number that its messages carry: nothing more of it comes, its endpoint
    /// fails, and a later one of the same peer is a new connection. The core calls it when it cannot answer a peer that
    /// would wait for ever; of modules that connect to an endpoint it closes the endpoint instead.
    pub hang_up: Option<unsafe extern "C" fn(*mut c_void, u64) -> i32>,
}

/// Memory that an interface holds.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug, Default)]
pub struct MemoryUse {
    /// Size of this record, set by the caller.
    pub size: usize,
    /// Bytes that do not depend on the number of peers.
    pub base_bytes: u64,
    /// Bytes for all peers together.
    pub peer_bytes: u64,
    /// Peers that these bytes are for.
    pub peers: u64,
    /// Bytes of message buffers that have been committed.
    pub buffer_bytes: u64,
}

/// One piece of a gathered buffer.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct Iov {
    /// First byte.
    pub base: *mut u8,
    /// Length in bytes.
    pub len: usize,
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
    /// The key, from `import_key` on the same endpoint.
    pub key: *mut c_void,
    /// Offset into the remote region.
    pub offset: u64,
    /// Comes back in EVENT_COMPLETION when the call returned PENDING.
    pub cookie: u64,
    /// `TIELINE_OP_*`.
    pub flags: u64,
    /// The local region that the pieces lie in, or null.
    pub local_region: *mut c_void,
}

/// A remote atomic: frozen.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct Atomic {
    /// `TIELINE_ATOMIC_*`.
    pub op: u32,
    /// 4 or 8 bytes.
    pub width: u32,
    /// The key, from `import_key` on the same endpoint.
    pub key: *mut c_void,
    /// Offset into the remote region, a multiple of the width.
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

/// Packs a message: `(argument, buffer, capacity)` returns how many bytes were written, or a negative status.
/// The buffer is initialised memory (its content does not matter), the callback's alone during the call.
pub type PackFn = Option<unsafe extern "C" fn(*mut c_void, *mut u8, usize) -> i64>;

/// Functions of an endpoint. One thread at a time, the interface's.
///
/// Data calls return 0 (done), 1 (pending: an EVENT_COMPLETION with the cookie follows) or a negative status.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct EndpointOps {
    /// Size of this table as the provider compiled it.
    pub size: usize,
    /// `(endpoint, id, header, payload, length)`.
    pub am_short: Option<unsafe extern "C" fn(*mut c_void, u32, u64, *const u8, usize) -> i32>,
    /// `(endpoint, id, header, pack, argument, most bytes)` returns the packed length or a negative status.
    // abi_stable cannot look inside a function that takes a function: the slot is compared by name and size.
    #[sabi(unsafe_opaque_field)]
    pub am_packed:
        Option<unsafe extern "C" fn(*mut c_void, u32, u64, PackFn, *mut c_void, usize) -> i64>,
    /// `(endpoint, id, header, iov, count, cookie)`.
    pub am_zcopy:
        Option<unsafe extern "C" fn(*mut c_void, u32, u64, *const Iov, usize, u64) -> i32>,
    /// Writes remote memory.
    pub put: Option<unsafe extern "C" fn(*mut c_void, *const Rma) -> i32>,
    /// Reads remote memory.
    pub get: Option<unsafe extern "C" fn(*mut c_void, *const Rma) -> i32>,
    /// Does a remote atomic.
    pub atomic: Option<unsafe extern "C" fn(*mut c_void, *const Atomic) -> i32>,
    /// `(endpoint, cookie)`: completes when all that was posted before is complete at the target.
    pub flush: Option<unsafe extern "C" fn(*mut c_void, u64) -> i32>,
    /// Orders what was posted before ahead of what is posted after.
    pub fence: Option<unsafe extern "C" fn(*mut c_void) -> i32>,
    /// Closes the endpoint. Pending operations are dropped without an event.
    pub close: Option<unsafe extern "C" fn(*mut c_void)>,
    /// Makes a packed key usable on this endpoint: `(endpoint, bytes, length, out)`. AGAIN: ask again after progress.
    pub import_key:
        Option<unsafe extern "C" fn(*mut c_void, *const u8, usize, *mut *mut c_void) -> i32>,
    /// Lets go of an imported key.
    pub drop_key: Option<unsafe extern "C" fn(*mut c_void, *mut c_void)>,
    /// Connect-to-endpoint: writes this endpoint's address: returns its length. The peer may use it before
    /// `connect` is called here; what it sends then is kept until that call.
    pub address: Option<unsafe extern "C" fn(*mut c_void, *mut u8, usize) -> i64>,
    /// Connect-to-endpoint: the peer's endpoint address. Does not wait: data calls return AGAIN until the
    /// connection stands; one that never does ends in EVENT_ENDPOINT_FAILED.
    pub connect: Option<unsafe extern "C" fn(*mut c_void, *const u8, usize) -> i32>,
}

/// Functions of a connector: datagrams that form connections, and nothing else. One thread at a time.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct ConnectorOps {
    /// Size of this table as the provider compiled it.
    pub size: usize,
    /// Progress: EVENT_DATAGRAM, and EVENT_PEER_LEFT when an address given to `send` cannot be reached or the
    /// way to it broke: `header` is the address's FNV-1a hash (64 bit), data the reason in words. Datagrams sent
    /// before may then be lost; sending again tries again. See `InterfaceOps::poll`.
    pub poll: Option<unsafe extern "C" fn(*mut c_void, *mut Event, u32) -> i64>,
    /// Closes the connector.
    pub close: Option<unsafe extern "C" fn(*mut c_void)>,
    /// Writes the connector's address: returns its length.
    pub address: Option<unsafe extern "C" fn(*mut c_void, *mut u8, usize) -> i64>,
    /// Can that address be reached? Like `InterfaceOps::reachable`.
    pub reachable:
        Option<unsafe extern "C" fn(*mut c_void, *const u8, usize, *mut u8, usize) -> i32>,
    /// `(connector, address, address length, datagram, length)`: 0, AGAIN or another negative status.
    pub send: Option<unsafe extern "C" fn(*mut c_void, *const u8, usize, *const u8, usize) -> i32>,
    /// Prepares to sleep, like `InterfaceOps::arm`.
    pub arm: Option<unsafe extern "C" fn(*mut c_void) -> i32>,
    /// A descriptor to wait on, or a negative status.
    pub event_fd: Option<unsafe extern "C" fn(*mut c_void) -> i32>,
}

/// The type of `tieline_provider_v1`: fills `out`, whose `size` the core has set; 0 or a negative status.
/// On failure the text goes to `host->async_event`.
pub type EntryFn = unsafe extern "C" fn(host: *const Host, out: *mut ProviderOps) -> i32;
