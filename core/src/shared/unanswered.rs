//! Small puts and gets that went by messages although a lane leads to the memory, and that the peer's worker has yet to answer.
//!
//! They are few: a peer that has promised to poll answers one in less than a microsecond, and who does not poll is not to find
//! thousands of questions, nor to keep as many answers, for what needed none.

use crate::op::{Id, Table};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};

/// So many may be unanswered by one worker, whatever endpoints they were posted on.
const FEW: usize = 16;

/// Those that one worker has yet to answer, and some that have ended.
#[derive(Default)]
pub(crate) struct Unanswered(RefCell<Vec<Id>>);

impl Unanswered {
    /// Whether there may be another one.
    pub(crate) fn is_few(&self, ops: &Table) -> bool {
        let mut asked = self.0.borrow_mut();
        if asked.len() >= FEW {
            asked.retain(|id| ops.is_open(*id));
        }
        asked.len() < FEW
    }

    pub(crate) fn add(&self, asked: Id) {
        self.0.borrow_mut().push(asked);
    }
}

/// All that a worker waits for so, by the peer's worker.
#[derive(Default)]
pub(super) struct AllUnanswered(RefCell<HashMap<[u8; 16], Weak<Unanswered>>>);

impl AllUnanswered {
    /// Those of one worker. It is known while an endpoint leads there.
    pub(super) fn by(&self, worker: &[u8; 16]) -> Rc<Unanswered> {
        let mut known = self.0.borrow_mut();
        if let Some(there) = known.get(worker).and_then(Weak::upgrade) {
            return there;
        }
        if known.len() == known.capacity() {
            known.retain(|_, there| there.strong_count() > 0);
        }
        let new = Rc::new(Unanswered::default());
        let _ = known.insert(*worker, Rc::downgrade(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Kind;

    #[test]
    fn few_may_be_unanswered_and_those_that_have_ended_make_room() {
        let (mut ops, asked) = (Table::new(100), Unanswered::default());
        let ids: Vec<Id> = (0..FEW).map(|_| ops.open(0, Kind::Get).unwrap()).collect();
        for id in &ids {
            assert!(asked.is_few(&ops));
            asked.add(*id);
        }
        assert!(!asked.is_few(&ops));
        ops.withdraw(ids[3]);
        assert!(asked.is_few(&ops));
        asked.add(ops.open(0, Kind::Put).unwrap());
        assert!(!asked.is_few(&ops));
    }

    #[test]
    fn all_endpoints_to_a_worker_count_together_and_a_worker_without_any_is_forgotten() {
        let all = AllUnanswered::default();
        let kept = all.by(&[1; 16]);
        assert!(Rc::ptr_eq(&kept, &all.by(&[1; 16])));
        assert!(!Rc::ptr_eq(&kept, &all.by(&[2; 16])));
        for worker in 0..1000u64 {
            let _ = all.by(&u128::from(worker).to_le_bytes());
        }
        assert!(Rc::ptr_eq(&kept, &all.by(&[1; 16])));
        assert!(all.0.borrow().capacity() < 100, "{}", all.0.borrow().capacity());
    }
}
