//! An opened data-path module, and its events.

mod sys;

pub(crate) use sys::{Interface, Received, readable};
