//! Compares an interface's counters with the objects that they count, after each poll of a side of the simulation.

use super::ops::{Transfer, Work};
use super::{Engine, Ready};
use std::collections::{BTreeMap, BTreeSet};

impl Engine {
    /// Recomputes the counters that a working engine maintains incrementally.
    pub(crate) fn check_accounts(&self) {
        if self.broken.is_some() {
            return;
        }
        self.check_operations();
        self.check_buffers();
        self.check_channels();
        self.check_watched();
    }

    pub(crate) fn channels(&self) -> usize {
        self.outbound.iter().flatten().count() + self.inbound.iter().flatten().count()
    }

    pub(crate) fn is_dialling(&self) -> bool {
        self.vigil.as_ref().is_some_and(|vigil| vigil.watch.is_dialling())
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(crate) fn ticks(&self) -> bool {
        self.needs_ticks()
    }

    fn check_watched(&self) {
        let Some(vigil) = &self.vigil else { return };
        let epochs = self.outbound.iter().flatten().map(|channel| channel.epoch);
        let epochs = epochs.chain(self.inbound.iter().flatten().map(|inbound| inbound.epoch));
        let epochs = epochs.chain(self.ghosts.iter().map(|ghost| ghost.epoch));
        let mut there = BTreeMap::new();
        for epoch in epochs.filter(|epoch| *epoch != self.address.epoch) {
            *there.entry(epoch).or_default() += 1;
        }
        assert_eq!(vigil.watch.channels(), there, "channels by the interface that is watched");
    }

    fn check_operations(&self) {
        let works: Vec<&Work> = self.ops.works().collect();
        let mut slots = Vec::new();
        let to = |transfer: &Transfer| {
            self.outbound[transfer.channel as usize].as_ref().map_or(usize::MAX, |to| to.peer)
        };
        for (index, peer) in self.peers.each() {
            let sends = works
                .iter()
                .filter(|work| matches!(work, Work::Send { peer, .. } if *peer == index));
            let messages =
                sends.clone().filter(|work| matches!(work, Work::Send { message: true, .. }));
            let transfers = works
                .iter()
                .filter(|work| matches!(work, Work::Transfer(transfer) if to(transfer) == index));
            let found = (sends.count(), messages.count(), transfers.count());
            assert_eq!((peer.sends, peer.messages, peer.transfers), found, "peer {index}");
            slots.extend(peer.waiting.iter().map(|waiting| waiting.0));
        }
        assert_eq!(self.waiting, slots.len(), "packets that wait");
        let sends = works.iter().filter(|work| matches!(work, Work::Send { .. })).count();
        assert_eq!(self.sends, sends, "packets that the library has");
        let open = |transfer: &&Transfer| {
            self.outbound[transfer.channel as usize].as_ref().is_some_and(|channel| channel.open)
        };
        assert_eq!(self.transfers, self.ops.transfers().filter(open).count(), "transfers");
        slots.extend(works.iter().filter_map(|work| match work {
            Work::Send { slot, .. } => Some(*slot),
            Work::Transfer(transfer) => transfer.slot,
            _ => None,
        }));
        self.slots.check(slots);
    }

    fn check_buffers(&self) {
        let posted: BTreeSet<usize> = self
            .ops
            .works()
            .filter_map(|work| match work {
                Work::Receive(buffer) => Some(*buffer),
                _ => None,
            })
            .collect();
        let ready = self.ready.iter().filter_map(|ready| match ready {
            Ready::Message { buffer, .. } => Some(*buffer),
            _ => None,
        });
        let held: Vec<usize> = ready.chain(self.shown.iter().copied()).collect();
        self.buffers.check(&posted, &held);
    }

    fn check_channels(&self) {
        for (at, channel) in self.outbound.iter().enumerate() {
            let Some(channel) = channel else { continue };
            let transfers = self.ops.transfers().filter(|other| other.channel as usize == at);
            let numbers: Vec<u64> = transfers.map(|transfer| transfer.number).collect();
            assert_eq!(channel.under_way, numbers.len(), "transfers of a channel");
            for flush in &channel.flushes {
                let left = numbers.iter().filter(|number| **number < flush.number).count();
                assert_eq!(flush.left, left, "transfers before a flush");
            }
            assert!(channel.open || channel.remote.is_some(), "who has not answered is forgotten");
            assert!(channel.taken <= channel.sent, "more was handed out than was sent");
            let is_over = !channel.open
                && (channel.failed.is_some() || channel.remote.is_some() && channel.is_quiet())
                && channel.under_way == 0;
            assert!(!is_over, "a channel is over and has its place still");
        }
        let mut owing = self.acks.clone();
        owing.sort_unstable();
        assert!(owing.windows(2).all(|pair| pair[0] != pair[1]), "one debt is one: {owing:?}");
        for (at, inbound) in self.inbound.iter().enumerate() {
            let Some(inbound) = inbound else { continue };
            assert_eq!(inbound.ack_due, owing.contains(&at), "what channel {at} is owed");
        }
    }
}
