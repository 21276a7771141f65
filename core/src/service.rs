//! The progress thread, which has a worker of the library's own. While the application computes, the worker serves peers' requests
//! for this context's memory (emulated put, get and atomics, and the first contact for them). It also answers lookups of the
//! context's worker names.
//!
//! The thread sleeps on its worker's descriptor when there is nothing to do. If a module has no descriptor, the thread sleeps for
//! short periods. The thread runs no message handlers: those run in the application's own progress.
//!
//! If the thread ends on its own, with an error or a panic, the context then opens no worker and registers no memory for peers.
//! Each worker reports the error once, in a wait ([`Core::check_service`]).

use crate::exit::{self, Ends};
use crate::setup::Core;
use crate::sys::{ForkGuard, Wakeup};
use crate::worker::Worker;
use crate::{Error, Status};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The running thread; its drop ends the thread.
pub(crate) struct Service {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
    guard: ForkGuard,
}

struct Stop {
    asked: AtomicBool,
    ended: AtomicBool,
    wakeup: Wakeup,
}

impl Ends for Stop {
    fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        self.wakeup.wake();
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

impl Service {
    /// Starts the thread and waits until its worker is reachable or could not be opened.
    pub(crate) fn start(core: Arc<Core>) -> Result<Service, Error> {
        let guard = ForkGuard::new();
        let (asked, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        let stop = Arc::new(Stop { asked, ended, wakeup: Wakeup::new()? });
        let (ready, opened) = sync_channel(1);
        let (theirs, weak) = (stop.clone(), core);
        let thread = std::thread::Builder::new()
            .name("tieline-progress".into())
            .spawn(move || {
                let itself: Arc<dyn Ends> = theirs.clone();
                exit::enter_thread(itself.clone());
                serve(weak, &theirs, &ready);
                theirs.ended.store(true, Ordering::Release);
                exit::forget_thread(&itself);
            })
            .map_err(|error| no_thread("the progress thread", &error))?;
        let service = Service { stop, thread: Some(thread), guard };
        match opened.recv() {
            Ok(Ok(())) => Ok(service),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Status::ProviderFailed.into()),
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if !self.guard.same_process() {
            // In a forked child there is no such thread for which it could wait.
            std::mem::forget(self.thread.take());
            return;
        }
        self.stop.ask();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already ended the service, and the drop has no caller to which it could report it.
            let _ = thread.join();
        }
    }
}

/// Makes the error for a thread that the system refuses. The status is never `Again`, because progress cannot help.
#[cold]
pub(crate) fn no_thread(which: &str, error: &std::io::Error) -> Error {
    Error::new(
        Status::NoMemory,
        format!("{which} could not be started"),
        error.to_string(),
        "allow more threads (ulimit -u, pids.max of the control group), or open the context without a progress thread",
    )
}

fn serve(core: Arc<Core>, stop: &Stop, ready: &SyncSender<Result<(), Error>>) {
    let opened = Worker::open(core.clone(), None).and_then(|worker| {
        worker.inner.watch(&stop.wakeup)?;
        worker.inner.serve_names()?;
        core.set_service(worker.inner.entry());
        Ok(worker)
    });
    let worker = match opened {
        Ok(worker) => worker,
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    let _ = ready.send(Ok(()));
    // The worker is dropped before the report, so nothing serves any more when the report is made.
    let ended = watched(move || {
        while !stop.asked.load(Ordering::Acquire) {
            let _ = worker.inner.rest(Duration::MAX)?;
        }
        Ok(())
    });
    if let Err(error) = ended {
        core.service_stopped(error);
    }
}

/// Runs the thread's work and turns a panic into an error.
fn watched(work: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<&str>().copied();
        let words = words.or(panic.downcast_ref::<String>().map(String::as_str));
        let why = format!("it panicked: {}", words.unwrap_or("without words"));
        Err(Error::new(Status::ProviderFailed, "a thread of Tieline's", why, ""))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_the_system_refuses_asks_for_no_progress() {
        let error = no_thread("a thread", &std::io::Error::from_raw_os_error(libc::EAGAIN));
        assert_eq!(error.status(), Status::NoMemory);
        assert!(error.why().contains("os error 11") && error.fix().contains("ulimit -u"));
    }

    #[test]
    fn a_panic_of_the_thread_is_an_error_with_its_words() {
        for (number, words) in [(7, "it panicked: number 7"), (0, "it panicked: nothing")] {
            let work = || if number > 0 { panic!("number {number}") } else { panic!("nothing") };
            assert_eq!(watched(work).unwrap_err().why(), words);
        }
        assert_eq!(watched(|| Ok(())), Ok(()));
        let refused = || Err(Status::Io.into());
        assert_eq!(watched(refused).unwrap_err().status(), Status::Io);
    }
}
