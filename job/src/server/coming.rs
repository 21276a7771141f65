//! Incoming connections: the number that is accepted, and the eviction of earlier connections.

use super::{LISTENERS, Listener, Server};
use crate::connection::Connection;
use crate::handshake::Handshake;
use crate::local;
use crate::stream::Stream;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use tieline_net::admission::{Source, Verdict};
use tieline_net::{Interest, is_crowded, reset};

/// The number of connections that are accepted before existing connections are served again.
const PER_TURN: usize = 256;

/// The pause before the next accept if the system has no descriptor or memory for another connection.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

impl Server {
    /// Starts or stops watching the listeners.
    pub(super) fn listen(&mut self, accepts: bool) -> std::io::Result<()> {
        if accepts != self.listening {
            let interest = if accepts { Interest::READ } else { Interest::NONE };
            for (index, listener) in self.listeners.iter().enumerate() {
                self.poller.watch(listener.fd(), interest, LISTENERS + index as u64)?;
            }
            self.listening = accepts;
        }
        Ok(())
    }

    pub(super) fn accept(&mut self, index: usize) {
        for _ in 0..PER_TURN {
            let now = Instant::now();
            if !self.has_room(now) {
                return;
            }
            let accepted = match &self.listeners[index] {
                Listener::Unix(listener) => {
                    listener.accept().map(|(stream, _)| (Stream::Unix(stream), Source::Local))
                }
                Listener::Tcp(listener, _) => {
                    let tcp = |(stream, from): (TcpStream, SocketAddr)| {
                        (Stream::Tcp(stream), from.ip().into())
                    };
                    listener.accept().map(tcp)
                }
            };
            match accepted {
                Ok((stream, source)) => self.take_in(index, stream, source, now),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                // The client left before the accept.
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                    ) => {}
                // No descriptor, or no memory: a connection without a rank may be evicted. Otherwise the accept is retried after a
                // pause, since the listener stays readable and the poller would report it endlessly.
                Err(_) if self.evict(now) => {}
                Err(_) => {
                    self.accept_at = Some(Instant::now() + PAUSE);
                    return;
                }
            }
        }
    }

    /// Adds a connection in a seat, or drops the connection.
    fn take_in(&mut self, index: usize, stream: Stream, source: Source, now: Instant) {
        // Expensive steps follow the decision to accept.
        let user = match &stream {
            Stream::Unix(stream) => local::check_user(stream).map_err(|refused| match refused {
                local::Refused::User(user) => format!("a process of {user}"),
                local::Refused::System(_) => "a process of an unknown user".to_owned(),
            }),
            Stream::Tcp(_) => Ok(()),
        };
        if let Err(text) = user {
            self.turned_away += 1;
            return drop(self.gather.turn_away(text));
        }
        match self.seats.nameless.admit(source, now, matches!(stream, Stream::Unix(_))) {
            Verdict::Enters => {}
            Verdict::Instead(oldest) => self.drop_nameless(oldest),
            Verdict::TurnedAway => {
                self.turned_away += 1;
                if let Stream::Tcp(stream) = &stream {
                    reset(stream);
                }
                return;
            }
        }
        let handshake = match (&self.listeners[index], &stream) {
            (Listener::Tcp(_, secret), Stream::Tcp(stream)) => {
                let _ = stream.set_nodelay(true);
                let handshake = Handshake::accept(secret);
                if handshake.is_none() {
                    self.turned_away += 1;
                    return drop(self.gather.turn_away("no random numbers for a challenge".into()));
                }
                handshake
            }
            _ => None,
        };
        if stream.set_nonblocking(true).is_err() {
            self.turned_away += 1;
            return;
        }
        let mut connection = Connection::new(stream, source, handshake);
        connection.answer();
        connection.write();
        self.insert(connection);
    }

    /// Evicts the oldest connection without a rank, because no descriptor is left. Returns `false` if no such connection has used
    /// up its time.
    fn evict(&mut self, now: Instant) -> bool {
        let oldest = self.seats.nameless.makes_room(now);
        oldest.into_iter().for_each(|seat| self.drop_nameless(seat));
        oldest.is_some()
    }

    pub(super) fn drop_nameless(&mut self, seat: usize) {
        if let Some(connection) = self.seats.get(seat) {
            connection.open = false;
            self.turned_away += 1;
        }
        self.settle(seat);
    }

    /// Checks whether the listeners are watched at this time.
    pub(super) fn accepts(&mut self, now: Instant) -> bool {
        if self.accept_at.is_some_and(|at| now < at) {
            return false;
        }
        self.accept_at = None;
        self.has_room(now)
    }

    /// Checks whether a connection may be accepted, by the rule that all listeners share.
    fn has_room(&mut self, now: Instant) -> bool {
        self.seats.nameless.expect(self.gather.absent());
        let crowded = |listener: &Listener| match listener {
            Listener::Tcp(listener, _) => is_crowded(listener),
            Listener::Unix(_) => false,
        };
        self.seats.nameless.accepts(now, || self.listeners.iter().any(crowded))
    }
}
