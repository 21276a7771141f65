//! Ending a worker's sleep from another thread.
//!
//! Two sides share one word. The worker says that it falls asleep, by an exchange that fails if somebody was faster; who wakes it
//! swaps his note in, and writes to the descriptor only if what he swapped out was that the worker sleeps. Each is one atomic step on
//! one word, so that one of the two always sees the other's. Tests play all orders of these steps.

use crate::Error;
use crate::sys::{ForkGuard, Wakeup};
use crate::worker::Worker;
use std::cell::Cell;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const WOKEN: u32 = 2;

/// Ends a wait of a worker from any thread: [`Worker::waker`].
#[derive(Clone)]
pub struct Waker {
    alarm: Arc<Alarm>,
}

/// What both sides have.
struct Alarm {
    state: AtomicU32,
    wakeup: Wakeup,
    guard: ForkGuard,
}

/// The worker's side.
pub(crate) struct Signal {
    alarm: Arc<Alarm>,
    /// The worker has said that it sleeps since it last looked.
    slept: Cell<bool>,
    /// Writes to the descriptor that were announced, by the word, and have not been read: the writer may be between the two.
    owed: Cell<u64>,
}

impl Waker {
    /// Ends the [`wait`](Worker::wait) that the worker is in, or makes the next one return at once, with
    /// [`Waited::Moved`](crate::Waited::Moved), and [`arm`](Worker::arm) say `false`, once. All other calls that wait, [`wait_until`](Worker::wait_until) among them, look anew whether what they wait for
    /// has come, and leave the wake-up to the next `wait`. Several wake-ups may count as one. What this thread has done before is visible
    /// to the worker's thread behind that wait.
    ///
    /// It is one atomic exchange, and one system call if the worker sleeps or has armed since it was woken last. A signal handler may
    /// call it, and nothing else of a waker's: to drop the last one closes a descriptor and frees memory. When the worker is gone, and
    /// in a forked child, it does nothing. Where several wait for one worker, as by two [sets](crate::WaitSet), the first takes it for all.
    pub fn wake(&self) {
        if self.alarm.guard.same_process() && self.alarm.wakes() {
            self.alarm.wakeup.wake();
        }
    }
}

impl Waker {
    /// An error in a forked child.
    pub(super) fn check_process(&self) -> Result<(), Error> {
        self.alarm.guard.check("a worker")
    }
}

impl Alarm {
    /// Says so; whether the worker sleeps, so that it needs the descriptor.
    fn wakes(&self) -> bool {
        self.state.swap(WOKEN, Ordering::AcqRel) == ASLEEP
    }
}

impl Signal {
    pub(in crate::worker) fn new() -> Result<Signal, Error> {
        let alarm = Alarm {
            // It may have armed before somebody asked for this.
            state: AtomicU32::new(ASLEEP),
            wakeup: Wakeup::new()?,
            guard: ForkGuard::new(),
        };
        Ok(Signal { alarm: Arc::new(alarm), slept: Cell::new(true), owed: Cell::new(0) })
    }

    pub(in crate::worker) fn waker(&self) -> Waker {
        Waker { alarm: self.alarm.clone() }
    }

    /// Whether the worker may sleep: nobody has woken it since it looked last. From here on who wakes it writes to the descriptor.
    pub(in crate::worker) fn may_sleep(&self) -> bool {
        self.read();
        let (acquire, both) = (Ordering::Acquire, Ordering::AcqRel);
        match self.alarm.state.compare_exchange(AWAKE, ASLEEP, both, acquire) {
            Ok(_) => self.slept.set(true),
            Err(WOKEN) => return false,
            Err(_) => {}
        }
        true
    }

    /// Whether somebody has woken the worker since it was asked last.
    pub(in crate::worker) fn was_woken(&self) -> bool {
        // Nobody else ever says that it is awake.
        if self.alarm.state.load(Ordering::Relaxed) == AWAKE {
            self.read();
            return false;
        }
        let woken = self.alarm.state.swap(AWAKE, Ordering::AcqRel) == WOKEN;
        if self.slept.replace(false) && woken {
            self.owed.set(self.owed.get() + 1);
        }
        self.read();
        woken
    }

    /// Reads what was written. What is still to be written is read later, and may end a sleep for nothing.
    fn read(&self) {
        if self.owed.get() > 0 {
            self.owed.set(self.owed.get().saturating_sub(self.alarm.wakeup.take()));
        }
    }
}

impl AsRawFd for Signal {
    fn as_raw_fd(&self) -> RawFd {
        self.alarm.wakeup.as_raw_fd()
    }
}

impl Worker {
    /// What ends this worker's waits from any thread: who has left something where the worker's thread will look says so by it.
    ///
    /// ```
    /// # fn main() -> Result<(), tieline::Error> {
    /// # let context = tieline::Context::open()?;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// static DONE: AtomicBool = AtomicBool::new(false);
    ///
    /// let worker = context.worker()?;
    /// let waker = worker.waker()?;
    /// let other = std::thread::spawn(move || {
    ///     DONE.store(true, Ordering::Release);
    ///     waker.wake();
    /// });
    /// while !DONE.load(Ordering::Acquire) {
    ///     worker.wait(None)?;
    /// }
    /// # other.join().unwrap();
    /// # Ok(()) }
    /// ```
    ///
    /// All wakers of a worker are one. They keep a descriptor open, until the worker and the last of them are gone; a worker that nobody
    /// asks for one has none.
    ///
    /// # Errors
    /// When the system gives no descriptor; `Closed` when the worker is, `Invalid` in a forked child.
    pub fn waker(&self) -> Result<Waker, Error> {
        self.inner.check_open()?;
        Ok(self.inner.signal()?.waker())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Poller;
    use std::time::Duration;

    /// Two who wake and one who sleeps, a step at a time.
    struct Play {
        signal: Signal,
        poller: Poller,
        /// What each of the two has left for the worker.
        left: [bool; 2],
        /// The steps that each has gone, and whether the last one found the worker asleep.
        gone: [(u32, bool); 2],
        seen: [bool; 2],
        next: Next,
    }

    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Next {
        Look,
        Arm,
        Sleep,
        Done,
    }

    impl Play {
        fn new() -> Play {
            let (signal, poller) = (Signal::new().unwrap(), Poller::new().unwrap());
            poller.add(signal.as_raw_fd()).unwrap();
            let (left, gone, seen) = ([false; 2], [(0, false); 2], [false; 2]);
            Play { signal, poller, left, gone, seen, next: Next::Look }
        }

        fn is_readable(&self) -> bool {
            self.poller.wait(Some(Duration::ZERO)).unwrap()
        }

        /// One step of who wakes: it leaves something and says so, then writes if it has to.
        fn wakes(&mut self, who: usize) {
            let (steps, asleep) = self.gone[who];
            self.gone[who] = match steps {
                0 => {
                    self.left[who] = true;
                    (1, self.signal.alarm.wakes())
                }
                1 => {
                    if asleep {
                        self.signal.alarm.wakeup.wake();
                    }
                    (2, false)
                }
                done => (done, false),
            };
        }

        /// One step of the worker, which waits until both have left something.
        fn works(&mut self) {
            self.next = match self.next {
                Next::Look => {
                    self.seen = self.left;
                    if self.seen == [true; 2] { Next::Done } else { Next::Arm }
                }
                Next::Arm if self.signal.may_sleep() => Next::Sleep,
                Next::Arm => {
                    assert!(self.signal.was_woken(), "what keeps it awake is that it was woken");
                    Next::Look
                }
                Next::Sleep if self.is_readable() => {
                    let _ = self.signal.was_woken();
                    Next::Look
                }
                stays => stays,
            };
        }
    }

    #[test]
    fn whatever_the_order_of_their_steps_no_wake_is_lost_and_none_wakes_for_ever() {
        const STEPS: u32 = 10;
        for order in 0..3u32.pow(STEPS) {
            let mut play = Play::new();
            let mut rest = order;
            for _ in 0..STEPS {
                match rest % 3 {
                    0 => play.works(),
                    who => play.wakes(who as usize - 1),
                }
                rest /= 3;
            }
            for who in [0, 0, 1, 1] {
                play.wakes(who);
            }
            let mut steps = 0;
            while play.next != Next::Done {
                assert!(
                    play.next != Next::Sleep || play.is_readable(),
                    "it sleeps for ever, order {order}"
                );
                assert!(steps < 20, "it never sees what was left, order {order}");
                play.works();
                steps += 1;
            }
            // It may be woken for nothing a few times.
            let mut times = 0;
            while !play.signal.may_sleep() || play.is_readable() {
                let _ = play.signal.was_woken();
                times += 1;
                assert!(times < 4, "it never sleeps again, order {order}");
            }
        }
    }

    #[test]
    fn a_worker_that_is_awake_is_woken_without_a_system_call() {
        let play = Play::new();
        assert!(!play.signal.was_woken());
        let waker = play.signal.waker();
        for _ in 0..10 {
            waker.wake();
        }
        assert_eq!(play.signal.alarm.wakeup.take(), 0, "nobody slept");
        assert!(!play.signal.may_sleep() && play.signal.was_woken());
        assert!(play.signal.may_sleep() && !play.is_readable());
        for _ in 0..10 {
            waker.wake();
        }
        assert!(play.is_readable());
        assert_eq!(play.signal.alarm.wakeup.take(), 1, "the first of them was enough");
    }
}
