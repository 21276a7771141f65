//! The choice of a stream's connection, even if both sides dial at the same time. This module is pure.
//!
//! The side with the lower address (the lower side) decides. In each round of a stream, it sends `Start` on one connection. The
//! other side uses the connection on which `Start` arrives, and closes all others. While its own dial is in progress, the lower
//! side holds a connection that the upper side dialled in reserve. It uses the reserve if that dial fails or takes too long.

/// The treatment of an incoming connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Close the connection: it is from another round of the stream.
    Refuse,
    /// Keep the connection: the lower side in reserve, the upper side until one of them is chosen.
    Keep,
    /// Send `Start` on the connection and use it, instead of the previous one.
    Start,
}

/// The choice of one stream.
#[derive(Debug, Default)]
pub(crate) struct Crossing {
    lower: bool,
    /// The number of connections that this stream has had. Every greeting contains this number, to distinguish old connections.
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

    /// Records that the dial of this side succeeded. Returns `true` if this side sends `Start` on the connection and uses it,
    /// `false` if it waits for `Start` on the connection.
    pub(crate) fn dialled(&mut self) -> bool {
        self.dialling = false;
        if self.lower {
            self.start();
        }
        self.lower
    }

    /// Records that the dial of this side failed. Returns `true` if this side sends `Start` on the connection in reserve and uses
    /// it.
    pub(crate) fn dial_failed(&mut self) -> bool {
        self.dialling = false;
        let reserve = self.lower && self.reserve;
        if reserve {
            self.start();
        }
        reserve
    }

    /// Records a connection from a side that has seen `round` connections of this stream, and returns its treatment.
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

    /// Records that the connection in reserve is lost.
    pub(crate) fn reserve_lost(&mut self) {
        self.reserve = false;
    }

    /// Records that `Start` arrived, counting `round` connections. Returns `true` if this side uses that connection and closes all
    /// others.
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
