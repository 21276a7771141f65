//! The tests, a file for each family. A test has two sides: `measure` of the process that asks, `serve` of its
//! peer.

pub(crate) mod limits;
