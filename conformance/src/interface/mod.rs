//! A data-path module, opened, and what it brings.

mod sys;

pub(crate) use sys::{Interface, Received, readable};
