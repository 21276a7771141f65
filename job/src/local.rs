//! Local sockets with abstract names. Both ends ask the kernel for each other's user, so a process that knows or occupies a name is
//! not trusted.

use super::sys;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
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

/// The number of names of one listener.
const NAMES: usize = 8;
/// The time limit for connecting to a listener whose queue is full.
const ONE_CHECK: Duration = Duration::from_millis(100);
/// The time that another process may take between `bind` and `listen`.
const SOON: Duration = Duration::from_millis(10);

/// Returns the names under which a listener may be found, in the order in which both sides try them. The kernel keeps a name in use
/// as long as any process holds the socket, and a forked child may hold the socket of an ended job.
pub(super) fn names(first: &str) -> impl Iterator<Item = String> {
    let other = |first: String| (2..=NAMES).map(move |n| format!("{first}+{n}"));
    std::iter::once(first.to_owned()).chain(other(first.to_owned()))
}

/// Binds a listener to the first name that is free, unless a listener of one of the names accepts connections.
pub(super) fn bind(first: &str) -> io::Result<UnixListener> {
    let in_use = || io::Error::from(io::ErrorKind::AddrInUse);
    if names(first).any(|name| accepts(&name)) {
        return Err(in_use());
    }
    for name in names(first) {
        match UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            other => return other,
        }
        // Another process may have bound the name a moment ago, and will listen.
        std::thread::sleep(SOON);
        if accepts(&name) {
            break;
        }
    }
    Err(in_use())
}

/// Checks whether a process listens on the name.
fn accepts(name: &str) -> bool {
    let refusal = sys::connect_local(name.as_bytes(), ONE_CHECK).err();
    refusal.is_none_or(|error| error.kind() != io::ErrorKind::ConnectionRefused)
}

/// Connects to a listener of this process's user, under any of its names.
pub(super) fn connect_any(first: &str, timeout: Duration) -> Result<UnixStream, Refused> {
    let mut refused = None;
    for name in names(first) {
        match connect(&name, timeout) {
            Err(Refused::System(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                refused = Some(error);
            }
            other => return other,
        }
    }
    Err(Refused::System(refused.unwrap_or_else(|| io::ErrorKind::ConnectionRefused.into())))
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
