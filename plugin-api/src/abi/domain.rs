//! Domains: their attributes, their memory, and their modules.

use super::*;

/// The attributes of a domain.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct DomainAttr {
    /// The size of this record, set by the caller.
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

/// The parameters for opening a domain.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct DomainParams {
    /// The size of this record.
    pub size: usize,
    /// Name, as `query_domains` gave it.
    pub name: *const u8,
    /// Its length.
    pub name_len: usize,
    /// A number that is different for every context on the machine. A context that is opened again has another one.
    pub context_id: [u8; 16],
    /// None yet.
    pub flags: u64,
}

/// Overhead, latency and bandwidth of one class of operation.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// The time of the calling CPU, ns.
    pub overhead_ns: f64,
    /// Transit time, ns.
    pub latency_ns: f64,
    /// Bytes per second; 0 if the cost does not depend on the size.
    pub bytes_per_second: f64,
}

/// The attributes of a module.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct ModuleAttr {
    /// The size of this record, set by the caller.
    pub size: usize,
    /// Name within its domain, zero-padded: `rc`.
    pub name: [u8; 32],
    /// `TIELINE_ROLE_*`.
    pub role: u32,
    /// `TIELINE_CONNECTS_*`.
    pub connects: u32,
    /// `TIELINE_CAP_*`.
    pub caps: u64,
    /// Rank among the modules with the same capabilities. Higher comes first; a negative one is used only on request.
    pub priority: i32,
    /// Most entries of an iov.
    pub max_iov: u32,
    /// Longest payload of am_short, at least 8.
    pub max_short: usize,
    /// Longest payload of am_packed, at least 64.
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
    /// 32 bit, with the previous value.
    pub atomic_fetch32: u32,
    /// 64 bit, with the previous value.
    pub atomic_fetch64: u32,
    /// Cost by class: `TIELINE_COST_*`.
    pub cost: [Cost; 8],
    /// Longest interface (or connector) address.
    pub max_address_len: u32,
    /// Longest endpoint address; connect-to-endpoint only.
    pub max_endpoint_address_len: u32,
    /// Longest identity that connect can carry: at least 4096 if peers connect to the interface and it has messages.
    pub max_identity_len: u32,
    /// Connectors: longest datagram, at least 1024.
    pub max_datagram: u32,
    /// Connectors: 1 if datagrams arrive exactly once and in order while the peer lives, else 0.
    pub reliable: u32,
    /// The number of low bits of a word that `put_notify` carries, 1 to 32; 0 without CAP_PUT_NOTIFY.
    pub notify_bits: u32,
    /// Longest put whose bytes are copied before `put` returns. It applies to one piece of host memory without OP_MORE. Without
    /// OP_REMOTE_COMPLETION such a put returns 0, never 1. 0: none.
    pub max_short_put: usize,
}

/// A piece of memory of a domain.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct MemoryRegion {
    /// The size of this record, set by the caller.
    pub size: usize,
    /// The domain's handle, never null.
    pub handle: *mut RegionHandle,
    /// First byte.
    pub base: *mut u8,
    /// The length in bytes.
    pub len: usize,
}

/// A request for memory.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct AllocParams {
    /// The size of this record.
    pub size: usize,
    /// The length in bytes, never 0. The provided memory may be longer.
    pub len: usize,
    /// `TIELINE_ACCESS_*`.
    pub access: u64,
    /// `TIELINE_ALLOC_*`; none yet.
    pub flags: u64,
    /// `TIELINE_MEMORY_KIND_*`.
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
}

/// Memory to register.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct RegisterParams {
    /// The size of this record.
    pub size: usize,
    /// First byte. With REGISTER_DMABUF the processor must not access this address; pieces are still addressed relative to it.
    pub base: *mut u8,
    /// The length in bytes.
    pub len: usize,
    /// `TIELINE_ACCESS_*`; 0: only for local pieces.
    pub access: u64,
    /// `TIELINE_REGISTER_*`.
    pub flags: u64,
    /// `TIELINE_MEMORY_KIND_*`.
    pub kind: u32,
    /// REGISTER_DMABUF: the descriptor, borrowed for the call; else 0, and not looked at.
    pub dmabuf: i32,
    /// REGISTER_DMABUF: the offset of `base` in it.
    pub dmabuf_offset: u64,
}

/// A remote key to pack. If every field but the region is zero, the key covers the whole region with all of its rights.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct KeyParams {
    /// The size of this record.
    pub size: usize,
    /// The region.
    pub region: *mut RegionHandle,
    /// First byte of the region that the key covers. It is offset 0 of put, get and atomics with this key. A provider whose keys
    /// cover whole regions refuses others with `UNSUPPORTED`.
    pub offset: u64,
    /// Bytes that the key covers; 0: up to the region's end. A part that exceeds the region is `OUT_OF_RANGE`, and so is an
    /// operation with the key outside of the part.
    pub len: u64,
    /// The rights of the region that the key grants; 0: all of them. A right that the region does not have is `INVALID`.
    pub access: u64,
    /// None yet.
    pub flags: u64,
}

/// Functions of a domain. Any thread.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct DomainOps {
    /// The size of this table as the provider compiled it.
    pub size: usize,
    /// Closes the domain; everything opened from it was closed before.
    pub close: Option<unsafe extern "C" fn(domain: *mut DomainHandle)>,
    /// Lists modules, as `query_domains` lists domains.
    pub query_modules: Option<
        unsafe extern "C" fn(
            domain: *mut DomainHandle,
            out: *mut ModuleAttr,
            capacity: usize,
            count: *mut usize,
        ) -> i32,
    >,
    /// Opens a data-path module. The interface belongs to the calling thread's worker.
    pub open_interface: Option<
        unsafe extern "C" fn(
            domain: *mut DomainHandle,
            params: *const InterfaceParams,
            out: *mut *mut InterfaceHandle,
        ) -> i32,
    >,
    /// Opens a connection-only module.
    pub open_connector: Option<
        unsafe extern "C" fn(
            domain: *mut DomainHandle,
            params: *const InterfaceParams,
            out: *mut *mut ConnectorHandle,
        ) -> i32,
    >,
    /// Provides memory that this domain's peers reach best: zeroed, and it begins with a page.
    pub alloc: Option<
        unsafe extern "C" fn(
            domain: *mut DomainHandle,
            params: *const AllocParams,
            out: *mut MemoryRegion,
        ) -> i32,
    >,
    /// Registers memory of the process.
    pub register: Option<
        unsafe extern "C" fn(
            domain: *mut DomainHandle,
            params: *const RegisterParams,
            out: *mut MemoryRegion,
        ) -> i32,
    >,
    /// Ends a registration, and frees the memory if it came from alloc. Keys stop working immediately. `AGAIN`: keys are
    /// refused, but an access that began before is not complete. The region still exists, and the core calls again.
    pub deregister:
        Option<unsafe extern "C" fn(domain: *mut DomainHandle, region: *mut RegionHandle) -> i32>,
    /// Writes a region's remote key and returns its length, which is at most `max_key_len`.
    pub pack_key: Option<
        unsafe extern "C" fn(
            domain: *mut DomainHandle,
            params: *const KeyParams,
            buffer: *mut u8,
            capacity: usize,
        ) -> i64,
    >,
    /// Refuses every new access by a key of this region, as far as possible while the process itself still uses
    /// the registration. Returns 0, or `AGAIN` if an access that began before is not complete. The region stays, and
    /// `deregister` follows. The core may call this several times.
    pub revoke:
        Option<unsafe extern "C" fn(domain: *mut DomainHandle, region: *mut RegionHandle) -> i32>,
}
