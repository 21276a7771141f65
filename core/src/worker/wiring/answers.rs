//! The endpoints for replies, which use the circuit that carried the request.

use super::{Circuit, State, end};
use crate::endpoint::{EndpointState, Owner, Route};
use crate::wireup::ConnectionKey;
use crate::worker::WorkerState;
use crate::{Error, Status};
use std::rc::Rc;

impl WorkerState {
    /// Returns the endpoint whose messages use this circuit and no other. The endpoint does not claim the circuit, so it does not
    /// extend the circuit's life.
    pub(in crate::worker) fn answers_over(
        self: &Rc<Self>,
        number: u64,
    ) -> Result<Rc<EndpointState>, Error> {
        let (peer, pair, forming) = {
            let circuits = self.wiring.circuits.borrow();
            let circuit =
                circuits.get(&number).ok_or_else(|| Error::from_status(Status::Closed))?;
            match (&circuit.answers, &circuit.state) {
                (Some(answers), _) if answers.is_alive() => return Ok(answers.clone()),
                (_, State::Dead(error)) => return Err(error.clone()),
                (_, State::Forming) => (circuit.peer.clone(), circuit.pair, circuit.key.clone()),
                (_, State::Ready) => (circuit.peer.clone(), circuit.pair, None),
            }
        };
        if let Some(key) = forming {
            self.wiring.machine.borrow_mut().data_arrived(self.wiring.now(), &key);
            self.carry_out();
        }
        let answers = self.place_endpoint((*peer).clone(), Route::only(pair), Owner::Circuit)?;
        let _ = self.wiring.by_user.borrow_mut().insert((answers.index, pair.interface), number);
        let before = match self.wiring.circuits.borrow_mut().get_mut(&number) {
            Some(circuit) => circuit.answers.replace(answers.clone()),
            None => None,
        };
        drop(before);
        Ok(answers)
    }

    /// Checks whether a circuit is dead.
    pub(in crate::worker) fn is_dead_circuit(&self, number: u64) -> bool {
        let circuits = self.wiring.circuits.borrow();
        circuits.get(&number).is_none_or(|circuit| matches!(circuit.state, State::Dead(_)))
    }

    /// Ends the endpoint of a dead circuit's replies.
    pub(super) fn end_answers(&self, number: u64) {
        let ended = self.wiring.circuits.borrow_mut().get_mut(&number).map(|circuit| {
            let error = circuit.error();
            (circuit.answers.take(), error)
        });
        if let Some((answers, error)) = ended {
            end(answers, error);
        }
    }

    /// Releases the formed circuits of a closed worker, whose endpoints have all ended. The providers' state for them is also
    /// released, even if the application still holds endpoints: a peer may be waiting at the other end.
    pub(in crate::worker) fn drop_all_circuits(&self) {
        if !self.shared.same_process() {
            return;
        }
        let formed: Vec<u64> = {
            let circuits = self.wiring.circuits.borrow();
            let formed =
                circuits.iter().filter(|(_, circuit)| !matches!(circuit.state, State::Forming));
            formed.map(|(number, _)| *number).collect()
        };
        formed.into_iter().for_each(|number| self.drop_failed(number));
        let unused = |circuit: &Circuit| {
            !matches!(circuit.state, State::Forming)
                && circuit.users.iter().all(|user| user.strong_count() == 0)
        };
        let found: Vec<(u64, Option<ConnectionKey>)> = {
            let circuits = self.wiring.circuits.borrow();
            let unused = circuits.iter().filter(|(_, circuit)| unused(circuit));
            unused.map(|(number, circuit)| (*number, circuit.key.clone())).collect()
        };
        for (number, key) in found {
            if let Some(key) = key {
                self.wiring.machine.borrow_mut().close(self.wiring.now(), &key);
                let _ = self.wiring.by_key.borrow_mut().remove(&key);
            }
            self.drop_circuit(number);
        }
    }

    /// Releases a dead circuit even if the application still holds endpoints that failed with it: a peer may wait at its other end,
    /// and is notified when the circuit is closed.
    pub(in crate::worker) fn drop_failed(&self, number: u64) {
        let (users, interface) = match self.wiring.circuits.borrow().get(&number) {
            Some(circuit) => (circuit.everybody(), circuit.pair.interface),
            None => return,
        };
        for user in users.iter().filter(|user| user.leave_circuit(interface)) {
            let _ = self.wiring.by_user.borrow_mut().remove(&(user.index, interface));
            if let Some(circuit) = self.wiring.circuits.borrow_mut().get_mut(&number) {
                circuit.users.retain(|known| known.as_ptr() != Rc::as_ptr(user));
            }
        }
        self.drop_unused(number);
    }

    /// Releases a dead circuit that no endpoint uses.
    pub(super) fn drop_unused(&self, number: u64) {
        let unused = self.wiring.circuits.borrow().get(&number).is_some_and(|circuit| {
            matches!(circuit.state, State::Dead(_))
                && circuit.users.iter().all(|u| u.strong_count() == 0)
        });
        if unused {
            self.drop_circuit(number);
        }
    }
}
