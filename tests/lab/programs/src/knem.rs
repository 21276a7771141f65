//! The commands of /dev/knem.

use crate::sys::{self, Answer};
use std::os::fd::RawFd;

/// The status of a copy that is not complete.
pub const PENDING: u32 = 0;
/// The status of a copy that is complete, or has reached the end of the shorter side.
pub const SUCCESS: u32 = 1;
/// The status of a copy that has failed.
pub const FAILED: u32 = 2;

/// A flag of copies: the engine performs the copy.
pub const DMA: u32 = 1;
/// A flag of copies: with [`DMA`], the copy completes later.
pub const DMA_LATER: u32 = 2;
/// A flag of copies: a thread performs the copy, which completes later.
pub const THREAD: u32 = 8;
/// A flag of regions: the region serves one copy.
pub const SINGLE_USE: u32 = 32;
/// A flag of copies: the descriptor reports the completion.
pub const NOTIFY: u32 = 64;
/// A flag of regions: every user may use the region.
pub const ANY_USER: u32 = 128;

/// A bit in the half of the cookie that contains the region; the low half contains the context.
pub const OTHER_REGION: u64 = 1 << 60;
/// A bit in the half of the cookie that contains the context.
pub const OTHER_CONTEXT: u64 = 1 << 20;

/// The protection of a region that may be read.
pub const READ: u32 = libc::PROT_READ as u32;
/// The protection of a region that may be written.
pub const WRITE: u32 = libc::PROT_WRITE as u32;

/// A piece of memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Piece {
    /// The address of the piece.
    pub base: u64,
    /// The length of the piece in bytes.
    pub len: u64,
}

impl Piece {
    /// Makes a piece of the memory at this address.
    pub fn of(base: usize, len: usize) -> Piece {
        Piece { base: base as u64, len: len as u64 }
    }
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

/// The arguments of `copy` and `copy, bounded`; only the second has `most`.
#[repr(C)]
#[derive(Default)]
struct Copy {
    from: u64,
    from_at: u64,
    to: u64,
    to_at: u64,
    flags: u32,
    status: u32,
    slot: u32,
    pad: u32,
}

#[repr(C)]
struct CopyBounded {
    from: u64,
    from_at: u64,
    to: u64,
    to_at: u64,
    most: u64,
    flags: u32,
    status: u32,
    slot: u32,
    pad: u32,
}

#[repr(C)]
struct Inline {
    pieces: u64,
    count: u32,
    write: u32,
    cookie: u64,
    at: u64,
    flags: u32,
    status: u32,
    slot: u32,
    pad: u32,
}

#[repr(C)]
struct InlineBounded {
    pieces: u64,
    count: u32,
    write: u32,
    cookie: u64,
    at: u64,
    most: u64,
    flags: u32,
    status: u32,
    slot: u32,
    pad: u32,
}

const UNWRITTEN: u32 = 99;

/// The parameters that select the mode of a copy.
#[derive(Clone, Copy, Default)]
pub struct How {
    /// The flags of the copy.
    pub flags: u32,
    /// The slot for the status of the copy.
    pub slot: u32,
}

/// A descriptor of the device, which represents a context.
#[derive(Clone, Copy)]
pub struct Device {
    /// The number of the descriptor.
    pub fd: RawFd,
}

impl Device {
    /// Opens the device for reading and writing.
    pub fn open() -> Device {
        Device::open_as(libc::O_RDWR)
    }

    /// Opens the device with these flags.
    pub fn open_as(flags: i32) -> Device {
        let fd = sys::open("/dev/knem", flags);
        Device { fd: fd.unwrap_or_else(|e| panic!("/dev/knem: errno {e}")) }
    }

    /// Runs the command `info`.
    pub fn info(self) -> Answer<[u32; 4]> {
        let mut info = [UNWRITTEN; 4];
        sys::ioctl(self.fd, 0x4010_4b10, &mut info).map(|_| info)
    }

    /// Runs the command that binds the thread.
    pub fn bind(self) -> Answer {
        sys::ioctl(self.fd, 0x8010_4b11, &mut [2u32, 0, 0, 0]).map(drop)
    }

    /// Runs the command `create`.
    pub fn create(self, pieces: &[Piece], protection: u32, flags: u32) -> Answer<u64> {
        let list = pieces.as_ptr() as u64;
        let mut create = Create {
            pieces: list,
            count: pieces.len() as u32,
            flags,
            protection,
            pad: 0,
            cookie: 0,
        };
        sys::ioctl(self.fd, 0xc020_4b21, &mut create).map(|_| create.cookie)
    }

    /// Makes a region of one piece, for reading and writing.
    pub fn region(self, base: usize, len: usize) -> u64 {
        let made = self.create(&[Piece::of(base, len)], READ | WRITE, 0);
        made.unwrap_or_else(|e| panic!("create: errno {e}"))
    }

    /// Runs the command `destroy`.
    pub fn destroy(self, mut cookie: u64) -> Answer {
        sys::ioctl(self.fd, 0x8008_4b22, &mut cookie).map(drop)
    }

    /// Runs the command `copy`, and returns the copy's status.
    pub fn copy(self, from: (u64, u64), to: (u64, u64), how: How) -> Answer<u32> {
        let mut copy =
            Copy { from: from.0, from_at: from.1, to: to.0, to_at: to.1, ..Copy::default() };
        (copy.flags, copy.status, copy.slot) = (how.flags, UNWRITTEN, how.slot);
        sys::ioctl(self.fd, 0x8030_4b32, &mut copy).map(|_| copy.status)
    }

    /// Runs the command `copy, bounded`, and returns the copy's status.
    pub fn copy_bounded(
        self,
        from: (u64, u64),
        to: (u64, u64),
        most: u64,
        how: How,
    ) -> Answer<u32> {
        let (flags, status, slot) = (how.flags, UNWRITTEN, how.slot);
        let (from, from_at, to, to_at) = (from.0, from.1, to.0, to.1);
        let mut copy = CopyBounded { from, from_at, to, to_at, most, flags, status, slot, pad: 0 };
        sys::ioctl(self.fd, 0x8038_4b34, &mut copy).map(|_| copy.status)
    }

    /// Runs the command `inline copy`, and returns the copy's status. If `write` is set, the region is the destination.
    pub fn inline(
        self,
        pieces: &[Piece],
        write: bool,
        region: (u64, u64),
        how: How,
    ) -> Answer<u32> {
        let (list, count) = (pieces.as_ptr() as u64, pieces.len() as u32);
        let (cookie, at) = region;
        let (flags, status, slot) = (how.flags, UNWRITTEN, how.slot);
        let mut copy = Inline {
            pieces: list,
            count,
            write: write.into(),
            cookie,
            at,
            flags,
            status,
            slot,
            pad: 0,
        };
        sys::ioctl(self.fd, 0x8030_4b33, &mut copy).map(|_| copy.status)
    }

    /// Runs the command `inline, bounded`, and returns the copy's status.
    pub fn inline_bounded(
        self,
        pieces: &[Piece],
        write: bool,
        region: (u64, u64),
        most: u64,
        how: How,
    ) -> Answer<u32> {
        let (list, count) = (pieces.as_ptr() as u64, pieces.len() as u32);
        let (cookie, at) = region;
        let (flags, status, slot) = (how.flags, UNWRITTEN, how.slot);
        let mut copy = InlineBounded {
            pieces: list,
            count,
            write: write.into(),
            cookie,
            at,
            most,
            flags,
            status,
            slot,
            pad: 0,
        };
        sys::ioctl(self.fd, 0x8038_4b35, &mut copy).map(|_| copy.status)
    }

    /// Runs the command with this number.
    pub fn command(self, number: u64) -> Answer {
        sys::ioctl(self.fd, number, &mut [0u64; 8]).map(drop)
    }
}
