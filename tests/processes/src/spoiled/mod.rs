//! Application memory that is remapped, unmapped or truncated while peers may access it.

mod sys;

pub use sys::Spoiled;
