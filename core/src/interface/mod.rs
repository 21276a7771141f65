//! Interfaces: modules that are open on a worker, each with its provider's numbers of peers.

mod abi;
mod limits;
mod numbers;
mod said;

pub(crate) use limits::LaneLimits;
pub(crate) use said::Said;

use crate::mem::DomainSlot;
use crate::rank::ModuleRef;
use crate::registry::LoadedProvider;
use crate::registry::abi::events::{Polled, payload};
use crate::registry::abi::objects::OpenInterface;
use crate::setup::{ModuleUse, Roles};
use crate::sys::Poller;
use crate::{Error, Status};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::os::fd::RawFd;
use std::sync::Arc;
use tieline_plugin_api::abi::ModuleAttr;
use tieline_plugin_api::connects;

/// A peer that has sent messages to this worker, identified by its number on this worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub(crate) u32);

impl PeerId {
    /// Makes the peer from a number that [`get`](PeerId::get) returned on the same worker. On another worker the number has no
    /// meaning, or another one.
    #[must_use]
    pub fn from_number(number: u32) -> PeerId {
        PeerId(number)
    }

    /// Returns the number. Numbers are counted from 0 and are not reused.
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

/// A module opened on a worker. Nobody is called while a cell is borrowed.
pub(crate) struct InterfaceSlot {
    pub(crate) provider: Arc<LoadedProvider>,
    pub(crate) domain: String,
    pub(crate) module: String,
    /// `shm/ring`
    pub(crate) path: String,
    pub(crate) priority: i32,
    pub(crate) roles: Roles,
    pub(crate) attr: ModuleAttr,
    pub(crate) interface: OpenInterface,
    /// Why it serves no new endpoint: its device is gone, or its provider broke.
    pub(crate) out_of_use: RefCell<Option<Error>>,
    /// Looks since it brought something.
    pub(crate) quiet: Cell<u32>,
    /// What the worker sleeps on, until it is out of use: nobody reads it empty any more.
    pub(crate) watched: Option<RawFd>,
    /// Both sides make an endpoint, and wire-up carries their addresses.
    pub(crate) to_endpoint: bool,
    /// Its worker has closed, and nothing is posted or polled any more.
    has_left: Cell<bool>,
    /// The provider's number of a peer -> the worker's.
    peers: RefCell<numbers::Numbers>,
    /// Keys that serve all of its endpoints.
    keys: abi::SharedKeys,
}

impl InterfaceSlot {
    /// Opens a module on a worker, which sleeps on `poller`; and what it says of where it is.
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

    /// Whether this is it.
    pub(crate) fn is(&self, at: &ModuleRef) -> bool {
        self.provider.name == at.provider && self.domain == at.domain && self.module == at.module
    }

    /// The bytes that lead a peer to this interface.
    pub(crate) fn address(&self, said: &Said) -> Vec<u8> {
        let broken = self.out_of_use.borrow().clone();
        said.last(|| broken.map_or_else(|| self.interface.address(), Err))
    }

    #[inline]
    pub(crate) fn peer(&self, number: u64) -> PeerId {
        PeerId(self.peers.borrow().peer(number))
    }

    /// The provider's numbers of a peer of the worker's.
    pub(crate) fn numbers_of(&self, peer: u32) -> Vec<u64> {
        self.peers.borrow().of(peer)
    }

    /// From now on this number means that peer of the worker; returns whom it meant before.
    pub(crate) fn note_number(&self, number: u64, peer: u32) -> u32 {
        self.peers.borrow_mut().note(number, peer)
    }

    /// A number means nobody any more. Returns whom it meant.
    pub(crate) fn forget_number(&self, number: u64) -> u32 {
        self.peers.borrow_mut().forget(number)
    }

    /// Whether what is posted to it will be told the end of.
    pub(crate) fn check_in_use(&self) -> Result<(), Error> {
        self.out_of_use.borrow().clone().map_or(Ok(()), Err)
    }

    /// The error of an operation that the provider ended: with a status, and with what it and its device say of the reason.
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
