//! Empty records, names of a fixed size, and helpers for a provider's parameters.

use super::*;
use crate::{Failure, Status, memory_kind, register_flags};

/// Writes `text` zero-padded into a name of `N` bytes. A text of `N` bytes or more is truncated at a character boundary.
#[must_use]
pub const fn fixed<const N: usize>(text: &str) -> [u8; N] {
    let bytes = text.as_bytes();
    let mut end = if bytes.len() < N { bytes.len() } else { N - 1 };
    while end > 0 && end < bytes.len() && (bytes[end] & 0xc0) == 0x80 {
        end -= 1;
    }
    let mut out = [0; N];
    let mut i = 0;
    while i < end {
        out[i] = bytes[i];
        i += 1;
    }
    out
}

/// Reads a zero-padded name. Returns `None` if the name is not UTF-8.
#[must_use]
pub fn fixed_str(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    core::str::from_utf8(&bytes[..end]).ok()
}

macro_rules! zeroed_record {
    ($($type:ident),*) => { $(
        impl $type {
            /// Returns a record with every field zero, null or absent, and `size` set.
            #[must_use]
            pub const fn empty() -> $type {
                // SAFETY: the record is plain C (integers, floats, pointers, nullable functions), for which zero is valid.
                let mut record: $type = unsafe { core::mem::zeroed() };
                record.size = size_of::<$type>();
                record
            }
        }
    )* };
}
zeroed_record!(
    Host,
    ProviderOps,
    DomainOps,
    InterfaceOps,
    EndpointOps,
    ConnectorOps,
    Layouts,
    ConfigVar,
    ConfigValue,
    AsyncEvent,
    DomainAttr,
    DomainParams,
    ModuleAttr,
    MemoryRegion,
    AllocParams,
    RegisterParams,
    KeyParams,
    InterfaceParams,
    EndpointParams,
    ImportParams,
    ConnectParams,
    EndpointLimits,
    RmaList,
    WatchList,
    MemoryUse
);

impl Iov {
    /// Makes a piece without a region: any host memory.
    #[must_use]
    #[inline]
    pub const fn new(base: *mut u8, len: usize) -> Iov {
        Iov { base, len, region: core::ptr::null_mut() }
    }
}

impl Event {
    /// Returns an event with every field zero.
    #[must_use]
    pub const fn empty() -> Event {
        // SAFETY: the fields are integers and a raw pointer, for which zero is valid.
        unsafe { core::mem::zeroed() }
    }
}

fn unsupported(what: &str) -> Failure {
    Failure::new(Status::Unsupported, format!("{what} is not supported by this provider"))
}

impl AllocParams {
    /// Makes a request for host memory.
    #[must_use]
    pub const fn new(len: usize, access: u64) -> AllocParams {
        AllocParams { len, access, ..AllocParams::empty() }
    }

    /// Returns the number of bytes and the rights of a request for host memory.
    ///
    /// # Errors
    /// [`Status::Unsupported`] for any other kind.
    pub fn host_memory(&self) -> Result<(usize, u64), Failure> {
        match self.kind {
            memory_kind::HOST => Ok((self.len, self.access)),
            kind => Err(unsupported(&format!("memory of kind {kind}"))),
        }
    }

    /// Does the same as `host_memory`, of which this is the earlier name.
    ///
    /// # Errors
    /// As `host_memory`.
    #[deprecated(since = "0.2.0", note = "renamed to `host_memory`")]
    pub fn of_host(&self) -> Result<(usize, u64), Failure> {
        self.host_memory()
    }
}

impl RegisterParams {
    /// Makes parameters that name host memory.
    #[must_use]
    pub const fn new(base: *mut u8, len: usize, access: u64) -> RegisterParams {
        RegisterParams { base, len, access, ..RegisterParams::empty() }
    }

    /// Returns the first byte, the number of bytes and the rights of host memory that is given by its address.
    ///
    /// # Errors
    /// [`Status::Unsupported`] for any other kind, and for a DMA buffer.
    pub fn host_memory(&self) -> Result<(*mut u8, usize, u64), Failure> {
        match (self.kind, self.flags & register_flags::DMABUF) {
            (memory_kind::HOST, 0) => Ok((self.base, self.len, self.access)),
            (memory_kind::HOST, _) => Err(unsupported("a DMA buffer")),
            (kind, _) => Err(unsupported(&format!("memory of kind {kind}"))),
        }
    }

    /// Does the same as `host_memory`, of which this is the earlier name.
    ///
    /// # Errors
    /// As `host_memory`.
    #[deprecated(since = "0.2.0", note = "renamed to `host_memory`")]
    pub fn of_host(&self) -> Result<(*mut u8, usize, u64), Failure> {
        self.host_memory()
    }
}

impl KeyParams {
    /// Checks that the key covers its whole region, with all rights.
    ///
    /// # Errors
    /// [`Status::Unsupported`] if `offset`, `len` or `access` is not 0. The shims set them to 0 for a key to the whole region with
    /// all of its rights.
    pub fn whole(&self) -> Result<(), Failure> {
        if (self.offset, self.len, self.access) == (0, 0, 0) {
            return Ok(());
        }
        Err(unsupported("a key to a part of a region, or with a part of its rights,"))
    }
}
