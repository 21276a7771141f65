//! Lists through entries of a slab, and hash tables of such lists by source and tag.

use crate::slab::{NONE, Slab};
use std::hash::{BuildHasher, RandomState};

/// The link value of an entry that is in no list.
const OUT: u32 = NONE - 1;
/// The number of lists in a new table.
const FIRST: usize = 16;
/// A table of at most this number of lists (8 KiB) is not shrunk.
const KEPT: usize = 1024;

/// An entry's neighbours in one list.
#[derive(Clone, Copy)]
pub(crate) struct Link {
    before: u32,
    after: u32,
}

impl Link {
    pub(crate) const OUT: Link = Link { before: OUT, after: OUT };

    /// Returns the next newer entry.
    pub(crate) fn after(self) -> u32 {
        self.after
    }

    pub(crate) fn is_in(self) -> bool {
        self.before != OUT
    }
}

/// An entry with links for several lists.
pub(crate) trait Linked {
    fn link(&self, which: usize) -> Link;
    fn link_mut(&mut self, which: usize) -> &mut Link;
}

/// A list from the oldest entry to the newest. `which` selects the link that the list uses in its entries.
#[derive(Clone, Copy)]
pub(crate) struct List {
    first: u32,
    last: u32,
}

impl List {
    pub(crate) const EMPTY: List = List { first: NONE, last: NONE };

    pub(crate) fn first(self) -> u32 {
        self.first
    }

    /// Returns the entry after an entry of the list; [`NONE`] after the last.
    pub(crate) fn after<E: Linked>(slab: &Slab<E>, which: usize, place: u32) -> u32 {
        slab.at(place).link(which).after
    }

    /// Puts a new entry into the slab and at the end of the list.
    #[inline]
    pub(crate) fn insert<E: Linked>(
        &mut self,
        slab: &mut Slab<E>,
        which: usize,
        mut entry: E,
    ) -> u32 {
        *entry.link_mut(which) = Link { before: self.last, after: NONE };
        let place = slab.insert(entry);
        self.append(slab, which, place);
        place
    }

    /// Puts an entry of the slab at the end of the list.
    pub(crate) fn push<E: Linked>(&mut self, slab: &mut Slab<E>, which: usize, place: u32) {
        *slab.at_mut(place).link_mut(which) = Link { before: self.last, after: NONE };
        self.append(slab, which, place);
    }

    #[inline]
    fn append<E: Linked>(&mut self, slab: &mut Slab<E>, which: usize, place: u32) {
        match self.last {
            NONE => self.first = place,
            last => slab.at_mut(last).link_mut(which).after = place,
        }
        self.last = place;
    }

    pub(crate) fn remove<E: Linked>(&mut self, slab: &mut Slab<E>, which: usize, place: u32) {
        let link = std::mem::replace(slab.at_mut(place).link_mut(which), Link::OUT);
        self.close(slab, which, link);
    }

    /// Closes the gap that an entry with this link has left.
    #[inline]
    pub(crate) fn close<E: Linked>(&mut self, slab: &mut Slab<E>, which: usize, link: Link) {
        match link.before {
            NONE => self.first = link.after,
            before => slab.at_mut(before).link_mut(which).after = link.after,
        }
        match link.after {
            NONE => self.last = link.before,
            after => slab.at_mut(after).link_mut(which).before = link.before,
        }
    }
}

/// A hash function that is unpredictable outside the process.
///
/// Tags come from peers. A peer that could predict the tags of one list could make every match walk along it. The hash is
/// multiply-add-shift (Dietzfelbinger, 1996): for any two keys, the upper `n` bits are equal for at most one in 2 to the power `n`
/// of all choices of `a`, `b` and `c`. This bound is proven for keys that are chosen without knowledge of the hash. SipHash
/// guarantees more, but it would take longer than the rest of a match.
pub(crate) struct Hash {
    a: u128,
    b: u128,
    c: u128,
}

impl Hash {
    pub(crate) fn new() -> Hash {
        let random = RandomState::new();
        let mut n = 0u64;
        let mut word = || {
            n += 1;
            u128::from(random.hash_one(n))
        };
        let mut wide = || (word() << 64) + word();
        Hash { a: wide(), b: wide(), c: wide() }
    }

    /// Returns the hash. All of its bits are usable, and the upper bits are the best.
    #[inline]
    pub(crate) fn of(&self, source: u64, tag: u64) -> u64 {
        let product = self.a.wrapping_mul(u128::from(source));
        let other = self.b.wrapping_mul(u128::from(tag));
        (product.wrapping_add(other).wrapping_add(self.c) >> 64) as u64
    }
}

/// Entries by their hash. The entries of one hash are ordered from the oldest to the newest.
pub(crate) struct Index {
    /// The lists, whose number is a power of two or zero.
    lists: Vec<List>,
    len: usize,
}

impl Index {
    pub(crate) const fn new() -> Index {
        Index { lists: Vec::new(), len: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn bytes(&self) -> usize {
        self.lists.capacity() * size_of::<List>()
    }

    /// Returns the oldest matching entry of this hash.
    #[inline]
    pub(crate) fn find<E: Linked>(
        &self,
        slab: &Slab<E>,
        which: usize,
        hash: u64,
        fits: impl Fn(&E) -> bool,
    ) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let mut place = self.lists[list(hash, self.lists.len())].first;
        while place != NONE {
            let entry = slab.at(place);
            if fits(entry) {
                return Some(place);
            }
            place = entry.link(which).after;
        }
        None
    }

    /// Adds the newest entry; `again` returns the hash of an existing entry.
    pub(crate) fn push<E: Linked>(
        &mut self,
        slab: &mut Slab<E>,
        which: usize,
        place: u32,
        hash: u64,
        again: impl Fn(&E) -> u64,
    ) {
        if self.len == self.lists.len() {
            let lists = (2 * self.len).max(FIRST);
            self.resize(slab, which, lists, again);
        }
        let lists = self.lists.len();
        self.lists[list(hash, lists)].push(slab, which, place);
        self.len += 1;
    }

    /// Closes the gap that an entry with this hash and this link has left.
    pub(crate) fn close<E: Linked>(
        &mut self,
        slab: &mut Slab<E>,
        which: usize,
        link: Link,
        hash: u64,
        again: impl Fn(&E) -> u64,
    ) {
        let lists = self.lists.len();
        self.lists[list(hash, lists)].close(slab, which, link);
        self.len -= 1;
        if lists > KEPT && self.len < lists / 8 {
            self.resize(slab, which, lists / 4, again);
        }
    }

    fn resize<E: Linked>(
        &mut self,
        slab: &mut Slab<E>,
        which: usize,
        lists: usize,
        again: impl Fn(&E) -> u64,
    ) {
        // Entries of one hash come from one list, so they keep their order.
        let old = std::mem::replace(&mut self.lists, vec![List::EMPTY; lists]);
        for mut from in old {
            while from.first != NONE {
                let place = from.first;
                from.remove(slab, which, place);
                let hash = again(slab.at(place));
                self.lists[list(hash, lists)].push(slab, which, place);
            }
        }
    }
}

/// Returns the index of the list for a hash. `lists` is the number of lists, a power of two that is greater than one.
#[inline]
fn list(hash: u64, lists: usize) -> usize {
    (hash >> (64 - lists.trailing_zeros())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_follow_a_plan_do_not_share_a_list() {
        // Sets of keys that a peer might choose: consecutive numbers, single bits, multiples of large powers of two, mirrored
        // pairs.
        let plans: [fn(u64) -> (u64, u64); 5] = [
            |n| (0, n),
            |n| (1 << (n % 64), 1 << (n / 64 % 64)),
            |n| (n << 32, n << 48),
            |n| (n, u64::MAX - n),
            |n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15), 7),
        ];
        for (plan, key) in plans.into_iter().enumerate() {
            let mut shared = 0u64;
            for choice in 1..=64 {
                let word =
                    |n: u64| u128::from((choice * 6 + n).wrapping_mul(0xD6E8_FEB8_6659_FD93));
                let wide = |n| (word(n) << 64) + word(n + 1);
                let hash = Hash { a: wide(0), b: wide(2), c: wide(4) };
                let mut lists = vec![0u64; 4096];
                for n in 0..4096 {
                    let (source, tag) = key(n);
                    lists[list(hash.of(source, tag), 4096)] += 1;
                }
                shared += lists.iter().map(|n| n * n - n).sum::<u64>();
            }
            // On average over all choices, each key shares its list with one other key.
            assert!(shared < 64 * 4096 * 2, "plan {plan}: {shared}");
        }
    }

    #[test]
    fn no_two_matchers_hash_alike() {
        assert_ne!(Hash::new().of(1, 2), Hash::new().of(1, 2));
    }

    struct Entry {
        key: u64,
        link: Link,
    }

    impl Linked for Entry {
        fn link(&self, _: usize) -> Link {
            self.link
        }

        fn link_mut(&mut self, _: usize) -> &mut Link {
            &mut self.link
        }
    }

    fn hash(key: u64) -> u64 {
        key.wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    /// Makes a table of the keys from 0, and returns the place of each key.
    fn filled(count: u64) -> (Slab<Entry>, Index, Vec<u32>) {
        let (mut slab, mut index) = (Slab::new(), Index::new());
        let mut push = |key| {
            let place = slab.insert(Entry { key, link: Link::OUT });
            index.push(&mut slab, 0, place, hash(key), |entry| hash(entry.key));
            place
        };
        let places = (0..count).map(&mut push).collect();
        (slab, index, places)
    }

    fn lists(index: &Index) -> usize {
        index.bytes() / size_of::<List>()
    }

    #[test]
    fn a_table_doubles_when_it_is_full() {
        for (count, wanted) in
            [(0, 0), (1, 16), (16, 16), (17, 32), (32, 32), (33, 64), (1025, 2048)]
        {
            let (slab, index, places) = filled(count);
            assert_eq!((lists(&index), index.is_empty()), (wanted, count == 0), "{count}");
            for (key, place) in (0..count).zip(places) {
                let found = index.find(&slab, 0, hash(key), |entry| entry.key == key);
                assert_eq!(found, Some(place));
            }
        }
    }

    #[test]
    fn large_table_shrinks_to_quarter_at_one_eighth_and_small_one_stays() {
        for (count, left, wanted) in [
            (1025, 256, 2048),
            (1025, 255, 512),
            (1025, 0, 512),
            (1024, 0, 1024),
            (2049, 511, 1024),
        ] {
            let (mut slab, mut index, places) = filled(count);
            for (key, place) in (left..count).zip(&places[left as usize..]) {
                let entry = slab.remove(*place);
                index.close(&mut slab, 0, entry.link, hash(key), |entry| hash(entry.key));
            }
            assert_eq!((lists(&index), index.is_empty()), (wanted, left == 0), "{left} of {count}");
            for (key, place) in (0..count).zip(places) {
                let found = index.find(&slab, 0, hash(key), |entry| entry.key == key);
                assert_eq!(found, Some(place).filter(|_| key < left), "{key}");
            }
        }
    }
}
