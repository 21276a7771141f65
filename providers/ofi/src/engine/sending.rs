//! Outgoing packets: messages of the application and packets of this provider, and the failures that they detect.

use super::channels::{Flush, Lost, Outbound};
use super::limits::Limits;
use super::ops::Work;
use super::sys::Room;
use super::{Engine, Ready};
use crate::abi::FI_EAGAIN;
use crate::sys::Local;
use crate::wire::{HEAD, Head, Kind};
use core::ffi::c_int;
use std::time::{Duration, Instant};
use tieline_plugin_api::abi::Event;
use tieline_plugin_api::{Failure, Posted, Posting, Status, event};

/// A message that the application is packing.
pub(crate) struct Packing {
    at: usize,
    token: u64,
    slot: u32,
    room: usize,
}

impl Packing {
    /// Returns the memory into which the message is packed. The slot is taken until the message is finished or abandoned.
    pub(crate) fn room(&self, engine: &mut Engine) -> Room {
        Room::of(&mut engine.slots, self.slot, HEAD, self.room)
    }
}

impl Engine {
    /// Checks whether a data call of `bytes` bytes may proceed on the channel.
    #[inline]
    fn sendable(&mut self, at: usize, bytes: usize) -> Result<(), Status> {
        let window = self.settings.window as u64;
        let Some(channel) = self.outbound.get(at).and_then(Option::as_ref) else {
            return Err(Status::Closed);
        };
        if let Some(status) = channel.failed {
            return Err(status);
        }
        if bytes > self.settings.eager {
            return Err(Status::TooLarge);
        }
        let under_way = channel.sent - channel.taken + (HEAD + bytes) as u64;
        if channel.remote.is_none() || under_way > window {
            return Err(Status::Again);
        }
        let peer = channel.peer;
        if self.waiting > 0 && !self.push(peer) {
            self.starving = true;
            return Err(Status::Again);
        }
        let Limits { operations, of_peer, .. } = self.limits;
        let full = self.peers.get(peer).is_some_and(|peer| peer.messages >= of_peer);
        if self.sends >= operations || full { Err(Status::Again) } else { Ok(()) }
    }

    pub(crate) fn send(&mut self, at: usize, id: u32, header: u64, payload: &[u8]) -> Posted {
        self.sendable(at, payload.len())?;
        let slot = self.slots.take()?;
        self.slots.bytes_mut(slot, HEAD + payload.len())[HEAD..].copy_from_slice(payload);
        match self.post_message(at, slot, id, header, payload.len()) {
            Ok(()) => Ok(Posting::Done),
            Err(status) => {
                self.slots.give(slot);
                Err(status)
            }
        }
    }

    /// Takes a slot for a message that the application packs.
    pub(crate) fn begin(&mut self, at: usize, most: usize) -> Result<Packing, Status> {
        let room = most.min(self.settings.eager);
        self.sendable(at, room)?;
        let slot = self.slots.take()?;
        let token = self.outbound[at].as_ref().map_or(0, |channel| channel.token);
        Ok(Packing { at, token, slot, room })
    }

    /// Abandons a message that was not packed.
    pub(crate) fn give_up(&mut self, packing: Packing) {
        self.slots.give(packing.slot);
    }

    /// Posts a packed message, or queues it after packets that wait for the library.
    pub(crate) fn finish(
        &mut self,
        packing: Packing,
        id: u32,
        header: u64,
        len: usize,
    ) -> Result<usize, Status> {
        let Packing { at, token, slot, .. } = packing;
        let channel = self.outbound.get(at).and_then(Option::as_ref);
        let state = match channel {
            Some(channel) if channel.token == token => channel.failed.map_or(Ok(channel.peer), Err),
            _ => Err(Status::Closed),
        };
        let posted = state.and_then(|peer| {
            let idle = self.peers.get(peer).is_some_and(|peer| peer.waiting.is_empty());
            match if idle {
                self.post_message(at, slot, id, header, len)
            } else {
                Err(Status::Again)
            } {
                Err(Status::Again) => {
                    let _ = self.stamp(at, slot, id, header, len);
                    self.count(at, len);
                    self.wait(peer, slot, HEAD + len, None);
                    Ok(())
                }
                other => other,
            }
        });
        if let Err(status) = posted {
            self.slots.give(slot);
            return Err(status);
        }
        Ok(len)
    }

    /// Writes a message's head; returns the peer, and the packet for the library.
    #[inline]
    fn stamp(
        &mut self,
        at: usize,
        slot: u32,
        id: u32,
        header: u64,
        len: usize,
    ) -> Option<(usize, Local)> {
        let channel = self.outbound[at].as_ref()?;
        let (to, token) = channel.remote.unwrap_or_default();
        let head = Head { kind: Kind::Message, to, token, sequence: channel.next, id, header };
        let (bytes, packet) = self.slots.room(slot, HEAD + len);
        bytes[..HEAD].copy_from_slice(&head.pack());
        Some((channel.peer, packet))
    }

    /// Counts an accepted message.
    #[inline]
    fn count(&mut self, at: usize, len: usize) {
        if let Some(channel) = self.outbound[at].as_mut() {
            channel.next = channel.next.wrapping_add(1);
            channel.sent += (HEAD + len) as u64;
        }
    }

    #[inline]
    fn post_message(
        &mut self,
        at: usize,
        slot: u32,
        id: u32,
        header: u64,
        len: usize,
    ) -> Result<(), Status> {
        let Some((peer, packet)) = self.stamp(at, slot, id, header, len) else {
            return Err(Status::Closed);
        };
        match self.post(peer, slot, packet, true) {
            Ok(()) => {
                self.count(at, len);
                Ok(())
            }
            Err(FI_EAGAIN) => {
                self.starving = true;
                Err(self.outbound[at]
                    .as_ref()
                    .and_then(|channel| channel.failed)
                    .unwrap_or(Status::Again))
            }
            Err(code) => {
                self.fail_peer(peer, &not_posted(code));
                Err(Status::PeerFailed)
            }
        }
    }

    /// Posts a packet to the library.
    #[inline(always)]
    fn post(&mut self, peer: usize, slot: u32, packet: Local, message: bool) -> Result<(), c_int> {
        let Some(to) = self.peers.get(peer) else { return Err(libc::ENOENT) };
        let (index, context) = self.ops.begin(Work::Send { peer, slot, message });
        match self.ep.send(to.number, packet, context) {
            Ok(()) => {
                self.sends += 1;
                to.sends += 1;
                to.messages += usize::from(message);
                to.refused = None;
                Ok(())
            }
            Err(code) => {
                let _ = self.ops.end(index);
                if code == FI_EAGAIN {
                    self.refused(peer);
                }
                Err(code)
            }
        }
    }

    /// Handles a refusal by the library. If the library also holds nothing for this peer, no queue is full: a connection does not
    /// form, and the peer times out.
    pub(super) fn refused(&mut self, index: usize) {
        let patience = self.settings.connect_timeout;
        let watched = self.vigil.is_some();
        let Some(peer) = self.peers.get(index) else { return };
        // If a connection exists, its receiver has no free buffer (verbs;ofi_rxm, observed). The watch detects whether the receiver
        // is alive.
        if !peer.is_idle() || peer.formed && watched {
            peer.refused = None;
            return;
        }
        let (refused, too_long) = refusals(peer.refused, Instant::now(), patience);
        peer.refused = Some(refused);
        if too_long {
            let text = format!(
                "libfabric has formed no connection within {patience:?} (TIELINE_CONNECT_TIMEOUT)"
            );
            self.fail_peer(index, &Failure::new(Status::TimedOut, text));
        }
    }

    /// Records that a packet has left its slot.
    pub(super) fn sent(&mut self, peer: usize, slot: u32, message: bool) {
        self.sends -= 1;
        self.slots.give(slot);
        if let Some(peer) = self.peers.get(peer) {
            peer.sends -= 1;
            peer.messages -= usize::from(message);
        }
    }

    /// Sends a packet of this provider, after the packets that wait. The packet waits if the library is full: the queue has no
    /// limit for such packets.
    pub(super) fn say(&mut self, peer: usize, head: &Head, rest: &[u8]) {
        let Ok(slot) = self.slots.take() else {
            return self.break_down("there is no memory for packets");
        };
        let room = self.slots.bytes_mut(slot, HEAD + rest.len());
        let len = room.len();
        room[..HEAD].copy_from_slice(&head.pack());
        room[HEAD..].copy_from_slice(&rest[..len - HEAD]);
        let hello = match (head.kind, rest.split_first_chunk::<8>()) {
            (Kind::Hello, Some((token, _))) => Some(u64::from_le_bytes(*token)),
            _ => None,
        };
        self.wait(peer, slot, len, hello);
        let _ = self.push(peer);
    }

    /// Queues a packet until the library accepts it.
    fn wait(&mut self, peer: usize, slot: u32, len: usize, hello: Option<u64>) {
        match self.peers.get(peer) {
            Some(peer) if self.broken.is_none() => {
                peer.waiting.push_back((slot, len, hello));
                self.waiting += 1;
            }
            _ => self.slots.give(slot),
        }
    }

    /// Posts the packets that wait for a peer; returns `false` if some still wait.
    fn push(&mut self, index: usize) -> bool {
        loop {
            let Some(&(slot, len, _)) = self.peers.get(index).and_then(|peer| peer.waiting.front())
            else {
                return true;
            };
            let Limits { operations, of_peer, .. } = self.limits;
            let full = self.peers.get(index).is_some_and(|peer| peer.sends >= 2 * of_peer);
            if full || self.sends >= 3 * operations {
                return false;
            }
            match self.post(index, slot, self.slots.local(slot, len), false) {
                Ok(()) => {
                    self.waiting -= 1;
                    let _ = self.peers.get(index).and_then(|peer| peer.waiting.pop_front());
                }
                Err(FI_EAGAIN) => return false,
                Err(code) => {
                    self.fail_peer(index, &not_posted(code));
                    return true;
                }
            }
        }
    }

    pub(super) fn push_all(&mut self) {
        let waiting = |(index, peer): (usize, &super::peers::Peer)| {
            (!peer.waiting.is_empty()).then_some(index)
        };
        let indices: Vec<usize> = self.peers.each().filter_map(waiting).collect();
        for index in indices {
            let _ = self.push(index);
        }
    }

    /// Removes a hello that the library has not accepted; returns whether it was found.
    pub(super) fn take_back(&mut self, index: usize, token: u64) -> bool {
        let Some(peer) = self.peers.get(index) else { return false };
        let at = peer.waiting.iter().position(|packet| packet.2 == Some(token));
        let Some((slot, ..)) = at.and_then(|at| peer.waiting.remove(at)) else { return false };
        self.waiting -= 1;
        self.slots.give(slot);
        true
    }

    /// Handles the end of a part of a channel: completes flushes, and removes the channel if all of it has ended.
    pub(super) fn settle(&mut self, at: usize) {
        while let Some(channel) = self.outbound[at].as_mut() {
            let Some(flush) = channel.flushed() else { break };
            self.flushed(flush.cookie, flush.lost);
        }
        let Some(channel) = self.outbound[at].as_mut().filter(|channel| channel.under_way == 0)
        else {
            return;
        };
        // The `Bye` follows the puts: from here on none of them lands.
        if core::mem::take(&mut channel.owes_bye) {
            self.say_bye(at);
        }
        let is_over = |channel: &Outbound| {
            !channel.open
                && (channel.failed.is_some() || channel.remote.is_some() && channel.is_quiet())
        };
        if self.outbound[at].as_ref().is_some_and(is_over) {
            self.forget(at);
        }
    }

    /// Frees the place of a channel.
    pub(super) fn forget(&mut self, at: usize) {
        if let Some(channel) = self.outbound[at].take() {
            self.part(channel.epoch);
        }
    }

    /// Reports the completion of an operation, with the value that an atomic has fetched.
    pub(super) fn completed(
        &mut self,
        cookie: u64,
        result: Result<u64, (Status, i32)>,
        words: &str,
    ) {
        let text = (!words.is_empty()).then(|| words.as_bytes().into());
        self.ready.push_back(Ready::Event(completion(cookie, result), text));
    }

    /// Completes a flush, and reports a failure of an earlier operation.
    fn flushed(&mut self, cookie: u64, lost: Option<Lost>) {
        match lost {
            None => self.completed(cookie, Ok(0), ""),
            Some(Lost { status, errno, words, .. }) => {
                self.completed(cookie, Err((status, errno)), &words);
            }
        }
    }

    pub(crate) fn flush(&mut self, at: usize, cookie: u64) -> Posted {
        let Some(channel) = self.outbound.get_mut(at).and_then(Option::as_mut) else {
            return Err(Status::Closed);
        };
        if let Some(status) = channel.failed {
            return Err(status);
        }
        let (next, number, left) = (channel.next, channel.posted, channel.under_way);
        let lost = channel.lost.take();
        if channel.is_quiet() {
            return Ok(match lost {
                None => Posting::Done,
                lost => {
                    self.flushed(cookie, lost);
                    Posting::Pending
                }
            });
        }
        channel.flushes.push(Flush { cookie, next, number, left, lost });
        let (peer, asks) = (channel.peer, channel.acked != next && channel.synced != next);
        if let (true, Some((to, token))) = (asks, channel.remote) {
            channel.synced = next;
            let head = Head { sequence: next, ..Head::new(Kind::Sync, to, token) };
            self.say(peer, &head, &[]);
        }
        Ok(Posting::Pending)
    }
}

/// Updates the times of the first and of the last refusal. Returns whether the refusals have lasted too long. After a gap in the
/// attempts the period begins anew.
fn refusals(
    before: Option<(Instant, Instant)>,
    now: Instant,
    patience: Duration,
) -> ((Instant, Instant), bool) {
    match before {
        Some((since, last)) if now - last <= Duration::from_secs(1) => {
            ((since, now), now - since > patience)
        }
        _ => ((now, now), false),
    }
}

/// Returns the event for the completion of an operation.
#[inline]
pub(super) fn completion(cookie: u64, result: Result<u64, (Status, i32)>) -> Event {
    let (status, header) = match result {
        Ok(value) => (0, value),
        Err((status, number)) => (status as i32, number as u64),
    };
    Event { kind: event::COMPLETION, status, header, cookie, ..Event::empty() }
}

/// Returns the failure for a packet that the library refuses permanently.
fn not_posted(code: c_int) -> Failure {
    let error = std::io::Error::from_raw_os_error(code);
    Failure::new(Status::PeerFailed, format!("libfabric cannot send to this peer: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unformed_connection_times_out_only_if_tried_continuously() {
        const PATIENCE: Duration = Duration::from_secs(5);
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        assert_eq!(refusals(None, begun, PATIENCE), ((begun, begun), false));
        for (last, now, since, too_long) in [
            (500, 900, 0, false),
            (4500, 5000, 0, false),
            (4500, 5001, 0, true),
            (4001, 5001, 0, true),
            (4000, 5001, 5001, false),
            (0, 9000, 9000, false),
        ] {
            let found = refusals(Some((begun, at(last))), at(now), PATIENCE);
            assert_eq!(found, ((at(since), at(now)), too_long), "{last} {now}");
        }
    }

    #[test]
    fn permanent_send_refusal_reports_the_system_error_text() {
        let words = "libfabric cannot send to this peer: No such file or directory (os error 2)";
        assert_eq!(not_posted(libc::ENOENT), Failure::new(Status::PeerFailed, words));
    }
}
