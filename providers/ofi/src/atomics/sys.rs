//! Atomics through the library's table.

#![allow(unsafe_code)]

use super::{COMPARE, Form, Masks, Native, OPERAND, RESULT};
use crate::abi::*;
use crate::sys::{Ep, Local, Remote, posted};
use core::ffi::{c_int, c_void};

impl Ep {
    fn atomics(&self) -> Option<&fi_ops_atomic> {
        self.is_open().ok()?;
        // SAFETY: the endpoint is open; its table is null or stays for the endpoint's life.
        unsafe { (*self.raw).atomic.as_ref() }
    }

    /// Returns the atomics that the provider reports as supported.
    pub(crate) fn counted(&self) -> Masks {
        let mut masks = Masks::default();
        let Some(ops) = self.atomics() else { return masks };
        for (op, width, fetch) in Masks::each() {
            let Some(native) = super::native(op, width, fetch) else { continue };
            let ask = match native.form {
                Form::Post => ops.writevalid,
                Form::Fetch => ops.readwritevalid,
                Form::Compare => ops.compwritevalid,
            };
            let mut count = 0;
            // SAFETY: the endpoint is open, and `count` has room for one number.
            let code = unsafe { ask(self.raw, native.datatype, native.op, &raw mut count) };
            if code == 0 && count > 0 {
                masks.add(op, width, fetch);
            }
        }
        masks
    }

    /// Posts an atomic, whose operand, comparand and result are in `slot`. The atomic completes when it has been executed at the
    /// target.
    pub(crate) fn atomic(
        &self,
        native: Native,
        slot: Local,
        to: Remote,
        context: *mut c_void,
    ) -> Result<(), c_int> {
        self.is_open()?;
        let (ep, ops) = (self.raw, self.atomics().ok_or(libc::ENOSYS)?);
        let at = |offset| fi_ioc { addr: slot.base.wrapping_add(offset).cast(), count: 1 };
        let (operand, compare, mut result) = (at(OPERAND), at(COMPARE), at(RESULT));
        let mut desc = [slot.desc; 3];
        let [of_operand, of_compare, of_result] = desc.each_mut().map(core::ptr::from_mut);
        let there = fi_rma_ioc { addr: to.address, count: 1, key: to.key };
        let message = fi_msg_atomic {
            msg_iov: &raw const operand,
            desc: of_operand,
            iov_count: 1,
            addr: to.peer,
            rma_iov: &raw const there,
            rma_iov_count: 1,
            datatype: native.datatype,
            op: native.op,
            context,
            data: 0,
        };
        let message = &raw const message;
        // Fetching atomics also have this flag: without it, cxi completes them before the word is in memory (source:
        // cxip_atomic.c).
        let flags = FI_COMPLETION | FI_DELIVERY_COMPLETE;
        // SAFETY: the endpoint is enabled and has the table. The records live for the call; the slot and the context live until the
        // completion.
        let code = unsafe {
            match native.form {
                Form::Post => (ops.writemsg)(ep, message, flags),
                Form::Fetch => {
                    let into = &raw mut result;
                    (ops.readwritemsg)(ep, message, into, of_result, 1, flags)
                }
                Form::Compare => {
                    let (with, into) = (&raw const compare, &raw mut result);
                    (ops.compwritemsg)(ep, message, with, of_compare, 1, into, of_result, 1, flags)
                }
            }
        };
        posted(code)
    }
}
