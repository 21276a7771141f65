//! What this process does right now, and a thread that names it when it takes too long.
//!
//! A check that hangs is found by the process that runs it, since nobody else knows whether a slot of the provider did not
//! return, or which event did not come. Whoever started the process ends it a little later, should even that fail.

mod sys;

pub(crate) use sys::{Broken, dies_with_us, end, stop};

use crate::report::{Stop, Verdict, fail};
use core::sync::atomic::{AtomicU64, Ordering};
use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a check may take, unless somebody says otherwise.
pub const LIMIT: Duration = Duration::from_secs(10);

static LIMIT_MS: AtomicU64 = AtomicU64::new(10_000);
/// Slots that one thread has called and that have not returned, the last one called at the end.
type Calls = Mutex<Vec<(&'static str, Instant)>>;
/// Those of every thread: threads that shared one lock for this would seldom call at the same moment.
static CALLS: Mutex<Vec<Arc<Calls>>> = Mutex::new(Vec::new());
/// The event that is waited for.
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

/// The limit of the check that this process runs.
pub(crate) fn limit() -> Duration {
    Duration::from_millis(LIMIT_MS.load(Ordering::Relaxed))
}

/// The limit is somebody else's: of whom this process is the peer.
pub(crate) fn endless() {
    LIMIT_MS.store(1 << 31, Ordering::Relaxed);
}

/// So long may one part of a check go on that could go on for ever: a share of the limit, of the usual one at most.
pub(crate) fn share(of: u32) -> Duration {
    limit().min(LIMIT) / of
}

/// Milliseconds in which an event has to show on a descriptor: only a lost wake-up takes this long.
pub(crate) fn patience_ms() -> i32 {
    i32::try_from(limit().as_millis() / 3).unwrap_or(i32::MAX)
}

/// A slot of the provider is running until this is dropped.
pub(crate) struct Call(&'static str);

/// Notes that a slot is being called.
pub(crate) fn call(slot: &'static str) -> Call {
    OWN.with(|calls| locked(calls).push((slot, Instant::now())));
    Call(slot)
}

impl Drop for Call {
    fn drop(&mut self) {
        // A thread that has ended has called nothing that did not return.
        let _ = OWN.try_with(|calls| {
            let mut calls = locked(calls);
            let at = calls.iter().rposition(|(slot, _)| *slot == self.0);
            at.map(|at| calls.remove(at))
        });
    }
}

/// Notes what comes next, for whoever finds that it does not come.
pub(crate) fn waits_for(what: impl Into<Cow<'static, str>>) {
    *locked(&WAITS) = what.into();
}

/// Lets the process say that it hangs, and end, when `limit` has passed.
pub(crate) fn begin(limit: Duration) {
    LIMIT_MS.store(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    let _ = std::thread::spawn(move || {
        std::thread::sleep(limit);
        // One that is called again and again is there as well, but not for long.
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

/// A time within which something must have come.
pub(crate) struct Patience {
    began: Instant,
    most: Duration,
}

impl Patience {
    /// Half of the check's limit: whoever waits longer says so in better words than the limit could.
    pub(crate) fn new() -> Patience {
        Patience { began: Instant::now(), most: limit() / 2 }
    }

    /// Fails once the time has passed.
    pub(crate) fn still(&self, what: &str, expected: &str, found: &str) -> Result<(), Stop> {
        match self.began.elapsed() > self.most {
            true => Err(fail(what, format!("{expected} within {:?}", self.most), found)),
            false => Ok(()),
        }
    }
}
