//! What a process shows of itself while it runs, for who asks from outside: `tieline info --pid`.
//!
//! ```no_run
//! for context in tieline::live::of_process(4242)? {
//!     print!("{context}");        // what `tieline info --pid 4242` prints
//! }
//! # Ok::<(), tieline::Error>(())
//! ```
//!
//! A context has a memory file named `tieline-live`, sealed so that nobody can shrink it. Each of its workers writes into a place of
//! its own there: a few words that are plain stores, made where a worker asks the kernel for events and sleeps; and two texts (JSON)
//! of its endpoints, queues and connections, written in turn, so that the last whole one can be read also while the next is being
//! made, however long that takes. A text is made before a sleep, and ten times in a second of polling, and all of them take a
//! hundredth of the worker's time at most: what is posted and polled in between costs what it costs without, one call of progress in
//! very many takes longer. No thread and no signal handler is there for it, a reader holds nobody up, and with the process (and
//! children that it forked and that run no other program) the file is gone, however they ended: it has no name in any directory.
//!
//! A reader opens it by `/proc/PID/fd`, which the kernel grants to the same user, if the process may be looked into at all (not one
//! that has changed its user, or has said by `prctl(PR_SET_DUMPABLE)` that it may not), and to root. Nothing is attached, so Yama's
//! `ptrace_scope` has no say; a `/proc` that hides processes of others, or a security module that forbids a look, is told as what it is.
//! Since whoever can open the file can write to it, a worker reads nothing of it back, and a reader believes nothing: it reads (a
//! mapping could be cut off under it), checks every length, and what it shows has no control characters. One look has so much time, and
//! so many bytes of texts, for all processes that it looks at together.
//!
//! The reader sees also who does not move. A worker that has made no progress between two looks and is not asleep is in the hands
//! of its application. Its last text is then older than its last progress, and is shown as what it is: how things were so long ago. Only
//! while a worker sleeps, nothing of its own changes, and what waited then has waited since. An operation that was its endpoint's
//! oldest one in several texts waits since the first of them.

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
