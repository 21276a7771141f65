//! Random numbers for tests: the same seed gives the same run.

use crate::sys;

/// A small generator.
pub struct Random(u64);

impl Random {
    /// Takes the seed from `PROCESSES_SEED`, otherwise from the clock, and prints it.
    #[must_use]
    pub fn for_this_run() -> Random {
        let given = std::env::var("PROCESSES_SEED").ok().and_then(|s| s.parse().ok());
        let seed = given.unwrap_or(sys::now_ns() | 1);
        println!("    PROCESSES_SEED={seed}");
        Random(seed)
    }

    /// A number less than `bound`.
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

/// Spends some time, so that the next step meets the other processes at another moment.
pub fn spin(microseconds: u64) {
    let until = sys::now_ns() + microseconds * 1000;
    while sys::now_ns() < until {
        std::thread::yield_now();
    }
}
