//! Operations that the library holds and that have not completed.

use super::channels::Imported;
use crate::contexts::Contexts;
use crate::memory::Loan;
use core::ffi::c_void;
use std::rc::Rc;

/// A put, get or atomic.
pub(super) struct Transfer {
    pub(super) cookie: u64,
    /// The position among the channel's transfers.
    pub(super) number: u64,
    pub(super) generation: u64,
    /// The channel on which the transfer was posted; it stays until its transfers have ended.
    pub(super) channel: u32,
    /// The slot that holds the transfer's bytes, if they are not in the application's memory.
    pub(super) slot: Option<u32>,
    /// The size in bytes of the value that an atomic fetches into its slot.
    pub(super) value: u8,
    /// Whether the transfer reports no completion; the next flush reports a failure.
    pub(super) silent: bool,
    pub(super) kept: Option<Box<Kept>>,
}

/// What only some transfers need until they complete.
#[derive(Default)]
pub(super) struct Kept {
    /// The target pieces of a get whose bytes arrive in its slot.
    pub(super) back: Vec<(*mut u8, usize)>,
    /// The transient registrations.
    pub(super) _loans: Vec<Loan>,
    /// The mapped key that the transfer uses. The mapping lasts while any holder exists.
    pub(super) mapped: Option<Rc<Imported>>,
}

/// One operation.
pub(super) enum Work {
    Free,
    /// A receive buffer.
    Receive(usize),
    /// A packet, in a slot, to a peer.
    Send {
        peer: usize,
        slot: u32,
        /// Whether the packet is a message of the application.
        message: bool,
    },
    Transfer(Transfer),
}

/// All operations. The library identifies an operation by its context, which remains valid until the operation has completed.
#[derive(Default)]
pub(super) struct Ops {
    contexts: Contexts,
    /// Each operation, with its context.
    works: Vec<(Work, *mut c_void)>,
    free: Vec<u32>,
    /// The contexts that were released since `free` was filled. They are not reused before `free` is empty, so a duplicate
    /// completion most likely arrives before its context belongs to another operation.
    ended: Vec<u32>,
}

impl Ops {
    #[inline(always)]
    pub(super) fn begin(&mut self, work: Work) -> (u32, *mut c_void) {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.next_round(),
        };
        let place = &mut self.works[index as usize];
        place.0 = work;
        (index, place.1)
    }

    /// Makes the released contexts available, the earliest released first. Adds contexts if there are none.
    #[cold]
    fn next_round(&mut self) -> u32 {
        if self.ended.is_empty() {
            let first = self.works.len() as u32;
            let end = self.contexts.grow();
            let contexts = (first..end).map(|index| (Work::Free, self.contexts.pointer(index)));
            self.works.extend(contexts);
            self.ended.extend(first..end);
        }
        core::mem::swap(&mut self.free, &mut self.ended);
        self.free.reverse();
        self.free.pop().unwrap_or_default()
    }

    /// Looks up the operation of a completion without ending it: a receive buffer has many completions.
    #[inline]
    pub(super) fn of(&self, context: *mut c_void) -> Option<(u32, &Work)> {
        let index = self.contexts.index(context)?;
        Some((index, &self.works.get(index as usize)?.0))
    }

    /// Ends an operation that has completed or was not accepted.
    #[inline]
    pub(super) fn end(&mut self, index: u32) -> Work {
        let work = core::mem::replace(&mut self.works[index as usize].0, Work::Free);
        if !matches!(work, Work::Free) {
            self.ended.push(index);
        }
        work
    }

    pub(super) fn transfers(&self) -> impl Iterator<Item = &Transfer> {
        self.works.iter().filter_map(|place| match &place.0 {
            Work::Transfer(transfer) => Some(transfer),
            _ => None,
        })
    }

    /// Takes all remaining transfers. The caller has closed the library's endpoint before, or the library has refused.
    pub(super) fn take_transfers(&mut self) -> Vec<Transfer> {
        let indices: Vec<u32> = (0..self.works.len() as u32)
            .filter(|&index| matches!(self.works[index as usize].0, Work::Transfer(_)))
            .collect();
        let end = |index| match self.end(index) {
            Work::Transfer(transfer) => Some(transfer),
            _ => None,
        };
        indices.into_iter().filter_map(end).collect()
    }
}

#[cfg(test)]
impl Ops {
    pub(super) fn works(&self) -> impl Iterator<Item = &Work> {
        self.works.iter().map(|place| &place.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_stays_where_it_is_and_is_used_again_only_behind_its_end() {
        let mut ops = Ops::default();
        let posted: Vec<_> = (0..200).map(|n| ops.begin(Work::Receive(n))).collect();
        for (n, (index, context)) in posted.iter().enumerate() {
            let (found, work) = ops.of(*context).unwrap();
            assert!(found == *index && matches!(work, Work::Receive(m) if *m == n));
        }
        let (index, context) = posted[17];
        assert!(matches!(ops.end(index), Work::Receive(17)));
        assert!(matches!(ops.of(context), Some((_, Work::Free))));
        assert!(matches!(ops.end(index), Work::Free), "it ends once");
        assert!(ops.of(core::ptr::null_mut()).is_none(), "the library's own");
        let again: Vec<_> = (0..448 - 200 + 1).map(|n| ops.begin(Work::Receive(n))).collect();
        assert_eq!(again.last(), Some(&(index, context)), "those that were never used come first");
        assert!(again[..248].iter().all(|other| other.0 >= 200));
    }
}
