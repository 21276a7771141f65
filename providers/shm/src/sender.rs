//! The sending end of a channel.

mod pooled;
mod socket;
mod untaken;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{AtOnce, Failure, Packer, Posted, Posting, Status};

use crate::asking::Asking;
use crate::channel::{self, kind, word};
use crate::copies;
use crate::hello::{Hello, Id, Record};
use crate::kept::Word;
use crate::order;
use crate::pool::{Chunk, MAX_CHUNK, Pool};
use crate::ring::{INLINE, SendRing, head};
use crate::shared::Shared;
use crate::sys::{self, Mapping};
use crate::wake;

/// The work after publishing a slot. Once the channel is fast, at most the fence remains.
mod after {
    /// A full fence is needed: one of the sides has no membarrier, or is not known to have it yet.
    pub(super) const FENCE: u32 = 1;
    /// The sender rings the doorbell.
    pub(super) const BELL: u32 = 2;
    /// The sender counts messages towards a fast box, and checks the receiver's answer.
    pub(super) const COUNT: u32 = 4;
    /// The doorbell page has arrived, but its slot is not written yet.
    pub(super) const BELL_DUE: u32 = 8;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The socket is not connected, or the greeting is not sent yet.
    Connecting,
    /// Messages can be sent.
    Open,
    /// No more messages can be sent; the status is the reason.
    Over(Status),
    /// The application has closed the endpoint; the receiver drains the ring.
    Closing,
}

/// Returns the written length if the message fits, otherwise [`Status::TooLarge`].
fn fitting(fits: bool, len: usize) -> Result<usize, Status> {
    if fits { Ok(len) } else { Err(Status::TooLarge) }
}

struct Doorbell {
    map: Mapping,
    word: usize,
    bit: u64,
}

/// The sending end of a channel.
pub(crate) struct SendChannel {
    // The following fields are used by short messages.
    ring: SendRing,
    after: Cell<u32>,
    /// The word that is not 0 while the receiver sleeps, or is about to.
    sleeping: Word,
    map: Arc<Mapping>,
    // The following fields are used by larger messages. Cells are borrowed for a single access, and not while a packer runs.
    flight: RefCell<VecDeque<(u64, Chunk)>>,
    flight_bytes: Cell<usize>,
    segments_sent: Cell<u32>,
    /// Whether a packer of the application is running; the next slot is reserved for it.
    packing: Cell<bool>,
    /// The tail when a message found no room or no chunk; `None` after the tail has moved.
    starved: Cell<Option<u64>>,
    // The remaining fields follow.
    shared: Rc<Shared>,
    /// The stage, which only [`enter`](SendChannel::enter) sets.
    stage: Cell<Stage>,
    /// The status of operations in this stage, stored separately because every operation reads it.
    status: Cell<Result<(), Status>>,
    socket: OnceCell<OwnedFd>,
    /// The descriptor and bytes of the greeting, borrowed only to take or set them.
    greeting: RefCell<Option<(OwnedFd, Vec<u8>)>>,
    targets: Vec<Vec<u8>>,
    bell: OnceCell<Doorbell>,
    messages: Cell<u64>,
    ask_at: Cell<u64>,
    asked: Cell<u64>,
    answered: Cell<u64>,
    fast: Cell<bool>,
    bye_due: Cell<bool>,
    gone: Cell<bool>,
    /// The regions that the peer has sent, or was asked for.
    asking: Asking,
    /// Whether the other end of the socket belongs to this process.
    leads_home: Cell<bool>,
    /// Whether the peer has admitted this channel: from then on it may have received anything.
    admitted: Cell<bool>,
    /// The cookie in the event for the endpoint's failure.
    pub(crate) cookie: u64,
    /// The peer's domain.
    pub(crate) peer_domain: Id,
    pub(crate) index: usize,
}

impl SendChannel {
    /// Creates the channel and tries to connect; `targets` are the socket names to try, best first.
    pub(crate) fn open(
        shared: &Rc<Shared>,
        targets: Vec<Vec<u8>>,
        peer_cookie: Id,
        peer_domain: Id,
        identity: &[u8],
        cookie: u64,
        index: usize,
    ) -> Result<Rc<SendChannel>, Failure> {
        let fastbox = shared.settings.fastbox_size;
        let len = channel::memory_len(fastbox);
        let file = sys::memory_file(c"tieline-shm-channel", len)?;
        sys::reserve(&file, 0, sys::PAGE)?;
        let map = Arc::new(Mapping::new(file.as_fd(), len, true)?);
        let ring = SendRing::over(map.clone(), channel::COLD).ok_or(Status::Invalid)?;
        let hello = Record::Hello(Hello {
            cookie: peer_cookie,
            asymmetric: sys::asymmetric(),
            fastbox: fastbox as u32,
            identity: identity.to_vec(),
        });
        let this = Rc::new(SendChannel {
            ring,
            after: Cell::new(after::FENCE | after::COUNT),
            sleeping: Word::of(&map, channel::SLEEPING).ok_or(Status::Invalid)?,
            map,
            flight: RefCell::default(),
            flight_bytes: Cell::new(0),
            segments_sent: Cell::new(0),
            packing: Cell::new(false),
            starved: Cell::new(None),
            shared: shared.clone(),
            stage: Cell::new(Stage::Connecting),
            status: Cell::new(Ok(())),
            socket: OnceCell::new(),
            greeting: RefCell::new(Some((file, hello.pack()))),
            targets,
            bell: OnceCell::new(),
            messages: Cell::new(0),
            ask_at: Cell::new(shared.settings.threshold),
            asked: Cell::new(0),
            answered: Cell::new(0),
            fast: Cell::new(false),
            bye_due: Cell::new(false),
            gone: Cell::new(false),
            asking: Asking::default(),
            leads_home: Cell::new(false),
            admitted: Cell::new(false),
            cookie,
            peer_domain,
            index,
        });
        let _ = this.advance()?;
        Ok(this)
    }

    // ---- messages ----

    /// Sends a payload that fits into the slot, if there is a free slot.
    #[inline(always)]
    pub(crate) fn send_at_once(&self, id: u32, header: u64, payload: &[u8]) -> AtOnce {
        // A payload that is too long for the slot is not sent here; its length may not fit into the head.
        let head = head(kind::INLINE, payload.len(), id as u16);
        if id > u32::from(u16::MAX) || !self.ring.push(head, header, payload) {
            AtOnce::NotSent
        } else if self.has_more_to_do() {
            AtOnce::SentWithRest
        } else {
            AtOnce::Sent
        }
    }

    /// Sends a contiguous payload.
    #[inline(always)]
    pub(crate) fn send(&self, id: u32, header: u64, payload: &[u8]) -> Posted {
        match self.send_at_once(id, header, payload) {
            AtOnce::Sent => return Ok(Posting::Done),
            AtOnce::SentWithRest => {
                self.after_send();
                return Ok(Posting::Done);
            }
            AtOnce::NotSent => {}
        }
        self.send_slow(id, header, payload)
    }

    /// Sends a payload without the short form, out of line.
    #[inline(never)]
    fn send_slow(&self, id: u32, header: u64, payload: &[u8]) -> Posted {
        self.send_at_length(id, header, payload)
    }

    /// Sends a payload without the short form.
    #[inline(always)]
    pub(crate) fn send_at_length(&self, id: u32, header: u64, payload: &[u8]) -> Posted {
        if payload.len() > INLINE {
            return match self.send_again(id, header, payload) {
                true => Ok(Posting::Done),
                false => self.send_long(id, header, payload),
            };
        }
        let id = u16::try_from(id).map_err(|_| Status::Invalid)?;
        self.make_room()?;
        let _ = self.push(head(kind::INLINE, payload.len(), id), header, payload);
        Ok(Posting::Done)
    }

    /// Sends a payload that is too long for a slot.
    #[inline(never)]
    fn send_long(&self, id: u32, header: u64, payload: &[u8]) -> Posted {
        let fill = |pool: &Pool, chunk| {
            let write = |map: &Mapping, at| copies::write(map, at, payload);
            fitting(pool.with_place(chunk, write)?, payload.len())
        };
        self.send_pooled(id, header, payload.len(), fill).map(|_| Posting::Done)
    }

    /// Writes a put and publishes its word after it. If there is no room for the word, nothing is written.
    #[inline]
    pub(crate) fn put_notify(&self, word: u32, put: impl FnOnce() -> Posted) -> Posted {
        self.status()?;
        if !self.ring.has_room() {
            self.make_room()?;
        }
        let posting = put()?;
        let _ = self.push(head(kind::NOTIFIED, 0, 0), u64::from(word), &[]);
        Ok(posting)
    }

    /// Sends a message that a callback packs.
    #[inline]
    pub(crate) fn send_packed(
        &self,
        id: u32,
        header: u64,
        packer: Packer<'_>,
        max: usize,
    ) -> Result<usize, Status> {
        if max <= INLINE {
            if id > u32::from(u16::MAX) {
                return Err(Status::Invalid);
            }
            if !self.ring.has_room() {
                self.make_room()?;
            }
            let mut buffer = [0u8; INLINE];
            let len = self.pack(|| packer.pack(&mut buffer[..max]))?;
            return self.send(id, header, &buffer[..len]).map(|_| len);
        }
        let max = max.min(MAX_CHUNK);
        let fill = |pool: &Pool, chunk| {
            // The packer is the application's, so nothing is borrowed while it runs.
            let (map, at) = pool.place(chunk)?;
            self.pack(|| copies::pack(packer, &map, at, max))
        };
        self.send_pooled(id, header, max, fill)
    }

    /// Runs the application's packer once there is room. If the packer itself sends on this channel, it finds no room: the slot is
    /// reserved, so that a packer that has run never results in "again".
    fn pack(&self, packer: impl FnOnce() -> Result<usize, Status>) -> Result<usize, Status> {
        let limit = self.ring.hold();
        self.packing.set(true);
        let packed = packer();
        self.packing.set(false);
        // A packer that makes progress may have detected the peer's end; then the ring remains shut.
        self.outcome()?;
        self.ring.release(limit);
        packed
    }

    /// Sends gathered pieces.
    #[inline]
    pub(crate) fn send_gathered(&self, id: u32, header: u64, iov: &[Iov]) -> Posted {
        let len = iov.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.len));
        let len = len.ok_or(Status::TooLarge)?;
        if len <= INLINE {
            let mut buffer = [0u8; INLINE];
            let mut done = 0;
            for piece in iov {
                done += fitting(copies::read_piece(*piece, &mut buffer[done..]), piece.len)?;
            }
            return self.send(id, header, &buffer[..len]);
        }
        let gather = |pool: &Pool, chunk| {
            let write_all = |map: &Mapping, at: u64| {
                let mut done = 0;
                for piece in iov {
                    done += fitting(copies::write_piece(map, at + done, *piece), piece.len)? as u64;
                }
                Ok(len)
            };
            pool.with_place(chunk, write_all)?
        };
        self.send_pooled(id, header, len, gather).map(|_| Posting::Done)
    }

    fn is_shut(&self) -> bool {
        self.stage.get() != Stage::Open
    }

    /// Looks for a free slot, or returns the reason why there is none.
    fn make_room(&self) -> Result<(), Status> {
        match self.stage.get() {
            Stage::Open => {}
            Stage::Connecting => return Err(Status::Again),
            Stage::Over(_) | Stage::Closing => return self.status(),
        }
        // Released chunks stay in flight for the next messages of their size.
        let _ = self.see_tail()?;
        if self.ring.has_room() {
            self.starved.set(None);
            return Ok(());
        }
        self.starved.set(Some(self.ring.seen()));
        Err(Status::Again)
    }

    /// Sends the descriptors of the pool's segments up to `last`.
    #[cold]
    fn show_segments(&self, last: u32) -> Result<(), Status> {
        let socket = self.socket.get().ok_or(Status::Again)?;
        while self.segments_sent.get() <= last {
            let number = self.segments_sent.get();
            let sent = self.shared.pool.with_segment(number, |len, fd| {
                let record = Record::Segment { number, len: len as u64 };
                sys::send(socket, &record.pack(), &[fd.as_fd()])
            });
            match sent {
                Some(Ok(())) => self.segments_sent.set(number + 1),
                Some(Err(error)) if sys::is_temporary(&error) => return Err(Status::Again),
                _ => return Err(self.sending_failed()),
            }
        }
        Ok(())
    }

    /// Publishes a message in the free slot. Returns `false`, and sends nothing, if there is none or the payload is too long.
    #[inline(always)]
    fn push(&self, head: u32, header: u64, payload: &[u8]) -> bool {
        let is_sent = self.ring.push(head, header, payload);
        if is_sent && self.has_more_to_do() {
            self.after_send();
        }
        is_sent
    }

    /// Checks whether [`SendChannel::after_send`] must follow a published slot.
    #[inline(always)]
    fn has_more_to_do(&self) -> bool {
        wake::publish(|| (), || self.after.get() != 0, self.sleeping.get())
    }

    /// Does the work that the fast path omits: fence, doorbell, wake-up, switch to a fast box.
    #[inline(never)]
    pub(crate) fn after_send(&self) {
        let todo = self.after.get();
        self.announce(todo & after::FENCE != 0);
        if todo & after::BELL_DUE != 0 {
            self.announce_bell();
        }
        if todo & after::COUNT != 0 {
            self.messages.set(self.messages.get() + 1);
            self.towards_fast_box();
        }
    }

    fn ring_bell(&self) {
        if let Some(bell) = self.bell.get() {
            if let Some(word) = bell.map.word(bell.word) {
                let _ = word.fetch_or(bell.bit, order::RING_BELL);
            }
        }
    }

    /// Rings the bell if there is one, and wakes a receiver that sleeps.
    fn announce(&self, full: bool) {
        let bell = || {
            if self.after.get() & after::BELL != 0 {
                self.ring_bell();
            }
        };
        if wake::announce(full, bell, self.sleeping.get()) {
            if let Some(socket) = self.socket.get() {
                // A full socket is already readable; the next poll detects a dead peer.
                let _ = sys::send(socket, &Record::Wake.pack(), &[]);
            }
        }
    }

    fn set_after(&self, bit: u32, on: bool) {
        let now = self.after.get();
        self.after.set(if on { now | bit } else { now & !bit });
    }

    /// Publishes a slot that is no message. Returns `false` if the ring is full or shut.
    fn push_note(&self, kind: u8, header: u64) -> bool {
        if self.is_shut()
            || (!self.ring.has_room() && self.reap().is_err())
            || !self.ring.has_room()
        {
            return false;
        }
        let _ = self.ring.push(head(kind, 0, 0), header, &[]);
        self.announce(true);
        true
    }

    /// Notifies the receiver that it need not poll this ring any more unless the bell was rung.
    pub(crate) fn announce_bell(&self) {
        if self.bell.get().is_none() || self.fast.get() || self.after.get() & after::BELL != 0 {
            self.set_after(after::BELL_DUE, false);
        } else if self.push_note(kind::BELL_ON, 0) {
            self.set_after(after::BELL_DUE, false);
            self.set_after(after::BELL, true);
        } else {
            self.set_after(after::BELL_DUE, true);
        }
    }

    /// Returns the order of the fast box's slots; `None` before the switch.
    #[cfg(test)]
    pub(crate) fn fast_order(&self) -> Option<u64> {
        self.fast.get().then(|| self.ring.order())
    }

    fn towards_fast_box(&self) {
        if self.asked.get() == self.answered.get() {
            if self.messages.get() >= self.ask_at.get()
                && self.push_note(kind::WANT_FAST, channel::KNOWS_SPREAD | (self.asked.get() + 1))
            {
                self.asked.set(self.asked.get() + 1);
            }
            return;
        }
        let verdict = word(&self.map, channel::VERDICT).load(Ordering::Acquire);
        if verdict >> 2 != self.asked.get() {
            return;
        }
        let size = self.shared.settings.fastbox_size;
        let spread = verdict & 3 == channel::GRANTED_SPREAD;
        if !(spread || verdict & 3 == channel::GRANTED)
            || self.map.populate(sys::PAGE, size).is_err()
        {
            // The fast box is requested again, at growing intervals.
            self.answered.set(self.asked.get());
            self.ask_at.set(self.messages.get().saturating_mul(2).max(64));
        } else if self.push_note(kind::SWITCH, u64::from(spread)) {
            self.answered.set(self.asked.get());
            if self.ring.switch(channel::fast(size, spread)) {
                self.fast.set(true);
                self.after.set(self.after.get() & after::FENCE);
            }
        }
    }

    // ---- control ----

    /// Sends the goodbye that could not be sent when it was due.
    pub(crate) fn catch_up(&self) {
        if let (true, Some(socket)) = (self.owes(), self.socket.get()) {
            self.say_bye(socket);
        }
    }

    // ---- sleep ----

    /// Requests a wake-up for new room before the interface sleeps, if a message waits for room.
    pub(crate) fn ask_for_wake(&self) {
        let wants = self.starved.get().is_some()
            || self.shared.pool_starved.get() && self.flight_bytes.get() > 0;
        if wants {
            wake::note(word(&self.map, channel::WAITING));
        }
    }

    #[cfg(test)]
    pub(crate) fn asking(&self) -> &Asking {
        &self.asking
    }

    #[cfg(test)]
    pub(crate) fn say(&self, record: &[u8]) {
        sys::send(self.socket.get().unwrap(), record, &[]).unwrap();
    }

    #[cfg(test)]
    pub(crate) fn has_bell(&self) -> bool {
        self.bell.get().is_some()
    }

    /// Returns the bytes of memory that this end uses, without chunks of the pool.
    pub(crate) fn memory(&self) -> u64 {
        let fast = if self.fast.get() { self.map.len() - sys::PAGE } else { 0 };
        (sys::PAGE + fast + size_of::<SendChannel>()) as u64
    }
}

impl Drop for SendChannel {
    fn drop(&mut self) {
        self.hang_up();
        self.recover_chunks();
    }
}
