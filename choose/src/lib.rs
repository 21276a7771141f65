//! Which module serves what. Everything here is a pure function of names, attributes, costs and the user's selection.
//!
//! * [`rank`] compares two modules for a role, and names the rule that decides.
//! * [`compose`] forms one path of modules for each domain.
//! * [`address`] has the bytes that tell a peer which modules reach a worker.
//! * [`lanes`] sorts the modules that reach a peer, from its address.
//!
//! Every decision is a [`Record`](tieline_explain::Record). Providers are not loaded or called here.

pub mod address;
pub mod compose;
pub mod lanes;
pub mod rank;

use tieline_explain::Error;
use tieline_plugin_api::Status;
