//! Polls: the completions of the library, the events for the application, and the work beside them.
//!
//! A poll that finds nothing is short: up to `QUIET` polls only read the library's queue, while there is nothing else to do. The
//! poll after them does the rest, and counts all of them.

use super::buffers::Mishap;
use super::ops::Work;
use super::{Engine, FETCHES, Ready};
use crate::abi::*;
use crate::sys::{BATCH, Looked};
use tieline_plugin_api::abi::Event;
use tieline_plugin_api::{Events, Failure, Status, event};

/// The number of successive polls that may only read the queue.
pub(super) const QUIET: u32 = 15;
/// The number of polls between checks of the processes of peers.
const WATCHING: u32 = 16;
/// The number of polls between checks for events that belong to no operation.
const POLLS: u32 = 64;
/// The number of polls after which senders are notified of all deliveries that were not reported yet. A sender that closes waits
/// for that notification.
const TELLING: u32 = 1024;

impl Engine {
    /// Begins a poll; see [`tieline_plugin_api::Interface::poll_quietly`].
    #[inline]
    pub(crate) fn poll_quietly(&mut self) -> bool {
        if self.quiet == 0 || self.read.is_some() || !self.is_calm() {
            return false;
        }
        self.quiet -= 1;
        let read = self.ep.cq.read(&mut self.room);
        if read.is_empty() {
            return true;
        }
        self.read = Some(read);
        false
    }

    /// Checks whether a poll has nothing to do but to read the queue.
    #[inline]
    fn is_calm(&self) -> bool {
        let silent = self.ready.is_empty() && self.shown.is_empty() && self.texts.is_empty();
        let idle = self.waiting == 0 && self.acks.is_empty() && !self.buffers.is_any_free();
        let works = self.broken.is_none() && !self.starving && self.inbox.is_empty();
        silent && idle && works && !self.watches_closely()
    }

    pub(crate) fn poll(&mut self, events: &mut Events<'_>) {
        let begun = self.read.is_some();
        self.release();
        self.starving = false;
        // The number of reads is bounded, because peers may keep the queue full.
        let mut empty = false;
        for _ in 0..FETCHES {
            self.hand_out(events);
            if events.room() == 0 {
                break;
            }
            let count = self.fetch(events);
            empty = count == 0;
            // Another read would usually find nothing, and would delay the delivery of what has arrived, and the next posts.
            if count < BATCH {
                break;
            }
        }
        self.hand_out(events);
        if !begun || !self.is_calm() {
            self.attend(empty);
        }
    }

    /// Releases the data of the last events, which the application has finished with.
    #[inline]
    pub(super) fn release(&mut self) {
        for buffer in self.shown.drain(..) {
            self.buffers.release(buffer);
        }
        self.texts.clear();
        self.post_buffers();
    }

    #[inline]
    pub(super) fn post_buffers(&mut self) {
        while self.broken.is_none() {
            let Some(at) = self.buffers.next() else { return };
            let (index, context) = self.ops.begin(Work::Receive(at));
            let Err(code) = self.ep.post_buffer(self.buffers.local(at), self.buffers.many, context)
            else {
                continue;
            };
            let _ = self.ops.end(index);
            self.buffers.given_back(at);
            if code != FI_EAGAIN {
                self.break_down(&format!("a receive buffer was refused: error {code}"));
            }
            // Otherwise the next poll retries.
            return;
        }
    }

    /// Reads the queue until it is empty, at most `FETCHES` times; returns whether it is empty.
    pub(super) fn fetch_all(&mut self) -> bool {
        (0..FETCHES).any(|_| self.fetch_later() == 0)
    }

    /// Does the same as `fetch`. All events wait for the next poll.
    pub(super) fn fetch_later(&mut self) -> usize {
        self.fetch(&mut Events::new(&mut []))
    }

    /// Reads completions and received packets; returns their number.
    fn fetch(&mut self, events: &mut Events<'_>) -> usize {
        if self.broken.is_some() {
            return 0;
        }
        let cq = &self.ep.cq;
        let read = self.read.take().unwrap_or_else(|| cq.read(&mut self.room));
        match cq.look(read) {
            Looked::Nothing => 0,
            Looked::Entries(count) => {
                for at in 0..count {
                    let entry = self.room.entry(at);
                    self.came(&entry, events);
                }
                count
            }
            Looked::Failed(entry) => {
                self.went_wrong(&entry);
                1
            }
            Looked::Broken(code) => {
                self.break_down(&format!("the queue of completions failed: error {code}"));
                0
            }
        }
    }

    #[inline]
    fn came(&mut self, entry: &fi_cq_data_entry, events: &mut Events<'_>) {
        // A duplicate completion may carry a context that the next operation uses. A completion of the wrong kind is ignored.
        let is_receive = entry.flags & (FI_RECV | FI_MULTI_RECV) != 0;
        match self.ops.of(entry.op_context) {
            Some((index, &Work::Receive(buffer))) if is_receive => {
                // A completion that only releases a buffer also has a length and a position (fi_cq(3); opx; source:
                // fi_opx_endpoint.h).
                if entry.flags & FI_RECV != 0 && entry.len > 0 {
                    self.arrived(buffer, entry.buf.cast(), entry.len, events);
                }
                if !self.buffers.many || entry.flags & FI_MULTI_RECV != 0 {
                    let _ = self.ops.end(index);
                    self.buffers.given_back(buffer);
                    self.post_buffers();
                }
            }
            Some((index, &Work::Send { peer, slot, message })) if !is_receive => {
                let _ = self.ops.end(index);
                if let Some(peer) = self.peers.get(peer) {
                    peer.formed = true;
                }
                self.sent(peer, slot, message);
            }
            Some((index, Work::Transfer(_))) if !is_receive => {
                if let Work::Transfer(transfer) = self.ops.end(index) {
                    self.transferred(transfer, events);
                }
            }
            _ => {}
        }
    }

    #[cold]
    fn went_wrong(&mut self, entry: &fi_cq_err_entry) {
        let words = self.ep.cq.words(entry);
        let Some((index, work)) = self.ops.of(entry.op_context) else {
            // `ofi_rxm` reports failures of its whole endpoint in this form (source: rxm_cq_write_error_all). Other providers
            // report failures of single operations in this form, such as a message that had no buffer yet (sockets, when its sender
            // is killed, observed).
            if self.address.provider.contains("ofi_rxm") {
                self.break_down(&format!("libfabric has failed: {words}"));
            }
            return;
        };
        if let &Work::Receive(buffer) = work {
            let ended = !self.buffers.many || entry.flags & FI_MULTI_RECV != 0;
            if ended {
                let _ = self.ops.end(index);
            }
            match self.buffers.failed(buffer, ended) {
                Mishap::Nothing => self.post_buffers(),
                Mishap::Broken => self.break_down(&format!("receives fail: {words}")),
            }
            return;
        }
        match self.ops.end(index) {
            Work::Send { peer, slot, message } => {
                self.sent(peer, slot, message);
                let text = format!("a message was not delivered: {words}");
                self.fail_peer(peer, &Failure::new(Status::PeerFailed, text));
            }
            Work::Transfer(transfer) => self.transfer_failed(transfer, entry.err, words),
            Work::Receive(_) | Work::Free => {}
        }
    }

    /// Delivers an event without text: at once if there is room and no other event waits.
    #[inline]
    pub(super) fn tell(&mut self, event: Event, events: &mut Events<'_>) {
        if !self.ready.is_empty() || !events.push(event) {
            self.ready.push_back(Ready::Event(event, None));
        }
    }

    #[inline]
    fn hand_out(&mut self, events: &mut Events<'_>) {
        if !self.ready.is_empty() {
            self.hand_out_ready(events);
        }
    }

    fn hand_out_ready(&mut self, events: &mut Events<'_>) {
        while events.room() > 0 {
            let Some(ready) = self.ready.pop_front() else { return };
            match ready {
                Ready::Event(mut event, text) => {
                    if let Some(text) = text {
                        (event.data, event.len) = (text.as_ptr(), text.len());
                        self.texts.push(text);
                    }
                    let _ = events.push(event);
                }
                Ready::Message { event, buffer, from, bytes } => {
                    let _ = events.push(event);
                    self.shown.push(buffer);
                    self.handed_out(from, bytes);
                }
                Ready::Left { from, status, words } => {
                    let Some(inbound) = self.inbound[from].take() else { continue };
                    self.part(inbound.epoch);
                    let event = Event {
                        kind: event::PEER_LEFT,
                        status,
                        peer: inbound.number,
                        data: words.as_ptr(),
                        len: words.len(),
                        ..Event::empty()
                    };
                    self.texts.push(words);
                    let _ = events.push(event);
                }
            }
        }
    }

    /// Does the work beside messages: waiting packets, acknowledgements, ends of regions and of processes. `empty` states whether
    /// the last read of the library's queue found nothing.
    pub(super) fn attend(&mut self, empty: bool) {
        // This poll, and the polls since the last call that only read the queue.
        let polls = 1 + QUIET - core::mem::replace(&mut self.quiet, QUIET);
        let before = self.polls;
        self.polls = before.wrapping_add(polls);
        let is_due = |every: u32| before / every != self.polls / every;
        let (tells, looks, watches) = (is_due(TELLING), is_due(POLLS), is_due(WATCHING));
        if let Some(sleep) = &self.sleep {
            sleep.polled(polls);
        }
        if tells {
            self.tell_all();
        }
        if looks {
            self.look_for_trouble();
        }
        self.watch_over(empty, watches);
        if self.waiting > 0 {
            self.push_all();
        }
        if !self.acks.is_empty() {
            self.acknowledge();
        }
        for revocation in self.inbox.take() {
            self.pass_on(&revocation);
        }
    }

    /// Ends the interface if the library reports an error that belongs to no operation.
    pub(super) fn look_for_trouble(&mut self) {
        let notices = self.ep.notices.as_ref().filter(|_| self.broken.is_none());
        if let Some(words) = notices.and_then(|notices| notices.trouble()) {
            self.break_down(&format!("libfabric has failed: {words}"));
        }
    }
}
