//! Records that say nothing yet, and names of a fixed size.

use super::*;

/// Writes `text` zero-padded into a fixed-size name; what does not fit is cut at a character boundary.
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

/// Reads a zero-padded name; `None` when it is not UTF-8.
#[must_use]
pub fn fixed_str(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    core::str::from_utf8(&bytes[..end]).ok()
}

macro_rules! zeroed_record {
    ($($type:ident),*) => { $(
        impl $type {
            /// A record with every field zero, null or absent, and `size` set.
            #[must_use]
            pub const fn empty() -> $type {
                // SAFETY: the record is plain C (integers, floats, pointers, nullable functions): zero is a value of each.
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
    DomainAttr,
    DomainParams,
    ModuleAttr,
    MemoryRegion,
    InterfaceParams,
    EndpointParams,
    MemoryUse
);

impl Event {
    /// An event with every field zero.
    #[must_use]
    pub const fn empty() -> Event {
        // SAFETY: integers and a raw pointer: zero is a value of each.
        unsafe { core::mem::zeroed() }
    }
}
