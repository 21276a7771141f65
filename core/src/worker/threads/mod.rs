//! Operations of other threads on a worker: ending its sleep, submitting tasks, moving it; and sets of workers of one thread.

mod abi;
mod remote;
mod wait_set;
mod waker;

pub use abi::Movable;
pub use remote::{NotTaken, Remote};
pub use wait_set::WaitSet;
pub(super) use waker::Signal;
pub use waker::Waker;
