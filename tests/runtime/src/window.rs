//! Memory windows: memory of every rank that all ranks can access.

use crate::Runtime;
use std::ops::Range;
use std::time::Duration;
use tieline::{AtomicOp, Endpoint, Error, Outcome, Region, RemoteKey, Status, Width};

/// The number of bytes before the memory, which begin with the word of the memory's lock.
const LOCK: usize = 64;
/// The longest pause between two attempts to take a lock.
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// A window: memory of the same size on each rank. Offsets and lengths are in bytes.
pub struct Window<'a> {
    runtime: &'a Runtime,
    mine: Region,
    ranks: Vec<(Endpoint, RemoteKey)>,
}

impl Runtime {
    /// Opens a window of `len` bytes on every rank. The call is collective.
    ///
    /// # Errors
    /// Returns an error if there is no memory, or if a peer has died.
    pub fn window(&self, len: usize) -> Result<Window<'_>, Error> {
        let mine = self.context.alloc(LOCK + len)?;
        let keys = self.allgather(&mine.remote_key()?)?;
        let import = |(rank, key): (usize, &Vec<u8>)| -> Result<_, Error> {
            let peer = self.peer(rank)?.endpoint.clone();
            let key = peer.import_key(key)?;
            Ok((peer, key))
        };
        let ranks = keys.iter().enumerate().map(import).collect::<Result<_, _>>()?;
        Ok(Window { runtime: self, mine, ranks })
    }
}

impl Window<'_> {
    /// Writes to a rank's memory. The bytes are in place after [`Window::flush`], [`Window::unlock`] or [`Window::fence`].
    ///
    /// # Errors
    /// Returns an error for a range beyond the window, or if the peer has died.
    pub fn put(&self, rank: usize, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let (peer, key) = &self.ranks[rank];
        let _ = self.runtime.posted(|| peer.put_bytes(bytes, key, (LOCK + offset) as u64))?;
        Ok(())
    }

    /// Reads a rank's memory. No other rank may write the range at the same time.
    ///
    /// # Errors
    /// Returns an error for a range beyond the window, or if the peer has died.
    pub fn get(&self, rank: usize, range: Range<usize>) -> Result<Vec<u8>, Error> {
        let (peer, key) = &self.ranks[rank];
        let local = self.runtime.context.register_transient(vec![0; range.len()])?;
        let offset = (LOCK + range.start) as u64;
        let get = self.runtime.posted(|| peer.get(&local, 0..range.len(), key, offset))?;
        let _ = self.finish(get)?;
        Ok(local.into_buffer()?.into_vec())
    }

    /// Combines words with those of a rank's memory, each word atomically. The operation completes as a put does.
    ///
    /// # Errors
    /// Returns an error for a range beyond the window, for an offset that is no multiple of 8, or if the peer has died.
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

    /// Waits for the lock of a rank's memory, and takes the lock.
    ///
    /// # Errors
    /// Returns an error if a peer has died.
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
                // There is no notification of the release, and the holder may need the processor.
                _ => _ = self.runtime.worker.wait(Some(nap))?,
            }
            let _ = self.runtime.advance()?;
            nap = LONGEST_NAP.min(nap * 2);
        }
    }

    /// Waits until all operations under the lock have completed, and releases the lock.
    ///
    /// # Errors
    /// Returns an error if a peer has died, or the errors of the operations.
    pub fn unlock(&self, rank: usize) -> Result<(), Error> {
        self.flush(rank)?;
        let (peer, key) = &self.ranks[rank];
        let swap = || peer.fetch(AtomicOp::Swap, Width::Bits64, key, 0, 0);
        let before = self.finish(self.runtime.posted(swap)?)?;
        let held = before == self.runtime.rank() as u64 + 1;
        if held { Ok(()) } else { Err(Status::Invalid.into()) }
    }

    /// Waits until all operations on a rank's memory have completed.
    ///
    /// # Errors
    /// Returns an error if the peer has died, or the errors of the operations.
    pub fn flush(&self, rank: usize) -> Result<(), Error> {
        let flush = self.runtime.posted(|| self.ranks[rank].0.flush())?;
        self.finish(flush).map(|_| ())
    }

    /// Waits until all operations of all ranks have completed. The call is collective.
    ///
    /// # Errors
    /// Returns an error if a peer has died, or the errors of the operations.
    pub fn fence(&self) -> Result<(), Error> {
        self.runtime.worker.flush()?;
        self.runtime.barrier()
    }

    /// Reads this rank's own memory.
    ///
    /// # Errors
    /// Returns an error for a range beyond the window.
    pub fn read(&self, range: Range<usize>) -> Result<Vec<u8>, Error> {
        self.mine.to_vec(LOCK + range.start..LOCK + range.end)
    }

    /// Writes this rank's own memory.
    ///
    /// # Errors
    /// Returns an error for a range beyond the window.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.mine.write(LOCK + offset, bytes)
    }

    /// Closes the window. The call is collective.
    ///
    /// # Errors
    /// Returns an error if a peer has died.
    pub fn close(self) -> Result<(), Error> {
        self.fence()
    }

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
