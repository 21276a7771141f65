//! The state of an interface and its endpoints: the library's endpoint, the sending and receiving channels, and the events that
//! wait for the application.
//!
//! Outgoing packets pass through one queue for each peer, which keeps their order if the library is full. A data call that would
//! have to wait in that queue returns `AGAIN` instead, unless its message is already packed. The messages of a channel have their
//! own flow control: at most `TIELINE_OFI_WINDOW` bytes are under way, and delivered messages free that window.

#[cfg(test)]
mod accounts_tests;
mod atomics;
mod buffers;
#[cfg(test)]
mod buffers_tests;
mod channels;
mod ending;
mod hellos;
mod limits;
mod ops;
mod packets;
mod peers;
mod polling;
mod sending;
mod sys;
mod transfers;
mod watching;

use crate::abi::*;
use crate::address::{Address, MAX_NAME};
use crate::config::Settings;
use crate::memory::{Inbox, LocalMemory, Registry, Revocation};
use crate::offers::Offer;
use crate::sleep::Sleep;
use crate::sys::{Av, Cq, Ep, Read, Room};
use buffers::{Buffers, Slots};
pub use channels::RemoteKey;
use channels::{Ghost, Inbound, Outbound};
use core::time::Duration;
use hellos::Unanswered;
use limits::Limits;
pub(crate) use limits::{longest_transfer, most_pieces};
use ops::Ops;
use peers::Peers;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use tieline_net::{Hub, Waker};
use tieline_plugin_api::abi::Event;
use tieline_plugin_api::{Armed, Failure, MemoryReport, Status};
use tieline_registration::{Arena, Lender};

/// The longest identity, in bytes; it must fit into one packet.
pub(crate) const MAX_IDENTITY: usize = 4096;
/// The maximum number of queue reads in one poll.
const FETCHES: usize = 64;
/// The wake-up interval of a sleeper while there is work that the library does not signal.
const TICK: Duration = Duration::from_millis(5);
/// The maximum number of bytes of an interface's own buffers.
const MOST_BUFFERS: usize = 1 << 32;

/// The longest packet of any interface, whatever its own settings: a receiver has buffers for the longest packet that a sender may
/// send. Layers below would send longer packets by a rendezvous, which may complete after messages that were sent later (rxm: 16
/// KiB; EFA: one MTU). The order concerns matching; completions may be in another order (fi_endpoint(3)).
pub(crate) const LONGEST_PACKET: usize = crate::wire::HEAD + crate::config::MOST_EAGER;
const _: () = assert!(crate::config::MOST_EAGER >= 17 + MAX_NAME + MAX_IDENTITY);

/// An event that waits for delivery.
enum Ready {
    Event(Event, Option<Box<[u8]>>),
    /// A message in a buffer; its bytes are credited to the channel on delivery.
    Message {
        event: Event,
        buffer: usize,
        from: usize,
        bytes: u64,
    },
    /// A channel has ended; its place is freed after this event is delivered.
    Left {
        from: usize,
        status: i32,
        words: Box<[u8]>,
    },
}

/// The state of an interface.
pub(crate) struct Engine {
    ep: Arc<Ep>,
    ops: Ops,
    slots: Slots,
    buffers: Buffers,
    peers: Peers,
    outbound: Vec<Option<Outbound>>,
    inbound: Vec<Option<Inbound>>,
    ready: VecDeque<Ready>,
    /// The buffers and texts that the events of the last poll point to.
    shown: Vec<usize>,
    texts: Vec<Box<[u8]>>,
    /// The channels that owe acknowledgements.
    acks: Vec<usize>,
    /// Removed receiving channels whose senders may still have operations under way.
    ghosts: Vec<Ghost>,
    /// Hellos that have not been answered, oldest first, and the interval after which each is repeated.
    unanswered: VecDeque<Unanswered>,
    pause: Duration,
    /// The number of packets of all peers that wait for the library.
    waiting: usize,
    /// The completions of the last read of the library's queue, and its result until they are handled.
    room: Box<Room>,
    read: Option<Read>,
    /// The number of polls so far, and of next polls that may only read the queue.
    polls: u32,
    quiet: u32,
    /// Whether a call returned `AGAIN` because the library was full. The library does not signal when it can take more.
    starving: bool,
    sends: usize,
    /// The number of puts, gets and atomics of open endpoints that the library holds.
    transfers: usize,
    lender: Arc<Lender<LocalMemory>>,
    registry: Arc<Registry>,
    inbox: Arc<Inbox>,
    /// Revocations of regions that not all peers have confirmed.
    revocations: Vec<Arc<Revocation>>,
    sleep: Option<Sleep>,
    /// The watch on the processes of peers.
    vigil: Option<watching::Vigil>,
    settings: Settings,
    limits: Limits,
    atomics: crate::atomics::Masks,
    pub(crate) address: Address,
    next_peer: u64,
    /// The reason why the interface has failed; `None` while it works.
    broken: Option<Failure>,
    /// Whether the interface has left, and its peers have been notified.
    has_left: bool,
}

fn token() -> Result<u64, Failure> {
    let mut bytes = [0; 8];
    crate::sys::random(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

impl Engine {
    pub(crate) fn open(
        registry: &Arc<Registry>,
        offer: &Offer,
        settings: &Settings,
        waits: bool,
        hub: Option<&Arc<Hub>>,
    ) -> Result<Engine, Failure> {
        let domain = &registry.place()?;
        let packet = LONGEST_PACKET;
        // The queue has room for the completions of all posted operations, and for the packets of all buffers, up to 65536 entries.
        // The shortest packet is a head.
        let room = (2 * settings.queue + settings.receive / crate::wire::HEAD).clamp(1024, 1 << 16);
        let cq = Cq::open(domain, room, waits)?;
        let fd = cq.fd();
        let ep = Arc::new(Ep::open(domain, cq, Av::open(domain)?, packet)?);
        let name = ep.name()?;
        if name.is_empty() || name.len() > MAX_NAME {
            let text =
                format!("an endpoint of {} has a name of {} bytes", offer.domain, name.len());
            return Err(Failure::new(Status::Unsupported, text));
        }
        let epoch = token()?;
        let watch = match (hub, &settings.watch) {
            (Some(hub), Some(settings)) => Some(crate::watch::Watch::open(hub, settings, epoch)?),
            _ => None,
        };
        let io = |error| Failure::from_io("a descriptor to sleep on", &error);
        let (number, bell) = (registry.new_interface(), Waker::new().map_err(io)?);
        let others = [Some(bell.as_fd().as_raw_fd()), watch.as_ref().map(crate::watch::Watch::fd)];
        let others: Vec<_> = others.into_iter().flatten().collect();
        let sleep = fd.map(|fd| Sleep::new(fd, &others)).transpose().map_err(io)?;
        let memory = LocalMemory::new(registry.clone(), ep.clone());
        // No registration is cached beyond its operation: unmapping of memory is not reported.
        let limits = tieline_registration::Limits { keep: false, bytes: 1 << 30, entries: 1024 };
        let lender = Arc::new(Lender::new(memory, Some(limits)));
        let arena = Arc::new(Arena::new(lender.clone(), MOST_BUFFERS));
        let attr = offer.info.ep();
        let address = Address {
            protocol: attr.protocol,
            protocol_version: attr.protocol_version,
            format: offer.info.address_format(),
            mr_mode: offer.info.domain().mr_mode as u32,
            epoch,
            host: crate::address::host(),
            number,
            seal: registry.seal,
            provider: offer.provider.clone(),
            fabric: offer.fabric.clone(),
            name,
            watch: watch.as_ref().map(crate::watch::Watch::contact),
        };
        let (many, most) = (holds_many(offer), offer.info.rx().size);
        let buffers = Buffers::new(&arena, many, packet, settings.receive, most)?;
        // The interface joins last, because a member is asked about the ends of regions.
        let inbox = registry.join(&ep, number, bell)?;
        let mut engine = Engine {
            ops: Ops::default(),
            slots: Slots::new(&arena, packet),
            buffers,
            peers: Peers::default(),
            outbound: Vec::new(),
            inbound: Vec::new(),
            ready: VecDeque::new(),
            shown: Vec::new(),
            texts: Vec::new(),
            acks: Vec::new(),
            ghosts: Vec::new(),
            unanswered: VecDeque::new(),
            pause: hellos::PAUSE,
            waiting: 0,
            room: Box::default(),
            read: None,
            polls: 0,
            quiet: polling::QUIET,
            starving: false,
            sends: 0,
            transfers: 0,
            lender,
            registry: registry.clone(),
            inbox,
            revocations: Vec::new(),
            sleep,
            vigil: watch.map(watching::Vigil::new),
            settings: settings.clone(),
            limits: Limits::new(&offer.info, settings),
            atomics: Default::default(),
            address,
            next_peer: 1,
            broken: None,
            has_left: false,
            ep,
        };
        engine.post_buffers();
        match engine.broken.clone() {
            None => Ok(engine),
            Some(failure) => Err(failure),
        }
    }

    /// Asks every connected peer, because it may have a key to the region, to confirm that no operation targets the region.
    fn pass_on(&mut self, revocation: &Arc<Revocation>) {
        for at in 0..self.inbound.len() {
            let Some(inbound) = self.inbound[at].as_ref() else { continue };
            if !inbound.left {
                self.ask(at, revocation);
            }
        }
        for ghost in &mut self.ghosts {
            ghost.asked.push(revocation.clone());
        }
        self.revocations.push(revocation.clone());
        self.answer(revocation);
    }

    /// Asks the sender of one channel to confirm a revocation.
    fn ask(&mut self, at: usize, revocation: &Arc<Revocation>) {
        if let Some(inbound) = self.inbound[at].as_mut() {
            inbound.asked.push(revocation.clone());
        }
        let generation = revocation.generation;
        self.say_back(at, crate::wire::Kind::Revoke, |head| head.header = generation);
    }

    /// Notifies the owner of a region when all peers have answered.
    fn answer(&mut self, revocation: &Arc<Revocation>) {
        let open =
            |inbound: &Inbound| inbound.asked.iter().any(|asked| Arc::ptr_eq(asked, revocation));
        let haunted =
            |ghost: &Ghost| ghost.asked.iter().any(|asked| Arc::ptr_eq(asked, revocation));
        if self.inbound.iter().flatten().any(open) || self.ghosts.iter().any(haunted) {
            return;
        }
        let at = self.revocations.iter().position(|other| Arc::ptr_eq(other, revocation));
        if let Some(at) = at {
            self.revocations.swap_remove(at).answered();
        }
    }

    pub(crate) fn arm(&mut self) -> Armed {
        let empty = self.fetch_all();
        self.look_for_trouble();
        self.watch_now(empty, true);
        self.tell_all();
        self.attend(empty);
        let quiet = self.ready.is_empty()
            && self.shown.is_empty()
            && self.texts.is_empty()
            && self.inbox.is_empty();
        if let Some(sleep) = &self.sleep {
            // If the kernel cannot watch more descriptors, the sleeper must be woken periodically.
            let ticks = !sleep.watch() || self.needs_ticks();
            sleep.wake_in(if ticks { Some(TICK) } else { self.next_look() });
        }
        let asleep = quiet && empty && (self.broken.is_some() || self.ep.cq.may_sleep());
        if asleep { Armed::Sleep } else { Armed::Ready }
    }

    /// Checks whether there is work that the library does not signal.
    fn needs_ticks(&self) -> bool {
        let unposted = self.buffers.is_any_free() && self.broken.is_none();
        self.waiting > 0 || self.starving || unposted || !self.acks.is_empty()
    }

    /// Checks whether the peer of a channel has answered.
    pub(crate) fn is_connected(&self, channel: usize) -> bool {
        self.outbound[channel].as_ref().is_some_and(|channel| channel.remote.is_some())
    }

    pub(crate) fn event_fd(&self) -> Option<i32> {
        self.sleep.as_ref().map(Sleep::raw)
    }

    pub(crate) fn memory(&self) -> MemoryReport {
        let buffers = self.buffers.committed() + self.slots.committed();
        // Measured: rxm posts 4096 buffers of 16 KiB to a receive context that all its connections share.
        let layers = if self.address.provider.contains("ofi_rxm") { 68 << 20 } else { 0 };
        MemoryReport {
            base_bytes: layers + size_of::<Engine>() as u64,
            peer_bytes: ((self.outbound.len() + self.inbound.len()) * size_of::<Outbound>()) as u64,
            peers: self.peers.len() as u64,
            buffer_bytes: buffers as u64,
        }
    }
}

#[cfg(test)]
impl Engine {
    pub(crate) fn lose_patience(&mut self) {
        self.settings.connect_timeout = Duration::ZERO;
    }

    pub(crate) fn say_hello_again(&mut self) {
        self.pause = Duration::ZERO;
    }
}

/// Checks whether the provider reports reliably when it releases a buffer for many messages (see `Buffers::many`).
fn holds_many(offer: &Offer) -> bool {
    let is_ip = [FI_SOCKADDR_IN, FI_SOCKADDR_IN6].contains(&offer.info.address_format());
    !is_ip && !offer.provider.contains("ofi_rxm")
}
