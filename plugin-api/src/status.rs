//! Status codes: one table defines the Rust enum, the C constants and the texts.

/// Declares every status once. The macro writes the enum, the conversion from the number that crosses
/// the boundary, the names of the C constants and the one-line meaning.
macro_rules! status_table {
    ($( $(#[$doc:meta])* $name:ident, $constant:ident = $value:literal, $text:literal; )*) => {
        /// The reason why a call failed. A status crosses the boundary as a negative `int32_t`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(i32)]
        #[non_exhaustive]
        pub enum Status { $( $(#[$doc])* $name = $value, )* }

        impl Status {
            /// The list of every status, in the order of the table.
            pub const ALL: &'static [Status] = &[ $( Status::$name, )* ];

            /// Returns the status of `code`. A code of a newer minor becomes [`Status::Io`], so it is still an error.
            #[must_use]
            pub fn from_code(code: i32) -> Status {
                match code { $( $value => Status::$name, )* _ => Status::Io }
            }

            /// Returns the meaning of the status, in a few words.
            #[must_use]
            pub fn text(self) -> &'static str {
                match self { $( Status::$name => $text, )* }
            }

            /// Returns the name of the C constant.
            #[must_use]
            pub fn constant(self) -> &'static str {
                match self { $( Status::$name => concat!("TIELINE_", stringify!($constant)), )* }
            }
        }
    };
}

/// The call is complete: the buffer may be reused, and no completion follows.
pub const OK: i32 = 0;
/// The call was accepted; a completion event with its cookie follows.
pub const PENDING: i32 = 1;

status_table! {
    /// Nothing was done; the same call may succeed after progress.
    Again, AGAIN = -1, "no resources now, nothing was sent: make progress and try again";
    /// This provider, or this object, does not support the operation.
    Unsupported, UNSUPPORTED = -2, "not supported";
    /// An argument is wrong.
    Invalid, INVALID = -3, "invalid argument";
    /// Memory, descriptors or another bounded resource ran out.
    NoMemory, NO_MEMORY = -4, "out of memory or of another bounded resource";
    /// The device, kernel interface, domain, module or variable does not exist.
    NoDevice, NO_DEVICE = -5, "no such device";
    /// The system refused the operation.
    Permission, PERMISSION = -6, "permission denied";
    /// The other end of a connection has ended without having closed it, for example because its process has ended. The status
    /// applies only to that connection. For an operation that copies between two processes, it means that the kernel does not know
    /// the other process any more.
    PeerFailed, PEER_FAILED = -7, "the peer failed";
    /// There is no route from this process to that peer.
    Unreachable, UNREACHABLE = -8, "peer not reachable";
    /// The remote key is unknown, forged, of another generation, or lacks the access right.
    KeyRejected, KEY_REJECTED = -9, "remote key rejected";
    /// The range lies outside the registered region.
    OutOfRange, OUT_OF_RANGE = -10, "range outside the region";
    /// The bytes or pieces are more than this call can carry.
    TooLarge, TOO_LARGE = -11, "too large";
    /// A deadline passed.
    TimedOut, TIMED_OUT = -12, "timed out";
    /// The object was closed, or the peer has closed the connection in good order.
    Closed, CLOSED = -13, "closed";
    /// A provider panicked or broke the contract, and the core takes it out of use. The C library also returns this status for a
    /// panic of its own.
    ProviderFailed, PROVIDER_FAILED = -14, "the provider failed";
    /// A system call, a device or the network failed for another reason; also an unknown status.
    Io, IO = -15, "input/output error";
    /// Bytes from a peer are malformed.
    BadData, BAD_DATA = -16, "malformed data from a peer";
    /// A parameter record has a non-zero field, or a mandatory flag, that this side does not know.
    UnsupportedParam, UNSUPPORTED_PARAM = -17, "unknown non-zero field in a parameter record";
    /// The object is in use.
    Busy, BUSY = -18, "busy";
    /// The operation was cancelled.
    Canceled, CANCELED = -19, "cancelled";
    /// An address or offset lacks the alignment that the operation needs.
    Misaligned, MISALIGNED = -21, "misaligned";
    /// Nothing happened, and another lane serves this operation better: memory is cold, or the size does not suit the device.
    Declined, DECLINED = -22, "not by this lane: nothing happened, ask the next one";
    /// It is unknown whether the operation has happened, or how much of it. A device may access its memory until the endpoint is
    /// closed.
    OutcomeUnknown, OUTCOME_UNKNOWN = -23, "it may have happened or not";
}

impl core::fmt::Display for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for Status {}

/// A failure on the control path: the status, and the event with its reason in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The kind of failure.
    pub status: Status,
    /// The event and its reason, in words for a person; empty if there are none.
    pub text: String,
}

impl Failure {
    /// Makes a failure with this status and text.
    #[must_use]
    pub fn new(status: Status, text: impl Into<String>) -> Failure {
        Failure { status, text: text.into() }
    }

    /// Returns the failure that the last system call left in `errno`; `what` names the action that failed.
    #[must_use]
    pub fn last_os_error(what: &str) -> Failure {
        Failure::from_io(what, &std::io::Error::last_os_error())
    }

    /// Returns a failure from a system error; `what` names the action that failed.
    #[must_use]
    pub fn from_io(what: &str, error: &std::io::Error) -> Failure {
        use std::io::ErrorKind;
        let status = match error.kind() {
            ErrorKind::PermissionDenied => Status::Permission,
            ErrorKind::NotFound => Status::NoDevice,
            ErrorKind::OutOfMemory => Status::NoMemory,
            ErrorKind::WouldBlock => Status::Again,
            ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                Status::PeerFailed
            }
            ErrorKind::InvalidInput => Status::Invalid,
            ErrorKind::Unsupported => Status::Unsupported,
            ErrorKind::TimedOut => Status::TimedOut,
            _ => match error.raw_os_error() {
                Some(24 | 23 | 28) => Status::NoMemory, // EMFILE, ENFILE, ENOSPC
                _ => Status::Io,
            },
        };
        let repair = match error.raw_os_error() {
            Some(24) => "; close what is not needed, or raise the limit of open files (ulimit -n)",
            _ => "",
        };
        Failure { status, text: format!("{what}: {error}{repair}") }
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        Failure { status, text: String::new() }
    }
}

impl core::fmt::Display for Failure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.text.is_empty() {
            write!(f, "{}", self.status)
        } else {
            write!(f, "{} ({})", self.text, self.status)
        }
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_survives_the_boundary() {
        for &status in Status::ALL {
            assert_eq!(Status::from_code(status as i32), status);
            assert!((status as i32) < 0);
            assert!(status.constant().starts_with("TIELINE_"));
        }
    }

    #[test]
    fn a_code_of_a_newer_minor_is_still_an_error() {
        assert_eq!(Status::from_code(-9999), Status::Io);
    }

    #[test]
    fn a_failure_of_the_system_has_the_status_that_tells_what_to_do() {
        use std::io::{Error, ErrorKind};
        let of = |error: Error| Failure::from_io("opening it", &error);
        for (kind, status) in [
            (ErrorKind::PermissionDenied, Status::Permission),
            (ErrorKind::NotFound, Status::NoDevice),
            (ErrorKind::OutOfMemory, Status::NoMemory),
            (ErrorKind::WouldBlock, Status::Again),
            (ErrorKind::ConnectionRefused, Status::PeerFailed),
            (ErrorKind::ConnectionReset, Status::PeerFailed),
            (ErrorKind::BrokenPipe, Status::PeerFailed),
            (ErrorKind::InvalidInput, Status::Invalid),
            (ErrorKind::Unsupported, Status::Unsupported),
            (ErrorKind::TimedOut, Status::TimedOut),
            (ErrorKind::AddrInUse, Status::Io),
        ] {
            assert_eq!(of(kind.into()).status, status, "{kind:?}");
        }
        for full in [23, 24, 28] {
            let failure = of(Error::from_raw_os_error(full));
            assert_eq!(failure.status, Status::NoMemory);
            let error = Error::from_raw_os_error(full);
            let repair = match full {
                24 => "; close what is not needed, or raise the limit of open files (ulimit -n)",
                _ => "",
            };
            assert_eq!(failure.text, format!("opening it: {error}{repair}"));
        }
    }

    #[test]
    fn a_failure_is_said_with_its_status() {
        let status = Status::NoMemory;
        assert_eq!(Failure::from(status).to_string(), status.to_string());
        assert_eq!(Failure::new(status, "no room").to_string(), format!("no room ({status})"));
    }
}
