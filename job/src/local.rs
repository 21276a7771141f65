//! Local sockets of abstract names, whose two ends ask the kernel for each other's user: who knows a name, or takes it
//! first, is not believed for that.

use super::sys;
use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Why there is no connection.
pub(super) enum Refused {
    System(io::Error),
    /// Somebody else listens: `user 1000`.
    User(String),
}

/// `tieline-KIND-UID-WHAT`: users do not meet by accident.
pub(super) fn name(kind: &str, what: &str) -> String {
    format!("tieline-{kind}-{}-{what}", sys::user())
}

/// Connects to a listener of this process's user.
pub(super) fn connect(name: &str, timeout: Duration) -> Result<UnixStream, Refused> {
    let stream = sys::connect_local(name.as_bytes(), timeout).map_err(Refused::System)?;
    match sys::user_of(&stream).map_err(Refused::System)? {
        user if user == sys::user() => Ok(stream),
        user => Err(Refused::User(format!("user {user}"))),
    }
}
