//! Messages with a payload in a chunk: the chunks in flight, and those that the receiver has released.

use super::SendChannel;
use crate::channel::kind;
use crate::copies;
use crate::pool::{Chunk, MAX_CHUNK, Pool};
use crate::ring::head;
use crate::sys::Mapping;
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
        self.flight.borrow_mut().push_back((self.ring.position(), chunk));
        self.flight_bytes.set(self.flight_bytes.get() + chunk.capacity());
        self.push_chunk(id, header, chunk, written);
        Ok(written)
    }

    /// Sends a payload in the oldest chunk in flight, if the receiver is known to have released it and it has the best size. `false`:
    /// nothing is sent.
    #[inline(always)]
    pub(super) fn send_again(&self, id: u32, header: u64, payload: &[u8]) -> bool {
        let Some(&(position, chunk)) = self.flight.borrow().front() else { return false };
        let released = position < self.ring.seen();
        if !released || !chunk.suits(payload.len()) || id > u32::from(u16::MAX) {
            return false;
        }
        let write = |map: &Mapping, at| copies::write(map, at, payload);
        if !self.ring.has_room() || !self.shared.pool.with_place(chunk, write).unwrap_or(false) {
            return false;
        }
        // The peer knows the segment of a chunk in flight, and the number of bytes in flight stays the same.
        let mut flight = self.flight.borrow_mut();
        let _ = flight.pop_front();
        flight.push_back((self.ring.position(), chunk));
        drop(flight);
        self.push_chunk(id as u16, header, chunk, payload.len());
        true
    }

    /// Publishes a message of `len` bytes in a chunk. There is room for it.
    #[inline(always)]
    fn push_chunk(&self, id: u16, header: u64, chunk: Chunk, len: usize) {
        let mut payload = [0u8; 16];
        let first = u64::from(chunk.segment) | (len as u64) << 32;
        payload[..8].copy_from_slice(&first.to_ne_bytes());
        payload[8..].copy_from_slice(&u64::from(chunk.offset).to_ne_bytes());
        let _ = self.push(head(kind::POOLED, 16, id), header, &payload);
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
