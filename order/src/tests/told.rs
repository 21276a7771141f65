//! Tests of reports of operations, of queries about them, and of memory that providers still have.

use super::super::held::{Held, Through, Unfinished};
use super::*;

#[test]
fn a_counter_counts_each_end_and_knows_the_first_failure() {
    let mut table = Table::new(100);
    let counter = table.open_counter().unwrap();
    let ids = [0; 3].map(|_| table.open(0, Kind::Put).unwrap());
    ids.iter().for_each(|id| table.count(*id, counter));
    let counts = |table: &Table| {
        let counts = table.counts(counter);
        (counts.open, counts.done, counts.failed)
    };
    assert_eq!(counts(&table), (3, 0, 0));
    assert!(table.part(ids[0], Ok(1)));
    assert_eq!(counts(&table), (2, 1, 0));
    assert!(table.part(ids[2], Err(bare(Status::KeyRejected))));
    assert!(table.part(ids[1], Err(bare(Status::Io))));
    assert_eq!(counts(&table), (0, 1, 2));
    table.count_done(counter);
    assert_eq!(counts(&table), (0, 2, 2));
    assert_eq!(table.first_failure(counter), Some(bare(Status::KeyRejected)));
    assert_eq!(table.take_late(0), None, "the counter tells it");
    // After a mark, the counter knows the first failure of the next batch.
    let next = [0; 2].map(|_| table.open(0, Kind::Put).unwrap());
    next.iter().for_each(|id| table.count(*id, counter));
    table.mark_counter(counter);
    assert_eq!((table.counts(counter).marked, table.first_failure(counter)), ((2, 2), None));
    assert_eq!(table.take(ids[2]), Some(Err(bare(Status::Closed))), "its error is forgotten");
    assert!(table.part(next[1], Ok(0)));
    assert!(table.part(next[0], Err(bare(Status::TimedOut))));
    assert_eq!((counts(&table), table.counts(counter).marked), ((0, 3, 3), (2, 2)));
    assert_eq!(table.first_failure(counter), Some(bare(Status::TimedOut)));
    table.close_counter(counter);
    assert_eq!((counts(&table), table.first_failure(counter)), ((0, 0, 0), None));
    assert_eq!(table.take_late(0), None);
    // The next flush reports the failure if the counter is closed.
    let gone = table.open_counter().unwrap();
    let late = table.open(0, Kind::Put).unwrap();
    table.count(late, gone);
    table.close_counter(gone);
    assert!(table.part(late, Err(bare(Status::Io))));
    assert_eq!(table.take_late(0), Some(bare(Status::Io)));
}

#[test]
fn tracked_operations_are_listed_in_order_of_completion() {
    let mut table = Table::new(100);
    let [first, second, asked] = [0; 3].map(|_| table.open(0, Kind::Put).unwrap());
    table.track(first, 11);
    table.track(second, 22);
    assert_eq!([first, second, asked].map(|id| table.is_told(id)), [true, true, false]);
    assert!(table.part(second, Err(bare(Status::Io))) && table.part(first, Ok(5)));
    table.track_done(33, 6);
    assert!(table.part(asked, Ok(7)));
    table.track(asked, 44);
    assert_eq!(table.completed_count(), 4);
    let told: Vec<_> = std::iter::from_fn(|| table.take_completed()).collect();
    let io = Err(bare(Status::Io));
    assert_eq!(told, [(22, io), (11, Ok(5)), (33, Ok(6)), (44, Ok(7))]);
    assert!(table.is_told(first) && !table.has_completed(), "nothing is left of it");
    assert_eq!(table.take_late(0), None);
}

#[test]
fn an_end_brings_its_value_unless_it_is_to_bring_none() {
    let mut table = Table::new(100);
    let [says, silent] = [0; 2].map(|_| table.open(0, Kind::Fetch).unwrap());
    table.silence(silent);
    for id in [says, silent] {
        assert!(table.part(id, Ok(u64::MAX - 1)));
    }
    assert_eq!((table.take(says), table.take(silent)), (Some(Ok(u64::MAX - 1)), Some(Ok(0))));
    assert_eq!(table.take(says), Some(Err(bare(Status::Closed))), "it was taken");
    let failed = table.open(0, Kind::Fetch).unwrap();
    assert!(!table.has_failed(failed));
    assert!(table.part(failed, Err(bare(Status::Io))));
    assert!(table.has_failed(failed));
}

#[test]
fn oldest_operation_is_first_open_one_and_rendezvous_only_if_alone() {
    let mut table = Table::new(100);
    let oldest = |table: &Table| table.oldest_of(3).map(|it| (it.id, it.kind, it.posted_to));
    assert_eq!((oldest(&table), table.owners_with_open_operations().count()), (None, 0));
    let announced = table.open_announced(3, [7].into()).unwrap();
    assert_eq!(oldest(&table), Some((announced, Kind::Announced, None)));
    let put = table.open(3, Kind::Put).unwrap();
    let native = posted(&mut table, 3, 2);
    let _other = table.open(5, Kind::Put).unwrap();
    assert_eq!(oldest(&table), Some((put, Kind::Put, None)));
    assert_eq!(table.owners_with_open_operations().collect::<Vec<_>>(), [3, 5]);
    assert!(table.part(put, Ok(0)));
    assert_eq!(oldest(&table), Some((native, Kind::Native, Some(2))));
    assert_eq!((table.posted_at(native), table.posted_at(announced)), (Some(2), None));
    assert!(table.completed(native.raw(), 2, Ok(0)));
    assert_eq!((oldest(&table).map(|it| it.0), table.posted_at(native)), (Some(announced), None));
    assert!(table.part(announced, Ok(0)));
    assert_eq!(table.owners_with_open_operations().collect::<Vec<_>>(), [5]);
}

#[test]
fn announced_messages_count_with_the_others_and_no_flush_waits_for_them() {
    let mut table = Table::new(2);
    let put = table.open(0, Kind::Put).unwrap();
    let announced = table.open_announced(0, [7].into()).unwrap();
    assert_eq!(table.open_announced(0, [8].into()), Err((Status::Again, [8].into())));
    assert_eq!((table.open_of(0), table.announced_of(0), table.announced_of(1)), (1, 1, 0));
    assert!(table.is_announced(announced) && !table.is_announced(put));
    let waits = flush(&mut table, 0);
    assert!(table.part(put, Ok(0)));
    assert_eq!(table.result(waits), Some(Ok(0)));
    table.want_back(announced);
    assert!(table.is_wanted_back(announced) && !table.is_wanted_back(put));
    assert_eq!((table.owner(announced), table.ids_apart(0)), (Some(0), vec![announced]));
    assert_eq!(table.received(announced), None, "it was canceled");
    assert!(table.part(announced, Ok(0)));
    assert_eq!((table.announced_of(0), table.is_announced(announced)), (0, false));
    assert!(table.open_announced(0, [9].into()).is_ok());
}

#[test]
fn received_rendezvous_message_returns_memory_unless_more_is_to_be_done() {
    let mut table = crate::Table::<u8>::new(100);
    let [plain, forgotten, tracked, whole] =
        [1, 2, 3, 4].map(|memory| table.open_announced(0, memory).unwrap());
    table.forget(forgotten);
    table.track(tracked, 17);
    let waits = table.open(0, Kind::Whole).unwrap();
    table.then(whole, waits);
    let answers = [plain, forgotten, tracked, whole, waits].map(|id| table.received(id));
    assert_eq!(answers, [Some(1), Some(2), None, None, None]);
    assert_eq!([plain, forgotten].map(|id| table.received(id)), [None; 2], "it ends once");
    assert_eq!((table.take_plain(plain), table.take_plain(forgotten)), (Some(0), None));
    assert_eq!((table.announced_of(0), table.open_count()), (2, 3));
    let told = [plain, tracked, whole, tracked].map(|id| table.received_and_told(id));
    assert_eq!((told, table.take_completed()), ([None, Some(3), None, None], None));
    assert!(table.part(tracked, Ok(0)) && table.part(whole, Ok(0)));
    assert_eq!(table.take_completed(), Some((17, Ok(0))));
    assert!(table.is_open(waits) && table.part(waits, Ok(0)));
    assert_eq!((table.announced_of(0), table.open_count()), (0, 0));
}

#[test]
fn a_transfer_that_is_watched_is_due_once_when_it_has_ended() {
    let mut table = Table::new(100);
    let [before, after] = [0; 2].map(|_| posted(&mut table, 0, 1));
    table.watch_transfer(before);
    assert_eq!((table.take_ended_transfer(), table.has_due()), (None, false));
    for id in [before, after] {
        assert!(table.completed(id.raw(), 1, Ok(0)));
    }
    table.watch_transfer(after);
    assert!(table.has_due());
    assert_eq!(table.take_due(), None, "it is no flush");
    let mut ended = [table.take_ended_transfer().unwrap(), table.take_ended_transfer().unwrap()];
    ended.sort_unstable_by_key(|id| id.raw());
    assert_eq!((ended, table.take_ended_transfer()), ([before, after], None));
}

#[test]
fn only_puts_of_other_interfaces_count_as_other_puts_before() {
    use Kind::{Atomic, Copy, Fetch, Flush, Get, Ping, Put, Send, Whole};
    for (kind, is_put) in [
        (Put, true),
        (Copy, true),
        (Whole, true),
        (Flush, true),
        (Send, false),
        (Get, false),
        (Atomic, false),
        (Fetch, false),
        (Ping, false),
    ] {
        let mut table = Table::new(100);
        let _before = table.open(0, kind).unwrap();
        let it = table.open(0, Send).unwrap();
        let _behind = table.open(0, Put).unwrap();
        assert_eq!(
            [None, Some(1)].map(|at| table.other_puts_before(it, at)),
            [is_put; 2],
            "{kind:?}"
        );
    }
    let mut table = Table::new(100);
    let _native = posted(&mut table, 0, 1);
    let it = table.open(0, Send).unwrap();
    let before = [None, Some(1), Some(2)].map(|at| table.other_puts_before(it, at));
    assert_eq!(before, [true, false, true]);
}

#[test]
fn parts_are_those_that_a_whole_waits_for() {
    let mut table = Table::new(100);
    let [whole, other] = [0; 2].map(|_| table.open(0, Kind::Whole).unwrap());
    let parts = [0; 2].map(|_| table.open_part(whole, 0, Kind::Native).unwrap());
    let _alone = table.open_part(other, 0, Kind::Native).unwrap();
    assert_eq!((table.parts_of(whole), table.parts(whole)), (parts.to_vec(), 3));
    assert_eq!((table.open_of(0), table.open_wholes(0)), (5, 2));
    assert!(table.part(parts[0], Ok(0)));
    assert_eq!((table.parts_of(whole), table.parts(whole)), (vec![parts[1]], 2));
    assert_eq!(table.parts(parts[0]), 0);
    // No operation waits for an ended one.
    table.then(parts[0], other);
    assert_eq!(table.parts(other), 2);
}

#[test]
fn canceled_operation_is_reported_to_caller_and_to_no_flush() {
    let canceled = || bare(Status::Canceled);
    for wanted in [true, false] {
        let mut table = Table::new(100);
        let id = posted(&mut table, 0, 1);
        let waits = flush(&mut table, 0);
        if wanted {
            table.want_back(id);
        }
        assert!(table.completed(id.raw(), 1, Err(canceled())));
        assert_eq!(table.result(id), Some(Err(canceled())));
        let told = if wanted { Ok(0) } else { Err(canceled()) };
        assert_eq!(table.result(waits), Some(told));
    }
    let mut table = Table::new(100);
    let id = table.open(0, Kind::Put).unwrap();
    let waits = flush(&mut table, 0);
    table.cancel(id, canceled());
    assert_eq!((table.result(id), table.result(waits)), (Some(Err(canceled())), Some(Ok(0))));
    table.forget(id);
    assert_eq!(table.take_late(0), None);
}

#[test]
fn failure_before_fence_is_reported_once() {
    let mut table = Table::new(100);
    for kind in [Kind::Put, Kind::Notice] {
        for is_read in [false, true] {
            let id = table.open(0, kind).unwrap();
            let fence = table.open_late(0, Kind::Flush).unwrap();
            table.start_flush(fence, 0, None);
            assert!(table.part(id, Err(bare(Status::KeyRejected))) && !table.is_open(fence));
            if is_read {
                assert_eq!(table.result(id), Some(Err(bare(Status::KeyRejected))));
            }
            assert_eq!(table.take_late(0), None, "the result is not requested yet");
            table.forget(id);
            assert_eq!(table.take_late(0).is_some(), !is_read);
        }
    }
    // The next flush reports an operation without a request, and a flush behind the fence reports it as well.
    for flush_waits in [false, true] {
        let id = table.open_late(0, Kind::Put).unwrap();
        let fence = table.open_late(0, Kind::Flush).unwrap();
        table.start_flush(fence, 0, None);
        let waits = flush_waits.then(|| flush(&mut table, 0));
        assert!(table.part(id, Err(bare(Status::Io))));
        let told = waits.and_then(|waits| table.take(waits));
        assert_eq!(told, flush_waits.then_some(Err(bare(Status::Io))));
        assert_eq!(table.take_late(0).is_some(), !flush_waits);
    }
    assert_eq!(table.open_count(), 0);
}

#[test]
fn withdrawn_operation_leaves_no_trace() {
    let mut table = Table::new(100);
    let id = table.open(0, Kind::Put).unwrap();
    let waits = flush(&mut table, 0);
    table.spoil(id, bare(Status::Io));
    assert_eq!(table.trouble(id), Some(bare(Status::Io)));
    table.withdraw(id);
    assert!(!table.is_open(id));
    assert_eq!((table.result(waits), table.take_late(0)), (Some(Ok(0)), None));
    assert_eq!(table.open_count(), 0);
}

#[test]
fn memory_stays_with_an_operation_that_another_interfaces_word_was_for() {
    let mut table = Table::new(100);
    let id = posted(&mut table, 0, 3);
    table.set_local_buffer(id, Rc::from([0; 8]));
    let unknown = || bare(Status::OutcomeUnknown);
    assert!(table.completed_unknown(id.raw(), 2, unknown()).is_none());
    assert!(table.is_open(id) && table.take_freed().is_none());
    let (owner, kept) = table.completed_unknown(id.raw(), 3, unknown()).unwrap();
    assert_eq!((owner, kept.map(|kept| kept.interface())), (0, Some(3)));
}

#[test]
fn lanes_that_are_lost_are_told_by_the_flushes_that_cover_something_there() {
    let mut table = Table::new(100);
    let put = table.open(0, Kind::Put).unwrap();
    let waits = table.open(0, Kind::Flush).unwrap();
    table.start_flush(waits, 0b110, None);
    assert!(
        !table.lost_lanes(0, 0b1, &bare(Status::Io))
            && !table.lost_lanes(1, 0b10, &bare(Status::Io))
    );
    // The flush has asked one of these lanes itself.
    let ask = table.open_part(waits, 0, Kind::Native).unwrap();
    table.asks(ask, 0b100);
    assert_eq!((table.open_asks(0, 0b100), table.open_asks(0, 0b11)), (vec![ask], vec![]));
    assert!(!table.lost_lanes(0, 0b100, &bare(Status::Io)), "what it asked there tells it");
    assert!(table.lost_lanes(0, 0b10, &bare(Status::PeerFailed)));
    assert!(table.part(ask, Ok(0)) && table.part(put, Ok(0)));
    assert_eq!(table.take_due(), Some((waits, 0, 0b010)));
    assert!(table.part(waits, Ok(0)));
    assert_eq!(table.result(waits), Some(Err(bare(Status::PeerFailed))));
}

#[test]
fn returned_failure_goes_to_next_flush_and_first_one_is_kept() {
    let mut table = Table::new(100);
    table.keep_late(2, bare(Status::Io));
    table.keep_late(2, bare(Status::NoDevice));
    assert_eq!((table.take_late(2), table.take_late(2)), (Some(bare(Status::Io)), None));
    assert_eq!(table.take_late(9), None);
}

fn unfinished(id: Id, interface: usize) -> Unfinished<()> {
    Unfinished { id, interface, local_buffer: None }
}

#[test]
fn held_memory_is_free_after_close_or_completion() {
    let mut table = Table::new(100);
    let [one, two, endpoint] = [0; 3].map(|_| table.open(0, Kind::Put).unwrap());
    let mut held = Held::default();
    let ids = |free: Vec<Unfinished<()>>| free.iter().map(Unfinished::id).collect::<Vec<_>>();
    held.keep(unfinished(one, 1), vec![Through::Circuit(7), Through::Endpoint(endpoint)]);
    held.keep(unfinished(two, 2), vec![Through::Circuit(7)]);
    assert!(held.has(one.raw(), 1) && !held.has(one.raw(), 2) && !held.has(endpoint.raw(), 1));
    assert_eq!(ids(held.closed(Through::Circuit(8))), []);
    assert_eq!(ids(held.closed(Through::Circuit(7))), [two]);
    assert_eq!(ids(held.closed(Through::Endpoint(endpoint))), [one]);
    held.keep(unfinished(one, 1), vec![Through::Circuit(7)]);
    held.keep(unfinished(two, 2), vec![Through::Circuit(7)]);
    assert!(held.completed(one.raw(), 2).is_none());
    assert_eq!(held.completed(one.raw(), 1).map(|it| it.id()), Some(one));
    assert!(held.completed(one.raw(), 1).is_none());
    // Closing a failed interface does not prove that the memory is unused.
    held.broke(2);
    assert_eq!(ids(held.closed(Through::Circuit(7))), []);
    assert_eq!(ids(held.closed(Through::Interface)), [two]);
    // Interfaces with high numbers share one number.
    held.keep(unfinished(one, 254), vec![Through::Circuit(7)]);
    assert!(held.has(one.raw(), 300) && !held.has(one.raw(), 253));
    held.broke(300);
    assert_eq!(ids(held.closed(Through::Circuit(7))), []);
}
