//! A region's bytes for the accesses that peers make by messages.

#![allow(unsafe_code)]

use super::Span;
use std::sync::atomic::{AtomicBool, Ordering};
use tieline_host::abi::PackBuffer;
use tieline_net::touch::{Fault, Touch, is_writable};
use tieline_plugin_api::Status;

/// The reason to refuse a peer's operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: Status,
    /// The offset of the first byte of the region that could not be accessed, if the memory is the cause. The status is then
    /// [`Refusal::FAULT`].
    pub(crate) fault: Option<u64>,
}

impl Refusal {
    /// The status for missing memory.
    pub(crate) const FAULT: Status = Status::Permission;

    pub(crate) fn fault(at: u64) -> Refusal {
        Refusal { status: Refusal::FAULT, fault: Some(at) }
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Refusal {
        Refusal { status, fault: None }
    }
}

/// The bytes of a region, and whether they may disappear during its life.
#[derive(Debug)]
pub(crate) struct Exposed {
    span: Span,
    /// Whether the memory is the application's own, which may be unmapped, protected or truncated at any time, in spite of the
    /// contract. Memory of the library does not disappear.
    borrowed: bool,
    faulted: AtomicBool,
}

impl Exposed {
    pub(crate) fn new(span: Span, borrowed: bool) -> Exposed {
        Exposed { span, borrowed, faulted: AtomicBool::new(false) }
    }

    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    /// Records a fault, and returns whether it is the first one, which is the one to report.
    pub(crate) fn first_fault(&self) -> bool {
        !self.faulted.swap(true, Ordering::Relaxed)
    }

    /// Copies bytes into the region.
    pub(crate) fn write(&self, touch: &Touch, offset: usize, data: &[u8]) -> Result<(), Refusal> {
        if !self.borrowed {
            return Ok(self.span.write(offset, data)?);
        }
        let to = self.span.range(offset, data.len())?;
        // SAFETY: the range is inside the region, whose owner has allowed writing.
        unsafe { touch.write(to, data) }.map_err(|fault| at(offset, fault))
    }

    /// Copies bytes out of the region.
    pub(crate) fn read(&self, touch: &Touch, offset: usize, out: &mut [u8]) -> Result<(), Refusal> {
        if !self.borrowed {
            return Ok(self.span.read(offset, out)?);
        }
        let from = self.span.range(offset, out.len())?;
        // SAFETY: the range is inside the region, whose owner has allowed reading.
        unsafe { touch.read(from, out) }.map_err(|fault| at(offset, fault))
    }

    /// Appends bytes of the region to a message.
    pub(crate) fn pack(
        &self,
        touch: &Touch,
        offset: usize,
        len: usize,
        out: &mut PackBuffer<'_>,
    ) -> Result<(), Refusal> {
        // The range is checked before anything is written, so an invalid range leaves the buffer unchanged.
        let _ = self.span.range(offset, len)?;
        self.read(touch, offset, out.take(len)?)
    }

    /// Checks, for memory of the application, the page of an aligned word before an atomic on it. The check does not exclude a
    /// later fault. If another thread unmaps the page in the few hundred nanoseconds between check and atomic, the process dies.
    pub(crate) fn check_word(&self, offset: usize, width: usize) -> Result<(), Refusal> {
        let word = self.span.range(offset, width)?;
        if !self.borrowed || word.addr() % 4 != 0 || is_writable(word.addr()) {
            return Ok(());
        }
        Err(Refusal::fault(offset as u64))
    }
}

fn at(offset: usize, Fault(behind): Fault) -> Refusal {
    Refusal::fault((offset + behind) as u64)
}
