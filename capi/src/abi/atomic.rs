//! Atomics, and pointers to a peer's memory that is mapped into this process.

use super::context::{end_of_worker, keep, take};
use super::enter::{Aside, guarded, live, object};
use super::error::{Fault, answer, done};
use super::how::{self, How};
use super::numbers::{
    TIELINE_ATOMIC_ADD, TIELINE_ATOMIC_AND, TIELINE_ATOMIC_COMPARE_SWAP, TIELINE_ATOMIC_MAX,
    TIELINE_ATOMIC_MIN, TIELINE_ATOMIC_OR, TIELINE_ATOMIC_SWAP, TIELINE_ATOMIC_XOR,
};
use super::put::{KeyHandle, KeyObject};
use super::records::{out, out_handle};
use super::table::Object;
use super::worker::WorkerState;
use std::ffi::c_void;
use std::sync::Arc;
use tieline::endpoint::{AtOnce, AtomicNumbers, Tried};
use tieline::{AtomicOp, Endpoint, Outcome, PostError, RemotePointer, Status, Width};

/// A mapping of a peer's memory into this process.
pub struct PointerHandle(());

struct PointerObject {
    pointer: RemotePointer,
    worker: Arc<WorkerState>,
}

impl Object for PointerObject {
    const KIND: u8 = 8;
    const NAME: &'static str = "a pointer";
}

/// An atomic operation whose arguments were checked.
pub(crate) enum Call {
    Update(AtomicOp),
    Compare,
}

#[inline]
pub(crate) fn call(op: u32, width: u32) -> Result<(Call, Width), Fault> {
    let op = match op {
        TIELINE_ATOMIC_ADD => Call::Update(AtomicOp::Add),
        TIELINE_ATOMIC_AND => Call::Update(AtomicOp::And),
        TIELINE_ATOMIC_OR => Call::Update(AtomicOp::Or),
        TIELINE_ATOMIC_XOR => Call::Update(AtomicOp::Xor),
        TIELINE_ATOMIC_SWAP => Call::Update(AtomicOp::Swap),
        TIELINE_ATOMIC_MIN => Call::Update(AtomicOp::Min),
        TIELINE_ATOMIC_MAX => Call::Update(AtomicOp::Max),
        TIELINE_ATOMIC_COMPARE_SWAP => Call::Compare,
        _ => return Err(unknown(op, width)),
    };
    match width {
        4 => Ok((op, Width::Bits32)),
        8 => Ok((op, Width::Bits64)),
        _ => Err(unknown(op_number(&op), width)),
    }
}

fn op_number(op: &Call) -> u32 {
    match op {
        Call::Update(op) => *op as u32,
        Call::Compare => TIELINE_ATOMIC_COMPARE_SWAP,
    }
}

#[cold]
fn unknown(op: u32, width: u32) -> Fault {
    let why = format!("there is no operation {op} on words of {width} bytes");
    Fault::new(
        Status::Invalid,
        "an atomic",
        why,
        "use TIELINE_ATOMIC_ADD and so on, of 4 or 8 bytes",
    )
}

/// Applies an atomic to the word of `width` bytes (4 or 8) at `offset` in the peer's region. `offset` must be a multiple of
/// `width`. The call does not return the old value, and does not accept TIELINE_ATOMIC_COMPARE_SWAP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_atomic(
    key: *const KeyHandle,
    op: u32,
    width: u32,
    offset: u64,
    operand: u64,
    how: *const How,
    request: *mut u64,
) -> i32 {
    how::no_number(request);
    answer(object::<KeyObject, _>(key).and_then(|object| {
        let told = how::read(how, 0, &object.endpoint.worker)?;
        let (Call::Update(op), width) = call(op, width)? else { return Err(unknown(op, width)) };
        object.post(request, &told, |endpoint| {
            endpoint.atomic(op, width, &object.key, offset, operand)
        })
    }))
}

/// Applies an atomic as tieline_atomic does, and fetches the old value: into `value` if the call returns TIELINE_OK, with the
/// operation's completion after TIELINE_PENDING. TIELINE_ATOMIC_COMPARE_SWAP stores `operand` if the word equals `compare`; the
/// other operations ignore `compare`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_fetch(
    key: *const KeyHandle,
    op: u32,
    width: u32,
    offset: u64,
    operand: u64,
    compare: u64,
    value: *mut u64,
    how: *const How,
    request: *mut u64,
) -> i32 {
    if let Some(object) = live::<KeyObject, _>(key) {
        if !value.is_null() && how::is_usual(how, request) {
            // SAFETY: the caller's `value`, which is initialized before a reference to it is made.
            let place = unsafe {
                value.write(0);
                &mut *value
            };
            let aside = Aside::empty();
            let given = aside.keep(key);
            let call = AtomicNumbers { op, width, offset, operand, compare };
            match object.endpoint.at_once(|_| object.key.fetch_at_once(call, place)) {
                AtOnce::Done => return 0,
                AtOnce::NotTried => {}
                AtOnce::Refused(tried, call) => {
                    let how = std::ptr::null();
                    return fetch_further(given.get(), call, value, how, request, tried);
                }
            }
        }
    }
    let call = AtomicNumbers { op, width, offset, operand, compare };
    fetch_further(key, call, value, how, request, Tried::NOT)
}

/// Fetches as `tieline_fetch` does, on the slow path, which handles every case.
#[cold]
#[inline(never)]
fn fetch_further(
    key: *const KeyHandle,
    numbers: AtomicNumbers,
    value: *mut u64,
    how: *const How,
    request: *mut u64,
    tried: Tried,
) -> i32 {
    how::no_number(request);
    let out = out(value, 0);
    answer(object::<KeyObject, _>(key).and_then(|object| {
        let (told, out) = (how::read(how, 0, &object.endpoint.worker)?, out?);
        let _ = call(numbers.op, numbers.width)?;
        let fetch = |endpoint: &Endpoint| -> Result<Outcome, PostError> {
            let outcome = endpoint.fetch_further(tried, numbers, &object.key);
            if let Ok(Outcome::Done(before)) = &outcome {
                out.set(*before);
            }
            outcome
        };
        object.post(request, &told, fetch)
    }))
}

/// Maps a key's memory into this process for loads and stores. This works for peers on this host if a provider supports it
/// (otherwise TIELINE_UNSUPPORTED). TIELINE_AGAIN: make progress and call again. TIELINE_KEY_REJECTED: the key does not grant both
/// reading and writing. Accesses through the mapping are not checked. The mapping exists until tieline_pointer_drop.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_key_pointer(
    key: *const KeyHandle,
    pointer: *mut *mut PointerHandle,
    memory: *mut *mut c_void,
    len: *mut usize,
) -> i32 {
    done(guarded(|| {
        let handle = out_handle(pointer)?;
        let (memory, len) = (out_handle(memory)?, out(len, 0)?);
        let object = object::<KeyObject, _>(key)?;
        let worker = object.endpoint.worker.clone();
        worker.clone().mark.post(|| {
            let _ = object.endpoint.get()?;
            let pointer = object.key.pointer()?;
            memory.set(pointer.as_ptr().cast());
            len.set(pointer.len());
            handle.set(keep(PointerObject { pointer, worker })?.to_c());
            Ok(())
        })
    }))
}

/// Releases a mapping. The mapped memory must not be accessed afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_pointer_drop(pointer: *mut PointerHandle) -> i32 {
    done(guarded(|| {
        let worker = |object: &PointerObject| object.worker.clone();
        end_of_worker(pointer, worker, |pointer| {
            let PointerObject { pointer, .. } = *take::<PointerObject, _>(pointer)?;
            drop(pointer);
            Ok(())
        })
    }))
}
