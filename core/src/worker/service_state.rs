//! What a worker keeps of its services: who listens, and who waits for an answer.

use crate::Error;
use crate::interface::PeerId;
use crate::wireup::service::{RequestId, ServiceLimits, Services};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

/// How much longer a client waits than a server: it then hears the server's words.
const GRACE: u64 = 5_000_000_000;

pub(super) type Listener = Rc<dyn Fn(Asked)>;
pub(super) type Answered = Result<ServiceAnswer, Error>;

/// What a service said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceAnswer {
    /// Yes, with these bytes of its own.
    Accepted(Vec<u8>),
    /// No, with these.
    Rejected(Vec<u8>),
}

/// A request for a service, as it came.
pub(super) struct Asked {
    pub(super) id: RequestId,
    pub(super) service: String,
    pub(super) peer: PeerId,
    pub(super) private: Vec<u8>,
}

/// A worker's side of its services. Nothing is sent while a cell is borrowed, and no listener runs or is let go: all of these may come
/// back here.
pub(super) struct ServiceState {
    pub(super) services: RefCell<Services>,
    pub(super) listeners: RefCell<HashMap<String, Listener>>,
    /// Calls that nobody has taken the answer of.
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

    /// Lets go of handlers, which may hold the worker and are the caller's to drop.
    pub(super) fn close(&self) -> HashMap<String, Listener> {
        std::mem::take(&mut *self.listeners.borrow_mut())
    }
}
