//! Copies between mappings and guaranteed memory. The poster of an operation guarantees the operation's pieces.

mod sys;

pub(crate) use sys::{fill_piece, pack, read_piece, write, write_piece};
