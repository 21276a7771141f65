//! What is exported, by subject, and what all of it needs.
//!
//! The caller of every exported function promises, and each `SAFETY` line here means it: an address is null or leads to as much
//! as the call is told (a record's `size` bytes, `len` bytes, `count` elements, a string up to its zero), which nobody else
//! changes meanwhile; and of one worker and all that belongs to it one thread at a time is in a call.

#![allow(unsafe_code)]
// The one promise of all of them stands above; the header, which is made from their docs, says it once as well.
#![allow(clippy::missing_safety_doc)]

mod bytes;
mod enter;
mod records;
mod table;

pub mod atomic;
pub mod completion;
pub mod context;
pub mod counter;
pub mod endpoint;
pub mod error;
pub mod how;
pub mod job;
pub mod look;
pub mod memory;
pub mod message;
pub mod names;
pub mod numbers;
pub mod peers;
pub mod put;
pub mod strided;
pub mod wait;
pub mod wireup;
pub mod worker;
