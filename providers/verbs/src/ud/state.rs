//! What an interface and its endpoints work on: one queue pair, the channels that begin here and those that end here.

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

/// Receives that are posted, and sends that may be on their way to the wire.
const RECEIVES: usize = 256;
const SENDS: usize = 256;
/// Receives that may hold messages which wait for earlier ones: the rest is for what is awaited.
const EARLY: usize = RECEIVES / 2;
/// A channel counts as silent when nothing came on it while so many eras began: at least two whole ones.
const SILENT: u64 = 3;
/// The device puts the global routing header in front of every datagram.
const GRH: usize = 40;
/// Channels that end here at most; anybody can open them.
const MAX_INBOUND: usize = if cfg!(test) { KEPT_INBOUND + 16 } else { 1 << 16 };
/// Beyond this many the slots of those are used again whose peers are dead.
const KEPT_INBOUND: usize = if cfg!(test) { 128 } else { 1 << 10 };
/// Closed ones that still answer, should what was said to their peers be lost; beyond that another one takes the place of the
/// oldest.
const KEPT_CLOSED: usize = 64;
/// Polls after which the clock is read, while something is awaited and otherwise.
const CLOCK_WAITING: u32 = 1;
const CLOCK_IDLE: u32 = 16;
/// After so many polls that found nothing the queue is looked at no more often than the clock.
const QUIET_AFTER: u32 = 1024;
const SLOW_PROGRESS_EVERY: Duration = Duration::from_millis(50);
/// So many samples are a span of time in which channels count as in use, at the most.
const SAMPLES: u32 = 20;
/// How long a port counts as out of reach that could not be resolved: to try may take the kernel a second.
const UNRESOLVED_FOR: Duration = Duration::from_secs(5);
/// A sleeper that awaits acknowledgements is woken this often.
const WAKE_EVERY: Duration = Duration::from_millis(20);

/// A channel that begins here.
struct Outbound {
    cookie: u64,
    sender: Sender,
    to: Target,
    handle: Rc<AddressHandle>,
    /// Bytes of a message that fit a packet: the smaller MTU of the two sides counts.
    piece: usize,
    /// It is among those that await something.
    listed: bool,
    /// Flushes that wait: the number up to which all must be acknowledged, and the cookie.
    flushes: Vec<(u32, u64)>,
    /// The application packs a message, for which there is room: nothing else is posted meanwhile.
    packing: bool,
    closing: bool,
    failed: Option<Status>,
}

/// A message before its turn: the buffer that it lies in, and the bytes that came.
struct Early {
    buffer: u32,
    len: usize,
}

/// A channel that ends here.
struct Inbound {
    token: u32,
    peer_end: End,
    to: Target,
    handle: Rc<AddressHandle>,
    receiver: Receiver<Early>,
    /// What has come of the peer's identity; the peer arrives when it is complete.
    identity: Vec<u8>,
    arrived: bool,
    /// The message of which this is the beginning is longer than a packet.
    begun: Vec<u8>,
    peer: u64,
    /// An acknowledgement is due.
    ack_due: bool,
    left: bool,
    /// The span of time in which it was last heard.
    active_in: u64,
    /// The era in which it was last heard.
    era: u64,
}

impl Inbound {
    /// Whether nothing has come for two failure timeouts.
    fn is_silent(&self, era: u64) -> bool {
        era >= self.era + SILENT
    }

    /// Whether its peer owes something: while it lives, it says that again and again.
    fn is_owed(&self) -> bool {
        !self.arrived || self.receiver.gap
    }

    /// Adds a piece of a message of at most `most` bytes. What does not follow is none.
    fn begin(&mut self, at: u64, piece: &[u8], most: usize) {
        if at != self.begun.len() as u64 || self.begun.len() + piece.len() > most {
            return self.begun.clear();
        }
        self.begun.extend_from_slice(piece);
    }

    /// Adds a piece of the peer's identity; the whole, when that was the last one.
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

/// How many channels are in use: together they must not send more than there are receives, or what is lost then is
/// mostly that of those who send little.
#[derive(Debug)]
struct Activity {
    /// The present span of time.
    span: u64,
    /// Samples taken in it, and messages that came.
    samples: u32,
    messages: usize,
    /// Channels that were active in it, and in the one before.
    active: usize,
    before: usize,
}

impl Default for Activity {
    fn default() -> Activity {
        Activity { span: 1, samples: 0, messages: 0, active: 0, before: 0 }
    }
}

impl Activity {
    /// Something came on a channel, which was last active in this span.
    fn note(&mut self, last: &mut u64) {
        self.messages += 1;
        if core::mem::replace(last, self.span) != self.span {
            self.active += 1;
        }
    }

    /// Called regularly: the next span begins once enough has come to have heard everybody, or when little comes.
    fn sample(&mut self) {
        self.samples += 1;
        if self.messages >= 2 * RECEIVES || self.samples >= SAMPLES {
            let (span, before) = (self.span + 1, self.active);
            *self = Activity { span, before, ..Activity::default() };
        }
    }

    /// How many messages of one channel may be on their way: its share of the receives, some of which are for those who
    /// begin to speak.
    fn share(&self) -> u64 {
        let channels = self.active.max(self.before).max(1);
        (RECEIVES * 3 / 4 / channels).clamp(1, WINDOW) as u64
    }
}

/// Everything of an interface, in the order in which it goes.
pub(crate) struct State {
    qp: Qp,
    outbound: Vec<Option<Outbound>>,
    /// Those of them that may await an acknowledgement: only they have timers.
    awaiting: Vec<u32>,
    inbound: Vec<Inbound>,
    /// The slots of those that were closed, in that order.
    closed: VecDeque<u32>,
    /// Which channel a hello opened: it may come again.
    known: HashMap<(Target, End), u32>,
    handles: HashMap<[u8; crate::port::PORT_LEN], Rc<AddressHandle>>,
    /// Ports of unknown peers that could not be resolved, and when.
    unresolved: HashMap<[u8; crate::port::PORT_LEN], Duration>,
    sleep: Sleep,
    cq: Cq,
    receives: Pool,
    sends: Pool,
    domain: Arc<DomainState>,
    /// The messages among them, by their buffers.
    notices: Notices<u32>,
    to_post: Vec<Receive>,
    /// Channels that owe acknowledgements.
    acks_due: Vec<u32>,
    /// Buffers of messages that wait for earlier ones.
    early: usize,
    activity: Activity,
    /// Time in failure timeouts, and when the present one began. It is counted in slow progress, so that standing still
    /// ourselves makes nobody silent.
    era: u64,
    era_began: Duration,
    batch: Vec<Wc>,
    pub(crate) own: Address,
    epoch: Instant,
    countdown: u32,
    /// Polls that found nothing, one after the other.
    idle: u32,
    slow_progress_at: Duration,
    next_peer: u64,
    dead: bool,
}

/// The number of a receive; that of a send is its buffer.
const RECEIVE: u64 = 1 << 63;

fn number() -> Result<u32, Failure> {
    let mut bytes = [0; 4];
    random(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

/// Puts a packet into a buffer and on its way. A packet that finds no room is one that was lost.
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
    /// Everything, with all receives posted.
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
        // The top bit of a queue key is for privileged ones.
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

    /// How many receives hold what waits for earlier datagrams, and how many may.
    #[cfg(test)]
    pub(crate) fn early(&self) -> (usize, usize) {
        (self.early, EARLY)
    }

    /// Whether packets can come to a peer's port.
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

    /// Says goodbye on every channel, waits for these to be acknowledged, as long as `TIELINE_CLOSE_TIMEOUT` says, and ends
    /// everything.
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

    /// The address handle of a port, for all channels there.
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

    #[inline]
    pub(crate) fn poll(&mut self, events: &mut Events<'_>) {
        self.countdown -= 1;
        if self.countdown == 0 || self.notices.are_out() || self.is_worth_a_look() {
            self.poll_all(events);
        }
    }

    /// Once other modules carry the traffic a look at this queue finds nothing, time after time: then it is looked at when the clock
    /// is. Who sleeps is woken by what comes, and arming looks by itself.
    #[inline]
    fn is_worth_a_look(&self) -> bool {
        self.idle < QUIET_AFTER
            || self.is_waiting()
            || !self.notices.is_empty()
            || !self.to_post.is_empty()
    }

    #[inline(never)] // who looks at nothing need not pay for it
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

    /// Time passes, and the device may have news.
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
        // What came before the request wakes nobody.
        let all = self.catch_up(None);
        self.idle = 0;
        self.sleep.wake_every(self.is_waiting().then_some(WAKE_EVERY));
        self.countdown = 1;
        if all && self.notices.is_empty() { Armed::Sleep } else { Armed::Ready }
    }
}

/// A header fits every packet.
const _: () = assert!(HEADER_LEN <= 40);
