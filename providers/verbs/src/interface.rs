//! One interface type for `rc` and `ud`.

use crate::endpoint::VerbsEndpoint;
use crate::rc::RcInterface;
use crate::ud::UdInterface;
use tieline_plugin_api::{Armed, Events, Failure, Interface, MemoryReport, Status};

/// An open interface of `rc` or `ud`.
pub enum VerbsInterface {
    /// An interface of `rc`: reliable connections.
    Rc(RcInterface),
    /// An interface of `ud`: datagrams.
    Ud(UdInterface),
}

macro_rules! either {
    ($self:ident, $interface:ident => $call:expr) => {
        match $self {
            VerbsInterface::Rc($interface) => $call,
            VerbsInterface::Ud($interface) => $call,
        }
    };
}

impl Interface for VerbsInterface {
    type Endpoint = VerbsEndpoint;

    fn address(&self) -> Vec<u8> {
        either!(self, interface => interface.address())
    }

    fn reachable(&self, address: &[u8]) -> Result<(), Failure> {
        either!(self, interface => interface.reachable(address))
    }

    fn connect(
        &self,
        address: &[u8],
        identity: &[u8],
        cookie: u64,
    ) -> Result<VerbsEndpoint, Failure> {
        match self {
            VerbsInterface::Rc(rc) => rc.connect(cookie).map(VerbsEndpoint::Rc),
            VerbsInterface::Ud(ud) => ud.connect(address, identity, cookie).map(VerbsEndpoint::Ud),
        }
    }

    #[inline(always)] // inlined into the entry point that the core calls
    fn poll(&self, events: &mut Events<'_>) -> Result<(), Status> {
        either!(self, interface => interface.poll(events))
    }

    const POLLS_QUIETLY: bool = true;

    #[inline(always)] // inlined into the entry point that the core calls
    fn poll_quietly(&self) -> bool {
        either!(self, interface => interface.poll_quietly())
    }

    fn arm(&self) -> Result<Armed, Status> {
        either!(self, interface => interface.arm())
    }

    fn event_fd(&self) -> Option<i32> {
        Some(either!(self, interface => interface.event_fd()))
    }

    fn leave(&self) {
        either!(self, interface => interface.leave());
    }

    fn memory(&self) -> MemoryReport {
        either!(self, interface => interface.memory())
    }
}
