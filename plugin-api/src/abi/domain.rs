//! Domains: their attributes, their memory, and their modules.

use super::*;

/// The attributes of a domain.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy, Debug)]
pub struct DomainAttr {
    /// The size of this record, set by the caller.
    pub size: usize,
    /// The domain's full name, zero-padded: `shm`, `verbs:mlx5_0`.
    pub name: [u8; 64],
    /// The memory capabilities, `TIELINE_MEMORY_CAP_*`.
    pub caps: u64,
    /// The length of the longest packed key, in bytes.
    pub max_key_len: u32,
    /// Zero, reserved.
    pub reserved: u32,
    /// The fixed cost of registering memory, in ns.
    pub register_ns: f64,
    /// The cost of registering per byte, in ns.
    pub register_ns_per_byte: f64,
}

/// The parameters for opening a domain.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy)]
pub struct DomainParams {
    /// The size of this record.
    pub size: usize,
    /// The domain's name, as `query_domains` returned it.
    pub name: *const u8,
    /// The length of `name`, in bytes.
    pub name_len: usize,
    /// A number that differs from that of every other context.
    pub context_id: [u8; 16],
    /// The flags; none are defined yet.
    pub flags: u64,
}

/// The overhead, latency and bandwidth of one class of operation.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// The time of the calling CPU, in ns.
    pub overhead_ns: f64,
    /// The transit time, in ns.
    pub latency_ns: f64,
    /// The bytes per second; 0 if the cost does not depend on the size.
    pub bytes_per_second: f64,
}

/// The attributes of a module.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy, Debug)]
pub struct ModuleAttr {
    /// The size of this record, set by the caller.
    pub size: usize,
    /// The module's name within its domain, zero-padded: `rc`.
    pub name: [u8; 32],
    /// The purpose of the module, `TIELINE_ROLE_*`.
    pub role: u32,
    /// The target of the module's connections, `TIELINE_CONNECTS_*`.
    pub connects: u32,
    /// The capabilities, `TIELINE_CAP_*`.
    pub caps: u64,
    /// The rank among the modules that reach a peer, unless the user sets another one. Higher ranks come first; a module with a
    /// negative rank is used only on request.
    pub priority: i32,
    /// The maximum number of entries of an iov.
    pub max_iov: u32,
    /// The longest payload of am_short in bytes, at least 8 with CAP_AM_SHORT.
    pub max_short: usize,
    /// The longest payload of am_packed in bytes, at least 64 with CAP_AM_PACKED.
    pub max_packed: usize,
    /// The longest payload of am_zcopy, in bytes.
    pub max_zcopy: usize,
    /// The longest put in bytes; 0 for no limit.
    pub max_put: usize,
    /// The longest get in bytes; 0 for no limit.
    pub max_get: usize,
    /// The mask of atomics of 32 bits without a result: `1 << TIELINE_ATOMIC_*`.
    pub atomic_post32: u32,
    /// The mask of atomics of 64 bits without a result.
    pub atomic_post64: u32,
    /// The mask of atomics of 32 bits with the previous value.
    pub atomic_fetch32: u32,
    /// The mask of atomics of 64 bits with the previous value.
    pub atomic_fetch64: u32,
    /// The cost by class: `TIELINE_COST_*`.
    pub cost: [Cost; 8],
    /// The longest interface (or connector) address, in bytes.
    pub max_address_len: u32,
    /// The longest endpoint address in bytes, for connect-to-endpoint modules.
    pub max_endpoint_address_len: u32,
    /// The longest identity that connect can carry, in bytes: at least 4096 if peers connect to the interface and the module has
    /// messages or CAP_PUT_NOTIFY.
    pub max_identity_len: u32,
    /// The longest datagram of a connector in bytes, at least 1024.
    pub max_datagram: u32,
    /// 1 if the datagrams of a connector arrive exactly once, and in order for each sender, while the connection holds; else 0.
    pub reliable: u32,
    /// The number of low bits of a word that `put_notify` carries, 1 to 32; 0 without CAP_PUT_NOTIFY.
    pub notify_bits: u32,
    /// The longest put in bytes whose data is copied before `put` returns. The limit applies to one piece of host memory without
    /// OP_MORE. Without OP_REMOTE_COMPLETION such a put returns 0, never 1. 0 for none.
    pub max_short_put: usize,
}

/// A piece of memory of a domain.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy)]
pub struct MemoryRegion {
    /// The size of this record, set by the caller.
    pub size: usize,
    /// The domain's handle of the region, never null.
    pub handle: *mut RegionHandle,
    /// The address of the first byte.
    pub base: *mut u8,
    /// The length in bytes.
    pub len: usize,
}

/// A request for memory.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy)]
pub struct AllocParams {
    /// The size of this record.
    pub size: usize,
    /// The length in bytes, never 0. The provided memory may be longer.
    pub len: usize,
    /// The access rights, `TIELINE_ACCESS_*`.
    pub access: u64,
    /// The flags, `TIELINE_ALLOC_*`; none are defined yet.
    pub flags: u64,
    /// The kind of memory, `TIELINE_MEMORY_KIND_*`.
    pub kind: u32,
    /// Zero, reserved.
    pub reserved: u32,
}

/// Memory to register.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy)]
pub struct RegisterParams {
    /// The size of this record.
    pub size: usize,
    /// The address of the first byte. With REGISTER_DMABUF the processor must not access this address; pieces are still addressed
    /// relative to it.
    pub base: *mut u8,
    /// The length in bytes.
    pub len: usize,
    /// The access rights, `TIELINE_ACCESS_*`; 0 for local pieces only.
    pub access: u64,
    /// The flags, `TIELINE_REGISTER_*`.
    pub flags: u64,
    /// The kind of memory, `TIELINE_MEMORY_KIND_*`.
    pub kind: u32,
    /// The descriptor of the DMA buffer with REGISTER_DMABUF, borrowed for the call; otherwise 0, and ignored.
    pub dmabuf: i32,
    /// The offset of `base` in the DMA buffer, with REGISTER_DMABUF.
    pub dmabuf_offset: u64,
}

/// A remote key to pack. If `offset`, `len` and `access` are zero, the key covers the whole region with all of its rights.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy)]
pub struct KeyParams {
    /// The size of this record.
    pub size: usize,
    /// The region that the key is for.
    pub region: *mut RegionHandle,
    /// The offset of the first byte of the region that the key covers. This byte is offset 0 of put, get and atomics with this key.
    /// A provider whose keys cover whole regions refuses an offset other than 0 with `UNSUPPORTED`.
    pub offset: u64,
    /// The number of bytes that the key covers; 0 for all up to the region's end. A part that exceeds the region is `OUT_OF_RANGE`,
    /// and so is an operation with the key outside of the part.
    pub len: u64,
    /// The rights of the region that the key grants; 0 for all of them. A right that the region does not have is `INVALID`.
    pub access: u64,
    /// The flags; none are defined yet.
    pub flags: u64,
}

/// The functions of a domain. Several threads may call them at the same time.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy)]
pub struct DomainOps {
    /// The size of this table as the provider compiled it.
    pub size: usize,
    /// Closes the domain. Everything opened from it was closed before, unless the provider has failed.
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
    /// Provides memory that this domain's peers reach best: zeroed, and page-aligned.
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
    /// Ends a registration, and frees the memory if it came from alloc. Keys stop working immediately. `AGAIN`: keys are refused,
    /// but an access that began before is not complete. The region still exists, and the core calls again. Any other error ends the
    /// region, and the core does not reuse its memory.
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
    /// Refuses every new access by a key of this region, as far as possible while the process itself still uses the registration.
    /// Returns 0, or `AGAIN` if an access that began before is not complete. The region stays, and `deregister` follows. The core
    /// may call this function several times.
    pub revoke:
        Option<unsafe extern "C" fn(domain: *mut DomainHandle, region: *mut RegionHandle) -> i32>,
}
