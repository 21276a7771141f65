//! How peers find each other by name: a worker by a name of at most 48 bytes, and a service by its name at a worker.
//!
//! * [`Names`] has the names of a context's workers. Its [`NameService`] listens over TCP, and answers with a worker's address.
//! * [`Lookup`] fetches the address of the worker behind a [`WorkerName`].
//! * [`Services`] is the pure state machine of client/server services. The caller carries its messages.
//!
//! An address is opaque bytes here. The caller parses it, and opens connections.

#[cfg(test)]
mod crowd_tests;
mod listener;
mod lookup;
mod name;
mod service;
#[cfg(test)]
mod tests;

pub use listener::{NameService, Names, settings};
pub use lookup::Lookup;
pub use name::WorkerName;
pub use service::{Arrival, RequestId, ServiceAction, ServiceAnswer, ServiceLimits, Services};

use tieline_explain::Error;
use tieline_plugin_api::Status;
