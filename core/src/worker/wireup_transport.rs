//! The carriers of wire-up datagrams: connectors, the application (`oob`), or messages of a module that connects to an interface.
//!
//! The composition determines which of these carriers may serve a domain, and their order ([`Composition::schemes`]). Both sides
//! choose the common scheme with the highest `max(local, remote rank)` ([`agree`]), so they get the same result without a message.
//!
//! [`Composition::schemes`]: crate::compose::Composition::schemes

use super::wireup_transports::{ConnectorSlot, WireupTransport};
use super::wiring::Sender;
use super::{Worker, WorkerState, abi};
use crate::address::{Scheme, Via, WorkerAddress, WorkerEntry};
use crate::compose;
use crate::proto::id;
use crate::rank::{ModuleRef, agree};
use crate::{Error, Status};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tieline_host::abi::{OwnedEndpoint, PackBuffer};

/// A local carrier of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Here {
    Connector(usize),
    OutOfBand,
    Interface(usize),
}

impl WorkerState {
    /// Returns the schemes of this worker's open carriers, each with the candidates that it serves.
    pub(super) fn schemes(&self) -> Vec<Scheme> {
        let mut schemes: Vec<(Here, Scheme)> = Vec::new();
        for (index, slot) in
            self.shared.interfaces.iter().enumerate().filter(|(_, s)| s.to_endpoint)
        {
            for (name, rank, here) in self.schemes_here(&slot.domain) {
                let serves = (index as u8, rank);
                if let Some((_, known)) = schemes.iter_mut().find(|(known, _)| *known == here) {
                    known.serves.push(serves);
                    continue;
                }
                let via = match here {
                    Here::Connector(at) => {
                        let slot = &self.wiring.transports.connectors[at];
                        Via::Connector(slot.said.last(|| slot.connector.address()))
                    }
                    Here::OutOfBand => {
                        let oob = self.wiring.transports.out_of_band.borrow();
                        Via::Connector(oob.as_ref().map(|o| o.address.clone()).unwrap_or_default())
                    }
                    Here::Interface(at) => Via::Candidate(at as u8),
                };
                schemes.push((here, Scheme { name, via, serves: vec![serves] }));
            }
        }
        schemes.into_iter().map(|(_, scheme)| scheme).collect()
    }

    /// Returns the open carriers that can form the connections of a domain, best first, each with its rank.
    fn schemes_here(&self, domain: &str) -> Vec<(String, i32, Here)> {
        let transports = &self.wiring.transports;
        let mut found = Vec::new();
        for connection in self.shared.core.composition.schemes(domain) {
            let at = &connection.at;
            let works = |slot: &ConnectorSlot| slot.at == *at && !slot.provider.poisoned();
            let connector = || transports.connectors.iter().position(works);
            let here = if at.provider == compose::OUT_OF_BAND {
                transports.out_of_band.borrow().is_some().then_some(Here::OutOfBand)
            } else {
                connector().map(Here::Connector).or(self.shared.interface(at).map(Here::Interface))
            };
            found.extend(here.map(|here| (compose::scheme(at), connection.rank, here)));
        }
        found
    }

    /// Returns the domain of a local carrier.
    fn domain_of(&self, here: Here) -> Option<&String> {
        match here {
            Here::Connector(at) => Some(&self.wiring.transports.connectors[at].at.domain),
            Here::Interface(at) => Some(&self.shared.interfaces[at].domain),
            Here::OutOfBand => None,
        }
    }

    /// Checks whether a local carrier can reach one of the peer's, as far as can be determined at present.
    fn reaches(&self, peer: &WorkerAddress, here: Here, via: &Via) -> bool {
        match (here, via) {
            (Here::Connector(at), Via::Connector(address)) => {
                self.wiring.transports.connectors[at].connector.reachable(address).is_ok()
            }
            (Here::Interface(at), Via::Candidate(there)) => {
                let slot = &self.shared.interfaces[at];
                let address = &peer.entry.candidates[usize::from(*there)].address;
                slot.out_of_use.borrow().is_none() && slot.interface.reachable(address).is_ok()
            }
            (Here::OutOfBand, Via::Connector(_)) => true,
            _ => false,
        }
    }

    /// Returns the carrier of the datagrams between a local interface and a candidate of the peer. If several devices of one
    /// provider serve the agreed scheme, each side chooses its own; a datagram is accepted over any of them.
    ///
    /// # Errors
    /// `Unreachable`, with the schemes of both sides. `BadData` if the peer describes the agreed scheme as another kind of carrier.
    pub(super) fn choose_transport(
        &self,
        peer: &WorkerAddress,
        interface: usize,
        candidate: usize,
    ) -> Result<WireupTransport, Error> {
        let mine = self.schemes_here(&self.shared.interfaces[interface].domain);
        let theirs: Vec<(&Scheme, i32)> = peer
            .entry
            .schemes
            .iter()
            .filter_map(|scheme| Some((scheme, scheme.rank(candidate)?)))
            .collect();
        let local: Vec<_> = mine.iter().map(|(name, rank, _)| (name.as_str(), *rank)).collect();
        let remote: Vec<_> = theirs.iter().map(|(s, rank)| (s.name.as_str(), *rank)).collect();
        let name = agree(&local, &remote).map_err(|error| self.for_want_of(interface, error))?;
        let domain = &self.shared.interfaces[interface].domain;
        let ours: Vec<_> = mine
            .iter()
            .filter(|(known, ..)| *known == name)
            .map(|(.., here)| (*here, self.domain_of(*here) == Some(domain)))
            .collect();
        let mut same: Vec<_> = theirs.iter().filter(|(scheme, _)| scheme.name == name).collect();
        same.sort_by_key(|(_, rank)| std::cmp::Reverse(*rank));
        let theirs: Vec<_> = same
            .iter()
            .map(|(scheme, _)| (&scheme.via, is_of_its_domain(scheme, candidate, &peer.entry)))
            .collect();
        let reaches = |here, via: &Via| self.reaches(peer, here, via);
        match best_pair(&ours, &theirs, reaches) {
            Some((Here::Interface(ours), Via::Candidate(theirs))) => {
                Ok(WireupTransport::Messages(ours, usize::from(*theirs)))
            }
            Some((Here::Connector(index), Via::Connector(address))) => {
                Ok(WireupTransport::Connector(index, address.clone()))
            }
            Some((Here::OutOfBand, Via::Connector(address))) => {
                Ok(WireupTransport::OutOfBand(address.clone()))
            }
            _ => Err(Error::new(
                Status::BadData,
                format!("{} describes {name} in a way of its own", peer.label()),
                "the two sides take it for different kinds of module",
                "use the same version on both sides",
            )),
        }
    }

    /// Adds to an error the carriers that could have connected an interface on this side but could not be opened.
    fn for_want_of(&self, interface: usize, error: Error) -> Error {
        let composition = &self.shared.core.composition;
        let mut ways = composition.schemes(&self.shared.interfaces[interface].domain);
        let missing = ways.find_map(|way| {
            let path = way.at.to_string();
            self.wiring.transports.not_opened.iter().find(|(known, _)| *known == path)
        });
        let Some((path, cause)) = missing else { return error };
        let why = format!("{path} was not opened here: {}; {}", cause.why(), error.why());
        Error::new(error.status(), error.what(), why, cause.fix())
    }

    /// Checks whether the agreed carrier can reach the peer, as far as can be determined at present. Returns the local module that
    /// carries the datagrams; `None` if the peer is this worker, which needs no carrier.
    ///
    /// # Errors
    /// An error with the reason that the carrier cannot reach the peer.
    pub(crate) fn can_wire(
        &self,
        peer: &WorkerAddress,
        interface: usize,
        candidate: usize,
    ) -> Result<Option<ModuleRef>, String> {
        if peer.entry.worker == self.shared.id {
            return Ok(None);
        }
        let transport =
            self.choose_transport(peer, interface, candidate).map_err(|e| e.to_string())?;
        let (at, reached) = match transport {
            WireupTransport::Connector(index, address) => {
                let slot = &self.wiring.transports.connectors[index];
                (slot.at.clone(), slot.connector.reachable(&address))
            }
            WireupTransport::OutOfBand(_) => (compose::out_of_band(), Ok(())),
            WireupTransport::Messages(interface, candidate) => {
                let slot = &self.shared.interfaces[interface];
                let address = &peer.entry.candidates[candidate].address;
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
        transport: &WireupTransport,
        datagram: &[u8],
    ) -> Result<(), Status> {
        let transports = &self.wiring.transports;
        match transport {
            WireupTransport::Connector(index, address) => {
                transports.connectors[*index].connector.send(address, datagram)
            }
            WireupTransport::OutOfBand(address) => {
                // The cell is not borrowed while the callback runs: the callback may set another one.
                let oob = transports.out_of_band.borrow().clone();
                let oob = oob.ok_or(Status::Unreachable)?;
                match catch_unwind(AssertUnwindSafe(|| (oob.send)(address, datagram))) {
                    Ok(true) => Ok(()),
                    Ok(false) => Err(Status::Again),
                    // The caller, which may be in the middle of a post, continues as if the datagram had been lost.
                    Err(panic) => {
                        let _ = transports.panic.borrow_mut().get_or_insert(panic);
                        self.shared.note_work();
                        Ok(())
                    }
                }
            }
            WireupTransport::Messages(interface, candidate) => {
                let key = (*interface, *candidate, peer.entry.worker);
                let slot = &self.shared.interfaces[*interface];
                let used = |(owned, max): &(OwnedEndpoint, usize)| (owned.get(), *max);
                let known = transports.messages.borrow().get(&key).map(used);
                let (raw, max_short) = match known {
                    Some(known) => known,
                    None => {
                        if let Some(error) = &*slot.out_of_use.borrow() {
                            return Err(error.status());
                        }
                        let address = &peer.entry.candidates[*candidate].address;
                        let identity = self.identity().map_err(|e| e.status())?;
                        let cookie = transports.messages.borrow_mut().cookie();
                        let handle = slot
                            .interface
                            .connect(address, &identity, cookie)
                            .map_err(|e| e.status())?;
                        let owned = slot.interface.endpoint(handle);
                        let max_short = match slot.limits(&owned.get()) {
                            Ok(limits) => limits.max_short,
                            Err(error) => {
                                abi::close(owned);
                                return Err(error.status());
                            }
                        };
                        let made = (owned, max_short);
                        let raw = used(&made);
                        let gone = transports.messages.borrow_mut().insert(key, cookie, made);
                        if let Some((gone, _)) = gone {
                            abi::close(gone);
                        }
                        raw
                    }
                };
                let pack = &mut |out: &mut PackBuffer<'_>| out.put(datagram);
                let id = u32::from(id::WIREUP);
                let sent = match max_short >= datagram.len() {
                    true => match raw.am_short(id, 0, datagram) {
                        code if code < 0 => Err(Status::from_code(code)),
                        _ => Ok(()),
                    },
                    false => raw.am_packed(id, 0, datagram.len(), pack).map(|_| ()),
                };
                if sent == Err(Status::ProviderFailed) {
                    // The provider is not called any more; a later poll ends its connections.
                    slot.provider.broke();
                    transports.fail(*interface);
                }
                if sent.is_err_and(|status| status != Status::Again) {
                    // The next datagram gets a new endpoint.
                    let broken = transports.messages.borrow_mut().remove(&key);
                    if let Some((broken, _)) = broken {
                        abi::close(broken);
                    }
                }
                sent
            }
        }
    }

    /// Removes an endpoint that carries datagrams and has failed: the next datagram gets a new endpoint.
    pub(super) fn transport_failed(&self, cookie: u64) {
        let broken = self.wiring.transports.messages.borrow_mut().remove_by_cookie(cookie);
        if let Some((broken, _)) = broken {
            abi::close(broken);
        }
    }

    /// Returns the name of a carrier for display.
    pub(super) fn transport_name(&self, transport: &WireupTransport) -> String {
        match transport {
            WireupTransport::Connector(index, _) => {
                self.wiring.transports.connectors[*index].scheme.clone()
            }
            WireupTransport::OutOfBand(_) => compose::OUT_OF_BAND.into(),
            WireupTransport::Messages(interface, _) => {
                self.shared.interfaces[*interface].path.clone()
            }
        }
    }
}

/// Checks whether a scheme belongs to the domain of the candidate that it serves. A scheme of another domain names another
/// candidate, or serves candidates of another domain at least as well.
fn is_of_its_domain(scheme: &Scheme, candidate: usize, entry: &WorkerEntry) -> bool {
    let domain = |at: usize| entry.candidates.get(at).map(|there| &there.domain);
    match scheme.via {
        Via::Candidate(at) => domain(usize::from(at)) == domain(candidate),
        Via::Connector(_) => scheme.serves.iter().all(|(at, rank)| {
            domain(usize::from(*at)) == domain(candidate) || Some(*rank) < scheme.rank(candidate)
        }),
    }
}

/// Chooses one local and one remote carrier. Both lists are sorted, best first; the `bool` of a carrier states whether it belongs
/// to the domain to be connected. Two carriers of these domains are preferred without a check, because they are on the network of
/// the pair. Otherwise the first two carriers that reach each other are chosen, or the first two if none do. `None` if a list is
/// empty.
fn best_pair<T: Copy, U: Copy>(
    ours: &[(T, bool)],
    theirs: &[(U, bool)],
    mut reaches: impl FnMut(T, U) -> bool,
) -> Option<(T, U)> {
    let pairs = || ours.iter().flat_map(|ours| theirs.iter().map(move |theirs| (ours, theirs)));
    let only = ours.len() == 1 && theirs.len() == 1;
    let own = pairs().find(|(ours, theirs)| only || ours.1 && theirs.1);
    let pair = own.or_else(|| pairs().find(|(ours, theirs)| reaches(ours.0, theirs.0)));
    pair.or_else(|| pairs().next()).map(|(ours, theirs)| (ours.0, theirs.0))
}

/// The maximum length of a worker's name when the application carries datagrams: half of the identity in a request.
const MAX_OWN_NAME: usize = crate::wireup::MAX_IDENTITY / 2;

impl Worker {
    /// Makes the application carry the datagrams that form connections. Call this method before [`address`](Worker::address).
    ///
    /// `address` is the application's name for this worker, for example a rank. `send(to, datagram)` transmits a datagram to the
    /// peer with the name `to`, and returns whether it accepted the datagram. Pass datagrams that arrive to
    /// [`deliver_out_of_band`](Worker::deliver_out_of_band).
    ///
    /// A datagram may be lost, duplicated or delayed; wire-up retransmits. If `send` panics, its datagram is lost. The running call
    /// that makes progress raises the panic, or else the next one.
    ///
    /// # Errors
    /// `Unsupported` unless the context was opened with [`out_of_band`](crate::ContextBuilder::out_of_band) and one of its paths
    /// needs `oob`. `TooLarge` for a name of more than 4096 bytes, because requests for connections contain the name. `Closed` if
    /// the worker is closed.
    pub fn set_out_of_band(
        &self,
        address: &[u8],
        send: impl Fn(&[u8], &[u8]) -> bool + 'static,
    ) -> Result<(), Error> {
        self.inner.check_open()?;
        if !self.inner.shared.core.out_of_band {
            return Err(Error::new(
                Status::Unsupported,
                "datagrams of the application are not needed",
                "no path of this context forms its connections by `oob`",
                "open the context with out_of_band(true) and see `tieline info --why`",
            ));
        }
        if address.len() > MAX_OWN_NAME {
            return Err(Error::new(
                Status::TooLarge,
                "the name by which the application's datagrams find this worker",
                format!("it has {} bytes, and {MAX_OWN_NAME} are the most", address.len()),
                "name it shorter: a rank, or a host and a number",
            ));
        }
        self.inner.wiring.transports.set_out_of_band(address, Box::new(send));
        Ok(())
    }

    /// Processes a datagram that a peer's `send` function ([`set_out_of_band`](Worker::set_out_of_band)) has transmitted to this
    /// worker.
    ///
    /// # Errors
    /// `BadData` for bytes that are not a valid datagram; `Invalid` in a forked child.
    pub fn deliver_out_of_band(&self, datagram: &[u8]) -> Result<(), Error> {
        self.inner.shared.check_process("a worker")?;
        match self.inner.on_datagram(datagram, Sender::Application) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Candidate;

    fn entry(domains: &[&str]) -> WorkerEntry {
        let candidate = |domain: &&str| Candidate {
            provider: "verbs".into(),
            domain: (*domain).into(),
            module: "rc".into(),
            priority: 60,
            address: Vec::new(),
        };
        WorkerEntry {
            candidates: domains.iter().map(candidate).collect(),
            ..WorkerEntry::default()
        }
    }

    fn connector(serves: &[(u8, i32)]) -> Scheme {
        let via = Via::Connector(Vec::new());
        Scheme { name: "verbs/rdmacm".into(), via, serves: serves.to_vec() }
    }

    #[test]
    fn a_connector_is_of_the_domain_that_it_serves_best() {
        let devices = entry(&["verbs:rxe0", "verbs:rxe1"]);
        let first = connector(&[(0, 200), (1, 199)]);
        assert!(is_of_its_domain(&first, 0, &devices) && !is_of_its_domain(&first, 1, &devices));
        let shared = connector(&[(0, 200), (1, 200)]);
        assert!(!is_of_its_domain(&shared, 0, &devices) && !is_of_its_domain(&shared, 1, &devices));
        assert!(is_of_its_domain(&connector(&[(0, 200)]), 0, &devices));
        // Two modules of one domain share a scheme of that domain.
        let one = entry(&["verbs:rxe0", "verbs:rxe0"]);
        assert!(is_of_its_domain(&shared, 0, &one) && is_of_its_domain(&shared, 1, &one));
        let messages = Scheme { via: Via::Candidate(1), ..first };
        assert!(is_of_its_domain(&messages, 1, &devices));
        assert!(!is_of_its_domain(&messages, 0, &devices));
    }

    #[test]
    fn those_of_the_domains_that_are_connected_go_first_and_are_not_asked() {
        let (ours, theirs) = ([("a0", false), ("a1", true)], [("b0", false), ("b1", true)]);
        let asked = |_, _| panic!("nobody needs to be asked");
        assert_eq!(best_pair(&ours, &theirs, asked), Some(("a1", "b1")));
    }

    #[test]
    fn a_side_without_its_own_takes_what_reaches_the_peer() {
        let same_network = |a: &str, b: &str| a[1..] == b[1..];
        // The device to connect, 1, has no carrier on the other side.
        let (ours, theirs) = ([("a1", true), ("a0", false)], [("b0", false)]);
        assert_eq!(best_pair(&ours, &theirs, same_network), Some(("a0", "b0")));
        // The peer gets the same result from its end.
        let swapped = |b: &'static str, a: &'static str| same_network(a, b);
        assert_eq!(best_pair(&theirs, &ours, swapped), Some(("b0", "a0")));
    }

    #[test]
    fn error_names_first_two_carriers_if_none_reaches_peer() {
        let (ours, theirs) = ([("a1", true), ("a0", false)], [("b2", false)]);
        assert_eq!(best_pair(&ours, &theirs, |_, _| false), Some(("a1", "b2")));
        assert_eq!(best_pair(&ours, &[] as &[(&str, bool)], |_, _| true), None);
    }
}
