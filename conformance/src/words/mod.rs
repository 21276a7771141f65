//! The watch words of an interface, as the core reads them.

mod sys;

pub(crate) use sys::WatchWords;
