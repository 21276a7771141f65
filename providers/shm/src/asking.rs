//! Requests to a peer for the memory behind its keys, one region at a time.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tieline_plugin_api::{Failure, Status};

use crate::hello::Record;
use crate::imports::{ImportedKey, Imports};
use crate::keys::{Exports, Key};
use crate::sys;

/// Who has no descriptors left to be sent memory with asks again after a while, and after so many times no more: the
/// application waits for the key, or goes a slower way until it comes, and both must end.
const CUT_PAUSE: Duration = Duration::from_millis(5);
const MOST_CUTS: u32 = 100;

/// What one connection has asked for, and what it got.
#[derive(Default)]
pub(crate) struct Asking {
    imports: Rc<Imports>,
    asked: Cell<Option<Key>>,
    /// The region whose key cannot be imported, and why.
    refused: Cell<Option<(u64, Status)>>,
    /// Answers in a row that came without their descriptors, and until when there is no next question.
    cuts: Cell<(u32, Option<Instant>)>,
}

impl Asking {
    /// A key of the peer's, if its region is here; `own` where the peer is this very process. `Err(Again)`: ask for it.
    pub(crate) fn find(&self, key: Key, own: Option<&Exports>) -> Result<ImportedKey, Failure> {
        ImportedKey::find(key, &self.imports, own)
    }

    /// What is known about a region without asking: that it is here, as [`Status::Again`], or why it never will be.
    pub(crate) fn known(&self, key: Key) -> Option<Status> {
        if self.imports.holds(key.segment) {
            return Some(Status::Again); // to be found now
        }
        let (_, why) = self.refused.get().filter(|refused| refused.0 == key.segment)?;
        self.refused.set(None);
        Some(why)
    }

    /// Asks, unless an answer is awaited or there were no descriptors for one just now.
    pub(crate) fn ask(&self, key: Key, socket: &OwnedFd) {
        let pauses = || self.cuts.get().1.is_some_and(|until| Instant::now() < until);
        if self.asked.get().is_some() || pauses() {
            return;
        }
        let request = Record::KeyRequest { segment: key.segment };
        if sys::send(socket, &request.pack(), &[]).is_ok() {
            self.asked.set(Some(key));
        }
    }

    /// The peer's answer, which may be `cut` for want of descriptors; `false`: nobody asked for it.
    pub(crate) fn answered(
        &self,
        segment: u64,
        (len, table_len): (u64, u64),
        writable: bool,
        fds: &[OwnedFd],
        cut: bool,
    ) -> bool {
        let Some(key) = self.asked.take().filter(|key| key.segment == segment) else {
            return false;
        };
        let (cuts, _) = self.cuts.take();
        let add =
            |memory, table| self.imports.add(key, (memory, len), (table, table_len), writable);
        match fds {
            [memory, table] if add(memory, table) => {}
            [] | [_] if cut => {
                self.cuts.set((cuts + 1, Some(Instant::now() + CUT_PAUSE)));
                if cuts >= MOST_CUTS {
                    self.refused.set(Some((segment, Status::NoMemory)));
                }
            }
            _ => self.refused.set(Some((segment, Status::KeyRejected))),
        }
        true
    }

    #[cfg(test)]
    pub(crate) fn awaits_an_answer(&self) -> bool {
        self.asked.get().is_some()
    }

    #[cfg(test)]
    pub(crate) fn regions(&self) -> usize {
        self.imports.count()
    }
}
