//! The handling of incoming packets by their kind.

use super::channels::{Ghost, Inbound, Outbound};
use super::{Engine, MAX_IDENTITY, Ready, token};
use crate::memory::Revocation;
use crate::wire::{Greeting, HEAD, Head, Kind, NOBODY, greeted};
use std::sync::Arc;
use std::time::Instant;
use tieline_plugin_api::abi::Event;
use tieline_plugin_api::{Events, Failure, Status, event};

/// Stores `new` in the first free place.
pub(super) fn place<T>(all: &mut Vec<Option<T>>, new: T) -> usize {
    let at = all.iter().position(Option::is_none).unwrap_or(all.len());
    match all.get_mut(at) {
        Some(free) => *free = Some(new),
        None => all.push(Some(new)),
    }
    at
}

/// The limits on unknown peers: the number of remembered names, and the number of waiting packets up to which an unknown peer is
/// still answered.
const STRANGERS: usize = 1024;
const WAITING: usize = 64;
/// The number of delivered bytes that need not be reported to the sender. It is below the smallest window minus one packet.
const UNTOLD: u64 = 4096;
const _: () = assert!(UNTOLD as usize + super::LONGEST_PACKET < crate::config::LEAST_WINDOW);
/// The maximum number of bytes of a failure text in a packet.
const MOST_WORDS: usize = 300;

impl Engine {
    /// Handles a packet that has arrived in a buffer.
    #[inline]
    pub(super) fn arrived(
        &mut self,
        buffer: usize,
        at: *const u8,
        len: usize,
        events: &mut Events<'_>,
    ) {
        let Some((head, rest)) = self.buffers.packet(buffer, at, len).and_then(Head::unpack) else {
            return;
        };
        let to = head.to as usize;
        match head.kind {
            Kind::Message => {
                let (data, len) = (rest.as_ptr(), rest.len());
                self.message(&head, buffer, data, len, events);
            }
            Kind::Hello => {
                // The code uses a copy, because the library may reuse the buffer before the hello is handled.
                let rest = rest.to_vec();
                if let Some(greeting) = greeted(&rest) {
                    self.hello(&head, &greeting);
                }
            }
            Kind::Welcome => {
                let Some((token, _)) = rest.split_first_chunk::<8>() else { return };
                let token = u64::from_le_bytes(*token);
                self.welcome(&head, token);
            }
            Kind::Refuse => {
                let words = String::from_utf8_lossy(&rest[..rest.len().min(MOST_WORDS)]);
                let words = words.chars().filter(|c| !c.is_control()).collect::<String>();
                if let Some(channel) = self.outbound_of(&head) {
                    // The peer remembers the channel until the `Bye`, because puts of this side may still land there.
                    channel.owes_bye = channel.remote.is_some();
                    // Any other status of the peer counts as its failure.
                    let status = match Status::from_code(head.id as i32) {
                        status @ (Status::Closed | Status::NoMemory | Status::TimedOut) => status,
                        _ => Status::PeerFailed,
                    };
                    self.fail_channel(to, &Failure::new(status, words));
                }
            }
            Kind::Ack => {
                if let Some(channel) = self.outbound_of(&head) {
                    channel.acknowledged(head.sequence, head.header);
                    self.settle(to);
                }
            }
            Kind::Sync => {
                if self.is_whole(&head) {
                    self.owe(to);
                }
            }
            Kind::Bye if head.to == NOBODY => {
                let Some((token, _)) = rest.split_first_chunk::<8>() else { return };
                let remote = (head.id, u64::from_le_bytes(*token));
                let opened = |inbound: &Option<Inbound>| {
                    inbound.as_ref().is_some_and(|inbound| inbound.remote == remote)
                };
                if let Some(at) = self.inbound.iter().position(opened) {
                    self.inbound_left(at, 0, "", true);
                }
            }
            Kind::Bye => {
                self.lay(|ghost| ghost.token == head.token);
                if self.is_whole(&head) {
                    // All messages have arrived, so the sender may forget them.
                    self.acknowledge_one(to);
                    self.inbound_left(to, 0, "", true);
                }
            }
            Kind::Revoke => {
                let generation = head.header;
                if let Some(channel) = self.outbound_of(&head) {
                    channel.revoke(generation);
                    channel.owe_answer(generation);
                    self.answer_revokes(to);
                }
            }
            Kind::Revoked => {
                let Some(inbound) = self.inbound_of(&head) else { return };
                let at = inbound.asked.iter().position(|asked| asked.generation == head.header);
                if let Some(revocation) = at.map(|at| inbound.asked.swap_remove(at)) {
                    self.answer(&revocation);
                }
            }
        }
    }

    /// Returns the sending channel to which a packet belongs.
    fn outbound_of(&mut self, head: &Head) -> Option<&mut Outbound> {
        let channel = self.outbound.get_mut(head.to as usize)?.as_mut()?;
        (channel.token == head.token && channel.failed.is_none()).then_some(channel)
    }

    /// Returns the receiving channel to which a packet belongs.
    #[inline]
    fn inbound_of(&mut self, head: &Head) -> Option<&mut Inbound> {
        let inbound = self.inbound.get_mut(head.to as usize)?.as_mut()?;
        (inbound.token == head.token && !inbound.left).then_some(inbound)
    }

    #[inline]
    fn message(
        &mut self,
        head: &Head,
        buffer: usize,
        data: *const u8,
        len: usize,
        events: &mut Events<'_>,
    ) {
        let Some(inbound) = self.inbound_of(head) else { return };
        if head.sequence != inbound.next {
            return self.gap(head);
        }
        inbound.next = inbound.next.wrapping_add(1);
        let epoch = inbound.epoch;
        let event = Event {
            kind: event::MESSAGE,
            id: head.id,
            peer: inbound.number,
            header: head.header,
            data,
            len,
            ..Event::empty()
        };
        let (from, bytes) = (head.to as usize, (HEAD + len) as u64);
        self.buffers.hold(buffer);
        self.heard(epoch);
        if self.ready.is_empty() && events.push(event) {
            self.shown.push(buffer);
            self.handed_out(from, bytes);
        } else {
            self.ready.push_back(Ready::Message { event, buffer, from, bytes });
        }
    }

    /// Checks whether all messages sent before this packet on its channel have arrived. If not, the channel ends.
    fn is_whole(&mut self, head: &Head) -> bool {
        match self.inbound_of(head) {
            Some(inbound) if inbound.next == head.sequence => true,
            Some(_) => {
                self.gap(head);
                false
            }
            None => false,
        }
    }

    /// Handles a missing message. For example, the library has replaced a connection without notice and lost the packets on the old
    /// connection.
    #[cold]
    fn gap(&mut self, head: &Head) {
        let Some(due) = self.inbound_of(head).map(|inbound| inbound.next) else { return };
        let text = format!("message {due} was lost: number {} came", head.sequence);
        let at = head.to as usize;
        self.refuse(at, &Failure::new(Status::PeerFailed, text.clone()));
        self.inbound_left(at, Status::PeerFailed as i32, &text, false);
    }

    /// Counts delivered bytes of a channel. The sender is notified before its window fills; a packet for each message would double
    /// the cost of a ping-pong. A sender can ask earlier (`Kind::Sync`). A receiver that goes to sleep, or has polled `TELLING`
    /// times, reports all of its deliveries.
    #[inline]
    pub(super) fn handed_out(&mut self, from: usize, bytes: u64) {
        let Some(inbound) = self.inbound[from].as_mut() else { return };
        inbound.taken += bytes;
        if inbound.taken - inbound.told >= UNTOLD {
            self.owe(from);
        }
    }

    #[inline]
    fn owe(&mut self, at: usize) {
        let Some(inbound) = self.inbound[at].as_mut() else { return };
        if !core::mem::replace(&mut inbound.ack_due, true) {
            self.acks.push(at);
        }
    }

    /// Schedules reports of all deliveries that were not reported yet, on channels that have not ended.
    pub(super) fn tell_all(&mut self) {
        for at in 0..self.inbound.len() {
            let untold = |inbound: &Inbound| !inbound.left && inbound.told != inbound.taken;
            if self.inbound[at].as_ref().is_some_and(untold) {
                self.owe(at);
            }
        }
    }

    /// Sends the acknowledgements that are due.
    pub(super) fn acknowledge(&mut self) {
        for at in core::mem::take(&mut self.acks) {
            let Some(inbound) = self.inbound[at].as_mut() else { continue };
            if inbound.left {
                inbound.ack_due = false;
                continue;
            }
            // Only one acknowledgement waits for a peer that does not receive, regardless of the number of its requests.
            if self.peers.get(inbound.peer).is_some_and(|peer| !peer.waiting.is_empty()) {
                self.acks.push(at);
                continue;
            }
            inbound.ack_due = false;
            self.acknowledge_one(at);
        }
    }

    fn acknowledge_one(&mut self, at: usize) {
        let Some(inbound) = self.inbound[at].as_mut() else { return };
        let (next, taken) = (inbound.next, inbound.taken);
        inbound.told = taken;
        self.say_back(at, Kind::Ack, |head| (head.sequence, head.header) = (next, taken));
    }

    /// Handles the hello of a peer that connects.
    fn hello(&mut self, head: &Head, greeting: &Greeting<'_>) {
        // The library reads a name in its own format and length, whatever the peer sends. A name of another format would be
        // misread.
        let (name, own) = (greeting.name, &self.address.name);
        let is_ours = name.len() == own.len() && self.address.has_family_of(name);
        if !is_ours || greeting.identity.len() > MAX_IDENTITY {
            return;
        }
        let remote = (head.id, greeting.token);
        if head.token != self.address.epoch {
            return self.turn_away(name, remote);
        }
        let same = |inbound: &Option<Inbound>| {
            let epoch = greeting.epoch;
            inbound
                .as_ref()
                .is_some_and(|inbound| (inbound.remote, inbound.epoch) == (remote, epoch))
        };
        if let Some(at) = self.inbound.iter().position(same) {
            return self.welcome_again(at);
        }
        let Ok(token) = token() else { return };
        let Ok(peer) = self.peers.join(&self.ep.av, name) else { return };
        let number = self.next_peer;
        let inbound = Inbound {
            token,
            peer,
            number,
            epoch: greeting.epoch,
            remote,
            next: 0,
            taken: 0,
            told: 0,
            ack_due: false,
            left: false,
            asked: Vec::new(),
        };
        let at = place(&mut self.inbound, inbound);
        self.next_peer += 1;
        let event = Event { kind: event::PEER_ARRIVED, peer: number, ..Event::empty() };
        self.ready.push_back(Ready::Event(event, Some(greeting.identity.into())));
        self.meet(greeting.epoch, None);
        self.say_welcome(at);
        // The peer may have received keys by other routes.
        for revocation in self.revocations.clone() {
            self.ask(at, &revocation);
        }
    }

    fn say_welcome(&mut self, at: usize) {
        let Some(inbound) = self.inbound[at].as_ref() else { return };
        let (peer, remote, token) = (inbound.peer, inbound.remote, inbound.token);
        let mut welcome = Head::new(Kind::Welcome, remote.0, remote.1);
        welcome.id = at as u32;
        self.say(peer, &welcome, &token.to_le_bytes());
    }

    /// Answers a repeated hello, whose earlier answer was lost or is under way. Only one answer waits for a peer that does not
    /// receive.
    fn welcome_again(&mut self, at: usize) {
        let Some(inbound) = self.inbound[at].as_ref().filter(|inbound| !inbound.left) else {
            return;
        };
        if self.peers.get(inbound.peer).is_some_and(|peer| peer.waiting.is_empty()) {
            self.say_welcome(at);
        }
    }

    /// Notifies a peer that addressed an earlier interface at this address. Unknown peers are answered only while an answer is
    /// cheap, because an answer has to wait for a connection to the claimed name.
    fn turn_away(&mut self, name: &[u8], remote: (u32, u64)) {
        let known = self.peers.knows(name);
        if !known && self.peers.len() >= STRANGERS || self.waiting >= WAITING {
            return;
        }
        let Ok(peer) = self.peers.join(&self.ep.av, name) else { return };
        let text = "another process has this address now";
        self.refuse_to(peer, remote, &Failure::new(Status::PeerFailed, text));
    }

    /// Handles the welcome: the peer has opened its end of the channel.
    fn welcome(&mut self, head: &Head, token: u64) {
        let Some(channel) = self.outbound_of(head) else { return };
        if channel.remote.is_none() {
            channel.remote = Some((head.id, token));
        }
    }

    /// Sends a packet to the sender of a receiving channel.
    pub(super) fn say_back(&mut self, at: usize, kind: Kind, fill: impl FnOnce(&mut Head)) {
        let Some(inbound) = self.inbound[at].as_ref() else { return };
        let mut head = Head::new(kind, inbound.remote.0, inbound.remote.1);
        fill(&mut head);
        let peer = inbound.peer;
        self.say(peer, &head, &[]);
    }

    /// Notifies the sender of a channel that the channel has ended.
    pub(super) fn refuse(&mut self, at: usize, why: &Failure) {
        let Some(inbound) = self.inbound[at].as_ref() else { return };
        let (peer, remote) = (inbound.peer, inbound.remote);
        self.refuse_to(peer, remote, why);
    }

    pub(super) fn refuse_to(&mut self, peer: usize, remote: (u32, u64), why: &Failure) {
        let mut head = Head::new(Kind::Refuse, remote.0, remote.1);
        head.id = why.status as i32 as u32;
        let words = why.text.as_bytes();
        self.say(peer, &head, &words[..words.len().min(MOST_WORDS)]);
    }

    /// Ends a receiving channel. The application is notified after all messages that arrived. `through` states that no operation
    /// posted on the channel can land any more.
    pub(super) fn inbound_left(&mut self, from: usize, status: i32, words: &str, through: bool) {
        let Some(inbound) = self.inbound[from].as_mut().filter(|inbound| !inbound.left) else {
            return;
        };
        inbound.left = true;
        let asked: Vec<Arc<Revocation>> = core::mem::take(&mut inbound.asked);
        let (token, epoch) = (inbound.token, inbound.epoch);
        self.ready.push_back(Ready::Left { from, status, words: words.as_bytes().into() });
        if !through {
            return self.haunt(token, epoch, asked);
        }
        asked.iter().for_each(|revocation| self.answer(revocation));
    }

    /// Records a receiving channel that has ended without a `Bye` from its sender.
    pub(super) fn haunt(&mut self, token: u64, epoch: u64, asked: Vec<Arc<Revocation>>) {
        self.meet(epoch, None);
        self.ghosts.push(Ghost { token, epoch, asked, since: Instant::now() });
    }

    /// Removes the ghosts for which `through` states that no operation of their senders can land any more.
    pub(super) fn lay(&mut self, through: impl Fn(&Ghost) -> bool) {
        while let Some(at) = self.ghosts.iter().position(&through) {
            let ghost = self.ghosts.swap_remove(at);
            self.part(ghost.epoch);
            ghost.asked.iter().for_each(|revocation| self.answer(revocation));
        }
    }

    /// Confirms the revocations to whose regions no transfer is under way any more.
    pub(super) fn answer_revokes(&mut self, at: usize) {
        let Some(channel) = self.outbound[at].as_mut() else { return };
        let (peer, Some((to, their))) = (channel.peer, channel.remote) else { return };
        let revoking = core::mem::take(&mut channel.revoking);
        let (busy, quiet): (Vec<u64>, Vec<u64>) = revoking.into_iter().partition(|generation| {
            let is_on = |transfer: &super::ops::Transfer| {
                (transfer.channel as usize, transfer.generation) == (at, *generation)
            };
            self.ops.transfers().any(is_on)
        });
        if let Some(channel) = self.outbound[at].as_mut() {
            channel.revoking = busy;
        }
        for generation in quiet {
            let mut head = Head::new(Kind::Revoked, to, their);
            head.header = generation;
            self.say(peer, &head, &[]);
        }
    }
}
