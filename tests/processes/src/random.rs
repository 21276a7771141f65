//! Random numbers for tests: the same seed gives the same run.

use crate::sys;

/// A small random number generator.
pub struct Random(u64);

impl Random {
    /// Makes a generator with the seed in `PROCESSES_SEED`, otherwise from the clock, and prints the seed.
    #[must_use]
    pub fn for_this_run() -> Random {
        let given = std::env::var("PROCESSES_SEED").ok().and_then(|s| s.parse().ok());
        let seed = given.unwrap_or(sys::now_ns() | 1);
        println!("    PROCESSES_SEED={seed}");
        Random(seed)
    }

    /// Returns a number less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    /// Shuffles the list.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// Runs a loop for this time, so that the next step happens at another moment of the other processes.
pub fn spin(microseconds: u64) {
    let until = sys::now_ns() + microseconds * 1000;
    while sys::now_ns() < until {
        std::thread::yield_now();
    }
}
