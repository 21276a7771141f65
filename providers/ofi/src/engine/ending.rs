//! The ends of an endpoint, of a peer and of the interface.

use super::channels::Outbound;
use super::ops::Transfer;
use super::peers::Peer;
use super::{Engine, Ready};
use crate::sys::Ep;
use crate::wire::{Head, Kind, NOBODY};
use std::sync::Arc;
use std::time::Instant;
use tieline_plugin_api::abi::Event;
use tieline_plugin_api::{Failure, Status, event};

impl Engine {
    /// Closes the endpoint of a channel. The call waits up to `TIELINE_CLOSE_TIMEOUT` for operations on the application's memory.
    /// If they have not completed, it closes the library's endpoint, which ends every connection of this interface. libfabric
    /// offers no finer means to reclaim memory.
    pub(crate) fn close(&mut self, at: usize) {
        let Some(channel) = self.outbound.get_mut(at).and_then(Option::as_mut) else { return };
        if !core::mem::take(&mut channel.open) {
            return; // the interface has already left
        }
        // From here on these transfers count against their peer alone, so a stalled peer blocks no other.
        self.transfers -= channel.under_way;
        channel.flushes.clear();
        let until = Instant::now() + self.settings.close_timeout;
        while self.is_transferring(at) {
            let came = self.fetch_later();
            self.attend(came == 0);
            if Instant::now() >= until {
                self.break_down(
                    "an endpoint was closed while its peer kept puts or gets from completing: only closing the endpoint of \
                     libfabric ends them",
                );
                break;
            }
            if came == 0 {
                crate::sys::yield_now();
            }
        }
        let Some(channel) = self.outbound[at].as_mut() else { return };
        match (channel.failed, channel.remote) {
            (Some(_), _) => self.settle(at),
            (None, Some(_)) => {
                channel.owes_bye = true;
                self.settle(at);
            }
            (None, None) => {
                // The peer has not answered. It receives the `Bye` after the `Hello`, if the `Hello` arrives.
                let (peer, token, epoch) = (channel.peer, channel.token, channel.epoch);
                if !self.take_back(peer, token) {
                    let mut head = Head::new(Kind::Bye, NOBODY, epoch);
                    head.id = at as u32;
                    self.say(peer, &head, &token.to_le_bytes());
                }
                self.forget(at);
            }
        }
    }

    /// Checks whether the library uses the application's memory for a channel.
    fn is_transferring(&self, at: usize) -> bool {
        let Some(channel) = self.outbound[at].as_ref() else { return false };
        let direct =
            |transfer: &Transfer| transfer.slot.is_none() && transfer.channel as usize == at;
        channel.under_way > 0 && self.ops.transfers().any(direct)
    }

    /// Announces the end of a channel, after everything that was sent on the channel.
    pub(super) fn say_bye(&mut self, at: usize) {
        let Some(channel) = self.outbound[at].as_ref() else { return };
        if let Some((to, token)) = channel.remote {
            let peer = channel.peer;
            let head = Head { sequence: channel.next, ..Head::new(Kind::Bye, to, token) };
            self.say(peer, &head, &[]);
        }
    }

    /// Ends one sending channel with an error.
    pub(super) fn fail_channel(&mut self, at: usize, why: &Failure) {
        let Some(channel) = self.outbound[at].as_mut().filter(|channel| channel.failed.is_none())
        else {
            return;
        };
        channel.failed = Some(why.status);
        channel.revoking.clear();
        let (open, cookie) = (channel.open, channel.cookie);
        let flushes = core::mem::take(&mut channel.flushes);
        if open {
            for flush in flushes {
                self.completed(flush.cookie, Err((why.status, 0)), &why.text);
            }
            let status = why.status as i32;
            let event = Event { kind: event::ENDPOINT_FAILED, status, cookie, ..Event::empty() };
            self.ready.push_back(Ready::Event(event, Some(why.text.as_bytes().into())));
        }
        self.settle(at);
    }

    /// Handles a lost connection to a peer. All channels in both directions end, because messages of each may be lost.
    pub(super) fn fail_peer(&mut self, index: usize, why: &Failure) {
        self.drop_waiting(index);
        for at in 0..self.outbound.len() {
            let is_there =
                |channel: &&mut Outbound| channel.peer == index && channel.failed.is_none();
            if let Some(channel) = self.outbound[at].as_mut().filter(is_there) {
                channel.owes_bye = channel.remote.is_some();
                self.fail_channel(at, why);
            }
        }
        // The peer may be alive and unaware of the loss. The notification is sent when a connection forms again.
        let closed = Failure::new(Status::PeerFailed, "the connection was lost at the other side");
        for at in 0..self.inbound.len() {
            let is_open = |inbound: &&super::Inbound| inbound.peer == index && !inbound.left;
            if self.inbound[at].as_ref().is_some_and(|inbound| is_open(&inbound)) {
                self.inbound_left(at, Status::PeerFailed as i32, &why.text, self.broken.is_some());
                self.refuse(at, &closed);
            }
        }
    }

    /// Ends a peer's channel without an answer, because the peer cannot be answered; the channel's endpoint fails.
    pub(crate) fn hang_up(&mut self, number: u64) {
        let of = |inbound: &Option<super::Inbound>| {
            inbound.as_ref().is_some_and(|inbound| inbound.number == number && !inbound.left)
        };
        let Some(at) = self.inbound.iter().position(of) else { return };
        let text = "the peer cannot answer, and has disconnected";
        self.refuse(at, &Failure::new(Status::NoMemory, text));
        let buffers = &mut self.buffers;
        self.ready.retain(|ready| match ready {
            Ready::Message { buffer, from, .. } if *from == at => {
                buffers.release(*buffer);
                false
            }
            _ => true,
        });
        let Some(inbound) = self.inbound[at].take() else { return };
        self.haunt(inbound.token, inbound.epoch, inbound.asked);
        self.part(inbound.epoch);
    }

    /// Drops everything that waits for a peer. The next process with this name needs a new connection.
    pub(super) fn drop_waiting(&mut self, index: usize) {
        let Some(peer) = self.peers.get(index) else { return };
        (peer.refused, peer.formed) = (None, false);
        let waiting = core::mem::take(&mut peer.waiting);
        self.waiting -= waiting.len();
        waiting.into_iter().for_each(|(slot, ..)| self.slots.give(slot));
    }

    /// Ends the interface: closes the library's endpoint, which then accesses no memory, unless the library refuses.
    pub(super) fn break_down(&mut self, why: &str) {
        if self.broken.is_some() {
            return;
        }
        self.say_farewell();
        let failure = Failure::new(Status::Io, why);
        self.broken = Some(failure.clone());
        // Closing the connections notifies the peers that watch this interface.
        self.vigil = None;
        self.registry.leave(&self.inbox);
        let ended = self.lender.device().shut();
        let peers: Vec<usize> = self.peers.each().map(|(index, _)| index).collect();
        for index in peers {
            self.fail_peer(index, &failure);
        }
        for transfer in self.ops.take_transfers() {
            if ended {
                self.transfer_failed(transfer, libc::ECANCELED, why.to_owned());
            } else {
                // The transfer may still be carried out, so the memory's owner learns that the outcome is unknown.
                self.outcome_unknown(&transfer, why);
                core::mem::forget(transfer);
            }
        }
    }

    fn outcome_unknown(&mut self, transfer: &Transfer, why: &str) {
        let Some(channel) = self.one_less(transfer) else { return };
        // For a silent transfer, the end of the channel has already reported the failure.
        if channel.open && !transfer.silent {
            self.completed(transfer.cookie, Err((Status::OutcomeUnknown, 0)), why);
        }
        self.settle(transfer.channel as usize);
    }

    /// Notifies all peers that this interface sends nothing more, as far as the library accepts the packets.
    fn say_farewell(&mut self) {
        let closed = Failure::new(Status::Closed, "the peer has closed its interface");
        for at in 0..self.inbound.len() {
            if self.inbound[at].as_ref().is_some_and(|inbound| !inbound.left) {
                self.refuse(at, &closed);
            }
        }
        for at in 0..self.outbound.len() {
            if self.outbound[at].as_ref().is_some_and(|channel| channel.failed.is_none()) {
                self.say_bye(at);
            }
        }
    }

    /// Discards the pending events and returns their buffers to the library.
    fn discard(&mut self) {
        for ready in core::mem::take(&mut self.ready) {
            match ready {
                Ready::Message { buffer, from, bytes, .. } => {
                    self.buffers.release(buffer);
                    self.handed_out(from, bytes);
                }
                Ready::Left { from, .. } => {
                    if let Some(inbound) = self.inbound[from].take() {
                        self.part(inbound.epoch);
                    }
                }
                Ready::Event(..) => {}
            }
        }
        self.release();
    }

    /// Returns the library's endpoint. After this engine is dropped, it still reports whether the library has closed it.
    pub(crate) fn ep(&self) -> Arc<Ep> {
        self.ep.clone()
    }

    /// Makes progress and returns only the completions: cookies and fetched values. All other events are discarded.
    pub(crate) fn drain(&mut self) -> Vec<(u64, Result<u64, Status>)> {
        let empty = self.fetch_all();
        self.attend(empty);
        let ended = self.ready.iter().filter_map(|ready| match ready {
            Ready::Event(event, _) if event.kind == event::COMPLETION => {
                let result = match event.status {
                    0 => Ok(event.header),
                    status => Err(Status::from_code(status)),
                };
                Some((event.cookie, result))
            }
            _ => None,
        });
        let ended = ended.collect();
        self.discard();
        ended
    }

    /// Checks whether a posted message is unacknowledged or a packet has not left. A packet that waits for a connection that does
    /// not form does not count: messages of the application count by their channel.
    fn owes(&self) -> bool {
        let unheard = |channel: &Outbound| {
            channel.failed.is_none()
                && channel.remote.is_some()
                && (channel.acked != channel.next || channel.owes_bye)
        };
        let leaving = |(_, peer): (usize, &Peer)| {
            let stuck = peer.refused.is_some() && peer.is_idle();
            !stuck && (!peer.is_idle() || !peer.waiting.is_empty())
        };
        self.peers.each().any(leaving) || self.outbound.iter().flatten().any(unheard)
    }

    /// Closes the interface. Accepted messages are transmitted as far as `TIELINE_CLOSE_TIMEOUT` allows.
    pub(crate) fn leave(&mut self) {
        if core::mem::replace(&mut self.has_left, true) {
            return;
        }
        (0..self.outbound.len()).for_each(|at| self.close(at));
        let closed = Failure::new(Status::Closed, "the peer has closed its interface");
        for at in 0..self.inbound.len() {
            if self.inbound[at].as_ref().is_some_and(|inbound| !inbound.left) {
                self.refuse(at, &closed);
            }
        }
        let until = Instant::now() + self.settings.close_timeout;
        while self.broken.is_none() && self.owes() && Instant::now() < until {
            let came = self.fetch_later();
            self.discard();
            self.attend(came == 0);
            if came == 0 {
                crate::sys::yield_now();
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.leave();
        self.registry.leave(&self.inbox);
        // From here on no channel leads from or to this interface.
        if !self.lender.device().shut() {
            // The library has kept its endpoint (cxi, sockets: EBUSY), so memory that it may write to is never freed.
            core::mem::forget(core::mem::take(&mut self.ops));
            self.slots.leak();
            self.buffers.leak();
        }
        self.revocations.drain(..).for_each(|revocation| revocation.answered());
    }
}
