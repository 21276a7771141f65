//! The pending puts, gets and flushes of this side, and the answers that this side owes the peer.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::sys::Piece;
use tieline_plugin_api::Status;

use crate::frame::{KeyPart, Malformed, Refused};
use crate::regions::Region;

/// The length up to which puts and the data of gets are copied, unless longer puts wait before them.
pub(crate) const SMALL: usize = 8 << 10;
/// The maximum numbers of pending puts, gets and flushes of one endpoint.
pub(crate) const MAX_PUTS: usize = 256;
pub(crate) const MAX_GETS: usize = 64;
pub(crate) const MAX_FLUSHES: usize = 64;

/// A put that the target has not confirmed yet.
#[derive(Debug)]
pub(crate) struct PutOp {
    pub(crate) number: u32,
    /// The cookie of the put; `None` if the put has already completed locally.
    pub(crate) cookie: Option<u64>,
    /// Whether the put's data is sent from the application's memory.
    pub(crate) bulk: bool,
    /// Whether the put may complete before the target confirms it.
    pub(crate) local: bool,
    /// The error of the part of the data that could not be read when it was sent.
    pub(crate) missing: Option<Refused>,
}

/// A get that has not ended.
#[derive(Debug)]
pub(crate) struct GetOp {
    pub(crate) number: u32,
    pub(crate) cookie: u64,
    pub(crate) pieces: Box<[Piece]>,
    pub(crate) len: u64,
    pub(crate) landed: u64,
    /// The error of the part of the data that could not be written at this side.
    pub(crate) missing: Option<Status>,
}

/// A flush that is not answered, or whose gets have not ended.
#[derive(Debug)]
pub(crate) struct FlushOp {
    pub(crate) number: u32,
    pub(crate) cookie: u64,
    pub(crate) last_get: u32,
    pub(crate) last_put: u32,
    pub(crate) answered: bool,
    pub(crate) result: Result<(), Status>,
}

/// Operations that wait to be cut into frames, in the order in which they were posted.
#[derive(Debug)]
pub(crate) enum BulkOp {
    /// A put. `word` is the notification for the target, after the put's last piece.
    Put {
        number: u32,
        key: KeyPart,
        offset: u64,
        pieces: Box<[Piece]>,
        len: usize,
        cut: usize,
        word: Option<u32>,
        /// The number of the last frame, after which the word is sent.
        last_frame: u64,
    },
    Flush {
        number: u32,
    },
}

/// A get of the peer that this side serves.
#[derive(Debug)]
pub(crate) struct Serve {
    pub(crate) number: u32,
    pub(crate) region: Result<Arc<Region>, Refused>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) cut: u64,
    /// The number of the last frame.
    pub(crate) last_frame: u64,
}

impl Serve {
    /// Checks whether a part of a long get has not been cut into frames.
    pub(crate) fn has_more(&self) -> bool {
        self.cut < self.len && self.len > SMALL as u64 && self.region.is_ok()
    }
}

/// The last operations before a fence, which holds back later operations until these cannot be overtaken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fence {
    pub(crate) last_put: u32,
    pub(crate) last_get: u32,
}

/// All pending operations, created with the first one of either side.
#[derive(Debug, Default)]
pub(crate) struct Ops {
    pub(crate) puts: VecDeque<PutOp>,
    pub(crate) gets: Vec<GetOp>,
    pub(crate) flushes: VecDeque<FlushOp>,
    pub(crate) bulk: VecDeque<BulkOp>,
    pub(crate) serves: VecDeque<Serve>,
    pub(crate) fence: Option<Fence>,
    pub(crate) last_put: u32,
    pub(crate) last_get: u32,
    pub(crate) last_flush: u32,
    /// The status of a failed put that had completed locally, until a flush reports it.
    pub(crate) late: Option<Status>,
    /// The numbers of the last put and of the last flush that the peer has reported as ended.
    ended_put: u32,
    ended_flush: u32,
    /// The number of the peer's last put that has arrived, if it was refused.
    pub(crate) refused: Option<u32>,
    /// The put of the peer that is arriving and was refused.
    pub(crate) failing: Option<(u32, Refused)>,
    /// The refused puts of the peer that were not reported yet.
    pub(crate) failures: VecDeque<(u32, Refused)>,
    /// The last put of the peer that has ended and was not reported yet.
    pub(crate) done: Option<u32>,
    /// The last flush of the peer that was not answered yet.
    pub(crate) flush_asked: Option<u32>,
    serve_next: bool,
}

/// Checks whether `a` is not after `b`, as numbers that wrap around.
pub(crate) fn not_after(a: u32, b: u32) -> bool {
    b.wrapping_sub(a) < 1 << 31
}

/// Advances `before` to `number`, which must be after `before`, not after `last`, and before the first operation that waits to be
/// sent.
fn ended(before: &mut u32, last: u32, waiting: Option<u32>, number: u32) -> Option<()> {
    let step = number.wrapping_sub(*before);
    let sent = waiting.is_none_or(|waiting| !not_after(waiting, number));
    let valid = step >= 1 && step <= last.wrapping_sub(*before) && sent;
    valid.then(|| *before = number)
}

impl Ops {
    /// Checks whether a fence still holds back later operations. `in_order` states whether frames arrive in the order in which they
    /// are sent.
    pub(crate) fn is_barred(&mut self, in_order: bool) -> bool {
        let Some(fence) = self.fence else { return false };
        let gets = self.gets.iter().any(|get| not_after(get.number, fence.last_get));
        let puts = if in_order {
            self.bulk.iter().any(
                |op| matches!(op, BulkOp::Put { number, .. } if not_after(*number, fence.last_put)),
            )
        } else {
            self.puts.front().is_some_and(|put| not_after(put.number, fence.last_put))
        };
        if !gets && !puts {
            self.fence = None;
        }
        gets || puts
    }

    /// Checks whether a serve is next: puts and serves alternate.
    pub(crate) fn serves_turn(&mut self) -> bool {
        let serves = self.serves.iter().any(Serve::has_more);
        let turn = serves && (self.serve_next || self.bulk.is_empty());
        self.serve_next = !turn;
        turn
    }

    /// Returns the pending get of that number.
    pub(crate) fn get(&self, number: u32) -> Option<&GetOp> {
        self.gets.iter().find(|get| get.number == number)
    }

    /// Removes and returns the next put, if the peer reports that every put up to `number` has ended.
    pub(crate) fn next_put_done(&mut self, number: u32) -> Option<PutOp> {
        let put = self.puts.front().filter(|put| not_after(put.number, number));
        put.is_some().then(|| self.puts.pop_front()).flatten()
    }

    /// Records the peer's report that every put up to `number` has ended.
    pub(crate) fn puts_ended(&mut self, number: u32) -> Result<(), Malformed> {
        let waiting = self.bulk.iter().find_map(|op| match op {
            BulkOp::Put { number, .. } => Some(*number),
            BulkOp::Flush { .. } => None,
        });
        ended(&mut self.ended_put, self.last_put, waiting, number)
            .ok_or("the end of a put that has not begun, or has ended")
    }

    /// Records the peer's report that every flush up to `number` is answered.
    pub(crate) fn flushes_ended(&mut self, number: u32) -> Result<(), Malformed> {
        let waiting = self.bulk.iter().find_map(|op| match op {
            BulkOp::Flush { number } => Some(*number),
            BulkOp::Put { .. } => None,
        });
        ended(&mut self.ended_flush, self.last_flush, waiting, number)
            .ok_or("the end of a flush that has not begun, or has ended")?;
        for flush in &mut self.flushes {
            flush.answered |= not_after(flush.number, number);
        }
        Ok(())
    }

    /// Removes a put that the peer has refused.
    pub(crate) fn put_refused(&mut self, number: u32) -> Result<PutOp, Malformed> {
        let cut = |op: &BulkOp| !matches!(op, BulkOp::Put { number: n, .. } if *n == number);
        let at = self.puts.iter().position(|put| put.number == number);
        at.filter(|_| self.bulk.iter().all(cut))
            .and_then(|at| self.puts.remove(at))
            .ok_or("the refusal of a put that has not begun, or has ended")
    }

    /// Records that all data of a put has been read. Returns the put's cookie if that completes the put.
    pub(crate) fn put_read(&mut self, number: u32) -> Option<u64> {
        let complete =
            |put: &&mut PutOp| put.number == number && put.local && put.missing.is_none();
        let put = self.puts.iter_mut().find(complete)?;
        put.cookie.take()
    }

    /// Records that some data of a put could not be read. The put fails when the target reports its end, and the target gets no
    /// notification.
    pub(crate) fn put_lacks(&mut self, number: u32) {
        if let Some(put) = self.puts.iter_mut().find(|put| put.number == number) {
            put.missing = Some(Status::Invalid.into());
        }
    }

    /// Checks whether `put_lacks` was called for a put.
    pub(crate) fn lacks(&self, number: u32) -> bool {
        self.puts.iter().any(|put| put.number == number && put.missing.is_some())
    }

    /// Checks whether a flush waits for a put.
    pub(crate) fn covers_put(&self, number: u32) -> bool {
        self.flushes.iter().any(|flush| not_after(number, flush.last_put))
    }

    /// Records a failed operation, so that the flushes that wait for it report the failure.
    pub(crate) fn note_failure(&mut self, put: Option<u32>, get: Option<u32>, status: Status) {
        for flush in &mut self.flushes {
            let concerned = put.is_some_and(|n| not_after(n, flush.last_put))
                || get.is_some_and(|n| not_after(n, flush.last_get));
            if concerned && flush.result.is_ok() {
                flush.result = Err(status);
            }
        }
    }

    /// Returns the cookies of all operations that owe a completion.
    pub(crate) fn cookies(&self) -> Vec<u64> {
        let puts = self.puts.iter().filter_map(|put| put.cookie);
        let gets = self.gets.iter().map(|get| get.cookie);
        puts.chain(gets).chain(self.flushes.iter().map(|flush| flush.cookie)).collect()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.puts.is_empty()
            && self.gets.is_empty()
            && self.flushes.is_empty()
            && self.bulk.is_empty()
            && self.serves.is_empty()
            && self.failures.is_empty()
            && self.done.is_none()
            && self.flush_asked.is_none()
            && self.failing.is_none()
            && self.fence.is_none()
            && self.late.is_none()
    }
}

#[cfg(test)]
#[path = "ops_tests.rs"]
mod tests;
