//! The limit of messages that wait for their receive.
//!
//! The receiver counts the bytes that wait, by sender. Above a mark it tells that sender to hold its messages back, and below half of
//! the mark it releases the sender. The messages of a held sender wait in the sender's provider, in order. When 1024 of them wait,
//! posts return `-FI_EAGAIN`.
//!
//! The receive that takes the messages may need one that is held back, or a message of a third process that waits for the held
//! sender. Therefore no hold lasts: the receiver grants a held sender that has messages a further part
//!
//! * at once, if a posted receive accepts messages of this sender, if the application looks for one (`FI_PEEK`), or if a post of the
//!   receiver itself has returned `-FI_EAGAIN`. Messages with a tag and without one are distinguished, because some applications
//!   always have buffers for messages without a tag.
//! * otherwise after a pause. The pauses grow to a second, so an idle receiver gets 256 KiB per second.

use crate::address::Source;
use crate::endpoint::{Ep, id};
use crate::peers::Peer;
use crate::receive::Stored;
use std::time::{Duration, Instant};
use tieline::{Endpoint, Message, PeerId};
use tieline_tag::Pattern;

/// The number of bytes of one sender above which it is held.
const MOST: usize = 8 << 20;
/// The number of bytes of all senders above which each sender with more than [`SHARE`] is held.
const MOST_OF_ALL: usize = 64 << 20;
const SHARE: usize = 256 << 10;
/// The memory that a waiting message takes besides its bytes.
const COST: usize = 128;
/// The memory that a waiting rendezvous message takes.
pub(crate) const LONG_COST: usize = 512;
/// The number of bytes that a held sender may send after a grant.
const GRANT: u64 = 256 << 10;
/// The first and the longest pause before a grant to a sender that no receive waits for.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The kinds of messages that wait at a held sender.
pub(crate) const TAGGED: u64 = 1;
pub(crate) const PLAIN: u64 = 2;

/// The contents of the header of a message of id [`id::FLOW`].
const HOLD: u64 = 0x100;
const RELEASE: u64 = 0x200;
/// A held sender that has used up its grant has messages of the kinds in the low bits.
const STARVED: u64 = 0x300;
/// The number of bytes is in the upper half.
const GRANTED: u64 = 0x400;

/// Returns the number of bytes that a message counts.
pub(crate) fn cost(len: usize) -> u64 {
    (len + COST) as u64
}

impl Stored {
    /// Returns the memory that a waiting message takes.
    pub(crate) fn cost(&self) -> usize {
        match self {
            Stored::Short(len, _) => usize::from(*len) + COST,
            Stored::Bytes(bytes) => bytes.len() + COST,
            Stored::Long(_) => LONG_COST,
        }
    }
}

/// A sender that has to hold its messages back.
struct Held {
    source: Source,
    peer: PeerId,
    is_told: bool,
    /// The kinds of messages that wait at the sender.
    waits: u64,
    /// A receive waits for messages of these kinds.
    wanted: u64,
    pause: Duration,
    next: Instant,
}

/// The messages that wait for their receive, by sender.
#[derive(Default)]
pub(crate) struct Backlogs {
    bytes: Vec<usize>,
    all: usize,
    held: Vec<Held>,
}

impl Backlogs {
    /// Counts a message that waits. Returns whether its sender has to be held.
    fn add(&mut self, source: Source, cost: usize) -> bool {
        let index = source.0 as usize;
        if self.bytes.len() <= index {
            self.bytes.resize(index + 1, 0);
        }
        self.bytes[index] += cost;
        self.all += cost;
        let own = self.bytes[index];
        own > MOST || (self.all > MOST_OF_ALL && own > SHARE)
    }

    /// Counts a message that does not wait any more.
    fn remove(&mut self, source: Source, cost: usize) {
        let Some(bytes) = self.bytes.get_mut(source.0 as usize) else { return };
        *bytes = bytes.saturating_sub(cost);
        self.all = self.all.saturating_sub(cost);
    }

    /// Checks whether a held sender has to be released.
    fn is_low(&self, source: Source) -> bool {
        let own = self.bytes.get(source.0 as usize).copied().unwrap_or(0);
        own <= SHARE / 2 || (own <= MOST / 2 && self.all <= MOST_OF_ALL)
    }
}

impl Ep {
    /// Counts a message that waits for its receive, and holds its sender if there are too many.
    pub(crate) fn kept(&self, from: PeerId, source: Source, cost: usize) {
        let mut backlogs = self.backlogs.borrow_mut();
        if backlogs.add(source, cost) && !backlogs.held.iter().any(|it| it.source == source) {
            let (pause, next) = (FIRST_PAUSE, Instant::now() + FIRST_PAUSE);
            let held =
                Held { source, peer: from, is_told: false, waits: 0, wanted: 0, pause, next };
            backlogs.held.push(held);
            self.todo.set(true);
        }
    }

    /// Counts a message that was taken.
    pub(crate) fn unkept(&self, source: Source, stored: &Stored) {
        self.backlogs.borrow_mut().remove(source, stored.cost());
    }

    /// Notes that a receive waits for messages of these kinds.
    #[inline]
    pub(crate) fn wants(&self, source: Option<Source>, kinds: u64) {
        if self.todo.get() {
            self.wants_of_held(source, kinds);
        }
    }

    #[cold]
    fn wants_of_held(&self, source: Option<Source>, kinds: u64) {
        for held in &mut self.backlogs.borrow_mut().held {
            if source.is_none_or(|source| source == held.source) {
                held.wanted |= kinds;
            }
        }
    }

    /// Forgets that a sender is held, and that it has asked this endpoint to hold messages back.
    pub(crate) fn end_hold(&self, source: Source) {
        self.backlogs.borrow_mut().held.retain(|held| held.source != source);
        self.set_credit(source, |_| None);
    }

    /// Checks whether senders are held.
    pub(crate) fn has_held(&self) -> bool {
        !self.backlogs.borrow().held.is_empty()
    }

    /// Releases held senders, and grants others a further part.
    pub(crate) fn serve_held(&self) {
        if !self.has_held() {
            return;
        }
        let now = Instant::now();
        let is_stuck = self.is_stuck.take();
        let mut held = std::mem::take(&mut self.backlogs.borrow_mut().held);
        held.retain_mut(|held| !self.serve(held, now, is_stuck));
        let mut backlogs = self.backlogs.borrow_mut();
        held.append(&mut backlogs.held);
        backlogs.held = held;
    }

    /// Serves a held sender. Returns whether it is not held any more.
    fn serve(&self, held: &mut Held, now: Instant, is_stuck: bool) -> bool {
        let Ok(endpoint) = self.worker.endpoint_to(held.peer) else { return true };
        let tell = |header| endpoint.send(id::FLOW, header, &[]).is_ok();
        if !held.is_told {
            held.is_told = tell(HOLD);
            return false;
        }
        if self.backlogs.borrow().is_low(held.source) {
            return tell(RELEASE);
        }
        let is_wanted = is_stuck || held.wanted & held.waits != 0;
        if held.waits == 0 || !(is_wanted || now >= held.next) {
            return false;
        }
        if tell(GRANTED | GRANT << 32) {
            held.waits = 0;
            // A receive that still waits is found when the sender has used up the grant.
            held.wanted = 0;
            held.pause = match is_wanted {
                true => FIRST_PAUSE,
                false => (held.pause + held.pause / 8).min(LONGEST_PAUSE),
            };
            held.next = now + held.pause;
        }
        false
    }

    /// Handles a message about held messages.
    pub(crate) fn flow(&self, message: &Message<'_>) {
        let (header, source) = (message.header(), self.source_of(message.peer()));
        match header & 0xff00 {
            STARVED => self.starved(source, header & (TAGGED | PLAIN)),
            HOLD => self.set_credit(source, |credit| credit.or(Some(0))),
            RELEASE => self.set_credit(source, |_| None),
            GRANTED => {
                self.set_credit(source, |credit| {
                    credit.map(|left| left.saturating_add(header >> 32))
                });
            }
            _ => {}
        }
    }

    /// Notes that a held sender has messages, and looks for a receive that waits for them.
    fn starved(&self, source: Source, waits: u64) {
        let mut wanted = 0;
        if waits & TAGGED != 0 {
            let own = Some(u64::from(source.0));
            let accepts = |pattern: Pattern| pattern.source.is_none() || pattern.source == own;
            if self.tags.borrow().receives().any(|receive| accepts(receive.pattern)) {
                wanted |= TAGGED;
            }
        }
        if waits & PLAIN != 0 && self.plain.borrow().accepts(source) {
            wanted |= PLAIN;
        }
        let mut backlogs = self.backlogs.borrow_mut();
        for held in backlogs.held.iter_mut().filter(|held| held.source == source) {
            held.waits |= waits;
            held.wanted |= wanted;
        }
    }

    /// Changes the number of bytes that may be sent to a receiver. `None`: any number.
    pub(crate) fn set_credit(&self, source: Source, change: impl Fn(Option<u64>) -> Option<u64>) {
        for (address, peer) in self.peers.borrow().iter().enumerate() {
            if peer.source != Some(source) {
                continue;
            }
            let (before, after) = (peer.credit.get(), change(peer.credit.get()));
            if before == after {
                continue;
            }
            peer.credit.set(after);
            peer.told.set(0);
            peer.set_clear();
            self.blocked.borrow_mut().push(address as u64);
            self.todo.set(true);
        }
    }

    /// Tells a receiver that holds this endpoint back that there are messages: those that wait, and one of the kind `next` if it is
    /// not 0. Returns `false` if there is no room for that.
    pub(crate) fn starve(&self, peer: &Peer, endpoint: &Endpoint, next: u64) -> bool {
        let (ops, waiting, told) = (self.ops.borrow(), peer.waiting.borrow(), peer.told.get());
        let kind_of = |index: &u32| ops.get(*index).map_or(0, |op| op.work.kind_of_message());
        // The receiver knows the kinds of all messages but the last one, if it was told since its last grant.
        let kinds = match told {
            0 => waiting.iter().fold(next, |kinds, index| kinds | kind_of(index)),
            _ => told | next | waiting.back().map_or(0, kind_of),
        };
        if kinds == told {
            return true;
        }
        let is_sent = endpoint.send(id::FLOW, STARVED | kinds, &[]).is_ok();
        if is_sent {
            peer.told.set(kinds);
        }
        is_sent
    }
}

#[cfg(test)]
mod tests {
    use super::{Backlogs, MOST, MOST_OF_ALL, SHARE, Source};

    #[test]
    fn sender_is_held_above_its_mark_and_released_below_half_of_it() {
        let mut backlogs = Backlogs::default();
        assert!(!backlogs.add(Source(3), MOST));
        assert!(backlogs.add(Source(3), 1) && !backlogs.is_low(Source(3)));
        assert!(!backlogs.add(Source(1), 1) && backlogs.is_low(Source(1)));
        backlogs.remove(Source(3), MOST / 2);
        assert!(!backlogs.is_low(Source(3)));
        backlogs.remove(Source(3), 1);
        assert!(backlogs.is_low(Source(3)));
    }

    #[test]
    fn senders_above_their_share_are_held_while_all_have_too_much() {
        let mut backlogs = Backlogs::default();
        for source in 0..9 {
            let _ = backlogs.add(Source(source), MOST_OF_ALL / 9);
        }
        assert!(!backlogs.add(Source(9), SHARE));
        assert!(backlogs.add(Source(9), 1) && !backlogs.is_low(Source(9)));
        backlogs.remove(Source(9), SHARE / 2 + 1);
        assert!(backlogs.is_low(Source(9)));
    }

    #[test]
    fn message_of_an_unknown_sender_is_not_counted_twice() {
        let mut backlogs = Backlogs::default();
        backlogs.remove(Source(7), 100);
        assert!(!backlogs.add(Source(7), 100) && backlogs.is_low(Source(7)));
    }
}
