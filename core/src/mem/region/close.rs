//! The end of a region: the conditions under which nothing accesses its memory any more.
//!
//! A region has three kinds of users:
//!
//! * *Handles*: clones of the application, and handles that the library holds for operations in progress, or for a failed endpoint
//!   whose provider may still be working. One `Arc` counts all of them.
//! * *Peers by message* access the memory only while the region table is locked for reading.
//! * *Providers* are devices, and peers with direct access. The call that ends a registration reports whether a provider still uses
//!   the memory (AGAIN: keys are refused, call again).

use super::{Backing, Region, RegionState, Registration};
use crate::mem::Memory;
use crate::{Error, Status};
use once_cell::sync::OnceCell;
use std::fmt;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

/// A region that could not be closed yet: its memory may still be accessed.
pub struct NotClosed {
    /// The region, to be closed again. The region's remote keys are already refused. Exception: if one registration of a device
    /// serves operations of this process as well, its keys are refused from the last such operation on (docs/abi.md).
    pub region: Region,
    /// The remaining use of the region, and the remedy. `Busy`: the next attempt may succeed. With any other status no attempt will
    /// succeed, and the memory must stay valid for the rest of the process. Exception: after `Invalid` from
    /// [`Region::into_buffer`], the region is unchanged and can be closed.
    pub error: Error,
}

impl fmt::Debug for NotClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NotClosed({:?}, {:?})", self.region, self.error)
    }
}

impl fmt::Display for NotClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for NotClosed {}

impl From<NotClosed> for Error {
    fn from(not: NotClosed) -> Error {
        not.error
    }
}

impl Region {
    /// Closes the region. `Ok`: neither the library nor a device nor a peer will access the memory again, and its owner may reuse
    /// it. The call waits for no operation and no peer, and may be made from any thread;
    /// [`Worker::close_region`](crate::Worker::close_region) waits for a bounded time.
    ///
    /// From the first call on, no new key of the region is made, and peers are refused, both by message and one-sidedly. Exception:
    /// a registration of a device may serve peers and operations of this process alike (`verbs`). Its keys are refused as soon as
    /// no operation of this process uses the region.
    ///
    /// ```
    /// # fn main() -> Result<(), tieline::Error> {
    /// # let context = tieline::Context::open()?;
    /// let region = context.register(vec![0; 64])?;
    /// let clone = region.clone();
    /// let not_closed = region.close().unwrap_err();
    /// assert_eq!(not_closed.error.status(), tieline::Status::Busy);
    /// drop(clone);
    /// not_closed.region.close()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`NotClosed`] returns the region, with an error of status `Busy` that names the remaining use: another handle, pending
    /// operations, or a peer in the middle of a copy. Pending operations include those of other workers. Pending operations also
    /// include operations of a failed endpoint, until their provider has reported the operations' end or the endpoint is dropped. A
    /// provider's own error means that the provider cannot report whether the memory is in use. `Invalid` in a forked child.
    pub fn close(self) -> Result<(), NotClosed> {
        let mut region = self;
        match region.try_close() {
            Ok(()) => Ok(()),
            Err(error) => Err(NotClosed { region, error }),
        }
    }

    pub(super) fn try_close(&mut self) -> Result<(), Error> {
        self.inner.memory.guard.check("a region")?;
        self.inner.revoke();
        // The parked memory may include a part of the region that was sent as a rendezvous message.
        self.inner.memory.sweep();
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            return inner.end();
        }
        let inner = &*self.inner;
        let users = Arc::strong_count(&self.inner).saturating_sub(1);
        let handles = inner.handles.load(Ordering::Relaxed).saturating_sub(1).min(users);
        let operations = users - handles;
        let counted = |n: usize, one: &str| match n {
            0 => None,
            1 => Some(format!("1 {one}")),
            n => Some(format!("{n} {one}s")),
        };
        let why = [counted(handles, "other handle"), counted(operations, "operation")];
        let why: Vec<String> = why.into_iter().flatten().collect();
        let (pending, fix) = match (handles, operations) {
            (_, 0) => ("", "drop its clones and close the last one"),
            (0, _) => (
                " pending on a worker",
                "flush or make progress, drop endpoints that have failed and their keys, and close again",
            ),
            _ => {
                (" pending on a worker", "drop its clones, flush or make progress, and close again")
            }
        };
        Err(still_in_use(inner, format!("{}{pending}", why.join(" and ")), fix))
    }
}

fn still_in_use(inner: &RegionState, why: impl Into<String>, fix: &str) -> Error {
    let what = format!("a region of {} bytes is still in use", inner.span.len());
    Error::new(Status::Busy, what, why, fix)
}

impl RegionState {
    /// Refuses peers' requests by message from this call on; no such access is in progress when the function returns. Providers
    /// refuse direct access, if they can do so while local operations continue.
    fn revoke(&self) {
        if self.revoked.swap(true, Ordering::AcqRel) {
            return;
        }
        self.memory.regions.remove(self.id);
        for registration in &self.registrations {
            registration.memory.revoke();
        }
        self.end_waiting();
    }

    /// Ends the registrations. An error contains the reason that the memory may still be accessed.
    fn end(&mut self) -> Result<(), Error> {
        let has_parts = self.parts.are_left();
        end_all(&self.memory, &mut self.registrations, has_parts, &mut self.unsure);
        if let Some(error) = &self.unsure {
            return Err(error.clone());
        }
        if self.registrations.is_empty() && !has_parts {
            return Ok(());
        }
        Err(still_in_use(
            self,
            "a peer is in the middle of a copy",
            "close it again: the copy ends, or its process does",
        ))
    }
}

/// Ends registrations, except those that a peer still uses. `unsure` is the first error of a registration in an unknown state. The
/// registration that owns the memory unmaps it as it ends. That registration therefore ends after all others, including those of
/// the region's parts, and never if one of them is in doubt.
fn end_all(
    memory: &Memory,
    registrations: &mut Vec<Registration>,
    has_parts: bool,
    unsure: &mut Option<Error>,
) {
    registrations.retain_mut(|one| one.gives || is_used(memory, one, unsure));
    if unsure.is_none() && !has_parts && registrations.iter().all(|one| one.gives) {
        registrations.retain_mut(|one| is_used(memory, one, unsure));
    }
}

/// Ends a registration, unless a peer uses the memory. Returns whether a peer uses the memory.
fn is_used(memory: &Memory, registration: &mut Registration, unsure: &mut Option<Error>) -> bool {
    let Err(error) = registration.memory.end() else { return false };
    if error.status() == Status::Again {
        return true;
    }
    let slot = &memory.domains[registration.domain];
    memory.notes.add_once(format!("deregistering memory in {}: {error}", slot.name));
    let _ = unsure.get_or_insert(error);
    false
}

impl Drop for RegionState {
    fn drop(&mut self) {
        // The process is checked before any lock: in a forked child the lock's owner may be a thread that does not exist there.
        if self.memory.guard.same_process() {
            self.leave(None);
        }
    }
}

impl RegionState {
    /// Ends the region, or parks it while peers use it. `of`: the parts of the region to which this one belongs, unless its backing
    /// is that region.
    pub(super) fn leave(&mut self, of: Option<&Parts>) {
        self.revoke();
        self.memory.sweep();
        if self.end().is_ok() {
            return;
        }
        let mut backing = std::mem::replace(&mut self.backing, Backing::Borrowed);
        let (mut whole, mut source) = (of.map(Parts::one_more), None);
        if let Backing::Part(region) = backing {
            // A parked entry holds no region, because the region would hold the memory state that contains the entry, and neither
            // would ever end.
            whole = Some(region.inner.parts.one_more());
            (backing, source) = (Backing::Borrowed, Some(region));
        }
        let registrations = std::mem::take(&mut self.registrations);
        let parts = std::mem::take(&mut self.parts);
        let rest = Rest { registrations, backing, parts, whole };
        if self.unsure.is_some() {
            rest.forget();
        } else {
            self.memory.parked.add(rest);
        }
        // The source region may end here, after its part was parked.
        drop(source);
    }
}

/// The counter of a region's parts that were dropped while a peer was in the middle of a copy, and that remain.
#[derive(Default)]
pub(crate) struct Parts {
    /// The shared count, of which each part holds a clone; created with the first part.
    count: OnceCell<Arc<()>>,
}

impl Parts {
    fn one_more(&self) -> Arc<()> {
        self.count.get_or_init(Arc::default).clone()
    }

    /// Checks whether parts remain. The count cannot grow meanwhile: each part was a handle of this region.
    fn are_left(&self) -> bool {
        let left = self.count.get().is_some_and(|count| Arc::strong_count(count) > 1);
        // Orders all accesses to the last part before this check.
        fence(Ordering::Acquire);
        left
    }
}

/// The remains of a region that was dropped while a peer was in the middle of a copy.
struct Rest {
    registrations: Vec<Registration>,
    backing: Backing,
    /// The region's parts, which may remain too.
    parts: Parts,
    /// The counter of the whole region, if these are the remains of a part.
    whole: Option<Arc<()>>,
}

impl Rest {
    /// Leaks the memory: an unknown writer may still access it, so it is never reused.
    fn forget(mut self) {
        match std::mem::replace(&mut self.backing, Backing::Borrowed) {
            Backing::Copied(copy) => copy.forget(),
            backing => std::mem::forget(backing),
        }
        std::mem::forget(self);
    }

    /// Moves all contents out.
    fn take(&mut self) -> Rest {
        Rest {
            registrations: std::mem::take(&mut self.registrations),
            backing: std::mem::replace(&mut self.backing, Backing::Borrowed),
            parts: std::mem::take(&mut self.parts),
            whole: self.whole.take(),
        }
    }
}

/// The memory of regions that were dropped while a peer used them, kept until the peers have finished.
#[derive(Default)]
pub(crate) struct Parked {
    rests: Mutex<Vec<Rest>>,
}

impl Parked {
    fn add(&self, rest: Rest) {
        self.rests.lock().unwrap_or_else(PoisonError::into_inner).push(rest);
    }
}

impl Memory {
    /// Releases the memory that peers have stopped using.
    pub(crate) fn sweep(&self) {
        let mut free = Vec::new();
        let mut rests = self.parked.rests.lock().unwrap_or_else(PoisonError::into_inner);
        rests.retain_mut(|rest| {
            let (has_parts, mut unsure) = (rest.parts.are_left(), None);
            end_all(self, &mut rest.registrations, has_parts, &mut unsure);
            if unsure.is_some() {
                rest.take().forget();
                return false;
            }
            let stays = has_parts || !rest.registrations.is_empty();
            if !stays {
                // The remains of the whole region may be released next.
                drop(rest.whole.take());
                free.push(rest.take());
            }
            stays
        });
        drop(rests);
        drop(free);
    }

    /// Returns the number of parked regions.
    #[cfg(test)]
    pub(crate) fn parked(&self) -> usize {
        self.parked.rests.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Leaks the memory that is still being accessed when the context ends.
    pub(crate) fn abandon_parked(&mut self) {
        self.sweep();
        std::mem::forget(std::mem::take(&mut self.parked));
    }
}
