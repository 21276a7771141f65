//! A context's file, and a worker's place in it: the side that writes.

use super::sys::{Mapped, memory_file, now_ns, reserve};
use super::{
    AT_ARMED, AT_ASLEEP, AT_CHANGES, AT_CONTEXT, AT_LEN, AT_MAGIC, AT_OPENED, AT_PID, AT_POLLS,
    AT_TEXT, AT_UNSEEN, AT_USED, AT_VERSION, AT_WRITTEN, HEAD, MAGIC, MOST_TEXT, NAME, PLACE,
    PLACES, VERSION_BYTES,
};
use crate::sys::{ForkGuard, Span, limits, process_id};
use crate::{Error, Status};
use std::cell::Cell;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

/// See the module. A forked child writes nothing: the file is its parent's.
pub(crate) struct File {
    fd: OwnedFd,
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
        let fd = memory_file(NAME, HEAD + places * PLACE)?;
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
        for empty in [AT_POLLS, AT_ASLEEP, AT_WRITTEN, AT_LEN] {
            word(mapped.span(), empty).store(0, Ordering::Relaxed);
        }
        // Above all that whoever had the place before counted to.
        let changes = now_ns() & !1;
        word(mapped.span(), AT_CHANGES).store(changes, Ordering::Relaxed);
        word(mapped.span(), AT_USED).store(1, Ordering::Release);
        let (room, changes) = (Cell::new(4096), Cell::new(changes));
        Some(Page { file: self.clone(), at, mapped, room, changes })
    }

    fn take(&self) -> Option<usize> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let at = taken.iter().position(|taken| !taken)?;
        taken[at] = true;
        Some(at)
    }

    pub(super) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// A worker's place. Nothing of it is read back but what this process keeps beside it.
pub(crate) struct Page {
    file: Arc<File>,
    at: usize,
    mapped: Mapped,
    /// Bytes of the place that have memory.
    room: Cell<usize>,
    changes: Cell<u64>,
}

impl Page {
    /// The worker has asked the kernel so often, and is awake.
    #[inline]
    pub(crate) fn polled(&self, polls: u64) {
        word(self.mapped.span(), AT_POLLS).store(polls, Ordering::Relaxed);
        word(self.mapped.span(), AT_ASLEEP).store(0, Ordering::Relaxed);
    }

    /// From now on it sleeps, or its application may on its descriptor.
    pub(crate) fn sleeps(&self, now_ns: u64, armed: bool) {
        word(self.mapped.span(), AT_ARMED).store(armed.into(), Ordering::Relaxed);
        word(self.mapped.span(), AT_ASLEEP).store(now_ns, Ordering::Relaxed);
    }

    /// Puts a text in the place of the one before. `false`: it is too long, or there is no memory for it.
    pub(crate) fn write(&self, text: &[u8], now_ns: u64) -> bool {
        let end = AT_TEXT + text.len();
        if text.len() > MOST_TEXT || !self.file.guard.same_process() {
            return false;
        }
        if end > self.room.get() {
            let room = end.next_multiple_of(4096);
            let (from, more) = (HEAD + self.at * PLACE + self.room.get(), room - self.room.get());
            if reserve(&self.file.fd, from, more).is_err() {
                return false;
            }
            self.room.set(room);
        }
        let span = self.mapped.span();
        let changes = word(span, AT_CHANGES);
        changes.store(self.changes.get() + 1, Ordering::Relaxed);
        // Who sees anything of what follows sees that, too.
        fence(Ordering::Release);
        let written = span.write(AT_TEXT, text).is_ok();
        word(span, AT_LEN).store(text.len() as u64, Ordering::Relaxed);
        word(span, AT_WRITTEN).store(now_ns, Ordering::Relaxed);
        self.changes.set(self.changes.get() + 2);
        changes.store(self.changes.get(), Ordering::Release);
        written
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if self.file.guard.same_process() {
            word(self.mapped.span(), AT_USED).store(0, Ordering::Release);
            self.file.taken.lock().unwrap_or_else(PoisonError::into_inner)[self.at] = false;
        }
    }
}

/// A word of the file, by one of the places above: all of them are aligned, and within what is mapped.
#[inline]
fn word(span: &Span, at: usize) -> &AtomicU64 {
    static NOWHERE: AtomicU64 = AtomicU64::new(0);
    span.word64(at).unwrap_or(&NOWHERE)
}
