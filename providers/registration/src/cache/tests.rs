//! Tests of the cache, compared with a list that is searched from end to end.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const KEEP: Limits = Limits { keep: true, bytes: 1000, entries: 3 };

/// Finds or creates a registration, as the registry does: `Ok` with the evicted ones, `Err` if there is no room.
fn take(
    cache: &mut Cache<u32>,
    name: u32,
    start: u64,
    end: u64,
    written: bool,
) -> Result<(Ticket, u32, Vec<u32>), Vec<u32>> {
    if let Some((ticket, &name)) = cache.find(start, end, written) {
        return Ok((ticket, name, Vec::new()));
    }
    let (gone, room) = cache.make_room(end - start);
    if room { Ok((cache.insert(start, end, written, name), name, gone)) } else { Err(gone) }
}

#[test]
fn concurrent_operations_share_registration_until_last_one_ends() {
    let mut cache = Cache::new(Limits { keep: false, ..KEEP });
    let (first, ..) = take(&mut cache, 1, 100, 200, true).unwrap();
    let (second, name, _) = take(&mut cache, 2, 120, 180, false).unwrap();
    assert_eq!(name, 1, "a part of it, to be read");
    assert_eq!(cache.release(first), None);
    assert_eq!(cache.release(second), Some(1));
    assert_eq!(take(&mut cache, 3, 100, 200, true).unwrap().1, 3, "nothing outlives its users");
}

#[test]
fn registration_is_reused_only_during_operation_on_all_of_it() {
    let mut cache = Cache::new(Limits { keep: false, ..KEEP });
    let (first, ..) = take(&mut cache, 1, 0, 10, true).unwrap();
    let (again, name, _) = take(&mut cache, 2, 0, 10, true).unwrap();
    assert_eq!(name, 1);
    let (part, name, _) = take(&mut cache, 3, 3, 4, true).unwrap();
    assert_eq!(name, 1);
    assert_eq!(cache.release(first), None);
    let (other, name, _) = take(&mut cache, 4, 0, 2, true).unwrap();
    assert_eq!((name, cache.release(other)), (1, None), "the second one vouches for all of it");
    // The remaining operation covers only a part: the rest may be unmapped and replaced by another mapping.
    assert_eq!(cache.release(again), None);
    assert_eq!(cache.find(0, 2, true), None);
    assert_eq!(cache.release(part), Some(1));
}

#[test]
fn kept_registrations_are_reused_and_evicted_by_last_use() {
    let mut cache = Cache::new(KEEP);
    for name in 1..=3 {
        let start = u64::from(name) * 100;
        let (ticket, ..) = take(&mut cache, name, start, start + 50, false).unwrap();
        assert_eq!(cache.release(ticket), None);
    }
    let (ticket, name, _) = take(&mut cache, 9, 100, 150, false).unwrap();
    assert_eq!((name, cache.release(ticket)), (1, None));
    let (_ticket, _, gone) = take(&mut cache, 4, 400, 450, false).unwrap();
    assert_eq!(gone, [2]);
}

#[test]
fn used_registrations_are_not_evicted_and_lack_of_room_is_reported() {
    let mut cache = Cache::new(KEEP);
    let held: Vec<Ticket> = (1..=3)
        .map(|n| take(&mut cache, n, 1000 * u64::from(n), 1000 * u64::from(n) + 9, true).unwrap().0)
        .collect();
    assert_eq!(take(&mut cache, 4, 9000, 9009, true), Err(vec![]));
    assert_eq!(
        take(&mut cache, 4, 9000, 10_001, true),
        Err(vec![]),
        "longer than all there may be"
    );
    drop(held);
}

#[test]
fn removed_registrations_free_their_room_in_any_case() {
    let mut cache = Cache::new(KEEP);
    for name in 1..=20 {
        let (ticket, found, gone) = take(&mut cache, name, 0, 900, false).unwrap();
        assert_eq!((found, gone), (name, vec![]), "it has all the room there is");
        if name % 2 == 0 {
            assert_eq!(cache.release(ticket), None);
            assert_eq!(cache.forget_idle(), [name]);
        } else {
            assert_eq!(cache.forget(0, 900), []);
            assert_eq!(cache.release(ticket), Some(name));
        }
    }
}

#[test]
fn forgotten_memory_is_registered_anew_during_old_operation() {
    let mut cache = Cache::new(KEEP);
    let (under_way, ..) = take(&mut cache, 1, 100, 200, true).unwrap();
    let (idle, ..) = take(&mut cache, 2, 300, 400, true).unwrap();
    assert_eq!(cache.release(idle), None);
    assert_eq!(cache.forget(150, 301), [2]);
    let (again, name, _) = take(&mut cache, 3, 100, 200, true).unwrap();
    assert_eq!(name, 3);
    assert_eq!(cache.release(under_way), Some(1));
    assert_eq!(cache.release(again), None);
}

#[derive(Clone, Debug)]
enum Step {
    Take { start: u64, len: u64, written: bool },
    Release(usize),
    Forget { start: u64, len: u64 },
    ForgetIdle,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u64..40, 1u64..16, any::<bool>()).prop_map(|(start, len, written)| Step::Take { start, len, written }),
        3 => any::<usize>().prop_map(Step::Release),
        1 => (0u64..40, 1u64..16).prop_map(|(start, len)| Step::Forget { start, len }),
        1 => Just(Step::ForgetIdle),
    ]
}

/// The expected contents of the cache, as a list.
#[derive(Clone, Debug)]
struct Held {
    name: u32,
    start: u64,
    end: u64,
    written: bool,
    users: usize,
    doomed: bool,
}

proptest! {
    #[test]
    fn every_registration_is_found_bounded_and_destroyed_once(
        steps in proptest::collection::vec(step(), 0..120),
        keep in any::<bool>(),
        bytes in 8usize..80,
        entries in 1usize..8,
    ) {
        let mut cache = Cache::new(Limits { keep, bytes, entries });
        let mut oracle: Vec<Held> = Vec::new();
        // The list holds a ticket, its entry, and the memory that its operation covers.
        let mut tickets: Vec<(Ticket, u32, u64, u64)> = Vec::new();
        let mut destroyed = BTreeSet::new();
        for (name, step) in (0u32..).zip(steps) {
            let mut gone: Vec<u32> = Vec::new();
            match step {
                Step::Take { start, len, written } => {
                    let end = start + len;
                    let known = |h: &&mut Held| {
                        !h.doomed && h.start <= start && end <= h.end && (h.written || !written)
                    };
                    let fitting: Vec<u32> =
                        oracle.iter_mut().filter(known).map(|h| h.name).collect();
                    match take(&mut cache, name, start, end, written) {
                        Ok((ticket, found, evicted)) => {
                            gone = evicted;
                            tickets.push((ticket, found, start, end));
                            if found == name {
                                prop_assert!(fitting.is_empty(), "{fitting:?} were there");
                                oracle.push(Held { name, start, end, written, users: 1, doomed: false });
                            } else {
                                prop_assert!(fitting.contains(&found));
                                oracle.iter_mut().filter(|h| h.name == found).for_each(|h| h.users += 1);
                            }
                        }
                        Err(evicted) => {
                            gone = evicted;
                            prop_assert!(fitting.is_empty());
                        }
                    }
                    let idle = |name: &u32| oracle.iter().any(|h| h.name == *name && h.users == 0);
                    prop_assert!(gone.iter().all(idle), "only what nobody uses is evicted");
                }
                Step::Release(at) if !tickets.is_empty() => {
                    let (ticket, name, ..) = tickets.swap_remove(at % tickets.len());
                    gone.extend(cache.release(ticket));
                    let held = oracle.iter_mut().find(|h| h.name == name).unwrap();
                    held.users -= 1;
                    let (start, end) = (held.start, held.end);
                    let vouched = tickets.iter().any(|(_, of, from, to)| {
                        *of == name && *from <= start && end <= *to
                    });
                    held.doomed |= !keep && !vouched;
                    let ends = held.users == 0 && (held.doomed || !keep);
                    prop_assert_eq!(gone.as_slice(), if ends { &[name][..] } else { &[] });
                }
                Step::Release(_) => {}
                Step::Forget { start, len } => {
                    gone = cache.forget(start, start + len);
                    for held in oracle.iter_mut().filter(|h| h.start < start + len && h.end > start) {
                        held.doomed = true;
                        prop_assert_eq!(gone.contains(&held.name), held.users == 0);
                    }
                }
                Step::ForgetIdle => {
                    gone = cache.forget_idle();
                    let idle: BTreeSet<u32> =
                        oracle.iter().filter(|h| h.users == 0).map(|h| h.name).collect();
                    prop_assert_eq!(gone.iter().copied().collect::<BTreeSet<_>>(), idle);
                }
            }
            for name in gone {
                prop_assert!(destroyed.insert(name), "{name} is destroyed twice");
                oracle.retain(|h| h.name != name);
            }
            prop_assert!(oracle.len() <= entries);
            prop_assert!(oracle.iter().map(|h| h.end - h.start).sum::<u64>() <= bytes as u64);
            prop_assert!(keep || oracle.iter().all(|h| h.users > 0), "nothing outlives its users");
        }
    }
}
