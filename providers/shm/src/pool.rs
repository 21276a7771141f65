//! Message buffers: chunks of a few sizes in memory files of the sender.
//!
//! A payload that does not fit into a slot is written to a chunk, whose position is in the slot. Chunks are allocated
//! last-in-first-out, because the most recently freed chunk is in the cache. The pool grows by whole segments up to a limit. Peers
//! map a segment read-only when its first message arrives.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use tieline_plugin_api::{Failure, Status};

use crate::sys::{self, Mapping};

/// The sizes of chunks, in bytes.
pub(crate) const CLASSES: [usize; 5] = [256, 1 << 10, 4 << 10, 16 << 10, 64 << 10];
/// The largest chunk, which is also the longest message.
pub(crate) const MAX_CHUNK: usize = CLASSES[CLASSES.len() - 1];
const FIRST_SEGMENT: usize = 256 << 10;
/// The length of the longest segment, in bytes. A peer refuses to map a longer one.
pub(crate) const LARGEST_SEGMENT: usize = 8 << 20;
/// The maximum number of segments of one pool. A peer refuses to map more.
pub(crate) const MAX_SEGMENTS: usize = 4096;

/// An allocated piece of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) segment: u32,
    pub(crate) offset: u32,
    class: u32,
}

impl Chunk {
    /// Returns the chunk's size in bytes.
    pub(crate) fn capacity(self) -> usize {
        CLASSES[self.class as usize]
    }

    /// Checks whether a message of `len` bytes takes a chunk of this size while there are some of every size.
    pub(crate) fn suits(self, len: usize) -> bool {
        let class = self.class as usize;
        len <= CLASSES[class] && (class == 0 || len > CLASSES[class - 1])
    }
}

struct Segment {
    /// The mapping, shared with the writer, so that no cell is borrowed during the write.
    map: Rc<Mapping>,
    fd: OwnedFd,
}

/// The chunks of one interface. Only the methods of this type borrow its cells. The only other code that runs during a borrow is
/// the argument of `with_segment` and `with_place`, which does not use the pool.
pub(crate) struct Pool {
    free: RefCell<[Vec<Chunk>; CLASSES.len()]>,
    segments: RefCell<Vec<Segment>>,
    /// The number of bytes of the last segment that were cut into chunks.
    used: Cell<usize>,
    committed: Cell<usize>,
    max: usize,
}

impl Pool {
    /// Makes an empty pool that grows up to `max` bytes.
    pub(crate) fn new(max: usize) -> Pool {
        Pool {
            free: RefCell::default(),
            segments: RefCell::default(),
            used: Cell::new(0),
            committed: Cell::new(0),
            max,
        }
    }

    /// Returns the bytes of shared memory that the pool has allocated.
    pub(crate) fn committed(&self) -> usize {
        self.committed.get()
    }

    /// Allocates a chunk for `len` bytes. The error [`Status::Again`] means that the pool is at its limit or cannot grow; progress
    /// releases chunks. The error [`Status::NoMemory`] means that the system has no memory, and no chunk will be released either.
    pub(crate) fn take(&self, len: usize) -> Result<Chunk, Status> {
        let class = CLASSES.iter().position(|&c| len <= c).ok_or(Status::TooLarge)?;
        if let Some(chunk) = self.free.borrow_mut()[class].pop() {
            return Ok(chunk);
        }
        if let Some(chunk) = self.cut(class) {
            return Ok(chunk);
        }
        match self.grow() {
            Ok(true) => self.cut(class).ok_or(Status::NoMemory),
            // At the limit, a larger chunk is used. Its class stays the one that the chunk was cut for.
            Ok(false) => self.larger(class).ok_or(Status::Again),
            Err(_) if self.committed.get() > 0 => self.larger(class).ok_or(Status::Again),
            Err(failure) => Err(failure.status),
        }
    }

    fn larger(&self, class: usize) -> Option<Chunk> {
        let found = self.free.borrow_mut()[class..].iter_mut().find_map(Vec::pop);
        found.or_else(|| self.merge())
    }

    /// Merges small chunks that are all free and adjacent into one chunk of the largest class. So a phase of small messages does
    /// not prevent large ones.
    fn merge(&self) -> Option<Chunk> {
        let mut free = self.free.borrow_mut();
        let mut bytes: HashMap<(u32, u32), usize> = HashMap::new();
        let block = |chunk: &Chunk| (chunk.segment, chunk.offset / MAX_CHUNK as u32);
        let mut whole = None;
        for chunk in free.iter().flatten() {
            let sum = bytes.entry(block(chunk)).or_default();
            *sum += chunk.capacity();
            if *sum == MAX_CHUNK {
                whole = Some(block(chunk));
                break;
            }
        }
        let whole = whole?;
        for list in free.iter_mut() {
            list.retain(|chunk| block(chunk) != whole);
        }
        let class = CLASSES.len() as u32 - 1;
        Some(Chunk { segment: whole.0, offset: whole.1 * MAX_CHUNK as u32, class })
    }

    fn cut(&self, class: usize) -> Option<Chunk> {
        let segments = self.segments.borrow();
        let segment = segments.len().checked_sub(1)?;
        let used = self.used.get();
        let offset = used.next_multiple_of(CLASSES[class]);
        if offset + CLASSES[class] > segments[segment].map.len() {
            return None;
        }
        self.scatter(segment as u32, used, offset);
        self.used.set(offset + CLASSES[class]);
        Some(Chunk { segment: segment as u32, offset: offset as u32, class: class as u32 })
    }

    /// Frees a range as the largest chunks that are aligned to their own size. None crosses a boundary of the largest class.
    fn scatter(&self, segment: u32, mut from: usize, to: usize) {
        let mut free = self.free.borrow_mut();
        while let Some(class) =
            (0..CLASSES.len()).rev().find(|&c| from % CLASSES[c] == 0 && from + CLASSES[c] <= to)
        {
            free[class].push(Chunk { segment, offset: from as u32, class: class as u32 });
            from += CLASSES[class];
        }
    }

    /// Adds a segment. Returns `false` at the limit.
    fn grow(&self) -> Result<bool, Failure> {
        let committed = self.committed.get();
        let len = committed.clamp(FIRST_SEGMENT, LARGEST_SEGMENT).min(self.max - committed);
        let len = len / MAX_CHUNK * MAX_CHUNK;
        let number = self.segments.borrow().len();
        if len == 0 || number == MAX_SEGMENTS {
            return Ok(false);
        }
        let fd = sys::memory_file(c"tieline-shm-pool", len)?;
        sys::reserve(&fd, 0, len)?;
        let map = Mapping::new(fd.as_fd(), len, true)?;
        sys::seal(&fd, sys::SEAL_WRITERS)?;
        if let Some(last) = self.segments.borrow().last() {
            self.scatter(number as u32 - 1, self.used.get(), last.map.len());
        }
        self.segments.borrow_mut().push(Segment { map: Rc::new(map), fd });
        self.used.set(0);
        self.committed.set(committed + len);
        Ok(true)
    }

    /// Releases a chunk.
    pub(crate) fn give(&self, chunk: Chunk) {
        self.free.borrow_mut()[chunk.class as usize].push(chunk);
    }

    /// Returns the position of a chunk's `capacity()` bytes, valid until the chunk is released.
    pub(crate) fn place(&self, chunk: Chunk) -> Result<(Rc<Mapping>, u64), Status> {
        let segments = self.segments.borrow();
        let segment = segments.get(chunk.segment as usize).ok_or(Status::Invalid)?;
        Ok((segment.map.clone(), u64::from(chunk.offset)))
    }

    /// Passes the position of a chunk's `capacity()` bytes to `write`, which must not use the pool.
    #[inline]
    pub(crate) fn with_place<R>(
        &self,
        chunk: Chunk,
        write: impl FnOnce(&Mapping, u64) -> R,
    ) -> Result<R, Status> {
        let segments = self.segments.borrow();
        let segment = segments.get(chunk.segment as usize).ok_or(Status::Invalid)?;
        Ok(write(&segment.map, u64::from(chunk.offset)))
    }

    /// Passes a segment's length and descriptor to `send`.
    pub(crate) fn with_segment<R>(
        &self,
        segment: u32,
        send: impl FnOnce(usize, &OwnedFd) -> R,
    ) -> Option<R> {
        self.segments.borrow().get(segment as usize).map(|s| send(s.map.len(), &s.fd))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_pool_at_its_bound_says_again_until_a_chunk_comes_back() {
        let pool = Pool::new(256 << 10);
        let chunks: Vec<Chunk> = std::iter::from_fn(|| pool.take(64 << 10).ok()).collect();
        assert_eq!(chunks.len(), 4);
        assert_eq!(pool.take(1), Err(Status::Again));
        pool.give(chunks[2]);
        assert_eq!(pool.take(60_000), Ok(chunks[2]));
        assert_eq!(pool.take(MAX_CHUNK + 1), Err(Status::TooLarge));
        assert_eq!(pool.committed(), 256 << 10);
    }

    #[test]
    fn the_chunk_that_was_given_back_last_is_taken_first() {
        let pool = Pool::new(1 << 20);
        let (a, b) = (pool.take(4096).unwrap(), pool.take(4096).unwrap());
        pool.give(a);
        pool.give(b);
        assert_eq!(pool.take(4000), Ok(b));
    }

    #[test]
    fn a_time_of_small_messages_does_not_end_large_ones() {
        let pool = Pool::new(256 << 10);
        let small: Vec<Chunk> = std::iter::from_fn(|| pool.take(100).ok()).collect();
        assert_eq!(small.len(), 1024);
        assert_eq!(pool.take(MAX_CHUNK), Err(Status::Again));
        for &chunk in &small {
            pool.give(chunk);
        }
        for _ in 0..4 {
            let _ = pool.take(MAX_CHUNK).unwrap();
        }
        assert_eq!(pool.take(1), Err(Status::Again));
    }

    #[test]
    fn an_unused_pool_takes_no_memory() {
        let pool = Pool::new(1 << 30);
        assert_eq!(pool.committed(), 0);
        let _ = pool.take(100).unwrap();
        assert!((100..1 << 30).contains(&pool.committed()), "{}", pool.committed());
    }

    /// Peers map the pool by segments: a busy sender has few large ones, and none is larger than a peer maps.
    #[test]
    fn pool_doubles_up_to_largest_segment_and_its_limit() {
        const KIB: usize = 1 << 10;
        let pool = Pool::new(17 << 20);
        let mut committed = vec![0];
        while pool.take(MAX_CHUNK).is_ok() {
            if committed.last() != Some(&pool.committed()) {
                committed.push(pool.committed());
            }
        }
        let doubled = (0..7).map(|n| (256 * KIB) << n);
        let expected: Vec<usize> = [0].into_iter().chain(doubled).chain([17 << 20]).collect();
        assert_eq!(committed, expected);
        let lengths = |n| pool.with_segment(n, |len, _| len);
        let segments: Vec<usize> = (0..).map_while(lengths).collect();
        assert_eq!(segments.iter().sum::<usize>(), 17 << 20);
        assert_eq!(segments.iter().max(), Some(&LARGEST_SEGMENT));
    }

    #[derive(Clone, Debug)]
    enum Operation {
        Take(usize),
        Give(usize),
    }

    proptest! {
        #[test]
        fn chunks_on_loan_never_overlap(
            operations in prop::collection::vec(
                prop_oneof![
                    (1usize..=MAX_CHUNK).prop_map(Operation::Take),
                    (1usize..=300).prop_map(Operation::Take),
                    (0usize..64).prop_map(Operation::Give),
                ],
                1..300,
            )
        ) {
            let pool = Pool::new(1 << 20);
            let mut loans: Vec<Chunk> = Vec::new();
            let mut pages: HashMap<(u32, u32), usize> = HashMap::new();
            for operation in operations {
                match operation {
                    Operation::Take(len) => match pool.take(len) {
                        Ok(chunk) => {
                            prop_assert!(chunk.capacity() >= len);
                            for at in (0..chunk.capacity()).step_by(256) {
                                let unit = (chunk.segment, chunk.offset + at as u32);
                                prop_assert_eq!(pages.insert(unit, loans.len()), None);
                            }
                            let (map, at) = pool.place(chunk).unwrap();
                            prop_assert!(map.holds(at, chunk.capacity() as u64));
                            loans.push(chunk);
                        }
                        Err(status) => prop_assert_eq!(status, Status::Again),
                    },
                    Operation::Give(which) if !loans.is_empty() => {
                        let chunk = loans.swap_remove(which % loans.len());
                        for at in (0..chunk.capacity()).step_by(256) {
                            let _ = pages.remove(&(chunk.segment, chunk.offset + at as u32));
                        }
                        pool.give(chunk);
                    }
                    Operation::Give(_) => {}
                }
            }
            prop_assert!(pool.committed() <= 1 << 20);
        }
    }
}
