//! Queued operations of an endpoint.

use super::queued::QueuedOp;
use std::cell::{Cell, Ref, RefCell};
use std::collections::VecDeque;

/// Queued operations, in order, with the number of bytes that were copied for them. An operation that is removed to be attempted
/// is not counted meanwhile. No borrow lasts while a packer of the application runs or an operation is dropped.
#[derive(Default)]
pub(super) struct Backlog {
    entries: RefCell<VecDeque<QueuedOp>>,
    bytes: Cell<usize>,
}

impl Backlog {
    pub(super) fn entries(&self) -> Ref<'_, VecDeque<QueuedOp>> {
        self.entries.borrow()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.borrow().len()
    }

    /// Returns the number of operations; `None` while they are borrowed for a change.
    #[inline(always)] // every put before the first message passes this check
    pub(super) fn try_len(&self) -> Option<usize> {
        self.entries.try_borrow().ok().map(|entries| entries.len())
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    pub(super) fn push_back(&self, op: QueuedOp) {
        self.bytes.set(self.bytes.get() + op.copied());
        self.entries.borrow_mut().push_back(op);
    }

    pub(super) fn push_front(&self, op: QueuedOp) {
        self.bytes.set(self.bytes.get() + op.copied());
        self.entries.borrow_mut().push_front(op);
    }

    pub(super) fn pop_front(&self) -> Option<QueuedOp> {
        self.remove(|_| true)
    }

    /// Removes the first operation that fits.
    pub(super) fn remove(&self, fits: impl Fn(&QueuedOp) -> bool) -> Option<QueuedOp> {
        let mut entries = self.entries.borrow_mut();
        let at = entries.iter().position(fits)?;
        let op = entries.remove(at)?;
        self.bytes.set(self.bytes.get() - op.copied());
        Some(op)
    }

    /// Removes all operations.
    pub(super) fn take(&self) -> VecDeque<QueuedOp> {
        let entries = self.entries.take();
        entries.iter().for_each(|op| self.discount(op.copied()));
        entries
    }

    /// Counts the copied bytes of an operation that is queued later.
    pub(super) fn count_ahead(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() + bytes);
    }

    /// Ends a count of [`Backlog::count_ahead`].
    pub(super) fn discount(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() - bytes);
    }

    /// Changes each operation, but not its copied bytes.
    pub(super) fn change(&self, change: impl FnMut(&mut QueuedOp)) {
        self.entries.borrow_mut().iter_mut().for_each(change);
    }
}
