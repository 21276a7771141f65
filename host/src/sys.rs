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
use std::cell::OnceCell;
use std::ffi::{CStr, c_void};
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MappedFile {
    /// The major and the minor number of the device.
    device: (u32, u32),
    inode: u64,
}

impl MappedFile {
    /// Returns the identity with the numbers of stat.
    fn by_stat(meta: &Metadata) -> MappedFile {
        MappedFile { device: major_and_minor(meta.dev()), inode: meta.ino() }
    }
}

/// Splits a device number as the C library encodes it. The functions of the crate `libc` are unsafe in 0.2.169 and safe in later
/// versions.
fn major_and_minor(device: u64) -> (u32, u32) {
    let major = (device >> 8) & 0xfff | (device >> 32) & 0xffff_f000;
    let minor = device & 0xff | (device >> 12) & 0xffff_ff00;
    (major as u32, minor as u32)
}

impl std::fmt::Display for MappedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (major, minor) = self.device;
        write!(f, "device and inode {major:02x}:{minor:02x} {}", self.inode)
    }
}

/// The mappings of this process, opened when they are first needed.
#[derive(Default)]
pub(crate) struct Mappings {
    file: OnceCell<Option<File>>,
}

impl Mappings {
    /// Returns the identity of an open file in the mappings, and that of the file at an address; `None` without /proc, or if no
    /// file is mapped there.
    pub(crate) fn compare(
        &self,
        file: &File,
        meta: &Metadata,
        address: *const c_void,
    ) -> Option<(MappedFile, MappedFile)> {
        let [there] = self.files_at([address.addr()])?;
        let there = there?;
        // On most file systems, the mappings have the numbers of stat. The file is not mapped for its own sake then.
        if there == MappedFile::by_stat(meta) {
            return Some((there, there));
        }
        let page = Page::of(file)?;
        let [mapped] = self.files_at([page.0.addr()])?;
        // Emulators of processors make the text when it is opened, so the new page is in a new text only.
        let mapped = match mapped {
            None => Mappings::default().files_at([page.0.addr()])?[0],
            found => found,
        };
        Some((mapped?, there))
    }

    fn files_at<const N: usize>(&self, addresses: [usize; N]) -> Option<[Option<MappedFile>; N]> {
        let file = self.file.get_or_init(|| File::open("/proc/self/maps").ok()).as_ref()?;
        let mut found = [None; N];
        for (place, address) in found.iter_mut().zip(addresses) {
            match query(file, address) {
                Ok(mapped) => *place = mapped,
                // The kernel is older than 6.11, or a filter forbids the query. The text states the same.
                Err(_) => return from_text(file, addresses),
            }
        }
        Some(found)
    }
}

/// The record of the kernel's query for one mapping, `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct MapQuery {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    rights: u64,
    page_bytes: u64,
    offset: u64,
    inode: u64,
    major: u32,
    minor: u32,
    name_len: u32,
    build_id_len: u32,
    name: u64,
    build_id: u64,
}

/// `_IOWR('f', 17, struct procmap_query)`, in the encoding of all architectures but some old ones, on which the query fails.
const PROCMAP_QUERY: u32 = 3 << 30 | (size_of::<MapQuery>() as u32) << 16 | 0x66 << 8 | 17;

/// Queries the kernel for the file at an address.
///
/// # Errors
/// The kernel does not know the query.
fn query(maps: &File, address: usize) -> io::Result<Option<MappedFile>> {
    let size = size_of::<MapQuery>() as u64;
    let mut query = MapQuery { size, address: address as u64, ..MapQuery::default() };
    // SAFETY: the record has the layout and the size that the request encodes, and outlives the call. Its lengths are 0, so the
    // kernel writes no name and no build id.
    let code = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) };
    if code != 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ENOENT) { Ok(None) } else { Err(error) };
    }
    let device = (query.major, query.minor);
    Ok((query.inode != 0).then_some(MappedFile { device, inode: query.inode }))
}

/// Searches the text of the mappings for the files at these addresses.
fn from_text<const N: usize>(
    mut maps: &File,
    addresses: [usize; N],
) -> Option<[Option<MappedFile>; N]> {
    let mut wanted = addresses.map(|address| (address, None));
    maps.rewind().ok()?;
    find(maps, &mut wanted).ok()?;
    Some(wanted.map(|(_, file)| file))
}

/// The mapping of one page of an open file, by which the file is recognised among the mappings.
struct Page(*mut c_void);

/// The length of the mapping, which the kernel rounds to a page.
const PAGE: usize = 1;

impl Page {
    /// Maps the first page of the file. Nothing reads the page.
    fn of(file: &File) -> Option<Page> {
        let none = std::ptr::null_mut();
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let page = unsafe {
            libc::mmap(none, PAGE, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
        };
        (page != libc::MAP_FAILED).then_some(Page(page))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: this object made the mapping, and nothing refers to it.
        let _ = unsafe { libc::munmap(self.0, PAGE) };
    }
}

/// Searches mappings for the files at these addresses, until all are found.
fn find(mut maps: impl Read, wanted: &mut [(usize, Option<MappedFile>)]) -> io::Result<()> {
    // The kernel returns whole lines, at most a page of them with each read.
    let mut text = vec![0; 16 * 1024];
    let mut filled = 0;
    loop {
        if filled == text.len() {
            text.resize(2 * filled, 0);
        }
        let got = maps.read(&mut text[filled..])?;
        filled += got;
        let last = text[..filled].iter().rposition(|&byte| byte == b'\n');
        let whole = if got == 0 { filled } else { last.map_or(0, |last| last + 1) };
        for line in text[..whole].split(|&byte| byte == b'\n') {
            fill(line, wanted);
        }
        if got == 0 || wanted.iter().all(|(_, file)| file.is_some()) {
            return Ok(());
        }
        text.copy_within(whole..filled, 0);
        filled -= whole;
    }
}

/// Reads one mapping, of the form `start-end rights offset device inode path`.
fn fill(line: &[u8], wanted: &mut [(usize, Option<MappedFile>)]) {
    let mut words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    let mut word = || std::str::from_utf8(words.next()?).ok();
    let number = |text| usize::from_str_radix(text, 16).ok();
    let Some((start, end)) = word().and_then(|range| range.split_once('-')) else { return };
    let (Some(start), Some(end)) = (number(start), number(end)) else { return };
    let is_inside = |(at, _): &&mut (usize, Option<MappedFile>)| (start..end).contains(at);
    let mut inside = wanted.iter_mut().filter(is_inside).peekable();
    if inside.peek().is_none() {
        return;
    }
    let (_, _) = (word(), word());
    let Some((major, minor)) = word().and_then(|device| device.split_once(':')) else { return };
    let device = |text| u32::from_str_radix(text, 16).ok();
    let inode = word().and_then(|inode| inode.parse().ok()).filter(|inode| *inode != 0);
    if let (Some(major), Some(minor), Some(inode)) = (device(major), device(minor), inode) {
        let device = (major, minor);
        inside.for_each(|(_, file)| *file = Some(MappedFile { device, inode }));
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
