//! What a provider of libfabric claims and may not keep, tried once for each device before it is claimed here: that a put which
//! completes is in the target's memory (`FI_DELIVERY_COMPLETE`), and that atomics do what they are called. `net` of 1.17 grants
//! both and does neither.
//!
//! Two interfaces of domains of their own, so that none moves the other's data, put and get within this process.

use crate::atomics::{self, Masks};
use crate::config::Settings;
use crate::engine::{Engine, RemoteKey};
use crate::memory::{Region, Registry};
use crate::offers::Offer;
use crate::sys;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tieline_plugin_api::abi::{Atomic, Iov};
use tieline_plugin_api::{Failure, Posted, Posting, RmaOp, Status, access, op_flags};

/// For a connection, and for what has to end.
const PATIENCE: Duration = Duration::from_secs(5);
/// For what must not have ended, since its target had no chance to do anything.
const AT_ONCE: Duration = Duration::from_micros(if cfg!(test) { 100 } else { 5000 });

/// What a device keeps of what libfabric claims for it.
#[derive(Clone, Default)]
pub(crate) struct Found {
    /// Words for why puts and gets are not claimed.
    pub(crate) lies: Option<String>,
    pub(crate) atomics: Masks,
    /// Words for atomics that are not claimed.
    pub(crate) broken_atomics: Option<String>,
}

/// What has been found out in this process, by file and device.
static TRIED: Mutex<Option<HashMap<Device, Found>>> = Mutex::new(None);
type Device = (String, String);

/// What is to be claimed; tried by the first who asks in this process.
pub(crate) fn found(offer: &Offer, settings: &Settings) -> Found {
    let (delivery, atomics) = (settings.trusts("delivery"), settings.trusts("atomics"));
    if delivery && !offer.atomics {
        return Found::default();
    }
    let name = (settings.library.clone(), offer.domain.clone());
    let mut tried = TRIED.lock().unwrap_or_else(PoisonError::into_inner);
    let tried = tried.get_or_insert_default();
    // What tests play changes.
    let known = tried.get(&name).filter(|_| !cfg!(test)).cloned();
    let found = known.unwrap_or_else(|| {
        let mut found = Found::default();
        if let Err(why) = try_out(offer, settings, delivery, atomics, &mut found) {
            // Without anybody to try them on there is nothing to believe.
            found.lies = found.lies.or((!delivery).then_some(why.clone()));
            found.broken_atomics = offer.atomics.then_some(why);
            found.atomics = Masks::default();
        }
        found
    });
    let _ = tried.insert(name, found.clone());
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
        let registry = Arc::new(Registry::new(domain, settings.failure_timeout)?);
        let engine = Engine::open(&registry, offer, settings, false, None)?;
        Ok(Side { registry, engine, ended: Vec::new() })
    }

    fn poll(&mut self) {
        self.ended.extend(self.engine.drain());
    }
}

fn try_out(
    offer: &Offer,
    settings: &Settings,
    delivery: bool,
    atomics: bool,
    found: &mut Found,
) -> Result<(), String> {
    let close_timeout = settings.close_timeout.min(Duration::from_millis(100));
    let connect_timeout = 2 * PATIENCE;
    let settings = Settings { watch: None, close_timeout, connect_timeout, ..settings.clone() };
    let words = |failure: Failure| failure.text;
    // Closed before what the library may write to, if all goes wrong.
    let there: Vec<AtomicU64> = (0..LONG / 8).map(|_| AtomicU64::new(0)).collect();
    let here: Vec<AtomicU64> = (0..LONG / 8).map(|_| AtomicU64::new(0)).collect();
    let mut near = Side::open(offer, &settings).map_err(words)?;
    let mut far = Side::open(offer, &settings).map_err(words)?;
    let address = far.engine.address.clone();
    let channel = near.engine.connect(&address, b"", 1).map_err(words)?;
    let began = Instant::now();
    while !near.engine.is_connected(channel) {
        near.poll();
        far.poll();
        if began.elapsed() >= PATIENCE {
            return Err("two interfaces of this process do not hear each other".into());
        }
    }
    let all = access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC;
    let base = there.as_ptr().cast::<u8>().cast_mut();
    let region = far.registry.register(base, LONG, all).map_err(words)?;
    let mut packed = vec![0; crate::keys::MAX_KEY_LEN];
    let len = far.registry.pack_key(&region, &mut packed).map_err(words)?;
    let key = near.engine.import_key(channel, &packed[..len]).map_err(words)?;
    let mut sides = Sides { key, _region: region, far, near, channel };
    if !delivery {
        sides.put_and_get(&here, &there)?;
    }
    if offer.atomics {
        found.atomics = sides.near.engine.counted_atomics();
        if !atomics {
            let missing = sides.do_atomics(&mut found.atomics, &there);
            found.broken_atomics = missing.err();
        }
    }
    sides.near.engine.close(channel);
    Ok(())
}

/// Two interfaces that are connected, and a key to memory of the far one.
struct Sides {
    // In the order in which they end.
    key: RemoteKey,
    _region: Region,
    far: Side,
    near: Side,
    channel: usize,
}

impl Sides {
    /// Posts what is taken sooner or later.
    fn post(&mut self, post: impl Fn(&mut Engine, usize, &RemoteKey) -> Posted) -> Posted {
        let began = Instant::now();
        loop {
            match post(&mut self.near.engine, self.channel, &self.key) {
                Err(Status::Again) if began.elapsed() < PATIENCE => {
                    self.near.poll();
                    self.far.poll();
                }
                other => return other,
            }
        }
    }

    fn put_and_get(&mut self, here: &[AtomicU64], there: &[AtomicU64]) -> Result<(), String> {
        // What is short and what is not goes different ways, here and in the library; nothing of one value is in the other.
        for (round, (put, len)) in
            [(true, 64), (true, LONG), (false, 64), (false, LONG)].iter().enumerate()
        {
            let value = 0x0101_0101_0101_0101 * (round as u64 + 1);
            let (source, target) = if *put { (here, there) } else { (there, here) };
            source.iter().for_each(|word| word.store(value, Ordering::Relaxed));
            target.iter().for_each(|word| word.store(!value, Ordering::Relaxed));
            let iov = [Iov::new(here.as_ptr().cast::<u8>().cast_mut(), *len)];
            let op = RmaOp { iov: &iov, len: *len, offset: 0, cookie: round as u64, flags: 0 };
            self.near.ended.clear();
            match self.post(|engine, channel, key| engine.transfer(channel, *put, key, &op)) {
                Ok(Posting::Pending) => {}
                Ok(Posting::Done) => return Err("a put of ours has ended at once".into()),
                Err(status) => return Err(format!("a put or get to this process: {status}")),
            }
            let began = Instant::now();
            while self.near.ended.is_empty() {
                self.near.poll();
                if began.elapsed() >= AT_ONCE {
                    self.far.poll();
                }
                if began.elapsed() >= PATIENCE {
                    return Err("a put or get to this process does not end".into());
                }
            }
            if let (_, Err(status)) = self.near.ended[0] {
                return Err(format!("a put or get to this process: {status}"));
            }
            if target[..len / 8].iter().any(|word| word.load(Ordering::Acquire) != value) {
                return Err("it says that bytes have arrived that have not".into());
            }
        }
        Ok(())
    }

    /// Does every atomic that is claimed once, each on a word of its own; those that are not done, or not right, are claimed no
    /// longer.
    fn do_atomics(&mut self, claimed: &mut Masks, there: &[AtomicU64]) -> Result<(), String> {
        // Of the 4 bytes beside a short one nothing changes; both halves, and both operands, have their highest bit.
        const OLD: u64 = 0xf0f1_f2f3_f4f5_f6f7;
        const OPERAND: u64 = 0xa1b2_c3d4_e5f6_0718;
        there.iter().for_each(|word| word.store(OLD, Ordering::Relaxed));
        self.near.engine.do_atomics(*claimed);
        self.near.ended.clear();
        let (mut posted, mut missing) = (0, 0);
        let before = bytes_of(OLD);
        for (cookie, (op, width, fetch)) in Masks::each().enumerate() {
            if !claimed.has(op, width, fetch) {
                continue;
            }
            let atomic = Atomic {
                op,
                width,
                key: core::ptr::null_mut(),
                offset: cookie as u64 * 8,
                operand: OPERAND,
                compare: atomics::value(&before[..width as usize]),
                result: core::ptr::null_mut(),
                cookie: cookie as u64,
                flags: if fetch { op_flags::FETCH } else { 0 },
            };
            match self.post(|engine, channel, key| engine.atomic(channel, key, &atomic)) {
                Ok(_) => posted += 1,
                Err(_) => {
                    claimed.remove(op, width, fetch);
                    missing += 1;
                }
            }
        }
        let began = Instant::now();
        while self.near.ended.len() < posted {
            self.near.poll();
            self.far.poll();
            if began.elapsed() >= PATIENCE {
                *claimed = Masks::default();
                return Err("an atomic to this process does not end, and none is used".into());
            }
        }
        for (cookie, (op, width, fetch)) in Masks::each().enumerate() {
            if !claimed.has(op, width, fetch) {
                continue;
            }
            let old = atomics::value(&before[..width as usize]);
            let mut after = before;
            let new = atomics::bytes(atomics::applied(op, width, old, OPERAND, old), width);
            after[..width as usize].copy_from_slice(&new);
            let fetched = if fetch { old } else { 0 };
            let is_so = bytes_of(there[cookie].load(Ordering::Acquire)) == after
                && self.near.ended.contains(&(cookie as u64, Ok(fetched)));
            if !is_so {
                claimed.remove(op, width, fetch);
                missing += 1;
            }
        }
        self.near.engine.do_atomics(*claimed);
        if missing == 0 {
            return Ok(());
        }
        Err(format!("{missing} that it claims it does not do, or does wrongly; they are not used"))
    }
}

fn bytes_of(word: u64) -> [u8; 8] {
    word.to_ne_bytes()
}

/// Bytes of the longer ones.
const LONG: usize = 64 << 10;
