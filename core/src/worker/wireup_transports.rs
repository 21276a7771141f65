//! The open carriers of wire-up datagrams on a worker: connectors, the application's callback, and endpoints over messages.
//! `wireup_transport.rs` chooses among the carriers, and sends.

use super::abi;
use super::inner::Modules;
use crate::compose;
use crate::interface::{InterfaceSlot, Said};
use crate::rank::ModuleRef;
use crate::setup::{Core, Tested};
use crate::sys::Poller;
use crate::{Error, Status};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::Hash;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;
use tieline_host::LoadedProvider;
use tieline_host::abi::OwnedEndpoint;
use tieline_host::abi::objects::OpenConnector;

/// The first cookie of endpoints that carry datagrams. An event's cookie identifies the kind of its endpoint. Cookies of ordinary
/// endpoints are numbers of a slab, and those of circuits are counted from 0. Neither reaches this value in a worker's life.
pub(super) const TRANSPORT_COOKIE: u64 = 0b11 << 62;
/// The maximum number of endpoints that carry datagrams. A circuit whose datagrams are messages needs one while it forms, and
/// shares it with other circuits of the same modules and peer.
const MOST_CARRIED: usize = 1024;

/// A connector that is open on a worker.
pub(super) struct ConnectorSlot {
    pub(super) at: ModuleRef,
    pub(super) provider: Arc<LoadedProvider>,
    /// The name of the scheme, the same on every host: `tcp-connect/stream`.
    pub(super) scheme: String,
    pub(super) connector: OpenConnector,
    pub(super) caps: u64,
    /// The connector's address, as last reported.
    pub(super) said: Said,
    /// The descriptor on which the worker sleeps, until the connector fails.
    pub(super) watched: Option<RawFd>,
    /// Whether the connector's provider broke its contract, and the circuits that waited for its datagrams have been notified.
    pub(super) broke: Cell<bool>,
}

/// A local interface, the peer's candidate, and the peer's worker.
type ModulePair = (usize, usize, [u8; 16]);

type SendOut = Box<dyn Fn(&[u8], &[u8]) -> bool>;

/// The application's name and callback for `oob`.
pub(super) struct OutOfBand {
    pub(super) address: Vec<u8>,
    pub(super) send: SendOut,
}

/// All carriers of datagrams on a worker. While a cell is borrowed, nothing is sent, and no object of the application is dropped.
pub(super) struct WireupTransports {
    pub(super) connectors: Vec<ConnectorSlot>,
    /// The modules that could not be opened, each with the error.
    pub(super) not_opened: Vec<(String, Error)>,
    pub(super) out_of_band: RefCell<Option<Rc<OutOfBand>>>,
    /// The panic of the callback, until a progress call has raised it.
    pub(super) panic: RefCell<Option<Box<dyn Any + Send>>>,
    /// The endpoints over modules of a domain, each with the length of its longest short message. They are closed with the worker
    /// at the latest.
    pub(super) messages: RefCell<Carried<ModulePair, (OwnedEndpoint, usize)>>,
}

/// The carrier of one circuit's datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WireupTransport {
    Connector(usize, Vec<u8>),
    OutOfBand(Vec<u8>),
    /// The messages of a local interface to the peer's candidate.
    Messages(usize, usize),
}

/// A worker whose connectors are being opened.
pub(super) struct Opening<'a> {
    pub(super) worker: [u8; 16],
    pub(super) which: Modules,
    /// The connectors that are open already.
    pub(super) tested: Option<&'a mut Tested>,
}

impl WireupTransports {
    /// Opens the connectors that the composition needs; `not_opened` lists the interfaces that could not be opened.
    pub(super) fn open(
        core: &Core,
        opening: &mut Opening<'_>,
        poller: &Poller,
        mut not_opened: Vec<(String, Error)>,
    ) -> WireupTransports {
        let mut connectors = Vec::new();
        for module in &core.connectors {
            let domain = &core.memory.domains[module.domain];
            let tested = opening.tested.as_mut().and_then(|tested| tested.take(&module.path));
            let open = || match tested {
                Some(connector) => Ok(connector),
                None => domain.domain.open_connector(&module.name, opening.worker),
            };
            let opened = opening.which.check(module).and_then(|()| open()).and_then(|connector| {
                let watched = connector.event_fd();
                watched.map_or(Ok(()), |fd| poller.add(fd))?;
                let said = Said::first(connector.address()?);
                Ok((connector, watched, said))
            });
            let (connector, watched, said) = match opened {
                Ok(opened) => opened,
                // If no other carrier serves a connection, it fails with the schemes of both sides.
                Err(error) => {
                    core.note(format!("{} is not used: {error}", module.path));
                    not_opened.push((module.path.clone(), error));
                    continue;
                }
            };
            let at = ModuleRef::new(&domain.provider.name, &domain.name, &module.name);
            connectors.push(ConnectorSlot {
                scheme: compose::scheme(&at),
                at,
                provider: domain.provider.clone(),
                connector,
                caps: module.attr.caps,
                said,
                watched,
                broke: Cell::new(false),
            });
        }
        let messages = RefCell::new(Carried::new(MOST_CARRIED, TRANSPORT_COOKIE));
        let (out_of_band, panic) = (RefCell::default(), RefCell::default());
        WireupTransports { connectors, not_opened, out_of_band, panic, messages }
    }

    /// Returns the names of the modules whose messages need a connection, if no open carrier can form one.
    fn without_connections(&self, core: &Core, interfaces: &[InterfaceSlot]) -> Vec<String> {
        if !self.connectors.is_empty() || core.connectors.is_empty() || core.out_of_band {
            return Vec::new();
        }
        let waiting = interfaces.iter().filter(|slot| slot.roles.message && slot.to_endpoint);
        waiting.map(|slot| slot.path.clone()).collect()
    }

    /// Reports the message modules of a new worker to which no peer can connect, because no carrier is open. If no other module
    /// carries messages, the result is an error: the worker would open, and connections to every peer would fail.
    pub(super) fn check_connections(
        &self,
        core: &Core,
        interfaces: &[InterfaceSlot],
    ) -> Result<(), Error> {
        let cut_off = self.without_connections(core, interfaces);
        if cut_off.is_empty() {
            return Ok(());
        }
        let paths: Vec<&String> = core.connectors.iter().map(|module| &module.path).collect();
        let failed = self.not_opened.iter().filter(|(path, _)| paths.contains(&path));
        let failed: Vec<String> =
            failed.map(|(path, error)| format!("{path}: {}", error.why())).collect();
        let what = format!("no peer could connect to this worker over {}", cut_off.join(", "));
        let why = failed.join("; ");
        if interfaces.iter().filter(|slot| slot.roles.message).count() > cut_off.len() {
            core.note(format!("{what}: {why}"));
            return Ok(());
        }
        let fix = "give it what it lacks, or load another provider that carries messages";
        Err(Error::new(Status::NoDevice, what, why, fix))
    }

    pub(super) fn set_out_of_band(&self, address: &[u8], send: SendOut) {
        let oob = Rc::new(OutOfBand { address: address.to_vec(), send });
        let _before = self.out_of_band.borrow_mut().replace(oob);
    }

    /// Removes the callback. The callback may hold the worker, so the caller drops it.
    pub(super) fn forget_out_of_band(&self) -> Option<Rc<OutOfBand>> {
        self.out_of_band.borrow_mut().take()
    }

    /// Closes the endpoints that carry datagrams. Connectors close when they are dropped.
    pub(super) fn close(&self) {
        let open = self.messages.borrow_mut().take();
        for (owned, _) in open {
            abi::close(owned);
        }
    }

    /// Disables the endpoints over this interface, whose provider broke its contract: none of its functions is called again.
    pub(super) fn fail(&self, interface: usize) {
        self.messages.borrow_mut().change(|(over, ..), (owned, _)| {
            if *over == interface {
                owned.fail();
            }
        });
    }

    /// Leaves all carriers open in a forked child, where closing them would act in the parent's name.
    pub(super) fn forget(&mut self) {
        std::mem::forget(std::mem::take(&mut self.connectors));
        let _ = self.messages.borrow_mut().take();
    }
}

/// The endpoints over which messages of a module carry datagrams, by destination. Their number is bounded. An evicted endpoint is
/// made again when it is needed, and wire-up tolerates the loss of a datagram with it.
pub(super) struct Carried<P, E> {
    open: HashMap<P, (u64, E)>,
    most: usize,
    next: u64,
}

impl<P: Eq + Hash + Copy, E> Carried<P, E> {
    /// Makes an empty table for at most `most` endpoints. The first endpoint gets the cookie `first`.
    pub(super) fn new(most: usize, first: u64) -> Carried<P, E> {
        Carried { open: HashMap::new(), most, next: first }
    }

    pub(super) fn get(&self, path: &P) -> Option<&E> {
        self.open.get(path).map(|(_, endpoint)| endpoint)
    }

    /// Returns a cookie for the next endpoint.
    pub(super) fn cookie(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Adds an endpoint to a new destination. Returns the oldest endpoint if it is evicted; the caller closes it.
    #[must_use]
    pub(super) fn insert(&mut self, path: P, cookie: u64, endpoint: E) -> Option<E> {
        let oldest = || self.open.iter().min_by_key(|(_, (cookie, _))| *cookie).map(|(p, _)| *p);
        let goes = if self.open.len() >= self.most { oldest() } else { None };
        let gone = goes.and_then(|path| self.remove(&path));
        let _ = self.open.insert(path, (cookie, endpoint));
        gone
    }

    /// Removes an endpoint, which the caller closes.
    #[must_use]
    pub(super) fn remove(&mut self, path: &P) -> Option<E> {
        self.open.remove(path).map(|(_, endpoint)| endpoint)
    }

    /// Removes the endpoint with this cookie, which the caller closes.
    #[must_use]
    pub(super) fn remove_by_cookie(&mut self, cookie: u64) -> Option<E> {
        let path = self.open.iter().find(|(_, (known, _))| *known == cookie).map(|(p, _)| *p)?;
        self.remove(&path)
    }

    /// Modifies the open endpoints.
    pub(super) fn change(&mut self, mut change: impl FnMut(&P, &mut E)) {
        self.open.iter_mut().for_each(|(path, (_, endpoint))| change(path, endpoint));
    }

    /// Removes all endpoints.
    #[must_use]
    pub(super) fn take(&mut self) -> Vec<E> {
        self.open.drain().map(|(_, (_, endpoint))| endpoint).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_that_come_and_go_leave_a_bounded_number_of_endpoints_behind() {
        let mut carried = Carried::new(3, 100);
        let mut closed = Vec::new();
        for peer in 0..1000u32 {
            let cookie = carried.cookie();
            closed.extend(carried.insert(peer, cookie, peer));
            assert_eq!(carried.get(&peer), Some(&peer));
        }
        assert_eq!(closed, (0..997).collect::<Vec<_>>(), "the first goes first");
        assert_eq!(carried.remove_by_cookie(1098), Some(998));
        assert_eq!((carried.remove_by_cookie(1098), carried.get(&998)), (None, None));
        assert_eq!(carried.remove(&997), Some(997));
        assert_eq!((carried.take(), carried.get(&999)), (vec![999], None));
    }
}
