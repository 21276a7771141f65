//! Tests of registration in every mode, and of the ends of regions, over the simulated library.

use crate::abi::*;
use crate::double::world::{manners, registrations, world};
use crate::double::{Side, domain, settings, transfer, until};
use tieline_plugin_api::abi::{Iov, KeyParams, RegisterParams};
use tieline_plugin_api::{Domain, Endpoint, Interface, Posting, Revoked, RmaOp, Status, access};

/// Tests puts and gets to a region in a mode, from memory that is in no region.
fn reaches(mode: i32, before: bool) {
    manners(|manners| manners.mr_mode = mode);
    let mut there: Vec<u8> = (0..=255).collect();
    let domain_first = Side::new(&settings());
    let (mut near, mut far) = (Side::new(&settings()), domain_first);
    // One region is older than the second interface of its domain, the other is younger.
    let early = before.then(|| far.region(&mut there));
    let second = far.domain.open_interface(crate::RDM, [0; 16]).unwrap();
    let region = early.unwrap_or_else(|| far.region(&mut there));
    let key = far.packed(&region);
    for to_second in [false, true] {
        if to_second {
            let address = second.address();
            assert_ne!(address, far.interface.address());
            let mut twice = core::mem::MaybeUninit::<tieline_plugin_api::abi::Event>::uninit();
            let endpoint = near.interface.connect(&address, b"", 8).unwrap();
            let imported = endpoint.import_key(&key).unwrap();
            let mut here = [0u8; 8];
            let mut posted = Err(Status::Again);
            for _ in 0..1000 {
                near.poll();
                let mut events = tieline_plugin_api::Events::new(core::slice::from_mut(&mut twice));
                second.poll(&mut events).unwrap();
                if posted == Err(Status::Again) {
                    posted = transfer(&endpoint, false, &imported, &mut here, 100, 50);
                }
            }
            assert_eq!(posted, Ok(Posting::Pending), "mode {mode:#x}");
            assert!(near.told.ended.contains(&(50, Ok(()))), "mode {mode:#x}: {:?}", near.told);
            assert_eq!(here[0], 100);
            continue;
        }
        let endpoint = near.connected(&mut far, 7);
        let imported = endpoint.import_key(&key).unwrap();
        let mut here = [9u8; 16];
        assert_eq!(transfer(&endpoint, true, &imported, &mut here, 32, 1), Ok(Posting::Pending));
        until(&mut near, &mut far, |near, _| near.told.ended.contains(&(1, Ok(()))));
        let mut back = [0u8; 18];
        assert_eq!(transfer(&endpoint, false, &imported, &mut back, 31, 2), Ok(Posting::Pending));
        until(&mut near, &mut far, |near, _| near.told.ended.contains(&(2, Ok(()))));
        assert_eq!((back[0], back[1], back[16], back[17]), (31, 9, 9, 48), "mode {mode:#x}");
        assert_eq!(
            transfer(&endpoint, true, &imported, &mut here, 250, 3),
            Err(Status::OutOfRange)
        );
    }
    drop(second);
    until(&mut near, &mut far, |_, far| far.domain.revoke(&region) == Revoked::Quiet);
    assert_eq!(far.domain.deregister(region), Ok(()));
    drop((near, far));
    let complaints = world(|world| core::mem::take(&mut world.complaints));
    assert_eq!(complaints, [] as [String; 0], "mode {mode:#x}");
    assert_eq!(registrations(), 0, "mode {mode:#x}");
}

#[test]
fn every_combination_of_the_modes_that_are_understood_works() {
    let bits =
        [FI_MR_LOCAL, FI_MR_VIRT_ADDR, FI_MR_ALLOCATED, FI_MR_PROV_KEY, FI_MR_ENDPOINT, FI_MR_RAW];
    for set in 0..1 << bits.len() {
        let mode = (0..bits.len()).filter(|n| set >> n & 1 == 1).map(|n| bits[n]).sum();
        for before in [false, true] {
            reaches(mode, before);
        }
    }
}

#[test]
fn a_mode_that_is_not_understood_is_not_asked_for() {
    for bit in [FI_MR_MMU_NOTIFY, FI_MR_RMA_EVENT, FI_MR_HMEM, FI_MR_COLLECTIVE] {
        manners(|manners| manners.mr_mode = bit);
        assert!(domain(&settings()).is_err(), "{bit:#x}");
    }
}

#[test]
fn mapped_key_is_unmapped_after_its_last_operation() {
    manners(|manners| (manners.mr_mode, manners.key_size) = (FI_MR_RAW | FI_MR_VIRT_ADDR, 24));
    let mapped = || world(|world| world.mapped.len());
    let (mut near, mut far) = (Side::new(&settings()), Side::new(&settings()));
    assert_eq!(mapped(), 0, "of the trial nothing is left");
    let endpoint = near.connected(&mut far, 7);
    let mut there = [0u8; 64];
    let region = far.region(&mut there);
    let packed = far.packed(&region);
    let (key, twice) =
        (endpoint.import_key(&packed).unwrap(), endpoint.import_key(&packed).unwrap());
    assert_eq!(mapped(), 2);
    drop(twice);
    assert_eq!(mapped(), 1);
    manners(|manners| manners.hold_ways = true);
    let mut here = [5u8; 8];
    assert_eq!(transfer(&endpoint, true, &key, &mut here, 0, 1), Ok(Posting::Pending));
    drop(key);
    assert_eq!(mapped(), 1, "a put goes by it");
    manners(|manners| manners.hold_ways = false);
    until(&mut near, &mut far, |near, _| near.told.ended == [(1, Ok(()))]);
    assert_eq!(mapped(), 0);
    assert_eq!(there[..9], [5, 5, 5, 5, 5, 5, 5, 5, 0]);
    let key = endpoint.import_key(&packed).unwrap();
    until(&mut near, &mut far, |_, far| far.domain.revoke(&region) == Revoked::Quiet);
    assert_eq!(transfer(&endpoint, true, &key, &mut here, 0, 2), Err(Status::KeyRejected));
    assert_eq!(far.domain.deregister(region), Ok(()));
    drop((key, endpoint, near, far));
    assert_eq!((mapped(), world(|world| world.complaints.clone())), (0, Vec::new()));
}

#[test]
fn a_key_that_has_to_be_mapped_and_cannot_be_is_refused_in_words() {
    manners(|manners| (manners.mr_mode, manners.key_size) = (FI_MR_RAW, 24));
    let (mut near, mut far) = (Side::new(&settings()), Side::new(&settings()));
    let endpoint = near.connected(&mut far, 7);
    let mut there = [0u8; 64];
    let region = far.region(&mut there);
    let packed = far.packed(&region);
    // With another address the library does not know the key.
    let key = crate::keys::PackedKey::unpack(&packed, &far.domain.registry.seal).unwrap();
    assert_eq!(key.keys[0].raw.as_deref().map(<[u8]>::len), Some(24), "and no byte behind it");
    let mut other = key.clone();
    other.keys[0].number += 1;
    let refused = endpoint.import_key(&other.pack(&far.domain.registry.seal)).err().unwrap();
    assert_eq!(refused.status, Status::KeyRejected);
    assert!(refused.text.contains("does not map"), "{refused}");
    manners(|manners| manners.keys_are_long = true);
    let mut room = [0; crate::keys::LONGEST];
    let refused = far.domain.pack_key(&region, &KeyParams::empty(), &mut room).unwrap_err();
    assert_eq!(refused.status, Status::Unsupported);
    assert!(refused.text.contains("256 bytes"), "{refused}");
    // The size of keys, the mode bits and the reason of the refusal, if any. A real provider with long keys sets FI_MR_RAW itself.
    for (size, mode, why) in [
        (257, FI_MR_RAW, Some("FI_MR_RAW with keys of 257 bytes")),
        (256, FI_MR_RAW, None),
        (9, 0, Some("keys of more than 8 bytes without FI_MR_RAW")),
    ] {
        manners(|manners| (manners.key_size, manners.mr_mode) = (size, mode));
        manners(|manners| manners.keys_are_long = false);
        let refused = domain(&settings()).err().map(|failure| failure.text);
        assert_eq!(refused.is_some(), why.is_some(), "{size}: {refused:?}");
        assert!(refused.unwrap_or_default().contains(why.unwrap_or_default()), "{size}");
    }
}

#[test]
fn memory_that_was_given_back_is_written_by_nothing_that_was_under_way() {
    let (mut near, mut far) = (Side::new(&settings()), Side::new(&settings()));
    let endpoint = near.connected(&mut far, 7);
    let mut there = [0u8; 64];
    let region = far.region(&mut there);
    let key = endpoint.import_key(&far.packed(&region)).unwrap();
    let mut here = [5u8; 64];
    // The simulated library has already checked the key and does not check it again, as software providers do.
    assert_eq!(transfer(&endpoint, true, &key, &mut here, 0, 1), Ok(Posting::Pending));
    assert_eq!(far.domain.revoke(&region), Revoked::Busy);
    let mut polls = 0;
    until(&mut near, &mut far, |_, far| {
        polls += 1;
        far.domain.revoke(&region) == Revoked::Quiet
    });
    assert!(polls > 1, "the peer was asked");
    assert_eq!(far.domain.deregister(region), Ok(()));
    there.fill(7);
    for _ in 0..100 {
        near.poll();
        far.poll();
    }
    assert_eq!(there, [7; 64]);
    assert_eq!(near.told.ended, [(1, Ok(()))]);
    assert_eq!(transfer(&endpoint, true, &key, &mut here, 0, 2), Err(Status::KeyRejected));
}

#[test]
fn region_ends_immediately_without_peers_and_after_timeout_otherwise() {
    let mut patient = settings();
    patient.failure_timeout = core::time::Duration::ZERO;
    let (mut near, mut far) = (Side::new(&patient), Side::new(&patient));
    let mut there = [0u8; 64];
    let alone = far.region(&mut there);
    assert_eq!(far.domain.revoke(&alone), Revoked::Quiet, "nobody has its key");
    assert_eq!(far.domain.deregister(alone), Ok(()));
    let region = far.region(&mut there);
    let _ = far.packed(&region);
    let _endpoint = near.connected(&mut far, 7);
    let _ = far.domain.revoke(&region);
    far.poll(); // the peer is asked, but does not poll
    assert_eq!(far.domain.revoke(&region), Revoked::Quiet, "patience is over");
    let failure = far.domain.deregister(region).unwrap_err();
    assert_eq!(failure.status, Status::TimedOut, "{failure}");
}

/// The holder of a key may write to the memory as long as the library accepts the key, and nothing can revoke the key.
#[test]
fn failed_deregistration_reports_that_memory_stays_reachable() {
    for mode in [0, FI_MR_PROV_KEY, FI_MR_ENDPOINT] {
        manners(|manners| manners.mr_mode = mode);
        let far = Side::new(&settings());
        let mut memory = [0u8; 64];
        let (first, second) = (far.region(&mut memory), far.region(&mut memory));
        manners(|manners| manners.keeps_registrations = Some(libc::EBUSY));
        let Side { interface, domain, .. } = far;
        // If the registration belongs to the interface, it ends with the interface, and the region later.
        let _interface = (mode != FI_MR_ENDPOINT).then_some(interface);
        let failure = domain.deregister(first).unwrap_err();
        assert_eq!(failure.status, Status::Io, "{failure}");
        assert!(failure.text.contains("64 bytes") && failure.text.contains("busy"), "{failure}");
        manners(|manners| manners.keeps_registrations = None);
        let second = domain.deregister(second).map_err(|failure| failure.status);
        assert_eq!(second, if mode == FI_MR_ENDPOINT { Err(Status::Io) } else { Ok(()) });
        world(|world| {
            world.memory.clear();
            world.complaints.clear();
        });
    }
}

#[test]
fn an_interface_that_closes_owes_no_answer_any_more() {
    let (mut near, mut far) = (Side::new(&settings()), Side::new(&settings()));
    let mut there = [0u8; 64];
    let endpoint = near.connected(&mut far, 7);
    let region = far.region(&mut there);
    let _ = far.packed(&region);
    assert_eq!(far.domain.revoke(&region), Revoked::Busy);
    let Side { interface, domain, .. } = far;
    drop(interface);
    assert_eq!(domain.revoke(&region), Revoked::Quiet);
    assert_eq!(domain.deregister(region), Ok(()));
    drop(endpoint);
}

#[test]
fn registration_grants_exactly_the_rights_of_its_region() {
    let far = Side::new(&settings());
    let mut memory = [0u8; 64];
    let own = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
    for (rights, theirs) in [
        (0, 0),
        (access::REMOTE_READ, FI_REMOTE_READ),
        (access::REMOTE_WRITE, FI_REMOTE_WRITE),
        (access::REMOTE_ATOMIC, FI_REMOTE_READ | FI_REMOTE_WRITE),
    ] {
        let params = RegisterParams::new(memory.as_mut_ptr(), memory.len(), rights);
        let region = far.domain.register(&params).unwrap();
        let given: Vec<u64> = world(|world| world.memory.values().map(|one| one.access).collect());
        assert_eq!(given, [own | theirs], "{rights}");
        assert_eq!(far.domain.deregister(region), Ok(()));
        assert_eq!(registrations(), 0, "and it ends with the region");
    }
    for (base, len) in [(core::ptr::null_mut(), 8), (usize::MAX as *mut u8, 8)] {
        let params = RegisterParams::new(base, len, access::REMOTE_READ);
        let refused = far.domain.register(&params).err().unwrap();
        assert_eq!(refused.status, Status::Invalid, "{base:?}");
    }
}

#[test]
fn key_holds_eight_interfaces_with_per_interface_registrations() {
    manners(|manners| manners.mr_mode = FI_MR_ENDPOINT);
    let far = Side::new(&settings());
    let mut memory = [0u8; 64];
    let mut more: Vec<_> =
        (0..7).map(|_| far.domain.open_interface(crate::RDM, [0; 16]).unwrap()).collect();
    let region = far.region(&mut memory);
    let mut room = [0; crate::keys::MAX_KEY_LEN];
    let whole = KeyParams::empty();
    let len = far.domain.pack_key(&region, &whole, &mut room).unwrap();
    assert_eq!(len, room.len());
    let short = far.domain.pack_key(&region, &whole, &mut room[1..]).unwrap_err();
    assert_eq!(short.status, Status::TooLarge);
    let ninth = far.domain.open_interface(crate::RDM, [0; 16]).unwrap();
    let refused = far.domain.pack_key(&region, &whole, &mut room).unwrap_err();
    assert_eq!(refused.status, Status::Unsupported);
    assert!(refused.text.contains("9 interfaces"), "{refused}");
    drop(ninth);
    assert!(far.domain.pack_key(&region, &whole, &mut room).is_ok());
    more.clear();
    assert_eq!(far.domain.deregister(region), Ok(()));
}

#[test]
fn key_older_than_every_interface_is_valid_and_reaches_none() {
    manners(|manners| manners.mr_mode = FI_MR_ENDPOINT);
    let alone = domain(&settings()).unwrap();
    let mut memory = [0u8; 64];
    let params = RegisterParams::new(memory.as_mut_ptr(), memory.len(), access::REMOTE_WRITE);
    let region = alone.register(&params).unwrap();
    let mut key = vec![0; crate::keys::MAX_KEY_LEN];
    let len = alone.pack_key(&region, &KeyParams::empty(), &mut key).unwrap();
    let interface = alone.open_interface(crate::RDM, [0; 16]).unwrap();
    let (mut near, mut far) = (Side::new(&settings()), Side::with(alone, interface));
    let endpoint = near.connected(&mut far, 7);
    let key = endpoint.import_key(&key[..len]).unwrap();
    let mut here = [1u8; 8];
    assert_eq!(transfer(&endpoint, true, &key, &mut here, 0, 1), Err(Status::Declined));
    // A key that is packed after the second interface opened is valid at that interface.
    let key = endpoint.import_key(&far.packed(&region)).unwrap();
    assert_eq!(transfer(&endpoint, true, &key, &mut here, 0, 2), Ok(Posting::Pending));
    until(&mut near, &mut far, |near, _| near.told.ended == [(2, Ok(()))]);
    drop(region);
    assert_eq!(memory[..9], [1, 1, 1, 1, 1, 1, 1, 1, 0]);
}

/// The `tcp` provider of newer libraries fails if an endpoint closes while others on the same opening continue.
#[test]
fn newer_tcp_opens_and_registers_separately_for_each_interface() {
    manners(|manners| manners.provider = c"tcp");
    let (mut near, mut far) = (Side::new(&settings()), Side::new(&settings()));
    let mut there = [0u8; 64];
    let before = registrations();
    let region = far.region(&mut there);
    assert_eq!(registrations() - before, 1);
    let mut later = Some(far.domain.open_interface(crate::RDM, [0; 16]).unwrap());
    assert_eq!(registrations() - before, 2);
    let packed = far.packed(&region);
    let mut here = [5u8; 8];
    for cookie in 0..2 {
        let endpoint = near.connected(&mut far, 7);
        let key = endpoint.import_key(&packed).unwrap();
        let posted = transfer(&endpoint, true, &key, &mut here, 8 * cookie, cookie);
        assert_eq!(posted, Ok(Posting::Pending));
        until(&mut near, &mut far, |near, _| near.told.ended.last() == Some(&(cookie, Ok(()))));
        drop(endpoint);
        if let Some(later) = later.take() {
            // The first interface ends, and so do the registrations for it.
            drop(core::mem::replace(&mut far.interface, later));
            assert_eq!(registrations() - before, 1);
        }
    }
    assert_eq!(far.domain.deregister(region), Ok(()));
    assert_eq!(there[..17], [[5; 8], [5; 8]].concat().into_iter().chain([0]).collect::<Vec<_>>());
}

#[test]
fn transfer_is_limited_by_library_length_pieces_and_key_rights() {
    let (mut near, mut far) = (Side::new(&settings()), Side::new(&settings()));
    let endpoint = near.connected(&mut far, 7);
    let attr = near.domain.modules()[0];
    assert_eq!((attr.max_put, attr.max_iov), (1 << 20, 4));
    let mut there = vec![3u8; attr.max_put + 1];
    let params = RegisterParams::new(there.as_mut_ptr(), there.len(), access::REMOTE_READ);
    let region = far.domain.register(&params).unwrap();
    let key = endpoint.import_key(&far.packed(&region)).unwrap();
    let mut here = vec![0u8; attr.max_put + 1];
    assert_eq!(transfer(&endpoint, false, &key, &mut here, 0, 1), Err(Status::TooLarge));
    let most = &mut here[..attr.max_put];
    assert_eq!(transfer(&endpoint, true, &key, most, 0, 1), Err(Status::KeyRejected));
    assert_eq!(transfer(&endpoint, false, &key, most, 0, 1), Ok(Posting::Pending));
    until(&mut near, &mut far, |near, _| near.told.ended == [(1, Ok(()))]);
    assert!(here[..attr.max_put].iter().all(|byte| *byte == 3) && here[attr.max_put] == 0);
    let mut bytes = [0u8; 8];
    let at = bytes.as_mut_ptr();
    let piece = |at, len| Iov::new(at, len);
    let pieces = [
        piece(at, 3),
        piece(core::ptr::null_mut(), 0),
        piece(at.wrapping_add(4), 1),
        piece(at.wrapping_add(6), 2),
        piece(at, 0),
    ];
    let get = |iov: &[Iov], cookie| {
        let len = iov.iter().map(|piece| piece.len).sum();
        endpoint.get(&key, &RmaOp { iov, len, offset: 5, cookie, flags: 0 })
    };
    assert_eq!(get(&pieces, 2), Err(Status::Invalid));
    assert_eq!(get(&pieces[..4], 3), Ok(Posting::Pending));
    until(&mut near, &mut far, |near, _| near.told.ended.last() == Some(&(3, Ok(()))));
    assert_eq!(core::hint::black_box(bytes), [3, 3, 3, 0, 3, 0, 3, 3]);
    assert_eq!(far.domain.deregister(region).map_err(|failure| failure.status), Ok(()));
}
