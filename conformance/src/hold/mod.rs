//! Memory that stops every access until it is released.

mod sys;

pub(crate) use sys::Hold;
