//! The state of an interface and its endpoints: one queue pair, its outbound and its inbound channels.

#[cfg(test)]
mod activity_tests;
mod arrivals;
mod channels;

use super::address::{Address, Target};
use super::packet::{End, HEADER_LEN, Kind, Packet};
use super::receiver::{Receiver, Verdict};
use super::sender::{Sender, WINDOW};
use crate::abi::*;
use crate::buffers::Pool;
#[cfg(test)]
use crate::double::clock::Instant;
use crate::notices::{Attached, Notices};
use crate::port::{Port, mtu_bytes};
use crate::queue_pair::{AddressHandle, Qp, QpShape, Receive, Work};
use crate::shared::DomainState;
use crate::sys::{Cq, WC_BATCH, Wc};
use crate::wake::{Sleep, sys::random};
use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
#[cfg(not(test))]
use std::time::Instant;
use tieline_plugin_api::abi::Event;
use tieline_plugin_api::{Armed, Events, Failure, MemoryReport, Posted, Posting, Status, event};

/// The number of posted receives, and the limit on outstanding sends.
const RECEIVES: usize = 256;
const SENDS: usize = 256;
/// The limit on receive buffers with early messages; the rest is for messages in order.
const EARLY: usize = RECEIVES / 2;
/// The number of eras that have to begin without an arrival before a channel counts as silent: at least two whole eras.
const SILENT: u64 = 3;
/// The size of the global routing header, which the device puts in front of every datagram.
const GRH: usize = 40;
/// The limit on inbound channels, which any peer can open.
const MAX_INBOUND: usize = if cfg!(test) { KEPT_INBOUND + 16 } else { 1 << 16 };
/// The number of inbound channels above which slots of dead peers are reused.
const KEPT_INBOUND: usize = if cfg!(test) { 128 } else { 1 << 10 };
/// The number of closed channels that still answer, in case their last acknowledgement was lost. At this number, a new channel
/// replaces the oldest one.
const KEPT_CLOSED: usize = 64;
/// The number of polls between two clock reads, with outstanding acknowledgements and without.
const CLOCK_WAITING: u32 = 1;
const CLOCK_IDLE: u32 = 16;
/// The number of empty polls after which the queue is polled only when the clock is read.
const QUIET_AFTER: u32 = 1024;
const SLOW_PROGRESS_EVERY: Duration = Duration::from_millis(50);
/// The maximum number of samples in a span, the unit of time for channel activity.
const SAMPLES: u32 = 20;
/// The time for which an unresolvable port counts as unreachable. Resolving may take the kernel a second.
const UNRESOLVED_FOR: Duration = Duration::from_secs(5);
/// The wake-up interval of a sleeper with outstanding acknowledgements.
const WAKE_EVERY: Duration = Duration::from_millis(20);

/// An outbound channel.
struct Outbound {
    cookie: u64,
    sender: Sender,
    to: Target,
    handle: Rc<AddressHandle>,
    /// The number of message bytes that fit into a packet, limited by the smaller MTU of the two sides.
    piece: usize,
    /// Whether the endpoint is in the `awaiting` list.
    listed: bool,
    /// The pending flushes: for each, the number up to which everything must be acknowledged, and the cookie.
    flushes: Vec<(u32, u64)>,
    /// Whether the application is packing a message. Its place in the window is reserved, and no other message is posted meanwhile.
    packing: bool,
    closing: bool,
    failed: Option<Status>,
}

/// An early message: the buffer and the length.
struct Early {
    buffer: u32,
    len: usize,
}

/// An inbound channel.
struct Inbound {
    token: u32,
    peer_end: End,
    to: Target,
    handle: Rc<AddressHandle>,
    receiver: Receiver<Early>,
    /// The part of the peer's identity that has arrived. The peer is reported when the identity is complete.
    identity: Vec<u8>,
    arrived: bool,
    /// The parts that have arrived of a message that is longer than a packet.
    begun: Vec<u8>,
    peer: u64,
    /// Whether an acknowledgement is due.
    ack_due: bool,
    left: bool,
    /// The last span in which the channel was active.
    active_in: u64,
    /// The last era in which the channel was active.
    era: u64,
}

impl Inbound {
    /// Checks whether nothing has arrived on the channel for at least two failure timeouts.
    fn is_silent(&self, era: u64) -> bool {
        era >= self.era + SILENT
    }

    /// Checks whether data of the peer is known to be missing: a live peer retransmits that data.
    fn is_owed(&self) -> bool {
        !self.arrived || self.receiver.gap
    }

    /// Appends a part of a message of at most `most` bytes. A part with a wrong offset or length discards the message.
    fn begin(&mut self, at: u64, piece: &[u8], most: usize) {
        if at != self.begun.len() as u64 || self.begun.len() + piece.len() > most {
            return self.begun.clear();
        }
        self.begun.extend_from_slice(piece);
    }

    /// Appends a part of the peer's identity. Returns the identity when it is complete.
    fn assemble(&mut self, packet: &Packet, piece: &[u8]) -> Option<Vec<u8>> {
        let (len, at) = (packet.id as usize, packet.header);
        let fits = self.identity.len() + piece.len() <= len.min(super::MAX_IDENTITY);
        if self.arrived || at != self.identity.len() as u64 || !fits {
            return None;
        }
        self.identity.extend_from_slice(piece);
        self.arrived = self.identity.len() == len;
        self.arrived.then(|| core::mem::take(&mut self.identity))
    }
}

/// The number of active channels. If their windows together exceed the receives, packets may be lost.
#[derive(Debug)]
struct Activity {
    /// The number of the current span.
    span: u64,
    /// The numbers of samples and of arrived messages in the current span.
    samples: u32,
    messages: usize,
    /// The numbers of channels active in the current span and in the previous one.
    active: usize,
    before: usize,
}

impl Default for Activity {
    fn default() -> Activity {
        Activity { span: 1, samples: 0, messages: 0, active: 0, before: 0 }
    }
}

impl Activity {
    /// Counts an arrival on a channel that was last active in the span `last`.
    fn note(&mut self, last: &mut u64) {
        self.messages += 1;
        if core::mem::replace(last, self.span) != self.span {
            self.active += 1;
        }
    }

    /// Advances the activity measurement; called regularly. The next span begins after `2 * RECEIVES` messages or after `SAMPLES`
    /// samples.
    fn sample(&mut self) {
        self.samples += 1;
        if self.messages >= 2 * RECEIVES || self.samples >= SAMPLES {
            let (span, before) = (self.span + 1, self.active);
            *self = Activity { span, before, ..Activity::default() };
        }
    }

    /// Returns the window of one channel: its share of the receives. Some receives are reserved for channels that become active.
    fn share(&self) -> u64 {
        let channels = self.active.max(self.before).max(1);
        (RECEIVES * 3 / 4 / channels).clamp(1, WINDOW) as u64
    }
}

/// The whole state of an interface. The fields are dropped in this order.
pub(crate) struct State {
    qp: Qp,
    outbound: Vec<Option<Outbound>>,
    /// The outbound channels that may have outstanding packets: only these channels have timers.
    awaiting: Vec<u32>,
    inbound: Vec<Inbound>,
    /// The slots of closed inbound channels, oldest first.
    closed: VecDeque<u32>,
    /// The channel that a Hello opened, for retransmitted Hellos.
    known: HashMap<(Target, End), u32>,
    handles: HashMap<[u8; crate::port::PORT_LEN], Rc<AddressHandle>>,
    /// The unresolvable ports of unknown peers, with the time of the attempt.
    unresolved: HashMap<[u8; crate::port::PORT_LEN], Duration>,
    sleep: Sleep,
    cq: Cq,
    receives: Pool,
    sends: Pool,
    domain: Arc<DomainState>,
    /// The pending events; the messages among them are buffer numbers.
    notices: Notices<u32>,
    to_post: Vec<Receive>,
    /// The inbound channels that owe an acknowledgement.
    acks_due: Vec<u32>,
    /// The number of buffers with early messages.
    early: usize,
    activity: Activity,
    /// The time in units of the failure timeout (eras), and the start of the current era. Slow progress advances the era, so a
    /// suspension of this process makes no peer silent.
    era: u64,
    era_began: Duration,
    batch: Vec<Wc>,
    pub(crate) own: Address,
    epoch: Instant,
    countdown: u32,
    /// The number of consecutive empty polls.
    idle: u32,
    slow_progress_at: Duration,
    next_peer: u64,
    dead: bool,
}

/// The bit that marks the id of a receive. The id of a send is the number of its buffer.
const RECEIVE: u64 = 1 << 63;

fn number() -> Result<u32, Failure> {
    let mut bytes = [0; 4];
    random(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

/// Copies a packet into a buffer and posts the send. If no buffer is free or the device refuses the send, the packet counts as
/// lost.
fn transmit(qp: &Qp, sends: &mut Pool, handle: &AddressHandle, to: Target, bytes: &[u8]) {
    let Ok(buffer) = sends.take() else { return };
    let room = sends.bytes_mut(buffer);
    if bytes.len() > room.len() {
        return sends.give(buffer);
    }
    room[..bytes.len()].copy_from_slice(bytes);
    let piece = sends.sge(buffer, bytes.len());
    let work = Work::Datagram { to: handle, qpn: to.qpn, qkey: to.qkey };
    if qp.post(u64::from(buffer), work, &[piece], IBV_SEND_SIGNALED).is_err() {
        sends.give(buffer);
    }
}

impl State {
    /// Makes the state and posts all receives.
    pub(crate) fn new(domain: Arc<DomainState>) -> Result<State, Failure> {
        let cq = Cq::new(&domain.device, RECEIVES + SENDS)?;
        let sleep = Sleep::new(&domain.watch, Some(&cq))?;
        let shape = QpShape {
            kind: IBV_QPT_UD,
            cq: &cq,
            srq: None,
            send_depth: SENDS,
            receive_depth: RECEIVES,
            sges: 1,
            inline: 0,
        };
        let qp = Qp::new(&domain.pd, &shape)?;
        // Queue keys with the top bit set are privileged.
        let qkey = number()? & 0x7fff_ffff;
        qp.start_datagrams(&domain.local, qkey)?;
        let packet = mtu_bytes(domain.port.mtu);
        let target = Target {
            qpn: qp.number(),
            qkey,
            cookie: u64::from(number()?) | (u64::from(number()?) << 32),
        };
        let address = Address { target, port: domain.port };
        let mut receives = Pool::new(&domain.buffers, GRH + packet, RECEIVES, RECEIVES);
        receives.grow()?;
        let mut state = State {
            qp,
            outbound: Vec::new(),
            awaiting: Vec::new(),
            inbound: Vec::new(),
            closed: VecDeque::new(),
            known: HashMap::new(),
            handles: HashMap::new(),
            unresolved: HashMap::new(),
            sleep,
            cq,
            receives,
            sends: Pool::new(&domain.buffers, packet, 64, SENDS),
            notices: Notices::default(),
            to_post: Vec::new(),
            acks_due: Vec::new(),
            early: 0,
            activity: Activity::default(),
            era: 0,
            era_began: Duration::ZERO,
            batch: vec![Wc::default(); WC_BATCH],
            own: address,
            epoch: Instant::now(),
            countdown: 1,
            idle: 0,
            slow_progress_at: Duration::ZERO,
            next_peer: 1,
            dead: false,
            domain,
        };
        while let Some(buffer) = state.receives.take_made() {
            state.post_again(buffer);
        }
        state.post_receives()?;
        Ok(state)
    }

    /// Returns the number of receive buffers with early datagrams, and the limit on this number.
    #[cfg(test)]
    pub(crate) fn early(&self) -> (usize, usize) {
        (self.early, EARLY)
    }

    /// Checks whether packets can reach a peer's port.
    pub(crate) fn reaches(&self, peer: &Port) -> Result<(), Failure> {
        self.domain.reaches(peer)
    }

    pub(crate) fn event_fd(&self) -> i32 {
        self.sleep.raw()
    }

    pub(crate) fn memory(&self) -> MemoryReport {
        let outbound = self.outbound.iter().flatten().count();
        MemoryReport {
            base_bytes: (size_of::<State>() + self.cq.capacity() * 64) as u64,
            peer_bytes: (outbound * size_of::<Outbound>()
                + self.inbound.len() * (size_of::<Inbound>() + 48)) as u64,
            peers: outbound.max(self.inbound.len()) as u64,
            buffer_bytes: (self.receives.committed() + self.sends.committed()) as u64,
        }
    }

    /// Sends a goodbye on every channel, waits for the acknowledgements up to `TIELINE_CLOSE_TIMEOUT`, then tears everything
    /// down.
    pub(crate) fn leave(&mut self) {
        for number in 0..self.outbound.len() {
            if self.outbound[number].as_ref().is_some_and(|outbound| !outbound.closing) {
                self.close(number as u32);
            }
        }
        let until = Instant::now() + self.domain.settings.close;
        while !self.dead
            && self.outbound.iter().flatten().any(|o| o.closing && o.sender.is_waiting())
            && Instant::now() < until
        {
            let now = self.now();
            self.check_timeouts(now, None);
            let _ = self.fetch(None);
            std::thread::yield_now();
        }
        self.outbound.clear();
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Returns the address handle of a port, shared by all channels to it.
    fn handle(&mut self, port: &Port) -> Result<Rc<AddressHandle>, Failure> {
        let key = port.pack();
        if let Some(handle) = self.handles.get(&key) {
            return Ok(handle.clone());
        }
        let route = self.domain.route(port);
        let handle = Rc::new(AddressHandle::new(&self.domain.pd, route)?);
        let _ = self.handles.insert(key, handle.clone());
        Ok(handle)
    }

    fn post_again(&mut self, buffer: u32) {
        let sge = self.receives.whole(buffer);
        self.to_post.push(Receive { id: RECEIVE | u64::from(buffer), sge });
    }

    fn post_receives(&mut self) -> Result<(), Failure> {
        if self.to_post.is_empty() {
            return Ok(());
        }
        let result = self.qp.post_receives(&self.to_post);
        self.to_post.clear();
        Ok(result?)
    }

    /// Handles a poll that has nothing to do, and returns `true`; otherwise changes nothing.
    #[inline]
    pub(crate) fn poll_quietly(&mut self) -> bool {
        if self.countdown == 1 || self.notices.are_out() || self.is_worth_a_look() {
            return false;
        }
        self.countdown = self.countdown.wrapping_sub(1);
        true
    }

    #[inline]
    pub(crate) fn poll(&mut self, events: &mut Events<'_>) {
        self.countdown -= 1;
        if self.countdown == 0 || self.notices.are_out() || self.is_worth_a_look() {
            self.poll_all(events);
        }
    }

    /// Checks whether to poll the queue. While other modules carry the traffic, polls of this queue stay empty, so the queue is
    /// polled only when the clock is read. An arrival still wakes a sleeper, and arming polls the queue itself.
    #[inline]
    fn is_worth_a_look(&self) -> bool {
        self.idle < QUIET_AFTER
            || self.is_waiting()
            || !self.notices.is_empty()
            || !self.to_post.is_empty()
    }

    #[inline(never)] // keeps this function out of the idle path
    fn poll_all(&mut self, events: &mut Events<'_>) {
        self.notices.release_texts();
        while let Some(buffer) = self.notices.taken() {
            self.post_again(buffer);
        }
        if let Err(failure) = self.post_receives() {
            self.fail_all(&failure, None);
        }
        if self.countdown == 0 {
            self.slow_progress(Some(events));
        }
        if self.notices.hand_out(events) {
            let found = self.fetch(Some(events));
            self.idle = if found { 0 } else { self.idle.saturating_add(1) };
        }
    }

    fn is_waiting(&self) -> bool {
        !self.awaiting.is_empty()
    }

    /// Runs the timers and reads the device's events.
    fn slow_progress(&mut self, mut events: Option<&mut Events<'_>>) {
        let now = self.now();
        self.check_timeouts(now, events.as_deref_mut());
        self.countdown = if self.is_waiting() { CLOCK_WAITING } else { CLOCK_IDLE };
        if now - self.slow_progress_at >= SLOW_PROGRESS_EVERY {
            self.slow_progress_at = now;
            self.activity.sample();
            self.drop_silent(now, events.as_deref_mut());
            self.read_async_events(events);
        }
    }

    fn read_async_events(&mut self, mut events: Option<&mut Events<'_>>) {
        for event in self.sleep.async_events() {
            let text = match event.kind {
                IBV_EVENT_DEVICE_FATAL => {
                    format!("the device {} was removed", self.domain.name.device)
                }
                IBV_EVENT_CQ_ERR if self.cq.is(event.queue) => {
                    format!("a queue of {} failed", self.domain.name.words())
                }
                IBV_EVENT_QP_FATAL if event.qp == Some(self.own.target.qpn) => {
                    format!("the datagram queue pair of {} failed", self.domain.name.words())
                }
                _ => continue,
            };
            self.fail_all(&Failure::new(Status::NoDevice, text), events.as_deref_mut());
        }
        if let Some(why) = self.domain.watch.moved().filter(|_| !self.dead) {
            self.fail_all(&Failure::new(Status::Unreachable, why), events);
        }
    }

    pub(crate) fn arm(&mut self) -> Armed {
        let now = self.now();
        self.check_timeouts(now, None);
        self.read_async_events(None);
        if self.notices.are_out() || !self.notices.is_empty() {
            return Armed::Ready;
        }
        self.cq.drain_channel();
        if let Err(failure) = self.cq.arm() {
            self.fail_all(&failure, None);
        }
        // Completions from before the request cause no wake-up, so they are read now.
        let all = self.catch_up(None);
        self.idle = 0;
        self.sleep.wake_every(self.is_waiting().then_some(WAKE_EVERY));
        self.countdown = 1;
        if all && self.notices.is_empty() { Armed::Sleep } else { Armed::Ready }
    }
}

/// A header fits into the reserved bytes of every packet.
const _: () = assert!(HEADER_LEN <= 40);
