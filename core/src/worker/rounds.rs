//! Which interfaces a progress call polls: in every one those that bring something, and each eighth time those that have brought nothing
//! for long while another did. So a worker that has its messages from one module does not pay every time for one that only waits, as
//! `verbs;ud` does once connections stand.

use std::cell::Cell;

/// What rests is polled in one of so many calls at least.
pub(super) const EACH: u32 = 8;
/// So many looks, with 64 calls or more from one to the next, find that it has brought nothing and another something until it rests.
const LOOKS: u32 = 4;

/// Interfaces by their index: first those that are polled in every call, then those that rest.
pub(super) struct Rounds {
    all: Vec<Cell<usize>>,
    awake: Cell<usize>,
}

impl Rounds {
    /// None rests.
    pub(super) fn of(all: impl Iterator<Item = usize>) -> Rounds {
        let all: Vec<_> = all.map(Cell::new).collect();
        Rounds { awake: Cell::new(all.len()), all }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Those that are polled in every call.
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

    /// Time has gone by: what has brought nothing, by the looks in `quiet` of an index, may rest.
    pub(super) fn look<'a>(&self, quiet: impl Fn(usize) -> &'a Cell<u32>) {
        if !self.awake().iter().any(|index| quiet(index.get()).get() == 0) {
            return; // nobody pays for the others
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

    /// What rested and brings something is awake again.
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

    /// Of five interfaces, all of which can be looked at.
    fn rounds() -> (Rounds, [Cell<u32>; 5]) {
        (Rounds::of(1..5), Default::default())
    }

    fn indexes(of: &[Cell<usize>]) -> Vec<usize> {
        let mut all: Vec<usize> = of.iter().map(Cell::get).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn what_brings_nothing_rests_while_another_brings_something_and_wakes_by_what_it_brings() {
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
