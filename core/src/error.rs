//! Errors by kind of operation. The variants of the enums name the caller's possible reactions or the state of the operation, so
//! that a `match` covers every case.
//!
//! | error | operations that fail with it |
//! |---|---|
//! | [`OpenError`] | opening a context or a worker, allocating and registering memory |
//! | [`ConnectError`] | connecting to a peer or to its service; the reason why an endpoint ended ([`Endpoint::error`](crate::Endpoint::error)) |
//! | [`PostError`] | posting operations, receiving rendezvous messages, canceling, and importing a key |
//! | [`CompletionError`] | the result of a posted operation, from `finish`, `test` and `flush` of its worker |
//! | [`Error`] | everything else: the caller's own mistake, or a text for a person, with no choice for a program |
//!
//! A wait that reaches its deadline is not an error: `wait_until` returns `false`, and `wait` returns
//! [`Waited::TimeIsUp`](crate::Waited). Therefore `TimedOut` in one of these types means that something has ended: an operation, a
//! connection, a request for a service or a name, or the closing of a worker. In C, a wait that reaches its deadline returns
//! `TIELINE_TIMED_OUT`, and the other cases are reported as `TIELINE_EXPIRED`.
//!
//! Each of the enums dereferences to an [`Error`] with its text ([`Deref`]), and `?` converts it back into one:
//!
//! ```
//! use tieline::{Endpoint, Outcome, PostError, Worker};
//!
//! /// Sends a message; makes progress while the queue is full.
//! fn send(worker: &Worker, endpoint: &Endpoint, bytes: &[u8]) -> Result<Outcome, tieline::Error> {
//!     loop {
//!         match endpoint.send(7, 0, bytes) {
//!             Err(PostError::Retry(_)) => worker.wait(None)?,
//!             Err(PostError::Correct(error) | PostError::Release(error)) => return Err(error),
//!             Err(PostError::Reconnect(why)) => return Err(why.into()), // `why` says how
//!             Ok(outcome) => return Ok(outcome),
//!         };
//!     }
//! }
//! ```

pub use tieline_explain::{Error, Origin, Scope, Setting};

use crate::Status;
use std::fmt;
use std::ops::Deref;

/// The reason why an operation was not posted, or another call of an endpoint or worker failed.
///
/// No part of an operation was executed, with three exceptions. First, a large put or get may have moved some of its bytes. Second,
/// if a provider failed during this very call, the operation may have been executed in whole or in part. Third,
/// [`put_strided`](crate::Endpoint::put_strided) and [`get_strided`](crate::Endpoint::get_strided) may have posted some of their
/// blocks, which continue.
#[derive(Clone, PartialEq, Eq)]
pub enum PostError {
    /// The same call may succeed after progress. Status: `Again`.
    Retry(Error),
    /// The call is wrong. The range, rights, key, length or id is wrong, the call was made in a handler or in a forked child, or
    /// the memory does not support the operation. The endpoint is unchanged. Status: `Invalid`, `KeyRejected`, `OutOfRange`,
    /// `TooLarge`, `Misaligned`, `Unsupported`, `UnsupportedParam`, `Busy`, `Permission` (memory of the target is missing or
    /// protected).
    Correct(Error),
    /// The endpoint or its worker has ended, or the route of this operation failed. Status: any that is not listed for another
    /// variant; any status at all once [`Endpoint::error`](crate::Endpoint::error) returns an error.
    Reconnect(ConnectError),
    /// A bounded resource of this process ran out, and the caller has to release some of it. Status: `NoMemory`.
    Release(Error),
}

/// The failure of an operation that had been posted.
#[derive(Clone, PartialEq, Eq)]
pub enum CompletionError {
    /// The operation was refused. The target's memory is unchanged, except for earlier pieces of a large put and other blocks of a
    /// strided put. The connection stays usable. Status: `KeyRejected`, `OutOfRange`, `Misaligned`, `TooLarge`, `Unsupported`,
    /// `UnsupportedParam`, `Invalid`, `Permission` (memory of the target is missing or protected).
    Refused(Error),
    /// The connection or the provider failed together with the operation. The operation may have been executed, may not have been,
    /// or may still be executed later. Reconnect as the [`ConnectError`] says, and repeat only operations that may be executed
    /// twice. Status: any that is not listed for another variant; any status at all if the operation ended with its connection.
    Unknown(ConnectError),
    /// This process abandoned the operation, or the sender of a rendezvous message withdrew it. After
    /// [`Worker::cancel`](crate::Worker::cancel), no part of the operation has been executed. After the operation's endpoint was
    /// dropped or its worker closed, the operation may have been executed. Status: `Canceled`, or `Closed` once the worker is
    /// closed.
    Canceled(Error),
    /// The operation was not examined. The call was made in a handler, in a forked child or on another worker, the operation is
    /// [tracked](crate::Worker::track) or counted, or the system refused to sleep. The operation continues if it has not ended. A
    /// later flush waits for the operation; the flush reports its failure unless it is tracked or counted.
    Pending(Error),
}

/// The reason why a connection cannot be established or has ended, and what the caller can do to reconnect.
#[derive(Clone, PartialEq, Eq)]
pub enum ConnectError {
    /// The same call may succeed, possibly later: the connection timed out, the peer was busy, the peer closed the connection, or
    /// its transport failed. Status: `Again`, `TimedOut`, `Io`, `ProviderFailed`, `Canceled`; for an endpoint that has ended also
    /// `Busy`, `Closed`, `KeyRejected`, `OutOfRange`, `Misaligned`.
    Retry(Error),
    /// The call is wrong: the bytes are not an address, no peer has this number, the call was made in a handler or in a forked
    /// child, or the worker is closed. Status: `BadData`, `Invalid`, `Closed`, `Busy`, `KeyRejected`, `OutOfRange`, `TooLarge`,
    /// `Misaligned`, `UnsupportedParam`.
    Correct(Error),
    /// The connection has ended without having been closed, usually because the peer's process has ended, or another process has the
    /// peer's place: exchange addresses again. Status: `PeerFailed`.
    Exchange(Error),
    /// The two sides have no route in common, or do not understand each other, for example because their versions are incompatible.
    /// `tieline info --why` on both hosts shows the modules of each. Status: `Unreachable`, `Unsupported`, `Permission`,
    /// `NoDevice`; for an endpoint that has ended also `BadData`, `Invalid`, `TooLarge`, `UnsupportedParam`.
    Configure(Error),
    /// A bounded resource of this process ran out, and the caller has to release some of it. Status: `NoMemory`.
    Release(Error),
}

/// The reason why a context or a worker could not be opened, or why memory could not be allocated or registered.
#[derive(Clone, PartialEq, Eq)]
pub enum OpenError {
    /// A setting is wrong ([`ConfigureError::setting`] names it), or this machine lacks a device or permission that the context
    /// needs. `tieline info --why` shows the reasons. Status: any that is not listed for another variant.
    Configure(ConfigureError),
    /// Memory, descriptors or another bounded resource ran out: request less, or release some of it. Status: `NoMemory`, `Again`,
    /// `Busy`.
    Release(Error),
    /// This context cannot open a worker or register memory any more: its progress thread has stopped, or this is a forked child.
    /// Open a new context. Status: any.
    Reopen(Error),
}

/// A configuration error: the person who runs this process has to change a setting or an installation.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigureError(Error);

impl ConfigureError {
    /// Returns the setting that caused the error: its name (empty for a line of a file that is not a setting), its value and its
    /// origin. `None` if the cause is not a setting but an installation or a permission.
    #[must_use]
    pub fn setting(&self) -> Option<(&str, &Setting)> {
        self.0.setting()
    }
}

impl From<Error> for PostError {
    #[cold]
    fn from(error: Error) -> PostError {
        use Status::*;
        match (error.scope(), error.status()) {
            (Scope::Connection | Scope::Worker, _) => PostError::Reconnect(error.into()),
            (Scope::Context, _) => PostError::Correct(error),
            (_, Again) => PostError::Retry(error),
            (_, NoMemory) => PostError::Release(error),
            (_, status) if refuses(status) || status == Busy => PostError::Correct(error),
            _ => PostError::Reconnect(error.of(Scope::Connection).into()),
        }
    }
}

impl From<Status> for PostError {
    #[cold]
    fn from(status: Status) -> PostError {
        Error::from_status(status).into()
    }
}

impl From<Error> for CompletionError {
    #[cold]
    fn from(error: Error) -> CompletionError {
        match (error.scope(), error.status()) {
            (Scope::Worker, _) | (_, Status::Canceled) => CompletionError::Canceled(error),
            (Scope::Context, _) => CompletionError::Pending(error),
            (Scope::Call, status) if refuses(status) => CompletionError::Refused(error),
            _ => CompletionError::Unknown(error.of(Scope::Connection).into()),
        }
    }
}

/// Checks whether a status means that an operation cannot be executed in its present form.
fn refuses(status: Status) -> bool {
    use Status::*;
    matches!(
        status,
        Invalid
            | KeyRejected
            | OutOfRange
            | TooLarge
            | Misaligned
            | Unsupported
            | UnsupportedParam
            | Permission
    )
}

impl From<Error> for ConnectError {
    #[cold]
    fn from(error: Error) -> ConnectError {
        use Status::*;
        let ended = error.scope() == Scope::Connection;
        match error.status() {
            _ if error.scope() > Scope::Connection => ConnectError::Correct(error),
            NoMemory => ConnectError::Release(error),
            PeerFailed => ConnectError::Exchange(error),
            Unreachable | Unsupported | Permission | NoDevice => ConnectError::Configure(error),
            BadData | Invalid | TooLarge | UnsupportedParam if ended => {
                ConnectError::Configure(error)
            }
            BadData | Invalid | TooLarge | UnsupportedParam => ConnectError::Correct(error),
            Busy | Closed | KeyRejected | OutOfRange | Misaligned if !ended => {
                ConnectError::Correct(error)
            }
            _ => ConnectError::Retry(error),
        }
    }
}

impl From<Error> for OpenError {
    #[cold]
    fn from(error: Error) -> OpenError {
        match (error.scope(), error.status()) {
            (Scope::Context, _) => OpenError::Reopen(error),
            _ if error.setting().is_some() => OpenError::Configure(ConfigureError(error)),
            (_, Status::NoMemory | Status::Again | Status::Busy) => OpenError::Release(error),
            _ => OpenError::Configure(ConfigureError(error)),
        }
    }
}

/// Implements the traits of an error type. For an enum, also access to the [`Error`] inside, and the conversion into it.
macro_rules! is_an_error {
    ($name:ident: $($case:ident)|+) => {
        impl Deref for $name {
            type Target = Error;

            fn deref(&self) -> &Error {
                match self { $( $name::$case(error) => error, )+ }
            }
        }

        impl From<$name> for Error {
            fn from(error: $name) -> Error {
                match error { $( $name::$case(error) => error.into(), )+ }
            }
        }

        is_an_error!($name);
    };
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&**self, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&**self, f)
            }
        }

        impl std::error::Error for $name {}
    };
}

is_an_error!(PostError: Retry | Correct | Reconnect | Release);
is_an_error!(CompletionError: Refused | Unknown | Canceled | Pending);
is_an_error!(ConnectError: Retry | Correct | Exchange | Configure | Release);
is_an_error!(OpenError: Configure | Release | Reopen);
is_an_error!(ConfigureError);

impl Deref for ConfigureError {
    type Target = Error;

    fn deref(&self) -> &Error {
        &self.0
    }
}

impl From<ConfigureError> for Error {
    fn from(error: ConfigureError) -> Error {
        error.0
    }
}

#[cfg(test)]
mod tests;
