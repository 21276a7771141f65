//! Tests of malicious peers, of peers that are killed at the wrong moment, and of provider behaviour that no manual page forbids.

use crate::abi::*;
use crate::double::messages::sys::inject;
use crate::double::world::{Entry, fail_receive, manners, registrations, world};
use crate::double::{Side, domain, settings, transfer, until};
use crate::wire::{Greeting, HEAD, Head, Kind, hello};
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{Domain, Endpoint, Interface, Posting, Revoked, RmaOp, Status};

fn sides() -> (Side, Side) {
    (Side::new(&settings()), Side::new(&settings()))
}

fn send(near: &mut Side, far: &mut Side, endpoint: &crate::OfiEndpoint, header: u64, len: usize) {
    until(near, far, |_, _| match endpoint.am_short(1, header, &vec![header as u8; len]) {
        Ok(_) => true,
        Err(Status::Again) => false,
        Err(status) => panic!("{status}"),
    });
}

/// Sends `count` messages, and checks those that have arrived.
fn exchange(near: &mut Side, far: &mut Side, endpoint: &crate::OfiEndpoint, count: u64) {
    let before = far.told.messages.len();
    for n in 0..count {
        send(near, far, endpoint, n, 100);
    }
    until(near, far, |_, far| far.told.messages.len() == before + count as usize);
    for (n, (header, payload)) in far.told.messages[before..].iter().enumerate() {
        assert_eq!((*header, payload), (n as u64, &vec![n as u8; 100]));
    }
    assert_eq!((&near.told.failed[..], &far.told.left[..]), (&[][..], &[][..]));
}

fn complaints() -> Vec<String> {
    world(|world| world.complaints.clone())
}

/// The number of the far side's endpoint: sides open in this order.
const FAR: usize = 1;

#[test]
fn layers_without_reliable_release_get_one_buffer_per_packet() {
    manners(|manners| manners.provider = c"played;ofi_rxm");
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    exchange(&mut near, &mut far, &endpoint, 500);
    // A peer that is killed truncates the message that it was sending.
    for _ in 0..500 {
        fail_receive(FAR, libc::ECANCELED, true);
        far.poll();
    }
    exchange(&mut near, &mut far, &endpoint, 100);
    assert_eq!(complaints(), [] as [String; 0]);
}

#[test]
fn a_completion_that_only_gives_a_buffer_back_is_no_packet() {
    manners(|manners| manners.separate_release = true);
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    exchange(&mut near, &mut far, &endpoint, 5000);
    assert_eq!(far.told.arrived.len(), 1);
}

#[test]
fn failed_receive_replaces_unreleased_buffer_and_receiving_continues() {
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    for _ in 0..8 {
        fail_receive(FAR, libc::ECANCELED, true);
        far.poll();
    }
    exchange(&mut near, &mut far, &endpoint, 2000);
    for _ in 0..8 {
        inject(FAR, &vec![4; 300_000]);
        far.poll();
    }
    exchange(&mut near, &mut far, &endpoint, 100);
    assert_eq!(complaints(), [] as [String; 0]);
    // After more failures than the limit, the interface fails.
    for _ in 0..100 {
        inject(FAR, &vec![4; 300_000]);
        far.poll();
    }
    let failure = far.interface.connect(&near.interface.address(), b"", 8).err().unwrap();
    assert!(failure.text.contains("receives fail"), "{failure}");
}

#[test]
fn unattributed_error_of_layer_fails_the_interface_with_text() {
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    fail_receive(0, libc::EIO, false);
    exchange(&mut near, &mut far, &endpoint, 10);
    drop((endpoint, near, far));
    manners(|manners| manners.provider = c"played;ofi_rxm");
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    fail_receive(0, libc::EIO, false);
    near.poll();
    near.poll();
    assert!(near.told.failed[0].2.contains("as played"), "{:?}", near.told.failed);
    assert_eq!(endpoint.am_short(1, 0, b""), Err(Status::Io));
}

fn greeting(epoch: u64, name: &[u8]) -> Vec<u8> {
    let mut head = Head::new(Kind::Hello, 0, epoch);
    head.id = 5;
    let rest = hello(&Greeting { token: 6, epoch: 7, name, identity: b"stranger" });
    [&head.pack()[..], &rest].concat()
}

#[test]
fn a_stranger_who_does_not_know_the_interface_costs_it_nothing() {
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    exchange(&mut near, &mut far, &endpoint, 10);
    let before = far.interface.memory().buffer_bytes;
    // The answers to the peer wait, because the peer accepts none.
    manners(|manners| manners.deaf = Some(0));
    for n in 0..10_000 {
        inject(FAR, &greeting(n, b"played-0"));
        far.poll();
    }
    let grown = far.interface.memory().buffer_bytes - before;
    assert!(grown < 1 << 20, "{grown} bytes");
    manners(|manners| manners.deaf = None);
    assert_eq!(far.told.arrived.len(), 1);
    exchange(&mut near, &mut far, &endpoint, 10);
}

#[test]
fn a_name_of_another_length_is_nobodys() {
    let (near, mut far) = sides();
    let address = crate::address::Address::unpack(&far.interface.address()).unwrap();
    for name in [&b"p"[..], b"played-", b"played-00"] {
        inject(FAR, &greeting(address.epoch, name));
        far.poll();
        let longer = crate::address::Address { name: name.to_vec(), ..address.clone() };
        let failure = near.interface.connect(&longer.pack(), b"", 1).err().unwrap();
        assert_eq!(failure.status, Status::Unreachable);
    }
    assert_eq!(far.told.arrived, [] as [Vec<u8>; 0]);
    inject(FAR, &greeting(address.epoch, b"played-0"));
    far.poll();
    far.poll();
    assert_eq!(far.told.arrived, [b"stranger"]);
}

#[test]
fn a_refused_hello_takes_the_place_of_no_other() {
    let (mut near, far) = sides();
    let old = far.interface.address();
    drop(far);
    let mut far = Side::new(&settings());
    let first = near.interface.connect(&old, b"old", 1).unwrap();
    let second = near.interface.connect(&far.interface.address(), b"new", 2).unwrap();
    // Both hellos are in the queue before the side reads the queue, and the answer to the first hello is refused.
    manners(|manners| manners.refuse_send = Some(libc::ENOENT));
    until(&mut near, &mut far, |_, far| !far.told.arrived.is_empty());
    assert_eq!(far.told.arrived, [b"new"]);
    assert_eq!(far.told.left, [] as [i32; 0]);
    drop((first, second));
}

#[test]
fn a_lost_last_message_is_told_by_the_end_of_its_channel_and_by_a_flush() {
    let (mut near, mut far) = sides();
    let (first, second) = (near.connected(&mut far, 7), near.connected(&mut far, 8));
    manners(|manners| manners.lose_send = true);
    send(&mut near, &mut far, &first, 1, 10);
    drop(first);
    until(&mut near, &mut far, |_, far| !far.told.left.is_empty());
    assert_eq!(far.told.left, [Status::PeerFailed as i32], "not in good order");
    manners(|manners| manners.lose_send = true);
    send(&mut near, &mut far, &second, 1, 10);
    assert_eq!(second.flush(3), Ok(Posting::Pending));
    until(&mut near, &mut far, |near, _| near.told.ended == [(3, Err(Status::PeerFailed))]);
}

#[test]
fn refusal_status_from_peer_is_restricted() {
    for (said, heard) in [
        (Status::ProviderFailed as i32, Status::PeerFailed),
        (Status::Again as i32, Status::PeerFailed),
        (Status::OutcomeUnknown as i32, Status::PeerFailed),
        (0, Status::PeerFailed),
        (7, Status::PeerFailed),
        (Status::Closed as i32, Status::Closed),
    ] {
        manners(|manners| manners.refusals_say = Some(said));
        let (mut near, far) = sides();
        let mut far = far;
        let endpoint = near.connected(&mut far, 7);
        drop(far);
        while near.told.failed.is_empty() {
            near.poll();
        }
        assert_eq!(near.told.failed[0].1, heard, "{said}");
        assert_eq!(endpoint.am_short(1, 0, b""), Err(heard));
    }
}

#[test]
fn a_flood_of_noise_ends_a_poll_and_an_endpoint_is_closed_in_time() {
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    let mut there = vec![1u8; 20_000];
    let region = far.region(&mut there);
    let key = endpoint.import_key(&far.packed(&region)).unwrap();
    manners(|manners| (manners.noise, manners.hold_ways) = (true, true));
    near.poll();
    let mut here = vec![0u8; 20_000];
    assert_eq!(transfer(&endpoint, false, &key, &mut here, 0, 1), Ok(Posting::Pending));
    drop((key, endpoint));
}

#[test]
fn a_peer_that_takes_nothing_holds_up_no_other() {
    let (mut near, mut far) = sides();
    let mut third = Side::new(&settings());
    let (endpoint, other) = (near.connected(&mut far, 7), near.connected(&mut third, 8));
    let (mut there, mut elsewhere) = ([0u8; 64], [0u8; 64]);
    let (region, second) = (far.region(&mut there), third.region(&mut elsewhere));
    let key = endpoint.import_key(&far.packed(&region)).unwrap();
    let other_key = other.import_key(&third.packed(&second)).unwrap();
    let mut here = [5u8; 8];
    let mut puts = 0;
    // The far side does not poll, so neither puts nor messages to it complete.
    while transfer(&endpoint, true, &key, &mut here, 0, 1).is_ok() {
        puts += 1;
        assert!(puts < 1000, "nobody bounds them");
    }
    assert_eq!(transfer(&other, true, &other_key, &mut here, 0, 2), Ok(Posting::Pending));
    manners(|manners| manners.late = true);
    while endpoint.am_short(1, 0, b"stuck").is_ok() {}
    assert!(other.am_short(1, 0, b"goes").is_ok());
    until(&mut near, &mut third, |_, third| third.told.messages.len() == 1);
}

#[test]
fn acknowledgements_to_a_peer_that_takes_none_are_one() {
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    exchange(&mut near, &mut far, &endpoint, 10);
    manners(|manners| manners.deaf = Some(0));
    let before = far.interface.memory().buffer_bytes;
    for n in 0..1000 {
        assert!(endpoint.am_short(1, n, b"").is_ok());
        assert_eq!(endpoint.flush(n), Ok(Posting::Pending));
        near.poll();
        far.poll();
    }
    assert_eq!(far.interface.memory().buffer_bytes, before);
    manners(|manners| manners.deaf = None);
    until(&mut near, &mut far, |near, _| near.told.ended.len() == 1000);
}

#[test]
fn watched_peer_without_room_never_times_out() {
    let mut watched = settings();
    watched.watch = Some(crate::watch::Settings {
        net: tieline_net::Settings::default(),
        silence: core::time::Duration::from_secs(20),
        connect_timeout: core::time::Duration::from_secs(30),
    });
    let (mut near, mut far) = (Side::new(&watched), Side::new(&watched));
    let endpoint = near.connected(&mut far, 7);
    exchange(&mut near, &mut far, &endpoint, 1);
    near.interface.lose_patience();
    manners(|manners| manners.deaf = Some(FAR));
    for _ in 0..1000 {
        assert_eq!(endpoint.am_short(1, 0, b""), Err(Status::Again));
        near.poll();
    }
    manners(|manners| manners.deaf = None);
    exchange(&mut near, &mut far, &endpoint, 10);
}

#[test]
fn packets_to_lost_peer_time_out_like_those_to_a_new_peer() {
    let mut watched = settings();
    watched.watch = Some(crate::watch::Settings {
        net: tieline_net::Settings::default(),
        silence: core::time::Duration::from_secs(20),
        connect_timeout: core::time::Duration::from_secs(30),
    });
    let (mut near, mut far) = (Side::new(&watched), Side::new(&watched));
    let endpoint = near.connected(&mut far, 7);
    exchange(&mut near, &mut far, &endpoint, 1);
    manners(|manners| manners.fail_send = Some(libc::ECONNRESET));
    assert!(endpoint.am_short(1, 0, b"lost").is_ok());
    manners(|manners| manners.deaf = Some(FAR));
    near.poll();
    assert_eq!(near.interface.waiting(), 1, "that it has ended");
    near.interface.lose_patience();
    for _ in 0..1000 {
        near.poll();
    }
    assert_eq!(near.interface.waiting(), 0, "the next one by that name has to be connected to");
    assert_eq!(near.told.failed.len(), 1);
}

#[test]
fn a_hello_that_was_taken_and_is_never_answered_ends_in_words() {
    let (mut near, far) = sides();
    let endpoint = near.interface.connect(&far.interface.address(), b"", 7).unwrap();
    near.poll();
    assert_eq!(near.told.failed, []);
    near.interface.lose_patience();
    near.poll();
    near.poll();
    assert_eq!((near.told.failed.len(), near.told.failed[0].1), (1, Status::TimedOut));
    assert_eq!(endpoint.am_short(1, 0, b""), Err(Status::TimedOut));
}

#[test]
fn a_hello_or_its_answer_that_is_lost_is_said_again_and_makes_one_peer() {
    for lose_the_answer in [false, true] {
        let (mut near, mut far) = sides();
        near.interface.say_hello_again();
        manners(|manners| manners.lose_send = !lose_the_answer);
        let endpoint = near.interface.connect(&far.interface.address(), b"it is me", 7).unwrap();
        if lose_the_answer {
            manners(|manners| manners.lose_send = true);
            far.poll();
        }
        assert!(!world(|world| world.manners.lose_send), "it was lost");
        until(&mut near, &mut far, |_, _| endpoint.am_short(1, 0, b"").is_ok());
        until(&mut near, &mut far, |_, far| far.told.messages.len() == 1);
        assert_eq!(far.told.arrived, [b"it is me"], "it has arrived once");
    }
}

#[test]
fn answered_hello_is_not_repeated_and_waiting_hello_is_queued_once() {
    let (mut near, mut far) = sides();
    near.interface.say_hello_again();
    manners(|manners| manners.deaf = Some(FAR));
    let endpoint = near.interface.connect(&far.interface.address(), b"it is me", 7).unwrap();
    for _ in 0..100 {
        near.poll();
        far.poll();
    }
    manners(|manners| manners.deaf = None);
    near.poll();
    let is_packet = |entry: &&Entry| entry.flags & FI_RECV != 0;
    let come = || world(|world| world.ends[FAR].entries.iter().filter(is_packet).count());
    assert_eq!(come(), 1, "one hello");
    until(&mut near, &mut far, |_, _| endpoint.am_short(1, 0, b"").is_ok());
    until(&mut near, &mut far, |_, far| far.told.messages.len() == 1);
    for _ in 0..100 {
        near.poll();
    }
    assert_eq!(come(), 0, "no other");
}

#[test]
fn a_key_that_is_older_than_the_interface_it_is_used_at_is_declined() {
    manners(|manners| manners.mr_mode = FI_MR_ENDPOINT);
    let (mut near, mut far) = sides();
    let mut there = [0u8; 64];
    let region = far.region(&mut there);
    let key = far.packed(&region);
    let younger = far.domain.open_interface(crate::RDM, [0; 16]).unwrap();
    let older = core::mem::replace(&mut far.interface, younger);
    let endpoint = near.connected(&mut far, 7);
    let key = endpoint.import_key(&key).unwrap();
    let mut here = [5u8; 8];
    assert_eq!(transfer(&endpoint, true, &key, &mut here, 0, 1), Err(Status::Declined));
    drop(older);
}

#[test]
fn a_channel_that_opens_behind_the_end_of_a_region_is_asked_about_it_too() {
    let (mut near, mut far) = sides();
    let mut there = [0u8; 64];
    let region = far.region(&mut there);
    let packed = far.packed(&region);
    let first = near.connected(&mut far, 7);
    assert_eq!(far.domain.revoke(&region), Revoked::Busy);
    // The answer to the first hello is under way when the second channel opens.
    far.poll();
    let second = near.interface.connect(&far.interface.address(), b"", 8).unwrap();
    near.poll();
    far.poll();
    let key = second.import_key(&packed).unwrap();
    let mut here = [5u8; 8];
    near.poll();
    let posted = transfer(&second, true, &key, &mut here, 0, 1);
    until(&mut near, &mut far, |_, far| far.domain.revoke(&region) == Revoked::Quiet);
    assert_eq!(far.domain.deregister(region), Ok(()));
    there.fill(7);
    for _ in 0..100 {
        near.poll();
        far.poll();
    }
    assert_eq!((there, posted), ([7; 64], Err(Status::KeyRejected)));
    drop(first);
}

#[test]
fn a_channel_says_its_end_behind_its_puts() {
    let (mut near, mut far) = sides();
    let mut there = [0u8; 64];
    let region = far.region(&mut there);
    let endpoint = near.connected(&mut far, 7);
    let key = endpoint.import_key(&far.packed(&region)).unwrap();
    manners(|manners| manners.hold_ways = true);
    let mut here = [5u8; 8];
    assert_eq!(transfer(&endpoint, true, &key, &mut here, 0, 1), Ok(Posting::Pending));
    drop((key, endpoint));
    for _ in 0..100 {
        near.poll();
        far.poll();
    }
    assert_eq!(far.told.left, [] as [i32; 0]);
    assert_eq!(far.domain.revoke(&region), Revoked::Busy, "the put may land still");
    manners(|manners| manners.hold_ways = false);
    until(&mut near, &mut far, |_, far| far.told.left == [0]);
    assert_eq!(there[..8], [5; 8]);
    until(&mut near, &mut far, |_, far| far.domain.revoke(&region) == Revoked::Quiet);
    assert_eq!(far.domain.deregister(region), Ok(()));
}

#[test]
fn region_outlives_transfers_posted_on_an_ended_channel() {
    let (mut near, mut far) = sides();
    let mut there = [0u8; 64];
    let region = far.region(&mut there);
    let endpoint = near.connected(&mut far, 7);
    let key = endpoint.import_key(&far.packed(&region)).unwrap();
    manners(|manners| (manners.hold_ways, manners.lose_send) = (true, true));
    let mut here = [5u8; 8];
    send(&mut near, &mut far, &endpoint, 1, 10);
    assert_eq!(transfer(&endpoint, true, &key, &mut here, 0, 1), Ok(Posting::Pending));
    send(&mut near, &mut far, &endpoint, 2, 10);
    until(&mut near, &mut far, |near, far| {
        !far.told.left.is_empty() && !near.told.failed.is_empty()
    });
    for _ in 0..100 {
        assert_eq!(far.domain.revoke(&region), Revoked::Busy);
        near.poll();
        far.poll();
    }
    manners(|manners| manners.hold_ways = false);
    until(&mut near, &mut far, |_, far| far.domain.revoke(&region) == Revoked::Quiet);
    assert_eq!(far.domain.deregister(region), Ok(()));
    assert_eq!(there[..8], [5; 8], "before, and nothing behind it");
}

#[test]
fn registration_keys_are_unpredictable() {
    let (_near, far) = sides();
    let mut memory = [[0u8; 64]; 16];
    let regions: Vec<_> = memory.iter_mut().map(|memory| far.region(memory)).collect();
    let mut keys: Vec<u64> = world(|world| world.memory.keys().copied().collect());
    keys.sort_unstable();
    assert!(keys.windows(2).all(|pair| pair[1] - pair[0] > 1 << 16), "{keys:x?}");
    drop(regions);
}

#[test]
fn failed_interface_open_leaves_no_answers_or_registrations_behind() {
    for mode in [FI_MR_LOCAL, FI_MR_LOCAL | FI_MR_ENDPOINT] {
        manners(|manners| (manners.mr_mode, manners.registrations) = (mode, None));
        let (mut near, mut far) = sides();
        let mut there = [[0u8; 64]; 3];
        let regions: Vec<_> = there.iter_mut().map(|memory| far.region(memory)).collect();
        let packed = far.packed(&regions[0]);
        let endpoint = near.connected(&mut far, 7);
        let key = endpoint.import_key(&packed).unwrap();
        let before = registrations();
        for more in 0..4 {
            manners(|manners| manners.registrations = Some(before + more));
            assert!(far.domain.open_interface(crate::RDM, [0; 16]).is_err(), "{more}");
            assert_eq!(registrations(), before);
        }
        manners(|manners| manners.registrations = None);
        drop(key);
        until(&mut near, &mut far, |_, far| far.domain.revoke(&regions[0]) == Revoked::Quiet);
        for region in regions {
            assert_eq!(far.domain.deregister(region), Ok(()));
        }
        drop((endpoint, near, far));
        assert_eq!((complaints(), registrations()), (Vec::new(), 0));
    }
}

#[test]
fn dangerous_or_unsupported_providers_are_left_out_and_opx_is_not() {
    manners(|manners| manners.provider = c"psm3");
    assert!(domain(&settings()).err().unwrap().text.contains("it ends the process"));
    manners(|manners| (manners.provider, manners.mode) = (c"played", 1 << 58));
    assert!(domain(&settings()).err().unwrap().text.contains("mode 0x400000000000000"));
    manners(|manners| (manners.mode, manners.av_type) = (FI_ASYNC_IOV, FI_AV_MAP));
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    exchange(&mut near, &mut far, &endpoint, 10);
    assert_eq!(HEAD, 32);
}

#[test]
fn peers_are_never_removed_from_the_address_table() {
    let (mut near, mut far) = sides();
    for n in 0..200 {
        drop(near.connected(&mut far, n));
    }
    until(&mut near, &mut far, |_, far| far.told.left.len() == 200);
    assert_eq!(complaints(), [] as [String; 0]);
}

#[test]
fn library_event_without_operation_fails_the_interface_with_text() {
    for has_notices in [true, false] {
        manners(|manners| (manners.has_notices, manners.trouble) = (has_notices, None));
        let (mut near, mut far) = sides();
        let endpoint = near.connected(&mut far, 7);
        exchange(&mut near, &mut far, &endpoint, 10);
        assert_eq!(complaints(), [] as [String; 0]);
        let before = world(|world| world.looks);
        (0..640).for_each(|_| near.poll());
        let looks = world(|world| world.looks) - before;
        let expected = if has_notices { 9..=10 } else { 0..=0 };
        assert!(expected.contains(&looks), "each costs a call: {looks}");
        manners(|manners| manners.trouble = Some(libc::EALREADY));
        for _ in 0..1000 {
            near.poll();
        }
        assert_eq!(near.told.failed.len(), usize::from(has_notices));
        assert!(near.told.failed.iter().all(|failed| failed.2.contains("as played")));
    }
}

#[test]
fn memory_of_unclosable_endpoint_is_retained() {
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    let mut there = vec![1u8; 20_000];
    let region = far.region(&mut there);
    let key = endpoint.import_key(&far.packed(&region)).unwrap();
    let mut here = vec![0u8; 20_000];
    assert_eq!(transfer(&endpoint, false, &key, &mut here, 0, 1), Ok(Posting::Pending));
    // A short put that completes locally reports no completion.
    let mut short = [1u8; 8];
    let iov = [Iov::new(short.as_mut_ptr(), 8)];
    let op = RmaOp { iov: &iov, len: 8, offset: 0, cookie: 99, flags: 0 };
    assert_eq!(endpoint.put(&key, &op), Ok(Posting::Done));
    manners(|manners| (manners.stays_open, manners.overrun) = (true, true));
    near.poll();
    near.poll();
    assert_eq!(near.told.ended, [(1, Err(Status::OutcomeUnknown))]);
    drop((key, endpoint, near));
    // The library continues, and the memory that it writes to still exists.
    for _ in 0..10 {
        far.poll();
    }
    assert_eq!(here, [1; 20_000]);
}
