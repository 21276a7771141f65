//! A connection, the keys that were imported through it, and the target of an operation.

mod sys;

pub(crate) use sys::{Endpoint, Key, Part, Target};
