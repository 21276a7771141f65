//! Code that finds the world by its setting, and accesses memory that the core passed by address.

#![allow(unsafe_code)]

use crate::provider::FakeRegion;
use crate::world::World;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{Status, atomic_op};

pub(crate) fn setting(world: &'static World) -> String {
    format!("{}:{}:{}", world.process, world.stamp, std::ptr::from_ref(world) as usize)
}

/// Returns the world that a setting names, or the reason why there is none.
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
    // SAFETY: `setting` wrote the address of a world that is never freed; the world belongs to this process, and the stamp proves
    // that both sides have compiled the same type.
    Ok(unsafe { &*(address as usize as *const World) })
}

/// Returns the number of the registration that a piece names; 0 if the piece names none.
pub(crate) fn region(iov: &Iov) -> u64 {
    // SAFETY: the pointer is null, or a handle that this provider's `register` returned and that the core has not deregistered.
    unsafe { iov.region.cast::<FakeRegion>().as_ref() }.map_or(0, |region| region.0)
}

/// A piece of the application's memory, as given in a call of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    base: usize,
    len: usize,
}

impl Piece {
    /// Returns the memory of a local piece. The core does not access this memory until the completion of the operation.
    pub(crate) fn local(iov: &Iov) -> Piece {
        Piece { base: iov.base as usize, len: iov.len }
    }

    /// Returns the memory of a registration, which stays mapped until it is deregistered.
    pub(crate) fn registered(base: *mut u8, len: usize) -> Piece {
        Piece { base: base as usize, len }
    }

    pub(crate) fn address(self) -> *mut u8 {
        self.base as *mut u8
    }

    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// Returns a part of the piece, if the part lies inside.
    pub(crate) fn part(self, offset: u64, len: usize) -> Result<Piece, Status> {
        let offset = usize::try_from(offset).map_err(|_| Status::OutOfRange)?;
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(Piece { base: self.base + offset, len }),
            _ => Err(Status::OutOfRange),
        }
    }

    pub(crate) fn lies_in(self, other: Piece) -> bool {
        self.base >= other.base && self.base + self.len <= other.base + other.len
    }

    pub(crate) fn meets(self, other: Piece) -> bool {
        self.base < other.base + other.len && other.base < self.base + self.len
    }

    pub(crate) fn read(self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        // SAFETY: the memory is mapped, as the core guarantees for local pieces and registrations. The world drops a piece when
        // that guarantee ends, and it is locked during this access.
        unsafe {
            std::ptr::copy_nonoverlapping(self.base as *const u8, bytes.as_mut_ptr(), self.len)
        };
        bytes
    }

    pub(crate) fn write(self, bytes: &[u8]) {
        let len = self.len.min(bytes.len());
        // SAFETY: the memory is mapped and the world is locked, as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base as *mut u8, len) };
    }

    pub(crate) fn atomic(self, op: u32, n: u64, compare: u64) -> Result<u64, Status> {
        macro_rules! run {
            ($atomic:ty, $word:ty) => {{
                // SAFETY: the memory is mapped and the world is locked, as in `read`; the code below checks the alignment.
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
