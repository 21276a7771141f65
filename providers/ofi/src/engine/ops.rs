//! What has been handed to the library and has not ended.

use super::channels::Imported;
use crate::contexts::Contexts;
use crate::memory::Loan;
use core::ffi::c_void;
use std::rc::Rc;

/// A put, get or atomic.
pub(super) struct Transfer {
    /// The channel that it was posted on, and its token: a later channel of the same number is another one.
    pub(super) channel: u32,
    pub(super) token: u64,
    /// Its place among the channel's.
    pub(super) number: u64,
    pub(super) generation: u64,
    pub(super) cookie: u64,
    pub(super) peer: usize,
    /// Where its bytes lie, if not in the application's memory, and where those of a get go then.
    pub(super) slot: Option<u32>,
    pub(super) back: Vec<(*mut u8, usize)>,
    /// Bytes of the value that an atomic fetches into its slot.
    pub(super) value: usize,
    /// Nobody hears of its end: what went wrong the next flush tells.
    pub(super) silent: bool,
    /// Registrations that it has borrowed.
    pub(super) _loans: Vec<Loan>,
    /// The key that it goes by, where that is mapped for as long as somebody has it.
    pub(super) _mapped: Option<Rc<Imported>>,
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
        /// It is the application's.
        message: bool,
    },
    Transfer(Transfer),
}

/// All of them. What the library holds of an operation is its context, which stays until the operation has ended.
#[derive(Default)]
pub(super) struct Ops {
    contexts: Contexts,
    works: Vec<Work>,
    free: Vec<u32>,
    /// Those that have ended since `free` was filled. They wait until all of that have been used: what the library tells twice comes
    /// before another operation has its context.
    ended: Vec<u32>,
}

impl Ops {
    pub(super) fn begin(&mut self, work: Work) -> (u32, *mut c_void) {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.next_round(),
        };
        self.works[index as usize] = work;
        (index, self.contexts.pointer(index))
    }

    /// Those that have ended are free now, the one that has been for longest first; where there is none, there are more.
    #[cold]
    fn next_round(&mut self) -> u32 {
        if self.ended.is_empty() {
            let first = self.works.len() as u32;
            let end = self.contexts.grow();
            self.works.resize_with(end as usize, || Work::Free);
            self.ended.extend(first..end);
        }
        core::mem::swap(&mut self.free, &mut self.ended);
        self.free.reverse();
        self.free.pop().unwrap_or_default()
    }

    /// The operation of a completion, which goes on: a receive buffer has many.
    #[inline]
    pub(super) fn of(&self, context: *mut c_void) -> Option<(u32, &Work)> {
        let index = self.contexts.index(context)?;
        Some((index, self.works.get(index as usize)?))
    }

    /// An operation has ended, or was not taken.
    pub(super) fn end(&mut self, index: u32) -> Work {
        let work = core::mem::replace(&mut self.works[index as usize], Work::Free);
        if !matches!(work, Work::Free) {
            self.ended.push(index);
        }
        work
    }

    pub(super) fn transfers(&self) -> impl Iterator<Item = &Transfer> {
        self.works.iter().filter_map(|work| match work {
            Work::Transfer(transfer) => Some(transfer),
            _ => None,
        })
    }

    /// Everything that is left, when the library has none of it any more.
    pub(super) fn take_transfers(&mut self) -> Vec<Transfer> {
        let indices: Vec<u32> = (0..self.works.len() as u32)
            .filter(|&index| matches!(self.works[index as usize], Work::Transfer(_)))
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
        self.works.iter()
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
