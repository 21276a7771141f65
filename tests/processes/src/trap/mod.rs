//! A trap in this process's memory, which stops accesses until it is released. The kernel's accesses also stop, in the middle of a
//! copy that this process has requested.

mod sys;

use crate::sys::Pages;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The page on which a copy stops, and the thread that reports it.
pub struct Trap {
    hole: usize,
    over: Arc<AtomicBool>,
    watcher: Option<JoinHandle<()>>,
}

impl Trap {
    /// Sets a trap in the middle of `pages`, whose bytes there are lost. An access stops at the trap, and `sprung` is called on
    /// another thread. When the process `until` has ended, the access continues and reads zeros.
    ///
    /// # Errors
    /// Returns an error if the kernel has no userfaultfd, or does not allow it to this user.
    pub fn set(pages: &Pages, until: u32, sprung: fn()) -> io::Result<Trap> {
        let hole = (pages.base() + pages.len() / 2) & !(sys::PAGE - 1);
        let (faults, process) = (sys::Faults::new()?, sys::process(until)?);
        faults.catch(hole)?;
        let over = Arc::new(AtomicBool::new(false));
        let ended = over.clone();
        let watch = move || {
            faults.wait();
            if !ended.load(Ordering::SeqCst) {
                sprung();
                sys::wait_for_end(&process);
            }
            faults.fill(hole);
        };
        Ok(Trap { hole, over, watcher: Some(std::thread::spawn(watch)) })
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        // A trap that no access has reached is touched here.
        self.over.store(true, Ordering::SeqCst);
        sys::touch(self.hole);
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}
