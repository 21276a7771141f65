//! The commands of /dev/xpmem.

use crate::sys::{self, Answer, PAGE};
use std::os::fd::RawFd;

/// The errno for a descriptor that this process did not open itself.
pub const NOT_OPENED: i32 = 2004;

#[repr(C)]
struct Make {
    start: u64,
    size: u64,
    kind: i32,
    pad: u32,
    mode: u64,
    segid: i64,
}

#[repr(C)]
struct Get {
    segid: i64,
    flags: i32,
    kind: i32,
    zero: u64,
    apid: i64,
}

#[repr(C)]
struct Attach {
    apid: i64,
    offset: i64,
    size: u64,
    address: u64,
    fd: i32,
    flags: i32,
}

/// An opening of the device by this process.
#[derive(Clone, Copy)]
pub struct Device {
    /// The descriptor of the device.
    pub fd: RawFd,
}

impl Device {
    /// Opens the device.
    pub fn open() -> Device {
        let fd = sys::open("/dev/xpmem", libc::O_RDWR);
        Device { fd: fd.unwrap_or_else(|e| panic!("/dev/xpmem: errno {e}")) }
    }

    /// Runs the command `version`.
    pub fn version(self) -> Answer<i64> {
        sys::ioctl(self.fd, 0x7800, &mut 0u64)
    }

    /// Runs the command `make`, with every field.
    pub fn make_as(self, start: u64, size: u64, kind: i32, mode: u64) -> Answer<i64> {
        let mut make = Make { start, size, kind, pad: 0, mode, segid: 0 };
        sys::ioctl(self.fd, 0x7801, &mut make).map(|_| make.segid)
    }

    /// Makes a segment of this memory that only its owner may use.
    pub fn make(self, start: usize, size: usize) -> i64 {
        let made = self.make_as(start as u64, size as u64, 1, 0o600);
        made.unwrap_or_else(|e| panic!("make: errno {e}"))
    }

    /// Runs the command `remove`.
    pub fn remove(self, mut segid: i64) -> Answer {
        sys::ioctl(self.fd, 0x7802, &mut segid).map(drop)
    }

    /// Runs the command `get`, with every field.
    pub fn get_as(self, segid: i64, flags: i32, kind: i32, zero: u64) -> Answer<i64> {
        let mut get = Get { segid, flags, kind, zero, apid: 0 };
        sys::ioctl(self.fd, 0x7803, &mut get).map(|_| get.apid)
    }

    /// Gets a permit to read and write.
    pub fn get(self, segid: i64) -> Answer<i64> {
        self.get_as(segid, 2, 1, 0)
    }

    /// Runs the command `release`.
    pub fn release(self, mut apid: i64) -> Answer {
        sys::ioctl(self.fd, 0x7804, &mut apid).map(drop)
    }

    /// Runs the command `attach`, and returns the address.
    pub fn attach_at(self, apid: i64, offset: i64, size: u64, address: usize) -> Answer<usize> {
        let mut attach = Attach { apid, offset, size, address: address as u64, fd: -1, flags: 0 };
        sys::ioctl(self.fd, 0x7805, &mut attach).map(|_| attach.address as usize)
    }

    /// Attaches at an address that the kernel chooses.
    pub fn attach(self, apid: i64, offset: usize, size: usize) -> Answer<usize> {
        self.attach_at(apid, offset as i64, size as u64, 0)
    }

    /// Runs the command `detach`.
    pub fn detach(self, address: usize) -> Answer {
        sys::ioctl(self.fd, 0x7806, &mut (address as u64)).map(drop)
    }

    /// Runs the commands before and after a fork.
    pub fn around_fork(self) -> Answer {
        let _ = sys::ioctl(self.fd, 0x7807, &mut 0u64)?;
        sys::ioctl(self.fd, 0x7808, &mut 0u64).map(drop)
    }

    /// Attaches the first pages of a segment.
    pub fn attached(self, segid: i64, pages: usize) -> usize {
        let apid = self.get(segid).unwrap_or_else(|e| panic!("get: errno {e}"));
        self.attach(apid, 0, pages * PAGE).unwrap_or_else(|e| panic!("attach: errno {e}"))
    }
}
