//! Completion queues. A queue never drops an entry: while it has more entries than its size, posts return `-FI_EAGAIN`.

use crate::abi::wait::Waiter;
use crate::domain::Domain;
use crate::status::Failed;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use tieline_libfabric_abi::FI_ADDR_NOTAVAIL;

/// The least number of entries at which posts are refused. Receives may complete without a limit, so the limit is a measure against
/// an application that never reads its queue.
const LEAST: usize = 1 << 16;

/// The failure that an entry reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub(crate) failed: Failed,
    /// The number of bytes of the message that had no room.
    pub(crate) excess: usize,
}

/// An entry of a completion queue. An entry of 64 bytes is copied faster than a longer one, and few entries report a failure.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// The context of the operation.
    pub(crate) context: usize,
    pub(crate) flags: u64,
    pub(crate) len: usize,
    pub(crate) buf: usize,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    /// The address of the sender in the vector.
    pub(crate) source: u64,
    pub(crate) failure: Option<Box<Failure>>,
}

impl Entry {
    /// Makes the entry of an operation that succeeded.
    #[inline]
    pub(crate) fn new(context: usize, flags: u64) -> Entry {
        Entry {
            context,
            flags,
            len: 0,
            buf: 0,
            data: 0,
            tag: 0,
            source: FI_ADDR_NOTAVAIL,
            failure: None,
        }
    }
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) domain: Rc<Domain>,
    pub(crate) format: i32,
    pub(crate) entries: RefCell<VecDeque<Entry>>,
    limit: usize,
    /// The number of reads without an entry until the domain looks whether the reads come seldom.
    pub(crate) until_look: Cell<u32>,
    /// The number of endpoints that are bound to the queue.
    pub(crate) users: Cell<usize>,
    /// The descriptor for waiting, once somebody has asked for it.
    pub(crate) waiter: OnceCell<Waiter>,
    /// `fi_cq_signal` was called, and no call that waits has seen it.
    pub(crate) signaled: AtomicBool,
}

impl Cq {
    pub(crate) fn new(domain: Rc<Domain>, format: i32, size: usize) -> Cq {
        Cq {
            domain,
            format,
            entries: RefCell::default(),
            limit: size.max(LEAST),
            until_look: Cell::new(1),
            users: Cell::new(0),
            waiter: OnceCell::new(),
            signaled: AtomicBool::new(false),
        }
    }

    /// Adds an entry.
    #[inline(always)] // an entry that is passed on is copied once more
    pub(crate) fn push(&self, entry: Entry) {
        self.entries.borrow_mut().push_back(entry);
        if let Some(waiter) = self.waiter.get() {
            waiter.wake();
        }
    }

    /// Checks whether posts have to wait until the application has read entries.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.entries.borrow().len() >= self.limit
    }

    /// Checks whether there is an entry.
    #[inline]
    pub(crate) fn has_entries(&self) -> bool {
        !self.entries.borrow().is_empty()
    }
}
