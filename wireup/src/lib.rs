//! Wire-up: the protocol by which two workers form one connection for a module that connects to an endpoint.
//!
//! Both sides create an endpoint, exchange its address, bind, and learn that the other side has bound. There
//! is no client and no server: if both request a connection simultaneously, the requests cross and form one connection.
//!
//! [`Machine`] is pure. The caller passes it events (`connect`, `created`, `bound`, `receive`, `tick`, ...) with the time in
//! nanoseconds, and takes [`Action`]s out after every call. The machine reads no clock, sends nothing and draws no random numbers,
//! so a test can run it through every order of a bounded number of events, as `tests/explore.rs` does. [`wire`] reads and writes
//! the fields of these messages, and of other messages and records of the workspace.
//!
//! `docs/wireup.md` contains the diagram, the table and the bytes of the protocol.

mod machine;
mod message;
mod receive;
mod record;
mod tables;
#[cfg(test)]
mod tests;
mod transitions;
pub mod wire;

pub use machine::Machine;
pub use message::{MAX_IDENTITY, Malformed, Spoken, cut, spoken};

use std::fmt;

/// The identity of a worker: 16 bytes that no other worker has.
pub type WorkerId = [u8; 16];

/// The name of one connection of this worker: the peer, the module on both sides, and a number.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionKey {
    /// The worker at the other end.
    pub peer: WorkerId,
    /// The module on both sides, by a common name.
    pub module: Box<str>,
    /// The number of the connection, starting at 1. Both sides count their connections over this module together, so that a number
    /// identifies the same connection on both sides.
    pub n: u32,
}

impl fmt::Display for ConnectionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {} over {} to worker {}", self.n, self.module, short(&self.peer))
    }
}

/// Returns the first bytes of a worker's id as text, for messages.
pub fn short(id: &WorkerId) -> String {
    id[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bounds of a [`Machine`] in time and memory. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The time from a message to its first retransmission, in nanoseconds. The wait doubles with each further retransmission, up
    /// to `last_retry`.
    pub first_retry: u64,
    /// The longest wait between two retransmissions, in nanoseconds.
    pub last_retry: u64,
    /// The time from the beginning of a connection until it fails if it is not ready, in nanoseconds.
    pub deadline: u64,
    /// The maximum number of connections at a time, in any phase.
    pub max_connections: usize,
    /// The maximum number of early connections of one peer: connections that the peer began and that are neither claimed on this
    /// side nor ready.
    pub max_unfinished_per_peer: usize,
    /// The maximum number of early connections of all peers together.
    pub max_early: usize,
    /// The maximum number of times that one connection may continue under a new number because the peer has ended the previous
    /// number.
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
    /// A request to make an endpoint for a connection that the peer began, and then to call [`Machine::created`] or
    /// [`Machine::refused`].
    Create {
        /// The name of the connection.
        key: ConnectionKey,
        /// The identity bytes that the peer sent, for example its address; see [`Machine::new`].
        identity: Vec<u8>,
    },
    /// A request to connect the local endpoint to the peer's endpoint address, and then to call [`Machine::bound`].
    Bind {
        /// The name of the connection.
        key: ConnectionKey,
        /// The peer's endpoint address.
        address: Vec<u8>,
    },
    /// The report that the peer has bound as well, so that data may be sent.
    Ready {
        /// The name of the connection.
        key: ConnectionKey,
    },
    /// The report that a claimed connection continues under another number, because the peer had ended `from` before it was ready,
    /// or has restarted. The caller drops the endpoint of `from`, and then handles `to` as a result of [`Machine::connect`].
    Renumbered {
        /// The connection that has ended.
        from: ConnectionKey,
        /// The connection that replaces `from`.
        to: Claim,
    },
    /// The report that the connection cannot be formed, or that its peer has restarted; the machine has removed its state. The
    /// caller drops the endpoint.
    Failed {
        /// The connection that has failed.
        key: ConnectionKey,
        /// The reason, as a kind and as text.
        reason: Reason,
    },
    /// A request to send a datagram for this connection. The caller executes it before it discards the address of the peer of
    /// `key`: the last message of a connection precedes `Failed`, or follows `close`.
    Send {
        /// The connection, whose state may already be removed.
        key: ConnectionKey,
        /// The bytes of the datagram.
        datagram: Vec<u8>,
    },
    /// A request to send a datagram to a worker for which the machine keeps no state.
    Answer {
        /// The identity bytes of the message that the datagram answers.
        identity: Vec<u8>,
        /// The bytes of the datagram.
        datagram: Vec<u8>,
    },
}

/// The result of [`Machine::connect`]: the connection that the caller now has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Claim {
    /// A connection that the peer had begun, or whose claim this side has released. Its phase is available by [`Machine::phase`].
    /// If the connection needs an endpoint, there was or will be an [`Action::Create`] for it.
    Existing(ConnectionKey),
    /// A new connection: make an endpoint, then call [`Machine::created`] or [`Machine::not_created`].
    New(ConnectionKey),
}

impl Claim {
    /// Returns the name of the connection in either case.
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
    /// This side has sent its endpoint's address; the peer's address is not known.
    Asked,
    /// The caller is connecting the endpoint to the peer's endpoint.
    Binding,
    /// The endpoint is connected on this side; it is not known whether the peer has connected its own.
    Bound,
    /// Both sides have connected their endpoints.
    Ready,
}

/// The reason why a connection was not formed, or why a call was refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reason {
    /// The kind of reason, for programs.
    pub kind: ReasonKind,
    /// The text for users: the event and its reason.
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
    /// The peer could not create or connect its endpoint, or does not accept the connection's number.
    Rejected,
    /// A limit of this side or of the peer is reached.
    Busy,
    /// The peer ended the connection, or restarted.
    Closed,
    /// Another worker uses the peer's address.
    NoSuchWorker,
    /// The peer uses another version of this protocol.
    Version,
    /// The peer is unreachable.
    Transport,
    /// The peer knows a later epoch of this worker.
    Outlived,
    /// The local endpoint could not be made or connected.
    Local,
    /// The two workers are the same, and a worker does not connect to itself by wire-up.
    Itself,
}

/// The counts of events since the machine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireupCounters {
    /// The number of received requests, including duplicates.
    pub requests: u64,
    /// The number of messages that were repeated because no answer arrived.
    pub retransmissions: u64,
    /// The number of messages without new information.
    pub duplicates: u64,
    /// The number of messages that do not apply, for example of another epoch, or of a connection that has ended.
    pub stale: u64,
    /// The number of malformed messages.
    pub malformed: u64,
    /// The number of rejections sent.
    pub rejected: u64,
    /// The number of rejections sent because a limit was reached.
    pub busy: u64,
    /// The number of connections that the peer began before this side requested one.
    pub early: u64,
    /// The number of connections that continued under another number.
    pub renumbered: u64,
    /// The number of connections that became ready.
    pub ready: u64,
    /// The number of connections that failed.
    pub failed: u64,
}
