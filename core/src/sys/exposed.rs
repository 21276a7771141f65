//! A region's bytes for the accesses that peers make by messages.

#![allow(unsafe_code)]

use super::Span;
use std::sync::atomic::{AtomicBool, Ordering, fence};
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

/// The fence between a peer's put, which consists of stores of this thread, and later stores. Another thread may load from the
/// region.
const AFTER_PUT: Ordering = Ordering::Release;
/// The fence between a peer's get, which consists of loads of this thread, and later loads and stores.
const AFTER_GET: Ordering = Ordering::Acquire;

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
        if self.borrowed {
            let to = self.span.range(offset, data.len())?;
            // SAFETY: the range is inside the region, whose owner has allowed writing.
            unsafe { touch.write(to, data) }.map_err(|fault| at(offset, fault))?;
        } else {
            self.span.write(offset, data)?;
        }
        end(AFTER_PUT);
        Ok(())
    }

    /// Copies bytes out of the region.
    pub(crate) fn read(&self, touch: &Touch, offset: usize, out: &mut [u8]) -> Result<(), Refusal> {
        if self.borrowed {
            let from = self.span.range(offset, out.len())?;
            // SAFETY: the range is inside the region, whose owner has allowed reading.
            unsafe { touch.read(from, out) }.map_err(|fault| at(offset, fault))?;
        } else {
            self.span.read(offset, out)?;
        }
        end(AFTER_GET);
        Ok(())
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

/// Ends an access. x86-64 needs no instruction for these fences.
#[inline]
fn end(order: Ordering) {
    fence(order);
    #[cfg(test)]
    tests::ENDED.with_borrow_mut(|ended| ended.push(order));
}

#[cfg(test)]
mod tests {
    use super::*;
    use Ordering::{Acquire, Relaxed};
    use std::cell::RefCell;
    use tieline_testing::litmus::Protocol;
    use tieline_testing::litmus::Step::{Fence, Load, Store};

    thread_local! {
        /// The fences of this thread.
        pub(super) static ENDED: RefCell<Vec<Ordering>> = const { RefCell::new(Vec::new()) };
    }

    #[test]
    fn put_and_get_of_a_peer_end_with_fences() {
        let (touch, mut memory) = (Touch::default(), [0u8; 64]);
        for borrowed in [false, true] {
            let bytes = Exposed::new(Span::from_owned(&mut memory), borrowed);
            let _ = ENDED.take();
            assert!(
                bytes.write(&touch, 8, &[7; 8]).is_ok()
                    && bytes.read(&touch, 8, &mut [0; 8]).is_ok()
            );
            assert_eq!(ENDED.take(), [AFTER_PUT, AFTER_GET]);
        }
    }

    #[test]
    fn thread_that_sees_a_later_put_also_sees_an_earlier_one() {
        Protocol {
            orders: &[("put", AFTER_PUT), ("reader", Acquire)],
            threads: |order| {
                vec![
                    vec![Store("block", 1, Relaxed), Fence(order[0]), Store("flag", 1, Relaxed)],
                    vec![Load("flag", "flag", order[1]), Load("block", "block", Relaxed)],
                ]
            },
            is_wrong: |end| (end.of("flag"), end.of("block")) == (1, 0),
        }
        .check();
    }

    /// The owner changes the block when it sees the flag of a put behind the get.
    #[test]
    fn get_reads_nothing_that_follows_a_later_put() {
        Protocol {
            orders: &[("get", AFTER_GET), ("owner", Acquire)],
            threads: |order| {
                vec![
                    vec![Load("block", "got", Relaxed), Fence(order[0]), Store("flag", 1, Relaxed)],
                    vec![Load("flag", "flag", order[1]), Store("block", 2, Relaxed)],
                ]
            },
            is_wrong: |end| (end.of("flag"), end.of("got")) == (1, 2),
        }
        .check();
    }
}
