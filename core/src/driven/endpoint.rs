//! Endpoints and keys of a driven worker. Each call takes the worker's lock once.

use super::PeerId;
use super::abi::{Belonging, Held};
use super::request::DrivenOutcome;
use crate::endpoint::{
    AtomicOp, Blocks, Close, Completion, Endpoint, EndpointId, KeyLookup, RemoteKey, SendOptions,
    Width,
};
use crate::region::{KeyHandle, Region};
use crate::request::Outcome;
use crate::{ConnectError, Error, PostError};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// An endpoint of a driven worker; see [`Endpoint`]. Any thread may use it. Clones share one endpoint.
///
/// Each call takes the worker's lock for its own duration. No call waits for a peer, and no call runs a handler. Operations that
/// one thread posts keep their order. Operations of several threads are in the order in which the threads took the lock.
#[derive(Clone)]
pub struct DrivenEndpoint {
    pub(super) inner: Arc<Belonging<Endpoint>>,
}

/// A key imported on a [`DrivenEndpoint`]; see [`RemoteKey`]. Clones share one key.
#[derive(Clone)]
pub struct DrivenKey {
    pub(super) inner: Arc<Belonging<RemoteKey>>,
}

/// The result of [`DrivenEndpoint::key_by_handle`] and [`DrivenEndpoint::key_by_number`]; see [`KeyLookup`].
#[must_use = "a key may be there, or be asked for"]
#[derive(Debug)]
pub enum DrivenKeyLookup {
    /// The key, ready for use.
    Known(DrivenKey),
    /// A request to the owner for the key. When the request has succeeded, call the method again.
    Asked(DrivenOutcome),
}

impl DrivenEndpoint {
    pub(super) fn new(inner: Belonging<Endpoint>) -> DrivenEndpoint {
        DrivenEndpoint { inner: Arc::new(inner) }
    }

    pub(super) fn enter(&self) -> Result<Held<'_, Endpoint>, Error> {
        let held = self.inner.enter_to_post()?;
        held.entered.check_open()?;
        Ok(held)
    }

    /// Posts an operation under the lock.
    #[inline]
    fn post(
        &self,
        post: impl FnOnce(&Endpoint) -> Result<Outcome, PostError>,
    ) -> Result<DrivenOutcome, PostError> {
        let held = self.enter()?;
        let outcome = post(&held)?;
        Ok(DrivenOutcome::new(&held.entered, outcome))
    }

    /// Posts an operation with a key under the lock.
    #[inline]
    pub(super) fn post_with(
        &self,
        key: &DrivenKey,
        post: impl FnOnce(&Endpoint, &RemoteKey) -> Result<Outcome, PostError>,
    ) -> Result<DrivenOutcome, PostError> {
        let held = self.enter()?;
        let outcome = post(&held, key.inner.under(&held.entered)?)?;
        Ok(DrivenOutcome::new(&held.entered, outcome))
    }

    /// Sends a message, as [`Endpoint::send`] does.
    ///
    /// # Errors
    /// The errors of [`Endpoint::send`].
    pub fn send(&self, id: u16, header: u64, payload: &[u8]) -> Result<DrivenOutcome, PostError> {
        self.post(|endpoint| endpoint.send(id, header, payload))
    }

    /// Sends a message with options, as [`Endpoint::send_with`] does.
    ///
    /// # Errors
    /// The errors of [`Endpoint::send_with`].
    pub fn send_with(
        &self,
        id: u16,
        header: u64,
        payload: &[u8],
        options: &SendOptions<'_>,
    ) -> Result<DrivenOutcome, PostError> {
        self.post(|endpoint| endpoint.send_with(id, header, payload, options))
    }

    /// Sends a message gathered from pieces of regions, as [`Endpoint::send_regions_with`] does.
    ///
    /// # Errors
    /// The errors of [`Endpoint::send_regions_with`].
    pub fn send_regions_with(
        &self,
        id: u16,
        header: u64,
        pieces: &[(&Region, Range<usize>)],
        options: &SendOptions<'_>,
    ) -> Result<DrivenOutcome, PostError> {
        self.post(|endpoint| endpoint.send_regions_with(id, header, pieces, options))
    }

    /// Puts a range of a region, as [`Endpoint::put_with`] does.
    ///
    /// # Errors
    /// The errors of [`Endpoint::put`]; [`PostError::Correct`] also for a key of another worker.
    pub fn put(
        &self,
        local: &Region,
        range: Range<usize>,
        key: &DrivenKey,
        offset: u64,
        completion: Completion,
    ) -> Result<DrivenOutcome, PostError> {
        self.post_with(key, |endpoint, key| {
            endpoint.put_with(local, range, key, offset, completion)
        })
    }

    /// Puts bytes from any memory, as [`Endpoint::put_bytes`] does.
    ///
    /// # Errors
    /// The errors of [`DrivenEndpoint::put`].
    pub fn put_bytes(
        &self,
        data: &[u8],
        key: &DrivenKey,
        offset: u64,
    ) -> Result<DrivenOutcome, PostError> {
        self.post_with(key, |endpoint, key| endpoint.put_bytes(data, key, offset))
    }

    /// Puts and then notifies the peer, as [`Endpoint::put_notify_with`] does.
    ///
    /// # Errors
    /// The errors of [`Endpoint::put_notify`].
    pub fn put_notify(
        &self,
        local: &Region,
        range: Range<usize>,
        key: &DrivenKey,
        offset: u64,
        word: u32,
        completion: Completion,
    ) -> Result<DrivenOutcome, PostError> {
        self.post_with(key, |endpoint, key| {
            endpoint.put_notify_with(local, range, key, offset, word, completion)
        })
    }

    /// Gets into a range of a region, as [`Endpoint::get`] does.
    ///
    /// # Errors
    /// The errors of [`DrivenEndpoint::put`].
    pub fn get(
        &self,
        local: &Region,
        range: Range<usize>,
        key: &DrivenKey,
        offset: u64,
    ) -> Result<DrivenOutcome, PostError> {
        self.post_with(key, |endpoint, key| endpoint.get(local, range, key, offset))
    }

    /// Puts pieces of regions, as [`Endpoint::put_pieces`] does.
    ///
    /// # Errors
    /// The errors of [`DrivenEndpoint::put`].
    pub fn put_pieces(
        &self,
        pieces: &[(&Region, Range<usize>)],
        key: &DrivenKey,
        offset: u64,
    ) -> Result<DrivenOutcome, PostError> {
        self.post_with(key, |endpoint, key| endpoint.put_pieces(pieces, key, offset))
    }

    /// Gets into pieces of regions, as [`Endpoint::get_pieces`] does.
    ///
    /// # Errors
    /// The errors of [`DrivenEndpoint::put`].
    pub fn get_pieces(
        &self,
        pieces: &[(&Region, Range<usize>)],
        key: &DrivenKey,
        offset: u64,
    ) -> Result<DrivenOutcome, PostError> {
        self.post_with(key, |endpoint, key| endpoint.get_pieces(pieces, key, offset))
    }

    /// Puts blocks at equal distances, as [`Endpoint::put_strided`] does.
    ///
    /// # Errors
    /// The errors of [`Endpoint::put_strided`].
    pub fn put_strided(
        &self,
        local: &Region,
        from: Blocks,
        key: &DrivenKey,
        to: Blocks,
    ) -> Result<DrivenOutcome, PostError> {
        self.post_with(key, |endpoint, key| endpoint.put_strided(local, from, key, to))
    }

    /// Gets blocks at equal distances, as [`Endpoint::get_strided`] does.
    ///
    /// # Errors
    /// The errors of [`Endpoint::get_strided`].
    pub fn get_strided(
        &self,
        local: &Region,
        to: Blocks,
        key: &DrivenKey,
        from: Blocks,
    ) -> Result<DrivenOutcome, PostError> {
        self.post_with(key, |endpoint, key| endpoint.get_strided(local, to, key, from))
    }

    /// Posts an atomic that returns no value, as [`Endpoint::atomic`] does.
    ///
    /// # Errors
    /// The errors of [`Endpoint::atomic`].
    pub fn atomic(
        &self,
        op: AtomicOp,
        width: Width,
        key: &DrivenKey,
        offset: u64,
        operand: u64,
    ) -> Result<DrivenOutcome, PostError> {
        self.post_with(key, |endpoint, key| endpoint.atomic(op, width, key, offset, operand))
    }

    /// Posts an atomic that returns the previous value, as [`Endpoint::fetch`] does.
    ///
    /// # Errors
    /// The errors of [`Endpoint::atomic`].
    pub fn fetch(
        &self,
        op: AtomicOp,
        width: Width,
        key: &DrivenKey,
        offset: u64,
        operand: u64,
    ) -> Result<DrivenOutcome, PostError> {
        self.post_with(key, |endpoint, key| endpoint.fetch(op, width, key, offset, operand))
    }

    /// Stores `new` if the word equals `expected`, as [`Endpoint::compare_swap`] does.
    ///
    /// # Errors
    /// The errors of [`Endpoint::atomic`].
    pub fn compare_swap(
        &self,
        width: Width,
        key: &DrivenKey,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> Result<DrivenOutcome, PostError> {
        self.post_with(key, |endpoint, key| {
            endpoint.compare_swap(width, key, offset, expected, new)
        })
    }

    /// Posts a flush, as [`Endpoint::flush`] does. A handler may post it, too.
    ///
    /// # Errors
    /// The errors of [`Endpoint::flush`].
    pub fn flush(&self) -> Result<DrivenOutcome, PostError> {
        self.post(Endpoint::flush)
    }

    /// Posts a flush of messages, as [`Endpoint::flush_messages`] does. It completes when the peer has received the messages. If
    /// the peer is a driven worker, its handlers may run later.
    ///
    /// # Errors
    /// The errors of [`Endpoint::flush_messages`].
    pub fn flush_messages(&self) -> Result<DrivenOutcome, PostError> {
        self.post(Endpoint::flush_messages)
    }

    /// Orders earlier puts, gets and atomics ahead of later ones, as [`Endpoint::fence`] does.
    ///
    /// # Errors
    /// The errors of [`Endpoint::fence`].
    pub fn fence(&self) -> Result<(), PostError> {
        self.enter()?.fence()
    }

    /// Closes the endpoint, as [`Endpoint::close`] does.
    ///
    /// # Errors
    /// The errors of [`Endpoint::close`].
    pub fn close(&self, how: Close) -> Result<DrivenOutcome, PostError> {
        self.post(|endpoint| endpoint.close(how))
    }

    /// Imports a peer's key, as [`Endpoint::import_key`] does.
    ///
    /// # Errors
    /// The errors of [`Endpoint::import_key`].
    pub fn import_key(&self, bytes: &[u8]) -> Result<DrivenKey, PostError> {
        let held = self.enter()?;
        let key = held.import_key(bytes)?;
        Ok(DrivenKey { inner: Arc::new(Belonging::new(&held.entered, key)) })
    }

    /// Resolves a handle of the peer to a key, as [`Endpoint::key_by_handle`] does.
    ///
    /// # Errors
    /// The errors of [`Endpoint::key_by_handle`].
    pub fn key_by_handle(&self, handle: KeyHandle) -> Result<DrivenKeyLookup, PostError> {
        self.look_up(|endpoint| endpoint.key_by_handle(handle))
    }

    /// Resolves a number under which the peer has published a region to a key, as [`Endpoint::key_by_number`] does.
    ///
    /// # Errors
    /// The errors of [`Endpoint::key_by_number`].
    pub fn key_by_number(&self, number: u64) -> Result<DrivenKeyLookup, PostError> {
        self.look_up(|endpoint| endpoint.key_by_number(number))
    }

    fn look_up(
        &self,
        look_up: impl FnOnce(&Endpoint) -> Result<KeyLookup, PostError>,
    ) -> Result<DrivenKeyLookup, PostError> {
        let held = self.enter()?;
        Ok(match look_up(&held)? {
            KeyLookup::Known(key) => DrivenKeyLookup::Known(DrivenKey {
                inner: Arc::new(Belonging::new(&held.entered, key)),
            }),
            KeyLookup::Asked(asked) => {
                DrivenKeyLookup::Asked(DrivenOutcome::new(&held.entered, asked))
            }
        })
    }

    /// Returns the length of the longest message that is sent eagerly, as [`Endpoint::max_message`] does.
    ///
    /// # Errors
    /// The errors of [`Endpoint::max_message`].
    pub fn max_message(&self) -> Result<usize, PostError> {
        self.enter()?.max_message()
    }

    /// Returns the number of the endpoint; see [`Endpoint::id`].
    ///
    /// # Errors
    /// `Invalid` in a forked child.
    pub fn id(&self) -> Result<EndpointId, Error> {
        Ok(self.inner.enter()?.id())
    }

    /// Returns the peer; see [`Endpoint::peer`].
    ///
    /// # Errors
    /// `Invalid` in a forked child.
    pub fn peer(&self) -> Result<PeerId, Error> {
        Ok(self.inner.enter()?.peer())
    }

    /// Returns the reason why this endpoint has ended; see [`Endpoint::error`].
    #[must_use]
    pub fn error(&self) -> Option<ConnectError> {
        match self.inner.enter() {
            Ok(endpoint) => endpoint.error(),
            Err(error) => Some(error.into()),
        }
    }

    /// Returns the composition for this peer in one line; see [`Endpoint::path`].
    ///
    /// # Errors
    /// `Invalid` in a forked child.
    pub fn path(&self) -> Result<String, Error> {
        Ok(self.inner.enter()?.path())
    }
}

impl DrivenKey {
    /// Returns the length of the region in bytes.
    ///
    /// # Errors
    /// `Invalid` in a forked child.
    pub fn region_len(&self) -> Result<u64, Error> {
        Ok(self.inner.enter()?.len())
    }

    /// Returns the module that reaches the memory; see [`RemoteKey::path`].
    ///
    /// # Errors
    /// `Invalid` in a forked child.
    pub fn path(&self) -> Result<String, Error> {
        Ok(self.inner.enter()?.path())
    }
}

impl fmt::Debug for DrivenEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.inner.enter() {
            Ok(endpoint) => write!(f, "Driven{:?}", *endpoint),
            Err(error) => write!(f, "DrivenEndpoint({error})"),
        }
    }
}

impl fmt::Debug for DrivenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DrivenKey")
    }
}
