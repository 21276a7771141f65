//! The detection whether the kernel at the other end of a stream still answers.
//!
//! The kernel's own timer for this purpose, TCP_USER_TIMEOUT, also counts the time in which a peer computes and reads nothing,
//! although its kernel answers every probe. Therefore the kernel's state is sampled periodically while sent data is unanswered.
//! Streams without unanswered data rely on keep-alive.

use std::time::{Duration, Instant};

/// The time in which the kernel sends several probes.
const PROBES: Duration = Duration::from_secs(2);
/// The possible delay of the kernel's timers and of the times that it reports.
const COARSE: Duration = Duration::from_millis(50);

/// The kernel's state of sent data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unanswered {
    /// Whether data is under way.
    pub(crate) in_flight: bool,
    /// Whether the kernel holds data that is unsent or unacknowledged.
    pub(crate) waits: bool,
    /// Whether the peer was probed for room and has not answered yet.
    pub(crate) asked: bool,
    /// The time since the peer last acknowledged anything, and the time since anything was last sent.
    pub(crate) since_ack: Duration,
    pub(crate) since_sent: Duration,
    /// The time after which the kernel retransmits unacknowledged data.
    pub(crate) again_after: Duration,
}

impl Unanswered {
    /// Checks whether this stream must be sampled again.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight || self.waits || self.asked
    }

    /// Returns the longest tolerated silence. Kernels answer only two probes per second, and probes are sent at growing intervals,
    /// so a single unanswered probe means nothing.
    pub(crate) fn timeout(&self, limit: Duration) -> Duration {
        if self.in_flight { limit } else { limit.max(PROBES) }
    }

    /// Checks whether the kernel should have retransmitted and has not, such as without a route out of this host. The kernel counts
    /// such an attempt, but not as sent data, so the acknowledgement may be the more recent event.
    fn is_overdue(&self) -> bool {
        self.since_ack.min(self.since_sent) > self.again_after + COARSE
    }
}

/// The kernel's state of unacknowledged data, for failure texts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unacknowledged {
    pub(crate) bytes: usize,
    pub(crate) segment: usize,
    pub(crate) mtu: u32,
    pub(crate) again: u32,
}

/// The observations of one stream.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    since: Option<Instant>,
    /// The time of the last sample at which everything was answered, and of the last one at which it was not.
    fine: Option<Instant>,
    missed: Option<Instant>,
}

impl Silence {
    /// Returns the time for which the peer has been silent. `marked` is the time at which data was first sent since the last
    /// sample.
    pub(crate) fn observe(&mut self, now: Instant, marked: Instant, seen: &Unanswered) -> Duration {
        // Data that was sent after the last acknowledgement waits for an acknowledgement; a closed window needs none.
        let waits =
            seen.since_ack > seen.since_sent || seen.is_overdue() || self.still_misses(now, seen);
        if !(seen.asked || seen.in_flight && waits) {
            *self = Silence { fine: Some(now), ..Silence::default() };
            return Duration::ZERO;
        }
        self.missed = Some(now);
        let last_ack = now.checked_sub(seen.since_ack).unwrap_or(marked);
        let first = || self.fine.map_or(marked, |fine| fine.max(marked));
        let since = self.since.unwrap_or_else(first).max(last_ack);
        self.since = Some(since);
        now.saturating_duration_since(since)
    }

    /// Checks whether nothing has been acknowledged since the last sample, which already found an answer missing.
    fn still_misses(&self, now: Instant, seen: &Unanswered) -> bool {
        let elapsed = self.missed.map(|missed| now.saturating_duration_since(missed) + COARSE);
        elapsed.is_some_and(|elapsed| seen.since_ack > elapsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn seen(in_flight: bool, waits: bool, asked: bool, ack: u32, sent: u32) -> Unanswered {
        let (since_ack, since_sent) = (S * ack, S * sent);
        Unanswered { in_flight, waits, asked, since_ack, since_sent, again_after: 500 * S }
    }

    #[test]
    fn silence_starts_at_first_unanswered_data() {
        let (start, mut silence) = (Instant::now() + 100 * S, Silence::default());
        // The stream was idle for an hour; then data was sent, 1 s ago.
        let marked = start;
        assert_eq!(silence.observe(start + S, marked, &seen(true, false, false, 90, 1)), S);
        assert_eq!(silence.observe(start + 3 * S, marked, &seen(true, false, false, 92, 1)), 3 * S);
        // The peer answers, and is probed again.
        assert_eq!(silence.observe(start + 5 * S, marked, &seen(true, false, false, 1, 0)), S);
    }

    #[test]
    fn a_peer_that_reads_nothing_and_answers_is_not_silent() {
        let (start, mut silence) = (Instant::now() + 100 * S, Silence::default());
        for at in 0..100 {
            // The window is closed; the last probe was answered, regardless of its age.
            let closed = seen(false, true, false, at, at + 1);
            assert_eq!(silence.observe(start + S * at, start, &closed), Duration::ZERO);
            assert!(closed.is_busy());
            // Data beyond the window is retransmitted, and answered immediately.
            let again = seen(true, true, false, at % 7, at % 7);
            assert_eq!(silence.observe(start + S * at, start, &again), Duration::ZERO);
        }
        // The link is cut: the next probe is not answered.
        let cut = |ack| seen(false, true, true, ack, 200);
        // The last sample was good, and the probe was sent after it.
        assert_eq!(silence.observe(start + 100 * S, start, &cut(50)), S);
        assert_eq!(silence.observe(start + 110 * S, start, &cut(60)), 11 * S);
    }

    #[test]
    fn failed_retransmission_is_detected_after_a_recent_acknowledgement() {
        const MS: Duration = Duration::from_millis(1);
        let (start, mut silence) = (Instant::now() + 100 * S, Silence::default());
        // The device went down 4 ms after an acknowledgement. The kernel tries at 200, 600, 1400 and 3000 ms, and doubles its
        // timeout every time. Packets that it cannot send leave no other trace.
        let mut silent_for = Vec::new();
        for at in (0..=3500).step_by(250) {
            let fired = [200, 600, 1400, 3000].iter().filter(|&&fires| fires <= at).count();
            let again_after = 200 * MS * (1 << fired);
            let since_ack = MS * (at + 4);
            let seen = Unanswered {
                again_after,
                since_ack,
                since_sent: since_ack,
                ..seen(true, true, false, 0, 0)
            };
            silent_for.push(silence.observe(start + MS * at, start, &seen).as_millis());
        }
        // The silence counts from the first sample at which the retransmission was overdue, however late the next attempt is.
        assert_eq!(silent_for[..4], [0, 0, 250, 500]);
        assert_eq!(silent_for[14], 3250);
        // An acknowledgement ends the silence.
        let last_ack = Unanswered { again_after: S, ..seen(true, true, false, 0, 0) };
        assert_eq!(silence.observe(start + 3600 * MS, start, &last_ack), Duration::ZERO);
    }

    #[test]
    fn an_acknowledgement_as_old_as_the_last_look_may_be_answers_it() {
        let (start, mut silence) = (Instant::now() + 100 * S, Silence::default());
        assert_eq!(silence.observe(start, start, &seen(true, false, false, 9, 1)), Duration::ZERO);
        let at = |since_ack| Unanswered { since_ack, ..seen(true, false, false, 1, 2) };
        let silent = silence.observe(start + S, start, &at(S + COARSE + Duration::from_nanos(1)));
        assert!(silent > Duration::ZERO, "nothing was acknowledged since then");
        assert_eq!(silence.observe(start + 2 * S, start, &at(S + COARSE)), Duration::ZERO);
    }

    #[test]
    fn a_stream_whose_bytes_are_acknowledged_is_at_rest() {
        assert!(!seen(false, false, false, 5, 5).is_busy());
    }

    #[test]
    fn unfinished_work_keeps_stream_busy_and_probes_get_their_time() {
        for (in_flight, waits, asked) in
            [(true, false, false), (false, true, false), (false, false, true)]
        {
            let seen = seen(in_flight, waits, asked, 0, 0);
            assert!(seen.is_busy(), "{seen:?}");
            let limits = [S, PROBES, 3 * S].map(|limit| seen.timeout(limit));
            let least = if in_flight { S } else { PROBES };
            assert_eq!(limits, [least, PROBES, 3 * S], "{seen:?}");
        }
    }

    #[test]
    fn retransmission_is_overdue_after_timer_tolerance() {
        let nanosecond = Duration::from_nanos(1);
        let at = |since_ack, since_sent| {
            let seen = seen(true, false, false, 0, 0);
            Unanswered { since_ack, since_sent, again_after: S, ..seen }.is_overdue()
        };
        let latest = S + COARSE;
        assert!(!at(latest, latest) && at(latest + nanosecond, latest + nanosecond));
        assert!(!at(latest, 9 * S) && !at(9 * S, latest), "the younger of the two counts");
    }
}
