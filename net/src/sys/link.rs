//! Queries about one network interface: its link, and the loopback interface.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The record for `SIOCETHTOOL` with `ETHTOOL_GSET`: the kernel's `struct ethtool_cmd`.
#[repr(C)]
#[derive(Default)]
struct EthtoolCmd {
    cmd: u32,
    supported: u32,
    advertising: u32,
    speed: u16,
    duplex_port: [u8; 2],
    phy: [u8; 4],
    max_packets: [u32; 2],
    speed_hi: u16,
    tp: [u8; 2],
    lp_advertising: u32,
    reserved: [u32; 2],
}

/// Makes a request about an interface; `None` if the name is too long.
fn request_about(interface: &str) -> Option<libc::ifreq> {
    // SAFETY: zeros are a valid value for this plain record.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if interface.len() >= request.ifr_name.len() {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    Some(request)
}

/// Checks whether the loopback interface is up and has an IPv4 address. Two queries are faster than a list of all interfaces.
pub(crate) fn has_loopback(socket: BorrowedFd<'_>) -> bool {
    let Some(mut request) = request_about("lo") else { return false };
    let flags = flags("lo", socket).unwrap_or(0);
    let wanted = libc::IFF_UP | libc::IFF_LOOPBACK;
    // SAFETY: the socket is open, and the request has a zero-terminated name; the kernel fills the request.
    let mut has_address =
        || unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFADDR as _, &mut request) } == 0;
    flags & wanted == wanted && has_address()
}

/// Returns the flags of an interface that fit into 16 bits.
pub(crate) fn flags(interface: &str, socket: BorrowedFd<'_>) -> Option<libc::c_int> {
    let mut request = request_about(interface)?;
    // SAFETY: the socket is open, and the request has a zero-terminated name; the kernel fills the request.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS as _, &mut request) } {
        // SAFETY: the request succeeded, so the union holds the flags.
        0 => Some(libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags })),
        _ => None,
    }
}

/// Returns the name of the interface with this index.
pub(crate) fn name_of(index: u32, socket: BorrowedFd<'_>) -> Option<String> {
    let mut request = request_about("")?;
    request.ifr_ifru.ifru_ifindex = libc::c_int::try_from(index).ok()?;
    // SAFETY: the socket is open, and the request holds an index; the kernel fills the request.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFNAME as _, &mut request) } != 0 {
        return None;
    }
    let name = request.ifr_name.map(|c| c as u8);
    let name = CStr::from_bytes_until_nul(&name).ok()?;
    Some(name.to_string_lossy().into_owned())
}

/// Returns the maximum transmission unit and speed in Mbit/s of an interface of this network namespace. (Files under
/// `/sys/class/net` may show another namespace's interfaces.) A loopback interface has no speed.
pub(crate) fn link(interface: &str, loopback: bool, socket: BorrowedFd<'_>) -> (u32, Option<u32>) {
    const ETHTOOL_GSET: u32 = 1;
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    let Some(mut request) = request_about(interface) else { return (0, None) };
    // SAFETY: the socket is open, and the request has a zero-terminated name; the kernel fills the request.
    let mtu = match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &mut request) }
    {
        // SAFETY: the request succeeded, so the union holds the MTU.
        0 => unsafe { request.ifr_ifru.ifru_mtu },
        _ => 0,
    };
    let mtu = u32::try_from(mtu).unwrap_or(0);
    if loopback {
        return (mtu, None);
    }
    let mut command = EthtoolCmd { cmd: ETHTOOL_GSET, ..EthtoolCmd::default() };
    request.ifr_ifru.ifru_data = (&raw mut command).cast();
    // SAFETY: the socket is open, the request has a zero-terminated name, and `command` is the record that this request requires
    // and outlives the call.
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &mut request) };
    let speed = speed_of(command.speed_hi, command.speed).filter(|_| asked == 0);
    (mtu, speed)
}

/// Returns the speed, which the kernel reports in two halves, the upper one first. An unknown speed is 0, 0xffff or all ones.
fn speed_of(high: u16, low: u16) -> Option<u32> {
    let speed = u32::from(high) << 16 | u32::from(low);
    (speed != 0 && speed != u32::MAX && speed != 0xffff).then_some(speed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_has_two_halves_and_one_that_nobody_knows_is_none() {
        assert_eq!(speed_of(0, 1000), Some(1000));
        assert_eq!(speed_of(1, 34_464), Some(100_000));
        assert_eq!(speed_of(6, 6784), Some(400_000));
        for unknown in [(0, 0), (0, 0xffff), (0xffff, 0xffff)] {
            assert_eq!(speed_of(unknown.0, unknown.1), None);
        }
    }
}
