//! The sending half of a session: frames in the order of their sequence numbers, until they are not needed any more. Each stream
//! takes frames at its own speed. This module does not write to sockets.
//!
//! A session that *retains* keeps every frame until the peer has acknowledged it, and sends the frames of a broken stream again. A
//! session that does not retain releases a frame as soon as the kernel has it.

mod missing;

pub(crate) use missing::Missing;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::sys::Piece;

use crate::frame::{HEAD, Head, KeyPart, Kind, LONG_HEAD, Malformed};
use crate::gathered::Gathered;
use crate::regions::Region;
use crate::ring::Ring;
use crate::sys;
use crate::window::WINDOW;

/// The length from which on a merged frame takes no further frame. A merged frame releases its room as a whole.
const MERGED: usize = 16 << 10;
/// The room in the ring that messages leave to answers.
const RESERVE: usize = 4 << 10;
/// The bytes sent in place of memory that is not read any more, in a frame whose length was already promised.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

#[derive(Debug)]
enum Body {
    /// The payload is in the ring, from this position on.
    Copied(u64),
    Bulk(Box<Bulk>),
}

/// A piece of a put or get that is sent in place.
#[derive(Debug)]
struct Bulk {
    head: [u8; LONG_HEAD],
    head_len: usize,
    pieces: Vec<Piece>,
    /// The region that holds the memory, unless it is an operation's own memory.
    region: Option<Arc<Region>>,
    /// The put to which the piece belongs, and whether it is the put's last piece.
    put: Option<u32>,
    last: bool,
    owned: Box<[u8]>,
    /// Whether the piece is zeros or a copy, and not memory of the application.
    is_ours: bool,
    begun: bool,
    /// Whether the kernel has had all of the piece once.
    sent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameState {
    /// The frame is not begun, or has to be sent again.
    Waiting,
    /// A part of the frame is written to this stream.
    Doing(u8),
    /// The frame is written to this stream.
    Sent(u8),
}

#[derive(Debug)]
struct Frame {
    body: Body,
    len: usize,
    state: FrameState,
    since_ms: u64,
}

/// The frame in progress of a stream.
#[derive(Debug, Default)]
pub(crate) struct Track {
    pub(crate) number: u8,
    doing: Option<(u64, usize)>,
    /// A frame without a sequence number, and the number of its written bytes.
    aside: Option<([u8; HEAD], usize)>,
}

impl Track {
    pub(crate) fn new(number: u8) -> Track {
        Track { number, ..Track::default() }
    }

    /// Sends a frame without a sequence number next, in place of such a frame that has not begun. Returns `false` if one has begun.
    pub(crate) fn send_aside(&mut self, head: &Head) -> bool {
        let free = self.aside.is_none_or(|(_, at)| at == 0);
        if free {
            self.aside = Some((head.pack(), 0));
        }
        free
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.doing.is_none() && self.aside.is_none()
    }
}

/// The outgoing frames of a session.
#[derive(Debug)]
pub(crate) struct Outbox {
    retain: bool,
    ring: Ring,
    frames: VecDeque<Frame>,
    /// The number of the first frame; in a session that retains, its sequence number.
    first: u64,
    /// The number of frames from `first` on that some stream has begun.
    begun: usize,
    /// The begun frames that must be sent again, lowest first.
    again: VecDeque<u64>,
    acked: u64,
    next_seq: u32,
    /// The number of bytes of frames that no stream has begun.
    waiting: usize,
    /// Whether memory that is gone would have to be sent once more.
    lost: bool,
    /// The puts that the kernel has read completely, if frames are never sent again.
    read: Vec<u32>,
    /// The bytes and frames reserved for messages that are being packed.
    reserved: (usize, u32),
}

impl Outbox {
    pub(crate) fn new(capacity: usize, retain: bool) -> Outbox {
        Outbox {
            retain,
            ring: Ring::new(capacity),
            frames: VecDeque::new(),
            first: 0,
            begun: 0,
            again: VecDeque::new(),
            acked: 0,
            next_seq: 0,
            waiting: 0,
            lost: false,
            read: Vec::new(),
            reserved: (0, 0),
        }
    }

    pub(crate) fn retains(&self) -> bool {
        self.retain
    }

    /// Checks whether no frame is kept and none waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Checks whether streams have written all frames.
    pub(crate) fn is_written_out(&self) -> bool {
        self.frames.iter().all(|frame| matches!(frame.state, FrameState::Sent(_)))
    }

    /// Returns the number of bytes in the frames that no stream has begun to send.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns the size of the buffer memory.
    pub(crate) fn committed(&self) -> usize {
        self.ring.committed() + self.frames.capacity() * size_of::<Frame>()
    }

    /// Checks whether a message of this length, head included, fits into the outbox.
    #[inline]
    pub(crate) fn has_room(&self, len: usize) -> bool {
        let (bytes, frames) = self.reserved;
        len + RESERVE + bytes <= self.ring.room()
            && !(self.retain && self.frames.len() as u32 + frames >= WINDOW - 64)
    }

    /// Checks whether room is reserved for a message whose packer runs.
    #[inline]
    pub(crate) fn is_reserved(&self) -> bool {
        self.reserved.1 > 0
    }

    /// Reserves room for a message. The caller has checked that the message fits.
    pub(crate) fn reserve(&mut self, len: usize) {
        self.reserved = (self.reserved.0 + len, self.reserved.1 + 1);
    }

    /// Releases the reservation.
    pub(crate) fn unreserve(&mut self, len: usize) {
        self.reserved = (self.reserved.0.saturating_sub(len), self.reserved.1.saturating_sub(1));
    }

    /// Checks whether an answer fits, for which room is set aside.
    pub(crate) fn has_room_for_answer(&self) -> bool {
        LONG_HEAD <= self.ring.room() && !(self.retain && self.frames.len() as u32 >= WINDOW)
    }

    /// Checks whether a piece of a put or get fits.
    pub(crate) fn has_room_for_bulk(&self) -> bool {
        self.frames.len() < if self.retain { 128 } else { 8192 }
    }

    /// Checks whether the session has failed.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost
    }

    /// Returns the sequence number of the next frame, and counts the frame.
    #[inline]
    pub(crate) fn take_seq(&mut self) -> u32 {
        let seq = self.next_seq;
        self.next_seq = seq.wrapping_add(1);
        seq
    }

    /// Keeps the rest of an immediately sent frame that the kernel did not take.
    pub(crate) fn push_rest(&mut self, track: &mut Track, bytes: &[u8]) {
        let at = self.ring.position();
        self.ring.push(bytes);
        track.doing = Some((self.first + self.frames.len() as u64, 0));
        self.frames.push_back(Frame {
            body: Body::Copied(at),
            len: bytes.len(),
            state: FrameState::Doing(track.number),
            since_ms: 0,
        });
        self.begun = self.frames.len();
    }

    /// Adds a frame and copies its payload. The caller has checked that the frame fits.
    pub(crate) fn push(&mut self, mut head: Head, key: Option<&KeyPart>, payload: &[u8]) {
        head.seq = self.take_seq();
        head.len = payload.len() as u32;
        let at = self.ring.position();
        let long;
        let short;
        let bytes: &[u8] = match key {
            Some(key) => {
                long = head.pack_with(key);
                &long
            }
            None => {
                short = head.pack();
                &short
            }
        };
        self.ring.push(bytes);
        self.ring.push(payload);
        let len = bytes.len() + payload.len();
        self.waiting += len;
        // If frames are never sent again, a frame can join the last one.
        if !self.retain && self.begun < self.frames.len() {
            if let Some(Frame { body: Body::Copied(_), len: last, .. }) = self.frames.back_mut() {
                if *last < MERGED {
                    *last += len;
                    return;
                }
            }
        }
        let (body, state) = (Body::Copied(at), FrameState::Waiting);
        self.frames.push_back(Frame { body, len, state, since_ms: 0 });
    }

    /// Adds a frame whose payload is sent in place; returns its number.
    pub(crate) fn push_bulk(
        &mut self,
        mut head: Head,
        key: Option<&KeyPart>,
        pieces: Vec<Piece>,
        region: Option<Arc<Region>>,
    ) -> u64 {
        let payload: usize = pieces.iter().map(|piece| piece.len()).sum();
        let put = (head.kind == Kind::Put).then_some(head.number);
        head.seq = self.take_seq();
        head.len = payload as u32;
        let (mut bytes, head_len) = ([0; LONG_HEAD], head.head_len());
        match key {
            Some(key) => bytes = head.pack_with(key),
            None => bytes[..HEAD].copy_from_slice(&head.pack()),
        }
        let owned = Box::default();
        let last = head.last;
        let bulk = Bulk {
            head: bytes,
            head_len,
            pieces,
            region,
            put,
            last,
            owned,
            is_ours: false,
            begun: false,
            sent: false,
        };
        let len = head_len + payload;
        self.waiting += len;
        let body = Body::Bulk(Box::new(bulk));
        self.frames.push_back(Frame { body, len, state: FrameState::Waiting, since_ms: 0 });
        self.first + self.frames.len() as u64 - 1
    }

    /// Checks whether a frame has been written, whether or not it is still kept.
    pub(crate) fn is_written(&self, number: u64) -> bool {
        number < self.first
            || self
                .frames
                .get((number - self.first) as usize)
                .is_some_and(|frame| matches!(frame.state, FrameState::Sent(_)))
    }

    /// Collects the bytes that a stream writes next. These bytes must not change before [`Outbox::wrote`].
    pub(crate) fn gather(&mut self, track: &Track, out: &mut Gathered) {
        if let Some((number, at)) = track.doing {
            self.gather_frame(number, at, out);
        }
        if let Some((bytes, at)) = &track.aside {
            out.add(&bytes[*at..]);
        }
        let mut n = 0;
        while let Some(&number) = self.again.get(n) {
            if out.is_full() {
                return;
            }
            self.gather_frame(number, 0, out);
            n += 1;
        }
        for index in self.begun..self.frames.len() {
            if out.is_full() {
                return;
            }
            self.gather_frame(self.first + index as u64, 0, out);
        }
    }

    fn gather_frame(&mut self, number: u64, at: usize, out: &mut Gathered) {
        let Some(frame) = self.frames.get_mut((number - self.first) as usize) else { return };
        match &mut frame.body {
            Body::Copied(position) => {
                let (a, b) = self.ring.slices(*position + at as u64, frame.len - at);
                out.add(a);
                out.add(b);
            }
            Body::Bulk(bulk) => {
                if at < bulk.head_len {
                    out.add(&bulk.head[at..bulk.head_len]);
                }
                let skip = at.saturating_sub(bulk.head_len);
                if let Some(region) = &bulk.region {
                    match region.pin() {
                        Some(pin) => out.pins.push(pin),
                        None => {
                            self.lost |= bulk.begun && self.retain;
                            bulk.forget();
                        }
                    }
                }
                let mut pieces = Vec::with_capacity(bulk.pieces.len());
                sys::cut(&bulk.pieces, skip, usize::MAX, &mut pieces);
                pieces.into_iter().for_each(|piece| out.add_piece(piece));
            }
        }
    }

    /// Records that the kernel took `count` of the gathered bytes from this stream.
    pub(crate) fn wrote(&mut self, track: &mut Track, mut count: usize, now_ms: u64) {
        if let Some((number, at)) = track.doing {
            count = self.take(track, number, at, count, now_ms);
        }
        if let Some((_, at)) = track.aside.as_mut().filter(|_| count > 0) {
            let taken = count.min(HEAD - *at);
            *at += taken;
            count -= taken;
            if *at == HEAD {
                track.aside = None;
            }
        }
        while count > 0 {
            if let Some(number) = self.again.pop_front() {
                count = self.take(track, number, 0, count, now_ms);
            } else if self.begun < self.frames.len() {
                let number = self.first + self.begun as u64;
                self.waiting -= self.frames[self.begun].len;
                self.begun += 1;
                count = self.take(track, number, 0, count, now_ms);
            } else {
                break;
            }
        }
        self.release();
    }

    /// Counts bytes of one frame. Returns the number of bytes that belong to the next frame.
    fn take(
        &mut self,
        track: &mut Track,
        number: u64,
        at: usize,
        count: usize,
        now_ms: u64,
    ) -> usize {
        let Some(frame) = self.frames.get_mut((number - self.first) as usize) else { return 0 };
        let rest = frame.len - at;
        if let Body::Bulk(bulk) = &mut frame.body {
            bulk.begun = true;
            bulk.sent |= count >= rest;
            if let (Some(put), true) = (bulk.put, bulk.last && bulk.sent && !self.retain) {
                self.read.push(put);
            }
        }
        frame.since_ms = now_ms;
        if count >= rest {
            frame.state = FrameState::Sent(track.number);
            track.doing = None;
            count - rest
        } else {
            frame.state = FrameState::Doing(track.number);
            track.doing = Some((number, at + count));
            0
        }
    }

    fn release(&mut self) {
        while let Some(frame) = self.frames.front() {
            let done = match frame.state {
                FrameState::Sent(_) => !self.retain || self.first < self.acked,
                // The frame was acknowledged while it waited to be sent again.
                FrameState::Waiting => self.retain && self.first < self.acked,
                FrameState::Doing(_) => false,
            };
            if !done {
                break;
            }
            if let Body::Copied(_) = frame.body {
                self.ring.pop(frame.len);
            }
            if self.again.front() == Some(&self.first) {
                let _ = self.again.pop_front();
            }
            let _ = self.frames.pop_front();
            self.first += 1;
            self.begun = self.begun.saturating_sub(1);
        }
    }

    /// Records that the peer has received all frames before `ack`.
    pub(crate) fn acknowledged(&mut self, ack: u32) -> Result<(), Malformed> {
        if !self.retain {
            return Ok(());
        }
        let known = self.first.max(self.acked);
        let ahead = ack.wrapping_sub(known as u32);
        if ahead >= 1 << 31 {
            return Ok(()); // an older acknowledgement
        }
        let acked = known + u64::from(ahead);
        if acked > self.first + self.begun as u64 {
            return Err("an acknowledgement of what was never sent");
        }
        self.acked = acked;
        self.release();
        Ok(())
    }

    /// Handles the loss of a stream, whose unacknowledged frames must be sent again.
    pub(crate) fn stream_broke(&mut self, number: u8) {
        for (index, frame) in self.frames.iter_mut().take(self.begun).enumerate() {
            if matches!(frame.state, FrameState::Doing(n) | FrameState::Sent(n) if n == number) {
                frame.state = FrameState::Waiting;
                self.again.push_back(self.first + index as u64);
            }
        }
        self.again.make_contiguous().sort_unstable();
        self.release();
    }

    /// Returns the oldest unacknowledged frame: its stream, and the time at which it was last written, in ms.
    pub(crate) fn oldest(&self) -> Option<(u8, u64)> {
        let frame = self.frames.front()?;
        match frame.state {
            FrameState::Sent(stream) | FrameState::Doing(stream) => Some((stream, frame.since_ms)),
            FrameState::Waiting => None,
        }
    }

    /// Copies the payloads that are in operations' memory, because that memory is about to be released.
    pub(crate) fn own_payloads(&mut self) {
        for frame in &mut self.frames {
            match &mut frame.body {
                Body::Bulk(bulk) if bulk.region.is_none() => bulk.copy(),
                _ => {}
            }
        }
    }

    /// Handles the end of a put: if the put is sent again, its memory is not read any more. Returns `false` if the put cannot have
    /// ended, because not all of it was sent.
    pub(crate) fn end_put(&mut self, number: u32) -> bool {
        let puts = self.frames.iter_mut().filter_map(|frame| match &mut frame.body {
            Body::Bulk(bulk) if bulk.put == Some(number) => Some(bulk),
            _ => None,
        });
        let mut sent = true;
        for bulk in puts {
            sent &= bulk.sent;
            bulk.forget(); // the peer has the put, so it discards all data of the put that arrives again
        }
        sent
    }

    /// Takes a put that the kernel has read completely.
    pub(crate) fn take_read(&mut self) -> Option<u32> {
        self.read.pop()
    }

    /// Frees the memory of an empty outbox.
    pub(crate) fn trim(&mut self) {
        if self.frames.is_empty() {
            self.ring.trim();
            self.frames = VecDeque::new();
            self.again = VecDeque::new();
        }
    }
}

impl Bulk {
    /// Replaces the memory of the piece, which is released, by zeros of the same length.
    fn forget(&mut self) {
        let mut left: usize = self.pieces.iter().map(|piece| piece.len()).sum();
        self.pieces.clear();
        (self.region, self.is_ours) = (None, true);
        while left > 0 {
            let len = left.min(ZEROS.len());
            self.pieces.push(sys::piece(&ZEROS[..len]));
            left -= len;
        }
    }

    fn copy(&mut self) {
        let len: usize = self.pieces.iter().map(|piece| piece.len()).sum();
        let mut owned = vec![0; len].into_boxed_slice();
        let mut at = 0;
        for &piece in &self.pieces {
            sys::read_piece(piece, &mut owned[at..]);
            at += piece.len();
        }
        self.owned = owned;
        self.pieces = vec![sys::piece(&self.owned)];
        self.is_ours = true;
    }
}
