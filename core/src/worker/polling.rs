//! Polling one interface, the less frequent polls of idle interfaces, and the words that are compared instead of a poll.

use super::WorkerState;
use super::abi::{Polls, Turn, polled};
use crate::Status;
use crate::interface::InterfaceSlot;
use std::rc::Rc;
use tieline_host::abi::WatchWords;
use tieline_host::abi::events::Batch;
use tieline_plugin_api::abi::WATCH_CALLS;

impl WorkerState {
    /// Checks whether this progress call has nothing to do: the only active interface is quiet, and it is not its turn to be polled
    /// regardless of that. Then the call is counted here.
    #[inline(always)] // inlined into `progress`
    pub(super) fn has_nothing_to_do(&self, turn: &Turn<'_>) -> bool {
        let shared = &*self.shared;
        let left = self.slow_in.get();
        let quiet = turn.is_quiet(shared, shared.watch.get(), || left % WATCH_CALLS != 0);
        if quiet {
            self.slow_in.set(left - 1);
        }
        quiet
    }

    /// Chooses the words that progress calls compare, after a change of the active interfaces or of the pending work.
    pub(super) fn choose_watch(&self) {
        let (slots, awake) = (&self.shared.interfaces, self.fast.awake());
        let only = if let [only] = awake { only.get() } else { usize::MAX };
        self.only.set(only);
        let may_watch =
            self.fast.all_are_awake() && !self.shared.has_work.get() && !self.closed.get();
        let watched = slots.get(only).filter(|_| may_watch);
        self.shared.watch.set(watched.map_or(WatchWords::NONE, |slot| slot.words.get()));
    }

    /// Polls several active interfaces, except those that are quiet and whose turn does not come regardless of that.
    #[inline(never)]
    pub(super) fn poll_several(self: &Rc<Self>, polls: &mut Polls<'_>) -> usize {
        let all = self.slow_in.get() % WATCH_CALLS == 0;
        let mut count = 0;
        for index in self.fast.awake() {
            let slot = &self.shared.interfaces[index.get()];
            if !polls.is_quiet(&self.shared, slot.words.get(), || !all) {
                count += self.poll_rarely(index.get(), polls);
            }
        }
        count
    }

    /// Polls an interface and dispatches its events, and returns their number.
    #[inline(always)] // inlined into `progress`
    pub(super) fn poll(
        self: &Rc<Self>,
        (index, slot): (usize, &InterfaceSlot),
        polls: &mut Polls<'_>,
    ) -> usize {
        let mut batch = Batch::new();
        match polled((index, &slot.interface), &self.left_over, polls, &mut batch) {
            Ok(hand) => {
                let count = hand.count();
                if count > 0 {
                    slot.quiet.set(0);
                    self.hand_on(hand);
                }
                count
            }
            Err(status) => self.poll_failed(index, status),
        }
    }

    /// Handles a failed poll. Only the first failure counts as an event: a repeated failure must not keep a wait from sleeping.
    #[cold]
    fn poll_failed(&self, index: usize, status: Status) -> usize {
        let news = self.shared.interfaces[index].out_of_use.borrow().is_none();
        match status {
            Status::ProviderFailed => self.provider_failed(index),
            status => self.interface_failed(index, status),
        }
        usize::from(news)
    }

    /// Does the same as `poll`, for an interface that is not polled in every call.
    #[inline(never)]
    pub(super) fn poll_rarely(self: &Rc<Self>, index: usize, polls: &mut Polls<'_>) -> usize {
        self.poll((index, &self.shared.interfaces[index]), polls)
    }

    /// Polls the idle interfaces.
    #[cold]
    pub(super) fn poll_resting(self: &Rc<Self>, polls: &mut Polls<'_>) -> usize {
        if self.fast.all_are_awake() {
            return 0;
        }
        let resting = self.fast.resting().iter();
        let count = resting.map(|index| self.poll_rarely(index.get(), polls)).sum();
        if count > 0 {
            self.fast.wake(|index| &self.shared.interfaces[index].quiet);
            self.choose_watch();
        }
        count
    }

    pub(super) fn let_quiet_rest(&self) {
        self.fast.look(|index| &self.shared.interfaces[index].quiet);
        self.choose_watch();
    }
}
