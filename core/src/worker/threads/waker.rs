//! Ending a worker's sleep from another thread.
//!
//! Both sides share one atomic word. The worker announces its sleep by a compare-exchange that fails if another thread has woken it
//! before. The waking thread swaps its own value in, and writes to the descriptor only if the old value announced a sleep. Each
//! side does one atomic step on one word. Therefore one of the two always detects the other's step. A test runs all interleavings
//! of ten steps.

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

/// A handle by which any thread ends a wait of a worker. [`Worker::waker`] makes the handle.
#[derive(Clone)]
pub struct Waker {
    alarm: Arc<Alarm>,
}

/// The state that both sides share.
struct Alarm {
    state: AtomicU32,
    wakeup: Wakeup,
    guard: ForkGuard,
}

/// The worker's side.
pub(crate) struct Signal {
    alarm: Arc<Alarm>,
    /// Whether the worker has announced a sleep since its last check.
    slept: Cell<bool>,
    /// The number of writes to the descriptor that the word announces and that the worker has not read: the writer may be between
    /// the two steps.
    owed: Cell<u64>,
}

impl Waker {
    /// Wakes the worker. The wake-up ends the worker's present [`wait`](Worker::wait), or makes the next one return immediately,
    /// with [`Waited::Moved`](crate::Waited::Moved). If [`arm`](Worker::arm) is called before, it returns `false` instead and
    /// consumes the wake-up.
    ///
    /// Other calls that wait, including [`wait_until`](Worker::wait_until), check their condition again and leave the wake-up for
    /// the next `wait`. Several wake-ups may count as one. Writes of this thread before the call are visible to the worker's thread
    /// after that wait.
    ///
    /// The cost is one atomic exchange, plus one system call if the worker sleeps or has armed since it last noticed a wake-up. A
    /// signal handler may call this method, but must not drop the last waker: that closes a descriptor and frees memory. If the
    /// worker is gone, and in a forked child, the call does nothing. If several waits use one worker, for example two
    /// [sets](crate::WaitSet), the first of them consumes the wake-up.
    pub fn wake(&self) {
        if self.alarm.guard.same_process() && self.alarm.wakes() {
            self.alarm.wakeup.wake();
        }
    }
}

impl Waker {
    /// Fails in a forked child.
    pub(super) fn check_process(&self) -> Result<(), Error> {
        self.alarm.guard.check("a worker")
    }
}

impl Alarm {
    /// Sets the word, and returns whether the worker has announced a sleep, so that the descriptor has to be written.
    fn wakes(&self) -> bool {
        self.state.swap(WOKEN, Ordering::AcqRel) == ASLEEP
    }
}

impl Signal {
    pub(in crate::worker) fn new() -> Result<Signal, Error> {
        let alarm = Alarm {
            // The worker may have armed before the first waker was requested.
            state: AtomicU32::new(ASLEEP),
            wakeup: Wakeup::new()?,
            guard: ForkGuard::new(),
        };
        Ok(Signal { alarm: Arc::new(alarm), slept: Cell::new(true), owed: Cell::new(0) })
    }

    pub(in crate::worker) fn waker(&self) -> Waker {
        Waker { alarm: self.alarm.clone() }
    }

    /// Checks whether the worker may sleep: no thread has woken it since its last check. After this call, a waking thread writes to
    /// the descriptor.
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

    /// Checks whether a thread has woken the worker since the last call.
    pub(in crate::worker) fn was_woken(&self) -> bool {
        // Only this thread sets the word to `AWAKE`.
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

    /// Reads the pending writes. Later writes are read by a later call, and may end a sleep without cause.
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
    /// Returns a waker, by which any thread wakes this worker from a wait. The waking thread first stores the data that the
    /// worker's thread then reads.
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
    /// All wakers of a worker are equivalent. They keep a descriptor open until the worker and the last waker are dropped. A worker
    /// has no such descriptor before a waker or a [`Remote`](crate::Remote) is requested.
    ///
    /// # Errors
    /// The system's error if it cannot provide a descriptor. `Closed` if the worker is closed, `Invalid` in a forked child.
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

    /// A simulation of two waking threads and one worker, step by step.
    struct Play {
        signal: Signal,
        poller: Poller,
        /// Whether each waking thread has stored its data for the worker.
        left: [bool; 2],
        /// The number of steps that each thread has taken, and whether the last step found the worker asleep.
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

        /// Runs one step of a waking thread: it stores data and sets the word, then writes if it has to.
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

        /// Runs one step of the worker, which waits until both threads have stored data.
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
    fn no_wake_up_is_lost_or_repeated_in_any_interleaving() {
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
            // The worker may be woken a few times without cause.
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
