//! Who comes: how many are taken in, and who makes room for them.

use super::{LISTENERS, Listener, Server};
use crate::connection::Connection;
use crate::handshake::Handshake;
use crate::local;
use crate::stream::Stream;
use std::io::ErrorKind;
use std::time::{Duration, Instant};
use tieline_net::Interest;

/// How many connections may be about to name themselves, beside one for each rank that has not come.
const RESERVE: usize = 256;

/// Where there is no room for one more, a connection that has not named itself for so long makes it: a rank says who it
/// is in a fraction of this, and whoever only fills the room holds it up by no more.
pub(super) const HOLD: Duration = Duration::from_millis(100);

/// How many are taken in before those who are there have their turn again.
const PER_TURN: usize = 256;

/// How long nobody is taken in when the system has no descriptor or memory for one more.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

impl Server {
    /// Has the poller look for who comes, or not.
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
            if !self.make_room() {
                return;
            }
            let accepted = match &self.listeners[index] {
                Listener::Unix(listener) => {
                    listener.accept().map(|(stream, _)| match local::check_user(&stream) {
                        Ok(()) => Ok(Connection::new(Stream::Unix(stream), None)),
                        Err(local::Refused::User(user)) => Err(format!("a process of {user}")),
                        Err(local::Refused::System(_)) => {
                            Err("a process of an unknown user".to_owned())
                        }
                    })
                }
                Listener::Tcp(listener, secret) => listener.accept().map(|(stream, _)| {
                    let _ = stream.set_nodelay(true);
                    let handshake =
                        Handshake::accept(secret).ok_or("no random numbers for a challenge")?;
                    Ok(Connection::new(Stream::Tcp(stream), Some(handshake)))
                }),
            };
            match accepted {
                Ok(Ok(mut connection)) if connection.stream.set_nonblocking(true).is_ok() => {
                    connection.answer();
                    connection.write();
                    self.insert(connection);
                }
                Ok(Ok(_)) => self.turned_away += 1,
                Ok(Err(text)) => {
                    self.turned_away += 1;
                    let _ = self.gather.turn_away(text);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                // It left before it was taken in.
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                    ) => {}
                // No descriptor, or no memory: a stranger's place may be had; else it is tried again after a pause,
                // since the listener stays readable and would be asked without end.
                Err(_) if self.evict(|c| c.handshake.is_some()) => {}
                Err(_) => {
                    self.accept_at = Some(Instant::now() + PAUSE);
                    return;
                }
            }
        }
    }

    /// Connections that have not named themselves: as many as ranks are still to come, and a reserve.
    fn is_full(&self) -> bool {
        self.seats.nameless() >= self.gather.absent().saturating_add(RESERVE)
    }

    /// Whether one more may be taken in, at the cost of a nameless one where there must be.
    fn make_room(&mut self) -> bool {
        !self.is_full() || self.evict(|c| c.handshake.is_some()) || self.evict(|_| true)
    }

    /// Drops the oldest nameless connection of this kind that has had its time.
    fn evict(&mut self, which: impl Fn(&Connection) -> bool) -> bool {
        let Some(by) = Instant::now().checked_sub(HOLD) else { return false };
        let Some(oldest) = self.seats.oldest_of(by, which) else { return false };
        self.drop_nameless(oldest);
        true
    }

    pub(super) fn drop_nameless(&mut self, seat: usize) {
        if let Some(connection) = self.seats.get(seat) {
            connection.open = false;
            self.turned_away += 1;
        }
        self.settle(seat);
    }

    /// Whether listeners are to be looked at now.
    pub(super) fn accepts(&mut self, now: Instant) -> bool {
        if self.accept_at.is_some_and(|at| now < at) {
            return false;
        }
        self.accept_at = None;
        !self.is_full() || self.seats.oldest().is_some_and(|since| now >= since + HOLD)
    }
}
