//! The interface that the core calls; `engine` does the work.

use crate::address::Address;
use crate::atomics::Masks;
use crate::config::Settings;
use crate::endpoint::OfiEndpoint;
use crate::engine::Engine;
use crate::memory::Registry;
use crate::offers::Offer;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tieline_net::Hub;
use tieline_plugin_api::{Armed, Events, Failure, Interface, MemoryReport, Status};

/// The module `rdm`, opened for one worker.
pub struct OfiInterface {
    /// The engine, borrowed by one call at a time; no application code runs during a borrow.
    engine: Rc<RefCell<Engine>>,
    address: Address,
}

impl OfiInterface {
    pub(crate) fn open(
        registry: &Arc<Registry>,
        offer: &Offer,
        settings: &Settings,
        waits: bool,
        atomics: Masks,
        hub: Option<&Arc<Hub>>,
    ) -> Result<OfiInterface, Failure> {
        let mut engine = Engine::open(registry, offer, settings, waits, hub)?;
        engine.do_atomics(atomics);
        let address = engine.address.clone();
        Ok(OfiInterface { engine: Rc::new(RefCell::new(engine)), address })
    }
}

#[cfg(test)]
impl OfiInterface {
    /// Returns the number by which peers identify this interface.
    pub(crate) fn epoch(&self) -> u64 {
        self.address.epoch
    }

    pub(crate) fn engine(&self) -> std::cell::Ref<'_, Engine> {
        self.engine.borrow()
    }

    /// Checks whether a sleeper needs periodic wake-ups.
    pub(crate) fn ticks(&self) -> bool {
        self.engine.borrow().ticks()
    }

    /// Returns the number of channels that begin or end at this interface.
    pub(crate) fn channels(&self) -> usize {
        self.engine.borrow().channels()
    }

    /// Checks whether connections for watching peers' processes are being formed.
    pub(crate) fn is_dialling(&self) -> bool {
        self.engine.borrow().is_dialling()
    }

    /// Returns the number of packets that wait for the library.
    pub(crate) fn waiting(&self) -> usize {
        self.engine.borrow().waiting()
    }

    pub(crate) fn check_accounts(&self) {
        self.engine.borrow().check_accounts();
    }

    /// Stops waiting for connections that are being formed.
    pub(crate) fn lose_patience(&self) {
        self.engine.borrow_mut().lose_patience();
    }

    /// Resends all hellos without delay.
    pub(crate) fn say_hello_again(&self) {
        self.engine.borrow_mut().say_hello_again();
    }
}

impl Interface for OfiInterface {
    type Endpoint = OfiEndpoint;

    fn address(&self) -> Vec<u8> {
        self.address.pack()
    }

    fn reachable(&self, address: &[u8]) -> Result<(), Failure> {
        self.address.reaches(&Address::unpack(address)?)
    }

    fn connect(
        &self,
        address: &[u8],
        identity: &[u8],
        cookie: u64,
    ) -> Result<OfiEndpoint, Failure> {
        let peer = Address::unpack(address)?;
        self.address.reaches(&peer)?;
        let channel = self.engine.borrow_mut().connect(&peer, identity, cookie)?;
        Ok(OfiEndpoint::new(self.engine.clone(), channel))
    }

    fn poll(&self, events: &mut Events<'_>) -> Result<(), Status> {
        self.engine.borrow_mut().poll(events);
        Ok(())
    }

    const POLLS_QUIETLY: bool = true;

    #[inline]
    fn poll_quietly(&self) -> bool {
        self.engine.try_borrow_mut().is_ok_and(|mut engine| engine.poll_quietly())
    }

    fn arm(&self) -> Result<Armed, Status> {
        let mut engine = self.engine.borrow_mut();
        if engine.event_fd().is_none() { Err(Status::Unsupported) } else { Ok(engine.arm()) }
    }

    fn event_fd(&self) -> Option<i32> {
        self.engine.borrow().event_fd()
    }

    fn hang_up(&self, peer: u64) -> Result<(), Status> {
        self.engine.borrow_mut().hang_up(peer);
        Ok(())
    }

    fn leave(&self) {
        // A process may call exit inside a function that packs a message.
        if let Ok(mut engine) = self.engine.try_borrow_mut() {
            engine.leave();
        }
    }

    fn memory(&self) -> MemoryReport {
        self.engine.borrow().memory()
    }
}
