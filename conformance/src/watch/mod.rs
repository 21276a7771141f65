//! The current calls and waits of this process, and a thread that reports one of them when the time limit has passed.
//!
//! A check that hangs is detected by its own process, because only that process knows which slot of the provider did not return, or
//! which event did not arrive. If even that fails, the parent process ends the process a little later.

mod sys;

pub(crate) use sys::{Broken, dies_with_us, end, stop};

use crate::report::{Stop, Verdict, fail};
use core::sync::atomic::{AtomicU64, Ordering};
use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The default time limit of a check.
pub const LIMIT: Duration = Duration::from_secs(10);

static LIMIT_MS: AtomicU64 = AtomicU64::new(10_000);
/// The slots that one thread has called and that have not returned, the last call at the end.
type Calls = Mutex<Vec<(&'static str, Instant)>>;
/// The calls of the threads that have called a slot. If all threads shared one lock, they would seldom call at the same moment.
static CALLS: Mutex<Vec<Arc<Calls>>> = Mutex::new(Vec::new());
static WAITS: Mutex<Cow<'static, str>> = Mutex::new(Cow::Borrowed("nothing in particular"));

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static OWN: Arc<Calls> = {
        let own = Arc::<Calls>::default();
        let mut all = locked(&CALLS);
        all.retain(|calls| Arc::strong_count(calls) > 1);
        all.push(own.clone());
        own
    };
}

pub(crate) fn limit() -> Duration {
    Duration::from_millis(LIMIT_MS.load(Ordering::Relaxed))
}

/// Sets a limit of weeks: this process is the peer of a check with its own limit.
pub(crate) fn endless() {
    LIMIT_MS.store(1 << 31, Ordering::Relaxed);
}

/// Returns the time limit of a part of a check that could continue for ever: a share of the limit, at most of the default limit.
pub(crate) fn share(of: u32) -> Duration {
    limit().min(LIMIT) / of
}

/// Returns the milliseconds in which an event must show on a descriptor: a third of the limit.
pub(crate) fn patience_ms() -> i32 {
    i32::try_from(limit().as_millis() / 3).unwrap_or(i32::MAX)
}

/// A slot of the provider that is running until this value is dropped.
pub(crate) struct Call(&'static str);

pub(crate) fn call(slot: &'static str) -> Call {
    OWN.with(|calls| locked(calls).push((slot, Instant::now())));
    Call(slot)
}

impl Drop for Call {
    fn drop(&mut self) {
        let _ = OWN.try_with(|calls| {
            let mut calls = locked(calls);
            let at = calls.iter().rposition(|(slot, _)| *slot == self.0);
            at.map(|at| calls.remove(at))
        });
    }
}

/// Records the awaited event, for the report if it does not arrive.
pub(crate) fn waits_for(what: impl Into<Cow<'static, str>>) {
    *locked(&WAITS) = what.into();
}

/// Starts the thread that ends the process when `limit` has passed, and prints the call or wait that hangs.
pub(crate) fn begin(limit: Duration) {
    LIMIT_MS.store(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    let _ = std::thread::spawn(move || {
        std::thread::sleep(limit);
        // A slot that is called repeatedly is in the list, too, but not for long.
        let long = |(_, since): &&(_, Instant)| since.elapsed() > limit / 4;
        let all = locked(&CALLS).clone();
        let doing = match all.iter().find_map(|calls| locked(calls).iter().find(long).copied()) {
            Some((slot, _)) => format!("{slot} did not return: a slot must not wait"),
            None => format!("it waited for {}", locked(&WAITS)),
        };
        let found = format!("that it hung: {doing}");
        let why = fail("the check", format!("an end within {limit:?}"), found);
        end(&Verdict::from(Err(why)).to_string());
    });
}

pub(crate) struct Patience {
    began: Instant,
    most: Duration,
}

impl Patience {
    /// Makes a time limit of half of the check's limit, so that the text of this wait comes before that of the limit.
    pub(crate) fn new() -> Patience {
        Patience { began: Instant::now(), most: limit() / 2 }
    }

    pub(crate) fn still(&self, what: &str, expected: &str, found: &str) -> Result<(), Stop> {
        match self.began.elapsed() > self.most {
            true => Err(fail(what, format!("{expected} within {:?}", self.most), found)),
            false => Ok(()),
        }
    }
}
