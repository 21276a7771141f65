//! The state of a worker's services: listeners, and calls that wait for an answer.

use crate::Error;
use crate::interface::PeerId;
use crate::wireup::service::{RequestId, ServiceLimits, Services};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

/// The additional time in ns that a client waits after the server's time limit, to receive the server's own error text.
const GRACE: u64 = 5_000_000_000;

pub(super) type Listener = Rc<dyn Fn(Asked)>;
pub(super) type Answered = Result<ServiceAnswer, Error>;

/// The answer of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceAnswer {
    /// The server accepted the request, with its private data.
    Accepted(Vec<u8>),
    /// The server rejected the request, with its private data.
    Rejected(Vec<u8>),
}

/// A request for a service, as received.
pub(super) struct Asked {
    pub(super) id: RequestId,
    pub(super) service: String,
    pub(super) peer: PeerId,
    pub(super) private: Vec<u8>,
}

/// A worker's state of its services. While a cell is borrowed, nothing is sent, and no listener runs or is dropped: all of these
/// may access the state again.
pub(super) struct ServiceState {
    pub(super) services: RefCell<Services>,
    pub(super) listeners: RefCell<HashMap<String, Listener>>,
    /// The calls whose answer has not been taken.
    pub(super) calls: RefCell<HashMap<u64, Option<Answered>>>,
}

impl ServiceState {
    pub(super) fn new(timeout: Duration) -> ServiceState {
        let waiting = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4);
        let limits = ServiceLimits { waiting, asking: waiting + GRACE, ..ServiceLimits::default() };
        ServiceState {
            services: RefCell::new(Services::new(limits)),
            listeners: RefCell::default(),
            calls: RefCell::default(),
        }
    }

    /// Removes the listeners. The listeners may hold the worker, so the caller drops them while nothing is borrowed.
    pub(super) fn close(&self) -> HashMap<String, Listener> {
        std::mem::take(&mut *self.listeners.borrow_mut())
    }
}
