//! The receiving end of a channel.
//!
//! The peer wrote the bytes that are read here. Invalid data ends this channel, and has no other effect.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tieline_plugin_api::abi::Event;
use tieline_plugin_api::{Events, Status, event};

use crate::channel::{self, kind, word};
use crate::hello::{Hello, MAX_RECORD, Record, Refusal};
use crate::pool::{LARGEST_SEGMENT, MAX_CHUNK, MAX_SEGMENTS};
use crate::ring::{INLINE, Peek, RecvRing, head};
use crate::shared::Shared;
use crate::sys::{self, Mapping};
use crate::wake;

/// The number of consumed bytes of pooled messages after which the consumed position is published.
const CHUNK_BYTES: usize = 32 << 10;

/// The low half of the control word of an empty message in a slot, and the end of the range for all lengths and ids.
const SHORT: u32 = head(kind::INLINE, 0, 0);
const SHORT_END: u32 = head(0, INLINE + 1, 0);

/// The number of records of one socket that are handled before the next socket.
pub(crate) const MOST_IN_TURN: u32 = 8;

/// The result of draining a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drained {
    /// All published messages are delivered.
    Quiet,
    /// The channel may have more: the event array is full, or a slot was no message. Such slots take no room in the array, and a
    /// peer that wrote only such slots would block all others.
    Full,
    /// The peer wrote invalid data.
    Broken,
}

/// The result of [`RecvChannel::take_short`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Short {
    Taken,
    /// The only new message has its payload in a chunk.
    Pooled,
    Not,
}

/// The receiving end.
pub(crate) struct RecvChannel {
    ring: RecvRing,
    chunk_bytes: usize,
    /// The number of the last poll that drained this channel.
    round: u64,
    number: u64,
    segments: Vec<Mapping>,
    map: Arc<Mapping>,
    fenced: bool,
    fastbox: usize,
    /// Whether the sender rings its bell after writing, so the channel need not be polled.
    pub(crate) bell: bool,
    /// Whether the sender writes to the fast box, which every poll must drain.
    pub(crate) fast: bool,
    /// Whether a fast box was granted: it counts until the channel ends.
    pub(crate) granted: bool,
    /// Whether `bell` or `fast` has just changed.
    pub(crate) turned: bool,
    /// The socket, closed together with the channel and not earlier: its end notifies the sender that its memory is not read any
    /// more.
    pub(crate) socket: OwnedFd,
    /// The status with which the sender ended; its published messages are drained first. The socket is not read any more.
    pub(crate) leaving: Option<i32>,
    /// The region that the sender has requested without an answer so far. A sender requests one region at a time, and waits for
    /// each answer.
    unanswered: Option<u64>,
    /// The last record for the sender.
    refusal: Option<Refusal>,
    /// The position below which are all slots that the sender can have published before it ended.
    last: u64,
    /// The end of the published slots when an endpoint of this interface last failed; 0 if no unread slot remains below it.
    noted: u64,
}

impl RecvChannel {
    /// Maps the channel of a greeting.
    pub(crate) fn accept(
        hello: &Hello,
        memory: &OwnedFd,
        socket: OwnedFd,
        number: u64,
    ) -> Result<RecvChannel, (OwnedFd, Refusal)> {
        let fastbox = hello.fastbox as usize;
        let valid = (1 << 10..=1 << 20).contains(&fastbox) && fastbox.is_power_of_two();
        if !valid || sys::sealed_len(memory) != Some(channel::memory_len(fastbox)) {
            return Err((socket, Refusal::Malformed));
        }
        let Some(map) = sys::map_peer_control(memory, channel::memory_len(fastbox), true) else {
            return Err((socket, Refusal::Resources));
        };
        let map = Arc::new(map);
        let Some(ring) = RecvRing::over(map.clone(), channel::COLD) else {
            return Err((socket, Refusal::Malformed));
        };
        Ok(RecvChannel {
            ring,
            chunk_bytes: 0,
            round: 0,
            number,
            segments: Vec::new(),
            map,
            fenced: !(hello.asymmetric && sys::asymmetric()),
            fastbox,
            bell: false,
            fast: false,
            granted: false,
            turned: false,
            socket,
            leaving: None,
            unanswered: None,
            refusal: None,
            last: u64::MAX,
            noted: 0,
        })
    }

    /// Delivers published messages. Payloads of earlier polls are released first if the ring is empty, or if they are a quarter of
    /// the ring or [`CHUNK_BYTES`].
    ///
    /// `Quiet` is also the result if a corrupt slot follows messages: the next call returns `Broken`.
    #[inline(always)]
    pub(crate) fn drain(&mut self, shared: &Shared, events: &mut Events<'_>) -> Drained {
        let round = shared.round.get();
        let Some(mut head) = self.ring.next_head() else { return self.drain_nothing(round) };
        if self.ring.is_due() {
            self.release(round);
        }
        self.round = round;
        loop {
            // The other kinds, and greater lengths, wrap around or exceed the limit.
            let short = head.wrapping_sub(SHORT);
            if short < SHORT_END {
                let (header, data) = (self.ring.header(), self.ring.payload());
                let len = (short >> 16) as usize;
                if !events.push_message(self.number, short & 0xffff, header, data, len) {
                    return Drained::Full;
                }
                self.ring.advance();
            } else if let Some(end) =
                self.uncommon((head >> 24) as u8, head & 0xffff, shared, events)
            {
                return end;
            }
            match self.ring.next_head() {
                Some(next) => head = next,
                None => return Drained::Quiet,
            }
        }
    }

    /// Takes a short message if it is the only new one and nothing is to be released.
    #[inline(always)]
    pub(crate) fn take_short(&mut self, event: &mut MaybeUninit<Event>) -> Short {
        let Some(alone) = self.ring.alone() else { return Short::Not };
        let short = alone.head.wrapping_sub(SHORT);
        if short >= SHORT_END {
            let is_pooled = (alone.head >> 24) as u8 == kind::POOLED;
            return if is_pooled { Short::Pooled } else { Short::Not };
        }
        self.ring.take(&alone);
        let _ = event.write(Event {
            kind: event::MESSAGE,
            id: short & 0xffff,
            peer: self.number,
            header: alone.word(0),
            data: alone.payload(),
            len: (short >> 16) as usize,
            ..Event::empty()
        });
        Short::Taken
    }

    /// Takes the message that [`RecvChannel::take_short`] has left as [`Short::Pooled`]. Returns whether it did.
    #[inline(always)]
    pub(crate) fn take_pooled(&mut self, event: &mut MaybeUninit<Event>) -> bool {
        let Some(alone) = self.ring.first() else { return false };
        if (alone.head >> 24) as u8 != kind::POOLED {
            return false;
        }
        let Some((data, len)) = self.chunk(alone.word(1), alone.word(2)) else { return false };
        self.count_chunk(len);
        self.ring.take(&alone);
        let _ = event.write(Event {
            kind: event::MESSAGE,
            id: alone.head & 0xffff,
            peer: self.number,
            header: alone.word(0),
            data,
            len,
            ..Event::empty()
        });
        true
    }

    /// Returns the bytes of a chunk by the two words of its slot. `None`: the segment is unknown, or does not hold the bytes.
    #[inline(always)]
    fn chunk(&self, first: u64, offset: u64) -> Option<(*const u8, usize)> {
        let (segment, len) = (first as u32 as usize, (first >> 32) as usize);
        let map = self.segments.get(segment)?;
        let fits = len <= MAX_CHUNK && map.holds(offset, len as u64);
        fits.then(|| (map.as_ptr().wrapping_add(offset as usize).cast_const(), len))
    }

    /// Counts the bytes of a consumed chunk.
    #[inline(always)]
    fn count_chunk(&mut self, len: usize) {
        self.chunk_bytes += len;
        if self.chunk_bytes >= CHUNK_BYTES {
            self.ring.hurry();
        }
    }

    /// Handles a channel without a new slot.
    #[inline]
    fn drain_nothing(&mut self, round: u64) -> Drained {
        if self.ring.peek() == Peek::Corrupt {
            return Drained::Broken;
        }
        if self.ring.unpublished() != 0 {
            self.release(round);
        }
        self.round = round;
        Drained::Quiet
    }

    /// Releases the payloads of earlier polls. A channel can be drained twice in one poll. The application still reads the messages
    /// of the first time: only the next poll releases them.
    #[inline(never)]
    fn release(&mut self, round: u64) {
        if self.round != round {
            self.publish();
        }
    }

    /// Checks whether the next slot is corrupt.
    pub(crate) fn is_corrupt(&self) -> bool {
        self.ring.peek() == Peek::Corrupt
    }

    /// Returns the word that changes when a message arrives, and its present value. `None`: a poll has something to do.
    pub(crate) fn watch(&self) -> Option<(&AtomicU64, u64)> {
        if self.turned || self.is_behind() { None } else { self.ring.watch() }
    }

    #[inline(never)]
    fn uncommon(
        &mut self,
        kind: u8,
        id: u32,
        shared: &Shared,
        events: &mut Events<'_>,
    ) -> Option<Drained> {
        match kind {
            kind::POOLED => {
                if events.room() == 0 {
                    return Some(Drained::Full);
                }
                let (first, offset) = (self.ring.word(1), self.ring.word(2));
                let segment = first as u32 as usize;
                if segment >= self.segments.len()
                    && !self.read_socket(shared)
                    && segment >= self.segments.len()
                {
                    return Some(Drained::Full); // the segment's descriptor may follow the records that were read here
                }
                let Some((data, len)) = self.chunk(first, offset) else {
                    return Some(Drained::Broken);
                };
                let header = self.ring.header();
                let _ = events.push_message(self.number, id, header, data, len);
                self.count_chunk(len);
                self.ring.advance();
                None
            }
            kind::NOTIFIED => {
                let (peer, header) = (self.number, self.ring.header());
                let event = Event { kind: event::NOTIFIED, peer, header, ..Event::empty() };
                if !events.push(event) {
                    return Some(Drained::Full);
                }
                self.ring.advance();
                None
            }
            kind::BELL_ON => {
                self.ring.advance();
                self.turned |= !self.fast && !self.bell;
                self.bell = true;
                Some(Drained::Full)
            }
            kind::WANT_FAST => {
                let request = self.ring.header();
                self.ring.advance();
                self.granted = self.granted || shared.grant_fast_box();
                let answer = match (self.granted, request & channel::KNOWS_SPREAD) {
                    (false, _) => channel::REFUSED,
                    (true, 0) => channel::GRANTED,
                    (true, _) => channel::GRANTED_SPREAD,
                };
                // The shift drops the bit of the order.
                let verdict = (request << 2) | answer;
                word(&self.map, channel::VERDICT).store(verdict, Ordering::Release);
                Some(Drained::Full)
            }
            // A sender without a grant has no fast box: the number of channels that every poll drains is bounded.
            kind::SWITCH if self.granted && !self.fast => {
                let order = self.ring.header();
                self.ring.advance();
                // The sender has done the same, unless it is malicious.
                let len = self.map.len() - sys::PAGE;
                if self.map.populate(sys::PAGE, len).is_err()
                    || order > 1
                    || !self.ring.switch(channel::fast(self.fastbox, order == 1))
                {
                    return Some(Drained::Broken);
                }
                self.fast = true;
                self.turned = true;
                Some(Drained::Full)
            }
            _ => Some(Drained::Broken),
        }
    }

    /// Publishes the consumed position, and wakes the sender if it waits for that.
    #[inline]
    pub(crate) fn publish(&mut self) {
        self.ring.publish();
        self.chunk_bytes = 0;
        if wake::announce(self.fenced, || {}, word(&self.map, channel::WAITING)) {
            self.wake_sender();
        }
    }

    #[cold]
    fn wake_sender(&self) {
        let _ = sys::send(&self.socket, &Record::Wake.pack(), &[]);
    }

    /// Checks whether consumed slots are not published yet.
    pub(crate) fn is_behind(&self) -> bool {
        self.ring.unpublished() != 0
    }

    /// Checks whether there are slots that [`RecvChannel::drain`] has not seen.
    pub(crate) fn has_news(&self) -> bool {
        self.ring.peek() != Peek::Empty
    }

    pub(crate) fn set_sleeping(&self, sleeping: bool) {
        let flag = word(&self.map, channel::SLEEPING);
        if sleeping {
            wake::note(flag);
        } else if flag.load(Ordering::Relaxed) != 0 {
            flag.store(0, Ordering::Relaxed);
        }
    }

    /// Handles at most [`MOST_IN_TURN`] records of the socket. Returns whether there were no more.
    pub(crate) fn read_socket(&mut self, shared: &Shared) -> bool {
        let mut buffer = [0u8; MAX_RECORD];
        if self.leaving.is_some() {
            return true;
        }
        for _ in 0..MOST_IN_TURN {
            let (status, refusal) = match sys::receive(&self.socket, &mut buffer) {
                Ok(got) if got.len == 0 => (Status::PeerFailed as i32, None),
                Ok(got) => {
                    let record = Record::parse(&buffer[..got.len]);
                    match self.handle(record, got.fds, got.cut, shared) {
                        Ok(()) => continue,
                        Err(end) => end,
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return true,
                Err(error) if sys::is_passing(&error) => continue,
                Err(_) => (Status::PeerFailed as i32, None),
            };
            self.leave(shared, status, refusal);
            self.last = self.end_of_published();
            shared.inbound_ended(self.number as u32);
            return true;
        }
        false
    }

    /// Returns the position below which are all slots that can be published at this time.
    fn end_of_published(&self) -> u64 {
        let (cold, fast) =
            (channel::COLD.count as u64, channel::fast(self.fastbox, false).count as u64);
        // The other case is a full cold ring, whose last slot switches to a full fast box, which begins with a lap of its own.
        self.ring.position() + if self.fast { fast } else { cold + 2 * fast }
    }

    /// Notes the current end of published slots for [`RecvChannel::unread`].
    pub(crate) fn note_place(&mut self) {
        self.noted = self.end_of_published();
    }

    /// Returns an upper bound of the unread slots that were published when the position was noted.
    pub(crate) fn unread(&mut self) -> u64 {
        if self.noted != 0 && !self.has_news() {
            self.noted = 0;
        }
        self.noted.saturating_sub(self.ring.position())
    }

    /// Checks whether everything that the sender published before it ended is delivered.
    pub(crate) fn is_drained(&self) -> bool {
        !self.has_news() || self.ring.position() >= self.last
    }

    /// Stops reading from the sender. The sender is notified when the channel is dropped, with `refusal` if there is one. Until
    /// then slots and events point into the sender's pool, all of which the sender then takes back.
    pub(crate) fn leave(&mut self, shared: &Shared, status: i32, refusal: Option<Refusal>) {
        shared.epoll.remove(&self.socket);
        self.leaving = Some(status);
        self.refusal = self.refusal.take().or(refusal);
    }

    /// Handles a record. With `Err` the connection ends with this status, and this refusal is sent to the peer.
    fn handle(
        &mut self,
        record: Result<Record, Refusal>,
        mut fds: Vec<OwnedFd>,
        cut: bool,
        shared: &Shared,
    ) -> Result<(), (i32, Option<Refusal>)> {
        let nonsense = (Status::BadData as i32, Some(Refusal::BadChannel));
        match record {
            Ok(Record::Wake) => Ok(()),
            Ok(Record::Bye) => Err((0, None)),
            Ok(Record::Segment { number, len }) => {
                if cut && fds.is_empty() {
                    return Err((Status::NoMemory as i32, Some(Refusal::Resources)));
                }
                let expected = self.segments.len();
                let len = usize::try_from(len).unwrap_or(0);
                let fits = expected < MAX_SEGMENTS && len <= LARGEST_SEGMENT;
                let (Some(fd), true) = (fds.pop(), number as usize == expected && fits) else {
                    return Err(nonsense);
                };
                match sys::map_peer(&fd, len, false) {
                    Some(map) => self.segments.push(map),
                    None if sys::backed_len(&fd).is_some_and(|real| real >= len && len > 0) => {
                        return Err((Status::NoMemory as i32, Some(Refusal::Resources)));
                    }
                    None => return Err(nonsense),
                }
                Ok(())
            }
            Ok(Record::KeyRequest { segment }) => {
                self.unanswered = Some(segment);
                self.catch_up(shared);
                Ok(())
            }
            _ => Err(nonsense),
        }
    }

    /// Checks whether an answer that could not be sent before is still owed.
    pub(crate) fn owes(&self) -> bool {
        self.unanswered.is_some() && self.leaving.is_none()
    }

    /// Sends the answer that is owed.
    pub(crate) fn catch_up(&mut self, shared: &Shared) {
        if let (true, Some(segment)) = (self.owes(), self.unanswered) {
            if shared.domain.exports.answer(&self.socket, segment) {
                self.unanswered = None;
            }
        }
    }

    /// Returns the bytes of mapped memory that this end may have touched.
    pub(crate) fn memory(&self) -> u64 {
        let fast = if self.fast { self.map.len() - sys::PAGE } else { 0 };
        (sys::PAGE + fast + size_of::<RecvChannel>()) as u64
    }
}

impl Drop for RecvChannel {
    fn drop(&mut self) {
        if let Some(refusal) = self.refusal {
            let _ = sys::send(&self.socket, &Record::Refused(refusal).pack(), &[]);
        }
    }
}
