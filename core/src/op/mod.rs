//! Operations that have not ended when the call that posted them returns.
//!
//! [`Table`] is the one place that knows them all: whose they are, what they wait for, and which memory they use.
//! Flush and fence are questions to it (see [`Table::start_flush`]), the bound on what an endpoint may have pending is
//! its, and an answer or completion that comes for something else finds nothing.

pub(crate) mod held;
pub(crate) mod pieces;
pub(crate) mod slab;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use pieces::Pieces;
pub(crate) use slab::Id;
pub(crate) use table::{Kind, Table};

use crate::Status;
use crate::region::Region;
use crate::registry::abi::PackBuffer;
use std::rc::Rc;

/// Local memory of an operation in flight.
#[derive(Clone)]
pub(crate) enum Memory {
    /// The application's, kept alive.
    Region(Region),
    /// A copy of bytes that the caller has got back.
    Bytes(Rc<[u8]>),
    /// Pieces of regions, as one range.
    Pieces(Rc<Pieces>),
}

impl Memory {
    /// The first byte of a range, which must not be of pieces.
    pub(crate) fn at(&self, at: usize, len: usize) -> Result<*mut u8, Status> {
        match self {
            Memory::Region(region) => region.inner.span.range(at, len),
            Memory::Bytes(bytes) => {
                let bytes = bytes.get(at..).and_then(|rest| rest.get(..len));
                // Only puts have bytes of their own, and they only read them.
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

    /// Writes what a message brought. Bytes that were copied are only read.
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

    /// How much of a range fits into `most` pieces of a provider's.
    pub(crate) fn within(&self, at: usize, len: usize, most: usize) -> usize {
        match self {
            Memory::Pieces(pieces) => pieces.within(at, len, most),
            Memory::Region(_) | Memory::Bytes(_) => len,
        }
    }

    /// What an operation of `len` bytes takes of the room for operations, beside itself.
    pub(crate) fn room(&self, len: usize) -> usize {
        match self {
            Memory::Region(_) => 0,
            Memory::Bytes(_) => len,
            Memory::Pieces(pieces) => pieces.size(),
        }
    }
}

/// What an operation in flight reads from or writes to.
pub(crate) struct LocalBuffer {
    pub(crate) memory: Memory,
    pub(crate) offset: usize,
    pub(crate) len: usize,
    /// Bytes that messages still have to bring.
    pub(crate) missing: usize,
}

impl LocalBuffer {
    /// Memory that is only held, since a provider uses it.
    pub(crate) fn held(memory: Memory, offset: usize, len: usize) -> LocalBuffer {
        LocalBuffer { memory, offset, len, missing: 0 }
    }

    /// Takes bytes that a message brought; `true`: these were the last.
    pub(crate) fn take(&mut self, position: u64, data: &[u8]) -> Result<bool, Status> {
        let position = usize::try_from(position).map_err(|_| Status::BadData)?;
        let end = position.checked_add(data.len()).ok_or(Status::BadData)?;
        // Pieces come in order, so that no two of them count for the same bytes.
        if position != self.len - self.missing || end > self.len {
            return Err(Status::BadData);
        }
        self.memory.write(self.offset + position, data)?;
        self.missing -= data.len();
        Ok(self.missing == 0)
    }
}
