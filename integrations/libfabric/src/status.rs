//! libfabric's error numbers for Tieline's errors.

use tieline::{CompletionError, ConnectError, Error, OpenError, PostError, Status};
use tieline_libfabric_abi::*;

/// Returns the error number for a status.
pub(crate) fn number(status: Status) -> i32 {
    use Status::*;
    match status {
        Again => FI_EAGAIN,
        NoMemory => FI_ENOMEM,
        NoDevice => FI_ENODEV,
        Permission => FI_EACCES,
        PeerFailed | Closed | ProviderFailed => FI_ENOTCONN,
        Unreachable => FI_EHOSTUNREACH,
        KeyRejected => FI_EKEYREJECTED,
        Invalid | OutOfRange | Misaligned | UnsupportedParam => FI_EINVAL,
        TooLarge => FI_EMSGSIZE,
        TimedOut => FI_ETIMEDOUT,
        Unsupported => FI_EOPNOTSUPP,
        Busy => FI_EBUSY,
        Canceled => FI_ECANCELED,
        Io => FI_EIO,
        _ => FI_EOTHER,
    }
}

/// The failure of an operation, as an entry of a completion queue reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    /// libfabric's error number.
    pub(crate) error: i32,
    /// Tieline's status, as the provider's own error number.
    pub(crate) status: i32,
}

impl Failed {
    pub(crate) fn new(error: i32) -> Failed {
        Failed { error, status: 0 }
    }

    /// The remote address is outside the memory of the key.
    pub(crate) const OUTSIDE: Failed =
        Failed { error: FI_EINVAL, status: Status::OutOfRange as i32 };

    /// Checks whether an outdated key may be the cause: its number can refer to other memory by now, of another length or alignment.
    pub(crate) fn may_have_old_key(&self) -> bool {
        let causes = [Status::KeyRejected, Status::OutOfRange, Status::Misaligned];
        causes.iter().any(|cause| *cause as i32 == self.status)
    }

    /// The peer has ended.
    pub(crate) const PEER: Failed =
        Failed { error: FI_ENOTCONN, status: Status::PeerFailed as i32 };
}

impl From<&Error> for Failed {
    fn from(error: &Error) -> Failed {
        Failed { error: number(error.status()), status: error.status() as i32 }
    }
}

impl From<CompletionError> for Failed {
    fn from(error: CompletionError) -> Failed {
        let mut failed = Failed::from(&*error);
        // An operation whose connection has ended did not succeed, whatever the reason.
        if matches!(error, CompletionError::Unknown(_)) && failed.error == FI_EINVAL {
            failed.error = FI_ENOTCONN;
        }
        failed
    }
}

impl From<ConnectError> for Failed {
    fn from(error: ConnectError) -> Failed {
        let error = number(error.status());
        // An address that leads nowhere must not look like a call that can be repeated.
        Failed { error: if error == FI_EAGAIN { FI_EHOSTUNREACH } else { error }, status: 0 }
    }
}

impl From<PostError> for Failed {
    fn from(error: PostError) -> Failed {
        match error {
            PostError::Retry(_) => Failed::new(FI_EAGAIN),
            PostError::Reconnect(error) => {
                let failed = Failed::from(error);
                Failed {
                    error: if failed.error == FI_EINVAL { FI_ENOTCONN } else { failed.error },
                    ..failed
                }
            }
            PostError::Correct(error) | PostError::Release(error) => Failed::from(&error),
        }
    }
}

impl From<OpenError> for Failed {
    fn from(error: OpenError) -> Failed {
        let number = number(error.status());
        Failed {
            error: if number == FI_EAGAIN { FI_ENOMEM } else { number },
            status: error.status() as i32,
        }
    }
}

/// Returns the meaning of the provider's error number.
pub(crate) fn text(status: i32) -> &'static str {
    const KNOWN: &[Status] = &[
        Status::Again,
        Status::Unsupported,
        Status::Invalid,
        Status::NoMemory,
        Status::PeerFailed,
        Status::Unreachable,
        Status::KeyRejected,
        Status::OutOfRange,
        Status::TooLarge,
        Status::TimedOut,
        Status::Closed,
        Status::Canceled,
    ];
    KNOWN.iter().find(|known| **known as i32 == status).map_or("another error", |it| it.text())
}
