//! Progress: dispatching the events of polls, and advancing queued operations.

use super::abi::{Asked, Hand, Polls, Running, Turn};
use super::completed::is_success;
use super::inner::{Handler, set_handler};
use super::rounds::EACH;
use super::wireup_transports::TRANSPORT_COOKIE;
use super::{Counters, WorkerState};
use crate::address::WorkerAddress;
use crate::endpoint::{EndpointState, flush::run_due, shared_copy::run as run_copies};
use crate::interface::{InterfaceSlot, PeerId};
use crate::mem::local::LocalBuffer;
use crate::message::Message;
use crate::message::abi::Handed;
use crate::proto::Origin;
use crate::proto::id::{ANNOUNCE, ANNOUNCE_HEADED, DELIVER, FIRST, HEADED};
use crate::shared::End;
use crate::{Error, Status};
use std::panic::resume_unwind;
use std::rc::Rc;
use tieline_host::abi::events::{Polled, payload};
use tieline_host::abi::{Look, WatchWords};
use tieline_order::Id;
use tieline_plugin_api::{event, event_flags};

const OUTCOME_UNKNOWN: i32 = Status::OutcomeUnknown as i32;
const REFUSED: i32 = Status::KeyRejected as i32;
/// The maximum number of reports of messages and notifications without a handler. Each combination of id and sender is reported
/// once.
const TOLD_UNHANDLED: u32 = 16;
/// The number of queued operations that an endpoint may post in one round.
const TURN: usize = 16;

impl WorkerState {
    #[inline(always)] // a call with nothing to do is short
    pub(crate) fn progress(self: &Rc<Self>) -> usize {
        // The call begins before it reads a word: the exit of the process, which may unmap the words, closes the entrance first, and
        // then looks for a progress call that has begun.
        let Some(mut running) = Running::begin(&self.shared) else { return 0 };
        match self.has_nothing_to_do(&running.turn()) {
            Look::Unchanged => 0,
            Look::Changed | Look::Empty => self.progress_by_polls(running),
            Look::Other => self.progress_alone(running),
        }
    }

    /// Polls the only active interface without any other step, if it is not the turn of others.
    #[inline(always)] // inlined into `progress`
    fn progress_alone(self: &Rc<Self>, mut running: Running<'_>) -> usize {
        let may_poll = self.schedule.left() % EACH != 0;
        let asked = running.turn().ask(&self.alone, self.shared.watch.get(), may_poll);
        if asked.is_quiet() {
            self.schedule.count(self.schedule.left());
            return 0;
        }
        self.progress_behind(running, asked)
    }

    /// Dispatches the events of the only active interface, and does the pending work.
    #[inline(never)]
    fn progress_behind(self: &Rc<Self>, mut running: Running<'_>, asked: Asked) -> usize {
        let Some(mut answer) = running.turn().answer(asked, &self.alone) else {
            let left = self.schedule.left();
            return match self.schedule.is_turn_of_idle(left) && self.is_polled_alone() {
                true => self.progress_with_idle(running, left),
                false => self.progress_by_polls(running),
            };
        };
        let only = self.schedule.only();
        let slot = &self.shared.interfaces[only];
        let count = self.dispatched((only, slot), answer.hand(only, &self.left_over));
        let polls = answer.polls(&self.left_over);
        polls.map_or(count, |mut polls| self.end_of_polls(count, &mut polls))
    }

    /// Polls the only active interface and the idle ones, at this number of calls before the next slow poll.
    #[inline(always)] // inlined into `progress_behind`
    fn progress_with_idle(self: &Rc<Self>, mut running: Running<'_>, left: u32) -> usize {
        let turn = running.turn();
        let Some(mut polls) = turn.polls(&self.left_over) else { return 0 };
        let of_active = self.poll_quickly(self.schedule.only(), &mut polls);
        let count = of_active + self.poll_idle(&mut polls);
        if count == 0 {
            self.schedule.count(left);
            return 0;
        }
        // A handler may have made the slow interfaces due.
        match self.schedule.left() {
            0 => {}
            left => self.schedule.count(left),
        }
        if self.shared.has_work.get() { count + self.work() } else { count }
    }

    #[inline(never)] // its frame is large, and a call with nothing to do needs none
    fn progress_by_polls(self: &Rc<Self>, mut running: Running<'_>) -> usize {
        if !self.shared.same_process() {
            return 0;
        }
        match running.turn().polls(&self.left_over) {
            Some(mut polls) => self.poll_all(&mut polls),
            None => self.progress_behind_left_over(running),
        }
    }

    /// Makes progress after the backlog that a panicked handler left.
    #[cold]
    fn progress_behind_left_over(self: &Rc<Self>, mut running: Running<'_>) -> usize {
        let mut turn = running.turn();
        let count = self.hand_on_left_over(&mut turn);
        let polls = turn.polls(&self.left_over);
        count + polls.map_or(0, |mut polls| self.poll_all(&mut polls))
    }

    /// Polls the interfaces whose turn it is, and does the pending work.
    #[inline(always)] // inlined into `progress_by_polls`
    fn poll_all(self: &Rc<Self>, polls: &mut Polls<'_>) -> usize {
        let only = self.schedule.only();
        let count = match self.shared.interfaces.get(only) {
            Some(slot) => self.poll((only, slot), polls),
            None => self.poll_several(polls),
        };
        self.end_of_polls(count, polls)
    }

    /// Polls the other interfaces if it is their turn, and does the pending work. `count` is the number of events so far.
    #[inline(always)] // inlined into `progress_by_polls`
    fn end_of_polls(self: &Rc<Self>, mut count: usize, polls: &mut Polls<'_>) -> usize {
        let left = self.schedule.left();
        match left % EACH {
            0 => count += self.poll_others(left, count > 0, polls),
            _ => self.schedule.count(left),
        }
        if self.shared.has_work.get() {
            count += self.work();
        }
        count
    }

    /// Releases the kept endpoints that wait for nothing any more.
    pub(super) fn let_closed_go(&self) {
        if self.kept.borrow().is_empty() {
            return;
        }
        let ops = self.shared.ops.borrow();
        let open = |(flush, endpoint): &(Option<Id>, Rc<EndpointState>)| match flush {
            Some(flush) => ops.is_open(*flush),
            None => ops.announced_of(endpoint.index) > 0,
        };
        let (stay, gone) = self.kept.take().into_iter().partition::<Vec<_>, _>(open);
        drop(ops);
        self.kept.borrow_mut().extend(stay);
        drop(gone);
    }

    #[inline(always)] // inlined into `progress`
    pub(super) fn hand_on(self: &Rc<Self>, hand: Hand<'_>) {
        let index = hand.interface();
        let handlers = self.handlers.borrow();
        let mut message = Message::new(Polled::NONE, &self.inbox, index);
        let mut events = hand.begin();
        while let Some(event) = events.next() {
            // The usual messages come first, and everything else is out of line.
            if event.kind == event::MESSAGE && event.flags & event_flags::LENT == 0 {
                if let Some(Some(handler)) = handlers.get(event.id as usize) {
                    message.turn_to(event.not_lent());
                    handler(&message);
                    continue;
                }
            }
            if is_success(&event) {
                let (count, lets_go) = self.ended_well(index, &event, events.following());
                if count > 0 {
                    events.skip(count - 1);
                    if lets_go {
                        self.let_go();
                    }
                    continue;
                }
            }
            self.hand_on_other(index, event, &handlers);
        }
    }

    /// Dispatches an event that is neither a message without a loan nor the end of an operation.
    #[inline(never)]
    fn hand_on_other(
        self: &Rc<Self>,
        index: usize,
        event: Handed<'_>,
        handlers: &[Option<Handler>],
    ) {
        if event.kind == event::MESSAGE {
            if let Some(Some(handler)) = handlers.get(event.id as usize) {
                if let Ok(lent) = event.lent() {
                    lent.hand_to(&self.inbox, index, handler);
                }
                return;
            }
        }
        self.other_event(index, event);
        // Peer events precede the messages that a peer may have sent after reconnecting.
        let _ = self.notify_of_peer_events();
    }

    /// Dispatches the backlog that a panicked handler left.
    #[cold]
    fn hand_on_left_over(self: &Rc<Self>, turn: &mut Turn<'_>) -> usize {
        // Peer events precede the messages that a peer may have sent after reconnecting.
        let count = self.notify_of_peer_events();
        count + self.left_over.hand_on(turn, |hand| self.hand_on(hand))
    }

    #[cold]
    #[inline(never)] // keeps rare cases out of the poll loop
    fn other_event(self: &Rc<Self>, index: usize, event: Handed<'_>) {
        let slot = &self.shared.interfaces[index];
        match event.kind {
            event::MESSAGE => {
                let id = event.id as u16;
                if id >= FIRST && event.id <= u32::from(u16::MAX) {
                    let from = Origin {
                        peer: slot.peer(event.peer).0,
                        circuit: slot.to_endpoint.then_some(event.peer),
                    };
                    if matches!(id, HEADED | DELIVER) {
                        return self.hand_on_headed(index, event, from);
                    }
                    if matches!(id, ANNOUNCE | ANNOUNCE_HEADED) {
                        return self.on_announce(index, event, from);
                    }
                    let word = self.handle(id, event.header, from, payload(&event));
                    event.give_back(slot);
                    if let Some(word) = word {
                        self.tell_notification(PeerId(from.peer), word);
                    }
                    return;
                }
                let what = format!("a message with the id {}", event.id);
                self.dropped_unhandled(&what, slot.peer(event.peer));
                event.give_back(slot);
            }
            event::NOTIFIED => match u32::try_from(event.header) {
                Ok(word) => self.tell_notification(slot.peer(event.peer), word),
                Err(_) => self.bump(|c| c.malformed += 1),
            },
            event::COMPLETION => {
                let result = match event.status {
                    0 => Ok(event.header),
                    OUTCOME_UNKNOWN => return self.outcome_unknown(index, &event),
                    status => {
                        if let Some(id) = Id::from_raw(event.cookie).filter(|_| status == REFUSED) {
                            self.key_refused(id);
                        }
                        let error = slot.failed_completion(&event);
                        // Only the completion of a list names the part that failed.
                        let of_list =
                            self.shared.ops.borrow().holds(event.cookie, LocalBuffer::is_of_list);
                        Err(error.at_index(of_list.then_some(event.id as usize)))
                    }
                };
                if !self.shared.with_ops(|ops| ops.completed(event.cookie, index, result)) {
                    // The operation has ended for the application, but its memory may still be held.
                    let late = self.shared.held.borrow_mut().completed(event.cookie, index);
                    if late.is_none() {
                        self.bump(|c| c.malformed += 1);
                    }
                    drop(late);
                }
            }
            event::PEER_ARRIVED => self.peer_arrived(slot, &event),
            event::PEER_LEFT => self.peer_left(slot, &event),
            event::RETURNED => {
                let endpoint = self.endpoint(event.cookie).filter(|_| !slot.to_endpoint);
                if let (Some(endpoint), Ok(id)) = (endpoint, u16::try_from(event.id)) {
                    endpoint.came_back(index, id, event.header, payload(&event));
                }
            }
            event::ENDPOINT_FAILED => {
                let words = String::from_utf8_lossy(payload(&event)).into_owned();
                let status = Status::from_code(event.status);
                if event.cookie >= TRANSPORT_COOKIE {
                    return self.transport_failed(event.cookie);
                }
                if slot.to_endpoint {
                    return self.circuit_failed(event.cookie, status, &words);
                }
                if let Some(endpoint) = self.endpoint(event.cookie) {
                    let error = self.circuit_error(&endpoint.address, status, &words);
                    let untaken = event.flags & event_flags::UNTAKEN != 0;
                    if untaken && endpoint.turned_away(index, &error) {
                        return self.avoid(endpoint.address.entry.worker, index);
                    }
                    endpoint.fail(error.clone());
                    self.endpoint_lost(slot, &endpoint, &error);
                }
            }
            _ => self.bump(|c| c.malformed += 1),
        }
    }

    /// Runs the handler for a peer's notification.
    fn tell_notification(&self, peer: PeerId, word: u32) {
        // The cell is not borrowed while the handler runs: the handler may register another one.
        let handler = self.on_notification.borrow().clone();
        match handler {
            Some(handler) => handler(peer, word),
            None => self.dropped_unhandled("a notification", peer),
        }
    }

    /// Counts a message of a peer for which this worker has no handler. The report names the first few, because the sender of an
    /// eager message or a notification gets no error.
    #[cold]
    pub(super) fn dropped_unhandled(&self, what: &str, from: PeerId) {
        let told = self.told_unhandled.get();
        if told < TOLD_UNHANDLED {
            let peers = self.peers.borrow();
            let address = peers.get(from.0).and_then(|peer| peer.address.as_ref());
            let who = address.map_or_else(|| "a peer".to_string(), WorkerAddress::label);
            let note = format!(
                "{what} came from {who}, and no handler is registered for it: it is dropped"
            );
            let is_new = self.shared.core.note_if_new(note);
            self.told_unhandled.set(told + u32::from(is_new));
        }
        self.bump(|c| c.unknown_ids += 1);
    }

    /// Ends an operation whose provider may access its memory until the operation's lane is closed.
    fn outcome_unknown(&self, index: usize, event: &Polled) {
        let error = self.shared.interfaces[index].failed_completion(event);
        let ended = self.shared.with_ops(|ops| ops.completed_unknown(event.cookie, index, error));
        match ended {
            Some((_, None)) => {}
            Some((owner, Some(op))) => match self.endpoint_at(owner) {
                Some(endpoint) => endpoint.hold(vec![op]),
                None => self.shared.hold_orphan(op),
            },
            // The operation ended earlier with its endpoint; its memory stays held.
            None if self.shared.held.borrow().has(event.cookie, index) => {}
            None => self.bump(|c| c.malformed += 1),
        }
    }

    /// Takes all interfaces of a provider out of use, and only these, because the provider broke its contract.
    #[cold]
    pub(crate) fn provider_failed(&self, interface: usize) {
        let provider = &self.shared.interfaces[interface].provider;
        if !provider.poisoned() {
            provider.broke();
        }
        let of_it = |slot: &InterfaceSlot| std::sync::Arc::ptr_eq(&slot.provider, provider);
        let all = self.shared.interfaces.iter().enumerate().filter(|(_, slot)| of_it(slot));
        let lost: Vec<(usize, Error)> = all
            .filter_map(|(index, _)| Some((index, self.take_out(index, Status::ProviderFailed)?)))
            .collect();
        // If one of these interfaces ends an endpoint, the endpoint closes its lanes over all of them.
        for (index, error) in &lost {
            self.shared.held.borrow_mut().broke(*index);
            self.shared.end_orphans(End::Interface { index: *index, broken: true }, error);
            for endpoint in self.all_endpoints() {
                endpoint.cut_off(*index, error);
            }
        }
        for (index, error) in &lost {
            for endpoint in self.all_endpoints() {
                endpoint.lose_interface(*index, error);
            }
        }
    }

    /// Takes out of use the providers that broke their contract, in a call from any worker or none.
    pub(super) fn take_out_broken(&self) {
        for (index, slot) in self.shared.interfaces.iter().enumerate() {
            let cut_off = |error: &Error| error.status() == Status::ProviderFailed;
            if slot.provider.poisoned() && !slot.out_of_use.borrow().as_ref().is_some_and(cut_off) {
                self.provider_failed(index);
            }
        }
    }

    /// Takes a failed interface out of use: endpoints with their messages on it end, and other endpoints continue without it.
    #[cold]
    pub(super) fn interface_failed(&self, index: usize, status: Status) {
        let Some(error) = self.take_out(index, status) else { return };
        for endpoint in self.all_endpoints() {
            endpoint.leave_interface(index, &error);
            endpoint.lose_interface(index, &error);
        }
        self.shared.end_orphans(End::Interface { index, broken: false }, &error);
    }

    /// Takes an interface out of use. If its provider broke its contract, none of its functions is called any more. `None`: the
    /// interface was out of use before, for an equal or stronger reason.
    fn take_out(&self, index: usize, status: Status) -> Option<Error> {
        let slot = &self.shared.interfaces[index];
        let broken = status == Status::ProviderFailed;
        if let Some(before) = &*slot.out_of_use.borrow() {
            if !broken || before.status() == status {
                return None;
            }
        }
        let words = match broken {
            // Another thread may have detected the failure, and the last error is then that thread's.
            true => slot.provider.poisoned_by(),
            false => slot.provider.last_error(),
        };
        let error = Error::new(
            status,
            format!("{} is out of use", slot.path),
            format!("{}: {words}", status.text()),
            format!("leave the provider out with TIELINE_PROVIDERS=^{}", slot.provider.name),
        );
        *slot.out_of_use.borrow_mut() = Some(error.clone());
        if let Some(fd) = slot.watched {
            self.poller.remove(fd);
        }
        slot.words.set(WatchWords::NONE);
        if broken {
            slot.interface.stop_polling();
        }
        self.choose_watch();
        if broken {
            self.wiring.fail_interface(index);
        }
        Some(error)
    }

    /// Adds an endpoint on which an operation was queued to the list of busy ones, unless the worker is closed.
    pub(crate) fn make_busy(&self, endpoint: &EndpointState) {
        if !self.closed.get() && !endpoint.busy.replace(true) {
            if let Some(endpoint) = self.endpoint_at(endpoint.index) {
                self.busy.borrow_mut().push_back(endpoint);
            }
        }
        self.shared.note_work();
    }

    /// Runs one round over the endpoints with queued operations, each with a budget, and then over the worker's other pending work.
    #[cold]
    fn work(self: &Rc<Self>) -> usize {
        let mut count = 0;
        if self.shared.ops.borrow().has_due() {
            count += run_due(&self.shared, self) + self.end_transfers();
        }
        let round = self.busy.borrow().len();
        let mut turn_was_over = false;
        for _ in 0..round {
            let Some(endpoint) = self.busy.borrow_mut().pop_front() else { break };
            let (done, left) = endpoint.run_queue(TURN);
            count += done;
            turn_was_over |= left && done >= TURN;
            if left {
                self.busy.borrow_mut().push_back(endpoint);
            } else {
                endpoint.busy.set(false);
            }
        }
        self.turn_was_over.set(turn_was_over);
        count += run_copies(&self.shared, &self.copies);
        let (helped, chunks) = self.helps.run(&self.shared.core.memory.regions);
        self.bump(|c| c.assisted_chunks += chunks);
        count += helped;
        let late = std::mem::take(&mut *self.late_handlers.borrow_mut());
        for (id, handler) in late {
            let before = set_handler(&mut self.handlers.borrow_mut(), id, handler);
            drop(before);
        }
        self.send_deliveries();
        self.tell_name();
        if self.closed.get() {
            let gone = std::mem::take(&mut *self.handlers.borrow_mut());
            drop(gone);
            // The worker may have been closed in a handler; it says goodbye at this point, where no event of the poll is in use.
            self.leave_now();
        }
        let _ = self.send_waiting_datagrams();
        let _ = self.give_owed_answers();
        count += self.notify_of_peer_events();
        // The check follows the handlers of peer events, which may have posted operations.
        let busy = !self.busy.borrow().is_empty();
        self.shared.has_work.set(busy || self.has_debts());
        self.choose_watch();
        let panicked = self.wiring.transports.panic.take();
        if let Some(panic) = panicked {
            resume_unwind(panic);
        }
        count
    }

    pub(crate) fn bump(&self, count: impl FnOnce(&mut Counters)) {
        let mut counters = self.counters.get();
        count(&mut counters);
        self.counters.set(counters);
    }

    pub(crate) fn count_bad(&self, peer: u32, status: Status) {
        if status != Status::BadData {
            return;
        }
        self.bump(|c| c.malformed += 1);
        if let Some(peer) = self.peers.borrow_mut().get_mut(peer) {
            peer.bad += 1;
        }
    }
}
