//! Short names of workers: at most 48 bytes that lead to a worker's address.
//!
//! Guarantees:
//!
//! * A name ([`WorkerName`]) holds up to three IPv4 addresses of the listener, or one IPv6 address. It also holds the listener's
//!   cookie, a hash of its host, and a part of the worker's id. A name owns no resources: a hundred thousand names take a hundred
//!   thousand times 48 bytes, and a peer that is never contacted costs no more.
//! * A context listens only while it has an open worker for which a name was made. The listener uses the interfaces and ports that
//!   `TIELINE_TCP_INTERFACES` and `TIELINE_TCP_PORTS` allow, independent of the modules that carry data. After the last such worker
//!   has closed, requests are refused immediately.
//! * The first contact fetches the whole address and then closes its connection. The progress of any named worker of the context
//!   answers the request, and so does the progress thread if its context has one. The application is not notified.
//! * A name is a permission to connect, like an address. The handshake of [`tieline_net`] proves to both sides that the other one
//!   knows the cookie, 16 random bytes. It also proves that the other one knows the job's secret, if there is one. The requester
//!   accepts an answer only if it is the address of a worker whose id begins with the name's part.
//!
//! ```text
//! 1 format   1 counts: IPv4 below, IPv6 above   16 proof   8 worker   4 where   IPv4: 4 and port, each   IPv6: 16 and port, each
//! hello: purpose 1, the target `names`, 8 worker       answer: 4 length, the address; length 0: no worker of that name here
//! ```

use crate::{Error, Status};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tieline_net::{Contact, ListenAddress, here, target_of};

pub(crate) const FORMAT: u8 = 1;
/// The number of bytes before the addresses.
pub(crate) const HEAD: usize = 1 + 1 + 16 + 8 + 4;
pub(crate) const V4: usize = 4 + 2;
const V6: usize = 16 + 2;
/// The listener's only user.
pub(crate) const USER: &str = "names";
/// The purpose of a connection that requests an address.
pub(crate) const PURPOSE: u8 = 1;

/// A worker's name: at most 48 bytes for any channel, by which a peer finds the worker's whole address. `Worker::name` makes it,
/// and `Worker::endpoint_by_name` connects to it. Like an address, a name permits a connection to the worker, so keep it secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WorkerName {
    pub(crate) bytes: [u8; WorkerName::MAX_LEN],
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

    pub(crate) fn new(contact: &Contact, worker: &[u8; 16]) -> WorkerName {
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
        // The low half of the byte counts the IPv4 addresses, at most three; the high half counts the IPv6 addresses, at most one.
        bytes[1] = (v4.len() / V4) as u8 | (((v6.len() / V6) as u8) << 4);
        bytes.extend(v4.into_iter().chain(v6));
        let mut name = WorkerName { bytes: [0; WorkerName::MAX_LEN] };
        name.bytes[..bytes.len()].copy_from_slice(&bytes);
        name
    }

    pub(crate) fn addresses(&self) -> Vec<ListenAddress> {
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

    pub(crate) fn contact(&self) -> Contact {
        let mut cookie = [0; 16];
        cookie.copy_from_slice(&self.bytes[2..18]);
        let here = here();
        // A peer in the same network namespace of the host may use loopback addresses.
        let same = self.bytes[26..30] == place(&here.0, here.1);
        let (boot_id, net_namespace) = if same { here } else { ([0; 16], 0) };
        let (target, addresses) = (target_of(USER, &cookie), self.addresses());
        Contact { boot_id, net_namespace, cookie, target, addresses }
    }

    pub(crate) fn worker(&self) -> [u8; 8] {
        let mut tag = [0; 8];
        tag.copy_from_slice(&self.bytes[18..26]);
        tag
    }
}

impl fmt::Debug for WorkerName {
    /// Formats the addresses of the name, but not its cookie, which is secret.
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
pub(crate) fn tag(worker: &[u8; 16]) -> [u8; 8] {
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

/// Sorts loopback and link-local addresses last. Otherwise the listener's order remains.
fn ranked(addresses: &[ListenAddress]) -> Vec<ListenAddress> {
    let near = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local(),
    };
    let mut ranked = addresses.to_vec();
    ranked.sort_by_key(|a| near(a.ip));
    ranked
}
