//! The operations of a worker and the order that they keep: pure state, without I/O, clock or provider.
//!
//! | part | purpose |
//! |---|---|
//! | [`Table`] | the open operations, and ended ones whose result may be requested, with their endpoints and memory |
//! | [`admission`] | the conditions under which an operation may be posted |
//! | [`Order`] | the routes of an endpoint's operations, which decide whether a fence, a flush or a notification has to wait |
//! | [`held`] | memory of operations that have ended for the caller while a provider may still access it |
//! | [`slab`] | tables whose entries have numbers |
//!
//! A flush is an operation of the table (see [`Table::start_flush`]). The table limits the open operations of an endpoint; parts
//! and other internal operations may exceed the limit. An answer or a completion that matches no open operation changes nothing in
//! the table. The table keeps an operation's local memory and does not look at it, so the type of that memory is a parameter.

pub mod admission;
pub mod held;
mod order;
pub mod slab;
mod table;
#[cfg(test)]
mod tests;

pub use order::{Fence, Order, way};
pub use slab::Id;
pub use table::{Counts, Followed, Freed, Kind, Oldest, Table};
use tieline_explain::{Error, Scope, Status};
