//! The answers to peers: sent immediately or later, or replaced, if possible, by the end of the connection that carried the
//! request.

use super::WorkerState;
use super::owed::Debt;
use crate::Status;
use crate::endpoint::{EndpointState, Owner};
use crate::interface::PeerId;
use crate::proto::{Origin, emulate::Answer};
use std::collections::BTreeSet;
use std::rc::Rc;

/// The maximum number of answers retried in one progress call.
const AT_ONCE: usize = 64;

impl WorkerState {
    /// Answers the requester. `keep_answer` handles an answer that cannot be sent at present.
    pub(super) fn answer(self: &Rc<Self>, to: Origin, answer: Answer) {
        // The requester has left or failed, so there is no route to it.
        if self.peers.borrow().is_gone(to.peer) {
            return;
        }
        match self.answer_endpoint(to) {
            Ok(endpoint) => self.answer_over(&endpoint, to, answer),
            Err(error) => self.keep_answer(to, answer, error.status()),
        }
    }

    /// Answers the requester over this endpoint.
    pub(super) fn answer_over(
        self: &Rc<Self>,
        endpoint: &EndpointState,
        to: Origin,
        answer: Answer,
    ) {
        if let Answer::Reply { token, status, value } = answer {
            if endpoint.reply_now(token, status, value) {
                return;
            }
        }
        if let Err((answer, status)) = endpoint.answer(answer, None) {
            self.keep_answer(to, answer, status);
        }
    }

    /// Keeps an answer that cannot be sent at present, unless its request has ended. If too many answers are kept, the requester is
    /// disconnected.
    #[cold]
    pub(crate) fn keep_answer(self: &Rc<Self>, to: Origin, answer: Answer, status: Status) {
        // A closed worker retries nothing: the requester is disconnected immediately, if possible.
        if self.closed.get() {
            return self.hang_up(to, status);
        }
        if status == Status::PeerFailed || self.has_ended(to) {
            return;
        }
        if self.owed.is_beyond_bound(1) {
            return self.hang_up(to, Status::NoMemory);
        }
        let since = self.wiring.now();
        self.owed.debts.borrow_mut().push_back(Debt { to, answer, since, status });
        self.shared.note_work();
    }

    /// Checks whether the requester is gone, or the circuit that carried the request, which ends the request.
    fn has_ended(&self, to: Origin) -> bool {
        self.peers.borrow().is_gone(to.peer)
            || to.circuit.is_some_and(|number| self.is_dead_circuit(number))
    }

    /// Retries kept answers. `true`: some answers remain.
    pub(super) fn give_owed_answers(self: &Rc<Self>) -> bool {
        if self.owed.is_empty() {
            return false;
        }
        // Failed endpoints may have added more answers than the maximum: the requesters of the oldest answers are disconnected.
        while self.owed.is_beyond_bound(0) {
            let Some(to) = self.owed.debts.borrow().front().map(|debt| debt.to) else { break };
            self.hang_up(to, Status::NoMemory);
        }
        let patience =
            u64::try_from(self.shared.core.connect_timeout.as_nanos()).unwrap_or(u64::MAX);
        let some = AT_ONCE.min(self.owed.debts.borrow().len());
        for _ in 0..some {
            let next = self.owed.debts.borrow_mut().pop_front();
            let Some(debt) = next else { break };
            if self.wiring.now().saturating_sub(debt.since) > patience {
                self.hang_up(debt.to, debt.status);
                continue;
            }
            let (answer, status) = match self.answer_endpoint(debt.to) {
                Ok(endpoint) => match endpoint.answer(debt.answer, Some(debt.since)) {
                    Ok(()) => continue,
                    Err(refused) => refused,
                },
                Err(error) => (debt.answer, error.status()),
            };
            if status == Status::PeerFailed || self.has_ended(debt.to) {
                continue;
            }
            self.owed.debts.borrow_mut().push_back(Debt { answer, status, ..debt });
        }
        !self.owed.is_empty()
    }

    /// Returns the peers that wait for an answer to a request that no circuit carried. Requests over a circuit end with the
    /// circuit.
    pub(super) fn waiting_peers(&self) -> BTreeSet<u32> {
        let mut who: BTreeSet<u32> = {
            let debts = self.owed.debts.borrow();
            debts.iter().filter(|debt| debt.to.circuit.is_none()).map(|debt| debt.to.peer).collect()
        };
        for endpoint in self.all_endpoints() {
            if endpoint.owner != Owner::Circuit && endpoint.answers_len() > 0 {
                who.extend(self.peers.borrow().known_number(&endpoint.address.entry.worker));
            }
        }
        who
    }

    /// Disconnects the peers that get no answer because the worker is closed.
    pub(super) fn hang_up_on(self: &Rc<Self>, who: BTreeSet<u32>) {
        if self.shared.same_process() {
            who.into_iter()
                .for_each(|peer| self.hang_up(Origin { peer, circuit: None }, Status::Closed));
        }
    }

    /// Ends the circuit that carried a peer's request, or all connections from the peer if no circuit carried it. That ends the
    /// request at the peer, unless a module cannot disconnect it.
    pub(super) fn hang_up(self: &Rc<Self>, to: Origin, status: Status) {
        self.owed.debts.borrow_mut().retain(|debt| debt.to != to);
        let unanswered = "a request that it carried could not be answered";
        if let Some(circuit) = to.circuit {
            self.circuit_failed(circuit, status, unanswered);
            return self.drop_failed(circuit);
        }
        for slot in &self.shared.interfaces {
            for number in slot.numbers_of(to.peer) {
                if slot.to_endpoint {
                    self.circuit_failed(number, status, unanswered);
                    self.drop_failed(number);
                } else if let Err(refused) = slot.interface.hang_up(number) {
                    self.shared.core.note(format!(
                        "{} waits for an answer that cannot be sent ({status}), and {} cannot disconnect it: {refused}",
                        PeerId(to.peer),
                        slot.path
                    ));
                }
            }
        }
    }
}
