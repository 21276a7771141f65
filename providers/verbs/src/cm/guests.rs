//! Who has come and not yet proven that it belongs to the job: how many may, and who leaves when another one comes.

use std::time::{Duration, Instant};

/// How many there are at most: each holds a queue pair and buffers.
pub(super) const GUESTS: usize = 64;
/// When all places are taken, who has been silent for so long makes room.
const GRACE: Duration = Duration::from_secs(1);
/// What the private data of a rejection begins with when no place is free: whoever was rejected tries again.
pub(super) const FULL: &[u8] = b"FULL";

/// Where another one can stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Free,
    /// In the place of this one.
    Of(u64),
    Full,
}

/// Room for another one, next to those that are there, each with its number and when it was last heard.
pub(super) fn room(guests: impl Iterator<Item = (u64, Instant)> + Clone, now: Instant) -> Room {
    if guests.clone().count() < GUESTS {
        return Room::Free;
    }
    let silent = guests.filter(|(_, heard)| now.saturating_duration_since(*heard) >= GRACE);
    silent.min_by_key(|(_, heard)| *heard).map_or(Room::Full, |(number, _)| Room::Of(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_who_say_nothing_make_room_for_whoever_comes_after_them() {
        let begun = Instant::now();
        let heard = |n: u64| (n, begun + Duration::from_millis(n));
        let all = GUESTS as u64;
        assert_eq!(room((1..all).map(heard), begun), Room::Free);
        assert_eq!(room((1..=all).map(heard), begun + GRACE), Room::Full, "they may only be slow");
        let later = begun + GRACE + Duration::from_millis(10);
        assert_eq!(room((1..=all).map(heard), later), Room::Of(1), "the longest silent one");
        let one_spoke = (2..=all).map(heard).chain([(1, later)]);
        assert_eq!(room(one_spoke, later), Room::Of(2));
    }
}
