//! The exported functions, by subject, and the code that they share.
//!
//! The `SAFETY` comments here rely on what the caller of an exported function guarantees. An address is null, or points to as much
//! memory as the call states: a record's `size` bytes, `len` bytes, `count` elements, or a string up to its zero. No other thread
//! changes that memory during the call. At most one thread at a time is in a call of a worker or of an object that belongs to it.

#![allow(unsafe_code)]
// All exported functions share the contract above.
#![allow(clippy::missing_safety_doc)]

mod bytes;
mod driven;
mod enter;
mod records;
mod table;

pub mod atomic;
pub mod completion;
pub mod context;
pub mod counter;
pub mod endpoint;
pub mod error;
pub mod headed;
pub mod how;
pub mod job;
pub mod list;
pub mod look;
pub mod memory;
pub mod message;
pub mod names;
pub mod notice;
pub mod numbers;
pub mod peers;
pub mod put;
pub mod raw;
pub mod strided;
pub mod wait;
pub mod wireup;
pub mod worker;
