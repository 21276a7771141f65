//! Atomics: each has its own slot for its operand, comparand and result.

use super::Engine;
use super::channels::RemoteKey;
use super::transfers::Held;
use crate::atomics::{COMPARE, Masks, OPERAND, PARTS, RESULT, native};
use tieline_plugin_api::abi::Atomic;
use tieline_plugin_api::{Posted, Status, access, op_flags};

impl Engine {
    /// Sets the atomics that this interface executes.
    pub(crate) fn do_atomics(&mut self, masks: Masks) {
        self.atomics = masks;
    }

    /// Returns the atomics that the provider reports as supported.
    pub(crate) fn counted_atomics(&self) -> Masks {
        self.ep.counted()
    }

    pub(crate) fn atomic(&mut self, at: usize, key: &RemoteKey, op: &Atomic) -> Posted {
        let fetch = op.flags & op_flags::FETCH != 0;
        let known = native(op.op, op.width, fetch);
        let known = known.filter(|_| self.atomics.has(op.op, op.width, fetch));
        let native = known.ok_or(Status::Unsupported)?;
        let width = op.width as usize;
        if op.offset % u64::from(op.width) != 0 {
            return Err(Status::Misaligned);
        }
        let target = self.target(at, key, access::REMOTE_ATOMIC, op.offset, width);
        // The key is older than the interface. Unlike a put, an atomic has no alternative route, because the key determines its
        // executor.
        let target = target.map_err(|status| match status {
            Status::Declined => Status::Unsupported,
            status => status,
        })?;
        // The alignment counts in the owner's memory: `base` may be 0 and is then not the region's address.
        if (key.0.key.skew + op.offset) % u64::from(op.width) != 0 {
            return Err(Status::Misaligned);
        }
        self.admits(&target)?;
        let slot = self.slots.take()?;
        let parts = self.slots.bytes_mut(slot, PARTS);
        for (at, value) in [(OPERAND, op.operand), (COMPARE, op.compare)] {
            let bytes = crate::atomics::bytes(value, op.width);
            parts[at..at + width].copy_from_slice(&bytes);
        }
        // The result of the slot's previous atomic is cleared.
        parts[RESULT..PARTS].fill(0);
        let local = self.slots.local(slot, PARTS);
        let value = if fetch { op.width as u8 } else { 0 };
        let held = Held { slot: Some(slot), value, ..Held::default() };
        self.begin_transfer(target, op.cookie, held, |ep, to, context| {
            ep.atomic(native, local, to, context)
        })
    }
}
