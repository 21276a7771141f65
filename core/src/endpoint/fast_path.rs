//! The fast paths of a key's operations, for cases without a choice.

use std::cell::Cell;
use std::ffi::c_void;
use tieline_host::abi::RawEndpoint;

/// The values that the fast path of an operation needs; every choice is made in advance.
pub(super) struct FastPath {
    pub(super) raw: Cell<RawEndpoint>,
    pub(super) key: Cell<*mut c_void>,
    /// The lengths below which puts and gets take the fast path; 0: none does.
    pub(super) put_below: Cell<usize>,
    pub(super) get_below: Cell<usize>,
    /// The length up to which puts use `short_put`; 0: none does.
    pub(super) short_puts: Cell<usize>,
    /// The lengths up to which puts and gets may use `direct`; 0: none does.
    pub(super) direct: [Cell<usize>; 2],
    pub(super) interface: Cell<usize>,
    pub(super) caps: Cell<u64>,
    /// Whether more lanes may still be found; while this path is open, these are slower ones. Providers are asked for them at
    /// intervals, so that a slower lane is ready when the present one ends.
    pub(super) asks: Cell<bool>,
    /// The bit of the fast path's lane; see `order`.
    pub(super) way: Cell<u64>,
    /// Whether one call takes many puts or gets of this path.
    pub(super) lists: Cell<bool>,
    /// The maximum number of pieces of local memory in one call.
    pub(super) max_iov: Cell<usize>,
    /// The bound below which the fast path delivers notification words; 0: none.
    pub(super) words: Cell<u64>,
    /// The masks of atomics by width, without and with a result.
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
            lists: Cell::new(false),
            max_iov: Cell::new(1),
            words: Cell::new(0),
            post: Cell::new([0; 2]),
            fetch: Cell::new([0; 2]),
        }
    }
}
