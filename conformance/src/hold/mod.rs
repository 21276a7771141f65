//! Memory in which whoever touches it stops until somebody lets it go on.

mod sys;

pub(crate) use sys::Hold;
