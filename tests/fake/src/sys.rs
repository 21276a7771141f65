//! The world behind a setting, and memory that the core handed over by address.

#![allow(unsafe_code)]

use crate::provider::FakeRegion;
use crate::world::World;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{Status, atomic_op};

/// The setting that leads to a world.
pub(crate) fn setting(world: &'static World) -> String {
    format!("{}:{}:{}", world.process, world.stamp, std::ptr::from_ref(world) as usize)
}

/// The world that a setting leads to; why there is none.
pub(crate) fn world(setting: &str) -> Result<&'static World, String> {
    let numbers: Vec<u64> = setting.split(':').filter_map(|part| part.parse().ok()).collect();
    let [process, stamp, address] = numbers[..] else {
        return Err("no test has set TIELINE_FAKE_WORLD".into());
    };
    if process != u64::from(std::process::id()) {
        return Err("the world is in another process".into());
    }
    if stamp != crate::STAMP {
        return Err("this file was built from other sources: `cargo test -p tieline-fake`".into());
    }
    // SAFETY: `setting` wrote the address of a world that is never freed; it is of this process, and the stamp says
    // that both sides have compiled the same type.
    Ok(unsafe { &*(address as usize as *const World) })
}

/// The number of the registration that a piece says it lies in; 0: it says none.
pub(crate) fn region(iov: &Iov) -> u64 {
    // SAFETY: null, or a handle that this provider's `register` gave out and that the core has not ended.
    unsafe { iov.region.cast::<FakeRegion>().as_ref() }.map_or(0, |region| region.0)
}

/// A piece of the application's memory, as a call of the core named it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    base: usize,
    len: usize,
}

impl Piece {
    /// The memory of a local piece, which the core leaves alone until it is told that the operation has ended.
    pub(crate) fn local(iov: &Iov) -> Piece {
        Piece { base: iov.base as usize, len: iov.len }
    }

    /// The memory of a registration, which stays mapped until it is ended.
    pub(crate) fn registered(base: *mut u8, len: usize) -> Piece {
        Piece { base: base as usize, len }
    }

    /// Its first byte.
    pub(crate) fn address(self) -> *mut u8 {
        self.base as *mut u8
    }

    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// A part of it, if it lies inside.
    pub(crate) fn part(self, offset: u64, len: usize) -> Result<Piece, Status> {
        let offset = usize::try_from(offset).map_err(|_| Status::OutOfRange)?;
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(Piece { base: self.base + offset, len }),
            _ => Err(Status::OutOfRange),
        }
    }

    /// Whether all of it lies in the other.
    pub(crate) fn lies_in(self, other: Piece) -> bool {
        self.base >= other.base && self.base + self.len <= other.base + other.len
    }

    /// Whether the two have a byte in common.
    pub(crate) fn meets(self, other: Piece) -> bool {
        self.base < other.base + other.len && other.base < self.base + self.len
    }

    pub(crate) fn read(self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        // SAFETY: mapped, by what the core promised for local pieces and registrations; the world lets go of a piece
        // when that promise ends, and does this while it is locked.
        unsafe {
            std::ptr::copy_nonoverlapping(self.base as *const u8, bytes.as_mut_ptr(), self.len)
        };
        bytes
    }

    pub(crate) fn write(self, bytes: &[u8]) {
        let len = self.len.min(bytes.len());
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base as *mut u8, len) };
    }

    /// Does an atomic on all of it, which is a word.
    pub(crate) fn atomic(self, op: u32, n: u64, compare: u64) -> Result<u64, Status> {
        macro_rules! run {
            ($atomic:ty, $word:ty) => {{
                // SAFETY: as in `read`; aligned, which is checked below.
                let word = unsafe { <$atomic>::from_ptr(self.base as *mut $word) };
                let n = n as $word;
                Ok(u64::from(match op {
                    atomic_op::ADD => word.fetch_add(n, SeqCst),
                    atomic_op::AND => word.fetch_and(n, SeqCst),
                    atomic_op::OR => word.fetch_or(n, SeqCst),
                    atomic_op::XOR => word.fetch_xor(n, SeqCst),
                    atomic_op::SWAP => word.swap(n, SeqCst),
                    atomic_op::MIN => word.fetch_min(n, SeqCst),
                    atomic_op::MAX => word.fetch_max(n, SeqCst),
                    atomic_op::COMPARE_SWAP => {
                        match word.compare_exchange(compare as $word, n, SeqCst, SeqCst) {
                            Ok(before) | Err(before) => before,
                        }
                    }
                    _ => return Err(Status::Unsupported),
                }))
            }};
        }
        if self.len == 0 || self.base % self.len != 0 {
            return Err(Status::Misaligned);
        }
        match self.len {
            4 => run!(AtomicU32, u32),
            8 => run!(AtomicU64, u64),
            _ => Err(Status::Invalid),
        }
    }
}
