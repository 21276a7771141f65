//! Memory of an application's that changes although peers may access it.

mod sys;

pub use sys::Spoiled;
