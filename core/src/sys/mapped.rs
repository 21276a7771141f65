//! The check whether memory allows the access that peers need, by the kernel's list of this process's mappings.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;

/// A mapping of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) reads: bool,
    pub(crate) writes: bool,
}

/// The kernel's record for the query of one mapping (Linux 6.11): `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    rights: u64,
    page: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_len: u32,
    build_id_len: u32,
    name: u64,
    build_id: u64,
}

const _: () = assert!(size_of::<Query>() == 104);

/// The request number: `_IOWR('f', 17, struct procmap_query)`.
const QUERY: libc::c_ulong = 0xc068_6611;
const READS: u64 = 1;
const WRITES: u64 = 2;

/// Returns the first of the `len` bytes from `base` that lacks a right. `None`: no byte lacks a right, or that cannot be
/// determined.
///
/// The function makes one query per mapping in the range. If the kernel does not answer queries (before Linux 6.11), the function
/// reads the list as text, up to the end of the range.
pub(crate) fn first_without(base: u64, len: u64, reads: bool, writes: bool) -> Option<u64> {
    let list = File::open("/proc/self/maps").ok()?;
    let end = base.checked_add(len)?;
    let mut at = base;
    while at < end {
        match ask(&list, at) {
            Answer::Mapped(found) if fits(&found, reads, writes) && found.end > at => {
                at = found.end
            }
            Answer::Mapped(_) | Answer::Nothing => return Some(at),
            Answer::Unknown => return first_in_text(BufReader::new(&list), at, end, reads, writes),
        }
    }
    None
}

fn fits(found: &Mapped, reads: bool, writes: bool) -> bool {
    (found.reads || !reads) && (found.writes || !writes)
}

enum Answer {
    Mapped(Mapped),
    Nothing,
    /// The kernel is older, or forbids the query.
    Unknown,
}

fn ask(list: &File, address: u64) -> Answer {
    let mut query = Query { size: size_of::<Query>() as u64, address, ..Query::default() };
    // SAFETY: the record has the layout that the request number implies, and lives during the call.
    if unsafe { libc::ioctl(list.as_raw_fd(), QUERY, &raw mut query) } == 0 {
        let Query { start, end, rights, .. } = query;
        let (reads, writes) = (rights & READS != 0, rights & WRITES != 0);
        return Answer::Mapped(Mapped { start, end, reads, writes });
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::ENOENT) => Answer::Nothing,
        _ => Answer::Unknown,
    }
}

/// Searches the list as text, which is ordered by address.
fn first_in_text(
    list: impl BufRead,
    mut at: u64,
    end: u64,
    reads: bool,
    writes: bool,
) -> Option<u64> {
    for line in list.split(b'\n') {
        // Nothing can be concluded from an unreadable line.
        let found = parse(&line.ok()?)?;
        if found.end <= at {
            continue;
        }
        if found.start > at || !fits(&found, reads, writes) {
            return Some(at);
        }
        at = found.end;
        if at >= end {
            return None;
        }
    }
    Some(at)
}

/// Parses a line in the form `7f12-7f34 rw-p ...`.
fn parse(line: &[u8]) -> Option<Mapped> {
    let mut words = line.split(|byte| *byte == b' ');
    let (range, rights) = (words.next()?, words.next()?);
    let (start, end) = std::str::from_utf8(range).ok()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(Mapped {
        start: number(start)?,
        end: number(end)?,
        reads: rights.first() == Some(&b'r'),
        writes: rights.get(1) == Some(&b'w'),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "1000-2000 r--p 00000000 00:00 0\n2000-4000 rw-p 00000000 00:00 0  [heap]\n\
                        4000-5000 rw-s 00000000 00:01 7 /a file\n6000-7000 ---p 00000000 00:00 0\n";

    #[test]
    fn the_first_byte_without_a_right_is_found_in_the_text() {
        let first =
            |base, end, reads, writes| first_in_text(LIST.as_bytes(), base, end, reads, writes);
        assert_eq!(first(0x1000, 0x5000, true, false), None);
        assert_eq!(first(0x1000, 0x5000, true, true), Some(0x1000));
        assert_eq!(first(0x2fff, 0x4001, false, true), None);
        assert_eq!(first(0x4800, 0x5001, false, true), Some(0x5000), "a gap");
        assert_eq!(first(0x800, 0x1001, true, false), Some(0x800), "before all");
        assert_eq!(first(0x6000, 0x6001, true, false), Some(0x6000), "no right at all");
        assert_eq!(first(0x7000, 0x7001, true, false), Some(0x7000), "behind all");
    }

    #[test]
    fn the_kernel_and_its_text_say_the_same_of_this_process() {
        // SAFETY: the call takes a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the mapping is new; its second page is protected and its third unmapped, and none is accessed.
        let base = unsafe {
            let at = libc::mmap(std::ptr::null_mut(), 3 * page, prot, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(at.byte_add(page), page, libc::PROT_READ), 0);
            assert_eq!(libc::munmap(at.byte_add(2 * page), page), 0);
            at.addr() as u64
        };
        let page = page as u64;
        for (len, reads, writes, first) in [
            (page, true, true, None),
            (page + 1, true, true, Some(base + page)),
            (2 * page, true, false, None),
            (2 * page + 1, true, false, Some(base + 2 * page)),
            (0, true, true, None),
        ] {
            assert_eq!(first_without(base, len, reads, writes), first);
            if len > 0 {
                let text = BufReader::new(File::open("/proc/self/maps").unwrap());
                assert_eq!(first_in_text(text, base, base + len, reads, writes), first);
            }
        }
        // SAFETY: the two pages were mapped above.
        assert_eq!(unsafe { libc::munmap(base as *mut libc::c_void, 2 * page as usize) }, 0);
    }
}
