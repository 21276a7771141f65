//! Behaviour of hardware that soft RoCE does not show. The tests cover errors in the middle of unsignalled sends, queue pairs that
//! cannot be destroyed, memory of other devices, very many peers, and interfaces without connections.

use crate::abi::*;
use crate::double::world::{counts, fault, pairs, registrations, rights};
use crate::double::{Side, connect, domain, piece, piece_in, share, side};
use crate::{RC, Region, RemoteKey, VerbsEndpoint, VerbsInterface};
use tieline_plugin_api::abi::{KeyParams, RegisterParams};
use tieline_plugin_api::{
    Domain, Endpoint, Interface, Posting, RmaOp, Status, access, op_flags, register_flags,
};

const ALL: u64 = access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC;

fn key_of(owner: &Side, region: &Region, user: &VerbsEndpoint) -> RemoteKey {
    let mut bytes = [0; 128];
    let len = owner.domain.pack_key(region, &KeyParams::empty(), &mut bytes).unwrap();
    user.import_key(&bytes[..len]).unwrap()
}

#[test]
fn error_among_unsignalled_sends_completes_the_earlier_ones() {
    for status in [IBV_WC_REM_ACCESS_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_LOC_QP_OP_ERR] {
        let (mut a, mut b) = (side(&[]), side(&[]));
        let (at_a, _at_b) = connect(&mut a, &mut b);
        let mut target = vec![0u64; 16];
        let (_region, key) = share(&b, &mut target, &at_a);
        // The sends are posted together, so that all of them are posted when the error occurs.
        let mut words: Vec<u64> = (1..=12).collect();
        for word in 0..12u64 {
            let iov = [piece(&mut words[word as usize..=word as usize])];
            let more = if word < 11 { op_flags::MORE } else { 0 };
            let flags = op_flags::REMOTE_COMPLETION | op_flags::NO_EVENT | more;
            if word == 11 {
                fault(|faults| faults.fails_after = Some((5, status)));
            }
            let op = RmaOp { iov: &iov, len: 8, offset: word * 8, cookie: word, flags };
            assert_eq!(at_a.put(&key, &op), Ok(Posting::Pending));
        }
        while a.told.failed.is_empty() {
            a.poll();
        }
        assert_eq!(target[..7], [1, 2, 3, 4, 5, 0, 0]);
        let ended: Vec<u64> = a.told.ended.iter().map(|(cookie, _)| *cookie).collect();
        assert_eq!(ended, (5..12).collect::<Vec<_>>(), "those before it ended well, in silence");
        assert!(a.told.ended.iter().all(|(_, result)| result.is_err()));
        // A new connection works.
        drop(at_a);
        let (at_a, _at_b) = connect(&mut a, &mut b);
        assert_eq!(at_a.am_short(1, 1, b"x"), Ok(Posting::Done));
        while b.told.messages.is_empty() {
            b.poll();
        }
    }
}

#[test]
fn buffers_of_undestroyable_queue_pair_are_never_reused() {
    for keeps in [false, true] {
        let before = registrations();
        let other = domain(&[]).unwrap();
        let interface = other.open_interface(RC, [0; 16]).unwrap();
        let endpoint = interface.connect(&[], &[], 1).unwrap();
        assert_eq!(endpoint.am_short(1, 1, b"x"), Err(Status::Again), "it leads nowhere yet");
        fault(|faults| faults.keeps_pairs = keeps);
        drop((endpoint, interface));
        fault(|faults| faults.keeps_pairs = false);
        assert_eq!((pairs().len(), registrations() > before), (usize::from(keeps), keeps));
        drop(other);
        assert_eq!(registrations() > before, keeps, "its memory stays registered, and mapped");
    }
}

#[test]
fn dma_buffer_is_registered_by_descriptor_and_never_touched() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (at_a, at_b) = connect(&mut a, &mut b);
    let (mut ours, mut theirs) = (vec![7u64; 4096], vec![0u64; 4096]);
    let dmabuf = |words: &mut [u64], dmabuf| {
        let all = piece(words);
        let (flags, kind) = (register_flags::DMABUF, 1);
        RegisterParams { flags, kind, dmabuf, ..RegisterParams::new(all.base, all.len, ALL) }
    };
    let failure = a.domain.register(&dmabuf(&mut ours, -1)).err().unwrap();
    assert_eq!(failure.status, Status::Unsupported);
    assert!(failure.text.starts_with("a DMA buffer of 32768 bytes cannot be"), "{}", failure.text);
    let source = a.domain.register(&dmabuf(&mut ours, 3)).unwrap();
    let target = b.domain.register(&dmabuf(&mut theirs, 4)).unwrap();
    let key = key_of(&b, &target, &at_a);
    // The lengths are for inlining, for copying, and for neither, with a piece of processor memory beside the device memory.
    let mut host = [5u64; 2];
    for len in [1, 100, 4096] {
        ours.fill(len as u64);
        let iov = [piece_in(&source, &mut ours[..len])];
        let op = RmaOp {
            iov: &iov,
            len: len * 8,
            offset: 0,
            cookie: 1,
            flags: op_flags::REMOTE_COMPLETION,
        };
        assert_eq!(at_a.put(&key, &op), Ok(Posting::Pending));
        while a.told.ended.is_empty() {
            a.poll();
        }
        assert_eq!(core::mem::take(&mut a.told.ended), [(1, Ok(0))]);
        assert!(theirs[..len].iter().all(|word| *word == len as u64));
    }
    let iov = [piece(&mut host), piece_in(&source, &mut ours[..2])];
    let op = RmaOp { iov: &iov, len: 32, offset: 0, cookie: 2, flags: op_flags::REMOTE_COMPLETION };
    assert_eq!(at_a.put(&key, &op), Ok(Posting::Pending));
    assert_eq!(at_a.am_zcopy(7, 1, &iov[1..], 3), Ok(Posting::Pending));
    assert_eq!(at_a.am_zcopy(7, 1, &iov, 4), Err(Status::Invalid), "half of it would be copied");
    let mut back = vec![0u64; 8];
    let back_key = share(&a, &mut back, &at_b);
    let iov = [piece_in(&target, &mut theirs[..4])];
    let op = RmaOp { iov: &iov, len: 32, offset: 0, cookie: 5, flags: op_flags::REMOTE_COMPLETION };
    assert_eq!(at_b.put(&back_key.1, &op), Ok(Posting::Pending));
    while a.told.ended.len() < 2 || b.told.messages.is_empty() || b.told.ended.is_empty() {
        a.poll();
        b.poll();
    }
    assert_eq!((&theirs[..4], &back[..4]), (&[5, 5, 4096, 4096][..], &[5, 5, 4096, 4096][..]));
    assert_eq!(b.told.messages[0].1, [4096u64.to_ne_bytes(), 4096u64.to_ne_bytes()].concat());
}

#[test]
fn relaxed_ordering_needs_the_region_or_the_setting() {
    let hint = register_flags::RELAXED_ORDERING;
    for (setting, flags, relaxed) in
        [("off", 0, false), ("off", hint, true), ("on", 0, true), ("on", hint, true)]
    {
        let a = side(&[("TIELINE_VERBS_RELAXED_ORDERING", setting)]);
        let before = rights().len();
        let mut words = vec![0u64; 8];
        let all = piece(&mut words);
        let memory = RegisterParams { flags, ..RegisterParams::new(all.base, all.len, ALL) };
        let region = a.domain.register(&memory).unwrap();
        let hinted = rights().into_iter().filter(|r| r & IBV_ACCESS_RELAXED_ORDERING != 0).count();
        assert_eq!((rights().len(), hinted), (before + 1, usize::from(relaxed)), "no buffers");
        a.domain.deregister(region).unwrap();
    }
}

#[test]
fn ten_thousand_peers_use_bounded_memory_and_exchange_messages() {
    const PEERS: usize = 10_000;
    let settings = [("TIELINE_VERBS_CONNECTIONS", "10002")];
    let (mut a, mut b) = (side(&settings), side(&[]));
    let (first, _other) = connect(&mut a, &mut b);
    let rest: Vec<_> =
        (0..PEERS as u64).map(|cookie| a.interface.connect(&[], &[], cookie).unwrap()).collect();
    let (last, _their_last) = connect(&mut a, &mut b);
    let memory = a.interface.memory();
    assert_eq!(memory.peers as usize, PEERS + 2);
    let each = memory.peer_bytes / memory.peers;
    assert!((64 << 10..80 << 10).contains(&each), "{each} bytes for a peer");
    assert!(memory.base_bytes < 32 << 20, "{} bytes of completions", memory.base_bytes);
    let mut target = vec![0u64; 8];
    let keys: Vec<_> = [&first, &last].map(|at| share(&b, &mut target, at)).into();
    let mut posted = 0;
    for (at, (_, key)) in [&first, &last].into_iter().zip(&keys) {
        let before = posted;
        let mut words = [9u64; 2];
        let iov = [piece(&mut words)];
        let op =
            RmaOp { iov: &iov, len: 16, offset: 0, cookie: 1, flags: op_flags::REMOTE_COMPLETION };
        while at.put(key, &op) == Ok(Posting::Pending) {
            posted += 1;
        }
        assert!(posted >= before + 4, "a few at once");
    }
    while a.told.ended.len() < posted {
        a.poll();
    }
    let full = a.interface.connect(&[], &[], 1).err().unwrap();
    assert_eq!(full.status, Status::NoMemory);
    let words = "rc has 10002 connections, as many as TIELINE_VERBS_CONNECTIONS says";
    assert_eq!(full.text, words);
    // Connected peers are still reachable.
    assert!(a.interface.reachable(&b.interface.address()).is_ok());
    drop(rest);
    assert!(a.interface.connect(&[], &[], 1).is_ok(), "there is room again");
    assert_eq!(a.interface.memory().peers, 2);
}

#[test]
fn unconnected_interface_makes_no_device_requests() {
    let (mut a, _b) = (side(&[]), side(&[]));
    fault(|faults| faults.polls_fail = true);
    (0..100).for_each(|_| a.poll());
    assert!(a.told.failed.is_empty());
    fault(|faults| faults.polls_fail = false);
    let made = counts();
    let VerbsInterface::Rc(rc) = &a.interface else { panic!("reliable") };
    assert!(rc.connect(1).is_ok());
    assert!(counts().receives > made.receives, "with it comes its window");
}
