//! A place in this process's memory where whoever touches it stops until somebody lets go: also the kernel, in the middle of
//! a copy that this process has asked for.

mod sys;

use crate::sys::Pages;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The page where a copy stops, and the thread that says so.
pub struct Trap {
    hole: usize,
    over: Arc<AtomicBool>,
    watcher: Option<JoinHandle<()>>,
}

impl Trap {
    /// Sets one in the middle of `pages`, whose bytes there are lost. Whoever touches it stops; `sprung` is called then, on another
    /// thread, and the bytes are there again, as zeros, when the process `until` has ended.
    ///
    /// # Errors
    /// The kernel has no such thing (userfaultfd), or does not give it to this user.
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
        // One that nobody has touched is touched now.
        self.over.store(true, Ordering::SeqCst);
        sys::touch(self.hole);
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}
