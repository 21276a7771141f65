//! The state that a running process publishes for outside observers: `tieline info --pid`.
//!
//! **Writer.** Unless `TIELINE_LIVE` is off or the file cannot be made, a context has a memory file with the name `tieline-live`,
//! sealed against shrinking. Up to 1024 of its workers have a place in the file, with a few words and two texts (JSON) about
//! endpoints, queues and connections. The worker stores the words when it polls the kernel, and when it begins or ends a sleep or a
//! blocking call. The texts are written alternately, so the last complete one can be read while the next is being written.
//!
//! A worker writes a text when it is opened, before it sleeps (once per millisecond at most), and up to ten times per second while
//! it polls. The pause after a text is a hundred times the time that the text took, but at most one second. Posts do not touch the
//! file. The writer needs no thread and no signal handler, and a reader blocks nothing. The file has no name in a file system. The
//! file disappears when the process, its forked children that run no other program, and readers have ended or closed it.
//!
//! **Access.** A reader opens the file by `/proc/PID/fd`. The kernel permits this to a process with CAP_SYS_PTRACE, and to the same
//! user if the process may be inspected. A process may not be inspected if it has changed its user, has capabilities that the
//! reader lacks, or has excluded inspection by `prctl(PR_SET_DUMPABLE)`. No debugger interface is used, so Yama's `ptrace_scope`
//! does not apply. If `/proc` hides processes of other users, or a security module forbids the access, the error names the possible
//! causes.
//!
//! Any process that can open the file can write to it. So a worker reads nothing from the file, and a reader does not trust its
//! contents. A reader uses reads rather than a mapping (another process could truncate a mapped file), checks every length, and
//! shows no control characters. One observation has a common limit of time and of text bytes for all its processes.
//!
//! **Inactive workers.** A worker may have made no progress between two observations without sleeping. Its application has then not
//! called it, or only a few times, or runs a handler. The worker's last text may then be older than its last progress, and is shown
//! with its age. While a worker sleeps, its own state does not change, so an operation that waited when the text was written still
//! waits. If an operation was its endpoint's oldest one in several texts, it has waited at least since the first of them.

mod file;
mod look;
mod process;
mod publisher;
mod read;
mod room;
mod sys;

pub use file::{File, Page};
#[expect(deprecated, reason = "an earlier name")]
pub use look::of_process;
pub use look::status_of;
pub use publisher::Publisher;
pub use read::own;
pub use sys::{now_ns, thread_id};

/// The target of the link to the file in `/proc/PID/fd`.
const LINK: &str = "/memfd:tieline-live (deleted)";
const NAME: &std::ffi::CStr = c"tieline-live";
const MAGIC: u64 = u64::from_le_bytes(*b"TLLIVE\0\x01");

// The first page identifies the owner of the file.
const AT_MAGIC: usize = 0;
const AT_PID: usize = 8;
const AT_CONTEXT: usize = 16;
const AT_OPENED: usize = 32;
/// The offset of the number of workers that got no place when they were opened.
const AT_UNSEEN: usize = 40;
const AT_VERSION: usize = 48;
const VERSION_BYTES: usize = 32;
const HEAD: usize = 4096;

// A worker's place contains words, and after them two text slots.
/// The offset of the word that is not 0 while the place is in use.
const AT_USED: usize = 0;
/// The offset of the count of texts, whose lowest bit selects the slot of the last text.
const AT_TEXTS: usize = 8;
/// The offset of the number of polls of the kernel.
const AT_POLLS: usize = 16;
/// The offset of the number of open operations at the time when the words were last stored.
const AT_OPEN: usize = 24;
/// The offset of the time since which the worker sleeps or may sleep; 0: it does not sleep. The lowest bit: the worker is armed, so
/// its application may sleep on the worker's descriptor.
const AT_ASLEEP: usize = 32;
/// The offset of the time since which the worker is in a blocking call and has stopped spinning; 0: it is in none.
const AT_WAITING: usize = 40;
const WORDS: usize = 64;
const PLACE: usize = 64 << 10;
const SLOT: usize = (PLACE - WORDS) / 2;

// A slot contains a time, a length and a text.
/// The offset of the time at which the slot's text was written.
const AT_WRITTEN: usize = 0;
const AT_LEN: usize = 8;
const AT_TEXT: usize = 16;
/// The maximum length of a text.
const MOST_TEXT: usize = SLOT - AT_TEXT;
/// The maximum number of visible workers per context; RLIMIT_FSIZE may allow fewer.
const PLACES: usize = 1024;

/// Returns the offset of a slot in its place.
fn slot(texts: u64) -> usize {
    WORDS + (texts & 1) as usize * SLOT
}

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod process_tests;
#[cfg(test)]
mod tests;
