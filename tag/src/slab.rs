//! Entries that keep their place as long as they exist, and whose memory is freed afterwards.
//!
//! The entries are stored in chunks. Empty chunks are kept for reuse: at most one for each chunk with entries, and sixteen more.
//! Apart from the list of all chunks, which never shrinks, the memory is therefore proportional to the number of chunks with
//! entries. The kept chunks suffice while the number of entries varies by less than half, or stays below a thousand.

/// The value of a place that refers to no entry.
pub(crate) const NONE: u32 = u32::MAX;
/// The number of entries per chunk; a power of two.
const CHUNK: u32 = 64;
/// The number of empty chunks that are always kept.
const IDLE: usize = 16;

enum Slot<E> {
    /// A free slot, with the number of the next free slot of the chunk.
    Free(u32),
    Used(E),
}

struct Chunk<E> {
    /// The slots; `None` if the chunk has no memory.
    slots: Option<Box<[Slot<E>; CHUNK as usize]>>,
    /// The number of the first free slot of `slots`.
    free: u32,
    used: u32,
    /// The preceding chunk in the list of chunks with free slots.
    before: u32,
    /// The following chunk in the list of chunks with free slots, or in the list of chunks without memory.
    after: u32,
}

impl<E> Chunk<E> {
    const EMPTY: Chunk<E> = Chunk { slots: None, free: NONE, used: 0, before: NONE, after: NONE };

    fn slot(&self, place: u32) -> Option<&Slot<E>> {
        self.slots.as_ref().map(|slots| &slots[(place % CHUNK) as usize])
    }

    fn slot_mut(&mut self, place: u32) -> Option<&mut Slot<E>> {
        self.slots.as_mut().map(|slots| &mut slots[(place % CHUNK) as usize])
    }
}

pub(crate) struct Slab<E> {
    chunks: Vec<Chunk<E>>,
    /// The first chunk that has a free slot and is not idle.
    roomy: u32,
    /// The chunks with memory and without entries. If there are no entries at all, this list does not contain the chunk whose entry
    /// was removed last.
    idle: Vec<u32>,
    /// The first chunk without memory.
    vacant: u32,
    /// The number of chunks without memory.
    without_memory: usize,
    len: usize,
}

impl<E> Slab<E> {
    pub(crate) fn new() -> Self {
        let (chunks, idle) = (Vec::new(), Vec::new());
        Slab { chunks, roomy: NONE, idle, vacant: NONE, without_memory: 0, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn insert(&mut self, entry: E) -> u32 {
        if self.roomy == NONE {
            self.open_chunk();
        }
        let number = self.roomy;
        let chunk = &mut self.chunks[number as usize];
        let at = chunk.free;
        let Some(slot) = chunk.slot_mut(at) else {
            unreachable!("the list of chunks with room names one without memory")
        };
        let Slot::Free(next) = *slot else {
            unreachable!("the list of free places names an entry")
        };
        *slot = Slot::Used(entry);
        chunk.free = next;
        chunk.used += 1;
        if chunk.used == CHUNK {
            self.unlink(number);
        }
        self.len += 1;
        number * CHUNK + at
    }

    #[inline]
    pub(crate) fn get(&self, place: u32) -> Option<&E> {
        match self.chunks.get((place / CHUNK) as usize)?.slot(place)? {
            Slot::Used(entry) => Some(entry),
            Slot::Free(_) => None,
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, place: u32) -> Option<&mut E> {
        match self.chunks.get_mut((place / CHUNK) as usize)?.slot_mut(place)? {
            Slot::Used(entry) => Some(entry),
            Slot::Free(_) => None,
        }
    }

    /// Returns an entry to which a list refers.
    #[inline]
    pub(crate) fn at(&self, place: u32) -> &E {
        match self.get(place) {
            Some(entry) => entry,
            None => unreachable!("a list names a place without an entry"),
        }
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, place: u32) -> &mut E {
        match self.get_mut(place) {
            Some(entry) => entry,
            None => unreachable!("a list names a place without an entry"),
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, place: u32) -> E {
        let number = place / CHUNK;
        let chunk = &mut self.chunks[number as usize];
        let free = Slot::Free(chunk.free);
        let Some(Slot::Used(entry)) =
            chunk.slot_mut(place).map(|slot| std::mem::replace(slot, free))
        else {
            unreachable!("a list names a place without an entry")
        };
        self.freed(number, place);
        entry
    }

    /// Records that an entry of a chunk was removed.
    #[inline]
    fn freed(&mut self, number: u32, place: u32) {
        let chunk = &mut self.chunks[number as usize];
        chunk.free = place % CHUNK;
        chunk.used -= 1;
        self.len -= 1;
        match chunk.used {
            0 if self.len > 0 => self.retire(number),
            left if left == CHUNK - 1 => self.link(number),
            _ => {}
        }
    }

    /// Iterates over all entries, ordered by place.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &E)> {
        self.chunks.iter().zip(0u32..).flat_map(|(chunk, number)| {
            chunk.slots.iter().flat_map(|slots| slots.iter()).zip(0u32..).filter_map(
                move |(slot, at)| match slot {
                    Slot::Used(entry) => Some((number * CHUNK + at, entry)),
                    Slot::Free(_) => None,
                },
            )
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        let with_memory = self.chunks.len() - self.without_memory;
        with_memory * size_of::<[Slot<E>; CHUNK as usize]>()
            + self.chunks.capacity() * size_of::<Chunk<E>>()
            + self.idle.capacity() * size_of::<u32>()
    }

    /// Selects an empty chunk for new entries.
    #[cold]
    fn open_chunk(&mut self) {
        let number = match self.idle.pop() {
            Some(number) => number,
            None => self.new_chunk(),
        };
        self.link(number);
    }

    /// Allocates the memory of a chunk.
    fn new_chunk(&mut self) -> u32 {
        let number = match self.vacant {
            NONE => {
                let number = self.chunks.len() as u32;
                assert!(number < NONE / CHUNK, "more entries than 32 bits can name");
                self.chunks.push(Chunk::EMPTY);
                number
            }
            vacant => {
                self.vacant = self.chunks[vacant as usize].after;
                self.without_memory -= 1;
                vacant
            }
        };
        let next = |at| if at + 1 < CHUNK { at + 1 } else { NONE };
        let slots: Box<[Slot<E>]> = (0..CHUNK).map(|at| Slot::Free(next(at))).collect();
        let chunk = &mut self.chunks[number as usize];
        (chunk.slots, chunk.free) = (slots.try_into().ok(), 0);
        number
    }

    fn link(&mut self, number: u32) {
        let after = std::mem::replace(&mut self.roomy, number);
        if after != NONE {
            self.chunks[after as usize].before = number;
        }
        let chunk = &mut self.chunks[number as usize];
        (chunk.before, chunk.after) = (NONE, after);
    }

    fn unlink(&mut self, number: u32) {
        let chunk = &self.chunks[number as usize];
        let (before, after) = (chunk.before, chunk.after);
        match before {
            NONE => self.roomy = after,
            _ => self.chunks[before as usize].after = after,
        }
        if after != NONE {
            self.chunks[after as usize].before = before;
        }
    }

    /// Retires a chunk whose last entry was removed, and frees idle chunks beyond the number of busy chunks plus sixteen.
    #[cold]
    fn retire(&mut self, number: u32) {
        self.unlink(number);
        self.idle.push(number);
        while self.idle.len() > IDLE + self.busy() {
            let Some(number) = self.idle.pop() else { return };
            self.chunks[number as usize] = Chunk { after: self.vacant, ..Chunk::EMPTY };
            self.vacant = number;
            self.without_memory += 1;
        }
    }

    /// Returns the number of chunks with entries.
    fn busy(&self) -> usize {
        self.chunks.len() - self.without_memory - self.idle.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again_and_entries_keep_theirs() {
        let mut slab = Slab::new();
        let places: Vec<u32> = (0..1000).map(|n| slab.insert(n)).collect();
        for n in (0..1000).step_by(2) {
            assert_eq!(slab.remove(places[n]), n);
        }
        let bytes = slab.bytes();
        let again: Vec<u32> = (0..500).map(|n| slab.insert(n)).collect();
        assert!(again.iter().all(|place| places.contains(place)));
        assert_eq!(slab.bytes(), bytes);
        assert!((1..1000).step_by(2).all(|n| *slab.at(places[n]) == n));
        assert_eq!((slab.len(), slab.iter().count()), (1000, 1000));
    }

    #[test]
    fn the_memory_of_what_is_gone_is_given_back_in_any_order_of_going() {
        for way in 0..3 {
            let mut slab = Slab::new();
            let mut places: Vec<u32> = (0..100_000u64).map(|n| slab.insert(n)).collect();
            let most = slab.bytes();
            match way {
                0 => {}
                1 => places.reverse(),
                _ => places.sort_by_key(|place| place.wrapping_mul(2_654_435_761)),
            }
            let last = places.split_off(99_990);
            places.into_iter().for_each(|place| _ = slab.remove(place));
            // Ten entries may be in ten chunks. The table of chunks keeps its memory.
            let chunk = CHUNK as usize * size_of::<Slot<u64>>();
            let table = 3 * (most / chunk) * size_of::<Chunk<u64>>();
            assert!(slab.bytes() < 37 * chunk + table, "way {way}: {} of {most}", slab.bytes());
            last.into_iter().for_each(|place| _ = slab.remove(place));
            assert!(slab.bytes() < 17 * chunk + table, "way {way}: {} of {most}", slab.bytes());
        }
    }

    #[test]
    fn one_entry_that_comes_and_goes_allocates_nothing() {
        let mut slab = Slab::new();
        let place = slab.insert(0);
        let memory = |slab: &Slab<u64>| slab.chunks[0].slots.as_ref().map(|slots| slots.as_ptr());
        let first = memory(&slab);
        let _ = slab.remove(place);
        for n in 0..1000 {
            let place = slab.insert(n);
            assert_eq!(memory(&slab), first);
            assert_eq!(slab.remove(place), n);
        }
        assert_eq!(slab.chunks.len(), 1);
    }

    /// Returns the number of chunks with memory, and the size that the slab reports.
    fn chunks(slab: &Slab<u64>) -> usize {
        let table = slab.chunks.capacity() * size_of::<Chunk<u64>>();
        let rest = slab.bytes() - table - slab.idle.capacity() * size_of::<u32>();
        let held = slab.chunks.iter().filter(|chunk| chunk.slots.is_some()).count();
        assert_eq!(rest, held * CHUNK as usize * size_of::<Slot<u64>>());
        held
    }

    /// Makes a slab of `full` full chunks, and then removes all entries of `empty` of them.
    fn emptied(full: u32, empty: u32) -> Slab<u64> {
        let mut slab = Slab::new();
        (0..full * CHUNK).for_each(|place| assert_eq!(slab.insert(0), place));
        (0..empty * CHUNK).for_each(|place| _ = slab.remove(place));
        slab
    }

    #[test]
    fn a_chunk_is_opened_when_the_others_are_full() {
        let mut slab = Slab::new();
        for (entry, held) in [(0, 1), (62, 1), (63, 1), (64, 2), (127, 2), (128, 3)] {
            while slab.len() <= entry {
                let _ = slab.insert(0);
            }
            assert_eq!(chunks(&slab), held, "{entry}");
        }
    }

    /// The limit is the number of busy chunks plus sixteen.
    #[test]
    fn limited_number_of_empty_chunks_is_kept_and_reused() {
        for (full, empty, held) in
            [(18, 17, 18), (19, 18, 18), (40, 10, 40), (40, 28, 40), (40, 29, 38)]
        {
            let mut slab = emptied(full, empty);
            assert_eq!(chunks(&slab), held, "{empty} of {full}");
            (0..empty * CHUNK).for_each(|_| _ = slab.insert(1));
            assert_eq!((slab.chunks.len(), chunks(&slab)), (full as usize, full as usize));
            let places: Vec<u32> = slab.iter().map(|(place, _)| place).collect();
            assert_eq!(places, (0..full * CHUNK).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_place_without_an_entry_has_none() {
        let mut slab = emptied(40, 30);
        // The places are in a chunk without memory, in a chunk with memory, and after the last chunk.
        for place in [0, 29 * CHUNK, 29 * CHUNK + 1, 40 * CHUNK] {
            assert!(slab.get(place).is_none() && slab.get_mut(place).is_none(), "{place}");
        }
        assert!(slab.get(30 * CHUNK).is_some() && slab.get(40 * CHUNK - 1).is_some());
    }
}
