//! What other threads may do with a worker: end its sleep, hand it work, take it over; and several workers of one thread.

mod abi;
mod remote;
mod wait_set;
mod waker;

pub use abi::Movable;
pub use remote::{NotTaken, Remote};
pub use wait_set::WaitSet;
pub(super) use waker::Signal;
pub use waker::Waker;
