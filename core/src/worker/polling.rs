//! Polling one interface, and the less frequent polls of idle interfaces.

use super::WorkerState;
use super::abi::{Hand, Polls, all_of};
use crate::Status;
use std::rc::Rc;

impl WorkerState {
    /// Polls an interface and dispatches its events, and returns their number.
    #[inline(always)] // inlined into `progress`
    pub(super) fn poll(self: &Rc<Self>, index: usize, polls: &mut Polls<'_>) -> usize {
        let slot = &self.shared.interfaces[index];
        let hand_on = |hand: Hand<'_>| {
            slot.quiet.set(0);
            self.hand_on(hand);
        };
        match all_of((index, &slot.interface), &self.left_over, polls, hand_on) {
            Ok(count) => count,
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
        self.poll(index, polls)
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
        }
        count
    }

    pub(super) fn let_quiet_rest(&self) {
        self.fast.look(|index| &self.shared.interfaces[index].quiet);
    }
}
