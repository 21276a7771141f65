//! The system calls that change memory.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use tieline::{Access, Context, OpenError, Region};

/// Pages that are mapped in a selected manner.
#[derive(Debug)]
pub struct Spoiled {
    base: usize,
    len: usize,
    /// The file that the pages map.
    file: Option<File>,
}

impl Spoiled {
    /// Maps `len` bytes. `kind` is `file` (shared), `read-only`, `nowhere` (no access rights), or another word for private memory.
    ///
    /// # Panics
    /// Panics if the mapping fails.
    #[must_use]
    pub fn map(len: usize, kind: &str) -> Spoiled {
        let rights = match kind {
            "read-only" => libc::PROT_READ,
            "nowhere" => libc::PROT_NONE,
            _ => libc::PROT_READ | libc::PROT_WRITE,
        };
        let file = (kind == "file").then(|| {
            let path = std::env::temp_dir().join(format!("tieline-spoiled-{}", std::process::id()));
            let options = &mut File::options();
            let file = options.read(true).write(true).create_new(true).open(&path).expect("a file");
            std::fs::remove_file(path).expect("its name");
            file.set_len(len as u64).expect("its length");
            file
        });
        let (fd, flags) = match &file {
            Some(file) => (file.as_raw_fd(), libc::MAP_SHARED),
            None => (-1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS),
        };
        // The system places other mappings far above: none of them fills the hole that `unmap` leaves.
        static NEXT: AtomicUsize = AtomicUsize::new(1 << 40);
        let hint = NEXT.fetch_add(1 << 30, Ordering::Relaxed) as *mut libc::c_void;
        // SAFETY: a new mapping changes no existing one.
        let base = unsafe { libc::mmap(hint, len, rights, flags, fd, 0) };
        assert!(base != libc::MAP_FAILED, "mmap: {}", io::Error::last_os_error());
        Spoiled { base: base as usize, len, file }
    }

    /// Registers the pages.
    ///
    /// # Errors
    /// Returns the library's error.
    pub fn register(&self, context: &Context, access: Access) -> Result<Region, OpenError> {
        // SAFETY: only the library accesses these bytes in this process, and the tests check the effect of their loss.
        unsafe { context.register_raw(self.base as *mut u8, self.len, access) }
    }

    /// Applies a change to all pages from an offset on: `unmap`, `nowhere`, `read-only`, `usable`, or `cut` (their file).
    ///
    /// # Panics
    /// Panics if the system refuses the change.
    pub fn change(&self, how: &str, from: usize) {
        let (at, len) = ((self.base + from) as *mut libc::c_void, self.len - from);
        let rights = match how {
            "unmap" => {
                // SAFETY: `map` has mapped the range; see `register`.
                assert_eq!(unsafe { libc::munmap(at, len) }, 0, "{}", io::Error::last_os_error());
                return;
            }
            "cut" => {
                let file = self.file.as_ref().expect("a file");
                return file.set_len(from as u64).expect("another length");
            }
            "nowhere" => libc::PROT_NONE,
            "read-only" => libc::PROT_READ,
            "usable" => libc::PROT_READ | libc::PROT_WRITE,
            _ => panic!("`{how}` is no change"),
        };
        // SAFETY: `map` has mapped the range; see `register`.
        assert_eq!(unsafe { libc::mprotect(at, len, rights) }, 0, "{}", io::Error::last_os_error());
    }
}
