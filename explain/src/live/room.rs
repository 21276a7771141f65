//! The limits of time and memory for one observation, regardless of the amount that processes publish.

use std::time::{Duration, Instant};

/// The time limit of an observation, including its one or two pauses of a quarter of a second. It is checked between reads.
const TIME: Duration = Duration::from_secs(3);
/// The maximum number of bytes that the texts and words of one observation count. A parsed text may take several times its length.
const BYTES: usize = 2 << 20;
/// The number of bytes that each text counts in addition to its length, since an empty worker takes memory too.
const BESIDE: usize = 2 << 10;

/// The limits of one observation. All processes of the observation share the limits, and the observation ends when it reaches them.
pub(super) struct Room {
    until: Option<Instant>,
    bytes: usize,
    /// Whether a limit was reached.
    ended: bool,
}

impl Room {
    /// Makes the limits for an observation of processes, which are not trusted.
    pub(super) fn for_a_look() -> Room {
        Room { until: Instant::now().checked_add(TIME), bytes: BYTES, ended: false }
    }

    /// Makes a `Room` without limits, for the state of this process itself.
    pub(super) fn without_bounds() -> Room {
        Room { until: None, bytes: usize::MAX, ended: false }
    }

    /// Checks whether time remains and no limit was reached.
    pub(super) fn has_time(&mut self) -> bool {
        self.ended |= self.until.is_some_and(|until| Instant::now() >= until);
        !self.ended
    }

    /// Takes a text of this length from the limits, if they permit it.
    pub(super) fn takes(&mut self, len: usize) -> bool {
        self.pays(len.saturating_add(BESIDE))
    }

    /// Takes the words of a place from the limits, if they permit it.
    pub(super) fn takes_words(&mut self) -> bool {
        self.pays(super::WORDS)
    }

    fn pays(&mut self, bytes: usize) -> bool {
        match self.bytes.checked_sub(bytes) {
            Some(left) if self.has_time() => self.bytes = left,
            _ => self.ended = true,
        }
        !self.ended
    }

    /// Checks whether a limit was reached, so that the result is incomplete.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Makes limits of this number of bytes and this time.
    #[cfg(test)]
    pub(super) fn of(bytes: usize, time: Duration) -> Room {
        Room { until: Some(Instant::now() + time), bytes, ended: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observation_limits_of_bytes_and_time_stay_exhausted() {
        let mut room = Room::of(3 * BESIDE, Duration::from_secs(1000));
        assert!(room.takes(BESIDE) && room.has_time());
        assert!(!room.takes(1), "there is room for one of no length");
        assert!(!room.takes(0) && !room.takes_words() && !room.has_time() && room.has_ended());
        let mut late = Room::of(usize::MAX, Duration::ZERO);
        assert!(!late.has_time() && !late.takes(0) && late.has_ended());
        let mut all = Room::without_bounds();
        assert!(all.takes(1 << 30) && all.has_time() && !all.has_ended());
    }
}
