//! The device: the calls, each behind a safe function.
//!
//! The kernel interface is knem's ABI number 0xd, as in its header. Its magic is `'K'`, the read and write directions of the ioctl
//! numbers are swapped, lengths are in bytes, and nothing is aligned.

#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::io::Error;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use tieline_memory_file::Piece;
use tieline_plugin_api::Failure;
pub(crate) use tieline_single_copy::{Direction, Errno};

use crate::hold::{Forks, Hold, Holder};

/// The kernel's name for a region, valid for every process of the same user.
pub(crate) type Cookie = u64;

/// The only supported ABI number.
pub(crate) const ABI: u32 = 0xd;

const INFO: libc::c_ulong = 0x4010_4b10;
const CREATE: libc::c_ulong = 0xc020_4b21;
const DESTROY: libc::c_ulong = 0x8008_4b22;
const INLINE: libc::c_ulong = 0x8038_4b35;

/// The `status` of a copy that has succeeded. A failed copy has the status `FAILED`.
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

/// The record of a copy between pieces of this process and a region, of at most `length` bytes.
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
    // A knem piece is {base u64, length u64}. An `iovec` has the same layout, and so has `Piece`.
    assert!(size_of::<Piece<'_>>() == 16);
    assert!(core::mem::offset_of!(libc::iovec, iov_len) == 8);
};

/// The causes of a failed copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// The call failed.
    Call(Errno),
    /// The call succeeded, and the copy's status is failure, for example because local memory is missing.
    Copy,
    /// The copy ended with an undefined status.
    Status(u32),
}

/// The kernel operations that the provider uses. Tests replace them with a double.
pub(crate) trait Kernel: Send + Sync {
    /// Gives this process pages of its own in a range and holds them, before a region is made of them.
    fn hold(&self, base: u64, len: u64) -> Result<Hold, Errno>;

    /// Releases a range whose region has ended.
    fn release(&self, hold: Hold);

    /// Makes a region of a held range of this process's memory, and pins it. `readable` and `writable` are the peers' rights.
    fn create(&self, base: u64, len: u64, readable: bool, writable: bool) -> Result<Cookie, Errno>;

    /// Ends a region of this process.
    fn destroy(&self, cookie: Cookie) -> Result<(), Errno>;

    /// Copies between local pieces and `len` bytes of a region from `offset` on, which the region must contain. The result applies
    /// to the whole copy. The pieces are those of an operation (or this provider's own).
    fn copy(
        &self,
        direction: Direction,
        pieces: &[Piece<'_>],
        cookie: Cookie,
        offset: u64,
        len: u64,
    ) -> Result<(), Miss>;
}

/// An open descriptor of the device. The device's regions end with it, and the pages are held for as long as it lives.
pub(crate) struct Device {
    fd: OwnedFd,
    holder: Holder,
}

/// The reason why there is no device.
pub(crate) enum NoDevice {
    /// Opening the device failed.
    Open(Error),
    /// Pages cannot be held.
    Holder(Failure),
}

impl Device {
    /// Opens the device for reading and writing. A read-only descriptor would only provide statistics.
    pub(crate) fn open(path: &Path, forks: Forks) -> Result<Device, NoDevice> {
        let mut options = OpenOptions::new();
        let _ = options.read(true).write(true).custom_flags(libc::O_CLOEXEC);
        let fd = options.open(path).map_err(NoDevice::Open)?.into();
        let holder = Holder::open(forks).map_err(NoDevice::Holder)?;
        Ok(Device { fd, holder })
    }

    /// Returns the driver's ABI number.
    pub(crate) fn abi(&self) -> Result<u32, Errno> {
        let mut info = Info::default();
        // SAFETY: the call writes 16 bytes, which is the size of the record.
        unsafe { self.call(INFO, (&raw mut info).cast()) }?;
        Ok(info.abi)
    }

    /// # Safety
    /// `argument` is the record that the kernel reads and writes for `number`.
    unsafe fn call(&self, number: libc::c_ulong, argument: *mut u8) -> Result<(), Errno> {
        loop {
            // SAFETY: the descriptor is open; the caller guarantees the argument.
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
        // SAFETY: the record has 32 bytes, as the number says, and its one piece of 16 bytes lives through the call. The kernel
        // pins the memory of the piece, which stays mapped until the region has ended (`Domain::register`).
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
        // SAFETY: the record has 56 bytes, as the number says, and its pieces live through the call. The kernel checks every
        // address. The poster of an operation promises that its local pieces may be read by a put and written by a get until the
        // operation has completed (`RmaOp`). Without flags the copy is finished before the call returns.
        unsafe { self.call(INLINE, (&raw mut inline).cast()) }.map_err(Miss::Call)?;
        match inline.status {
            SUCCESS => Ok(()),
            FAILED => Err(Miss::Copy),
            other => Err(Miss::Status(other)),
        }
    }
}
