//! A driver double. Its regions are memory of this process, and it returns the results that knem's table documents.

pub(crate) mod plain;
mod sys;

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tieline_memory_file::Piece;

use crate::hold::Hold;
use crate::sys::{Cookie, Direction, Errno, Kernel, Miss};

#[derive(Clone, Copy)]
struct Region {
    base: u64,
    len: u64,
    readable: bool,
    writable: bool,
}

#[derive(Default)]
pub(crate) struct Played {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    regions: HashMap<Cookie, Region>,
    next: Cookie,
    /// The results of the next copies. A copy with an error copies nothing; for `None` the copy is executed.
    misses: VecDeque<Option<Miss>>,
    calls: usize,
    /// The error of the next region.
    refusal: Option<Errno>,
    /// The error of the next hold.
    hold_refusal: Option<Errno>,
    /// The number of ranges held.
    holds: usize,
}

impl Played {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of live regions.
    pub(crate) fn regions(&self) -> usize {
        self.state().regions.len()
    }

    /// Returns the number of copies so far.
    pub(crate) fn calls(&self) -> usize {
        self.state().calls
    }

    /// Makes the next copy fail with `miss`.
    pub(crate) fn miss(&self, miss: Miss) {
        self.state().misses.push_back(Some(miss));
    }

    /// Makes the next copy succeed. Later settings apply to the copies after it.
    pub(crate) fn pass(&self) {
        self.state().misses.push_back(None);
    }

    /// Makes every further region fail with `errno`.
    pub(crate) fn refuse(&self, errno: Errno) {
        self.state().refusal = Some(errno);
    }

    /// Makes every further hold fail with `errno`.
    pub(crate) fn refuse_to_hold(&self, errno: Errno) {
        self.state().hold_refusal = Some(errno);
    }

    /// Returns the number of ranges held.
    pub(crate) fn holds(&self) -> usize {
        self.state().holds
    }

    /// Drops all regions, as the driver does at the exit of their owner.
    pub(crate) fn forget(&self) {
        self.state().regions.clear();
    }
}

impl Kernel for Played {
    fn hold(&self, _base: u64, _len: u64) -> Result<Hold, Errno> {
        let mut state = self.state();
        if let Some(errno) = state.hold_refusal {
            return Err(errno);
        }
        state.holds += 1;
        Ok(Hold::default())
    }

    fn release(&self, _hold: Hold) {
        let mut state = self.state();
        assert!(state.regions.len() < state.holds, "a region outlives what holds its pages");
        state.holds -= 1;
    }

    fn create(&self, base: u64, len: u64, readable: bool, writable: bool) -> Result<Cookie, Errno> {
        let mut state = self.state();
        if let Some(errno) = state.refusal {
            return Err(errno);
        }
        assert!(state.regions.len() < state.holds, "the driver pins pages that nothing holds");
        state.next += 1;
        let cookie = 0xc00c_1e00_0000_0000 | state.next;
        let _ = state.regions.insert(cookie, Region { base, len, readable, writable });
        Ok(cookie)
    }

    fn destroy(&self, cookie: Cookie) -> Result<(), Errno> {
        self.state().regions.remove(&cookie).map(drop).ok_or(libc::EINVAL)
    }

    fn copy(
        &self,
        direction: Direction,
        pieces: &[Piece<'_>],
        cookie: Cookie,
        offset: u64,
        len: u64,
    ) -> Result<(), Miss> {
        let mut state = self.state();
        state.calls += 1;
        if let Some(miss) = state.misses.pop_front().flatten() {
            return Err(miss);
        }
        let region = *state.regions.get(&cookie).ok_or(Miss::Call(libc::EINVAL))?;
        let may = if direction == Direction::Put { region.writable } else { region.readable };
        if !may {
            return Err(Miss::Call(libc::EACCES));
        }
        // The driver ends a copy at the end of either side and reports success.
        let mut at = region.base + offset.min(region.len);
        let mut left = len.min(region.len.saturating_sub(offset));
        for piece in pieces {
            let part = (piece.len() as u64).min(left);
            sys::copied(direction, piece.base(), at, part as usize);
            (at, left) = (at + part, left - part);
        }
        Ok(())
    }
}
