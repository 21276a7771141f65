//! Tag matching: assigns arriving messages to posted receives, and receives to messages that have arrived.
//!
//! ```
//! use tieline_tag::{Arrival, Matcher, Pattern, Post};
//!
//! let mut matcher = Matcher::new();
//! // Any source with tag 7; word 1 identifies the receive.
//! let any = Pattern { source: None, tag: 7, ignore: 0 };
//! assert!(matches!(matcher.post(any, 1), Post::Waiting(_)));
//! let Arrival::Matched(receive, bytes) = matcher.arrive(3, 7, b"first", |bytes| bytes.to_vec()) else { panic!() };
//! assert_eq!((receive.word, bytes), (1, b"first"));
//!
//! // No receive waits for the second message: it is kept until one takes it.
//! assert!(matches!(matcher.arrive(3, 7, b"other", |bytes| bytes.to_vec()), Arrival::Kept(_)));
//! let Post::Matched(message, word) = matcher.post(any, 2) else { panic!() };
//! assert_eq!((message.source, message.payload, word), (3, b"other".to_vec(), 2));
//! ```
//!
//! # Use
//!
//! The crate is for a runtime with tagged messages on top of a transport without tags: an MPI's point-to-point layer, the tagged
//! interface of libfabric, or `tests/runtime` of this workspace. The runtime has one [`Matcher`] for all receives and messages that
//! may match each other. The runtime reports each arrival and each posted receive, in the order in which they must match, and moves
//! all data itself. This crate has no I/O, no thread, no lock and no clock, and it does not depend on Tieline.
//!
//! # Guarantees
//!
//! * A message from `source` with `tag` matches a receive if its [`Pattern`] fits: the source is the same or any, and all bits of
//!   the tag that are not ignored are the same.
//! * A message matches the first posted of all matching receives. A receive matches the first arrived of all matching messages. So
//!   messages of one source that match the same receives are received in the order of arrival, for any set of receives. If the data
//!   of a message arrives later (rendezvous), the runtime reports the announcement as the arrival.
//! * Every receive ends at most once: by a message, which is returned with the receive's word, or by [`Matcher::cancel`], which
//!   returns the receive that it has ended. The id of an ended receive or message is never reused.
//! * [`Matcher::peek`] does not remove the message. [`Matcher::claim`] sets a message aside under a word: receives, peeks and
//!   further claims do not find the message, and [`Matcher::take`] removes it. The caller owns a removed message and discards it by
//!   dropping it.
//! * If the caller's closure panics, the matcher loses no waiting receive and no kept message.
//!
//! # Costs
//!
//! If the receives have at most four *shapes*, a post and an arrival take constant time on average; with up to eight shapes, an
//! arrival still does. These bounds hold for any number of waiting entries and for all sources and tags that peers choose, because
//! the hash is seeded with a secret. The shape of a receive is the part of a message that it ignores: the source, if any is
//! accepted, and the ignored bits of the tag. Programs have a small number of shapes: MPICH, for example, ignores two internal bits
//! in every receive, and all bits of a tag or of a source in its wildcards.
//!
//! * A message is compared with receives until one matches, and a receive is compared with messages. Passed entries go into a
//!   table. A single call may therefore take one step per post or arrival since the preceding walk, but an entry in a table is not
//!   passed again.
//! * An arrival does one lookup in the table of each shape, of which there are at most eight. Receives of further shapes are
//!   compared in every arrival, at most one step for each such receive.
//! * Messages are entered in at most four tables. A receive of a fifth shape passes every message that does not match, in every
//!   call, while messages wait that receives of the four shapes have passed.
//! * A table doubles when it is full. A table of more than 1024 lists shrinks to a quarter when it has fewer than one entry per
//!   eight lists. Each change of the size visits the whole table.
//! * A claim is found by its word in a walk along all claims, and a receive in one along [`Matcher::receives`]. By id, both are
//!   found in constant time.
//!
//! A waiting message takes 80 bytes in addition to its payload. A receive takes 32 in addition to its data, and 72 after a message has
//! passed it. Passed messages take up to 16 more bytes in each table, and passed receives up to 32. Memory is freed when entries are
//! removed. The matcher keeps about twice the required memory, plus a few hundred kilobytes and a hundredth of the maximum. Once
//! allocated, the memory suffices while the number of entries varies by less than half, or stays below a thousand. The caller must
//! limit the number of waiting messages before they are sent: see [`Matcher::unexpected`].
//!
//! `cargo run --release -p tieline-tag --example matching` compares these costs with a list that is searched from its beginning. A
//! list is faster while few receives or about forty messages wait, or fewer than about forty entries that end in random order. The
//! numbers are nanoseconds for a post and its match, on a processor of 2025.
//!
//! | waiting entries | 1 | 10 | 100 | 10 000 | list: 1 | 10 | 100 | 10 000 |
//! |---|---|---|---|---|---|---|---|---|
//! | receives, in the order of their messages | 9 | 9 | 9 | 10 | 5 | 19 | 46 | 4700 |
//! | receives, in random order | 9 | 41 | 54 | 70 | 5 | 18 | 87 | 5800 |
//! | messages, in the order of their receives | 19 | 19 | 20 | 20 | 5 | 9 | 33 | 2700 |
//! | messages, in random order | 19 | 40 | 45 | 59 | 5 | 17 | 66 | 3100 |
//!
//! Sequence numbers have 64 bits: at 10^9 posts and arrivals per second the numbers suffice for 584 years. The number of concurrent
//! entries has 32 bits. A call that exceeds this number panics; the entries then use more than 300 GB of memory.

use std::fmt;

mod index;
mod posted;
mod queue;
mod slab;
#[cfg(test)]
mod tests;
mod unexpected;

use index::Hash;
use posted::Posted;
use unexpected::Unexpected;

/// The messages that a receive accepts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pattern {
    /// The source: a rank, an address, or any number that the caller gives to its peers. `None` accepts all sources.
    pub source: Option<u64>,
    /// The tag.
    pub tag: u64,
    /// The ignored bits of the tag: 0 for none, `u64::MAX` for all.
    pub ignore: u64,
}

impl Pattern {
    /// Makes a pattern that accepts messages of one source and one tag.
    pub const fn exact(source: u64, tag: u64) -> Self {
        Pattern { source: Some(source), tag, ignore: 0 }
    }

    /// The pattern that accepts all messages.
    pub const ANY: Pattern = Pattern { source: None, tag: 0, ignore: u64::MAX };

    /// Checks whether the pattern accepts a message.
    pub fn fits(&self, source: u64, tag: u64) -> bool {
        self.source.is_none_or(|own| own == source) && (self.tag ^ tag) & !self.ignore == 0
    }

    fn shape(&self) -> Shape {
        Shape { any_source: self.source.is_none(), ignore: self.ignore }
    }
}

/// The shape of a receive: the ignored part of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shape {
    any_source: bool,
    ignore: u64,
}

impl Shape {
    /// Returns the part that is not ignored: a message and a receive of this shape match if their keys are equal.
    fn key(self, source: u64, tag: u64) -> (u64, u64) {
        (if self.any_source { 0 } else { source }, tag & !self.ignore)
    }
}

/// The id of a receive of one matcher. Ids are ordered by the time of posting.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ReceiveId {
    number: u64,
}

/// The id of a message that one matcher has kept. Ids are ordered by the time of arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MessageId {
    sequence: u64,
    place: u32,
}

/// A posted receive, or a reference to one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receive<W = u64> {
    /// The id of the receive.
    pub id: ReceiveId,
    /// The messages that the receive accepts; the tag is stored without the ignored bits.
    pub pattern: Pattern,
    /// The data that the caller keeps with the receive: by default, a word that identifies it.
    pub word: W,
}

impl<W: Clone> Receive<&W> {
    /// Returns the receive with a copy of its data.
    pub fn cloned(self) -> Receive<W> {
        Receive { id: self.id, pattern: self.pattern, word: self.word.clone() }
    }
}

/// A kept message, or a reference to one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<P> {
    /// The id of the message.
    pub id: MessageId,
    /// The source of the message.
    pub source: u64,
    /// The tag of the message.
    pub tag: u64,
    /// The data that the caller keeps with the message.
    pub payload: P,
}

/// The result of posting a receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the message is in it"]
pub enum Post<T, W = u64> {
    /// The receive has ended with this message. The data of the receive is returned.
    Matched(Message<T>, W),
    /// The receive waits for a message.
    Waiting(ReceiveId),
}

/// The result of an arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the receive has ended, and its owner does not know it"]
pub enum Arrival<P, W = u64> {
    /// The message matches this receive, which has ended.
    Matched(Receive<W>, P),
    /// The message waits for a receive.
    Kept(MessageId),
}

/// Receives that wait for messages, and messages that wait for receives. `T` is the data that the caller keeps with a waiting
/// message, and `W` the data that the caller keeps with a waiting receive.
pub struct Matcher<T, W = u64> {
    hash: Hash,
    sequence: u64,
    posted: Posted<W>,
    unexpected: Unexpected<T>,
}

impl<T> Matcher<T> {
    /// Makes an empty matcher, without allocating memory. A caller that keeps other data than a word with its receives uses
    /// [`Matcher::default`].
    pub fn new() -> Self {
        Matcher::default()
    }
}

impl<T, W> Matcher<T, W> {
    /// Posts a receive. The receive ends with the first matching message, or waits for a message.
    #[inline]
    pub fn post(&mut self, pattern: Pattern, word: W) -> Post<T, W> {
        if let Some(message) = self.receive(pattern) {
            return Post::Matched(message, word);
        }
        Post::Waiting(self.posted.add(pattern, word))
    }

    /// Reports an arrival. The message ends the matching receive that was posted first, and is returned with that receive. If no
    /// receive matches, the call runs `keep` and stores its result as the waiting message.
    #[inline]
    pub fn arrive<P>(
        &mut self,
        source: u64,
        tag: u64,
        message: P,
        keep: impl FnOnce(P) -> T,
    ) -> Arrival<P, W> {
        if let Some(found) = self.posted.find(&self.hash, source, tag) {
            if let Some(receive) = self.posted.take(&self.hash, found) {
                return Arrival::Matched(receive, message);
            }
        }
        let payload = keep(message);
        let sequence = self.next();
        Arrival::Kept(self.unexpected.add(sequence, source, tag, payload))
    }

    /// Reports an arrival like [`Matcher::arrive`]. If a receive matches, the call runs `matched` with the data of the receive, then
    /// drops these data, and returns the result. The data are not copied, so this is the faster call for data of several words.
    #[inline]
    pub fn arrive_with<P, R>(
        &mut self,
        source: u64,
        tag: u64,
        message: P,
        matched: impl FnOnce(&W, P) -> R,
        keep: impl FnOnce(P) -> T,
    ) -> Option<R> {
        if let Some(found) = self.posted.find(&self.hash, source, tag) {
            let result = matched(self.posted.word(found)?, message);
            self.posted.end(&self.hash, found);
            return Some(result);
        }
        let payload = keep(message);
        let sequence = self.next();
        let _ = self.unexpected.add(sequence, source, tag, payload);
        None
    }

    /// Ends a waiting receive; `None` if the receive has already ended. The id is one that this matcher has returned: the id of
    /// another matcher may name a different receive.
    pub fn cancel(&mut self, id: ReceiveId) -> Option<Receive<W>> {
        self.posted.cancel(&self.hash, id)
    }

    /// Receives without waiting: removes and returns the first matching message, if there is one.
    #[inline]
    pub fn receive(&mut self, pattern: Pattern) -> Option<Message<T>> {
        if self.unexpected.has_none() { None } else { self.receive_kept(pattern) }
    }

    #[inline(never)] // a caller that posts its receives in time needs no room for a kept message
    fn receive_kept(&mut self, pattern: Pattern) -> Option<Message<T>> {
        let id = self.unexpected.find(&self.hash, pattern)?;
        self.unexpected.take(&self.hash, id)
    }

    /// Returns the message that a receive would match, without removing the message.
    ///
    /// The call has no visible effect. Like a receive, the call may enter the messages that it passes in a table.
    pub fn peek(&mut self, pattern: Pattern) -> Option<Message<&T>> {
        let id = self.unexpected.find(&self.hash, pattern)?;
        self.unexpected.get(id)
    }

    /// Sets aside the message that a receive would match, under a word. No other call receives the message until [`Matcher::take`].
    pub fn claim(&mut self, pattern: Pattern, word: u64) -> Option<Message<&T>> {
        let id = self.unexpected.find(&self.hash, pattern)?;
        self.unexpected.claim(&self.hash, id, word);
        self.unexpected.get(id)
    }

    /// Returns the first message that was claimed under this word. The call walks along all claimed messages.
    pub fn claim_of(&self, word: u64) -> Option<MessageId> {
        self.unexpected.claim_of(word)
    }

    /// Removes a message out of order, whether it waits or was claimed; `None` if the message was already removed.
    pub fn take(&mut self, id: MessageId) -> Option<Message<T>> {
        self.unexpected.take(&self.hash, id)
    }

    /// Returns a message that waits or was claimed.
    pub fn message(&self, id: MessageId) -> Option<Message<&T>> {
        self.unexpected.get(id)
    }

    /// Returns the kept data of a message that waits or was claimed, so that the caller can add to the data; `None` if the message
    /// was removed.
    pub fn payload_mut(&mut self, id: MessageId) -> Option<&mut T> {
        self.unexpected.payload_mut(id)
    }

    /// Iterates over all waiting receives, in no particular order; their ids are ordered by the time of posting. A caller can use
    /// this to find the receives from a peer that has died.
    pub fn receives(&self) -> impl Iterator<Item = Receive<&W>> {
        self.posted.iter()
    }

    /// Iterates over all waiting messages except claimed ones, in the order of arrival.
    pub fn messages(&self) -> impl Iterator<Item = Message<&T>> {
        self.unexpected.iter()
    }

    /// Returns the number of waiting receives.
    pub fn posted(&self) -> usize {
        self.posted.len()
    }

    /// Returns the number of waiting messages, without claimed ones. Peers increase this number: unless the caller limits their
    /// sends, the number has no limit.
    pub fn unexpected(&self) -> usize {
        self.unexpected.len()
    }

    /// Returns the number of claimed messages that were not taken.
    pub fn claimed(&self) -> usize {
        self.unexpected.claimed()
    }

    /// Returns the number of allocated bytes, without the memory that payloads point to.
    pub fn bytes(&self) -> usize {
        self.posted.bytes() + self.unexpected.bytes()
    }

    fn next(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }
}

impl<T, W> Default for Matcher<T, W> {
    /// Makes an empty matcher, without allocating memory.
    fn default() -> Self {
        let (posted, unexpected) = (Posted::new(), Unexpected::new());
        Matcher { hash: Hash::new(), sequence: 0, posted, unexpected }
    }
}

impl<T, W> fmt::Debug for Matcher<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut counts = f.debug_struct("Matcher");
        let _ = counts.field("posted", &self.posted()).field("unexpected", &self.unexpected());
        counts.field("claimed", &self.claimed()).finish()
    }
}
