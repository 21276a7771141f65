//! Holds pages: they stay with their owner when the owner writes and, unless `TIELINE_SHM_KNEM_FORK=never` is set, when it forks.
//!
//! The driver takes plain references to the pages that it finds when a region is made. Such a page can move away from its
//! owner, while peers continue to use the old page:
//!
//! * Memory that was never written is the zero page, and a private file mapping is the file's page. The first store gives the owner
//!   a page of its own.
//! * After a fork, parent and child share every private page. The first of them to write gets another page. Gets then return
//!   stale bytes of the owner, and puts reach the child.
//!
//! Each range is therefore *held* before the driver pins it. By default io_uring registers the range as a buffer. The kernel then
//! gives the owner pages of its own. A fork leaves those to the parent and gives copies to the child. No io_uring operation ever
//! reads or writes them. An operator whose programs never fork can avoid io_uring (`TIELINE_SHM_KNEM_FORK=never`):
//! `MADV_POPULATE_WRITE` gives the owner its own pages, which are not protected at a fork.
//!
//! Memory that the owner cannot write is not held: it may become writable later, and its pages would move then.

mod sys;
#[cfg(test)]
mod tests;

use std::sync::{Mutex, MutexGuard, PoisonError};

use tieline_plugin_api::config::Value;
use tieline_plugin_api::{ConfigDoc, Failure, Status};

use sys::Errno;

/// The variables that this provider declares.
pub(crate) const VARIABLES: &[ConfigDoc] = &[ConfigDoc::text(
    "TIELINE_SHM_KNEM_FORK",
    "allowed",
    "allowed: pages that peers access stay with this process when it forks. io_uring holds them, a fork copies them, and they \
     count against the limit of locked memory. never: no io_uring, for programs that never fork while peers access their \
     memory. After a fork peers would read stale bytes and write into the child.",
)
.one_of("allowed|never")];

/// Whether the process may fork while peers access its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forks {
    /// The process may fork.
    Allowed,
    /// The operator guarantees that the process does not fork.
    Never,
}

impl Forks {
    pub(crate) fn read(value: impl Fn(&str) -> Value) -> Forks {
        match value("TIELINE_SHM_KNEM_FORK").text.as_str() {
            "never" => Forks::Never,
            _ => Forks::Allowed,
        }
    }
}

/// The number of buffers of one ring.
const SLOTS: u32 = 1024;
/// The maximum number of rings. Each ring is a file descriptor.
const MOST_RINGS: u32 = 64;
/// The longest buffer that io_uring accepts, in bytes.
const MOST_BYTES: u64 = 1 << 30;

/// Holds pages for this process.
pub(crate) struct Holder {
    /// The table of held ranges; `None` if pages are not protected at a fork.
    table: Option<Mutex<Table>>,
    most_bytes: u64,
}

/// A held range, which stays held until [`Holder::release`].
#[derive(Debug, Default)]
pub(crate) struct Hold {
    slots: Vec<u32>,
}

/// The rings and their free slots.
struct Table {
    rings: Vec<sys::Ring>,
    free: Vec<u32>,
}

impl Holder {
    /// Opens a ring, unless programs never fork. The error names the obstacle and the remedy.
    pub(crate) fn open(forks: Forks) -> Result<Holder, Failure> {
        let table = match forks {
            Forks::Never => None,
            Forks::Allowed => {
                let mut table = Table { rings: Vec::new(), free: Vec::new() };
                table.grow().map_err(why_no_ring)?;
                Some(Mutex::new(table))
            }
        };
        Ok(Holder { table, most_bytes: MOST_BYTES })
    }

    /// Gives this process pages of its own in the range, and holds them.
    pub(crate) fn hold(&self, base: u64, len: u64) -> Result<Hold, Errno> {
        let Some(table) = &self.table else {
            return sys::populate(base, len).map(|()| Hold::default());
        };
        let mut table = locked(table);
        let (mut hold, mut at, end) = (Hold::default(), base, base.saturating_add(len));
        while at < end {
            let piece = (end - at).min(self.most_bytes);
            match table.set(at, piece) {
                Ok(slot) => hold.slots.push(slot),
                Err(errno) => {
                    table.clear(hold);
                    return Err(errno);
                }
            }
            at += piece;
        }
        Ok(hold)
    }

    /// Releases a range. Its pages are ordinary memory from here on, unless the kernel refuses to empty the slot.
    pub(crate) fn release(&self, hold: Hold) {
        if let Some(table) = &self.table {
            locked(table).clear(hold);
        }
    }
}

fn locked(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    // A slot leaves the free list before it is used, and returns after it was emptied.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Table {
    fn grow(&mut self) -> Result<(), Errno> {
        let ring = self.rings.len() as u32;
        if ring == MOST_RINGS {
            return Err(libc::ENOSPC);
        }
        self.rings.push(sys::Ring::open(SLOTS)?);
        self.free.extend((ring * SLOTS..(ring + 1) * SLOTS).rev());
        Ok(())
    }

    fn set(&mut self, base: u64, len: u64) -> Result<u32, Errno> {
        if self.free.is_empty() {
            self.grow()?;
        }
        let slot = self.free.pop().ok_or(libc::ENOSPC)?;
        let set = self.rings[(slot / SLOTS) as usize].set(slot % SLOTS, base, len);
        if set.is_err() {
            self.free.push(slot);
        }
        set.map(|()| slot)
    }

    fn clear(&mut self, hold: Hold) {
        for slot in hold.slots {
            // A slot that cannot be emptied holds its pages until the ring is closed, and is never reused.
            if self.rings[(slot / SLOTS) as usize].set(slot % SLOTS, 0, 0).is_ok() {
                self.free.push(slot);
            }
        }
    }
}

fn why_no_ring(errno: Errno) -> Failure {
    let without = "without it peers could read old bytes after a fork; where programs never fork while peers reach their \
                   memory, TIELINE_SHM_KNEM_FORK=never does without it";
    let (status, why) = match errno {
        libc::ENOSYS | libc::EPERM | libc::EACCES => (
            Status::Permission,
            "the kernel, a seccomp filter or the setting kernel.io_uring_disabled does not allow io_uring"
                .to_string(),
        ),
        libc::EINVAL => (
            Status::Unsupported,
            "io_uring of this kernel has no buffers that can be changed one by one (Linux 5.13 has)"
                .to_string(),
        ),
        errno => {
            let error = std::io::Error::from_raw_os_error(errno);
            (Failure::from_io("", &error).status, format!("io_uring cannot be opened: {error}"))
        }
    };
    Failure::new(status, format!("{why}; {without}"))
}

/// Returns the error for a range that is not held.
pub(crate) fn why_not_held(base: u64, len: u64, errno: Errno) -> Failure {
    let what = format!("shm-knem does not serve {len} bytes at {base:#x}");
    let (status, why) = match errno {
        libc::EFAULT | libc::EINVAL | libc::EOPNOTSUPP => (
            Status::Unsupported,
            "this process cannot write a part of them, or they are of a mapped file or a device, so their pages could change \
             behind a peer's back"
                .to_string(),
        ),
        libc::ENOMEM => (
            Status::NoMemory,
            "a part is not mapped, memory is short, or the limit of locked memory is reached (`ulimit -l`)"
                .to_string(),
        ),
        libc::ENOSPC => (
            Status::NoMemory,
            format!("{} ranges are held already", MOST_RINGS * SLOTS),
        ),
        errno => {
            let error = std::io::Error::from_raw_os_error(errno);
            (Failure::from_io("", &error).status, format!("holding their pages failed: {error}"))
        }
    };
    Failure::new(status, format!("{what}: {why}"))
}
