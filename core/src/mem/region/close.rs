//! The end of a region: when nothing touches its memory any more.
//!
//! Three kinds of users there are. *Handles*: clones of the application's, and those that the library holds for
//! operations that are under way, or for an endpoint that failed with a provider still at work; all of them are counted
//! by the one `Arc`. *Peers by message*: they are inside only while the region table is locked for reading.
//! *Providers*: devices, and peers that reach the memory without us; ending a registration says whether one of
//! them is still inside (AGAIN: keys are refused, call again).

use super::{Backing, Inner, Region, Registration};
use crate::mem::Memory;
use crate::{Error, Status};
use once_cell::sync::OnceCell;
use std::fmt;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

/// A region that could not be closed yet: something may still touch its memory.
pub struct NotClosed {
    /// The region, to close again. Its remote keys are refused already, but for those of devices whose registration
    /// serves operations of this process as well: these end with the last such operation (docs/abi.md).
    pub region: Region,
    /// What holds it, and what to do. `Busy`: the next attempt may succeed. With any other status it will not, and
    /// the memory has to stay as it is for the rest of the process.
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
    /// Ends the region. `Ok`: neither the library, nor a device, nor a peer will touch the memory again, and whoever
    /// owns it may do with it what they like. It never waits, and may be called from any thread;
    /// [`Worker::close_region`](crate::Worker::close_region) waits, for a bounded time.
    ///
    /// From the first call on no new key of the region is given out, and peers are refused, whether they ask by message or
    /// reach the memory without us. An exception are devices whose one registration serves peers and operations of
    /// this process alike (`verbs`): there keys are refused as soon as no operation of this process uses the region.
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
    /// [`NotClosed`] gives the region back, with a reason of status `Busy` that says what still holds it: another
    /// handle, pending operations (of any worker; those of an endpoint that failed too, until their provider has said how
    /// they ended or the endpoint is dropped), or a peer that is in the middle of a copy. A provider's own error means
    /// that it does not know; `Invalid`: a forked child.
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
        // A part of it that was announced may stand among them.
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

fn still_in_use(inner: &Inner, why: impl Into<String>, fix: &str) -> Error {
    let what = format!("a region of {} bytes is still in use", inner.span.len());
    Error::new(Status::Busy, what, why, fix)
}

impl Inner {
    /// From now on what peers ask for by message is refused, and no such access is under way when this returns. What they
    /// reach without us is refused by the providers that can do so while operations of ours go on.
    fn revoke(&self) {
        if self.revoked.swap(true, Ordering::AcqRel) {
            return;
        }
        self.memory.regions.remove(self.id);
        for registration in &self.registrations {
            registration.memory.revoke();
        }
    }

    /// Ends the registrations; an error says why somebody may still touch the memory.
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

/// Ends registrations, but for those that a peer still uses. `unsure` is the first error of one of which nobody knows. The
/// registration that gives the memory unmaps it as it ends: so it ends when all others have, those of its parts among them, and never
/// where one is in doubt.
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

/// Ends a registration, unless a peer uses it.
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

impl Drop for Inner {
    fn drop(&mut self) {
        // Before any lock: in a forked child its holder may be a thread that is not there.
        if !self.memory.guard.same_process() {
            return;
        }
        self.revoke();
        self.memory.sweep();
        if self.end().is_ok() {
            return;
        }
        let mut backing = std::mem::replace(&mut self.backing, Backing::Borrowed);
        let (mut whole, mut source) = (None, None);
        if let Backing::Part(region) = backing {
            // What is parked holds no region: that would hold the context, which would never end.
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
        // It may end with this, and finds its part.
        drop(source);
    }
}

/// How many parts of a region were dropped while a peer was in the middle of a copy, and are left.
#[derive(Default)]
pub(crate) struct Parts {
    /// Counted by who has it; made when there is one.
    count: OnceCell<Arc<()>>,
}

impl Parts {
    fn one_more(&self) -> Arc<()> {
        self.count.get_or_init(Arc::default).clone()
    }

    /// Nobody else adds any meanwhile: each was a handle of the region that asks.
    fn are_left(&self) -> bool {
        let left = self.count.get().is_some_and(|count| Arc::strong_count(count) > 1);
        // What was done to the last of them came before.
        fence(Ordering::Acquire);
        left
    }
}

/// What is left of a region that was dropped while a peer was in the middle of a copy.
struct Rest {
    registrations: Vec<Registration>,
    backing: Backing,
    /// Its parts of which something is left, too.
    parts: Parts,
    /// It is a part: of a region that counts it.
    whole: Option<Arc<()>>,
}

impl Rest {
    /// Nobody knows who writes there, so nobody else ever gets it.
    fn forget(mut self) {
        match std::mem::replace(&mut self.backing, Backing::Borrowed) {
            Backing::Copied(copy) => copy.forget(),
            backing => std::mem::forget(backing),
        }
        std::mem::forget(self);
    }

    /// All of it; nothing is left here.
    fn take(&mut self) -> Rest {
        Rest {
            registrations: std::mem::take(&mut self.registrations),
            backing: std::mem::replace(&mut self.backing, Backing::Borrowed),
            parts: std::mem::take(&mut self.parts),
            whole: self.whole.take(),
        }
    }
}

/// The memory of such regions, kept until the peers are out.
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
    /// Lets go of what peers have left by now.
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
                // The rest of its region may stand behind it.
                drop(rest.whole.take());
                free.push(rest.take());
            }
            stays
        });
        drop(rests);
        drop(free);
    }

    /// How many such regions there are.
    #[cfg(test)]
    pub(crate) fn parked(&self) -> usize {
        self.parked.rests.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The context ends: what somebody is still inside of is never given back.
    pub(crate) fn abandon_parked(&mut self) {
        self.sweep();
        std::mem::forget(std::mem::take(&mut self.parked));
    }
}
