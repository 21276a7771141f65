//! Sends.
//!
//! A message without a tag has the data for the completion queue in its 8-byte header, and a tagged message has its tag there. The
//! data of a tagged message comes before the payload, so that the message takes the shortest way. A message that is longer than its
//! lane carries, or that is acknowledged, has the data in its header bytes.

use crate::abi::buffer::Buffer;
use crate::endpoint::{Ep, SENDS, add, id};
use crate::flow::{PLAIN, TAGGED, cost};
use crate::ops::{End, Kind, Op, Work};
use crate::peers::Peer;
use crate::queue::Entry;
use crate::regions::Regions;
use crate::status::Failed;
use tieline::endpoint::{AtOnce, Tried};
use tieline::{Endpoint, Outcome, PostError, SendOptions};
use tieline_libfabric_abi::*;

/// The number of messages to a peer that wait in the provider at which posts return `-FI_EAGAIN`. The number is large, because some
/// applications try again only when a completion has arrived.
const MOST_WAITING: usize = 1024;
/// The number of sends after which one makes progress. A program that only sends would not learn that the receiver holds it back.
const UNTIL_PROGRESS: u32 = 256;
/// The lengths up to which data and payload are copied into one buffer on the stack: those of a message that takes one call of the
/// library, and of others. The shorter buffer costs less, because it is filled with zeros before.
const SHORT: usize = 64;
const TOGETHER: usize = 256;

/// The length from which a message is a rendezvous message, if a transport reads the memory of other processes: one copy by the
/// kernel is faster than two through the transport's buffers.
const ONE_COPY: usize = 32 << 10;

/// A message to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) to: u64,
    pub(crate) tag: Option<u64>,
    pub(crate) data: Option<u64>,
    pub(crate) buf: Buffer,
    pub(crate) flags: u64,
    pub(crate) told: bool,
    pub(crate) context: usize,
}

/// A message that waits for its peer or for room.
#[derive(Debug)]
pub(crate) struct Waiting {
    message: Outgoing,
    /// A copy of the bytes, if the application may reuse its buffer.
    copy: Option<Box<[u8]>>,
}

impl Waiting {
    pub(crate) fn kind(&self) -> u64 {
        self.message.kind()
    }
}

impl Outgoing {
    #[inline]
    fn form(&self) -> u64 {
        if self.tag.is_some() { FI_TAGGED } else { FI_MSG }
    }

    fn end(&self) -> End {
        End { len: self.buf.len(), ..End::new(Kind::Send, self.told, self.context, self.form()) }
    }

    #[inline]
    fn id(&self) -> u16 {
        match (self.tag, self.data) {
            (None, None) => id::PLAIN,
            (None, Some(_)) => id::PLAIN_DATA,
            (Some(_), None) => id::TAGGED,
            (Some(_), Some(_)) => id::TAGGED_DATA,
        }
    }
}

impl Outgoing {
    /// Returns the kind of the message, as [`crate::flow`] distinguishes them.
    fn kind(&self) -> u64 {
        if self.tag.is_some() { TAGGED } else { PLAIN }
    }

    /// Checks whether the application learns nothing about the message after the call. It may then make no progress for a long time.
    /// Therefore such a message never waits in the provider or in the library: the call returns `-FI_EAGAIN` instead.
    #[inline]
    fn is_forgotten(&self) -> bool {
        self.flags & FI_INJECT != 0 && !self.told
    }

    /// Returns the bytes of a message that goes together with its data into one buffer on the stack.
    #[inline]
    fn short(&self) -> Option<&[u8]> {
        let is_plain = self.flags & FI_DELIVERY_COMPLETE == 0 && self.buf.len() <= SHORT - 8;
        self.buf.as_slice().filter(|_| is_plain)
    }

    /// Returns the 8-byte header, and the data that come before the payload.
    #[inline]
    fn heads(&self) -> (u64, Option<u64>) {
        (self.tag.or(self.data).unwrap_or(0), self.tag.and(self.data))
    }
}

/// Copies data and payload into a buffer that has room for both, and returns the part that they take.
#[inline]
fn join<'a>(buffer: &'a mut [u8], data: u64, bytes: &[u8]) -> &'a [u8] {
    let together = &mut buffer[..8 + bytes.len()];
    let (before, rest) = together.split_at_mut(8);
    before.copy_from_slice(&data.to_le_bytes());
    rest.copy_from_slice(bytes);
    together
}

/// Returns the outcome of a message that the transport has.
fn done((): ()) -> Outcome {
    Outcome::Done(0)
}

/// Checks whether a message of at least [`ONE_COPY`] bytes is read from its own memory.
#[cold]
fn is_copied_once(endpoint: &Endpoint, message: &Outgoing) -> Result<bool, PostError> {
    let is_in_place = message.flags & FI_INJECT == 0 && message.buf.is_one_piece();
    Ok(is_in_place && endpoint.eager_limit()? < ONE_COPY)
}

impl Ep {
    /// Posts a message. A short one takes one call of the library.
    #[inline(always)] // most attributes of the message are constants of its caller
    pub(crate) fn send(&self, message: &Outgoing) -> Result<(), i32> {
        let sends = self.sends.get().wrapping_add(1);
        self.sends.set(sends);
        if sends % UNTIL_PROGRESS == 0 {
            self.progress();
        }
        let peers = self.peers.borrow();
        if let (Some(endpoint), Some(bytes)) = (self.free(&peers, message.to), message.short()) {
            let (header, data) = message.heads();
            let mut together = [0; SHORT];
            let bytes = data.map_or(bytes, |data| join(&mut together, data, bytes));
            match endpoint.send_at_once(message.id(), header, bytes) {
                AtOnce::Done => {
                    let keeps = message.is_forgotten() && endpoint.may_keep_until_poll();
                    drop(peers);
                    self.sent(message);
                    if keeps {
                        self.hand_over(message.to);
                    }
                    return Ok(());
                }
                AtOnce::Refused(tried, ()) => {
                    let id = message.id();
                    let posted = match message.is_forgotten() {
                        true => endpoint.send_further_now(tried, id, header, bytes).map(done),
                        false => endpoint.send_further(tried, id, header, bytes),
                    };
                    drop(peers);
                    return self
                        .posted(message, posted.map(|outcome| (outcome, Regions::default())));
                }
                AtOnce::NotTried => {}
            }
        }
        drop(peers);
        self.send_longer(message)
    }

    /// Returns the endpoint of a peer to which nothing waits, if the completion queue has room.
    #[inline]
    fn free<'a>(&self, peers: &'a [Peer], to: u64) -> Option<&'a Endpoint> {
        let peer = peers.get(to as usize)?;
        let endpoint = peer.endpoint()?;
        let is_free = peer.is_clear.get() && !self.tx.get().is_some_and(|cq| cq.is_full());
        is_free.then_some(endpoint)
    }

    /// Posts a message that is not short, or that has to wait.
    #[inline(never)]
    fn send_longer(&self, message: &Outgoing) -> Result<(), i32> {
        let peers = self.peers.borrow();
        let posted = self.free(&peers, message.to).map(|it| self.post(it, message, None));
        drop(peers);
        match posted {
            Some(posted) => self.posted(message, posted),
            None => self.send_later(message.clone()),
        }
    }

    /// Reports or tracks a message that was posted.
    fn posted(
        &self,
        message: &Outgoing,
        posted: Result<(Outcome, Regions), PostError>,
    ) -> Result<(), i32> {
        match posted {
            Ok((Outcome::Done(_), regions)) if regions.is_empty() => {
                self.sent(message);
                if message.is_forgotten() {
                    self.hand_over(message.to);
                }
            }
            Ok((outcome, regions)) => {
                self.track(&outcome, Op { regions, ..Op::new(message.end(), Work::Nothing) });
            }
            Err(error) => return self.refused(message, error),
        }
        Ok(())
    }

    /// Lets the transport write a message that it may keep until its next poll: the application may make no further call.
    #[cold]
    fn hand_over(&self, to: u64) {
        let keeps = |peer: &Peer| peer.endpoint().is_some_and(Endpoint::may_keep_until_poll);
        if self.peers.borrow().get(to as usize).is_some_and(keeps) {
            let _ = self.worker.progress_everywhere();
        }
    }

    /// Reports a message that was sent within its call.
    #[inline(always)] // most attributes of the message are constants
    fn sent(&self, message: &Outgoing) {
        add(&self.counts.sent, message.buf.len());
        if let Some(counter) = self.counter(SENDS) {
            counter.count(false);
        }
        if let (true, Some(queue)) = (message.told, self.tx.get()) {
            queue.push(Entry::new(message.context, FI_SEND | message.form()));
        }
    }

    #[cold]
    fn refused(&self, message: &Outgoing, error: PostError) -> Result<(), i32> {
        let failed = Failed::from(error);
        if failed.error == FI_EAGAIN {
            return self.stuck();
        }
        self.unsent(message, failed)
    }

    /// Makes progress instead of a post, which the application repeats.
    #[cold]
    fn stuck(&self) -> Result<(), i32> {
        self.is_stuck.set(true);
        self.progress();
        Err(FI_EAGAIN)
    }

    /// Sends a message that does not wait to a peer that holds messages back or is not resolved, if there is credit for it.
    #[cold]
    fn send_on_credit(&self, message: &Outgoing) -> Result<(), i32> {
        let peers = self.peers.borrow();
        let peer = &peers[message.to as usize];
        let endpoint = peer.endpoint().filter(|_| peer.waiting.borrow().is_empty());
        let credit = peer.credit.get();
        let posted = match (endpoint, credit) {
            (None, _) => None,
            (Some(endpoint), Some(0)) if endpoint.error().is_none() => {
                let _ = self.starve(peer, endpoint, message.kind());
                None
            }
            (Some(endpoint), _) => Some(self.post(endpoint, message, None)),
        };
        if matches!(posted, Some(Ok(_))) {
            peer.credit.set(credit.map(|credit| credit.saturating_sub(cost(message.buf.len()))));
        }
        drop(peers);
        posted.map_or_else(|| self.stuck(), |posted| self.posted(message, posted))
    }

    /// Reports a message that was not sent. If its peer has ended, the message gets an entry like one that was sent before: some
    /// applications repeat every call that returns an error, and would repeat this one for ever.
    fn unsent(&self, message: &Outgoing, failed: Failed) -> Result<(), i32> {
        let is_gone = matches!(failed.error, FI_ENOTCONN | FI_EHOSTUNREACH);
        if !is_gone || !message.told || self.tx.get().is_none() {
            return Err(failed.error);
        }
        self.tell(message.end(), Some(failed));
        Ok(())
    }

    /// Keeps a message until its peer is resolved or has room.
    #[cold]
    fn send_later(&self, message: Outgoing) -> Result<(), i32> {
        if self.tx.get().is_some_and(|cq| cq.is_full()) {
            return Err(FI_EAGAIN);
        }
        let to = message.to;
        if let Err(error) = self.reach(to) {
            return self.unsent(&message, Failed::new(error));
        }
        if message.is_forgotten() {
            return self.send_on_credit(&message);
        }
        let waits = self.peers.borrow()[to as usize].waiting.borrow().len();
        if waits >= MOST_WAITING {
            return self.stuck();
        }
        let copy = (message.flags & FI_INJECT != 0).then(|| message.buf.copy());
        let op = Op::new(message.end(), Work::Send(Box::new(Waiting { message, copy })));
        let index = self.ops.borrow_mut().add(op);
        let peers = self.peers.borrow();
        peers[to as usize].waiting.borrow_mut().push_back(index);
        peers[to as usize].set_clear();
        drop(peers);
        self.send_waiting(to);
        Ok(())
    }

    /// Sends the waiting messages to a peer, in order, as far as there is room. If the peer is not reachable, they fail.
    pub(crate) fn send_waiting(&self, to: u64) {
        loop {
            let peers = self.peers.borrow();
            let Some(peer) = peers.get(to as usize) else { return };
            let front = peer.waiting.borrow().front().copied();
            let Some(index) = front else { return peer.set_clear() };
            let failed = peer.failed();
            let endpoint = peer.endpoint();
            if endpoint.is_none() && failed.is_none() {
                return;
            }
            let held = endpoint.filter(|it| peer.credit.get() == Some(0) && it.error().is_none());
            if let Some(endpoint) = held {
                if !self.starve(peer, endpoint, 0) {
                    drop(peers);
                    self.send_later_to(to);
                }
                return;
            }
            let ops = self.ops.borrow();
            let posted = match (ops.get(index).map(|op| &op.work), endpoint) {
                (Some(Work::Send(waiting)), Some(endpoint)) => self
                    .post(endpoint, &waiting.message, waiting.copy.as_deref())
                    .map_err(Failed::from),
                _ => Err(failed.unwrap_or(Failed::PEER)),
            };
            drop(ops);
            if matches!(posted, Err(Failed { error: FI_EAGAIN, .. })) {
                drop(peers);
                return self.send_later_to(to);
            }
            let _ = peer.waiting.borrow_mut().pop_front();
            let taken = self.ops.borrow_mut().take(index);
            let Some(mut op) = taken else { continue };
            let left = |credit: u64| credit.saturating_sub(cost(op.end.len));
            peer.credit.set(peer.credit.get().map(left));
            drop(peers);
            match posted {
                Ok((outcome, regions)) => {
                    op.regions = regions;
                    self.track(&outcome, op);
                }
                Err(failed) => self.tell(op.end, Some(failed)),
            }
        }
    }

    /// Notes that the waiting messages to a peer have to be tried again.
    fn send_later_to(&self, to: u64) {
        let mut blocked = self.blocked.borrow_mut();
        if !blocked.contains(&to) {
            blocked.push(to);
        }
        self.todo.set(true);
    }

    /// Checks whether a message is acknowledged, longer than the lane carries, or copied once. Returns `None` for other messages, and
    /// otherwise whether the message is copied once.
    #[inline]
    fn headed(&self, endpoint: &Endpoint, message: &Outgoing) -> Result<Option<bool>, PostError> {
        let (most, len) = (endpoint.max_message()?, message.buf.len());
        let delivered = message.flags & FI_DELIVERY_COMPLETE != 0;
        let is_long = len.saturating_add(8) > most;
        let once = len >= ONE_COPY && is_copied_once(endpoint, message)?;
        Ok((delivered || is_long || once).then_some(once))
    }

    /// Posts a message to a peer that is resolved. The registrations are those of a message that is not copied.
    fn post(
        &self,
        endpoint: &Endpoint,
        message: &Outgoing,
        copy: Option<&[u8]>,
    ) -> Result<(Outcome, Regions), PostError> {
        if let Some(once) = self.headed(endpoint, message)? {
            return self.post_headed(endpoint, message, copy, once);
        }
        Ok((self.post_short(endpoint, message, copy)?, Regions::default()))
    }

    /// Posts a message that the lane carries.
    #[inline]
    fn post_short(
        &self,
        endpoint: &Endpoint,
        message: &Outgoing,
        copy: Option<&[u8]>,
    ) -> Result<Outcome, PostError> {
        let bytes = copy.or_else(|| message.buf.as_slice());
        let (message_id, len) = (message.id(), message.buf.len());
        let (header, prefix) = message.heads();
        let now = message.is_forgotten();
        let send = |bytes: &[u8]| match now {
            true => endpoint.send_further_now(Tried::NOT, message_id, header, bytes).map(done),
            false => endpoint.send(message_id, header, bytes),
        };
        match (prefix, bytes) {
            (None, Some(bytes)) => send(bytes),
            (Some(data), Some(bytes)) if len + 8 <= TOGETHER => {
                let mut together = [0; TOGETHER];
                send(join(&mut together, data, bytes))
            }
            (prefix, _) => {
                let before = if prefix.is_some() { 8 } else { 0 };
                let pack = |out: &mut [u8]| {
                    out[..before].copy_from_slice(&prefix.unwrap_or(0).to_le_bytes()[..before]);
                    match copy {
                        Some(copy) => out[before..before + len].copy_from_slice(copy),
                        None => _ = message.buf.read(&mut out[before..]),
                    }
                    before + len
                };
                match now {
                    true => {
                        endpoint.send_packed_now(message_id, header, len + before, pack).map(done)
                    }
                    false => endpoint.send_packed(message_id, header, len + before, pack),
                }
            }
        }
    }

    /// Posts a message that is acknowledged, or that is longer than the lane carries.
    fn post_headed(
        &self,
        endpoint: &Endpoint,
        message: &Outgoing,
        copy: Option<&[u8]>,
        once: bool,
    ) -> Result<(Outcome, Regions), PostError> {
        let bytes = copy.or_else(|| message.buf.as_slice());
        let (id, (header, prefix)) = (message.id(), message.heads());
        let data = prefix.unwrap_or(0).to_le_bytes();
        let mut options = SendOptions::new();
        if prefix.is_some() {
            options = options.header_bytes(&data);
        }
        if message.flags & FI_DELIVERY_COMPLETE != 0 {
            options = options.delivered();
        }
        let len = message.buf.len();
        if once {
            options = options.rendezvous();
        }
        // The head of an acknowledged message takes at most 48 bytes.
        let is_short = !once && len.saturating_add(48) <= endpoint.max_message()?;
        if let Some(bytes) = bytes.filter(|_| is_short || message.flags & FI_INJECT != 0) {
            return Ok((endpoint.send_with(id, header, bytes, &options)?, Regions::default()));
        }
        if is_short {
            let bytes = message.buf.copy();
            return Ok((endpoint.send_with(id, header, &bytes, &options)?, Regions::default()));
        }
        let regions = message.buf.lend(&self.domain.context, len).map_err(tieline::Error::from)?;
        let outcome = regions
            .with_pieces(|pieces| endpoint.send_regions_with(id, header, pieces, &options))?;
        Ok((outcome, regions))
    }
}
