//! Operations whose end is reported without a request: in the completion list with the application's value, in the order of their
//! ends, or by a counter.

use super::*;

/// An entry of the completion list.
pub(super) enum Completed {
    /// The number of an ended operation. The operation stays in the table until the application takes it, because a provider may
    /// still supply the error text.
    Ended(Id),
    /// The value of an operation that had ended before the application's word was set.
    Done { user: u64, value: u64 },
}

/// The state of a counter.
#[derive(Clone, Copy, Default)]
pub struct Counts {
    /// The number of operations that have succeeded.
    pub done: u64,
    /// The number of operations that have failed.
    pub failed: u64,
    /// The number of pending operations.
    pub open: u64,
    /// The values of `done` and `failed` at the last mark.
    pub marked: (u64, u64),
    first_failed: Option<Id>,
}

impl<B> Table<B> {
    /// Makes the completion list report the end of this operation.
    pub fn track(&mut self, id: Id, user: u64) {
        self.watch(id, TRACKED, user);
    }

    /// Makes a counter report the end of this operation.
    pub fn count(&mut self, id: Id, counter: Id) {
        if let Some(counts) = self.counters.cold_mut(counter) {
            counts.open += 1;
        }
        self.watch(id, COUNTED, counter.raw());
    }

    fn watch(&mut self, id: Id, how: u16, user: u64) {
        let Some(hot) = self.slab.get_mut(id) else { return };
        hot.set(how);
        hot.user = user;
        if hot.is(ENDED) {
            self.told_by_list_or_counter(id);
        }
    }

    /// Reports an operation that succeeded within the posting call and has no number in the table.
    pub fn track_done(&mut self, user: u64, value: u64) {
        self.complete(Completed::Done { user, value });
    }

    /// Counts an operation that succeeded within the posting call and has no number in the table.
    pub fn count_done(&mut self, counter: Id) {
        if let Some(counts) = self.counters.cold_mut(counter) {
            counts.done += 1;
        }
    }

    /// Reports the end of a tracked or counted operation, or marks a watched transfer as due.
    pub(super) fn told_by_list_or_counter(&mut self, id: Id) {
        let Some(hot) = self.slab.get(id) else { return };
        if hot.is(TAKES) {
            return self.due.push(id);
        }
        if hot.is(TRACKED) {
            return self.complete(Completed::Ended(id));
        }
        let (failed, counter) = (hot.is(FAILED), hot.user);
        let Some(counts) = Id::from_raw(counter).and_then(|id| self.counters.cold_mut(id)) else {
            // The counter is closed, so the next flush reports the failure.
            return self.forget_ended(id);
        };
        counts.open -= 1;
        if !failed {
            counts.done += 1;
        } else {
            counts.failed += 1;
            let first = *counts.first_failed.get_or_insert(id);
            self.told(id);
            if first == id {
                return;
            }
        }
        self.forget_ended(id);
    }

    /// Checks whether the completion list or a counter reports the result, so that it is not requested. An operation that is not in
    /// the table counts as reported.
    pub fn is_told(&self, id: Id) -> bool {
        self.slab.get(id).is_none_or(|hot| hot.is(TRACKED | COUNTED))
    }

    /// Checks whether the completion list has entries.
    pub fn has_completed(&self) -> bool {
        !self.completed.is_empty()
    }

    /// Returns the length of the completion list.
    pub fn completed_count(&self) -> usize {
        self.completed.len()
    }

    /// Takes the entry that ended first.
    pub fn take_completed(&mut self) -> Option<(u64, Result<u64, Error>)> {
        let next = self.completed.pop_front()?;
        if self.completed.is_empty() {
            // The capacity follows the greatest length since the list was last empty, so that the next round of the same length
            // needs no allocation.
            let most = std::mem::take(&mut self.most_completed).max(MOST_KEPT);
            self.completed.shrink_to(most);
        }
        let id = match next {
            Completed::Done { user, value } => return Some((user, Ok(value))),
            Completed::Ended(id) => id,
        };
        let user = self.slab.get(id).map_or(0, |hot| hot.user);
        let result = self.result(id)?;
        self.forget_ended(id);
        Some((user, result))
    }

    fn complete(&mut self, completed: Completed) {
        self.completed.push_back(completed);
        self.most_completed = self.most_completed.max(self.completed.len());
    }

    /// Opens a counter.
    pub fn open_counter(&mut self) -> Option<Id> {
        self.counters.insert(())
    }

    /// Sets the mark of a counter to its present values, and forgets the first failure.
    pub fn mark_counter(&mut self, counter: Id) {
        let Some(counts) = self.counters.cold_mut(counter) else { return };
        counts.marked = (counts.done, counts.failed);
        if let Some(id) = counts.first_failed.take() {
            self.forget_ended(id);
        }
    }

    /// Closes a counter that has no holder any more.
    pub fn close_counter(&mut self, counter: Id) {
        let first_failed = self.counters.remove(counter).and_then(|counts| counts.first_failed);
        if let Some(id) = first_failed {
            self.forget_ended(id);
        }
    }

    /// Returns the values of a counter.
    pub fn counts(&self, counter: Id) -> Counts {
        self.counters.cold(counter).copied().unwrap_or_default()
    }

    /// Returns the error of the first failed operation that the counter has counted since its last mark.
    pub fn first_failure(&self, counter: Id) -> Option<Error> {
        let id = self.counters.cold(counter)?.first_failed?;
        self.slab.cold(id)?.error.clone()
    }
}

/// The capacity up to which a list that becomes empty is not shrunk; a greater length in the last round keeps more.
const MOST_KEPT: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    type Table = crate::Table<()>;

    #[test]
    fn room_for_many_completions_stays_for_one_round_and_is_given_back_then() {
        let mut table = Table::new(10);
        for done in [true, false] {
            for word in 0..100_000 {
                match done {
                    true => table.track_done(word, 0),
                    false => {
                        let id = table.open_inner(0, Kind::Send).unwrap();
                        table.track(id, word);
                        assert!(table.part(id, Ok(word)));
                    }
                }
            }
            assert!(
                (0..100_000).all(|word| table.take_completed().is_some_and(|next| next.0 == word))
            );
            assert!(table.take_completed().is_none() && !table.has_completed());
            table.track_done(7, 8);
            assert_eq!(table.take_completed(), Some((7, Ok(8))));
            assert!(table.completed.capacity() <= 2 * MOST_KEPT);
            assert_eq!(table.slab.count(), 0);
        }
    }
}
