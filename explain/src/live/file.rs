//! The writer's side of a context's file and of a worker's place in the file.

use super::sys::{Mapped, memory_file, now_ns, reserve};
use super::{
    AT_ASLEEP, AT_CONTEXT, AT_LEN, AT_MAGIC, AT_OPEN, AT_OPENED, AT_PID, AT_POLLS, AT_TEXT,
    AT_TEXTS, AT_UNSEEN, AT_USED, AT_VERSION, AT_WAITING, AT_WRITTEN, HEAD, MAGIC, MOST_TEXT, NAME,
    PLACE, PLACES, VERSION_BYTES, slot,
};
use crate::{Error, Status};
use std::cell::Cell;
use std::fs::File as Opened;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use tieline_plugin_api::process::Mark;

/// A context's live file; see the module documentation. A forked child must not use it: the file belongs to its parent.
pub struct File {
    fd: Opened,
    head: Mapped,
    /// The places in use, by index.
    taken: Mutex<Vec<bool>>,
    /// The process that created the file.
    mark: Mark,
}

impl File {
    /// Creates the file of a context. `file_bytes`: RLIMIT_FSIZE, if there is a limit.
    ///
    /// # Errors
    /// Returns an error if the system has no memory or forbids the file, or if `file_bytes` leaves no space for a worker.
    pub fn create(context: &[u8; 16], file_bytes: Option<u64>) -> Result<Arc<File>, Error> {
        // Beyond RLIMIT_FSIZE, extending the file would raise a signal in addition to failing.
        let most = file_bytes.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(0));
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
        let version = env!("CARGO_PKG_VERSION").as_bytes();
        head.write(AT_CONTEXT, context);
        head.write(AT_VERSION, &version[..version.len().min(VERSION_BYTES)]);
        head.word(AT_PID).store(std::process::id().into(), Ordering::Relaxed);
        head.word(AT_OPENED).store(now_ns(), Ordering::Relaxed);
        head.word(AT_MAGIC).store(MAGIC, Ordering::Release);
        let taken = Mutex::new(vec![false; places]);
        Ok(Arc::new(File { fd, head, taken, mark: Mark::new() }))
    }

    /// Takes a place for one more worker; `None` if all places are in use, or a place cannot be allocated or mapped.
    pub fn place(self: &Arc<File>) -> Option<Page> {
        let place = self.take().and_then(|at| {
            let place = reserve(&self.fd, HEAD + at * PLACE, 4096)
                .and_then(|()| Mapped::new(&self.fd, HEAD + at * PLACE, PLACE));
            if place.is_err() {
                self.taken.lock().unwrap_or_else(PoisonError::into_inner)[at] = false;
            }
            Some((at, place.ok()?))
        });
        let Some((at, mapped)) = place else {
            let _ = self.head.word(AT_UNSEEN).fetch_add(1, Ordering::Relaxed);
            return None;
        };
        // The new count exceeds all counts of the place's earlier owners; there is no text yet.
        let texts = now_ns() & !1;
        for (empty, value) in [
            (AT_POLLS, 0),
            (AT_OPEN, 0),
            (AT_ASLEEP, 0),
            (AT_WAITING, 0),
            (slot(texts) + AT_LEN, 0),
            (AT_TEXTS, texts),
        ] {
            mapped.word(empty).store(value, Ordering::Relaxed);
        }
        mapped.word(AT_USED).store(1, Ordering::Release);
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

    /// Returns the opened file as observers read it; `None` in a forked child.
    pub(super) fn opened(&self) -> Option<&Opened> {
        self.mark.is_here().then_some(&self.fd)
    }
}

/// A worker's place. The worker never reads the place; this process keeps its own copy of the state.
pub struct Page {
    file: Arc<File>,
    at: usize,
    mapped: Mapped,
    /// The offsets in the place up to which the two slots have memory.
    room: [Cell<usize>; 2],
    texts: Cell<u64>,
    /// Whether the place was released and may belong to another worker.
    gone: Cell<bool>,
}

impl Page {
    /// Publishes the number of polls of the kernel and the number of open operations, and marks the worker as active.
    #[inline]
    pub(super) fn polled(&self, polls: u64, open: usize) {
        if !self.gone.get() {
            self.mapped.word(AT_POLLS).store(polls, Ordering::Relaxed);
            self.mapped.word(AT_OPEN).store(open as u64, Ordering::Relaxed);
            self.mapped.word(AT_ASLEEP).store(0, Ordering::Relaxed);
        }
    }

    /// Publishes that the worker sleeps from this time on, or that its application may sleep on its descriptor (`armed`).
    pub(super) fn sleeps(&self, now_ns: u64, armed: bool) {
        self.set(AT_ASLEEP, now_ns & !1 | u64::from(armed));
    }

    /// Publishes that the worker does not sleep any more.
    pub(super) fn awakes(&self) {
        self.set(AT_ASLEEP, 0);
    }

    /// Publishes the time since which the worker is in a blocking call; 0: it is in none.
    pub(super) fn waits(&self, since: u64) {
        self.set(AT_WAITING, since);
    }

    fn set(&self, at: usize, value: u64) {
        if !self.gone.get() {
            self.mapped.word(at).store(value, Ordering::Relaxed);
        }
    }

    /// Writes a text next to the previous one. `false`: the text is too long, there is no memory for it, the place was released, or
    /// this is a forked child.
    pub(super) fn write(&self, text: &[u8], now_ns: u64) -> bool {
        if text.len() > MOST_TEXT || self.gone.get() || !self.file.mark.is_here() {
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
        // A reader that sees any of the following stores also sees that the previous text is the last one. The reader then discards
        // what it read of the text before that, whose slot is reused here.
        fence(Ordering::Release);
        self.mapped.write(begin + AT_TEXT, text);
        self.mapped.word(begin + AT_LEN).store(text.len() as u64, Ordering::Relaxed);
        self.mapped.word(begin + AT_WRITTEN).store(now_ns, Ordering::Relaxed);
        self.texts.set(next);
        self.mapped.word(AT_TEXTS).store(next, Ordering::Release);
        true
    }

    /// Releases the place of a worker, unless it was released before. A forked child leaves it to its parent.
    pub(super) fn give_back(&self) {
        if !self.gone.replace(true) && self.file.mark.is_here() {
            self.mapped.word(AT_USED).store(0, Ordering::Release);
            self.file.taken.lock().unwrap_or_else(PoisonError::into_inner)[self.at] = false;
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.give_back();
    }
}
