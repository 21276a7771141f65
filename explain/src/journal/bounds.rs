//! Limits of the report's output: for repeated texts, and for the total number of lines.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::time::{Duration, Instant};

/// The maximum number of texts whose repetitions are counted.
const REMEMBERED: usize = 4096;
/// The number of lines that may be written in a burst. The last group of related lines may exceed it.
const AT_ONCE: u64 = 1000;
/// The interval after which one more line is allowed: 86 400 lines in a day, after the first burst.
const EACH: Duration = Duration::from_secs(1);

/// The number of times that each remembered text occurred. Texts are kept as hashes: some are long, and peers influence them.
#[derive(Default)]
pub(super) struct Said {
    numbers: RandomState,
    times: BTreeMap<u64, u64>,
}

impl Said {
    /// Returns the hash of a text.
    pub(super) fn number(&self, what: &(impl Hash + ?Sized)) -> u64 {
        self.numbers.hash_one(what)
    }

    /// Counts an occurrence of a text. Returns the count if the occurrence is to be reported: the 1st, 2nd, 4th, 8th and so on.
    pub(super) fn again(&mut self, what: u64) -> Option<u64> {
        let times = self.times.entry(what).or_default();
        *times += 1;
        let tells = times.is_power_of_two().then_some(*times);
        if self.times.len() > REMEMBERED {
            // Any text may be dropped: hashes have no order.
            let _ = self.times.pop_first();
        }
        tells
    }
}

/// The lines that may be written at present.
pub(super) struct Allowance {
    left: u64,
    since: Option<Instant>,
    left_out: u64,
}

impl Default for Allowance {
    fn default() -> Allowance {
        Allowance { left: AT_ONCE, since: None, left_out: 0 }
    }
}

impl Allowance {
    /// Takes lines from the allowance. Returns the number of lines suppressed since the last success, or `None` if these are
    /// suppressed too.
    pub(super) fn take(&mut self, lines: usize, now: Instant) -> Option<u64> {
        let since = *self.since.get_or_insert(now);
        let earned = now.saturating_duration_since(since).as_secs() / EACH.as_secs();
        if earned > 0 {
            self.left = AT_ONCE.min(self.left.saturating_add(earned));
            self.since = Some(since + EACH * u32::try_from(earned).unwrap_or(u32::MAX));
        }
        if self.left == 0 {
            self.left_out += lines as u64;
            return None;
        }
        // Related lines are not separated.
        self.left = self.left.saturating_sub(lines as u64);
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_text_is_reported_at_powers_of_two() {
        let mut said = Said::default();
        let (one, other) = (said.number("one"), said.number("other"));
        let mut told = Vec::new();
        for _ in 0..1000 {
            told.extend(said.again(one));
            told.extend(said.again(other));
        }
        assert_eq!(told, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512].map(|n| [n, n]).concat());
        for n in 0..3 * REMEMBERED as u64 {
            let _ = said.again(n);
        }
        assert!(said.times.len() <= REMEMBERED);
    }

    #[test]
    fn lines_beyond_the_allowance_are_counted() {
        let (mut allowance, now) = (Allowance::default(), Instant::now());
        let taken = (0..5000).filter(|_| allowance.take(1, now) == Some(0)).count();
        assert_eq!(taken as u64, AT_ONCE);
        assert_eq!(allowance.take(1, now + 3 * EACH), Some(4000));
        assert_eq!(allowance.take(1, now + 3 * EACH), Some(0));
        assert_eq!(allowance.take(1, now + 3 * EACH), Some(0));
        assert_eq!(allowance.take(1, now + 3 * EACH), None);
        // A long silence does not raise the limit above its initial value.
        let later = now + 40_000 * EACH;
        let taken = (0..5000).filter(|_| allowance.take(1, later).is_some()).count();
        assert_eq!(taken as u64, AT_ONCE);
    }

    #[test]
    fn so_many_texts_are_remembered() {
        let mut said = Said::default();
        (0..REMEMBERED as u64).for_each(|n| assert_eq!(said.again(n), Some(1)));
        assert_eq!(said.again(0), Some(2), "all are known still");
        assert_eq!(said.again(REMEMBERED as u64), Some(1));
        assert_eq!(said.times.len(), REMEMBERED);
    }

    #[test]
    fn a_line_is_earned_in_each_second_whenever_it_is_asked_for() {
        let (mut allowance, now) = (Allowance::default(), Instant::now());
        assert_eq!(allowance.take(AT_ONCE as usize, now), Some(0));
        let half = EACH / 2;
        let taken = [1, 2, 3, 4, 5].map(|halves| allowance.take(1, now + half * halves).is_some());
        assert_eq!(taken, [false, true, false, true, false]);
        // Related lines are written even if they exceed the allowance.
        assert_eq!(allowance.take(50, now + 3 * EACH), Some(1));
        assert_eq!(allowance.take(7, now + 3 * EACH), None);
        assert_eq!(allowance.take(1, now + 4 * EACH), Some(7));
    }
}
