//! The state of an interface and its endpoints: shared queues, buffers, connections.

mod connections;
mod progress;
mod queues;
mod sends;

use super::address::EndpointAddress;
use super::connection::{About, Connection, NotPosted, Phase, about, own_receives, whose};
use super::queue::{Ends, RESERVE, Role, SendQueue};
use super::receives::{CONTROL, NOBODY, Receives, Refused};
use super::wire::{HEADER_LEN, Header, Kind};
use crate::abi::*;
use crate::buffers::Pool;
#[cfg(test)]
use crate::double::clock::Instant;
use crate::notices::{Notices, completion};
use crate::queue_pair::{self, Cleanup, Work};
use crate::shared::DomainState;
use crate::sys::{Cq, QuietPolls, WC_BATCH, Wc};
use crate::wake::{Sleep, sys::random};
use core::time::Duration;
use std::cell::{RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;
#[cfg(not(test))]
use std::time::Instant;
use tieline_plugin_api::abi::Event;
use tieline_plugin_api::{Armed, Events, Failure, MemoryReport, Status, event};

/// The number of receive buffers or send buffers per allocation.
const CHUNK: usize = 32;
/// The maximum number of buffers for fetched values of atomics, allocated one page at a time.
const RESULTS: usize = 1024;
/// The maximum number of polls between two clock reads (fewer if polls are rare), and the interval of slow progress.
const CLOCK_EVERY: u32 = 64;
const SLOW_PROGRESS_EVERY: Duration = Duration::from_millis(50);

/// A message that the application holds or is about to get.
#[derive(Clone, Copy)]
struct Delivered {
    buffer: u32,
    slot: u32,
    generation: u8,
}

/// The whole state of an interface. The fields are dropped in this order: queue pairs before the queues that they use, queues
/// before the buffers in them.
pub(crate) struct State {
    pub(crate) connections: Vec<Option<Box<Connection>>>,
    /// Queue pairs of ended connections.
    cleanup: Cleanup,
    receives: Receives,
    sleep: Sleep,
    /// The completion queue; `None` before the first connection, because a worker may open more devices than it uses.
    cq: Option<Rc<Cq>>,
    /// Whether the completion queue can be resized.
    grows: bool,
    /// Whether the connections share the entries of the completion queue.
    shares: bool,
    /// Whether the shares of the completion queue must be computed again.
    share_later: bool,
    pub(crate) sends: Pool,
    pub(crate) results: Pool,
    /// The maximum length of a short put.
    pub(crate) short_puts: usize,
    pub(crate) pieces: Vec<ibv_sge>,
    pub(crate) domain: Arc<DomainState>,
    generations: Vec<u8>,
    /// The free slots, the number of connections, and the number of receives in their windows.
    free: Vec<u32>,
    live: usize,
    windows: usize,
    notices: Notices<Delivered>,
    /// The polls that only read the completion queue, and the array for one batch of completions.
    pub(super) quiet: Rc<QuietPolls>,
    /// The connections whose owed credits are due.
    credits_due: Vec<u32>,
    /// The connections with held sends, or with sends that the device has not accepted yet.
    pub(crate) unposted: Vec<u32>,
    /// The closed connections whose goodbye is not posted yet, each with its generation.
    goodbyes: Vec<(u32, u8)>,
    /// The slot of the last notification.
    notified_last: u32,
    /// The number of polls behind the quiet ones until the clock is read.
    polls_behind: u32,
    clock_every: u32,
    slow_progress_at: Instant,
    timeouts_checked: Instant,
}

/// Checks whether a peer with receive buffers of `theirs` bytes accepts the longest message of this side.
pub(crate) fn fits(ours: u32, theirs: u32) -> Result<(), Failure> {
    if theirs >= ours {
        return Ok(());
    }
    let text = format!(
        "the peer takes messages of at most {theirs} bytes and this side sends up to {ours}: \
         TIELINE_VERBS_SEGMENT_SIZE must be the same"
    );
    Err(Failure::new(Status::Unreachable, text))
}

impl State {
    /// Borrows the state. `None`: a signal handler that calls `exit` has interrupted another call.
    #[inline(always)]
    pub(super) fn if_free(state: &RefCell<State>) -> Option<RefMut<'_, State>> {
        state.try_borrow_mut().ok().filter(|state| !state.quiet.is_reading())
    }

    /// Makes only the parts for the address and the wake-up. [`State::open_queues`] makes the device's queues at the first
    /// connection.
    pub(crate) fn new(domain: Arc<DomainState>) -> Result<State, Failure> {
        let settings = &domain.settings;
        let sleep = Sleep::new(&domain.watch, None)?;
        let message = HEADER_LEN + settings.segment;
        let now = Instant::now();
        Ok(State {
            connections: Vec::new(),
            cleanup: Cleanup::default(),
            receives: Receives::new(&domain, message, CHUNK),
            sleep,
            cq: None,
            grows: false,
            shares: false,
            share_later: false,
            sends: Pool::new(&domain.buffers, message, CHUNK, settings.tx_buffers),
            results: Pool::new(&domain.buffers, 64, 64, RESULTS),
            short_puts: domain.max_short_put(),
            pieces: Vec::new(),
            generations: Vec::new(),
            free: Vec::new(),
            live: 0,
            windows: 0,
            notices: Notices::default(),
            quiet: Rc::new(QuietPolls::new()),
            credits_due: Vec::new(),
            unposted: Vec::new(),
            goodbyes: Vec::new(),
            notified_last: 0,
            polls_behind: 0,
            clock_every: 1,
            slow_progress_at: now,
            timeouts_checked: now,
            domain,
        })
    }

    pub(crate) fn event_fd(&self) -> i32 {
        self.sleep.raw()
    }

    /// Returns the number of receives that are posted to a queue pair's own queue.
    #[cfg(test)]
    pub(super) fn receives_of(&self, qpn: u32) -> Option<usize> {
        self.receives.posted_to(qpn)
    }

    /// Checks whether the limit on connections allows one more.
    fn has_room(&self) -> Result<(), Failure> {
        let most = self.domain.settings.connections;
        if self.live < most {
            return Ok(());
        }
        let text = format!("rc has {most} connections, as many as TIELINE_VERBS_CONNECTIONS says");
        Err(Failure::new(Status::NoMemory, text))
    }

    pub(crate) fn memory(&self) -> MemoryReport {
        let peers = self.live as u64;
        let sends = self.domain.settings.tx_depth + RESERVE;
        let own = self.receives.shared().map_or_else(|| own_receives(&self.domain.settings), |_| 0);
        let each = self.domain.queue_bytes(sends, own)
            + SendQueue::bytes(self.domain.settings.tx_depth)
            + size_of::<Connection>();
        MemoryReport {
            base_bytes: (size_of::<State>() + self.places() * 64) as u64,
            peer_bytes: peers * each as u64,
            peers,
            buffer_bytes: (self.receives.committed()
                + self.sends.committed()
                + self.results.committed()) as u64,
        }
    }

    /// Closes every connection, waits for the goodbyes up to `TIELINE_CLOSE_TIMEOUT`, then tears everything down.
    pub(crate) fn leave(&mut self) {
        for slot in 0..self.connections.len() {
            if self.connections[slot].as_ref().is_some_and(|connection| !connection.closing) {
                self.close(slot as u32);
            }
        }
        let until = Instant::now() + self.domain.settings.close;
        let leaves = |c: &Connection| c.closing && c.ending.is_none();
        while self.connections.iter().any(|c| c.as_deref().is_some_and(leaves))
            && Instant::now() < until
        {
            self.post_packed();
            self.retry_goodbyes();
            let _ = self.fetch(None);
            std::thread::yield_now();
        }
        self.cleanup = Cleanup::default();
        // Endpoints are closed by contract; a call on one that is still open finds no connection.
        self.connections.clear();
        (self.live, self.windows) = (0, 0);
    }

    fn wake_while_needed(&self) {
        let interval = (self.domain.settings.failure / 8)
            .clamp(Duration::from_millis(20), Duration::from_secs(1));
        let any = self.live > 0 || !self.cleanup.is_empty();
        self.sleep.wake_every(any.then_some(interval));
    }

    /// Releases the slot of a connection and its share of the queues.
    fn forget_connection(&mut self, slot: u32) {
        let Some(gone) = self.connections.get_mut(slot as usize).and_then(Option::take) else {
            return;
        };
        self.live -= 1;
        self.windows -= gone.credits.granted() as usize + CONTROL;
        self.free.push(slot);
        self.share_later |= self.shares;
    }

    /// Posts a zero-byte write, which the peer's device acknowledges without the peer's process. Returns whether the write was
    /// posted.
    fn keepalive(&mut self, slot: u32) -> bool {
        let Some(connection) = self.connection(slot).filter(|c| c.queue.has_reserve()) else {
            return false;
        };
        let ends = Ends { role: Role::Keepalive, ..Ends::default() };
        let work = Work::Write { address: 0, rkey: 0 };
        let posted = connection.post(work, &[], ends, IBV_SEND_SIGNALED).is_ok();
        connection.keepalive_pending |= posted;
        posted
    }

    /// Posts the receives that the windows of all endpoints need, up to the limit. With own queues, posts `more` receives for the
    /// connection of this slot instead.
    fn provide_receives(&mut self, more: usize, slot: u32) -> Result<(), Failure> {
        let want = self.receives_wanted().min(self.domain.settings.rx_buffers);
        self.receives.provide(want, more, slot)?;
        let Err(refused) = self.post_receives() else { return Ok(()) };
        let failure = refused.failure.clone();
        let Some(mut others) = refused.slots else { return Err(failure) };
        let before = others.len();
        others.retain(|other| *other != slot);
        let took_its_own = others.len() == before;
        self.receives_refused(Refused { slots: Some(others), ..refused }, None);
        if took_its_own { Ok(()) } else { Err(failure) }
    }

    /// Returns the number of receive buffers that all windows need.
    fn receives_wanted(&self) -> usize {
        CHUNK + self.windows
    }

    /// Grows the window of a streaming peer, if the windows of all peers then take no more than half of the receive buffers.
    #[cold]
    fn grow_window(&mut self, slot: u32) {
        let (most, half) = (self.domain.settings.max_window, self.domain.settings.rx_buffers / 2);
        let receives_wanted = self.receives_wanted();
        let Some(connection) = self.connection(slot) else { return };
        let granted = connection.credits.granted() as usize;
        let more = granted.min(most.saturating_sub(granted));
        if more == 0 || receives_wanted + more > half {
            return;
        }
        connection.credits.grow(more as u32);
        self.windows += more;
        // Without memory for the buffers, the window exceeds the queue, and the peer's device may have to wait. The new
        // receives are posted with the next batch.
        let want = self.receives_wanted().min(self.domain.settings.rx_buffers);
        let _ = self.receives.provide(want, more, slot);
    }

    fn post_receives(&mut self) -> Result<(), Refused> {
        if self.receives.has_none_to_post() {
            return Ok(());
        }
        self.receives.post(&self.connections)
    }

    /// Reclaims the receives of destroyed queue pairs.
    #[cold]
    fn reclaim_receives(&mut self) {
        let gone = self.cleanup.gone();
        if self.receives.shared().is_some() {
            return; // a shared queue holds these receives
        }
        for qpn in gone {
            self.receives.let_go(qpn, None);
        }
        if let Err(refused) = self.post_receives() {
            self.receives_refused(refused, None);
        }
    }

    /// Fails the connections whose receives the device rejected, or all connections of a shared queue.
    #[cold]
    fn receives_refused(&mut self, refused: Refused, mut events: Option<&mut Events<'_>>) {
        let text = "the device accepts no more receives";
        let Some(slots) = refused.slots else {
            return self.fail_all(Status::Io, text, events);
        };
        for slot in slots {
            self.fail_connection(slot, &Failure::new(Status::Io, text), events.as_deref_mut());
        }
    }

    /// Sends the owed credits in separate messages.
    fn return_credits(&mut self) {
        let mut credits_due = core::mem::take(&mut self.credits_due);
        credits_due.retain(|&slot| {
            let due = self
                .connection(slot)
                .is_some_and(|c| c.phase == Phase::Established && !c.closing && c.credits.is_due());
            due && self.control(slot, Kind::Credit, Role::User).is_err()
        });
        self.credits_due = credits_due;
    }

    pub(crate) fn connection(&mut self, slot: u32) -> Option<&mut Connection> {
        self.connections.get_mut(slot as usize)?.as_deref_mut()
    }

    fn current(&mut self, slot: u32, generation: u8) -> Option<&mut Connection> {
        current(&mut self.connections, slot, generation)
    }

    /// Releases the buffers of a send.
    pub(crate) fn release_ends(&mut self, ends: Ends) {
        if let Some(buffer) = ends.buffer {
            self.sends.give(buffer);
        }
        if let Some(result) = ends.result {
            self.results.give(result);
        }
    }
}

/// Returns the connection in this slot, if its generation matches.
#[inline]
fn current(
    connections: &mut [Option<Box<Connection>>],
    slot: u32,
    generation: u8,
) -> Option<&mut Connection> {
    let connection = connections.get_mut(slot as usize)?.as_deref_mut()?;
    (connection.generation == generation).then_some(connection)
}

/// Returns a scatter/gather entry for bytes that the device copies during the post.
#[inline]
pub(crate) fn borrowed(bytes: &[u8]) -> ibv_sge {
    ibv_sge { addr: bytes.as_ptr().expose_provenance() as u64, length: bytes.len() as u32, lkey: 0 }
}
