//! The two ends of a channel.

use crate::address::Address;
use crate::keys::{PackedKey, Seal};
use crate::memory::Revocation;
use crate::registered::sys::Mapped;
use core::cell::Cell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Instant;
use tieline_plugin_api::Status;

/// A peer's key after import.
pub struct RemoteKey(pub(super) Rc<Imported>);

pub(super) struct Imported {
    pub(super) key: PackedKey,
    /// The library's number for the key at the channel's receiver; `None` if the key is older than that interface.
    pub(super) number: Option<u64>,
    /// The library's mapping of the key, if the key must be mapped.
    pub(super) mapped: Option<Mapped>,
    /// Whether the owner has revoked the key.
    pub(super) revoked: Cell<bool>,
}

/// The number of ended regions whose generations a channel remembers: a key may arrive after its region has ended.
const REMEMBERED: usize = 1024;

/// A flush that is pending.
pub(super) struct Flush {
    pub(super) cookie: u64,
    /// The message number before which all messages must have arrived.
    pub(super) next: u32,
    /// The transfer number before which all transfers must have completed, and how many of them have not.
    pub(super) number: u64,
    pub(super) left: usize,
    /// The failure that the flush must report.
    pub(super) lost: Option<Lost>,
}

/// The failure of a transfer that reports no completion.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) status: Status,
    pub(super) errno: i32,
    pub(super) words: String,
}

/// The sending end of a channel.
pub(super) struct Outbound {
    pub(super) cookie: u64,
    /// Whether the application has not closed the endpoint.
    pub(super) open: bool,
    pub(super) peer: usize,
    /// The token in packets that arrive for this end.
    pub(super) token: u64,
    /// The channel's number and token at the receiver; `None` until the receiver has answered.
    pub(super) remote: Option<(u32, u64)>,
    /// The seal of the peer's domain, and the number of the peer's interface in it.
    pub(super) seal: Seal,
    pub(super) interface: u64,
    /// The token of the peer's interface.
    pub(super) epoch: u64,
    pub(super) failed: Option<Status>,
    /// Whether a `Bye` must be sent to the receiver after the pending puts.
    pub(super) owes_bye: bool,
    /// The sequence number of the next message, and the first that the receiver has not acknowledged.
    pub(super) next: u32,
    pub(super) acked: u32,
    /// The number of bytes sent, and of bytes that the receiver has delivered to its application.
    pub(super) sent: u64,
    pub(super) taken: u64,
    /// The value of `next` in the last `Sync` to the receiver.
    pub(super) synced: u32,
    pub(super) flushes: Vec<Flush>,
    /// The number of transfers that were posted, and of those that have not completed.
    pub(super) posted: u64,
    pub(super) under_way: usize,
    /// The first failure that the next flush must report.
    pub(super) lost: Option<Lost>,
    keys: Vec<Weak<Imported>>,
    revoked: VecDeque<u64>,
    /// The revoked regions whose owners wait for an answer because transfers to them are under way.
    pub(super) revoking: Vec<u64>,
}

impl Outbound {
    /// Makes a channel to an interface; `peer` is the index of that interface in `Peers`.
    pub(super) fn new(cookie: u64, peer: usize, token: u64, to: &Address) -> Outbound {
        Outbound {
            cookie,
            open: true,
            peer,
            token,
            remote: None,
            seal: to.seal,
            interface: to.number,
            epoch: to.epoch,
            failed: None,
            owes_bye: false,
            next: 0,
            acked: 0,
            sent: 0,
            taken: 0,
            synced: 0,
            flushes: Vec::new(),
            posted: 0,
            under_way: 0,
            lost: None,
            keys: Vec::new(),
            revoked: VecDeque::new(),
            revoking: Vec::new(),
        }
    }

    pub(super) fn import(&mut self, key: PackedKey, mapped: Option<Mapped>) -> RemoteKey {
        let revoked = Cell::new(self.revoked.contains(&key.generation));
        let plain = key.of(self.interface).map(|key| key.number);
        let number = mapped.as_ref().map(Mapped::key).or(plain);
        let key = Rc::new(Imported { key, number, mapped, revoked });
        if self.keys.len() == self.keys.capacity() {
            self.keys.retain(|key| key.strong_count() > 0);
        }
        self.keys.push(Rc::downgrade(&key));
        RemoteKey(key)
    }

    /// Handles the revocation of a region by its owner: from this call on, keys to the region are refused.
    pub(super) fn revoke(&mut self, generation: u64) {
        for key in self.keys.iter().filter_map(Weak::upgrade) {
            if key.key.generation == generation {
                key.revoked.set(true);
            }
        }
        if self.revoked.len() == REMEMBERED {
            let _ = self.revoked.pop_front();
        }
        self.revoked.push_back(generation);
    }

    /// Records that a transfer has completed.
    #[inline]
    pub(super) fn ended(&mut self, number: u64) {
        self.under_way -= 1;
        for flush in self.flushes.iter_mut().filter(|flush| number < flush.number) {
            flush.left -= 1;
        }
    }

    /// Checks whether the completion of a transfer may have consequences other than its event.
    #[inline]
    pub(super) fn awaits_transfers(&self) -> bool {
        !self.flushes.is_empty() || !self.revoking.is_empty() || self.owes_bye || !self.open
    }

    /// Records that a transfer has failed. The first flush after that transfer reports the failure, whether that flush is pending
    /// or not yet posted.
    pub(super) fn lose(&mut self, number: u64, lost: Lost) {
        let waits = self.flushes.iter_mut().find(|flush| flush.number > number);
        let _ = waits.map_or(&mut self.lost, |flush| &mut flush.lost).get_or_insert(lost);
    }

    /// Records the receiver's report that all messages before `next` have arrived and `taken` bytes have been delivered.
    pub(super) fn acknowledged(&mut self, next: u32, taken: u64) {
        let (under_way, more) = (self.next.wrapping_sub(self.acked), next.wrapping_sub(self.acked));
        if more <= under_way {
            self.acked = next;
        }
        if taken <= self.sent {
            self.taken = self.taken.max(taken);
        }
    }

    /// Records that the region's owner must be notified when no transfer to the region is under way.
    pub(super) fn owe_answer(&mut self, generation: u64) {
        if self.revoking.len() < REMEMBERED && !self.revoking.contains(&generation) {
            self.revoking.push(generation);
        }
    }

    /// Checks whether no message and no transfer is under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.acked == self.next && self.under_way == 0
    }

    /// Removes the next flush whose conditions are met.
    pub(super) fn flushed(&mut self) -> Option<Flush> {
        let acked = self.acked;
        let done = |flush: &Flush| acked.wrapping_sub(flush.next) < 1 << 31 && flush.left == 0;
        let at = self.flushes.iter().position(done)?;
        Some(self.flushes.remove(at))
    }
}

/// The receiving end of a channel.
pub(super) struct Inbound {
    /// The token in packets that arrive for this end.
    pub(super) token: u64,
    pub(super) peer: usize,
    /// The peer number that the channel's messages carry for the application.
    pub(super) number: u64,
    /// The epoch of the sender's interface.
    pub(super) epoch: u64,
    /// The channel's number and token at its sender.
    pub(super) remote: (u32, u64),
    /// The sequence number of the next message.
    pub(super) next: u32,
    /// The number of bytes that have been delivered.
    pub(super) taken: u64,
    /// The number of delivered bytes that the sender has been notified of.
    pub(super) told: u64,
    pub(super) ack_due: bool,
    /// Whether the channel has ended; its place is freed when that event has been delivered.
    pub(super) left: bool,
    /// The revocations that wait for the sender's answer.
    pub(super) asked: Vec<Arc<Revocation>>,
}

/// A receiving end that was removed while its sender may not know that. Puts that the sender has posted may still land.
pub(super) struct Ghost {
    pub(super) token: u64,
    pub(super) epoch: u64,
    pub(super) asked: Vec<Arc<Revocation>>,
    pub(super) since: Instant,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::LibraryKey;
    use tieline_registration::key::Grant;

    fn channel() -> Outbound {
        Outbound::new(1, 0, 2, &crate::address::tests::address())
    }

    fn key(generation: u64) -> PackedKey {
        let keys = vec![LibraryKey { interface: 0, number: 1, raw: None }];
        let grant = Grant { base: 0, len: 1, access: 0 };
        PackedKey { grant, generation, skew: 0, keys }
    }

    #[test]
    fn flush_waits_only_for_earlier_messages_and_transfers() {
        let mut channel = channel();
        (channel.next, channel.posted, channel.under_way) = (5, 2, 2);
        let flush = |cookie, next, number| {
            let left = number as usize;
            Flush { cookie, next, number, left, lost: None }
        };
        channel.flushes = vec![flush(7, 5, 2), flush(8, 0, 1)];
        channel.ended(1);
        assert!(channel.flushed().is_none(), "the first one is under way");
        channel.ended(0);
        assert_eq!(channel.flushed().map(|f| f.cookie), Some(8));
        assert!(channel.flushed().is_none(), "messages are under way");
        channel.next = 6;
        channel.acknowledged(5, 0);
        assert_eq!(channel.flushed().map(|f| f.cookie), Some(7));
        assert!(!channel.is_quiet(), "the sixth");
    }

    #[test]
    fn the_first_flush_behind_what_was_lost_tells_it_and_no_other() {
        let mut channel = channel();
        let wait = |channel: &mut Outbound, number| {
            let lost = channel.lost.take();
            channel.flushes.push(Flush { cookie: number, next: 0, number, left: 0, lost });
        };
        let lose = |channel: &mut Outbound, number| {
            let words = format!("number {number}");
            channel.lose(number, Lost { status: Status::Io, errno: 5, words });
        };
        for number in [4, 7] {
            wait(&mut channel, number);
        }
        // A flush reports only failures of transfers before it, regardless of how many transfers fail after it.
        (7..1000).for_each(|number| lose(&mut channel, number));
        for number in [6, 4, 3] {
            lose(&mut channel, number);
        }
        wait(&mut channel, 1000);
        let words = |lost: Option<Lost>| lost.map(|lost| lost.words).unwrap_or_default();
        let told: Vec<_> = channel.flushes.drain(..).map(|flush| words(flush.lost)).collect();
        assert_eq!(told, ["number 3", "number 6", "number 7"]);
        assert_eq!(channel.lost, None, "it was told");
    }

    #[test]
    fn memory_of_ended_regions_and_dropped_keys_is_bounded() {
        let mut channel = channel();
        for generation in 0..5000 {
            drop(channel.import(key(generation), None));
            channel.revoke(generation);
            channel.owe_answer(generation);
            channel.owe_answer(generation);
            assert!(channel.keys.len() < 16, "{}", channel.keys.len());
        }
        assert_eq!((channel.revoked.len(), channel.revoking.len()), (REMEMBERED, REMEMBERED));
        assert!(channel.revoked.contains(&4999) && channel.revoking.contains(&0));
    }

    #[test]
    fn an_acknowledgement_of_what_was_never_sent_changes_nothing() {
        let mut channel = channel();
        (channel.next, channel.sent) = (3, 300);
        channel.acknowledged(4, 301);
        assert_eq!((channel.acked, channel.taken), (0, 0));
        channel.acknowledged(2, 200);
        channel.acknowledged(1, 100);
        assert_eq!((channel.acked, channel.taken), (2, 200), "an old one comes late");
        channel.acknowledged(3, 300);
        assert_eq!((channel.acked, channel.taken), (3, 300), "everything");
    }

    #[test]
    fn a_key_that_comes_behind_the_end_of_its_region_is_known_to_lead_nowhere() {
        let mut channel = channel();
        let before = channel.import(key(4), None);
        channel.revoke(4);
        let (behind, other) = (channel.import(key(4), None), channel.import(key(5), None));
        let revoked = [before, behind, other].map(|key| key.0.revoked.get());
        assert_eq!(revoked, [true, true, false]);
    }
}
