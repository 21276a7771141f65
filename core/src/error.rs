//! What a failure asks of the caller, as a type for each kind of operation: a `match` on it has to deal with every case, and
//! each case is named for what is to be done, or for what has become of the operation.
//!
//! | fails with | what |
//! |---|---|
//! | [`OpenError`] | opening a context or a worker, allocating and registering memory |
//! | [`ConnectError`] | connecting, to a peer or to its service; how an endpoint ended ([`Endpoint::error`](crate::Endpoint::error)) |
//! | [`PostError`] | everything that is posted on an endpoint, and importing a key |
//! | [`CompletionError`] | what was posted, asked for by `finish`, `test` and `flush` of its worker |
//! | [`Error`] | all else, where there is nothing to choose: the caller's own mistake, or the words are for a person |
//!
//! A wait whose time is up is no error: `wait_until` returns `false`, and `wait` returns [`Waited::TimeIsUp`](crate::Waited). So
//! `TimedOut` in one of these types always says that something has ended. In C these are two statuses, `TIELINE_TIMED_OUT` and
//! `TIELINE_EXPIRED`.
//!
//! All of them are an [`Error`] with its words (they [`Deref`] to it), and become one again by `?`:
//!
//! ```
//! use tieline::{Endpoint, Outcome, PostError, Worker};
//!
//! /// Sends, with room made where there is none.
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

pub use crate::config::error::{Error, Scope};
pub use crate::config::{Origin, Setting};

use crate::Status;
use std::fmt;
use std::ops::Deref;

/// Why nothing was posted.
///
/// A large put that is written at once, in pieces, may have come to the peer in part, and so may anything when a provider broke
/// in the middle of this very call.
#[derive(Clone, PartialEq, Eq)]
pub enum PostError {
    /// Nothing was done, and the same call may succeed after progress: `Again`.
    Retry(Error),
    /// This call will never succeed as it is: its range, rights, key, length or id is wrong, it was made in a handler or in a
    /// forked child, or what it asks for is not to be had for this memory. The endpoint is as it was. `Invalid`, `KeyRejected`,
    /// `OutOfRange`, `TooLarge`, `Misaligned`, `Unsupported`, `UnsupportedParam`, `Busy`, `Permission` (memory of the target's is
    /// missing or protected).
    Correct(Error),
    /// The endpoint or its worker has ended, or the way broke that this operation had. With any other status, and with any at
    /// all once [`Endpoint::error`](crate::Endpoint::error) says it.
    Reconnect(ConnectError),
    /// A bounded resource of this process ran out: let go of some. `NoMemory`.
    Release(Error),
}

/// How an operation ended that was posted and did not succeed.
#[derive(Clone, PartialEq, Eq)]
pub enum CompletionError {
    /// It was refused, and the same again would be: the target's memory is as it was, but for what was carried out before of a
    /// large put that goes in pieces. The connection stands. `KeyRejected`, `OutOfRange`, `Misaligned`, `TooLarge`,
    /// `Unsupported`, `UnsupportedParam`, `Invalid`, `Permission` (memory of the target's is missing or protected).
    Refused(Error),
    /// The connection or the provider was lost with it: it may have happened, or not, or may happen still. Connect as this says,
    /// and repeat only what may happen twice. Any other status, and any at all of what ended with its connection.
    Unknown(ConnectError),
    /// This process gave it up: by [`Worker::cancel`](crate::Worker::cancel), and nothing of it has happened, or by dropping its endpoint
    /// or closing its worker, and it may have happened. `Canceled`, and `Closed` once the worker is.
    Canceled(Error),
    /// Nothing was looked at: this call could not wait. It was made in a handler, in a forked child or on another worker, or the
    /// system refused. The operation goes on, if it has not ended; a flush waits for it, and tells of its failure.
    Pending(Error),
}

/// Why there is no connection, or none any more, and what it takes to have one.
#[derive(Clone, PartialEq, Eq)]
pub enum ConnectError {
    /// The same may succeed, later perhaps: time ran out, the peer was busy, it closed the connection, or what carried it broke.
    /// `Again`, `TimedOut`, `Io`, `ProviderFailed`, `Canceled`; of an endpoint that has ended also `Busy`,
    /// `Closed`, `KeyRejected`, `OutOfRange`, `Misaligned`.
    Retry(Error),
    /// This call will never succeed: these bytes are no address, nobody has this number, it was made in a handler or in a forked
    /// child, or the worker is closed. `BadData`, `Invalid`, `Closed`, `Busy`, `KeyRejected`, `OutOfRange`, `TooLarge`,
    /// `Misaligned`, `UnsupportedParam`.
    Correct(Error),
    /// The peer is gone, or another one is in its place: exchange addresses again. `PeerFailed`.
    Exchange(Error),
    /// The two sides have no way in common, or do not understand each other: `tieline info --why` on both shows what each has.
    /// `Unreachable`, `Unsupported`, `Permission`, `NoDevice`; of an endpoint that has ended also `BadData`, `Invalid`,
    /// `TooLarge`, `UnsupportedParam`.
    Configure(Error),
    /// A bounded resource of this process ran out: let go of some. `NoMemory`.
    Release(Error),
}

/// Why a context, a worker or memory was not to be had.
#[derive(Clone, PartialEq, Eq)]
pub enum OpenError {
    /// A setting is wrong, which [`ConfigureError::setting`] names, or what this machine has and permits does not do:
    /// `tieline info --why` shows that. Any other status.
    Configure(ConfigureError),
    /// Memory, descriptors or another bounded resource ran out: ask for less, or let go of some. `NoMemory`, `Again`, `Busy`.
    Release(Error),
    /// The context is of no use for this any more: its progress thread has stopped, or this is a forked child. Open a new one.
    /// Any status.
    Reopen(Error),
}

/// What has to be set otherwise, by whoever runs this process.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigureError(Error);

impl ConfigureError {
    /// The setting to blame: its name (empty for a line of a file that is none), its value, and who gave it. `None`: it is no
    /// setting, but what is installed, or permitted.
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

/// Whether a status says that an operation cannot be done as it is.
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

/// What all of them have: the words of the [`Error`] that they are, and the way back to it.
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
