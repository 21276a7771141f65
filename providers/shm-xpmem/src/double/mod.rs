//! A double of the kernel module. Its segments are memory of this process, attached in place, and it returns the results that
//! xpmem's table documents.

pub(crate) mod pair;
mod sys;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tieline_memory_file::Piece;

use crate::sys::{Direction, Errno, Kernel, Permit, Segment};

/// A number that is no descriptor of this process.
pub(crate) const DESCRIPTOR: i32 = 1 << 30;

const PAGE: u64 = 4096;

/// The commands of the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Command {
    Make,
    Remove,
    Get,
    Release,
    Attach,
    Detach,
    Copy,
}

pub(crate) struct Played {
    state: Mutex<State>,
    /// The page size of the simulated kernel, in bytes.
    page: u64,
}

impl Default for Played {
    fn default() -> Played {
        Played::with_pages(PAGE)
    }
}

#[derive(Default)]
struct State {
    segments: HashMap<Segment, (u64, u64)>,
    permits: HashMap<Permit, Segment>,
    /// The start, length and permit of each attachment.
    attached: Vec<(u64, u64, Permit)>,
    /// The pages that are not mapped in their owner.
    holes: BTreeSet<u64>,
    made: i64,
    /// The results of the next commands; for `None` the command is executed.
    answers: HashMap<Command, VecDeque<Option<Errno>>>,
    asked: HashMap<Command, usize>,
    closed: usize,
    /// Whether another library has the device open.
    open_elsewhere: bool,
    /// Whether the local side of a copy may be any address.
    any_address: bool,
}

/// The objects that exist at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct There {
    pub(crate) segments: usize,
    pub(crate) permits: usize,
    pub(crate) attached: usize,
}

impl Played {
    /// Simulates a kernel with pages of this size.
    pub(crate) fn with_pages(page: u64) -> Played {
        Played { state: Mutex::default(), page }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the objects that exist now.
    pub(crate) fn there(&self) -> There {
        let state = self.state();
        There {
            segments: state.segments.len(),
            permits: state.permits.len(),
            attached: state.attached.len(),
        }
    }

    /// Returns the number of calls of a command.
    pub(crate) fn asked(&self, command: Command) -> usize {
        self.state().asked.get(&command).copied().unwrap_or(0)
    }

    /// Returns the number of times the descriptor was closed.
    pub(crate) fn closed(&self) -> usize {
        self.state().closed
    }

    /// Sets whether another library of this process has the device open.
    pub(crate) fn open_elsewhere(&self, open: bool) {
        self.state().open_elsewhere = open;
    }

    /// Simulates an exec of the owner, which then makes the same number of segments: their numbers are the same, and they lead to
    /// this memory.
    pub(crate) fn exec_the_owner(&self, start: u64, len: u64) {
        let mut state = self.state();
        state.segments.values_mut().for_each(|range| *range = (start, len));
        // Existing attachments refer to the memory before exec, and the old permits allow no further attachments.
        state.permits.clear();
    }

    /// Makes the next call of this command without a setting fail with `errno`.
    pub(crate) fn fail(&self, command: Command, errno: Errno) {
        self.state().answers.entry(command).or_default().push_back(Some(errno));
    }

    /// Makes the next call of this command be executed. Later settings apply to the calls after it.
    pub(crate) fn pass(&self, command: Command) {
        self.state().answers.entry(command).or_default().push_back(None);
    }

    /// Allows copies to and from memory that is not attached, for measurements.
    pub(crate) fn take_any_address(&self) {
        self.state().any_address = true;
    }

    /// Makes every command be executed from here on.
    pub(crate) fn answer_truly(&self) {
        self.state().answers.clear();
    }

    /// Sets whether the owner has this page mapped.
    pub(crate) fn map(&self, address: u64, mapped: bool) {
        let page = address / PAGE * PAGE;
        let _ = match mapped {
            true => self.state().holes.remove(&page),
            false => self.state().holes.insert(page),
        };
    }

    /// Ends the owner with everything that it made. Its attachments are inaccessible.
    pub(crate) fn end_the_owner(&self) {
        let mut state = self.state();
        state.segments.clear();
        for (at, len, _) in state.attached.clone() {
            state.holes.extend((at / PAGE..(at + len) / PAGE).map(|page| page * PAGE));
        }
    }

    /// Returns the start and length of each attachment, in order.
    pub(crate) fn ranges(&self) -> Vec<(u64, u64)> {
        let mut ranges: Vec<_> = self.state().attached.iter().map(|one| (one.0, one.1)).collect();
        ranges.sort_unstable();
        ranges
    }
}

impl State {
    fn asked(&mut self, command: Command) -> Result<(), Errno> {
        *self.asked.entry(command).or_default() += 1;
        match self.answers.get_mut(&command).and_then(VecDeque::pop_front).flatten() {
            Some(errno) => Err(errno),
            None => Ok(()),
        }
    }

    fn name(&mut self) -> i64 {
        self.made += 1;
        // The lower half is the process number.
        self.made << 32 | 4711
    }
}

impl Kernel for Played {
    fn make(&self, start: u64, size: u64) -> Result<Segment, Errno> {
        let mut state = self.state();
        state.asked(Command::Make)?;
        let all = size == u64::MAX;
        if size == 0 || (start | if all { 0 } else { size }) % self.page != 0 {
            return Err(libc::EINVAL);
        }
        let segment = state.name();
        let _ = state.segments.insert(segment, (start, if all { 1 << 47 } else { size }));
        Ok(segment)
    }

    fn remove(&self, segment: Segment) -> Result<(), Errno> {
        let mut state = self.state();
        state.asked(Command::Remove)?;
        state.segments.remove(&segment).map(drop).ok_or(libc::ENOENT)
    }

    fn get(&self, segment: Segment) -> Result<Permit, Errno> {
        let mut state = self.state();
        state.asked(Command::Get)?;
        if segment <= 0 {
            return Err(libc::EINVAL);
        }
        if !state.segments.contains_key(&segment) {
            return Err(libc::ENOENT);
        }
        let permit = state.name();
        let _ = state.permits.insert(permit, segment);
        Ok(permit)
    }

    fn release(&self, permit: Permit) -> Result<(), Errno> {
        let mut state = self.state();
        state.asked(Command::Release)?;
        state.attached.retain(|one| one.2 != permit);
        state.permits.remove(&permit).map(drop).ok_or(libc::ENOENT)
    }

    fn attach(&self, permit: Permit, offset: u64, size: u64) -> Result<u64, Errno> {
        let mut state = self.state();
        state.asked(Command::Attach)?;
        let segment = *state.permits.get(&permit).ok_or(libc::ENOENT)?;
        let (start, len) = *state.segments.get(&segment).ok_or(libc::ENOENT)?;
        let end = offset.checked_add(size).ok_or(libc::EINVAL)?;
        if offset % self.page != 0 || size == 0 || end > len {
            return Err(libc::EINVAL);
        }
        state.attached.push((start + offset, size, permit));
        Ok(start + offset)
    }

    fn detach(&self, address: u64) -> Result<(), Errno> {
        let mut state = self.state();
        state.asked(Command::Detach)?;
        let found = state.attached.iter().position(|one| one.0 == address);
        let _ = found.map(|found| state.attached.swap_remove(found));
        Ok(())
    }

    fn copy(
        &self,
        direction: Direction,
        pieces: &[Piece<'_>],
        attached: u64,
        len: usize,
    ) -> Result<usize, Errno> {
        let mut state = self.state();
        state.asked(Command::Copy)?;
        let inside =
            |one: &(u64, u64, Permit)| one.0 <= attached && attached + len as u64 <= one.0 + one.1;
        assert!(
            state.any_address || state.attached.iter().any(inside),
            "{len} bytes at {attached:#x} are attached"
        );
        let hole = state.holes.range(attached / PAGE * PAGE..attached + len as u64).next();
        let good = hole.map_or(len, |hole| hole.saturating_sub(attached) as usize);
        if len > 0 && good == 0 {
            return Err(libc::EFAULT);
        }
        let mut done = 0;
        for piece in pieces {
            let part = piece.len().min(good - done);
            sys::copied(direction, piece.base(), attached + done as u64, part);
            done += part;
        }
        Ok(done)
    }

    fn close(&self) {
        self.state().closed += 1;
    }

    fn descriptor(&self) -> i32 {
        DESCRIPTOR
    }

    fn is_open_elsewhere(&self, _but: &[i32]) -> bool {
        self.state().open_elsewhere
    }
}
