//! *Plain* operations, whose cold part is empty: the core holds no memory for them, they have no error, and no other operation
//! contains them. Short puts, whose bytes the provider has copied, and queued messages are such operations. Their 32 bytes also
//! store the result. An operation whose cold part holds only its memory becomes plain when it ends.
//!
//! A change of the cold part ([`Table::cold_mut`]) turns a plain operation into a general one.

use super::*;

/// The flags of a put that a provider has, without further state.
const POSTED_PLAIN: u16 = (Kind::Native as u16) << KIND_SHIFT | POSTED | PLAIN;

/// The flags of a message in a queue, and of one whose result is not requested.
const QUEUED_PLAIN: u16 = (Kind::Send as u16) << KIND_SHIFT | PLAIN;
const QUEUED_FORGOTTEN: u16 = QUEUED_PLAIN | DETACHED;

/// The flags of a posted put whose memory is kept; the cold part holds only that memory.
const POSTED_HELD: u16 = POSTED_PLAIN & !PLAIN;

/// The flags of a plain operation that has ended successfully; the slot holds its value.
pub(super) const ENDED_PLAIN: u16 = POSTED_PLAIN & !POSTED | ENDED;

impl<B> Table<B> {
    /// Opens an operation that is posted to this interface immediately and needs no memory kept. `Again`: the endpoint already has
    /// `limit` open operations.
    #[inline]
    pub fn open_plain(&mut self, owner: usize, interface: usize) -> Result<Id, Status> {
        self.open_posted(owner, interface, POSTED_PLAIN)
    }

    /// Opens a plain operation for a message that waits in a queue.
    pub fn open_queued(&mut self, owner: usize) -> Result<Id, Status> {
        self.open_with(owner, Kind::Send, PLAIN)
    }

    /// Opens an operation that is posted to this interface immediately and whose memory is kept until it has ended.
    #[inline(always)] // a call costs every put of a region
    pub fn open_held(&mut self, owner: usize, interface: usize, memory: B) -> Result<Id, Status> {
        let id = self.open_posted(owner, interface, POSTED_HELD)?;
        if let Some(cold) = self.slab.cold_of_new(id) {
            // The cold part of a new operation is empty, so nothing has to be dropped.
            std::mem::forget(cold.local_buffer.replace(memory));
        }
        Ok(id)
    }

    #[inline(always)]
    fn open_posted(
        &mut self,
        owner: usize,
        interface: usize,
        kind_and_flags: u16,
    ) -> Result<Id, Status> {
        if owner >= apart::APART as usize {
            return Err(Status::NoMemory);
        }
        let limit = self.limit;
        let list = self.own_list(owner);
        if list.open >= limit {
            return Err(Status::Again);
        }
        let before = list.last;
        let owner_and_interface = owner as u32 | (narrow(interface) as u32) << 24;
        let after = NONE;
        let hot = Hot { kind_and_flags, parts: 1, owner_and_interface, before, after, user: 0 };
        let id = self.slab.insert(hot).ok_or(Status::NoMemory)?;
        let at = id.place() as u32;
        self.open += 1;
        let list = &mut self.lists[owner];
        (list.last, list.open) = (at, list.open + 1);
        if before == NONE {
            list.first = at;
        } else if let Some(hot) = self.slab.at_mut(before as usize) {
            hot.after = at;
        }
        Ok(id)
    }

    /// Records the success of an operation at the interface to which it was posted, as the provider reports it. `None`: nothing has
    /// changed; [`Table::completed`] handles the report. `Some(true)`: the operation had memory, or a flush has reached the head;
    /// the caller must then release and flush as `Shared::with_ops` does.
    #[inline(always)] // its caller loops over several reports
    pub fn completed_plain(&mut self, cookie: u64, interface: usize, value: u64) -> Option<bool> {
        let id = Id::from_raw(cookie)?;
        let hot = self.slab.get_mut(id)?;
        if hot.parts != 1 || usize::from(hot.interface()) != narrow(interface) {
            return None;
        }
        if hot.kind_and_flags != POSTED_PLAIN {
            return self.completed_held(id, value);
        }
        let (owner, before, after) = (hot.owner(), hot.before, hot.after);
        hot.kind_and_flags = ENDED_PLAIN;
        hot.set_value(value);
        Some(self.ended_plain(owner, before, after))
    }

    /// Records that a queued message has been sent; results as in [`Table::completed_plain`], with [`Table::part`] for `None`.
    pub fn sent_plain(&mut self, id: Id) -> Option<bool> {
        let hot = self.slab.get_mut(id).filter(|hot| hot.parts == 1)?;
        let (owner, before, after) = (hot.owner(), hot.before, hot.after);
        match hot.kind_and_flags {
            QUEUED_PLAIN => {
                hot.kind_and_flags = ENDED_PLAIN;
                hot.set_value(0);
            }
            QUEUED_FORGOTTEN => self.slab.remove_hot(id),
            _ => return None,
        }
        Some(self.ended_plain(owner, before, after))
    }

    /// Records the success of an operation that becomes plain when its memory is released.
    #[inline(never)]
    fn completed_held(&mut self, id: Id, value: u64) -> Option<bool> {
        let (hot, cold) = self.slab.both_mut(id)?;
        if hot.kind_and_flags != POSTED_HELD || cold.is_more_than_memory() {
            return None;
        }
        let (owner, before, after) = (hot.owner(), hot.before, hot.after);
        hot.kind_and_flags = ENDED_PLAIN;
        hot.set_value(value);
        if let Some(memory) = cold.local_buffer.take() {
            self.freed.push((memory, Some(value)));
        }
        let _ = self.ended_plain(owner, before, after);
        Some(true)
    }

    /// Records the end of a plain operation between these neighbours. Returns whether a flush reached the head as a result.
    #[inline(always)]
    fn ended_plain(&mut self, owner: u32, before: u32, after: u32) -> bool {
        self.open -= 1;
        let head = self.unlink_between(owner, before, after);
        if let Some(head) = head {
            self.at_head(head);
            self.run();
        }
        head.is_some()
    }

    /// Takes the value of a plain operation that has succeeded, and removes the operation. `None`: the operation has not ended, is
    /// not plain or is not in the table.
    #[inline(always)]
    pub fn take_plain(&mut self, id: Id) -> Option<u64> {
        let mut value = 0;
        let is = |hot: &Hot| {
            value = hot.value();
            hot.kind_and_flags == ENDED_PLAIN
        };
        self.slab.remove_hot_if(id, is).then_some(value)
    }

    /// Returns the cold part of an operation, mutable; the operation is not plain afterwards.
    pub(super) fn cold_mut(&mut self, id: Id) -> Option<&mut Cold<B>> {
        if let Some(hot) = self.slab.get_mut(id) {
            hot.kind_and_flags &= !PLAIN;
        }
        self.slab.cold_mut(id)
    }
}

impl<B> Cold<B> {
    /// Checks whether the operation's end requires more than the release of its memory.
    #[inline]
    pub(super) fn is_more_than_memory(&self) -> bool {
        // No endpoint carries a request for an operation that a provider has, or for a rendezvous message. An index matters to
        // the list in `then`.
        let Cold { local_buffer: _, carrier: _, index: _, error, wanted_back, lanes, then } = self;
        error.is_some() || *wanted_back || *lanes != 0 || !then.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    type Table = crate::Table<Rc<[u8]>>;

    fn bare(status: Status) -> Error {
        Error::from_status(status)
    }

    /// Completes an operation as the worker does: an operation that is not plain ends through the general path.
    fn completed(table: &mut Table, id: Id, interface: usize, result: Result<u64, Error>) -> bool {
        let plain = match &result {
            Ok(value) => table.completed_plain(id.raw(), interface, *value).is_some(),
            Err(_) => false,
        };
        plain || table.completed(id.raw(), interface, result)
    }

    #[test]
    fn an_operation_with_nothing_beside_it_ends_as_any_other() {
        let mut table = Table::new(4);
        let open = |table: &mut Table| table.open_plain(3, 1).unwrap();
        let puts = [(); 3].map(|()| open(&mut table));
        let covers = table.open(3, Kind::Flush).unwrap();
        table.start_flush(covers, 0, None);
        assert_eq!((table.open_plain(3, 1), table.open_of(3)), (Err(Status::Again), 4));
        assert!(!completed(&mut table, puts[0], 2, Ok(0)), "it is posted to another interface");
        for put in [puts[1], puts[2]] {
            assert!(completed(&mut table, put, 1, Ok(7)));
            assert!(!completed(&mut table, put, 1, Ok(7)), "it ends once");
            assert_eq!((table.take_plain(put), table.take_plain(puts[0])), (Some(7), None));
            assert_eq!(table.take(put).unwrap().unwrap_err().status(), Status::Closed);
        }
        assert!(table.is_open(covers) && completed(&mut table, puts[0], 1, Ok(0)));
        assert_eq!((table.result(covers), table.open_of(3)), (Some(Ok(0)), 0));
        table.forget(puts[0]);
        table.forget(covers);
        // One operation fails, one loses its request, one is tracked, and one is withdrawn.
        let [bad, dropped, tracked, withdrawn] = [(); 4].map(|()| open(&mut table));
        table.forget(dropped);
        table.track(tracked, 17);
        table.withdraw(withdrawn);
        assert!(completed(&mut table, bad, 1, Err(bare(Status::Io))));
        assert!(
            completed(&mut table, dropped, 1, Ok(0)) && completed(&mut table, tracked, 1, Ok(8))
        );
        assert_eq!(table.take(bad), Some(Err(bare(Status::Io))));
        assert_eq!(table.take_completed(), Some((17, Ok(8))));
        assert_eq!((table.open_count(), table.open_of(3)), (0, 0));
        // One operation ends with its endpoint.
        let lost = open(&mut table);
        assert_eq!(table.fail_owner(3, &bare(Status::PeerFailed)).len(), 1);
        assert!(table.take(lost).is_some_and(|result| result.is_err()));
    }

    #[test]
    fn a_queued_message_ends_when_it_has_left_whether_anybody_asks_or_not() {
        let mut table = Table::new(8);
        let [asked, dropped, failed, tracked, last] =
            [(); 5].map(|()| table.open_queued(3).unwrap());
        let covers = table.open(3, Kind::Flush).unwrap();
        table.start_flush(covers, 0, None);
        table.forget(dropped);
        table.track(tracked, 17);
        assert!(!table.completed(asked.raw(), 0, Ok(0)), "no provider has it");
        assert_eq!([asked, dropped].map(|id| table.sent_plain(id)), [Some(false); 2]);
        assert_eq!([asked, dropped].map(|id| table.sent_plain(id)), [None; 2], "it ends once");
        assert_eq!((table.take(asked), table.open_of(3)), (Some(Ok(0)), 4));
        // A tracked or failed operation ends through the general path.
        assert_eq!(table.sent_plain(tracked), None);
        assert!(table.part(tracked, Ok(0)) && table.part(failed, Err(bare(Status::TooLarge))));
        assert_eq!(table.take_completed(), Some((17, Ok(0))));
        assert_eq!(table.take(failed), Some(Err(bare(Status::TooLarge))));
        assert!(table.is_open(covers));
        assert_eq!(table.sent_plain(last), Some(true), "a flush was next behind it");
        assert!(table.result(covers).is_some());
        table.forget(covers);
        table.forget(last);
        assert_eq!((table.open_count(), table.open_of(3)), (0, 0));
    }

    #[test]
    fn one_with_memory_keeps_it_until_it_has_ended_and_no_longer() {
        let mut table = Table::new(8);
        let bytes: Rc<[u8]> = [7; 8].into();
        let open = |table: &mut Table| table.open_held(3, 1, bytes.clone()).unwrap();
        let kept = || Rc::strong_count(&bytes) - 1;
        let [plain, tracked, failed, wanted, dropped] = [(); 5].map(|()| open(&mut table));
        assert_eq!((kept(), table.open_of(3)), (5, 5));
        assert_eq!(table.completed_plain(plain.raw(), 2, 0), None, "posted elsewhere");
        assert_eq!((table.completed_plain(plain.raw(), 1, 9), kept()), (Some(true), 5));
        drop(table.take_freed());
        assert_eq!((kept(), table.take_plain(plain)), (4, Some(9)));
        // If an operation's end requires further work, the general path does that work.
        table.track(tracked, 17);
        table.forget(dropped);
        table.want_back(wanted);
        for id in [tracked, wanted, dropped] {
            assert_eq!(table.completed_plain(id.raw(), 1, 8), None);
            assert!(table.completed(id.raw(), 1, Ok(8)));
            drop(table.take_freed());
        }
        assert!(table.completed(failed.raw(), 1, Err(bare(Status::Io))));
        drop(table.take_freed());
        assert_eq!((kept(), table.open_count()), (0, 0));
        assert_eq!(table.take_completed(), Some((17, Ok(8))));
        assert_eq!(
            (table.take(failed), table.take(wanted)),
            (Some(Err(bare(Status::Io))), Some(Ok(8)))
        );
        // A flush follows the operation, and another operation waits for it.
        let last = open(&mut table);
        let waits = table.open(3, Kind::Whole).unwrap();
        table.then(last, waits);
        assert_eq!(table.completed_plain(last.raw(), 1, 0), None);
        assert!(table.completed(last.raw(), 1, Ok(0)) && table.is_open(waits));
    }

    #[test]
    fn memory_of_operation_ended_by_next_flush_is_released_by_caller() {
        let mut table = Table::new(8);
        let whole = table.open(7, Kind::Whole).unwrap();
        table.set_local_buffer(whole, [1; 8].into());
        let put = table.open_plain(3, 1).unwrap();
        let part = table.open_part(whole, 3, Kind::Flush).unwrap();
        table.start_flush(part, 0, None);
        assert!(!table.part(whole, Ok(0)), "it waits for the flush");
        assert_eq!(table.completed_plain(put.raw(), 1, 0), Some(true));
        assert_eq!(table.result(whole), Some(Ok(0)));
        assert!(table.take_freed().is_some() && table.take_freed().is_none());
        assert_eq!(table.open_count(), 0);
    }
}
