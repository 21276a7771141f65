//! The identity of a peer, and the test whether the driver allows copies from and to it.
//!
//! A real copy of the peer's *card* decides. The card is a region of 16 random bytes, whose driver cookie is part of the address.
//! The boot, the namespaces and the user of the peer are compared only for the error texts.

use std::path::Path;
use std::sync::Arc;

use tieline_memory_file::{Accessor, Facts, Nonce, PeerRegistrations, Piece, Process};
use tieline_plugin_api::{Failure, Status, access};

use crate::hold::{self, Forks};
use crate::keys::{Owner, Registration};
use crate::sys::{ABI, Cookie, Device, Direction, Kernel, Miss, NoDevice};

/// The path of the driver's device.
pub(crate) const DEVICE: &str = "/dev/knem";
/// The length of an interface address, in bytes.
pub(crate) const ADDRESS_LEN: usize = 84;
/// The first bytes of an address, of which the last one is the version.
const MAGIC: [u8; 4] = *b"knm\x01";

/// The interface address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) facts: Facts,
    /// The random number that identifies the domain.
    pub(crate) nonce: Nonce,
    /// The region that contains the nonce.
    pub(crate) card: Cookie,
    /// The peer's descriptor of its key table.
    pub(crate) table: i32,
    /// The peer's descriptor for announced accesses.
    pub(crate) announcements: i32,
}

impl Address {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ADDRESS_LEN);
        bytes.extend(MAGIC);
        bytes.extend(self.facts.encode());
        bytes.extend(self.nonce);
        bytes.extend(self.card.to_ne_bytes());
        bytes.extend(self.table.to_ne_bytes());
        bytes.extend(self.announcements.to_ne_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Address, Failure> {
        let malformed =
            |why: String| Failure::new(Status::BadData, format!("shm-knem address {why}"));
        let bytes: &[u8; ADDRESS_LEN] = bytes
            .try_into()
            .map_err(|_| malformed(format!("has {} bytes, expected {ADDRESS_LEN}", bytes.len())))?;
        if bytes[..4] != MAGIC {
            return Err(malformed("is of another kind or version".to_string()));
        }
        let mut facts = [0; Facts::LEN];
        facts.copy_from_slice(&bytes[4..52]);
        let mut nonce = [0; 16];
        nonce.copy_from_slice(&bytes[52..68]);
        let word = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let low = u32::from_ne_bytes(word(68));
        let high = u32::from_ne_bytes(word(72));
        Ok(Address {
            facts: Facts::decode(&facts)?,
            nonce,
            card: u64::from(low) | u64::from(high) << 32,
            table: i32::from_ne_bytes(word(76)),
            announcements: i32::from_ne_bytes(word(80)),
        })
    }
}

/// The region that peers read before the first access. It lives as long as the domain.
pub(crate) struct Card {
    _region: Registration,
    cookie: Cookie,
    /// The nonce, pinned as long as the region exists and dropped after it.
    _nonce: Box<Nonce>,
}

impl Card {
    pub(crate) fn new(owner: &Arc<Owner>) -> Result<Card, Failure> {
        let nonce = Box::new(owner.nonce);
        let base = core::ptr::from_ref(&*nonce).expose_provenance() as u64;
        let region = Registration::new(owner, base, nonce.len() as u64, access::REMOTE_READ);
        let (_, cookie) = region.offer()?;
        // A region of 16 bytes always has a cookie.
        Ok(Card { _region: region, cookie: cookie.unwrap_or(0), _nonce: nonce })
    }

    pub(crate) fn cookie(&self) -> Cookie {
        self.cookie
    }
}

/// Opens the device.
pub(crate) fn device(forks: Forks) -> Result<Device, Failure> {
    let opened = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::new(
            Status::NoDevice,
            format!("there is no {DEVICE}: the kernel module knem is not loaded (`modprobe knem`)"),
        ),
        std::io::ErrorKind::PermissionDenied => Failure::new(
            Status::Permission,
            format!(
                "{DEVICE} is not open to this user for reading and writing; knem's udev rule gives it to a group: \
                 join that, or change its mode"
            ),
        ),
        _ => Failure::from_io(&format!("opening {DEVICE}"), &error),
    };
    let device = Device::open(Path::new(DEVICE), forks).map_err(|why| match why {
        NoDevice::Open(error) => opened(error),
        NoDevice::Holder(failure) => failure,
    })?;
    let asked = |errno| {
        let what = format!("asking {DEVICE} for its ABI number");
        Failure::from_io(&what, &std::io::Error::from_raw_os_error(errno))
    };
    match device.abi().map_err(asked)? {
        ABI => Ok(device),
        other => Err(Failure::new(
            Status::Unsupported,
            format!(
                "the driver behind {DEVICE} has ABI number {other:#x}; only {ABI:#x} is known here"
            ),
        )),
    }
}

/// Makes a region, copies out of it and into it, and ends the region.
pub(crate) fn on_oneself(kernel: &dyn Kernel) -> Result<(), Failure> {
    let failed = |step: &str, why: String| {
        Failure::new(
            Status::Io,
            format!("tried on this process itself, {step} did not work: {why}"),
        )
    };
    let system = |errno| std::io::Error::from_raw_os_error(errno).to_string();
    let mut remote = [1u8, 2, 3, 4];
    let (base, len) = (remote.as_mut_ptr().expose_provenance() as u64, remote.len() as u64);
    let held = kernel
        .hold(base, len)
        .map_err(|errno| failed("holding pages", hold::why_not_held(base, len, errno).text))?;
    let cookie = match kernel.create(base, len, true, true) {
        Ok(cookie) => cookie,
        Err(errno) => {
            kernel.release(held);
            return Err(failed("creating a region", system(errno)));
        }
    };
    let mut local = [0u8; 2];
    let mut copied = |direction, offset| {
        let piece = Piece::of(&mut local);
        kernel.copy(direction, &[piece], cookie, offset, 2)
    };
    let got = copied(Direction::Get, 1);
    let put = copied(Direction::Put, 2);
    let ended = kernel.destroy(cookie);
    kernel.release(held);
    got.map_err(|miss| failed("copying from a region", words(miss)))?;
    put.map_err(|miss| failed("copying to a region", words(miss)))?;
    ended.map_err(|errno| failed("ending a region", system(errno)))?;
    let remote = core::hint::black_box(&remote);
    if (local, *remote) == ([2, 3], [1, 2, 2, 3]) {
        return Ok(());
    }
    Err(failed("copying", format!("{local:?} came back, {remote:?} is there")))
}

fn words(miss: Miss) -> String {
    match miss {
        Miss::Call(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
        Miss::Copy => "the driver reports a failed copy".into(),
        Miss::Status(number) => {
            format!("the driver reports status {number}, which is undefined")
        }
    }
}

/// A reachable peer.
pub(crate) struct Peer {
    pub(crate) nonce: Nonce,
    pub(crate) process: Process,
    pub(crate) table: PeerRegistrations,
    /// This side's slot among the peer's accessors.
    pub(crate) accessor: Accessor,
}

/// Copies the peer's card, maps its key table, and takes a slot among the peer's accessors. The error text names the cause.
pub(crate) fn reach(kernel: &Arc<dyn Kernel>, me: &Facts, peer: &Address) -> Result<Peer, Failure> {
    let them = &peer.facts;
    me.may_name(them)?;
    // The process is opened before the card is read. Only the peer can provide the card, so the process is the peer's and not a
    // later process with the same number.
    let process = Process::open(them.pid);
    let mut nonce = [0u8; 16];
    let piece = Piece::of(&mut nonce);
    let copied = kernel.copy(Direction::Get, &[piece], peer.card, 0, piece.len() as u64);
    match copied {
        Ok(()) if core::hint::black_box(&nonce) == &peer.nonce => {}
        Ok(()) | Err(Miss::Call(libc::EINVAL)) => {
            return Err(Failure::new(Status::PeerFailed, why_gone(them, process.is_alive())));
        }
        Err(Miss::Call(libc::EPERM | libc::EACCES)) => {
            return Err(Failure::new(Status::Permission, why_refused(me, them)));
        }
        Err(miss) => {
            let text = format!("copying the peer's card failed: {}", words(miss));
            return Err(Failure::new(Status::Unreachable, text));
        }
    }
    let lost = |failure: Failure| match failure.status {
        Status::PeerFailed | Status::NoMemory => failure,
        _ => Failure::new(
            Status::Unreachable,
            format!("knem would copy, but revocation needs a file of the peer's: {}", failure.text),
        ),
    };
    let table = PeerRegistrations::open(them.pid, peer.table, &peer.nonce).map_err(lost)?;
    let accessor = Accessor::open(them.pid, peer.announcements, &peer.nonce).map_err(lost)?;
    Ok(Peer { nonce: peer.nonce, process, table, accessor })
}

fn why_refused(me: &Facts, peer: &Facts) -> String {
    let pid = peer.pid;
    if me.uid != peer.uid {
        return format!(
            "knem does not let this process copy from and to process {pid}: it runs as user {}, this process as user \
             {}; run both as the same user",
            peer.uid, me.uid
        );
    }
    format!(
        "knem does not let this process copy from and to process {pid}, though both run as user {}: their user \
         namespaces may differ",
        me.uid
    )
}

fn why_gone(peer: &Facts, alive: bool) -> String {
    let pid = peer.pid;
    if !alive {
        return format!("process {pid} has ended");
    }
    if peer.was_reused() {
        return format!(
            "the peer has ended and its number was reused: process {pid} was started at another time"
        );
    }
    format!(
        "process {pid} has no such region: it has closed the domain, called exec, or has another device open as \
         {DEVICE}"
    )
}

#[cfg(test)]
mod tests;
