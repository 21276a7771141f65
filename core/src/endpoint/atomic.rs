//! Atomics that did not take the fast path, or failed there: over a lane to the memory, or over messages.
//!
//! One executor does all atomics on a region, because the atomics of processors and of devices are not atomic with respect to each
//! other. The region's key names the executor (`TIELINE_ATOMICS` of the region's owner). If processors execute, the requester uses
//! shared memory if a module provides it, and otherwise sends the target a message. If a device executes, every peer has to post to
//! that device; a peer that cannot reach it gets an error. Operations that the device does not support (some operations, 32 bits)
//! use its compare-and-swap on the 64-bit word, if it has that and the word is inside the region.

use super::EndpointState;
use super::key::{ImportedKey, KeyInner, RemoteKey};
use super::post::Posted;
use super::queued::{Failed, NativeAtomic, QueuedOp};
use super::record::atomic_op_record;
use crate::proto::emulate::{self, AtomicCall};
use crate::proto::id;
use crate::region::Access;
use crate::request::Outcome;
use crate::{Error, PostError, Status};
use std::rc::Rc;
use tieline_order::{Id, Kind, way};
use tieline_plugin_api::atomic_op;

/// Returns the offset of the 64-bit word around an atomic's word, and the shift of the atomic's word in it.
fn word_around(offset: u64, width: u32) -> (u64, u32) {
    let at = offset & !7;
    let inside = (offset - at) as u32;
    let shift = if cfg!(target_endian = "little") { inside } else { 8 - width - inside };
    (at, shift * 8)
}

impl AtomicCall {
    /// Returns the part of a 64-bit word on which the call operates.
    fn field(&self, word: u64, shift: u32) -> u64 {
        if self.width == 8 { word } else { u64::from((word >> shift) as u32) }
    }

    /// Returns the word after the call.
    fn applied(&self, word: u64, shift: u32) -> Result<u64, Status> {
        let (old, n) = (self.field(word, shift), self.operand);
        let n = if self.width == 8 { n } else { u64::from(n as u32) };
        let new = match self.op {
            atomic_op::ADD => old.wrapping_add(n),
            atomic_op::AND => old & n,
            atomic_op::OR => old | n,
            atomic_op::XOR => old ^ n,
            atomic_op::SWAP => n,
            atomic_op::COMPARE_SWAP if old == self.field(self.compare, 0) => n,
            atomic_op::COMPARE_SWAP => old,
            atomic_op::MIN => old.min(n),
            atomic_op::MAX => old.max(n),
            _ => return Err(Status::Unsupported),
        };
        Ok(match self.width {
            8 => new,
            _ => word & !(u64::from(u32::MAX) << shift) | u64::from(new as u32) << shift,
        })
    }
}

impl ImportedKey {
    /// Returns the lane's bit for fences.
    pub(super) fn bit(&self) -> u64 {
        if self.synchronous { way::AT_ONCE } else { way::lane(self.rank) }
    }

    fn does(&self, call: &AtomicCall, fetch: bool) -> bool {
        let masks = if fetch { &self.fetch } else { &self.post };
        masks[(call.width / 8) as usize] & 1 << call.op != 0
    }
}

impl KeyInner {
    /// Returns the lane for this atomic: that of the device that the key names, or the best lane if it supports the atomic. `None`:
    /// the device is not reached, or, if the key names none, the target executes the atomic on request by a message.
    fn native_atomic(&self, call: &AtomicCall, fetch: bool) -> Option<ImportedKey> {
        if self.record.device_atomics.is_some() {
            return self.device();
        }
        self.best.get().filter(|native| native.does(call, fetch))
    }

    /// Makes the error for an atomic if no lane of this endpoint reaches the device that executes atomics on this region.
    fn no_device(&self) -> Error {
        let part = self.record.device_atomics.and_then(|part| self.record.parts.get(part));
        let domain = part.map_or("a device", |(_, domain, _)| domain);
        Error::new(
            Status::Unsupported,
            format!("atomics on this region are executed by {domain} of its owner"),
            "no module here reaches it, and other routes would not be atomic with respect to it",
            "see `tieline info --why` for why that domain is not used here, or let the owner run with TIELINE_ATOMICS=cpu",
        )
    }
}

impl EndpointState {
    #[cold]
    pub(super) fn atomic_slow(
        self: &Rc<Self>,
        call: &AtomicCall,
        key: &RemoteKey,
        offset: u64,
        fetch: bool,
        code: i32,
    ) -> Result<Outcome, PostError> {
        self.check_fast_path(key, code)?;
        self.prepare(key, None, (Access::ATOMIC, offset, call.width as usize))?;
        if offset % u64::from(call.width) != 0 {
            return Err(emulate::misaligned(offset, call.width).into());
        }
        let native = key.inner.native_atomic(call, fetch);
        if native.is_none() && key.inner.record.device_atomics.is_none() {
            self.emulating()?;
            let opened = self.open(if fetch { Kind::Fetch } else { Kind::Atomic });
            let request = opened.map_err(|status| self.refused(status))?;
            self.count(|counters| counters.emulated += 1);
            let bytes = emulate::atomic_request(&key.inner.target(offset), call);
            self.post(QueuedOp::ask(id::ATOMIC, request, bytes));
            return Ok(self.outcome(request)?);
        }
        if native.is_none() && !key.inner.may_find_more() {
            return Err(key.inner.no_device().into());
        }
        let goes = native.is_none_or(|native| self.may_go(native.bit()));
        let request = self.open(Kind::Native).map_err(|status| self.refused(status))?;
        if !fetch {
            self.shared.ops.borrow_mut().silence(request);
        }
        let now = native.filter(|n| goes && n.does(call, fetch) && self.may_post_memory());
        if let Some(native) = now.filter(|_| self.queue_len() == 0) {
            match self.post_atomic(&native, call, offset, fetch, request) {
                Ok(Posted::Pending) => return Ok(self.outcome(request)?),
                Ok(Posted::NoRoom) => {}
                Ok(Posted::Done(value)) => {
                    self.shared.with_ops(|ops| ops.withdraw(request));
                    return Ok(Outcome::Done(if fetch { value } else { 0 }));
                }
                Err(Failed { status, .. }) => {
                    self.shared.with_ops(|ops| ops.withdraw(request));
                    return Err(self.memory_failure(&native, key, status).into());
                }
            }
        }
        let (key, call, fenced) = (key.inner.clone(), *call, self.order.fenced());
        self.post(QueuedOp::Atomic(NativeAtomic {
            key,
            call,
            offset,
            fetch,
            request,
            fenced,
            guess: 0,
            posted_swap: None,
        }));
        Ok(self.outcome(request)?)
    }

    fn post_atomic(
        &self,
        native: &ImportedKey,
        call: &AtomicCall,
        offset: u64,
        fetch: bool,
        request: Id,
    ) -> Result<Posted, Failed> {
        let mut result = 0;
        let op = atomic_op_record(call, native.key, offset, fetch, &mut result, request.raw());
        let code = native.post_atomic(&op);
        self.posted(request, native.interface, code, result)
    }

    /// Continues a queued atomic. `Ok(true)`: the atomic is posted or has ended.
    pub(super) fn attempt_atomic(&self, op: &mut NativeAtomic) -> Result<bool, Failed> {
        let key = &op.key;
        if key.may_find_more() {
            key.resolve_now_and_then();
        }
        let Some(native) = key.native_atomic(&op.call, op.fetch) else {
            if key.may_find_more() {
                return Ok(false);
            }
            let error = key.no_device();
            // An operation in flight on the lost lane reports its own result.
            let Some(swapped) = self.swapped(op) else { return Ok(false) };
            self.end_atomic(op, Err(swapped.and_then(Result::err).unwrap_or(error)));
            return Ok(true);
        };
        if !self.may_leave(op.request, op.fenced, native.bit()) {
            return Ok(false);
        }
        if !native.does(&op.call, op.fetch) {
            return self.attempt_by_swap(&native, op);
        }
        match self.post_atomic(&native, &op.call, op.offset, op.fetch, op.request)? {
            Posted::Done(value) => self.end_atomic(op, Ok(value)),
            Posted::Pending => {}
            Posted::NoRoom => return Ok(false),
        }
        Ok(true)
    }

    /// Runs the compare-and-swap loop until the operation has ended, the provider has no room, or a result is pending. Each round
    /// swaps the last value found for the operation's result.
    fn attempt_by_swap(&self, native: &ImportedKey, op: &mut NativeAtomic) -> Result<bool, Failed> {
        let (at, shift) = word_around(op.offset, op.call.width);
        let call = op.call;
        let swap = |guess| -> Result<AtomicCall, Failed> {
            let operand = call.applied(guess, shift).map_err(Failed::by_nobody)?;
            Ok(AtomicCall { op: atomic_op::COMPARE_SWAP, width: 8, operand, compare: guess })
        };
        if !native.does(&swap(0)?, true) || at + 8 > op.key.record.len {
            self.end_atomic(op, Err(unsupported(&op.call)));
            return Ok(true);
        }
        loop {
            let Some(swapped) = self.swapped(op) else { return Ok(false) };
            let found = match swapped {
                Some(Ok(found)) => found,
                Some(Err(error)) => {
                    self.end_atomic(op, Err(error));
                    return Ok(true);
                }
                None => {
                    let opened = self.shared.ops.borrow_mut().open_inner(self.index, Kind::Native);
                    let inner = opened.map_err(Failed::by_nobody)?;
                    let call = swap(op.guess)?;
                    let posted = self.post_atomic(native, &call, at, true, inner);
                    match self.or_withdrawn(inner, posted)? {
                        Posted::Pending => {
                            op.posted_swap = Some(inner);
                            continue;
                        }
                        Posted::Done(found) => found,
                        Posted::NoRoom => return Ok(false),
                    }
                }
            };
            if found == op.guess {
                self.end_atomic(op, Ok(op.call.field(found, shift)));
                return Ok(true);
            }
            op.guess = found;
        }
    }

    /// Takes the result of the compare-and-swap that a provider executes, if there is one. `None`: it has not ended.
    fn swapped(&self, op: &mut NativeAtomic) -> Option<Option<Result<u64, Error>>> {
        let Some(posted) = op.posted_swap else { return Some(None) };
        let result = self.shared.ops.borrow_mut().take(posted)?;
        op.posted_swap = None;
        Some(Some(result))
    }

    fn end_atomic(&self, op: &NativeAtomic, result: Result<u64, Error>) {
        let result = result.map(|value| if op.fetch { value } else { 0 });
        self.shared.part(op.request, result);
    }
}

fn unsupported(call: &AtomicCall) -> Error {
    Error::new(
        Status::Unsupported,
        format!("an atomic of {} bits at this place", call.width * 8),
        "the device that executes this region's atomics swaps whole, aligned 64-bit words",
        "give the region a length that is a multiple of 8",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_32_bit_word_is_a_half_of_its_64_bit_word() {
        let halves = [word_around(8, 4), word_around(12, 4)];
        let shifts = if cfg!(target_endian = "little") { [0, 32] } else { [32, 0] };
        assert_eq!(halves, [(8, shifts[0]), (8, shifts[1])]);
        assert_eq!(word_around(16, 8), (16, 0));
    }

    /// Processors' atomics are not atomic with respect to the device that the key names.
    #[test]
    fn only_named_device_executes_atomics_on_a_region() -> Result<(), Error> {
        let context = crate::Context::open()?;
        let (worker, region) = (context.worker()?, context.alloc(64)?);
        let endpoint = worker.connect(&worker.address()?)?;
        let mut record = crate::mem::key::KeyRecord::parse(&region.remote_key()?)?;
        let processors = endpoint.import_key(&record.pack()?)?;
        assert_eq!(worker.finish(endpoint.fetch_add(&processors, 8, 5)?)?, 0);
        record.device_atomics = Some(0);
        let device = endpoint.import_key(&record.pack()?)?;
        let refused = endpoint.fetch_add(&device, 8, 5).unwrap_err();
        assert_eq!(refused.status(), Status::Unsupported);
        assert!(refused.to_string().contains(&record.parts[0].1), "{refused}");
        assert_eq!(worker.finish(endpoint.put_bytes(&[1; 8], &device, 16)?)?, 0);
        assert_eq!(region.atomic_u64(8)?.load(std::sync::atomic::Ordering::SeqCst), 5);
        // The owner does not execute these atomics on request by a message either.
        endpoint.inner.shared.core.memory.regions.leave_atomics_to_device(record.region);
        let asked = endpoint.inner.shared.core.memory.regions.reach(
            record.region,
            record.generation,
            (0, 8),
            Access::ATOMIC,
            |_, _| Ok::<_, Status>(()),
        );
        assert_eq!(asked, Err(Status::KeyRejected));
        Ok(())
    }

    proptest! {
        /// The swapped value equals that of a processor's atomic, and the other half is unchanged.
        #[test]
        fn the_word_after_an_operation_is_the_one_that_a_processor_makes(
            mut memory in any::<u64>(),
            operand in any::<u64>(),
            compare in any::<u64>(),
            same in any::<bool>(),
            wide in any::<bool>(),
            upper in any::<bool>(),
            op in 0u32..9,
        ) {
            let width = if wide { 8 } else { 4 };
            let offset = if upper && !wide { 4 } else { 0 };
            let (_, shift) = word_around(offset, width);
            let mut call = AtomicCall { op, width, operand, compare };
            if same {
                call.compare = call.field(memory, shift);
            }
            let (before, applied) = (call.field(memory, shift), call.applied(memory, shift));
            let span = crate::sys::Span::from_words(std::slice::from_mut(&mut memory));
            match emulate::execute(&span, offset as usize, &call) {
                Ok(old) => prop_assert_eq!((old, Ok(memory)), (before, applied)),
                Err(status) => prop_assert_eq!(Err(status), applied),
            }
        }
    }
}
