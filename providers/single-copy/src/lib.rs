//! The common frame of providers that move bytes between processes of one host with a single copy.
//!
//! A provider implements [`Mechanism`]: how it registers memory, checks a peer and makes an endpoint. [`SingleCopyDomain`] and
//! [`SingleCopyInterface`] are the provider's domain and interface. The frame also has the parts that mechanisms build on:
//!
//! * [`Address`] is an interface address: the owner's identity, its nonce, its card, and descriptors of its files.
//! * [`Shared`] is the state of an owner whose registrations peers read in a table; [`Wording::reach`] is the check of such a peer.
//! * [`Keys`] packs and parses keys of places in such a table, and [`admit`] validates an operation against the rights and the
//!   length of a region.

mod address;
mod domain;
mod keys;
mod peer;

pub use address::Address;
pub use domain::{Mechanism, SingleCopyDomain, SingleCopyInterface, check_domain, domains};
pub use keys::{Keys, admit, is_inside, number, rejected};
pub use peer::{Miss, Shared, TablePeer, Wording, other_user, reused};

use tieline_plugin_api::{Failure, Status, access};

/// A system error number.
pub type Errno = i32;

/// The kernel's `IOV_MAX`, and the maximum number of pieces of one operation.
pub const MAX_IOV: u32 = 1024;
/// The maximum number of pieces of one call, assembled on the stack. A longer list takes several calls.
pub const BATCH: usize = 64;

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the local pieces to the peer.
    Put,
    /// From the peer to the local pieces.
    Get,
}

impl Direction {
    /// Returns the right that a key must grant.
    #[inline]
    #[must_use]
    pub fn right(self) -> u64 {
        match self {
            Direction::Put => access::REMOTE_WRITE,
            Direction::Get => access::REMOTE_READ,
        }
    }
}

/// Returns the error of a failed system call.
#[must_use]
pub fn system(what: &str, errno: Errno) -> Failure {
    Failure::from_io(what, &std::io::Error::from_raw_os_error(errno))
}

/// Returns the kernel's text for an error number.
#[must_use]
pub fn words(errno: Errno) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}

/// Returns the error of a self-test that failed at `step`.
#[must_use]
pub fn failed_here(step: &str, why: &str) -> Failure {
    let text = format!("tried on this process itself, {step} did not work: {why}");
    Failure::new(Status::Io, text)
}

/// Returns the error for a device that could not be opened. `module` is the kernel module, `rule` states what the module's udev
/// rule does and what to do.
#[must_use]
pub fn not_opened(device: &str, module: &str, rule: &str, error: &std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::NotFound => Failure::new(
            Status::NoDevice,
            format!(
                "there is no {device}: the kernel module {module} is not loaded (`modprobe {module}`)"
            ),
        ),
        std::io::ErrorKind::PermissionDenied => Failure::new(
            Status::Permission,
            format!(
                "{device} is not open to this user for reading and writing; {module}'s udev rule {rule}, or change its mode"
            ),
        ),
        _ => Failure::from_io(&format!("opening {device}"), error),
    }
}
