//! A device double inside this process, so that the modules can be tested without a device.

pub(crate) mod clock;
mod host {
    pub(crate) mod sys;
}
pub(crate) mod faults;
pub(crate) mod nature;
mod posts {
    pub(super) mod sys;
}
pub(crate) mod sys;
pub(crate) mod world;

use crate::abi::IBV_LINK_LAYER_INFINIBAND;
use crate::config::Settings;
use crate::devices::PortName;
use crate::devices::tests::FakeClass;
use crate::{RC, Region, RemoteKey, VerbsDomain, VerbsEndpoint, VerbsInterface};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tieline_plugin_api::abi::{Event, Iov, KeyParams, RegisterParams};
use tieline_plugin_api::{Domain, Endpoint, Events, Failure, Interface, Status, access, event};

/// The events of one or more polls.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// The header and payload of each message.
    pub(crate) messages: Vec<(u64, Vec<u8>)>,
    /// The cookie and result of each completed operation. For an atomic, the value is the fetched one.
    pub(crate) ended: Vec<(u64, Result<u64, Status>)>,
    /// The index of the failed part in each completion that failed.
    pub(crate) parts: Vec<u32>,
    /// The words of peers' puts with notification.
    pub(crate) notified: Vec<u64>,
    /// The identities of arrived peers.
    pub(crate) arrived: Vec<Vec<u8>>,
    /// The number of peers that left.
    pub(crate) left: usize,
    /// The failed endpoints: cookie, status, text.
    pub(crate) failed: Vec<(u64, Status, String)>,
}

/// Polls an interface once and appends its events to `told`.
pub(crate) fn poll(interface: &VerbsInterface, told: &mut Told) -> usize {
    let mut room = [const { MaybeUninit::<Event>::uninit() }; 16];
    let mut events = Events::new(&mut room);
    interface.poll(&mut events).unwrap();
    let len = events.len();
    for event in sys::pushed(&room, len) {
        match event.kind {
            event::MESSAGE => told.messages.push((event.header, sys::payload(&event))),
            event::COMPLETION if event.status == 0 => {
                told.ended.push((event.cookie, Ok(event.header)))
            }
            event::COMPLETION => {
                told.ended.push((event.cookie, Err(Status::from_code(event.status))));
                told.parts.push(event.id);
            }
            event::ENDPOINT_FAILED => {
                let words = String::from_utf8(sys::payload(&event)).unwrap();
                told.failed.push((event.cookie, Status::from_code(event.status), words));
            }
            event::NOTIFIED => told.notified.push(event.header),
            event::PEER_ARRIVED => told.arrived.push(sys::payload(&event)),
            event::PEER_LEFT => told.left += 1,
            other => panic!("an event of kind {other}"),
        }
    }
    len
}

/// One process's side of a test: a domain on the device, and a module opened on it.
pub(crate) struct Side {
    pub(crate) interface: VerbsInterface,
    pub(crate) domain: VerbsDomain,
    pub(crate) told: Told,
    until: Instant,
    /// The time by which the clock double advances per poll, beyond its reads.
    pace: Duration,
}

/// The time limit of a test, which only a hang reaches.
const TIMEOUT: Duration = Duration::from_secs(60);

impl Side {
    pub(crate) fn poll(&mut self) {
        assert!(Instant::now() < self.until, "it hangs");
        clock::pass(self.pace);
        let _ = poll(&self.interface, &mut self.told);
    }
}

/// Opens the domain with these settings.
pub(crate) fn domain(settings: &[(&str, &str)]) -> Result<VerbsDomain, Failure> {
    domain_of(&class(), settings)
}

/// Returns the kernel's description of the device double.
pub(crate) fn class() -> FakeClass {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let class = FakeClass::new(&format!("double-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
    let device = sys::NAME.to_str().unwrap();
    let port = format!("{device}/ports/1");
    class.driver(device, world::world(|world| world.nature.driver));
    class.file(&format!("{port}/state"), "4: ACTIVE\n");
    class.file(&format!("{port}/pkeys/0"), "0xffff\n");
    class.file(&format!("{port}/pkeys/1"), "0x8001\n");
    if world::world(|world| world.nature.link_layer) == IBV_LINK_LAYER_INFINIBAND {
        class.file(&format!("{port}/lid"), "0x7\n");
        class.gid(&port, 0, "fe80:0000:0000:0000:0202:03ff:fe04:0506", "IB/RoCE v1");
        return class;
    }
    class.gid(&port, 0, "fe80:0000:0000:0000:0202:03ff:fe04:0506", "RoCE v2");
    class.gid(&port, 1, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2");
    class.gid(&port, 2, "0000:0000:0000:0000:0000:ffff:0a00:0001", "IB/RoCE v1");
    class
}

/// Opens the domain with this kernel description and these settings.
pub(crate) fn domain_of(
    class: &FakeClass,
    settings: &[(&str, &str)],
) -> Result<VerbsDomain, Failure> {
    let device = sys::NAME.to_str().unwrap();
    let read = |name: &str| {
        settings.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_string())
    };
    let name = PortName { device: device.to_string(), port: 1 };
    VerbsDomain::open(&class.0, name, Settings::of(read)?, sys::host())
}

/// Opens `rc` with these settings.
pub(crate) fn side(settings: &[(&str, &str)]) -> Side {
    side_of(RC, settings)
}

/// Opens a module with these settings.
pub(crate) fn side_of(module: &str, settings: &[(&str, &str)]) -> Side {
    let domain = domain(settings).unwrap();
    let interface = domain.open_interface(module, [0; 16]).unwrap();
    // Datagrams are retransmitted after 20 ms. Tests of `ud` advance the clock explicitly.
    let pace = if module == RC { Duration::from_millis(1) } else { Duration::ZERO };
    Side { interface, domain, told: Told::default(), until: Instant::now() + TIMEOUT, pace }
}

/// Connects two sides; the endpoints' cookies are 1 and 2.
pub(crate) fn connect(a: &mut Side, b: &mut Side) -> (VerbsEndpoint, VerbsEndpoint) {
    a.interface.reachable(&b.interface.address()).unwrap();
    let at_a = a.interface.connect(&[], &[], 1).unwrap();
    let at_b = b.interface.connect(&[], &[], 2).unwrap();
    at_a.connect(&at_b.address()).unwrap();
    at_b.connect(&at_a.address()).unwrap();
    // The hello is retransmitted until the other side is connected.
    while at_a.flush(0) == Err(Status::Again) || at_b.flush(0) == Err(Status::Again) {
        a.poll();
        b.poll();
    }
    while poll(&a.interface, &mut a.told) + poll(&b.interface, &mut b.told) > 0 {}
    (a.told, b.told) = (Told::default(), Told::default());
    (at_a, at_b)
}

/// Registers memory of a side with all remote rights, and imports its key at the other side's endpoint.
pub(crate) fn share(owner: &Side, words: &mut [u64], user: &VerbsEndpoint) -> (Region, RemoteKey) {
    const ALL: u64 = access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
    let piece = piece(words);
    let region = owner.domain.register(&RegisterParams::new(piece.base, piece.len, ALL)).unwrap();
    let mut bytes = [0; 128];
    let len = owner.domain.pack_key(&region, &KeyParams::empty(), &mut bytes).unwrap();
    let key = user.import_key(&bytes[..len]).unwrap();
    (region, key)
}

/// Returns the words as one I/O piece.
pub(crate) fn piece(words: &mut [u64]) -> Iov {
    Iov::new(words.as_mut_ptr().cast(), size_of_val(words))
}

/// Returns the words as one I/O piece with a region handle.
pub(crate) fn piece_in(region: &Region, words: &mut [u64]) -> Iov {
    Iov { region: core::ptr::from_ref(region).cast_mut().cast(), ..piece(words) }
}

/// Returns the timer interval of a sleeper on this descriptor.
pub(crate) fn interval(epoll: i32) -> String {
    let info = |fd: &str| std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
    let sleep = info(&epoll.to_string());
    let watched = sleep
        .lines()
        .filter_map(|line| line.strip_prefix("tfd:")?.split(' ').find(|n| !n.is_empty()));
    let said = watched
        .map(info)
        .find_map(|info| Some(info.split_once("it_interval: ")?.1.trim().to_string()));
    said.unwrap()
}
