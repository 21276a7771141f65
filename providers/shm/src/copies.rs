//! Copies between mappings and memory that somebody vouches for: who posts an operation, for its pieces.

mod sys;

pub(crate) use sys::{fill_piece, pack, read_piece, write, write_piece};
