//! The choice of a module for each role, by names, attributes, costs and the user's selection. Only [`address`] reads facts of the
//! system: the host and process of a worker.
//!
//! * [`rank`] compares two modules for a role, and names the rule that decides.
//! * [`compose`] forms one path of modules for each domain.
//! * [`address`] packs and parses a worker's address, which lists the modules that reach the worker.
//! * [`lanes`] sorts the modules that reach a peer, by the modules in the peer's address.
//!
//! [`compose`] and [`lanes`] explain their decisions by a [`Record`](tieline_explain::Record) each. Providers are not loaded or
//! called here.

pub mod address;
pub mod compose;
pub mod lanes;
pub mod rank;

use tieline_explain::Error;
use tieline_plugin_api::Status;
