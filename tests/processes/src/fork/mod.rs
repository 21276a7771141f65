//! Forked children that run while the test of their parent continues.

mod sys;

pub use sys::{Aside, Child, End};
