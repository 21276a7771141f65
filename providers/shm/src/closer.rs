//! Connections of other users, closed where nobody waits for it.
//!
//! Whoever can connect can send descriptors along, and closing the last copy of one takes as long as its sender
//! likes: a TCP socket that lingers over unsent data, a file of a file system in user space. What another user has
//! sent is therefore never received, and if there is such a thing the connection is closed by a thread, which
//! lives no longer than there is something to close. In a directory of their own sockets cannot be reached by
//! other users, and nothing of this happens; see `directory.rs` for when there is none.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::sys;

/// So many connections may wait for being closed; then nobody is accepted until one is.
const MOST: usize = 64;

/// Closes connections of other users.
#[derive(Default)]
pub(crate) struct Closer {
    queue: Arc<Mutex<Queue>>,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<OwnedFd>,
    /// The thread is there, and closes one that is not in the list any more.
    closing: bool,
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Closer {
    /// Whether nobody is to be accepted now. Who is asked this again and again starts the thread at last.
    pub(crate) fn is_full(&self) -> bool {
        let mut queue = lock(&self.queue);
        self.start_thread(&mut queue);
        queue.waiting.len() >= MOST
    }

    /// Closes a socket that another user may have sent something to.
    pub(crate) fn close(&self, socket: OwnedFd) {
        sys::shut_down(&socket);
        // Nothing more can come: what the kernel says now stays true.
        if sys::carries_nothing(&socket) {
            return;
        }
        let mut queue = lock(&self.queue);
        queue.waiting.push(socket);
        self.start_thread(&mut queue);
    }

    /// Sees to it that what waits is closed. Without a thread it waits for the next attempt.
    fn start_thread(&self, queue: &mut Queue) {
        if !queue.closing && !queue.waiting.is_empty() {
            let theirs = self.queue.clone();
            queue.closing = sys::without_signals(|| {
                let thread = std::thread::Builder::new().name("tieline-close".into());
                thread.spawn(move || close_all(&theirs)).is_ok()
            });
        }
    }
}

fn close_all(queue: &Mutex<Queue>) {
    loop {
        let mut now = lock(queue);
        let Some(socket) = now.waiting.pop() else {
            now.closing = false;
            return;
        };
        drop(now);
        drop(socket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn what_waits_because_there_was_no_thread_is_closed_when_room_is_asked_for() {
        let closer = Closer::default();
        lock(&closer.queue).waiting.extend((0..MOST).filter_map(|_| sys::spare().ok()));
        assert!(lock(&closer.queue).waiting.len() >= MOST);
        let start = Instant::now();
        while closer.is_full() || !lock(&closer.queue).waiting.is_empty() {
            assert!(start.elapsed() < Duration::from_secs(60), "nobody closes them");
            std::thread::yield_now();
        }
    }
}
