//! The queue of answers that cannot be sent at present, for example because no file descriptor is left for a connection to the
//! requester.
//!
//! The answers are kept and retried for the time that forming a connection may take. Then the worker tries to disconnect the peer,
//! so that the peer's request ends with an error and does not wait forever.

use crate::Status;
use crate::proto::{Origin, emulate::Answer};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

/// The maximum number of kept answers, of all peers together. The answers of failed endpoints may exceed it until the next progress
/// call. Most answers take a few dozen bytes.
const MOST: usize = 65_536;

/// A kept answer.
pub(super) struct Debt {
    pub(super) to: Origin,
    pub(super) answer: Answer,
    /// The time of the first failed attempt, on the clock of `Wiring::now`.
    pub(super) since: u64,
    /// The error of the last attempt.
    pub(super) status: Status,
}

/// The kept answers of a worker. No answer is sent and no peer disconnected while the cell is borrowed: both may access it again.
#[derive(Default)]
pub(super) struct Owed {
    pub(super) debts: RefCell<VecDeque<Debt>>,
}

impl Owed {
    pub(super) fn is_empty(&self) -> bool {
        self.debts.borrow().is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.debts.borrow().len()
    }

    /// Returns the number of kept answers; `None` while they are borrowed for a change.
    pub(super) fn try_len(&self) -> Option<usize> {
        Some(self.debts.try_borrow().ok()?.len())
    }

    /// Checks whether the kept answers and `coming` more exceed the maximum.
    pub(super) fn is_beyond_bound(&self, coming: usize) -> bool {
        self.debts.borrow().len() + coming > MOST
    }

    /// Returns the number of kept answers, by peer.
    pub(super) fn by_peer(&self) -> BTreeMap<u32, usize> {
        let mut counts = BTreeMap::new();
        for debt in self.debts.borrow().iter() {
            *counts.entry(debt.to.peer).or_default() += 1;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_answers_are_kept_and_each_is_counted_for_its_peer() {
        let owed = Owed::default();
        assert!(owed.is_empty());
        assert_eq!([MOST, MOST + 1].map(|coming| owed.is_beyond_bound(coming)), [false, true]);
        for peer in [3, 1, 3] {
            let to = Origin { peer, circuit: None };
            let answer = Answer::reply(1, Ok(0));
            owed.debts.borrow_mut().push_back(Debt { to, answer, since: 0, status: Status::Io });
        }
        assert_eq!((owed.is_empty(), owed.len()), (false, 3));
        assert_eq!(owed.by_peer().into_iter().collect::<Vec<_>>(), [(1, 1), (3, 2)]);
        assert_eq!([MOST - 3, MOST - 2].map(|coming| owed.is_beyond_bound(coming)), [false, true]);
    }
}
