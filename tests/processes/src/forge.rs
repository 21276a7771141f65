//! Addresses and keys with a byte changed and the checksum made right again, as a forger would.

use std::ops::Range;

const CHECKSUM: usize = 4;
/// Magic and version, context, the version of messages, boot id, two namespaces, process number; then the host's name
/// and the worker.
const ADDRESS_HEAD: usize = MAGIC + 16 + 2 + 16 + 8 + 8 + 4;
const WORKER: usize = 16;
/// The magic of an address or key, and its version: what differs there is not even looked at.
const MAGIC: usize = 3 + 2;

/// Where the version of an address or key begins: the major, then the minor.
pub const MAJOR: usize = 3;
/// Where an address says which version of the library's own messages its worker speaks: the major, then the minor.
pub const MESSAGES: usize = MAGIC + 16;

/// Where a byte can be changed.
#[must_use]
pub fn places(bytes: &[u8]) -> Range<usize> {
    MAGIC..bytes.len() - CHECKSUM
}

/// The same bytes but for one, with the right checksum.
#[must_use]
pub fn flipped(bytes: &[u8], at: usize, bits: u8) -> Vec<u8> {
    with(bytes, at, bytes[at] ^ bits)
}

/// The same bytes but for this one, with the right checksum.
#[must_use]
pub fn with(bytes: &[u8], at: usize, byte: u8) -> Vec<u8> {
    let mut forged = bytes[..bytes.len() - CHECKSUM].to_vec();
    forged[at] = byte;
    sealed(forged)
}

/// A worker's address as later minors may write it, of the record and of the messages: with something behind what is known.
#[must_use]
pub fn of_a_later_minor(address: &[u8]) -> Vec<u8> {
    let mut later = address[..address.len() - CHECKSUM].to_vec();
    (later[MAJOR + 1], later[MESSAGES + 1]) = (99, 99);
    later.extend_from_slice(b"what nobody knows yet");
    sealed(later)
}

/// Puts the checksum behind it.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = bytes
        .iter()
        .fold(0x811c_9dc5u32, |hash, &b| (hash ^ u32::from(b)).wrapping_mul(0x0100_0193));
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// Where the worker's number lies in its address.
#[must_use]
pub fn worker(address: &[u8]) -> Range<usize> {
    let number = ADDRESS_HEAD + 1 + usize::from(address[ADDRESS_HEAD]);
    number..number + WORKER
}

/// Where the part of one provider's interface lies in a worker's address.
///
/// # Panics
/// When the address has no candidate of that provider.
#[must_use]
pub fn candidate(address: &[u8], provider: &[u8]) -> Range<usize> {
    let candidates = worker(address).end;
    let mut at = candidates + 1;
    for _ in 0..address[candidates] {
        let name = at + 1..at + 1 + usize::from(address[at]);
        for _ in 0..3 {
            at += 1 + usize::from(address[at]);
        }
        at += 4; // priority
        let len = usize::from(u16::from_le_bytes([address[at], address[at + 1]]));
        at += 2;
        if &address[name] == provider {
            return at..at + len;
        }
        at += len;
    }
    panic!("no candidate of {}", String::from_utf8_lossy(provider));
}

/// Where shm's secret lies in a worker's address.
///
/// # Panics
/// When the address has no candidate of shm.
#[must_use]
pub fn secret(address: &[u8]) -> Range<usize> {
    let shm = candidate(address, b"shm");
    shm.start + 1..shm.start + 17 // behind the version
}
