//! The addresses of this network namespace, by a query for addresses alone.
//!
//! For `getifaddrs` the kernel also describes every link, with all its counters. That takes longer than the rest of opening a
//! listener. The few properties of a link that are needed here are queried by its name.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use super::link::{flags, name_of};
use super::{RawAddress, own};

/// The length of the header of a message, and of the head of an address in it.
const HEADER: usize = 16;
const HEAD: usize = 8;
/// The length of one read. The kernel answers in parts of at most a page, or of the longest read so far.
const PART: usize = 8 << 10;
const _: () = assert!(size_of::<libc::nlmsghdr>() == HEADER);

/// Returns every address; `None` if the kernel refuses the query or its answer is unusual. `socket` is any internet socket.
pub(super) fn quickly(socket: BorrowedFd<'_>) -> Option<Vec<RawAddress>> {
    let netlink = request().ok()?;
    let mut links = Links::new(socket);
    let mut answer = [0; PART];
    let mut found = Vec::new();
    loop {
        let len = receive(&netlink, &mut answer)?;
        let mut rest = answer.get(..len)?;
        while !rest.is_empty() {
            let len = number(rest, 0)? as usize;
            let message = rest.get(HEADER..len)?;
            let (kind, marks) = (half(rest, 4)?, half(rest, 6)?);
            if i32::from(marks) & libc::NLM_F_DUMP_INTR != 0 {
                return None;
            }
            match i32::from(kind) {
                libc::NLMSG_DONE => return Some(found),
                libc::NLMSG_ERROR => return None,
                _ if kind == libc::RTM_NEWADDR => found.extend(address(message, &mut links)?),
                _ => {}
            }
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

/// The properties of links, each queried once: a link usually has several addresses.
struct Links<'s> {
    socket: BorrowedFd<'s>,
    names: Vec<(u32, String)>,
    flags: Vec<(String, libc::c_int)>,
}

impl Links<'_> {
    fn new(socket: BorrowedFd<'_>) -> Links<'_> {
        Links { socket, names: Vec::new(), flags: Vec::new() }
    }

    fn name_of(&mut self, index: u32) -> Option<String> {
        if let Some((_, name)) = self.names.iter().find(|(known, _)| *known == index) {
            return Some(name.clone());
        }
        let name = name_of(index, self.socket)?;
        self.names.push((index, name.clone()));
        Some(name)
    }

    fn flags_of(&mut self, name: &str) -> Option<libc::c_int> {
        if let Some((_, flags)) = self.flags.iter().find(|(known, _)| known == name) {
            return Some(*flags);
        }
        let flags = flags(name, self.socket)?;
        self.flags.push((name.to_owned(), flags));
        Some(flags)
    }
}

/// Reads one address. The inner `None`: another family. The outer one: its link is gone, or may be one of those whose carrier is up
/// although they are not running yet, which the name does not show.
fn address(message: &[u8], links: &mut Links<'_>) -> Option<Option<RawAddress>> {
    let (family, prefix) = (i32::from(*message.first()?), *message.get(1)?);
    if family != libc::AF_INET && family != libc::AF_INET6 {
        return Some(None);
    }
    let index = number(message, 4)?;
    let (mut ip, mut local, mut label) = (None, None, None);
    let mut rest = message.get(HEAD..)?;
    while rest.len() >= 4 {
        let len = usize::from(half(rest, 0)?);
        let value = rest.get(4..len)?;
        match half(rest, 2)? {
            libc::IFA_ADDRESS => ip = ip_of(value),
            libc::IFA_LOCAL => local = ip_of(value),
            libc::IFA_LABEL => label = CStr::from_bytes_until_nul(value).ok(),
            _ => {}
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    let interface = match label {
        Some(label) => label.to_string_lossy().into_owned(),
        None => links.name_of(index)?,
    };
    let ip = local.or(ip)?;
    let is_link_local = crate::interfaces::is_link_local(ip) && ip.is_ipv6();
    let (flags, running) = (links.flags_of(&interface)?, libc::IFF_RUNNING);
    if flags & (libc::IFF_UP | running) == libc::IFF_UP {
        return None;
    }
    Some(Some(RawAddress {
        interface,
        ip,
        prefix,
        scope_id: if is_link_local { index } else { 0 },
        up: flags & libc::IFF_UP != 0,
        carrier: flags & running != 0,
        loopback: flags & libc::IFF_LOOPBACK != 0,
    }))
}

fn ip_of(value: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(value) {
        return Some(Ipv4Addr::from(four).into());
    }
    <[u8; 16]>::try_from(value).ok().map(|all| Ipv6Addr::from(all).into())
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Requests all addresses, on a new socket.
fn request() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: the call takes no pointers.
    let netlink = own(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })?;
    let mut message = [0; HEADER + HEAD];
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    message[..4].copy_from_slice(&((HEADER + HEAD) as u32).to_ne_bytes());
    message[4..6].copy_from_slice(&libc::RTM_GETADDR.to_ne_bytes());
    message[6..8].copy_from_slice(&flags.to_ne_bytes());
    // SAFETY: the socket is open, and the bytes outlive the call. A message without a destination goes to the kernel.
    let sent =
        unsafe { libc::send(netlink.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
    if sent == message.len() as isize { Ok(netlink) } else { Err(io::Error::last_os_error()) }
}

/// Receives a part of the kernel's answer. `None`: an error, or a message that does not fit or is not the kernel's.
fn receive(netlink: &OwnedFd, answer: &mut [u8]) -> Option<usize> {
    // SAFETY: zeros are a valid value for this plain record.
    let mut from: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    let mut from_len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    // SAFETY: the socket is open, and the buffer and the record are writable for the given lengths.
    let got = unsafe {
        libc::recvfrom(
            netlink.as_raw_fd(),
            answer.as_mut_ptr().cast(),
            answer.len(),
            libc::MSG_TRUNC,
            (&raw mut from).cast(),
            &mut from_len,
        )
    };
    usize::try_from(got).ok().filter(|got| *got > 0 && from.nl_pid == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    /// The list of the C library, and this one, contain the same addresses in the same order. If the addresses change meanwhile, the
    /// lists differ or there is no quick one.
    #[test]
    fn quick_list_has_the_addresses_of_the_c_library() {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        let all = || super::super::addresses(None).expect("a list");
        if request().is_err() || all().iter().any(|raw| raw.up && !raw.carrier) {
            return println!("skipped: there is no quick list for these interfaces");
        }
        let are_equal = |_| quickly(socket.as_fd()) == Some(all());
        assert!((0..1000).any(are_equal), "{:?} {:?}", quickly(socket.as_fd()), all());
    }

    #[test]
    fn damaged_address_yields_nothing() {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        let read = |message: &[u8]| address(message, &mut Links::new(socket.as_fd()));
        // An address without attributes, one of another family, and attributes of impossible lengths.
        assert_eq!(read(&[2, 8, 0, 0, 1, 0, 0, 0]), None);
        assert_eq!(read(&[99, 8, 0, 0, 1, 0, 0, 0]), Some(None));
        for len in [0u16, 3, 200, u16::MAX] {
            let mut message = vec![2, 8, 0, 0, 1, 0, 0, 0];
            message.extend(len.to_ne_bytes());
            message.extend([2, 0, 127, 0, 0, 1]);
            assert_eq!(read(&message), None, "{len}");
        }
        assert_eq!(read(&[]), None);
    }
}
