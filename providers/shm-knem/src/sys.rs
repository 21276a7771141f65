//! The device: its calls, each behind a function that cannot be misused.
//!
//! The kernel's interface is that of knem, ABI number 0xd, as its header has it: magic `'K'`, the directions in the
//! numbers the other way round, lengths in bytes, nothing aligned.

#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::io::Error;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use tieline_memory_file::Piece;
use tieline_plugin_api::Failure;

use crate::hold::{Forks, Hold, Holder};
pub(crate) use tieline_memory_file::random;

/// The number of a system error.
pub(crate) type Errno = i32;
/// The kernel's name of a region, valid for every process of the same user.
pub(crate) type Cookie = u64;

/// The only ABI number whose calls are those below.
pub(crate) const ABI: u32 = 0xd;

const INFO: libc::c_ulong = 0x4010_4b10;
const CREATE: libc::c_ulong = 0xc020_4b21;
const DESTROY: libc::c_ulong = 0x8008_4b22;
const INLINE: libc::c_ulong = 0x8038_4b35;

/// What `status` says of a copy that is through.
const SUCCESS: u32 = 1;
const FAILED: u32 = 2;

#[repr(C)]
#[derive(Default)]
struct Info {
    abi: u32,
    features: u32,
    ignored: u32,
    forced: u32,
}

#[repr(C)]
struct Create {
    pieces: u64,
    count: u32,
    flags: u32,
    protection: u32,
    pad: u32,
    cookie: u64,
}

/// A copy between pieces of this process and a region, of at most `length` bytes.
#[repr(C)]
struct Inline {
    pieces: u64,
    count: u32,
    write: u32,
    cookie: u64,
    offset: u64,
    length: u64,
    flags: u32,
    status: u32,
    slot: u32,
    pad: u32,
}

const _: () = {
    assert!(size_of::<Info>() == 16 && size_of::<Create>() == 32 && size_of::<Inline>() == 56);
    assert!(core::mem::offset_of!(Create, cookie) == 24);
    assert!(core::mem::offset_of!(Inline, length) == 32);
    assert!(core::mem::offset_of!(Inline, status) == 44);
    // A piece of knem's is {base u64, length u64}, and so is an `iovec`, of which `Piece` has the layout.
    assert!(size_of::<Piece<'_>>() == 16);
    assert!(core::mem::offset_of!(libc::iovec, iov_len) == 8);
};

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Out of the local pieces, into the region.
    Put,
    /// Out of the region, into the local pieces.
    Get,
}

/// How a copy can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// The call did.
    Call(Errno),
    /// The call said yes, and the copy's status is that it failed: local memory that is not there, as a rule.
    Copy,
    /// A status that stands for nothing.
    Status(u32),
}

/// What the provider asks of the kernel. Tests play it.
pub(crate) trait Kernel: Send + Sync {
    /// Gives this process pages of its own in a range and keeps them with it: before a region is made of them.
    fn hold(&self, base: u64, len: u64) -> Result<Hold, Errno>;

    /// Lets a range go, whose region has ended.
    fn release(&self, hold: Hold);

    /// Names a range of this process's memory, which is held, and pins it. Peers may read it, and write it when `writable`.
    fn create(&self, base: u64, len: u64, readable: bool, writable: bool) -> Result<Cookie, Errno>;

    /// Ends a region of this process.
    fn destroy(&self, cookie: Cookie) -> Result<(), Errno>;

    /// Copies between local pieces and `len` bytes of a region, which holds them, from `offset` on. What comes back is true of
    /// the whole copy. The pieces are those of an operation (or this provider's own).
    fn copy(
        &self,
        direction: Direction,
        pieces: &[Piece<'_>],
        cookie: Cookie,
        offset: u64,
        len: u64,
    ) -> Result<(), Miss>;
}

/// An open descriptor of the device: what it has created ends with it. Pages are held for as long.
pub(crate) struct Device {
    fd: OwnedFd,
    holder: Holder,
}

/// Why there is no device.
pub(crate) enum NoDevice {
    /// It cannot be opened.
    Open(Error),
    /// Nothing can hold pages.
    Holder(Failure),
}

impl Device {
    /// Opens it for reading and writing; for reading alone it gives statistics.
    pub(crate) fn open(path: &Path, forks: Forks) -> Result<Device, NoDevice> {
        let mut options = OpenOptions::new();
        let _ = options.read(true).write(true).custom_flags(libc::O_CLOEXEC);
        let fd = options.open(path).map_err(NoDevice::Open)?.into();
        let holder = Holder::open(forks).map_err(NoDevice::Holder)?;
        Ok(Device { fd, holder })
    }

    /// The driver's ABI number.
    pub(crate) fn abi(&self) -> Result<u32, Errno> {
        let mut info = Info::default();
        // SAFETY: the call writes 16 bytes, and the record has as many.
        unsafe { self.call(INFO, (&raw mut info).cast()) }?;
        Ok(info.abi)
    }

    /// # Safety
    /// `argument` is what the kernel reads and writes for `number`.
    unsafe fn call(&self, number: libc::c_ulong, argument: *mut u8) -> Result<(), Errno> {
        loop {
            // SAFETY: an open descriptor; the caller vouches for the argument.
            if unsafe { libc::ioctl(self.fd.as_raw_fd(), number as _, argument) } >= 0 {
                return Ok(());
            }
            match Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                errno => return Err(errno.unwrap_or(libc::EIO)),
            }
        }
    }
}

impl Kernel for Device {
    fn hold(&self, base: u64, len: u64) -> Result<Hold, Errno> {
        self.holder.hold(base, len)
    }

    fn release(&self, hold: Hold) {
        self.holder.release(hold);
    }

    fn create(&self, base: u64, len: u64, readable: bool, writable: bool) -> Result<Cookie, Errno> {
        let piece = [base, len];
        let may = |yes: bool, protection: libc::c_int| if yes { protection as u32 } else { 0 };
        let mut create = Create {
            pieces: piece.as_ptr().expose_provenance() as u64,
            count: 1,
            flags: 0,
            protection: may(readable, libc::PROT_READ) | may(writable, libc::PROT_WRITE),
            pad: 0,
            cookie: 0,
        };
        // SAFETY: a record of 32 bytes, as the number says, and one piece of 16 that lives through the call. The kernel pins the
        // memory that the piece names, which stays mapped until the region has ended (`Domain::register`).
        unsafe { self.call(CREATE, (&raw mut create).cast()) }?;
        Ok(create.cookie)
    }

    fn destroy(&self, mut cookie: Cookie) -> Result<(), Errno> {
        // SAFETY: the call reads 8 bytes.
        unsafe { self.call(DESTROY, (&raw mut cookie).cast()) }
    }

    fn copy(
        &self,
        direction: Direction,
        pieces: &[Piece<'_>],
        cookie: Cookie,
        offset: u64,
        len: u64,
    ) -> Result<(), Miss> {
        let mut inline = Inline {
            pieces: pieces.as_ptr().expose_provenance() as u64,
            count: pieces.len() as u32,
            write: u32::from(direction == Direction::Put),
            cookie,
            offset,
            length: len,
            flags: 0,
            status: u32::MAX,
            slot: 0,
            pad: 0,
        };
        // SAFETY: a record of 56 bytes, as the number says, and pieces that live through the call. The kernel checks every
        // address; whoever posts an operation promises that its local pieces may be read by a put and written by a get
        // until it has completed (`RmaOp`), and without flags it is through before this returns.
        unsafe { self.call(INLINE, (&raw mut inline).cast()) }.map_err(Miss::Call)?;
        match inline.status {
            SUCCESS => Ok(()),
            FAILED => Err(Miss::Copy),
            other => Err(Miss::Status(other)),
        }
    }
}
