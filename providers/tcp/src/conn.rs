//! A connection: what an endpoint of this side and one of the peer share. Sending, and the beginning and end of
//! its life; `receive.rs` reads, `link.rs` dials.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tieline_net::Contact;
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{Posting, Status};

use crate::frame::{HEAD, Head, KeyPart, Kind, LONG_HEAD, MAX_FRAGMENT, status_word};
use crate::interface::Shared;
use crate::link::{Early, Link};
use crate::ops::{BulkOp, MAX_FLUSHES, Ops, Serve};
use crate::outbox::Outbox;
use crate::receive::Item;
use crate::stream::{Broke, Stream};
use crate::sys;
use crate::window::Window;

/// Puts and gets up to this length are copied and sent with their heads.
pub(crate) const SMALL: usize = 8 << 10;
/// Bytes after which it is another stream's turn: a few messages stay on the one that the peer looks at already.
const TURN: usize = 64 << 10;
/// In the word of an acknowledgement: asks for one in return, on the same stream.
pub(crate) const ANSWER: u64 = 1;
/// How long a closed endpoint waits for the peer to have read everything.
const LINGER: Duration = Duration::from_secs(5);

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// `connect` was not called yet.
    Waiting,
    /// No stream stands yet.
    Linking,
    Open,
    /// The endpoint is closed; what it has sent is still on its way.
    Closing,
    Failed(Status),
}

/// What the peer's endpoint address says.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) contact: Contact,
    pub(crate) id: u64,
    pub(crate) domain: u64,
}

/// A connection, shared by its endpoint and its interface.
pub(crate) struct Conn {
    /// Names it within its interface's address.
    pub(crate) id: u64,
    pub(crate) index: u32,
    pub(crate) inner: RefCell<Inner>,
}

pub(crate) struct Inner {
    pub(crate) cookie: u64,
    pub(crate) id: u64,
    pub(crate) index: u32,
    pub(crate) shared: Rc<Shared>,
    pub(crate) phase: Phase,
    /// The endpoint is closed: nothing is told any more.
    pub(crate) abandoned: bool,
    pub(crate) peer: Option<Box<Peer>>,
    pub(crate) links: Vec<Link>,
    pub(crate) early: Vec<Early>,
    pub(crate) outbox: Outbox,
    pub(crate) window: Window<Item>,
    pub(crate) held_bytes: usize,
    pub(crate) ops: Option<Box<Ops>>,
    /// Frames and bytes that are not acknowledged, and the poll that brought the last.
    pub(crate) ack_owed: u32,
    pub(crate) ack_bytes: usize,
    pub(crate) ack_round: u64,
    /// The stream that brought it.
    pub(crate) ack_stream: usize,
    /// When something came last, on whichever stream.
    pub(crate) heard_ms: u64,
    pub(crate) flagged: Cell<bool>,
    pub(crate) timed: Cell<bool>,
    /// Something was sent, and nobody has looked yet whether it was answered; when that began.
    pub(crate) expects: Cell<bool>,
    pub(crate) expects_since: Cell<Instant>,
    /// When it began to wait for its first stream, or for one to come back; for closed ones, for the peer.
    pub(crate) since: Instant,
    pub(crate) gone_since: Option<Instant>,
    pub(crate) last_words: String,
    goodbye_sent: bool,
    unflushed: bool,
    /// The stream that is to write next.
    turn: usize,
    turn_bytes: usize,
}

impl Conn {
    pub(crate) fn new(shared: &Rc<Shared>, cookie: u64, id: u64, index: u32) -> Conn {
        let inner = Inner {
            cookie,
            id,
            index,
            shared: Rc::clone(shared),
            phase: Phase::Waiting,
            abandoned: false,
            peer: None,
            links: Vec::new(),
            early: Vec::new(),
            outbox: Outbox::new(shared.settings.send_buffer, false),
            window: Window::default(),
            held_bytes: 0,
            ops: None,
            ack_owed: 0,
            ack_bytes: 0,
            ack_round: 0,
            ack_stream: 0,
            heard_ms: 0,
            flagged: Cell::new(false),
            timed: Cell::new(false),
            expects: Cell::new(false),
            expects_since: Cell::new(Instant::now()),
            since: Instant::now(),
            gone_since: None,
            last_words: String::new(),
            goodbye_sent: false,
            unflushed: false,
            turn: 0,
            turn_bytes: 0,
        };
        Conn { id, index, inner: RefCell::new(inner) }
    }
}

impl Inner {
    // ---- what the endpoint asks for ----

    /// Why nothing can be posted, if so.
    #[inline]
    pub(crate) fn ready(&mut self) -> Result<(), Status> {
        match self.phase {
            Phase::Open if self.ops.is_none() => Ok(()),
            Phase::Open => self.past_fence(),
            Phase::Waiting | Phase::Linking => Err(Status::Again),
            Phase::Closing => Err(Status::Closed),
            Phase::Failed(status) => Err(status),
        }
    }

    fn past_fence(&mut self) -> Result<(), Status> {
        let in_order = !self.outbox.retains();
        let barred = self.ops.as_mut().is_some_and(|ops| ops.is_barred(in_order));
        if barred { Err(Status::Again) } else { Ok(()) }
    }

    /// Sends a frame with a payload that is copied, now if the kernel takes it.
    #[inline]
    pub(crate) fn submit(
        &mut self,
        head: Head,
        key: Option<&KeyPart>,
        payload: &[u8],
    ) -> Result<(), Status> {
        self.unflushed = true;
        if self.is_quick() {
            self.send_now(head, key, payload);
            return Ok(());
        }
        self.submit_later(head, key, payload)
    }

    /// One stream, nothing kept and nothing waiting: frames go straight to the kernel.
    #[inline]
    fn is_quick(&self) -> bool {
        !self.outbox.retains()
            && self.outbox.is_empty()
            && matches!(
                &self.links[..],
                [Link { stream: Some(stream), .. }] if !stream.blocked && stream.track.is_idle()
            )
    }

    #[inline]
    fn send_now(&mut self, mut head: Head, key: Option<&KeyPart>, payload: &[u8]) {
        const STACK: usize = 512;
        head.seq = self.outbox.take_seq();
        head.len = payload.len() as u32;
        let mut bytes = [0u8; STACK];
        let head_len = match key {
            None => {
                bytes[..HEAD].copy_from_slice(&head.pack());
                HEAD
            }
            Some(key) => {
                bytes[..LONG_HEAD].copy_from_slice(&head.pack_with(key));
                LONG_HEAD
            }
        };
        self.expect_answer();
        let Some(stream) = self.links.first_mut().and_then(|link| link.stream.as_mut()) else {
            return;
        };
        let total = head_len + payload.len();
        let sent = if total <= STACK {
            bytes[head_len..total].copy_from_slice(payload);
            sys::send(stream.sender(), &bytes[..total])
        } else {
            stream.write(&[sys::piece(&bytes[..head_len]), sys::piece(payload)])
        };
        if matches!(sent, Ok(n) if n == total) {
            return;
        }
        let sent = match sent {
            Ok(n) => n,
            Err(error) if sys::is_passing(&error) => 0,
            Err(error) => {
                stream.error = Some(error);
                return self.call_attention();
            }
        };
        let in_head = sent.min(head_len);
        if in_head < head_len {
            self.outbox
                .push_rest(&mut stream.track, &[&bytes[in_head..head_len], payload].concat());
        } else {
            self.outbox.push_rest(&mut stream.track, &payload[sent - head_len..]);
        }
        self.block(0);
    }

    fn submit_later(
        &mut self,
        mut head: Head,
        key: Option<&KeyPart>,
        payload: &[u8],
    ) -> Result<(), Status> {
        if !self.outbox.has_room(LONG_HEAD + payload.len()) {
            return Err(Status::Again);
        }
        head.ack = self.acknowledge();
        self.outbox.push(head, key, payload);
        self.flush();
        Ok(())
    }

    /// Sends a message gathered from pieces.
    pub(crate) fn submit_pieces(
        &mut self,
        id: u32,
        header: u64,
        iov: &[Iov],
    ) -> Result<(), Status> {
        let len: usize = iov.iter().map(|piece| piece.len).sum();
        let mut head = Head::bare(Kind::Message, id, header);
        if let [piece] = iov {
            if self.is_quick() && len > SMALL {
                return self.send_piece_now(head, *piece);
            }
        }
        if !self.is_quick() && !self.outbox.has_room(LONG_HEAD + len) {
            return Err(Status::Again);
        }
        head.len = len as u32;
        let mut scratch = self.shared.scratch.take();
        scratch.resize(crate::frame::MAX_MESSAGE, 0);
        let mut at = 0;
        for &piece in iov {
            sys::read_piece(piece, &mut scratch[at..]);
            at += piece.len;
        }
        let result = self.submit(head, None, &scratch[..len]);
        let _ = self.shared.scratch.replace(scratch);
        result
    }

    /// Sends one piece from where it lies; what the kernel does not take is copied.
    fn send_piece_now(&mut self, mut head: Head, piece: Iov) -> Result<(), Status> {
        self.unflushed = true;
        let Some(stream) = self.links.first_mut().and_then(|link| link.stream.as_mut()) else {
            return Err(Status::Again);
        };
        head.seq = self.outbox.take_seq();
        head.len = piece.len as u32;
        let bytes = head.pack();
        let sent = match stream.write(&[sys::piece(&bytes), piece]) {
            Ok(n) if n == HEAD + piece.len => return Ok(()),
            Ok(n) => n,
            Err(error) if sys::is_passing(&error) => 0,
            Err(error) => {
                stream.error = Some(error);
                self.call_attention();
                return Ok(());
            }
        };
        let mut rest = bytes[sent.min(HEAD)..].to_vec();
        let begin = rest.len();
        let tail = sys::tail(piece, sent.saturating_sub(HEAD));
        rest.resize(begin + tail.len, 0);
        sys::read_piece(tail, &mut rest[begin..]);
        self.outbox.push_rest(&mut stream.track, &rest);
        self.block(0);
        Ok(())
    }

    pub(crate) fn ops(&mut self) -> &mut Ops {
        self.ops.get_or_insert_default()
    }

    /// Posts a flush.
    pub(crate) fn post_flush(&mut self, cookie: u64) -> Result<Posting, Status> {
        match self.phase {
            Phase::Open => {}
            Phase::Waiting | Phase::Linking => return Ok(Posting::Done),
            Phase::Closing => return Err(Status::Closed),
            Phase::Failed(status) => return Err(status),
        }
        if !self.unflushed && self.ops.as_ref().is_none_or(|ops| ops.is_idle()) {
            return Ok(Posting::Done);
        }
        if self.ops().flushes.len() >= MAX_FLUSHES {
            return Err(Status::Again);
        }
        let number = self.ops().last_flush.wrapping_add(1);
        if self.ops().bulk.is_empty() {
            self.submit(Head::bare(Kind::Flush, number, 0), None, &[])?;
        } else {
            self.ops().bulk.push_back(BulkOp::Flush { number });
        }
        self.unflushed = false;
        let ops = self.ops();
        ops.last_flush = number;
        ops.flushes.push_back(crate::ops::FlushOp {
            number,
            cookie,
            last_get: ops.last_get,
            last_put: ops.last_put,
            answered: false,
            result: Ok(()),
        });
        Ok(Posting::Pending)
    }

    // ---- sending ----

    /// The value of `ack` for a frame that is sent now.
    pub(crate) fn acknowledge(&mut self) -> u32 {
        self.ack_owed = 0;
        self.ack_bytes = 0;
        self.window.expected()
    }

    /// Asks the next poll to look at this connection.
    pub(crate) fn call_attention(&self) {
        if !self.flagged.replace(true) {
            self.shared.attention.borrow_mut().push(self.index);
        }
    }

    /// The kernel takes no more from a stream for now.
    pub(crate) fn block(&mut self, number: usize) {
        let index = self.index;
        let Some(stream) = self.links.get_mut(number).and_then(|link| link.stream.as_mut()) else {
            return;
        };
        if !stream.blocked {
            stream.blocked = true;
            self.shared.blocked.set(self.shared.blocked.get() + 1);
            self.shared.watch_stream(stream, index, number);
        }
    }

    pub(crate) fn unblock(&mut self, number: usize) {
        let index = self.index;
        let Some(stream) = self.links.get_mut(number).and_then(|link| link.stream.as_mut()) else {
            return;
        };
        if stream.blocked {
            stream.blocked = false;
            self.shared.blocked.set(self.shared.blocked.get().saturating_sub(1));
            self.shared.watch_stream(stream, index, number);
        }
    }

    /// Writes what the streams take. They take turns, so that a faster one has more of them.
    pub(crate) fn flush(&mut self) {
        let count = self.links.len();
        if count == 1 {
            return self.flush_stream(0);
        }
        let mut unable = 0;
        while unable < count {
            if self.turn >= count {
                self.turn = 0;
            }
            match self.write_once(self.turn) {
                Wrote::Nothing => return,
                Wrote::Some if self.turn_bytes <= TURN => continue,
                Wrote::Some => unable = 0,
                Wrote::Unable => unable += 1,
            }
            self.turn_bytes = 0;
            self.turn += 1;
        }
    }

    pub(crate) fn flush_stream(&mut self, number: usize) {
        while self.write_once(number) == Wrote::Some {}
    }

    /// One system call's worth.
    fn write_once(&mut self, number: usize) -> Wrote {
        match self.links.get(number).and_then(|link| link.stream.as_ref()) {
            Some(stream) if !stream.blocked && stream.error.is_none() => {}
            _ => return Wrote::Unable,
        }
        self.answer();
        self.cut();
        self.expect_answer();
        let shared = Rc::clone(&self.shared);
        let Some(stream) = self.links.get_mut(number).and_then(|link| link.stream.as_mut()) else {
            return Wrote::Unable;
        };
        let mut gathered = shared.gathered.borrow_mut();
        gathered.clear();
        self.outbox.gather(&stream.track, &mut gathered);
        if gathered.len == 0 {
            return Wrote::Nothing;
        }
        let written = stream.write(&gathered.pieces);
        let all = gathered.len;
        gathered.clear();
        match written {
            Ok(count) => {
                self.outbox.wrote(&mut stream.track, count, shared.now_ms());
                self.turn_bytes += count;
                if count == all {
                    return Wrote::Some;
                }
                self.block(number);
                Wrote::Unable
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Wrote::Some,
            Err(error) if sys::is_passing(&error) => {
                self.block(number);
                Wrote::Unable
            }
            Err(error) => {
                stream.error = Some(error);
                self.call_attention();
                Wrote::Unable
            }
        }
    }

    /// Cuts bulk transfers into frames, a little ahead of what streams can take.
    fn cut(&mut self) {
        let Some(ops) = &mut self.ops else { return };
        let fragment = if self.links.len() > 1 { MAX_FRAGMENT / 2 } else { MAX_FRAGMENT };
        while self.outbox.waiting() < MAX_FRAGMENT && self.outbox.has_room_for_bulk() {
            if ops.serves_turn() {
                let Some(serve) = ops.serves.iter_mut().find(|serve| serve.has_more()) else {
                    return;
                };
                let Ok(region) = &serve.region else { return };
                let len = fragment.min((serve.len - serve.cut) as usize);
                let piece = region.piece(serve.offset + serve.cut, len);
                let head = Head::bare(Kind::GetData, serve.number, serve.cut);
                serve.last_frame =
                    self.outbox.push_bulk(head, None, vec![piece], Some(region.clone()));
                serve.cut += len as u64;
                continue;
            }
            match ops.bulk.front_mut() {
                None => return,
                Some(BulkOp::Flush { number }) => {
                    if !self.outbox.has_room_for_answer() {
                        return;
                    }
                    self.outbox.push(Head::bare(Kind::Flush, *number, 0), None, &[]);
                    let _ = ops.bulk.pop_front();
                }
                Some(BulkOp::Put { number, key, offset, pieces, len, cut }) => {
                    let part = fragment.min(*len - *cut);
                    let mut head = Head::bare(Kind::Put, *number, *offset + *cut as u64);
                    head.last = *cut + part == *len;
                    let mut fragment = Vec::new();
                    sys::cut(pieces, *cut, part, &mut fragment);
                    let _ = self.outbox.push_bulk(head, Some(key), fragment, None);
                    *cut += part;
                    if head.last {
                        let _ = ops.bulk.pop_front();
                    }
                }
            }
        }
    }

    /// Tells the peer how its puts, gets and flushes ended, while there is room.
    fn answer(&mut self) {
        let Some(ops) = &mut self.ops else { return };
        while let Some(&(number, status)) = ops.failures.front() {
            if !self.outbox.has_room_for_answer() {
                return;
            }
            self.outbox.push(
                Head::bare(Kind::PutFailed, number, status_word(Err(status))),
                None,
                &[],
            );
            let _ = ops.failures.pop_front();
        }
        if let Some(number) = ops.done.filter(|_| self.outbox.has_room_for_answer()) {
            self.outbox.push(Head::bare(Kind::PutDone, number, 0), None, &[]);
            ops.done = None;
        }
        if let Some(number) = ops.flush_asked.filter(|_| self.outbox.has_room_for_answer()) {
            self.outbox.push(Head::bare(Kind::FlushDone, number, 0), None, &[]);
            ops.flush_asked = None;
        }
        while let Some(serve) = ops.serves.front_mut() {
            if !self.outbox.has_room_for_answer() {
                return;
            }
            let small = (serve.len as usize) <= SMALL && serve.cut == 0;
            if small && serve.region.is_ok() && self.outbox.has_room(LONG_HEAD + SMALL) {
                serve_small(&mut self.outbox, serve);
            }
            let end = match &serve.region {
                Err(status) => Err(*status),
                Ok(_) if serve.cut < serve.len => return,
                Ok(_) if serve.cut > SMALL as u64 && !self.outbox.is_written(serve.last_frame) => {
                    return;
                }
                // Zeros were sent if it was deregistered meanwhile.
                Ok(region) if region.is_revoked() => Err(Status::KeyRejected),
                Ok(_) => Ok(()),
            };
            self.outbox.push(Head::bare(Kind::GetDone, serve.number, status_word(end)), None, &[]);
            let _ = ops.serves.pop_front();
        }
    }

    // ---- ends ----

    /// Ends the connection: everything under way completes with the status, then the endpoint has failed.
    pub(crate) fn fail(&mut self, status: Status, text: &str) {
        if matches!(self.phase, Phase::Failed(_)) {
            return;
        }
        self.phase = Phase::Failed(status);
        if !self.abandoned {
            for cookie in self.ops.take().map(|ops| ops.cookies()).unwrap_or_default() {
                self.shared.completed(cookie, Err(status));
            }
            self.shared.endpoint_failed(self.cookie, status, text);
        }
        self.let_go();
        self.call_attention();
    }

    /// Gives everything back but the name.
    pub(crate) fn let_go(&mut self) {
        for number in 0..self.links.len() {
            self.drop_stream(number);
        }
        self.links = Vec::new();
        self.early = Vec::new();
        self.ops = None;
        self.outbox = Outbox::new(self.shared.settings.send_buffer, false);
        self.window = Window::default();
        self.held_bytes = 0;
    }

    /// The application has closed its endpoint.
    pub(crate) fn close(&mut self) {
        self.abandoned = true;
        match self.phase {
            Phase::Open => {
                // The operations' memory may be gone after this call.
                self.ops = None;
                self.outbox.own_payloads();
                self.phase = Phase::Closing;
                self.since = Instant::now();
                self.finish();
                self.keep_time();
            }
            _ => {
                self.phase = Phase::Failed(Status::Closed);
                self.let_go();
            }
        }
        self.call_attention();
    }

    /// Says goodbye behind everything that is on its way, and no more once that is written.
    pub(crate) fn finish(&mut self) {
        if !self.goodbye_sent && self.outbox.has_room_for_answer() {
            let mut head = Head::bare(Kind::Goodbye, 0, 0);
            head.ack = self.acknowledge();
            self.outbox.push(head, None, &[]);
            self.goodbye_sent = true;
        }
        self.flush();
        if self.goodbye_sent && self.outbox.is_empty() {
            for stream in self.links.iter().filter_map(|link| link.stream.as_ref()) {
                sys::end_sending(stream.sender());
            }
            if self.leads_to_itself() {
                self.phase = Phase::Failed(Status::Closed);
                self.let_go();
            }
        }
    }

    fn leads_to_itself(&self) -> bool {
        self.links.iter().filter_map(|link| link.stream.as_ref()).any(|s| s.leads_to_itself())
    }

    /// Whether everything that was sent before closing is with the kernel.
    pub(crate) fn has_said_goodbye(&self) -> bool {
        self.phase != Phase::Closing || self.goodbye_sent && !self.outbox.has_waiting()
    }

    /// Whether nobody needs it any more.
    pub(crate) fn is_over(&self) -> bool {
        self.abandoned && matches!(self.phase, Phase::Failed(_))
    }

    /// Takes a stream out of use.
    pub(crate) fn drop_stream(&mut self, number: usize) {
        self.unblock(number);
        let Some(mut stream) = self.links.get_mut(number).and_then(|link| link.stream.take())
        else {
            return;
        };
        if self.phase != Phase::Open {
            stream.discard();
        }
        if let Some(buffer) = stream.buffer.take() {
            self.shared.cooling.borrow_mut().push(buffer);
        }
        if stream.hot {
            self.shared.cool(self.index, number);
        }
        self.shared.streams.set(self.shared.streams.get().saturating_sub(1));
    }

    /// A stream is of no use any more.
    pub(crate) fn stream_broke(&mut self, number: usize, broke: &Broke) {
        self.drop_stream(number);
        if self.phase == Phase::Closing && !self.outbox.retains() {
            self.phase = Phase::Failed(Status::Closed);
            self.let_go();
            return self.call_attention();
        }
        if !self.outbox.retains()
            || broke.status == Status::BadData
            || broke.status == Status::Closed
        {
            return self.fail(broke.status, &broke.text);
        }
        self.outbox.stream_broke(number as u8);
        self.last_words.clone_from(&broke.text);
        let now = Instant::now();
        if self.links.iter().all(|link| link.stream.is_none()) {
            // A connection that was reset tells of life there; one that timed out tells of none since then.
            self.since = match broke.status {
                Status::PeerFailed => now,
                _ => self.shared.at_ms(self.heard_ms),
            };
        }
        self.links[number].broke(now);
        self.keep_time();
        self.call_attention();
    }

    /// Something is sent: whether anybody answers will be looked at.
    #[inline]
    fn expect_answer(&self) {
        if !self.expects.replace(true) {
            let now = Instant::now();
            self.expects_since.set(now);
            self.shared.expect_answer(self.index, now);
        }
    }

    /// Breaks streams at whose other end nobody answers; `false` when no further look is needed.
    pub(crate) fn look_for_silence(&mut self, now: Instant) -> bool {
        self.expects.set(false);
        let (limit, marked) = (self.shared.settings.failure_timeout, self.expects_since.get());
        let mut busy = false;
        for number in 0..self.links.len() {
            let link = self.links.get_mut(number);
            let Some(stream) = link.and_then(|link| link.stream.as_mut()) else { continue };
            let Some(seen) = sys::unanswered(stream.sender()) else { continue };
            busy |= seen.is_busy();
            if stream.silence.look(now, marked, &seen) >= seen.patience(limit) {
                let error = std::io::Error::from_raw_os_error(libc::ETIMEDOUT);
                let broke = Broke::error(&stream.peer(), &error);
                self.stream_broke(number, &broke);
            }
        }
        busy
    }

    /// Asks for regular visits.
    pub(crate) fn keep_time(&self) {
        if !self.timed.replace(true) {
            self.shared.timed.borrow_mut().push(self.index);
        }
    }

    /// A regular visit; `false` when no further one is needed.
    pub(crate) fn tick(&mut self, now: Instant) -> bool {
        match self.phase {
            Phase::Waiting | Phase::Failed(_) => return false,
            Phase::Linking | Phase::Open => self.tend_links(now),
            Phase::Closing => {
                self.finish();
                if now.duration_since(self.since) > LINGER {
                    self.phase = Phase::Failed(Status::Closed);
                    self.let_go();
                    self.call_attention();
                    return false;
                }
                if self.outbox.retains() {
                    self.tend_links(now);
                }
            }
        }
        match self.phase {
            Phase::Failed(_) => false,
            Phase::Open => {
                self.outbox.retains() && !self.outbox.is_empty()
                    || self.links.iter().any(|link| link.stream.is_none())
            }
            _ => true,
        }
    }

    /// Gives up a stream that holds up the others.
    pub(crate) fn tend_stall(&mut self) {
        if self.outbox.is_lost() {
            let text =
                "memory was deregistered while it was being sent again after a connection broke";
            return self.fail(Status::Io, text);
        }
        let Some((stream, since)) = self.outbox.oldest() else { return };
        let (suspect, now) = (usize::from(stream), self.shared.now_ms());
        let waited = now.saturating_sub(since);
        let stall = self.shared.settings.stall.as_millis() as u64;
        let streams = |wanted: bool| {
            let streams = self.links.iter().filter_map(|link| link.stream.as_ref());
            streams.filter(move |stream| (usize::from(stream.track.number) == suspect) == wanted)
        };
        let silent = streams(true).all(|stream| stream.heard_ms <= since);
        if waited <= stall / 2 || !silent {
            return;
        }
        let others_answer = streams(false).any(|stream| stream.heard_ms > since + stall / 2);
        if waited > stall && others_answer {
            let Some(peer) = streams(true).next().map(|stream| stream.peer()) else { return };
            let text = format!("nothing moves on the connection to {peer}, while others do");
            return self.stream_broke(suspect, &Broke { status: Status::TimedOut, text });
        }
        self.ask_others(suspect);
    }

    /// Asks the peer for a sign of life on every stream but one.
    fn ask_others(&mut self, suspect: usize) {
        let mut head = Head::bare(Kind::Ack, self.window.highest(), ANSWER);
        head.ack = self.window.expected();
        for number in (0..self.links.len()).filter(|&number| number != suspect) {
            if let Some(stream) = self.links[number].stream.as_mut() {
                if stream.track.send_aside(&head) {
                    self.flush_stream(number);
                }
            }
        }
    }

    /// A stream is there: what waits is sent.
    pub(crate) fn stream_up(&mut self, number: usize, stream: Stream) {
        self.drop_stream(number);
        self.shared.streams.set(self.shared.streams.get() + 1);
        self.shared.watch_stream(&stream, self.index, number);
        self.links[number].stream = Some(Box::new(stream));
        self.gone_since = None;
        if self.phase == Phase::Linking {
            self.phase = Phase::Open;
        }
        if self.outbox.retains() {
            self.keep_time();
        }
        self.call_attention();
    }

    /// Memory of this connection: of its state, and of buffers.
    pub(crate) fn memory(&self) -> (usize, usize) {
        let streams = self.links.iter().filter_map(|link| link.stream.as_ref());
        let buffers = streams.clone().filter(|stream| stream.buffer.is_some()).count();
        let state = size_of::<Conn>()
            + self.links.capacity() * size_of::<Link>()
            + streams.count() * size_of::<Stream>()
            + self.peer.as_ref().map_or(0, |peer| {
                size_of::<Peer>() + peer.contact.places.capacity() * size_of::<tieline_net::Place>()
            })
            + self.ops.as_ref().map_or(0, |_| size_of::<Ops>());
        let held = self.outbox.committed() + self.held_bytes + buffers * crate::stream::BUFFER;
        (state, held)
    }
}

/// What came of trying to write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrote {
    /// All that was gathered.
    Some,
    /// There was nothing to write.
    Nothing,
    /// The stream takes no more.
    Unable,
}

/// Data of a short get goes with its end.
fn serve_small(outbox: &mut Outbox, serve: &mut Serve) {
    let Ok(region) = &serve.region else { return };
    let len = serve.len as usize;
    let mut bytes = [0u8; SMALL];
    match region.pin() {
        Some(_pin) => sys::read_piece(region.piece(serve.offset, len), &mut bytes[..len]),
        None => {
            serve.region = Err(Status::KeyRejected);
            return;
        }
    }
    if len > 0 {
        outbox.push(Head::bare(Kind::GetData, serve.number, 0), None, &bytes[..len]);
    }
    serve.cut = serve.len;
}
