//! What is open on a worker that can carry the datagrams of wire-up.

use super::abi;
use super::carried::Carried;
use crate::compose;
use crate::interface::Said;
use crate::rank::ModuleRef;
use crate::registry::LoadedProvider;
use crate::registry::abi::RawEndpoint;
use crate::registry::abi::objects::OpenConnector;
use crate::setup::Core;
use crate::sys::Poller;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// The first cookie of endpoints that carry datagrams; no line and no endpoint of the application has one so high.
pub(super) const CARRIER_COOKIE: u64 = u64::MAX << 62;
/// Such endpoints at a time. Each line needs one while it forms.
const MOST_CARRIED: usize = 1024;

/// A connection-only module that is open on a worker.
pub(super) struct ConnectorSlot {
    pub(super) at: ModuleRef,
    pub(super) provider: Arc<LoadedProvider>,
    /// `tcp-connect/stream`, the same on every host.
    pub(super) scheme: String,
    pub(super) connector: OpenConnector,
    /// Where it is, in its own words.
    pub(super) said: Said,
    /// Whoever waited for it has heard that its provider broke.
    pub(super) broke: Cell<bool>,
}

/// An interface of ours, the peer's candidate, and the peer.
type MessagePath = (usize, usize, [u8; 16]);

type SendOut = Box<dyn Fn(&[u8], &[u8]) -> bool>;

/// What the application gave for `oob`.
pub(super) struct OutOfBand {
    pub(super) address: Vec<u8>,
    pub(super) send: SendOut,
}

/// Everything on a worker that can carry datagrams.
pub(super) struct Carriers {
    pub(super) connectors: Vec<ConnectorSlot>,
    pub(super) out_of_band: RefCell<Option<Rc<OutOfBand>>>,
    /// Endpoints over modules of a domain; closed with the worker.
    pub(super) messages: RefCell<Carried<MessagePath, RawEndpoint>>,
}

/// The way of one line's datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    Connector(usize, Vec<u8>),
    OutOfBand(Vec<u8>),
    /// An interface of ours, and the peer's candidate.
    Messages(usize, usize),
}

impl Carriers {
    /// Opens the connection-only modules that the composition needs.
    pub(super) fn open(core: &Core, worker: [u8; 16], poller: &Poller) -> Carriers {
        let mut connectors = Vec::new();
        for module in &core.connectors {
            let domain = &core.memory.domains[module.domain];
            let opened = domain.domain.open_connector(&module.name, worker).and_then(|connector| {
                connector.event_fd().map_or(Ok(()), |fd| poller.add(fd))?;
                let said = Said::first(connector.address()?);
                Ok((connector, said))
            });
            let (connector, said) = match opened {
                Ok(opened) => opened,
                // What needs it says that it is missing.
                Err(error) => {
                    core.note(format!("{} is not used: {error}", module.path));
                    continue;
                }
            };
            let at = ModuleRef::new(&domain.provider.name, &domain.name, &module.name);
            connectors.push(ConnectorSlot {
                scheme: compose::scheme(&at),
                at,
                provider: domain.provider.clone(),
                connector,
                said,
                broke: Cell::new(false),
            });
        }
        let messages = RefCell::new(Carried::new(MOST_CARRIED, CARRIER_COOKIE));
        Carriers { connectors, out_of_band: RefCell::default(), messages }
    }

    pub(super) fn set_out_of_band(&self, address: &[u8], send: SendOut) {
        let oob = Rc::new(OutOfBand { address: address.to_vec(), send });
        let _before = self.out_of_band.borrow_mut().replace(oob);
    }

    /// Lets go of the callback, which may hold the worker.
    pub(super) fn forget_out_of_band(&self) {
        let _before = self.out_of_band.borrow_mut().take();
    }

    /// Ends what was opened here. Nothing is sent any more.
    pub(super) fn close(&self) {
        for raw in self.messages.borrow_mut().take() {
            abi::close(raw);
        }
    }

    /// The provider of this interface broke: nothing of it is called again.
    pub(super) fn fail(&self, interface: usize) {
        self.messages.borrow_mut().change(|(over, ..), raw| {
            if *over == interface {
                raw.fail();
            }
        });
    }

    /// In a forked child nothing may be closed: it would speak in the parent's name.
    pub(super) fn forget(&mut self) {
        std::mem::forget(std::mem::take(&mut self.connectors));
        let _ = self.messages.borrow_mut().take();
    }
}
