//! What an interface and its endpoints work on: the queues that they share, buffers, connections.

mod connections;
mod progress;

use super::address::EndpointAddress;
use super::connection::{About, Connection, NotPosted, Phase, about, receive_id};
use super::queue::{Ends, RESERVE, Role};
use super::wire::{HEADER_LEN, Header, Kind};
use crate::abi::*;
use crate::buffers::Pool;
#[cfg(test)]
use crate::double::clock::Instant;
use crate::notices::{Attached, Notices};
use crate::queue_pair::{self, Cleanup, Receive, Srq, Work};
use crate::shared::DomainState;
use crate::sys::{Cq, WC_BATCH, Wc};
use crate::wake::{Sleep, sys::random};
use core::time::Duration;
use std::sync::Arc;
#[cfg(not(test))]
use std::time::Instant;
use tieline_plugin_api::abi::Event;
use tieline_plugin_api::{Armed, Events, Failure, MemoryReport, Status, event};

/// Receive buffers and send buffers are made this many at a time.
const CHUNK: usize = 32;
/// Places for values from before; a page of them at a time.
const RESULTS: usize = 1024;
/// Polls after which the clock is read, at most (fewer where polls are rare), and the time between two rounds of slow progress.
const CLOCK_EVERY: u32 = 32;
const SLOW_PROGRESS_EVERY: Duration = Duration::from_millis(50);

/// A message that the application has, or soon will have.
#[derive(Clone, Copy)]
struct Delivered {
    buffer: u32,
    slot: u32,
    generation: u8,
}

/// Everything of an interface. The order of the fields is the order in which they go: queue pairs before the queues
/// that they use, queues before the buffers that they hold.
pub(crate) struct State {
    pub(crate) connections: Vec<Option<Box<Connection>>>,
    /// Queue pairs of connections that are over.
    cleanup: Cleanup,
    srq: Srq,
    sleep: Sleep,
    cq: Cq,
    receives: Pool,
    pub(crate) sends: Pool,
    pub(crate) results: Pool,
    pub(crate) pieces: Vec<ibv_sge>,
    pub(crate) domain: Arc<DomainState>,
    generations: Vec<u8>,
    notices: Notices<Delivered>,
    to_post: Vec<Receive>,
    /// Room for completions.
    batch: Vec<Wc>,
    /// Connections that owe credits and found no room to say so.
    credits_due: Vec<u32>,
    /// Connections that have something of which the device was not told, or which it has not taken yet.
    pub(crate) unposted: Vec<u32>,
    /// Connections that are closed and found no room for their goodbye, each with its generation.
    goodbyes: Vec<(u32, u8)>,
    /// Whose put told something last.
    notified_last: u32,
    countdown: u32,
    clock_every: u32,
    slow_progress_at: Instant,
    timeouts_checked: Instant,
}

/// Whether a peer with receive buffers of `theirs` takes the longest message of this side.
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
    /// Everything, with the first receives posted.
    pub(crate) fn new(domain: Arc<DomainState>) -> Result<State, Failure> {
        let settings = &domain.settings;
        let entries = settings.rx_buffers + 4 * (settings.tx_depth + RESERVE);
        let cq = Cq::new(&domain.device, entries.min(domain.max_cqe))?;
        let sleep = Sleep::new(&domain.watch, &cq)?;
        let message = HEADER_LEN + settings.segment;
        let now = Instant::now();
        let mut state = State {
            connections: Vec::new(),
            cleanup: Cleanup::default(),
            srq: Srq::new(&domain.pd, settings.rx_buffers.next_multiple_of(CHUNK))?,
            sleep,
            cq,
            receives: Pool::new(&domain.buffers, message, CHUNK, settings.rx_buffers),
            sends: Pool::new(&domain.buffers, message, CHUNK, settings.tx_buffers),
            results: Pool::new(&domain.buffers, 64, 64, RESULTS),
            pieces: Vec::new(),
            generations: Vec::new(),
            notices: Notices::default(),
            to_post: Vec::new(),
            batch: vec![Wc::default(); WC_BATCH],
            credits_due: Vec::new(),
            unposted: Vec::new(),
            goodbyes: Vec::new(),
            notified_last: 0,
            countdown: 1,
            clock_every: 1,
            slow_progress_at: now,
            timeouts_checked: now,
            domain,
        };
        state.provide_receives()?;
        Ok(state)
    }

    pub(crate) fn event_fd(&self) -> i32 {
        self.sleep.raw()
    }

    pub(crate) fn memory(&self) -> MemoryReport {
        let peers = self.connections.iter().flatten().count() as u64;
        // A work request takes about 128 bytes in the queue pair and as much in our list.
        let each = (self.domain.settings.tx_depth + RESERVE) * 256 + size_of::<Connection>();
        MemoryReport {
            base_bytes: (size_of::<State>() + self.cq.capacity() * 64) as u64,
            peer_bytes: peers * each as u64,
            peers,
            buffer_bytes: (self.receives.committed()
                + self.sends.committed()
                + self.results.committed()) as u64,
        }
    }

    /// Waits for the goodbyes of closed endpoints to leave, as long as `TIELINE_CLOSE_TIMEOUT` says, and ends everything.
    pub(crate) fn shut_down(&mut self) {
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
        // Endpoints are closed already; one that is not must find nothing.
        self.connections.clear();
    }

    fn wake_while_needed(&self) {
        let interval = (self.domain.settings.failure / 8)
            .clamp(Duration::from_millis(20), Duration::from_secs(1));
        let any = self.connections.iter().any(Option::is_some) || !self.cleanup.is_empty();
        self.sleep.wake_every(any.then_some(interval));
    }

    /// Room in the completion queue for everything that can complete at once.
    fn provide_completions(&mut self) -> Result<(), Failure> {
        let settings = &self.domain.settings;
        let connections = self.connections.iter().flatten().count() + 1;
        let need = settings.rx_buffers
            + self.cleanup.stale()
            + connections * (settings.tx_depth + RESERVE);
        if need <= self.cq.capacity() {
            return Ok(());
        }
        let entries = need.next_power_of_two().min(self.domain.max_cqe);
        if entries < need {
            let text = format!(
                "{} endpoints need {need} places in a completion queue and {} has {} at most: lower \
                 TIELINE_VERBS_TX_DEPTH or TIELINE_VERBS_RX_BUFFERS",
                connections, self.domain.name.device, self.domain.max_cqe
            );
            return Err(Failure::new(Status::NoMemory, text));
        }
        self.cq.resize(entries)
    }

    /// Posts as many receives as the endpoints' windows ask for, within the bound.
    fn provide_receives(&mut self) -> Result<(), Failure> {
        let settings = &self.domain.settings;
        let want = self.receives_wanted().min(settings.rx_buffers);
        while self.receives.total() < want {
            match self.receives.grow() {
                Err(failure) if failure.status == Status::Again => break,
                // With some buffers posted the interface works, only slower.
                Err(_) if self.receives.total() > 0 => break,
                other => other?,
            }
        }
        while let Some(buffer) = self.receives.take_made() {
            self.to_post.push(Receive { id: receive_id(buffer), sge: self.receives.whole(buffer) });
        }
        self.post_receives()
    }

    /// Receive buffers that all windows ask for.
    fn receives_wanted(&self) -> usize {
        let windows = self.connections.iter().flatten();
        CHUNK + windows.map(|c| c.credits.granted() as usize + 4).sum::<usize>()
    }

    /// Grows the window of a peer that sends a stream, if there are buffers for it.
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
        // Where the memory cannot be had the window is wider than the queue, and the peer's device may have to wait.
        let _ = self.provide_receives();
    }

    fn post_receives(&mut self) -> Result<(), Failure> {
        if self.to_post.is_empty() {
            return Ok(());
        }
        let result = self.srq.post(&self.to_post);
        self.to_post.clear();
        result
    }

    /// Returns credits that no message has carried.
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
        self.connection(slot).filter(|connection| connection.generation == generation)
    }

    /// Gives back what a send held.
    pub(crate) fn release_ends(&mut self, ends: Ends) {
        if let Some(buffer) = ends.buffer {
            self.sends.give(buffer);
        }
        if let Some(result) = ends.result {
            self.results.give(result);
        }
    }
}

/// Bytes that the device copies while the send is posted.
#[inline]
pub(crate) fn borrowed(bytes: &[u8]) -> ibv_sge {
    ibv_sge { addr: bytes.as_ptr().expose_provenance() as u64, length: bytes.len() as u32, lkey: 0 }
}
