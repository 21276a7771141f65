//! Local sockets with abstract names. Both ends ask the kernel for each other's user, so a process that knows or occupies a name is
//! not trusted.

use super::sys;
use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The reason why there is no connection.
pub(super) enum Refused {
    System(io::Error),
    /// A process of another user listens: `user 1000`.
    User(String),
}

/// Makes a socket's name `tieline-KIND-UID-WHAT`; the user's number keeps the names of different users apart.
pub(super) fn name(kind: &str, what: &str) -> String {
    format!("tieline-{kind}-{}-{what}", sys::user())
}

/// Connects to a listener of this process's user.
pub(super) fn connect(name: &str, timeout: Duration) -> Result<UnixStream, Refused> {
    let stream = sys::connect_local(name.as_bytes(), timeout).map_err(Refused::System)?;
    check_user(&stream)?;
    Ok(stream)
}

/// Checks that the other end is a process of the same user.
pub(super) fn check_user(stream: &UnixStream) -> Result<(), Refused> {
    same_user(sys::user_of(stream).map_err(Refused::System)?, sys::user())
}

/// Checks that two users are equal. Only the same user is trusted: root does not trust other users, and other users do not trust
/// root.
fn same_user(theirs: u32, ours: u32) -> Result<(), Refused> {
    if theirs == ours { Ok(()) } else { Err(Refused::User(format!("user {theirs}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_same_user_is_trusted_even_if_other_is_root() {
        for user in [0, 1, 1000, u32::MAX] {
            assert!(same_user(user, user).is_ok());
        }
        for (theirs, ours) in [(0, 1000), (1000, 0), (1000, 1001), (1001, 1000), (u32::MAX, 0)] {
            let Err(Refused::User(who)) = same_user(theirs, ours) else {
                panic!("user {ours} believed user {theirs}")
            };
            assert_eq!(who, format!("user {theirs}"));
        }
    }
}
