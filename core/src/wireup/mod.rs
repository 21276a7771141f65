//! Wire-up: how two workers come to one connection for a module that connects to an endpoint.
//!
//! Both sides create an endpoint, tell each other its address, bind, and learn that the other has bound. There
//! is no client and no server: when both ask at once, the requests cross and form one connection.
//!
//! [`Machine`] is pure. The caller hands it events (`connect`, `created`, `bound`, `receive`, `tick`, ...) with
//! the time in nanoseconds, and takes [`Action`]s out after every call. It reads no clock, sends nothing and
//! draws no random numbers, so a test can take it through every order of events; `tests/explore.rs` does.
//! [`service`] is the other name space: client/server services over a channel that exists already.
//!
//! The picture, the table and the bytes are in `docs/wireup.md`.

mod machine;
mod message;
mod receive;
mod record;
pub(crate) mod service;
mod tables;
#[cfg(test)]
mod tests;
mod transitions;

pub(crate) use machine::Machine;
#[cfg(test)]
pub(crate) use message::{Body, Header, encode};
pub(crate) use message::{MAX_IDENTITY, Malformed, Spoken, spoken};

use std::fmt;

/// Who a worker is: 16 bytes that nobody else has.
pub(crate) type WorkerId = [u8; 16];

/// One connection of this worker: with whom, between which modules, and the how-many-th (from 1).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ConnectionKey {
    /// The worker at the other end.
    pub(crate) peer: WorkerId,
    /// The module on both sides, by a name that both sides use.
    pub(crate) module: Box<str>,
    /// Both sides count the connections between them together, so that they name the same one.
    pub(crate) n: u32,
}

impl fmt::Display for ConnectionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {} over {} to worker {}", self.n, self.module, short(&self.peer))
    }
}

/// The first bytes of a worker's id, for words.
fn short(id: &WorkerId) -> String {
    id[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What bounds time and memory.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Nanoseconds until the first retransmission; each further one waits twice as long,
    pub(crate) first_retry: u64,
    /// but never longer than this.
    pub(crate) last_retry: u64,
    /// Nanoseconds from the beginning of a connection until it has failed, if it is not ready.
    pub(crate) deadline: u64,
    /// Connections in any phase.
    pub(crate) max_connections: usize,
    /// Connections that one peer began, that nobody here claimed and that are not ready.
    pub(crate) max_unfinished_per_peer: usize,
    /// The same, of all peers together.
    pub(crate) max_early: usize,
    /// How often a connection goes on under a new number because the peer had ended the one before.
    pub(crate) max_renumbered: u8,
}

impl Default for Limits {
    fn default() -> Limits {
        const MS: u64 = 1_000_000;
        Limits {
            first_retry: 50 * MS,
            last_retry: 2_000 * MS,
            deadline: 30_000 * MS,
            max_connections: 1 << 17,
            max_unfinished_per_peer: 1024,
            max_early: 4096,
            max_renumbered: 8,
        }
    }
}

/// What the caller does next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// The peer began this connection: make an endpoint, then call [`Machine::created`] or
    /// [`Machine::refused`].
    Create {
        /// The connection.
        key: ConnectionKey,
        /// What the peer gave of itself.
        identity: Vec<u8>,
    },
    /// Connect the local endpoint to the peer's endpoint address, then call [`Machine::bound`].
    Bind {
        /// The connection.
        key: ConnectionKey,
        /// The peer's endpoint address.
        address: Vec<u8>,
    },
    /// The peer has bound as well: data may flow.
    Ready {
        /// The connection.
        key: ConnectionKey,
    },
    /// What was wanted of `from` goes on as `to`, because the peer had ended `from` before it was ready. Drop
    /// the endpoint of `from`; then treat `to` as an answer of [`Machine::connect`].
    Renumbered {
        /// The connection that is gone.
        from: ConnectionKey,
        /// The one that takes its place.
        to: Claim,
    },
    /// It will not come to be, or its peer has restarted; the state is gone. Drop the endpoint.
    Failed {
        /// The connection that is gone.
        key: ConnectionKey,
        /// Why.
        reason: Reason,
    },
    /// Send a datagram for this connection. Take it before forgetting where the peer of `key` is: the last
    /// words of a connection come right before `Failed` or after `close`.
    Send {
        /// The connection, which may be gone already.
        key: ConnectionKey,
        /// The bytes.
        datagram: Vec<u8>,
    },
    /// Send a datagram to somebody of whom no state is kept.
    Answer {
        /// What came in its message.
        identity: Vec<u8>,
        /// The bytes.
        datagram: Vec<u8>,
    },
}

/// What [`Machine::connect`] found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Claim {
    /// The peer had begun it (or somebody here let go of it). Its phase says how far it is; `Create` was or
    /// will be said if an endpoint is needed.
    Existing(ConnectionKey),
    /// A new one: make an endpoint, then call [`Machine::created`] or [`Machine::not_created`].
    New(ConnectionKey),
}

impl Claim {
    /// The connection, either way.
    pub(crate) fn key(&self) -> &ConnectionKey {
        match self {
            Claim::Existing(key) | Claim::New(key) => key,
        }
    }
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// The caller is making the endpoint.
    Making,
    /// Our address is told; the peer's is not known.
    Asked,
    /// The caller is connecting the endpoint.
    Binding,
    /// Connected here; not known of the peer.
    Bound,
    /// Connected on both sides.
    Ready,
}

/// Why a connection is not.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reason {
    /// For programs.
    pub(crate) kind: ReasonKind,
    /// For people: what happened, and why.
    pub(crate) text: String,
}

impl Reason {
    fn new(kind: ReasonKind, text: impl Into<String>) -> Reason {
        Reason { kind, text: text.into() }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The kinds of [`Reason`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ReasonKind {
    /// The deadline passed.
    TimedOut,
    /// The peer could not create or connect its endpoint.
    Rejected,
    /// A limit of this side or of the peer.
    Busy,
    /// The peer ended it, or restarted.
    Closed,
    /// Another worker lives at the peer's address.
    NoSuchWorker,
    /// The peer speaks another version of this protocol.
    Version,
    /// There is no way to the peer.
    Transport,
    /// The peer knows a later life of this worker.
    Outlived,
    /// The local endpoint could not be made or connected.
    Local,
    /// A worker does not connect to itself this way.
    Itself,
}

/// How often what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WireupCounters {
    /// Requests that came in, duplicates too.
    pub(crate) requests: u64,
    /// Messages sent again because no answer came.
    pub(crate) retransmissions: u64,
    /// Messages that said what was known.
    pub(crate) duplicates: u64,
    /// Messages of another life or of a connection that is gone.
    pub(crate) stale: u64,
    /// Byte strings that are no messages.
    pub(crate) malformed: u64,
    /// Rejections sent.
    pub(crate) rejected: u64,
    /// Of those, because a limit was reached.
    pub(crate) busy: u64,
    /// Connections that the peer began before this side wanted one.
    pub(crate) early: u64,
    /// Connections that went on under another number.
    pub(crate) renumbered: u64,
    /// Connections that became ready.
    pub(crate) ready: u64,
    /// Connections that failed.
    pub(crate) failed: u64,
}
