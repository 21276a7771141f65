//! The local memory of operations, which the operation table keeps until they have ended.

use super::pieces::Pieces;
use super::region::Region;
use crate::Status;
use crate::registry::abi::PackBuffer;
use std::rc::Rc;

/// The local memory of an operation in flight.
#[derive(Clone)]
pub(crate) enum Memory {
    /// A region, which the operation keeps alive.
    Region(Region),
    /// A copy of bytes that the caller may already reuse.
    Bytes(Rc<[u8]>),
    /// Pieces of regions, treated as one range.
    Pieces(Rc<Pieces>),
}

impl Memory {
    /// Returns the address of a range's first byte. The memory must not consist of pieces.
    pub(crate) fn at(&self, at: usize, len: usize) -> Result<*mut u8, Status> {
        match self {
            Memory::Region(region) => region.inner.span.range(at, len),
            Memory::Bytes(bytes) => {
                let bytes = bytes.get(at..).and_then(|rest| rest.get(..len));
                // Only puts use copied bytes, and puts only read them.
                Ok(bytes.ok_or(Status::OutOfRange)?.as_ptr().cast_mut())
            }
            Memory::Pieces(_) => Err(Status::Invalid),
        }
    }

    /// Appends a range to a message.
    pub(crate) fn pack(
        &self,
        at: usize,
        len: usize,
        out: &mut PackBuffer<'_>,
    ) -> Result<(), Status> {
        match self {
            Memory::Region(region) => out.put_span(&region.inner.span, at, len),
            Memory::Bytes(bytes) => out.put(&bytes[at..at + len]),
            Memory::Pieces(pieces) => pieces.pack(at, len, out),
        }
    }

    /// Writes the data of a message into the memory. Copied bytes are read-only, so for them this is an error.
    fn write(&self, at: usize, data: &[u8]) -> Result<(), Status> {
        match self {
            Memory::Region(region) => region.inner.span.write(at, data),
            Memory::Bytes(_) => Err(Status::BadData),
            Memory::Pieces(pieces) => {
                let mut rest = data;
                pieces.parts(at, data.len()).try_for_each(|(region, at, len)| {
                    let (data, behind) = rest.split_at(len);
                    rest = behind;
                    region.inner.span.write(at, data)
                })
            }
        }
    }

    /// Returns the number of bytes of a range that fit into `most` pieces of a provider's call.
    pub(crate) fn within(&self, at: usize, len: usize, most: usize) -> usize {
        match self {
            Memory::Pieces(pieces) => pieces.within(at, len, most),
            Memory::Region(_) | Memory::Bytes(_) => len,
        }
    }

    /// Returns the bytes of `queue_bytes` that a queued operation of `len` bytes takes, in addition to its own entry.
    pub(crate) fn room(&self, len: usize) -> usize {
        match self {
            Memory::Region(_) => 0,
            Memory::Bytes(_) => len,
            Memory::Pieces(pieces) => pieces.size(),
        }
    }
}

/// The local memory that an operation in flight reads or writes.
pub(crate) struct LocalBuffer {
    pub(crate) memory: Memory,
    pub(crate) offset: usize,
    pub(crate) len: usize,
    /// The number of bytes that messages have yet to deliver.
    pub(crate) missing: usize,
}

impl LocalBuffer {
    /// Makes a buffer that is kept alive and into which no message is written.
    pub(crate) fn held(memory: Memory, offset: usize, len: usize) -> LocalBuffer {
        LocalBuffer { memory, offset, len, missing: 0 }
    }

    /// Makes the record of a request for the key of a handle, by the endpoint with the number `of`.
    pub(crate) fn for_key_request(of: u64, handle: u64) -> LocalBuffer {
        let asks = [of.to_le_bytes(), handle.to_le_bytes()].concat();
        LocalBuffer::held(Memory::Bytes(asks.into()), 0, 16)
    }

    /// Returns the number of the requesting endpoint, and the handle.
    pub(crate) fn key_request(&self) -> Option<(u64, u64)> {
        let Memory::Bytes(asks) = &self.memory else { return None };
        let (of, handle) = asks.split_first_chunk::<8>()?;
        Some((u64::from_le_bytes(*of), u64::from_le_bytes(handle.try_into().ok()?)))
    }

    /// Stores bytes of a message. Returns `true` if they were the last ones.
    pub(crate) fn take(&mut self, position: u64, data: &[u8]) -> Result<bool, Status> {
        let position = usize::try_from(position).map_err(|_| Status::BadData)?;
        let end = position.checked_add(data.len()).ok_or(Status::BadData)?;
        // Pieces have to arrive in order, so no byte is counted twice.
        if position != self.len - self.missing || end > self.len {
            return Err(Status::BadData);
        }
        self.memory.write(self.offset + position, data)?;
        self.missing -= data.len();
        Ok(self.missing == 0)
    }
}
