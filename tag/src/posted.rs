//! Receives that wait for a message.
//!
//! A message walks along the receives that no message has passed, until one matches. The message enters each receive that it passes
//! in the table of that receive's shape, where later messages find the receive. Only a receive for whose shape no table is left is
//! compared with later messages again. A program that posts receives in the order of arrival needs no table. Every entry of a table
//! is older than every receive that no message has passed.

use crate::index::{Hash, Index, Link, Linked, List};
use crate::slab::{NONE, Slab};
use crate::{Pattern, Receive, ReceiveId, Shape};

/// The maximum number of shapes whose receives are found by hash, which is also the maximum number of lookups per arrival.
const SHAPES: usize = 8;

/// The list that contains a receive.
#[derive(Clone, Copy)]
enum Kept {
    /// The list of receives that no message has passed.
    Fresh,
    /// The table with this number; the receive has this hash.
    Shaped(u8, u64),
    /// The list of receives that messages have passed and for whose shape no table was left.
    Rest,
}

struct Entry<W> {
    sequence: u64,
    /// The source; 0 for any source.
    source: u64,
    /// The tag, without the bits that the shape ignores.
    tag: u64,
    word: W,
    shape: Shape,
    kept: Kept,
    link: Link,
}

impl<W> Linked for Entry<W> {
    fn link(&self, _: usize) -> Link {
        self.link
    }

    fn link_mut(&mut self, _: usize) -> &mut Link {
        &mut self.link
    }
}

impl<W> Entry<W> {
    #[inline]
    fn fits(&self, source: u64, tag: u64) -> bool {
        self.shape.key(source, tag) == (self.source, self.tag)
    }

    #[inline]
    fn pattern(&self) -> Pattern {
        let source = if self.shape.any_source { None } else { Some(self.source) };
        Pattern { source, tag: self.tag, ignore: self.shape.ignore }
    }

    #[inline]
    fn into_receive(self, place: u32) -> Receive<W> {
        let id = ReceiveId { sequence: self.sequence, place };
        Receive { id, pattern: self.pattern(), word: self.word }
    }

    fn receive(&self, place: u32) -> Receive<&W> {
        let id = ReceiveId { sequence: self.sequence, place };
        Receive { id, pattern: self.pattern(), word: &self.word }
    }

    /// Returns the hash of the receive in its table.
    fn hash(&self) -> u64 {
        match self.kept {
            Kept::Shaped(_, hash) => hash,
            Kept::Fresh | Kept::Rest => unreachable!("a table names a receive that is not in it"),
        }
    }
}

/// The receives of one shape that messages have passed.
struct Shaped {
    shape: Shape,
    index: Index,
}

pub(crate) struct Posted<W> {
    slab: Slab<Entry<W>>,
    fresh: List,
    /// The shapes that have receives, and shapes without receives whose tables can be reused.
    shapes: Vec<Shaped>,
    rest: List,
    /// The number of receives in the tables and in `rest`.
    passed: usize,
}

impl<W> Posted<W> {
    pub(crate) fn new() -> Self {
        let (fresh, rest) = (List::EMPTY, List::EMPTY);
        Posted { slab: Slab::new(), fresh, shapes: Vec::new(), rest, passed: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        let tables: usize = self.shapes.iter().map(|shaped| shaped.index.bytes()).sum();
        self.slab.bytes() + tables + self.shapes.capacity() * size_of::<Shaped>()
    }

    #[inline]
    pub(crate) fn add(&mut self, sequence: u64, pattern: Pattern, word: W) -> ReceiveId {
        let shape = pattern.shape();
        let (source, tag) = shape.key(pattern.source.unwrap_or(0), pattern.tag);
        let kept = Kept::Fresh;
        let entry = Entry { sequence, source, tag, word, shape, kept, link: Link::OUT };
        ReceiveId { sequence, place: self.fresh.insert(&mut self.slab, 0, entry) }
    }

    /// Checks whether the first receive of all matches a message. Most programs post receives in the order of arrival, and then it
    /// does.
    #[inline]
    pub(crate) fn first_fits(&self, source: u64, tag: u64) -> bool {
        self.passed == 0
            && self.slab.get(self.fresh.first()).is_some_and(|entry| entry.fits(source, tag))
    }

    /// Ends the first receive of all after the use of its data.
    #[inline]
    pub(crate) fn end_first<R>(&mut self, with: impl FnOnce(&W) -> R) -> Option<R> {
        let place = self.fresh.first();
        let entry = self.slab.get(place)?;
        let link = entry.link;
        let result = with(&entry.word);
        self.fresh.close_first(&mut self.slab, 0, link);
        self.slab.free(place);
        Some(result)
    }

    /// Removes the first posted receive that matches a message.
    #[inline]
    pub(crate) fn take_for(&mut self, hash: &Hash, source: u64, tag: u64) -> Option<Receive<W>> {
        if !self.first_fits(source, tag) {
            return self.search(hash, source, tag).map(|place| self.take(place));
        }
        let place = self.fresh.first();
        let entry = self.slab.remove(place);
        self.fresh.close_first(&mut self.slab, 0, entry.link);
        Some(entry.into_receive(place))
    }

    /// Ends a receive after the use of its data.
    pub(crate) fn end<R>(&mut self, place: u32, with: impl FnOnce(&W) -> R) -> R {
        let result = with(&self.slab.at(place).word);
        let _ = self.take(place);
        result
    }

    /// Returns the first posted receive that matches a message, by the tables and along the lists.
    #[inline(never)] // a program that posts receives in the order of arrival does not come here
    pub(crate) fn search(&mut self, hash: &Hash, source: u64, tag: u64) -> Option<u32> {
        let mut found: Option<(u64, u32)> = None;
        for shaped in self.shapes.iter().filter(|shaped| !shaped.index.is_empty()) {
            let (own_source, own_tag) = shaped.shape.key(source, tag);
            let fits = |entry: &Entry<W>| entry.fits(source, tag);
            let place = shaped.index.find(&self.slab, 0, hash.of(own_source, own_tag), fits);
            if let Some(place) = place {
                let sequence = self.slab.at(place).sequence;
                if found.is_none_or(|(first, _)| sequence < first) {
                    found = Some((sequence, place));
                }
            }
        }
        let mut place = self.rest.first();
        while place != NONE {
            let entry = self.slab.at(place);
            if found.is_some_and(|(first, _)| first < entry.sequence) {
                break;
            }
            if entry.fits(source, tag) {
                found = Some((entry.sequence, place));
                break;
            }
            place = entry.link.after();
        }
        found.map(|(_, place)| place).or_else(|| self.go_along(hash, source, tag))
    }

    pub(crate) fn cancel(&mut self, id: ReceiveId) -> Option<Receive<W>> {
        let there = self.slab.get(id.place).is_some_and(|entry| entry.sequence == id.sequence);
        there.then(|| self.take(id.place))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Receive<&W>> {
        self.slab.iter().map(|(place, entry)| entry.receive(place))
    }

    /// Returns the first match among the receives that no message has passed.
    fn go_along(&mut self, hash: &Hash, source: u64, tag: u64) -> Option<u32> {
        loop {
            let place = self.fresh.first();
            let entry = self.slab.get(place)?;
            if entry.fits(source, tag) {
                return Some(place);
            }
            let (shape, own) = (entry.shape, hash.of(entry.source, entry.tag));
            self.fresh.remove(&mut self.slab, 0, place);
            self.passed += 1;
            match self.table(shape) {
                Some(which) => {
                    self.slab.at_mut(place).kept = Kept::Shaped(which, own);
                    let index = &mut self.shapes[usize::from(which)].index;
                    index.push(&mut self.slab, 0, place, own, Entry::hash);
                }
                None => {
                    self.slab.at_mut(place).kept = Kept::Rest;
                    self.rest.push(&mut self.slab, 0, place);
                }
            }
        }
    }

    fn take(&mut self, place: u32) -> Receive<W> {
        let entry = self.slab.remove(place);
        self.passed -= usize::from(!matches!(entry.kept, Kept::Fresh));
        match entry.kept {
            Kept::Fresh => self.fresh.close(&mut self.slab, 0, entry.link),
            Kept::Rest => self.rest.close(&mut self.slab, 0, entry.link),
            Kept::Shaped(which, hash) => {
                let index = &mut self.shapes[usize::from(which)].index;
                index.close(&mut self.slab, 0, entry.link, hash, Entry::hash);
            }
        }
        entry.into_receive(place)
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
