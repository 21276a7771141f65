//! Polls of the interfaces whose turn it is, the words that are compared instead of a poll, and the tasks of other threads.

use super::WorkerState;
use super::abi::{Polls, Turn, polled};
use super::schedule::Others;
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
        let left = self.schedule.left();
        let quiet = turn.is_quiet(shared, shared.watch.get(), || left % WATCH_CALLS != 0);
        if quiet {
            self.schedule.count(left);
        }
        quiet
    }

    /// Chooses the words that progress calls compare, after a change of the active interfaces or of the pending work.
    pub(super) fn choose_watch(&self) {
        let may_watch = !self.shared.has_work.get() && !self.closed.get();
        let only = self.schedule.note_only().filter(|_| may_watch);
        let watched = only.map(|only| &self.shared.interfaces[only]);
        self.shared.watch.set(watched.map_or(WatchWords::NONE, |slot| slot.words.get()));
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
        if self.schedule.all_are_awake() {
            return 0;
        }
        let count = self.schedule.resting().map(|index| self.poll_rarely(index, polls)).sum();
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
