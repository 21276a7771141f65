//! Pending transfers, each with a number by which handlers and completions find it in constant time.

use crate::Received;
use std::ops::Range;
use std::rc::Rc;
use tieline::{Error, Region, Status};
use tieline_tag::ReceiveId;

pub(crate) type Room = (Rc<Region>, Range<usize>);

/// A receive and its message, or a sent message. Its default state is that of a free number.
#[derive(Default)]
pub(crate) struct Transfer {
    pub(crate) message: Received,
    pub(crate) memory: Memory,
    pub(crate) stage: Stage,
}

/// The memory of a transfer.
#[derive(Default)]
pub(crate) enum Memory {
    #[default]
    None,
    /// The destination that the application has registered.
    Room(Room),
    /// The runtime's buffer, while the library reads from it or writes to it.
    Lent(Region),
}

#[derive(Default)]
pub(crate) enum Stage {
    #[default]
    Free,
    /// The receive waits for a message.
    Posted(ReceiveId),
    Moving,
    Ended,
    Failed(Box<Error>),
}

/// Transfers by number; free numbers are reused first. A free transfer is in its default state, and stays in its place.
#[derive(Default)]
pub(crate) struct Transfers {
    all: Vec<Transfer>,
    free: Vec<usize>,
}

impl Transfers {
    #[inline]
    pub(crate) fn add(&mut self) -> (usize, &mut Transfer) {
        let number = self.free.pop().unwrap_or_else(|| {
            self.all.push(Transfer::default());
            self.all.len() - 1
        });
        (number, &mut self.all[number])
    }

    /// Returns a transfer, unless its number is free.
    #[inline]
    pub(crate) fn get_mut(&mut self, number: usize) -> Option<&mut Transfer> {
        self.all.get_mut(number).filter(|one| !matches!(one.stage, Stage::Free))
    }

    /// Frees the number of a transfer.
    pub(crate) fn free(&mut self, number: usize) {
        if let Some(transfer) = self.get_mut(number) {
            *transfer = Transfer::default();
            self.free.push(number);
        }
    }

    /// Stores a message that a receive has got. `from` is a rank and a tag.
    #[inline(always)] // inlined into the handler
    pub(crate) fn got(
        &mut self,
        number: usize,
        from: (usize, u64),
        payload: &[u8],
    ) -> Result<(), Error> {
        let transfer = self.get_mut(number).ok_or(Status::Invalid)?;
        let Received { source, tag, len, bytes } = &mut transfer.message;
        (*source, *tag, *len) = (from.0, from.1, payload.len());
        transfer.stage = Stage::Ended;
        let Memory::Room((into, range)) = &transfer.memory else {
            bytes.extend_from_slice(payload);
            return Ok(());
        };
        let written = part(range, payload.len()).and_then(|at| into.write(at.start, payload));
        transfer.memory = Memory::None;
        written
    }

    /// Frees a transfer that has ended, and returns its message or its error. `None`: it has not ended.
    #[inline]
    pub(crate) fn take_ended(&mut self, number: usize) -> Option<Result<Received, Error>> {
        let transfer = self.all.get_mut(number)?;
        if !matches!(transfer.stage, Stage::Ended) {
            return self.take_failed(number).map(Err);
        }
        // A transfer that has ended well has no memory any more.
        transfer.stage = Stage::Free;
        let Received { source, tag, len, bytes } = &mut transfer.message;
        let (source, tag, len, bytes) = (*source, *tag, *len, std::mem::take(bytes));
        self.free.push(number);
        Some(Ok(Received { source, tag, len, bytes }))
    }

    #[cold]
    fn take_failed(&mut self, number: usize) -> Option<Error> {
        let Stage::Failed(error) = &mut self.all.get_mut(number)?.stage else { return None };
        let error = std::mem::replace(&mut **error, Status::Canceled.into());
        self.free(number);
        Some(error)
    }
}

/// Returns the part of a range that a message takes.
pub(crate) fn part(room: &Range<usize>, len: usize) -> Result<Range<usize>, Error> {
    let fits = len <= room.len();
    fits.then_some(room.start..room.start + len).ok_or_else(|| Status::OutOfRange.into())
}
