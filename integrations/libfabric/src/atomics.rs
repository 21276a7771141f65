//! Atomics on one integer of 32 or 64 bits, and reads and writes of one float. An application can query what is supported; all else is
//! refused.
//!
//! A masked swap is a read, and then compare-and-swaps until one of them finds the value that the step before has returned.

use crate::abi::buffer::Buffer;
use tieline::{AtomicOp, Endpoint, Outcome, PostError, RemoteKey, Width};
use tieline_libfabric_abi::*;

/// The form of an atomic call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Update,
    Fetch,
    Compare,
}

/// The operation of an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Op(AtomicOp),
    CompareSwap,
    /// The bits of the mask are written, and the other bits stay.
    MaskedSwap,
}

/// An atomic.
#[derive(Debug)]
pub(crate) struct AtomicCall {
    pub(crate) form: Form,
    pub(crate) code: Code,
    pub(crate) width: Width,
    pub(crate) operand: u64,
    /// The value to compare with, or the mask.
    pub(crate) compare: u64,
    /// The value that the last step of a masked swap has returned.
    pub(crate) seen: Option<u64>,
    /// The memory for the previous value.
    pub(crate) result: Buffer,
}

/// Returns the width of a type; `None` if it is not supported.
pub(crate) fn width_of(datatype: i32) -> Option<Width> {
    match datatype {
        FI_INT32 | FI_UINT32 | FI_FLOAT => Some(Width::Bits32),
        FI_INT64 | FI_UINT64 | FI_DOUBLE => Some(Width::Bits64),
        _ => None,
    }
}

/// Returns the operation for a call; `None` if it is not supported. A read is an OR with zero.
pub(crate) fn supported(form: Form, datatype: i32, op: i32) -> Option<(Code, Width)> {
    let width = width_of(datatype)?;
    let is_unsigned = datatype == FI_UINT32 || datatype == FI_UINT64;
    // A float is read and written as its bits.
    let is_float = datatype == FI_FLOAT || datatype == FI_DOUBLE;
    if is_float && op != FI_ATOMIC_WRITE && op != FI_ATOMIC_READ {
        return None;
    }
    let code = match op {
        FI_CSWAP => return (form == Form::Compare).then_some((Code::CompareSwap, width)),
        FI_MSWAP => return (form == Form::Compare).then_some((Code::MaskedSwap, width)),
        _ if form == Form::Compare => return None,
        FI_SUM => AtomicOp::Add,
        FI_BAND => AtomicOp::And,
        FI_BOR => AtomicOp::Or,
        FI_BXOR => AtomicOp::Xor,
        FI_ATOMIC_WRITE => AtomicOp::Swap,
        FI_ATOMIC_READ if form == Form::Fetch => AtomicOp::Or,
        FI_MIN if is_unsigned => AtomicOp::Min,
        FI_MAX if is_unsigned => AtomicOp::Max,
        _ => return None,
    };
    Some((Code::Op(code), width))
}

/// Returns the number in the first bytes of a buffer.
pub(crate) fn value_of(buf: &Buffer, width: Width) -> u64 {
    let mut bytes = [0; 8];
    let len = buf.part(0, width as usize).read(&mut bytes);
    debug_assert!(len <= 8);
    u64::from_le_bytes(bytes)
}

impl AtomicCall {
    /// Posts the atomic, or the next step of a masked swap.
    pub(crate) fn post(
        &self,
        endpoint: &Endpoint,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Outcome, PostError> {
        match (self.code, self.form) {
            (Code::CompareSwap, _) => {
                endpoint.compare_swap(self.width, key, offset, self.compare, self.operand)
            }
            (Code::MaskedSwap, _) => match self.seen {
                None => endpoint.fetch(AtomicOp::Or, self.width, key, offset, 0),
                Some(seen) => {
                    let new = (seen & !self.compare) | (self.operand & self.compare);
                    endpoint.compare_swap(self.width, key, offset, seen, new)
                }
            },
            (Code::Op(op), Form::Update) => {
                endpoint.atomic(op, self.width, key, offset, self.operand)
            }
            (Code::Op(op), _) => endpoint.fetch(op, self.width, key, offset, self.operand),
        }
    }

    /// Notes the value that a step has returned. Returns whether the atomic is complete.
    #[inline]
    pub(crate) fn advance(&mut self, value: u64) -> bool {
        self.code != Code::MaskedSwap || self.seen.replace(value) == Some(value)
    }

    /// Writes the previous value to the memory of the application.
    pub(crate) fn give(&self, value: u64) {
        if self.form != Form::Update {
            self.result.write(&value.to_le_bytes()[..self.width as usize]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AtomicCall, Code, Form, supported};
    use tieline_libfabric_abi::*;

    #[test]
    fn floats_are_read_and_written_only() {
        for (datatype, op, is_offered) in [
            (FI_FLOAT, FI_ATOMIC_WRITE, true),
            (FI_DOUBLE, FI_ATOMIC_READ, true),
            (FI_DOUBLE, FI_SUM, false),
            (FI_FLOAT, FI_MIN, false),
        ] {
            assert_eq!(supported(Form::Fetch, datatype, op).is_some(), is_offered);
        }
        assert!(supported(Form::Compare, FI_DOUBLE, FI_CSWAP).is_none());
        assert!(supported(Form::Update, FI_FLOAT, FI_ATOMIC_WRITE).is_some());
    }

    #[test]
    fn signed_minimum_is_not_supported() {
        assert!(supported(Form::Update, FI_UINT64, FI_MIN).is_some());
        assert!(supported(Form::Update, FI_INT64, FI_MIN).is_none());
        assert!(supported(Form::Compare, FI_UINT32, FI_CSWAP).is_some());
        assert!(supported(Form::Compare, FI_UINT32, FI_SUM).is_none());
        assert!(supported(Form::Update, FI_UINT32, FI_ATOMIC_READ).is_none());
    }

    #[test]
    fn masked_swap_ends_with_the_step_that_finds_the_value_of_the_one_before() {
        for (datatype, is_offered) in [(FI_INT32, true), (FI_UINT64, true), (FI_DOUBLE, false)] {
            assert_eq!(supported(Form::Compare, datatype, FI_MSWAP).is_some(), is_offered);
            assert!(supported(Form::Fetch, datatype, FI_MSWAP).is_none());
        }
        let result = crate::abi::buffer::Buffer::default();
        let (operand, compare, width) = (0x12, 0xff, tieline::Width::Bits32);
        let (form, code) = (Form::Compare, Code::MaskedSwap);
        let mut swap = AtomicCall { form, code, width, operand, compare, seen: None, result };
        // The read, two steps before which another peer has changed the value, and one that finds it unchanged.
        assert!(!swap.advance(7) && !swap.advance(8) && !swap.advance(9) && swap.advance(9));
        swap.code = Code::CompareSwap;
        assert!(swap.advance(7));
    }
}
