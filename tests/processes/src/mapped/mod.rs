//! Kinds of memory that an application may register, and a node's orders about this memory.

mod sys;

pub(crate) use sys::exec_sleep;
pub use sys::{KINDS, Kind, Mapped};

use std::process::{Child, Command, Stdio};

/// A child process that runs another program.
#[derive(Debug)]
pub struct Started(Child);

impl Started {
    /// Starts a process, by fork and exec or without a copy of this process.
    ///
    /// # Panics
    /// Panics if the process does not start.
    #[must_use]
    pub fn new(by_fork: bool) -> Started {
        let mut sleep = Command::new("sleep");
        let _ = sleep.arg("600").stdin(Stdio::null()).stdout(Stdio::null());
        if by_fork {
            // A step between fork and exec forces a real fork.
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
