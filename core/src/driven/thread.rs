//! The progress thread of a driven worker. It sleeps on the worker's descriptor, and stays aside while a caller drives the worker.

use super::dispatch::Ran;
use super::engine::{Engine, Thread};
use crate::Error;
use crate::exit::{self, Ends};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// The number of polls without an event before the thread sleeps.
const LOOKS: u32 = 64;
/// The interval of the polls if a module has no descriptor, or the system refuses to wait.
const POLL_NAP: Duration = Duration::from_micros(50);
/// The length of a nap after another thread has posted, or while callers drive the worker. The polls of a driving caller cancel the
/// promise of the armed descriptor, and some transports need a poll after a post. The nap bounds the time until the thread polls in
/// these cases. While only callers drive, and the thread finds nothing, the nap grows up to `LAST_NAP`.
const FIRST_NAP: Duration = Duration::from_micros(100);
const LAST_NAP: Duration = Duration::from_millis(1);
/// The number of attempts of an exit to take the lock, and their interval.
const TRIES: u32 = 50;
const EXIT_NAP: Duration = Duration::from_micros(200);

/// The worker of an engine, as the exit of the process uses it: the exiting thread says goodbye under the lock.
struct Exit(Weak<Engine>);

impl Ends for Exit {
    fn ask(&self) {
        let Some(engine) = self.0.upgrade() else { return };
        for _ in 0..TRIES {
            if let Some(entered) = engine.try_enter() {
                if let Ok(worker) = entered.worker() {
                    worker.inner.leave_as_process_exits();
                }
                break;
            }
            std::thread::sleep(EXIT_NAP);
        }
        // The exit must not be the last owner: it would run the drop of the application's objects.
        std::mem::forget(engine);
    }

    fn has_ended(&self) -> bool {
        true
    }
}

/// The running thread.
pub(super) struct Running {
    thread: JoinHandle<()>,
    exit: Arc<dyn Ends>,
}

impl Running {
    /// Starts the thread.
    pub(super) fn start(engine: &Arc<Engine>) -> Result<Running, Error> {
        engine.enter()?.inside().thread = Thread::Awake;
        let theirs = engine.clone();
        let thread = std::thread::Builder::new()
            .name("tieline-driven".into())
            .spawn(move || serve(&theirs))
            .map_err(|error| crate::service::no_thread("the thread of a driven worker", &error))?;
        let exit: Arc<dyn Ends> = Arc::new(Exit(Arc::downgrade(engine)));
        exit::enter_thread(exit.clone());
        Ok(Running { thread, exit })
    }

    /// Waits for the end of the thread, which was asked to end. Inside one of its handlers the call does not wait.
    pub(super) fn join(self) {
        exit::forget_thread(&self.exit);
        if self.thread.thread().id() != std::thread::current().id() {
            // A panic of the thread itself has ended its service; callers then drive the worker.
            let _ = self.thread.join();
        }
    }
}

fn serve(engine: &Arc<Engine>) {
    let (mut looks, mut nap) = (0, FIRST_NAP);
    loop {
        engine.give_way();
        let Ok(mut entered) = engine.enter() else { return };
        let inside = entered.inside();
        if std::mem::take(&mut inside.is_woken) {
            engine.parking.take_wakeups();
        }
        if inside.stop {
            inside.thread = Thread::Gone;
            return;
        }
        inside.thread = Thread::Awake;
        if inside.is_driven {
            inside.was_driven = false;
            entered.leave_to_sleep(Thread::NappingAside);
            engine.parking.sleep_aside(Some(nap));
            (looks, nap) = (LOOKS, (nap * 2).min(LAST_NAP));
            continue;
        }
        if engine.dispatch.is_full() {
            // The thread that has the turn wakes this one when it has dispatched some events.
            entered.leave_to_sleep(Thread::Aside);
            if engine.dispatch() == Ran::Elsewhere {
                engine.parking.sleep_aside(None);
            }
            continue;
        }
        looks = if entered.progress() > 0 { 0 } else { looks + 1 };
        let armed = match looks > LOOKS {
            true => entered.arm(),
            false => Ok(false),
        };
        let mut most = None;
        if let Ok(true) = armed {
            let inside = entered.inside();
            let driven = std::mem::take(&mut inside.was_driven);
            if std::mem::take(&mut inside.was_posted) {
                nap = FIRST_NAP;
                most = Some(nap);
            } else if driven {
                most = Some(nap);
                nap = (nap * 2).min(LAST_NAP);
            }
            entered.leave_to_sleep(if most.is_some() { Thread::Napping } else { Thread::Watching });
        } else {
            drop(entered);
        }
        let ran = engine.dispatch();
        match armed {
            Ok(false) => std::hint::spin_loop(),
            Ok(true) if ran == Ran::Leftover => looks = 0,
            Ok(true) => match engine.parking.sleep_watching(most) {
                // One poll is enough if nothing has happened.
                Ok(false) => looks = LOOKS,
                Ok(true) => (looks, nap) = (0, FIRST_NAP),
                Err(_) => std::thread::sleep(POLL_NAP),
            },
            Err(_) => std::thread::sleep(POLL_NAP),
        }
    }
}
