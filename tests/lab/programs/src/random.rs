//! Pseudo-random numbers, equal for equal seeds.

/// A generator (xorshift).
pub struct Random(u64);

impl Random {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// The next number below `most`.
    pub fn below(&mut self, most: usize) -> usize {
        (self.number() >> 11) as usize % most
    }
}
