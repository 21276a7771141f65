//! Limits, counters and state of endpoints and keys.

use super::counters::EndpointCounters;
use super::{Endpoint, EndpointState, RemoteKey};
use crate::PostError;
use crate::live::EndpointStatus;

/// The limits of an endpoint, in bytes unless stated otherwise. The ordering rules are the same over every transport; see
/// docs/ordering.md.
///
/// ```
/// # fn main() -> Result<(), tieline::Error> {
/// # let context = tieline::Context::builder().set("TIELINE_PROVIDERS", "shm").open()?;
/// # let worker = context.worker()?;
/// # let endpoint = worker.connect(&worker.address()?)?;
/// let limits = endpoint.limits()?;
/// assert!(limits.max_short <= limits.max_message);
/// println!("{} bytes at once, {} operations pending", limits.max_message, limits.max_pending);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointLimits {
    /// The longest eager message, [`Endpoint::max_message`]. Longer messages are rendezvous messages.
    pub max_message: usize,
    /// The length up to which an eager message is the faster one, [`Endpoint::eager_limit`].
    pub eager_limit: usize,
    /// The longest inline message: the transport copies it within the call.
    pub max_short: usize,
    /// The longest message that [`Endpoint::send_regions`] reads in place; 0: none. Longer eager messages, and those of more pieces
    /// than the module accepts, are copied into one buffer.
    pub max_gathered: usize,
    /// The maximum number of pending operations (`TIELINE_QUEUE_BYTES` / 64). A call that would exceed this number returns `Again`.
    pub max_pending: usize,
    /// The maximum number of bytes that pending operations occupy: their copies, and 64 bytes for each (`TIELINE_QUEUE_BYTES`). A
    /// call that would exceed this number returns `Again`, unless no operation is pending.
    pub max_queued_bytes: usize,
}

/// The limits of one operation on the lane of a key. Larger operations are not refused: they are split into several that complete
/// together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyLimits {
    /// Whether a module that reaches the memory executes puts and gets. If `false`, messages emulate them, and all fields below are
    /// 0.
    pub native: bool,
    /// The longest put, in bytes; `usize::MAX` if the module has no limit.
    pub max_put: usize,
    /// The longest get, in bytes.
    pub max_get: usize,
    /// The maximum number of pieces of local memory ([`Endpoint::put_pieces`]).
    pub max_pieces: usize,
}

/// The length up to which two copies, into the message lane and out of it, take less time than a rendezvous with one copy.
const TWO_COPIES: usize = 8 << 10;

impl Endpoint {
    /// Returns the length up to which an eager message is the faster one, if the receiver copies its payload to a place of its own.
    /// A longer message is faster with [`SendOptions::rendezvous`](super::SendOptions::rendezvous). This is
    /// [`Endpoint::max_message`], unless a module reads the peer's memory within a call, as on the same host.
    ///
    /// # Errors
    /// The errors of [`Endpoint::max_message`].
    pub fn eager_limit(&self) -> Result<usize, PostError> {
        let most = self.max_message()?;
        let reads = self.inner.reads_at_once();
        Ok(if reads { most.min(TWO_COPIES) } else { most })
    }
}

impl EndpointState {
    #[cold]
    pub(super) fn count(&self, count: impl FnOnce(&mut EndpointCounters)) {
        let mut counters = self.counters.get();
        count(&mut counters);
        self.counters.set(counters);
    }

    /// Counts the refusal of a call, and returns its error. A call passes its error through this function at most once, so that no
    /// `Again` is counted twice.
    #[cold]
    #[inline(never)]
    pub(super) fn refused<E: Into<PostError>>(&self, error: E) -> PostError {
        let error = error.into();
        if matches!(error, PostError::Retry(_)) {
            self.count(|counters| counters.refused += 1);
        }
        error
    }
}

impl Endpoint {
    /// Returns the limits of this endpoint. Like [`Endpoint::max_message`], the call opens the message lane. The values may change
    /// until the connection is established.
    ///
    /// # Errors
    /// [`PostError::Reconnect`] if the endpoint has ended, or no connection can be established.
    pub fn limits(&self) -> Result<EndpointLimits, PostError> {
        let ep = &*self.inner;
        let max_message = self.max_message()?;
        Ok(EndpointLimits {
            max_message,
            eager_limit: self.eager_limit()?,
            max_short: ep.message.max_short(),
            max_gathered: ep.message.max_gathered(),
            max_pending: ep.most_operations(),
            max_queued_bytes: ep.shared.core.queue_bytes,
        })
    }

    /// Returns the endpoint's counters since it was opened. All clones share the counters.
    #[must_use]
    pub fn counters(&self) -> EndpointCounters {
        self.inner.counters.get()
    }

    /// Returns the endpoint's state: lanes, queue, and the reason why its oldest operation waits, as in
    /// [`Worker::status`](crate::Worker::status). The duration in `waits` is 0, because this method does not know it. In a forked
    /// child the result is empty.
    #[must_use]
    pub fn status(&self) -> EndpointStatus {
        if !self.inner.shared.same_process() {
            return EndpointStatus::default();
        }
        let (mut status, _) = self.inner.status();
        if let Some(waits) = &mut status.waits {
            waits.ms = 0;
        }
        status
    }
}

impl RemoteKey {
    /// Returns the limits of the lane that puts and gets with this key use at present. [`RemoteKey::path`] and
    /// [`RemoteKey::is_settling`] report whether the lane may change.
    ///
    /// # Errors
    /// The endpoint's error if it has ended.
    pub fn limits(&self) -> Result<KeyLimits, PostError> {
        let key = &*self.inner;
        key.endpoint.check_alive()?;
        key.resolve();
        let none = KeyLimits { native: false, max_put: 0, max_get: 0, max_pieces: 0 };
        Ok(key.best.get().map_or(none, |native| KeyLimits {
            native: true,
            max_put: native.most(true),
            max_get: native.most(false),
            max_pieces: native.max_iov,
        }))
    }
}
