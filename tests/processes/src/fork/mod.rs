//! Forked children that live beside their parents while the test goes on.

mod sys;

pub use sys::{Aside, Child, End};
