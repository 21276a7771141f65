//! Tests of put, get and atomics over TCP.

use super::*;
use tieline::{AtomicOp, Completion, Region, Width};

pub(crate) fn memory_operations(
    a: &Worker,
    others: &[&Worker],
    here: &Context,
    there: &Context,
    to: &Endpoint,
) {
    let mut all = vec![a];
    all.extend(others);
    let target = there.register(vec![0u8; 300_000]).unwrap();
    let local = here.register((0..300_000).map(|i| (i % 251) as u8).collect::<Vec<_>>()).unwrap();
    let landing = here.register(vec![0u8; 300_000]).unwrap();
    let key = to.import_key(&target.remote_key().unwrap()).unwrap();
    let run = |outcome: Outcome| finish(&all, outcome).unwrap();
    for _ in 0..3 {
        let _ = run(to.put(&local, 0..300_000, &key, 0).unwrap());
        assert_eq!(target.to_vec(0..300_000).unwrap(), local.to_vec(0..300_000).unwrap());
        let _ = run(to.get(&landing, 100..250_000, &key, 100).unwrap());
        assert_eq!(landing.to_vec(100..250_000).unwrap(), local.to_vec(100..250_000).unwrap());
        let _ = run(to.put_bytes(&5u64.to_le_bytes(), &key, 64).unwrap());
        assert_eq!(run(to.fetch_add(&key, 64, 10).unwrap()), 5);
        let _ = run(to.atomic(AtomicOp::Xor, Width::Bits64, &key, 64, 1).unwrap());
        let _ = run(to.flush().unwrap());
        assert_eq!(run(to.compare_swap(Width::Bits64, &key, 64, 14, 3).unwrap()), 14);
        landing.write(100, &[0; 1000]).unwrap();
    }
    // The pieces are more than one call takes, of two regions, in reverse order.
    let cut = |n: usize| n * 3000..(n + 1) * 3000 - n % 5;
    let pieces: Vec<_> = (0..90).rev().map(|n| ([&local, &landing][n % 2], cut(n))).collect();
    let held = |pieces: &[(&Region, std::ops::Range<usize>)]| -> Vec<u8> {
        pieces.iter().flat_map(|(region, range)| region.to_vec(range.clone()).unwrap()).collect()
    };
    let whole = held(&pieces);
    let _ = run(to.put_pieces(&pieces, &key, 11).unwrap());
    assert!(target.to_vec(11..11 + whole.len()).unwrap() == whole);
    landing.write(0, &[0; 300_000]).unwrap();
    let back: Vec<_> = (0..90).rev().map(|n| (&landing, cut(n))).collect();
    let _ = run(to.get_pieces(&back, &key, 11).unwrap());
    assert!(held(&back) == whole);
    // A flush covers operations that their lane has not accepted yet, and a fence holds back later ones.
    local.write(0, &[7u8; 300_000]).unwrap();
    for _ in 0..40 {
        let _ = to.put_with(&local, 0..300_000, &key, 0, Completion::Local).unwrap();
    }
    let _ = run(to.flush().unwrap());
    assert_eq!(target.to_vec(0..300_000).unwrap(), [7u8; 300_000]);
    local.write(0, &[9u8; 300_000]).unwrap();
    for _ in 0..40 {
        let _ = to.put(&local, 8..300_000, &key, 8).unwrap();
    }
    to.fence().unwrap();
    let last = to.put_bytes(&[1], &key, 0).unwrap();
    until(&all, || target.to_vec(0..1).unwrap() == [1]);
    assert_eq!(target.to_vec(8..300_000).unwrap(), vec![9u8; 299_992]);
    let _ = run(last);
    drop(target);
    let gone = to.put_bytes(b"late", &key, 0).map(|o| finish(&all, o)).unwrap().unwrap_err();
    assert_eq!(gone.status(), Status::KeyRejected, "{gone}");
    assert!(to.error().is_none());
}

#[test]
fn bytes_that_lie_anywhere_are_put_by_the_module_and_are_free_at_once() {
    let Some(folder) = providers() else { return };
    let (here, there) = (open(&folder), open(&folder));
    let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
    let to_b = connected(&a, &b);
    let target = there.register(vec![0u8; 200_000]).unwrap();
    let key = to_b.import_key(&target.remote_key().unwrap()).unwrap();
    // The route to the peer's memory must exist first, or the first put would use messages.
    until(&[&a, &b], || !key.is_settling());
    for len in [1, 8, 5000, 200_000] {
        let mut bytes = vec![len as u8 + 1; len];
        let put = to_b.put_bytes(&bytes, &key, 0).unwrap();
        bytes.fill(0);
        let _ = finish(&[&a, &b], put).unwrap();
        assert_eq!(target.to_vec(0..len).unwrap(), vec![len as u8 + 1; len]);
    }
    assert_eq!(b.counters().emulated, 0);
    let _ = finish(&[&a, &b], to_b.fetch_add(&key, 0, 1).unwrap()).unwrap();
    assert_eq!(b.counters().emulated, 1);
}

#[test]
fn locally_completed_put_needs_no_peer_and_is_flushed() {
    let Some(folder) = providers() else { return };
    let (here, there) = (open(&folder), open(&folder));
    let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
    let to_b = connected(&a, &b);
    let target = there.register(vec![0u8; 100_000]).unwrap();
    let key = to_b.import_key(&target.remote_key().unwrap()).unwrap();
    until(&[&a, &b], || !key.is_settling());
    let first = to_b.put_bytes(&[0], &key, 0).unwrap();
    let _ = finish(&[&a, &b], first).unwrap();
    for len in [8, 8000, 60_000] {
        let local = here.register(vec![len as u8 + 1; len]).unwrap();
        // The peer does not poll.
        let put = to_b.put_with(&local, 0..len, &key, 0, Completion::Local).unwrap();
        assert_eq!(finish(&[&a], put), Ok(0));
        local.write(0, &vec![0; len]).unwrap();
        let flush = to_b.flush().unwrap();
        assert!(!flush.is_done(), "the peer has not seen it");
        let _ = finish(&[&a, &b], flush).unwrap();
        assert_eq!(target.to_vec(0..len).unwrap(), vec![len as u8 + 1; len]);
    }
    let local = here.register(vec![7; 8]).unwrap();
    drop(target);
    let put = to_b.put_with(&local, 0..8, &key, 0, Completion::Local).unwrap();
    assert_eq!(finish(&[&a], put), Ok(0));
    // The next flush reports the refusal, whether or not the refusal has already arrived.
    let mark = to_b.flush_messages().unwrap();
    let _ = finish(&[&a, &b], mark).unwrap();
    let refused = finish(&[&a, &b], to_b.flush().unwrap()).unwrap_err();
    assert_eq!(refused.status(), Status::KeyRejected);
    let _ = finish(&[&a, &b], to_b.flush().unwrap()).unwrap();
    assert!(to_b.error().is_none());
}

#[test]
fn transfers_posted_before_connection_wait_and_are_not_emulated() {
    let Some(folder) = providers() else { return };
    let (here, there) = (open(&folder), open(&folder));
    let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
    let target = there.register((0..40_000).map(|i| (i % 7) as u8).collect::<Vec<_>>()).unwrap();
    let local = here.register(vec![9u8; 30_000]).unwrap();
    let landing = here.register(vec![0u8; 1000]).unwrap();
    let to_b = connected(&a, &b);
    let key = to_b.import_key(&target.remote_key().unwrap()).unwrap();
    let put = to_b.put(&local, 0..30_000, &key, 0).unwrap();
    let bytes = to_b.put_bytes(&[8; 100], &key, 30_000).unwrap();
    let get = to_b.get(&landing, 0..1000, &key, 39_000).unwrap();
    assert_eq!(a.counters().connections, 0, "all were posted before it stands");
    for outcome in [put, bytes, get] {
        let _ = finish(&[&a, &b], outcome).unwrap();
    }
    assert_eq!(target.to_vec(0..30_100).unwrap(), [vec![9; 30_000], vec![8; 100]].concat());
    assert_eq!(landing.to_vec(0..1000).unwrap(), target.to_vec(39_000..40_000).unwrap());
    assert_eq!(b.counters().emulated, 0);
}

#[test]
fn transfer_waiting_for_failed_connection_fails() {
    let Some(folder) = providers() else { return };
    let here = over_tcp(&folder).set("TIELINE_CONNECT_TIMEOUT", "300ms").open().unwrap();
    let there = open(&folder);
    let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
    let target = there.alloc(64).unwrap();
    let local = here.alloc(64).unwrap();
    let to_b = connected(&a, &b);
    let key = to_b.import_key(&target.remote_key().unwrap()).unwrap();
    let put = to_b.put(&local, 0..64, &key, 0).unwrap();
    // The target makes no progress.
    let error = a.finish(put).unwrap_err();
    assert_eq!(error.status(), Status::TimedOut, "{error}");
    assert!(to_b.error().is_some());
}

#[test]
fn put_get_atomics_flush_and_fence() {
    let Some(folder) = providers() else { return };
    let (here, there) = (open(&folder), open(&folder));
    let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
    let to_b = connected(&a, &b);
    memory_operations(&a, &[&b], &here, &there, &to_b);
    assert_eq!(a.pending(), 0);
}

#[test]
fn a_progress_thread_serves_put_get_and_atomics_while_the_target_computes() {
    let Some(folder) = providers() else { return };
    let here = open(&folder);
    let there = over_tcp(&folder).progress_thread(true).open().unwrap();
    let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
    let to_b = connected(&a, &b);
    // From this point on `b` makes no calls.
    memory_operations(&a, &[], &here, &there, &to_b);
    assert_eq!(a.pending(), 0);
}

#[test]
fn peers_that_fence_at_once_do_not_wait_for_each_other() {
    let Some(folder) = providers() else { return };
    let (here, there) = (open(&folder), open(&folder));
    let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
    let (at_a, at_b) =
        (here.register(vec![0u8; 64]).unwrap(), there.register(vec![0u8; 64]).unwrap());
    let (to_b, to_a) = (connected(&a, &b), connected(&b, &a));
    let key_b = to_b.import_key(&at_b.remote_key().unwrap()).unwrap();
    let key_a = to_a.import_key(&at_a.remote_key().unwrap()).unwrap();
    for i in 1..=100u64 {
        for (to, key) in [(&to_b, &key_b), (&to_a, &key_a)] {
            let _ = to.put_bytes(&i.to_le_bytes(), key, 0).unwrap();
            to.fence().unwrap();
            let _ = to.put_bytes(&i.to_le_bytes(), key, 8).unwrap();
        }
    }
    let last = 100u64.to_le_bytes();
    let arrived = || [&at_a, &at_b].iter().all(|at| at.to_vec(8..16).unwrap() == last);
    until(&[&a, &b], arrived);
}

#[test]
fn gets_in_flight_outlive_their_endpoint_and_their_memory() {
    let Some(folder) = providers() else { return };
    let here = open(&folder);
    for passive in [false, true] {
        let there = over_tcp(&folder).progress_thread(passive).open().unwrap();
        let (a, b) = (here.worker().unwrap(), there.worker().unwrap());
        let target = there.register(vec![3u8; 4 << 20]).unwrap();
        let others: &[&Worker] = if passive { &[&a] } else { &[&a, &b] };
        for _ in 0..3 {
            let landing = here.register(vec![0u8; 4 << 20]).unwrap();
            let to_b = connected(&a, &b);
            let key = to_b.import_key(&target.remote_key().unwrap()).unwrap();
            while key.is_settling() {
                for worker in others {
                    let _ = worker.progress();
                }
            }
            let get = to_b.get(&landing, 0..4 << 20, &key, 0).unwrap();
            drop((to_b, key));
            drop(landing);
            // The get was abandoned with its endpoint, or the remaining connection has delivered it.
            if let Err(error) = finish(others, get) {
                assert_eq!(error.status(), Status::Canceled, "{error}");
            }
        }
        assert_eq!(a.pending(), 0);
    }
}
