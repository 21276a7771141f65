//! What a program can ask of an endpoint and of a key: limits, counters, state.

use super::counters::EndpointCounters;
use super::{Endpoint, Inner, RemoteKey};
use crate::PostError;
use crate::live::{EndpointStatus, Waits};

/// What an endpoint carries, in bytes where nothing else is said. What is ordered with what is the same over every transport, and in
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
    /// The longest message that is carried at once ("eager"), [`Endpoint::max_message`]; longer ones are announced.
    pub max_message: usize,
    /// The longest one that the transport copies within the call ("inline").
    pub max_short: usize,
    /// The longest one that [`Endpoint::send_regions`] has taken from where its pieces lie; longer ones that are not announced are
    /// copied together. 0: all are.
    pub max_gathered: usize,
    /// Operations that may be pending at a time; behind these every call says `Again`. (`TIELINE_QUEUE_BYTES`)
    pub max_pending: usize,
    /// Bytes of pending operations, copies and their own records, above which a call says `Again`. One that has nothing pending takes an
    /// operation of any size. (`TIELINE_QUEUE_BYTES`)
    pub max_queued_bytes: usize,
}

/// What the lane of a key does in one operation. What is more is cut into several, which end as one: nothing is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyLimits {
    /// Puts and gets are done by a module that reaches the memory; otherwise by messages, and all below is 0.
    pub native: bool,
    /// The longest put, in bytes; `usize::MAX` where the module has no limit.
    pub max_put: usize,
    /// The longest get.
    pub max_get: usize,
    /// Pieces of local memory ([`Endpoint::put_pieces`]).
    pub max_pieces: usize,
}

impl Inner {
    #[cold]
    pub(super) fn count(&self, count: impl FnOnce(&mut EndpointCounters)) {
        let mut counters = self.counters.get();
        count(&mut counters);
        self.counters.set(counters);
    }

    /// What a call that did nothing tells its caller: each call comes by here once, so `Again` is counted here.
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
    /// What it carries. As [`Endpoint::max_message`], it opens the message lane, and may be less later where that lane is given up
    /// before the first message was sent.
    ///
    /// # Errors
    /// [`PostError::Reconnect`] when the endpoint has ended, or no connection comes about.
    pub fn limits(&self) -> Result<EndpointLimits, PostError> {
        let ep = &*self.inner;
        let max_message = self.max_message()?;
        Ok(EndpointLimits {
            max_message,
            max_short: ep.max_short.get(),
            max_gathered: ep.max_zcopy.get(),
            max_pending: ep.most_operations(),
            max_queued_bytes: ep.shared.core.queue_bytes,
        })
    }

    /// What it has counted since it was opened. All clones count as one.
    #[must_use]
    pub fn counters(&self) -> EndpointCounters {
        self.inner.counters.get()
    }

    /// Its state, lanes, queue, and what it waits for, as [`Worker::status`](crate::Worker::status) has it of every endpoint; of
    /// `waits` for how long is not known here, and 0. In a forked child there is nothing.
    #[must_use]
    pub fn status(&self) -> EndpointStatus {
        if !self.inner.shared.same_process() {
            return EndpointStatus::default();
        }
        let (mut status, _) = self.inner.status();
        status.waits = status.waits.map(|waits| Waits { ms: 0, ..waits });
        status
    }
}

impl RemoteKey {
    /// What the lane that puts and gets take now does in one operation: see [`RemoteKey::path`] and
    /// [`RemoteKey::is_settling`] for what may still change.
    ///
    /// # Errors
    /// The endpoint's, when it has ended.
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
