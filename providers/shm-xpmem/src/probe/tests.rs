//! Tests of the provider over the module double: copies, keys, registrations, cards, the self-test, and the statuses of failed
//! calls.

use std::sync::Arc;

use tieline_memory_file::PeerRegistrations;
use tieline_plugin_api::abi::{Iov, KeyParams, RegisterParams};
use tieline_plugin_api::{Domain, Endpoint, Interface, Posting, Revoked, RmaOp, access};

use super::*;
use crate::double::pair::{BOTH, PAGE, Pair, op, settings};
use crate::double::{Command, Played, There};
use crate::keys::Owner;
use crate::{MODULE, RemoteKey};

#[test]
fn puts_and_gets_of_many_pieces_move_their_bytes_in_order_across_windows() {
    let mut pair = Pair::new(20 * PAGE);
    let (_region, key) = pair.offered(BOTH);
    let mut local = vec![0u8; 40_000];
    // 200 pieces of 0 to 398 bytes are too many for one call, and longer than a window.
    let mut pieces = Vec::new();
    let mut at = 0;
    for n in 0..200 {
        let len = n % 200 * 2;
        pieces.push(Iov::new(local[at..].as_mut_ptr(), len));
        at += len;
    }
    assert_eq!(pair.endpoint.get(&key, &op(&pieces, 7)), Ok(Posting::Done));
    let theirs: Vec<u8> = (0..at).map(|n| (n + 7) as u8).collect();
    assert!(local[..at] == theirs[..], "every byte, in order");
    assert!((3..=4).contains(&pair.attached()), "of windows of 16 KiB: {}", pair.attached());
    local.fill(0xee);
    let end = 20 * PAGE;
    let piece = [Iov::new(local.as_mut_ptr(), 3)];
    assert_eq!(pair.endpoint.put(&key, &op(&piece, end as u64 - 3)), Ok(Posting::Done));
    let memory = core::hint::black_box(&pair.memory);
    assert_eq!(memory[end - 5..], [251, 252, 0xee, 0xee, 0xee]);
    assert_eq!(
        pair.endpoint.put(&key, &op(&[], end as u64)),
        Ok(Posting::Done),
        "nothing, at the end"
    );
}

#[test]
fn a_window_is_attached_once_and_counted_until_the_endpoint_is_dropped() {
    let mut pair = Pair::new(64);
    let (_region, key) = pair.offered(BOTH);
    let before = pair.played.there();
    let mut local = [0u8; 8];
    let piece = [Iov::new(local.as_mut_ptr(), 8)];
    for _ in 0..5 {
        assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Ok(Posting::Done));
    }
    assert_eq!(pair.attached(), before.attached + 1);
    let report = pair.interface.memory();
    assert!(report.peers == 1 && report.peer_bytes >= PAGE as u64, "{report:?}");
    drop(key);
    assert_eq!(pair.attached(), before.attached + 1, "the key may be imported once more");
    let Pair { played, endpoint, interface, .. } = pair;
    drop(endpoint);
    assert_eq!(played.there(), before);
    assert_eq!(interface.memory().peer_bytes, 0);
}

#[test]
fn access_beyond_region_or_rights_is_refused_before_attaching() {
    let mut pair = Pair::new(100);
    let (_region, key) = pair.offered(access::REMOTE_READ);
    let before = pair.played.asked(Command::Attach);
    let mut local = [0u8; 101];
    let piece = |len| [Iov::new(local.as_ptr().cast_mut(), len)];
    for (offset, len) in [(0, 101), (100, 1), (u64::MAX, 2), (101, 0)] {
        assert_eq!(pair.endpoint.get(&key, &op(&piece(len), offset)), Err(Status::OutOfRange));
    }
    assert_eq!(pair.endpoint.put(&key, &op(&piece(1), 0)), Err(Status::KeyRejected));
    let lies = [Iov::new(local.as_mut_ptr(), 5)];
    let lying = RmaOp { len: 4, ..op(&lies, 0) };
    assert_eq!(pair.endpoint.get(&key, &lying), Err(Status::Invalid));
    assert_eq!(pair.played.asked(Command::Attach), before);
}

#[test]
fn revoked_key_is_refused_and_releases_its_attachment() {
    let mut pair = Pair::new(64);
    let before = pair.played.there();
    let (region, key) = pair.offered(BOTH);
    assert_eq!(pair.played.there().segments, before.segments + 1);
    let packed = pair.packed(&region);
    let mut local = [0u8; 8];
    let piece = [Iov::new(local.as_mut_ptr(), 8)];
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Ok(Posting::Done));
    assert_eq!(pair.owner.revoke(&region), Revoked::Quiet);
    assert_eq!(pair.played.there().segments, before.segments + 1, "the kernel still has it");
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Err(Status::KeyRejected));
    assert_eq!(pair.endpoint.put(&key, &op(&piece, 0)), Err(Status::KeyRejected));
    assert_eq!(pair.attached(), before.attached);
    assert_eq!(pair.endpoint.import_key(&packed).err().unwrap().status, Status::KeyRejected);
    pair.owner.deregister(region).unwrap();
    assert_eq!(pair.played.there(), before);
    let (_next, _) = pair.offered(BOTH);
    assert!(pair.endpoint.import_key(&packed).is_err(), "the entry is another registration's now");
}

#[test]
fn key_dropped_after_its_registration_releases_attachments() {
    let mut pair = Pair::new(64);
    let before = pair.attached();
    let (region, key) = pair.offered(BOTH);
    let mut local = [0u8; 8];
    let piece = [Iov::new(local.as_mut_ptr(), 8)];
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Ok(Posting::Done));
    pair.owner.deregister(region).unwrap();
    assert_eq!(pair.attached(), before + 1, "nobody has said so yet");
    drop(key);
    assert_eq!(pair.attached(), before);
}

#[test]
fn access_in_progress_keeps_the_region_busy() {
    let mut pair = Pair::new(64);
    let (region, key) = pair.offered(BOTH);
    let inside = pair.endpoint.accessor().enter(key.place.generation);
    assert_eq!(pair.owner.revoke(&region), Revoked::Busy);
    drop(inside);
    assert_eq!(pair.owner.revoke(&region), Revoked::Quiet);
}

#[test]
fn kernel_errors_map_to_statuses() {
    let mut pair = Pair::new(64);
    let (_region, key) = pair.offered(BOTH);
    let mut local = [0u8; 8];
    let piece = [Iov::new(local.as_mut_ptr(), 8)];
    let answers = [
        (Command::Get, libc::ENOENT, Status::Unreachable),
        (Command::Get, libc::EACCES, Status::Unreachable),
        (Command::Get, libc::EBUSY, Status::Unreachable),
        (Command::Get, sys::NOT_OPENED, Status::Unreachable),
        (Command::Attach, libc::ENOENT, Status::Unreachable),
        (Command::Attach, libc::EINVAL, Status::KeyRejected),
        (Command::Attach, libc::EIO, Status::Io),
        (Command::Copy, libc::EPERM, Status::Unreachable),
        (Command::Copy, libc::ENOSYS, Status::Unreachable),
        (Command::Copy, libc::ENOMEM, Status::NoMemory),
        (Command::Copy, libc::EBADF, Status::Io),
        // The local memory is readable, and the owner still has its segment: the owner has unmapped the page.
        (Command::Copy, libc::EFAULT, Status::Permission),
    ];
    let before = pair.attached();
    for (command, errno, status) in answers {
        // Without an attachment the owner's card is read first.
        if command != Command::Get && pair.attached() == before {
            pair.played.pass(command);
        }
        pair.played.fail(command, errno);
        assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Err(status), "{command:?} {errno}");
    }
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Ok(Posting::Done), "it goes on");
    let nowhere = [Iov::new(core::ptr::without_provenance_mut(8), 8)];
    pair.played.fail(Command::Copy, libc::EFAULT);
    assert_eq!(pair.endpoint.put(&key, &op(&nowhere, 0)), Err(Status::Invalid));
    // A get into read-only memory is an error of the caller; a put from read-only memory is valid.
    static READ_ONLY: [u8; 8] = *b"constant";
    let constant = [Iov::new(READ_ONLY.as_ptr().cast_mut(), 8)];
    pair.played.fail(Command::Copy, libc::EFAULT);
    assert_eq!(pair.endpoint.get(&key, &op(&constant, 0)), Err(Status::Invalid));
    pair.played.fail(Command::Copy, libc::EFAULT);
    assert_eq!(pair.endpoint.put(&key, &op(&constant, 0)), Err(Status::Permission));
}

#[test]
fn attach_without_mappings_is_declined_unless_operation_has_begun() {
    let mut pair = Pair::new(16 * PAGE);
    let (_region, key) = pair.offered(BOTH);
    let mut local = vec![0u8; 16 * PAGE];
    let piece = [Iov::new(local.as_mut_ptr(), local.len())];
    // EAGAIN means that all memory is locked, up to its limit.
    for want in [libc::ENOMEM, libc::EAGAIN] {
        let refuse = |pair: &Pair| {
            for _ in 0..2 {
                pair.played.fail(Command::Attach, want);
            }
        };
        refuse(&pair);
        assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Err(Status::Declined));
        // The calls attach the card, and the first window.
        pair.played.pass(Command::Attach);
        pair.played.pass(Command::Attach);
        refuse(&pair);
        assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Err(Status::NoMemory));
    }
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Ok(Posting::Done));
}

#[test]
fn hole_and_closed_device_have_different_statuses() {
    let mut pair = Pair::new(16 * PAGE);
    let (_region, key) = pair.offered(BOTH);
    let mut local = vec![0u8; 8 * PAGE];
    let piece = [Iov::new(local.as_mut_ptr(), local.len())];
    let base = pair.memory.as_ptr().expose_provenance() as u64;
    pair.played.map(base + 5 * PAGE as u64, false);
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Err(Status::Permission));
    pair.played.map(base + 5 * PAGE as u64, true);
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Ok(Posting::Done), "mapped anew");
    pair.played.end_the_owner();
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Err(Status::Unreachable));
    assert_eq!(pair.played.there().attached, 0);
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Err(Status::Unreachable));
}

#[test]
fn first_registrations_have_own_segments_and_others_share_one() {
    let mut pair = Pair::new(64);
    let before = pair.played.there().segments;
    // Two of the registrations have a segment of their own (`settings`).
    let mut all: Vec<_> = (0..10).map(|_| pair.offered(BOTH)).collect();
    assert_eq!(pair.played.there().segments, before + 3);
    let mut local = [0u8; 4];
    let piece = [Iov::new(local.as_mut_ptr(), 4)];
    for (_, key) in &all {
        local.fill(0);
        assert_eq!(pair.endpoint.get(key, &op(&piece, 3)), Ok(Posting::Done));
        assert_eq!(core::hint::black_box(local), [3, 4, 5, 6]);
    }
    drop(all.remove(0));
    assert_eq!(pair.played.there().segments, before + 2);
    let _again = pair.offered(BOTH);
    assert_eq!(pair.played.there().segments, before + 3, "there is room for one more");
    all.clear();
    assert_eq!(pair.played.there().segments, before + 1, "that of all memory has ended, too");
    let Pair { played, owner, interface, endpoint, .. } = pair;
    drop((owner, interface, endpoint, _again));
    assert_eq!(played.there(), There::default());
}

#[test]
fn registration_without_segment_number_uses_the_shared_segment() {
    let mut pair = Pair::new(64);
    let before = pair.played.there().segments;
    pair.played.fail(Command::Make, libc::EBUSY);
    let (region, key) = pair.offered(BOTH);
    assert_eq!((pair.played.there().segments, key.memory.segment_start), (before + 1, 0));
    let mut local = [0u8; 4];
    let piece = [Iov::new(local.as_mut_ptr(), 4)];
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 3)), Ok(Posting::Done));
    pair.owner.deregister(region).unwrap();
    assert_eq!(pair.played.there().segments, before);
}

#[test]
fn old_key_never_writes_to_the_program_after_exec() {
    let mut pair = Pair::new(8 * PAGE);
    let (_region, key) = pair.offered(BOTH);
    let mut others = vec![7u8; 16 * PAGE];
    let start = others.as_mut_ptr().expose_provenance().next_multiple_of(PAGE) as u64;
    let mut local = [1u8; 8];
    let piece = [Iov::new(local.as_mut_ptr(), 8)];
    // The new program's segment numbers are those of the owner.
    pair.played.exec_the_owner(start, 9 * PAGE as u64);
    assert_eq!(pair.endpoint.put(&key, &op(&piece, 0)), Err(Status::Unreachable));
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Err(Status::Unreachable));
    assert!(core::hint::black_box(&others).iter().all(|byte| *byte == 7));
    assert_eq!((core::hint::black_box(local), pair.attached()), ([1; 8], 0));
}

#[test]
fn hole_after_exec_of_the_owner_is_unreachable() {
    let mut pair = Pair::new(8 * PAGE);
    let (_region, key) = pair.offered(BOTH);
    let mut local = [1u8; 8];
    let piece = [Iov::new(local.as_mut_ptr(), 8)];
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Ok(Posting::Done));
    let base = pair.memory.as_ptr().expose_provenance() as u64;
    let mut others = vec![7u8; 16 * PAGE];
    let start = others.as_mut_ptr().expose_provenance().next_multiple_of(PAGE) as u64;
    pair.played.exec_the_owner(start, 9 * PAGE as u64);
    pair.played.map(base, false);
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Err(Status::Unreachable));
}

#[test]
fn memory_that_the_kernel_cannot_copy_is_not_registered() {
    let mut pair = Pair::new(64);
    let before = pair.played.there();
    // The ranges are where normally no process has a mapping, and beyond the address space.
    let base = pair.memory.as_mut_ptr();
    let nowhere = core::ptr::without_provenance_mut(PAGE);
    for (base, len) in [(nowhere, 64), (nowhere, 1), (base, 1 << 62)] {
        let refused = pair.owner.register(&RegisterParams::new(base, len, BOTH)).err().unwrap();
        assert_eq!(refused.status, Status::Unsupported, "{refused}");
        assert!(refused.text.contains("device memory"), "{refused}");
    }
    let nobodys = RegisterParams::new(nowhere, 64, 0);
    assert!(pair.owner.register(&nobodys).is_ok(), "nobody may touch it");
    assert_eq!(pair.played.there(), before);
}

#[test]
fn malformed_keys_and_addresses_are_refused() {
    let mut pair = Pair::new(64);
    let (region, _) = pair.offered(BOTH);
    let good = pair.packed(&region);
    assert!(pair.endpoint.import_key(&good).is_ok());
    for at in 0..40 {
        let mut wrong = good;
        wrong[at] ^= 0x40;
        let refused = pair.endpoint.import_key(&wrong).err().unwrap();
        assert_eq!(refused.status, Status::KeyRejected, "byte {at}");
    }
    assert!(pair.endpoint.import_key(&good[..39]).is_err());
    let short = pair.owner.pack_key(&region, &KeyParams::empty(), &mut [0; 39]).unwrap_err();
    assert_eq!(short.status, Status::TooLarge);

    let interface = pair.owner.open_interface(MODULE, [1; 16]).unwrap();
    let address = interface.address();
    assert_eq!((address.len(), &address[..4]), (84, &b"xpm\x01"[..]));
    for cut in 0..address.len() {
        let refused = interface.reachable(&address[..cut]).unwrap_err();
        assert_eq!(refused.status, Status::BadData);
    }
    let mut other = address.clone();
    other[3] ^= 1;
    assert_eq!(interface.reachable(&other).unwrap_err().status, Status::BadData);
    assert!(pair.owner.open_interface("other", [0; 16]).is_err());
}

#[test]
fn invalid_entries_are_rejected() {
    let pair = Pair::new(64);
    let lease = Lease::played(pair.played.clone(), settings());
    let owner = Owner::new(lease.clone(), settings()).unwrap();
    let pid = sys::own_pid();
    let table =
        PeerRegistrations::open(pid, owner.shared.table.descriptor(), &owner.shared.nonce).unwrap();
    let table = Arc::new(table);
    let import = |words: [u64; WORDS]| {
        let place = owner.shared.table.enter(words).unwrap();
        let mut key = b"tl-xpme\x01".to_vec();
        key.extend(owner.shared.nonce);
        key.extend(place.generation.to_ne_bytes());
        key.extend(u64::from(place.entry).to_ne_bytes());
        RemoteKey::unpack(&key, (&owner.shared.nonce, 4711, 4096), &table, &lease).map(drop)
    };
    let segment = 5 << 32 | 4711;
    assert!(import([segment, 4096, 5000, 10, BOTH]).is_ok());
    assert!(import([0, 0, 5000, 10, 0]).is_ok(), "nobody may touch it");
    for wrong in [
        [segment, 4096, 4095, 10, BOTH],
        [segment, 4096, u64::MAX, 1, BOTH],
        [segment | 1 << 63, 4096, 5000, 10, BOTH],
        // A segment of another process, which may have granted nothing.
        [5 << 32 | 4712, 4096, 5000, 10, BOTH],
    ] {
        assert_eq!(import(wrong).unwrap_err().status, Status::KeyRejected, "{wrong:x?}");
    }
}

#[test]
fn region_without_rights_has_no_segment_and_its_key_no_access() {
    let mut pair = Pair::new(64);
    let before = pair.played.there().segments;
    let (_region, key) = pair.offered(0);
    assert_eq!(pair.played.there().segments, before);
    let mut local = [0u8; 8];
    let piece = [Iov::new(local.as_mut_ptr(), 8)];
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Err(Status::KeyRejected));
    pair.memory.clear();
    let (_empty, key) = pair.offered(BOTH);
    assert_eq!(pair.played.there().segments, before);
    assert_eq!(pair.endpoint.get(&key, &op(&[], 0)), Ok(Posting::Done));
    assert_eq!(pair.endpoint.get(&key, &op(&piece, 0)), Err(Status::OutOfRange));
}

#[test]
fn refused_segment_is_reported_and_leaves_nothing_behind() {
    let mut pair = Pair::new(64);
    let before = pair.played.there();
    pair.played.fail(Command::Make, libc::EINVAL);
    let failure = pair.register(BOTH).err().unwrap();
    assert_eq!(failure.status, Status::Invalid);
    assert!(failure.text.contains("64 bytes"), "{failure}");
    pair.played.fail(Command::Make, libc::ENOMEM);
    assert_eq!(pair.register(BOTH).err().unwrap().status, Status::NoMemory);
    pair.played.fail(Command::Make, sys::NOT_OPENED);
    assert!(pair.register(BOTH).err().unwrap().text.contains("closed a descriptor"));
    assert_eq!(pair.played.there(), before);
    for (base, len) in [(0, 64), (usize::MAX - 10, 9), (usize::MAX, 2)] {
        let nowhere = RegisterParams::new(core::ptr::without_provenance_mut(base), len, BOTH);
        assert_eq!(pair.owner.register(&nowhere).err().unwrap().status, Status::Invalid);
    }
    // The failed registrations have not used up segments.
    let _two = [pair.offered(BOTH), pair.offered(BOTH)];
    assert_eq!(pair.played.there().segments, before.segments + 2);
}

#[test]
fn unreadable_card_makes_peer_unreachable_with_the_reason() {
    let pair = Pair::new(64);
    let interface = pair.owner.open_interface(MODULE, [1; 16]).unwrap();
    let address = interface.address();
    let there = pair.played.there();
    let refused = |address: &[u8]| interface.reachable(address).unwrap_err();
    let mut other_nonce = address.clone();
    other_nonce[52] ^= 1;
    assert_eq!(refused(&other_nonce).status, Status::PeerFailed);
    pair.played.fail(Command::Get, libc::EACCES);
    let failure = refused(&address);
    assert_eq!(failure.status, Status::Permission);
    assert!(failure.text.contains("user namespaces may differ"), "{failure}");
    let mut other_user = address.clone();
    other_user[8] ^= 1;
    pair.played.fail(Command::Get, libc::EACCES);
    assert!(refused(&other_user).text.contains("run both as the same user"));
    pair.played.fail(Command::Attach, libc::ENOMEM);
    let failure = refused(&address);
    assert!(
        failure.status == Status::Unreachable && failure.text.contains("attaching"),
        "{failure}"
    );
    pair.played.fail(Command::Copy, libc::EFAULT);
    assert_eq!(refused(&address).status, Status::PeerFailed);
    assert_eq!(pair.played.there(), there);
    pair.played.end_the_owner();
    let failure = refused(&address);
    assert_eq!(failure.status, Status::PeerFailed);
    assert!(failure.text.contains("has closed the domain"), "{failure}");
}

/// The next result of a command; for `None` the command is executed.
type Answer = (Command, Option<Errno>);

#[test]
fn self_test_detects_a_faulty_module_at_each_step() {
    let played = Played::default();
    let tried = |answers: &[Answer]| {
        for (command, answer) in answers {
            match answer {
                Some(errno) => played.fail(*command, *errno),
                None => played.pass(*command),
            }
        }
        let tried = on_oneself(&played, PAGE as u64);
        played.answer_truly();
        tried
    };
    // In the double, attached memory is the memory itself, so the hole must be set explicitly.
    let (copied, torn) = ((Command::Copy, None), (Command::Copy, Some(libc::EFAULT)));
    assert_eq!(tried(&[copied, copied, torn]), Ok(()));
    assert_eq!(played.there(), There::default());
    let (io, no) = (Some(libc::EIO), Some(libc::EPERM));
    let steps: [(&[Answer], &str); 9] = [
        (&[(Command::Make, io)], "making a segment"),
        (&[(Command::Get, io)], "getting a permit"),
        (&[(Command::Attach, io)], "attaching two pages"),
        (&[(Command::Copy, no)], "allow process_vm_readv"),
        (&[copied, (Command::Copy, io)], "copying from what was attached"),
        (&[copied, copied, (Command::Copy, io)], "copying from a hole"),
        (&[copied, copied, torn, (Command::Detach, io)], "detaching"),
        (&[copied, copied, torn, (Command::Release, io)], "releasing the permit"),
        (&[copied, copied, torn, (Command::Remove, io)], "removing a segment"),
    ];
    for (answers, words) in steps {
        let failure = tried(answers).unwrap_err();
        assert!(failure.text.contains(words), "{words}: {failure}");
    }
}
