//! Messages without a posted receive, in the order of arrival, and claimed messages.
//!
//! A receive walks along the list until a message matches. If the receive's shape has a table, the receive enters each message that
//! it passes there, and the next receive of this shape finds the message. A shape with a table therefore passes no message twice. A
//! program that receives messages in the order of arrival needs no table.

use crate::index::{Hash, Index, Link, Linked, List};
use crate::slab::{NONE, Slab};
use crate::{Message, MessageId, Pattern, Shape};

/// The maximum number of shapes whose messages are found by hash. Each shape needs a link in every message.
const SHAPES: usize = 4;
/// The index of the link for the list of arrivals or of claims.
const ORDER: usize = SHAPES;

struct Entry<T> {
    sequence: u64,
    source: u64,
    tag: u64,
    /// The word under which the message was claimed.
    word: u64,
    links: [Link; SHAPES + 1],
    claimed: bool,
    payload: T,
}

impl<T> Linked for Entry<T> {
    fn link(&self, which: usize) -> Link {
        self.links[which]
    }

    fn link_mut(&mut self, which: usize) -> &mut Link {
        &mut self.links[which]
    }
}

/// The messages that receives of one shape have passed.
struct Shaped {
    shape: Shape,
    /// The table of all passed messages, which precede `next`.
    index: Index,
    /// The first message that no receive of this shape has passed; [`NONE`] if all were passed.
    next: u32,
}

pub(crate) struct Unexpected<T> {
    slab: Slab<Entry<T>>,
    arrived: List,
    claims: List,
    claimed: usize,
    shapes: Vec<Shaped>,
}

impl<T> Unexpected<T> {
    pub(crate) fn new() -> Self {
        let (arrived, claims) = (List::EMPTY, List::EMPTY);
        Unexpected { slab: Slab::new(), arrived, claims, claimed: 0, shapes: Vec::new() }
    }

    /// Returns the number of waiting messages, without claimed ones.
    pub(crate) fn len(&self) -> usize {
        self.slab.len() - self.claimed
    }

    pub(crate) fn claimed(&self) -> usize {
        self.claimed
    }

    pub(crate) fn bytes(&self) -> usize {
        let tables: usize = self.shapes.iter().map(|shaped| shaped.index.bytes()).sum();
        self.slab.bytes() + tables + self.shapes.capacity() * size_of::<Shaped>()
    }

    pub(crate) fn add(&mut self, sequence: u64, source: u64, tag: u64, payload: T) -> MessageId {
        let links = [Link::OUT; SHAPES + 1];
        let entry = Entry { sequence, source, tag, word: 0, links, claimed: false, payload };
        let place = self.arrived.insert(&mut self.slab, ORDER, entry);
        for shaped in self.shapes.iter_mut().filter(|shaped| shaped.next == NONE) {
            shaped.next = place;
        }
        MessageId { sequence, place }
    }

    /// Checks whether no message waits.
    #[inline]
    pub(crate) fn has_none(&self) -> bool {
        self.arrived.first() == NONE
    }

    /// Returns the first matching message.
    #[inline]
    pub(crate) fn find(&mut self, hash: &Hash, pattern: Pattern) -> Option<MessageId> {
        let first = self.slab.get(self.arrived.first())?;
        if pattern.fits(first.source, first.tag) {
            return Some(MessageId { sequence: first.sequence, place: self.arrived.first() });
        }
        self.search(hash, pattern)
    }

    /// Returns the first matching message, by the tables and along the list.
    fn search(&mut self, hash: &Hash, pattern: Pattern) -> Option<MessageId> {
        let shape = pattern.shape();
        let key = shape.key(pattern.source.unwrap_or(0), pattern.tag);
        let fits = |entry: &Entry<T>| shape.key(entry.source, entry.tag) == key;
        let which = self.shaped(shape);
        let found = match which {
            Some(which) => self.find_shaped(hash, which, key, fits),
            None => self.walk(fits),
        };
        found.map(|place| MessageId { sequence: self.slab.at(place).sequence, place })
    }

    fn find_shaped(
        &mut self,
        hash: &Hash,
        which: usize,
        key: (u64, u64),
        fits: impl Fn(&Entry<T>) -> bool,
    ) -> Option<u32> {
        let Shaped { shape, index, next } = &mut self.shapes[which];
        if !index.is_empty() {
            let found = index.find(&self.slab, which, hash.of(key.0, key.1), &fits);
            if found.is_some() {
                return found; // it is older than `next`
            }
        }
        while *next != NONE {
            let entry = self.slab.at(*next);
            if fits(entry) {
                return Some(*next);
            }
            let own = shape.hash(hash, entry);
            index.push(&mut self.slab, which, *next, own, |entry| shape.hash(hash, entry));
            *next = List::after(&self.slab, ORDER, *next);
        }
        None
    }

    fn walk(&self, fits: impl Fn(&Entry<T>) -> bool) -> Option<u32> {
        let mut place = self.arrived.first();
        while place != NONE && !fits(self.slab.at(place)) {
            place = List::after(&self.slab, ORDER, place);
        }
        (place != NONE).then_some(place)
    }

    /// Returns the table of a shape: its own table, or an empty one.
    fn shaped(&mut self, shape: Shape) -> Option<usize> {
        let same = self.shapes.iter().position(|shaped| shaped.shape == shape);
        if same.is_some() {
            return same;
        }
        if self.shapes.len() < SHAPES {
            let next = self.arrived.first();
            self.shapes.push(Shaped { shape, index: Index::new(), next });
            return Some(self.shapes.len() - 1);
        }
        let free = self.shapes.iter().position(|shaped| shaped.index.is_empty())?;
        self.shapes[free].shape = shape; // it is empty, so `next` is the first of all
        Some(free)
    }

    fn entry(&self, id: MessageId) -> Option<&Entry<T>> {
        self.slab.get(id.place).filter(|entry| entry.sequence == id.sequence)
    }

    pub(crate) fn get(&self, id: MessageId) -> Option<Message<&T>> {
        self.entry(id).map(|entry| entry.message(id.place))
    }

    pub(crate) fn payload_mut(&mut self, id: MessageId) -> Option<&mut T> {
        let entry = self.slab.get_mut(id.place).filter(|entry| entry.sequence == id.sequence)?;
        Some(&mut entry.payload)
    }

    /// Sets a waiting message aside under a word.
    pub(crate) fn claim(&mut self, hash: &Hash, id: MessageId, word: u64) {
        let entry = self.slab.at_mut(id.place);
        let links = std::mem::replace(&mut entry.links, [Link::OUT; SHAPES + 1]);
        let (source, tag) = (entry.source, entry.tag);
        (entry.claimed, entry.word) = (true, word);
        self.unlist(hash, id.place, source, tag, links);
        self.claims.push(&mut self.slab, ORDER, id.place);
        self.claimed += 1;
    }

    /// Returns the first message that was claimed under a word.
    pub(crate) fn claim_of(&self, word: u64) -> Option<MessageId> {
        let mut place = self.claims.first();
        while place != NONE {
            let entry = self.slab.at(place);
            if entry.word == word {
                return Some(MessageId { sequence: entry.sequence, place });
            }
            place = List::after(&self.slab, ORDER, place);
        }
        None
    }

    /// Removes a message, whether it waits or was claimed.
    pub(crate) fn take(&mut self, hash: &Hash, id: MessageId) -> Option<Message<T>> {
        let _ = self.entry(id)?;
        let Entry { source, tag, payload, links, claimed, .. } = self.slab.remove(id.place);
        match claimed {
            false => self.unlist(hash, id.place, source, tag, links),
            true => {
                self.claims.close(&mut self.slab, ORDER, links[ORDER]);
                self.claimed -= 1;
            }
        }
        Some(Message { id, source, tag, payload })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Message<&T>> {
        let mut next = self.arrived.first();
        std::iter::from_fn(move || {
            let place = next;
            let entry = self.slab.get(place)?;
            next = entry.link(ORDER).after();
            Some(entry.message(place))
        })
    }

    /// Closes the gaps that a waiting message has left in the list of arrivals and in the tables.
    fn unlist(
        &mut self,
        hash: &Hash,
        place: u32,
        source: u64,
        tag: u64,
        links: [Link; SHAPES + 1],
    ) {
        for (which, Shaped { shape, index, next }) in self.shapes.iter_mut().enumerate() {
            if *next == place {
                *next = links[ORDER].after();
            } else if links[which].is_in() {
                let (source, tag) = shape.key(source, tag);
                let again = |entry: &Entry<T>| shape.hash(hash, entry);
                index.close(&mut self.slab, which, links[which], hash.of(source, tag), again);
            }
        }
        self.arrived.close(&mut self.slab, ORDER, links[ORDER]);
    }
}

impl<T> Entry<T> {
    fn message(&self, place: u32) -> Message<&T> {
        let id = MessageId { sequence: self.sequence, place };
        Message { id, source: self.source, tag: self.tag, payload: &self.payload }
    }
}

impl Shape {
    fn hash<T>(self, hash: &Hash, entry: &Entry<T>) -> u64 {
        let (source, tag) = self.key(entry.source, entry.tag);
        hash.of(source, tag)
    }
}
