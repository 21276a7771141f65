//! Tests of the table's guarantees: one by one, and all of them against a plain list as a model.

mod told;

use super::slab::LOOKS;
use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

type Table = crate::Table<Rc<[u8]>>;

fn bare(status: Status) -> Error {
    Error::from_status(status)
}

/// Makes the error of operations whose transport fails.
fn lost(status: Status) -> Error {
    bare(status).of(Scope::Connection)
}

fn posted(table: &mut Table, owner: usize, interface: usize) -> Id {
    let id = table.open(owner, Kind::Native).unwrap();
    table.posted(id, interface);
    id
}

fn flush(table: &mut Table, owner: usize) -> Id {
    let id = table.open(owner, Kind::Flush).unwrap();
    table.start_flush(id, 0, None);
    id
}

#[test]
fn an_operation_ends_once_and_its_number_is_not_mistaken_for_the_next() {
    let mut table = Table::new(100);
    let first = table.open(0, Kind::Send).unwrap();
    assert!(table.result(first).is_none());
    assert!(table.part(first, Ok(7)));
    assert!(!table.part(first, Ok(8)));
    assert_eq!(table.result(first), Some(Ok(7)));
    table.forget(first);
    let second = table.open(0, Kind::Send).unwrap();
    assert_ne!(first, second);
    assert!(!table.part(first, Ok(9)));
    assert!(table.result(second).is_none());
    assert_eq!((table.open_count(), table.open_of(0)), (1, 1));
}

#[test]
fn a_completion_ends_only_what_was_posted_to_that_interface() {
    let mut table = Table::new(100);
    let waits = table.open(0, Kind::Native).unwrap();
    let asked = table.open(0, Kind::Put).unwrap();
    let native = posted(&mut table, 0, 3);
    for (cookie, interface) in
        [(waits.raw(), 3), (asked.raw(), 3), (native.raw(), 2), (native.raw() + 1, 3), (0, 3)]
    {
        assert!(!table.completed(cookie, interface, Ok(0)), "{cookie:#x} of {interface}");
    }
    assert_eq!(table.open_count(), 3);
    assert!(table.completed(native.raw(), 3, Ok(5)));
    assert!(!table.completed(native.raw(), 3, Ok(6)), "it is complete");
    assert_eq!(table.result(native), Some(Ok(5)));
}

#[test]
fn memory_of_operation_with_unknown_outcome_is_retained() {
    let mut table = Table::new(100);
    for has_memory in [true, false] {
        let id = posted(&mut table, 0, 3);
        if has_memory {
            table.set_local_buffer(id, Rc::from([0; 8]));
        }
        let unknown = Error::from_status(Status::OutcomeUnknown);
        let (owner, kept) = table.completed_unknown(id.raw(), 3, unknown).unwrap();
        assert_eq!((owner, kept.is_some()), (0, has_memory));
        assert!(table.result(id).unwrap().is_err());
    }
}

#[test]
fn end_of_a_carrier_ends_only_the_requests_that_it_carries() {
    let mut table = Table::new(100);
    let [put, get, own, elsewhere] = [0; 4].map(|owner| table.open(owner, Kind::Put).unwrap());
    let other = table.open(1, Kind::Put).unwrap();
    for id in [put, other] {
        table.carry(id, 7);
    }
    table.carry(elsewhere, 8);
    let asked = [put, own, elsewhere].map(|id| table.asked(id).map(|(by, _)| by));
    assert_eq!(asked, [Some(7), Some(0), Some(8)]);
    let covers = flush(&mut table, 0);
    assert!(table.fail_carried(0, 7, &bare(Status::PeerFailed)).is_empty());
    assert_eq!(table.result(put), Some(Err(lost(Status::PeerFailed))));
    assert_eq!([get, own, elsewhere, other].map(|id| table.is_open(id)), [true; 4]);
    for id in [get, own, elsewhere] {
        assert!(table.result(covers).is_none() && table.part(id, Ok(0)));
    }
    assert_eq!(table.result(covers), Some(Err(lost(Status::PeerFailed))));
    table.forget(put);
    assert_eq!(table.take_late(0), None, "the flush has reported it");
}

#[test]
fn only_what_asks_a_peer_takes_an_answer() {
    let mut table = Table::new(100);
    for kind in [Kind::Put, Kind::Get, Kind::Atomic, Kind::Fetch, Kind::Ping] {
        let id = table.open(4, kind).unwrap();
        assert_eq!(table.asked(id), Some((4, kind)));
        assert!(table.part(id, Ok(0)));
        assert_eq!(table.asked(id), None, "it has ended");
    }
    for kind in [Kind::Send, Kind::Native, Kind::Copy, Kind::Flush, Kind::Whole] {
        let id = table.open(4, kind).unwrap();
        assert_eq!(table.asked(id), None, "{kind:?}");
    }
}

#[test]
fn a_flush_waits_for_everything_before_it_and_for_nothing_after() {
    let mut table = Table::new(100);
    let before = [Kind::Send, Kind::Copy, Kind::Put].map(|kind| table.open(0, kind).unwrap());
    let native = posted(&mut table, 0, 1);
    let (first, second) = (flush(&mut table, 0), flush(&mut table, 0));
    let after = table.open(0, Kind::Copy).unwrap();
    let elsewhere = table.open(1, Kind::Copy).unwrap();
    assert!(table.completed(native.raw(), 1, Ok(0)));
    assert!(table.part(before[1], Ok(0)) && table.part(before[0], Ok(0)));
    assert!(table.result(first).is_none() && table.result(second).is_none());
    assert!(table.part(before[2], Ok(0)));
    assert_eq!((table.result(first), table.result(second)), (Some(Ok(0)), Some(Ok(0))));
    assert!(table.is_open(after) && table.is_open(elsewhere));
    let idle = flush(&mut table, 7);
    assert_eq!(table.result(idle), Some(Ok(0)), "there is nothing to wait for");
}

#[test]
fn a_thousand_flushes_in_a_row_end_with_what_they_wait_for() {
    let mut table = Table::new(100_000);
    let copy = table.open(0, Kind::Copy).unwrap();
    let flushes: Vec<Id> = (0..50_000).map(|_| flush(&mut table, 0)).collect();
    assert!(table.part(copy, Ok(0)));
    assert!(flushes.iter().all(|id| table.result(*id) == Some(Ok(0))));
}

#[test]
fn a_flush_tells_the_first_failure_of_what_it_waits_for() {
    let mut table = Table::new(100);
    let (one, two) = (table.open(0, Kind::Put).unwrap(), table.open(0, Kind::Put).unwrap());
    let waits = flush(&mut table, 0);
    let _ = table.part(two, Err(bare(Status::KeyRejected)));
    let _ = table.part(one, Err(bare(Status::OutOfRange)));
    assert_eq!(table.result(waits), Some(Err(bare(Status::KeyRejected))));
    assert_eq!(table.take_late(0), None, "it is told");
}

#[test]
fn a_failure_that_nobody_asks_for_is_the_next_flushs() {
    let mut table = Table::new(100);
    let (late, dropped) =
        (table.open_late(0, Kind::Put).unwrap(), table.open(0, Kind::Copy).unwrap());
    table.forget(dropped);
    let _ = table.part(late, Err(bare(Status::KeyRejected)));
    let _ = table.part(dropped, Err(bare(Status::Io)));
    assert_eq!(table.take_late(0), Some(bare(Status::KeyRejected)), "the first of them");
    assert_eq!(table.take_late(0), None);
    let fence = table.open_late(0, Kind::Flush).unwrap();
    let before = table.open_late(1, Kind::Put).unwrap();
    let part = table.open_part(fence, 1, Kind::Flush).unwrap();
    table.start_flush(part, 0, None);
    table.start_flush(fence, 0, None);
    assert!(table.is_open(fence));
    let _ = table.part(before, Err(bare(Status::KeyRejected)));
    assert!(!table.is_open(fence));
    assert_eq!(table.take_late(0), Some(bare(Status::KeyRejected)), "a fence swallows nothing");
    assert_eq!(table.take_late(1), None);
}

/// Opens an operation that fails and whose request is held.
fn failed(table: &mut Table, owner: usize) -> Id {
    let id = table.open(owner, Kind::Put).unwrap();
    let _ = table.part(id, Err(bare(Status::KeyRejected)));
    id
}

#[test]
fn failure_of_dropped_request_goes_to_next_flush_unless_reported() {
    let mut table = Table::new(100);
    for heard in [false, true] {
        let id = failed(&mut table, 0);
        if heard {
            assert_eq!(table.result(id), Some(Err(bare(Status::KeyRejected))));
        }
        table.forget(id);
        assert_eq!(table.take_late(0).is_some(), !heard);
    }
    let id = table.open(0, Kind::Put).unwrap();
    let waits = flush(&mut table, 0);
    let _ = table.part(id, Err(bare(Status::KeyRejected)));
    table.forget(id);
    assert_eq!(table.take_late(0), None, "the flush has it");
    table.forget(waits);
    assert_eq!(table.take_late(0), Some(bare(Status::KeyRejected)), "and nobody asked it");
}

#[test]
fn a_failure_of_an_endpoint_that_is_gone_is_nobodys() {
    let mut table = Table::new(100);
    let ids = [failed(&mut table, 5), failed(&mut table, 5)];
    let [heard, own] = [failed(&mut table, 5), failed(&mut table, 3)];
    assert!(table.result(heard).is_some());
    table.forget(own);
    assert_eq!(table.take_late(3), Some(bare(Status::KeyRejected)), "it had failed before");
    table.forget(heard);
    assert_eq!((table.take_late(3), table.take_late(5)), (None, None), "it was heard of");
    // Other endpoints are opened and dropped meanwhile, and one gets the same index.
    table.forget_owner(5);
    let next = table.open(5, Kind::Put).unwrap();
    ids.into_iter().for_each(|id| table.forget(id));
    assert_eq!((table.take_late(3), table.take_late(5)), (None, None));
    assert!(table.part(next, Ok(0)));
    table.forget(next);
}

/// The failure was that of a lane on which its puts had completed locally.
#[test]
fn a_failure_is_kept_for_an_endpoint_that_never_had_an_operation() {
    let mut table = Table::new(100);
    table.keep_late(7, bare(Status::KeyRejected));
    assert_eq!(table.take_late(7), Some(bare(Status::KeyRejected)));
    table.forget_owner(7);
    assert_eq!(table.take_late(7), None);
}

#[test]
fn posted_before_counts_only_earlier_posts_to_that_interface() {
    let mut table = Table::new(100);
    let first = posted(&mut table, 0, 1);
    let _elsewhere = posted(&mut table, 1, 2);
    let second = table.open(0, Kind::Native).unwrap();
    let _after = posted(&mut table, 0, 3);
    let before = |table: &Table| [1, 2, 3].map(|interface| table.posted_before(second, interface));
    assert_eq!(before(&table), [true, false, false]);
    assert!(!table.posted_before(first, 1), "itself is not before it");
    assert!(table.completed(first.raw(), 1, Ok(0)));
    assert_eq!(before(&table), [false; 3]);
}

#[test]
fn a_flush_that_has_to_ask_lanes_is_due_when_nothing_is_before_it() {
    let mut table = Table::new(100);
    let put = posted(&mut table, 2, 0);
    let waits = table.open(2, Kind::Flush).unwrap();
    table.start_flush(waits, 1, None);
    assert!(!table.has_due());
    assert!(table.completed(put.raw(), 0, Ok(0)));
    assert_eq!(table.take_due(), Some((waits, 2, 1)));
    assert_eq!((table.take_due(), table.is_open(waits)), (None, true));
    let lane = table.open_part(waits, 2, Kind::Native).unwrap();
    table.posted(lane, 1);
    assert!(!table.part(waits, Ok(0)));
    assert!(table.completed(lane.raw(), 1, Ok(0)));
    assert_eq!(table.result(waits), Some(Ok(0)));
}

/// Another endpoint may have the same index when the flush is taken.
#[test]
fn a_flush_that_ended_with_its_endpoint_is_not_due_any_more() {
    let mut table = Table::new(100);
    let ended = table.open(2, Kind::Flush).unwrap();
    let waits = table.open(3, Kind::Flush).unwrap();
    table.start_flush(waits, 1, None);
    table.start_flush(ended, 1, None);
    assert!(table.fail_owner(2, &bare(Status::PeerFailed)).is_empty());
    assert_eq!((table.take_due(), table.take_due()), (Some((waits, 3, 1)), None));
}

#[test]
fn a_failed_endpoint_ends_its_operations_and_no_others() {
    let mut table = Table::new(100);
    let (mine, other) = (table.open(4, Kind::Put).unwrap(), table.open(5, Kind::Put).unwrap());
    let waits = flush(&mut table, 4);
    assert!(table.fail_owner(4, &bare(Status::PeerFailed)).is_empty());
    assert_eq!(table.result(mine), Some(Err(lost(Status::PeerFailed))));
    assert_eq!(table.result(waits), Some(Err(lost(Status::PeerFailed))));
    assert!(table.is_open(other));
    let by_interface = [posted(&mut table, 6, 1), posted(&mut table, 6, 2)];
    let unfinished = table.fail_posted(6, 1, &bare(Status::ProviderFailed));
    assert_eq!(unfinished.iter().map(|op| op.interface()).collect::<Vec<_>>(), [1]);
    assert_eq!(by_interface.map(|id| table.is_open(id)), [false, true]);
}

/// The flush's lanes belong to the endpoint that has failed.
#[test]
fn a_flush_of_a_failed_endpoint_asks_no_lane() {
    let mut table = Table::new(100);
    let put = posted(&mut table, 2, 0);
    let waits = table.open(2, Kind::Flush).unwrap();
    table.start_flush(waits, 1, None);
    assert_eq!(table.fail_owner(2, &bare(Status::TimedOut)).len(), 1);
    assert!(!table.has_due());
    for id in [put, waits] {
        assert_eq!(table.result(id), Some(Err(lost(Status::TimedOut))));
    }
}

#[test]
fn failing_endpoint_returns_posted_memory_and_releases_other_memory() {
    let mut table = Table::new(100);
    let local_buffer = || Rc::from([0; 8]);
    let (theirs, ours) = (posted(&mut table, 0, 1), table.open(0, Kind::Get).unwrap());
    table.set_local_buffer(theirs, local_buffer());
    table.set_local_buffer(ours, local_buffer());
    let unfinished = table.fail_owner(0, &bare(Status::Io));
    assert_eq!(unfinished.len(), 1);
    assert!(table.take_freed().is_some() && table.take_freed().is_none(), "ours alone");
    let done = posted(&mut table, 1, 1);
    table.set_local_buffer(done, local_buffer());
    assert!(table.take_freed().is_none());
    assert!(table.completed(done.raw(), 1, Ok(0)));
    assert!(table.take_freed().is_some() && table.take_freed().is_none());
}

#[test]
fn a_whole_ends_with_its_last_part_and_with_the_first_failure_among_them() {
    let mut table = Table::new(100);
    let whole = table.open(0, Kind::Whole).unwrap();
    let parts = [0; 3].map(|_| table.open_part(whole, 0, Kind::Native).unwrap());
    parts.iter().for_each(|id| table.posted(*id, 1));
    assert_eq!(table.parts(whole), 4);
    assert!(!table.part(whole, Ok(0)));
    assert!(table.completed(parts[1].raw(), 1, Err(bare(Status::Io))));
    assert!(table.completed(parts[0].raw(), 1, Ok(0)));
    assert!(table.result(whole).is_none());
    assert!(table.completed(parts[2].raw(), 1, Err(bare(Status::NoDevice))));
    assert_eq!(table.result(whole), Some(Err(bare(Status::Io))));
    assert_eq!(table.take_late(0), None);
}

#[test]
fn operation_ended_with_bare_status_gets_later_error_text() {
    let mut table = Table::new(100);
    let alone = posted(&mut table, 4, 0);
    let whole = table.open(4, Kind::Whole).unwrap();
    let part = table.open_part(whole, 4, Kind::Native).unwrap();
    table.posted(part, 0);
    let other = posted(&mut table, 5, 0);
    for id in [alone, part, other] {
        assert!(table.completed(id.raw(), 0, Err(bare(Status::TimedOut))));
    }
    let words = Error::new(Status::TimedOut, "the connection failed", "the cable is cut", "");
    table.explain(4, &words);
    assert!(table.part(whole, Ok(0)));
    assert_eq!(table.result(alone), Some(Err(words.clone())));
    assert_eq!(table.result(whole), Some(Err(words)));
    assert_eq!(table.result(other), Some(Err(bare(Status::TimedOut))));
}

#[test]
fn an_endpoint_has_no_more_operations_open_than_it_may() {
    let mut table = Table::new(3);
    let ids = [Kind::Put, Kind::Flush, Kind::Ping].map(|kind| table.open(0, kind).unwrap());
    for kind in [Kind::Send, Kind::Native, Kind::Get, Kind::Flush, Kind::Ping] {
        assert_eq!(table.open(0, kind), Err(Status::Again), "{kind:?}");
    }
    assert!(table.open(1, Kind::Put).is_ok(), "another endpoint has its own");
    assert!(table.part(ids[0], Ok(0)));
    assert!(table.open(0, Kind::Put).is_ok());
}

#[test]
fn posted_operation_outlives_dropped_endpoint() {
    let mut table = Table::new(100);
    let (theirs, ours) = (posted(&mut table, 9, 2), table.open(9, Kind::Put).unwrap());
    let waits = flush(&mut table, 9);
    assert_eq!(table.posted_of(9), [(theirs, 2)]);
    table.orphan(theirs);
    assert!(table.fail_owner(9, &bare(Status::Canceled)).is_empty());
    table.forget_owner(9);
    assert_eq!([theirs, ours, waits].map(|id| table.is_open(id)), [true, false, false]);
    let next = table.open(9, Kind::Put).unwrap();
    assert!(table.completed(theirs.raw(), 2, Ok(3)));
    assert_eq!(table.result(theirs), Some(Ok(3)));
    assert_eq!((table.open_of(9), table.is_open(next)), (1, true));
}

/// The operations that the flush covers continue: they have not ended, even if another operation waits for the flush.
#[test]
fn flush_of_dropped_endpoint_does_not_complete_orphans() {
    let mut table = Table::new(100);
    let theirs = posted(&mut table, 9, 2);
    let waits = flush(&mut table, 9);
    table.orphan(theirs);
    assert!(table.result(waits).is_none(), "it covers what goes on alone");
    assert!(table.fail_owner(9, &bare(Status::Canceled)).is_empty());
    assert_eq!(table.result(waits), Some(Err(lost(Status::Canceled))));
    assert!(table.is_open(theirs));
}

/// Returns the number of table accesses counted during the life of a new endpoint.
fn cost_of_an_end(table: &mut Table, owner: usize) -> usize {
    let before = LOOKS.get();
    let (queued, native) = (table.open(owner, Kind::Send).unwrap(), posted(table, owner, 1));
    let covers = flush(table, owner);
    assert!(table.part(queued, Ok(0)));
    assert_eq!(table.fail_owner(owner, &bare(Status::PeerFailed)).len(), 1);
    for id in [queued, native, covers] {
        assert!(table.result(id).is_some());
        table.forget(id);
    }
    // One of three failures is reported, and two are requested after the endpoint is gone.
    let held = [failed(table, owner), failed(table, owner), failed(table, owner)];
    assert!(table.result(held[1]).is_some());
    table.forget_owner(owner);
    for id in held {
        assert!(table.result(id).is_some());
        table.forget(id);
    }
    LOOKS.get() - before
}

#[test]
fn ends_cost_the_same_however_many_others_there_are() {
    let mut table = Table::new(1_000_000);
    let alone = cost_of_an_end(&mut table, 0);
    for owner in 1..4000 {
        let _ = posted(&mut table, owner, 1);
    }
    // The page of the last entry may be full, which costs one examined place.
    assert!(cost_of_an_end(&mut table, 4000) <= alone + 1, "among 4000; alone {alone}");
    let burst: Vec<Id> = (0..100_000).map(|_| posted(&mut table, 7, 1)).collect();
    assert!(cost_of_an_end(&mut table, 4000) <= alone + 1, "in a burst of another's");
    for id in burst {
        assert!(table.completed(id.raw(), 1, Ok(0)));
        table.forget(id);
    }
    // The last entries examine pages that the burst has left empty.
    let after: Vec<usize> = (0..1000).map(|_| cost_of_an_end(&mut table, 4000)).collect();
    let most = after.iter().sum::<usize>() / after.len();
    assert!(most <= alone + 1, "behind the burst {most} a time, alone {alone}");
}

#[derive(Clone, Debug)]
enum Step {
    Open(u8, usize),
    Flush(usize),
    End(usize, bool),
    Forget(usize),
    FailOwner(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0u8..7, 0usize..3).prop_map(|(kind, owner)| Step::Open(kind, owner)),
        2 => (0usize..3).prop_map(Step::Flush),
        4 => (any::<usize>(), prop::bool::weighted(0.2)).prop_map(|(at, bad)| Step::End(at, bad)),
        1 => any::<usize>().prop_map(Step::Forget),
        1 => (0usize..3).prop_map(Step::FailOwner),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    /// Compares the open operations and the end of each flush with a plain list of operations.
    #[test]
    fn it_behaves_like_a_list(steps in steps()) {
        let mut table = Table::new(1000);
        // The operations in the order of posting: number, owner, whether it is a flush.
        let mut list: Vec<(Id, usize, bool)> = Vec::new();
        let mut failed: BTreeMap<Id, bool> = BTreeMap::new();
        let mut native: BTreeSet<Id> = BTreeSet::new();
        for step in steps {
            match step {
                Step::Open(kind, owner) => {
                    let kinds = [Kind::Send, Kind::Put, Kind::Copy, Kind::Whole];
                    let id = match kinds.get(usize::from(kind)) {
                        Some(kind) => table.open(owner, *kind).unwrap(),
                        None if kind == 4 => posted(&mut table, owner, 1),
                        None => table.open_plain(owner, 1).unwrap(),
                    };
                    if table.posted_at(id).is_some() {
                        let _ = native.insert(id);
                    }
                    list.push((id, owner, false));
                }
                Step::Flush(owner) => {
                    let id = flush(&mut table, owner);
                    list.push((id, owner, true));
                    let _ = failed.insert(id, false);
                }
                Step::End(at, bad) => {
                    let plain: Vec<_> = list.iter().filter(|entry| !entry.2).copied().collect();
                    if plain.is_empty() { continue }
                    let (id, owner, _) = plain[at % plain.len()];
                    let result = if bad { Err(bare(Status::Io)) } else { Ok(1) };
                    match native.contains(&id) {
                        true => {
                            let plain = !bad && table.completed_plain(id.raw(), 1, 1).is_some();
                            prop_assert!(plain || table.completed(id.raw(), 1, result));
                        }
                        false => prop_assert!(table.part(id, result)),
                    }
                    let place = list.iter().position(|entry| entry.0 == id).unwrap();
                    for later in list[place..].iter().filter(|entry| bad && entry.1 == owner && entry.2) {
                        let _ = failed.insert(later.0, true);
                    }
                    let _ = list.remove(place);
                }
                Step::Forget(at) => {
                    if list.is_empty() { continue }
                    let (id, _, is_flush) = list[at % list.len()];
                    if !is_flush {
                        table.forget(id);
                    }
                }
                Step::FailOwner(owner) => {
                    let _ = table.fail_owner(owner, &bare(Status::PeerFailed));
                    for gone in list.iter().filter(|entry| entry.1 == owner && entry.2) {
                        let _ = failed.insert(gone.0, true);
                    }
                    list.retain(|entry| entry.1 != owner);
                }
            }
            // A flush without an operation before it in the list has ended.
            let ends: Vec<Id> = (0..3)
                .flat_map(|owner| {
                    let mine = list.iter().filter(move |entry| entry.1 == owner);
                    mine.take_while(|entry| entry.2).map(|entry| entry.0).collect::<Vec<_>>()
                })
                .collect();
            for id in &ends {
                prop_assert_eq!(table.result(*id).map(|result| result.is_err()), Some(failed[id]));
            }
            list.retain(|entry| !ends.contains(&entry.0));
            prop_assert_eq!(table.open_count(), list.len());
            for (id, owner, _) in &list {
                prop_assert!(table.is_open(*id) && table.open_of(*owner) > 0);
            }
        }
    }
}
