//! Tests of direct access (loads, stores, atomics, pointers, declined accesses), and of the ends of attachments.

use tieline_plugin_api::abi::{Iov, ModuleAttr};
use tieline_plugin_api::{Domain, Interface, Revoked, caps, cost_class};

use super::*;
use crate::double::pair::{BOTH, PAGE, Pair, op, settings};
use crate::double::{Command, There};

const ALL: u64 = BOTH | access::REMOTE_ATOMIC;

fn direct(len: usize) -> Pair {
    Pair::with(len, &Settings { reach: Reach::Direct, ..settings() })
}

fn atomic(kind: u32, width: u32, offset: u64, operand: u64, compare: u64) -> Atomic {
    let (key, result) = (core::ptr::null_mut(), core::ptr::null_mut());
    Atomic { op: kind, width, key, offset, operand, compare, result, cookie: 0, flags: 0 }
}

#[test]
fn direct_access_moves_every_byte_across_windows_without_kernel_copy() {
    let mut pair = direct(20 * PAGE);
    let (_region, key) = pair.offered(BOTH);
    let copies = pair.played.asked(Command::Copy);
    let mut local = vec![0u8; 9 * PAGE];
    let (first, second) = local.split_at_mut(4 * PAGE + 13);
    let len = second.len();
    let pieces = [
        Iov::new(first.as_mut_ptr(), first.len()),
        Iov::new(core::ptr::null_mut(), 0),
        Iov::new(second.as_mut_ptr(), len),
    ];
    assert_eq!(pair.endpoint.get(&key, &op(&pieces, 5)), Ok(Posting::Done));
    let theirs: Vec<u8> = (0..9 * PAGE).map(|n| (n + 5) as u8).collect();
    assert!(core::hint::black_box(&local) == &theirs, "every byte, in order");
    let mut word = 0x1122_3344_5566_7788_u64.to_ne_bytes();
    let piece = [Iov::new(word.as_mut_ptr(), 8)];
    assert_eq!(pair.endpoint.put(&key, &op(&piece, 19 * PAGE as u64)), Ok(Posting::Done));
    assert_eq!(core::hint::black_box(&pair.memory)[19 * PAGE..][..8], word);
    assert_eq!(pair.played.asked(Command::Copy), copies + 1, "a look at the owner's card");
    assert_eq!(pair.endpoint.put(&key, &op(&[], 0)), Ok(Posting::Done));
}

#[test]
fn kernel_with_pages_of_any_size_moves_every_byte() {
    for (page, reach) in
        [4096, 16384, 65536].map(|page| [(page, Reach::Copy), (page, Reach::Direct)]).concat()
    {
        let (window, len) = (2 * page, 5 * page as usize + 5);
        let mut pair = Pair::with(len, &Settings { reach, page, window, ..settings() });
        let (_region, key) = pair.offered(BOTH);
        let mut local = vec![0u8; len - 3];
        let piece = [Iov::new(local.as_mut_ptr(), local.len())];
        assert_eq!(pair.endpoint.get(&key, &op(&piece, 3)), Ok(Posting::Done));
        assert!(core::hint::black_box(&local)[..] == pair.memory[3..], "{page}: every byte");
        local.reverse();
        assert_eq!(pair.endpoint.put(&key, &op(&piece, 3)), Ok(Posting::Done));
        assert!(core::hint::black_box(&pair.memory)[3..] == local, "{page}: every byte");
        let whole = pair.played.ranges().iter().all(|(at, len)| (at | len) % page == 0);
        assert!(whole && pair.attached() > 0, "{page}: {:?}", pair.played.ranges());
    }
}

#[test]
fn direct_access_has_capabilities_that_copies_lack() {
    let modules = |pair: &Pair| pair.owner.modules()[0];
    let (copy, direct) = (modules(&Pair::new(8)), modules(&direct(8)));
    let more = caps::ATOMICS | caps::KEY_POINTER | caps::DIES_WITH_OWNER;
    assert_eq!((copy.caps & more, direct.caps & more), (0, more));
    let every = |attr: &ModuleAttr| {
        [attr.atomic_post32, attr.atomic_post64, attr.atomic_fetch32, attr.atomic_fetch64]
    };
    assert_eq!((every(&copy), every(&direct)), ([0; 4], [0xff; 4]));
    for attr in [&copy, &direct] {
        assert_eq!(attr.caps & (caps::PUT | caps::GET), caps::PUT | caps::GET);
        for class in [cost_class::SMALL_RMA, cost_class::BULK_RMA] {
            assert!(attr.cost[class].bytes_per_second > 1e9, "{class}");
        }
    }
    assert!(direct.cost[cost_class::ATOMIC].overhead_ns > 0.0, "without a call it costs, too");
    let cost = |attr: &ModuleAttr| attr.cost[cost_class::SMALL_RMA].overhead_ns;
    assert!(cost(&direct) < cost(&copy) / 10.0, "a call is dear");
    assert!(
        (71..80).contains(&direct.priority) && (66..70).contains(&copy.priority),
        "shm has 80, shm-cma 70, shm-knem 65"
    );

    let mut pair = Pair::new(64);
    let (_region, key) = pair.offered(ALL);
    let add = atomic(atomic_op::ADD, 8, 0, 1, 0);
    assert_eq!(pair.endpoint.atomic(&key, &add, &mut 0), Err(Status::Unsupported));
    let pointer = pair.endpoint.key_pointer(&key, 0, 8);
    assert_eq!(pointer.unwrap_err().status, Status::Unsupported);
}

#[test]
fn atomics_of_both_widths_check_rights_range_and_alignment() {
    let mut pair = direct(4096);
    // The region begins on a word boundary, like memory of the allocator.
    pair.memory[..16].fill(0);
    let (_region, key) = pair.offered(ALL);
    let mut before = 77;
    let mut done = |op: Atomic| pair.endpoint.atomic(&key, &op, &mut before).map(|_| before);
    assert_eq!(done(atomic(atomic_op::ADD, 8, 0, 5, 0)), Ok(0));
    assert_eq!(done(atomic(atomic_op::COMPARE_SWAP, 8, 0, 9, 4)), Ok(5));
    assert_eq!(done(atomic(atomic_op::COMPARE_SWAP, 8, 0, 9, 5)), Ok(5));
    assert_eq!(done(atomic(atomic_op::MAX, 8, 0, 3, 0)), Ok(9));
    assert_eq!(done(atomic(atomic_op::MIN, 8, 0, 6, 0)), Ok(9));
    assert_eq!(done(atomic(atomic_op::SWAP, 8, 0, u64::MAX, 0)), Ok(6));
    assert_eq!(done(atomic(atomic_op::AND, 4, 4, 0xf0f0, 0)), Ok(0xffff_ffff));
    assert_eq!(done(atomic(atomic_op::OR, 4, 4, 0xf, 0)), Ok(0xf0f0));
    assert_eq!(done(atomic(atomic_op::XOR, 4, 4, 0xff, 0)), Ok(0xf0ff));
    assert_eq!(done(atomic(atomic_op::ADD, 4, 4, 0, 0)), Ok(0xf000));
    assert_eq!(done(atomic(atomic_op::ADD, 8, 4, 1, 0)), Err(Status::Misaligned));
    assert_eq!(done(atomic(atomic_op::ADD, 4, 4094, 1, 0)), Err(Status::OutOfRange));
    assert_eq!(done(atomic(atomic_op::ADD, 2, 0, 1, 0)), Err(Status::Unsupported));
    assert_eq!(done(atomic(atomic_op::MAX + 1, 8, 0, 1, 0)), Err(Status::Unsupported));
    let (region, key) = pair.offered(BOTH);
    let add = atomic(atomic_op::ADD, 8, 0, 1, 0);
    assert_eq!(pair.endpoint.atomic(&key, &add, &mut 0), Err(Status::KeyRejected));
    drop(region);
    let (region, key) = pair.offered(ALL);
    assert_eq!(pair.owner.revoke(&region), Revoked::Quiet);
    assert_eq!(pair.endpoint.atomic(&key, &add, &mut 0), Err(Status::KeyRejected));
}

#[test]
fn pointer_stays_valid_as_long_as_its_key() {
    let mut pair = direct(20 * PAGE);
    let (region, key) = pair.offered(BOTH);
    let base = pair.memory.as_mut_ptr().expose_provenance();
    let before = pair.attached();
    let at = |offset, len| pair.endpoint.key_pointer(&key, offset, len);
    assert_eq!(at(0, 20 * PAGE as u64).unwrap().addr(), base);
    assert_eq!(at(7 * PAGE as u64, 1).unwrap().addr(), base + 7 * PAGE);
    assert_eq!(pair.attached(), before + 1, "of all of it at once");
    assert_eq!(at(20 * PAGE as u64, 1).unwrap_err().status, Status::OutOfRange);
    assert_eq!(at(u64::MAX, 2).unwrap_err().status, Status::OutOfRange);
    pair.owner.deregister(region).unwrap();
    let late = pair.endpoint.key_pointer(&key, 0, 8);
    assert_eq!(late.unwrap_err().status, Status::KeyRejected);
    assert_eq!(pair.attached(), before + 1, "somebody may still have the address");
    drop(key);
    assert_eq!(pair.attached(), before);

    for rights in [access::REMOTE_READ, access::REMOTE_WRITE, access::REMOTE_ATOMIC] {
        let (_region, key) = pair.offered(rights);
        let refused = pair.endpoint.key_pointer(&key, 0, 8).unwrap_err();
        assert_eq!(refused.status, Status::KeyRejected);
    }
}

#[test]
fn no_pointer_is_given_into_a_shared_segment() {
    let mut pair = direct(64);
    let _two = [pair.offered(BOTH), pair.offered(BOTH)];
    let (_third, key) = pair.offered(BOTH);
    let refused = pair.endpoint.key_pointer(&key, 0, 8).unwrap_err();
    assert_eq!(refused.status, Status::Unsupported);
    assert!(refused.text.contains("TIELINE_SHM_XPMEM_SEGMENTS"), "{refused}");
    let mut local = [0u8; 8];
    let piece = [Iov::new(local.as_mut_ptr(), 8)];
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Ok(Posting::Done));
}

#[test]
fn cold_memory_is_declined_until_warming_pays_off() {
    let mut pair = direct(20 * PAGE);
    let costs =
        Costs { attach: 1500.0, fault: 500.0, warm_byte: 0.1, call: 1000.0, call_byte: 0.1 };
    pair.endpoint.set_costs(costs);
    let (_region, key) = pair.offered(ALL);
    let before = pair.attached();
    let mut local = vec![0u8; 20 * PAGE];
    let base = pair.memory.as_ptr().addr();
    // The range lies within one window.
    let inside = (base.next_multiple_of(4 * PAGE) - base) as u64;
    let piece = [Iov::new(local.as_mut_ptr(), 8)];
    for _ in 0..2 {
        assert_eq!(pair.endpoint.get(&key, &op(&piece, inside)), Err(Status::Declined));
        assert_eq!(pair.attached(), before);
    }
    for _ in 0..2 {
        assert_eq!(pair.endpoint.put(&key, &op(&piece, inside)), Ok(Posting::Done));
    }
    assert_eq!(pair.attached(), before + 1);
    let far = inside + 8 * PAGE as u64;
    assert_eq!(pair.endpoint.get(&key, &op(&piece, far)), Err(Status::Declined), "another window");
    assert_eq!(pair.endpoint.put(&key, &op(&[], far)), Ok(Posting::Done), "nothing is never cold");
    let mut result = 0;
    let add = atomic(atomic_op::ADD, 4, far / 4 * 4, 0, 0);
    if (base as u64 + add.offset) % 4 == 0 {
        assert_eq!(
            pair.endpoint.atomic(&key, &add, &mut result),
            Ok(Posting::Done),
            "nor is an atomic"
        );
    }
    // The access is long enough that the kernel's copy is faster, even for warm memory.
    pair.endpoint.set_costs(Costs { warm_byte: 1.0, ..costs });
    let long = [Iov::new(local.as_mut_ptr(), 3 * PAGE)];
    assert_eq!(pair.endpoint.get(&key, &op(&long, inside)), Err(Status::Declined));
    assert_eq!(pair.endpoint.get(&key, &op(&piece, inside)), Ok(Posting::Done));
}

#[test]
fn revoked_key_is_refused_instead_of_declined() {
    let mut pair = direct(64);
    let costs = Costs { attach: 1e9, fault: 0.0, warm_byte: 0.1, call: 1000.0, call_byte: 0.1 };
    pair.endpoint.set_costs(costs);
    let (region, key) = pair.offered(BOTH);
    let mut local = [0u8; 8];
    let piece = [Iov::new(local.as_mut_ptr(), 8)];
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Err(Status::Declined));
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 60)), Err(Status::OutOfRange));
    assert_eq!(pair.owner.revoke(&region), Revoked::Quiet);
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Err(Status::KeyRejected));
    let Pair { played, owner, interface, endpoint, .. } = pair;
    drop((region, key, endpoint, interface, owner));
    assert_eq!(played.there(), There::default());
}

#[test]
fn copy_ending_after_its_owner_or_region_fails_and_releases_both() {
    let mut pair = Pair::new(64);
    let before = pair.attached();
    let (region, key) = pair.offered(BOTH);
    let mut local = [0u8; 8];
    let piece = [Iov::new(local.as_mut_ptr(), 8)];
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Ok(Posting::Done));
    assert_eq!((pair.endpoint.still_theirs(&key), pair.attached()), (Ok(()), before + 1));
    assert_eq!(pair.owner.revoke(&region), Revoked::Quiet);
    assert_eq!(pair.endpoint.still_theirs(&key), Err(Status::KeyRejected));
    assert_eq!(pair.attached(), before);

    let (_next, key) = pair.offered(BOTH);
    let mut child = std::process::Command::new("cat")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    pair.endpoint.peer.theirs.process = tieline_memory_file::Process::open(child.id() as i32);
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Ok(Posting::Done));
    assert_eq!(pair.attached(), before + 1);
    child.kill().unwrap();
    let _ = child.wait().unwrap();
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Err(Status::PeerFailed));
    assert_eq!(pair.attached(), before);
}

#[test]
fn reused_window_stays_and_least_recently_used_one_is_evicted() {
    let settings = Settings { attachments: 2, ..settings() };
    let mut pair = Pair::with(40 * PAGE, &settings);
    let (_region, key) = pair.offered(BOTH);
    let again = pair.endpoint.import_key(&pair.packed(&_region)).unwrap();
    let base = pair.memory.as_ptr().addr();
    let first = (base.next_multiple_of(4 * PAGE) - base) as u64;
    let mut local = [0u8; 8];
    let piece = [Iov::new(local.as_mut_ptr(), 8)];
    let get = |key: &RemoteKey, window: u64| {
        let at = first + window * 4 * PAGE as u64;
        assert_eq!(pair.endpoint.get(key, &op(&piece, at)), Ok(Posting::Done));
        pair.played.asked(Command::Attach)
    };
    let _ = get(&key, 0);
    let asked = get(&again, 1);
    assert_eq!(get(&key, 0), asked, "it is what this key was used for last");
    assert_eq!(get(&again, 2), asked + 1, "the second window goes for it");
    assert_eq!(get(&key, 0), asked + 1);
    assert_eq!(get(&again, 1), asked + 2);
}

#[test]
fn owner_counts_once_for_all_its_endpoints_until_the_last_ends() {
    let mut pair = Pair::new(64);
    let other = Pair::new(64);
    let (_region, key) = pair.offered(BOTH);
    let mut local = [0u8; 8];
    let piece = [Iov::new(local.as_mut_ptr(), 8)];
    let connect = |to: &Pair| {
        let address = to.owner.open_interface(crate::MODULE, [3; 16]).unwrap().address();
        // The card of either owner is memory of this process, and is read through the pair's module double.
        pair.interface.connect(&address, b"", 0)
    };
    let second = connect(&pair).unwrap();
    let before = pair.attached();
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Ok(Posting::Done));
    assert_eq!(pair.attached(), before + 1);
    let report = pair.interface.memory();
    assert_eq!(report.peers, 1, "{report:?}");
    assert_eq!(report.peer_bytes, PAGE as u64, "what is attached counts once");
    assert!(connect(&other).is_err(), "another module's segments are none of this one's");
    drop(second);
    assert_eq!(pair.attached(), before + 1, "an endpoint to the owner is there still");
    assert_eq!(pair.interface.memory().peers, 1);
}

#[test]
fn a_segment_of_a_regions_own_ends_with_its_last_page() {
    let mut pair = Pair::new(3 * PAGE);
    let (_region, key) = pair.offered(BOTH);
    let kernel = &pair.endpoint.lease.kernel;
    let permit = kernel.get(key.memory.segment).unwrap();
    let end = (key.memory.base + key.memory.len).next_multiple_of(PAGE as u64);
    let len = end - key.memory.segment_start;
    assert_eq!(kernel.attach(permit, 0, len), Ok(key.memory.segment_start));
    assert_eq!(kernel.attach(permit, 0, len + PAGE as u64), Err(libc::EINVAL));
    kernel.release(permit).unwrap();
}
