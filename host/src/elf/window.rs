//! An open file, of which a few long reads serve many short ones.

use super::{Bytes, inside};
use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The length of a window. The tables of a shared object lie close together: those for the loader behind its head, the section
/// headers and their names at its end.
const WINDOW: usize = 16 * 1024;
/// The bytes of a window in front of the first requested one. The names of the sections lie in front of their headers.
const BEFORE: u64 = 4 * 1024;
/// The maximum number of windows. A file that needs more is read piece by piece, so odd contents cost no more than their own bytes.
const MOST_WINDOWS: usize = 8;

/// The length of the first part of a file, which has its headers and the note: all that is read of most files.
const HEAD: usize = 4 * 1024;

/// The memory for the parts of a file, which the files of a search use one after the other. That for windows is one long allocation,
/// because an allocator returns such an allocation to the system, and an idle context does not keep it.
pub(crate) struct Windows {
    head: [u8; HEAD],
    windows: Vec<u8>,
}

impl Default for Windows {
    fn default() -> Windows {
        Windows { head: [0; HEAD], windows: Vec::new() }
    }
}

/// An open file, with its length at the time of opening.
pub(crate) struct OpenFile<'a> {
    file: File,
    len: u64,
    read: RefCell<Parts<'a>>,
}

/// The parts of a file that were read: the length of its head, and the offset and length of each other part. Such a part lies in the
/// window of its index.
struct Parts<'a> {
    head: usize,
    parts: Vec<(u64, usize)>,
    memory: &'a mut Windows,
}

impl OpenFile<'_> {
    pub(crate) fn new(file: File, len: u64, memory: &mut Windows) -> OpenFile<'_> {
        OpenFile { file, len, read: RefCell::new(Parts { head: 0, parts: Vec::new(), memory }) }
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

impl Parts<'_> {
    /// Copies the range from a part that contains all of it.
    fn copied(&self, offset: u64, out: &mut [u8]) -> bool {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let range = start..start.saturating_add(out.len());
        if let Some(bytes) = self.memory.head[..self.head].get(range) {
            out.copy_from_slice(bytes);
            return true;
        }
        let place = |(index, &(start, len)): (usize, &(u64, usize))| {
            let at = usize::try_from(offset.checked_sub(start)?).ok()?;
            let end = at.checked_add(out.len()).filter(|end| *end <= len)?;
            Some(index * WINDOW + at..index * WINDOW + end)
        };
        let found = self.parts.iter().enumerate().find_map(place);
        let bytes = found.and_then(|place| self.memory.windows.get(place));
        bytes.is_some_and(|bytes| {
            out.copy_from_slice(bytes);
            true
        })
    }

    /// Reads a part around this range; `false` if the range is too long, if there are too many windows, or if the file ends early.
    fn add(&mut self, file: &File, file_len: u64, offset: u64, len: u64) -> bool {
        if self.head == 0 && offset.checked_add(len).is_some_and(|last| last <= HEAD as u64) {
            let head_len = HEAD.min(usize::try_from(file_len).unwrap_or(HEAD));
            let is_read = file.read_exact_at(&mut self.memory.head[..head_len], 0).is_ok();
            self.head = if is_read { head_len } else { 0 };
            return is_read;
        }
        let start = offset.saturating_sub(BEFORE);
        let end = start.saturating_add(WINDOW as u64).min(file_len);
        let first = self.parts.len() * WINDOW;
        if offset.checked_add(len).is_none_or(|last| last > end) || self.parts.len() == MOST_WINDOWS
        {
            return false;
        }
        if self.memory.windows.is_empty() {
            // The system supplies zeroed pages, and only those of the used windows.
            self.memory.windows = vec![0; MOST_WINDOWS * WINDOW];
        }
        let part_len = (end - start) as usize; // at most `WINDOW`
        let Some(bytes) = self.memory.windows.get_mut(first..first + part_len) else {
            return false;
        };
        let is_read = file.read_exact_at(bytes, start).is_ok();
        if is_read {
            self.parts.push((start, part_len));
        }
        is_read
    }
}

impl Bytes for OpenFile<'_> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        let len = out.len() as u64;
        if !inside(offset, len, self.len) {
            return false;
        }
        let mut read = self.read.borrow_mut();
        read.copied(offset, out)
            || read.add(&self.file, self.len, offset, len) && read.copied(offset, out)
            || self.file.read_exact_at(out, offset).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file_of(name: &str, bytes: &[u8]) -> File {
        let at = std::env::temp_dir().join(format!("tieline-{name}-{}", std::process::id()));
        let mut file = File::options().read(true).write(true).create_new(true).open(&at).unwrap();
        std::fs::remove_file(&at).unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    /// Compares reads through windows with the contents, also beyond the maximum number of windows and across their ends.
    #[test]
    fn every_read_returns_the_bytes_of_the_file_or_fails_past_its_end() {
        let bytes: Vec<u8> = (0..600_000_u32).map(|n| (n ^ (n >> 8)) as u8).collect();
        let mut memory = Windows::default();
        let open = OpenFile::new(file_of("window", &bytes), bytes.len() as u64, &mut memory);
        let starts = (0..bytes.len()).step_by(7919).chain([0, 1, 4095, 4096, 32_767, 599_999]);
        for start in starts {
            for len in [0, 1, 16, 5000, 40_000, 70_000] {
                let mut out = vec![0; len];
                let read = open.read(start as u64, &mut out);
                assert_eq!(read, start + len <= bytes.len(), "{start} {len}");
                assert!(!read || out == bytes[start..start + len], "{start} {len}");
            }
        }
        assert!(open.read.borrow().parts.len() <= MOST_WINDOWS);
        assert!(!open.read(u64::MAX, &mut [0; 2]));
    }

    #[test]
    fn file_that_became_shorter_yields_no_bytes() {
        let mut memory = Windows::default();
        let open = OpenFile::new(file_of("shorter", &[1; 10_000]), 10_000, &mut memory);
        open.file().set_len(5000).unwrap();
        assert!(!open.read(8000, &mut [0; 4]));
        assert!(open.read(100, &mut [0; 4]), "this part is there");
    }

    #[test]
    fn next_file_uses_the_memory_of_the_last_and_sees_its_own_bytes() {
        let mut memory = Windows::default();
        for (fill, len) in [(1, 100_000), (2, 50), (3, 100_000)] {
            let open = OpenFile::new(file_of("next", &vec![fill; len]), len as u64, &mut memory);
            let mut out = [0; 40];
            for at in [0, len as u64 - 40] {
                assert!(open.read(at, &mut out));
                assert_eq!(out, [fill; 40], "{len} {at}");
            }
            assert!(!open.read(len as u64 - 39, &mut out));
        }
        assert_eq!(memory.windows.len(), MOST_WINDOWS * WINDOW);
    }
}
