//! A queue of numbered entries, from which entries can also be removed out of order.

/// A queue of at most this capacity is not shrunk.
const KEPT: usize = 1024;
/// The capacity of a queue with its first entry.
const FIRST: usize = 16;

/// Entries with successive numbers. A number finds its entry in constant time. The number of a removed entry is not assigned again.
pub(crate) struct Queue<E> {
    /// The entries. The place of an entry is its number modulo the capacity, which is zero or a power of two. If the queue is not
    /// empty, the place of `first` holds an entry.
    places: Vec<Option<E>>,
    /// The number of the first entry; equal to `next` if the queue is empty.
    first: u64,
    /// The number of the next entry to add.
    next: u64,
    /// The number of places between `first` and `next` whose entries were removed.
    holes: usize,
}

impl<E> Queue<E> {
    pub(crate) const fn new() -> Queue<E> {
        Queue { places: Vec::new(), first: 0, next: 0, holes: 0 }
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        (self.next - self.first) as usize - self.holes
    }

    pub(crate) fn holes(&self) -> usize {
        self.holes
    }

    pub(crate) fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<Option<E>>()
    }

    /// Returns the number of the first entry, or of the next entry to add.
    #[inline]
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    #[inline]
    fn place(&self, number: u64) -> usize {
        number as usize & self.places.len().wrapping_sub(1)
    }

    /// Adds an entry at the end, and returns its number.
    #[inline]
    pub(crate) fn push(&mut self, entry: E) -> u64 {
        let number = self.next;
        if (number - self.first) as usize == self.places.len() {
            self.resize((self.places.len() * 2).max(FIRST));
        }
        self.next = number + 1;
        let place = self.place(number);
        self.places[place] = Some(entry);
        number
    }

    /// Returns the first entry.
    #[inline]
    pub(crate) fn front(&self) -> Option<&E> {
        self.places.get(self.place(self.first))?.as_ref()
    }

    /// Removes the first entry.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<E> {
        let place = self.place(self.first);
        let entry = self.places.get_mut(place)?.take()?;
        self.first += 1;
        if self.holes > 0 || self.places.len() > KEPT {
            self.trim();
        }
        Some(entry)
    }

    /// Removes the entry with this number. `None`: there is none.
    pub(crate) fn take(&mut self, number: u64) -> Option<E> {
        if number < self.first || number >= self.next {
            return None;
        }
        let place = self.place(number);
        let entry = self.places[place].take()?;
        self.holes += 1;
        self.trim();
        Some(entry)
    }

    /// Iterates over the entries with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &E)> {
        let entry = |number| Some((number, self.places[self.place(number)].as_ref()?));
        (self.first..self.next).filter_map(entry)
    }

    /// Skips holes at the front, and frees unused memory.
    #[inline(never)]
    fn trim(&mut self) {
        while self.first < self.next && self.places[self.place(self.first)].is_none() {
            self.first += 1;
            self.holes -= 1;
        }
        let capacity = self.places.len();
        if capacity > KEPT && (self.next - self.first) < capacity as u64 / 8 {
            self.resize(capacity / 4);
        }
    }

    #[cold]
    fn resize(&mut self, capacity: usize) {
        let mut places = Vec::with_capacity(capacity);
        places.resize_with(capacity, || None);
        for number in self.first..self.next {
            let place = self.place(number);
            places[number as usize & (capacity - 1)] = self.places[place].take();
        }
        self.places = places;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_by_number_and_leave_in_order() {
        let mut queue = Queue::new();
        assert!(queue.front().is_none() && queue.pop().is_none() && queue.take(0).is_none());
        for n in 0..100u64 {
            assert_eq!(queue.push(n * 10), n);
        }
        assert_eq!((queue.take(50), queue.take(50), queue.take(0)), (Some(500), None, Some(0)));
        assert_eq!((queue.first(), queue.len(), queue.holes()), (1, 98, 1));
        assert!(queue.iter().map(|(n, _)| n).eq((1..100).filter(|n| *n != 50)));
        for n in (1..100).filter(|n| *n != 50) {
            assert_eq!((queue.front(), queue.first()), (Some(&(n * 10)), n));
            assert_eq!(queue.pop(), Some(n * 10));
        }
        assert_eq!((queue.len(), queue.holes(), queue.take(99)), (0, 0, None));
        assert_eq!(queue.push(7), 100, "the numbers are not assigned again");
    }

    #[test]
    fn queue_grows_by_doubling_and_shrinks_to_quarter_at_one_eighth() {
        let mut queue = Queue::new();
        let places = |queue: &Queue<u64>| queue.bytes() / size_of::<Option<u64>>();
        for (len, expected) in [(1, 16), (16, 16), (17, 32), (1024, 1024), (1025, 2048)] {
            while queue.len() < len {
                let _ = queue.push(0);
            }
            assert_eq!(places(&queue), expected, "{len}");
        }
        for (len, expected) in [(256, 2048), (255, 512), (0, 512)] {
            while queue.len() > len {
                assert_eq!(queue.pop(), Some(0));
            }
            assert_eq!(places(&queue), expected, "{len}");
        }
    }
}
