//! The connections of a server: by seat for the poller, by rank for messages to ranks, by age for connections without a rank.

use super::connection::Connection;
use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Instant;
use tieline_net::Poller;
use tieline_net::admission::Admission;

#[derive(Default)]
pub(super) struct Seats {
    /// The connections by seat; free seats are reused.
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    ranks: HashMap<usize, usize>,
    /// The connections without a rank. Connections that need no proof, or have proved their knowledge of the secret, are evicted
    /// last.
    pub(super) nameless: Admission<usize>,
}

impl Seats {
    /// Adds a connection without a rank. Returns the connection's seat.
    pub(super) fn insert(&mut self, connection: Connection) -> usize {
        let seat = self.free.pop().unwrap_or(self.connections.len());
        self.note(seat, &connection);
        if seat == self.connections.len() {
            self.connections.push(None);
        }
        self.connections[seat] = Some(connection);
        seat
    }

    fn note(&mut self, seat: usize, of: &Connection) {
        self.nameless.insert(seat, of.source, of.since, of.handshake.is_none());
    }

    pub(super) fn get(&mut self, seat: usize) -> Option<&mut Connection> {
        self.connections.get_mut(seat)?.as_mut()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter().flatten()
    }

    /// Returns the seat of this rank.
    pub(super) fn seat_of_rank(&self, rank: usize) -> Option<usize> {
        self.ranks.get(&rank).copied()
    }

    pub(super) fn ranks(&self) -> impl Iterator<Item = usize> {
        self.ranks.keys().copied()
    }

    /// Records that the connection in this seat belongs to this rank.
    pub(super) fn name(&mut self, seat: usize, rank: usize) {
        if let Some(connection) = self.connections[seat].as_mut() {
            connection.rank = Some(rank);
            self.nameless.remove(seat);
            let _ = self.ranks.insert(rank, seat);
        }
    }

    /// Removes the rank from a connection, at time `now`. Returns the rank.
    pub(super) fn unname(&mut self, seat: usize, now: Instant) -> Option<usize> {
        let connection = self.connections[seat].as_mut()?;
        connection.since = now;
        let (source, proven) = (connection.source, connection.handshake.is_none());
        self.nameless.insert(seat, source, now, proven);
        let rank = connection.rank.take()?;
        let _ = self.ranks.remove(&rank);
        Some(rank)
    }

    /// Updates the state after a change of a connection: frees the seat of a closed connection, otherwise updates the connection's
    /// events in the poller.
    pub(super) fn settle(&mut self, seat: usize, poller: &Poller) -> io::Result<()> {
        let Some(connection) = self.get(seat) else { return Ok(()) };
        if connection.open {
            let wants = connection.wants();
            if connection.watched != Some(wants) {
                poller.watch(connection.stream.as_raw_fd(), wants, seat as u64)?;
                connection.watched = Some(wants);
            }
            return Ok(());
        }
        let rank = connection.rank;
        self.nameless.remove(seat);
        if let Some(rank) = rank {
            let _ = self.ranks.remove(&rank);
        }
        if let Some(gone) = self.connections[seat].take() {
            // A child that was forked in between shares the descriptor: a close alone would end the connection neither for the
            // poller nor for the other side.
            poller.forget(gone.stream.as_raw_fd());
            gone.stream.shutdown();
        }
        self.free.push(seat);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::stream::Stream;
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;
    use tieline_net::admission::Source;

    /// Makes a connection that was accepted at `at`, and returns its other end.
    fn since(at: Instant) -> (Connection, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut connection = Connection::new(Stream::Unix(ours), Source::Local, None);
        connection.since = at;
        (connection, theirs)
    }

    #[test]
    fn oldest_unnamed_connection_is_found_and_naming_removes_it() {
        let (t0, s) = (Instant::now(), Duration::from_secs);
        let mut seats = Seats::default();
        let mut ends = Vec::new();
        for after in [2, 0, 1] {
            let (connection, end) = since(t0 + s(after));
            assert_eq!(seats.insert(connection), ends.len());
            ends.push(end);
        }
        let row = |seats: &Seats| (seats.nameless.len(), seats.nameless.oldest());
        assert_eq!(row(&seats), (3, Some(t0)));
        let any = |seats: &Seats, by| seats.nameless.oldest_by(by);
        assert_eq!(any(&seats, t0), Some(1), "it was there by then");
        assert_eq!(any(&seats, t0 - Duration::from_nanos(1)), None);

        seats.name(1, 7);
        assert_eq!(row(&seats), (2, Some(t0 + s(1))));
        assert_eq!((seats.seat_of_rank(7), seats.seat_of_rank(1)), (Some(1), None));
        assert_eq!(seats.ranks().collect::<Vec<_>>(), [7]);
        // The time of a refused connection starts at its refusal.
        assert_eq!(seats.unname(1, t0 + s(3)), Some(7));
        assert_eq!((seats.nameless.len(), seats.seat_of_rank(7)), (3, None));
        assert_eq!(any(&seats, t0 + s(2)), Some(2));
        assert_eq!(seats.unname(1, t0 + s(4)), None, "it had no name any more");
        assert_eq!(seats.nameless.len(), 3);
    }

    #[test]
    fn closed_connection_frees_its_seat_and_shuts_down_its_peer() {
        let poller = Poller::new().unwrap();
        let (mut seats, t0) = (Seats::default(), Instant::now());
        let (connection, mut end) = since(t0);
        let seat = seats.insert(connection);
        seats.name(seat, 3);
        seats.settle(seat, &poller).unwrap();
        assert!(seats.get(seat).unwrap().watched.is_some());
        seats.get(seat).unwrap().open = false;
        seats.settle(seat, &poller).unwrap();
        assert!(seats.get(seat).is_none() && seats.get(seat + 1).is_none());
        assert_eq!((seats.seat_of_rank(3), seats.all().count()), (None, 0));
        assert_eq!(end.read(&mut [0]).unwrap(), 0);
        seats.settle(seat, &poller).unwrap();
        let (nameless, _end) = since(t0);
        assert_eq!(seats.insert(nameless), seat);
        let (next, _other) = since(t0);
        assert_eq!(seats.insert(next), seat + 1, "a place is given once");
        seats.get(seat).unwrap().open = false;
        seats.settle(seat, &poller).unwrap();
        assert_eq!(seats.nameless.len(), 1);
    }
}
