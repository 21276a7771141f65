//! The state that a process publishes while it runs, for other processes: `tieline info --pid`.
//!
//! ```no_run
//! for context in tieline::live::of_process(4242)? {
//!     print!("{context}");        // what `tieline info --pid 4242` prints
//! }
//! # Ok::<(), tieline::Error>(())
//! ```
//!
//! A context has a memory file named `tieline-live`, sealed against truncation. Each of its workers has its own place in the file.
//! The worker writes a few words there by plain stores, when it polls the kernel for events and when it sleeps. It also writes two
//! texts (JSON) of its endpoints, queues and connections, alternately. The last complete text can therefore be read while the next
//! one is being written, however long that takes.
//!
//! A text is written before a sleep, and ten times per second of polling. All texts together take at most one percent of the
//! worker's time. Posting and polling in between have no additional cost; one progress call in very many takes longer. There is no
//! thread and no signal handler for this, and a reader delays no worker. The file has no name in any directory. It disappears with
//! the process, however the process ended, and with forked children that execute no other program.
//!
//! A reader opens the file through `/proc/PID/fd`. The kernel permits this to root, and to the same user unless the process has
//! changed its user or has disabled it by `prctl(PR_SET_DUMPABLE)`. Nothing is attached, so Yama's `ptrace_scope` does not apply.
//! If `/proc` hides other users' processes, or a security module denies access, the error names that cause.
//!
//! Every process that can open the file can also write to it. Therefore a worker never reads it back, and a reader trusts nothing.
//! The reader uses read calls, because a mapping could be truncated while it is in use. It checks every length, and removes control
//! characters from its output. One look has a bound of time and of text bytes, for all processes that it examines together.
//!
//! The reader also sees workers that make no progress. A worker that made no progress between two looks and is not asleep is
//! waiting for its application. Its last text is then older than its last progress, and is shown with its age. Only while a worker
//! sleeps does its own state not change, and operations that waited at the beginning have waited since. An operation that was its
//! endpoint's oldest one in several texts has waited since the first of them.

mod file;
mod process;
mod read;
mod room;
mod sys;
mod text;
mod values;

pub(crate) use file::{File, Page};
pub use read::of_process;
pub(crate) use read::own;
pub(crate) use sys::{now_ns, thread_id};
pub use values::{
    Doing, EndpointStatus, FormingStatus, InterfaceStatus, PeerStatus, Status, Waits, WorkerStatus,
};
pub(crate) use values::{MOST_SHOWN, cut};

/// The name of the file, as `/proc/PID/fd` has it.
const LINK: &str = "/memfd:tieline-live (deleted)";
const NAME: &std::ffi::CStr = c"tieline-live";
const MAGIC: u64 = u64::from_le_bytes(*b"TLLIVE\0\x01");

// The first page: who the file belongs to.
const AT_MAGIC: usize = 0;
const AT_PID: usize = 8;
const AT_CONTEXT: usize = 16;
const AT_OPENED: usize = 32;
/// Workers that found no place.
const AT_UNSEEN: usize = 40;
const AT_VERSION: usize = 48;
const VERSION_BYTES: usize = 32;
const HEAD: usize = 4096;

// A worker's place: words, and its text behind them.
/// Serves somebody.
const AT_USED: usize = 0;
/// Counts texts; the last one is in the slot of the lowest bit.
const AT_TEXTS: usize = 8;
/// Looks at the kernel.
const AT_POLLS: usize = 16;
/// Operations that were open then.
const AT_OPEN: usize = 24;
/// Since when it sleeps, or may; 0: it does not. The lowest bit: it is its application that may, on the worker's descriptor.
const AT_ASLEEP: usize = 32;
/// Since when it is in a call that waits, and has stopped to spin; 0: it is in none.
const AT_WAITING: usize = 40;
const WORDS: usize = 64;
const PLACE: usize = 64 << 10;
const SLOT: usize = (PLACE - WORDS) / 2;

// A slot.
/// When its text was made.
const AT_WRITTEN: usize = 0;
const AT_LEN: usize = 8;
const AT_TEXT: usize = 16;
/// The longest text.
pub(crate) const MOST_TEXT: usize = SLOT - AT_TEXT;
/// Workers of one context that can be seen.
const PLACES: usize = 1024;

/// Where a slot begins in its place.
fn slot(texts: u64) -> usize {
    WORDS + (texts & 1) as usize * SLOT
}

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod text_tests;
