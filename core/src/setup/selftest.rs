//! The self-test of data-path modules (`TIELINE_SELFTEST`), which tests their claims about memory before they are used.
//!
//! The test posts those of put, get and 64-bit fetch-add that the module claims to its own address, and compares the results. A
//! module that claims to check keys must then refuse a put with the key of a deregistered region. A module that fails is excluded,
//! and the record names the failed step.

#![allow(unsafe_code)]

use crate::sys::OwnedBuffer;
use crate::{Error, Status};
use std::ffi::c_void;
use tieline_host::abi::RawEndpoint;
use tieline_host::abi::events::{Batch, Polled};
use tieline_host::abi::objects::{OpenDomain, OpenInterface, Registered};
use tieline_plugin_api::abi::{Atomic, Iov, ModuleAttr, Rma};
use tieline_plugin_api::{OK, PENDING, access, atomic_op, caps, event, memory_caps, op_flags};

const LEN: usize = 4096;
const AT: usize = 129;
const PIECE: usize = 1000;
/// The number of attempts and polls after which a step fails: a module that is connected to itself needs few.
const PATIENCE: usize = 1_000_000;
const COOKIE: u64 = 0x5e1f_7e57;

/// Tests the memory operations of a data-path module; `Err` describes the claim that it does not keep.
pub(crate) fn check(
    domain: &OpenDomain,
    domain_caps: u64,
    name: &str,
    attr: &ModuleAttr,
) -> Result<(), String> {
    if attr.caps & (caps::PUT | caps::GET | caps::ATOMICS) == 0 {
        return Ok(());
    }
    let words = |error: Error| error.to_string();
    let interface = domain.open_interface(name, [0x5e; 16]).map_err(words)?;
    let address = interface.address().map_err(words)?;
    // If a module never completes an operation, it may write to this memory until the endpoint is closed.
    let mut room = Room { sent: [0; PIECE], back: [0; PIECE], value: 0 };
    let handle = interface.connect(&address, b"", 0).map_err(words)?;
    let trial = Trial { raw: interface.endpoint(handle).get(), interface, attr };
    let result = trial.run(domain, domain_caps, &mut room);
    // SAFETY: the endpoint was opened above, and nothing else uses it; its one key has been dropped.
    unsafe { trial.raw.close() };
    result
}

struct Trial<'a> {
    raw: RawEndpoint,
    interface: OpenInterface,
    attr: &'a ModuleAttr,
}

/// The local memory of the operations.
struct Room {
    sent: [u8; PIECE],
    back: [u8; PIECE],
    value: u64,
}

/// A region that ends with the test, regardless of the result.
struct Target {
    memory: Registered,
    /// The region's memory, if the domain does not own it. The buffer outlives the registration, and is leaked if the registration
    /// does not end.
    buffer: Option<OwnedBuffer>,
}

impl Target {
    fn end(&mut self) -> Result<(), Error> {
        let ended = self.memory.end();
        if ended.is_err() {
            std::mem::forget(self.buffer.take());
        }
        ended
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl Trial<'_> {
    fn run(&self, domain: &OpenDomain, domain_caps: u64, room: &mut Room) -> Result<(), String> {
        let rights = access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC;
        let mut buffer = None;
        let memory = if domain_caps & memory_caps::ALLOC != 0 {
            domain.alloc(LEN, rights)
        } else {
            let buffer = buffer.insert(OwnedBuffer::zeroed(LEN).map_err(|s| s.to_string())?);
            // SAFETY: `Target` keeps the buffer until the registration has ended.
            let span = unsafe { buffer.span() };
            domain.register(span, rights, 0)
        };
        let memory = memory.map_err(|e| format!("no memory to try with: {e}"))?;
        let mut target = Target { memory, buffer };
        let packed = target.memory.pack_key().map_err(|e| e.to_string())?;
        let key = self.import(&packed)?;
        let result = self.operations(key, &mut target, room);
        if result.is_ok() {
            // SAFETY: the key was imported above for this endpoint, which is open; every operation with the key has ended.
            unsafe { self.raw.drop_key(key) };
        }
        result
    }

    fn import(&self, packed: &[u8]) -> Result<*mut c_void, String> {
        for _ in 0..PATIENCE {
            match self.raw.import_key(packed) {
                Ok(key) => return Ok(key),
                Err(code) if Status::from_code(code) == Status::Again => {
                    let _ = self.poll();
                }
                Err(code) => return Err(format!("its own key: {}", Status::from_code(code))),
            }
        }
        Err("its own key could not be imported".into())
    }

    fn operations(
        &self,
        key: *mut c_void,
        target: &mut Target,
        room: &mut Room,
    ) -> Result<(), String> {
        let Room { sent, back, value } = room;
        *sent = std::array::from_fn(|i| (i * 7 + 1) as u8);
        let can = |cap| self.attr.caps & cap != 0;
        let put = can(caps::PUT) && self.took("put", self.rma(true, sent, key))?;
        if put {
            // SAFETY: the span is read here, before the registration ends.
            let landed = unsafe { target.memory.span() };
            landed.read(AT, back).map_err(|s| s.to_string())?;
            same("put", sent, back)?;
        }
        if can(caps::PUT | caps::GET) && can(caps::GET) {
            back.fill(0);
            if self.took("get", self.rma(false, back, key))? && put {
                same("get", sent, back)?;
            }
        }
        if can(caps::ATOMICS) && self.attr.atomic_fetch64 & 1 << atomic_op::ADD != 0 {
            // SAFETY: the span is used here, before the registration ends.
            let word = unsafe { target.memory.span() };
            let word = word.word64(8).map_err(|s| s.to_string())?;
            let before = word.load(std::sync::atomic::Ordering::SeqCst);
            let got = self.fetch_add(key, 5, value)?;
            let after = word.load(std::sync::atomic::Ordering::SeqCst);
            if got != before || after != before.wrapping_add(5) {
                return Err(format!("fetch-add of 5 to {before} returned {got} and left {after}"));
            }
        }
        if can(caps::PUT) && can(caps::CHECKS_KEYS) {
            target.end().map_err(|e| e.to_string())?;
            match self.rma(true, sent, key) {
                Err(Status::KeyRejected | Status::Declined) => {}
                Ok(()) => {
                    return Err("a put with the key of a deregistered region was executed".into());
                }
                Err(status) => {
                    return Err(format!(
                        "a put with the key of a deregistered region returned {status} instead of a rejected key"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks whether an operation was executed; a module may decline it for this size.
    fn took(&self, what: &str, result: Result<(), Status>) -> Result<bool, String> {
        match result {
            Ok(()) => Ok(true),
            Err(Status::Declined) => Ok(false),
            Err(status) => Err(format!("{what} to itself failed: {status}")),
        }
    }

    fn rma(&self, put: bool, buffer: &mut [u8], key: *mut c_void) -> Result<(), Status> {
        let iov = Iov::new(buffer.as_mut_ptr(), buffer.len());
        let op = Rma {
            iov: &iov,
            iov_count: 1,
            len: buffer.len(),
            key,
            offset: AT as u64,
            cookie: COOKIE,
            flags: op_flags::REMOTE_COMPLETION,
            reserved: 0,
        };
        // SAFETY: the endpoint is open and the key belongs to it; the memory lives until the endpoint is closed.
        let post = || unsafe { if put { self.raw.put(&op) } else { self.raw.get(&op) } };
        self.complete(post).map(|_| ())
    }

    fn fetch_add(&self, key: *mut c_void, operand: u64, result: &mut u64) -> Result<u64, String> {
        let op = Atomic {
            op: atomic_op::ADD,
            width: 8,
            key,
            offset: 8,
            operand,
            compare: 0,
            result,
            cookie: COOKIE,
            flags: op_flags::FETCH | op_flags::REMOTE_COMPLETION,
        };
        // SAFETY: the endpoint is open and the key belongs to it; the result lives until the endpoint is closed.
        let done = self.complete(|| unsafe { self.raw.atomic(&op) });
        match done.map_err(|status| format!("fetch-add to itself failed: {status}"))? {
            Some(value) => Ok(value),
            None => Ok(*result),
        }
    }

    /// Posts until the module accepts the operation, and polls until it ends, at most [`PATIENCE`] times. The value is that of a
    /// completion event.
    fn complete(&self, post: impl Fn() -> i32) -> Result<Option<u64>, Status> {
        let mut posted = false;
        for _ in 0..PATIENCE {
            if !posted {
                match post() {
                    OK => return Ok(None),
                    PENDING => posted = true,
                    code if Status::from_code(code) == Status::Again => {}
                    code => return Err(Status::from_code(code)),
                }
            }
            if let Some((code, value)) = self.poll() {
                return if code == 0 { Ok(Some(value)) } else { Err(Status::from_code(code)) };
            }
        }
        Err(Status::TimedOut)
    }

    /// Polls once, and returns the status and value of the operation's completion, if there was one.
    fn poll(&self) -> Option<(i32, u64)> {
        let mut batch = Batch::new();
        // SAFETY: the events' payloads are not read.
        let events = unsafe { self.interface.poll(&mut batch) }.ok()?;
        let ours = |e: &&Polled| e.kind == event::COMPLETION && e.cookie == COOKIE;
        events.iter().find(ours).map(|e| (e.status, e.header))
    }
}

fn same(what: &str, expected: &[u8], found: &[u8]) -> Result<(), String> {
    match expected.iter().zip(found).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => Err(format!("{what} of {PIECE} bytes to itself differs at byte {at}")),
    }
}
