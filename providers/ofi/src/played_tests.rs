//! Tests of messages, flushes and endings over the simulated library.

use crate::abi::FI_RECV;
use crate::double::world::{let_go, manners, world};
use crate::double::{Side, domain, settings, transfer, until};
use tieline_plugin_api::{Endpoint, Interface, Packer, Posting, Status};
use tieline_testing::holds_in_child;

fn sides() -> (Side, Side) {
    (Side::new(&settings()), Side::new(&settings()))
}

/// Sends a message; polls both sides while the window is full.
fn send(
    near: &mut Side,
    far: &mut Side,
    endpoint: &crate::OfiEndpoint,
    header: u64,
    payload: &[u8],
) {
    until(near, far, |_, _| match endpoint.am_short(1, header, payload) {
        Ok(_) => true,
        Err(Status::Again) => false,
        Err(status) => panic!("{status}"),
    });
}

#[test]
fn message_order_survives_full_buffers_and_closed_windows() {
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    assert_eq!(far.told.arrived, [b"it is me"]);
    for n in 0..2000u64 {
        let payload = vec![n as u8; (n * 37 % 8000) as usize];
        send(&mut near, &mut far, &endpoint, n, &payload);
    }
    until(&mut near, &mut far, |_, far| far.told.messages.len() == 2000);
    for (n, (header, payload)) in far.told.messages.iter().enumerate() {
        assert_eq!((*header, payload.len()), (n as u64, n * 37 % 8000));
        assert!(payload.iter().all(|byte| *byte == n as u8), "message {n}");
    }
}

#[test]
fn a_receiver_that_does_not_poll_is_sent_no_more_than_a_window() {
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    let mut sent = 0;
    while endpoint.am_short(1, 0, &[0; 1000]).is_ok() {
        sent += 1;
        near.poll();
    }
    assert_eq!(sent, 63, "messages of 1032 bytes in a window of 64 KiB");
    assert_eq!(endpoint.am_short(1, 0, &[0; 489]), Err(Status::Again));
    assert!(endpoint.am_short(1, 0, &[0; 488]).is_ok(), "to its last byte");
    until(&mut near, &mut far, |_, _| endpoint.am_short(1, 0, &[0; 1000]).is_ok());
}

#[test]
fn receiver_acknowledges_in_time_and_on_request() {
    manners(|manners| (manners.provider, manners.waits) = (c"cxi", true));
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    far.poll();
    near.poll();
    let packets =
        || world(|world| world.ends[0].entries.iter().filter(|e| e.flags & FI_RECV != 0).count());
    let exchange = |near: &mut Side, far: &mut Side, len: usize| {
        let told = far.told.messages.len();
        send(near, far, &endpoint, 0, &vec![0; len]);
        until(near, far, |_, far| far.told.messages.len() > told);
        for _ in 0..10 {
            far.poll();
        }
        packets()
    };
    for _ in 0..50 {
        assert_eq!(exchange(&mut near, &mut far, 8), 0, "40 bytes each");
    }
    assert_eq!(exchange(&mut near, &mut far, 4096), 1, "6 KiB are worth a word");
    assert_eq!(exchange(&mut near, &mut far, 8), 0, "and no other");
    (0..2000).for_each(|_| far.poll());
    assert_eq!(packets(), 1, "after a while, once");
    assert_eq!(exchange(&mut near, &mut far, 8), 0);
    assert!(far.interface.arm().is_ok());
    assert_eq!(packets(), 1, "who sleeps has said all");
    assert_eq!(exchange(&mut near, &mut far, 8), 0);
    assert_eq!(endpoint.flush(3), Ok(Posting::Pending));
    until(&mut near, &mut far, |near, _| near.told.ended == [(3, Ok(()))]);
}

#[test]
fn messages_without_library_room_queue_in_order_or_are_refused() {
    let (mut near, mut far) = sides();
    manners(|manners| manners.eagain = 5);
    let endpoint = near.connected(&mut far, 7);
    manners(|manners| manners.eagain = 1);
    assert_eq!(endpoint.am_short(1, 0, b"refused"), Err(Status::Again));
    manners(|manners| manners.eagain = 2);
    let mut pack = |to: *mut u8, _| {
        crate::double::sys::write(to, b"packed");
        Ok(6)
    };
    assert_eq!(
        endpoint.am_packed(1, 1, Packer::new(&mut pack), 6),
        Ok(6),
        "it was packed: it is taken"
    );
    assert_eq!(endpoint.am_short(1, 2, b"behind"), Err(Status::Again), "nothing overtakes it");
    send(&mut near, &mut far, &endpoint, 3, b"later");
    until(&mut near, &mut far, |_, far| far.told.messages.len() == 2);
    assert_eq!(far.told.messages, [(1, b"packed".to_vec()), (3, b"later".to_vec())]);
}

#[test]
fn a_flush_waits_for_messages_and_puts_and_for_late_completions_of_both() {
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    let mut there = [0u8; 64];
    let region = far.region(&mut there);
    let key = endpoint.import_key(&far.packed(&region)).unwrap();
    manners(|manners| manners.late = true);
    let mut here = [5u8; 64];
    assert_eq!(transfer(&endpoint, true, &key, &mut here, 0, 1), Ok(Posting::Pending));
    send(&mut near, &mut far, &endpoint, 0, b"before");
    assert_eq!(endpoint.flush(2), Ok(Posting::Pending));
    for _ in 0..100 {
        near.poll();
        far.poll();
    }
    assert_eq!(near.told.ended, [], "the put has not completed");
    let_go();
    until(&mut near, &mut far, |near, _| near.told.ended.len() == 2);
    assert_eq!(near.told.ended, [(1, Ok(())), (2, Ok(()))]);
    assert_eq!(endpoint.flush(3), Ok(Posting::Done));
}

#[test]
fn flush_sends_one_sync_per_message_and_none_for_acknowledged_ones() {
    manners(|manners| (manners.provider, manners.waits) = (c"cxi", true));
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    let mut there = [0u8; 64];
    let region = far.region(&mut there);
    let key = endpoint.import_key(&far.packed(&region)).unwrap();
    let waiting =
        || world(|world| world.ends[1].entries.iter().filter(|e| e.flags & FI_RECV != 0).count());
    send(&mut near, &mut far, &endpoint, 0, b"first");
    for (cookie, packets) in [(1, 2), (2, 2), (3, 2)] {
        assert_eq!(endpoint.flush(cookie), Ok(Posting::Pending));
        assert_eq!(waiting(), packets, "flush {cookie}: the message and one question");
    }
    send(&mut near, &mut far, &endpoint, 0, b"second");
    assert_eq!(endpoint.flush(4), Ok(Posting::Pending));
    assert_eq!(waiting(), 4, "of another message it is asked again");
    until(&mut near, &mut far, |near, _| near.told.ended.len() == 4);
    // A message that was acknowledged without a request, and a put after it.
    send(&mut near, &mut far, &endpoint, 0, b"third");
    until(&mut near, &mut far, |_, far| far.told.messages.len() == 3);
    assert!(far.interface.arm().is_ok());
    near.poll();
    assert_eq!(transfer(&endpoint, true, &key, &mut [5; 64], 0, 5), Ok(Posting::Pending));
    assert_eq!(endpoint.flush(6), Ok(Posting::Pending));
    assert_eq!(waiting(), 0, "there is nothing to ask for");
    until(&mut near, &mut far, |near, _| near.told.ended.len() == 6);
}

#[test]
fn an_error_of_a_message_ends_all_channels_with_that_peer_and_no_other() {
    let (mut near, mut far) = sides();
    let mut third = Side::new(&settings());
    let (first, second) = (near.connected(&mut far, 7), near.connected(&mut far, 8));
    let other = near.connected(&mut third, 9);
    let back = far.connected(&mut near, 10);
    manners(|manners| manners.fail_send = Some(libc::ECONNRESET));
    assert!(first.am_short(1, 0, b"lost").is_ok());
    until(&mut near, &mut far, |near, _| near.told.failed.len() == 2);
    let failed: Vec<_> =
        near.told.failed.iter().map(|(cookie, status, _)| (*cookie, *status)).collect();
    assert_eq!(failed, [(7, Status::PeerFailed), (8, Status::PeerFailed)]);
    assert!(near.told.failed[0].2.contains("as played"), "{:?}", near.told.failed);
    assert_eq!(
        near.told.left,
        [Status::PeerFailed as i32],
        "what came from it may be lost as well"
    );
    // The far side lives; without the report it would keep sending.
    until(&mut near, &mut far, |_, far| far.told.failed.len() == 1 && far.told.left.len() == 2);
    assert_eq!((far.told.failed[0].0, far.told.failed[0].1), (10, Status::PeerFailed));
    assert_eq!(second.am_short(1, 0, b""), Err(Status::PeerFailed), "and never AGAIN");
    assert!(other.am_short(1, 0, b"fine").is_ok());
    drop(back);
}

#[test]
fn message_lost_by_library_fails_channel_on_both_sides() {
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    manners(|manners| manners.lose_send = true);
    send(&mut near, &mut far, &endpoint, 1, b"lost");
    send(&mut near, &mut far, &endpoint, 2, b"behind it");
    until(&mut near, &mut far, |near, far| {
        !near.told.failed.is_empty() && !far.told.left.is_empty()
    });
    assert_eq!(far.told.messages, [], "nothing is handed out behind what is missing");
    assert_eq!(near.told.failed[0].1, Status::PeerFailed);
}

#[test]
fn failed_put_fails_alone_and_lost_connection_fails_endpoint() {
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    let mut there = [0u8; 64];
    let region = far.region(&mut there);
    let key = endpoint.import_key(&far.packed(&region)).unwrap();
    let mut here = [5u8; 64];
    manners(|manners| manners.fail_transfer = Some(libc::EACCES));
    assert_eq!(transfer(&endpoint, true, &key, &mut here, 0, 1), Ok(Posting::Pending));
    until(&mut near, &mut far, |near, _| near.told.ended == [(1, Err(Status::KeyRejected))]);
    assert_eq!(near.told.failed, [], "that was one operation's");
    // An error without a better code also fails one operation only.
    manners(|manners| manners.fail_transfer = Some(libc::EIO));
    assert_eq!(transfer(&endpoint, true, &key, &mut here, 0, 4), Ok(Posting::Pending));
    until(&mut near, &mut far, |near, _| near.told.ended.last() == Some(&(4, Err(Status::Io))));
    assert_eq!(near.told.failed, []);
    near.told.ended.truncate(1);
    manners(|manners| manners.fail_transfer = Some(libc::ECANCELED));
    assert_eq!(transfer(&endpoint, false, &key, &mut here, 0, 2), Ok(Posting::Pending));
    until(&mut near, &mut far, |near, _| near.told.failed.len() == 1);
    assert_eq!(near.told.ended[1], (2, Err(Status::PeerFailed)));
    assert_eq!(transfer(&endpoint, true, &key, &mut here, 0, 3), Err(Status::PeerFailed));
}

#[test]
fn refused_put_fails_endpoint_only_if_the_peer_is_gone() {
    for (provider, error, status, ends) in [
        (c"played", libc::ENOENT, Status::PeerFailed, true),
        (c"played", libc::ECONNRESET, Status::PeerFailed, true),
        (c"played", libc::EACCES, Status::KeyRejected, false),
        (c"played", libc::ENOMEM, Status::NoMemory, false),
        (c"played", libc::EOPNOTSUPP, Status::Unsupported, false),
        (c"played", libc::EIO, Status::Io, false),
        // This provider has no other code for a peer that has died.
        (c"sockets", libc::EIO, Status::PeerFailed, true),
        (c"sockets", libc::EBUSY, Status::Io, false),
    ] {
        manners(|manners| manners.provider = provider);
        let (mut near, mut far) = sides();
        let endpoint = near.connected(&mut far, 7);
        let mut there = [0u8; 64];
        let region = far.region(&mut there);
        let key = endpoint.import_key(&far.packed(&region)).unwrap();
        manners(|manners| manners.refuse_transfer = Some(error));
        let refused = transfer(&endpoint, true, &key, &mut [5; 8], 0, 1);
        near.poll();
        assert_eq!((refused, near.told.failed.len()), (Err(status), usize::from(ends)), "{error}");
        assert!(near.told.failed.iter().all(|failed| failed.2.contains("cannot reach this peer")));
        assert_eq!(near.told.ended, [], "it was not taken");
    }
}

#[test]
fn a_peer_that_closes_in_good_order_is_told_from_one_that_fails() {
    let (mut near, mut far) = sides();
    let (there, back) = (near.connected(&mut far, 7), far.connected(&mut near, 8));
    drop(there);
    until(&mut near, &mut far, |_, far| far.told.left == [0]);
    drop(near);
    for _ in 0..10 {
        far.poll();
    }
    let failed: Vec<_> =
        far.told.failed.iter().map(|(cookie, status, _)| (*cookie, *status)).collect();
    assert_eq!(failed, [(8, Status::Closed)]);
    drop(back);
}

#[test]
fn disconnected_sender_is_notified_and_its_messages_are_dropped() {
    let (mut near, mut far) = sides();
    let (first, second) = (near.connected(&mut far, 7), near.connected(&mut far, 8));
    for endpoint in [&first, &second] {
        send(&mut near, &mut far, endpoint, 1, b"before");
    }
    until(&mut near, &mut far, |_, far| far.told.messages.len() == 2);
    for n in 0..20 {
        send(&mut near, &mut far, &first, n, b"not any more");
    }
    // Peers are numbered in the order of their arrival.
    far.interface.hang_up(1).unwrap();
    far.interface.hang_up(77).unwrap();
    until(&mut near, &mut far, |near, _| near.told.failed.len() == 1);
    assert_eq!((near.told.failed[0].0, near.told.failed[0].1), (7, Status::NoMemory));
    let heard = far.told.messages.len();
    send(&mut near, &mut far, &second, 9, b"as well");
    until(&mut near, &mut far, |_, far| far.told.messages.len() > heard);
    assert_eq!(far.told.messages[heard..], [(9, b"as well".to_vec())]);
    assert_eq!(first.am_short(1, 0, b""), Err(Status::NoMemory));
}

#[test]
fn a_connection_that_the_library_never_forms_ends_in_words() {
    let mut settings = settings();
    settings.connect_timeout = core::time::Duration::ZERO;
    let (mut near, far) = (Side::new(&settings), Side::new(&settings));
    let address = far.interface.address();
    drop(far); // the message has no receiver any more
    let endpoint = near.interface.connect(&address, b"", 7).unwrap();
    while near.told.failed.is_empty() {
        assert!(matches!(endpoint.am_short(1, 0, b""), Err(Status::Again | Status::TimedOut)));
        near.poll();
    }
    assert_eq!(near.told.failed[0].1, Status::TimedOut);
    assert!(near.told.failed[0].2.contains("TIELINE_CONNECT_TIMEOUT"));
}

#[test]
fn endpoint_closed_before_answer_arrives_and_leaves_or_never_arrives() {
    let (mut near, mut far) = sides();
    let address = far.interface.address();
    drop(near.interface.connect(&address, b"short", 7).unwrap());
    until(&mut near, &mut far, |_, far| far.told.left == [0]);
    assert_eq!(far.told.arrived, [b"short"]);
    manners(|manners| manners.eagain = 1);
    drop(near.interface.connect(&address, b"never", 8).unwrap());
    let other = near.connected(&mut far, 9);
    assert_eq!(far.told.arrived[1..], [b"it is me"]);
    drop(other);
}

#[test]
fn connection_to_address_of_earlier_interface_is_refused() {
    let (mut near, far) = sides();
    let address = far.interface.address();
    drop(far);
    let mut another = Side::new(&settings());
    assert_ne!(another.interface.address(), address);
    let endpoint = near.interface.connect(&address, b"", 7).unwrap();
    until(&mut near, &mut another, |near, _| !near.told.failed.is_empty());
    assert!(near.told.failed[0].2.contains("another process"), "{:?}", near.told.failed);
    assert_eq!(another.told.arrived, [] as [Vec<u8>; 0]);
    drop(endpoint);
}

#[test]
fn a_queue_that_overruns_ends_everything_and_lets_go_of_all_memory() {
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    let mut there = [0u8; 64];
    let region = far.region(&mut there);
    let key = endpoint.import_key(&far.packed(&region)).unwrap();
    let mut here = [5u8; 64];
    assert_eq!(transfer(&endpoint, false, &key, &mut here, 0, 1), Ok(Posting::Pending));
    manners(|manners| manners.overrun = true);
    near.poll();
    near.poll();
    assert_eq!(near.told.failed.len(), 1, "{:?}", near.told);
    assert!(matches!(near.told.ended[..], [(1, Err(_))]), "{:?}", near.told);
    here.fill(9);
    for _ in 0..10 {
        far.poll();
    }
    assert_eq!(here, [9; 64], "the library has none of it any more");
    let address = far.interface.address();
    assert!(near.interface.connect(&address, b"", 8).is_err());
}

#[test]
fn closing_an_endpoint_gives_memory_back_though_its_peer_stands_still() {
    let (mut near, mut far) = sides();
    for len in [64, 20_000] {
        let mut there = vec![1u8; len];
        let region = far.region(&mut there);
        let endpoint = near.connected(&mut far, 7);
        let key = endpoint.import_key(&far.packed(&region)).unwrap();
        let mut here = vec![5u8; len];
        assert_eq!(transfer(&endpoint, false, &key, &mut here, 0, 1), Ok(Posting::Pending));
        drop((key, endpoint));
        here.fill(9);
        for _ in 0..10 {
            far.poll();
            near.poll();
        }
        assert!(here.iter().all(|byte| *byte == 9), "{len}");
        assert_eq!(near.told.ended, [], "what is dropped has no event");
        // A short operation has left the interface intact; a long one is only ended by closing the library's endpoint.
        let address = far.interface.address();
        assert_eq!(near.interface.connect(&address, b"", 9).is_ok(), len == 64);
    }
}

#[test]
fn a_library_without_completion_at_the_target_has_messages_only() {
    manners(|manners| manners.delivery = false);
    let domain = domain(&settings()).unwrap();
    let caps = tieline_plugin_api::Domain::modules(&domain)[0].caps;
    use tieline_plugin_api::caps::{AM_SHORT, GET, PUT, REMOTE_COMPLETION};
    assert_eq!(caps & (AM_SHORT | PUT | GET | REMOTE_COMPLETION), AM_SHORT);
    assert_eq!(world(|world| world.complaints.clone()), [] as [String; 0]);
}

#[test]
fn provider_with_early_put_completions_has_messages_only() {
    manners(|manners| manners.lies = true);
    let found = domain(&settings()).unwrap();
    use tieline_plugin_api::caps::{AM_SHORT, GET, PUT};
    let caps = tieline_plugin_api::Domain::modules(&found)[0].caps;
    assert_eq!(caps & (AM_SHORT | PUT | GET), AM_SHORT);
    assert!(found.broken_promise.as_ref().unwrap().contains("have not"));
    let trusting = crate::config::Settings { trust: "delivery".into(), ..settings() };
    let trusted = domain(&trusting).unwrap();
    assert_ne!(tieline_plugin_api::Domain::modules(&trusted)[0].caps & PUT, 0);
}

#[test]
fn a_forked_child_does_without_the_library_that_its_parent_has_loaded() {
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    assert!(holds_in_child(|| {
        let refused = crate::load::library("").err();
        refused.is_some_and(|why| {
            why.status == Status::Unsupported
                && why.text.contains("its parent has loaded libfabric")
        })
    }));
    send(&mut near, &mut far, &endpoint, 1, b"on");
    until(&mut near, &mut far, |_, far| far.told.messages == [(1, b"on".to_vec())]);
}
