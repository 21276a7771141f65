//! Whether anybody answers at the other end of a stream.
//!
//! The kernel's own clock for this, TCP_USER_TIMEOUT, also counts the time in which a peer computes and reads
//! nothing, although its kernel answers every probe. So what the kernel knows is looked at now and then, while
//! something that was sent has not been answered. Streams on which nothing is sent have keep-alive.

use std::time::{Duration, Instant};

/// Time for several probes.
const PROBES: Duration = Duration::from_secs(2);

/// What the kernel says of what was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unanswered {
    /// Something is under way.
    pub(crate) in_flight: bool,
    /// Something waits for room at the other side.
    pub(crate) waits: bool,
    /// The other side was asked for room, and has not answered yet.
    pub(crate) asked: bool,
    /// Since the other side last acknowledged anything, and since anything was last sent.
    pub(crate) since_ack: Duration,
    pub(crate) since_sent: Duration,
}

impl Unanswered {
    /// Whether this stream is to be looked at again.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight || self.waits || self.asked
    }

    /// How long nobody may answer. Kernels answer only two probes in a second, and probes are sent ever more
    /// rarely, so one that is not answered means nothing yet.
    pub(crate) fn patience(&self, limit: Duration) -> Duration {
        if self.in_flight { limit } else { limit.max(PROBES) }
    }
}

/// What was seen of one stream.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    since: Option<Instant>,
    /// The last look at which everything was answered.
    fine: Option<Instant>,
}

impl Silence {
    /// How long nobody has answered. `marked`: when something was sent for the first time since the last look.
    pub(crate) fn look(&mut self, now: Instant, marked: Instant, seen: &Unanswered) -> Duration {
        // What was sent after the last acknowledgement waits for one; a window that is closed needs none.
        let unanswered = seen.asked || seen.in_flight && seen.since_ack > seen.since_sent;
        if !unanswered {
            (self.since, self.fine) = (None, Some(now));
            return Duration::ZERO;
        }
        let heard = now.checked_sub(seen.since_ack).unwrap_or(marked);
        let first = || self.fine.map_or(marked, |fine| fine.max(marked));
        let since = self.since.unwrap_or_else(first).max(heard);
        self.since = Some(since);
        now.saturating_duration_since(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn seen(in_flight: bool, waits: bool, asked: bool, ack: u32, sent: u32) -> Unanswered {
        Unanswered { in_flight, waits, asked, since_ack: S * ack, since_sent: S * sent }
    }

    #[test]
    fn a_peer_that_does_not_answer_is_silent_since_the_first_thing_that_it_was_sent() {
        let (start, mut silence) = (Instant::now() + 100 * S, Silence::default());
        // Nothing was said for an hour; then something was sent, 1 s ago.
        let marked = start;
        assert_eq!(silence.look(start + S, marked, &seen(true, false, false, 90, 1)), S);
        assert_eq!(silence.look(start + 3 * S, marked, &seen(true, false, false, 92, 1)), 3 * S);
        // It answers, and is asked again.
        assert_eq!(silence.look(start + 5 * S, marked, &seen(true, false, false, 1, 0)), S);
    }

    #[test]
    fn a_peer_that_reads_nothing_and_answers_is_not_silent() {
        let (start, mut silence) = (Instant::now() + 100 * S, Silence::default());
        for at in 0..100 {
            // The window is closed; the last probe was answered, however long ago.
            let closed = seen(false, true, false, at, at + 1);
            assert_eq!(silence.look(start + S * at, start, &closed), Duration::ZERO);
            assert!(closed.is_busy());
            // What was beyond its room is sent again, and answered at once.
            let again = seen(true, true, false, at % 7, at % 7);
            assert_eq!(silence.look(start + S * at, start, &again), Duration::ZERO);
        }
        // The link is cut: the next probe is not answered.
        let cut = |ack| seen(false, true, true, ack, 200);
        // It was fine when it was last looked at, and the probe was sent after that.
        assert_eq!(silence.look(start + 100 * S, start, &cut(50)), S);
        assert_eq!(silence.look(start + 110 * S, start, &cut(60)), 11 * S);
    }

    #[test]
    fn a_stream_whose_bytes_are_acknowledged_is_at_rest() {
        assert!(!seen(false, false, false, 5, 5).is_busy());
    }
}
