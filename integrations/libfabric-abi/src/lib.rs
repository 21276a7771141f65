//! The records and constants of libfabric's interface, in the layout of API 1.17.
//!
//! The provider `ofi` uses libfabric by these records, and `integrations/libfabric` is a provider of libfabric by them.
//!
//! The records are written by hand from `rdma/*.h` of libfabric 1.17. With `layout_tests.rs` a C compiler compares every size,
//! offset and constant with the headers, if they are installed. Later versions only append to some records. Therefore the
//! attributes of queues and the records for their errors end with spare room (`spare`), which a newer library may use. That room
//! belongs to records that Tieline passes to a library: a provider of libfabric must not access it in records of its callers.

#![allow(non_camel_case_types)]
// The names are those of the headers; libfabric's manual pages describe them.
#![allow(missing_docs)]
// The functions have the many parameters that the headers give them.
#![allow(clippy::type_complexity)]

mod atomic;
mod attributes;
mod endpoint;
#[cfg(test)]
mod layout_tests;
pub(crate) mod numbers;
mod objects;
mod provider;
mod tables;

pub use atomic::*;
pub use attributes::*;
pub use endpoint::*;
pub use numbers::*;
pub use objects::*;
pub use provider::*;
pub use tables::*;

/// Encodes a version like `FI_VERSION(major, minor)`.
pub const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

/// The API version of these layouts, and the oldest library that is used.
pub const API: u32 = version(1, 17);

/// The size of an operation's context, which the library may write to until the operation completes.
pub const CONTEXT_LEN: usize = 64;
