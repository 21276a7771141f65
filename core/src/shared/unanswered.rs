//! The small puts and gets that were sent as messages although a lane reaches the memory, and that the peer's worker has not
//! answered yet.
//!
//! The number of these requests is limited: a peer that breaks its promise to poll must not accumulate thousands of requests that a
//! lane could have served.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use tieline_order::{Id, Table};

/// The maximum number of unanswered requests per peer worker, over all endpoints.
const FEW: usize = 16;

/// The unanswered requests to one worker, including some that have ended.
#[derive(Default)]
pub(crate) struct Unanswered(RefCell<Vec<Id>>);

impl Unanswered {
    /// Checks whether another request may be sent.
    pub(crate) fn is_few<B>(&self, ops: &Table<B>) -> bool {
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

/// All unanswered requests of a worker, by the peer's worker.
#[derive(Default)]
pub(super) struct AllUnanswered(RefCell<HashMap<[u8; 16], Weak<Unanswered>>>);

impl AllUnanswered {
    /// Returns the unanswered requests to one worker. The entry exists while an endpoint holds it.
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
    use tieline_order::Kind;

    #[test]
    fn few_may_be_unanswered_and_those_that_have_ended_make_room() {
        let (mut ops, asked) = (Table::<()>::new(100), Unanswered::default());
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
    fn unanswered_requests_are_counted_per_worker_while_it_has_endpoints() {
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
