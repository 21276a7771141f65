//! Tests of pending operations without streams: the ends that a peer may report, the effect of a fence, and the result of a flush.

use super::*;
use crate::regions::Regions;

fn put(number: u32) -> PutOp {
    PutOp { number, cookie: Some(number.into()), bulk: true, local: false, missing: None }
}

fn get(number: u32) -> GetOp {
    GetOp {
        number,
        cookie: number.into(),
        pieces: Box::default(),
        len: 1,
        landed: 0,
        missing: None,
    }
}

fn flush(number: u32, last_put: u32, last_get: u32) -> FlushOp {
    let cookie = number.into();
    FlushOp { number, cookie, last_get, last_put, answered: false, result: Ok(()) }
}

/// Returns a put of which nothing was sent yet.
fn uncut(number: u32) -> BulkOp {
    let key = KeyPart { domain: 1, tag: 2, index: 3, total: 4 };
    BulkOp::Put {
        number,
        key,
        offset: 0,
        pieces: Box::default(),
        len: 4,
        cut: 0,
        word: None,
        last_frame: 0,
    }
}

fn serve(region: Result<Arc<Region>, Refused>, len: usize) -> Serve {
    Serve { number: 1, region, offset: 0, len: len as u64, cut: 0, last_frame: 0 }
}

fn a_region() -> Result<Arc<Region>, Refused> {
    let base = std::ptr::without_provenance_mut(4096);
    Ok(Regions::new(7, None).register(base, 1 << 20, 0).unwrap())
}

#[test]
fn numbers_are_compared_as_they_wrap() {
    assert!(not_after(5, 5) && not_after(5, 6) && !not_after(6, 5));
    assert!(not_after(u32::MAX, 0) && !not_after(0, u32::MAX));
    assert!(not_after(0, (1 << 31) - 1) && !not_after(0, 1 << 31));
}

#[test]
fn the_end_of_a_put_is_believed_once_and_only_where_it_was_sent() {
    for first in [0, 7, u32::MAX - 1, u32::MAX] {
        let number = |n: u32| first.wrapping_add(n);
        let mut ops = Ops { last_put: number(4), ended_put: first, ..Ops::default() };
        ops.puts.extend((1..=4).map(|n| put(number(n))));
        ops.bulk.extend([BulkOp::Flush { number: 1 }, uncut(number(3)), uncut(number(4))]);
        for lie in [0, 3, 4, 5, u32::MAX] {
            assert!(ops.puts_ended(number(lie)).is_err(), "{lie} after {first}");
        }
        assert_eq!(ops.puts_ended(number(2)), Ok(()));
        let mut ended = Vec::new();
        while let Some(put) = ops.next_put_done(number(2)) {
            ended.push(put.number);
        }
        assert_eq!(ended, [number(1), number(2)], "in their order, and no other");
        assert!(ops.puts_ended(number(2)).is_err(), "it has ended already");
        assert!(ops.puts_ended(number(1)).is_err(), "and so has what came before");
        let _ = ops.bulk.remove(1);
        assert_eq!(ops.puts_ended(number(3)), Ok(()), "it was sent meanwhile");
    }
}

#[test]
fn flush_answer_completes_earlier_flushes_and_no_unsent_one() {
    let mut ops = Ops { last_flush: 3, ..Ops::default() };
    ops.flushes.extend((1..=3).map(|n| flush(n, 0, 0)));
    ops.bulk.extend([uncut(1), BulkOp::Flush { number: 3 }]);
    assert!(ops.flushes_ended(3).is_err(), "nobody was asked");
    assert_eq!(ops.flushes_ended(2), Ok(()));
    assert!(ops.flushes.iter().map(|flush| flush.answered).eq([true, true, false]));
    assert!(ops.flushes_ended(2).is_err() && ops.flushes_ended(4).is_err());
}

#[test]
fn a_put_is_refused_once_and_not_before_it_was_sent() {
    let mut ops = Ops::default();
    ops.puts.extend([put(1), put(2), put(3)]);
    ops.bulk.push_back(uncut(3));
    assert!(ops.put_refused(3).is_err() && ops.put_refused(4).is_err());
    assert_eq!(ops.put_refused(2).map(|put| put.number), Ok(2));
    assert!(ops.put_refused(2).is_err());
    assert!(ops.puts.iter().map(|put| put.number).eq([1, 3]), "the others stay");
}

#[test]
fn fully_read_put_completes_once_and_only_if_local_was_requested() {
    let mut ops = Ops::default();
    ops.puts.extend([PutOp { local: true, ..put(1) }, put(2), PutOp { local: true, ..put(3) }]);
    assert_eq!((ops.put_read(2), ops.put_read(9)), (None, None));
    assert_eq!((ops.put_read(3), ops.put_read(3)), (Some(3), None));
    assert_eq!(ops.puts.len(), 3, "the target has not confirmed them");
    assert_eq!(ops.cookies(), [1, 2], "and who has heard of its end hears of it no more");
}

#[test]
fn fence_waits_for_earlier_gets_and_for_sent_or_ended_puts() {
    let fence = Some(Fence { last_put: 2, last_get: 5 });
    // On one stream, frames arrive in the order in which they were sent.
    let mut ops = Ops { fence, ..Ops::default() };
    ops.puts.extend([put(2), put(3)]);
    ops.gets.extend([get(6), get(5)]);
    assert!(ops.is_barred(true), "a get is not done");
    ops.gets.truncate(1);
    ops.bulk.extend([BulkOp::Flush { number: 1 }, uncut(2)]);
    assert!(ops.is_barred(true), "a put was not sent");
    let _ = ops.bulk.pop_back();
    ops.bulk.push_back(uncut(3));
    assert!(!ops.is_barred(true), "what came later counts for nothing");
    assert!(ops.fence.is_none());
    // On several streams a frame may overtake another: the target must report the end.
    ops.fence = fence;
    assert!(ops.is_barred(false));
    let _ = ops.puts.pop_front();
    assert!(!ops.is_barred(false));
    assert!(ops.fence.is_none() && !ops.is_barred(true));
}

#[test]
fn serves_and_puts_alternate() {
    let mut ops = Ops::default();
    let turns = |ops: &mut Ops| [(); 4].map(|()| ops.serves_turn());
    assert_eq!(turns(&mut ops), [false; 4]);
    ops.bulk.push_back(uncut(1));
    assert_eq!(turns(&mut ops), [false; 4], "nobody gets anything");
    // The data of a short get is sent with its answer. A refused or finished get has nothing to send.
    ops.serves.push_back(serve(a_region(), SMALL));
    ops.serves.push_back(serve(Err(Status::KeyRejected.into()), 2 * SMALL));
    ops.serves.push_back(Serve { cut: 2 * SMALL as u64, ..serve(a_region(), 2 * SMALL) });
    assert_eq!(turns(&mut ops), [false; 4]);
    ops.serves.push_back(serve(a_region(), SMALL + 1));
    let both = turns(&mut ops);
    assert!(both == [true, false, true, false] || both == [false, true, false, true], "{both:?}");
    ops.bulk.clear();
    assert_eq!(turns(&mut ops), [true; 4], "nobody puts anything");
}

#[test]
fn flush_reports_first_failure_of_its_own_operations_only() {
    let mut ops = Ops::default();
    ops.flushes.extend([flush(1, 5, 1), flush(2, 6, 2)]);
    assert!(ops.covers_put(5) && ops.covers_put(6) && !ops.covers_put(7));
    let results = |ops: &Ops| [ops.flushes[0].result, ops.flushes[1].result];
    ops.note_failure(Some(7), Some(3), Status::Io);
    assert_eq!(results(&ops), [Ok(()), Ok(())], "those came later");
    ops.note_failure(Some(6), None, Status::KeyRejected);
    assert_eq!(results(&ops), [Ok(()), Err(Status::KeyRejected)]);
    ops.note_failure(None, Some(1), Status::OutOfRange);
    assert_eq!(results(&ops), [Err(Status::OutOfRange), Err(Status::KeyRejected)]);
}

#[test]
fn an_endpoint_is_idle_when_neither_side_waits_for_anything() {
    let busy: [fn(&mut Ops); 11] = [
        |ops| ops.puts.push_back(put(1)),
        |ops| ops.gets.push(get(1)),
        |ops| ops.flushes.push_back(flush(1, 0, 0)),
        |ops| ops.bulk.push_back(uncut(1)),
        |ops| ops.serves.push_back(serve(a_region(), 1)),
        |ops| ops.failures.push_back((1, Status::Io.into())),
        |ops| ops.done = Some(1),
        |ops| ops.flush_asked = Some(1),
        |ops| ops.failing = Some((1, Status::Io.into())),
        |ops| ops.fence = Some(Fence { last_put: 1, last_get: 1 }),
        |ops| ops.late = Some(Status::Io),
    ];
    assert!(Ops::default().is_idle());
    for (n, begin) in busy.iter().enumerate() {
        let mut ops = Ops::default();
        begin(&mut ops);
        assert!(!ops.is_idle(), "{n}");
    }
    let mut ops = Ops::default();
    busy.iter().for_each(|begin| begin(&mut ops));
    assert_eq!(ops.cookies(), [1, 1, 1], "a put, a get and a flush hear of their end");
}
