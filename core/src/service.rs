//! The progress thread: a worker of the library's own that serves what peers ask of this context's memory
//! (emulated put, get and atomics, and first contact for them) while the application computes.
//!
//! It sleeps on its descriptor when there is nothing to do. Message handlers are not its business: they
//! run in the application's own progress.

use crate::context::Core;
use crate::sys::{ForkGuard, Wakeup};
use crate::worker::Worker;
use crate::{Error, Status};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

/// The running thread; dropping this ends it.
pub(crate) struct Service {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
    guard: ForkGuard,
}

struct Stop {
    asked: AtomicBool,
    wakeup: Wakeup,
}

impl Service {
    /// Starts the thread and waits until its worker can be reached.
    pub(crate) fn start(core: Arc<Core>) -> Result<Service, Error> {
        let guard = ForkGuard::new()?;
        let stop = Arc::new(Stop { asked: AtomicBool::new(false), wakeup: Wakeup::new()? });
        let (ready, opened) = sync_channel(1);
        let (theirs, weak) = (stop.clone(), core);
        let thread = std::thread::Builder::new()
            .name("tieline-progress".into())
            .spawn(move || serve(weak, &theirs, &ready))
            .map_err(|e| {
                tieline_plugin_api::Failure::from_io("starting the progress thread", &e)
            })?;
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
            // In a forked child there is no such thread to wait for.
            std::mem::forget(self.thread.take());
            return;
        }
        self.stop.asked.store(true, Ordering::Release);
        self.stop.wakeup.wake();
        if let Some(thread) = self.thread.take() {
            // A panic there has already ended the service; there is nobody to tell.
            let _ = thread.join();
        }
    }
}

fn serve(core: Arc<Core>, stop: &Stop, ready: &SyncSender<Result<(), Error>>) {
    let opened = Worker::open(core.clone(), None).and_then(|worker| {
        worker.inner.watch(&stop.wakeup)?;
        core.set_service(worker.inner.party()?);
        Ok(worker)
    });
    let worker = match opened {
        Ok(worker) => worker,
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    drop(core);
    let _ = ready.send(Ok(()));
    while !stop.asked.load(Ordering::Acquire) {
        if let Err(error) = worker.wait(None) {
            worker.inner.core.note(format!("the progress thread stopped: {error}"));
            return;
        }
    }
}
