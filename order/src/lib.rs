//! The operations of a worker and the order that they keep: pure state, without I/O, clock or provider.
//!
//! | part | purpose |
//! |---|---|
//! | [`Table`] | all open operations: their endpoints, the events for which they wait, and the memory that they use |
//! | [`admission`] | the conditions under which an operation may be posted |
//! | [`Order`] | the routes of an endpoint's operations, which decide whether a fence, a flush or a notification has to wait |
//! | [`held`] | memory of operations that have ended for the caller while a provider may still access it |
//! | [`slab`] | tables whose entries have numbers |
//!
//! Flush and fence query the table (see [`Table::start_flush`]). The table enforces the limit on the pending operations of an
//! endpoint. An answer or a completion that matches no open operation is ignored. The table keeps an operation's local memory and
//! never looks at it, so the type of that memory is a parameter.

pub mod admission;
pub mod held;
mod order;
pub mod slab;
mod table;
#[cfg(test)]
mod tests;

pub use order::{Fence, Order, way};
pub use slab::Id;
pub use table::{Counts, Kind, Oldest, Table};
use tieline_explain::{Error, Scope, Status};
