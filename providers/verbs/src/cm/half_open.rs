//! Connections in their handshake, of peers that have not yet proven that they belong to the job: how many there may be, and
//! which is dropped when another one comes.

use std::time::{Duration, Instant};

/// How many there are at most: each holds a queue pair and buffers.
pub(super) const HALF_OPEN: usize = 64;
/// When there are so many, who has been silent for so long makes room.
const GRACE: Duration = Duration::from_secs(1);
/// What the private data of a rejection begins with when there is no room: whoever was rejected tries again.
pub(super) const FULL: &[u8] = b"FULL";

/// Whether there is room for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Free,
    /// In the place of this one.
    Of(u64),
    Full,
}

/// Room for another one, next to those that are there, each with its number and when it was last heard.
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
    fn strangers_who_say_nothing_make_room_for_whoever_comes_after_them() {
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
