//! A context's file, and a worker's place in it: the side that writes.

use super::sys::{Mapped, memory_file, now_ns, reserve};
use super::{
    AT_ASLEEP, AT_CONTEXT, AT_LEN, AT_MAGIC, AT_OPEN, AT_OPENED, AT_PID, AT_POLLS, AT_TEXT,
    AT_TEXTS, AT_UNSEEN, AT_USED, AT_VERSION, AT_WAITING, AT_WRITTEN, HEAD, MAGIC, MOST_TEXT, NAME,
    PLACE, PLACES, VERSION_BYTES, slot,
};
use crate::sys::{ForkGuard, Span, limits, process_id};
use crate::{Error, Status};
use std::cell::Cell;
use std::fs::File as Opened;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

/// See the module. A forked child writes nothing: the file is its parent's.
pub(crate) struct File {
    fd: Opened,
    head: Mapped,
    /// Which places are taken.
    taken: Mutex<Vec<bool>>,
    guard: Arc<ForkGuard>,
}

impl File {
    pub(crate) fn create(context: &[u8; 16], guard: Arc<ForkGuard>) -> Result<Arc<File>, Error> {
        // Beyond RLIMIT_FSIZE a longer file would not only fail but also send a signal.
        let most =
            limits().file_bytes.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(0));
        let places = most.saturating_sub(HEAD).checked_div(PLACE).unwrap_or(0).min(PLACES);
        if places == 0 {
            return Err(Error::new(
                Status::NoMemory,
                format!("a memory file of {} bytes", HEAD + PLACE),
                "it is beyond the limit on file sizes",
                "raise that (ulimit -f)",
            ));
        }
        let fd = Opened::from(memory_file(NAME, HEAD + places * PLACE)?);
        reserve(&fd, 0, HEAD)?;
        let head = Mapped::new(&fd, 0, HEAD)?;
        let mut version = [0; VERSION_BYTES];
        let words = env!("CARGO_PKG_VERSION").as_bytes();
        version[..words.len().min(VERSION_BYTES)]
            .copy_from_slice(&words[..words.len().min(VERSION_BYTES)]);
        head.span().write(AT_CONTEXT, context)?;
        head.span().write(AT_VERSION, &version)?;
        word(head.span(), AT_PID).store(process_id().into(), Ordering::Relaxed);
        word(head.span(), AT_OPENED).store(now_ns(), Ordering::Relaxed);
        word(head.span(), AT_MAGIC).store(MAGIC, Ordering::Release);
        Ok(Arc::new(File { fd, head, taken: Mutex::new(vec![false; places]), guard }))
    }

    /// A place for one more worker; none where all are taken or there is no memory.
    pub(crate) fn place(self: &Arc<File>) -> Option<Page> {
        let place = self.take().and_then(|at| {
            let place = reserve(&self.fd, HEAD + at * PLACE, 4096)
                .and_then(|()| Mapped::new(&self.fd, HEAD + at * PLACE, PLACE));
            if place.is_err() {
                self.taken.lock().unwrap_or_else(PoisonError::into_inner)[at] = false;
            }
            Some((at, place.ok()?))
        });
        let Some((at, mapped)) = place else {
            let _ = word(self.head.span(), AT_UNSEEN).fetch_add(1, Ordering::Relaxed);
            return None;
        };
        // Above all that whoever had the place before counted to, and there is no text yet.
        let texts = now_ns() & !1;
        for (empty, value) in [
            (AT_POLLS, 0),
            (AT_OPEN, 0),
            (AT_ASLEEP, 0),
            (AT_WAITING, 0),
            (slot(texts) + AT_LEN, 0),
            (AT_TEXTS, texts),
        ] {
            word(mapped.span(), empty).store(value, Ordering::Relaxed);
        }
        word(mapped.span(), AT_USED).store(1, Ordering::Release);
        // The first page holds all words, and a part of the first slot.
        let room = [Cell::new(4096), Cell::new(slot(1) / 4096 * 4096)];
        let (texts, gone) = (Cell::new(texts), Cell::new(false));
        Some(Page { file: self.clone(), at, mapped, room, texts, gone })
    }

    fn take(&self) -> Option<usize> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let at = taken.iter().position(|taken| !taken)?;
        taken[at] = true;
        Some(at)
    }

    /// As who asks from outside has it, but for its own process alone.
    pub(super) fn opened(&self) -> Option<&Opened> {
        self.guard.same_process().then_some(&self.fd)
    }
}

/// A worker's place. Nothing of it is read back but what this process keeps beside it.
pub(crate) struct Page {
    file: Arc<File>,
    at: usize,
    mapped: Mapped,
    /// Up to where each slot has memory, in bytes of the place.
    room: [Cell<usize>; 2],
    texts: Cell<u64>,
    /// The place may be another worker's.
    gone: Cell<bool>,
}

impl Page {
    /// The worker has asked the kernel so often, is awake, and has so many operations open.
    #[inline]
    pub(crate) fn polled(&self, polls: u64, open: usize) {
        if !self.gone.get() {
            word(self.mapped.span(), AT_POLLS).store(polls, Ordering::Relaxed);
            word(self.mapped.span(), AT_OPEN).store(open as u64, Ordering::Relaxed);
            word(self.mapped.span(), AT_ASLEEP).store(0, Ordering::Relaxed);
        }
    }

    /// From now on it sleeps, or its application may on its descriptor.
    pub(crate) fn sleeps(&self, now_ns: u64, armed: bool) {
        self.set(AT_ASLEEP, now_ns & !1 | u64::from(armed));
    }

    /// It sleeps no longer, whatever it does now.
    pub(crate) fn awakes(&self) {
        self.set(AT_ASLEEP, 0);
    }

    /// It is in a call that waits, since then; 0: in none.
    pub(crate) fn waits(&self, since: u64) {
        self.set(AT_WAITING, since);
    }

    fn set(&self, at: usize, value: u64) {
        if !self.gone.get() {
            word(self.mapped.span(), at).store(value, Ordering::Relaxed);
        }
    }

    /// Puts a text beside the one before. `false`: it is too long, or there is no memory for it.
    pub(crate) fn write(&self, text: &[u8], now_ns: u64) -> bool {
        if text.len() > MOST_TEXT || self.gone.get() || !self.file.guard.same_process() {
            return false;
        }
        let next = self.texts.get().wrapping_add(1);
        let begin = slot(next);
        let end = begin + AT_TEXT + text.len();
        let room = &self.room[(next & 1) as usize];
        if end > room.get() {
            let (from, to) = (room.get(), end.next_multiple_of(4096));
            if reserve(&self.file.fd, HEAD + self.at * PLACE + from, to - from).is_err() {
                return false;
            }
            room.set(to);
        }
        let span = self.mapped.span();
        // Who sees anything of what follows sees also that the text before this one is the last: that it has read the one before
        // that, whose slot this is, for nothing.
        fence(Ordering::Release);
        let written = span.write(begin + AT_TEXT, text).is_ok();
        word(span, begin + AT_LEN).store(text.len() as u64, Ordering::Relaxed);
        word(span, begin + AT_WRITTEN).store(now_ns, Ordering::Relaxed);
        self.texts.set(next);
        word(span, AT_TEXTS).store(next, Ordering::Release);
        written
    }

    /// The worker has nothing to show any more.
    pub(crate) fn give_back(&self) {
        if !self.gone.replace(true) && self.file.guard.same_process() {
            word(self.mapped.span(), AT_USED).store(0, Ordering::Release);
            self.file.taken.lock().unwrap_or_else(PoisonError::into_inner)[self.at] = false;
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// A word of the file, by one of the places above: all of them are aligned, and within what is mapped.
#[inline]
fn word(span: &Span, at: usize) -> &AtomicU64 {
    static NOWHERE: AtomicU64 = AtomicU64::new(0);
    span.word64(at).unwrap_or(&NOWHERE)
}
