//! Wire-up: how two workers form one connection for a module that connects to an endpoint.
//!
//! Both sides create an endpoint, exchange its address, bind, and learn that the other side has bound. There
//! is no client and no server: if both request a connection simultaneously, the requests cross and form one connection.
//!
//! [`Machine`] is pure. The caller passes it events (`connect`, `created`, `bound`, `receive`, `tick`, ...) with
//! the time in nanoseconds, and takes [`Action`]s out after every call. It reads no clock, sends nothing and
//! draws no random numbers, so a test can run it through every order of events; `tests/explore.rs` does that.
//! [`service`] is a separate name space: client/server services over an existing channel.
//! [`wire`] reads and writes the fields of these messages, and of the core's own.
//!
//! `docs/wireup.md` has the diagram, the table and the bytes.

mod machine;
mod message;
mod receive;
mod record;
pub mod service;
mod tables;
#[cfg(test)]
mod tests;
mod transitions;
pub mod wire;

pub use machine::Machine;
pub use message::{MAX_IDENTITY, Malformed, Spoken, spoken};

use std::fmt;

/// The identity of a worker: 16 bytes that no other worker has.
pub type WorkerId = [u8; 16];

/// The name of one connection of this worker: the peer, the module on both sides, and a number.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionKey {
    /// The worker at the other end.
    pub peer: WorkerId,
    /// The module on both sides, by a name that both sides use.
    pub module: Box<str>,
    /// The number of the connection, starting at 1. Both sides share the count of their connections over this module, so that a
    /// number names the same connection on both sides.
    pub n: u32,
}

impl fmt::Display for ConnectionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {} over {} to worker {}", self.n, self.module, short(&self.peer))
    }
}

/// The first bytes of a worker's id, for messages.
fn short(id: &WorkerId) -> String {
    id[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bounds of a [`Machine`] in time and memory. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Nanoseconds from a message to its first retransmission. The wait doubles with each further one.
    pub first_retry: u64,
    /// The longest wait between two retransmissions, in nanoseconds.
    pub last_retry: u64,
    /// Nanoseconds from the beginning of a connection until it fails, unless it is ready by then.
    pub deadline: u64,
    /// The most connections at a time, in any phase.
    pub max_connections: usize,
    /// The most early connections of one peer: those that it began, that are not claimed here and not ready.
    pub max_unfinished_per_peer: usize,
    /// The most early connections of all peers together.
    pub max_early: usize,
    /// How often one connection may continue under a new number because the peer has ended the previous number.
    pub max_renumbered: u8,
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

/// A step that the [`Machine`] requests from its caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The peer began this connection: make an endpoint, then call [`Machine::created`] or
    /// [`Machine::refused`].
    Create {
        /// The connection.
        key: ConnectionKey,
        /// The identity bytes that the peer sent, for example its address; see [`Machine::new`].
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
    /// A claimed connection continues under another number, because the peer had ended `from` before it was ready.
    /// Drop the endpoint of `from`; then treat `to` as a result of [`Machine::connect`].
    Renumbered {
        /// The connection that is gone.
        from: ConnectionKey,
        /// The one that replaces it.
        to: Claim,
    },
    /// The connection cannot be formed, or its peer has restarted; its state is gone. Drop the endpoint.
    Failed {
        /// The connection that is gone.
        key: ConnectionKey,
        /// The reason, for programs and in words.
        reason: Reason,
    },
    /// Send a datagram for this connection. Take it before you discard the address of the peer of `key`: the last
    /// message of a connection comes directly before `Failed` or after `close`.
    Send {
        /// The connection, which may be gone already.
        key: ConnectionKey,
        /// The bytes.
        datagram: Vec<u8>,
    },
    /// Send a datagram to a worker for which the machine keeps no state.
    Answer {
        /// The identity bytes of the message that this answers.
        identity: Vec<u8>,
        /// The bytes.
        datagram: Vec<u8>,
    },
}

/// The result of [`Machine::connect`]: the connection that the caller now has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Claim {
    /// A connection that the peer had begun, or that this side has unclaimed. Its phase tells its progress. If it
    /// needs an endpoint, there was or will be an [`Action::Create`] for it.
    Existing(ConnectionKey),
    /// A new connection: make an endpoint, then call [`Machine::created`] or [`Machine::not_created`].
    New(ConnectionKey),
}

impl Claim {
    /// The name of the connection in either case.
    pub fn key(&self) -> &ConnectionKey {
        match self {
            Claim::Existing(key) | Claim::New(key) => key,
        }
    }
}

/// The progress of a connection. The phases follow each other in this order; `Asked` may be skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// The caller is making the endpoint.
    Making,
    /// This side has sent its endpoint's address; the peer's is not known.
    Asked,
    /// The caller is connecting the endpoint to the peer's.
    Binding,
    /// Connected locally; it is not known whether the peer has connected its endpoint.
    Bound,
    /// Connected on both sides.
    Ready,
}

/// The reason why a connection was not formed, or why a call was refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reason {
    /// The kind, for programs.
    pub kind: ReasonKind,
    /// The text for people: the event and its reason.
    pub text: String,
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
pub enum ReasonKind {
    /// The deadline has passed.
    TimedOut,
    /// The peer could not create or connect its endpoint.
    Rejected,
    /// A limit of this side or of the peer is reached.
    Busy,
    /// The peer ended it, or restarted.
    Closed,
    /// Another worker uses the peer's address.
    NoSuchWorker,
    /// The peer uses another version of this protocol.
    Version,
    /// The peer is unreachable.
    Transport,
    /// The peer knows a later life of this worker.
    Outlived,
    /// The local endpoint could not be made or connected.
    Local,
    /// A worker does not connect to itself this way.
    Itself,
}

/// Counts of events since the machine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireupCounters {
    /// Requests that came in, including duplicates.
    pub requests: u64,
    /// Messages that were repeated because no answer came.
    pub retransmissions: u64,
    /// Messages without new information.
    pub duplicates: u64,
    /// Messages of another life, or of a connection that has ended.
    pub stale: u64,
    /// Malformed messages.
    pub malformed: u64,
    /// Rejections sent.
    pub rejected: u64,
    /// Rejections sent because a limit was reached.
    pub busy: u64,
    /// Connections that the peer began before this side wanted one.
    pub early: u64,
    /// Connections that continued under another number.
    pub renumbered: u64,
    /// Connections that became ready.
    pub ready: u64,
    /// Connections that failed.
    pub failed: u64,
}
