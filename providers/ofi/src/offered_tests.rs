//! Tests of the attributes of a domain over several providers of libfabric.

use crate::Ofi;
use crate::abi::{FI_MR_HMEM, FI_MR_LOCAL, FI_SOCKADDR_IN, FI_SOCKADDR_IN6};
use crate::double::host::sys::host;
use crate::double::world::{fail_receive, manners, world};
use crate::double::{Side, domain, settings, until};
use std::ffi::CStr;
use std::sync::atomic::AtomicBool;
use tieline_plugin_api::abi::ModuleAttr;
use tieline_plugin_api::{Domain, Endpoint, Interface, Provider, Status, caps, cost_class};

/// Returns the module over a provider of this name, with addresses of this format.
fn offered(provider: &'static CStr, format: u32) -> ModuleAttr {
    manners(|manners| (manners.provider, manners.format) = (provider, format));
    domain(&settings()).unwrap().modules()[0]
}

const OTHER: u32 = 9;

#[test]
fn each_libfabric_provider_has_its_expected_priority() {
    for (provider, format, priority) in [
        (c"cxi", OTHER, 55),
        (c"efa", OTHER, 55),
        (c"verbs;ofi_rxm", FI_SOCKADDR_IN, 20),
        (c"tcp", FI_SOCKADDR_IN, 5),
        (c"tcp;ofi_rxm", FI_SOCKADDR_IN6, 4),
        (c"sockets", FI_SOCKADDR_IN, 3),
        (c"played", OTHER, 6),
    ] {
        assert_eq!(offered(provider, format).priority, priority, "{provider:?}");
    }
}

#[test]
fn the_capabilities_say_what_is_below() {
    let more = caps::SLOW_POLL | caps::TAKES_REGIONS | caps::PEER_FAILURE | caps::EVENT_FD;
    let messages = caps::AM_SHORT | caps::AM_PACKED | caps::NEEDS_POLL | caps::ANY_THREAD;
    let memory = caps::PUT | caps::GET | caps::REMOTE_COMPLETION;
    let always = !more & !(caps::ATOMICS | caps::DEVICE_ATOMICS);
    assert_eq!(offered(c"played", OTHER).caps & always, messages | memory);
    manners(|manners| manners.delivery = false);
    assert_eq!(offered(c"played", OTHER).caps, messages);
    manners(|manners| manners.delivery = true);
    assert_eq!(offered(c"played", OTHER).caps & more, 0);
    assert_eq!(offered(c"sockets", FI_SOCKADDR_IN).caps & more, caps::SLOW_POLL);
    // The queues of `tcp` have no descriptor in this simulation.
    assert_eq!(offered(c"tcp", FI_SOCKADDR_IN6).caps & more, caps::SLOW_POLL);
    manners(|manners| manners.mr_mode = FI_MR_LOCAL);
    assert_eq!(offered(c"played", OTHER).caps & more, caps::TAKES_REGIONS);
    let mut watched = settings();
    watched.watch = Some(crate::watch::Settings {
        net: tieline_net::Settings::default(),
        silence: core::time::Duration::from_secs(20),
        connect_timeout: core::time::Duration::from_secs(30),
    });
    let watched = domain(&watched).unwrap().modules()[0];
    assert_eq!(watched.caps & more, caps::TAKES_REGIONS | caps::PEER_FAILURE);
}

#[test]
fn sockets_cost_more_than_a_device_in_every_class() {
    let (sockets, device) = (offered(c"sockets", FI_SOCKADDR_IN), offered(c"cxi", OTHER));
    for class in [
        cost_class::SMALL_MESSAGE,
        cost_class::BULK_MESSAGE,
        cost_class::SMALL_RMA,
        cost_class::BULK_RMA,
        cost_class::ATOMIC,
    ] {
        let (slow, quick) = (sockets.cost[class], device.cost[class]);
        assert!(quick.overhead_ns > 0.0 && slow.overhead_ns > quick.overhead_ns, "{class}");
        assert!(slow.latency_ns > quick.latency_ns, "{class}");
        assert!(slow.bytes_per_second < quick.bytes_per_second, "{class}");
    }
}

#[test]
fn an_interface_says_how_much_memory_it_has_for_how_many_peers() {
    let (mut near, mut far) = (Side::new(&settings()), Side::new(&settings()));
    let before = near.interface.memory();
    assert_eq!((before.peers, before.peer_bytes), (0, 0));
    let receive = settings().receive as u64;
    assert_eq!(before.buffer_bytes, receive, "buffers for what comes, and none for what leaves");
    assert!(before.base_bytes < 1 << 20, "{before:?}");
    let endpoint = near.connected(&mut far, 7);
    let slots = 16 * crate::engine::LONGEST_PACKET.next_multiple_of(64) as u64;
    let connected = near.interface.memory();
    assert_eq!(connected.buffer_bytes, receive + slots);
    assert!(connected.peers == 1 && connected.peer_bytes > 0, "{connected:?}");
    for _ in 0..200 {
        until(&mut near, &mut far, |_, _| endpoint.am_short(1, 0, b"").is_ok());
    }
    assert!(near.interface.memory().buffer_bytes <= receive + 3 * slots, "slots are used again");
    drop((endpoint, near, far));
    manners(|manners| manners.provider = c"played;ofi_rxm");
    let layered = Side::new(&settings());
    let report = layered.interface.memory();
    assert!(report.base_bytes > 64 << 20, "what the layer has for itself: {report:?}");
    let packet = crate::engine::LONGEST_PACKET;
    let buffers = (settings().receive / packet * packet.next_multiple_of(64)) as u64;
    assert_eq!(report.buffer_bytes, buffers, "one for each packet");
}

#[test]
fn only_consecutive_receive_failures_fail_the_interface() {
    manners(|manners| manners.provider = c"played;ofi_rxm");
    let (mut near, mut far) = (Side::new(&settings()), Side::new(&settings()));
    let endpoint = near.connected(&mut far, 7);
    let fail = |far: &mut Side, times| {
        for _ in 0..times {
            fail_receive(1, libc::ECANCELED, true);
            far.poll();
        }
    };
    for round in 0..3 {
        fail(&mut far, 3000);
        let send = |near: &mut Side, far: &mut Side| {
            until(near, far, |_, _| endpoint.am_short(1, round, b"between").is_ok());
        };
        send(&mut near, &mut far);
        until(&mut near, &mut far, |_, far| far.told.messages.len() == round as usize + 1);
    }
    fail(&mut far, 5000);
    let failure = far.interface.connect(&near.interface.address(), b"", 8).err().unwrap();
    assert!(failure.text.contains("receives fail"), "{failure}");
}

#[test]
fn that_the_library_was_loaded_is_told_with_the_first_list_and_not_again() {
    let ofi = Ofi { settings: settings(), host: host(), told: AtomicBool::new(false) };
    for _ in 0..3 {
        assert_eq!(ofi.domains().unwrap().len(), 1);
        let told = world(|world| world.told.clone());
        let loaded = told.iter().filter(|line| line.contains("was loaded in"));
        assert_eq!(loaded.count(), 1, "{told:?}");
    }
}

#[test]
fn every_list_of_offers_is_given_back_once() {
    let kept = || world(|world| world.lists.len());
    let open = domain(&settings()).unwrap();
    assert!(kept() > 0, "an offer is a part of its list");
    drop(open);
    assert_eq!(kept(), 0);
    // The same holds if the library has nothing, or nothing usable.
    manners(|manners| manners.mr_mode = FI_MR_HMEM);
    assert!(domain(&settings()).is_err());
    assert_eq!(kept(), 0);
    assert_eq!(world(|world| world.complaints.clone()), Vec::<String>::new());
}

fn provider(settings: crate::config::Settings) -> Ofi {
    Ofi { settings, host: host(), told: AtomicBool::new(false) }
}

fn told() -> Vec<String> {
    world(|world| core::mem::take(&mut world.told))
}

#[test]
fn unknown_domain_is_refused_and_limited_domain_is_reported() {
    let ofi = provider(settings());
    let name = ofi.domains().unwrap().remove(0).name;
    for missing in ["tcp", "ofi:played", &format!("{name}0")] {
        let refused = ofi.open_domain(missing, [0; 16]).err().unwrap();
        assert_eq!(refused.status, Status::NoDevice);
        assert_eq!(refused.text, format!("there is no domain \"{missing}\""));
    }
    let _ = told();
    drop(ofi.open_domain(&name, [0; 16]).unwrap());
    assert_eq!(told(), [] as [String; 0], "it keeps what it promises");
    manners(|manners| manners.lies = true);
    drop(ofi.open_domain(&name, [0; 16]).unwrap());
    let told = told();
    let line = told.iter().find(|line| line.starts_with(&format!("{name} has messages only: ")));
    assert!(line.is_some_and(|line| line.ends_with(" (TIELINE_OFI_TRUST)")), "{told:?}");
}

#[test]
fn left_out_devices_are_reported_with_reasons() {
    manners(|manners| manners.provider = c"shm");
    let ofi = provider(settings());
    let refused = ofi.domains().err().unwrap();
    assert_eq!(refused.status, Status::NoDevice);
    let words = "libfabric offers nothing that is used: shm on ";
    assert!(refused.text.starts_with(words), "{}", refused.text);
    let told = told();
    let line = told.iter().find(|line| line.starts_with("left out: shm on "));
    assert!(line.is_some_and(|line| line.contains(": the provider shm is better")), "{told:?}");
    manners(|manners| (manners.provider, manners.mr_mode) = (c"played", FI_MR_HMEM));
    let refused = ofi.domains().err().unwrap();
    let words = "it has no reliable datagrams with messages and puts here";
    assert!(refused.text.contains(words), "{}", refused.text);
}
