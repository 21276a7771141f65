//! Errors: what happened, why, and what to do.

use std::fmt;
use tieline_plugin_api::{Failure, Status};

/// Whose doing a failure is, for programs that act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Nothing was done; the same call may succeed after progress.
    Again,
    /// The peer died, left, or sent what makes no sense.
    Peer,
    /// The caller asked for what cannot be: a wrong key, a range outside, a closed object.
    Misuse,
    /// The system refused, or a bounded resource ran out.
    Environment,
    /// A provider broke its contract and is out of use.
    Provider,
}

/// A failure with its three facts. Cheap to make when there is nothing to say beyond the status.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    status: Status,
    facts: Option<Box<Facts>>,
}

#[derive(Clone, PartialEq, Eq)]
struct Facts {
    what: String,
    why: String,
    fix: String,
}

impl Error {
    /// An error with its three facts.
    #[must_use]
    pub fn new(
        status: Status,
        what: impl Into<String>,
        why: impl Into<String>,
        fix: impl Into<String>,
    ) -> Error {
        let facts = Facts { what: what.into(), why: why.into(), fix: fix.into() };
        Error { status, facts: Some(Box::new(facts)) }
    }

    /// The status by itself: its text is the reason.
    #[inline]
    #[must_use]
    pub const fn from_status(status: Status) -> Error {
        Error { status, facts: None }
    }

    /// The status, the same one that crosses the provider ABI.
    #[inline]
    #[must_use]
    pub fn status(&self) -> Status {
        self.status
    }

    /// Whose doing it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.status {
            Status::Again => Kind::Again,
            Status::PeerFailed | Status::Unreachable | Status::BadData | Status::TimedOut => {
                Kind::Peer
            }
            Status::Invalid
            | Status::KeyRejected
            | Status::OutOfRange
            | Status::TooLarge
            | Status::Closed
            | Status::Misaligned
            | Status::Unsupported
            | Status::UnsupportedParam
            | Status::Busy
            | Status::Canceled
            | Status::NotConnected => Kind::Misuse,
            Status::ProviderFailed => Kind::Provider,
            _ => Kind::Environment,
        }
    }

    /// What happened.
    #[must_use]
    pub fn what(&self) -> &str {
        self.facts.as_ref().map_or(self.status.text(), |f| &f.what)
    }

    /// Why; empty when the status says it all.
    #[must_use]
    pub fn why(&self) -> &str {
        self.facts.as_ref().map_or("", |f| &f.why)
    }

    /// What to do; empty when there is nothing to advise.
    #[must_use]
    pub fn fix(&self) -> &str {
        self.facts.as_ref().map_or("", |f| &f.fix)
    }
}

impl From<Status> for Error {
    #[inline]
    fn from(status: Status) -> Error {
        Error::from_status(status)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        if failure.text.is_empty() {
            Error::from_status(failure.status)
        } else {
            Error::new(failure.status, failure.text, failure.status.text(), "")
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what())?;
        if !self.why().is_empty() {
            write!(f, ": {}", self.why())?;
        }
        if !self.fix().is_empty() {
            write!(f, "; {}", self.fix())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error[{:?}]({self})", self.status)
    }
}

impl std::error::Error for Error {}
