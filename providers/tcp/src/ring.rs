//! The outgoing bytes: a queue that starts small, grows to its bound, and can be freed when empty.

/// A bounded queue of bytes. A position counts all bytes ever pushed, so it stays valid while the ring grows.
#[derive(Debug)]
pub(crate) struct Ring {
    bytes: Box<[u8]>,
    /// The positions of the oldest byte and of the next one.
    first: u64,
    next: u64,
    capacity: usize,
}

const SMALLEST: usize = 16 << 10;

impl Ring {
    pub(crate) fn new(capacity: usize) -> Ring {
        Ring { bytes: Box::default(), first: 0, next: 0, capacity: capacity.next_power_of_two() }
    }

    pub(crate) fn room(&self) -> usize {
        self.capacity - self.len()
    }

    pub(crate) fn len(&self) -> usize {
        (self.next - self.first) as usize
    }

    /// Returns the size of the memory.
    pub(crate) fn committed(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the position of the next byte.
    pub(crate) fn position(&self) -> u64 {
        self.next
    }

    /// Adds bytes. The caller has checked that they fit.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let len = bytes.len().min(self.room());
        if len == 0 {
            return; // the memory may not be allocated yet
        }
        self.grow(len);
        let at = self.next as usize & (self.bytes.len() - 1);
        let straight = len.min(self.bytes.len() - at);
        self.bytes[at..at + straight].copy_from_slice(&bytes[..straight]);
        self.bytes[..len - straight].copy_from_slice(&bytes[straight..len]);
        self.next += len as u64;
    }

    /// Returns the bytes from `position` on, in at most two pieces.
    pub(crate) fn slices(&self, position: u64, len: usize) -> (&[u8], &[u8]) {
        if len == 0 || self.bytes.is_empty() {
            return (&[], &[]);
        }
        let at = position as usize & (self.bytes.len() - 1);
        let straight = len.min(self.bytes.len() - at);
        (&self.bytes[at..at + straight], &self.bytes[..len - straight])
    }

    /// Releases the oldest bytes.
    pub(crate) fn pop(&mut self, len: usize) {
        self.first = self.next.min(self.first + len as u64);
    }

    /// Frees the memory if the queue is empty.
    pub(crate) fn trim(&mut self) {
        if self.first == self.next {
            self.bytes = Box::default();
        }
    }

    fn grow(&mut self, more: usize) {
        let needed = self.len() + more;
        if needed <= self.bytes.len() {
            return;
        }
        let size = needed.next_power_of_two().max(SMALLEST.min(self.capacity));
        let mut grown = vec![0; size].into_boxed_slice();
        // Every byte keeps its position.
        let (a, b) = self.slices(self.first, self.len());
        for (n, &byte) in a.iter().chain(b).enumerate() {
            grown[(self.first as usize + n) & (size - 1)] = byte;
        }
        self.bytes = grown;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn nothing_may_be_added_when_there_is_no_memory() {
        let mut ring = Ring::new(64 << 10);
        ring.push(&[1]);
        ring.pop(1);
        ring.trim();
        ring.push(&[]);
        assert_eq!((ring.len(), ring.position()), (0, 1));
    }

    #[test]
    fn there_is_nothing_to_look_at_before_there_is_memory() {
        let none: (&[u8], &[u8]) = (&[], &[]);
        assert_eq!(Ring::new(64 << 10).slices(0, 0), none);
        assert_eq!(Ring::new(64 << 10).slices(5, 7), none, "whatever a peer asks for again");
    }

    proptest! {
        #[test]
        fn it_is_a_queue_of_bytes(steps in prop::collection::vec((any::<bool>(), 0usize..9000), 0..80)) {
            let mut ring = Ring::new(64 << 10);
            let mut model: VecDeque<u8> = VecDeque::new();
            let mut n = 0u8;
            for (push, len) in steps {
                if push && len <= ring.room() {
                    let bytes: Vec<u8> = (0..len).map(|_| { n = n.wrapping_add(7); n }).collect();
                    ring.push(&bytes);
                    model.extend(&bytes);
                } else if !push {
                    ring.pop(len.min(model.len()));
                    drop(model.drain(..len.min(model.len())));
                    ring.trim();
                }
                let (a, b) = ring.slices(ring.position() - ring.len() as u64, ring.len());
                prop_assert!(a.iter().chain(b).eq(model.iter()));
                prop_assert!(ring.committed() <= 64 << 10);
            }
        }
    }
}
