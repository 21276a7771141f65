//! The kernel interface: sockets that carry descriptors, epoll. Memory files come from a separate crate.
//!
//! Other unsafe code of this crate is in the ring, in `sys/processor.rs`, in `copies/sys.rs` and in `kept/sys.rs`.
#![allow(unsafe_code)] // only this file and its part make system calls through libc

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Instant;

mod processor;

#[cfg(test)]
pub(crate) use processor::BARRIERS;
pub(crate) use processor::{asymmetric, membarrier};
pub(crate) use tieline_memory_file::{
    Mapping, PAGE, SEAL_WRITERS, backed_len, is_write_sealed, map_peer, map_peer_control,
    memory_file, own_pid, random, reserve, seal, sealed_len,
};
use tieline_plugin_api::{Failure, Status};

fn last() -> io::Error {
    io::Error::last_os_error()
}

/// Returns the effective user of this process.
pub(crate) fn user() -> u32 {
    // SAFETY: the call has no preconditions.
    unsafe { libc::geteuid() }
}

// ---- files ----

/// Checks whether a file is on a file system that other hosts may also have mounted.
pub(crate) fn is_remote(file: &File) -> bool {
    /// The file systems: NFS, AFS (two), Coda, SMB (three), Lustre, GPFS, Ceph, 9P, FUSE, BeeGFS, OCFS2, GFS2, PanFS.
    const REMOTE: [i64; 16] = [
        0x6969,
        0x5346_414f,
        0x6b41_4653,
        0x7375_7245,
        0x517b,
        0xff53_4d42,
        0xfe53_4d42,
        0x0bd0_0bd0,
        0x4750_4653,
        0x00c3_6400,
        0x0102_1997,
        0x6573_5546,
        0x1983_0326,
        0x7461_636f,
        0x0116_1970,
        0xaad7_aaea,
    ];
    // SAFETY: zeros are a valid value for this plain record.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the record is writable.
    let done = unsafe { libc::fstatfs(file.as_raw_fd(), &mut about) };
    done == 0 && REMOTE.contains(&(about.f_type as i64 & 0xffff_ffff))
}

/// Renames an entry of an open directory.
pub(crate) fn rename_within(directory: &File, from: &str, to: &str) -> io::Result<()> {
    let at = directory.as_raw_fd();
    let (from, to) = (CString::new(from)?, CString::new(to)?);
    // SAFETY: the descriptor is open, and both names are zero-terminated.
    if unsafe { libc::renameat(at, from.as_ptr(), at, to.as_ptr()) } == 0 {
        Ok(())
    } else {
        Err(last())
    }
}

// ---- sockets ----

/// The length that a socket's name must stay below.
pub(crate) const MAX_NAME: usize = 108;

/// Returns the address of a listener: the bytes of `sun_path`, the first of which is zero for an abstract name.
fn socket_address(path: &[u8]) -> Result<(libc::sockaddr_un, libc::socklen_t), Failure> {
    // SAFETY: zeros are a valid value for this plain record.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    if path.is_empty() || path.len() >= address.sun_path.len() {
        return Err(Failure::new(
            Status::Invalid,
            format!("a socket name of {} bytes does not fit into 107", path.len()),
        ));
    }
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, &from) in address.sun_path.iter_mut().zip(path) {
        *to = from as libc::c_char;
    }
    let zero = usize::from(path[0] != 0);
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + path.len() + zero;
    Ok((address, len as libc::socklen_t))
}

fn socket(kind: i32) -> io::Result<OwnedFd> {
    let kind = kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the call takes numbers only.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if fd < 0 {
        return Err(last());
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Binds a socket to that name (see [`connect`]), without listening.
pub(crate) fn bind(name: &[u8]) -> io::Result<OwnedFd> {
    let (address, len) =
        socket_address(name).map_err(|failure| io::Error::other(failure.text.to_string()))?;
    let fd = socket(libc::SOCK_SEQPACKET)?;
    // SAFETY: the address is filled up to that length.
    if unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) } != 0 {
        return Err(last());
    }
    Ok(fd)
}

/// Lets peers connect to a bound socket.
pub(crate) fn listen(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    if unsafe { libc::listen(fd.as_raw_fd(), 4096) } == 0 { Ok(()) } else { Err(last()) }
}

/// Connects without blocking; a leading zero byte makes the name abstract. The error [`Status::Again`] means that the listener's
/// queue is full.
pub(crate) fn connect(path: &[u8]) -> Result<OwnedFd, Failure> {
    let (address, len) = socket_address(path)?;
    let fd = socket(libc::SOCK_SEQPACKET)
        .map_err(|error| Failure::from_io("creating a socket", &error))?;
    // SAFETY: the address is filled up to that length.
    if unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), len) } != 0 {
        let error = last();
        return Err(Failure::from_io("connecting to the peer's socket", &error));
    }
    Ok(fd)
}

/// Checks whether no process has the socket of that name open. A live socket refuses this datagram socket because of its different
/// type, so its owner notices nothing. A socket that does not exist is not dead.
pub(crate) fn is_dead(name: &[u8]) -> bool {
    let refused = |kind| {
        let (Ok((address, len)), Ok(fd)) = (socket_address(name), socket(kind)) else {
            return false;
        };
        // SAFETY: the address is filled up to that length.
        let done = unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), len) };
        done != 0 && last().raw_os_error() == Some(libc::ECONNREFUSED)
    };
    // Not every system checks the type first: a dead socket refuses both types.
    refused(libc::SOCK_DGRAM) && refused(libc::SOCK_SEQPACKET)
}

/// Shuts down a socket: nothing more can be sent or connected to it; data that has arrived remains.
pub(crate) fn shut_down(fd: &OwnedFd) {
    // SAFETY: the descriptor is open.
    let _ = unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_RDWR) };
}

/// Checks whether no descriptors wait on a socket or on connections that wait to be accepted, as the kernel counts them in /proc
/// (since Linux 5.6). If in doubt, returns false.
pub(crate) fn carries_nothing(fd: &OwnedFd) -> bool {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()));
    let text = text.unwrap_or_default();
    text.lines().any(|line| line.strip_prefix("scm_fds:").is_some_and(|n| n.trim() == "0"))
}

/// Runs a function that starts a thread, so that the thread handles none of the application's signals.
pub(crate) fn without_signals<R>(start: impl FnOnce() -> R) -> R {
    // SAFETY: the sets of signals are plain records that the calls fill. The mask is this thread's own, and it is restored before
    // other code runs on this thread.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        let _ = libc::sigfillset(&mut all);
        let masked = libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) == 0;
        let result = start();
        if masked {
            let _ = libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        }
        result
    }
}

/// Makes the close of this descriptor not wait for unsent data, even if its sender has requested that.
fn do_not_linger(fd: RawFd) {
    let off = libc::linger { l_onoff: 0, l_linger: 0 };
    // SAFETY: the record is readable; the call has no effect on other descriptors than sockets.
    let _ = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const off).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        )
    };
}

/// Returns the next connection, if one waits.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the call does not request the peer's address.
    let fd = unsafe {
        libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags)
    };
    if fd < 0 {
        return Err(last());
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the user on the other side of a socket.
pub(crate) fn peer_user(fd: &OwnedFd) -> Option<u32> {
    peer(fd).map(|(user, _)| user)
}

/// Returns the user and the process that connected, or that listens.
pub(crate) fn peer(fd: &OwnedFd) -> Option<(u32, i32)> {
    // SAFETY: zeros are a valid value for this plain record.
    let mut who: libc::ucred = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the call writes at most `len` bytes to `who`.
    let done = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &mut len,
        )
    };
    (done == 0).then_some((who.uid, who.pid))
}

/// The maximum number of descriptors that this side sends in one record.
pub(crate) const MAX_FDS: usize = 2;
/// The maximum number of descriptors of one received record. The kernel would close descriptors without room here by itself, and
/// block on that.
const MAX_RECEIVED: usize = 253;
const CONTROL: usize = 16 + (MAX_RECEIVED * size_of::<RawFd>()).next_multiple_of(8);

/// The buffer of a control message, aligned for its header.
#[repr(C, align(8))]
struct ControlBuffer([u8; CONTROL]);

/// Sends one record with descriptors, without blocking.
pub(crate) fn send(socket: &OwnedFd, record: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut piece =
        libc::iovec { iov_base: record.as_ptr().cast_mut().cast(), iov_len: record.len() };
    let mut control = ControlBuffer([0; CONTROL]);
    // SAFETY: zeros are a valid value for this plain record.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut piece;
    message.msg_iovlen = 1;
    let fds = &fds[..fds.len().min(MAX_FDS)];
    if !fds.is_empty() {
        let bytes = size_of_val(fds) as u32;
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: the macros compute within `control`, which has room for MAX_FDS descriptors.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(bytes) as usize;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as usize;
            for (i, fd) in fds.iter().enumerate() {
                libc::CMSG_DATA(header).cast::<RawFd>().add(i).write_unaligned(fd.as_raw_fd());
            }
        }
    }
    // SAFETY: the message points to live buffers.
    let sent = unsafe {
        libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    if sent < 0 { Err(last()) } else { Ok(()) }
}

/// One record from a socket.
pub(crate) struct Received {
    /// The number of bytes written to the buffer; 0 if the peer has disconnected.
    pub(crate) len: usize,
    /// The received descriptors.
    pub(crate) fds: Vec<OwnedFd>,
    /// Whether the record or its descriptors did not fit (too long, or this process has no descriptor left).
    pub(crate) cut: bool,
}

/// Waits until a socket has room, is disconnected, or a signal interrupts the wait. Returns `false` if the time is up.
pub(crate) fn wait_for_room(socket: &OwnedFd, until: Instant) -> bool {
    let left = until.saturating_duration_since(Instant::now());
    let mut asked = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: `asked` is one record and lives through the call.
    let ready = unsafe { libc::poll(&mut asked, 1, left.as_millis() as i32) };
    ready > 0 || ready < 0 && is_passing(&io::Error::last_os_error()) && !left.is_zero()
}

/// Receives one record without blocking.
pub(crate) fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<Received> {
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = ControlBuffer([0; CONTROL]);
    // SAFETY: zeros are a valid value for this plain record.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL;
    // SAFETY: the message points to live buffers.
    let got = unsafe {
        libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC)
    };
    if got < 0 {
        return Err(last());
    }
    let mut fds = Vec::new();
    // SAFETY: the kernel wrote well-formed control messages of `msg_controllen` bytes. Each descriptor in them is new and belongs
    // to this code alone.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len - libc::CMSG_LEN(0) as usize;
                for i in 0..bytes / size_of::<RawFd>() {
                    let fd = libc::CMSG_DATA(header).cast::<RawFd>().add(i).read_unaligned();
                    do_not_linger(fd);
                    fds.push(OwnedFd::from_raw_fd(fd));
                }
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
    }
    let cut = message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
    Ok(Received { len: got as usize, fds, cut })
}

/// Returns a descriptor that reserves a place in the table, to be closed when the table is full.
pub(crate) fn spare() -> Result<OwnedFd, Failure> {
    // SAFETY: the call takes numbers only.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(Failure::last_os_error("a descriptor in reserve"));
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Checks whether an error means that this process or the system has no descriptor or memory left.
pub(crate) fn is_exhaustion(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS))
}

/// Checks whether data may follow after an error of [`receive`]. A peer that closes without reading everything resets the
/// connection. Its earlier records come after that error, and then its end.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::ECONNRESET))
}

/// Checks whether an error of [`send`] is temporary.
pub(crate) fn is_temporary(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ENOMEM | libc::ETOOMANYREFS)
    )
}

// ---- epoll ----

/// A set of descriptors to wait for; the set is a descriptor, too.
pub(crate) struct Epoll {
    fd: OwnedFd,
}

impl Epoll {
    pub(crate) fn new() -> Result<Epoll, Failure> {
        // SAFETY: the call takes numbers only.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(Failure::last_os_error("creating an epoll descriptor"));
        }
        // SAFETY: the descriptor is new and has no other owner.
        Ok(Epoll { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) fn add(&self, fd: &OwnedFd, token: u64) -> Result<(), Failure> {
        let mut event =
            libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLRDHUP) as u32, u64: token };
        // SAFETY: the record is initialised.
        let done =
            unsafe { libc::epoll_ctl(self.raw(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &mut event) };
        if done == 0 {
            Ok(())
        } else {
            Err(Failure::last_os_error("adding to an epoll descriptor"))
        }
    }

    /// Removes a descriptor. Closing the descriptor does not suffice while a forked child holds a copy.
    pub(crate) fn remove(&self, fd: &OwnedFd) {
        // SAFETY: the call takes numbers, and no record for this command.
        let _ = unsafe {
            libc::epoll_ctl(self.raw(), libc::EPOLL_CTL_DEL, fd.as_raw_fd(), std::ptr::null_mut())
        };
    }

    /// Finds descriptors that are ready, at most [`Ready::MOST`], and returns their number.
    pub(crate) fn find_ready(&self, found: &mut Ready) -> usize {
        // SAFETY: the call writes at most as many records as the array has.
        let n = unsafe {
            libc::epoll_wait(self.raw(), found.0.as_mut_ptr(), Ready::MOST as libc::c_int, 0)
        };
        usize::try_from(n).unwrap_or(0).min(Ready::MOST)
    }
}

/// An array for the result of [`Epoll::find_ready`], reused so that it need not be cleared.
pub(crate) struct Ready([libc::epoll_event; Ready::MOST]);

impl Ready {
    /// The maximum number of descriptors that one call finds.
    pub(crate) const MOST: usize = 64;

    pub(crate) fn new() -> Ready {
        Ready([libc::epoll_event { events: 0, u64: 0 }; Ready::MOST])
    }

    /// Returns the token of one of the descriptors that were found last.
    pub(crate) fn token(&self, index: usize) -> u64 {
        self.0[index].u64
    }
}

/// A descriptor that becomes readable every millisecond while the ticker is on.
pub(crate) struct Ticker {
    fd: OwnedFd,
}

impl Ticker {
    pub(crate) fn new() -> Result<Ticker, Failure> {
        // SAFETY: the call takes numbers only.
        let fd = unsafe {
            libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK)
        };
        if fd < 0 {
            return Err(Failure::last_os_error("creating a timer"));
        }
        // SAFETY: the descriptor is new and has no other owner.
        Ok(Ticker { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Turns the ticker on (1 ms from now, and again every ms) or off; both clear a pending tick.
    pub(crate) fn set(&self, on: bool) {
        let period = libc::timespec { tv_sec: 0, tv_nsec: if on { 1_000_000 } else { 0 } };
        let spec = libc::itimerspec { it_interval: period, it_value: period };
        // SAFETY: the record is initialised; the old setting is not requested.
        let _ =
            unsafe { libc::timerfd_settime(self.fd.as_raw_fd(), 0, &spec, std::ptr::null_mut()) };
    }
}

/// Kills this process as abruptly as the kernel can.
#[cfg(feature = "test-hooks")]
pub(crate) fn kill_self() {
    // SAFETY: the call takes numbers only.
    let _ = unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

/// Returns the events of one poll. As in a call of the core, the short form comes first.
#[cfg(test)]
pub(crate) fn polled<I: tieline_plugin_api::Interface>(
    interface: &I,
) -> Vec<tieline_plugin_api::abi::Event> {
    use std::mem::MaybeUninit;
    use tieline_plugin_api::abi::Event;
    let mut slots = [const { MaybeUninit::new(Event::empty()) }; 16];
    let is_short = |first: &mut MaybeUninit<Event>| {
        interface.poll_at_once(first) || interface.poll_second(first)
    };
    if I::POLLS_AT_ONCE && is_short(&mut slots[0]) {
        // SAFETY: every slot was initialised above.
        return vec![unsafe { slots[0].assume_init() }];
    }
    let mut events = tieline_plugin_api::Events::new(&mut slots);
    let polled = interface.poll(&mut events);
    let n = events.len();
    assert!(polled.is_ok());
    // SAFETY: every slot was initialised above.
    slots[..n].iter().map(|slot| unsafe { slot.assume_init() }).collect()
}

/// Returns the payload of an event of the last poll.
#[cfg(test)]
pub(crate) fn payload(event: &tieline_plugin_api::abi::Event) -> Vec<u8> {
    let mut copy = vec![0; event.len];
    // SAFETY: the bytes of a poll are valid until the next poll.
    unsafe { std::ptr::copy(event.data, copy.as_mut_ptr(), event.len) };
    copy
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    /// Checks whether closing a socket waits, and for how many seconds.
    fn lingering(fd: &OwnedFd) -> libc::linger {
        let mut linger = libc::linger { l_onoff: -1, l_linger: -1 };
        let mut len = size_of::<libc::linger>() as libc::socklen_t;
        // SAFETY: the call writes at most `len` bytes to `linger`.
        let done = unsafe {
            libc::getsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw mut linger).cast(),
                &mut len,
            )
        };
        assert_eq!(done, 0);
        linger
    }

    #[test]
    fn a_socket_that_came_along_does_not_linger_when_it_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let theirs = OwnedFd::from(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let minutes = libc::linger { l_onoff: 1, l_linger: 300 };
        // SAFETY: the record of that length is readable.
        let set = unsafe {
            libc::setsockopt(
                theirs.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const minutes).cast(),
                size_of::<libc::linger>() as libc::socklen_t,
            )
        };
        assert_eq!((set, lingering(&theirs).l_onoff), (0, 1));
        let (from, to) = UnixDatagram::pair().unwrap();
        send(&from.into(), b"greeting", &[theirs.as_fd()]).unwrap();
        let received = receive(&to.into(), &mut [0; 16]).unwrap();
        assert_eq!(received.fds.len(), 1);
        assert_eq!(lingering(&received.fds[0]).l_onoff, 0);
    }

    #[test]
    fn removed_descriptor_is_not_reported_while_a_copy_is_open() {
        let (epoll, kept, removed) = (Epoll::new().unwrap(), spare().unwrap(), spare().unwrap());
        epoll.add(&kept, 7).unwrap();
        epoll.add(&removed, 8).unwrap();
        let copy = removed.try_clone().unwrap();
        epoll.remove(&removed);
        drop(removed);
        for fd in [&kept, &copy] {
            std::fs::File::from(fd.try_clone().unwrap()).write_all(&1u64.to_ne_bytes()).unwrap();
        }
        let mut found = Ready::new();
        assert_eq!((epoll.find_ready(&mut found), found.token(0)), (1, 7));
    }
}
