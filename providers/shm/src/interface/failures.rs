//! The failed endpoints, and the time at which the application is notified: after all data that peers had written to this side
//! before.
//!
//! A peer that answers and then closes or dies has written before its socket ended, possibly to another channel. A sender that
//! notices the end first must not consider the answer lost. The answer may be in a ring that is polled later, or in a channel that
//! the application does not know yet or that is not admitted yet. Therefore the waiting peers are admitted first. The interface
//! then notes, for each ring, the position after which nothing can have been written at that time. The failures are reported when
//! every ring is empty or has reached that position, or when polls make no progress. The delay is bounded by the length of the
//! rings, even if peers keep writing, and by the number of polls without progress.

use super::handshakes::MOST_ACCEPTED;
use super::*;
use tieline_plugin_api::event_flags;

/// The number of polls without progress for which failures wait, apart from those added for each channel.
const WITHOUT_PROGRESS: usize = 64;
/// The maximum number of passes over the rings in one poll: a change of a channel's mode ends a pass.
const LOOKS: u32 = 4;

impl Telling {
    /// Checks whether waiting has made no progress for too long.
    fn is_stuck(&mut self, left: u64, channels: usize) -> bool {
        if left < self.left {
            self.waited = 0;
        }
        self.left = left;
        self.waited += 1;
        self.waited > WITHOUT_PROGRESS + 2 * channels
    }
}

impl State {
    #[cold]
    pub(super) fn tell_failures(&mut self, shared: &Shared, cookie: &Id, events: &mut Events<'_>) {
        shared.due.call();
        if self.telling.notices.is_empty() {
            let channels = self.inbound.len();
            if !self.everybody_is_in(shared, cookie) && !self.telling.is_stuck(u64::MAX, channels) {
                return;
            }
            self.telling.notices.append(&mut shared.failures.borrow_mut());
            self.inbound.iter_mut().flatten().for_each(|channel| channel.note_place());
            (self.telling.left, self.telling.waited) = (u64::MAX, 0);
        }
        let mut left = self.unread();
        for _ in 0..LOOKS {
            if left == 0 || events.room() == 0 {
                break;
            }
            self.poll_bells(shared, events);
            self.poll_direct(shared, events);
            left = self.unread();
        }
        if left > 0 && !self.telling.is_stuck(left, self.inbound.len()) {
            return;
        }
        while events.room() > 0 {
            let Some((index, notice)) = self.telling.notices.pop_front() else { break };
            if let Some(Some(channel)) = self.outbound.get(index) {
                // Unreceived messages are sent by another route. Until the application has them, this channel has no room.
                let untaken = notice.event.kind == event::RETURNED
                    || notice.event.flags & event_flags::UNTAKEN != 0;
                if channel.cookie == notice.event.cookie && !untaken {
                    channel.told();
                }
            }
            let _ = events.push(notice.event());
            self.handed_out.push(notice);
        }
    }

    /// Admits the waiting peers, and returns whether all of them are admitted.
    fn everybody_is_in(&mut self, shared: &Shared, cookie: &Id) -> bool {
        if self.accept_paused || self.accept_some(shared, cookie) == MOST_ACCEPTED {
            return false;
        }
        (0..self.handshakes.len()).for_each(|index| self.read_greeting(index, shared, cookie));
        !self.accept_paused
    }

    /// Returns an upper bound of the unread slots before the noted positions. Marks the bells of these channels as rung, because a
    /// bell may have been lost with its sender.
    fn unread(&mut self) -> u64 {
        let mut left = 0;
        for (index, slot) in self.inbound.iter_mut().enumerate() {
            let Some(channel) = slot else { continue };
            let unread = channel.unread();
            left += unread;
            if unread > 0 && channel.bell && !channel.fast {
                self.bells[index / 64].rung |= 1 << (index % 64);
            }
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of polls for which failures wait if `left` slots remain at each poll.
    fn patience(telling: &mut Telling, left: u64, channels: usize) -> usize {
        (0..10_000).take_while(|_| !telling.is_stuck(left, channels)).count()
    }

    #[test]
    fn failures_wait_during_progress_and_else_for_bounded_polls() {
        for channels in [0, 1, 100] {
            let polls = WITHOUT_PROGRESS + 2 * channels;
            let mut telling = Telling { left: u64::MAX, ..Telling::default() };
            assert_eq!(patience(&mut telling, 10, channels), polls, "{channels}");
            assert!(telling.is_stuck(10, channels) && telling.is_stuck(11, channels));
            assert_eq!(patience(&mut telling, 9, channels), polls, "one less is progress");
            for left in (0..9).rev() {
                assert!(!telling.is_stuck(left, channels));
            }
            assert_eq!(patience(&mut telling, 0, channels), polls - 1);
        }
    }
}
