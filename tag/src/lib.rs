//! Tag matching: which posted receive a message is for, and which message a receive takes.
//!
//! ```
//! use tieline_tag::{Arrival, Matcher, Pattern, Post};
//!
//! let mut matcher = Matcher::new();
//! // Whoever comes first with tag 7, and word 1 to know the receive by.
//! let any = Pattern { source: None, tag: 7, ignore: 0 };
//! assert!(matches!(matcher.post(any, 1), Post::Waiting(_)));
//! let Arrival::Matched(receive, bytes) = matcher.arrive(3, 7, b"first", |bytes| bytes.to_vec()) else { panic!() };
//! assert_eq!((receive.word, bytes), (1, b"first"));
//!
//! // Nobody waits for the second: it is kept until a receive takes it.
//! assert!(matches!(matcher.arrive(3, 7, b"other", |bytes| bytes.to_vec()), Arrival::Kept(_)));
//! let Post::Matched(message) = matcher.post(any, 2) else { panic!() };
//! assert_eq!((message.source, message.payload), (3, b"other".to_vec()));
//! ```
//!
//! # Who calls it
//!
//! A runtime that has messages with tags, on top of a transport that has none, and has one [`Matcher`] for all that may match each
//! other: an MPI's point-to-point layer, the tagged half of libfabric's interface, `tests/runtime` of this workspace. The caller says
//! when a message has arrived and when a receive is posted, in the order in which that is to count, and moves all data: here
//! is no I/O, no thread, no lock, no clock, and nothing of Tieline.
//!
//! # What it promises
//!
//! * A message from `source` with `tag` is for a receive whose [`Pattern`] fits: the source is the same or any, and so are all bits of
//!   the tag that are not ignored.
//! * Of all receives that fit, a message takes the one that was posted first; of all messages that fit, a receive takes the one that
//!   arrived first. So messages of one pair that fit the same receives are received in the order in which they arrived, whatever the
//!   receives are: a message whose data comes later is announced, and matched, in its place.
//! * Every receive ends once: by a message, which is told with its word, or by [`Matcher::cancel`], which says whether it did. An id of
//!   what has ended is never the id of anything else.
//! * [`Matcher::peek`] leaves a message where it is. [`Matcher::claim`] parks it under a word: no receive and no peek finds it, and
//!   [`Matcher::take`] takes it. What is taken is the caller's, who discards it by dropping it.
//! * Nothing is lost when the caller's closure panics.
//!
//! # What it costs
//!
//! A post and an arrival take constant time on average, however much waits and whatever sources and tags peers choose (the hash has a
//! secret), for receives of few *shapes*. A shape is what of a message does not matter: any source or one, and the bits that are
//! ignored. Programs have few, but seldom none: MPICH ignores two bits of its own in every receive, and in its wildcards all bits of a
//! tag or of a source.
//!
//! * A message goes along the receives that it finds until one fits, and a receive along the messages, and what they go by is entered in a table.
//!   So a single call may take as many steps as were posted or have arrived since the last, but nothing is gone by twice.
//! * An arrival looks once into the table of each shape, of which there are at most eight. Receives of further shapes are gone by every time:
//!   an arrival then takes as many steps as there are of them.
//! * Messages are entered in at most four tables. A receive of a fifth shape goes by every message that does not fit, every time,
//!   while messages that receives of the four have gone by wait.
//! * A table doubles when it is full, and becomes a quarter when an eighth of it is left: that step goes over all of it.
//! * Claims are found by their word, and receives by theirs, by going along all of them; by id at once.
//!
//! A message that waits takes 80 bytes beside its payload, a receive 72, and what was gone by up to 16 more in each table. Memory is given back as
//! they go: what is left is about twice what is needed, some ten kilobytes, and a hundredth of what there was. A number that goes up and
//! down by less than half, or stays below a thousand, allocates nothing. How many messages wait is the caller's to bound, before they
//! are sent: see [`Matcher::unexpected`].
//!
//! `cargo run --release -p tieline-tag --example matching` compares that with a list that is searched from its beginning. On a processor of 2025, in
//! nanoseconds for a post and its match: a list is better while fewer than about ten wait, or forty that end by chance.
//!
//! | that wait | 1 | 10 | 100 | 10 000 | list: 1 | 10 | 100 | 10 000 |
//! |---|---|---|---|---|---|---|---|---|
//! | receives, in the order of their messages | 15 | 16 | 16 | 17 | 4 | 9 | 70 | 3300 |
//! | receives, by chance | 15 | 33 | 42 | 53 | 4 | 18 | 96 | 5400 |
//! | messages, in the order of their receives | 18 | 19 | 20 | 27 | 4 | 6 | 61 | 2200 |
//! | messages, by chance | 18 | 58 | 65 | 60 | 5 | 20 | 76 | 2900 |
//!
//! Sequence numbers have 64 bits: at a billion posts and arrivals a second they last for 584 years. What is there at one time is counted
//! in 32 bits; a call that finds them used up panics, which takes more memory than 300 GB.

use std::fmt;

mod index;
mod posted;
mod slab;
#[cfg(test)]
mod tests;
mod unexpected;

use index::Hash;
use posted::Posted;
use unexpected::Unexpected;

/// Which messages a receive is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pattern {
    /// Whose: a rank, an address, whatever the caller numbers its peers by. `None` for anybody's.
    pub source: Option<u64>,
    /// The tag.
    pub tag: u64,
    /// The bits of the tag that do not matter: 0 for none, `u64::MAX` for all.
    pub ignore: u64,
}

impl Pattern {
    /// Messages of one source and one tag.
    pub const fn exact(source: u64, tag: u64) -> Self {
        Pattern { source: Some(source), tag, ignore: 0 }
    }

    /// All messages.
    pub const ANY: Pattern = Pattern { source: None, tag: 0, ignore: u64::MAX };

    /// Whether a message is one of them.
    pub fn fits(&self, source: u64, tag: u64) -> bool {
        self.source.is_none_or(|own| own == source) && (self.tag ^ tag) & !self.ignore == 0
    }

    fn shape(&self) -> Shape {
        Shape { any_source: self.source.is_none(), ignore: self.ignore }
    }
}

/// What of a message does not matter.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shape {
    any_source: bool,
    ignore: u64,
}

impl Shape {
    /// What does matter: two of this shape fit if they have the same key.
    fn key(self, source: u64, tag: u64) -> (u64, u64) {
        (if self.any_source { 0 } else { source }, tag & !self.ignore)
    }
}

/// Names a receive of one matcher. One that was posted earlier is less.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ReceiveId {
    sequence: u64,
    place: u32,
}

/// Names a message that one matcher has kept. One that arrived earlier is less.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MessageId {
    sequence: u64,
    place: u32,
}

/// A receive that was posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receive {
    /// Which one.
    pub id: ReceiveId,
    /// What it is for, its tag without the bits that it ignores.
    pub pattern: Pattern,
    /// What the caller knows it by.
    pub word: u64,
}

/// A message that was kept, or a look at one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<P> {
    /// Which one.
    pub id: MessageId,
    /// Whose it is.
    pub source: u64,
    /// Its tag.
    pub tag: u64,
    /// What the caller kept it as.
    pub payload: P,
}

/// What became of a receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the message is in it"]
pub enum Post<T> {
    /// It has taken this message.
    Matched(Message<T>),
    /// It waits for one.
    Waiting(ReceiveId),
}

/// What became of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the receive has ended, and its owner does not know it"]
pub enum Arrival<P> {
    /// It is for this receive, which has ended.
    Matched(Receive, P),
    /// It waits for a receive.
    Kept(MessageId),
}

/// Receives that wait for messages, and messages that wait for receives. `T` is what is kept of such a message.
pub struct Matcher<T> {
    hash: Hash,
    sequence: u64,
    posted: Posted,
    unexpected: Unexpected<T>,
}

impl<T> Matcher<T> {
    /// With nothing in it, and no memory taken.
    pub fn new() -> Self {
        let (posted, unexpected) = (Posted::new(), Unexpected::new());
        Matcher { hash: Hash::new(), sequence: 0, posted, unexpected }
    }

    /// A receive: it takes the first message that fits, or waits for one.
    pub fn post(&mut self, pattern: Pattern, word: u64) -> Post<T> {
        if let Some(message) = self.receive(pattern) {
            return Post::Matched(message);
        }
        let sequence = self.next();
        Post::Waiting(self.posted.add(sequence, pattern, word))
    }

    /// A message: it goes to the receive that was posted first of those that it fits, and comes back with that, or is kept as what
    /// `keep` makes of it, which is called only then.
    pub fn arrive<P>(
        &mut self,
        source: u64,
        tag: u64,
        message: P,
        keep: impl FnOnce(P) -> T,
    ) -> Arrival<P> {
        if let Some(receive) = self.posted.take_for(&self.hash, source, tag) {
            return Arrival::Matched(receive, message);
        }
        let payload = keep(message);
        let sequence = self.next();
        Arrival::Kept(self.unexpected.add(sequence, source, tag, payload))
    }

    /// Ends a receive that waits; `None` if it has ended already, or is not of this matcher.
    pub fn cancel(&mut self, id: ReceiveId) -> Option<Receive> {
        self.posted.cancel(id)
    }

    /// A receive that does not wait: the first message that fits, if there is one.
    pub fn receive(&mut self, pattern: Pattern) -> Option<Message<T>> {
        let id = self.unexpected.find(&self.hash, pattern)?;
        self.unexpected.take(&self.hash, id)
    }

    /// The message that a receive would take, which stays where it is.
    ///
    /// Nothing changes that can be seen: what it goes by it enters in a table, as a receive does.
    pub fn peek(&mut self, pattern: Pattern) -> Option<Message<&T>> {
        let id = self.unexpected.find(&self.hash, pattern)?;
        self.unexpected.get(id)
    }

    /// Parks the message that a receive would take, under a word: until [`Matcher::take`] it is nobody else's.
    pub fn claim(&mut self, pattern: Pattern, word: u64) -> Option<Message<&T>> {
        let id = self.unexpected.find(&self.hash, pattern)?;
        self.unexpected.claim(&self.hash, id, word);
        self.unexpected.get(id)
    }

    /// The message that was claimed first of those under this word. It walks along all that are claimed.
    pub fn claim_of(&self, word: u64) -> Option<MessageId> {
        self.unexpected.claim_of(word)
    }

    /// A message out of turn, whether it was claimed or waits; `None` if it was taken already.
    pub fn take(&mut self, id: MessageId) -> Option<Message<T>> {
        self.unexpected.take(&self.hash, id)
    }

    /// A message that was claimed or waits.
    pub fn message(&self, id: MessageId) -> Option<Message<&T>> {
        self.unexpected.get(id)
    }

    /// What is kept of a message that was claimed or waits, for data of it that came later; `None` if it was taken.
    pub fn payload_mut(&mut self, id: MessageId) -> Option<&mut T> {
        self.unexpected.payload_mut(id)
    }

    /// All receives that wait, in no order; their ids have that of posting. Those of a peer that has died are found so.
    pub fn receives(&self) -> impl Iterator<Item = Receive> {
        self.posted.iter()
    }

    /// All messages that wait and were not claimed, from the first that arrived.
    pub fn messages(&self) -> impl Iterator<Item = Message<&T>> {
        self.unexpected.iter()
    }

    /// How many receives wait.
    pub fn posted(&self) -> usize {
        self.posted.len()
    }

    /// How many messages wait and were not claimed. Peers make it grow: who lets them send without a bound has none here.
    pub fn unexpected(&self) -> usize {
        self.unexpected.len()
    }

    /// How many messages were claimed and not taken.
    pub fn claimed(&self) -> usize {
        self.unexpected.claimed()
    }

    /// The memory that is held, in bytes, without what payloads point to.
    pub fn bytes(&self) -> usize {
        self.posted.bytes() + self.unexpected.bytes()
    }

    fn next(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }
}

impl<T> Default for Matcher<T> {
    fn default() -> Self {
        Matcher::new()
    }
}

impl<T> fmt::Debug for Matcher<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut counts = f.debug_struct("Matcher");
        let _ = counts.field("posted", &self.posted()).field("unexpected", &self.unexpected());
        counts.field("claimed", &self.claimed()).finish()
    }
}
