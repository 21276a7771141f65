//! The queue of answers that cannot be given at the moment: the owner of some memory was asked over a way in, and has no way back,
//! for want of a descriptor say.
//!
//! They are kept and tried again for as long as forming a connection may take. A peer that cannot be told by then is
//! hung up on, so that it ends what it asked with an error: nobody waits for an answer that does not come.

use crate::Status;
use crate::proto::{Origin, emulate::Answer};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

/// Answers that are kept, of all peers together. Each is a few dozen bytes.
const MOST: usize = 65_536;

/// One of them.
pub(super) struct Debt {
    pub(super) to: Origin,
    pub(super) answer: Answer,
    /// When it could not be given for the first time, on the clock of the wiring.
    pub(super) since: u64,
    /// Why it could not be given last.
    pub(super) status: Status,
}

/// The answers that are owed. Nobody is answered or hung up on while they are borrowed: both may come back here.
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

    /// Whether these, and so many that come, are more than are kept.
    pub(super) fn is_beyond_bound(&self, coming: usize) -> bool {
        self.debts.borrow().len() + coming > MOST
    }

    /// How many answers are owed, by peer.
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
