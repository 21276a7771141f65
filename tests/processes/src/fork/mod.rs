//! Forked children that live beside their parents while the test continues.

mod sys;

pub use sys::{Aside, Child, End};
