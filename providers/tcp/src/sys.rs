//! System calls behind safe functions, and copies between operations' memory and slices.
//!
//! A [`Piece`] is memory that is guaranteed by one of the following, and it must not outlive its guarantor:
//!
//! * the poster of an operation, for its local pieces until it has completed or its endpoint is closed,
//! * a [`crate::regions::Pin`], for pieces of a registered region,
//! * a borrowed slice.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use tieline_net::touch::{Fault, Touch, is_writable};
use tieline_plugin_api::abi::Iov;

use crate::silence::{Unacknowledged, Unanswered};

/// A piece of guaranteed memory, in the kernel's format.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    base: *mut u8,
    len: usize,
}

const _: () = assert!(
    size_of::<Piece>() == size_of::<libc::iovec>()
        && core::mem::offset_of!(Piece, base) == core::mem::offset_of!(libc::iovec, iov_base)
        && core::mem::offset_of!(Piece, len) == core::mem::offset_of!(libc::iovec, iov_len)
);

impl Piece {
    /// Designates memory.
    ///
    /// # Safety
    /// The memory must be guaranteed as the module documentation describes.
    pub(crate) unsafe fn new(base: *mut u8, len: usize) -> Piece {
        Piece { base, len }
    }

    #[inline]
    pub(crate) fn len(self) -> usize {
        self.len
    }

    #[cfg(test)]
    pub(crate) fn iov(self) -> Iov {
        Iov::new(self.base, self.len)
    }
}

impl From<Iov> for Piece {
    #[inline]
    fn from(iov: Iov) -> Piece {
        Piece { base: iov.base, len: iov.len }
    }
}

/// Converts the pieces of an operation that outlives its call.
pub(crate) fn pieces(iov: &[Iov]) -> Box<[Piece]> {
    iov.iter().map(|&piece| piece.into()).collect()
}

const FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// Returns the bytes of a slice as a piece to send.
#[inline]
pub(crate) fn piece(bytes: &[u8]) -> Piece {
    Piece { base: bytes.as_ptr().cast_mut(), len: bytes.len() }
}

/// Returns the memory of a slice as a piece to receive into.
#[inline]
pub(crate) fn piece_mut(bytes: &mut [u8]) -> Piece {
    Piece { base: bytes.as_mut_ptr(), len: bytes.len() }
}

/// Sends bytes without blocking.
#[inline]
pub(crate) fn send(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the call reads the slice.
    let sent = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), FLAGS) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Sends pieces without blocking. The pieces are guaranteed as the module documentation describes.
pub(crate) fn send_pieces(fd: RawFd, pieces: &[Piece]) -> io::Result<usize> {
    // SAFETY: zeros are a valid value for this plain record.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_ptr().cast_mut().cast();
    message.msg_iovlen = pieces.len() as _;
    // SAFETY: the array has the layout of `iovec` (asserted above) and lives through the call; the kernel checks every address.
    let sent = unsafe { libc::sendmsg(fd, &message, FLAGS) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives bytes without blocking. The result 0 is the end of the stream.
#[inline]
pub(crate) fn receive(fd: RawFd, bytes: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the call writes into the slice.
    let got = unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), FLAGS) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Receives into pieces without blocking. The result 0 is the end of the stream. The pieces are guaranteed as the module
/// documentation describes.
pub(crate) fn receive_pieces(fd: RawFd, pieces: &[Piece]) -> io::Result<usize> {
    // SAFETY: zeros are a valid value for this plain record.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_ptr().cast_mut().cast();
    message.msg_iovlen = pieces.len() as _;
    // SAFETY: the array has the layout of `iovec` and lives through the call. The guarantee of the pieces includes writing, and the
    // kernel checks every address.
    let got = unsafe { libc::recvmsg(fd, &mut message, FLAGS) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Copies bytes of a registered region to `out`, up to the shorter length. The error is the position of missing memory.
pub(crate) fn read_region(touch: &Touch, from: Piece, out: &mut [u8]) -> Result<(), Fault> {
    let len = from.len.min(out.len());
    // SAFETY: the piece is guaranteed, as far as it is mapped.
    unsafe { touch.read(from.base, &mut out[..len]) }
}

/// Copies bytes to a guaranteed piece, up to the shorter length. The error is the position of missing memory.
pub(crate) fn write_region(touch: &Touch, bytes: &[u8], to: Piece) -> Result<(), Fault> {
    // SAFETY: the piece is guaranteed, as far as it is mapped, and may be written.
    unsafe { touch.write(to.base, &bytes[..to.len.min(bytes.len())]) }
}

const PAGE: usize = 4096;

/// Returns the number of bytes of a piece before the first byte that cannot be written; `None` if all can.
pub(crate) fn first_unwritable(piece: Piece) -> Option<usize> {
    first_page(piece, |at| is_writable(at & !3))
}

/// Returns the number of bytes of a piece before the first byte that cannot be read; `None` if all can.
pub(crate) fn first_unreadable(touch: &Touch, piece: Piece) -> Option<usize> {
    first_page(piece, |at| {
        let behind = at - piece.base.addr();
        // SAFETY: the byte belongs to a guaranteed piece, as far as it is mapped.
        unsafe { touch.read(piece.base.wrapping_add(behind), &mut [0]) }.is_ok()
    })
}

/// Returns the first bad page of a piece, as the offset in the piece where that page's part begins.
fn first_page(piece: Piece, is_good: impl Fn(usize) -> bool) -> Option<usize> {
    let mut at = 0;
    while at < piece.len {
        let address = piece.base.addr() + at;
        if !is_good(address) {
            return Some(at);
        }
        at += PAGE - address % PAGE;
    }
    None
}

/// Copies a guaranteed piece to `out`, up to the shorter length.
pub(crate) fn read_piece(from: Piece, out: &mut [u8]) {
    // SAFETY: the piece is guaranteed. Only this function accesses `out`; the copied length is at most the length of both.
    unsafe { std::ptr::copy(from.base, out.as_mut_ptr(), from.len.min(out.len())) };
}

/// Returns the rest of a piece from `at` on.
#[inline]
pub(crate) fn tail(piece: Piece, at: usize) -> Piece {
    let at = at.min(piece.len);
    Piece { base: piece.base.wrapping_add(at), len: piece.len - at }
}

/// Adds the bytes `at .. at + len` of `pieces` to `out`, as pieces.
pub(crate) fn cut(pieces: &[Piece], mut at: usize, mut len: usize, out: &mut Vec<Piece>) {
    for &piece in pieces {
        if len == 0 {
            return;
        }
        if at >= piece.len {
            at -= piece.len;
            continue;
        }
        let mut part = tail(piece, at);
        part.len = part.len.min(len);
        at = 0;
        len -= part.len;
        out.push(part);
    }
}

/// Makes the two ends of a private stream.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: `fds` has room for two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptors are new and have no other owner.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// Announces the end of the sent data.
pub(crate) fn end_sending(fd: RawFd) {
    // SAFETY: the call takes no pointers. It fails only if the connection is already closed.
    let _ = unsafe { libc::shutdown(fd, libc::SHUT_WR) };
}

/// Returns the kernel's record of a TCP connection and the number of bytes that are not acknowledged; `None` for other sockets.
fn tcp_info(fd: RawFd) -> Option<(libc::tcp_info, libc::c_int)> {
    // SAFETY: zeros are a valid value for this plain record.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    let (at, level) = ((&raw mut info).cast(), libc::IPPROTO_TCP);
    // SAFETY: the kernel writes at most `len` bytes to the record.
    let got = unsafe { libc::getsockopt(fd, level, libc::TCP_INFO, at, &raw mut len) };
    let mut bytes: libc::c_int = 0;
    // SAFETY: the call writes one number.
    let asked = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut bytes) };
    (got == 0 && asked == 0).then_some((info, bytes))
}

/// Returns the kernel's state of the data sent on a TCP connection; `None` for other sockets.
pub(crate) fn unanswered(fd: RawFd) -> Option<Unanswered> {
    tcp_info(fd).map(|(info, unsent)| Unanswered {
        in_flight: info.tcpi_unacked > 0,
        waits: unsent > 0,
        asked: info.tcpi_probes > 0,
        since_ack: Duration::from_millis(info.tcpi_last_ack_recv.into()),
        since_sent: Duration::from_millis(info.tcpi_last_data_sent.into()),
        again_after: Duration::from_micros(info.tcpi_rto.into()),
    })
}

/// Returns the kernel's state of unacknowledged data: bytes, the largest segment, the presumed MTU of the route, and the number of
/// unanswered retransmissions.
pub(crate) fn unacknowledged(fd: RawFd) -> Option<Unacknowledged> {
    tcp_info(fd).map(|(info, bytes)| Unacknowledged {
        bytes: usize::try_from(bytes).unwrap_or(0),
        segment: info.tcpi_snd_mss as usize,
        mtu: info.tcpi_pmtu,
        again: u32::from(info.tcpi_retransmits),
    })
}

/// Checks whether a failed call must be repeated, now or later.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Returns the events of a poll, with a copy of every payload.
#[cfg(test)]
pub(crate) fn poll<I: tieline_plugin_api::Interface>(
    interface: &I,
) -> Vec<(tieline_plugin_api::abi::Event, Vec<u8>)> {
    let mut slots = [std::mem::MaybeUninit::uninit(); 16];
    let mut events = tieline_plugin_api::Events::new(&mut slots);
    interface.poll(&mut events).expect("poll");
    let count = events.len();
    slots[..count]
        .iter()
        .map(|slot| {
            // SAFETY: the poll has written `count` slots, and this is one of them.
            let event: tieline_plugin_api::abi::Event = unsafe { slot.assume_init() };
            let mut data = vec![0; event.len];
            read_piece(Piece { base: event.data.cast_mut(), len: event.len }, &mut data);
            (event, data)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_is_of_so_many_bytes_from_a_place_and_of_no_empty_piece() {
        let bytes = [0u8; 16];
        let pieces = [piece(&bytes[..3]), piece(&bytes[3..3]), piece(&bytes[3..8])];
        let lies = |piece: &Piece| (piece.base.addr() - bytes.as_ptr().addr(), piece.len);
        for (at, len, parts) in [
            (0, 8, &[(0, 3), (3, 5)][..]),
            (0, usize::MAX, &[(0, 3), (3, 5)]),
            (0, 3, &[(0, 3)]),
            (2, 2, &[(2, 1), (3, 1)]),
            (3, 5, &[(3, 5)]),
            (7, 9, &[(7, 1)]),
            (8, 1, &[]),
            (0, 0, &[]),
        ] {
            let mut out = Vec::new();
            cut(&pieces, at, len, &mut out);
            assert_eq!(out.iter().map(lies).collect::<Vec<_>>(), parts, "{len} from {at}");
        }
        let tails = [0, 2, 3, 4].map(|at| lies(&tail(pieces[0], at)));
        assert_eq!(tails, [(0, 3), (2, 1), (3, 0), (3, 0)]);
    }
}
