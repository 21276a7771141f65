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

    #[inline]
    pub(crate) fn has_ended(&self, number: usize) -> bool {
        let stage = self.all.get(number).map(|one| &one.stage);
        matches!(stage, Some(Stage::Ended | Stage::Failed(_)))
    }

    /// Frees a transfer that has ended, and returns its message or its error.
    #[inline(always)] // inlined into `Runtime::waited`
    pub(crate) fn take_ended(&mut self, number: usize) -> Result<Received, Error> {
        let transfer = self.all.get_mut(number).ok_or(Status::Invalid)?;
        if let Stage::Ended = transfer.stage {
            let message = std::mem::take(&mut transfer.message);
            transfer.stage = Stage::Free;
            self.free.push(number);
            return Ok(message);
        }
        let failure = match &mut transfer.stage {
            Stage::Failed(error) => std::mem::replace(&mut **error, Status::Canceled.into()),
            _ => return Err(Status::Invalid.into()),
        };
        self.free(number);
        Err(failure)
    }
}
