//! The identity of a peer, and the test whether the driver allows copies from and to it.
//!
//! A real copy of the peer's *card* decides. The card is a region of 16 random bytes, whose driver cookie is part of the address. A
//! peer under another kernel or in another PID namespace is refused without a copy. The user and the user namespace are compared
//! only for the error texts.

use std::path::Path;
use std::sync::Arc;

use tieline_memory_file::{Facts, Nonce, Piece};
use tieline_plugin_api::{Failure, Status, access};
use tieline_single_copy::{
    Address, Direction, Miss as NoCard, TablePeer, Wording, failed_here, not_opened, system, words,
};

use crate::hold::{self, Forks};
use crate::keys::{Owner, Registration};
use crate::sys::{ABI, Cookie, Device, Kernel, Miss, NoDevice};

/// The path of the driver's device.
pub(crate) const DEVICE: &str = "/dev/knem";
/// The first bytes of an address, of which the last one is the version.
pub(crate) const MAGIC: [u8; 4] = *b"knm\x01";

const WORDING: Wording = Wording {
    module: "knem",
    verb: "copy",
    refused: "copy from and to",
    gone: "no such region: it has closed the domain, called exec, or has another device open as /dev/knem",
};

/// The region that peers read before the first access. It lives as long as the domain.
pub(crate) struct Card {
    _region: Registration,
    cookie: Cookie,
    /// The nonce, pinned as long as the region exists and dropped after it.
    _nonce: Box<Nonce>,
}

impl Card {
    pub(crate) fn new(owner: &Arc<Owner>) -> Result<Card, Failure> {
        let nonce = Box::new(owner.shared.nonce);
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
    let device = Device::open(Path::new(DEVICE), forks).map_err(|why| match why {
        NoDevice::Open(error) => no_device(&error),
        NoDevice::Holder(failure) => failure,
    })?;
    let asked = |errno| system(&format!("asking {DEVICE} for its ABI number"), errno);
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

fn no_device(error: &std::io::Error) -> Failure {
    not_opened(DEVICE, "knem", "gives it to a group: join that", error)
}

/// Makes a region, copies out of it and into it, and ends the region.
pub(crate) fn on_oneself(kernel: &dyn Kernel) -> Result<(), Failure> {
    let mut remote = [1u8, 2, 3, 4];
    let (base, len) = (remote.as_mut_ptr().expose_provenance() as u64, remote.len() as u64);
    let held = kernel.hold(base, len).map_err(|errno| {
        failed_here("holding pages", &hold::why_not_held(base, len, errno).text)
    })?;
    let cookie = match kernel.create(base, len, true, true) {
        Ok(cookie) => cookie,
        Err(errno) => {
            kernel.release(held);
            return Err(failed_here("creating a region", &words(errno)));
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
    got.map_err(|miss| failed_here("copying from a region", &why(miss)))?;
    put.map_err(|miss| failed_here("copying to a region", &why(miss)))?;
    ended.map_err(|errno| failed_here("ending a region", &words(errno)))?;
    let remote = core::hint::black_box(&remote);
    if (local, *remote) == ([2, 3], [1, 2, 2, 3]) {
        return Ok(());
    }
    Err(failed_here("copying", &format!("{local:?} came back, {remote:?} is there")))
}

fn why(miss: Miss) -> String {
    match miss {
        Miss::Call(errno) => words(errno),
        Miss::Copy => "the driver reports a failed copy".into(),
        Miss::Status(number) => {
            format!("the driver reports status {number}, which is undefined")
        }
    }
}

/// Checks the peer with this address: reads its card, and opens its files. The error text names the likely cause.
pub(crate) fn reach(
    kernel: &dyn Kernel,
    me: &Facts,
    address: &[u8],
) -> Result<TablePeer<3>, Failure> {
    let peer = Address::decode(crate::DOMAIN, MAGIC, address)?;
    WORDING.reach(me, &peer, || {
        let mut nonce = [0u8; 16];
        let piece = Piece::of(&mut nonce);
        let len = piece.len() as u64;
        match kernel.copy(Direction::Get, &[piece], peer.card, 0, len) {
            Ok(()) => Ok(*core::hint::black_box(&nonce)),
            Err(Miss::Call(libc::EINVAL)) => Err(NoCard::Gone),
            Err(Miss::Call(libc::EPERM | libc::EACCES)) => Err(NoCard::Refused),
            Err(miss) => {
                Err(NoCard::Other(format!("copying the peer's card failed: {}", why(miss))))
            }
        }
    })
}

#[cfg(test)]
mod tests;
