//! The reading of streams: parses frames out of a stream's buffer, and receives the rest of payloads of puts and gets directly into
//! their destination.

use std::rc::Rc;

use crate::sys::Piece;
use tieline_net::touch::Fault;
use tieline_plugin_api::{Events, Status, access};

use crate::conn::ConnectionState;
use crate::frame::{ANSWER, HEAD, Head, KeyPart, Kind, LONG_HEAD, Malformed, Refused};
use crate::missing::{first_missing, is_fault};
use crate::shared::Shared;
use crate::stream::{Broke, Destination, Landing};
use crate::sys;
use crate::window::Verdict;

/// The numbers of system calls, of bytes, and of frames in a row, after which the next stream is read.
const MOST_CALLS: usize = 16;
const MOST_BYTES: usize = 1 << 20;
const MOST_FRAMES: u32 = 1024;
/// The numbers of frames and of bytes from which on an acknowledgement is sent after reading.
const ACK_FRAMES: u32 = 64;
const ACK_BYTES: usize = 64 << 10;

/// The length of a payload from which on the next head is read alone, so that the next payload needs no copy out of the buffer.
/// Such a copy takes longer than one more system call.
const BULK: u32 = 16 << 10;

const OUT_OF_ORDER: Malformed = "a frame out of order";

/// The record of a frame that has arrived, for its delivery.
#[derive(Debug)]
pub(crate) enum Item {
    Message {
        id: u32,
        header: u64,
        data: Box<[u8]>,
    },
    /// A piece of a put that is in place, or was refused.
    PutLanded {
        number: u32,
        last: bool,
        result: Result<(), Refused>,
    },
    /// A piece of the data of a get, which is in place.
    GetLanded {
        number: u32,
        at: u64,
        len: u32,
    },
    Control(Head, Option<KeyPart>),
}

/// The result of reading a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// No data was read.
    Quiet,
    /// Data was read.
    Some,
}

/// The reason why parsing stopped.
enum Parsed {
    NeedMore,
    /// The event array is full, too many events wait for a notification, or the stream's share is used up.
    Full,
}

impl ConnectionState {
    /// Reads a stream until it is empty, or has used up its share.
    pub(crate) fn read(&mut self, number: usize, events: &mut Events<'_>) -> Read {
        let shared = Rc::clone(&self.shared);
        match self.read_stream(number, &shared, events) {
            Ok(read) => read,
            Err(broke) => {
                self.stream_broke(number, &broke);
                Read::Some
            }
        }
    }

    fn read_stream(
        &mut self,
        number: usize,
        shared: &Shared,
        events: &mut Events<'_>,
    ) -> Result<Read, Broke> {
        let mut read = Read::Quiet;
        // The only data may be that for which an earlier visit had no event slot.
        let mut parsed = false;
        let round = shared.round.get();
        let upto = shared.received.get() + MOST_BYTES;
        for call in 0..MOST_CALLS {
            let Some(stream) = self.links.get_mut(number).and_then(|link| link.stream.as_mut())
            else {
                return Ok(read);
            };
            #[cfg(test)]
            if stream.frozen {
                return Ok(read);
            }
            if call == 0 {
                stream.behind = false;
            }
            let buffer = stream.buffer(&shared.pool);
            buffer.refresh(round);
            if !buffer.is_empty() {
                parsed = true;
                match self.parse(number, shared, events)? {
                    Parsed::NeedMore => {}
                    Parsed::Full => {
                        self.fall_behind(number);
                        return Ok(Read::Some);
                    }
                }
            }
            let (got, wanted) = match self.receive(number)? {
                Some(got) => got,
                None => break,
            };
            read = Read::Some;
            match self.parse(number, shared, events)? {
                Parsed::NeedMore => {}
                Parsed::Full => {
                    self.fall_behind(number);
                    break;
                }
            }
            if got < wanted {
                break;
            }
            // The stream is read again later: a full buffer is empty when its events have been processed.
            if call + 1 == MOST_CALLS || wanted == 0 || shared.received.get() >= upto {
                self.fall_behind(number);
                break;
            }
        }
        if parsed || read == Read::Some {
            self.after_reading(shared);
        }
        Ok(read)
    }

    /// Queues the stream to be read, even if no more data arrives.
    pub(crate) fn fall_behind(&mut self, number: usize) {
        if let Some(stream) = self.links.get_mut(number).and_then(|link| link.stream.as_mut()) {
            stream.behind = true;
            self.queue_up();
        }
    }

    /// Schedules the answers and acknowledgements for the frames that were read.
    pub(crate) fn after_reading(&mut self, shared: &Shared) {
        let answers = self.ops.as_ref().is_some_and(|ops| !ops.is_idle());
        if self.outbox.retains() && (self.ack_owed >= ACK_FRAMES || self.ack_bytes >= ACK_BYTES) {
            self.send_ack();
        }
        if answers || self.ack_owed > 0 && self.outbox.retains() {
            self.ack_round = shared.round.get();
            self.call_attention();
        }
    }

    /// Acknowledges the received frames, on any stream that can write.
    pub(crate) fn send_ack(&mut self) {
        let mut head = Head::bare(Kind::Ack, self.window.highest(), 0);
        head.ack = self.acknowledge();
        // The stream on which the last frames arrived is preferred: another stream may be dead without notice.
        let last = self.ack_stream;
        let free = self
            .links
            .iter_mut()
            .filter_map(|link| link.stream.as_mut())
            .filter(|stream| !stream.blocked && stream.error.is_none())
            .min_by_key(|stream| usize::from(stream.track.number) != last);
        if let Some(stream) = free {
            let _ = stream.track.send_aside(&head);
            let number = usize::from(stream.track.number);
            self.flush_stream(number);
        } else {
            self.ack_owed = 1; // the acknowledgement is sent later
        }
    }

    /// Makes at most one system call. Returns the numbers of received and requested bytes, or `None` if nothing can be read.
    fn receive(&mut self, number: usize) -> Result<Option<(usize, usize)>, Broke> {
        let mut pieces = std::mem::take(&mut *self.shared.pieces.borrow_mut());
        pieces.clear();
        let mut pin = None;
        let landing = self
            .links
            .get_mut(number)
            .and_then(|link| link.stream.as_mut())
            .and_then(|stream| stream.landing.take());
        let landing = landing.map(|mut landing| {
            pin = self.landing_pieces(&mut landing, &mut pieces);
            landing
        });
        let Some(stream) = self.links.get_mut(number).and_then(|link| link.stream.as_mut()) else {
            return Ok(None);
        };
        stream.landing = landing;
        let Some(buffer) = &mut stream.buffer else { return Ok(None) };
        let direct: usize = pieces.iter().map(|piece| piece.len()).sum();
        let fd = match &stream.other_end {
            Some(other) => std::os::fd::AsRawFd::as_raw_fd(other),
            None => std::os::fd::AsRawFd::as_raw_fd(&stream.socket),
        };
        let ahead = buffer.unread().len();
        let mut room = buffer.room();
        if stream.is_bulk && stream.landing.is_none() && ahead < LONG_HEAD {
            let most = room.len().min(LONG_HEAD - ahead);
            room = &mut room[..most];
        }
        let (result, wanted) = if direct == 0 && room.is_empty() {
            (Ok(0), 0)
        } else if direct == 0 {
            (sys::receive(fd, room), room.len())
        } else {
            // After the payload only the next head is read: the data after that head may have its own destination.
            let next = room.len().min(LONG_HEAD);
            pieces.push(sys::piece_mut(&mut room[..next]));
            (sys::receive_pieces(fd, &pieces), direct + next)
        };
        let fault = direct > 0 && result.as_ref().is_err_and(is_fault);
        let missing = if fault { first_missing(&pieces) } else { 0 };
        drop(pin);
        let _ = self.shared.pieces.replace(pieces);
        let got = match result {
            Ok(0) if wanted > 0 => return Err(self.ended(number)),
            Ok(got) => got,
            Err(error) if sys::is_passing(&error) => return Ok(None),
            Err(_) if fault => {
                self.lands_nowhere(number, missing);
                // The payload for that memory is read and discarded.
                return Ok(Some((0, 0)));
            }
            Err(error) => {
                let stream = self.links.get(number).and_then(|link| link.stream.as_ref());
                let peer = stream.map(|stream| stream.peer()).unwrap_or_default();
                return Err(Broke::error(&peer, &error));
            }
        };
        self.shared.received.set(self.shared.received.get() + got);
        buffer.received(got.saturating_sub(direct));
        stream.last_received_ms = self.shared.now_ms();
        self.last_received_ms = stream.last_received_ms;
        self.ack_stream = number;
        if direct > 0 {
            self.advance_landing(number, got.min(direct))?;
        }
        Ok(Some((got, wanted)))
    }

    fn ended(&mut self, number: usize) -> Broke {
        let Some(stream) = self.links.get_mut(number).and_then(|link| link.stream.as_mut()) else {
            return Broke { status: Status::Closed, text: String::new() };
        };
        let peer = stream.peer();
        match stream.error.take() {
            Some(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                Broke::error(&peer, &error)
            }
            _ => Broke::ended(&peer),
        }
    }

    /// Adds the destination of a payload's rest to `pieces`, unless it must not be written any more. Returns the pin of its region.
    fn landing_pieces(
        &mut self,
        landing: &mut Landing,
        pieces: &mut Vec<Piece>,
    ) -> Option<crate::regions::Pin> {
        if self.window.judge(landing.head.seq) == Ok(Verdict::Duplicate) {
            landing.destination = Destination::Nowhere; // the payload has arrived on another stream meanwhile
        }
        match &landing.destination {
            Destination::Region(region, offset) => match region.pin() {
                Some(pin) => {
                    pieces.push(region.piece(offset + landing.at as u64, landing.left()));
                    return Some(pin);
                }
                // Without pieces, the remaining bytes are discarded.
                None => landing.result = Err(Status::KeyRejected.into()),
            },
            Destination::Get => {
                match self.ops.as_ref().and_then(|ops| ops.get(landing.head.number)) {
                    Some(get) => {
                        let at = landing.head.word as usize + landing.at;
                        sys::cut(&get.pieces, at, landing.left(), pieces);
                        pieces.truncate(512);
                    }
                    None => landing.destination = Destination::Nowhere,
                }
            }
            Destination::Nowhere => {}
        }
        None
    }

    /// Counts received bytes; completes the frame with the last one.
    fn advance_landing(&mut self, number: usize, count: usize) -> Result<(), Broke> {
        let Some(stream) = self.links.get_mut(number).and_then(|link| link.stream.as_mut()) else {
            return Ok(());
        };
        let Some(landing) = &mut stream.landing else { return Ok(()) };
        landing.at += count;
        if landing.left() > 0 {
            return Ok(());
        }
        let Some(landing) = stream.landing.take() else { return Ok(()) };
        let Landing { head, result, .. } = *landing;
        let item = match head.kind {
            Kind::Put => Item::PutLanded { number: head.number, last: head.last, result },
            _ => Item::GetLanded { number: head.number, at: head.word, len: head.len },
        };
        self.arrived(head.seq, item, LONG_HEAD + head.len as usize)
            .map_err(|why| self.malformed(number, why))
    }

    fn malformed(&self, number: usize, why: Malformed) -> Broke {
        let stream = self.links.get(number).and_then(|link| link.stream.as_ref());
        Broke::malformed(&stream.map(|stream| stream.peer()).unwrap_or_default(), why)
    }

    // ---- frames ----

    fn parse(
        &mut self,
        number: usize,
        shared: &Shared,
        events: &mut Events<'_>,
    ) -> Result<Parsed, Broke> {
        self.parse_frames(number, shared, events).map_err(|failed| match failed {
            Failed::Malformed(why) => self.malformed(number, why),
            Failed::Broke(broke) => broke,
        })
    }

    fn parse_frames(
        &mut self,
        number: usize,
        shared: &Shared,
        events: &mut Events<'_>,
    ) -> Result<Parsed, Failed> {
        let mut frames = 0;
        loop {
            if self.window.has_gap() && !self.drain(shared, events)? || frames == MOST_FRAMES {
                return Ok(Parsed::Full);
            }
            frames += 1;
            let Some(stream) = self.links.get_mut(number).and_then(|link| link.stream.as_mut())
            else {
                return Ok(Parsed::NeedMore);
            };
            let Some(buffer) = &mut stream.buffer else { return Ok(Parsed::NeedMore) };
            if stream.landing.is_some() {
                let available = buffer.unread().len();
                if available == 0 {
                    return Ok(Parsed::NeedMore);
                }
                self.land(number)?;
                continue;
            }
            let Some(bytes) = buffer.unread().first_chunk::<HEAD>() else {
                return Ok(Parsed::NeedMore);
            };
            let head = Head::parse(bytes)?;
            if head.kind == Kind::Message {
                stream.is_bulk = false;
                let len = head.len as usize;
                if buffer.unread().len() < HEAD + len {
                    return Ok(Parsed::NeedMore);
                }
                match self.window.judge(head.seq)? {
                    Verdict::Next if self.abandoned => self.window.advance(),
                    Verdict::Next => {
                        if events.room() <= self.floor {
                            return Ok(Parsed::Full);
                        }
                        let data = buffer.unread()[HEAD..].as_ptr();
                        let _ = events.push_message(self.cookie, head.number, head.word, data, len);
                        self.window.advance();
                    }
                    _ if !self.outbox.retains() => return Err(Failed::Malformed(OUT_OF_ORDER)),
                    Verdict::Ahead => {
                        self.held_bytes += len; // at most `WINDOW` frames are held
                        let data = buffer.unread()[HEAD..HEAD + len].into();
                        let item = Item::Message { id: head.number, header: head.word, data };
                        self.window.hold(head.seq, item);
                    }
                    Verdict::Duplicate => {}
                }
                buffer.consume(HEAD + len);
                self.ack_owed += 1;
                self.ack_bytes += HEAD + len;
                if self.outbox.retains() {
                    self.outbox.acknowledged(head.ack)?;
                }
                continue;
            }
            if head.kind == Kind::Notified && !self.abandoned && shared.tells_enough() {
                return Ok(Parsed::Full);
            }
            self.require_retaining_order(&head)?;
            let Some(stream) = self.links.get_mut(number).and_then(|link| link.stream.as_mut())
            else {
                return Ok(Parsed::NeedMore);
            };
            let Some(buffer) = &mut stream.buffer else { return Ok(Parsed::NeedMore) };
            let Some(bytes) = buffer.unread().get(..head.head_len()) else {
                return Ok(Parsed::NeedMore);
            };
            let key = match bytes.get(HEAD..).and_then(|rest| rest.first_chunk::<HEAD>()) {
                Some(bytes) => Some(KeyPart::parse(bytes)?),
                None => None,
            };
            buffer.consume(head.head_len());
            self.frame(number, head, key)?;
        }
    }

    /// Checks that a session that does not keep frames receives them in order.
    fn require_retaining_order(&self, head: &Head) -> Result<(), Failed> {
        let retains = self.outbox.retains();
        if !retains && head.kind.is_sequenced() && head.seq != self.window.expected() {
            return Err(Failed::Malformed(OUT_OF_ORDER));
        }
        Ok(())
    }

    /// Handles a frame that is no message. Its payload, if any, follows.
    fn frame(&mut self, number: usize, head: Head, key: Option<KeyPart>) -> Result<(), Failed> {
        if self.outbox.retains() {
            self.outbox.acknowledged(head.ack)?;
        }
        match head.kind {
            Kind::Ack => {
                if head.word == ANSWER {
                    self.ack_stream = number;
                    self.send_ack();
                }
                self.call_attention();
            }
            Kind::Start => return Err(Failed::Malformed("a second beginning")),
            Kind::Gone => {
                let text = "the peer's endpoint is not there any more".to_string();
                return Err(Failed::Broke(Broke { status: Status::Closed, text }));
            }
            Kind::Put | Kind::GetData => {
                let (destination, result) = self.destination_of(&head, key)?;
                let landing = Landing { head, at: 0, destination, result };
                if let Some(stream) =
                    self.links.get_mut(number).and_then(|link| link.stream.as_mut())
                {
                    stream.is_bulk = head.len >= BULK;
                    stream.landing = Some(Box::new(landing));
                }
                if head.len == 0 {
                    self.advance_landing(number, 0).map_err(Failed::Broke)?;
                }
            }
            _ => self.arrived(head.seq, Item::Control(head, key), HEAD)?,
        }
        Ok(())
    }

    /// Returns the destination of the payload of this frame.
    #[allow(clippy::type_complexity)]
    fn destination_of(
        &self,
        head: &Head,
        key: Option<KeyPart>,
    ) -> Result<(Destination, Result<(), Refused>), Malformed> {
        if self.abandoned || self.window.judge(head.seq)? == Verdict::Duplicate {
            return Ok((Destination::Nowhere, Ok(())));
        }
        let Some(key) = key else {
            let get = self.ops.as_ref().and_then(|ops| ops.get(head.number));
            let end = head.word.checked_add(u64::from(head.len));
            return match (get, end) {
                (Some(get), Some(end)) if end <= get.len => Ok((Destination::Get, Ok(()))),
                (Some(_), _) => Err("more data than a get asked for"),
                (None, _) => Err("data that nothing asked for"),
            };
        };
        let regions = &self.shared.regions;
        Ok(match regions.find(&key, head.word, u64::from(head.len), access::REMOTE_WRITE) {
            Ok(region) => (Destination::Region(region, head.word), Ok(())),
            Err(status) => (Destination::Nowhere, Err(status.into())),
        })
    }

    /// Moves payload from the buffer to its destination.
    fn land(&mut self, number: usize) -> Result<(), Failed> {
        let taken = self
            .links
            .get_mut(number)
            .and_then(|link| link.stream.as_mut())
            .and_then(|stream| stream.landing.take());
        let Some(mut landing) = taken else { return Ok(()) };
        let mut pieces = Vec::new();
        let pin = self.landing_pieces(&mut landing, &mut pieces);
        let Some(stream) = self.links.get_mut(number).and_then(|link| link.stream.as_mut()) else {
            return Ok(());
        };
        let Some(buffer) = &mut stream.buffer else { return Ok(()) };
        let room: usize = pieces.iter().map(|piece| piece.len()).sum();
        // A payload without a destination has no pieces, and is read in any case.
        let most = if room == 0 { landing.left() } else { landing.left().min(room) };
        let count = most.min(buffer.unread().len());
        let mut bytes = &buffer.unread()[..count];
        let mut missing = None;
        for piece in pieces {
            let (here, rest) = bytes.split_at(piece.len().min(bytes.len()));
            if let Err(Fault(behind)) = sys::write_region(&self.shared.touch, here, piece) {
                missing = Some(count - bytes.len() + behind);
                break;
            }
            bytes = rest;
        }
        drop(pin);
        buffer.consume(count);
        #[cfg(test)]
        self.shared.copied.set(self.shared.copied.get() + count);
        if let Some(behind) = missing {
            self.give_up_place(&mut landing, behind);
        }
        if let Some(stream) = self.links.get_mut(number).and_then(|link| link.stream.as_mut()) {
            stream.landing = Some(landing);
        }
        self.advance_landing(number, count).map_err(Failed::Broke)
    }
}

enum Failed {
    Malformed(Malformed),
    Broke(Broke),
}

impl From<Malformed> for Failed {
    fn from(why: Malformed) -> Failed {
        Failed::Malformed(why)
    }
}
