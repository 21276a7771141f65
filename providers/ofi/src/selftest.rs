//! What a provider of libfabric claims and may not keep, tried once for each device before it is claimed here: that a put which
//! completes is in the target's memory (`FI_DELIVERY_COMPLETE`). `net` of 1.17 grants that and does not do it.
//!
//! Two interfaces of domains of their own, so that none moves the other's data, put and get within this process.

use crate::config::Settings;
use crate::engine::Engine;
use crate::memory::Registry;
use crate::offers::Offer;
use crate::sys;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{Failure, Posting, RmaOp, Status, access};

/// For a connection, and for what has to end.
const PATIENCE: Duration = Duration::from_secs(5);
/// For what must not have ended, since its target had no chance to do anything.
const AT_ONCE: Duration = Duration::from_micros(if cfg!(test) { 100 } else { 5000 });

/// What has been found out in this process, by file and device: the words for what does not hold.
static TRIED: Mutex<Option<HashMap<Device, Option<String>>>> = Mutex::new(None);
type Device = (String, String);

/// Whether a put that completes is in the target's memory; tried by the first who asks in this process.
///
/// # Errors
/// Words for why it is not claimed.
pub(crate) fn delivers(offer: &Offer, settings: &Settings) -> Result<(), String> {
    if settings.trust.split(',').any(|listed| listed.trim() == "delivery") {
        return Ok(());
    }
    let name = (settings.library.clone(), offer.domain.clone());
    let mut tried = TRIED.lock().unwrap_or_else(PoisonError::into_inner);
    let tried = tried.get_or_insert_default();
    // What tests play changes.
    let known = tried.get(&name).filter(|_| !cfg!(test)).cloned();
    let found = known.unwrap_or_else(|| try_out(offer, settings).err());
    let _ = tried.insert(name, found.clone());
    found.map_or(Ok(()), Err)
}

struct Side {
    registry: Arc<Registry>,
    engine: Engine,
    ended: Vec<Result<(), Status>>,
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

fn try_out(offer: &Offer, settings: &Settings) -> Result<(), String> {
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
    let all = access::REMOTE_READ | access::REMOTE_WRITE;
    let base = there.as_ptr().cast::<u8>().cast_mut();
    let region = far.registry.register(base, LONG, all).map_err(words)?;
    let mut packed = vec![0; crate::keys::MAX_KEY_LEN];
    let len = far.registry.pack_key(&region, &mut packed).map_err(words)?;
    let key = near.engine.import_key(channel, &packed[..len]).map_err(words)?;
    // What is short and what is not goes different ways, here and in the library; nothing of one value is in the other.
    for (round, (put, len)) in
        [(true, 64), (true, LONG), (false, 64), (false, LONG)].iter().enumerate()
    {
        let value = 0x0101_0101_0101_0101 * (round as u64 + 1);
        let (source, target) = if *put { (&here, &there) } else { (&there, &here) };
        source.iter().for_each(|word| word.store(value, Ordering::Relaxed));
        target.iter().for_each(|word| word.store(!value, Ordering::Relaxed));
        let iov = [Iov::new(here.as_ptr().cast::<u8>().cast_mut(), *len)];
        let op = RmaOp { iov: &iov, len: *len, offset: 0, cookie: round as u64, flags: 0 };
        let began = Instant::now();
        near.ended.clear();
        loop {
            match near.engine.transfer(channel, *put, &key, &op) {
                Ok(Posting::Pending) => break,
                Ok(Posting::Done) => return Err("a put of ours has ended at once".into()),
                Err(Status::Again) if began.elapsed() < PATIENCE => {
                    near.poll();
                    far.poll();
                }
                Err(status) => return Err(format!("a put or get to this process: {status}")),
            }
        }
        let began = Instant::now();
        while near.ended.is_empty() {
            near.poll();
            if began.elapsed() >= AT_ONCE {
                far.poll();
            }
            if began.elapsed() >= PATIENCE {
                return Err("a put or get to this process does not end".into());
            }
        }
        if let Err(status) = near.ended[0] {
            return Err(format!("a put or get to this process: {status}"));
        }
        if target[..len / 8].iter().any(|word| word.load(Ordering::Acquire) != value) {
            return Err("it says that bytes have arrived that have not".into());
        }
    }
    near.engine.close(channel);
    Ok(())
}

/// Bytes of the longer ones.
const LONG: usize = 64 << 10;
