//! Tests of limits on numbers and lengths, and of the release of resources.

use crate::double::nature::{MLX5, Nature, play};
use crate::double::world::{counts, fault, locked, pairs, receives, registrations};
use crate::double::{self, Side, connect, domain, piece, piece_in, side};
use crate::{RC, Region, RemoteKey, VerbsEndpoint};
use tieline_plugin_api::abi::{Atomic, Iov, KeyParams, RegisterParams};
use tieline_plugin_api::{
    Domain, Endpoint, Interface, Packer, Posted, Posting, RmaOp, Status, access, atomic_op,
    op_flags,
};

/// The setting for the minimum number of message buffers.
const FEW: (&str, &str) = ("TIELINE_VERBS_TX_BUFFERS", "32");

/// Registers memory of `owner` and returns it with a key for `user`.
fn share(owner: &Side, words: &mut [u64], user: &VerbsEndpoint) -> (Region, RemoteKey) {
    let (piece, rights) = (piece(words), access::REMOTE_WRITE | access::REMOTE_ATOMIC);
    let region =
        owner.domain.register(&RegisterParams::new(piece.base, piece.len, rights)).unwrap();
    let mut bytes = [0; 128];
    let len = owner.domain.pack_key(&region, &KeyParams::empty(), &mut bytes).unwrap();
    let key = user.import_key(&bytes[..len]).unwrap();
    (region, key)
}

fn put(at: &VerbsEndpoint, key: &RemoteKey, iov: &[Iov], len: usize) -> Posted {
    at.put(key, &RmaOp { iov, len, offset: 0, cookie: 1, flags: op_flags::REMOTE_COMPLETION })
}

fn add(at: &VerbsEndpoint, key: &RemoteKey) -> Posted {
    let op = Atomic {
        op: atomic_op::ADD,
        width: 8,
        key: core::ptr::null_mut(),
        offset: 0,
        operand: 1,
        compare: 0,
        result: core::ptr::null_mut(),
        cookie: 1,
        flags: op_flags::REMOTE_COMPLETION,
    };
    at.atomic(key, &op, &mut 0)
}

fn pack(at: &VerbsEndpoint, len: usize, packed: Result<usize, Status>) -> Result<usize, Status> {
    at.am_packed(7, 3, Packer::new(&mut |_: *mut u8, _: usize| packed), len)
}

#[test]
fn message_of_segment_size_is_sent_and_longer_one_refused() {
    const SEGMENT: usize = 2 << 10;
    let settings = [("TIELINE_VERBS_SEGMENT_SIZE", "2k")];
    let (mut a, mut b) = (side(&settings), side(&settings));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let mut bytes = vec![5; SEGMENT + 1];
    for (len, refused) in [(SEGMENT, None), (SEGMENT + 1, Some(Status::TooLarge))] {
        let iov = [Iov::new(bytes.as_mut_ptr(), len)];
        assert_eq!(at_a.am_short(7, 1, &vec![5; len]).err(), refused);
        assert_eq!(at_a.am_zcopy(7, 2, &iov, 1).err(), refused);
        assert_eq!(pack(&at_a, len, Ok(len)).err(), refused);
    }
    while b.told.messages.len() < 3 {
        b.poll();
    }
    assert!(b.told.messages.iter().all(|(_, payload)| payload.len() == SEGMENT));
}

#[test]
fn inline_limit_is_lowered_for_good_only_by_a_device_limit() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let mut inlined = || {
        let (at_a, at_b) = connect(&mut a, &mut b);
        let before = counts().inline;
        assert_eq!(at_a.am_short(7, 1, &[1; 172]), Ok(Posting::Done));
        (counts().inline > before, at_a, at_b)
    };
    let (first, ..) = inlined();
    fault(|faults| faults.refuse_pairs = 1);
    let (second, ..) = inlined();
    let (third, ..) = inlined();
    assert_eq!((first, second, third), (true, false, true), "memory that came back");
}

#[test]
fn excess_pieces_or_wrong_total_length_are_refused() {
    const MOST: usize = 11;
    const WORDS: usize = 8;
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let mut target = vec![0u64; (MOST + 1) * WORDS];
    let (_region, key) = share(&b, &mut target, &at_a);
    let mut source: Vec<u64> = (0..((MOST + 1) * WORDS) as u64).collect();
    let all = piece(&mut source);
    let own =
        a.domain.register(&RegisterParams::new(all.base, all.len, access::REMOTE_READ)).unwrap();
    // Empty pieces do not count.
    let pieces = |source: &mut [u64], count: usize| -> Vec<Iov> {
        let full = source.chunks_mut(WORDS).take(count).map(|words| piece_in(&own, words));
        full.flat_map(|full| [full, Iov::new(full.base, 0)]).collect()
    };
    let len = MOST * WORDS * 8;
    let iov = pieces(&mut source, MOST);
    assert_eq!(at_a.am_short(7, 0, &[0; 1000]), Ok(Posting::Done), "now there are buffers");
    let made = counts();
    assert_eq!(at_a.am_zcopy(7, 1, &iov, 1), Ok(Posting::Pending));
    assert_eq!(put(&at_a, &key, &iov, len), Ok(Posting::Pending));
    assert_eq!(counts().registrations, made.registrations, "it is registered");
    assert_eq!(put(&at_a, &key, &iov, len - 1), Err(Status::Invalid));
    assert_eq!(put(&at_a, &key, &iov[..1], len), Err(Status::Invalid));
    let iov = pieces(&mut source, MOST + 1);
    assert_eq!(at_a.am_zcopy(7, 1, &iov, 1), Err(Status::Invalid));
    assert_eq!(put(&at_a, &key, &iov, len + WORDS * 8), Err(Status::Invalid));
    assert_eq!(counts().sends, made.sends + 2);
    (0..3).for_each(|_| {
        a.poll();
        b.poll();
    });
    let bytes: Vec<u8> =
        source[..MOST * WORDS].iter().flat_map(|word| word.to_ne_bytes()).collect();
    assert_eq!(b.told.messages[1..], [(1, bytes)]);
    assert_eq!(target[..MOST * WORDS], source[..MOST * WORDS]);
    assert_eq!((a.told.ended.len(), target[MOST * WORDS]), (2, 0));
}

#[test]
fn refused_post_releases_its_resources() {
    let (mut a, mut b) = (side(&[FEW]), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let (mut target, mut source) = (vec![0u64; 4096], vec![1u64; 4096]);
    let (_region, key) = share(&b, &mut target, &at_a);
    let (copied, lent) = ([piece(&mut source[..100])], [piece(&mut source)]);
    let round = |a: &mut Side, b: &mut Side| {
        assert_eq!(at_a.am_short(7, 1, &[1; 1000]), Ok(Posting::Done));
        assert_eq!(put(&at_a, &key, &copied, 800), Ok(Posting::Pending));
        assert_eq!(add(&at_a, &key), Ok(Posting::Pending));
        while a.told.ended.len() < 2 || b.told.messages.is_empty() {
            a.poll();
            b.poll();
        }
        assert!(a.told.failed.is_empty() && a.told.ended.iter().all(|(_, result)| result.is_ok()));
        (a.told, b.told) = Default::default();
    };
    round(&mut a, &mut b);
    let before = registrations();
    fault(|faults| faults.refuse_sends = libc::ENOMEM);
    // The number of attempts exceeds the number of result buffers.
    for _ in 0..1100 {
        assert_eq!(at_a.am_short(7, 1, &[1; 1000]), Err(Status::Again));
        assert_eq!(put(&at_a, &key, &copied, 800), Err(Status::Again));
        assert_eq!(add(&at_a, &key), Err(Status::Again));
        assert_eq!(pack(&at_a, 1000, Err(Status::Invalid)), Err(Status::Invalid));
    }
    assert_eq!(put(&at_a, &key, &lent, lent[0].len), Err(Status::Again));
    assert_eq!(registrations(), before);
    fault(|faults| faults.refuse_sends = 0);
    // Accepted operations release their resources at completion.
    (0..1100).for_each(|_| round(&mut a, &mut b));
}

#[test]
fn buffer_memory_is_reported_as_it_is_allocated() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let mut target = vec![0u64; 8];
    let (_region, key) = share(&b, &mut target, &at_a);
    let taken = || a.interface.memory().buffer_bytes;
    // The receive buffers hold a segment with its header, in whole cache lines, and are allocated in chunks.
    let receives = taken();
    assert_eq!((receives % (32 * 8256), receives > 0), (0, true));
    assert_eq!(at_a.am_short(7, 1, &[1; 1000]), Ok(Posting::Done));
    assert_eq!(taken() - receives, 32 * 8256);
    assert_eq!(add(&at_a, &key), Ok(Posting::Pending));
    assert_eq!(taken() - receives, 32 * 8256 + 64 * 64);
}

#[test]
fn connection_ending_during_packing_is_reported_without_leaks() {
    let settings = [FEW, ("TIELINE_VERBS_WINDOW", "64")];
    let (mut a, mut b) = (side(&settings), side(&settings));
    for _ in 0..40 {
        let (to_b, at_b) = connect(&mut a, &mut b);
        drop(at_b);
        let mut write = |_: *mut u8, _: usize| {
            while a.told.failed.is_empty() {
                b.poll();
                a.poll();
            }
            Ok(500)
        };
        assert_eq!(to_b.am_packed(7, 3, Packer::new(&mut write), 1000), Err(Status::Closed));
        assert_eq!(to_b.am_short(7, 4, b"same"), Err(Status::Closed));
    }
    // The peer's goodbye is read while the message waits for the device to accept it.
    for _ in 0..40 {
        let (to_b, at_b) = connect(&mut a, &mut b);
        drop(at_b);
        fault(|faults| faults.refuse_sends = libc::ENOMEM);
        assert_eq!(pack(&to_b, 1000, Ok(500)), Ok(500));
        while a.told.failed.is_empty() {
            a.poll();
        }
        fault(|faults| faults.refuse_sends = 0);
    }
    let (to_b, _at_b) = connect(&mut a, &mut b);
    fault(|faults| faults.stuck = true);
    let taken = (0..100).take_while(|_| to_b.am_short(7, 1, &[1; 1000]).is_ok()).count();
    assert_eq!(taken, 32, "all buffers are there");
    fault(|faults| faults.stuck = false);
}

#[test]
fn growing_windows_leave_half_of_the_receives_to_new_peers() {
    let settings = [("TIELINE_VERBS_WINDOW", "8"), ("TIELINE_VERBS_RX_BUFFERS", "256")];
    let (mut a, mut b) = (side(&settings), side(&settings));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let mut last = 0;
    for _ in 0..40 {
        last = (0..500).take_while(|n| at_a.am_short(7, *n, b"short").is_ok()).count();
        (0..40).for_each(|_| b.poll());
        a.poll();
    }
    // The total is 128 receives: 32 are the base and 4 are for control messages.
    assert!((33..=64).contains(&last), "{last}");
    assert!(b.told.failed.is_empty(), "{:?}", b.told.failed);
}

#[test]
fn endpoint_without_memory_for_receives_shares_existing_ones() {
    let settings = [("TIELINE_VERBS_WINDOW", "1024"), ("TIELINE_VERBS_RX_BUFFERS", "32768")];
    let (mut a, mut b) = (side(&settings), side(&settings));
    let small = [a.interface.connect(&[], &[], 8), b.interface.connect(&[], &[], 8)];
    assert!(small.iter().all(Result::is_ok), "the first brings receives for all");
    let (held, posted) = (locked(), receives());
    fault(|faults| faults.locked = Some(held));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    assert!(receives() < posted + 1000, "there is no memory for a window of that size");
    let mut sent = 0;
    while b.told.messages.len() < 2000 {
        sent += (sent..2000).take_while(|n| at_a.am_short(7, *n, b"short").is_ok()).count() as u64;
        b.poll();
        a.poll();
    }
    assert!(a.told.failed.is_empty() && b.told.failed.is_empty(), "{:?} {:?}", a.told, b.told);
    fault(|faults| faults.locked = None);
}

#[test]
fn outstanding_operations_reach_depth_and_goodbye_still_fits() {
    let settings = [("TIELINE_VERBS_TX_DEPTH", "16")];
    let (mut a, mut b) = (side(&settings), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let mut target = vec![0u64; 8];
    let (_region, key) = share(&b, &mut target, &at_a);
    fault(|faults| faults.stuck = true);
    let posted = (0..100).take_while(|_| put(&at_a, &key, &[piece(&mut [9u64; 8])], 64).is_ok());
    assert_eq!(posted.count(), 16);
    drop(at_a);
    fault(|faults| faults.stuck = false);
    while b.told.failed.is_empty() {
        b.poll();
    }
    assert_eq!((b.told.failed[0].1, target), (Status::Closed, vec![9; 8]));
}

#[test]
fn completion_queue_holds_all_endpoints_even_if_read_late() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let ends: Vec<_> = (0..20).map(|_| connect(&mut a, &mut b)).collect();
    let mut target = vec![0u64; 8];
    let (mut posted, mut regions) = (0, Vec::new());
    for (at_a, _) in &ends {
        let (region, key) = share(&b, &mut target, at_a);
        regions.push(region);
        while put(at_a, &key, &[piece(&mut [1u64; 8])], 64) == Ok(Posting::Pending) {
            posted += 1;
        }
    }
    assert_eq!(posted, 20 * 120, "as many as each may have on the way");
    while a.told.ended.len() < posted && a.told.failed.is_empty() {
        a.poll();
    }
    assert!(a.told.failed.is_empty(), "{:?}", a.told.failed);
    assert!(a.told.ended.iter().all(|(_, result)| result.is_ok()));
}

#[test]
fn get_into_many_pieces_has_room_in_a_shared_completion_queue() {
    // Every read has one piece, and the completion queue is small.
    let few = Nature { pieces_read: 1, resizes: false, ..MLX5 };
    play(few);
    fault(|faults| faults.most_completions = Some(1024 + 12 * 24));
    let (mut a, mut b) = (side(&[]), side(&[]));
    let mut source = vec![7u64; 11];
    let ends = as_many_as_there_may_be(&mut a, &mut b);
    assert!(ends.len() >= 8, "{}", ends.len());
    let mut all = Vec::new();
    for (at_a, _) in &ends {
        let piece = piece(&mut source);
        let params = RegisterParams::new(piece.base, piece.len, access::REMOTE_READ);
        let region = b.domain.register(&params).unwrap();
        let mut bytes = [0; 128];
        let len = b.domain.pack_key(&region, &KeyParams::empty(), &mut bytes).unwrap();
        let key = at_a.import_key(&bytes[..len]).unwrap();
        let mut target = [0u64; 22];
        let iov: Vec<Iov> =
            target.chunks_mut(2).map(|words| self::piece(&mut words[..1])).collect();
        let op =
            RmaOp { iov: &iov, len: 88, offset: 0, cookie: 1, flags: op_flags::REMOTE_COMPLETION };
        assert_eq!(at_a.get(&key, &op), Ok(Posting::Pending));
        while a.told.ended.is_empty() {
            a.poll();
        }
        a.told = Default::default();
        assert_eq!(target, core::array::from_fn(|at| if at % 2 == 0 { 7 } else { 0 }));
        all.push(region);
    }
}

/// Makes endpoints of two sides until one side reports that its limit is reached.
fn as_many_as_there_may_be(a: &mut Side, b: &mut Side) -> Vec<(VerbsEndpoint, VerbsEndpoint)> {
    let mut ends = Vec::new();
    loop {
        let (at_a, at_b) = (a.interface.connect(&[], &[], 1), b.interface.connect(&[], &[], 2));
        let (Ok(at_a), Ok(at_b)) = (at_a, at_b) else { break };
        at_a.connect(&at_b.address()).unwrap();
        at_b.connect(&at_a.address()).unwrap();
        while at_a.flush(0) == Err(Status::Again) || at_b.flush(0) == Err(Status::Again) {
            a.poll();
            b.poll();
        }
        ends.push((at_a, at_b));
    }
    while double::poll(&a.interface, &mut a.told) + double::poll(&b.interface, &mut b.told) > 0 {}
    (a.told, b.told) = Default::default();
    ends
}

#[test]
fn fixed_completion_queue_holds_receives_of_all_own_queues() {
    play(Nature { shares_receives: false, resizes: false, ..MLX5 });
    fault(|faults| faults.most_completions = Some(1500));
    let settings = [
        ("TIELINE_VERBS_WINDOW", "512"),
        ("TIELINE_VERBS_MAX_WINDOW", "512"),
        ("TIELINE_VERBS_RX_BUFFERS", "64"),
    ];
    let (mut a, mut b) = (side(&settings), side(&settings));
    let ends = as_many_as_there_may_be(&mut a, &mut b);
    assert!(!ends.is_empty());
    let failure = a.interface.connect(&[], &[], 3).and_then(|_| b.interface.connect(&[], &[], 3));
    let text = failure.err().unwrap().text;
    let advice = "endpoints: lower TIELINE_VERBS_CONNECTIONS, so that others serve the rest";
    assert!(text.ends_with(advice), "{text}");
    // One side does not poll while the other side sends whole windows over all endpoints.
    let mut sent = 0;
    for (at_a, at_b) in &ends {
        while at_b.am_short(7, 1, b"x").is_ok() {}
        for _ in 0..200 {
            sent += (0..512).take_while(|_| at_a.am_short(7, 1, b"x").is_ok()).count();
            a.poll();
        }
    }
    assert_eq!(sent, ends.len() * 512);
    while b.told.messages.len() < sent && b.told.failed.is_empty() {
        b.poll();
    }
    assert!(b.told.failed.is_empty(), "{:?}", b.told.failed);
}

#[test]
fn a_completion_queue_grows_before_an_endpoint_is_refused() {
    let settings = [("TIELINE_VERBS_RX_BUFFERS", "32768"), ("TIELINE_VERBS_TX_DEPTH", "8192")];
    let (mut a, mut b) = (side(&settings), side(&[]));
    let mut target = vec![0u64; 8];
    let mut words = [1u64; 8];
    let (mut ends, mut regions) = (Vec::new(), Vec::new());
    for _ in 0..11 {
        let (at_a, at_b) = connect(&mut a, &mut b);
        let (region, key) = share(&b, &mut target, &at_a);
        regions.push(region);
        ends.push((at_a, at_b, key));
    }
    // Every endpoint posts up to its limit, and no operation ends before others are made.
    fault(|faults| faults.stuck = true);
    for (at_a, _, key) in &ends {
        while put(at_a, key, &[piece(&mut words)], 64).is_ok() {}
    }
    let more: Vec<_> = (0..10).map(|_| a.interface.connect(&[], &[], 3)).collect();
    let refused = more.iter().find_map(|more| more.as_ref().err());
    assert_eq!(refused, None);
    fault(|faults| faults.stuck = false);
}

#[test]
fn endpoint_beyond_completion_queue_is_refused_with_advice() {
    fault(|faults| faults.most_completions = Some(1060));
    let settings = [("TIELINE_VERBS_TX_DEPTH", "2048")];
    let a = domain(&settings).unwrap().open_interface(RC, [0; 16]).unwrap();
    let _three = [1, 2, 3].map(|cookie| a.connect(&[], &[], cookie).unwrap());
    let failure = a.connect(&[], &[], 4).err().unwrap();
    assert_eq!((failure.status, pairs().len()), (Status::NoMemory, 3));
    let words = "the completion queue of double0 has 1060 entries and cannot have more, which is not enough for 4 \
                 endpoints: lower TIELINE_VERBS_RX_BUFFERS, or TIELINE_VERBS_CONNECTIONS, so that others serve the rest";
    assert_eq!(failure.text, words);
}

#[test]
fn partly_or_unregistered_memory_is_registered_transiently() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let mut target = vec![0u64; 4096];
    let (_region, key) = share(&b, &mut target, &at_a);
    let mut source: Vec<u64> = (0..4096).collect();
    let inner = piece(&mut source[1024..3072]);
    let own = a
        .domain
        .register(&RegisterParams::new(inner.base, inner.len, access::REMOTE_READ))
        .unwrap();
    let mut lends = |a: &mut Side, own: Option<&Region>, first: usize, end: usize| {
        let made = counts().registrations;
        let words = &mut source[first..end];
        let iov = [match own {
            Some(own) => piece_in(own, words),
            None => piece(words),
        }];
        assert_eq!(put(&at_a, &key, &iov, iov[0].len), Ok(Posting::Pending));
        while a.told.ended.is_empty() {
            a.poll();
        }
        assert_eq!(core::mem::take(&mut a.told.ended), [(1, Ok(0))], "{first}..{end}");
        assert_eq!(target[..end - first], source[first..end]);
        counts().registrations > made
    };
    for (first, end) in [(1024, 3072), (1025, 3071)] {
        assert!(!lends(&mut a, Some(&own), first, end), "a region of the program's");
        assert!(lends(&mut a, None, first, end), "nobody said so");
    }
    for (first, end) in [(1023, 3072), (1024, 3073), (0, 4096)] {
        assert!(lends(&mut a, Some(&own), first, end), "{first}..{end}");
    }
    a.domain.deregister(own).unwrap();
}

#[test]
fn unsupported_or_misplaced_atomic_is_refused_before_posting() {
    let (a, b) = (&mut side(&[]), &mut side(&[]));
    let (at_a, _at_b) = connect(a, b);
    let mut words = [0u64; 4];
    let (_region, key) = share(b, &mut words, &at_a);
    // The region begins in the middle of a word.
    let base = words.as_mut_ptr().cast::<u8>().wrapping_add(4);
    let odd = |access| {
        let region = b.domain.register(&RegisterParams::new(base, 16, access)).unwrap();
        let mut bytes = [0; 128];
        let len = b.domain.pack_key(&region, &KeyParams::empty(), &mut bytes).unwrap();
        (at_a.import_key(&bytes[..len]).unwrap(), region)
    };
    let ((askew, _askew), (read, _read)) = (odd(access::REMOTE_ATOMIC), odd(access::REMOTE_READ));
    let post = |key: &RemoteKey, op: u32, width: u32, offset: u64| {
        let op = Atomic {
            op,
            width,
            key: core::ptr::null_mut(),
            offset,
            operand: 1,
            compare: 0,
            result: core::ptr::null_mut(),
            cookie: 3,
            flags: op_flags::REMOTE_COMPLETION,
        };
        at_a.atomic(key, &op, &mut 0)
    };
    let add = atomic_op::ADD;
    let sends = counts().sends;
    for (key, op, width, offset, status) in [
        (&key, add, 4, 0, Status::Unsupported),
        (&key, atomic_op::AND, 8, 0, Status::Unsupported),
        (&key, atomic_op::MAX, 8, 0, Status::Unsupported),
        (&key, add, 8, 4, Status::Misaligned),
        (&key, add, 8, 1, Status::Misaligned),
        (&askew, add, 8, 0, Status::Misaligned),
        (&askew, add, 8, 4, Status::Misaligned),
        (&key, add, 8, 32, Status::OutOfRange),
        (&key, add, 8, 1 << 40, Status::OutOfRange),
    ] {
        assert_eq!(post(key, op, width, offset), Err(status), "{op} {width} {offset}");
    }
    assert_eq!(post(&read, add, 8, 0), Err(Status::Misaligned), "that is seen first");
    assert_eq!(counts().sends, sends);
    for op in [add, atomic_op::COMPARE_SWAP] {
        assert_eq!(post(&key, op, 8, 24), Ok(Posting::Pending));
    }
    assert_eq!(counts().sends, sends + 2);
    while a.told.ended.len() < 2 {
        a.poll();
        b.poll();
    }
}
