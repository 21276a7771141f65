//! A connection, the keys that were imported through it, and what an operation is aimed at.

mod sys;

pub(crate) use sys::{Endpoint, Key, Target};
