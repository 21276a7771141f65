//! The fast paths of a key's operations, for cases without a choice.

use crate::registry::abi::RawEndpoint;
use std::cell::Cell;
use std::ffi::c_void;

/// The values that the fast path of an operation needs, with all choices made before.
pub(super) struct FastPath {
    pub(super) raw: Cell<RawEndpoint>,
    pub(super) key: Cell<*mut c_void>,
    /// Puts and gets shorter than this take the fast path; 0: none does.
    pub(super) put_below: Cell<usize>,
    pub(super) get_below: Cell<usize>,
    /// Puts up to this length use `short_put`; 0: none does.
    pub(super) short_puts: Cell<usize>,
    /// Puts and gets up to these lengths may use `direct`; 0: none does.
    pub(super) direct: [Cell<usize>; 2],
    pub(super) interface: Cell<usize>,
    pub(super) caps: Cell<u64>,
    /// A slower lane may still be found. It is requested at intervals, so that it is ready when this one ends.
    pub(super) asks: Cell<bool>,
    /// The bit of its lane, see `order`.
    pub(super) way: Cell<u64>,
    /// The maximum number of pieces of local memory in one call.
    pub(super) max_iov: Cell<usize>,
    /// The fast path delivers only words below this one; 0: none.
    pub(super) words: Cell<u64>,
    /// Masks of atomics by width, without and with a result.
    pub(super) post: Cell<[u32; 2]>,
    pub(super) fetch: Cell<[u32; 2]>,
}

impl FastPath {
    pub(super) fn closed() -> FastPath {
        FastPath {
            raw: Cell::new(RawEndpoint::nowhere()),
            key: Cell::new(std::ptr::null_mut()),
            put_below: Cell::new(0),
            get_below: Cell::new(0),
            short_puts: Cell::new(0),
            direct: [const { Cell::new(0) }; 2],
            interface: Cell::new(0),
            caps: Cell::new(0),
            asks: Cell::new(false),
            way: Cell::new(0),
            max_iov: Cell::new(1),
            words: Cell::new(0),
            post: Cell::new([0; 2]),
            fetch: Cell::new([0; 2]),
        }
    }
}
