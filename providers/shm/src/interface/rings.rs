//! Polls the rings: those of the direct list, and those whose doorbell was rung, in turn.

use super::*;
use crate::order;
use crate::receiver::Drained;
use tieline_plugin_api::NO_GOODBYE;
use tieline_plugin_api::abi::WATCH_CALLS;

/// The maximum number of drained channels that are ended in one poll.
const MOST_ENDED: usize = 64;

/// Returns the lowest bell of a word that was rung and is in the mask.
#[inline]
fn lowest(rung: u64, mask: u64) -> Option<u32> {
    let there = rung & mask;
    (there != 0).then(|| there.trailing_zeros())
}

impl State {
    /// Returns the only direct channel. `None`: there is more to do than to drain this channel.
    #[inline(always)]
    pub(super) fn only_channel(&mut self, due: &Due) -> Option<&mut RecvChannel> {
        let has_more = due.is_next() || self.bells_first || !self.touched.is_empty();
        let ([index], [bell], false) = (&self.direct[..], &self.bells[..], has_more) else {
            return None;
        };
        if bell.rung | bell.word.get().load(Ordering::Relaxed) != 0 {
            return None;
        }
        Some(self.inbound.get_mut(*index as usize)?.as_mut()?)
    }

    /// Drains the channels of the direct list.
    #[inline(always)]
    pub(super) fn poll_direct(&mut self, shared: &Shared, events: &mut Events<'_>) {
        if let [index] = self.direct[..] {
            if let Some(Some(channel)) = self.inbound.get_mut(index as usize) {
                let end = channel.drain(shared, events);
                if end != Drained::Quiet {
                    self.not_quiet(0, index, end, shared);
                }
                return;
            }
        }
        self.poll_all_direct(shared, events);
    }

    #[inline(never)]
    fn poll_all_direct(&mut self, shared: &Shared, events: &mut Events<'_>) {
        let mut at = self.start;
        let mut left = self.direct.len();
        while left > 0 {
            if at >= self.direct.len() {
                at = 0;
            }
            let index = self.direct[at];
            let Some(Some(channel)) = self.inbound.get_mut(index as usize) else {
                return self.prune_lists(shared);
            };
            match channel.drain(shared, events) {
                Drained::Quiet => {}
                end => return self.not_quiet(at, index, end, shared),
            }
            at += 1;
            left -= 1;
        }
    }

    /// Handles channel `at` of the direct list, which was not drained to its end.
    #[inline(never)]
    fn not_quiet(&mut self, at: usize, index: u32, end: Drained, shared: &Shared) {
        match self.inbound.get(index as usize) {
            Some(Some(channel)) if end == Drained::Full && !channel.turned => {
                self.begin_elsewhere(at);
            }
            _ => self.changed(index, end, shared),
        }
    }

    /// Drains the channels whose bells were rung before those of the direct list.
    #[inline(never)]
    pub(super) fn poll_bells_first(&mut self, shared: &Shared, events: &mut Events<'_>) {
        self.poll_bells(shared, events);
        self.poll_all_direct(shared, events);
        // If the events sufficed, all channels have had their turn.
        self.bells_first = events.room() == 0;
    }

    /// Ends a poll without events. If the core compares words, it gets a new list, and a poll that follows a list stands for as many
    /// polls as the core may have left out.
    #[inline(never)]
    pub(super) fn nothing_came(&mut self, shared: &Shared, cookie: &Id, events: &mut Events<'_>) {
        let due = &shared.due;
        if !due.watches.get() {
            return;
        }
        if !due.watch.is_empty() && due.count_more(WATCH_CALLS - 1) {
            self.slow_progress(shared, cookie, events);
        }
        due.watch.clear();
        if events.is_empty() {
            self.list_words(&due.watch, due);
        }
    }

    /// Lists the words that change when a message arrives, unless the next poll has something else to do. An application that polls
    /// rarely gets no list: its first contacts and goodbyes wait for polls.
    fn list_words(&self, watch: &Watch, due: &Due) {
        let polls_rarely = self.clock_every < CLOCK_EVERY / 2;
        let is_rung = self.bells.iter().any(|bell| bell.rung != 0);
        if polls_rarely || is_rung || due.is_called() || !self.touched.is_empty() {
            return;
        }
        let channel = |&index: &u32| self.inbound.get(index as usize)?.as_ref()?.watch();
        let channels = self.direct.iter().map(channel);
        if channels.clone().all(|word| word.is_some()) {
            let bells = self.bells.iter().map(|bell| (bell.word.get(), 0));
            watch.set(channels.flatten().chain(bells));
        }
    }

    /// Records that channel `at` of the direct list has more messages. The next poll begins with it. If the channel was the first
    /// in this poll and had the whole event array, the next poll begins with its successor. So every channel comes first in turn.
    fn begin_elsewhere(&mut self, at: usize) {
        let first = if self.start < self.direct.len() { self.start } else { 0 };
        let had_room = !std::mem::take(&mut self.bells_took_all);
        self.start = if at == first && had_room { at + 1 } else { at };
    }

    #[inline(always)]
    pub(super) fn poll_bells(&mut self, shared: &Shared, events: &mut Events<'_>) {
        for bell in &self.bells {
            if bell.rung | bell.word.get().load(Ordering::Relaxed) != 0 {
                return self.answer_bells(shared, events);
            }
        }
    }

    /// Drains the channels whose bits are set, in a circle that begins after the channel that filled the events of an earlier poll.
    #[inline(never)]
    fn answer_bells(&mut self, shared: &Shared, events: &mut Events<'_>) {
        let words = self.bells.len();
        for bell in &mut self.bells {
            bell.rung |= bell.word.get().swap(0, order::TAKE_BELL);
        }
        let (first, behind) = (self.first_bell / 64, u64::MAX << (self.first_bell % 64));
        // The first word is visited twice: from the start position on, and at the end below that position.
        for step in 0..=words {
            let word = (first + step) % words;
            let mask = match step {
                0 => behind,
                last if last == words => !behind,
                _ => u64::MAX,
            };
            while events.room() > 0 {
                let Some(bit) = lowest(self.bells[word].rung, mask) else { break };
                let index = word as u32 * 64 + bit;
                if !self.answer(index, shared, events) {
                    self.first_bell = (index as usize + 1) % (words * 64);
                    self.bells_took_all = events.room() == 0;
                    return;
                }
                self.bells[word].rung &= !(1 << bit);
            }
        }
        self.bells_took_all = events.room() == 0;
    }

    /// Drains one channel whose bell was rung. Any peer with the page can ring any bell. Returns `false` if the channel has more
    /// messages and other channels come first.
    fn answer(&mut self, index: u32, shared: &Shared, events: &mut Events<'_>) -> bool {
        let Some(Some(channel)) = self.inbound.get_mut(index as usize) else { return true };
        if !channel.bell || channel.fast {
            return true;
        }
        let mut end = channel.drain(shared, events);
        if end == Drained::Quiet && channel.is_corrupt() {
            // Without another ring of the bell there might be no further call.
            end = Drained::Broken;
        }
        if channel.is_behind() {
            self.touched.push(index);
        }
        match end {
            Drained::Full if !channel.turned => return false,
            Drained::Quiet => {}
            end => self.changed(index, end, shared),
        }
        true
    }

    /// Releases the slots that the previous poll delivered from channels off the direct list.
    #[cold]
    pub(super) fn release_touched(&mut self) {
        for index in self.touched.drain(..) {
            if let Some(Some(channel)) = self.inbound.get_mut(index as usize) {
                channel.publish();
            }
        }
    }

    /// Handles a channel that has changed its mode. The slots that this poll delivered are not released here.
    #[cold]
    pub(super) fn changed(&mut self, index: u32, end: Drained, shared: &Shared) {
        let Some(Some(channel)) = self.inbound.get_mut(index as usize) else { return };
        if end == Drained::Broken {
            channel.leave(shared, Status::BadData as i32, Some(Refusal::BadChannel));
            return self.end_channel(index, shared);
        }
        channel.turned = false;
        let (by_bell, full) = (channel.bell && !channel.fast, end == Drained::Full);
        self.direct.retain(|&i| i != index);
        self.touched.retain(|&i| i != index);
        if by_bell {
            self.touched.push(index);
            if full {
                self.bells[index as usize / 64].rung |= 1 << (index % 64);
            }
        } else {
            self.direct.push(index);
        }
    }

    /// Ends a channel: it is not polled any more, and the application is notified.
    pub(super) fn end_channel(&mut self, index: u32, shared: &Shared) {
        self.take_out(index, shared);
        self.prune_lists(shared);
    }

    /// Removes ended channels from every list.
    #[cold]
    fn prune_lists(&mut self, shared: &Shared) {
        let is_there = |&i: &u32| self.inbound.get(i as usize).is_some_and(Option::is_some);
        self.direct.retain(is_there);
        self.touched.retain(is_there);
        self.leaving.retain(is_there);
        shared.ended.borrow_mut().retain(is_there);
    }

    fn take_out(&mut self, index: u32, shared: &Shared) {
        let Some(Some(channel)) = self.inbound.get(index as usize) else { return };
        let status = channel.leaving.unwrap_or(Status::PeerFailed as i32);
        if channel.granted {
            shared.fast_boxes.set(shared.fast_boxes.get().saturating_sub(1));
        }
        self.ended_channels.extend(self.inbound[index as usize].take().map(|channel| *channel));
        let event =
            Event { kind: event::PEER_LEFT, status, peer: u64::from(index), ..Event::empty() };
        let died = status == Status::PeerFailed as i32;
        shared.notify(event, if died { NO_GOODBYE.as_bytes() } else { &[] });
    }

    /// Ends channels whose sender has disconnected, when everything that the sender had published before is delivered. They are
    /// drained in turn, as before; a ring that keeps filling is not waited for.
    pub(super) fn end_drained(&mut self, shared: &Shared) {
        self.leaving.append(&mut shared.ended.borrow_mut());
        // The arrivals of these peers must be reported first.
        if self.leaving.is_empty() || !shared.notices.borrow().is_empty() {
            if !self.leaving.is_empty() {
                shared.due.call();
            }
            return;
        }
        let mut ended = 0;
        for index in self.leaving.clone() {
            let Some(Some(channel)) = self.inbound.get(index as usize) else { continue };
            if channel.is_drained() && ended < MOST_ENDED {
                ended += 1;
                self.take_out(index, shared);
            } else if channel.bell && !channel.fast {
                self.bells[index as usize / 64].rung |= 1 << (index % 64);
            }
        }
        if ended > 0 {
            self.prune_lists(shared);
        }
        if !self.leaving.is_empty() {
            shared.due.call();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::lowest;

    /// A loop over all bells would not end if it took a bell that was not rung.
    #[test]
    fn only_a_bell_that_has_rung_and_whose_turn_it_is_is_answered() {
        assert_eq!(lowest(0b1010, u64::MAX), Some(1));
        assert_eq!(lowest(0b1010, !0b11), Some(3));
        assert_eq!(lowest(1 << 63, u64::MAX << 63), Some(63));
        for (rung, mask) in [(0, u64::MAX), (u64::MAX, 0), (0b11, !0b11), (0, 0)] {
            assert_eq!(lowest(rung, mask), None, "{rung:#b} of {mask:#b}");
        }
    }
}
