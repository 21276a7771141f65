//! Tests of the ends of interfaces, endpoints and channels over the simulated library, and of the packets that they send before.

use crate::config::Settings;
use crate::double::world::{beside, let_go, manners};
use crate::double::{Side, settings, sys, transfer, until};
use core::mem::MaybeUninit;
use core::time::Duration;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tieline_plugin_api::abi::Event;
use tieline_plugin_api::{Domain, Endpoint, Events, Interface, Packer, Posting, Revoked, Status};

/// The numbers of the two sides' endpoints: sides open in this order.
const NEAR: usize = 0;
const FAR: usize = 1;

/// Returns settings with a long close timeout.
fn patient() -> Settings {
    Settings { close_timeout: Duration::from_secs(60), ..settings() }
}

fn packed(endpoint: &crate::OfiEndpoint, header: u64, bytes: &[u8]) -> Result<usize, Status> {
    let mut pack = |to: *mut u8, _| {
        sys::write(to, bytes);
        Ok(bytes.len())
    };
    endpoint.am_packed(1, header, Packer::new(&mut pack), bytes.len())
}

/// Runs `act` at each read of the near side's library, with the number of reads so far.
fn meanwhile(far: Side, mut act: impl FnMut(&mut Side, u32) + 'static) -> Rc<RefCell<Side>> {
    let far = Rc::new(RefCell::new(far));
    let (shared, mut times) = (far.clone(), 0);
    beside(NEAR, move || {
        times += 1;
        act(&mut shared.borrow_mut(), times);
    });
    far
}

#[test]
fn accepted_messages_are_transmitted_when_interface_closes() {
    let (mut near, mut far) = (Side::new(&patient()), Side::new(&patient()));
    let endpoint = near.connected(&mut far, 7);
    for n in 0..5 {
        assert!(endpoint.am_short(1, n, b"taken").is_ok());
    }
    manners(|manners| manners.deaf = Some(FAR));
    assert_eq!(packed(&endpoint, 5, b"waits"), Ok(5));
    let far = meanwhile(far, |far, times| {
        if times == 3 {
            manners(|manners| manners.deaf = None);
        }
        far.poll();
    });
    drop((endpoint, near));
    let mut far = far.borrow_mut();
    far.poll();
    let headers: Vec<u64> = far.told.messages.iter().map(|message| message.0).collect();
    assert_eq!(headers, [0, 1, 2, 3, 4, 5]);
    assert_eq!(far.told.left, [0], "in good order");
}

#[test]
fn closing_interface_waits_for_library_operations_only() {
    let (mut near, mut far) = (Side::new(&patient()), Side::new(&patient()));
    let endpoint = near.connected(&mut far, 7);
    manners(|manners| manners.late = true);
    assert!(endpoint.am_short(1, 0, b"taken").is_ok());
    let asked = Rc::new(Cell::new(0));
    let count = asked.clone();
    let far = meanwhile(far, move |far, times| {
        count.set(times);
        if times == 5 {
            let_go();
        }
        far.poll();
    });
    drop((endpoint, near));
    assert!(asked.get() >= 5, "the library had the packet until then: {}", asked.get());
    assert_eq!(far.borrow().told.left, [0]);
}

#[test]
fn closing_interface_does_not_wait_for_unconnected_peer() {
    let (near, far) = (Side::new(&patient()), Side::new(&patient()));
    manners(|manners| manners.deaf = Some(FAR));
    let endpoint = near.interface.connect(&far.interface.address(), b"", 7).unwrap();
    let asked = Rc::new(Cell::new(0));
    let count = asked.clone();
    let far = meanwhile(far, move |_, times| {
        count.set(times);
        if times == 10_000 {
            manners(|manners| manners.deaf = None);
        }
    });
    drop((endpoint, near));
    assert!(asked.get() < 100, "{} looks for a connection that does not form", asked.get());
    assert_eq!(far.borrow().told.arrived, [] as [Vec<u8>; 0]);
}

#[test]
fn closing_endpoint_waits_for_its_get_and_interface_continues() {
    let (mut near, mut far) = (Side::new(&patient()), Side::new(&patient()));
    let mut there = vec![3u8; 20_000];
    let region = far.region(&mut there);
    let endpoint = near.connected(&mut far, 7);
    let other = near.connected(&mut far, 8);
    let key = endpoint.import_key(&far.packed(&region)).unwrap();
    manners(|manners| manners.hold_ways = true);
    let mut here = vec![5u8; 20_000];
    assert_eq!(transfer(&endpoint, false, &key, &mut here, 0, 1), Ok(Posting::Pending));
    assert_eq!(endpoint.flush(2), Ok(Posting::Pending));
    let far = meanwhile(far, |far, times| {
        if times == 4 {
            manners(|manners| manners.hold_ways = false);
        }
        far.poll();
    });
    drop((key, endpoint));
    assert!(here.iter().all(|byte| *byte == 3), "it has ended");
    near.poll();
    assert_eq!(near.told.ended, [], "what is dropped has no event, nor has its flush");
    assert_eq!(near.told.failed, []);
    assert!(other.am_short(1, 9, b"goes on").is_ok());
    (0..4).for_each(|_| near.poll()); // the end of the other channel comes first
    assert_eq!(far.borrow().told.messages, [(9, b"goes on".to_vec())]);
    beside(NEAR, || ()); // the far side must end with this test
    drop(region);
}

#[test]
fn disconnected_sender_is_ignored_and_other_senders_are_not() {
    let (mut near, mut far) = (Side::new(&settings()), Side::new(&settings()));
    let (first, second) = (near.connected(&mut far, 7), near.connected(&mut far, 8));
    let mut there = [0u8; 64];
    let region = far.region(&mut there);
    let _ = far.packed(&region);
    for n in 0..4 {
        assert!(first.am_short(1, n, b"of the first").is_ok());
        assert!(second.am_short(1, 10 + n, b"of the second").is_ok());
    }
    // The array takes two events: the other events are read, and wait.
    let mut room = [const { MaybeUninit::<Event>::uninit() }; 2];
    far.interface.poll(&mut Events::new(&mut room)).unwrap();
    far.interface.hang_up(1).unwrap();
    far.interface.check_accounts();
    assert_eq!(far.domain.revoke(&region), Revoked::Busy);
    far.poll();
    let headers: Vec<u64> = far.told.messages.iter().map(|message| message.0).collect();
    assert_eq!(headers, [11, 12, 13], "the first of either was handed out before");
    assert_eq!(
        far.domain.revoke(&region),
        Revoked::Busy,
        "what the first had posted may still land"
    );
    until(&mut near, &mut far, |_, far| far.domain.revoke(&region) == Revoked::Quiet);
    assert_eq!(near.told.failed.len(), 1);
    assert_eq!(near.told.failed[0].0, 7);
    assert_eq!(far.domain.deregister(region), Ok(()));
}

#[test]
fn failing_interface_notifies_peers_and_owes_no_answers() {
    let (mut near, mut far) = (Side::new(&settings()), Side::new(&settings()));
    let (there, back) = (near.connected(&mut far, 7), far.connected(&mut near, 8));
    let mut memory = [0u8; 64];
    let region = near.region(&mut memory);
    let _ = near.packed(&region);
    manners(|manners| manners.overrun = true);
    near.poll();
    near.poll();
    assert_eq!((near.told.failed.len(), near.told.failed[0].0), (1, 7));
    assert_eq!(near.told.failed[0].1, Status::Io);
    assert_eq!(near.told.left, [Status::Io as i32].map(|_| Status::PeerFailed as i32));
    assert_eq!(near.domain.revoke(&region), Revoked::Quiet, "nobody leads there any more");
    assert_eq!(near.domain.deregister(region), Ok(()));
    far.poll();
    far.poll();
    let failed: Vec<_> = far.told.failed.iter().map(|failed| (failed.0, failed.1)).collect();
    assert_eq!(failed, [(8, Status::Closed)]);
    assert!(far.told.failed[0].2.contains("has closed its interface"), "{:?}", far.told);
    assert_eq!(far.told.left, [0]);
    drop((there, back));
}

#[test]
fn lost_connection_drops_queued_packets_and_new_channel_starts_clean() {
    let (mut near, mut far) = (Side::new(&settings()), Side::new(&settings()));
    let endpoint = near.connected(&mut far, 7);
    manners(|manners| manners.fail_send = Some(libc::ECONNRESET));
    assert!(endpoint.am_short(1, 0, b"lost").is_ok());
    manners(|manners| manners.deaf = Some(FAR));
    assert_eq!(packed(&endpoint, 1, b"waits"), Ok(5));
    near.poll();
    assert_eq!(near.told.failed.len(), 1);
    manners(|manners| manners.deaf = None);
    let another = near.connected(&mut far, 9);
    assert!(another.am_short(1, 2, b"comes").is_ok());
    until(&mut near, &mut far, |_, far| !far.told.messages.is_empty());
    assert_eq!(far.told.messages, [(2, b"comes".to_vec())]);
}

#[test]
fn bye_of_unanswered_second_channel_identifies_that_channel() {
    let (mut near, mut far) = (Side::new(&settings()), Side::new(&settings()));
    let first = near.connected(&mut far, 7);
    drop(near.interface.connect(&far.interface.address(), b"second", 8).unwrap());
    near.interface.check_accounts();
    until(&mut near, &mut far, |_, far| far.told.left == [0]);
    assert_eq!(far.told.arrived.last(), Some(&b"second".to_vec()));
    assert!(first.am_short(1, 1, b"goes on").is_ok());
    until(&mut near, &mut far, |_, far| far.told.messages.len() == 1);
    assert_eq!((&near.told.failed[..], &far.told.left[..]), (&[][..], &[0][..]));
}

#[test]
fn a_put_that_finds_no_room_leaves_nothing_behind() {
    let (mut near, mut far) = (Side::new(&settings()), Side::new(&settings()));
    let endpoint = near.connected(&mut far, 7);
    let mut there = [0u8; 64];
    let region = far.region(&mut there);
    let key = endpoint.import_key(&far.packed(&region)).unwrap();
    let mut here = [5u8; 8];
    manners(|manners| manners.eagain = 1);
    assert_eq!(transfer(&endpoint, true, &key, &mut here, 0, 1), Err(Status::Again));
    near.interface.check_accounts();
    assert_eq!(endpoint.flush(2), Ok(Posting::Done), "nothing of it is under way");
    assert_eq!(transfer(&endpoint, true, &key, &mut here, 0, 3), Ok(Posting::Pending));
    assert_eq!(endpoint.fence(), Err(Status::Unsupported), "a flush orders what follows");
    until(&mut near, &mut far, |near, _| near.told.ended == [(3, Ok(()))]);
    assert_eq!(there[..9], [5, 5, 5, 5, 5, 5, 5, 5, 0]);
    drop(region);
}
