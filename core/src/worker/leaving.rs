//! A worker's goodbye when the process exits: see [`crate::exit`].

use super::WorkerState;
use super::delivering::Deliveries;
use crate::exit::{self, Entrance, Leaves};
use crate::{Error, Status};
use std::rc::Rc;
use std::time::Duration;

const EXITED: &str = "its process has called exit with";

/// The maximum number of times, and the interval, at which an exit tries to post to a lane that does not accept the message.
const TRIES: u32 = 50;
const NAP: Duration = Duration::from_micros(200);

impl WorkerState {
    /// Registers the worker for the goodbye at exit.
    pub(super) fn enter(self: &Rc<Self>) {
        let itself: Rc<dyn Leaves> = self.clone();
        exit::enter(Rc::downgrade(&itself), &self.shared.entrance);
    }

    /// Says goodbye on behalf of the exiting process. The caller has the only access to the worker.
    pub(crate) fn leave_as_process_exits(&self) {
        if self.leave_at_exit() {
            self.shared.entrance.close();
        }
    }

    /// Returns the number of posted operations that have not completed, plus the number of answers owed to peers. All operations of
    /// dropped endpoints count as one. `None`: a signal handler that called `exit` interrupted a change of this state.
    fn unsent(&self) -> Option<u64> {
        let (Ok(ops), Ok(_)) = (self.shared.ops.try_borrow(), self.endpoints.try_borrow()) else {
            return None;
        };
        let mut unsent = self.owed.try_len()? + usize::from(self.shared.try_has_orphans()?);
        unsent += self.deliveries.try_borrow().ok()?.iter().map(Deliveries::len).sum::<usize>();
        let endpoints = self.all_endpoints();
        for endpoint in endpoints.iter().filter(|endpoint| endpoint.is_alive()) {
            let open = ops.open_wholes(endpoint.index) + ops.announced_of(endpoint.index);
            unsent += open + endpoint.try_waiting_len()?;
        }
        Some(unsent as u64)
    }

    /// Notifies each connected peer that understands the message that the process exits with operations that have not completed. A
    /// lane that does not accept the message within `TRIES` attempts drops it: the peer then reports a connection that was closed
    /// without a goodbye.
    fn notify_of_exit(&self, unsent: u64) {
        let mut waiting = self.all_endpoints();
        waiting.retain(|endpoint| endpoint.knows_of_exits());
        for _ in 0..TRIES {
            waiting.retain(|endpoint| !endpoint.notify_of_exit(unsent));
            if waiting.is_empty() {
                return;
            }
            std::thread::sleep(NAP);
        }
    }

    /// Handles a peer's report that its process has called `exit`. If the connection then ends as `PeerFailed`, the error contains
    /// the report.
    pub(super) fn on_exited(&self, peer: u32, unsent: u64) -> Result<(), Status> {
        let mut peers = self.peers.borrow_mut();
        peers.get_mut(peer).ok_or(Status::BadData)?.exited = Some(unsent);
        Ok(())
    }

    /// Adds the peer's report of its exit, if there is one, to an error of status `PeerFailed`.
    pub(crate) fn with_exit(&self, worker: &[u8; 16], error: Error) -> Error {
        let peers = self.peers.borrow();
        let peer = peers.known_number(worker).and_then(|number| peers.get(number));
        match peer.and_then(|peer| peer.exited) {
            Some(unsent)
                if error.status() == Status::PeerFailed && !error.why().contains(EXITED) =>
            {
                let (what, why, fix) = (error.what(), error.why(), error.fix());
                let plural = if unsent == 1 { "" } else { "s" };
                let why = format!("{why}; {EXITED} {unsent} operation{plural} unsent");
                Error::new(error.status(), what, why, fix).of(error.scope())
            }
            _ => error,
        }
    }
}

impl Leaves for WorkerState {
    fn leave_at_exit(&self) -> bool {
        if self.closed.get() || !self.shared.core.same_process() {
            return false;
        }
        match self.unsent() {
            Some(0) => {
                self.leave_now();
                return true;
            }
            Some(unsent) => self.notify_of_exit(unsent),
            None => {}
        }
        false
    }

    fn entrance(&self) -> &Entrance {
        &self.shared.entrance
    }
}

#[cfg(test)]
mod tests {
    use crate::Context;
    use crate::exit::Leaves;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// The next progress call would send the acknowledgement.
    #[test]
    fn acknowledgement_that_was_not_sent_counts_as_unsent() {
        let context = Context::builder().set("TIELINE_PROVIDERS", "shm").open().unwrap();
        let worker = context.worker().unwrap();
        let endpoint = worker.connect(&worker.address().unwrap()).unwrap();
        let kept = Rc::new(RefCell::new(None));
        let keeps = kept.clone();
        worker
            .on_message(1, move |message| *keeps.borrow_mut() = message.acknowledgement())
            .unwrap();
        let options = crate::SendOptions::new().delivered();
        let sent = endpoint.send_with(1, 0, b"confirm", &options).unwrap();
        let acknowledgement = worker.wait_for(|| kept.borrow_mut().take(), None).unwrap().unwrap();
        let before = worker.inner.unsent();
        acknowledgement.give();
        assert_eq!(worker.inner.unsent(), before.map(|count| count + 1));
        assert_eq!(worker.finish(sent), Ok(0));
        assert_eq!(worker.inner.unsent(), Some(0));
    }

    /// A signal handler that calls `exit` may interrupt a change of any of these.
    #[test]
    fn exit_within_another_call_of_the_worker_panics_nowhere() {
        let context = Context::builder().set("TIELINE_PROVIDERS", "shm").open().unwrap();
        let worker = context.worker().unwrap();
        let endpoint = worker.connect(&worker.address().unwrap()).unwrap();
        let state = &worker.inner;
        assert_eq!(state.unsent(), Some(0));
        let within = |call: &dyn Fn()| {
            call();
            assert_eq!(state.unsent(), Some(0), "nothing is lost");
        };
        let interrupted = || {
            assert!(!state.leave_at_exit());
            assert_eq!(state.unsent(), None);
        };
        within(&|| {
            let _call = state.shared.ops.borrow_mut();
            interrupted();
        });
        within(&|| {
            let _call = state.endpoints.borrow_mut();
            interrupted();
        });
        within(&|| {
            let _call = state.owed.debts.borrow_mut();
            interrupted();
        });
        within(&|| {
            let _call = state.deliveries.borrow_mut();
            interrupted();
        });
        drop(endpoint);
    }
}
