//! Short names of workers: at most 48 bytes that lead to a worker's address.
//!
//! Guarantees:
//!
//! * A name ([`WorkerName`]) holds the TCP addresses of a worker's process, the proof that its listener requires, and a part of the
//!   worker's id. A name owns no resources: a hundred thousand names take a hundred thousand times 48 bytes, and a peer that is
//!   never contacted costs no more.
//! * A context listens only while it has an open worker for which a name was made. The listener uses the interfaces and ports that
//!   `TIELINE_TCP_INTERFACES` and `TIELINE_TCP_PORTS` allow, independent of the modules that carry data. After that worker has
//!   closed, requests are refused immediately.
//! * The first contact fetches the whole address and then closes its connection. The named worker's progress answers the request,
//!   and so does the progress thread if its context has one; the application is not involved.
//! * A name is a permission to connect, like an address. The handshake of [`tieline_net`] proves to both sides that the other one
//!   knows its 16 random bytes, and the job's secret if there is one. The requester accepts an answer only if the answer is the
//!   address of the named worker.
//!
//! ```text
//! 1 format   1 counts: IPv4 below, IPv6 above   16 proof   8 worker   4 where   IPv4: 4 and port, each   IPv6: 16 and port, each
//! hello: purpose 1, the target `names`, 8 worker       answer: 4 length, the address; length 0: no worker of that name here
//! ```

use crate::address::WorkerAddress;
use crate::sys::Poller;
use crate::{Error, Status};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tieline_net::{
    Contact, Dial, Filter, Hello, Hub, Incoming, Key, Listen, ListenAddress, Mailbox, Ports,
    Progress, Settings, here, local_addresses, routes, target_of,
};

const FORMAT: u8 = 1;
/// The number of bytes before the addresses.
const HEAD: usize = 1 + 1 + 16 + 8 + 4;
const V4: usize = 4 + 2;
const V6: usize = 16 + 2;
/// The listener's only user.
const USER: &str = "names";
const PURPOSE: u8 = 1;
/// The maximum number of requests that one poll answers.
const AT_ONCE: usize = 64;
/// The maximum length of a worker's address in bytes.
const MOST: usize = 1 << 20;

/// A worker's name: at most 48 bytes for any channel, by which a peer finds the worker's whole address.
/// [`Worker::name`](crate::Worker::name) makes a name, and [`Worker::endpoint_by_name`](crate::Worker::endpoint_by_name) connects
/// to it. Like an address, a name permits a connection to the worker, so keep it secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WorkerName {
    bytes: [u8; WorkerName::MAX_LEN],
}

/// A name owns nothing besides its bytes.
const _: () = assert!(size_of::<WorkerName>() == WorkerName::MAX_LEN);

impl WorkerName {
    /// The maximum length of a name in bytes.
    pub const MAX_LEN: usize = 48;

    /// Returns the bytes to send to a peer.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..len_of(self.bytes[1]).unwrap_or(HEAD)]
    }

    /// Parses the bytes of a name; trailing zeros are ignored.
    ///
    /// # Errors
    /// `BadData` for bytes that are not a name, `Unsupported` for a name of another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<WorkerName, Error> {
        let no = |status, why: &str| {
            let fix = match status {
                Status::Unsupported => "use versions of Tieline that go together on both sides",
                _ => "pass what the peer's worker gave as its name, unchanged",
            };
            Error::new(
                status,
                "this is not a worker's name",
                format!("{why} ({} bytes)", bytes.len()),
                fix,
            )
        };
        let [format, counts, ..] = *bytes else {
            return Err(no(Status::BadData, "it is too short"));
        };
        if format != FORMAT {
            let why = format!("it is of format {format}, and this library reads format {FORMAT}");
            return Err(no(Status::Unsupported, &why));
        }
        let len =
            len_of(counts).ok_or_else(|| no(Status::BadData, "no such number of addresses"))?;
        let (name, rest) =
            bytes.split_at_checked(len).ok_or_else(|| no(Status::BadData, "it is cut off"))?;
        if rest.iter().any(|byte| *byte != 0) {
            return Err(no(Status::BadData, "there are bytes after its end"));
        }
        let mut taken = WorkerName { bytes: [0; WorkerName::MAX_LEN] };
        taken.bytes[..len].copy_from_slice(name);
        // An address that cannot be dialled makes the name invalid.
        let dialled =
            |at: &ListenAddress| at.port != 0 && !at.ip.is_unspecified() && !at.ip.is_multicast();
        match taken.addresses().iter().all(dialled) {
            true => Ok(taken),
            false => Err(no(Status::BadData, "it holds an impossible address")),
        }
    }

    fn new(contact: &Contact, worker: &[u8; 16]) -> WorkerName {
        let mut bytes = vec![FORMAT, 0];
        bytes.extend_from_slice(&contact.cookie);
        bytes.extend_from_slice(&tag(worker));
        bytes.extend_from_slice(&place(&contact.boot_id, contact.net_namespace));
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        let mut left = WorkerName::MAX_LEN - HEAD;
        for address in ranked(&contact.addresses) {
            let (ip, to): (&[u8], &mut Vec<u8>) = match &address.ip {
                IpAddr::V4(ip) => (&ip.octets(), &mut v4),
                IpAddr::V6(ip) => (&ip.octets(), &mut v6),
            };
            if let Some(rest) = left.checked_sub(ip.len() + 2) {
                left = rest;
                to.extend_from_slice(ip);
                to.extend_from_slice(&address.port.to_le_bytes());
            }
        }
        // The high and low halves of the byte count the addresses: at most three IPv4 addresses, or one IPv6 address.
        bytes[1] = (v4.len() / V4) as u8 | (((v6.len() / V6) as u8) << 4);
        bytes.extend(v4.into_iter().chain(v6));
        let mut name = WorkerName { bytes: [0; WorkerName::MAX_LEN] };
        name.bytes[..bytes.len()].copy_from_slice(&bytes);
        name
    }

    fn addresses(&self) -> Vec<ListenAddress> {
        let (v4, v6) = counts_of(self.bytes[1]);
        let (first, rest) = self.bytes[HEAD..].split_at(v4 * V4);
        let port = |at: &[u8]| u16::from_le_bytes([at[0], at[1]]);
        let known = |ip, prefix, port| ListenAddress { ip, prefix, port, speed_mbps: 0 };
        let four = first.chunks_exact(V4).map(|at| {
            let ip = Ipv4Addr::new(at[0], at[1], at[2], at[3]);
            known(IpAddr::V4(ip), 32, port(&at[4..]))
        });
        let six = rest[..v6 * V6].chunks_exact(V6).map(|at| {
            let mut ip = [0; 16];
            ip.copy_from_slice(&at[..16]);
            known(IpAddr::V6(Ipv6Addr::from(ip)), 128, port(&at[16..]))
        });
        four.chain(six).collect()
    }

    fn contact(&self) -> Contact {
        let mut cookie = [0; 16];
        cookie.copy_from_slice(&self.bytes[2..18]);
        let here = here();
        // A peer in the same network namespace of the host may use loopback addresses.
        let same = self.bytes[26..30] == place(&here.0, here.1);
        let (boot_id, net_namespace) = if same { here } else { ([0; 16], 0) };
        let (target, addresses) = (target_of(USER, &cookie), self.addresses());
        Contact { boot_id, net_namespace, cookie, target, addresses }
    }

    fn worker(&self) -> [u8; 8] {
        let mut tag = [0; 8];
        tag.copy_from_slice(&self.bytes[18..26]);
        tag
    }
}

impl fmt::Debug for WorkerName {
    /// Formats the name without its proof, which is secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at =
            self.addresses().iter().map(|a| format!("{}:{}", a.ip, a.port)).collect::<Vec<_>>();
        write!(f, "WorkerName({})", at.join(", "))
    }
}

fn counts_of(counts: u8) -> (usize, usize) {
    (usize::from(counts & 15), usize::from(counts >> 4))
}

/// Returns the length of a name with these address counts; `None` if no name has these counts.
fn len_of(counts: u8) -> Option<usize> {
    let (v4, v6) = counts_of(counts);
    let len = HEAD + v4 * V4 + v6 * V6;
    (len > HEAD && len <= WorkerName::MAX_LEN).then_some(len)
}

/// Returns the part of a worker's id that its name contains.
fn tag(worker: &[u8; 16]) -> [u8; 8] {
    let mut tag = [0; 8];
    tag.copy_from_slice(&worker[..8]);
    tag
}

/// Returns a short hash of the host and its network namespace.
fn place(boot_id: &[u8; 16], net_namespace: u64) -> [u8; 4] {
    let bytes = boot_id.iter().copied().chain(net_namespace.to_le_bytes());
    let hash = bytes
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash.to_le_bytes()
}

/// Sorts the addresses: those that are reachable from more hosts come first. Otherwise the listener's order remains: fast addresses
/// first, bridges and links without a carrier last, regardless of the speed that they report.
fn ranked(addresses: &[ListenAddress]) -> Vec<ListenAddress> {
    let near = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local(),
    };
    let mut ranked = addresses.to_vec();
    ranked.sort_by_key(|a| near(a.ip));
    ranked
}

/// The responder for requests by name, for the workers of a context. The responder is usable from any thread.
pub(crate) struct NameService {
    mailbox: Mailbox,
    addresses: Mutex<HashMap<[u8; 8], Vec<u8>>>,
}

/// The names for which a worker answers.
#[derive(Default)]
pub(crate) struct Answers {
    /// The context's responder, if the worker has a name; the worker then answers for all names of the context.
    pub(crate) own: RefCell<Option<Arc<NameService>>>,
    /// Whether this is the progress thread's worker, which answers for every name of the context.
    pub(crate) for_all: Cell<bool>,
    /// How many lookups of its own are open. Their sockets are not in the worker's poller.
    pub(crate) open: Cell<usize>,
}

impl NameService {
    /// Starts to listen.
    pub(crate) fn open(settings: &Settings) -> Result<NameService, String> {
        let hub = Hub::open(settings)?;
        let target = target_of(USER, &hub.contact([0; 16]).cookie);
        let mailbox = hub.register(target)?;
        Ok(NameService { mailbox, addresses: Mutex::default() })
    }

    /// Returns the name of a worker, and sets the address that requests get from this call on.
    pub(crate) fn publish(&self, worker: &[u8; 16], address: Vec<u8>) -> WorkerName {
        let _ = self.known().insert(tag(worker), address);
        WorkerName::new(&self.mailbox.contact(), worker)
    }

    /// Removes a closed worker. `true`: no other worker has a name.
    pub(crate) fn forget(&self, worker: &[u8; 16]) -> bool {
        let mut known = self.known();
        let _ = known.remove(&tag(worker));
        known.is_empty()
    }

    /// Adds the listener's descriptors to a poller, so that a request wakes its sleeper.
    pub(crate) fn watch_by(&self, poller: &Poller) -> Result<(), Error> {
        let watched = self.fds().iter().try_for_each(|fd| poller.add(*fd));
        if watched.is_err() {
            self.unwatch_by(poller);
        }
        watched
    }

    /// Removes the listener's descriptors from a poller. Closing them is not sufficient, because a forked child may hold the same
    /// descriptors.
    pub(crate) fn unwatch_by(&self, poller: &Poller) {
        self.fds().iter().for_each(|fd| poller.remove(*fd));
    }

    fn fds(&self) -> [RawFd; 2] {
        [self.mailbox.hub().fd().as_raw_fd(), self.mailbox.fd().as_raw_fd()]
    }

    /// Answers requests without waiting, at most [`AT_ONCE`] per call. `now` returns the id and the current address of the worker
    /// that answers, if that worker has a name.
    pub(crate) fn poll(&self, now: impl FnOnce() -> Option<([u8; 16], Vec<u8>)>) {
        self.mailbox.hub().poll();
        if self.mailbox.is_empty() {
            return;
        }
        if let Some((worker, address)) = now() {
            let _ = self.known().insert(tag(&worker), address);
        }
        let asked = std::iter::from_fn(|| self.mailbox.take()).take(AT_ONCE);
        asked.for_each(|incoming| self.answer(incoming));
    }

    fn answer(&self, incoming: Incoming) {
        let hello = &incoming.hello;
        let asked = hello.payload().first_chunk::<8>().filter(|_| hello.purpose == PURPOSE);
        let address = asked.and_then(|tag| self.known().get(tag).cloned()).unwrap_or_default();
        let answer = [&(address.len() as u32).to_le_bytes()[..], &address].concat();
        // If the answer cannot be sent, the connection ends, which the requester detects.
        let _ = incoming.answer(&answer);
    }

    fn known(&self) -> MutexGuard<'_, HashMap<[u8; 8], Vec<u8>>> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request for the address of a named worker.
pub(crate) struct Asking {
    name: WorkerName,
    stage: Stage,
    deadline: Instant,
}

enum Stage {
    Dials(Box<Dial>),
    Reads(TcpStream, Vec<u8>),
    Over,
}

impl Asking {
    /// Starts a request. At this point only the name is known.
    pub(crate) fn start(
        name: &WorkerName,
        settings: &Settings,
        deadline: Instant,
    ) -> Result<Asking, Error> {
        let contact = name.contact();
        let found = local_addresses(&settings.filter).and_then(|local| {
            let hello = Hello::new(PURPOSE, contact.target, &name.worker())?;
            Ok((routes(&local, &contact)?, hello))
        });
        let (routes, hello) = found.map_err(|why| {
            failed(if is_starved() { Status::NoMemory } else { Status::Unreachable }, name, why)
        })?;
        let key = Key::derive(&settings.secret, &contact.cookie);
        let stage = Stage::Dials(Box::new(Dial::start(routes, key, hello, deadline)));
        Ok(Asking { name: *name, stage, deadline })
    }

    /// Returns the name that is being resolved.
    pub(crate) fn name(&self) -> &WorkerName {
        &self.name
    }

    /// Makes progress without waiting. Returns the address once it has arrived. After that, or after a failure, it returns `None`.
    pub(crate) fn advance(&mut self, now: Instant) -> Option<Result<WorkerAddress, Error>> {
        if let Stage::Dials(dial) = &mut self.stage {
            match dial.advance(now) {
                Progress::Waiting => {}
                Progress::Done(stream) => self.stage = Stage::Reads(stream, Vec::new()),
                Progress::Failed(why) => {
                    let status = match () {
                        () if dial.is_wrong_secret() => Status::Permission,
                        () if dial.is_other_version() => Status::Unsupported,
                        () if dial.is_refused() => Status::PeerFailed,
                        () if dial.is_starved() => Status::NoMemory,
                        () if dial.is_busy() => Status::Again,
                        () if now >= self.deadline => Status::TimedOut,
                        () => Status::Unreachable,
                    };
                    return self.over(Err(failed(status, &self.name, why)));
                }
            }
        }
        let Stage::Reads(stream, bytes) = &mut self.stage else { return None };
        let ended = match read_on(stream, bytes) {
            Ok(ended) => ended,
            Err(why) => return self.over(Err(failed(Status::PeerFailed, &self.name, why))),
        };
        if let Some(address) = whole(bytes) {
            let read = match address {
                Ok(address) => self.check(address),
                Err(why) => Err(failed(Status::BadData, &self.name, why)),
            };
            return self.over(read);
        }
        let (status, why) = match (ended, now >= self.deadline) {
            (true, _) => {
                (Status::PeerFailed, "it closed the connection in the middle of its address")
            }
            (false, true) => (Status::TimedOut, "its address did not come in time"),
            (false, false) => return None,
        };
        self.over(Err(failed(status, &self.name, why.into())))
    }

    fn over<T>(&mut self, result: T) -> Option<T> {
        self.stage = Stage::Over;
        Some(result)
    }

    /// Returns the received address, if it belongs to the named worker.
    fn check(&self, bytes: Vec<u8>) -> Result<WorkerAddress, Error> {
        if bytes.is_empty() {
            let why = "its process has no such worker (any more)".into();
            return Err(failed(Status::PeerFailed, &self.name, why));
        }
        let address = WorkerAddress::parse(&bytes)
            .map_err(|error| failed(error.status(), &self.name, error.why().to_owned()))?;
        if tag(&address.entry.worker) == self.name.worker() {
            return Ok(address);
        }
        let why = "what came is the address of another worker".into();
        Err(failed(Status::BadData, &self.name, why))
    }
}

/// Checks whether this process or the system has no free descriptor, so that not even the interfaces can be listed.
fn is_starved() -> bool {
    let number = File::open("/dev/null").err().and_then(|error| error.raw_os_error());
    matches!(number, Some(libc::EMFILE | libc::ENFILE))
}

fn failed(status: Status, name: &WorkerName, why: String) -> Error {
    let fix = match status {
        Status::Permission => "give all processes the same TIELINE_SECRET",
        Status::PeerFailed => "exchange names again if the process was restarted",
        Status::NoMemory => "allow more open files (ulimit -n), or ask for fewer names at a time",
        Status::Again => "ask again: it answers many others now",
        Status::BadData => "see what else listens there, and who was given the name",
        Status::Unsupported => "use versions of Tieline that go together on both sides",
        Status::TimedOut => {
            "let it make progress, or have TIELINE_PROGRESS_THREAD=on there; raise TIELINE_CONNECT_TIMEOUT"
        }
        _ => {
            "see that its process is there, and that TIELINE_TCP_INTERFACES and firewalls let it be reached"
        }
    };
    Error::new(status, format!("the lookup of the worker behind {name:?}"), why, fix)
}

/// Reads the available bytes; `true` at the end.
fn read_on(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Result<bool, String> {
    let mut piece = [0; 4096];
    while bytes.len() <= MOST + 4 {
        match stream.read(&mut piece) {
            Ok(0) => return Ok(true),
            Ok(count) => bytes.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(true)
}

/// Returns the address, once it has been received completely.
fn whole(bytes: &[u8]) -> Option<Result<Vec<u8>, String>> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let len = u32::from_le_bytes(*len) as usize;
    if len > MOST {
        return Some(Err(format!("an address of {len} bytes is announced, and none is so long")));
    }
    rest.get(..len).map(|address| Ok(address.to_vec()))
}

/// Returns the addresses at which a context listens for name requests, and the proof that the listener requires.
pub(crate) fn settings(secret: String, interfaces: &str, ports: &str) -> Result<Settings, String> {
    let (filter, listen) = (Filter::parse(interfaces)?, Listen::Ports(Ports::parse(ports)?));
    Ok(Settings { secret: secret.into_bytes(), filter, listen, ..Settings::default() })
}

#[cfg(test)]
mod crowd_tests;
#[cfg(test)]
mod tests;
