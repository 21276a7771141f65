//! The polls of an interface that only read its completion queue.

use super::{Cq, WC_BATCH, Wc};
use crate::abi::{ibv_cq, ibv_wc};
use core::cell::{Cell, OnceCell};
use core::ffi::c_int;
use core::ptr;
use std::rc::Rc;

/// The array for one batch of completions.
pub(crate) type Batch = Box<[Wc; WC_BATCH]>;

/// The result of a poll while the device's library is still in it.
const READING: c_int = c_int::MIN;

/// The polls of an interface that only read its completion queue. They need no borrow of the interface's state. One call at a time
/// uses this object, except for a signal handler that calls `exit` and so interrupts [`QuietPolls::poll`]. The library may then hold
/// the lock of the queue, so [`QuietPolls::is_reading`] keeps the calls of that handler from the device.
pub(crate) struct QuietPolls {
    /// The number of next polls that only read the queue; 0: the next poll does everything.
    left: Cell<u32>,
    /// The result of the last poll that the interface has not processed, or [`READING`].
    read: Cell<c_int>,
    /// The function and the queue, and what keeps the queue.
    poll: Cell<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    queue: Cell<*mut ibv_cq>,
    cq: OnceCell<Rc<Cq>>,
    /// `None` while the interface processes a batch.
    batch: Cell<Option<Batch>>,
}

unsafe extern "C" fn poll_nothing(_: *mut ibv_cq, _: c_int, _: *mut ibv_wc) -> c_int {
    0
}

impl QuietPolls {
    pub(crate) fn new() -> QuietPolls {
        QuietPolls {
            left: Cell::new(0),
            read: Cell::new(0),
            poll: Cell::new(poll_nothing),
            queue: Cell::new(ptr::null_mut()),
            cq: OnceCell::new(),
            batch: Cell::new(Some(Box::new([Wc::default(); WC_BATCH]))),
        }
    }

    /// Sets the queue, once. Before, there are no completions.
    pub(crate) fn open(&self, cq: Rc<Cq>) {
        if self.cq.set(cq.clone()).is_ok() {
            // SAFETY: the queue is live, and `cq` keeps it so; its context has the function.
            self.poll.set(unsafe { (*cq.raw.as_ref().context).ops.poll_cq });
            self.queue.set(cq.raw.as_ptr());
        }
    }

    /// Returns the number of next polls that only read the queue.
    #[inline]
    pub(crate) fn left(&self) -> u32 {
        self.left.get()
    }

    #[inline]
    pub(crate) fn set_left(&self, polls: u32) {
        self.left.set(polls);
    }

    /// Makes a poll that only reads the queue, if it is its turn. Returns whether the queue was empty.
    #[inline(always)]
    pub(crate) fn poll(&self) -> bool {
        let left = self.left.get();
        if left == 0 {
            return false;
        }
        self.left.set(left - 1);
        self.read.set(READING);
        let read = self.fetch();
        self.read.set(read);
        read == 0
    }

    /// Checks whether the caller has interrupted [`QuietPolls::poll`].
    #[inline(always)]
    pub(crate) fn is_reading(&self) -> bool {
        self.read.get() == READING
    }

    /// Returns the result of [`QuietPolls::poll`], once.
    #[inline]
    pub(crate) fn take_read(&self) -> c_int {
        self.read.replace(0)
    }

    /// Reads a batch, and returns the device's result. A negative value means that the queue cannot be polled any more.
    #[inline(always)]
    pub(crate) fn fetch(&self) -> c_int {
        // SAFETY: one call at a time uses the array, which is borrowed for this one only.
        let Some(batch) = (unsafe { &mut *self.batch.as_ptr() }) else { return 0 };
        // SAFETY: the function belongs to the queue, or needs none. It writes no more records than the array takes.
        unsafe { self.poll.get()(self.queue.get(), WC_BATCH as c_int, batch.as_mut_ptr()) }
    }

    /// Takes the array for the processing of its completions. `None`: it is taken already.
    pub(crate) fn take_batch(&self) -> Option<Batch> {
        self.batch.take()
    }

    /// Returns the array after the processing.
    pub(crate) fn give_batch(&self, batch: Batch) {
        self.batch.set(Some(batch));
    }

    /// Checks whether the array is in use: the interface processes a batch, or the caller has interrupted [`QuietPolls::poll`].
    pub(crate) fn is_in_use(&self) -> bool {
        if self.is_reading() {
            return true;
        }
        let batch = self.batch.take();
        let is_taken = batch.is_none();
        self.batch.set(batch);
        is_taken
    }
}
