//! Notifications: messages that are sent after other operations have ended well.
//!
//! A notification has two operations of kind [`Kind::Notice`]. The first one, its *gate*, ends with the operations that the
//! notification follows, and its end is watched ([`Table::watch_transfer`]). The second one waits for the gate and ends when the
//! message has been sent; the application holds its request. A notification that follows everything also has a flush, which the gate
//! awaits.
//!
//! Such a notification must not be sent if an operation before it has failed. A flush does not report every failure: not that of a
//! canceled operation, and none that ended before the flush. The list of an endpoint therefore keeps the first failure since the
//! last flush or notification that follows everything, whether the operation's own result reports it or not.

use super::*;

/// The state of an operation that a notification is to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Followed {
    /// The operation has not ended.
    Open,
    /// The operation has succeeded.
    Done,
    /// The operation has failed.
    Failed(Error),
    /// The table does not contain the operation, because its result was taken.
    Taken,
}

impl<B> Table<B> {
    /// Returns the state of an operation, and leaves its result to its holder.
    pub fn followed(&self, id: Id) -> Followed {
        match self.slab.get(id) {
            None => Followed::Taken,
            Some(hot) if !hot.is(ENDED) => Followed::Open,
            Some(hot) if !hot.is(FAILED) => Followed::Done,
            Some(_) => {
                let error = self.slab.cold(id).and_then(|cold| cold.error.clone());
                Followed::Failed(error.unwrap_or_else(|| Status::Closed.into()))
            }
        }
    }

    /// Returns the open operations of all endpoints that this counter counts.
    pub fn counted_by(&self, counter: Id) -> Vec<Id> {
        let lists = self.lists.iter().chain(&self.apart).chain([&self.orphans]);
        let counted = |hot: &Hot| hot.is(COUNTED) && hot.user == counter.raw();
        lists.flat_map(|list| self.ids_from(list.first, counted)).collect()
    }

    /// Takes the failure for which a notification that follows everything must not be sent, and the failure that the next flush
    /// would report.
    pub fn take_failed(&mut self, owner: usize) -> Option<Error> {
        let list = self.lists.get_mut(owner)?;
        let (failed, late) = (list.failed.take(), list.late.take());
        failed.or(late)
    }

    /// Checks whether [`Table::take_failed`] would return a failure.
    pub fn has_failed_before(&self, owner: usize) -> bool {
        let failed = |list: &List| list.failed.is_some() || list.late.is_some();
        self.lists.get(owner).is_some_and(failed)
    }

    /// Records the failure of an operation, for the notifications that follow it. A notification posted before the failure is not
    /// sent. If neither such a notification nor a flush follows the operation, the failure is kept for the next one.
    pub(super) fn note_failure(&mut self, failed: &Hot, error: &Error) {
        let owner = failed.owner() as usize;
        let own = matches!(failed.kind(), Kind::Flush | Kind::Notice | Kind::Key);
        if own || error.status() == Status::Again || owner >= self.lists.len() {
            return;
        }
        let (mut at, mut covered) = (failed.after, false);
        while let Some(id) = self.slab.at(at as usize) {
            let Some(&hot) = self.slab.get(id) else { break };
            if hot.is_kind(Kind::Flush) && self.is_asked_for(id) {
                covered = true;
                if self.is_of_notice(id) {
                    self.spoil(id, error.clone());
                }
            }
            at = hot.after;
        }
        if !covered {
            let _ = self.lists[owner].failed.get_or_insert_with(|| error.clone());
        }
    }

    /// Checks whether this is an operation of the application that only notifications await.
    pub(super) fn is_followed(&self, id: Id) -> bool {
        let own = |hot: &Hot| matches!(hot.kind(), Kind::Flush | Kind::Notice);
        let then = || self.slab.cold(id).map_or(&[][..], |cold| &cold.then);
        !self.slab.get(id).is_none_or(own) && then().iter().all(|id| self.is_notice(*id))
    }

    /// Checks whether a notification waits for this flush.
    fn is_of_notice(&self, flush: Id) -> bool {
        let mut then = self.slab.cold(flush).into_iter().flat_map(|cold| &cold.then);
        then.any(|id| self.is_notice(*id))
    }

    fn is_notice(&self, id: Id) -> bool {
        self.slab.get(id).is_some_and(|hot| hot.is_kind(Kind::Notice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Table = crate::Table<()>;

    fn bare(status: Status) -> Error {
        Error::from_status(status)
    }

    /// Opens a notification that follows everything: its gate.
    fn after_all(table: &mut Table) -> Id {
        let flush = table.open_late(0, Kind::Flush).unwrap();
        let gate = table.open_inner(0, Kind::Notice).unwrap();
        table.then(flush, gate);
        table.watch_transfer(gate);
        table.start_flush(flush, 0, None);
        assert!(!table.part(gate, Ok(0)) || table.has_due());
        gate
    }

    #[test]
    fn gate_ends_with_failure_before_it_and_not_with_later_one() {
        let mut table = Table::new(10);
        let [first, canceled] = [(); 2].map(|()| table.open(0, Kind::Put).unwrap());
        let [gate, also] = [(); 2].map(|()| after_all(&mut table));
        assert!(table.part(first, Ok(0)));
        table.cancel(canceled, bare(Status::Canceled));
        for gate in [gate, also] {
            assert_eq!(table.take_ended_transfer(), Some(gate));
            assert_eq!(table.take(gate), Some(Err(bare(Status::Canceled))));
        }
        assert!(!table.has_failed_before(0), "the notifications have reported it");
        let before = table.open(0, Kind::Put).unwrap();
        let gate = after_all(&mut table);
        let later = table.open(0, Kind::Put).unwrap();
        assert!(table.part(later, Err(bare(Status::Io))) && table.has_failed_before(0));
        assert!(table.take_ended_transfer().is_none() && table.part(before, Ok(0)));
        assert_eq!((table.take_ended_transfer(), table.take(gate)), (Some(gate), Some(Ok(0))));
        let _ = [first, canceled, before, later].map(|id| table.forget(id));
        assert_eq!((table.open_count(), table.slab.count()), (0, 0));
    }

    #[test]
    fn failure_without_flush_is_kept_once_even_if_its_result_was_taken() {
        let mut table = Table::new(10);
        let put = table.open(0, Kind::Put).unwrap();
        assert!(table.part(put, Err(bare(Status::KeyRejected))));
        assert_eq!(table.take(put), Some(Err(bare(Status::KeyRejected))));
        assert!(table.has_failed_before(0));
        assert_eq!(table.take_failed(0), Some(bare(Status::KeyRejected)));
        assert_eq!(table.take_failed(0), None);
        // A flush behind the operation reports the failure, and one after it starts anew.
        for flush_is_open in [true, false] {
            let put = table.open(0, Kind::Put).unwrap();
            let flush = flush_is_open.then(|| table.open(0, Kind::Flush).unwrap());
            let _ = flush.map(|flush| table.start_flush(flush, 0, None));
            assert!(table.part(put, Err(bare(Status::KeyRejected))));
            assert_eq!(table.has_failed_before(0), !flush_is_open);
            table.forget(put);
            assert_eq!(table.take_late(0).is_some(), !flush_is_open);
            assert!(!table.has_failed_before(0));
        }
        // A refusal for lack of space is no failure: the caller posts the operation again.
        let put = table.open(0, Kind::Put).unwrap();
        assert!(table.part(put, Err(bare(Status::Again))));
        assert!(!table.has_failed_before(0));
    }

    #[test]
    fn state_of_followed_operation_leaves_its_result() {
        let mut table = Table::new(10);
        let counter = table.open_counter().unwrap();
        let [done, failed, counted] = [(); 3].map(|()| table.open(3, Kind::Put).unwrap());
        table.count(counted, counter);
        assert_eq!(table.counted_by(counter), [counted]);
        assert_eq!(table.followed(done), Followed::Open);
        assert!(table.part(done, Ok(7)) && table.part(failed, Err(bare(Status::Io))));
        assert_eq!(table.followed(done), Followed::Done);
        assert_eq!(table.followed(failed), Followed::Failed(bare(Status::Io)));
        assert_eq!(table.take(done), Some(Ok(7)));
        assert_eq!(table.take(failed), Some(Err(bare(Status::Io))));
        assert_eq!(
            (table.followed(done), table.followed(failed)),
            (Followed::Taken, Followed::Taken)
        );
        assert!(table.part(counted, Ok(0)));
        assert_eq!(table.counted_by(counter), []);
    }
}
