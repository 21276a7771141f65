//! The cost of messages and of puts over `rc`, from the application's call to the device. `cargo xtask instructions` counts the
//! instructions of the functions whose names begin with `measured`, without those of the device double. As a test, this file checks
//! that all messages and puts arrive.

#![allow(unsafe_code)] // the clock

use crate::{VerbsDomain, double};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicI64, Ordering};
use tieline::endpoint::Completion;
use tieline::{Context, Endpoint, Outcome, Region, RemoteKey, Worker};
use tieline_plugin_api::abi::shims::entry;
use tieline_plugin_api::{ConfigDoc, DomainInfo, Failure, HostHandle, Provider, memory_caps};

/// The number of messages per batch: less than the initial window, so that no send waits for credits.
const BATCH: usize = 8;

/// The length of a put that exceeds the inline limit.
const LONGER: usize = 4096;

/// The time at which the counted operations began, in nanoseconds of the monotonic clock; zero if nothing is counted.
static BEGAN: AtomicI64 = AtomicI64::new(0);

/// The number by which the time of this process is divided after [`BEGAN`].
const SLOWER: i64 = 1024;

/// The clocks of this process. While operations are counted, the time passes more slowly than the real time, because callgrind and
/// a loaded machine slow the program down.
///
/// # Safety
/// As of the function of the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(
    clock: libc::clockid_t,
    now: *mut libc::timespec,
) -> libc::c_int {
    // SAFETY: the arguments are those of the caller.
    let outcome = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, now) as libc::c_int };
    let began = BEGAN.load(Ordering::Relaxed);
    if outcome == 0
        && began != 0
        && matches!(clock, libc::CLOCK_MONOTONIC | libc::CLOCK_MONOTONIC_COARSE)
    {
        // SAFETY: the caller passes a valid pointer, and the system has written there.
        let now = unsafe { &mut *now };
        let time = began + (nanoseconds(now) - began) / SLOWER;
        (now.tv_sec, now.tv_nsec) = (time / 1_000_000_000, time % 1_000_000_000);
    }
    outcome
}

fn nanoseconds(time: &libc::timespec) -> i64 {
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Lets the time pass more slowly from now on.
fn slow_time_down() {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the record outlives the call.
    let _ = unsafe { clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    BEGAN.store(nanoseconds(&now), Ordering::Relaxed);
}

/// The provider with the device double as its only device, under every name in `TIELINE_VERBS_DEVICES`.
struct Played {
    connections: usize,
    names: String,
}

impl Provider for Played {
    type Domain = VerbsDomain;

    fn open(host: HostHandle) -> Result<Played, Failure> {
        let connections = host.config("TIELINE_VERBS_CONNECTIONS").size();
        Ok(Played { connections, names: host.config("TIELINE_VERBS_DEVICES").text })
    }

    fn config() -> &'static [ConfigDoc] {
        crate::config::VARIABLES
    }

    fn domains(&self) -> Result<Vec<DomainInfo>, Failure> {
        let names = if self.names.is_empty() { "double0" } else { &self.names };
        let domain = |name| DomainInfo {
            name: format!("verbs:{name}"),
            caps: memory_caps::REGISTER,
            max_key_len: crate::keys::KEY_LEN as u32,
            register_ns: 15_000.0,
            register_ns_per_byte: 0.06,
        };
        Ok(names.split(',').map(domain).collect())
    }

    fn open_domain(&self, _: &str, _: [u8; 16]) -> Result<VerbsDomain, Failure> {
        // The other end of a dropped connection is not polled, so a short limit saves time.
        double::domain(&[
            ("TIELINE_VERBS_CONNECTIONS", &self.connections.to_string()),
            ("TIELINE_CLOSE_TIMEOUT", "10ms"),
        ])
    }
}

/// One process's side of a test.
pub(crate) struct Half {
    pub(crate) worker: Worker,
    pub(crate) seen: Rc<Cell<usize>>,
    pub(crate) context: Context,
}

impl Half {
    pub(crate) fn open() -> Half {
        Half::with(&[])
    }

    /// Opens one side with additional settings.
    pub(crate) fn with(more: &[(&str, &str)]) -> Half {
        tieline::link_provider("verbs", "1.0.0", entry::<Played>);
        // A provider file beside this program has another version.
        let settings = [("TIELINE_PROVIDERS", "verbs@^1.0"), ("TIELINE_LIVE", "off")];
        let settings = settings.iter().chain(more);
        let builder = settings.fold(Context::builder(), |b, (name, to)| b.set(name, to));
        let context = builder.set("TIELINE_PROVIDER_PATH", "").open().unwrap();
        let (worker, seen) = (context.worker().unwrap(), Rc::new(Cell::new(0)));
        let count = seen.clone();
        worker.on_message(1, move |_| count.set(count.get() + 1)).unwrap();
        Half { worker, seen, context }
    }
}

#[inline(never)]
fn measured_rc_post(endpoint: &Endpoint) {
    for n in 0..BATCH as u64 {
        assert!(endpoint.send(1, n, &n.to_le_bytes()).is_ok());
    }
}

#[inline(never)]
fn measured_rc_receive(half: &Half) {
    half.seen.set(0);
    while half.seen.get() < BATCH {
        let _ = half.worker.progress();
    }
}

/// Posts puts, whose outcomes the caller awaits later.
#[inline(never)]
fn measured_rc_put(endpoint: &Endpoint, key: &RemoteKey, posted: &mut Vec<Outcome>) {
    for n in 0..BATCH as u64 {
        posted.extend(endpoint.put_bytes(&n.to_le_bytes(), key, 8 * n));
    }
}

/// Posts puts that the device reads from registered memory.
#[inline(never)]
fn measured_rc_region_put(
    endpoint: &Endpoint,
    local: &Region,
    key: &RemoteKey,
    posted: &mut Vec<Outcome>,
) {
    for _ in 0..BATCH {
        posted.extend(endpoint.put(local, 0..LONGER, key, 0));
    }
}

#[inline(never)]
fn measured_rc_region_end(worker: &Worker, posted: &mut Vec<Outcome>) {
    for outcome in posted.drain(..) {
        assert!(worker.finish(outcome).is_ok());
    }
}

/// Waits for the outcome of every put.
#[inline(never)]
fn measured_rc_end(worker: &Worker, posted: &mut Vec<Outcome>) {
    for outcome in posted.drain(..) {
        assert!(worker.finish(outcome).is_ok());
    }
}

/// Posts puts with local completion. Only the next flush reports their remote completion.
#[inline(never)]
fn measured_rc_local(endpoint: &Endpoint, local: &Region, key: &RemoteKey) -> usize {
    let put = |n: usize| {
        let (range, to) = (8 * n..8 * n + 8, 8 * n as u64);
        endpoint.put_with(local, range, key, to, Completion::Local).is_ok()
    };
    (0..BATCH).filter(|n| put(*n)).count()
}

#[inline(never)]
fn measured_rc_idle(worker: &Worker) {
    for _ in 0..BATCH {
        assert_eq!(worker.progress(), 0);
    }
}

#[test]
fn messages_and_puts_arrive_however_many_there_are() {
    let times = std::env::var("TIELINE_COUNTED").ok().and_then(|times| times.parse().ok());
    let times: usize = times.unwrap_or(800);
    let (near, far) = (Half::open(), Half::open());
    let endpoint = near.worker.connect(&far.worker.address().unwrap()).unwrap();
    let (there, here) = (far.context.alloc(LONGER).unwrap(), near.context.alloc(LONGER).unwrap());
    let key = endpoint.import_key(&there.remote_key().unwrap()).unwrap();
    let progress = || near.worker.progress() + far.worker.progress();
    let _ = endpoint.send(1, 0, b"warm up!").unwrap();
    while far.seen.get() == 0 || key.is_settling() {
        let _ = progress();
    }
    assert_eq!(key.path(), "verbs:double0/rc");
    if std::env::var_os("TIELINE_COUNTED").is_some() {
        slow_time_down();
    }
    let (mut posted, mut put_locally) = (Vec::with_capacity(BATCH), 0);
    for _ in 0..times / BATCH {
        measured_rc_post(&endpoint);
        measured_rc_receive(&far);
        measured_rc_put(&endpoint, &key, &mut posted);
        assert_eq!(posted.len(), BATCH);
        measured_rc_end(&near.worker, &mut posted);
        measured_rc_region_put(&endpoint, &here, &key, &mut posted);
        assert_eq!(posted.len(), BATCH);
        measured_rc_region_end(&near.worker, &mut posted);
        put_locally += measured_rc_local(&endpoint, &here, &key);
        let _ = near.worker.finish(endpoint.flush().unwrap()).unwrap();
        while progress() > 0 {}
        measured_rc_idle(&near.worker);
    }
    let mut bytes = [1; 8 * BATCH];
    there.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 8 * BATCH], "what was put last is what lies in memory of this side");
    assert_eq!(put_locally, times / BATCH * BATCH);
}
