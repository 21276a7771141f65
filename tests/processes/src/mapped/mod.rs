//! Memory of every kind that an application may register, and the orders of a node about it.

mod sys;

pub(crate) use sys::exec_sleep;
pub use sys::{KINDS, Kind, Mapped};

use std::process::{Child, Command, Stdio};

/// A process that this one starts and that lives beside it.
#[derive(Debug)]
pub struct Started(Child);

impl Started {
    /// Starts one; by fork and exec, or as the system starts one without a copy of this process.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn new(by_fork: bool) -> Started {
        let mut sleep = Command::new("sleep");
        let _ = sleep.arg("600").stdin(Stdio::null()).stdout(Stdio::null());
        if by_fork {
            // What is done between the two makes it a fork.
            crate::sys::die_with_parent(&mut sleep);
        }
        Started(sleep.spawn().expect("sleep starts"))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
