//! The pool of receive buffers. A stream has a buffer while it is read. The few most recently active streams keep theirs, and the
//! others share this pool. While the number of used buffers stays the same, no buffer is allocated or freed.

use crate::buffer::{BUFFER, Buffer};

/// The maximum number of buffers that wait for a stream: the number of connections in one round of a poll.
const MOST: usize = crate::config::MOST_VISITS;

/// The number of calls of [`Pool::trim`] of which one frees memory.
const TRIM_EVERY: u32 = 64;

/// The buffers that no stream holds.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    spare: Vec<Buffer>,
    /// The buffers into which events of this poll may still point.
    cooling: Vec<Buffer>,
    /// The smallest number of spare buffers since the last [`Pool::trim`].
    unused: usize,
    visits: u32,
    /// Whether nothing is read for a while: returned buffers are freed.
    rests: bool,
    /// The number of buffers allocated so far.
    #[cfg(test)]
    made: u64,
}

impl Pool {
    /// Returns an empty buffer.
    pub(crate) fn take(&mut self) -> Buffer {
        if let Some(buffer) = self.spare.pop() {
            self.unused = self.unused.min(self.spare.len());
            return buffer;
        }
        #[cfg(test)]
        {
            self.made += 1;
        }
        Buffer::new()
    }

    /// Takes a buffer back, for reuse in the next poll.
    pub(crate) fn give(&mut self, buffer: Buffer) {
        self.cooling.push(buffer);
    }

    /// Begins a poll: no event points into the buffers that were returned in the previous poll.
    #[inline]
    pub(crate) fn begin(&mut self) {
        if self.cooling.is_empty() {
            return;
        }
        if std::mem::take(&mut self.rests) {
            self.cooling.clear();
        }
        for mut buffer in self.cooling.drain(..) {
            if self.spare.len() < MOST {
                buffer.recycle();
                self.spare.push(buffer);
            }
        }
    }

    /// Frees, at every `TRIM_EVERY`th call, the buffers that were not needed since the last time.
    pub(crate) fn trim(&mut self) {
        self.visits += 1;
        if self.visits % TRIM_EVERY > 0 {
            return;
        }
        self.spare.truncate(self.spare.len() - self.unused);
        self.unused = self.spare.len();
    }

    /// Frees the spare buffers now and the returned ones later, because nothing is read for a while.
    pub(crate) fn clear(&mut self) {
        self.spare = Vec::new();
        (self.unused, self.rests) = (0, true);
    }

    /// Returns the size of the pool's memory, in bytes.
    pub(crate) fn committed(&self) -> usize {
        (self.spare.len() + self.cooling.len()) * BUFFER
    }

    #[cfg(test)]
    pub(crate) fn made(&self) -> u64 {
        self.made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_unused_between_two_trims_are_freed_and_others_kept() {
        let mut pool = Pool::default();
        let visit = |pool: &mut Pool| (0..TRIM_EVERY).for_each(|_| pool.trim());
        let taken = [(); 3].map(|()| pool.take());
        taken.into_iter().for_each(|buffer| pool.give(buffer));
        pool.begin();
        visit(&mut pool);
        assert_eq!(pool.committed(), 3 * BUFFER, "how many are in use, nobody has seen yet");
        // Two buffers are in use at the same time.
        let taken = [(); 2].map(|()| pool.take());
        taken.into_iter().for_each(|buffer| pool.give(buffer));
        pool.begin();
        visit(&mut pool);
        assert_eq!(pool.committed(), 2 * BUFFER);
        visit(&mut pool);
        assert_eq!(pool.committed(), 0, "and then none");
        assert_eq!(pool.made(), 3);
    }

    #[test]
    fn returned_buffers_are_reused_after_next_poll_up_to_a_bound() {
        let mut pool = Pool::default();
        let mut first = pool.take();
        first.received(5);
        pool.give(first);
        let _ = pool.take();
        assert_eq!(pool.made(), 2, "events may still point into what was given back");
        pool.begin();
        let again = pool.take();
        assert_eq!((pool.made(), again.is_empty()), (2, true));
        (0..MOST + 10).for_each(|_| pool.give(Buffer::new()));
        assert_eq!(pool.committed(), (MOST + 10) * BUFFER);
        pool.begin();
        assert_eq!(pool.committed(), MOST * BUFFER, "as many as a poll can ask for, and no more");
    }

    #[test]
    fn nothing_is_kept_while_nobody_reads() {
        let mut pool = Pool::default();
        let give = |pool: &mut Pool| {
            pool.give(Buffer::new());
            pool.begin();
            pool.committed()
        };
        assert_eq!(give(&mut pool), BUFFER);
        pool.clear();
        assert_eq!(pool.committed(), 0);
        assert_eq!(give(&mut pool), 0, "given back before the one who reads went to sleep");
        assert_eq!(give(&mut pool), BUFFER, "somebody reads again");
    }
}
