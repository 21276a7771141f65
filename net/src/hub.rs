//! A listener for several users, each with a mailbox. A mailbox gets only connections of peers that have proven knowledge of the
//! key.

use std::collections::{HashMap, VecDeque};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use crate::auth::{Hello, Key, Refusal};
use crate::contact::{Contact, ListenAddress};
use crate::filter::Filter;
use crate::interfaces::{LocalAddress, local_addresses};
use crate::options::{Ports, processes_of_job};
use crate::routes::here;
use crate::sys::{self, Poller, Waker};
use handshakes::Handshakes;
use tieline_plugin_api::config::shared;
use tieline_plugin_api::process::{Mark, PerProcess};

#[path = "handshakes.rs"]
mod handshakes;

/// The limit on connections that wait for one target, which is raised to the number of expected processes. At the limit the dialler
/// is refused.
const MAILBOX_ROOM: usize = if cfg!(test) { 32 } else { 1024 };

/// The settings of a hub.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The job's secret. If the secret is empty, a peer needs only the cookie in the listener's address.
    pub secret: Vec<u8>,
    /// The interfaces whose addresses are offered and on which connections are accepted.
    pub filter: Filter,
    /// The addresses and ports to listen on.
    pub listen: Listen,
    /// The cookie, if peers cannot learn a random one.
    pub cookie: Option<[u8; 16]>,
    /// The time limit of the handshake.
    pub handshake_timeout: Duration,
    /// The number of processes that may connect concurrently, even from one address, besides a fixed reserve. For handshakes, at
    /// most half of the descriptor limit counts.
    pub expected: usize,
}

impl Default for Settings {
    /// Returns the default settings: any port, every interface, no secret, ten seconds for the handshake, and the processes of this
    /// job.
    fn default() -> Settings {
        Settings {
            secret: Vec::new(),
            filter: Filter::default(),
            listen: Listen::Ports(Ports::default()),
            cookie: None,
            handshake_timeout: Duration::from_secs(10),
            expected: processes_of_job(),
        }
    }
}

impl Settings {
    /// Reads the variables that all providers over TCP share. `refuse` makes the error for an invalid value of a variable.
    ///
    /// # Errors
    /// The value of a variable is invalid.
    pub fn read<E>(
        text: impl Fn(&str) -> String,
        refuse: impl Fn(&str, &str) -> E,
    ) -> Result<Settings, E> {
        let (interfaces, ports) = (shared::TCP_INTERFACES.name, shared::TCP_PORTS.name);
        let filter = Filter::parse(&text(interfaces)).map_err(|why| refuse(interfaces, &why))?;
        let ports = Ports::parse(&text(ports)).map_err(|why| refuse(ports, &why))?;
        let (secret, listen) = (text(shared::SECRET.name).into_bytes(), Listen::Ports(ports));
        Ok(Settings { secret, filter, listen, ..Settings::default() })
    }
}

/// The listening addresses of a hub.
#[derive(Clone, Copy, Debug)]
pub enum Listen {
    /// The hub listens on every address, on a free port of a range for IPv4 and one for IPv6.
    Ports(Ports),
    /// The hub listens at one address and port only.
    At(SocketAddr),
}

/// The numbers of connections of a listener so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The number of connections that were passed to their target.
    pub accepted: u64,
    /// The number of connections without a good proof, such as scanners, garbage, another secret or version. Connections over an
    /// interface that is not allowed count, too.
    pub unproven: u64,
    /// The number of connections that were closed in their handshake: at its time limit, or to make room for another one.
    pub slow: u64,
    /// The number of connections that were closed without a handshake, because too many came at the same time.
    pub turned_away: u64,
    /// The number of proven connections to a target that does not exist (any more).
    pub unknown_target: u64,
    /// The number of proven connections that found their target's mailbox full.
    pub refused: u64,
}

#[derive(Debug, Default)]
struct Counts {
    accepted: AtomicU64,
    unproven: AtomicU64,
    slow: AtomicU64,
    turned_away: AtomicU64,
    unknown_target: AtomicU64,
    refused: AtomicU64,
    reported: AtomicU64,
    /// The version of the last peer with another version, and [`ANOTHER`].
    other_version: AtomicU16,
}

/// The flag next to the version which states that a peer had another version.
const ANOTHER: u16 = 1 << 8;

/// A proven connection, as its target receives it.
#[derive(Debug)]
pub struct Incoming {
    /// The connection, which is non-blocking.
    pub stream: TcpStream,
    /// The dialler's request.
    pub hello: Hello,
    /// The peer's address.
    pub from: SocketAddr,
}

impl Incoming {
    /// Sends these bytes and ends the sending direction, without waiting. The method is meant for one answer to a dialler, on a
    /// connection on which nothing was sent after the handshake.
    ///
    /// # Errors
    /// The connection is broken, or the kernel does not buffer all of the bytes.
    pub fn answer(mut self, bytes: &[u8]) -> std::io::Result<()> {
        use std::io::{ErrorKind, Write};
        // The initial send buffer holds a few ten thousand bytes, and nothing refills it later.
        socket2::SockRef::from(&self.stream).set_send_buffer_size(4 * bytes.len().max(4096))?;
        let mut left = bytes;
        while !left.is_empty() {
            match self.stream.write(left) {
                Ok(count) => left = &left[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.stream.shutdown(std::net::Shutdown::Write)
    }
}

/// A listener, which lives as long as it has an owner. Any thread may call [`Hub::poll`], which passes connections to the mailboxes
/// of all users.
#[derive(Debug)]
pub struct Hub {
    local: Vec<LocalAddress>,
    addresses: Vec<ListenAddress>,
    cookie: [u8; 16],
    /// The limit on connections that wait for one target.
    room: usize,
    targets: Mutex<HashMap<[u8; 16], Arc<Slot>>>,
    handshakes: Mutex<Handshakes>,
    poller: Poller,
    counts: Counts,
    /// The process that listens: a forked child does not end it.
    process: Mark,
}

impl Drop for Hub {
    /// Ends the listeners and handshakes, also in forked children that hold copies of their sockets. The drop in a forked child
    /// ends nothing.
    fn drop(&mut self) {
        if self.process.is_here() {
            self.handshakes.get_mut().unwrap_or_else(PoisonError::into_inner).end();
        }
    }
}

/// The contents of a target's mailbox.
#[derive(Debug)]
struct Slot {
    queue: Mutex<VecDeque<Incoming>>,
    waker: Waker,
}

impl Hub {
    /// Opens a hub, which begins to listen.
    ///
    /// # Errors
    /// The reason why listening is impossible, as text, such as no interface, no free port or no descriptors.
    pub fn open(settings: &Settings) -> Result<Arc<Hub>, String> {
        let local = local_addresses(&settings.filter)?;
        let listeners = handshakes::listen(settings.listen)?;
        let cookie = match settings.cookie {
            Some(cookie) => cookie,
            None => {
                let mut cookie = [0; 16];
                sys::random(&mut cookie).map_err(|error| format!("random bytes: {error}"))?;
                cookie
            }
        };
        let poller = Poller::new().map_err(|error| format!("opening a listener: {error}"))?;
        let addresses = offered(&local, &listeners);
        if addresses.is_empty() {
            return Err("none of the allowed addresses is one that can be listened on".into());
        }
        let key = Key::derive(&settings.secret, &cookie);
        let handshakes = Handshakes::new(listeners, key, settings, &poller)
            .map_err(|error| format!("opening a listener: {error}"))?;
        Ok(Arc::new(Hub {
            local,
            addresses,
            cookie,
            room: MAILBOX_ROOM.max(settings.expected),
            targets: Mutex::default(),
            handshakes: Mutex::new(handshakes),
            poller,
            counts: Counts::default(),
            process: Mark::new(),
        }))
    }

    /// Returns the addresses of this host that the filter allows, for [`crate::routes()`].
    #[must_use]
    pub fn local(&self) -> &[LocalAddress] {
        &self.local
    }

    /// Returns the contact by which a peer reaches `target`.
    #[must_use]
    pub fn contact(&self, target: [u8; 16]) -> Contact {
        let (boot_id, net_namespace) = here();
        let addresses = self.addresses.clone();
        Contact { boot_id, net_namespace, cookie: self.cookie, target, addresses }
    }

    /// Opens a mailbox for connections to `target`.
    ///
    /// # Errors
    /// The id is taken, or there are no descriptors.
    pub fn register(self: &Arc<Hub>, target: [u8; 16]) -> Result<Mailbox, String> {
        let waker = Waker::new().map_err(|error| format!("opening a mailbox: {error}"))?;
        let slot = Arc::new(Slot { queue: Mutex::default(), waker });
        let mut targets = lock(&self.targets);
        if targets.contains_key(&target) {
            return Err("this listener has a user of that id already".into());
        }
        let _ = targets.insert(target, Arc::clone(&slot));
        Ok(Mailbox { hub: Arc::clone(self), target, slot })
    }

    /// Accepts connections and advances their handshakes, without waiting. If another thread is already doing so, this call
    /// returns.
    pub fn poll(&self) {
        self.poll_at(Instant::now());
    }

    fn poll_at(&self, now: Instant) {
        let mut handshakes = match self.handshakes.try_lock() {
            Ok(handshakes) => handshakes,
            Err(TryLockError::Poisoned(handshakes)) => handshakes.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        handshakes.poll(self, now);
    }

    /// Returns the descriptor that is readable when [`Hub::poll`] has work.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    /// Returns the numbers of connections so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counters {
            accepted: get(&self.counts.accepted),
            unproven: get(&self.counts.unproven),
            slow: get(&self.counts.slow),
            turned_away: get(&self.counts.turned_away),
            unknown_target: get(&self.counts.unknown_target),
            refused: get(&self.counts.refused),
        }
    }

    /// Checks whether a user has that id.
    fn knows(&self, target: &[u8; 16]) -> bool {
        lock(&self.targets).contains_key(target)
    }

    /// Returns the number of unproven connections, if it should be reported: after the first, and whenever the number has doubled.
    /// One user of the listener gets it for all.
    #[must_use]
    pub fn unproven_to_report(&self) -> Option<u64> {
        let reported = self.counts.reported.load(Ordering::Relaxed);
        let came = self.counts.unproven.load(Ordering::Relaxed);
        let due = came >= reported.saturating_mul(2).max(1);
        let swap = |from| {
            self.counts.reported.compare_exchange(from, came, Ordering::Relaxed, Ordering::Relaxed)
        };
        (due && swap(reported).is_ok()).then_some(came)
    }

    /// Returns the version of the last peer that was refused since the last call because its version is not
    /// [`VERSION`](crate::VERSION).
    #[must_use]
    pub fn take_other_version(&self) -> Option<u8> {
        let version = self.counts.other_version.swap(0, Ordering::Relaxed);
        (version & ANOTHER != 0).then_some(version as u8)
    }

    /// Records that a peer has another version.
    fn heard_version(&self, version: u8) {
        self.counts.other_version.store(ANOTHER | u16::from(version), Ordering::Relaxed);
    }

    /// Checks that the target of a proven hello has room for one more connection.
    fn admits(&self, hello: &Hello) -> Result<Arc<Slot>, Refusal> {
        let Some(slot) = lock(&self.targets).get(&hello.target).map(Arc::clone) else {
            count(&self.counts.unknown_target);
            return Err(Refusal::UnknownTarget);
        };
        if lock(&slot.queue).len() >= self.room {
            count(&self.counts.refused);
            return Err(Refusal::Busy);
        }
        Ok(slot)
    }

    fn deliver(&self, slot: &Slot, incoming: Incoming) {
        let mut queue = lock(&slot.queue);
        queue.push_back(incoming);
        slot.waker.wake();
        count(&self.counts.accepted);
    }
}

/// Returns the addresses at which the listeners can be reached, at most [`Contact::MAX_ADDRESSES`]: the best allowed ones, with
/// their ports.
fn offered(local: &[LocalAddress], listeners: &[socket2::Socket]) -> Vec<ListenAddress> {
    let bound: Vec<SocketAddr> =
        listeners.iter().filter_map(|listener| listener.local_addr().ok()?.as_socket()).collect();
    let listens = |from: &LocalAddress| {
        bound
            .iter()
            .find(|at| {
                at.ip() == from.ip || at.ip().is_unspecified() && at.is_ipv4() == from.ip.is_ipv4()
            })
            .map(SocketAddr::port)
    };
    local
        .iter()
        .filter_map(|from| {
            let port = listens(from)?;
            let speed_mbps = from.speed_mbps.unwrap_or(0);
            Some(ListenAddress { ip: from.ip, prefix: from.prefix, port, speed_mbps })
        })
        .take(Contact::MAX_ADDRESSES)
        .collect()
}

/// The connections for one user of the listener. Dropping the mailbox closes those that were not taken.
#[derive(Debug)]
pub struct Mailbox {
    hub: Arc<Hub>,
    target: [u8; 16],
    slot: Arc<Slot>,
}

impl Mailbox {
    /// Returns the next connection, if there is one. [`Hub::poll`] delivers connections.
    #[must_use]
    pub fn take(&self) -> Option<Incoming> {
        let mut queue = lock(&self.slot.queue);
        let incoming = queue.pop_front();
        if queue.is_empty() {
            self.slot.waker.clear();
        }
        incoming
    }

    /// Checks whether the mailbox is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        lock(&self.slot.queue).is_empty()
    }

    /// Returns the descriptor that is readable while the mailbox is not empty.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.slot.waker.as_fd()
    }

    /// Returns the mailbox's listener.
    #[must_use]
    pub fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// Returns the contact by which a peer reaches this mailbox.
    #[must_use]
    pub fn contact(&self) -> Contact {
        self.hub.contact(self.target)
    }

    /// Waits for the next connection and polls the listener meanwhile. The connection's stream stays non-blocking.
    ///
    /// # Errors
    /// The deadline has passed, or waiting is impossible; the text has the reason.
    pub fn wait(&self, deadline: Instant) -> Result<Incoming, String> {
        let words = |error: std::io::Error| format!("waiting for a connection: {error}");
        let poller = Poller::new().map_err(words)?;
        for fd in [self.hub.fd(), self.fd()] {
            use std::os::fd::AsRawFd;
            poller.watch(fd.as_raw_fd(), sys::Interest::READ, 0).map_err(words)?;
        }
        let mut ready = Vec::new();
        loop {
            self.hub.poll();
            if let Some(incoming) = self.take() {
                return Ok(incoming);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err("nobody has connected in time".into());
            }
            poller.wait(&mut ready, Some(left)).map_err(words)?;
        }
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        let _ = lock(&self.hub.targets).remove(&self.target);
        lock(&self.slot.queue).clear(); // a handshake that is ending may hold the slot a little longer
    }
}

/// A listener that the users of one `SharedHub` in a process share. The first user opens the listener, and it closes with the last
/// user. A forked child starts without one, since only the parent may accept connections of the parent's listener.
#[derive(Debug, Default)]
pub struct SharedHub {
    hub: PerProcess<Mutex<Weak<Hub>>>,
}

impl SharedHub {
    /// Makes a shared hub without an open listener.
    #[must_use]
    pub const fn new() -> SharedHub {
        SharedHub { hub: PerProcess::new() }
    }

    /// Returns the listener, opened with `settings` if none is open.
    ///
    /// # Errors
    /// The errors of [`Hub::open`].
    pub fn get(&self, settings: &Settings) -> Result<Arc<Hub>, String> {
        let mut shared = lock(&self.hub);
        if let Some(hub) = shared.upgrade() {
            return Ok(hub);
        }
        let hub = Hub::open(settings)?;
        *shared = Arc::downgrade(&hub);
        Ok(hub)
    }
}

fn count(counter: &AtomicU64) {
    let _ = counter.fetch_add(1, Ordering::Relaxed);
}

/// Locks a mutex, also after a panic in another thread: that leaves these maps and queues consistent, because every change of them
/// is one call.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;
