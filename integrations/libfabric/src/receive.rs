//! Arriving messages, and receives without a tag.

use crate::abi::buffer::Buffer;
use crate::address::Source;
use crate::endpoint::{Ep, RECEIVES, add, id, one};
use crate::flow::{LONG_COST, PLAIN, cost};
use crate::ops::{End, Kind, Op, Work};
use crate::queue::Entry;
use crate::status::Failed;
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use tieline::{Message, Outcome, PostError, Rendezvous, Status};
use tieline_libfabric_abi::*;
use tieline_tag::Arrival;

/// The alignment of messages in a buffer for several messages.
const ALIGN: usize = 8;

/// The properties of a message besides its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) source: Source,
    /// The flags of the message's entry: `FI_TAGGED` or `FI_MSG`, and `FI_REMOTE_CQ_DATA`.
    pub(crate) flags: u64,
    /// The tag; 0 without one.
    pub(crate) tag: u64,
    /// The data for the completion queue; 0 without any.
    pub(crate) data: u64,
    pub(crate) len: usize,
}

/// The flags of a message with data for the completion queue.
const TAGGED_DATA: u64 = FI_TAGGED | FI_REMOTE_CQ_DATA;
const PLAIN_DATA: u64 = FI_MSG | FI_REMOTE_CQ_DATA;
/// The length up to which a message that waits takes no memory of its own.
const SHORT: usize = 32;

/// The bytes of a message.
pub(crate) enum Body<'a> {
    Bytes(&'a [u8]),
    Long(Rendezvous),
}

/// The bytes of a message that waits for its receive.
pub(crate) enum Stored {
    Short(u8, [u8; SHORT]),
    Bytes(Box<[u8]>),
    Long(Rendezvous),
}

/// A message that waits for its receive.
pub(crate) struct Kept {
    pub(crate) head: Head,
    pub(crate) stored: Stored,
}

impl Kept {
    fn new(head: Head, body: Body<'_>) -> Kept {
        let stored = match body {
            Body::Bytes(bytes) if bytes.len() <= SHORT => {
                let mut short = [0; SHORT];
                short[..bytes.len()].copy_from_slice(bytes);
                Stored::Short(bytes.len() as u8, short)
            }
            Body::Bytes(bytes) => Stored::Bytes(bytes.into()),
            Body::Long(rendezvous) => Stored::Long(rendezvous),
        };
        Kept { head, stored }
    }
}

/// A posted receive.
#[derive(Clone, Debug)]
pub(crate) struct Receive {
    pub(crate) buf: Buffer,
    pub(crate) context: usize,
    pub(crate) told: bool,
    /// The only sender from which the receive accepts a message.
    pub(crate) source: Option<Source>,
}

/// A buffer for several messages.
#[derive(Debug)]
pub(crate) struct Multi {
    used: Cell<usize>,
    /// The number of messages in the buffer that have not been reported.
    live: Cell<usize>,
    /// No further message goes into the buffer.
    full: Cell<bool>,
}

impl Multi {
    /// Reports one message of the buffer. Returns the flag by which the last one returns the buffer to the application.
    pub(crate) fn released(&self) -> u64 {
        self.live.set(self.live.get() - 1);
        if self.full.get() && self.live.get() == 0 { FI_MULTI_RECV } else { 0 }
    }
}

/// A posted receive without a tag.
struct PlainReceive {
    receive: Receive,
    multi: Option<Rc<Multi>>,
}

/// Receives and messages without a tag, in order.
#[derive(Default)]
pub(crate) struct Plain {
    posted: VecDeque<PlainReceive>,
    kept: VecDeque<Kept>,
}

/// A receive that was found for a message.
struct Found {
    receive: Receive,
    multi: Option<Rc<Multi>>,
}

impl Plain {
    /// Takes the first receive that accepts a message. `passed`: the contexts of the buffers that the message did not fit into. They
    /// return to the application, also if no receive accepts the message.
    fn take(&mut self, head: &Head, least: usize, passed: &mut Vec<usize>) -> Option<Found> {
        let mut at = 0;
        loop {
            let posted = self.posted.get(at)?;
            if posted.receive.source.is_some_and(|source| source != head.source) {
                at += 1;
                continue;
            }
            let Some(multi) = &posted.multi else {
                let found = self.posted.remove(at)?;
                return Some(Found { receive: found.receive, multi: None });
            };
            let (used, room) = (multi.used.get(), posted.receive.buf.len());
            if head.len > room - used && used > 0 {
                // The rest of the buffer is too short, so the buffer has received its last message.
                multi.full.set(true);
                let idle = multi.live.get() == 0;
                let found = self.posted.remove(at)?;
                if idle {
                    passed.push(found.receive.context);
                }
                continue;
            }
            let multi = multi.clone();
            let part = posted.receive.buf.part(used, head.len.min(room - used));
            let receive = Receive { buf: part, ..posted.receive.clone() };
            multi.live.set(multi.live.get() + 1);
            let used = (used + head.len).next_multiple_of(ALIGN).min(room);
            multi.used.set(used);
            if room - used < least.max(1) {
                multi.full.set(true);
                let _ = self.posted.remove(at);
            }
            return Some(Found { receive, multi: Some(multi) });
        }
    }

    /// Checks whether a receive accepts messages of this sender.
    pub(crate) fn accepts(&self, source: Source) -> bool {
        self.posted.iter().any(|posted| posted.receive.source.is_none_or(|it| it == source))
    }

    /// Takes the first message that a receive accepts.
    fn take_kept(&mut self, source: Option<Source>) -> Option<Kept> {
        let accepts = |kept: &Kept| source.is_none_or(|source| source == kept.head.source);
        let at = self.kept.iter().position(accepts)?;
        self.kept.remove(at)
    }
}

impl Ep {
    /// Handles the arrival of a message: gives it to its receive, or keeps it.
    #[inline]
    pub(crate) fn arrived(&self, message: &Message<'_>) {
        let source = self.source_of(message.peer());
        self.revive(source);
        let header = message.header();
        if message.is_rendezvous() {
            return self.arrived_long(message, source);
        }
        let mut payload = message.payload();
        let (flags, tag, data) = match message.id() {
            id::TAGGED => (FI_TAGGED, header, 0),
            id::TAGGED_DATA => {
                let bytes = message.header_bytes();
                let data = if bytes.is_empty() {
                    // A peer that breaks the protocol gets the data 0.
                    let (data, rest) = payload.split_at(payload.len().min(8));
                    payload = rest;
                    data.try_into().map_or(0, u64::from_le_bytes)
                } else {
                    (*bytes).try_into().map_or(0, u64::from_le_bytes)
                };
                (TAGGED_DATA, header, data)
            }
            id::PLAIN_DATA => (PLAIN_DATA, 0, header),
            _ => (FI_MSG, 0, 0),
        };
        let head = Head { source, flags, tag, data, len: payload.len() };
        let is_kept = match flags & FI_TAGGED != 0 {
            true => self.arrived_tagged(head, payload),
            false => self.arrived_plain(head, Body::Bytes(payload)),
        };
        if let Some(cost) = is_kept {
            self.kept(message.peer(), source, cost);
        }
    }

    /// Handles the arrival of a rendezvous message.
    #[inline(never)]
    fn arrived_long(&self, message: &Message<'_>, source: Source) {
        let (header, bytes) = (message.header(), message.header_bytes());
        let (flags, tag, data) = match message.id() {
            id::TAGGED => (FI_TAGGED, header, 0),
            id::TAGGED_DATA => {
                (TAGGED_DATA, header, (*bytes).try_into().map_or(0, u64::from_le_bytes))
            }
            id::PLAIN_DATA => (PLAIN_DATA, 0, header),
            _ => (FI_MSG, 0, 0),
        };
        let head = Head { source, flags, tag, data, len: message.len() };
        let Some(rendezvous) = message.rendezvous() else { return };
        let is_kept = match flags & FI_TAGGED != 0 {
            true => self.arrived_tagged_long(head, rendezvous),
            false => self.arrived_plain(head, Body::Long(rendezvous)),
        };
        if let Some(cost) = is_kept {
            self.kept(message.peer(), source, cost);
        }
    }

    /// Matches a message. If no receive accepts it, the message waits, and the memory that it takes is returned.
    #[inline]
    fn arrived_tagged(&self, head: Head, bytes: &[u8]) -> Option<usize> {
        let source = u64::from(head.source.0);
        let keep = |bytes| Kept::new(head, Body::Bytes(bytes));
        let matched = |receive: &Receive, bytes: &[u8]| {
            if bytes.len() <= receive.buf.len() {
                self.received(receive, &head, bytes);
            } else {
                self.deliver_slow(receive.clone(), None, head, Body::Bytes(bytes));
            }
        };
        let mut tags = self.tags.borrow_mut();
        match tags.arrive_with(source, head.tag, bytes, matched, keep) {
            Some(()) => None,
            None => Some(cost(head.len) as usize),
        }
    }

    /// Matches a rendezvous message.
    fn arrived_tagged_long(&self, head: Head, rendezvous: Rendezvous) -> Option<usize> {
        let source = u64::from(head.source.0);
        let keep = |rendezvous| Kept::new(head, Body::Long(rendezvous));
        let arrival = self.tags.borrow_mut().arrive(source, head.tag, rendezvous, keep);
        let Arrival::Matched(receive, rendezvous) = arrival else { return Some(LONG_COST) };
        self.deliver_slow(receive.word, None, head, Body::Long(rendezvous));
        None
    }

    fn arrived_plain(&self, head: Head, body: Body<'_>) -> Option<usize> {
        // A message that came before it from the same sender is received first.
        let mut passed = Vec::new();
        let found = self.plain.borrow_mut().take(&head, self.least_room.get(), &mut passed);
        self.return_buffers(&passed);
        if let Some(Found { receive, multi }) = found {
            self.deliver(receive, multi, head, body);
            return None;
        }
        let kept = Kept::new(head, body);
        let cost = kept.stored.cost();
        self.plain.borrow_mut().kept.push_back(kept);
        Some(cost)
    }

    /// Returns buffers for several messages to the application, without a message.
    fn return_buffers(&self, contexts: &[usize]) {
        let Some(queue) = self.rx.get() else { return };
        for context in contexts {
            queue.push(Entry::new(*context, FI_MULTI_RECV));
        }
    }

    /// Gives a message to its receive.
    #[inline]
    pub(crate) fn deliver(
        &self,
        receive: Receive,
        multi: Option<Rc<Multi>>,
        head: Head,
        body: Body<'_>,
    ) {
        if let (Body::Bytes(bytes), None) = (&body, &multi) {
            if bytes.len() <= receive.buf.len() {
                return self.received(&receive, &head, bytes);
            }
        }
        self.deliver_slow(receive, multi, head, body);
    }

    /// Gives a message to its receive that is long, too long, or in a buffer for several messages.
    #[inline(never)]
    fn deliver_slow(&self, receive: Receive, multi: Option<Rc<Multi>>, head: Head, body: Body<'_>) {
        let room = receive.buf.len();
        let end = End {
            len: head.len.min(room),
            excess: head.len.saturating_sub(room),
            buf: receive.buf.address(),
            data: head.data,
            tag: head.tag,
            source: self.address_of(head.source),
            multi,
            ..End::new(Kind::Receive, receive.told, receive.context, head.flags)
        };
        match body {
            Body::Bytes(bytes) => {
                receive.buf.write(bytes);
                self.tell(end, None);
            }
            Body::Long(rendezvous) => {
                one(&self.counts.rendezvous);
                let op = Op { buf: receive.buf, ..Op::new(end, Work::Nothing) };
                self.receive_long(op, rendezvous);
            }
        }
    }

    /// Gives a message to its receive, which has room for it.
    #[inline(always)] // the attributes of the message stay in registers
    fn received(&self, receive: &Receive, head: &Head, bytes: &[u8]) {
        receive.buf.write(bytes);
        add(&self.counts.received, bytes.len());
        if let Some(counter) = self.counter(RECEIVES) {
            counter.count(false);
        }
        if let (true, Some(queue)) = (receive.told, self.rx.get()) {
            queue.push(Entry {
                len: bytes.len(),
                buf: receive.buf.address(),
                data: head.data,
                tag: head.tag,
                source: self.address_of(head.source),
                ..Entry::new(receive.context, head.flags | FI_RECV)
            });
        }
    }

    /// Starts the transfer of a rendezvous message.
    pub(crate) fn receive_long(&self, mut op: Op, rendezvous: Rendezvous) {
        let (len, mut rendezvous) = (op.end.len, rendezvous);
        if op.regions.is_empty() {
            match op.buf.receive(rendezvous, len) {
                Ok(()) => return self.tell(op.end, None),
                Err(unchanged) => rendezvous = unchanged,
            }
            match op.buf.lend(&self.domain.context, len) {
                Ok(regions) => op.regions = regions,
                Err(error) => {
                    rendezvous.refuse();
                    return self.tell(op.end, Some(Failed::from(error)));
                }
            }
        }
        let started = op.regions.with_pieces(|pieces| rendezvous.receive_into_pieces(pieces));
        match started {
            Ok(Outcome::Done(_)) => self.close_op(op),
            Ok(outcome) => self.track(&outcome, op),
            Err(not) if matches!(not.error, PostError::Retry(_)) => {
                op.work = Work::Receive(not.announcement);
                self.keep(op);
            }
            Err(not) => {
                op.failed = Some(Failed::from(not.error));
                self.close_op(op);
            }
        }
    }

    /// Gives a kept message to a receive.
    pub(crate) fn deliver_kept(&self, receive: Receive, multi: Option<Rc<Multi>>, kept: Kept) {
        self.unkept(kept.head.source, &kept.stored);
        match kept.stored {
            Stored::Short(len, bytes) => {
                let bytes = &bytes[..usize::from(len)];
                self.deliver(receive, multi, kept.head, Body::Bytes(bytes));
            }
            Stored::Bytes(bytes) => self.deliver(receive, multi, kept.head, Body::Bytes(&bytes)),
            Stored::Long(rendezvous) => {
                self.deliver(receive, multi, kept.head, Body::Long(rendezvous));
            }
        }
    }

    /// Posts a receive without a tag.
    pub(crate) fn receive(&self, receive: Receive) {
        let kept = self.plain.borrow_mut().take_kept(receive.source);
        match kept {
            Some(kept) => self.deliver_kept(receive, None, kept),
            None if self.is_hopeless(&receive) => self.end_receive(&receive, Failed::PEER, FI_MSG),
            None => {
                self.wants(receive.source, PLAIN);
                self.plain.borrow_mut().posted.push_back(PlainReceive { receive, multi: None });
            }
        }
    }

    /// Posts a buffer for several messages.
    pub(crate) fn receive_several(&self, receive: Receive) {
        let multi = Multi { used: Cell::new(0), live: Cell::new(0), full: Cell::new(false) };
        let multi = Some(Rc::new(multi));
        let source = receive.source;
        self.wants(source, PLAIN);
        self.plain.borrow_mut().posted.push_back(PlainReceive { receive, multi });
        loop {
            let mut plain = self.plain.borrow_mut();
            // The messages that are kept have found no receive before, so this buffer takes them.
            let Some(kept) = plain.take_kept(source) else { break };
            let mut passed = Vec::new();
            let found = plain.take(&kept.head, self.least_room.get(), &mut passed);
            match found {
                Some(found) => {
                    drop(plain);
                    self.return_buffers(&passed);
                    self.deliver_kept(found.receive, found.multi, kept);
                }
                None => {
                    plain.kept.push_front(kept);
                    drop(plain);
                    return self.return_buffers(&passed);
                }
            }
        }
        if let Some(ended) = source.filter(|source| self.is_dead(*source)) {
            self.end_receives_from(ended);
        }
    }

    /// Checks whether a receive waits for a peer that has ended.
    pub(crate) fn is_hopeless(&self, receive: &Receive) -> bool {
        receive.source.is_some_and(|source| self.is_dead(source))
    }

    /// Ends a receive that no message has matched.
    pub(crate) fn end_receive(&self, receive: &Receive, failed: Failed, form: u64) {
        let end = End {
            buf: receive.buf.address(),
            ..End::new(Kind::Receive, receive.told, receive.context, form)
        };
        self.tell(end, Some(failed));
    }

    /// Ends the receives that wait for this sender alone.
    pub(crate) fn end_receives_from(&self, source: Source) {
        let mut plain = self.plain.borrow_mut();
        let (ended, left) = std::mem::take(&mut plain.posted)
            .into_iter()
            .partition(|posted| posted.receive.source == Some(source));
        plain.posted = left;
        drop(plain);
        let ended: VecDeque<PlainReceive> = ended;
        for posted in ended {
            self.end_receive(&posted.receive, Failed::PEER, FI_MSG);
        }
        self.end_tagged_from(source);
    }

    /// Cancels a receive without a tag. Returns whether there was one with this context.
    pub(crate) fn cancel_plain(&self, context: usize) -> bool {
        let mut plain = self.plain.borrow_mut();
        let found = plain.posted.iter().position(|posted| posted.receive.context == context);
        let Some(posted) = found.and_then(|at| plain.posted.remove(at)) else { return false };
        drop(plain);
        match &posted.multi {
            Some(multi) if multi.live.get() > 0 => multi.full.set(true),
            _ => self.end_receive(&posted.receive, canceled(), FI_MSG),
        }
        true
    }
}

/// The failure of a receive that was canceled.
pub(crate) fn canceled() -> Failed {
    Failed { error: FI_ECANCELED, status: Status::Canceled as i32 }
}
