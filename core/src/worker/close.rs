//! Closing a worker.
//!
//! Closing waits until all operations have ended and the answers owed to peers are sent, and then flushes the transports. A message
//! that a transport has accepted is confirmed by a flush of its lane, if the provider has one. The error counts the operations that
//! do not end in time. Dropping a worker does not flush: pending operations end, and each interface, while it is closed, delivers
//! the messages that it has accepted to peers that poll within its time limit.

use super::{Worker, WorkerState};
use crate::endpoint::{EndpointState, Posted};
use crate::error::Scope;
use crate::interface::{InterfaceSlot, PeerId};
use crate::shared::End;
use crate::{Error, Status};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};
use tieline_host::abi::{RawEndpoint, WatchWords};
use tieline_order::{Id, Kind};

/// The error of [`Worker::close`], with the operations that could not be delivered.
#[derive(Clone, Debug)]
pub struct Undelivered {
    /// The reason. `TimedOut`: the timeout expired. Any other status: the first failure, or the reason why closing was impossible.
    pub error: Error,
    /// The losses: one entry per endpoint, including the library's own. Operations of dropped endpoints have one entry per route,
    /// and answers without a route one per peer.
    pub losses: Vec<Loss>,
}

/// The losses of one endpoint, route or peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// The destination and the module, in the format of the `Debug` output of an [`Endpoint`](crate::Endpoint); the peer's number
    /// for answers without a route.
    pub to: String,
    /// The number of operations that were pending, including messages.
    pub operations: usize,
    /// The number of answers owed to the peer. The peer's requests end with an error when it is disconnected.
    pub answers: usize,
    /// Whether messages or failures are unconfirmed: the transport has not confirmed the arrival of messages that it had accepted,
    /// or a failure has not been reported to the application. Operations that recently returned `Done` may be lost.
    pub unconfirmed: bool,
}

impl fmt::Display for Undelivered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)?;
        for loss in &self.losses {
            write!(f, "; {}: {} operations, {} answers", loss.to, loss.operations, loss.answers)?;
            if loss.unconfirmed {
                write!(f, ", and the last messages are not confirmed")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Undelivered {}

impl From<Undelivered> for Error {
    fn from(undelivered: Undelivered) -> Error {
        undelivered.error
    }
}

impl From<Error> for Undelivered {
    fn from(error: Error) -> Undelivered {
        Undelivered { error, losses: Vec::new() }
    }
}

impl Worker {
    /// Delivers all operations posted before, and all answers owed to peers, and closes the worker. `Ok` means that the peers'
    /// sides have all of these, except for failed operations whose requests the application still holds.
    ///
    /// Operations that are not delivered within `timeout` may be lost and are counted in the error. The error also lists a failure
    /// that has not been reported yet and that the next flush would have reported. The call makes progress meanwhile: handlers run,
    /// and operations that they post are delivered as well. If something is lost, each interface may take `TIELINE_CLOSE_TIMEOUT`
    /// on top of `timeout`, as when the worker is dropped.
    ///
    /// When the call returns, the worker is closed, with or without losses, as if it had been dropped. Operations on endpoints,
    /// keys and announcements that still exist fail with `Closed`, and pending requests have ended with `Closed`. Only an immediate
    /// error (`Busy` inside a handler, `Invalid` in a forked child) leaves the worker open. Closing a closed worker returns `Ok`.
    /// Endpoints that had already failed are ignored. Operations for which a peer did not wait when it closed its own side in good
    /// order are ignored, too.
    ///
    /// ```
    /// # fn main() -> Result<(), tieline::Error> {
    /// # let context = tieline::Context::open()?;
    /// let worker = context.worker()?;
    /// let me = worker.connect(&worker.address()?)?;
    /// let _ = me.send(7, 0, b"farewell")?;
    /// worker.close(std::time::Duration::from_secs(5))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Undelivered`], with the reason and the losses.
    pub fn close(&self, timeout: Duration) -> Result<(), Undelivered> {
        self.inner.shared.check_process("a worker")?;
        if self.inner.closed.get() {
            return Ok(());
        }
        self.inner.shared.check_no_handler("closing a worker")?;
        let mut book = Book { deadline: Instant::now().checked_add(timeout), ..Book::default() };
        let delivered = self.inner.deliver(&mut book);
        book.hear_late(&self.inner);
        let losses = book.losses(&self.inner);
        self.inner.shut("it was closed");
        let error = match (delivered, losses.is_empty()) {
            (Ok(()), true) => return Ok(()),
            (Err(error), _) => error,
            (Ok(()), false) => book.failure.unwrap_or_else(|| Status::Canceled.into()),
        };
        Err(Undelivered { error, losses })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.lent {
            self.inner.shut("its Worker was dropped");
        }
    }
}

/// `posting`: operations that handlers posted last are not confirmed.
#[cold]
fn out_of_time(posting: bool) -> Error {
    let (why, fix) = match posting {
        true => (
            "handlers kept posting, and the last operations are not confirmed",
            "let the peers stop first, or register handlers that post nothing",
        ),
        false => (
            "peers have not received everything in time",
            "see that they make progress, or give them more time",
        ),
    };
    Error::new(Status::TimedOut, "closing a worker", why, fix)
}

/// The remaining work of an endpoint.
struct Entry {
    endpoint: Weak<EndpointState>,
    loss: Loss,
    failed: bool,
}

/// A lane that has to be flushed. Its provider endpoint is looked up on each attempt, because a circuit may fail and a provider may
/// break its contract between attempts.
struct ToAsk {
    /// The endpoint on whose behalf the lane is flushed.
    endpoint: Rc<EndpointState>,
    over: Over,
}

#[derive(Clone, Copy)]
enum Over {
    /// The endpoint's own lane over an interface.
    Own(usize),
    /// A circuit of the worker.
    Circuit(u64),
}

/// A lane whose flush is in progress.
struct Asked {
    id: Id,
    endpoint: u64,
}

#[derive(Default)]
struct Book {
    deadline: Option<Instant>,
    /// The losses by the endpoint's number.
    entries: BTreeMap<u64, Entry>,
    failure: Option<Error>,
}

impl Book {
    /// Returns the time that remains until the deadline.
    fn left(&self) -> Option<Duration> {
        self.deadline.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Examines every usable endpoint again; returns whether work remains.
    fn look(&mut self, worker: &WorkerState) -> bool {
        let mut left = worker.has_debts() || !worker.orphans_by_path().is_empty();
        for endpoint in worker.all_endpoints().iter().filter(|endpoint| endpoint.is_alive()) {
            let operations = {
                let ops = worker.shared.ops.borrow();
                let all = ops.open_wholes(endpoint.index) + ops.announced_of(endpoint.index);
                // The transfer of a rendezvous receive is a part of another operation and is not counted.
                all.saturating_sub(worker.announcements.taken_over(endpoint.index))
            };
            let answers = endpoint.answers_len();
            left |= operations > 0 || answers > 0 || endpoint.waiting_len() > 0;
            let entry = self.entries.entry(endpoint.id.raw()).or_insert_with(|| Entry {
                endpoint: Rc::downgrade(endpoint),
                loss: Loss { to: endpoint.name(), ..Loss::default() },
                failed: false,
            });
            (entry.loss.operations, entry.loss.answers) = (operations, answers);
        }
        // The entries of endpoints that do not exist any more are removed, unless they are unconfirmed.
        let stays = |entry: &Entry| entry.endpoint.strong_count() > 0 || entry.loss.unconfirmed;
        self.entries.retain(|_, entry| stays(entry));
        for entry in self.entries.values_mut().filter(|entry| !entry.failed) {
            let Some(endpoint) = entry.endpoint.upgrade().filter(|e| !e.is_alive()) else {
                continue;
            };
            entry.failed = true;
            if endpoint.lost_nothing.get() {
                entry.loss = Loss { to: std::mem::take(&mut entry.loss.to), ..Loss::default() };
                continue;
            }
            let error = endpoint.dead_error();
            if error.status() != Status::Closed {
                entry.loss.unconfirmed = true;
            }
            if entry.loss != (Loss { to: entry.loss.to.clone(), ..Loss::default() }) {
                let _ = self.failure.get_or_insert(error);
            }
        }
        left
    }

    fn unconfirmed(&mut self, endpoint: u64, why: Option<Error>) {
        if let Some(entry) = self.entries.get_mut(&endpoint) {
            entry.loss.unconfirmed = true;
        }
        if let Some(why) = why {
            let _ = self.failure.get_or_insert(why);
        }
    }

    /// Records the failures that were not reported, because no later flush can report them.
    fn hear_late(&mut self, worker: &WorkerState) {
        for endpoint in worker.all_endpoints().iter().filter(|endpoint| endpoint.is_alive()) {
            if let Some(late) = endpoint.take_late() {
                self.unconfirmed(endpoint.id.raw(), Some(late));
            }
        }
    }

    fn losses(&mut self, worker: &WorkerState) -> Vec<Loss> {
        let _ = self.look(worker);
        let peers = worker.owed.by_peer().into_iter();
        let owed = peers.map(|(peer, answers)| Loss {
            to: PeerId(peer).to_string(),
            answers,
            ..Loss::default()
        });
        let orphans = worker.orphans_by_path().into_iter();
        let orphans = orphans.map(|(to, operations)| Loss { to, operations, ..Loss::default() });
        let lost = |loss: &Loss| loss.operations > 0 || loss.answers > 0 || loss.unconfirmed;
        let entries = self.entries.values().map(|entry| entry.loss.clone());
        entries.chain(orphans).chain(owed).filter(lost).collect()
    }
}

impl WorkerState {
    /// Counts operations whose endpoint is gone, by path.
    fn orphans_by_path(&self) -> BTreeMap<String, usize> {
        self.shared.orphans_by_path(|circuit| self.circuit_name(circuit))
    }

    /// Checks whether work remains apart from the queues of endpoints: owed answers, shared copies, datagrams, undispatched events,
    /// due flushes, or reports.
    pub(super) fn has_debts(&self) -> bool {
        !self.owed.is_empty()
            || !self.deliveries.borrow().is_empty()
            || self.shares_copies()
            || self.wiring.has_waiting()
            || self.left_over.is_there()
            || self.shared.ops.borrow().has_due()
            || self.is_to_be_told()
    }

    /// Checks whether the next progress call has a report for the application.
    pub(super) fn is_to_be_told(&self) -> bool {
        let panicked = self.wiring.transports.panic.borrow().is_some();
        panicked || !self.news.borrow().is_empty()
    }

    /// Checks whether operations or answers are pending that [`Worker::close`] would wait for.
    pub(crate) fn has_undelivered(&self) -> bool {
        !self.closed.get() && Book::default().look(self)
    }

    fn deliver(self: &Rc<Self>, book: &mut Book) -> Result<(), Error> {
        // Whether handlers posted operations during the last round.
        let mut posting = false;
        loop {
            let delivered =
                self.wait_for(book.left(), false, || (!book.look(self)).then_some(()))?.is_some();
            self.all_endpoints().iter().for_each(|endpoint| endpoint.watch_for_more());
            if !delivered || !self.flush_transports(book)? {
                return Err(out_of_time(posting));
            }
            // Handlers may have posted operations after the lanes were flushed.
            let is_delivered = !book.look(self);
            let mut more = self.all_endpoints();
            more.retain(|endpoint| endpoint.has_sent_more());
            if is_delivered && more.is_empty() {
                return Ok(());
            }
            // Handlers may post operations in every round, for example replies to a peer that never stops sending.
            if book.left() == Some(Duration::ZERO) {
                more.iter().for_each(|endpoint| book.unconfirmed(endpoint.id.raw(), None));
                return Err(out_of_time(!more.is_empty()));
            }
            posting = !more.is_empty();
        }
    }

    /// Waits until every lane has confirmed the arrival of the operations posted on it; `false` if the timeout expires.
    fn flush_transports(self: &Rc<Self>, book: &mut Book) -> Result<bool, Error> {
        let mut to_ask = self.all_lanes();
        let mut asked = Vec::new();
        let _ = book.look(self);
        let done = self.wait_for(book.left(), false, || {
            self.ask_lanes(&mut to_ask, &mut asked, book);
            asked.retain(|asked| !self.has_answered(asked, book));
            (asked.is_empty() && to_ask.is_empty()).then_some(())
        })?;
        for asked in &asked {
            book.unconfirmed(asked.endpoint, None);
            // The flush was an internal operation, so it is removed without a report.
            self.shared.with_ops(|ops| ops.withdraw(asked.id));
        }
        to_ask.iter().for_each(|lane| book.unconfirmed(lane.endpoint.id.raw(), None));
        Ok(done.is_some())
    }

    /// Starts the flush of lanes. Lanes that do not accept a flush at present stay in the list.
    fn ask_lanes(&self, to_ask: &mut VecDeque<ToAsk>, asked: &mut Vec<Asked>, book: &mut Book) {
        for _ in 0..to_ask.len() {
            let Some(lane) = to_ask.pop_front() else { break };
            let number = lane.endpoint.id.raw();
            let Some((interface, raw)) = self.raw_of(&lane) else { continue };
            match self.flush_lane(&lane.endpoint, interface, raw) {
                Ok(id) => asked.extend(id.map(|id| Asked { id, endpoint: number })),
                Err(Status::Again) => to_ask.push_back(lane),
                // The result is the same as for a lane that completes its flush with this status.
                Err(Status::Closed) => {}
                Err(status) => {
                    let error = lane.endpoint.failure_over(status, Some(interface));
                    book.unconfirmed(number, Some(error));
                }
            }
        }
    }

    /// Checks whether the flush of a lane has ended, and records its failure.
    fn has_answered(&self, asked: &Asked, book: &mut Book) -> bool {
        let result = self.shared.ops.borrow_mut().take(asked.id);
        let Some(result) = result else { return false };
        // A peer that has closed its side does not need the messages.
        if let Some(error) = result.err().filter(|error| error.status() != Status::Closed) {
            book.unconfirmed(asked.endpoint, Some(error));
        }
        true
    }

    /// Lists the open lanes of usable endpoints, and the connected circuits.
    fn all_lanes(self: &Rc<Self>) -> VecDeque<ToAsk> {
        let mut lanes = VecDeque::new();
        for endpoint in self.all_endpoints().into_iter().filter(|endpoint| endpoint.is_alive()) {
            let own = endpoint.own_lanes().into_iter();
            lanes.extend(own.map(|(interface, _)| ToAsk {
                endpoint: endpoint.clone(),
                over: Over::Own(interface),
            }));
        }
        for number in self.wiring.standing() {
            // A circuit without a user may have messages to deliver as well.
            let Ok(endpoint) = self.answers_over(number) else { continue };
            lanes.push_back(ToAsk { endpoint, over: Over::Circuit(number) });
        }
        lanes
    }

    /// Returns the interface of a lane and its provider endpoint, if the lane still exists.
    fn raw_of(&self, lane: &ToAsk) -> Option<(usize, RawEndpoint)> {
        match lane.over {
            Over::Own(at) => lane.endpoint.own_lanes().into_iter().find(|(i, _)| *i == at),
            Over::Circuit(number) => self.raw_of_circuit(number),
        }
    }

    fn flush_lane(
        &self,
        endpoint: &EndpointState,
        interface: usize,
        raw: RawEndpoint,
    ) -> Result<Option<Id>, Status> {
        if !endpoint.is_alive() {
            return Ok(None); // the book already has the loss
        }
        let id = self.shared.ops.borrow_mut().open_inner(endpoint.index, Kind::Native)?;
        let posted = endpoint.posted(id, interface, raw.flush(id.raw()), 0);
        match endpoint.or_withdrawn(id, posted) {
            Ok(Posted::Pending) => Ok(Some(id)),
            Ok(Posted::Done(_)) => Ok(None),
            Ok(Posted::NoRoom) => Err(Status::Again),
            // This provider has no flush, because it delivers every message that it accepts.
            Err(failed) if failed.status == Status::Unsupported => Ok(None),
            Err(failed) => Err(failed.status),
        }
    }

    /// Says goodbye to all peers, regardless of the objects that the application still holds. Inside a handler the goodbye is
    /// delayed until the running poll has ended, because the message that the handler reads lies in memory of its sender.
    pub(super) fn leave_interfaces(&self) {
        if !self.shared.same_process() {
            return;
        }
        if self.shared.entrance.is_in_progress() {
            return self.shared.note_work();
        }
        self.leave_now();
    }

    /// Does the same as `leave_interfaces`, even while a handler runs.
    pub(super) fn leave_now(&self) {
        // The words of an interface that has left may be unmapped.
        self.shared.watch.set(WatchWords::NONE);
        let in_use = |slot: &&InterfaceSlot| slot.out_of_use.borrow().is_none();
        for slot in self.shared.interfaces.iter().filter(in_use) {
            slot.leave();
        }
    }

    /// Ends all pending operations, says goodbye, and releases the worker's objects. Objects that the application still holds, such
    /// as endpoints and kept messages, keep the interfaces open. Endpoints fail from this call on.
    fn shut(self: &Rc<Self>, why: &str) {
        if self.closed.get() {
            return;
        }
        let listeners = self.refuse_requests();
        self.refuse_announced();
        self.forget_name();
        self.closed.set(true);
        self.shown.publisher.ends();
        // The mailboxes are closed early, so that they accept no task that would never run, even if later code panics.
        let mailboxes = self.mailboxes.take();
        mailboxes.iter().for_each(|mailbox| mailbox.close());
        let error = Error::new(
            Status::Closed,
            "the worker is closed",
            why,
            "keep the worker as long as its endpoints",
        )
        .of(Scope::Worker);
        let waiting = self.waiting_peers();
        let busy = (std::mem::take(&mut *self.busy.borrow_mut()), self.kept.take());
        let notices = self.notices.take();
        let peers = self.peers.borrow_mut().take_replies();
        for endpoint in self.all_endpoints() {
            endpoint.fail(error.clone());
        }
        self.shared.end_orphans(End::Worker, &error);
        drop((busy, notices, peers, self.wiring.take_answers()));
        self.drop_transfers();
        self.drop_all_circuits();
        // A running handler is dropped after it has returned.
        let handlers =
            self.handlers.try_borrow_mut().map(|mut handlers| std::mem::take(&mut *handlers));
        if handlers.is_err() {
            self.shared.note_work();
        }
        let told = (self.on_failure.take(), self.on_left.take());
        let also = (self.on_endpoint_failure.take(), self.on_notification.take());
        let others = (listeners, self.wiring.transports.forget_out_of_band());
        let copies = self.copies.take();
        drop(copies);
        self.helps.close();
        self.shared.slots.close();
        self.hang_up_on(waiting);
        self.leave_interfaces();
        // These objects of the application are dropped while nothing is borrowed, and last, because the drop may panic.
        mailboxes.iter().for_each(|mailbox| mailbox.drop_tasks());
        drop((handlers, told, also, others, mailboxes));
    }
}
