//! A libfabric that is simulated in this process, to test behaviour that real providers do not show on request, or not on this
//! machine.

mod atomics {
    pub(crate) mod sys;
}
pub(crate) mod host {
    pub(crate) mod sys;
}
mod memory {
    pub(crate) mod sys;
}
pub(crate) mod messages {
    pub(crate) mod sys;
}
mod notices {
    pub(crate) mod sys;
}
mod offer {
    pub(crate) mod sys;
}
mod rma {
    pub(crate) mod sys;
}
mod sources;
mod standing {
    pub(crate) mod sys;
}
pub(crate) mod sys;
pub(crate) mod world;

use crate::config::Settings;
use crate::load;
use crate::offers;
use crate::{OfiDomain, OfiEndpoint, OfiInterface, RDM, Region};
use core::mem::MaybeUninit;
use tieline_plugin_api::abi::{Event, Iov, KeyParams, RegisterParams};
use tieline_plugin_api::{
    Domain, Endpoint, Events, Failure, Interface, RmaOp, Status, access, event,
};

/// The events of an interface in one or more polls.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// The header and payload of each message.
    pub(crate) messages: Vec<(u64, Vec<u8>)>,
    /// The cookie and result of each completed operation.
    pub(crate) ended: Vec<(u64, Result<(), Status>)>,
    /// The header of each completed operation: the value that an atomic has fetched.
    pub(crate) values: Vec<u64>,
    /// The identities of peers that arrived.
    pub(crate) arrived: Vec<Vec<u8>>,
    /// The statuses with which peers left.
    pub(crate) left: Vec<i32>,
    /// The endpoints that failed: cookie, status, text.
    pub(crate) failed: Vec<(u64, Status, String)>,
}

/// A domain, its opened module, and the module's events so far.
pub(crate) struct Side {
    pub(crate) interface: OfiInterface,
    pub(crate) domain: OfiDomain,
    pub(crate) told: Told,
}

/// The number of polls after which a condition must hold.
const MANY: usize = 10_000;

pub(crate) fn settings() -> Settings {
    Settings::test_defaults()
}

pub(crate) fn domain(settings: &Settings) -> Result<OfiDomain, Failure> {
    let offers = offers::offers(load::library("")?, settings)?;
    let none = || Failure::new(Status::NoDevice, offers.left_out().join("; "));
    let offer = offers.used.first().cloned().ok_or_else(none)?;
    OfiDomain::open(offer, settings.clone())
}

impl Side {
    pub(crate) fn new(settings: &Settings) -> Side {
        let domain = domain(settings).unwrap();
        let interface = domain.open_interface(RDM, [0; 16]).unwrap();
        Side::with(domain, interface)
    }

    pub(crate) fn with(domain: OfiDomain, interface: OfiInterface) -> Side {
        Side { interface, domain, told: Told::default() }
    }

    pub(crate) fn poll(&mut self) {
        let mut room = [const { MaybeUninit::<Event>::uninit() }; 16];
        let mut events = Events::new(&mut room);
        if !self.interface.poll_quietly() {
            self.interface.poll(&mut events).unwrap();
        }
        self.interface.check_accounts();
        let (len, told) = (events.len(), &mut self.told);
        for event in sys::pushed(&room, len) {
            let status = Status::from_code(event.status);
            let ended = if event.status == 0 { Ok(()) } else { Err(status) };
            match event.kind {
                event::MESSAGE => told.messages.push((event.header, sys::payload(&event))),
                event::COMPLETION => {
                    told.ended.push((event.cookie, ended));
                    told.values.push(event.header);
                }
                event::PEER_ARRIVED => told.arrived.push(sys::payload(&event)),
                event::PEER_LEFT => told.left.push(event.status),
                event::ENDPOINT_FAILED => {
                    let words = String::from_utf8(sys::payload(&event)).unwrap();
                    told.failed.push((event.cookie, status, words));
                }
                other => panic!("an event of kind {other}"),
            }
        }
    }

    /// Returns an endpoint to the other side that is ready for messages.
    pub(crate) fn connected(&mut self, to: &mut Side, cookie: u64) -> OfiEndpoint {
        let address = to.interface.address();
        let endpoint = self.interface.connect(&address, b"it is me", cookie).unwrap();
        until(self, to, |near, _| near.is_welcome(&endpoint));
        endpoint
    }

    fn is_welcome(&self, endpoint: &OfiEndpoint) -> bool {
        // The endpoint accepts nothing before the peer has answered, not even a message that is too long.
        !matches!(
            endpoint.am_packed(0, 0, refusing(&mut |_, _| Err(Status::Canceled)), 8),
            Err(Status::Again)
        )
    }

    pub(crate) fn region(&self, memory: &mut [u8]) -> Region {
        let all = access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC;
        let params = RegisterParams::new(memory.as_mut_ptr(), memory.len(), all);
        self.domain.register(&params).unwrap()
    }

    pub(crate) fn packed(&self, region: &Region) -> Vec<u8> {
        let mut key = vec![0; crate::keys::LONGEST];
        let len = self.domain.pack_key(region, &KeyParams::empty(), &mut key).unwrap();
        key.truncate(len);
        key
    }
}

fn refusing<'a>(
    pack: &'a mut dyn FnMut(*mut u8, usize) -> Result<usize, Status>,
) -> tieline_plugin_api::Packer<'a> {
    tieline_plugin_api::Packer::new(pack)
}

/// Polls both sides until the condition holds.
pub(crate) fn until(
    near: &mut Side,
    far: &mut Side,
    mut so: impl FnMut(&mut Side, &mut Side) -> bool,
) {
    for _ in 0..MANY {
        if so(near, far) {
            return;
        }
        near.poll();
        far.poll();
    }
    panic!("it does not come: {:?} and {:?}", near.told, far.told);
}

/// Posts a put or get of one piece with a reported completion.
pub(crate) fn transfer(
    endpoint: &OfiEndpoint,
    put: bool,
    key: &crate::RemoteKey,
    local: &mut [u8],
    offset: u64,
    cookie: u64,
) -> tieline_plugin_api::Posted {
    let iov = [Iov::new(local.as_mut_ptr(), local.len())];
    let flags = tieline_plugin_api::op_flags::REMOTE_COMPLETION;
    let op = RmaOp { iov: &iov, len: local.len(), offset, cookie, flags };
    if put { endpoint.put(key, &op) } else { endpoint.get(key, &op) }
}
