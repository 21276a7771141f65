//! Messages with a payload in a chunk: the chunks in flight, and those that the receiver has released.

use super::SendChannel;
use crate::channel::kind;
use crate::pool::{Chunk, MAX_CHUNK, Pool};
use crate::ring::head;
use tieline_plugin_api::Status;

impl SendChannel {
    /// Sends a message whose payload `fill` writes into a chunk of at least `len` bytes.
    pub(super) fn send_pooled(
        &self,
        id: u32,
        header: u64,
        len: usize,
        fill: impl FnOnce(&Pool, Chunk) -> Result<usize, Status>,
    ) -> Result<usize, Status> {
        let id = u16::try_from(id).map_err(|_| Status::Invalid)?;
        if len > MAX_CHUNK {
            return Err(Status::TooLarge);
        }
        if !self.ring.has_room() {
            self.make_room()?;
        }
        let chunk = self.take_chunk(len)?;
        let pool = &self.shared.pool;
        if chunk.segment >= self.segments_sent.get() {
            if let Err(status) = self.show_segments(chunk.segment) {
                pool.give(chunk);
                return Err(status);
            }
        }
        let written = match fill(pool, chunk) {
            Ok(written) => written,
            Err(status) => {
                pool.give(chunk);
                return Err(status);
            }
        };
        let position = self.ring.position();
        let mut payload = [0u8; 16];
        let first = u64::from(chunk.segment) | (written as u64) << 32;
        payload[..8].copy_from_slice(&first.to_ne_bytes());
        payload[8..].copy_from_slice(&u64::from(chunk.offset).to_ne_bytes());
        self.flight.borrow_mut().push_back((position, chunk));
        self.flight_bytes.set(self.flight_bytes.get() + chunk.capacity());
        let _ = self.push(head(kind::POOLED, 16, id), header, &payload);
        Ok(written)
    }

    #[inline(always)]
    fn take_chunk(&self, len: usize) -> Result<Chunk, Status> {
        match self.reuse(len) {
            Some(chunk) => Ok(chunk),
            None => self.take_another(len),
        }
    }

    /// Takes a chunk if the oldest one in flight does not serve.
    #[inline(never)]
    fn take_another(&self, len: usize) -> Result<Chunk, Status> {
        let window = self.shared.settings.window;
        if self.flight_bytes.get() + len > window {
            let _ = self.see_tail()?;
            if let Some(chunk) = self.reuse(len) {
                return Ok(chunk);
            }
            self.reap()?;
            if self.flight_bytes.get() + len > window {
                self.starved.set(Some(self.ring.seen()));
                return Err(Status::Again);
            }
        }
        match self.shared.pool.take(len) {
            Err(Status::Again) => {}
            other => return other,
        }
        self.reap()?;
        self.shared.pool.take(len).inspect_err(|_| {
            self.starved.set(Some(self.ring.seen()));
            // Chunks are also released by other channels, so the next poll checks all of them.
            self.shared.pool_starved.set(true);
            self.shared.call_attention();
        })
    }

    /// Takes the oldest chunk in flight, if the receiver is known to have released it and it has the best size for `len` bytes. A
    /// released chunk of another size goes back to the pool, with the other released ones.
    #[inline(always)]
    fn reuse(&self, len: usize) -> Option<Chunk> {
        let mut flight = self.flight.borrow_mut();
        let &(position, chunk) = flight.front()?;
        let released = position < self.ring.seen();
        if released && chunk.suits(len) {
            let _ = flight.pop_front();
            self.flight_bytes.set(self.flight_bytes.get() - chunk.capacity());
            return Some(chunk);
        }
        drop(flight);
        if released {
            self.take_back(self.ring.seen());
        }
        None
    }

    /// Takes back the chunks that the receiver has released, for other messages. Returns whether there were any.
    pub(crate) fn give_back(&self) -> bool {
        let before = self.flight_bytes.get();
        before > 0 && self.reap().is_ok() && self.flight_bytes.get() < before
    }

    /// Reads the receiver's progress.
    pub(super) fn see_tail(&self) -> Result<u64, Status> {
        let Ok(tail) = self.ring.refresh() else {
            self.fail(Status::BadData, "the peer wrote nonsense into the channel");
            return Err(Status::BadData);
        };
        if self.is_shut() || self.packing.get() {
            self.ring.shut();
        }
        Ok(tail)
    }

    /// Reads the receiver's progress, and takes back the chunks that it has released.
    pub(super) fn reap(&self) -> Result<(), Status> {
        self.take_back(self.see_tail()?);
        Ok(())
    }

    /// Takes back the chunks of the slots before `tail`.
    pub(super) fn take_back(&self, tail: u64) {
        let mut flight = self.flight.borrow_mut();
        while let Some(&(position, chunk)) = flight.front() {
            if position >= tail {
                break;
            }
            let _ = flight.pop_front();
            self.flight_bytes.set(self.flight_bytes.get() - chunk.capacity());
            self.shared.pool.give(chunk);
        }
    }
}
