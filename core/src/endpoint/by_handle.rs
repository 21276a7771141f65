//! Keys by their handles or numbers, on the requester's side: the endpoint requests a key that its cache lacks from the key's owner, and
//! caches the key.
//!
//! Guarantees:
//!
//! * A name is resolved by an internal message, which the peer's progress or its progress thread answers
//!   (`mem/region/handle.rs`, `numbers.rs`). The first lookup after the answer imports the key and accesses the table twice. Later lookups cost
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
use crate::address::{HANDLES, NUMBERS};
use crate::mem::key::{KeyName, KeyRecord};
use crate::mem::local::LocalBuffer;
use crate::proto::handles::key_request;
use crate::region::KeyHandle;
use crate::request::Outcome;
use crate::{Error, PostError, Status};
use std::fmt;
use std::rc::Rc;

/// The result of [`Endpoint::key_by_handle`] and [`Endpoint::key_by_number`].
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
        self.inner.key_by_name(KeyName::Handle(handle.raw()))
    }

    /// Resolves a number under which the peer has published a region ([`Region::publish`](crate::Region::publish)) to a key, like
    /// [`Endpoint::key_by_handle`]. The keys of numbers and of handles share the cache of the endpoint.
    ///
    /// The peer's application may publish another region under the same number later. The cached key of the earlier region is then
    /// refused by the target as `KeyRejected`, and the next lookup requests the number again. If the earlier region still exists, its
    /// cached key stays in use.
    ///
    /// # Errors
    /// The errors of [`Endpoint::key_by_handle`]. A request for a number without a region ends as `KeyRejected`.
    pub fn key_by_number(&self, number: u64) -> Result<KeyLookup, PostError> {
        self.inner.key_by_name(KeyName::Number(number))
    }
}

impl EndpointState {
    /// Parses a key and checks that it belongs to this endpoint's peer.
    pub(super) fn key_of_peer(&self, bytes: &[u8]) -> Result<KeyRecord, Error> {
        self.checked_key(KeyRecord::parse(bytes)?)
    }

    /// Checks that a key belongs to this endpoint's peer.
    pub(super) fn checked_key(&self, record: KeyRecord) -> Result<KeyRecord, Error> {
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

    /// Returns the cached key of this name, or requests it.
    fn key_by_name(self: &Rc<Self>, name: KeyName) -> Result<KeyLookup, PostError> {
        self.check_open()?;
        if let Some(key) = self.known_key(name) {
            return Ok(KeyLookup::Known(key));
        }
        self.check_names(name)?;
        let _ = self.emulates()?;
        let request = LocalBuffer::for_key_request(self.id.raw(), name);
        let opened = self.shared.ops.borrow_mut().open_key(self.index, request);
        let asked = opened.map_err(|status| self.refused(status))?;
        let (message, bytes) = key_request(name);
        self.post(QueuedOp::ask(message, asked, bytes));
        Ok(KeyLookup::Asked(self.outcome(asked)?))
    }

    fn check_names(&self, name: KeyName) -> Result<(), Error> {
        let (first, by, which) = match name {
            KeyName::Handle(_) => (HANDLES, "handle", "key handles"),
            KeyName::Number(_) => (NUMBERS, "number", "keys by numbers"),
        };
        let what = |peer: &str| format!("a key of {peer} by its {by}");
        let fix = "carry the region's remote key, and import it on the endpoint";
        self.check_speaks(first, what, which, fix)
    }

    /// Returns the cached key of a name, and imports the key if that has not been done yet.
    fn known_key(self: &Rc<Self>, name: KeyName) -> Option<RemoteKey> {
        self.forget_refused();
        let record = {
            let mut keys = self.known_keys.keys.borrow_mut();
            match keys.as_mut()?.used(name)? {
                Key::Imported(key) => return Some(key.clone()),
                Key::Told(record) => record.clone(),
            }
        };
        // Nothing is borrowed here: opening a lane may call the application.
        let key = RemoteKey::import(self, record);
        let imported = Key::Imported(key.clone());
        let before = {
            let mut keys = self.known_keys.keys.borrow_mut();
            let place = keys.as_mut().and_then(|keys| keys.used(name));
            place.map(|place| std::mem::replace(place, imported))
        };
        drop(before);
        Some(key)
    }

    /// Handles the owner's answer to a request for a key by its name.
    pub(crate) fn key_told(&self, name: KeyName, bytes: &[u8]) -> Result<(), Error> {
        let record = self.key_of_peer(bytes)?;
        if !self.is_alive() || self.handles.count.get() == 0 {
            // The endpoint has ended, or no handle is left that could look the key up.
            return Ok(());
        }
        self.forget_refused();
        let gone = self.known_keys.keys.borrow_mut().get_or_insert_default().keep(name, record);
        // If the evicted key was imported, its drop may call providers.
        drop(gone);
        Ok(())
    }

    /// Records that an operation was refused as `KeyRejected`.
    #[cold]
    pub(crate) fn key_refused(&self) {
        self.known_keys.refused.set(true);
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
