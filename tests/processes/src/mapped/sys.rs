//! Mappings of memory of each [`Kind`].
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Private anonymous memory, like a heap.
    Private,
    /// Anonymous memory that is shared with children.
    Shared,
    /// A shared memory file.
    Memfd,
    /// A private mapping of a file, like the initialized data of a program.
    File,
    /// Private anonymous memory of transparent huge pages, if the system provides them.
    Transparent,
    /// Private anonymous memory of reserved huge pages.
    Huge,
}

/// Every kind, by name.
pub const KINDS: [(&str, Kind); 6] = [
    ("private", Kind::Private),
    ("shared", Kind::Shared),
    ("memfd", Kind::Memfd),
    ("file", Kind::File),
    ("transparent", Kind::Transparent),
    ("huge", Kind::Huge),
];

impl Kind {
    /// Returns the kind of that name.
    ///
    /// # Panics
    /// Panics if there is no such kind.
    #[must_use]
    pub fn named(name: &str) -> Kind {
        let kind = KINDS.iter().find(|(known, _)| *known == name);
        kind.unwrap_or_else(|| panic!("`{name}` is no kind of memory")).1
    }

    /// Checks whether a forked child shares the memory with its parent.
    #[must_use]
    pub fn is_shared(self) -> bool {
        matches!(self, Kind::Shared | Kind::Memfd)
    }
}

const HUGE: usize = 2 << 20;

/// Memory that an application has mapped. The owner drops it after all regions in the memory were closed.
#[derive(Debug)]
pub struct Mapped {
    base: usize,
    len: usize,
    /// The address and the length of the whole mapping.
    all: (usize, usize),
}

impl Mapped {
    /// Maps memory without writing to it.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn new(kind: Kind, len: usize) -> io::Result<Mapped> {
        let map = |len: usize, flags: libc::c_int, file: Option<&OwnedFd>| {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let fd = file.map_or(-1, AsRawFd::as_raw_fd);
            // SAFETY: a new mapping changes no existing one.
            let base = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, fd, 0) };
            if base == libc::MAP_FAILED {
                Err(io::Error::last_os_error())
            } else {
                Ok(base as usize)
            }
        };
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let mapped = |base: usize, all: usize| Mapped { base, len, all: (base, all) };
        let whole = len.next_multiple_of(HUGE);
        match kind {
            Kind::Private => map(len, anonymous, None).map(|base| mapped(base, len)),
            Kind::Shared => {
                let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
                map(len, shared, None).map(|base| mapped(base, len))
            }
            Kind::Memfd => {
                let file = memory_file(len)?;
                map(len, libc::MAP_SHARED, Some(&file)).map(|base| mapped(base, len))
            }
            // The file is the program itself, which is long enough, and is not a file in memory.
            Kind::File => {
                let program = File::open("/proc/self/exe")?;
                assert!(program.metadata()?.len() >= len as u64, "the program is too short");
                let program = program.into();
                map(len, libc::MAP_PRIVATE, Some(&program)).map(|base| mapped(base, len))
            }
            Kind::Transparent => {
                let all = whole + HUGE;
                let start = map(all, anonymous, None)?;
                let base = start.next_multiple_of(HUGE);
                // SAFETY: the mapping was made by this function, and keeps its contents.
                let _ = unsafe { libc::madvise(base as *mut _, whole, libc::MADV_HUGEPAGE) };
                Ok(Mapped { base, len, all: (start, all) })
            }
            Kind::Huge => {
                let huge = anonymous | libc::MAP_HUGETLB;
                map(whole, huge, None).map(|base| Mapped { base, len, all: (base, whole) })
            }
        }
    }

    /// Registers the memory.
    ///
    /// # Errors
    /// Returns the library's error.
    pub fn register(
        &self,
        context: &tieline::Context,
        access: tieline::Access,
    ) -> Result<tieline::Region, tieline::OpenError> {
        // SAFETY: the memory stays mapped until it is dropped, and the owner closes the region before.
        unsafe { context.register_raw(self.base as *mut u8, self.len, access) }
    }

    /// Fills every byte with the result of `byte` for its offset.
    pub fn fill(&self, byte: impl Fn(usize) -> u8) {
        for at in 0..self.len {
            // SAFETY: the address is inside the mapping, and no peer has the key yet.
            unsafe { *((self.base + at) as *mut u8) = byte(at) };
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: `new` has mapped the memory, and all of its regions were closed.
        let _ = unsafe { libc::munmap(self.all.0 as *mut libc::c_void, self.all.1) };
    }
}

fn memory_file(len: usize) -> io::Result<OwnedFd> {
    // SAFETY: the name ends with a zero, and the descriptor has no other owner.
    let file = unsafe {
        let fd = libc::memfd_create(c"mapped".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    File::from(file.try_clone()?).set_len(len as u64)?;
    Ok(file)
}

pub(crate) fn exec_sleep() -> io::Error {
    // SAFETY: every string ends with a zero, and the list ends with a null.
    let _ = unsafe {
        libc::execlp(
            c"sleep".as_ptr(),
            c"sleep".as_ptr(),
            c"600".as_ptr(),
            std::ptr::null::<libc::c_char>(),
        )
    };
    io::Error::last_os_error()
}
