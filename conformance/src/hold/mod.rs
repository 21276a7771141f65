//! Memory in which every access waits until it is released.

mod sys;

pub(crate) use sys::Hold;
