//! Receives that wait for a message.
//!
//! A message walks along the queue of receives that no message has passed, until one matches. The message moves each receive that it
//! passes into the slab, and enters it in the table of that receive's shape, where later messages find the receive. Only a receive
//! for whose shape no table is left is compared with later messages again. A program that posts receives in the order of arrival
//! needs neither slab nor table. Every receive of the slab is older than every receive of the queue.

use crate::index::{Hash, Index, Link, Linked, List};
use crate::queue::Queue;
use crate::slab::{NONE, Slab};
use crate::{Pattern, Receive, ReceiveId, Shape};

/// The maximum number of shapes whose receives are found by hash, which is also the maximum number of lookups per arrival.
const SHAPES: usize = 8;
/// The index of the link for the list of a shape's table, or for `rest`.
const SHAPED: usize = 0;
/// The index of the link for the table by number.
const NUMBERED: usize = 1;
/// The number of holes that cancelled receives may leave in the queue, in addition to a half of the number of its receives.
const HOLES: usize = 32;

/// A receive that no message has passed.
struct Fresh<W> {
    /// The source; 0 for any source.
    source: u64,
    /// The tag, without the bits that the shape ignores.
    tag: u64,
    shape: Shape,
    word: W,
}

impl<W> Fresh<W> {
    #[inline]
    fn fits(&self, source: u64, tag: u64) -> bool {
        self.shape.key(source, tag) == (self.source, self.tag)
    }
}

/// The list that contains a receive of the slab.
#[derive(Clone, Copy)]
enum Kept {
    /// The table with this number; the receive has this hash.
    Shaped(u8, u64),
    /// The list of receives for whose shape no table was left.
    Rest,
}

/// A receive that messages have passed.
struct Entry<W> {
    number: u64,
    source: u64,
    tag: u64,
    word: W,
    shape: Shape,
    kept: Kept,
    links: [Link; 2],
}

impl<W> Linked for Entry<W> {
    fn link(&self, which: usize) -> Link {
        self.links[which]
    }

    fn link_mut(&mut self, which: usize) -> &mut Link {
        &mut self.links[which]
    }
}

impl<W> Entry<W> {
    #[inline]
    fn fits(&self, source: u64, tag: u64) -> bool {
        self.shape.key(source, tag) == (self.source, self.tag)
    }

    /// Returns the hash of the receive in the table of its shape.
    fn hash(&self) -> u64 {
        match self.kept {
            Kept::Shaped(_, hash) => hash,
            Kept::Rest => unreachable!("a table names a receive that is not in it"),
        }
    }
}

/// Makes a receive of its parts; the source is 0 for any source.
#[inline]
fn receive<W>(number: u64, (source, tag): (u64, u64), shape: Shape, word: W) -> Receive<W> {
    let source = if shape.any_source { None } else { Some(source) };
    Receive {
        id: ReceiveId { number },
        pattern: Pattern { source, tag, ignore: shape.ignore },
        word,
    }
}

/// The receives of one shape that messages have passed.
struct Shaped {
    shape: Shape,
    index: Index,
}

/// A waiting receive that matches a message.
#[derive(Clone, Copy)]
pub(crate) enum Found {
    /// The first receive of the queue.
    First,
    /// A receive of the slab, at this place.
    Passed(u32),
}

pub(crate) struct Posted<W> {
    /// The receives that no message has passed, in the order of posting.
    fresh: Queue<Fresh<W>>,
    /// The receives that messages have passed.
    slab: Slab<Entry<W>>,
    /// The receives of the slab, by number.
    numbered: Index,
    /// The shapes that have receives, and shapes without receives whose tables can be reused.
    shapes: Vec<Shaped>,
    rest: List,
}

impl<W> Posted<W> {
    pub(crate) fn new() -> Self {
        let (fresh, slab, numbered) = (Queue::new(), Slab::new(), Index::new());
        Posted { fresh, slab, numbered, shapes: Vec::new(), rest: List::EMPTY }
    }

    pub(crate) fn len(&self) -> usize {
        self.slab.len() + self.fresh.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        let tables: usize = self.shapes.iter().map(|shaped| shaped.index.bytes()).sum();
        let shapes = self.shapes.capacity() * size_of::<Shaped>();
        self.fresh.bytes() + self.slab.bytes() + self.numbered.bytes() + tables + shapes
    }

    #[inline]
    pub(crate) fn add(&mut self, pattern: Pattern, word: W) -> ReceiveId {
        let shape = pattern.shape();
        let (source, tag) = shape.key(pattern.source.unwrap_or(0), pattern.tag);
        ReceiveId { number: self.fresh.push(Fresh { source, tag, shape, word }) }
    }

    /// Returns the first posted receive that matches a message. Most programs post receives in the order of arrival, and then it is
    /// the first of all.
    #[inline]
    pub(crate) fn find(&mut self, hash: &Hash, source: u64, tag: u64) -> Option<Found> {
        if self.slab.len() == 0 {
            let first = self.fresh.front()?;
            if first.fits(source, tag) {
                return Some(Found::First);
            }
        }
        self.search(hash, source, tag)
    }

    /// Returns the data of a receive that was found.
    #[inline]
    pub(crate) fn word(&self, found: Found) -> Option<&W> {
        match found {
            Found::First => self.fresh.front().map(|fresh| &fresh.word),
            Found::Passed(place) => Some(&self.slab.at(place).word),
        }
    }

    /// Removes a receive that was found, and drops its data.
    #[inline]
    pub(crate) fn end(&mut self, hash: &Hash, found: Found) {
        match found {
            Found::First => drop(self.fresh.pop()),
            Found::Passed(place) => drop(self.take_passed(hash, place)),
        }
    }

    /// Removes a receive that was found.
    #[inline]
    pub(crate) fn take(&mut self, hash: &Hash, found: Found) -> Option<Receive<W>> {
        match found {
            Found::First => {
                let number = self.fresh.first();
                let Fresh { source, tag, shape, word } = self.fresh.pop()?;
                Some(receive(number, (source, tag), shape, word))
            }
            Found::Passed(place) => Some(self.take_passed(hash, place)),
        }
    }

    /// Returns the first posted receive that matches a message, by the tables, along the list and along the queue.
    #[inline(never)] // a program that posts receives in the order of arrival does not come here
    fn search(&mut self, hash: &Hash, source: u64, tag: u64) -> Option<Found> {
        let mut found: Option<(u64, u32)> = None;
        for shaped in self.shapes.iter().filter(|shaped| !shaped.index.is_empty()) {
            let (own_source, own_tag) = shaped.shape.key(source, tag);
            let fits = |entry: &Entry<W>| entry.fits(source, tag);
            let place = shaped.index.find(&self.slab, SHAPED, hash.of(own_source, own_tag), fits);
            if let Some(place) = place {
                let number = self.slab.at(place).number;
                if found.is_none_or(|(first, _)| number < first) {
                    found = Some((number, place));
                }
            }
        }
        let mut place = self.rest.first();
        while place != NONE {
            let entry = self.slab.at(place);
            if found.is_some_and(|(first, _)| first < entry.number) {
                break;
            }
            if entry.fits(source, tag) {
                found = Some((entry.number, place));
                break;
            }
            place = List::after(&self.slab, SHAPED, place);
        }
        if let Some((_, place)) = found {
            return Some(Found::Passed(place));
        }
        while !self.fresh.front()?.fits(source, tag) {
            self.pass(hash);
        }
        Some(Found::First)
    }

    pub(crate) fn cancel(&mut self, hash: &Hash, id: ReceiveId) -> Option<Receive<W>> {
        let number = id.number;
        if number < self.fresh.first() {
            let own = hash.of(0, number);
            let is_it = |entry: &Entry<W>| entry.number == number;
            let place = self.numbered.find(&self.slab, NUMBERED, own, is_it)?;
            return Some(self.take_passed(hash, place));
        }
        let Fresh { source, tag, shape, word } = self.fresh.take(number)?;
        // The memory of holes is freed at the front of the queue only.
        if self.fresh.holes() > self.fresh.len() / 2 + HOLES {
            while self.fresh.len() > 0 {
                self.pass(hash);
            }
        }
        Some(receive(number, (source, tag), shape, word))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Receive<&W>> {
        let passed = self.slab.iter().map(|(_, entry)| {
            receive(entry.number, (entry.source, entry.tag), entry.shape, &entry.word)
        });
        let fresh = self.fresh.iter().map(|(number, fresh)| {
            receive(number, (fresh.source, fresh.tag), fresh.shape, &fresh.word)
        });
        passed.chain(fresh)
    }

    /// Moves the first receive of the queue into the slab.
    fn pass(&mut self, hash: &Hash) {
        let number = self.fresh.first();
        let Some(Fresh { source, tag, shape, word }) = self.fresh.pop() else { return };
        let table = self.table(shape);
        let own = hash.of(source, tag);
        let kept = table.map_or(Kept::Rest, |which| Kept::Shaped(which, own));
        let links = [Link::OUT; 2];
        let slab = &mut self.slab;
        let place = slab.insert(Entry { number, source, tag, word, shape, kept, links });
        match table {
            Some(which) => {
                let index = &mut self.shapes[usize::from(which)].index;
                index.push(slab, SHAPED, place, own, Entry::hash);
            }
            None => self.rest.push(slab, SHAPED, place),
        }
        let again = |entry: &Entry<W>| hash.of(0, entry.number);
        self.numbered.push(slab, NUMBERED, place, hash.of(0, number), again);
    }

    fn take_passed(&mut self, hash: &Hash, place: u32) -> Receive<W> {
        let slab = &mut self.slab;
        let Entry { number, source, tag, word, shape, kept, links } = slab.remove(place);
        match kept {
            Kept::Rest => self.rest.close(slab, SHAPED, links[SHAPED]),
            Kept::Shaped(which, own) => {
                let index = &mut self.shapes[usize::from(which)].index;
                index.close(slab, SHAPED, links[SHAPED], own, Entry::hash);
            }
        }
        let again = |entry: &Entry<W>| hash.of(0, entry.number);
        self.numbered.close(slab, NUMBERED, links[NUMBERED], hash.of(0, number), again);
        receive(number, (source, tag), shape, word)
    }

    /// Returns the table of a shape: its own table, or an empty one. `rest` may contain receives of the shape from a time when no
    /// table was free.
    fn table(&mut self, shape: Shape) -> Option<u8> {
        let same = self.shapes.iter().position(|shaped| shaped.shape == shape);
        if let Some(at) = same {
            return Some(at as u8);
        }
        if self.shapes.len() < SHAPES {
            self.shapes.push(Shaped { shape, index: Index::new() });
            return Some(self.shapes.len() as u8 - 1);
        }
        let free = self.shapes.iter().position(|shaped| shaped.index.is_empty())?;
        self.shapes[free].shape = shape;
        Some(free as u8)
    }
}
