//! The local memory of operations, which the operation table keeps until they have ended.

use super::key::KeyName;
use super::pieces::Pieces;
use super::region::Region;
use crate::Status;
use crate::sys::Span;
use std::rc::Rc;
use tieline_host::abi::PackBuffer;

/// The local memory of an operation in flight.
#[derive(Clone)]
pub(crate) enum Memory {
    /// A region, which the operation keeps alive.
    Region(Region),
    /// A copy of bytes that the caller may already reuse.
    Bytes(Rc<[u8]>),
    /// Pieces of regions, treated as one range.
    Pieces(Rc<Pieces>),
    /// The regions of a list that a module carries out with one completion. A region of adjacent descriptors is here once.
    List(Rc<[Region]>),
    /// Memory of the application in no region, which the caller has promised to keep until the operation has ended.
    Raw(Span),
    /// The place for the value of an atomic, with the same promise.
    Value(Span),
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
            Memory::Raw(span) => span.range(at, len),
            Memory::Pieces(_) | Memory::List(_) | Memory::Value(_) => Err(Status::Invalid),
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
            Memory::Raw(span) => out.put_span(span, at, len),
            Memory::List(_) | Memory::Value(_) => Err(Status::Invalid),
        }
    }

    /// Writes the data of a message into the memory. Copied bytes are read-only, so for them this is an error.
    fn write(&self, at: usize, data: &[u8]) -> Result<(), Status> {
        match self {
            Memory::Region(region) => region.inner.span.write(at, data),
            Memory::Raw(span) => span.write(at, data),
            Memory::Bytes(_) | Memory::List(_) | Memory::Value(_) => Err(Status::BadData),
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
            _ => len,
        }
    }

    /// Returns the bytes of `queue_bytes` that a queued operation of `len` bytes takes, in addition to its own entry.
    pub(crate) fn room(&self, len: usize) -> usize {
        match self {
            Memory::Region(_) | Memory::List(_) | Memory::Raw(_) | Memory::Value(_) => 0,
            Memory::Bytes(_) => len,
            Memory::Pieces(pieces) => pieces.size(),
        }
    }
}

/// Stores a value in a place of 4 or 8 bytes.
pub(crate) fn store(place: &Span, value: u64) {
    // The place was made with one of these lengths, so the range lies inside it.
    let _ = match place.len() {
        4 => place.write(0, &(value as u32).to_ne_bytes()),
        _ => place.write(0, &value.to_ne_bytes()),
    };
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

    /// Checks whether a module may access the memory by a key.
    pub(crate) fn is_registered(&self) -> bool {
        match &self.memory {
            Memory::Region(region) => region.has_keys_of_modules(),
            Memory::List(regions) => regions.iter().any(Region::has_keys_of_modules),
            _ => false,
        }
    }

    /// Checks whether the operation is a list, whose failure names the part that failed.
    pub(crate) fn is_of_list(&self) -> bool {
        matches!(self.memory, Memory::List(_))
    }

    /// Stores the value of an operation that has succeeded, if it has a place for the value.
    #[inline]
    pub(crate) fn store(&self, value: u64) {
        if let Memory::Value(place) = &self.memory {
            store(place, value);
        }
    }

    /// Makes the record of a request for a key by its name, by the endpoint with the number `of`.
    pub(crate) fn for_key_request(of: u64, name: KeyName) -> LocalBuffer {
        let (kind, word) = match name {
            KeyName::Handle(handle) => (0u64, handle),
            KeyName::Number(number) => (1, number),
        };
        let asks = [of, kind, word].map(u64::to_le_bytes).concat();
        LocalBuffer::held(Memory::Bytes(asks.into()), 0, 24)
    }

    /// Returns the number of the requesting endpoint, and the name of the key.
    pub(crate) fn key_request(&self) -> Option<(u64, KeyName)> {
        let Memory::Bytes(asks) = &self.memory else { return None };
        let word =
            |at: usize| Some(u64::from_le_bytes(asks.get(at * 8..)?.first_chunk().copied()?));
        let (of, kind, word) = (word(0)?, word(1)?, word(2)?);
        Some((of, if kind == 0 { KeyName::Handle(word) } else { KeyName::Number(word) }))
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
