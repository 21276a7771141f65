//! Atomics: each in a slot of its own, with its operand, what it compares with, and what it fetches.

use super::Engine;
use super::channels::RemoteKey;
use super::transfers::Held;
use crate::atomics::{COMPARE, Masks, OPERAND, PARTS, RESULT, native};
use tieline_plugin_api::abi::Atomic;
use tieline_plugin_api::{Posted, Status, access, op_flags};

impl Engine {
    /// Those that this interface does.
    pub(crate) fn do_atomics(&mut self, masks: Masks) {
        self.atomics = masks;
    }

    /// What the provider says that it does.
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
        // The key is older than the interface. Nobody else may be asked, as for a put: who executes atomics is in the key.
        let target = target.map_err(|status| match status {
            Status::Declined => Status::Unsupported,
            status => status,
        })?;
        // Of the owner's memory: what the transfer's address begins at may be 0.
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
        // What another one has fetched here is nobody's result.
        parts[RESULT..PARTS].fill(0);
        let local = self.slots.local(slot, PARTS);
        let value = if fetch { width } else { 0 };
        let (back, loans) = (Vec::new(), Vec::new());
        let held = Held { slot: Some(slot), back, value, silent: false, loans };
        self.begin_transfer(&target, op.cookie, held, |ep, to, context| {
            ep.atomic(native, local, to, context)
        })
    }
}
