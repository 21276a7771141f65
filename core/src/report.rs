//! What a context found, chose and left out: for people and for programs.

pub use crate::config::{FileView, Origin, Setting, ValueView};
