//! Keys by their handles, on the requester's side: the endpoint requests a key that its cache lacks from the key's owner, and
//! caches the key.
//!
//! Guarantees:
//!
//! * A handle is resolved by an internal message, which the peer's progress or its progress thread answers
//!   (`mem/region/handle.rs`). The first lookup after the answer imports the key and accesses the table twice. Later lookups cost
//!   one access, while the key is in the cache.
//! * The cache is bounded: 1,024 keys per endpoint, and the least recently used one is evicted. An evicted key is requested again
//!   at its next lookup. The cache is released with the last handle of the endpoint, or when the endpoint ends.
//! * A cached key may be outdated, as any key may be. If the target, or its key table, refuses an operation of the endpoint as
//!   `KeyRejected`, all keys in the cache are invalidated. A key is requested again at its next lookup. The whole cache is
//!   invalidated, because only some operations record the key that they used.
//! * An answer is accepted only for an open request, only from the peer to which the request was sent, and only over the same
//!   connection. The key in the answer must be the peer's own. The key is imported when the application requests it, rather than
//!   when the answer arrives.

use super::key::RemoteKey;
use super::known_keys::Key;
use super::queued::QueuedOp;
use super::{Endpoint, EndpointState};
use crate::address::HANDLES;
use crate::mem::key::KeyRecord;
use crate::mem::local::LocalBuffer;
use crate::proto::handles::key_request;
use crate::proto::id;
use crate::region::KeyHandle;
use crate::request::Outcome;
use crate::{Error, PostError, Status};
use std::fmt;
use std::rc::Rc;

/// The result of [`Endpoint::key_by_handle`].
#[must_use = "a key may be there, or be asked for"]
pub enum KeyLookup {
    /// The key, ready for use.
    Known(RemoteKey),
    /// A request to the owner for the key. When the request has succeeded, call [`Endpoint::key_by_handle`] again.
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
    /// Resolves a handle of the peer ([`Region::handle`](crate::Region::handle)) to a key.
    ///
    /// [`KeyLookup::Known`]: the key is in the endpoint's cache. [`KeyLookup::Asked`]: a request was sent to the peer, and the
    /// worker's progress delivers the answer. The request can be [tracked](crate::Worker::track) or waited for like any operation.
    /// When the request has succeeded, call this method again.
    ///
    /// ```
    /// # fn main() -> Result<(), tieline::Error> {
    /// use tieline::{KeyHandle, KeyLookup};
    /// # let context = tieline::Context::open()?;
    /// # let worker = context.worker()?;
    /// # let region = context.register(vec![7; 64])?;
    /// # let there = worker.connect(&worker.address()?)?;
    /// let bytes: [u8; 8] = region.handle()?.to_bytes(); // sent to the peer in a message
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
    /// An endpoint caches the keys of at most 1,024 handles. Beyond that, the least recently used key is evicted and requested
    /// again at its next use. If the target refuses an operation of this endpoint as `KeyRejected`, every cached key is requested
    /// again at its next use. The region of a key may have been closed, for example. A request ends as `KeyRejected` if its handle
    /// is invalid or its region closed. A flush waits for an open request but does not report its failure.
    ///
    /// # Errors
    /// [`PostError::Correct`] with `Unsupported` if the peer's version does not support handles. [`PostError::Retry`] while the
    /// endpoint has its maximum number of open operations. [`PostError::Reconnect`] if the endpoint has ended.
    pub fn key_by_handle(&self, handle: KeyHandle) -> Result<KeyLookup, PostError> {
        let ep = &self.inner;
        ep.check_open()?;
        let handle = handle.raw();
        if let Some(key) = ep.known_key(handle) {
            return Ok(KeyLookup::Known(key));
        }
        ep.check_handles()?;
        let control = ep.emulates()?;
        let request = LocalBuffer::for_key_request(ep.id.raw(), handle);
        let opened = ep.shared.ops.borrow_mut().open_key(control.index, request);
        let asked = opened.map_err(|status| ep.refused(status))?;
        control.post(QueuedOp::ask(id::KEY, asked, key_request(handle)));
        Ok(KeyLookup::Asked(control.outcome(asked)?))
    }
}

impl EndpointState {
    /// Parses a key and checks that it belongs to this endpoint's peer.
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
                "it speaks {major}.{minor} of the library's messages, and {major}.{HANDLES} is the first with key handles"
            ),
            "carry the region's remote key, and import it on the endpoint",
        ))
    }

    /// Returns the cached key of a handle, and imports the key if that has not been done yet.
    fn known_key(self: &Rc<Self>, handle: u64) -> Option<RemoteKey> {
        self.forget_refused();
        let record = {
            let mut keys = self.known_keys.keys.borrow_mut();
            match keys.as_mut()?.used(handle)? {
                Key::Imported(key) => return Some(key.clone()),
                Key::Told(record) => record.clone(),
            }
        };
        // Nothing is borrowed here: opening a lane may call the application.
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

    /// Handles the owner's answer to a request for a key by its handle.
    pub(crate) fn key_told(&self, handle: u64, bytes: &[u8]) -> Result<(), Error> {
        let record = self.key_of_peer(bytes)?;
        if !self.is_alive() || self.handles.count.get() == 0 {
            // The endpoint has ended, or no handle is left that could look the key up.
            return Ok(());
        }
        self.forget_refused();
        let gone = self.known_keys.keys.borrow_mut().get_or_insert_default().keep(handle, record);
        // If the evicted key was imported, its drop may call providers.
        drop(gone);
        Ok(())
    }

    /// Records that an operation was refused as `KeyRejected`, on this endpoint or on the one to the peer's service worker.
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

    /// Clears the cache.
    pub(super) fn forget_keys(&self) {
        // The keys are dropped after the borrow has ended: they hold the endpoint and keys of providers.
        let gone = self.known_keys.keys.take();
        drop(gone);
    }
}
