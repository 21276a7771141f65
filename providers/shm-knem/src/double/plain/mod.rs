//! Plain page references without the driver: the pages of a pipe after `vmsplice`. The driver takes the same kind of reference.

mod sys;

pub(crate) use sys::{Child, Kind, Memory, PAGE, Reference};
