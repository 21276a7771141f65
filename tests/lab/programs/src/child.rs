//! A child that runs in step with its parent.

use crate::sys::{self, End};
use std::os::fd::RawFd;

/// One end of the channel between parent and child, which carries numbers.
pub struct Talk {
    from: RawFd,
    to: RawFd,
}

impl Talk {
    /// Sends a number.
    pub fn say(&self, number: u64) {
        // A process that has ended receives no number; the next wait detects the end.
        let _ = sys::write_from(self.to, std::ptr::from_ref(&number) as usize, 8);
    }

    /// Waits for a number; returns `None` if the other side has ended.
    pub fn hear(&self) -> Option<u64> {
        let mut number = 0u64;
        let read = sys::read_to(self.from, std::ptr::from_mut(&mut number) as usize, 8);
        (read == Ok(8)).then_some(number)
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        sys::close(self.from);
        sys::close(self.to);
    }
}

/// A child process.
pub struct Child {
    /// The process number of the child.
    pub pid: i32,
    /// The channel to the child.
    pub talk: Talk,
    waited: bool,
}

impl Child {
    /// Starts a child that runs `body` and exits with status 0.
    pub fn start(body: impl FnOnce(&Talk)) -> Child {
        let ((down_from, down_to), (up_from, up_to)) = (sys::pipe(), sys::pipe());
        let pid = sys::fork();
        if pid == 0 {
            sys::end_with_parent();
            sys::no_core();
            sys::close(down_to);
            sys::close(up_from);
            // A panic must not unwind into the parent's code.
            let talk = Talk { from: down_from, to: up_to };
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(&talk)));
            sys::exit(if ended.is_ok() { 0 } else { 101 });
        }
        sys::close(down_from);
        sys::close(up_to);
        Child { pid, talk: Talk { from: up_from, to: down_to }, waited: false }
    }

    /// Waits for the child's next number, which must arrive.
    pub fn hear(&self) -> u64 {
        self.talk.hear().unwrap_or_else(|| panic!("the child {} has ended", self.pid))
    }

    /// Lets the child continue, and waits for the child's next number.
    pub fn step(&self) -> u64 {
        self.talk.say(0);
        self.hear()
    }

    /// Lets the child continue, and waits for the child's end.
    pub fn end(mut self) -> End {
        self.talk.say(0);
        self.waited = true;
        sys::wait(self.pid)
    }

    /// Returns the end of the child, if the child has ended by itself.
    pub fn has_ended(&mut self) -> Option<End> {
        let end = sys::has_ended(self.pid);
        self.waited |= end.is_some();
        end
    }

    /// Kills the child.
    pub fn kill(mut self) -> End {
        sys::kill(self.pid);
        self.waited = true;
        sys::wait(self.pid)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.waited {
            sys::kill(self.pid);
            let _ = sys::wait(self.pid);
        }
    }
}
