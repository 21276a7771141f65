//! The interface that the core calls. Its implementation is in `state`.

use super::address::InterfaceAddress;
use super::endpoint::RcEndpoint;
use super::state::{State, fits};
use crate::shared::DomainState;
use crate::sys::QuietPolls;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tieline_plugin_api::{Armed, Events, Failure, MemoryReport, Status};

/// The module `rc`, opened for one worker.
pub struct RcInterface {
    /// The state, borrowed by one call at a time. No borrow is held while the application packs a message, because the packer may
    /// call the interface again.
    pub(crate) state: Rc<RefCell<State>>,
    quiet: Rc<QuietPolls>,
    address: InterfaceAddress,
}

impl RcInterface {
    pub(crate) fn open(domain: Arc<DomainState>) -> Result<RcInterface, Failure> {
        let segment = domain.settings.segment as u32;
        let address = InterfaceAddress { port: domain.port, segment };
        let state = State::new(domain)?;
        let quiet = state.quiet.clone();
        Ok(RcInterface { state: Rc::new(RefCell::new(state)), quiet, address })
    }

    pub(crate) fn address(&self) -> Vec<u8> {
        self.address.pack()
    }

    pub(crate) fn reachable(&self, address: &[u8]) -> Result<(), Failure> {
        let peer = InterfaceAddress::unpack(address)?;
        self.state.borrow().domain.reaches(&peer.port)?;
        fits(self.address.segment, peer.segment)
    }

    pub(crate) fn connect(&self, cookie: u64) -> Result<RcEndpoint, Failure> {
        let slot = self.state.borrow_mut().new_connection(cookie)?;
        Ok(RcEndpoint::new(self.state.clone(), slot))
    }

    #[inline(always)]
    pub(crate) fn poll(&self, events: &mut Events<'_>) -> Result<(), Status> {
        self.state.borrow_mut().poll(events);
        Ok(())
    }

    /// Begins a poll; see [`tieline_plugin_api::Interface::poll_quietly`].
    #[inline(always)]
    pub(crate) fn poll_quietly(&self) -> bool {
        self.quiet.poll()
    }

    pub(crate) fn arm(&self) -> Result<Armed, Status> {
        Ok(self.state.borrow_mut().arm())
    }

    pub(crate) fn event_fd(&self) -> i32 {
        self.state.borrow().event_fd()
    }

    pub(crate) fn leave(&self) {
        if let Some(mut state) = State::if_free(&self.state) {
            state.leave();
        }
    }

    pub(crate) fn memory(&self) -> MemoryReport {
        self.state.borrow().memory()
    }
}

impl Drop for RcInterface {
    fn drop(&mut self) {
        self.leave();
    }
}
