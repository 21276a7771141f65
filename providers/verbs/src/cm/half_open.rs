//! Half-open connections, whose peers have not yet proven that they belong to the job. This module limits their number and selects
//! the connection to drop for a new one.

use std::time::{Duration, Instant};

/// The limit on half-open incoming connections. Each of them holds a queue pair and buffers.
pub(super) const HALF_OPEN: usize = 64;
/// The time after which, at the limit, a silent peer may be dropped for a new one.
const GRACE: Duration = Duration::from_secs(1);
/// The start of a rejection's private data if there is no room. The rejected peer retries.
pub(super) const FULL: &[u8] = b"FULL";

/// Whether another connection fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Free,
    /// Another connection fits after this one is dropped.
    Of(u64),
    Full,
}

/// Decides whether another half-open connection fits. Each existing connection is given by its number and the time at which its
/// peer was last heard.
pub(super) fn room(half_open: impl Iterator<Item = (u64, Instant)> + Clone, now: Instant) -> Room {
    if half_open.clone().count() < HALF_OPEN {
        return Room::Free;
    }
    let silent = half_open.filter(|(_, heard)| now.saturating_duration_since(*heard) >= GRACE);
    silent.min_by_key(|(_, heard)| *heard).map_or(Room::Full, |(number, _)| Room::Of(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_strangers_make_room_for_newcomers() {
        let begun = Instant::now();
        let heard = |n: u64| (n, begun + Duration::from_millis(n));
        let all = HALF_OPEN as u64;
        assert_eq!(room((1..all).map(heard), begun), Room::Free);
        assert_eq!(room((1..=all).map(heard), begun + GRACE), Room::Full, "they may only be slow");
        let just = begun + GRACE + Duration::from_millis(1);
        assert_eq!(room((1..=all).map(heard), just), Room::Of(1), "the whole of it");
        let later = begun + GRACE + Duration::from_millis(10);
        assert_eq!(room((1..=all).map(heard), later), Room::Of(1), "the longest silent one");
        let one_spoke = (2..=all).map(heard).chain([(1, later)]);
        assert_eq!(room(one_spoke, later), Room::Of(2));
    }
}
