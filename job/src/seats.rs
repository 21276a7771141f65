//! The connections of a server: by place for the poller, by rank for who speaks to one, by age for those without a name.

use super::connection::Connection;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::AsRawFd;
use std::time::Instant;
use tieline_net::Poller;

#[derive(Default)]
pub(super) struct Seats {
    /// By their places, which those that come later take over.
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    ranks: HashMap<usize, usize>,
    /// Those without a rank, the oldest first.
    nameless: BTreeSet<(Instant, usize)>,
}

impl Seats {
    /// One more, without a name. Its place.
    pub(super) fn insert(&mut self, connection: Connection) -> usize {
        let seat = self.free.pop().unwrap_or(self.connections.len());
        let _ = self.nameless.insert((connection.since, seat));
        if seat == self.connections.len() {
            self.connections.push(None);
        }
        self.connections[seat] = Some(connection);
        seat
    }

    pub(super) fn get(&mut self, seat: usize) -> Option<&mut Connection> {
        self.connections.get_mut(seat)?.as_mut()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter().flatten()
    }

    /// Where this rank's is.
    pub(super) fn of_rank(&self, rank: usize) -> Option<usize> {
        self.ranks.get(&rank).copied()
    }

    pub(super) fn ranks(&self) -> impl Iterator<Item = usize> {
        self.ranks.keys().copied()
    }

    /// This one has said who it is.
    pub(super) fn name(&mut self, seat: usize, rank: usize) {
        if let Some(connection) = self.connections[seat].as_mut() {
            connection.rank = Some(rank);
            let _ = self.nameless.remove(&(connection.since, seat));
            let _ = self.ranks.insert(rank, seat);
        }
    }

    /// It is nobody's from `now` on. Whose it was.
    pub(super) fn unname(&mut self, seat: usize, now: Instant) -> Option<usize> {
        let connection = self.connections[seat].as_mut()?;
        let _ = self.nameless.remove(&(connection.since, seat));
        connection.since = now;
        let _ = self.nameless.insert((now, seat));
        let rank = connection.rank.take()?;
        let _ = self.ranks.remove(&rank);
        Some(rank)
    }

    /// How many have no name.
    pub(super) fn nameless(&self) -> usize {
        self.nameless.len()
    }

    /// Since when the oldest of them is there.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.nameless.first().map(|(since, _)| *since)
    }

    /// The oldest of this kind that was there by then and has no name.
    pub(super) fn oldest_of(
        &self,
        by: Instant,
        which: impl Fn(&Connection) -> bool,
    ) -> Option<usize> {
        let there = self.nameless.iter().take_while(|(since, _)| *since <= by);
        let is = |seat: usize| self.connections[seat].as_ref().is_some_and(&which);
        there.map(|(_, seat)| *seat).find(|seat| is(*seat))
    }

    /// After something was done with one: where it is closed its place is free, else the poller is told what it waits for.
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
        let (rank, since) = (connection.rank, connection.since);
        let _ = self.nameless.remove(&(since, seat));
        if let Some(rank) = rank {
            let _ = self.ranks.remove(&rank);
        }
        if let Some(gone) = self.connections[seat].take() {
            // A process that was forked off meanwhile has the descriptor, too: closing alone would be no end, neither to the poller
            // nor to the other side.
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

    /// A connection that is there since then, and its other end.
    fn since(at: Instant) -> (Connection, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut connection = Connection::new(Stream::Unix(ours), None);
        connection.since = at;
        (connection, theirs)
    }

    #[test]
    fn the_oldest_without_a_name_is_found_and_a_name_takes_one_out_of_the_row() {
        let (t0, s) = (Instant::now(), Duration::from_secs);
        let mut seats = Seats::default();
        let mut ends = Vec::new();
        for after in [2, 0, 1] {
            let (connection, end) = since(t0 + s(after));
            assert_eq!(seats.insert(connection), ends.len());
            ends.push(end);
        }
        assert_eq!((seats.nameless(), seats.oldest()), (3, Some(t0)));
        let any = |seats: &Seats, by| seats.oldest_of(by, |_| true);
        assert_eq!(any(&seats, t0), Some(1), "it was there by then");
        assert_eq!(any(&seats, t0 - Duration::from_nanos(1)), None);
        assert_eq!(seats.oldest_of(t0 + s(2), |c| c.since > t0), Some(2));
        assert_eq!(seats.oldest_of(t0 + s(2), |c| c.handshake.is_some()), None);

        seats.name(1, 7);
        assert_eq!((seats.nameless(), seats.oldest()), (2, Some(t0 + s(1))));
        assert_eq!((seats.of_rank(7), seats.of_rank(1)), (Some(1), None));
        assert_eq!(seats.ranks().collect::<Vec<_>>(), [7]);
        // Who is turned away has its time from then.
        assert_eq!(seats.unname(1, t0 + s(3)), Some(7));
        assert_eq!((seats.nameless(), seats.of_rank(7)), (3, None));
        assert_eq!(any(&seats, t0 + s(2)), Some(2));
        assert_eq!(seats.unname(1, t0 + s(4)), None, "it had no name any more");
        assert_eq!(seats.nameless(), 3);
    }

    #[test]
    fn what_is_closed_leaves_its_place_and_its_other_end_is_told() {
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
        assert_eq!((seats.of_rank(3), seats.all().count()), (None, 0));
        assert_eq!(end.read(&mut [0]).unwrap(), 0);
        seats.settle(seat, &poller).unwrap();
        let (nameless, _end) = since(t0);
        assert_eq!(seats.insert(nameless), seat);
        let (next, _other) = since(t0);
        assert_eq!(seats.insert(next), seat + 1, "a place is given once");
        seats.get(seat).unwrap().open = false;
        seats.settle(seat, &poller).unwrap();
        assert_eq!(seats.nameless(), 1);
    }
}
