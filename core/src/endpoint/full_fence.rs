//! The processor's fence between operations that complete within their calls.
//!
//! Such an operation consists of loads and stores of this thread. A processor may let a later load pass an earlier store, on x86-64
//! as well. A get behind a fence or a flush could then read memory before an earlier put is visible.

use std::sync::atomic::{Ordering, fence};

/// Orders all accesses. An acquire or release fence would not order a store before a later load.
const BETWEEN: Ordering = Ordering::SeqCst;

/// Orders what this thread has loaded and stored before what it loads and stores later.
#[inline]
pub(crate) fn full_fence() {
    fence(BETWEEN);
    #[cfg(test)]
    tests::FENCES.set(tests::FENCES.get() + 1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;
    use Ordering::{Acquire, Relaxed};
    use std::cell::Cell;
    use tieline_testing::litmus::Protocol;
    use tieline_testing::litmus::Step::{Fence, Load, Store};

    thread_local! {
        /// The number of this thread's fences.
        pub(super) static FENCES: Cell<u32> = const { Cell::new(0) };
    }

    #[test]
    fn one_of_two_that_put_and_fence_and_get_sees_the_other() {
        Protocol {
            orders: &[("one", BETWEEN), ("other", BETWEEN)],
            threads: |order| {
                let put_then_get = |mine, theirs, result, order| {
                    vec![Store(mine, 1, Relaxed), Fence(order), Load(theirs, result, Relaxed)]
                };
                vec![
                    put_then_get("a", "b", "first", order[0]),
                    put_then_get("b", "a", "second", order[1]),
                ]
            },
            is_wrong: |end| (end.of("first"), end.of("second")) == (0, 0),
        }
        .check();
    }

    #[test]
    fn block_is_seen_by_a_load_that_sees_the_flag_behind_the_fence() {
        Protocol {
            orders: &[("fence", BETWEEN), ("reader", Acquire)],
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

    #[test]
    fn fence_and_flush_with_nothing_in_flight_fence_the_processor() -> Result<(), crate::Error> {
        let context = crate::Context::open()?;
        let worker = context.worker()?;
        let memory = context.alloc(64)?;
        let endpoint = worker.connect(&worker.address()?)?;
        let key = endpoint.import_key(&memory.remote_key()?)?;
        let counted = || FENCES.replace(0);
        let _ = counted();
        let _ = worker.finish(endpoint.put_bytes(b"block", &key, 0)?)?;
        assert_eq!(counted(), 0, "a put has no full fence");
        endpoint.fence()?;
        assert_eq!(counted(), 1);
        let flushed = endpoint.flush()?;
        assert!(matches!(flushed, Outcome::Done(_)), "{flushed:?}");
        assert_eq!(counted(), 1);
        worker.flush()?;
        assert_eq!(counted(), 1);
        Ok(())
    }

    /// A queued put may be carried out by progress, so the fence must come after it and not only in the call.
    #[test]
    fn flush_behind_queued_operations_fences_the_processor_after_them() -> Result<(), crate::Error>
    {
        let context = crate::Context::open()?;
        let (worker, peer) = (context.worker()?, context.worker()?);
        let endpoint = worker.connect(&peer.address()?)?;
        // The peer takes no messages, so one of them has to wait in the queue.
        let is_sent = |outcome: &Outcome| matches!(outcome, Outcome::Done(_));
        while is_sent(&endpoint.send(7, 0, b"one of many")?) {}
        let Outcome::Pending(flush) = endpoint.flush()? else { panic!("a message waits") };
        let _ = FENCES.replace(0);
        while worker.test(&flush).is_none() {
            let _ = (worker.progress(), peer.progress());
        }
        assert!(FENCES.get() > 0);
        Ok(())
    }
}
