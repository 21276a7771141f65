//! The trial that verifies claims of a libfabric provider for each device before this provider advertises them, unless they are
//! trusted. A put that completes must be in the target's memory (`FI_DELIVERY_COMPLETE`), and atomics must have the effect of their
//! names. `net` of 1.17 claims both and does neither.
//!
//! Two interfaces of one process do puts and gets. They belong to separate domains, so that neither makes progress for the other.

use crate::atomics::{self, Masks};
use crate::config::Settings;
use crate::engine::{Engine, RemoteKey};
use crate::memory::{Region, Registry};
use crate::offers::{Offer, core_name};
use crate::sys;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tieline_plugin_api::abi::{Atomic, Iov};
use tieline_plugin_api::{Failure, Posted, Posting, RmaOp, Status, access, op_flags};

/// The time limit for a connection, and for operations that must complete.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 5 });
/// The time after a post in which the target makes no progress: a put that completes meanwhile must be in memory, too.
const AT_ONCE: Duration = Duration::from_micros(if cfg!(test) { 100 } else { 5000 });

/// The maximum number of trials of a device that has not completed everything in time: the cause may be a busy host.
const TRIALS: u32 = 3;

/// The result of a device's trial.
#[derive(Clone, Default)]
pub(crate) struct Found {
    /// The reason why puts and gets are not advertised.
    pub(crate) lies: Option<String>,
    pub(crate) atomics: Masks,
    /// The reason why some atomics are not advertised.
    pub(crate) broken_atomics: Option<String>,
    /// The reason why the device must not be opened at all.
    pub(crate) deadly: Option<String>,
    /// Whether something did not complete, which is weaker evidence than a wrong result.
    unsure: bool,
}

/// The reason why a feature is not advertised: a wrong result, no result, or no result in time.
enum No {
    Wrong(String),
    NotDone(String),
    /// The first interface could not be opened.
    NotOpened(String),
}

impl No {
    fn words(self) -> String {
        let (No::Wrong(words) | No::NotDone(words) | No::NotOpened(words)) = self;
        words
    }
}

impl Found {
    /// Records why a feature is not advertised, and returns the words.
    fn note(&mut self, no: No) -> String {
        self.unsure |= matches!(no, No::NotDone(_) | No::NotOpened(_));
        no.words()
    }
}

/// The trial results of this process.
static TRIED: Tried = Tried::new();

/// Returns the features to advertise. Runs the trial, unless this process already has a sure result or has tried [`TRIALS`] times.
pub(crate) fn found(offer: &Offer, settings: &Settings) -> Found {
    // Tests change the behaviour of the simulated library, so their results are not shared.
    if cfg!(test) { Tried::new().found(offer, settings) } else { TRIED.found(offer, settings) }
}

/// The trial results, keyed by everything that they depend on.
pub(crate) struct Tried(Mutex<Option<HashMap<Case, Once>>>);

/// The result and the number of trials. The lock is held during a trial.
type Once = Arc<Mutex<Option<(Found, u32)>>>;

/// A device, its settings and the trusted claims: one context may trust a claim that another one tries.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Case {
    library: String,
    api: u32,
    domain: String,
    format: u32,
    progress: i32,
    /// Whether the features are trusted without a trial.
    delivery: bool,
    atomics: bool,
    /// Whether atomics are requested.
    has_atomics: bool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tried {
    pub(crate) const fn new() -> Tried {
        Tried(Mutex::new(None))
    }

    pub(crate) fn found(&self, offer: &Offer, settings: &Settings) -> Found {
        let case = Case {
            library: settings.library.clone(),
            api: settings.api,
            domain: offer.domain.clone(),
            format: offer.info.address_format(),
            progress: settings.progress,
            delivery: settings.trusts("delivery"),
            atomics: settings.trusts("atomics"),
            has_atomics: offer.atomics,
        };
        if case.delivery && !case.has_atomics || !offer.delivery && is_proven(offer) {
            return Found::default();
        }
        // A trial takes seconds if nothing answers. Trials of different devices do not wait for each other.
        let known =
            locked(&self.0).get_or_insert_default().entry(case.clone()).or_default().clone();
        let mut known = locked(&known);
        let now = match known.take() {
            Some(before) if !before.0.unsure || before.1 == TRIALS => before,
            before => {
                (tried_safely(offer, settings, &case), before.map_or(0, |before| before.1) + 1)
            }
        };
        known.insert(now).0.clone()
    }
}

/// The providers that have moved data without harm to the process, in every release that is known. Others are first tried in a
/// child, unless their claims are trusted. With verbs;ofi_rxm a child would find nothing: `fi_getinfo` has opened the device, and
/// the kernel accepts commands of its opener only (observed: EACCES over soft RoCE).
const PROVEN: &[&str] = &["tcp", "tcp;ofi_rxm", "sockets", "verbs;ofi_rxm"];

fn is_proven(offer: &Offer) -> bool {
    // The trial in a child is the subject of few tests.
    let played = cfg!(test) && core_name(&offer.provider) == "played";
    played || PROVEN.contains(&offer.provider.as_str())
}

fn tried_safely(offer: &Offer, settings: &Settings, case: &Case) -> Found {
    if !is_proven(offer) {
        // The key includes libfabric's own settings: a crash may depend on them, and changing one may be the cure.
        let own = crate::config::librarys_own(std::env::vars_os()).unwrap_or_default();
        let device = format!("{own};{}:{}@{:x}", offer.provider, offer.domain, settings.api);
        // If the provider does not claim puts, the trial does not try them.
        let case = Case { delivery: case.delivery || !offer.delivery, ..case.clone() };
        // A child that opened nothing has proved nothing. A child that moved no data, for example because only the opener of a
        // descriptor may write to it, still counts: another child would find no more.
        let act = || {
            let tried = try_out(offer, settings, &case, &mut Found::default());
            !matches!(tried, Err(No::NotOpened(_)))
        };
        if let Err(deadly) = crate::trial::survives(&settings.library, &device, act) {
            let advice =
                crate::config::dangers(&offer.provider, std::env::var_os("FI_OFI_RXM_USE_SRX"));
            let advice = advice.map_or(String::new(), |advice| format!("; {advice}"));
            let (words, unsure) = (deadly.words + &advice, deadly.may_change);
            return Found { deadly: Some(words), unsure, ..Found::default() };
        }
    }
    if offer.delivery { tried(offer, settings, case) } else { Found::default() }
}

fn tried(offer: &Offer, settings: &Settings, case: &Case) -> Found {
    let mut found = Found::default();
    if let Err(no) = try_out(offer, settings, case, &mut found) {
        let is_closed = matches!(no, No::NotOpened(_));
        let why = found.note(no);
        found.deadly = is_closed.then(|| format!("it is left out: {why}"));
        // A trusted claim is meaningless if no interface could be opened.
        found.lies = (!case.delivery).then_some(why.clone());
        found.broken_atomics = offer.atomics.then_some(why);
    }
    if !found.atomics.are_enough() || found.lies.is_some() {
        let why = found.broken_atomics.take();
        let missing = || "it does not count an exchange of 64 bits by comparison".to_owned();
        let none = |why: String| format!("{why}; none is used");
        // If the atomics are incomplete, none are used: the core builds the missing ones from a 64-bit compare-and-swap.
        found.broken_atomics = offer.atomics.then(|| none(why.unwrap_or_else(missing)));
        found.atomics = Masks::default();
    }
    found
}

struct Side {
    registry: Arc<Registry>,
    engine: Engine,
    ended: Vec<(u64, Result<u64, Status>)>,
}

impl Side {
    fn open(offer: &Offer, settings: &Settings) -> Result<Side, Failure> {
        let domain = sys::Domain::open(&offer.info)?;
        let registry = Arc::new(Registry::new(domain, false, settings.failure_timeout)?);
        let engine = Engine::open(&registry, offer, settings, false, None)?;
        Ok(Side { registry, engine, ended: Vec::new() })
    }

    fn poll(&mut self) {
        self.ended.extend(self.engine.drain());
    }
}

/// The target memory and the endpoints of the trial, which outlive the sides. The memory is never freed if the library has kept an
/// endpoint (cxi, sockets: EBUSY) or a registration and may still write to it.
struct Ground {
    here: Vec<AtomicU64>,
    there: Vec<AtomicU64>,
    eps: Vec<Arc<sys::Ep>>,
}

impl Drop for Ground {
    fn drop(&mut self) {
        let words = [&mut self.here, &mut self.there].map(core::mem::take);
        if self.eps.iter().all(|ep| ep.shut() && !ep.is_reached()) {
            #[cfg(test)]
            words.iter().for_each(|words| crate::double::world::freed(words.as_ptr().addr(), LONG));
        } else {
            core::mem::forget(words);
        }
    }
}

fn try_out(offer: &Offer, settings: &Settings, case: &Case, found: &mut Found) -> Result<(), No> {
    let close_timeout = settings.close_timeout.min(Duration::from_millis(100));
    let connect_timeout = 2 * PATIENCE;
    let settings = Settings { watch: None, close_timeout, connect_timeout, ..settings.clone() };
    let words = |failure: Failure| No::NotDone(failure.text);
    let zeroes = || (0..LONG / 8).map(|_| AtomicU64::new(0)).collect();
    // `ground` is declared before the sides, so it is dropped after them.
    let mut ground = Ground { here: zeroes(), there: zeroes(), eps: Vec::new() };
    let mut near = Side::open(offer, &settings).map_err(|failure| No::NotOpened(failure.text))?;
    ground.eps.push(near.engine.ep());
    if case.delivery && case.atomics {
        // All claims are trusted, so no trial and no peer is needed.
        found.atomics = near.engine.counted_atomics();
        return Ok(());
    }
    let mut far = Side::open(offer, &settings).map_err(words)?;
    ground.eps.push(far.engine.ep());
    let address = far.engine.address.clone();
    let channel = near.engine.connect(&address, b"", 1).map_err(words)?;
    let began = Instant::now();
    while !near.engine.is_connected(channel) {
        near.poll();
        far.poll();
        if began.elapsed() >= PATIENCE {
            let text = "two interfaces of this process cannot reach each other";
            return Err(No::NotDone(text.into()));
        }
    }
    let all = access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC;
    let base = ground.there.as_ptr().cast::<u8>().cast_mut();
    let region = far.registry.register(base, LONG, all).map_err(words)?;
    let mut packed = vec![0; crate::keys::LONGEST];
    let len = far.registry.pack_key(&region, &mut packed).map_err(words)?;
    let key = near.engine.import_key(channel, &packed[..len]).map_err(words)?;
    let mut sides = Sides { key, _region: region, far, near, channel };
    if !case.delivery {
        sides.put_and_get(&ground.here, &ground.there)?;
    }
    if offer.atomics {
        found.atomics = sides.near.engine.counted_atomics();
        if !case.atomics {
            let missing = sides.do_atomics(&mut found.atomics, &ground.there).err();
            found.broken_atomics = missing.map(|no| found.note(no));
        }
    }
    sides.near.engine.close(channel);
    Ok(())
}

/// Two connected interfaces, and a key to the memory of the far one.
struct Sides {
    // The fields are in the order in which they are dropped.
    key: RemoteKey,
    _region: Region,
    far: Side,
    near: Side,
    channel: usize,
}

impl Sides {
    /// Posts an operation, and retries until the time `until` while the library is busy.
    fn post(
        &mut self,
        until: Instant,
        post: impl Fn(&mut Engine, usize, &RemoteKey) -> Posted,
    ) -> Posted {
        loop {
            match post(&mut self.near.engine, self.channel, &self.key) {
                Err(Status::Again) if Instant::now() < until => {
                    self.near.poll();
                    self.far.poll();
                }
                other => return other,
            }
        }
    }

    fn put_and_get(&mut self, here: &[AtomicU64], there: &[AtomicU64]) -> Result<(), No> {
        let failed = |status| No::NotDone(format!("a put or get to this process: {status}"));
        // Short and long transfers use different protocols, both in this provider and in the library. Each round has its own value.
        for (round, (put, len)) in
            [(true, 64), (true, LONG), (false, 64), (false, LONG)].iter().enumerate()
        {
            let value = 0x0101_0101_0101_0101 * (round as u64 + 1);
            let (source, target) = if *put { (here, there) } else { (there, here) };
            source.iter().for_each(|word| word.store(value, Ordering::Relaxed));
            target.iter().for_each(|word| word.store(!value, Ordering::Relaxed));
            let iov = [Iov::new(here.as_ptr().cast::<u8>().cast_mut(), *len)];
            let flags = op_flags::REMOTE_COMPLETION;
            let op = RmaOp { iov: &iov, len: *len, offset: 0, cookie: round as u64, flags };
            self.near.ended.clear();
            let until = Instant::now() + PATIENCE;
            match self.post(until, |engine, channel, key| engine.transfer(channel, *put, key, &op))
            {
                Ok(Posting::Pending) => {}
                Ok(Posting::Done) => {
                    return Err(No::Wrong("a put of ours has ended at once".into()));
                }
                Err(status) => return Err(failed(status)),
            }
            let began = Instant::now();
            while self.near.ended.is_empty() {
                self.near.poll();
                if began.elapsed() >= AT_ONCE {
                    self.far.poll();
                }
                if began.elapsed() >= PATIENCE {
                    return Err(No::NotDone("a put or get to this process does not end".into()));
                }
            }
            if let (_, Err(status)) = self.near.ended[0] {
                return Err(failed(status));
            }
            if target[..len / 8].iter().any(|word| word.load(Ordering::Acquire) != value) {
                return Err(No::Wrong("it says that bytes have arrived that have not".into()));
            }
        }
        Ok(())
    }

    /// Executes every claimed atomic twice, each on its own word. Atomics without a result or with a wrong one are removed from
    /// `claimed`.
    fn do_atomics(&mut self, claimed: &mut Masks, there: &[AtomicU64]) -> Result<(), No> {
        self.near.engine.do_atomics(*claimed);
        let before =
            Masks::each().filter(|&(op, width, fetch)| claimed.has(op, width, fetch)).count();
        // All operations share one deadline: if none completes, only few can be posted.
        let until = Instant::now() + PATIENCE;
        let done = ROUNDS.iter().try_for_each(|round| self.do_round(round, claimed, there, until));
        if let Err(why) = done {
            *claimed = Masks::default();
            return Err(why);
        }
        let after =
            Masks::each().filter(|&(op, width, fetch)| claimed.has(op, width, fetch)).count();
        if before == after {
            return Ok(());
        }
        let missing = before - after;
        let text =
            format!("{missing} that it claims it does not do, or does wrongly; they are not used");
        Err(No::Wrong(text))
    }

    fn do_round(
        &mut self,
        round: &Round,
        claimed: &mut Masks,
        there: &[AtomicU64],
        until: Instant,
    ) -> Result<(), No> {
        for (at, word) in there.iter().enumerate() {
            word.store(round.word(at), Ordering::Relaxed);
        }
        self.near.ended.clear();
        let mut posted = 0;
        for (cookie, (op, width, fetch)) in Masks::each().enumerate() {
            if !claimed.has(op, width, fetch) {
                continue;
            }
            let atomic = Atomic {
                op,
                width,
                key: core::ptr::null_mut(),
                offset: cookie as u64 * 8,
                operand: round.operand,
                compare: round.compare(cookie, width),
                result: core::ptr::null_mut(),
                cookie: cookie as u64,
                flags: if fetch { op_flags::FETCH } else { 0 },
            };
            match self.post(until, |engine, channel, key| engine.atomic(channel, key, &atomic)) {
                Ok(_) => posted += 1,
                Err(Status::Again) => {
                    let text = "it does not take all atomics to this process in time";
                    return Err(No::NotDone(text.into()));
                }
                Err(_) => claimed.remove(op, width, fetch),
            }
        }
        while self.near.ended.len() < posted {
            self.near.poll();
            self.far.poll();
            if Instant::now() >= until {
                return Err(No::NotDone("an atomic to this process does not end".into()));
            }
        }
        for (cookie, (op, width, fetch)) in Masks::each().enumerate() {
            let mut after = bytes_of(round.word(cookie));
            let old = atomics::value(&after[..width as usize]);
            let compare = round.compare(cookie, width);
            let new = atomics::applied(op, width, old, round.operand, compare);
            after[..width as usize].copy_from_slice(&atomics::bytes(new, width));
            let fetched = if fetch { old } else { 0 };
            let is_so = bytes_of(there[cookie].load(Ordering::Acquire)) == after
                && self.near.ended.contains(&(cookie as u64, Ok(fetched)));
            if !is_so {
                claimed.remove(op, width, fetch);
            }
        }
        Ok(())
    }
}

/// The values for one round of atomics.
struct Round {
    first: u64,
    operand: u64,
    /// Whether the comparand equals the value in memory.
    matches: bool,
}

/// The rounds. The minimum and maximum each leave the word unchanged in one round and change it in the other. As signed numbers
/// they would do so the other way round, in both halves. A comparison succeeds in one round and fails in the other.
const ROUNDS: [Round; 2] = [
    Round { first: 0x7035_1a53_6e39_4c11, operand: 0xb1a9_c6d5_d2f3_8716, matches: true },
    Round { first: 0xf2a5_9a53_e419_4c15, operand: 0x31c6_a5d4_5b3c_e718, matches: false },
];

impl Round {
    /// Returns the initial value, which is different in every word, so that a fetched value identifies its word.
    fn word(&self, at: usize) -> u64 {
        self.first + at as u64 * 0x0100_0000_0100
    }

    fn compare(&self, at: usize, width: u32) -> u64 {
        let old = atomics::value(&bytes_of(self.word(at))[..width as usize]);
        if self.matches { old } else { !old }
    }
}

fn bytes_of(word: u64) -> [u8; 8] {
    word.to_ne_bytes()
}

/// The size in bytes of the long transfers.
const LONG: usize = 64 << 10;
