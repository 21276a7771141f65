//! What carries the datagrams of wire-up: connectors, the application (`oob`), or messages of a module that
//! connects to an interface.
//!
//! Which of them may serve a domain, and in which order, the composition says ([`Composition::schemes`]). Which one
//! serves a pair is decided from what both sides have (the highest `max(local, remote rank)`), so both come to the
//! same result without a message.
//!
//! [`Composition::schemes`]: crate::compose::Composition::schemes

use super::{Inner, wiring};
use crate::address::{Scheme, Via, WorkerAddress};
use crate::compose::{self, Candidate};
use crate::context::Core;
use crate::emulate;
use crate::rank::{ModuleFacts, ModuleRef, agree};
use crate::registry::LoadedProvider;
use crate::registry::abi::RawEndpoint;
use crate::registry::abi::objects::OpenConnector;
use crate::sys::Poller;
use crate::{Error, Status};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use tieline_plugin_api::abi::Cost;

/// The provider name of the connection module that the application is.
pub(crate) const OUT_OF_BAND: &str = "oob";
const OUT_OF_BAND_MODULE: &str = "callbacks";

/// The cookie of an endpoint that carries datagrams; no line has one so high.
pub(crate) const CARRIER_COOKIE: u64 = 1 << 62;

/// The application as a connection module.
pub(crate) fn out_of_band_candidate() -> Candidate {
    Candidate {
        at: ModuleRef::new(OUT_OF_BAND, OUT_OF_BAND, OUT_OF_BAND_MODULE),
        facts: ModuleFacts {
            connection_only: true,
            connects_to_endpoint: false,
            caps: 0,
            fetching_atomics: false,
            priority: 0,
            cost: [Cost::default(); 5],
        },
        provider_preference: 0,
        provider_asked_for: false,
        priority: None,
        connect: None,
    }
}

/// A connection-only module that is open on a worker.
pub(super) struct ConnectorSlot {
    at: ModuleRef,
    pub(super) provider: Arc<LoadedProvider>,
    /// `tcp-connect/stream`, the same on every host.
    pub(super) scheme: String,
    pub(super) connector: OpenConnector,
}

type SendOut = Box<dyn Fn(&[u8], &[u8]) -> bool>;

/// What the application gave for `oob`.
struct OutOfBand {
    address: Vec<u8>,
    send: SendOut,
}

/// Everything on a worker that can carry datagrams.
pub(super) struct Carriers {
    pub(super) connectors: Vec<ConnectorSlot>,
    out_of_band: RefCell<Option<Rc<OutOfBand>>>,
    /// Endpoints over modules of a domain, by interface and peer; closed with the worker.
    messages: RefCell<HashMap<(usize, [u8; 16]), RawEndpoint>>,
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
    pub(super) fn open(core: &Core, worker: [u8; 16], poller: &Poller) -> Result<Carriers, Error> {
        let mut connectors = Vec::new();
        for module in &core.connectors {
            let domain = &core.domains[module.domain];
            let connector = match domain.domain.open_connector(&module.name, worker) {
                Ok(connector) => connector,
                // What needs it says that it is missing.
                Err(error) => {
                    core.note(format!("{} is not used: {error}", module.path));
                    continue;
                }
            };
            if let Some(fd) = connector.event_fd() {
                poller.add(fd)?;
            }
            let at = ModuleRef::new(&domain.provider.name, &domain.name, &module.name);
            connectors.push(ConnectorSlot {
                scheme: compose::scheme(&at),
                at,
                provider: domain.provider.clone(),
                connector,
            });
        }
        Ok(Carriers { connectors, out_of_band: RefCell::default(), messages: RefCell::default() })
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
        for (_, raw) in self.messages.borrow_mut().drain() {
            raw.close();
        }
    }

    /// In a forked child nothing may be closed: it would speak in the parent's name.
    pub(super) fn forget(&mut self) {
        std::mem::forget(std::mem::take(&mut self.connectors));
        self.messages.borrow_mut().clear();
    }
}

/// What of ours carries datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Here {
    Connector(usize),
    OutOfBand,
    Interface(usize),
}

impl Inner {
    /// Every scheme by which a connection to this worker can be formed, and for which of its candidates.
    pub(super) fn schemes(&self) -> Result<Vec<Scheme>, Error> {
        let mut schemes: Vec<(Here, Scheme)> = Vec::new();
        for (index, slot) in self.interfaces.iter().enumerate().filter(|(_, s)| s.to_endpoint) {
            for (name, rank, here) in self.schemes_here(&slot.domain) {
                let serves = (index as u8, rank);
                if let Some((_, known)) = schemes.iter_mut().find(|(known, _)| *known == here) {
                    known.serves.push(serves);
                    continue;
                }
                let via = match here {
                    Here::Connector(at) => {
                        Via::Connector(self.wiring.carriers.connectors[at].connector.address()?)
                    }
                    Here::OutOfBand => {
                        let oob = self.wiring.carriers.out_of_band.borrow();
                        Via::Connector(oob.as_ref().map(|o| o.address.clone()).unwrap_or_default())
                    }
                    Here::Interface(at) => Via::Candidate(at as u8),
                };
                schemes.push((here, Scheme { name, via, serves: vec![serves] }));
            }
        }
        Ok(schemes.into_iter().map(|(_, scheme)| scheme).collect())
    }

    /// What is open and can form the connections of a domain, best first, each with its rank.
    fn schemes_here(&self, domain: &str) -> Vec<(String, i32, Here)> {
        let carriers = &self.wiring.carriers;
        let mut found = Vec::new();
        for connection in self.core.composition.schemes(domain) {
            let at = &connection.at;
            let connector = || carriers.connectors.iter().position(|slot| slot.at == *at);
            let here = if at.provider == OUT_OF_BAND {
                carriers.out_of_band.borrow().is_some().then_some(Here::OutOfBand)
            } else {
                connector().map(Here::Connector).or(self.interface(at).map(Here::Interface))
            };
            found.extend(here.map(|here| (compose::scheme(at), connection.rank, here)));
        }
        found
    }

    /// What carries the datagrams between an interface of ours and a candidate of the peer's.
    ///
    /// # Errors
    /// `Unreachable`, with what both sides have.
    pub(super) fn choose_carrier(
        &self,
        peer: &WorkerAddress,
        interface: usize,
        candidate: usize,
    ) -> Result<Carrier, Error> {
        let mine = self.schemes_here(&self.interfaces[interface].domain);
        let theirs: Vec<(&Scheme, i32)> = peer
            .party
            .schemes
            .iter()
            .filter_map(|scheme| Some((scheme, scheme.rank(candidate)?)))
            .collect();
        let local: Vec<_> = mine.iter().map(|(name, rank, _)| (name.as_str(), *rank)).collect();
        let remote: Vec<_> = theirs.iter().map(|(s, rank)| (s.name.as_str(), *rank)).collect();
        let name = agree(&local, &remote)?;
        // Of several with that name (devices of one provider) each side takes its own best.
        let ours = mine.iter().find(|(known, ..)| *known == name).map(|(.., here)| *here);
        let same = theirs.iter().filter(|(scheme, _)| scheme.name == name);
        let theirs = same.max_by_key(|(_, rank)| *rank).map(|(scheme, _)| &scheme.via);
        match (ours, theirs) {
            (Some(Here::Interface(ours)), Some(Via::Candidate(theirs))) => {
                Ok(Carrier::Messages(ours, usize::from(*theirs)))
            }
            (Some(Here::Connector(index)), Some(Via::Connector(address))) => {
                Ok(Carrier::Connector(index, address.clone()))
            }
            (Some(Here::OutOfBand), Some(Via::Connector(address))) => {
                Ok(Carrier::OutOfBand(address.clone()))
            }
            _ => Err(Error::new(
                Status::BadData,
                format!("{} describes {name} in a way of its own", peer.label()),
                "the two sides take it for different kinds of module",
                "use the same version on both sides",
            )),
        }
    }

    /// Whether the peer can be reached by what the two sides agree on, as far as that can be told now: the module here
    /// that carries it; none towards ourselves.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn can_wire(
        &self,
        peer: &WorkerAddress,
        interface: usize,
        candidate: usize,
    ) -> Result<Option<ModuleRef>, String> {
        if peer.party.worker == self.id {
            return Ok(None);
        }
        let carrier = self.choose_carrier(peer, interface, candidate).map_err(|e| e.to_string())?;
        let (at, reached) = match carrier {
            Carrier::Connector(index, address) => {
                let slot = &self.wiring.carriers.connectors[index];
                (slot.at.clone(), slot.connector.reachable(&address))
            }
            Carrier::OutOfBand(_) => {
                (ModuleRef::new(OUT_OF_BAND, OUT_OF_BAND, OUT_OF_BAND_MODULE), Ok(()))
            }
            Carrier::Messages(interface, candidate) => {
                let slot = &self.interfaces[interface];
                let address = &peer.party.candidates[candidate].address;
                let at = ModuleRef::new(&slot.provider.name, &slot.domain, &slot.module);
                (at, slot.interface.reachable(address))
            }
        };
        match reached {
            Ok(()) => Ok(Some(at)),
            Err(failure) => Err(format!("{at}: {failure}")),
        }
    }

    /// Sends one datagram. `Again`: nothing was sent.
    pub(super) fn send_datagram(
        &self,
        peer: &WorkerAddress,
        carrier: &Carrier,
        datagram: &[u8],
    ) -> Result<(), Status> {
        let carriers = &self.wiring.carriers;
        match carrier {
            Carrier::Connector(index, address) => {
                carriers.connectors[*index].connector.send(address, datagram)
            }
            Carrier::OutOfBand(address) => {
                // Not borrowed while it runs: it may set another one.
                let oob = carriers.out_of_band.borrow().clone();
                match oob {
                    Some(oob) if (oob.send)(address, datagram) => Ok(()),
                    Some(_) => Err(Status::Again),
                    None => Err(Status::Unreachable),
                }
            }
            Carrier::Messages(interface, candidate) => {
                let key = (*interface, peer.party.worker);
                let known = carriers.messages.borrow().get(&key).copied();
                let raw = match known {
                    Some(raw) => raw,
                    None => {
                        let slot = &self.interfaces[*interface];
                        let address = &peer.party.candidates[*candidate].address;
                        let identity = self.identity().map_err(|e| e.status())?;
                        let handle = slot
                            .interface
                            .connect(address, &identity, CARRIER_COOKIE)
                            .map_err(|e| e.status())?;
                        let raw = slot.interface.endpoint(handle);
                        let _ = carriers.messages.borrow_mut().insert(key, raw);
                        raw
                    }
                };
                let pack = &mut |out: *mut u8, _: usize| {
                    crate::sys::copy_to(datagram, out);
                    Ok(datagram.len())
                };
                let id = u32::from(emulate::id::WIREUP);
                let sent = match self.interfaces[*interface].attr.max_short >= datagram.len() {
                    true => match raw.am_short(id, 0, datagram) {
                        code if code < 0 => Err(Status::from_code(code)),
                        _ => Ok(()),
                    },
                    false => raw.am_packed(id, 0, datagram.len(), pack).map(|_| ()),
                };
                if sent.is_err_and(|status| status != Status::Again) {
                    // The next datagram gets a new one.
                    let broken = carriers.messages.borrow_mut().remove(&key);
                    if let Some(broken) = broken {
                        broken.close();
                    }
                }
                sent
            }
        }
    }

    /// What a person calls a carrier.
    pub(super) fn carrier_name(&self, carrier: &Carrier) -> String {
        match carrier {
            Carrier::Connector(index, _) => self.wiring.carriers.connectors[*index].scheme.clone(),
            Carrier::OutOfBand(_) => OUT_OF_BAND.into(),
            Carrier::Messages(interface, _) => self.interfaces[*interface].path.clone(),
        }
    }
}

impl super::Worker {
    /// Lets the application carry the datagrams that form connections: `address` is how it names this
    /// worker to itself (a rank, for example), `send(to, datagram)` hands one over to the peer of that name,
    /// and says whether it took it. What arrives from elsewhere is given to
    /// [`deliver_out_of_band`](super::Worker::deliver_out_of_band). Call it before
    /// [`address`](super::Worker::address).
    ///
    /// A datagram may be lost, doubled or late; what needs it is sent again.
    ///
    /// # Errors
    /// `Invalid` unless the context was opened with
    /// [`out_of_band`](crate::ContextBuilder::out_of_band), `Unsupported` when no path of it needs `oob`.
    pub fn set_out_of_band(
        &self,
        address: &[u8],
        send: impl Fn(&[u8], &[u8]) -> bool + 'static,
    ) -> Result<(), Error> {
        if !self.inner.core.out_of_band {
            return Err(Error::new(
                Status::Unsupported,
                "datagrams of the application are not needed",
                "no path of this context forms its connections by `oob`",
                "open the context with out_of_band(true) and see `tieline info --why`",
            ));
        }
        self.inner.wiring.carriers.set_out_of_band(address, Box::new(send));
        Ok(())
    }

    /// Takes a datagram that a peer's `send` of [`set_out_of_band`](super::Worker::set_out_of_band) was
    /// given for this worker.
    ///
    /// # Errors
    /// `BadData` for bytes that are none.
    pub fn deliver_out_of_band(&self, datagram: &[u8]) -> Result<(), Error> {
        match wiring::received(&self.inner, datagram) {
            Ok(()) => Ok(()),
            Err(why) => Err(Error::new(
                Status::BadData,
                "this is no datagram of wire-up",
                why,
                "deliver the bytes unchanged that a peer's send callback was given",
            )),
        }
    }
}
