//! Tests of an interface's limits: operations under way, time asleep, and the order of packets.

use crate::config::Settings;
use crate::double::messages::sys::inject;
use crate::double::world::{let_go, manners, world};
use crate::double::{Side, settings, sys, transfer, until};
use crate::engine::MAX_IDENTITY;
use crate::wire::{Greeting, Head, Kind, hello};
use core::time::Duration;
use std::os::fd::RawFd;
use tieline_net::{Interest, Poller};
use tieline_plugin_api::{Armed, Domain, Endpoint, Interface, Packer, Posting, Revoked, Status};

const FAR: usize = 1;

fn sides() -> (Side, Side) {
    (Side::new(&settings()), Side::new(&settings()))
}

#[test]
fn message_length_follows_setting_and_identity_fits_one_packet() {
    let (mut near, mut far) = sides();
    let eager = settings().eager;
    let endpoint = near.connected(&mut far, 7);
    assert_eq!(endpoint.am_short(1, 1, &vec![1; eager + 1]), Err(Status::TooLarge));
    assert!(endpoint.am_short(1, 2, &vec![2; eager]).is_ok());
    until(&mut near, &mut far, |_, far| !far.told.messages.is_empty());
    assert_eq!(far.told.messages, [(2, vec![2; eager])]);
    let connect = |len| near.interface.connect(&far.interface.address(), &vec![3; len], 8);
    assert_eq!(connect(MAX_IDENTITY + 1).err().unwrap().status, Status::TooLarge);
    let _longest = connect(MAX_IDENTITY).unwrap();
    until(&mut near, &mut far, |_, far| far.told.arrived.len() == 2);
    assert_eq!(far.told.arrived[1], [3; MAX_IDENTITY]);
}

#[test]
fn a_window_is_filled_to_its_last_byte() {
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    let (mut sent, payload) = (0, [0; 1024 - crate::wire::HEAD]);
    while endpoint.am_short(1, 0, &payload).is_ok() {
        sent += 1;
        near.poll();
    }
    assert_eq!(sent, settings().window / 1024);
}

#[test]
fn messages_use_half_of_the_queue_and_one_peer_a_quarter_of_that() {
    let mut near = Side::new(&settings());
    let mut others: Vec<Side> = (0..5).map(|_| Side::new(&settings())).collect();
    let endpoints: Vec<_> =
        (7..).zip(&mut others).map(|(n, other)| near.connected(other, n)).collect();
    near.poll();
    manners(|manners| manners.late = true);
    let mut memory = [0u8; 64];
    let mut here = [0u8; 8];
    let mut sent = Vec::new();
    for endpoint in &endpoints {
        let mut count = 0;
        while endpoint.am_short(1, 0, b"").is_ok() {
            count += 1;
        }
        sent.push(count);
    }
    assert_eq!(sent, [8, 8, 8, 8, 0], "of a queue for 64");
    near.interface.check_accounts();
    let_go();
    near.poll();
    near.poll();
    near.poll();
    // The same test with puts.
    manners(|manners| manners.hold_ways = true);
    let mut begun = Vec::new();
    for (endpoint, other) in endpoints.iter().zip(&others) {
        let region = other.region(&mut memory);
        let key = endpoint.import_key(&other.packed(&region)).unwrap();
        let mut count = 0;
        while transfer(endpoint, true, &key, &mut here, 0, 1).is_ok() {
            count += 1;
        }
        begun.push(count);
        core::mem::forget(region);
    }
    assert_eq!(begun, [8, 8, 8, 8, 0]);
    near.interface.check_accounts();
}

/// Posts puts to that side's memory until the library refuses one, and returns the number of accepted puts.
fn filled(endpoint: &crate::OfiEndpoint, other: &Side, memory: &mut [u8]) -> usize {
    let region = other.region(memory);
    let key = endpoint.import_key(&other.packed(&region)).unwrap();
    let mut here = [0u8; 8];
    let count =
        (0..).take_while(|_| transfer(endpoint, true, &key, &mut here, 0, 1).is_ok()).count();
    core::mem::forget(region);
    count
}

#[test]
fn transfers_of_closed_endpoint_count_only_against_its_peer() {
    let mut near = Side::new(&settings());
    let mut others: Vec<Side> = (0..5).map(|_| Side::new(&settings())).collect();
    let mut memory = [0u8; 64];
    manners(|manners| manners.hold_ways = true);
    for other in &mut others[..4] {
        let endpoint = near.connected(other, 7);
        assert_eq!(filled(&endpoint, other, &mut memory), 8);
        drop(endpoint);
        near.interface.check_accounts();
    }
    let fifth = near.connected(&mut others[4], 8);
    assert_eq!(
        filled(&fifth, &others[4], &mut memory),
        8,
        "four peers stand still, and not this one"
    );
    let again = near.connected(&mut others[0], 9);
    assert_eq!(filled(&again, &others[0], &mut memory), 0, "it has its share already");
    near.interface.check_accounts();
    manners(|manners| manners.hold_ways = false);
    others.iter_mut().for_each(Side::poll);
    for _ in 0..10 {
        near.poll();
    }
    assert_eq!(near.told.ended.len(), 8, "those of closed endpoints end without a word");
    assert_eq!(filled(&again, &others[0], &mut memory), 8);
    assert_eq!(filled(&fifth, &others[4], &mut memory), 8);
    near.interface.check_accounts();
}

#[test]
fn nested_packed_message_is_sent_first_and_both_arrive_complete() {
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    let mut outer = |to: *mut u8, _| {
        manners(|manners| manners.eagain = 1);
        let mut inner = |to: *mut u8, _| {
            sys::write(to, b"inner");
            Ok(5)
        };
        assert_eq!(endpoint.am_packed(1, 1, Packer::new(&mut inner), 5), Ok(5));
        sys::write(to, b"outer");
        Ok(5)
    };
    assert_eq!(endpoint.am_packed(1, 2, Packer::new(&mut outer), 5), Ok(5));
    near.interface.check_accounts();
    until(&mut near, &mut far, |_, far| far.told.messages.len() == 2);
    assert_eq!(far.told.messages, [(1, b"inner".to_vec()), (2, b"outer".to_vec())]);
    let _ = endpoint.flush(3).unwrap();
    until(&mut near, &mut far, |near, _| near.told.ended == [(3, Ok(()))]);
    let mut refused = |_: *mut u8, _| Err(Status::Canceled);
    for _ in 0..100 {
        let packer = Packer::new(&mut refused);
        assert_eq!(endpoint.am_packed(1, 3, packer, 5), Err(Status::Canceled));
        near.interface.check_accounts();
    }
    assert_eq!(endpoint.flush(4), Ok(Posting::Done), "nothing was sent");
}

#[test]
fn send_to_unreachable_peer_fails_immediately_with_text() {
    for packed in [false, true] {
        let (mut near, mut far) = sides();
        let endpoint = near.connected(&mut far, 7);
        manners(|manners| manners.refuse_send = Some(libc::ENOENT));
        let mut pack = |_: *mut u8, _| Ok(0);
        let sent = match packed {
            false => endpoint.am_short(1, 0, b"").map(drop),
            true => endpoint.am_packed(1, 0, Packer::new(&mut pack), 5).map(drop),
        };
        assert_eq!(sent, Err(Status::PeerFailed));
        near.poll();
        assert_eq!(near.told.failed.len(), 1);
        assert!(near.told.failed[0].2.contains("cannot send to this peer"), "{:?}", near.told);
    }
}

#[test]
fn idle_peer_that_accepts_nothing_times_out_and_busy_peer_does_not() {
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    let mut there = [0u8; 64];
    let region = far.region(&mut there);
    let key = endpoint.import_key(&far.packed(&region)).unwrap();
    near.interface.lose_patience();
    // One packet and one put: the library holds operations for this peer.
    manners(|manners| (manners.hold_ways, manners.late) = (true, true));
    let mut here = [5u8; 8];
    assert_eq!(transfer(&endpoint, true, &key, &mut here, 0, 1), Ok(Posting::Pending));
    assert!(endpoint.am_short(1, 0, b"").is_ok());
    manners(|manners| manners.deaf = Some(FAR));
    for _ in 0..1000 {
        assert_eq!(endpoint.am_short(1, 0, b""), Err(Status::Again));
        near.poll();
    }
    assert_eq!(near.told.failed, []);
    manners(|manners| (manners.hold_ways, manners.deaf) = (false, None));
    let_go();
    until(&mut near, &mut far, |near, _| near.told.ended == [(1, Ok(()))]);
    manners(|manners| manners.deaf = Some(FAR));
    let failed = (0..100_000)
        .find_map(|_| endpoint.am_short(1, 0, b"").err().filter(|s| *s != Status::Again));
    assert_eq!(failed, Some(Status::TimedOut));
    near.poll();
    assert!(near.told.failed[0].2.contains("has formed no connection"), "{:?}", near.told);
    drop(region);
}

#[test]
fn a_channel_with_a_gap_ends_once_however_much_comes_behind_it() {
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    manners(|manners| manners.lose_send = true);
    for n in 0..4 {
        assert!(endpoint.am_short(1, n, b"").is_ok());
    }
    until(&mut near, &mut far, |near, far| {
        !near.told.failed.is_empty() && !far.told.left.is_empty()
    });
    for _ in 0..10 {
        near.poll();
        far.poll();
    }
    assert_eq!((near.told.failed.len(), far.told.left.len()), (1, 1));
}

#[test]
fn revocation_waits_only_for_transfers_to_that_region() {
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    let (mut one, mut two) = ([0u8; 64], [0u8; 64]);
    let (first, second) = (far.region(&mut one), far.region(&mut two));
    let key = endpoint.import_key(&far.packed(&first)).unwrap();
    let _ = far.packed(&second);
    manners(|manners| manners.hold_ways = true);
    let mut here = [5u8; 8];
    assert_eq!(transfer(&endpoint, true, &key, &mut here, 0, 1), Ok(Posting::Pending));
    let _ = (far.domain.revoke(&first), far.domain.revoke(&second));
    until(&mut near, &mut far, |_, far| far.domain.revoke(&second) == Revoked::Quiet);
    for _ in 0..10 {
        near.poll();
        far.poll();
    }
    assert_eq!(far.domain.revoke(&first), Revoked::Busy, "a put leads there");
    manners(|manners| manners.hold_ways = false);
    until(&mut near, &mut far, |_, far| far.domain.revoke(&first) == Revoked::Quiet);
    assert_eq!(one[..8], [5; 8]);
    assert_eq!(far.domain.deregister(first), Ok(()));
    assert_eq!(far.domain.deregister(second), Ok(()));
}

#[test]
fn channels_and_their_ends_are_watched_for_as_long_as_they_are_there() {
    let watched = Settings {
        watch: Some(crate::watch::Settings {
            net: tieline_net::Settings::default(),
            silence: Duration::from_secs(20),
            connect_timeout: Duration::from_secs(30),
        }),
        ..settings()
    };
    let (mut near, mut far) = (Side::new(&watched), Side::new(&watched));
    let first = near.connected(&mut far, 7);
    let second = near.connected(&mut far, 8);
    let back = far.connected(&mut near, 9);
    // Four endings: a drop, a gap, a disconnect by the receiver, and a channel without an answer.
    drop(first);
    until(&mut near, &mut far, |_, far| far.told.left.len() == 1);
    manners(|manners| manners.lose_send = true);
    assert!(second.am_short(1, 0, b"").is_ok() && second.am_short(1, 1, b"").is_ok());
    until(&mut near, &mut far, |near, far| near.told.failed.len() == 1 && far.told.left.len() == 2);
    let third = near.connected(&mut far, 10);
    far.interface.hang_up(3).unwrap();
    until(&mut near, &mut far, |near, _| near.told.failed.len() == 2);
    let address = far.interface.address();
    drop(near.interface.connect(&address, b"", 11).unwrap());
    drop((second, third, back));
    for _ in 0..100 {
        near.poll();
        far.poll();
    }
    assert_eq!((near.interface.channels(), far.interface.channels()), (0, 0));
}

/// Polls until the condition holds. The clock of the watch has to advance meanwhile.
fn in_time(near: &mut Side, mut so: impl FnMut(&mut Side) -> bool) {
    let began = std::time::Instant::now();
    while !so(near) {
        assert!(began.elapsed() < LONG, "it does not come: {:?}", near.told);
        near.poll();
        crate::sys::yield_now();
    }
}

#[test]
fn death_of_watched_process_fails_exactly_its_channels() {
    let watched = Settings {
        watch: Some(crate::watch::Settings {
            net: tieline_net::Settings::default(),
            silence: Duration::from_secs(20),
            connect_timeout: Duration::from_secs(30),
        }),
        ..settings()
    };
    let (mut near, mut far) = (Side::new(&watched), Side::new(&watched));
    let mut third = Side::new(&watched);
    let (first, second) = (near.connected(&mut far, 7), near.connected(&mut far, 8));
    let other = near.connected(&mut third, 9);
    let back = far.connected(&mut near, 10);
    let mut memory = [0u8; 64];
    let region = near.region(&mut memory);
    let _ = near.packed(&region);
    in_time(&mut near, |_| {
        far.poll();
        third.poll();
        !far.interface.is_dialling() && !third.interface.is_dialling()
    });
    in_time(&mut near, |near| !near.interface.is_dialling());
    manners(|manners| manners.deaf = Some(FAR));
    let mut pack = |_: *mut u8, _| Ok(0);
    assert_eq!(first.am_packed(1, 2, Packer::new(&mut pack), 5), Ok(0));
    assert_eq!(near.interface.waiting(), 1);
    // The final word of the far side does not arrive either.
    manners(|manners| (manners.deaf, manners.overrun) = (Some(0), true));
    far.poll();
    manners(|manners| manners.deaf = None);
    assert_eq!(near.told.failed, []);
    in_time(&mut near, |near| near.told.failed.len() == 2 && near.told.left.len() == 1);
    let failed: Vec<_> = near.told.failed.iter().map(|failed| (failed.0, failed.1)).collect();
    assert_eq!(failed, [(7, Status::Closed), (8, Status::Closed)]);
    assert_eq!(near.told.left, [0], "in good order");
    assert_eq!(near.interface.waiting(), 0, "what waited for it goes nowhere");
    in_time(&mut near, |near| {
        third.poll();
        near.domain.revoke(&region) == Revoked::Quiet
    });
    assert_eq!(near.domain.deregister(region), Ok(()));
    assert!(other.am_short(1, 3, b"fine").is_ok());
    until(&mut near, &mut third, |_, third| third.told.messages.len() == 1);
    drop((first, second, back));
}

#[test]
fn message_and_bye_in_one_read_are_both_delivered_and_acknowledged() {
    let (mut near, mut far) = sides();
    for n in 0..5 {
        let endpoint = near.connected(&mut far, n);
        // The end of the channel arrives together with the message, in one read of the far side.
        assert!(endpoint.am_short(1, n, b"last").is_ok());
        drop(endpoint);
        until(&mut near, &mut far, |_, far| far.told.left.len() == n as usize + 1);
        for _ in 0..4 {
            near.poll();
            far.poll();
        }
        assert_eq!((near.interface.channels(), far.interface.channels()), (0, 0));
    }
    assert_eq!(far.told.left, [0; 5]);
    assert_eq!(far.told.messages.len(), 5);
}

#[test]
fn a_name_of_another_format_does_not_come_as_far_as_the_library() {
    let greeting = |epoch, name: &[u8]| {
        let head = Head::new(Kind::Hello, 0, epoch);
        let rest = hello(&Greeting { token: 6, epoch: 7, name, identity: b"" });
        [&head.pack()[..], &rest].concat()
    };
    for (format, asked) in [(9, 1), (crate::abi::FI_SOCKADDR_IN, 0)] {
        manners(|manners| manners.format = format);
        let (_near, mut far) = sides();
        let epoch = far.interface.epoch();
        inject(FAR, &greeting(epoch, b"qlayed-0"));
        far.poll();
        let complaints = world(|world| core::mem::take(&mut world.complaints));
        assert_eq!(complaints.len(), asked, "format {format}: {complaints:?}");
        inject(FAR, &greeting(epoch, b"played-0"));
        far.poll();
        far.poll();
        assert_eq!(far.told.arrived.len(), 1, "format {format}");
    }
}

fn wakes(fd: RawFd, within: Duration) -> bool {
    let poller = Poller::new().unwrap();
    poller.watch(fd, Interest::READ, 1).unwrap();
    let mut ready = Vec::new();
    poller.wait(&mut ready, Some(within)).unwrap();
    !ready.is_empty()
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn interface_sleeps_when_idle_and_timer_wakes_it_for_unsignalled_work() {
    manners(|manners| (manners.provider, manners.waits) = (c"cxi", true));
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    for _ in 0..5 {
        near.poll();
        far.poll();
    }
    let fd = near.interface.event_fd().unwrap();
    assert_eq!(near.interface.arm(), Ok(Armed::Sleep));
    assert!(!wakes(fd, Duration::ZERO) && !near.interface.ticks());
    // A message has arrived, and then the application uses it.
    assert!(endpoint.am_short(1, 1, b"comes").is_ok());
    assert_eq!(far.interface.arm(), Ok(Armed::Ready), "it waits to be handed out");
    far.poll();
    assert_eq!(far.told.messages.len(), 1);
    assert_eq!(far.interface.arm(), Ok(Armed::Ready), "its buffer is given back by a poll");
    far.poll();
    assert_eq!(far.interface.arm(), Ok(Armed::Sleep));
    near.poll();
    // The library refuses a packet although packets wait.
    manners(|manners| manners.deaf = Some(FAR));
    let mut pack = |_: *mut u8, _| Ok(0);
    assert_eq!(endpoint.am_packed(1, 2, Packer::new(&mut pack), 5), Ok(0));
    assert_eq!(near.interface.arm(), Ok(Armed::Sleep));
    assert!(wakes(fd, LONG) && near.interface.ticks());
    manners(|manners| manners.deaf = None);
    until(&mut near, &mut far, |_, far| far.told.messages.len() == 2);
    for _ in 0..5 {
        near.poll();
        far.poll();
    }
    assert_eq!(near.interface.arm(), Ok(Armed::Sleep));
    assert!(!wakes(fd, Duration::ZERO) && !near.interface.ticks(), "nothing is left");
    // The call returned AGAIN because of the library.
    manners(|manners| manners.eagain = 1);
    assert_eq!(endpoint.am_short(1, 3, b""), Err(Status::Again));
    assert_eq!(near.interface.arm(), Ok(Armed::Sleep));
    assert!(wakes(fd, LONG) && near.interface.ticks());
    near.poll();
    assert_eq!(near.interface.arm(), Ok(Armed::Sleep));
    assert!(!wakes(fd, Duration::ZERO) && !near.interface.ticks());
    // Another thread revokes a region.
    let mut memory = [0u8; 64];
    let region = near.region(&mut memory);
    let _ = near.packed(&region);
    let _back = far.connected(&mut near, 8);
    for _ in 0..5 {
        near.poll();
        far.poll();
    }
    assert_eq!(near.interface.arm(), Ok(Armed::Sleep));
    assert_eq!(near.domain.revoke(&region), Revoked::Busy);
    assert!(wakes(fd, LONG));
    until(&mut near, &mut far, |near, _| near.domain.revoke(&region) == Revoked::Quiet);
    assert_eq!(near.domain.deregister(region), Ok(()));
    for _ in 0..5 {
        near.poll();
        far.poll();
    }
    assert_eq!(near.interface.arm(), Ok(Armed::Sleep));
    assert!(!wakes(fd, Duration::ZERO), "what has been heard is silent");
    // Errors that belong to no operation are checked before a sleep.
    manners(|manners| manners.trouble = Some(libc::EALREADY));
    assert_eq!(near.interface.arm(), Ok(Armed::Ready));
    near.poll();
    assert_eq!(near.told.failed.len(), 1);
    assert!(!near.interface.ticks(), "nobody waits for what has ended");
}

#[test]
fn an_interface_whose_library_has_no_descriptor_does_not_sleep() {
    let (near, _far) = sides();
    assert_eq!(near.interface.event_fd(), None);
    assert_eq!(near.interface.arm().err(), Some(Status::Unsupported));
}
