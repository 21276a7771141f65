//! Interfaces: modules that are open on a worker, each with the numbers that its provider assigns to peers.

mod abi;
mod limits;
mod numbers;
mod said;

pub(crate) use limits::LaneLimits;
pub(crate) use said::Said;

use crate::mem::DomainSlot;
use crate::rank::ModuleRef;
use crate::setup::{ModuleUse, Roles};
use crate::sys::Poller;
use crate::{Error, Status};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::os::fd::RawFd;
use std::sync::Arc;
use tieline_host::LoadedProvider;
use tieline_host::abi::WatchWords;
use tieline_host::abi::events::{Polled, payload};
use tieline_host::abi::objects::OpenInterface;
use tieline_plugin_api::abi::ModuleAttr;
use tieline_plugin_api::connects;

/// The number of a peer on this worker: of a peer that has sent something to it, or to which an endpoint leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub(crate) u32);

impl PeerId {
    /// Returns the peer with a number that [`get`](PeerId::get) returned, on the same worker. On another worker the number belongs
    /// to no peer or to a different one.
    #[must_use]
    pub fn from_number(number: u32) -> PeerId {
        PeerId(number)
    }

    /// Returns the number itself. Numbers are counted from 0 and never reused.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer {}", self.0)
    }
}

/// A module opened on a worker. The provider may be called while `keys` is borrowed, to import or release a key, but while no other
/// cell is.
pub(crate) struct InterfaceSlot {
    pub(crate) provider: Arc<LoadedProvider>,
    pub(crate) domain: String,
    pub(crate) module: String,
    /// The name for reports: `shm/ring`.
    pub(crate) path: String,
    pub(crate) priority: i32,
    pub(crate) roles: Roles,
    pub(crate) attr: ModuleAttr,
    pub(crate) interface: OpenInterface,
    /// The words that stand for a poll of the interface; none once it is out of use.
    pub(crate) words: Cell<WatchWords>,
    /// The reason that the interface serves no new endpoint: its device is gone, or its provider failed.
    pub(crate) out_of_use: RefCell<Option<Error>>,
    /// The number of polls since the last event.
    pub(crate) quiet: Cell<u32>,
    /// The descriptor on which the worker sleeps. The descriptor is removed when the interface is out of use, since its events are
    /// not consumed any more.
    pub(crate) watched: Option<RawFd>,
    /// Whether both sides create an endpoint, and wire-up carries their addresses.
    pub(crate) to_endpoint: bool,
    /// Whether the interface has said goodbye to its peers.
    has_left: Cell<bool>,
    /// The map from the provider's numbers of peers to the worker's numbers.
    peers: RefCell<numbers::Numbers>,
    /// The keys that serve all endpoints of the interface.
    keys: abi::SharedKeys,
}

impl InterfaceSlot {
    /// Opens a module on a worker that sleeps on `poller`. Also returns the module's address.
    pub(crate) fn open(
        module: &ModuleUse,
        domain: &DomainSlot,
        worker: [u8; 16],
        poller: &Poller,
    ) -> Result<(InterfaceSlot, Said), Error> {
        let interface = domain.domain.open_interface(&module.name, worker)?;
        let watched = interface.event_fd();
        watched.map_or(Ok(()), |fd| poller.add(fd))?;
        let said = Said::first(interface.address()?);
        let slot = InterfaceSlot {
            provider: domain.provider.clone(),
            domain: domain.name.clone(),
            module: module.name.clone(),
            path: module.path.clone(),
            priority: module.attr.priority,
            roles: module.roles,
            attr: module.attr,
            to_endpoint: module.attr.connects & connects::TO_INTERFACE == 0,
            words: Cell::new(interface.watch_words()),
            interface,
            out_of_use: RefCell::default(),
            quiet: Cell::new(0),
            watched,
            has_left: Cell::new(false),
            peers: RefCell::default(),
            keys: abi::SharedKeys::default(),
        };
        Ok((slot, said))
    }

    /// Says goodbye to the peers of this interface, once.
    pub(crate) fn leave(&self) {
        if !self.has_left.replace(true) {
            self.interface.leave();
        }
    }

    /// Checks whether the interface is that of the given module.
    pub(crate) fn is(&self, at: &ModuleRef) -> bool {
        self.provider.name == at.provider && self.domain == at.domain && self.module == at.module
    }

    /// Returns the address by which a peer reaches this interface: the current one, or the last known one of a provider that
    /// reports none.
    pub(crate) fn address(&self, said: &Said) -> Vec<u8> {
        let broken = self.out_of_use.borrow().clone();
        said.last(|| broken.map_or_else(|| self.interface.address(), Err))
    }

    #[inline]
    pub(crate) fn peer(&self, number: u64) -> PeerId {
        PeerId(self.peers.borrow().peer(number))
    }

    /// Returns the provider's numbers of a peer of the worker.
    pub(crate) fn numbers_of(&self, peer: u32) -> Vec<u64> {
        self.peers.borrow().of(peer)
    }

    /// Assigns a number to a peer of the worker. Returns the peer to which the number belonged before; `u32::MAX`: none.
    pub(crate) fn note_number(&self, number: u64, peer: u32) -> u32 {
        self.peers.borrow_mut().note(number, peer)
    }

    /// Removes a number of a peer. Returns the peer to which the number belonged; `u32::MAX`: none.
    pub(crate) fn forget_number(&self, number: u64) -> u32 {
        self.peers.borrow_mut().forget(number)
    }

    /// Checks that the interface is in use; operations posted to an interface out of use would never complete.
    pub(crate) fn check_in_use(&self) -> Result<(), Error> {
        self.out_of_use.borrow().clone().map_or(Ok(()), Err)
    }

    /// Makes the error of an operation that the provider ended: its status, with the reason from the provider and the device.
    #[cold]
    pub(crate) fn failed_completion(&self, event: &Polled) -> Error {
        let (status, words) = (Status::from_code(event.status), payload(event));
        let mut why = match words {
            [] => status.text().to_owned(),
            words => String::from_utf8_lossy(words).into_owned(),
        };
        if event.header != 0 {
            why.push_str(&format!(" (the device says {:#x})", event.header));
        }
        Error::new(status, format!("an operation over {} failed", self.path), why, "")
    }
}
