//! The sending of frames: how streams take frames from the outbox, how bulk transfers enter it, and the answers owed to the peer.

use std::rc::Rc;

use crate::conn::ConnectionState;
use crate::frame::{Head, Kind, LONG_HEAD, MAX_FRAGMENT, Refused, status_word};
use crate::ops::{BulkOp, SMALL, Serve};
use crate::outbox::{Missing, Outbox};
use crate::shared::Shared;
use crate::sys;
use tieline_net::touch::Fault;
use tieline_plugin_api::Status;

/// The number of bytes after which the next stream takes its turn: a few messages stay on the stream that the peer is already
/// reading.
const TURN: usize = 64 << 10;

impl ConnectionState {
    /// Returns the value of `ack` for a frame that is sent now.
    pub(crate) fn acknowledge(&mut self) -> u32 {
        self.ack_owed = 0;
        self.ack_bytes = 0;
        self.window.expected()
    }

    /// Requests attention in the next poll.
    pub(crate) fn call_attention(&self) {
        if !self.flagged.replace(true) {
            self.shared.attention.borrow_mut().push(self.index);
        }
    }

    /// Queues this connection to be read, after all that are already queued.
    pub(crate) fn queue_up(&self) {
        if !self.queued.replace(true) {
            self.shared.readers.borrow_mut().push_back(self.index);
        }
    }

    /// Records that the kernel takes no more data from a stream at present.
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

    /// Writes frames to the streams. Streams take turns, so that a faster one writes more frames.
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

    /// Queues answers and cut pieces, and makes at most one system call.
    fn write_once(&mut self, number: usize) -> Wrote {
        match self.links.get(number).and_then(|link| link.stream.as_ref()) {
            Some(stream) if !stream.blocked && stream.error.is_none() => {}
            _ => return Wrote::Unable,
        }
        self.answer();
        self.cut();
        self.expect_answer();
        self.note_memory();
        let shared = Rc::clone(&self.shared);
        let Some(stream) = self.links.get_mut(number).and_then(|link| link.stream.as_mut()) else {
            return Wrote::Unable;
        };
        let mut gathered = shared.gathered.borrow_mut();
        self.outbox.gather(&stream.track, &mut gathered);
        if gathered.len == 0 {
            return Wrote::Nothing;
        }
        let written = stream.write(&gathered.pieces);
        let all = gathered.len;
        if written.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EFAULT)) {
            let missing = self.outbox.forget_missing(&stream.track, &shared.touch);
            gathered.clear();
            drop(gathered);
            missing.into_iter().for_each(|missing| self.lacks(&missing));
            return Wrote::Some;
        }
        gathered.clear();
        match written {
            Ok(count) => {
                self.outbox.wrote(&mut stream.track, count, shared.now_ms());
                self.turn_bytes += count;
                self.end_local_puts();
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

    /// Records that the send buffer has memory, which is freed when the process sleeps.
    fn note_memory(&mut self) {
        if !self.is_filled && self.outbox.committed() > 0 {
            self.is_filled = true;
            self.shared.filled.borrow_mut().push(self.index);
        }
    }

    /// Frees the memory of the send buffer if it is empty. Returns whether it has memory.
    pub(crate) fn free_memory(&mut self) -> bool {
        self.outbox.trim();
        self.is_filled = self.outbox.committed() > 0;
        self.is_filled
    }

    /// Fails the operation whose data is missing when it is sent.
    #[cold]
    fn lacks(&mut self, missing: &Missing) {
        let shared = Rc::clone(&self.shared);
        let ops = self.ops();
        if missing.kind == Kind::Put {
            return ops.put_lacks(missing.number);
        }
        let serve = ops.serves.iter_mut().find(|serve| serve.number == missing.number);
        let Some(serve) = serve else { return };
        let at = serve.offset + missing.at;
        if let Ok(region) = std::mem::replace(&mut serve.region, Err(Refused::Fault(at))) {
            shared.regions.note_fault(&region, at);
        }
    }

    /// Completes puts that do not need the application's memory any more.
    fn end_local_puts(&mut self) {
        while let Some(number) = self.outbox.take_read() {
            if let Some(cookie) = self.ops.as_mut().and_then(|ops| ops.put_read(number)) {
                self.shared.completed(cookie, Ok(0));
            }
        }
    }

    /// Cuts bulk transfers into frames, slightly ahead of what the streams can write.
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
                Some(BulkOp::Put { number, len, cut, word: Some(word), last_frame, .. })
                    if *cut == *len =>
                {
                    // The notification follows the last piece, if all data could be read.
                    if !self.outbox.is_written(*last_frame) || !self.outbox.has_room(LONG_HEAD) {
                        return;
                    }
                    let (number, word) = (*number, *word);
                    let _ = ops.bulk.pop_front();
                    if !ops.lacks(number) {
                        self.outbox.push(Head::notified(number, word), None, &[]);
                    }
                }
                Some(BulkOp::Put { number, key, offset, pieces, len, cut, word, last_frame }) => {
                    let part = fragment.min(*len - *cut);
                    let mut head = Head::bare(Kind::Put, *number, *offset + *cut as u64);
                    head.last = *cut + part == *len;
                    let mut fragment = Vec::new();
                    sys::cut(pieces, *cut, part, &mut fragment);
                    *last_frame = self.outbox.push_bulk(head, Some(key), fragment, None);
                    *cut += part;
                    if head.last && word.is_none() {
                        let _ = ops.bulk.pop_front();
                    }
                }
            }
        }
    }

    /// Reports to the peer how its puts, gets and flushes ended, while the outbox has room.
    pub(crate) fn answer(&mut self) {
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
                serve_small(&mut self.outbox, serve, &self.shared);
            }
            let end = match &serve.region {
                Err(refused) => Err(*refused),
                Ok(_) if serve.cut < serve.len => return,
                Ok(_) if serve.cut > SMALL as u64 && !self.outbox.is_written(serve.last_frame) => {
                    return;
                }
                // If the region was revoked meanwhile, zeros may have been sent.
                Ok(region) if region.is_revoked() => Err(Status::KeyRejected.into()),
                Ok(_) => Ok(()),
            };
            self.outbox.push(Head::bare(Kind::GetDone, serve.number, status_word(end)), None, &[]);
            let _ = ops.serves.pop_front();
        }
    }
}

/// The result of a write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrote {
    /// Everything that was gathered was written, or the write must be repeated.
    Some,
    /// There was nothing to write.
    Nothing,
    /// The stream takes no more, or is not connected.
    Unable,
}

/// Queues the data of a short get.
fn serve_small(outbox: &mut Outbox, serve: &mut Serve, shared: &Shared) {
    let Ok(region) = &serve.region else { return };
    let len = serve.len as usize;
    let mut bytes = [0u8; SMALL];
    let Some(pin) = region.pin() else {
        serve.region = Err(Status::KeyRejected.into());
        return;
    };
    let read = sys::read_region(&shared.touch, region.piece(serve.offset, len), &mut bytes[..len]);
    drop(pin);
    if let Err(Fault(behind)) = read {
        let at = serve.offset + behind as u64;
        shared.regions.note_fault(region, at);
        serve.region = Err(Refused::Fault(at));
        return;
    }
    if len > 0 {
        outbox.push(Head::bare(Kind::GetData, serve.number, 0), None, &bytes[..len]);
    }
    serve.cut = serve.len;
}
