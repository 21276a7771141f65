//! Requests to a peer for the memory of its keys, one region at a time.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tieline_plugin_api::{Failure, Status};

use crate::hello::Record;
use crate::imports::{ImportedKey, Imports};
use crate::keys::{Exports, Key};
use crate::sys;

/// The pause before a request is repeated because this process had no free descriptors for an answer.
const CUT_PAUSE: Duration = Duration::from_millis(5);
/// The number of consecutive answers without descriptors, beyond which the key is refused with `NoMemory`. The application waits
/// for the key, or uses a slower route until the key arrives, and both must end.
const MOST_CUTS: u32 = 100;

/// The requests of one connection, and their results.
#[derive(Default)]
pub(crate) struct Asking {
    imports: Rc<Imports>,
    asked: Cell<Option<Key>>,
    /// The region whose key cannot be imported, and the reason.
    refused: Cell<Option<(u64, Status)>>,
    /// The number of consecutive answers without their descriptors, and the time before which no request is sent.
    cuts: Cell<(u32, Option<Instant>)>,
}

impl Asking {
    /// Returns a key of the peer, if the key's region is mapped in this process. `own` is given if the peer is this process.
    /// `Err(Again)` means that the key must be requested.
    pub(crate) fn find(&self, key: Key, own: Option<&Exports>) -> Result<ImportedKey, Failure> {
        ImportedKey::find(key, &self.imports, own)
    }

    /// Returns the state of a region without a request: [`Status::Again`] if the region is mapped, or the reason why the last
    /// request failed, once. `None`: the region must be requested.
    pub(crate) fn known(&self, key: Key) -> Option<Status> {
        if self.imports.holds(key.segment) {
            return Some(Status::Again); // the region can be found from here on
        }
        let (_, why) = self.refused.get().filter(|refused| refused.0 == key.segment)?;
        self.refused.set(None);
        Some(why)
    }

    /// Sends a request, unless an answer is pending or descriptors were missing just now.
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

    /// Handles the peer's answer, which may be `cut` for lack of descriptors. Returns `false` if there was no such request.
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
