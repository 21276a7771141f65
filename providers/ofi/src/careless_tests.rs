//! Tests of careless libraries: duplicate events, events of no operation, errors at opening, and dependencies between objects.

use crate::double::messages::sys::inject;
use crate::double::world::{fail_nothing, manners, world};
use crate::double::{Side, settings, transfer, until};
use crate::wire::{Greeting, Head, Kind, hello};
use tieline_plugin_api::{Domain, Endpoint, Posting, Status};

fn complaints() -> Vec<String> {
    world(|world| world.complaints.clone())
}

/// Sends `count` messages, and checks those that have arrived.
fn exchange(near: &mut Side, far: &mut Side, endpoint: &crate::OfiEndpoint, count: u64) {
    far.told.messages.clear();
    for n in 0..count {
        until(near, far, |_, _| match endpoint.am_short(1, n, &[n as u8; 100]) {
            Err(Status::Again) => false,
            other => other.map(|_| true).unwrap(),
        });
    }
    until(near, far, |_, far| far.told.messages.len() >= count as usize);
    for (n, (header, payload)) in far.told.messages.iter().enumerate() {
        assert_eq!((*header, &payload[..]), (n as u64, &[n as u8; 100][..]));
    }
    assert_eq!((&near.told.failed[..], &far.told.left[..]), (&[][..], &[][..]));
}

#[test]
fn duplicate_completion_ends_one_operation_only() {
    manners(|manners| manners.provider = c"played;ofi_rxm");
    let (mut near, mut far) = (Side::new(&settings()), Side::new(&settings()));
    let (there, back) = (near.connected(&mut far, 7), far.connected(&mut near, 8));
    let mut memory = vec![0u8; 30_000];
    let region = far.region(&mut memory);
    let key = there.import_key(&far.packed(&region)).unwrap();
    manners(|manners| manners.doubles = true);
    exchange(&mut near, &mut far, &there, 500);
    exchange(&mut far, &mut near, &back, 500);
    for (cookie, len) in [(1, 100), (2, 20_000), (3, 100), (4, 20_000)] {
        let mut here = vec![cookie as u8; len];
        assert_eq!(transfer(&there, true, &key, &mut here, 0, cookie), Ok(Posting::Pending));
        until(&mut near, &mut far, |near, _| near.told.ended.last() == Some(&(cookie, Ok(()))));
    }
    assert_eq!(near.told.ended.len(), 4);
    assert_eq!((memory[0], memory[19_999], memory[20_000]), (4, 4, 0));
    assert_eq!(complaints(), [] as [String; 0]);
    drop((key, region));
}

#[test]
fn error_of_library_internal_operation_ends_no_operation_of_ours() {
    let mut own = Box::new([0u64; 64]);
    let context = core::ptr::from_mut(&mut *own).expose_provenance();
    for context in [context, context + 8, 1] {
        let (mut near, mut far) = (Side::new(&settings()), Side::new(&settings()));
        let endpoint = near.connected(&mut far, 7);
        fail_nothing(0, libc::EIO, context);
        fail_nothing(1, libc::EIO, context);
        exchange(&mut near, &mut far, &endpoint, 500);
        assert_eq!(complaints(), [] as [String; 0], "{context:#x}");
        drop((endpoint, near, far));
    }
    // If a layer reports this error, a message is lost with it, and there is no other report.
    manners(|manners| manners.provider = c"played;ofi_rxm");
    let (mut near, mut far) = (Side::new(&settings()), Side::new(&settings()));
    let _endpoint = near.connected(&mut far, 7);
    fail_nothing(0, libc::EIO, context);
    near.poll();
    near.poll();
    assert!(near.told.failed[0].2.contains("libfabric has failed"), "{:?}", near.told);
    assert_eq!(complaints(), [] as [String; 0]);
}

#[test]
fn partially_opened_endpoint_is_closed_only_if_that_is_safe() {
    let domain = crate::double::domain(&settings()).unwrap();
    for bindings in 0..2 {
        manners(|manners| manners.bindings = Some(bindings));
        let failure = domain.open_interface(crate::RDM, [0; 16]).err().unwrap();
        let what = ["binding a table", "binding a queue"][bindings];
        assert!(failure.text.contains(what), "{failure}");
        assert_eq!(complaints(), [] as [String; 0], "{bindings}");
    }
    manners(|manners| (manners.bindings, manners.has_notices) = (Some(2), false));
    assert!(
        domain.open_interface(crate::RDM, [0; 16]).is_ok(),
        "what tells of nothing is not missed"
    );
    drop(domain);
    let stays = world(|world| world.ends.iter().filter(|end| end.open).count());
    assert_eq!((complaints(), stays), (Vec::new(), 1));
}

#[test]
fn unopenable_device_is_left_out_and_next_context_retries() {
    manners(|manners| manners.bindings = Some(0));
    let failure = crate::double::domain(&settings()).err().unwrap();
    assert_eq!(failure.status, Status::NoDevice);
    let words = "it is left out: binding a table of libfabric";
    assert!(failure.text.starts_with("ofi:played:") && failure.text.contains(words), "{failure}");
    manners(|manners| manners.bindings = None);
    assert!(crate::double::domain(&settings()).is_ok(), "it was so once");
    // With a trusted device the failure is found when an interface opens.
    let trusting = crate::config::Settings { trust: "delivery".into(), ..settings() };
    manners(|manners| manners.bindings = Some(0));
    let domain = crate::double::domain(&trusting).unwrap();
    assert!(domain.open_interface(crate::RDM, [0; 16]).is_err());
    assert_eq!(complaints(), [] as [String; 0]);
}

#[test]
fn completion_queue_of_layer_is_drained_before_endpoint_closes() {
    for provider in [c"played;ofi_rxm", c"played"] {
        manners(|manners| manners.provider = provider);
        let (mut near, mut far) = (Side::new(&settings()), Side::new(&settings()));
        let endpoint = near.connected(&mut far, 7);
        exchange(&mut near, &mut far, &endpoint, 3);
        let sent = (0..20).take_while(|n| endpoint.am_short(1, *n, &[1; 100]).is_ok()).count();
        assert!(sent > 0 && world(|world| world.ends[1].entries.len()) >= sent, "{sent}");
        drop(far);
        assert_eq!(complaints(), [] as [String; 0], "{provider:?}");
    }
}

#[test]
fn dependencies_of_unclosable_endpoint_are_retained() {
    let (mut near, mut far) = (Side::new(&settings()), Side::new(&settings()));
    let endpoint = near.connected(&mut far, 7);
    manners(|manners| manners.stays_open = true);
    drop((endpoint, near));
    manners(|manners| manners.stays_open = false);
    drop(far);
    assert_eq!(complaints(), [] as [String; 0]);
    assert_eq!(world(|world| (world.fabrics.len(), world.bound.len())), (1, 3));
}

#[test]
fn a_queue_has_room_for_what_peers_may_send_to_one_who_does_not_poll() {
    let (mut near, mut far) = (Side::new(&settings()), Side::new(&settings()));
    let endpoints: Vec<_> = (0..8).map(|cookie| near.connected(&mut far, cookie)).collect();
    let mut sent = 0;
    for endpoint in &endpoints {
        while !matches!(endpoint.am_short(1, 0, b""), Err(Status::Again)) {
            sent += 1;
            near.poll();
        }
    }
    assert!(sent > 8192, "all that buffers take, and more: {sent}");
    assert_eq!(complaints(), [] as [String; 0]);
    until(&mut near, &mut far, |_, far| far.told.messages.len() == sent);
    assert_eq!(complaints(), [] as [String; 0]);
}

#[test]
fn posted_receives_never_exceed_the_library_limit() {
    for receives in [2, 20, 64] {
        manners(|manners| {
            (manners.provider, manners.receives) = (c"played;ofi_rxm", receives);
        });
        let much = crate::config::Settings { receive: 8 << 20, ..settings() };
        let (mut near, mut far) = (Side::new(&much), Side::new(&much));
        let endpoint = near.connected(&mut far, 7);
        exchange(&mut near, &mut far, &endpoint, 500);
        assert_eq!(complaints(), [] as [String; 0], "{receives}");
    }
}

#[test]
fn a_registration_for_which_there_is_no_memory_says_what_may_be_used_up() {
    let domain = crate::double::domain(&settings()).unwrap();
    manners(|manners| manners.registrations = Some(0));
    let mut memory = [0u8; 64];
    let all = tieline_plugin_api::access::REMOTE_READ;
    let params =
        tieline_plugin_api::abi::RegisterParams::new(memory.as_mut_ptr(), memory.len(), all);
    let failure = domain.register(&params).err().unwrap();
    assert_eq!(failure.status, Status::NoMemory);
    assert!(failure.text.contains("ulimit -l"), "{failure}");
}

fn greeting(epoch: u64, token: u64, name: &[u8], identity: &[u8]) -> Vec<u8> {
    let mut head = Head::new(Kind::Hello, 0, epoch);
    head.id = token as u32;
    let rest = hello(&Greeting { token, epoch: 7, name, identity });
    [&head.pack()[..], &rest].concat()
}

#[test]
fn an_identity_that_no_module_may_say_is_not_handed_on() {
    let mut far = Side::new(&settings());
    let epoch = far.interface.epoch();
    for (token, len) in [(1, 4096), (2, 4097), (3, 8000)] {
        inject(0, &greeting(epoch, token, b"played-0", &vec![5; len]));
        far.poll();
    }
    let lens: Vec<usize> = far.told.arrived.iter().map(Vec::len).collect();
    assert_eq!(lens, [4096]);
}

#[test]
fn name_of_foreign_address_family_never_reaches_the_library() {
    for format in [1, 2, 3, 4] {
        manners(|manners| manners.format = format);
        let mut far = Side::new(&settings());
        let epoch = far.interface.epoch();
        inject(0, &greeting(epoch, 1, b"\x01\x00ayed-0", b""));
        far.poll();
        assert_eq!((complaints(), far.told.arrived.len()), (Vec::new(), 0), "{format}");
        inject(0, &greeting(epoch, 2, b"played-0", b""));
        far.poll();
        assert_eq!((complaints(), far.told.arrived.len()), (Vec::new(), 1), "{format}");
    }
}

#[test]
fn device_that_kills_child_process_is_not_opened() {
    for (provider, delivery) in [(c"opx", true), (c"efa", true), (c"opx", false)] {
        manners(|manners| {
            (manners.provider, manners.delivery) = (provider, delivery);
            manners.kills = Some(libc::SIGSEGV);
        });
        let failure = crate::double::domain(&settings()).err().unwrap();
        assert!(failure.text.contains("was ended by signal 11;"), "{failure}");
        assert!(failure.text.starts_with("ofi:"), "{failure}");
        assert_eq!(world(|world| world.serial), 0, "no endpoint was opened here");
        manners(|manners| manners.kills = None);
        let domain = crate::double::domain(&settings()).unwrap();
        assert_eq!(domain.broken_promise, None);
        drop(domain);
        world(|world| world.serial = 0);
    }
}
