//! Memory of every rank that all ranks reach.

use crate::Runtime;
use std::ops::Range;
use std::time::Duration;
use tieline::{AtomicOp, Endpoint, Error, Outcome, Region, RemoteKey, Status, Width};

/// Before the memory stands the word of its lock.
const LOCK: usize = 64;
/// Between two looks at a lock that another has.
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// As much memory of each rank. Offsets and lengths are in bytes.
pub struct Window<'a> {
    runtime: &'a Runtime,
    mine: Region,
    ranks: Vec<(Endpoint, RemoteKey)>,
}

impl Runtime {
    /// Opens a window of so many bytes of every rank; every rank calls it.
    ///
    /// # Errors
    /// When there is no memory, or a peer has died.
    pub fn window(&self, len: usize) -> Result<Window<'_>, Error> {
        let mine = self.context.alloc(LOCK + len)?;
        let keys = self.allgather(&mine.remote_key()?)?;
        let import = |(rank, key): (usize, &Vec<u8>)| -> Result<_, Error> {
            let (peer, _) = self.peer(rank)?;
            let key = peer.import_key(key)?;
            Ok((peer, key))
        };
        let ranks = keys.iter().enumerate().map(import).collect::<Result<_, _>>()?;
        Ok(Window { runtime: self, mine, ranks })
    }
}

impl Window<'_> {
    /// Writes to a rank's memory. It is there after [`Window::flush`], [`Window::unlock`] or [`Window::fence`].
    ///
    /// # Errors
    /// Beyond the window, or when the peer has died.
    pub fn put(&self, rank: usize, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let (peer, key) = &self.ranks[rank];
        let _ = self.runtime.posted(|| peer.put_bytes(bytes, key, (LOCK + offset) as u64))?;
        Ok(())
    }

    /// Reads a rank's memory, as it is when nobody writes to it.
    ///
    /// # Errors
    /// Beyond the window, or when the peer has died.
    pub fn get(&self, rank: usize, range: Range<usize>) -> Result<Vec<u8>, Error> {
        let (peer, key) = &self.ranks[rank];
        let local = self.runtime.context.lend(vec![0; range.len()])?;
        let offset = (LOCK + range.start) as u64;
        let get = self.runtime.posted(|| peer.get(&local, 0..range.len(), key, offset))?;
        let _ = self.finish(get)?;
        Ok(local.into_buffer()?.into_vec())
    }

    /// Puts words together with those of a rank's memory, each at once; it has happened as a put has.
    ///
    /// # Errors
    /// Beyond the window, for an offset that is no multiple of 8, or when the peer has died.
    pub fn accumulate(
        &self,
        rank: usize,
        offset: usize,
        op: AtomicOp,
        words: &[u64],
    ) -> Result<(), Error> {
        let (peer, key) = &self.ranks[rank];
        for (word, at) in words.iter().zip((LOCK + offset..).step_by(8)) {
            let post = || peer.atomic(op, Width::Bits64, key, at as u64, *word);
            let _ = self.runtime.posted(post)?;
        }
        Ok(())
    }

    /// Waits until nobody else has the lock of a rank's memory, and takes it.
    ///
    /// # Errors
    /// When a peer has died.
    pub fn lock(&self, rank: usize) -> Result<(), Error> {
        let (peer, key) = &self.ranks[rank];
        let own = self.runtime.rank() as u64 + 1;
        let mut nap = Duration::from_micros(1);
        loop {
            let swap = || peer.compare_swap(Width::Bits64, key, 0, 0, own);
            let before = self.finish(self.runtime.posted(swap)?)?;
            match before {
                0 => return Ok(()),
                _ if before == own => return Err(Status::Busy.into()),
                // Nobody tells when it is free; who holds it may need the processor.
                _ => _ = self.runtime.worker.wait(Some(nap))?,
            }
            let _ = self.runtime.advance()?;
            nap = LONGEST_NAP.min(nap * 2);
        }
    }

    /// Hands the lock on, once everything has happened that was posted under it.
    ///
    /// # Errors
    /// When a peer has died, or of what was posted.
    pub fn unlock(&self, rank: usize) -> Result<(), Error> {
        self.flush(rank)?;
        let (peer, key) = &self.ranks[rank];
        let swap = || peer.fetch(AtomicOp::Swap, Width::Bits64, key, 0, 0);
        let before = self.finish(self.runtime.posted(swap)?)?;
        let held = before == self.runtime.rank() as u64 + 1;
        if held { Ok(()) } else { Err(Status::Invalid.into()) }
    }

    /// Waits until everything has happened that was posted to a rank's memory.
    ///
    /// # Errors
    /// When the peer has died, or of what was posted.
    pub fn flush(&self, rank: usize) -> Result<(), Error> {
        let flush = self.runtime.posted(|| self.ranks[rank].0.flush())?;
        self.finish(flush).map(|_| ())
    }

    /// Waits until everything has happened that any rank has posted; every rank calls it.
    ///
    /// # Errors
    /// When a peer has died, or of what was posted.
    pub fn fence(&self) -> Result<(), Error> {
        self.runtime.worker.flush()?;
        self.runtime.barrier()
    }

    /// This rank's own memory.
    ///
    /// # Errors
    /// Beyond the window.
    pub fn read(&self, range: Range<usize>) -> Result<Vec<u8>, Error> {
        self.mine.to_vec(LOCK + range.start..LOCK + range.end)
    }

    /// Writes this rank's own memory.
    ///
    /// # Errors
    /// Beyond the window.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.mine.write(LOCK + offset, bytes)
    }

    /// Ends the window; every rank calls it.
    ///
    /// # Errors
    /// When a peer has died.
    pub fn close(self) -> Result<(), Error> {
        self.fence()
    }

    /// Waits for what was posted.
    fn finish(&self, outcome: Outcome) -> Result<u64, Error> {
        let request = match outcome {
            Outcome::Done(value) => return Ok(value),
            Outcome::Pending(request) => request,
        };
        let mut ended = None;
        self.runtime.until(|_| {
            ended = self.runtime.worker.test(&request);
            ended.is_some()
        })?;
        ended.map_or_else(|| Err(Status::Invalid.into()), |ended| Ok(ended?))
    }
}
