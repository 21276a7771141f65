//! The receiving half of a session: delivers every frame once and in order, from any number of streams. This module is pure.

use std::collections::VecDeque;

use crate::frame::Malformed;

/// The maximum number of unacknowledged frames in a session that retains. A frame further ahead violates the protocol. A peer can
/// thus make this side hold at most this number of the longest messages, 64 MiB: the size of the largest send buffer.
pub(crate) const WINDOW: u32 = 1024;

/// The treatment of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The frame is the expected one.
    Next,
    /// Frames before this one are missing: hold it.
    Ahead,
    /// The frame has already arrived.
    Duplicate,
}

/// The frames that have arrived and are not delivered. `T` is the record of a frame that is held.
#[derive(Debug)]
pub(crate) struct Window<T> {
    expected: u32,
    /// The frames from `expected` on. The first is present only if it could not be delivered yet.
    ahead: VecDeque<Option<T>>,
}

impl<T> Default for Window<T> {
    fn default() -> Window<T> {
        Window { expected: 0, ahead: VecDeque::new() }
    }
}

impl<T> Window<T> {
    #[cfg(test)]
    pub(crate) fn starting_at(expected: u32) -> Window<T> {
        Window { expected, ahead: VecDeque::new() }
    }

    /// Returns the number before which all frames have been delivered.
    #[inline]
    pub(crate) fn expected(&self) -> u32 {
        self.expected
    }

    /// Returns the sequence number after the highest one that has arrived.
    pub(crate) fn highest(&self) -> u32 {
        self.expected.wrapping_add(self.ahead.len() as u32)
    }

    /// Checks whether frames are held.
    pub(crate) fn has_gap(&self) -> bool {
        !self.ahead.is_empty()
    }

    #[inline]
    pub(crate) fn judge(&self, seq: u32) -> Result<Verdict, Malformed> {
        if seq == self.expected && self.ahead.is_empty() {
            return Ok(Verdict::Next);
        }
        let distance = seq.wrapping_sub(self.expected);
        if distance >= 1 << 31 {
            return Ok(Verdict::Duplicate);
        }
        if distance >= WINDOW {
            return Err("a sequence number far ahead of all others");
        }
        Ok(match self.ahead.get(distance as usize) {
            Some(Some(_)) => Verdict::Duplicate,
            _ if distance == 0 => Verdict::Next,
            _ => Verdict::Ahead,
        })
    }

    /// Records that the next frame has been delivered.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.expected = self.expected.wrapping_add(1);
        let _ = self.ahead.pop_front();
    }

    /// Holds a frame that arrived early or could not be delivered yet. The caller has judged `seq`.
    pub(crate) fn hold(&mut self, seq: u32, item: T) {
        let at = seq.wrapping_sub(self.expected) as usize;
        while self.ahead.len() <= at {
            self.ahead.push_back(None);
        }
        self.ahead[at] = Some(item);
    }

    /// Returns the held record of the next frame.
    pub(crate) fn ready(&mut self) -> Option<&mut T> {
        self.ahead.front_mut()?.as_mut()
    }

    /// Removes and returns the held record of the next frame, as delivered.
    pub(crate) fn take_ready(&mut self) -> Option<T> {
        if !matches!(self.ahead.front(), Some(Some(_))) {
            return None;
        }
        self.expected = self.expected.wrapping_add(1);
        self.ahead.pop_front().flatten()
    }
}
