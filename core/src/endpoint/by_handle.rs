//! Keys by their handles, at the side that uses them: the owner is asked once for each, and what it said is kept.
//!
//! What is promised:
//!
//! * A handle is asked for by a message of the library's own, which the peer's progress answers, or its progress thread
//!   (`mem/region/handle.rs`). From then on it costs a look into a table.
//! * What is kept is bounded: 1,024 keys for each endpoint, of which that goes first which was used the longest ago. It is let go with
//!   the application's last handle of the endpoint, or with the endpoint's end.
//! * What is kept may be outdated, as any key may be. The first operation of the endpoint that the target, or its key table, refuses as
//!   `KeyRejected` says so, and nothing that was kept until then is handed out again: each is asked for anew when it is next used. Which
//!   key it was that an operation had is known for some operations only, so that all are asked for again.
//! * An answer counts where a question is open, and only from whom it was asked of, over the connection that was asked. The key in it has to
//!   be the peer's own. It is imported when the application asks for it, not when it comes.

use super::key::RemoteKey;
use super::known_keys::Key;
use super::queued::QueuedOp;
use super::{Endpoint, Inner};
use crate::address::HANDLES;
use crate::mem::key::KeyRecord;
use crate::proto::handles::key_request;
use crate::proto::id;
use crate::region::KeyHandle;
use crate::request::Outcome;
use crate::{Error, PostError, Status};
use std::fmt;
use std::rc::Rc;

/// What is known of a handle: see [`Endpoint::key_by_handle`].
#[must_use = "a key may be there, or be asked for"]
pub enum KeyLookup {
    /// The key, ready to be used.
    Known(RemoteKey),
    /// Its owner is asked. When this has ended well the handle is looked up once more.
    Asked(Outcome),
}

impl fmt::Debug for KeyLookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyLookup::Known(key) => write!(f, "Known({} bytes)", key.len()),
            KeyLookup::Asked(asked) => write!(f, "Asked({asked:?})"),
        }
    }
}

impl Endpoint {
    /// The key that a handle of the peer's stands for ([`Region::handle`](crate::Region::handle)). [`KeyLookup::Known`]: it was asked for
    /// before, and a look into a table has brought it. [`KeyLookup::Asked`]: the peer is asked, which the worker's progress brings an answer to; it can be
    /// [tracked](crate::Worker::track) or waited for as every operation, and when it has ended well this is called again.
    ///
    /// ```
    /// # fn main() -> Result<(), tieline::Error> {
    /// use tieline::{KeyHandle, KeyLookup};
    /// # let context = tieline::Context::open()?;
    /// # let worker = context.worker()?;
    /// # let region = context.register(vec![7; 64])?;
    /// # let there = worker.connect(&worker.address()?)?;
    /// let bytes: [u8; 8] = region.handle()?.to_bytes(); // carried to the peer with a message
    /// let key = loop {
    ///     match there.key_by_handle(KeyHandle::from_bytes(bytes))? {
    ///         KeyLookup::Known(key) => break key,
    ///         KeyLookup::Asked(asked) => _ = worker.finish(asked)?,
    ///     }
    /// };
    /// let _ = worker.finish(there.put_bytes(b"eight", &key, 0)?)?;
    /// # assert_eq!(region.to_vec(0..6)?, b"eight\x07");
    /// # Ok(()) }
    /// ```
    ///
    /// An endpoint keeps the keys of 1,024 handles; beyond that the one goes that was used the longest ago, and is asked for again. So are all
    /// after an operation of this endpoint was refused as `KeyRejected`: the region of one of them was closed. The question ends as
    /// `KeyRejected` where the handle stands for nothing (any more); no flush tells of that, though a flush waits for a question that is open.
    ///
    /// # Errors
    /// [`PostError::Correct`] with `Unsupported` for a peer whose version knows no handles; [`PostError::Retry`] while as many operations
    /// are open as may be; [`PostError::Reconnect`] when the endpoint has ended.
    pub fn key_by_handle(&self, handle: KeyHandle) -> Result<KeyLookup, PostError> {
        let ep = &self.inner;
        ep.check_open()?;
        let handle = handle.raw();
        if let Some(key) = ep.known_key(handle) {
            return Ok(KeyLookup::Known(key));
        }
        ep.check_handles()?;
        let control = ep.emulates()?;
        let opened = ep.shared.ops.borrow_mut().open_key(control.index, ep.id, handle);
        let asked = opened.map_err(|status| ep.refused(status))?;
        control.post(QueuedOp::ask(id::KEY, asked, key_request(handle)));
        Ok(KeyLookup::Asked(control.outcome(asked)?))
    }
}

impl Inner {
    /// A key of this endpoint's peer, taken apart.
    pub(super) fn key_of_peer(&self, bytes: &[u8]) -> Result<KeyRecord, Error> {
        let record = KeyRecord::parse(bytes)?;
        if record.context == self.address.context {
            return Ok(record);
        }
        Err(Error::new(
            Status::KeyRejected,
            "a remote key of another process",
            format!("this endpoint leads to {}", self.address.label()),
            "import it on the endpoint that leads to the key's owner",
        ))
    }

    fn check_handles(&self) -> Result<(), Error> {
        let (major, minor) = self.address.messages;
        if minor >= HANDLES {
            return Ok(());
        }
        Err(Error::new(
            Status::Unsupported,
            format!("a key of {} by its handle", self.address.label()),
            format!(
                "it speaks {major}.{minor} of the library's messages, and {major}.{HANDLES} has the first that ask for keys"
            ),
            "carry the region's remote key, and import it on the endpoint",
        ))
    }

    /// The key that is kept for a handle.
    fn known_key(self: &Rc<Self>, handle: u64) -> Option<RemoteKey> {
        self.forget_refused();
        let record = {
            let mut keys = self.known_keys.keys.borrow_mut();
            match keys.as_mut()?.used(handle)? {
                Key::Imported(key) => return Some(key.clone()),
                Key::Told(record) => record.clone(),
            }
        };
        // Nothing is borrowed: a lane may be opened, which may call the application.
        let key = RemoteKey::import(self, record);
        let imported = Key::Imported(key.clone());
        let before = {
            let mut keys = self.known_keys.keys.borrow_mut();
            let place = keys.as_mut().and_then(|keys| keys.used(handle));
            place.map(|place| std::mem::replace(place, imported))
        };
        drop(before);
        Some(key)
    }

    /// The owner has said what a handle stands for.
    pub(crate) fn key_told(&self, handle: u64, bytes: &[u8]) -> Result<(), Error> {
        let record = self.key_of_peer(bytes)?;
        if !self.is_alive() || self.handles.count.get() == 0 {
            // Nobody will ask for it.
            return Ok(());
        }
        self.forget_refused();
        let gone = self.known_keys.keys.borrow_mut().get_or_insert_default().keep(handle, record);
        // It may be a key that was used: a provider lets it go.
        drop(gone);
        Ok(())
    }

    /// An operation was refused for its key, here or where this endpoint leads to the peer's service worker.
    #[cold]
    pub(crate) fn key_refused(&self) {
        self.known_keys.refused.set(true);
        if let Some(user) = self.user() {
            user.known_keys.refused.set(true);
        }
    }

    fn forget_refused(&self) {
        if self.known_keys.refused.replace(false) {
            self.forget_keys();
        }
    }

    /// Nothing is kept any more.
    pub(super) fn forget_keys(&self) {
        // What is let go is not borrowed: it holds the endpoint, and keys of providers.
        let gone = self.known_keys.keys.take();
        drop(gone);
    }
}
