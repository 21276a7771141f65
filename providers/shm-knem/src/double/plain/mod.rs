//! Plain references to pages, as the driver takes them, without the driver: those of a pipe to which `vmsplice` gave pages.

mod sys;

pub(crate) use sys::{Child, Kind, Memory, PAGE, Reference};
