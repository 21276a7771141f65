//! The interfaces that need no system call for a poll. Each progress call polls the active ones, and at least every eighth call
//! polls the idle ones. An interface becomes idle if it has had no event for several checks while another interface had some. A
//! worker that gets its messages from one module thus avoids the cost of modules without events, such as `verbs/ud` once
//! connections exist.

use std::cell::Cell;

/// The number of calls in which an idle interface is polled at least once.
pub(super) const EACH: u32 = 8;
/// The maximum number of checks, with events on other interfaces only, for which an interface stays active. Except in waits, there
/// are at least 64 calls between two checks.
const LOOKS: u32 = 4;

/// The interfaces by index: first the active ones, then the idle ones.
pub(super) struct Rounds {
    all: Vec<Cell<usize>>,
    awake: Cell<usize>,
}

impl Rounds {
    /// Makes a list in which all interfaces are active.
    pub(super) fn of(all: impl Iterator<Item = usize>) -> Rounds {
        let all: Vec<_> = all.map(Cell::new).collect();
        Rounds { awake: Cell::new(all.len()), all }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the interfaces polled in every call.
    #[inline]
    pub(super) fn awake(&self) -> &[Cell<usize>] {
        self.all.get(..self.awake.get()).unwrap_or_default()
    }

    #[inline]
    pub(super) fn all_are_awake(&self) -> bool {
        self.awake.get() == self.all.len()
    }

    pub(super) fn resting(&self) -> &[Cell<usize>] {
        self.all.get(self.awake.get()..).unwrap_or_default()
    }

    /// Checks the interfaces: those without events, by the counters that `quiet` returns for an index, may become idle.
    pub(super) fn look<'a>(&self, quiet: impl Fn(usize) -> &'a Cell<u32>) {
        if !self.awake().iter().any(|index| quiet(index.get()).get() == 0) {
            return; // no interface is busy, so none is slowed down
        }
        for place in (0..self.awake.get()).rev() {
            let looks = quiet(self.all[place].get());
            looks.set(looks.get() + 1);
            if looks.get() > LOOKS {
                self.awake.set(self.awake.get() - 1);
                self.all[place].swap(&self.all[self.awake.get()]);
            }
        }
    }

    /// Makes idle interfaces with events active again.
    pub(super) fn wake<'a>(&self, quiet: impl Fn(usize) -> &'a Cell<u32>) {
        for place in self.awake.get()..self.all.len() {
            if quiet(self.all[place].get()).get() == 0 {
                self.all[place].swap(&self.all[self.awake.get()]);
                self.awake.set(self.awake.get() + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes rounds of the interfaces 1 to 4 of five, and the counters of all five.
    fn rounds() -> (Rounds, [Cell<u32>; 5]) {
        (Rounds::of(1..5), Default::default())
    }

    fn indexes(of: &[Cell<usize>]) -> Vec<usize> {
        let mut all: Vec<usize> = of.iter().map(Cell::get).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn quiet_interface_becomes_idle_and_an_event_makes_it_active() {
        let (rounds, quiet) = rounds();
        for look in 0..=LOOKS {
            assert_eq!(indexes(rounds.awake()), [1, 2, 3, 4], "after {look} looks");
            quiet[2].set(0);
            rounds.look(|index| &quiet[index]);
        }
        assert_eq!((indexes(rounds.awake()), indexes(rounds.resting())), (vec![2], vec![1, 3, 4]));
        assert!(!rounds.all_are_awake());
        quiet[4].set(0);
        rounds.wake(|index| &quiet[index]);
        assert_eq!((indexes(rounds.awake()), indexes(rounds.resting())), (vec![2, 4], vec![1, 3]));
        quiet[1].set(0);
        quiet[3].set(0);
        rounds.wake(|index| &quiet[index]);
        assert_eq!(
            (indexes(rounds.awake()), indexes(rounds.resting())),
            (vec![1, 2, 3, 4], vec![])
        );
    }

    #[test]
    fn nothing_rests_while_nobody_brings_anything_nor_does_the_only_one() {
        let (rounds, quiet) = rounds();
        quiet.iter().for_each(|looks| looks.set(1));
        (0..100).for_each(|_| rounds.look(|index| &quiet[index]));
        assert_eq!(indexes(rounds.awake()), [1, 2, 3, 4]);
        let only = Rounds::of(0..1);
        for n in 0..100 {
            quiet[0].set(n % 3);
            only.look(|index| &quiet[index]);
        }
        assert!(only.all_are_awake() && !only.is_empty());
    }
}
