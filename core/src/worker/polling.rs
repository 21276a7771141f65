//! Polls of the interfaces whose turn it is, the words that are compared instead of a poll, and the tasks of other threads.

use super::WorkerState;
use super::abi::{Hand, Polls, Turn, polled, polled_into};
use super::schedule::Others;
use crate::Status;
use crate::interface::InterfaceSlot;
use std::rc::Rc;
use tieline_host::abi::events::Batch;
use tieline_host::abi::{Look, WatchWords};
use tieline_plugin_api::abi::WATCH_CALLS;

impl WorkerState {
    /// Compares the words of the only active interface. Unchanged: this progress call has nothing to do, and it is not the turn of the
    /// interface to be polled regardless of that. Then the call is counted here.
    #[inline(always)] // inlined into `progress`
    pub(super) fn has_nothing_to_do(&self, turn: &Turn<'_>) -> Look {
        let shared = &*self.shared;
        let left = self.schedule.left();
        let look = turn.look(shared, shared.watch.get(), || left % WATCH_CALLS != 0);
        if look == Look::Unchanged {
            self.schedule.count(left);
        }
        look
    }

    /// Checks whether the only active interface is polled without any other step.
    pub(super) fn is_polled_alone(&self) -> bool {
        self.shared.watch.get().are_of_one_alone() && self.shared.same_process()
    }

    /// Chooses the words that progress calls compare, after a change of the active interfaces or of the pending work. An interface
    /// without words is chosen for polls without any other step.
    pub(super) fn choose_watch(&self) {
        let only = self.schedule.note_only();
        let has_more = self.shared.has_work.get() || self.closed.get() || self.left_over.is_there();
        let slot = only.filter(|_| !has_more).map(|only| &self.shared.interfaces[only]);
        let has_words = |slot: &&InterfaceSlot| slot.words.get().are_there();
        let alone = slot.filter(|slot| !has_words(slot) && slot.out_of_use.borrow().is_none());
        self.alone.set(alone.map(|slot| &slot.interface));
        let watched = slot.filter(|slot| has_words(slot) && self.schedule.all_are_awake());
        self.shared.watch.set(match (alone, watched) {
            (Some(_), _) => WatchWords::ALONE,
            (_, Some(slot)) => slot.words.get(),
            _ => WatchWords::NONE,
        });
    }

    /// Polls several active interfaces, except those that are quiet and whose turn does not come regardless of that.
    #[inline(never)]
    pub(super) fn poll_several(self: &Rc<Self>, polls: &mut Polls<'_>) -> usize {
        let all = self.schedule.left() % WATCH_CALLS == 0;
        let mut count = 0;
        for index in self.schedule.awake() {
            let slot = &self.shared.interfaces[index];
            if !polls.is_quiet(&self.shared, slot.words.get(), || !all) {
                count += self.poll_rarely(index, polls);
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
        let hand = polled((index, &slot.interface), &self.left_over, polls, &mut batch);
        self.dispatched((index, slot), hand)
    }

    /// Dispatches the events of a poll, and returns their number.
    #[inline(always)] // inlined into `progress`
    pub(super) fn dispatched(
        self: &Rc<Self>,
        (index, slot): (usize, &InterfaceSlot),
        hand: Result<Hand<'_>, Status>,
    ) -> usize {
        match hand {
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

    /// Does the same as `poll`, with the array of the running progress call, and with a short path for a poll without events.
    #[inline(always)]
    pub(super) fn poll_quickly(self: &Rc<Self>, index: usize, polls: &mut Polls<'_>) -> usize {
        let slot = &self.shared.interfaces[index];
        match polled_into((index, &slot.interface), &self.left_over, polls, &self.alone) {
            Ok(hand) if hand.count() == 0 => 0,
            hand => self.dispatched_rarely(index, hand),
        }
    }

    #[inline(never)]
    fn dispatched_rarely(self: &Rc<Self>, index: usize, hand: Result<Hand<'_>, Status>) -> usize {
        self.dispatched((index, &self.shared.interfaces[index]), hand)
    }

    /// Does the same as `poll`, for an interface that is not polled in every call.
    #[inline(never)]
    pub(super) fn poll_rarely(self: &Rc<Self>, index: usize, polls: &mut Polls<'_>) -> usize {
        self.poll((index, &self.shared.interfaces[index]), polls)
    }

    /// Polls the interfaces whose turn comes at this number of calls before the next slow poll. `busy`: this call has dispatched
    /// events.
    #[inline(never)]
    pub(super) fn poll_others(
        self: &Rc<Self>,
        left: u32,
        busy: bool,
        polls: &mut Polls<'_>,
    ) -> usize {
        match self.schedule.others(left, busy) {
            Others::None => 0,
            Others::Resting => self.poll_resting(polls),
            Others::Slow => self.poll_slow(polls),
        }
    }

    /// Polls the idle interfaces.
    #[cold]
    fn poll_resting(self: &Rc<Self>, polls: &mut Polls<'_>) -> usize {
        self.poll_idle(polls)
    }

    /// Does the same as `poll_resting`.
    #[inline(always)]
    pub(super) fn poll_idle(self: &Rc<Self>, polls: &mut Polls<'_>) -> usize {
        let mut count = 0;
        for index in self.schedule.resting() {
            count += self.poll_quickly(index, polls);
        }
        if count > 0 {
            self.schedule.wake(|index| &self.shared.interfaces[index].quiet);
            self.choose_watch();
        }
        count
    }

    /// Polls the interfaces that need a system call.
    #[cold]
    fn poll_slow(self: &Rc<Self>, polls: &mut Polls<'_>) -> usize {
        self.shared.entrance.note_thread();
        let tasks = self.run_tasks();
        let has_mailboxes = || !self.mailboxes.borrow().is_empty();
        if self.schedule.was_for_tasks(has_mailboxes()) {
            return tasks;
        }
        self.take_out_broken();
        self.let_closed_go();
        let poll = self.schedule.begin();
        let of_interfaces = self.schedule.poll_slow(&poll, |index| self.poll_rarely(index, polls));
        let connected = self.schedule.poll_connectors(&poll, || self.poll_wiring(polls));
        if tasks + connected > 0 {
            self.schedule.all_are_hot();
        }
        self.answer_names();
        self.watched.polled(&self.poller, &self.shared.interfaces);
        let resting = self.poll_resting(polls);
        let count = tasks + of_interfaces + connected;
        let is_quiet = self.schedule.end(&poll, count > 0, !self.wiring.is_idle(), has_mailboxes());
        if is_quiet {
            self.schedule.let_rest(|index| &self.shared.interfaces[index].quiet);
            self.choose_watch();
        }
        self.show_poll(is_quiet);
        count + resting
    }

    /// Checks whether another thread has submitted a task.
    pub(super) fn has_tasks(&self) -> bool {
        self.mailboxes.borrow().iter().any(|mailbox| mailbox.has_tasks())
    }

    /// Runs the tasks that other threads have submitted.
    fn run_tasks(self: &Rc<Self>) -> usize {
        if self.mailboxes.borrow().is_empty() {
            return 0;
        }
        // The list is not borrowed while a task runs: the task may open another mailbox or close the worker.
        let all = self.mailboxes.borrow().clone();
        let count = all.iter().map(|mailbox| mailbox.run(self)).sum();
        // The removed mailboxes are kept until nothing is borrowed, because dropping their state may call any function. `all` lacks
        // the mailboxes that a task has opened.
        let mut gone = Vec::new();
        self.mailboxes.borrow_mut().retain(|mailbox| {
            let stays = !mailbox.is_abandoned();
            gone.extend((!stays).then(|| mailbox.clone()));
            stays
        });
        drop((all, gone));
        count
    }
}
