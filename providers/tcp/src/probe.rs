//! The test whether a host answers at all.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::sys;

/// The maximum number of open probes of an interface. When a switch fails, thousands of streams fall silent, and descriptors are
/// needed for connections.
const OPEN: usize = 32;

/// A connection attempt to a stream's destination, to test whether the host answers: an acceptance or a refusal is a small packet.
/// Nothing is sent over it.
#[derive(Debug)]
pub(crate) struct Probe {
    socket: Option<(OwnedFd, Token)>,
    answer: Option<Answer>,
}

/// The result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The host accepted or refused the connection.
    Came {
        /// The latest time at which the host can have answered.
        at: Instant,
    },
    /// The attempt failed, in the system's words: for example no route, no such host, or a firewall that rejects it.
    Nowhere(String),
    /// This host no longer has the stream's own address.
    NoAddress,
}

/// A token that counts the open probes of an interface.
pub(crate) type Token = Rc<()>;

impl Probe {
    /// Starts a probe, which costs a few small packets. Returns `None` if none can be started. If this host no longer has the
    /// stream's own address `local`, no packet is sent, because the probe would use another route.
    pub(crate) fn begin(
        local: Option<SocketAddr>,
        peer: SocketAddr,
        count: &Token,
    ) -> Option<Probe> {
        if Rc::strong_count(count) > OPEN {
            return None;
        }
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(peer), kind, Some(Protocol::TCP)).ok()?;
        if let Some(local) = local {
            let any_port = |mut at: SocketAddr| {
                at.set_port(0);
                at
            };
            let bound = socket.bind(&any_port(local).into());
            if bound.is_err_and(|error| is_gone(&error)) {
                return Some(Probe { socket: None, answer: Some(Answer::NoAddress) });
            }
        }
        Some(match socket.connect(&peer.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => {
                Probe { socket: None, answer: Some(of(&error, Instant::now())) }
            }
            _ => Probe { socket: Some((socket.into(), Rc::clone(count))), answer: None },
        })
    }

    /// Checks whether an answer has arrived.
    pub(crate) fn look(&mut self, now: Instant) {
        let Some((fd, _)) = self.socket.as_ref().filter(|_| self.answer.is_none()) else { return };
        let socket = SockRef::from(fd);
        self.answer = match socket.take_error() {
            Ok(Some(error)) => Some(of(&error, now)),
            Ok(None) if socket.peer_addr().is_ok() => {
                // The answer may be old, because the probe is checked only when the program calls.
                let ago = sys::unanswered(fd.as_raw_fd()).map(|seen| seen.since_ack);
                let at = ago.and_then(|ago| now.checked_sub(ago)).unwrap_or(now);
                Some(Answer::Came { at })
            }
            _ => None,
        };
        if self.answer.is_some() {
            self.socket = None;
        }
    }

    pub(crate) fn answer(&self) -> Option<&Answer> {
        self.answer.as_ref()
    }
}

/// Checks whether a bind failed because no interface has the address, or the address's interface does not exist.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EADDRNOTAVAIL | libc::ENODEV))
}

/// Returns the result of a failed attempt. A connection that was accepted and has ended since counts as an answer.
fn of(error: &io::Error, at: Instant) -> Answer {
    match error.kind() {
        io::ErrorKind::ConnectionRefused
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => Answer::Came { at },
        _ => Answer::Nowhere(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::time::Duration;

    #[test]
    fn accepted_or_refused_probe_counts_as_answer_and_silence_does_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap();
        let answer = |peer| {
            let mut probe = Probe::begin(None, peer, &Token::default()).unwrap();
            while probe.answer().is_none() {
                probe.look(Instant::now());
            }
            let answer = probe.answer().cloned().unwrap();
            probe.look(Instant::now() + Duration::from_secs(9));
            assert_eq!(probe.answer(), Some(&answer), "what came first holds");
            answer
        };
        assert!(matches!(answer(there), Answer::Came { .. }));
        drop(listener);
        assert!(matches!(answer(there), Answer::Came { .. }));
        let unreachable = io::Error::from_raw_os_error(libc::EHOSTUNREACH);
        let Answer::Nowhere(words) = of(&unreachable, Instant::now()) else {
            panic!("a host that cannot be reached has not answered")
        };
        assert!(words.contains("No route to host"), "{words}");
    }

    #[test]
    fn when_an_answer_came_is_known_also_where_nobody_looked_for_long() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut probe =
            Probe::begin(None, listener.local_addr().unwrap(), &Token::default()).unwrap();
        let fd = probe.socket.as_ref().unwrap().0.as_raw_fd();
        let ago = Duration::from_millis(20);
        // The connection is accepted, and then some time passes by the kernel's clock.
        let _taken = listener.accept().unwrap();
        while sys::unanswered(fd).unwrap().since_ack < ago {
            std::thread::yield_now();
        }
        let now = Instant::now();
        probe.look(now);
        let Some(Answer::Came { at }) = probe.answer() else { panic!("it was taken") };
        assert!(now.duration_since(*at) >= ago);
    }

    #[test]
    fn probe_from_an_address_that_the_host_has_lost_reports_that() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap();
        let begin = |local: &str| {
            Probe::begin(Some(local.parse().unwrap()), there, &Token::default()).unwrap()
        };
        // An address of no host (RFC 5737).
        let lost = begin("203.0.113.7:4000");
        assert_eq!(lost.answer(), Some(&Answer::NoAddress));
        assert!(lost.socket.is_none(), "no packet is sent from another address");
        let mut own = begin("127.0.0.1:4000");
        while own.answer().is_none() {
            own.look(Instant::now());
        }
        assert!(matches!(own.answer(), Some(Answer::Came { .. })));
        for (error, gone) in
            [(libc::EADDRNOTAVAIL, true), (libc::ENODEV, true), (libc::EADDRINUSE, false)]
        {
            assert_eq!(is_gone(&io::Error::from_raw_os_error(error)), gone);
        }
    }

    #[test]
    fn only_so_many_are_open_at_a_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (there, count) = (listener.local_addr().unwrap(), Token::default());
        let begin = || Probe::begin(None, there, &count);
        let mut open: Vec<_> = (0..OPEN).map(|_| begin().unwrap()).collect();
        assert!(begin().is_none());
        while open[0].answer().is_none() {
            open[0].look(Instant::now());
        }
        assert!(begin().is_some(), "one that was answered is open no more");
    }
}
