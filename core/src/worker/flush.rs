//! Flushing all endpoints of a worker: interface by interface where a module does that, else each by itself.

use super::{Inner, Worker};
use crate::endpoint::{Inner as EndpointInner, Posted};
use crate::op::Kind;
use crate::request::{Outcome, Request};
use crate::{CompletionError, Status};
use std::collections::VecDeque;
use std::rc::Rc;
use tieline_plugin_api::caps;

/// What was posted on one endpoint, over one interface, and has completed locally.
struct Covered {
    endpoint: Rc<EndpointInner>,
    lanes: u64,
}

impl Worker {
    /// Waits until everything that is posted on every endpoint now is complete; see [`Endpoint::flush`](crate::Endpoint::flush). All of
    /// them are flushed at once. An endpoint that has failed before is left out: its operations have ended, and what had
    /// completed locally there may be lost, as its own error says.
    ///
    /// # Errors
    /// The first failure of what it waited for; [`CompletionError::Pending`] as of [`Worker::finish`].
    pub fn flush(&self) -> Result<(), CompletionError> {
        self.inner.shared.check_no_handler("a flush").map_err(CompletionError::Pending)?;
        self.inner.shared.core.check_process("a worker").map_err(CompletionError::Pending)?;
        let mut first = Ok(());
        for interface in 0..self.inner.shared.interfaces.len() {
            first = first.and(self.flush_interface(interface));
        }
        let mut posted = VecDeque::new();
        for inner in self.inner.all_endpoints() {
            if !inner.is_alive() {
                continue;
            }
            // While it has as many operations as it may, some must end first.
            let flush = || match inner.flush() {
                Err(error) if error.status() == Status::Again => None,
                result => Some(result),
            };
            match self.inner.wait_for(None, false, flush).map_err(CompletionError::Pending)? {
                // One that was dropped while something waited for room is held, or it would end with its last operation.
                Some(Ok(outcome @ Outcome::Pending(_))) => {
                    posted.push_back((inner.clone(), outcome))
                }
                Some(Err(error)) => first = first.and(Err(error.into())),
                Some(Ok(Outcome::Done(_))) | None => {}
            }
        }
        for (inner, outcome) in posted {
            if let Err(error) = self.finish(outcome) {
                first = first.and(Err(error));
            }
            drop(inner);
        }
        first
    }

    /// Where several endpoints would ask their lanes over one interface, and its module flushes all of them by one call: makes that
    /// call, and waits for it. What it does not come to, the endpoints ask for themselves.
    fn flush_interface(&self, interface: usize) -> Result<(), CompletionError> {
        let covered = self.inner.completed_locally_over(interface);
        let Some(Covered { endpoint: first, .. }) = covered.get(1) else { return Ok(()) };
        let Ok(posted) = self.inner.post_flush_of(interface, first) else { return Ok(()) };
        covered.iter().for_each(|one| one.endpoint.take_local(one.lanes));
        let mut result = match posted {
            None => Ok(()),
            Some(request) => self.finish(Outcome::Pending(request)).map(drop),
        };
        let failed = result.is_err();
        for one in &covered {
            match one.endpoint.check_alive() {
                Err(error) => result = result.and(Err(error.into())),
                // Nobody said so of this one.
                Ok(()) if failed => one.endpoint.give_back_local(one.lanes),
                Ok(()) => {}
            }
        }
        result
    }
}

impl Inner {
    /// The endpoints that would ask their lanes over this interface, where its module can be asked for all of them.
    fn completed_locally_over(&self, interface: usize) -> Vec<Covered> {
        let slot = &self.shared.interfaces[interface];
        if slot.attr.caps & caps::FLUSH_ALL == 0 || slot.check_in_use().is_err() {
            return Vec::new();
        }
        let alive = self.all_endpoints().into_iter().filter(|endpoint| endpoint.is_alive());
        let covered =
            alive.map(|endpoint| Covered { lanes: endpoint.local_over(interface), endpoint });
        covered.filter(|one| one.lanes != 0).collect()
    }

    /// Asks a module to flush an interface, in the name of one endpoint. `None`: there is nothing to wait for.
    fn post_flush_of(
        self: &Rc<Self>,
        interface: usize,
        endpoint: &EndpointInner,
    ) -> Result<Option<Request>, Status> {
        let id = self.shared.ops.borrow_mut().open_inner(endpoint.index, Kind::Native)?;
        let code = self.shared.interfaces[interface].interface.flush(id.raw());
        let posted = endpoint.posted(id, interface, code, 0);
        match endpoint.or_withdrawn(id, posted) {
            Ok(Posted::Pending) => Ok(Some(Request { shared: self.shared.clone(), id })),
            Ok(Posted::Done(_)) => Ok(None),
            Ok(Posted::NoRoom) => Err(Status::Again),
            Err(failed) => {
                if failed.status == Status::ProviderFailed {
                    self.provider_failed(interface);
                }
                Err(failed.status)
            }
        }
    }
}
