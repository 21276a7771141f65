//! The hash of tables whose keys are numbers that peers choose.
//!
//! A peer that knew which numbers share a place of a table could make each access slow. The hash therefore depends on two secret
//! numbers of its table, which come from the system's random numbers. For each pair of numbers, the share of secrets for which the
//! two collide is about as small as for independent places. No hash leaves the process, so a peer can adapt its numbers only to
//! the time that answers take. The tables also bound the number of entries of each peer.

use std::hash::{BuildHasher, Hasher, RandomState};

/// The secret of one table.
#[derive(Clone)]
pub(super) struct Keyed {
    start: u64,
    factor: u64,
}

impl Default for Keyed {
    fn default() -> Keyed {
        let secret = RandomState::new();
        // Only an odd factor keeps all bits of a number.
        Keyed { start: secret.hash_one(0), factor: secret.hash_one(1) | 1 }
    }
}

impl BuildHasher for Keyed {
    type Hasher = KeyedHasher;

    #[inline]
    fn build_hasher(&self) -> KeyedHasher {
        KeyedHasher { state: self.start, factor: self.factor }
    }
}

/// The hash of one key.
pub(super) struct KeyedHasher {
    state: u64,
    factor: u64,
}

impl KeyedHasher {
    /// Adds a number: both halves of the product depend on all bits of the number.
    #[inline]
    fn add(&mut self, number: u64) {
        let product = u128::from(self.state ^ number) * u128::from(self.factor);
        self.state = product as u64 ^ (product >> 64) as u64;
    }
}

impl Hasher for KeyedHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.add(u64::from(number));
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.add(number);
    }

    #[inline]
    fn write_usize(&mut self, number: usize) {
        self.add(number as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        // A table uses the highest and the lowest bits.
        let product = u128::from(self.state) * u128::from(self.factor);
        product as u64 ^ (product >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Returns the largest number of keys that share a place in a table of twice as many places.
    fn fullest(keys: impl Iterator<Item = (Option<u64>, u64)>) -> usize {
        let (secret, mut places) = (Keyed::default(), vec![0usize; 8192]);
        keys.for_each(|key| places[secret.hash_one(key) as usize % 8192] += 1);
        places.into_iter().max().unwrap_or(0)
    }

    #[test]
    fn regular_numbers_of_a_peer_spread_over_a_table() {
        // With independent places, more than 12 of 4,096 keys share one of 8,192 places in less than one run of 10^9.
        for shift in [0, 8, 24, 32, 40, 52] {
            assert!(fullest((0..4096).map(|n| (None, n << shift))) <= 12, "{shift}");
            assert!(fullest((0..4096).map(|n| (Some(n << shift), 7))) <= 12, "{shift}");
        }
    }

    #[test]
    fn each_table_has_its_own_hash() {
        let hashes: HashSet<u64> = (0..64).map(|_| Keyed::default().hash_one(7u64)).collect();
        assert_eq!(hashes.len(), 64);
    }
}
