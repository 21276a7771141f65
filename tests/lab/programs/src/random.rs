//! Pseudo-random numbers, which are equal for equal seeds.

/// A pseudo-random number generator (xorshift).
pub struct Random(u64);

impl Random {
    /// Makes a generator with this seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns the next number below `most`.
    pub fn below(&mut self, most: usize) -> usize {
        (self.number() >> 11) as usize % most
    }
}
