//! The sleep: notes what the peers must do to wake this interface.

use super::*;
use crate::order;

impl State {
    pub(super) fn disarm(&mut self) {
        self.armed = false;
        for channel in self.inbound.iter().flatten() {
            channel.set_sleeping(false);
        }
        if let Some(ticker) = &self.ticker {
            ticker.set(false);
        }
    }

    pub(super) fn arm(&mut self, shared: &Shared, cookie: &Id) -> Armed {
        // Records on the sockets would make the descriptor readable immediately.
        self.maintain(shared, cookie);
        self.sweep(shared);
        // Senders keep released chunks for their next messages. A message that waits for a chunk may wait for one of these.
        if shared.pool_starved.get() && self.take_chunks_back() {
            shared.pool_starved.set(false);
            return Armed::Ready;
        }
        if self.is_busy(shared) {
            return Armed::Ready;
        }
        let sleeps = wake::may_sleep(|| self.note_sleep(), || self.has_news());
        self.armed = true;
        shared.due.call();
        if !sleeps {
            shared.pool_starved.set(false);
            return Armed::Ready;
        }
        if self.needs_ticks() && !self.tick(shared) {
            return Armed::Ready;
        }
        Armed::Sleep
    }

    /// Takes back the chunks that the receivers have released. Returns whether there were any.
    pub(super) fn take_chunks_back(&self) -> bool {
        self.outbound.iter().flatten().filter(|channel| channel.give_back()).count() > 0
    }

    /// Notes on every receiving channel, and on sending channels that wait for space, that the other side must wake this one.
    fn note_sleep(&self) {
        for channel in self.inbound.iter().flatten() {
            channel.set_sleeping(true);
        }
        for channel in self.outbound.iter().flatten() {
            channel.ask_for_wake();
        }
    }

    /// Checks whether anything has arrived on any channel.
    fn has_news(&self) -> bool {
        let rung = self.bells.iter().any(|bell| bell.word.get().load(order::TAKE_BELL) != 0);
        let inbound = self.inbound.iter().flatten().any(|channel| channel.has_news());
        let outbound = self.outbound.iter().flatten().filter(|c| c.has_news()).count() > 0;
        rung || inbound || outbound
    }

    /// Checks whether a poll would do any work.
    fn is_busy(&self, shared: &Shared) -> bool {
        // A sender may wait for room that only the next poll releases: the slots of the last poll are in use by the application
        // until then.
        self.inbound.iter().flatten().any(|channel| channel.is_behind())
            || !shared.notices.borrow().is_empty()
            || !shared.failures.borrow().is_empty()
            || !self.telling.notices.is_empty()
            // The senders of ended channels wait for their memory.
            || !self.ended_channels.is_empty()
            || !self.leaving.is_empty()
            || !shared.ended.borrow().is_empty()
            || self.bells.iter().any(|bell| bell.rung != 0)
    }

    /// Checks whether there is work to retry that no descriptor signals.
    fn needs_ticks(&self) -> bool {
        self.outbound.iter().flatten().any(|c| c.is_connecting() || c.owes())
            || self.inbound.iter().flatten().any(|channel| channel.owes())
            || self.handshakes.iter().any(Option::is_some)
            || self.accept_paused
    }

    fn tick(&mut self, shared: &Shared) -> bool {
        if self.ticker.is_none() {
            self.ticker = Ticker::new()
                .ok()
                .filter(|ticker| shared.epoll.add(ticker.fd(), token::TICKER).is_ok());
        }
        if let Some(ticker) = &self.ticker {
            ticker.set(true);
        }
        self.ticker.is_some()
    }
}
