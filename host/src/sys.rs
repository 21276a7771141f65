//! The work of the child process that tries a provider file, and other system calls.
//!
//! The child loads the file, looks up and calls its entry function, opens its domains, and runs its finalizers. The host table and
//! the buffer for the provider's tables are prepared before the fork. No other thread has used the host table that the entry
//! function gets, so none of its locks is held. The functions of the file may damage the memory of the child process, but not that
//! of its parent.

#![allow(unsafe_code)]

use super::abi::trial;
use super::abi::watched::Broke;
use super::room::Room;
use std::ffi::{CStr, c_void};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;
use tieline_plugin_api::abi::{EntryFn, Host};
use tieline_trial::{End, Outcome, Say, Share, in_child};

/// Returns the length of a page.
pub fn page_bytes() -> u64 {
    // SAFETY: no pointer is passed.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Returns sixteen random bytes; `None` if the kernel has none.
pub(crate) fn random_id() -> Option<[u8; 16]> {
    let mut id = [0; 16];
    // SAFETY: the call writes at most the length of `id` into it. The kernel never splits so short a request.
    let got = unsafe { libc::getrandom(id.as_mut_ptr().cast(), id.len(), 0) };
    (got == 16).then_some(id)
}

/// The identity of a file in the mappings of a process. Its numbers may differ from those of stat (overlayfs, btrfs).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MappedFile(String);

impl std::fmt::Display for MappedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "device and inode {}", self.0)
    }
}

/// Returns the file that is mapped at an address; `None` without /proc, or if no file is mapped there.
pub(crate) fn file_at(address: *const c_void) -> Option<MappedFile> {
    mapped_at(&std::fs::read("/proc/self/maps").ok()?, address as usize)
}

/// Searches mappings in the form `start-end rights offset device inode path`, one line each.
fn mapped_at(maps: &[u8], address: usize) -> Option<MappedFile> {
    maps.split(|&byte| byte == b'\n').find_map(|line| {
        let line = String::from_utf8_lossy(line);
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let inside = (number(start)?..number(end)?).contains(&address);
        let (device, inode) = (words.nth(2)?, words.next()?);
        (inside && inode != "0").then(|| MappedFile(format!("{device} {inode}")))
    })
}

/// Returns the identity that an open file has in the mappings.
pub(crate) fn as_mapped(file: &File) -> Option<MappedFile> {
    const LEN: usize = 1;
    // SAFETY: a new mapping of one page, which nothing reads and which is unmapped before this returns.
    unsafe {
        let (none, fd) = (std::ptr::null_mut(), file.as_raw_fd());
        let page = libc::mmap(none, LEN, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0);
        if page == libc::MAP_FAILED {
            return None;
        }
        let mapped = file_at(page);
        let _ = libc::munmap(page, LEN);
        mapped
    }
}

/// The step that the child had begun when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// dlopen, and with it the file's constructors.
    Loading,
    /// The entry function.
    Starting,
    /// The listing, opening and closing of the file's domains.
    Opening,
    /// The finalizers of the file.
    Ending,
}

/// The result of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trial {
    /// The file loaded and has the symbol. The entry function returned, with any status, and so did the later steps.
    Ran,
    /// The loader refused, with this text.
    Refused(String),
    /// The file loaded and lacks the symbol.
    NoSymbol,
    /// The file loaded, and the symbol is that of another object.
    ForeignSymbol,
    /// A function of the file has changed what its caller keeps.
    Broke(Step, Broke),
    /// A signal ended the child.
    Killed(Step, i32),
    /// The child exited with this status before it answered.
    Exited(Step, i32),
    /// The child ended without an answer, and another part of the process collected its status.
    Vanished(Step),
    /// The child did not answer within the limit.
    TimedOut(Step),
    /// Another thread was loading a file at the fork, so the child did not use its loader.
    Disturbed,
}

/// The arguments of the entry function in the child.
pub(crate) struct Call {
    pub(crate) host: &'static Host,
    pub(crate) room: Box<Room>,
}

/// Loads `path` in a child process, calls its entry function `symbol`, opens its domains and runs its finalizers. The child has
/// ended when the function returns. No other code uses `call.host`.
pub(crate) fn try_file(
    path: &CStr,
    symbol: &CStr,
    call: &mut Call,
    limit: Duration,
) -> io::Result<Trial> {
    try_with(path, symbol, Some(call), limit)
}

fn try_with(
    path: &CStr,
    symbol: &CStr,
    call: Option<&mut Call>,
    limit: Duration,
) -> io::Result<Trial> {
    // SAFETY: the function runs in the child, as required.
    let attempt = |say: Say| unsafe { child(path, symbol, call, say) };
    let Outcome { said, end } = in_child(Share::Nothing, limit, attempt)?;
    Ok(verdict(&said, end))
}

/// Tries the file, answers and ends the process, in the forked child.
///
/// # Safety
/// The caller is a forked child.
unsafe fn child(path: &CStr, symbol: &CStr, call: Option<&mut Call>, say: Say) -> ! {
    // SAFETY: dlopen, and a call of the symbol as the parent would make it. Any damage ends with this process.
    unsafe {
        if crate::loads::in_progress() {
            say.end(b"W")
        }
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        if handle.is_null() {
            let text = libc::dlerror();
            say.say(b"E");
            say.end(if text.is_null() { b"" } else { CStr::from_ptr(text).to_bytes() })
        }
        let entry = libc::dlsym(handle, symbol.as_ptr());
        if entry.is_null() {
            say.end(b"M")
        }
        // The parent looks the address up, too: the loader then reads the tables of the file's symbols.
        let is_whole = call.is_some();
        if !super::objects::defined_in(handle, entry) {
            say.end(b"F")
        }
        say.say(b"L");
        if let Some(Call { host, room }) = call {
            let entry: EntryFn = std::mem::transmute(entry);
            let started =
                trial::start(entry, host, room).unwrap_or_else(|broke| end_broken(say, broke));
            say.say(b"D");
            if started {
                trial::open_and_close(&room.ops).unwrap_or_else(|broke| end_broken(say, broke));
            }
        }
        say.say(b"Q");
        if is_whole {
            super::objects::run_finalizers(handle).unwrap_or_else(|broke| end_broken(say, broke));
        }
        say.end(b"R")
    }
}

/// Answers that a function has changed what its caller keeps, and ends the child.
fn end_broken(say: Say, broke: Broke) -> ! {
    say.end(&[b'B', broke.letter()])
}

/// Returns the step that the child had begun when it wrote this answer, and the rest of the answer.
fn step_of(answer: &[u8]) -> (Step, &[u8]) {
    match answer {
        [b'L', b'D', b'Q', rest @ ..] | [b'L', b'Q', rest @ ..] => (Step::Ending, rest),
        [b'L', b'D', rest @ ..] => (Step::Opening, rest),
        [b'L', rest @ ..] => (Step::Starting, rest),
        _ => (Step::Loading, answer),
    }
}

fn verdict(answer: &[u8], end: End) -> Trial {
    let (step, said) = step_of(answer);
    if let Some(broke) = said.strip_prefix(b"B").and_then(Broke::from_answer) {
        return Trial::Broke(step, broke);
    }
    match (said, end) {
        (_, End::TimedOut) => Trial::TimedOut(step),
        ([b'R'], End::Exited(0) | End::Gone) if step == Step::Ending => Trial::Ran,
        ([b'W'], End::Exited(0) | End::Gone) => Trial::Disturbed,
        ([b'M'], End::Exited(0) | End::Gone) => Trial::NoSymbol,
        ([b'F'], End::Exited(0) | End::Gone) => Trial::ForeignSymbol,
        ([b'E', text @ ..], _) => Trial::Refused(String::from_utf8_lossy(text).into_owned()),
        (_, End::Killed(signal)) => Trial::Killed(step, signal),
        (_, End::Exited(status)) => Trial::Exited(step, status),
        (_, End::Gone) => Trial::Vanished(step),
    }
}

#[cfg(test)]
mod tests;
