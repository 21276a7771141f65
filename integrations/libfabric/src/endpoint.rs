//! Endpoints: a Tieline worker, its peers, and the objects that are bound to it.

use crate::address::{ADDRESS_LEN, Source, Vector, encode};
use crate::counter::Counter;
use crate::domain::Domain;
use crate::flow::Backlogs;
use crate::keys::KeyRequest;
use crate::ops::{Kind, Op};
use crate::peers::Peer;
use crate::place::Listener;
use crate::queue::Cq;
use crate::receive::{Kept, Plain, Receive};
use crate::slab::Slab;
use crate::status::Failed;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tieline::Worker;
use tieline_libfabric_abi::*;
use tieline_tag::Matcher;

/// The ids of the provider's messages.
pub(crate) mod id {
    /// A message without a tag.
    pub(crate) const PLAIN: u16 = 1;
    /// The same with data for the completion queue, in the 8-byte header.
    pub(crate) const PLAIN_DATA: u16 = 2;
    /// A tagged message; the 8-byte header is the tag.
    pub(crate) const TAGGED: u16 = 3;
    /// The same with data: in the header bytes, or else in the first 8 bytes of the payload.
    pub(crate) const TAGGED_DATA: u16 = 4;
    /// A request for the remote key of a number, and the reply to it.
    pub(crate) const KEY: u16 = 5;
    pub(crate) const KEY_REPLY: u16 = 6;
    /// A write of which the target learns: its data, its length and its key's number.
    pub(crate) const WRITTEN: u16 = 7;
    /// A message about messages that are held back (`flow`).
    pub(crate) const FLOW: u16 = 8;
}

/// The time that closing an endpoint waits for its peers.
const CLOSE: Duration = Duration::from_secs(5);
/// The longest sleep of such a wait.
const LOOK: Duration = Duration::from_millis(1);

/// The traffic of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) sent: Cell<(u64, u64)>,
    pub(crate) received: Cell<(u64, u64)>,
    pub(crate) rendezvous: Cell<u64>,
    pub(crate) puts: Cell<(u64, u64)>,
    pub(crate) gets: Cell<(u64, u64)>,
    pub(crate) atomics: Cell<u64>,
    pub(crate) keys: Cell<u64>,
    pub(crate) errors: Cell<u64>,
}

/// Counts an operation and its bytes.
#[inline]
pub(crate) fn add(cell: &Cell<(u64, u64)>, len: usize) {
    let (count, bytes) = cell.get();
    cell.set((count + 1, bytes + len as u64));
}

/// Counts one.
#[inline]
pub(crate) fn one(cell: &Cell<u64>) {
    cell.set(cell.get() + 1);
}

/// An endpoint.
pub(crate) struct Ep {
    pub(crate) domain: Rc<Domain>,
    pub(crate) worker: Worker,
    address: [u8; ADDRESS_LEN],
    pub(crate) av: OnceCell<Rc<Vector>>,
    pub(crate) tx: OnceCell<Rc<Cq>>,
    pub(crate) rx: OnceCell<Rc<Cq>>,
    pub(crate) tx_selective: Cell<bool>,
    pub(crate) rx_selective: Cell<bool>,
    counters: [OnceCell<Rc<Counter>>; 6],
    listener: RefCell<Option<Listener>>,
    pub(crate) enabled: Cell<bool>,
    pub(crate) tx_flags: Cell<u64>,
    pub(crate) rx_flags: Cell<u64>,
    /// Completions report their sender (`FI_SOURCE`).
    pub(crate) reports_source: bool,
    /// Receives may name their sender (`FI_DIRECTED_RECV`).
    pub(crate) is_directed: bool,
    /// The least room of a buffer for several messages.
    pub(crate) least_room: Cell<usize>,
    pub(crate) peers: RefCell<Vec<Peer>>,
    /// The addresses whose names are being resolved.
    pub(crate) resolving: RefCell<Vec<u64>>,
    /// The sources of Tieline's peers, by number.
    pub(crate) sources: RefCell<Vec<Option<Source>>>,
    /// The sources of peers that have ended, and whether a message would show that the peer has connected again.
    pub(crate) dead: RefCell<Vec<(Source, bool)>>,
    pub(crate) ops: RefCell<Slab<Op>>,
    pub(crate) plain: RefCell<Plain>,
    pub(crate) tags: RefCell<Matcher<Kept, Receive>>,
    /// Operations that wait for room, for a peer or for a key.
    pub(crate) again: RefCell<VecDeque<u32>>,
    /// Operations that have ended, while the library or a device may still access their memory.
    pub(crate) closing: RefCell<Vec<u32>>,
    pub(crate) requests: RefCell<Vec<KeyRequest>>,
    /// The addresses of peers with messages that wait for room.
    pub(crate) blocked: RefCell<Vec<u64>>,
    pub(crate) backlogs: RefCell<Backlogs>,
    /// A post has returned `-FI_EAGAIN`.
    pub(crate) is_stuck: Cell<bool>,
    /// One of the lists above may have an entry.
    pub(crate) todo: Cell<bool>,
    /// The number of sends, of which some make progress.
    pub(crate) sends: Cell<u32>,
    pub(crate) counts: Counts,
}

impl fmt::Debug for Ep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ep({:?})", self.counts)
    }
}

/// The attributes of a new endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) caps: u64,
    pub(crate) tx_flags: u64,
    pub(crate) rx_flags: u64,
    /// The host and the port where the endpoint gives its address.
    pub(crate) place: Option<SocketAddr>,
}

/// The flags of `fi_ep_bind` with a counter, in the order of [`Kind::counter`].
const COUNTED: [u64; 6] = [FI_SEND, FI_RECV, FI_READ, FI_WRITE, FI_REMOTE_READ, FI_REMOTE_WRITE];
/// The places of the counters of sends and receives.
pub(crate) const SENDS: usize = 0;
pub(crate) const RECEIVES: usize = 1;
/// The place of the counter of a peer's puts.
pub(crate) const REMOTE_WRITES: usize = 5;

/// Gives the address to everybody who connects to a port.
fn listen_at(
    place: Option<SocketAddr>,
    address: &[u8; ADDRESS_LEN],
) -> Result<Option<Listener>, (Failed, String)> {
    let Some(place) = place.filter(|place| place.port() != 0) else { return Ok(None) };
    match Listener::start(&place, address) {
        Ok(listener) => Ok(Some(listener)),
        // A port without a host is only a wish: several endpoints of a host may state the same one.
        Err(_) if place.ip().is_unspecified() => Ok(None),
        Err(error) => {
            let number = error.raw_os_error().unwrap_or(FI_EOTHER);
            Err((Failed::new(number), format!("the endpoint cannot listen at {place}: {error}")))
        }
    }
}

impl Ep {
    /// Opens an endpoint in a domain.
    pub(crate) fn open(domain: &Rc<Domain>, wanted: Wanted) -> Result<Rc<Ep>, (Failed, String)> {
        let failed = |error: &tieline::Error| (Failed::from(error), error.to_string());
        let worker = domain.context.worker().map_err(|error| failed(&error))?;
        if domain.choices.is_shared || domain.choices.auto {
            worker.check_movable().map_err(|error| failed(&error))?;
        }
        let name = worker.name().map_err(|error| failed(&error))?;
        let address = encode(&name);
        let listener = listen_at(wanted.place, &address)?;
        let ep = Rc::new(Ep {
            domain: domain.clone(),
            address,
            listener: RefCell::new(listener),
            worker,
            av: OnceCell::new(),
            tx: OnceCell::new(),
            rx: OnceCell::new(),
            tx_selective: Cell::new(false),
            rx_selective: Cell::new(false),
            counters: Default::default(),
            enabled: Cell::new(false),
            tx_flags: Cell::new(wanted.tx_flags),
            rx_flags: Cell::new(wanted.rx_flags),
            reports_source: wanted.caps & FI_SOURCE != 0,
            is_directed: wanted.caps & FI_DIRECTED_RECV != 0,
            least_room: Cell::new(64),
            peers: RefCell::default(),
            resolving: RefCell::default(),
            sources: RefCell::default(),
            dead: RefCell::default(),
            ops: RefCell::default(),
            plain: RefCell::default(),
            tags: RefCell::default(),
            again: RefCell::default(),
            closing: RefCell::default(),
            requests: RefCell::default(),
            blocked: RefCell::default(),
            backlogs: RefCell::default(),
            is_stuck: Cell::default(),
            todo: Cell::default(),
            sends: Cell::default(),
            counts: Counts::default(),
        });
        ep.listen().map_err(|error| failed(&error))?;
        domain.eps.borrow_mut().push(ep.clone());
        domain.used();
        Ok(ep)
    }

    /// Registers the handlers of the provider's messages.
    fn listen(self: &Rc<Self>) -> Result<(), tieline::Error> {
        let weak = Rc::downgrade(self);
        for id in [id::PLAIN, id::PLAIN_DATA, id::TAGGED, id::TAGGED_DATA] {
            let ep = weak.clone();
            self.worker.on_message(id, move |message| {
                if let Some(ep) = ep.upgrade() {
                    ep.arrived(message);
                }
            })?;
        }
        let ep = weak.clone();
        self.worker.on_message(id::KEY, move |message| {
            if let Some(ep) = ep.upgrade() {
                ep.requests.borrow_mut().push(KeyRequest::of(message));
                ep.todo.set(true);
            }
        })?;
        let ep = weak.clone();
        self.worker.on_message(id::KEY_REPLY, move |message| {
            if let Some(ep) = ep.upgrade() {
                ep.key_arrived(message);
            }
        })?;
        let ep = weak.clone();
        self.worker.on_message(id::WRITTEN, move |message| {
            if let Some(ep) = ep.upgrade() {
                ep.written(message);
            }
        })?;
        let ep = weak.clone();
        self.worker.on_message(id::FLOW, move |message| {
            if let Some(ep) = ep.upgrade() {
                ep.flow(message);
            }
        })?;
        let ep = weak.clone();
        self.worker.on_peer_failure(move |peer, _| {
            if let Some(ep) = ep.upgrade() {
                ep.peer_ended(peer, false);
            }
        });
        let ep = weak.clone();
        self.worker.on_peer_left(move |peer| {
            if let Some(ep) = ep.upgrade() {
                ep.peer_ended(peer, true);
            }
        });
        self.worker.on_endpoint_failure(move |endpoint, _| {
            if let Some(ep) = weak.upgrade() {
                ep.peer_ended(endpoint.peer(), true);
            }
        });
        Ok(())
    }

    /// Returns the endpoint's address.
    pub(crate) fn address(&self) -> &[u8; ADDRESS_LEN] {
        &self.address
    }

    /// Binds a counter to the kinds of operations that `flags` names.
    pub(crate) fn bind_counter(&self, counter: &Rc<Counter>, flags: u64) -> bool {
        let mut is_new = true;
        for (place, flag) in self.counters.iter().zip(COUNTED) {
            if flags & flag != 0 {
                is_new &= place.set(counter.clone()).is_ok();
                counter.users.set(counter.users.get() + usize::from(is_new));
            }
        }
        is_new
    }

    /// Returns the counter of a kind of operations.
    #[inline]
    pub(crate) fn counter(&self, place: usize) -> Option<&Rc<Counter>> {
        self.counters[place].get()
    }

    /// Checks whether the endpoint counts operations of its peers.
    pub(crate) fn counts_peers(&self) -> bool {
        self.counters[4].get().is_some() || self.counters[REMOTE_WRITES].get().is_some()
    }

    /// Returns the completion queue of a kind of operations.
    #[inline]
    pub(crate) fn queue(&self, kind: Kind) -> Option<&Rc<Cq>> {
        if kind == Kind::Receive { self.rx.get() } else { self.tx.get() }
    }

    /// Checks whether a transmit operation with these flags gets an entry.
    #[inline]
    pub(crate) fn tells_tx(&self, flags: u64) -> bool {
        !self.tx_selective.get() || flags & FI_COMPLETION != 0
    }

    /// Checks whether a receive with these flags gets an entry.
    #[inline]
    pub(crate) fn tells_rx(&self, flags: u64) -> bool {
        !self.rx_selective.get() || flags & FI_COMPLETION != 0
    }

    /// Closes the endpoint. Operations that are pending are not reported any more.
    pub(crate) fn close(self: &Rc<Self>) {
        self.report();
        self.domain.eps.borrow_mut().retain(|other| !Rc::ptr_eq(other, self));
        // The peers that the messages of this endpoint have not reached within the time do not get them.
        drop(self.listener.take());
        let until = Instant::now() + CLOSE;
        self.send_all_waiting(until);
        let _ = self.worker.close(until.saturating_duration_since(Instant::now()));
        self.peers.borrow_mut().clear();
        drop(self.tags.take());
        drop(self.plain.take());
        drop(self.ops.borrow_mut().take_all());
        for counter in self.counters.iter().filter_map(OnceCell::get) {
            counter.users.set(counter.users.get() - 1);
        }
        for queue in [self.tx.get(), self.rx.get()].into_iter().flatten() {
            queue.users.set(queue.users.get() - 1);
        }
        if let Some(av) = self.av.get() {
            av.users.set(av.users.get() - 1);
        }
        self.domain.unused();
    }

    /// Makes progress until no message waits in the provider for its peer or for room, or until the time has passed. An application
    /// may close the endpoint when its last sends are reported, and the provider reports an injected one when it has a copy.
    fn send_all_waiting(&self, until: Instant) {
        let waits = || self.peers.borrow().iter().any(|peer| !peer.waiting.borrow().is_empty());
        while waits() && Instant::now() < until {
            self.progress();
            // The peer may be another endpoint of this domain.
            self.domain.progress();
            // The worker makes no progress after an error, for example in a forked child.
            if self.worker.wait(Some(LOOK)).is_err() {
                break;
            }
        }
    }

    /// Appends the traffic to the file that `TIELINE_FI_REPORT` names: a line per endpoint, with the path to a peer.
    fn report(&self) {
        let Some(name) = std::env::var_os("TIELINE_FI_REPORT") else { return };
        let counts = &self.counts;
        let path = self.peers.borrow().iter().rev().find_map(Peer::path);
        let ((sent, sent_bytes), (received, received_bytes)) =
            (counts.sent.get(), counts.received.get());
        let ((puts, put_bytes), (gets, get_bytes)) = (counts.puts.get(), counts.gets.get());
        let line = format!(
            "tieline-fi pid {}: sent {sent} ({sent_bytes} B) received {received} ({received_bytes} B, {} announced) puts {puts} \
             ({put_bytes} B) gets {gets} ({get_bytes} B) atomics {} keys {} errors {}; the last peer: {}\n",
            std::process::id(),
            counts.rendezvous.get(),
            counts.atomics.get(),
            counts.keys.get(),
            counts.errors.get(),
            path.as_deref().unwrap_or("nobody"),
        );
        let file = std::fs::OpenOptions::new().append(true).create(true).open(name);
        // A report that cannot be written changes nothing for the program.
        let _ = file.and_then(|mut file| std::io::Write::write_all(&mut file, line.as_bytes()));
    }
}
