//! The check of the sender of datagrams: a wire-up datagram has the id of one worker, and is valid if that worker sent it. A worker
//! that has replaced it at the same address may only report that.
//!
//! The carrier identifies the sender: a module's message by the worker to which its connection belongs, a connector by the address
//! of its connection's other end. Both rely on the process's own statement when it connected. A peer is trusted about its own
//! identity (SECURITY.md), but not about that of others. Datagrams are trusted if the application delivered them, or if the
//! connector does not report the sender.

use crate::address::{Via, WorkerAddress};
use crate::wireup::{ConnectionKey, Spoken};
use crate::worker::WorkerState;
use std::rc::Rc;
use tieline_plugin_api::address_hash;

/// The sender of a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sender<'a> {
    /// The worker with this address.
    Worker(&'a WorkerAddress),
    /// The process at the connector's address with this hash; 0: the connector does not report it.
    At(u64),
    /// The application.
    Application,
}

impl WorkerState {
    /// Checks that `sender` may send this datagram.
    pub(super) fn check_sender(
        &self,
        spoken: &Spoken<'_>,
        sender: Sender<'_>,
    ) -> Result<(), &'static str> {
        // A worker that has not sent a request may omit its identity from its reply.
        let said = spoken.identity.filter(|identity| !identity.is_empty());
        let identity = match said.map(WorkerAddress::parse) {
            None => None,
            Some(Ok(address)) if address.entry.worker == spoken.from => Some(address),
            Some(_) => return Err("its sender's address is another worker's, or none"),
        };
        let ours = match sender {
            Sender::Application | Sender::At(0) => true,
            Sender::Worker(peer) if peer.entry.worker == spoken.from => true,
            // A worker that has replaced another one at the same address may report that the other one is gone.
            Sender::Worker(peer) => spoken.is_of_successor && self.lives_where(peer, &spoken.from),
            Sender::At(hash) => {
                let known = self.address_of(&spoken.from);
                let address = known.as_deref().or(identity.as_ref());
                // Without state for the sender and without an identity, the datagram cannot form a connection.
                address.is_none_or(|address| is_reached_at(address, hash))
            }
        };
        if ours { Ok(()) } else { Err("it speaks for a worker that did not send it") }
    }

    /// Returns the address of a worker, if a circuit to it is forming or ready.
    fn address_of(&self, worker: &[u8; 16]) -> Option<Rc<WorkerAddress>> {
        let first = ConnectionKey { peer: *worker, module: "".into(), n: 0 };
        let by_key = self.wiring.by_key.borrow();
        let (_, number) = by_key.range(first..).next().filter(|(key, _)| key.peer == *worker)?;
        self.wiring.circuits.borrow().get(number).map(|circuit| circuit.peer.clone())
    }

    /// Checks whether a peer has the same module address as a worker known here.
    fn lives_where(&self, peer: &WorkerAddress, worker: &[u8; 16]) -> bool {
        self.address_of(worker).is_some_and(|known| {
            known.entry.candidates.iter().any(|one| {
                let same = |c: &crate::address::Candidate| {
                    (&c.provider, &c.module, &c.address)
                        == (&one.provider, &one.module, &one.address)
                };
                !one.address.is_empty() && peer.entry.candidates.iter().any(same)
            })
        })
    }
}

/// Checks whether the address of one of a worker's connectors has this hash.
fn is_reached_at(address: &WorkerAddress, hash: u64) -> bool {
    address.entry.schemes.iter().any(
        |scheme| matches!(&scheme.via, Via::Connector(address) if address_hash(address) == hash),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Context;
    use crate::address::Scheme;
    use crate::endpoint::ModulePair;
    use crate::interface::LaneLimits;
    use crate::wireup::{Action, Limits, Machine};
    use crate::worker::wiring::{Circuit, State};
    use std::collections::VecDeque;
    use tieline_host::abi::OwnedEndpoint;
    use tieline_plugin_api::abi::ModuleAttr;

    /// Makes a request of `from` to a worker that does not exist; the machine answers the request if it is accepted.
    fn request(from: [u8; 16], identity: &[u8]) -> Vec<u8> {
        request_to([9; 16], from, identity)
    }

    /// Makes the first datagram of worker `from` to worker `to`.
    fn request_to(to: [u8; 16], from: [u8; 16], identity: &[u8]) -> Vec<u8> {
        let mut machine = Machine::new(from, 1, identity.to_vec(), Limits::default());
        let claim = machine.connect(0, to, "tcp|a|b").unwrap();
        machine.created(0, claim.key(), b"there");
        let Some(Action::Send { datagram, .. }) = machine.take_action() else {
            panic!("a request")
        };
        datagram
    }

    /// Makes the rejection for worker `to` by a worker that has replaced worker `gone` at its address.
    fn answer_of_successor(gone: [u8; 16], to: [u8; 16]) -> Vec<u8> {
        let mut machine = Machine::new([3; 16], 1, Vec::new(), Limits::default());
        machine.receive(0, &request_to(gone, to, b"")).unwrap();
        let Some(Action::Answer { datagram, .. }) = machine.take_action() else {
            panic!("an answer")
        };
        datagram
    }

    #[test]
    fn datagram_is_valid_only_from_the_worker_it_speaks_for() {
        let context = Context::builder().set("TIELINE_PROVIDERS", "shm").open().unwrap();
        let workers = [(); 3].map(|()| context.worker().unwrap());
        let [me, honest, liar] = [0, 1, 2].map(|n: usize| &workers[n].inner);
        let address = |worker: &Rc<WorkerState>| WorkerAddress::parse(&worker.identity().unwrap());
        let (honest_is, liar_is) = (address(honest).unwrap(), address(liar).unwrap());
        let own = request(honest.shared.id, &honest.identity().unwrap());
        let taken = |bytes: &[u8], sender: Sender<'_>| me.on_datagram(bytes, sender).is_ok();
        let answers = || workers[0].counters().wireup_rejections;
        assert!(taken(&own, Sender::Worker(&honest_is)));
        assert!(taken(&own, Sender::Application) && taken(&own, Sender::At(0)));
        assert_eq!(answers(), 3);
        assert!(!taken(&own, Sender::Worker(&liar_is)), "somebody else speaks for it");
        // An answer would be sent to another worker than the requester.
        let astray = request(liar.shared.id, &honest.identity().unwrap());
        assert!(!taken(&astray, Sender::Worker(&liar_is)));
        assert!(!taken(&astray, Sender::Application));
        assert!(!taken(&request(honest.shared.id, b"no address"), Sender::Worker(&honest_is)));
        assert_eq!((answers(), workers[0].counters().malformed), (3, 4));
    }

    #[test]
    fn known_worker_speaks_from_own_connectors_or_through_its_successor() {
        let context = Context::builder().set("TIELINE_PROVIDERS", "shm").open().unwrap();
        let (worker, other) = (context.worker().unwrap(), context.worker().unwrap());
        let me = &worker.inner;
        let mut known = WorkerAddress::parse(&other.inner.identity().unwrap()).unwrap();
        let via = Via::Connector(b"its connector".to_vec());
        known.entry.schemes.push(Scheme { name: "c/d".into(), via, serves: Vec::new() });
        let key = ConnectionKey { peer: known.entry.worker, module: "tcp|a|b".into(), n: 1 };
        let circuit = Circuit {
            key: Some(key.clone()),
            pair: ModulePair { interface: 0, candidate: 0 },
            owned: OwnedEndpoint::nowhere(),
            limits: LaneLimits::from_module(&ModuleAttr::empty()),
            peer: Rc::new(known.clone()),
            state: State::Forming,
            transport: None,
            outbox: VecDeque::new(),
            users: Vec::new(),
            unasked: false,
            answers: None,
            trouble: "no answer in time".into(),
            hopeless: None,
        };
        let _ = me.wiring.circuits.borrow_mut().insert(7, circuit);
        let _ = me.wiring.by_key.borrow_mut().insert(key, 7);
        let taken = |bytes: &[u8], sender: Sender<'_>| me.on_datagram(bytes, sender).is_ok();
        let said = answer_of_successor(known.entry.worker, me.shared.id);
        let trouble = || me.wiring.circuits.borrow().get(&7).map(|circuit| circuit.trouble.clone());
        assert!(!taken(&said, Sender::At(address_hash(b"another one"))));
        assert_eq!(trouble().as_deref(), Some("no answer in time"));
        assert!(taken(&said, Sender::At(address_hash(b"its connector"))));
        assert_eq!(trouble().as_deref(), Some(""), "it was heard since");
        // In a message, another worker may report this if it has the address of the earlier one.
        let mut successor = known.clone();
        successor.entry.worker = [3; 16];
        assert!(taken(&said, Sender::Worker(&successor)));
        assert!(!taken(&request(known.entry.worker, b""), Sender::Worker(&successor)));
        successor.entry.candidates[0].address = b"elsewhere".to_vec();
        assert!(!taken(&said, Sender::Worker(&successor)));
        me.wiring.by_key.borrow_mut().clear();
    }
}
