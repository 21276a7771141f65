//! Kernel interfaces that neither std nor socket2 covers: addresses of interfaces, socket options, the descriptor limit,
//! epoll, eventfd, timerfd, random bytes.
#![allow(unsafe_code)]

mod addresses;
mod link;

pub(crate) use link::{has_loopback, link};

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::admission::CROWD;

/// One address of one interface, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawAddress {
    pub(crate) interface: String,
    pub(crate) ip: IpAddr,
    pub(crate) prefix: u8,
    pub(crate) scope_id: u32,
    pub(crate) up: bool,
    /// Whether the interface is running, or its link is up.
    pub(crate) carrier: bool,
    pub(crate) loopback: bool,
}

/// Makes a socket of this family for queries about interfaces, which has no port.
pub(crate) fn datagram_socket(family: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers.
    own(unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })
}

/// Returns every IPv4 and IPv6 address of this network namespace. The list is made faster with an internet socket.
pub(crate) fn addresses(socket: Option<BorrowedFd<'_>>) -> io::Result<Vec<RawAddress>> {
    if let Some(found) = socket.and_then(addresses::quickly) {
        return Ok(found);
    }
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the kernel's list is written to `list`, which is freed below.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut at = list;
    // SAFETY: `at` is null or an entry of the list, which lives until `freeifaddrs`.
    while let Some(entry) = unsafe { at.as_ref() } {
        at = entry.ifa_next;
        // SAFETY: `ifa_addr` and `ifa_netmask` are null or socket addresses of this entry.
        let Some((ip, scope_id)) = (unsafe { ip_of(entry.ifa_addr) }) else { continue };
        // SAFETY: `ifa_netmask` is null or a socket address of this entry.
        let mask = unsafe { ip_of(entry.ifa_netmask) };
        // SAFETY: the name belongs to this entry and is zero-terminated.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        let flags = entry.ifa_flags;
        // The kernel reports RUNNING some time after the carrier is up.
        let carrier = libc::IFF_RUNNING as u32 | libc::IFF_LOWER_UP as u32;
        found.push(RawAddress {
            interface: name.to_string_lossy().into_owned(),
            ip,
            prefix: mask.map_or(0, |(mask, _)| ones(mask)),
            scope_id,
            up: flags & libc::IFF_UP as u32 != 0,
            carrier: flags & carrier != 0,
            loopback: flags & libc::IFF_LOOPBACK as u32 != 0,
        });
    }
    // SAFETY: getifaddrs made the list; no reference into it exists any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

fn ones(mask: IpAddr) -> u8 {
    let count = match mask {
        IpAddr::V4(mask) => u32::from(mask).count_ones(),
        IpAddr::V6(mask) => u128::from(mask).count_ones(),
    };
    count as u8 // at most 128 bits
}

/// Returns the address and scope in a socket address of the kernel; `None` for null and for other families.
///
/// # Safety
/// `address` is null or points to a socket address with the length of its family.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<(IpAddr, u32)> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the pointer is not null, and every socket address begins with its family.
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family states that the address is a sockaddr_in.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some((Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into(), 0))
        }
        libc::AF_INET6 => {
            // SAFETY: the family states that the address is a sockaddr_in6.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some((Ipv6Addr::from(v6.sin6_addr.s6_addr).into(), v6.sin6_scope_id))
        }
        _ => None,
    }
}

/// Lets a socket that is bound to an address choose its port at connect. Otherwise every bound connection occupies a port of its
/// own.
pub(crate) fn bind_address_no_port(socket: BorrowedFd<'_>) {
    let on: libc::c_int = 1;
    // SAFETY: the socket is open, and the option has the given size. A failure only makes ports scarcer.
    let _ = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
}

/// Limits the time between two retransmissions, which otherwise doubles up to two minutes; kernels before 6.15 do not support that.
pub(crate) fn limit_retransmission_pauses(socket: BorrowedFd<'_>, longest: Duration) {
    const TCP_RTO_MAX_MS: libc::c_int = 44;
    let longest = longest.clamp(Duration::from_secs(1), Duration::from_secs(120)).as_millis();
    let longest = longest as libc::c_int;
    // SAFETY: the socket is open, and the option has the given size.
    let _ = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_RTO_MAX_MS,
            (&raw const longest).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
}

/// Checks whether the connections that wait at a listening TCP socket are a crowd, so that the kernel may soon drop new ones. A
/// crowd is [`CROWD`] connections, or a quarter of the socket's queue if that is less.
#[must_use]
pub fn is_crowded(listener: &impl AsRawFd) -> bool {
    // The buffer takes the first fields of tcp_info. For a listening socket, the last two numbers are the length of the queue and
    // its limit.
    let mut info = [0u32; 8];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the pointers refer to locals, and `len` is the size of the first.
    let asked = unsafe {
        libc::getsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut len,
        )
    };
    let [.., waiting, bound] = info.map(|number| number as usize);
    asked == 0 && len as usize == size_of_val(&info) && waiting >= CROWD.min(bound / 4).max(1)
}

/// Returns the limit on descriptors of this process.
pub(crate) fn descriptors() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the record is writable.
    let _ = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

/// Fills `out` with random bytes of the kernel.
///
/// # Errors
/// The error of getrandom(2).
pub fn random(out: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < out.len() {
        let rest = &mut out[filled..];
        // SAFETY: the call writes at most the length of `rest` into it.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(got) {
            Ok(got) => filled += got,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

/// The events to wait for on a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Whether to wait until the socket is readable.
    pub readable: bool,
    /// Whether to wait until the socket is writable.
    pub writable: bool,
}

impl Interest {
    /// Waits for reading only.
    pub const READ: Interest = Interest { readable: true, writable: false };
    /// Waits for writing only.
    pub const WRITE: Interest = Interest { readable: false, writable: true };
    /// Waits for reading and writing.
    pub const BOTH: Interest = Interest { readable: true, writable: true };
    /// Waits for neither: errors and hang-ups are still reported.
    pub const NONE: Interest = Interest { readable: false, writable: false };

    fn bits(self) -> u32 {
        let mut bits = 0;
        if self.readable {
            bits |= libc::EPOLLIN;
        }
        if self.writable {
            bits |= libc::EPOLLOUT;
        }
        bits as u32
    }
}

/// A descriptor that became ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The token of the descriptor's last [`Poller::watch`].
    pub token: u64,
    /// Whether the descriptor is readable, or an error or hang-up was reported.
    pub readable: bool,
    /// Whether the descriptor is writable, or an error or hang-up was reported.
    pub writable: bool,
}

/// An epoll instance: level-triggered, and pollable itself.
#[derive(Debug)]
pub struct Poller {
    fd: OwnedFd,
}

impl Poller {
    /// Creates an epoll instance.
    ///
    /// # Errors
    /// No descriptor or memory is left.
    pub fn new() -> io::Result<Poller> {
        // SAFETY: the call takes no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        own(fd).map(|fd| Poller { fd })
    }

    /// Watches a descriptor, or changes the watched events. [`forget`](Poller::forget) it before it is closed: while a forked child
    /// holds a copy, the kernel goes on to report its events.
    ///
    /// # Errors
    /// The error of epoll_ctl(2), such as a limit on watched descriptors or an invalid descriptor.
    pub fn watch(&self, fd: RawFd, interest: Interest, token: u64) -> io::Result<()> {
        match self.control(libc::EPOLL_CTL_ADD, fd, interest, token) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                self.control(libc::EPOLL_CTL_MOD, fd, interest, token)
            }
            other => other,
        }
    }

    /// Stops watching a descriptor.
    pub fn forget(&self, fd: RawFd) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, Interest::NONE, 0);
    }

    /// Waits until a descriptor is ready or `timeout` has passed (`None`: no limit), and fills `out` anew.
    ///
    /// # Errors
    /// The error of epoll_wait(2); an interrupted wait returns no events.
    pub fn wait(&self, out: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()> {
        const ROOM: usize = 64;
        out.clear();
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; ROOM];
        // The time is rounded up: a wait that ends a little early would only be repeated.
        let millis = timeout.map_or(-1, |timeout| {
            i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
        });
        // SAFETY: the descriptor is an epoll instance, and the array has room for the requested number of events.
        let got = unsafe {
            libc::epoll_wait(self.fd.as_raw_fd(), events.as_mut_ptr(), ROOM as i32, millis)
        };
        let Ok(got) = usize::try_from(got) else {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        };
        out.extend(events[..got].iter().map(|event| {
            let bits = event.events as i32;
            let broken = bits & (libc::EPOLLERR | libc::EPOLLHUP) != 0;
            Ready {
                token: event.u64,
                readable: broken || bits & libc::EPOLLIN != 0,
                writable: broken || bits & libc::EPOLLOUT != 0,
            }
        }));
        Ok(())
    }

    fn control(&self, op: i32, fd: RawFd, interest: Interest, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest.bits(), u64: token };
        // SAFETY: the descriptor is an epoll instance, and the record lives through the call; a bad `fd` is an error.
        if unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), op, fd, &mut event) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// An eventfd: readable from [`Waker::wake`] until [`Waker::clear`].
#[derive(Debug)]
pub struct Waker {
    fd: OwnedFd,
}

impl Waker {
    /// Creates an eventfd.
    ///
    /// # Errors
    /// No descriptor or memory is left.
    pub fn new() -> io::Result<Waker> {
        // SAFETY: the call takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        own(fd).map(|fd| Waker { fd })
    }

    /// Makes the eventfd readable, which wakes its waiters. Any thread may call this method.
    pub fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the call writes eight bytes to an open descriptor. If the counter is full (2^64 - 1 wakes), it is readable
        // already.
        let _ = unsafe { libc::write(self.fd.as_raw_fd(), one.as_ptr().cast(), 8) };
    }

    /// Makes the eventfd unreadable again.
    pub fn clear(&self) {
        drain(&self.fd);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A timerfd: readable from the set time until it is set again.
#[derive(Debug)]
pub struct Timer {
    fd: OwnedFd,
}

impl Timer {
    /// Creates a timer that is not set.
    ///
    /// # Errors
    /// No descriptor or memory is left.
    pub fn new() -> io::Result<Timer> {
        // SAFETY: the call takes no pointers.
        let fd = unsafe {
            libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK)
        };
        own(fd).map(|fd| Timer { fd })
    }

    /// Sets the timer to `at`. A time in the past means immediately; `None` stops the timer.
    pub fn set(&self, at: Option<Instant>) {
        // SAFETY: zeros are a valid value for this plain record.
        let mut spec: libc::itimerspec = unsafe { std::mem::zeroed() };
        if let Some(at) = at {
            // Zero would stop the timer.
            let left = at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
            spec.it_value.tv_sec = left.as_secs().try_into().unwrap_or(libc::time_t::MAX);
            spec.it_value.tv_nsec = left.subsec_nanos().into();
        }
        // SAFETY: the timerfd is open, and the record lives through the call.
        let _ =
            unsafe { libc::timerfd_settime(self.fd.as_raw_fd(), 0, &spec, std::ptr::null_mut()) };
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn drain(fd: &OwnedFd) {
    let mut bytes = [0u8; 8];
    // SAFETY: the call reads eight bytes from an open, non-blocking descriptor.
    let _ = unsafe { libc::read(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), 8) };
}

fn own(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just created, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets the limit on descriptors of this process.
#[cfg(test)]
pub(crate) fn limit_descriptors(most: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes one record.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }, 0);
    limit.rlim_cur = most;
    // SAFETY: the call reads one record.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Timer {
        /// Returns the time until the timer expires; zero if it is stopped, or has expired.
        fn left(&self) -> Duration {
            // SAFETY: zeros are a valid value for this plain record.
            let mut spec: libc::itimerspec = unsafe { std::mem::zeroed() };
            // SAFETY: the timerfd is open, and the record lives through the call.
            let got = unsafe { libc::timerfd_gettime(self.fd.as_raw_fd(), &mut spec) };
            assert_eq!(got, 0);
            let seconds = u64::try_from(spec.it_value.tv_sec).expect("no time before now");
            Duration::new(
                seconds,
                u32::try_from(spec.it_value.tv_nsec).expect("a part of a second"),
            )
        }

        fn has_rung(&self) -> bool {
            let poller = Poller::new().expect("epoll");
            poller.watch(self.fd.as_raw_fd(), Interest::READ, 0).expect("watched");
            let mut ready = Vec::new();
            poller.wait(&mut ready, Some(Duration::ZERO)).expect("epoll");
            !ready.is_empty()
        }
    }

    #[test]
    fn a_timer_is_set_to_the_second_and_to_the_part_of_one() {
        let timer = Timer::new().expect("a timer");
        for wanted in [Duration::from_secs(3600), Duration::from_millis(7_200_500)] {
            let before = Instant::now();
            timer.set(Some(before + wanted));
            let left = timer.left();
            assert!(left <= wanted && left + before.elapsed() >= wanted, "{left:?} of {wanted:?}");
            assert!(!timer.has_rung());
        }
    }

    #[test]
    fn a_timer_that_is_set_to_the_past_rings_at_once_until_it_is_set_again() {
        let timer = Timer::new().expect("a timer");
        assert!(!timer.has_rung(), "it is not set");
        let now = Instant::now();
        timer.set(Some(now.checked_sub(Duration::from_secs(1)).unwrap_or(now)));
        while timer.left() != Duration::ZERO {}
        assert!(timer.has_rung() && timer.has_rung(), "it rings on");
        timer.set(Some(now + Duration::from_secs(3600)));
        assert!(!timer.has_rung());
    }

    #[test]
    fn a_timer_that_is_quieted_does_not_ring() {
        let timer = Timer::new().expect("a timer");
        timer.set(Some(Instant::now() + Duration::from_secs(3600)));
        timer.set(None);
        assert_eq!(timer.left(), Duration::ZERO);
        assert!(!timer.has_rung());
    }
}
