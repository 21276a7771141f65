//! Chooses the connection of a stream if both sides dial at the same time. Pure.
//!
//! The side with the lower address decides. It sends `Start` on exactly one connection. The other side uses the connection on which
//! `Start` arrives, and closes all others. The lower side holds a connection that the upper side dialled in reserve while its own
//! dial is in progress, and uses it if that dial fails.

/// What to do with an incoming connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Close it: it is from an earlier round of the stream.
    Refuse,
    /// Keep it: the lower side in reserve, the upper side until something arrives on it.
    Keep,
    /// Send `Start` on it and use it, instead of the previous one.
    Start,
}

/// The state of one stream.
#[derive(Debug, Default)]
pub(crate) struct Crossing {
    lower: bool,
    /// The number of connections that this stream has had. Every greeting contains it, to distinguish old connections.
    round: u32,
    dialling: bool,
    reserve: bool,
}

impl Crossing {
    pub(crate) fn new(lower: bool) -> Crossing {
        Crossing { lower, ..Crossing::default() }
    }

    pub(crate) fn is_lower(&self) -> bool {
        self.lower
    }

    pub(crate) fn round(&self) -> u32 {
        self.round
    }

    pub(crate) fn dial_begun(&mut self) {
        self.dialling = true;
    }

    /// Returns the own dial succeeded. `true`: send `Start` on it and use it; `false`: wait for `Start` on it.
    pub(crate) fn dialled(&mut self) -> bool {
        self.dialling = false;
        if self.lower {
            self.start();
        }
        self.lower
    }

    /// Returns the own dial failed. `true`: send `Start` on the connection in reserve and use it.
    pub(crate) fn dial_failed(&mut self) -> bool {
        self.dialling = false;
        let reserve = self.lower && self.reserve;
        if reserve {
            self.start();
        }
        reserve
    }

    /// Returns a connection arrived from a side that has seen `round` connections of this stream.
    pub(crate) fn arrived(&mut self, round: u32) -> Arrival {
        match self.lower {
            true if round != self.round => Arrival::Refuse,
            true if self.dialling => {
                self.reserve = true;
                Arrival::Keep
            }
            true => {
                self.start();
                Arrival::Start
            }
            false if round < self.round => Arrival::Refuse,
            false => Arrival::Keep,
        }
    }

    /// The connection in reserve is gone.
    pub(crate) fn reserve_lost(&mut self) {
        self.reserve = false;
    }

    /// `Start` arrived, counting `round` connections. `true`: use that connection and close all others.
    pub(crate) fn started(&mut self, round: u32) -> bool {
        let newer = !self.lower && round > self.round;
        if newer {
            self.round = round;
        }
        newer
    }

    fn start(&mut self) {
        self.round += 1;
        self.reserve = false;
    }
}

#[cfg(test)]
#[path = "crossing_tests.rs"]
mod tests;
