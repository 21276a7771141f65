//! The interface that the core calls. Its implementation is in `state`.

use super::address::Address;
use super::endpoint::UdEndpoint;
use super::state::State;
use crate::shared::DomainState;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tieline_plugin_api::{Armed, Events, Failure, MemoryReport, Status};

/// The module `ud`, opened for one worker.
pub struct UdInterface {
    /// The state, borrowed by one call at a time. No borrow is held while the application packs a message.
    state: Rc<RefCell<State>>,
    address: Address,
}

impl UdInterface {
    pub(crate) fn open(domain: Arc<DomainState>) -> Result<UdInterface, Failure> {
        let state = State::new(domain)?;
        let address = state.own;
        Ok(UdInterface { state: Rc::new(RefCell::new(state)), address })
    }

    pub(crate) fn address(&self) -> Vec<u8> {
        self.address.pack()
    }

    pub(crate) fn reachable(&self, address: &[u8]) -> Result<(), Failure> {
        let peer = Address::unpack(address)?;
        self.state.borrow().reaches(&peer.port)
    }

    pub(crate) fn connect(
        &self,
        address: &[u8],
        identity: &[u8],
        cookie: u64,
    ) -> Result<UdEndpoint, Failure> {
        self.reachable(address)?;
        let peer = Address::unpack(address)?;
        if identity.len() > super::MAX_IDENTITY {
            let most = super::MAX_IDENTITY;
            let text = format!("an identity of {} bytes is beyond {most}", identity.len());
            return Err(Failure::new(Status::TooLarge, text));
        }
        let number = self.state.borrow_mut().open_channel(&peer, identity, cookie)?;
        Ok(UdEndpoint::new(self.state.clone(), number))
    }

    #[inline(never)] // keeps this function out of the path for `rc`
    pub(crate) fn poll(&self, events: &mut Events<'_>) -> Result<(), Status> {
        self.state.borrow_mut().poll(events);
        Ok(())
    }

    /// Begins a poll; see [`tieline_plugin_api::Interface::poll_quietly`].
    #[inline(always)]
    pub(crate) fn poll_quietly(&self) -> bool {
        self.state.try_borrow_mut().is_ok_and(|mut state| state.poll_quietly())
    }

    pub(crate) fn arm(&self) -> Result<Armed, Status> {
        Ok(self.state.borrow_mut().arm())
    }

    pub(crate) fn event_fd(&self) -> i32 {
        self.state.borrow().event_fd()
    }

    /// Returns the number of receive buffers with early datagrams, and the limit on this number.
    #[cfg(test)]
    pub(crate) fn early(&self) -> (usize, usize) {
        self.state.borrow().early()
    }

    pub(crate) fn leave(&self) {
        if let Ok(mut state) = self.state.try_borrow_mut() {
            state.leave();
        }
    }

    pub(crate) fn memory(&self) -> MemoryReport {
        self.state.borrow().memory()
    }
}

impl Drop for UdInterface {
    fn drop(&mut self) {
        self.leave();
    }
}
