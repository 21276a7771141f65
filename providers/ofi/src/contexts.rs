//! The contexts by which the library refers to pending operations.

use crate::abi::CONTEXT_LEN;
use core::ffi::c_void;
use core::ptr;

/// The context that an operation passes to the library: memory at a fixed address, reserved for the library's use.
type Context = [u64; CONTEXT_LEN / 8];

/// The contexts, many in one allocation. Each allocation is twice as large as the one before, so a lookup searches few allocations.
///
/// A context that the library returns is looked up and never dereferenced. If `ofi_rxm` cannot continue a receive, it reports its
/// own context instead of one from this list (source: rxm_cq.c, rxm_rndv_read).
#[derive(Default)]
pub(crate) struct Contexts(Vec<Box<[Context]>>);

const FIRST: usize = 64;

/// Returns the number of contexts in the allocations before this one.
fn before(chunk: usize) -> usize {
    FIRST * ((1 << chunk) - 1)
}

impl Contexts {
    /// Adds an allocation; returns the new number of contexts.
    pub(crate) fn grow(&mut self) -> u32 {
        let chunk = self.0.len();
        self.0.push(vec![[0; CONTEXT_LEN / 8]; FIRST << chunk].into_boxed_slice());
        before(chunk + 1) as u32
    }

    pub(crate) fn pointer(&mut self, index: u32) -> *mut c_void {
        let chunk = (index as usize / FIRST + 1).ilog2() as usize;
        ptr::from_mut(&mut self.0[chunk][index as usize - before(chunk)]).cast()
    }

    /// Returns the index of this context, or `None` if the context is not in this list.
    #[inline]
    pub(crate) fn index(&self, context: *mut c_void) -> Option<u32> {
        let mut before = 0;
        for contexts in &self.0 {
            let at = context.addr().wrapping_sub(contexts.as_ptr().addr());
            if at < contexts.len() * CONTEXT_LEN {
                return (at % CONTEXT_LEN == 0).then_some((before + at / CONTEXT_LEN) as u32);
            }
            before += contexts.len();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_number_through_all_allocations_and_nothing_else_has_one() {
        let mut contexts = Contexts::default();
        assert_eq!([64, 192, 448].map(|_| contexts.grow()), [64, 192, 448]);
        let mut places: Vec<_> = (0..448).map(|index| contexts.pointer(index)).collect();
        for (index, place) in places.iter().enumerate() {
            assert_eq!(contexts.index(*place), Some(index as u32));
            for beside in [1, 8, CONTEXT_LEN - 1] {
                assert_eq!(contexts.index(place.wrapping_byte_add(beside)), None);
            }
        }
        places.sort_unstable();
        let apart = |pair: &[*mut c_void]| pair[1].addr() - pair[0].addr() >= CONTEXT_LEN;
        assert!(places.windows(2).all(apart), "none shares bytes with another");
        let mut other = [0u64; CONTEXT_LEN / 8];
        assert_eq!(contexts.index(ptr::from_mut(&mut other).cast()), None);
        assert_eq!(
            [0, 8, usize::MAX].map(|at| contexts.index(ptr::without_provenance_mut(at))),
            [None; 3]
        );
    }
}
