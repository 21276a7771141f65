//! An interface: a listening socket, receiving channels and sending channels.

mod failures;
#[cfg(test)]
mod for_tests;
mod handshakes;
mod rings;
mod sleep;

use handshakes::Handshake;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tieline_plugin_api::abi::{Event, Watch};
use tieline_plugin_api::{Armed, Events, Failure, Interface, MemoryReport, Status, event};

use crate::closer::Closer;
use crate::config::Settings;
use crate::endpoint::RingEndpoint;
use crate::hello::{Address, Hello, Id, MAX_IDENTITY, MAX_RECORD, Record, Refusal, same_secret};
use crate::kept::Word;
use crate::listener::Listener;
use crate::pool::Pool;
use crate::receiver::{MOST_IN_TURN, RecvChannel, Short};
use crate::sender::SendChannel;
use crate::shared::{DomainState, Due, Notice, Shared, token};
use crate::sys::{self, Epoll, Mapping, Ready, Ticker};
use crate::wake;

/// The maximum number of receiving channels of one interface: the number of bits in the doorbell page.
const MAX_INBOUND: usize = sys::PAGE * 8;
/// The approximate number of socket records after which the rings are polled again, which bounds the length of a call in a flood.
const ENOUGH_RECORDS: u32 = 512;
/// The minimum interval of socket checks while the application polls.
const MAINTENANCE: Duration = Duration::from_micros(100);
/// The maximum number of polls between two checks of the clock.
const CLOCK_EVERY: u32 = 64;
/// The number of maintenances between two sweeps over channels whose bell was not rung.
const SWEEP_EVERY: u32 = 16;

struct State {
    inbound: Vec<Option<Box<RecvChannel>>>,
    /// The free places in `inbound`: the application has been notified that their peers left.
    free_inbound: Vec<usize>,
    /// The channels that polls drain without a bell.
    direct: Vec<u32>,
    /// The position at which the next round over the direct channels begins.
    start: usize,
    /// The words of the doorbell page that are in use.
    bells: Vec<Bell>,
    /// The channel whose bell is answered first.
    first_bell: usize,
    /// Whether the channels with bells filled all events.
    bells_took_all: bool,
    /// The channels off the direct list that the previous poll drained.
    touched: Vec<u32>,
    doorbell: Option<(OwnedFd, Arc<Mapping>)>,
    /// Whether bells come first in the next poll; toggled when the events did not suffice.
    bells_first: bool,
    /// Whether the short form has just found a message with its payload in a chunk.
    pooled: bool,
    outbound: Vec<Option<Rc<SendChannel>>>,
    free_outbound: Vec<usize>,
    handshakes: Vec<Option<Handshake>>,
    /// Whether no connection is accepted: there are too many handshakes, or too many sockets to close.
    accept_paused: bool,
    /// The ended channels to which events of the previous poll may still point. Their senders are notified when these channels are
    /// dropped.
    ended_channels: Vec<RecvChannel>,
    handed_out: Vec<Notice>,
    telling: Telling,
    leaving: Vec<u32>,
    listener: Listener,
    spare: Option<OwnedFd>,
    /// The sockets that were ready at the last check.
    ready: Ready,
    ticker: Option<Ticker>,
    armed: bool,
    clock_every: u32,
    clock_read: Instant,
    maintained: Instant,
    sweep: u32,
}

/// A word of the doorbell page, by which up to 64 senders ring.
struct Bell {
    word: Word,
    /// The bells that were rung and whose channels are not drained yet.
    rung: u64,
}

/// The failed endpoints that are being reported.
#[derive(Default)]
struct Telling {
    /// The indices and notices of these endpoints. The rings' positions were noted for these endpoints.
    notices: VecDeque<(usize, Notice)>,
    /// The number of unread slots at the last check.
    left: u64,
    /// The number of checks since `left` last decreased.
    waited: usize,
}

/// The module `ring`, opened for one worker.
pub struct RingInterface {
    /// The state, borrowed by one call at a time; no application code runs during a borrow.
    state: RefCell<State>,
    shared: Rc<Shared>,
    address: Address,
}

impl RingInterface {
    /// Opens the interface and binds its socket; channels and shared memory are created on demand.
    pub(crate) fn open(
        domain: Arc<DomainState>,
        settings: Settings,
    ) -> Result<RingInterface, Failure> {
        let epoll = Epoll::new()?;
        let (listener, nowhere) = Listener::open(&settings)?;
        if let Some(why) = nowhere {
            domain.warn(&format!(
                "no directory for sockets that other users cannot enter ({why}): their names are abstract, and \
                 every user of this host can connect to them; set TIELINE_SHM_DIR to a directory of mode 0700"
            ));
        }
        if let Some(socket) = listener.socket() {
            epoll.add(socket, token::LISTENER)?;
        }
        // A process that cannot create a memory file can neither send nor receive: a peer with this address would be refused.
        drop(sys::memory_file(c"tieline-shm-try", sys::PAGE)?);
        let _ = sys::asymmetric();
        let host = domain.host();
        let address = Address {
            cookie: sys::random()?,
            boot: host.boot,
            network: host.network,
            mount: host.mount,
            process: std::process::id(),
            domain: domain.id,
            socket: listener.name().to_vec(),
        };
        let pool = Pool::new(settings.pool_max);
        let now = Instant::now();
        let shared = Rc::new(Shared {
            settings,
            domain,
            user: sys::user(),
            epoll,
            pool,
            pool_starved: Cell::new(false),
            round: Cell::new(0),
            due: Due::new(),
            fast_boxes: Cell::new(0),
            notices: RefCell::default(),
            failures: RefCell::default(),
            ended: RefCell::default(),
            refused: Cell::new(0),
            closer: Closer::default(),
        });
        let state = State {
            inbound: Vec::new(),
            free_inbound: Vec::new(),
            direct: Vec::new(),
            start: 0,
            bells: Vec::new(),
            first_bell: 0,
            bells_took_all: false,
            touched: Vec::new(),
            doorbell: None,
            bells_first: false,
            pooled: false,
            outbound: Vec::new(),
            free_outbound: Vec::new(),
            handshakes: Vec::new(),
            accept_paused: false,
            ended_channels: Vec::new(),
            handed_out: Vec::new(),
            telling: Telling::default(),
            leaving: Vec::new(),
            listener,
            // Without the spare descriptor, a connection that finds no free descriptor could not even be refused.
            spare: Some(sys::spare()?),
            ready: Ready::new(),
            ticker: None,
            armed: false,
            clock_every: 1,
            clock_read: now,
            maintained: now,
            sweep: 0,
        };
        Ok(RingInterface { state: RefCell::new(state), shared, address })
    }

    /// Returns the number of connections that were refused, for any reason, or closed because they sent no greeting.
    #[must_use]
    pub fn refused_connections(&self) -> u64 {
        self.shared.refused.get()
    }
}

/// Returns the place that [`insert`] uses next: a free one, or a new one.
fn next_slot<T>(list: &[Option<T>], free: &[usize]) -> usize {
    free.last().copied().unwrap_or(list.len())
}

fn insert<T>(list: &mut Vec<Option<T>>, free: &mut Vec<usize>, newcomer: T) {
    match free.pop() {
        Some(index) => list[index] = Some(newcomer),
        None => list.push(Some(newcomer)),
    }
}

impl Interface for RingInterface {
    type Endpoint = RingEndpoint;

    fn address(&self) -> Vec<u8> {
        self.address.pack()
    }

    fn reachable(&self, address: &[u8]) -> Result<(), Failure> {
        let peer = Address::parse(address)?;
        self.shared.domain.host().can_reach(&peer, self.shared.settings.dir.as_deref())
    }

    fn connect(
        &self,
        address: &[u8],
        identity: &[u8],
        cookie: u64,
    ) -> Result<RingEndpoint, Failure> {
        let peer = Address::parse(address)?;
        if identity.len() > MAX_IDENTITY {
            let text = format!("an identity of {} bytes is beyond {MAX_IDENTITY}", identity.len());
            return Err(Failure::new(Status::TooLarge, text));
        }
        let own_dir = self.shared.settings.dir.as_deref();
        self.shared.domain.host().can_reach(&peer, own_dir)?;
        let state = &mut *self.state.borrow_mut();
        let index = next_slot(&state.outbound, &state.free_outbound);
        let channel = SendChannel::open(
            &self.shared,
            crate::listener::targets(&peer, own_dir),
            peer.cookie,
            peer.domain,
            identity,
            cookie,
            index,
        )?;
        if channel.is_connecting() {
            self.shared.call_attention();
        }
        insert(&mut state.outbound, &mut state.free_outbound, channel.clone());
        Ok(RingEndpoint::new(channel, self.shared.clone()))
    }

    #[inline]
    fn poll(&self, events: &mut Events<'_>) -> Result<(), Status> {
        let state = &mut *self.state.borrow_mut();
        let shared = &*self.shared;
        shared.round.set(shared.round.get() + 1);
        if !state.touched.is_empty() {
            state.release_touched();
        }
        if shared.due.count() {
            state.slow_progress(shared, &self.address.cookie, events);
        }
        if state.bells_first {
            state.poll_bells_first(shared, events);
        } else {
            state.poll_direct(shared, events);
            state.poll_bells(shared, events);
        }
        if events.is_empty() {
            state.nothing_came(shared, &self.address.cookie, events);
        } else {
            shared.due.watch.clear();
            if events.room() == 0 {
                state.bells_first = !state.bells_first;
            }
        }
        Ok(())
    }

    const POLLS_AT_ONCE: bool = true;

    #[inline(always)]
    fn poll_at_once(&self, event: &mut MaybeUninit<Event>) -> bool {
        let Ok(mut state) = self.state.try_borrow_mut() else { return false };
        let due = &self.shared.due;
        let Some(channel) = state.only_channel(due) else { return false };
        let taken = channel.take_short(event);
        match taken {
            Short::Taken => due.delivered(),
            Short::Pooled => state.pooled = true,
            Short::Not => {}
        }
        matches!(taken, Short::Taken)
    }

    #[inline(always)]
    fn poll_second(&self, event: &mut MaybeUninit<Event>) -> bool {
        let Ok(mut state) = self.state.try_borrow_mut() else { return false };
        if !core::mem::take(&mut state.pooled) {
            return false;
        }
        let State { direct, inbound, .. } = &mut *state;
        let [index] = direct[..] else { return false };
        let Some(Some(channel)) = inbound.get_mut(index as usize) else { return false };
        let taken = channel.take_pooled(event);
        if taken {
            self.shared.due.delivered();
        }
        taken
    }

    fn watch(&self) -> Option<&Watch> {
        self.shared.due.watches.set(true);
        Some(&self.shared.due.watch)
    }

    fn arm(&self) -> Result<Armed, Status> {
        self.shared.due.watch.clear();
        let state = &mut *self.state.borrow_mut();
        Ok(state.arm(&self.shared, &self.address.cookie))
    }

    fn event_fd(&self) -> Option<i32> {
        Some(self.shared.epoll.raw())
    }

    fn hang_up(&self, peer: u64) -> Result<(), Status> {
        self.shared.due.watch.clear();
        let state = &mut *self.state.borrow_mut();
        let index = u32::try_from(peer).map_err(|_| Status::Invalid)?;
        let Some(Some(channel)) = state.inbound.get_mut(index as usize) else {
            return Ok(()); // the peer has already left
        };
        channel.leave(&self.shared, Status::NoMemory as i32, Some(Refusal::Unanswered));
        state.end_channel(index, &self.shared);
        Ok(())
    }

    fn leave(&self) {
        // A process may call exit inside a function that packs a message.
        if let Ok(mut state) = self.state.try_borrow_mut() {
            state.leave(&self.shared);
        }
    }

    fn memory(&self) -> MemoryReport {
        let state = self.state.borrow();
        let sending: u64 = state.outbound.iter().flatten().map(|c| c.memory()).sum();
        let receiving: u64 = state.inbound.iter().flatten().map(|c| c.memory()).sum();
        let peers =
            state.outbound.iter().flatten().count().max(state.inbound.iter().flatten().count());
        let doorbell = if state.doorbell.is_some() { sys::PAGE } else { 0 };
        MemoryReport {
            base_bytes: (size_of::<RingInterface>() + size_of::<Shared>() + doorbell) as u64,
            peer_bytes: sending + receiving,
            peers: peers as u64,
            buffer_bytes: self.shared.pool.committed() as u64,
        }
    }
}

impl State {
    #[cold]
    fn slow_progress(&mut self, shared: &Shared, cookie: &Id, events: &mut Events<'_>) {
        // This also empties the list of words: the channels below may hold some of them.
        let reads_clock = shared.due.begin();
        self.ended_channels.clear();
        self.handed_out.clear();
        if self.armed {
            self.disarm();
            self.maintain(shared, cookie);
        } else if reads_clock {
            self.check_clock(shared, cookie);
        }
        if shared.pool_starved.get() {
            let _ = self.take_chunks_back();
        }
        self.end_drained(shared);
        // Arriving and leaving peers take about half of the events at most; the rest is for messages.
        let kept = events.room() / 2;
        while events.room() > kept {
            let Some(notice) = shared.notices.borrow_mut().pop_front() else { break };
            let event = notice.event();
            let _ = events.push(event);
            if event.kind == event::PEER_ARRIVED {
                // The messages of this peer come after this event.
                self.direct.push(event.peer as u32);
            } else if event.kind == event::PEER_LEFT {
                // The place is freed here and not earlier: otherwise a new peer would be taken for the previous peer with this
                // number.
                self.free_inbound.push(event.peer as usize);
            }
            self.handed_out.push(notice);
        }
        // Another poll must release the bytes of these events, and deliver the events that did not fit.
        if !self.handed_out.is_empty()
            || !self.ended_channels.is_empty()
            || !shared.notices.borrow().is_empty()
        {
            shared.due.call();
        }
        if !self.telling.notices.is_empty() || !shared.failures.borrow().is_empty() {
            self.tell_failures(shared, cookie, events);
        }
    }

    /// Runs the maintenance at about the interval [`MAINTENANCE`], whether the application polls in a tight loop or occasionally.
    fn check_clock(&mut self, shared: &Shared, cookie: &Id) {
        let now = Instant::now();
        let slow = now.duration_since(self.clock_read) > MAINTENANCE / 2;
        self.clock_read = now;
        self.clock_every = if slow { 1 } else { (self.clock_every * 2).min(CLOCK_EVERY) };
        shared.due.read_clock_in(self.clock_every);
        if now.duration_since(self.maintained) >= MAINTENANCE {
            self.maintained = now;
            self.maintain(shared, cookie);
        }
    }

    /// Checks the sockets, advances connections and handshakes, and from time to time sweeps over the rings.
    fn maintain(&mut self, shared: &Shared, cookie: &Id) {
        let mut records = 0;
        // Epoll reports ready descriptors in a circle, so each gets its turn.
        while records < ENOUGH_RECORDS {
            let ready = shared.epoll.find_ready(&mut self.ready);
            for index in 0..ready {
                records += match token::split(self.ready.token(index)) {
                    (0, 0) => self.accept_some(shared, cookie),
                    (0, _) => {
                        if let Some(ticker) = &self.ticker {
                            ticker.set(false);
                        }
                        1
                    }
                    (1, index) => {
                        self.read_outbound(index);
                        MOST_IN_TURN
                    }
                    (2, index) => {
                        self.read_inbound(index, shared);
                        MOST_IN_TURN
                    }
                    (_, index) => {
                        self.read_greeting(index, shared, cookie);
                        1
                    }
                };
            }
            if ready < Ready::MOST {
                break;
            }
        }
        self.advance_outbound();
        self.expire_handshakes(shared);
        self.sweep += 1;
        if self.sweep >= SWEEP_EVERY {
            self.sweep = 0;
            self.sweep(shared);
        }
    }

    /// Marks the channels whose bell may have been lost, because any peer can overwrite doorbell words. Also retries pending
    /// answers.
    fn sweep(&mut self, shared: &Shared) {
        for (index, slot) in self.inbound.iter_mut().enumerate() {
            let Some(channel) = slot else { continue };
            channel.catch_up(shared);
            if channel.bell && !channel.fast && channel.has_news() {
                self.bells[index / 64].rung |= 1 << (index % 64);
            }
        }
    }

    fn advance_outbound(&mut self) {
        for (index, slot) in self.outbound.iter_mut().enumerate() {
            let Some(channel) = slot else { continue };
            if channel.is_connecting() {
                if let Err(failure) = channel.advance() {
                    channel.fail(failure.status, &failure.text);
                }
            }
            channel.catch_up();
            // Only this list holds the channel: the endpoint is closed, and nothing remains to wait for.
            if Rc::strong_count(channel) == 1 && channel.is_done() {
                *slot = None;
                self.free_outbound.push(index);
            }
        }
    }

    fn read_outbound(&mut self, index: usize) {
        if let Some(Some(channel)) = self.outbound.get(index) {
            channel.read_socket();
        }
    }
}

impl State {
    /// Ends the interface: admits no more peers, notifies every receiver that no more messages follow, and every sender that its
    /// messages are not read any more.
    fn leave(&mut self, shared: &Shared) {
        shared.due.watch.clear();
        for channel in self.outbound.iter().flatten() {
            channel.close();
        }
        for channel in self.inbound.iter_mut().flatten() {
            channel.leave(shared, Status::Closed as i32, Some(Refusal::Closing));
        }
        self.inbound.clear();
        self.ended_channels.clear();
        self.turn_all_away(shared);
        self.listener.close(&shared.closer);
        let until = Instant::now() + shared.settings.close_timeout;
        for channel in self.outbound.iter().flatten() {
            channel.insist_on_bye(until);
        }
    }
}

impl Drop for RingInterface {
    fn drop(&mut self) {
        self.state.get_mut().leave(&self.shared);
    }
}
