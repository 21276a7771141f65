//! Closes connections of other users without blocking the interface.
//!
//! Any process that can connect can also send descriptors, and closing the last copy of a descriptor may take any time that its
//! sender likes. Examples are a TCP socket that lingers over unsent data, and a file of a file system in user space. Therefore
//! descriptors of other users are never received. If a connection may hold any, a thread closes it, which lives only while there is
//! something to close. Other users except root cannot reach sockets in a private directory, so this case needs a socket without
//! such a directory; see `directory.rs`.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::sys;

/// The number of connections that wait to be closed from which on no further connection is accepted.
const MOST: usize = 64;

/// Closes connections of other users.
#[derive(Default)]
pub(crate) struct Closer {
    queue: Arc<Mutex<Queue>>,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<OwnedFd>,
    /// Whether the thread is running, which closes a connection that is not in the list any more.
    closing: bool,
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Closer {
    /// Checks whether no connection may be accepted at present. Repeated calls also retry to start the thread.
    pub(crate) fn is_full(&self) -> bool {
        let mut queue = lock(&self.queue);
        self.start_thread(&mut queue);
        queue.waiting.len() >= MOST
    }

    /// Closes a socket that may hold descriptors of another user.
    pub(crate) fn close(&self, socket: OwnedFd) {
        sys::shut_down(&socket);
        // The socket is shut down, so the kernel's answer remains valid.
        if sys::carries_nothing(&socket) {
            return;
        }
        let mut queue = lock(&self.queue);
        queue.waiting.push(socket);
        self.start_thread(&mut queue);
    }

    /// Starts the thread if it is not running. If that fails, the sockets wait for the next attempt.
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
    fn sockets_waiting_for_a_thread_are_closed_when_room_is_queried() {
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
