//! Tests, through the whole core, of an endpoint before the choice between `rc` and `ud` for its messages.

use crate::double::world::fault;
use crate::instructions_tests::Half;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use tieline::endpoint::Close;
use tieline::{Endpoint, Outcome, PostError, Region, RemoteKey, Rendezvous, Request, Status};

/// The number of rounds of progress after which a missing event counts as absent.
const NEVER: usize = 200_000;

fn until(halves: &[&Half], mut so: impl FnMut() -> bool) -> bool {
    for _ in 0..NEVER {
        if so() {
            return true;
        }
        for half in halves {
            let _ = half.worker.progress();
        }
    }
    so()
}

fn turn(halves: &[&Half]) {
    halves.iter().for_each(|half| {
        let _ = half.worker.progress();
    });
}

fn to(half: &Half) -> Vec<u8> {
    half.worker.address().unwrap()
}

fn ended(all: &[&Half], at: &Half, outcome: Outcome) -> Result<u64, Status> {
    let request = match outcome {
        Outcome::Done(value) => return Ok(value),
        Outcome::Pending(request) => request,
    };
    let mut result = None;
    assert!(
        until(all, || {
            result = at.worker.test(&request);
            result.is_some()
        }),
        "it ends"
    );
    result.unwrap().map_err(|error| error.status())
}

/// Returns the numbers of the arrived messages.
fn numbers(half: &Half, id: u16) -> Rc<RefCell<Vec<u64>>> {
    let came = Rc::<RefCell<Vec<u64>>>::default();
    let log = came.clone();
    half.worker.on_message(id, move |message| log.borrow_mut().push(message.header())).unwrap();
    came
}

/// Returns a worker that is limited to one connection, and the peer that uses this connection.
fn full() -> (Half, Half, Endpoint) {
    let (near, first) = (Half::with(&[("TIELINE_VERBS_CONNECTIONS", "1")]), Half::open());
    let served = near.worker.connect(&to(&first)).unwrap();
    assert!(until(&[&near, &first], || served.send(1, 0, b"").is_ok()));
    assert!(until(&[&near, &first], || first.seen.get() == 1));
    assert_eq!(served.message_path(), "verbs:double0/rc");
    (near, first, served)
}

#[test]
fn peer_served_by_the_reserve_causes_no_failure_events() {
    let (near, first, _served) = full();
    let second = Half::open();
    let all = [&near, &first, &second];
    let told = Rc::new(RefCell::new(Vec::new()));
    for (name, half) in [("near", &near), ("second", &second)] {
        let (a, b, c) = (told.clone(), told.clone(), told.clone());
        half.worker.on_peer_left(move |peer| a.borrow_mut().push(format!("{name}: {peer} left")));
        half.worker
            .on_peer_failure(move |peer, e| b.borrow_mut().push(format!("{name}: {peer} {e}")));
        half.worker.on_endpoint_failure(move |_, e| c.borrow_mut().push(format!("{name}: {e}")));
    }
    let there = near.worker.connect(&to(&second)).unwrap();
    let back = second.worker.connect(&to(&near)).unwrap();
    assert_eq!(ended(&all, &near, there.flush_messages().unwrap()), Ok(0));
    assert_eq!(ended(&all, &second, back.flush_messages().unwrap()), Ok(0));
    assert_eq!(
        (there.message_path(), back.message_path()),
        ("verbs:double0/ud".into(), "verbs:double0/ud".into())
    );
    for _ in 0..1000 {
        turn(&all);
    }
    assert_eq!(*told.borrow(), Vec::<String>::new());
    drop(there);
    for _ in 0..1000 {
        turn(&all);
    }
    assert_eq!(*told.borrow(), Vec::<String>::new());
    assert_eq!(ended(&all, &second, back.flush_messages().unwrap()), Ok(0));
}

#[test]
fn refused_side_uses_the_reserve_and_its_peer_uses_rc() {
    let (near, far) = (Half::open(), Half::open());
    let all = [&near, &far];
    let (at_far, at_near) = (numbers(&far, 3), numbers(&near, 3));
    let there = near.worker.connect(&to(&far)).unwrap();
    let mut open: Vec<Outcome> = (0..10).map(|n| there.send(3, n, &[1; 40]).unwrap()).collect();
    // The queue pair of the near side can be made, that of the peer cannot.
    fault(|faults| faults.refuse_pairs = 100);
    assert!(until(&all, || there.message_path().ends_with("/ud")));
    fault(|faults| faults.refuse_pairs = 0);
    open.extend((10..20).map(|n| there.send(3, n, &[1; 40]).unwrap()));
    let back = far.worker.connect(&to(&near)).unwrap();
    let mut theirs: Vec<Outcome> = (0..10).map(|n| back.send(3, n, &[1; 40]).unwrap()).collect();
    let memory = far.context.alloc(64).unwrap();
    let mine = near.context.alloc(64).unwrap();
    let key = there.import_key(&memory.remote_key().unwrap()).unwrap();
    let key_back = back.import_key(&mine.remote_key().unwrap()).unwrap();
    open.push(there.put_bytes_notify(&[9; 8], &key, 0, 5).unwrap());
    theirs.push(back.put_bytes_notify(&[8; 8], &key_back, 0, 6).unwrap());
    there.fence().unwrap();
    open.push(there.fetch_add(&key, 8, 1).unwrap());
    open.push(there.flush().unwrap());
    theirs.push(back.flush().unwrap());
    for (half, list) in [(&near, open), (&far, theirs)] {
        for outcome in list {
            assert_eq!(ended(&all, half, outcome), Ok(0));
        }
    }
    assert_eq!(ended(&all, &far, back.flush_messages().unwrap()), Ok(0));
    assert_eq!(ended(&all, &near, there.flush_messages().unwrap()), Ok(0));
    assert_eq!(back.message_path(), "verbs:double0/rc");
    assert_eq!(there.message_path(), "verbs:double0/ud");
    assert_eq!(*at_far.borrow(), (0..20).collect::<Vec<_>>());
    assert_eq!(*at_near.borrow(), (0..10).collect::<Vec<_>>());
    // A second endpoint of the near side uses the connection that the peer has started.
    let again = near.worker.connect(&to(&far)).unwrap();
    assert_eq!(ended(&all, &near, again.flush_messages().unwrap()), Ok(0));
    assert_eq!(again.message_path(), "verbs:double0/rc");
    drop(again);
    assert_eq!(ended(&all, &near, there.flush_messages().unwrap()), Ok(0));
}

#[test]
fn endpoint_can_be_closed_before_its_module_is_chosen() {
    for how in ["flush", "cancel", "drop", "cancel one"] {
        let (near, first, served) = full();
        let second = Half::open();
        let all = [&near, &first, &second];
        let came = numbers(&near, 3);
        let there = second.worker.connect(&to(&near)).unwrap();
        let memory = near.context.alloc(64).unwrap();
        let key = there.import_key(&memory.remote_key().unwrap()).unwrap();
        let sent: Vec<Outcome> = (0..10).map(|n| there.send(3, n, &[1; 40]).unwrap()).collect();
        let put = there.put_bytes(&[3; 8], &key, 0).unwrap();
        match how {
            "flush" => {
                let closed = there.close(Close::Flush).unwrap();
                drop(there);
                assert_eq!(ended(&all, &second, closed), Ok(0));
                assert!(until(&all, || came.borrow().len() == 10));
                assert_eq!(memory.to_vec(0..8).unwrap(), [3; 8]);
            }
            "cancel" => {
                assert!(there.close(Close::Cancel).unwrap().is_done());
                for outcome in sent {
                    assert_eq!(ended(&all, &second, outcome), Err(Status::Canceled));
                }
                assert_eq!(ended(&all, &second, put), Err(Status::Canceled));
            }
            "drop" => {
                drop((key, there));
                for outcome in sent {
                    let _ = ended(&all, &second, outcome);
                }
                let _ = ended(&all, &second, put);
            }
            _ => {
                let Some(Outcome::Pending(one)) = sent.into_iter().nth(4) else { panic!() };
                second.worker.cancel(&one).unwrap();
                assert_eq!(ended(&all, &second, there.flush_messages().unwrap()), Ok(0));
                assert_eq!(*came.borrow(), [0, 1, 2, 3, 5, 6, 7, 8, 9]);
                assert_eq!(ended(&all, &second, put), Ok(0));
            }
        }
        drop(served);
    }
}

#[test]
fn reopened_endpoints_leave_nothing_behind() {
    let (near, first, _served) = full();
    let second = Half::open();
    let all = [&near, &first, &second];
    let mut sizes = Vec::new();
    for round in 0..300 {
        let there = near.worker.connect(&to(&second)).unwrap();
        assert_eq!(ended(&all, &near, there.flush_messages().unwrap()), Ok(0));
        assert!(there.message_path().ends_with("/ud"));
        drop(there);
        for _ in 0..50 {
            turn(&all);
        }
        if round % 50 == 49 {
            let peers: Vec<u64> = [&near, &second]
                .iter()
                .flat_map(|h| h.worker.memory().into_iter().map(|m| m.peers))
                .collect();
            sizes.push((peers, crate::double::world::pairs().len(), near.worker.pending()));
        }
    }
    assert_eq!(sizes[1..], vec![sizes[1].clone(); sizes.len() - 1]);
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % n
    }
}

/// A direction of the stress test, from one side to another.
struct Way {
    from: usize,
    to: usize,
    number: u64,
    endpoint: Endpoint,
    key: RemoteKey,
    memory: Region,
    sent: u64,
    last: u8,
    open: Vec<Request>,
}

#[test]
fn operations_posted_during_refusals_arrive_once_and_in_order() {
    for seed in 1..9u64 {
        stressed(seed);
    }
}

fn stressed(seed: u64) {
    fault(|faults| faults.refuse_pairs = 0);
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let bound = ["1", "2", "3"][random.below(3) as usize];
    let halves: Vec<Half> = (0..4)
        .map(|at| match at {
            0 => Half::with(&[("TIELINE_VERBS_CONNECTIONS", "1")]),
            1 => Half::with(&[("TIELINE_VERBS_CONNECTIONS", bound)]),
            _ => Half::open(),
        })
        .collect();
    let all: Vec<&Half> = halves.iter().collect();
    let seen: Rc<RefCell<BTreeMap<u64, Vec<u64>>>> = Rc::default();
    let kept: Vec<Rc<RefCell<Vec<Rendezvous>>>> = (0..4).map(|_| Rc::default()).collect();
    let words = Rc::new(Cell::new(0u64));
    for (half, kept) in halves.iter().zip(&kept) {
        let (seen, kept, words) = (seen.clone(), kept.clone(), words.clone());
        half.worker
            .on_message(5, move |message| {
                seen.borrow_mut()
                    .entry(message.header() >> 32)
                    .or_default()
                    .push(message.header() & 0xffff_ffff);
                kept.borrow_mut().extend(message.rendezvous());
            })
            .unwrap();
        half.worker.on_notification(move |_, _| words.set(words.get() + 1)).unwrap();
    }
    let mut ways: Vec<Way> = Vec::new();
    let (mut expected, mut number, mut notified) = (BTreeMap::<u64, u64>::new(), 0u64, 0u64);
    for _step in 0..600 {
        match random.below(12) {
            0 | 1 if ways.len() < 8 => {
                let from = random.below(4) as usize;
                let there = (from + 1 + random.below(3) as usize) % 4;
                let endpoint = halves[from].worker.connect(&to(&halves[there])).unwrap();
                let memory = halves[there].context.alloc(4096).unwrap();
                let key = endpoint.import_key(&memory.remote_key().unwrap()).unwrap();
                number += 1;
                ways.push(Way {
                    from,
                    to: there,
                    number,
                    endpoint,
                    key,
                    memory,
                    sent: 0,
                    last: 0,
                    open: Vec::new(),
                });
            }
            2 => fault(|faults| faults.refuse_pairs = [0, 0, 100][random.below(3) as usize]),
            3..=6 if !ways.is_empty() => {
                let at = random.below(ways.len() as u64) as usize;
                let way = &mut ways[at];
                let len = [0, 8, 100, 900, 3000, 5000, 9000, 20_000][random.below(8) as usize];
                match way.endpoint.send(5, way.number << 32 | way.sent, &vec![1; len]) {
                    Ok(outcome) => {
                        way.sent += 1;
                        if let Outcome::Pending(request) = outcome {
                            way.open.push(request);
                        }
                    }
                    Err(PostError::Retry(_)) => {}
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
            7 | 8 if !ways.is_empty() => {
                let at = random.below(ways.len() as u64) as usize;
                let way = &mut ways[at];
                way.endpoint.fence().unwrap();
                let value = way.last.wrapping_add(1);
                let len = [1, 8, 700, 4096][random.below(4) as usize];
                let put = if random.below(2) == 0 {
                    way.endpoint.put_bytes(&vec![value; len], &way.key, 0)
                } else {
                    let put = way.endpoint.put_bytes_notify(&vec![value; len], &way.key, 0, 7);
                    notified += u64::from(put.is_ok());
                    put
                };
                match put {
                    Ok(outcome) => {
                        way.last = value;
                        if let Outcome::Pending(request) = outcome {
                            way.open.push(request);
                        }
                    }
                    Err(PostError::Retry(_)) => {}
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
            9 if !ways.is_empty() && random.below(3) == 0 => {
                let at = random.below(ways.len() as u64) as usize;
                let way = ways.swap_remove(at);
                finish_way(seed, &all, way, &mut expected, &kept, &halves);
            }
            10 => {
                for (at, kept) in kept.iter().enumerate() {
                    take(&halves[at], kept);
                }
            }
            _ => {
                for _ in 0..random.below(200) {
                    let at = random.below(4) as usize;
                    let _ = halves[at].worker.progress();
                }
            }
        }
    }
    for way in std::mem::take(&mut ways) {
        finish_way(seed, &all, way, &mut expected, &kept, &halves);
    }
    let whole = || {
        seen.borrow().values().map(Vec::len).sum::<usize>() as u64 == expected.values().sum::<u64>()
    };
    assert!(until(&all, whole), "seed {seed}: messages are lost");
    for (number, sent) in &expected {
        let seen = seen.borrow();
        let came = seen.get(number).cloned().unwrap_or_default();
        assert_eq!(came, (0..*sent).collect::<Vec<_>>(), "seed {seed}, way {number}");
    }
    assert!(
        until(&all, || words.get() == notified),
        "seed {seed}: {} words of {notified}",
        words.get()
    );
    let quiet = || halves.iter().all(|half| half.worker.pending() == 0);
    assert!(
        until(&all, quiet),
        "seed {seed}: {:?}",
        halves.iter().map(|h| h.worker.pending()).collect::<Vec<_>>()
    );
    for half in &halves {
        assert_eq!(half.worker.counters().malformed, 0, "seed {seed}");
    }
}

fn take(half: &Half, kept: &RefCell<Vec<Rendezvous>>) {
    for announcement in std::mem::take(&mut *kept.borrow_mut()) {
        let len = announcement.len();
        let room = half.context.alloc(len).unwrap();
        drop(announcement.receive_into(&room, 0..len).unwrap());
    }
}

fn finish_way(
    seed: u64,
    all: &[&Half],
    way: Way,
    expected: &mut BTreeMap<u64, u64>,
    kept: &[Rc<RefCell<Vec<Rendezvous>>>],
    halves: &[Half],
) {
    let _ = expected.insert(way.number, way.sent);
    let at = &halves[way.from];
    for (n, request) in way.open.iter().enumerate() {
        let mut result = None;
        let so = until(all, || {
            for (at, kept) in kept.iter().enumerate() {
                take(&halves[at], kept);
            }
            result = at.worker.test(request);
            result.is_some()
        });
        assert!(
            so,
            "seed {seed}, way {} to {}: operation {n} of {} never ends over {}: {:?}",
            way.number,
            way.to,
            way.open.len(),
            way.endpoint.message_path(),
            way.endpoint.status()
        );
        if let Err(error) = result.unwrap() {
            panic!(
                "seed {seed}, way {}: operation {n}: {error}; {:?}",
                way.number,
                way.endpoint.error()
            );
        }
    }
    let mut flush = None;
    assert!(until(all, || {
        flush = way.endpoint.flush().ok();
        flush.is_some()
    }));
    assert_eq!(ended(all, at, flush.unwrap()), Ok(0), "seed {seed}");
    if way.last > 0 {
        assert_eq!(way.memory.to_vec(0..1).unwrap(), [way.last], "seed {seed}, way {}", way.number);
    }
}
