//! Addresses and keys in which one byte is changed and the checksum is recomputed, as a forger would make them.

use std::ops::Range;

const CHECKSUM: usize = 4;
/// The length of the fixed fields of an address: magic and version, context, message version, boot id, two namespaces, process
/// number. The host's name and the worker follow.
const ADDRESS_HEAD: usize = MAGIC + 16 + 2 + 16 + 8 + 8 + 4;
const WORKER: usize = 16;
/// The length of the magic and the version of an address or key: a record with other values is not parsed.
const MAGIC: usize = 3 + 2;

/// The offset of the version of an address or key: the major, then the minor.
pub const MAJOR: usize = 3;
/// The offset of the worker's message version in an address: the major, then the minor.
pub const MESSAGES: usize = MAGIC + 16;

/// Returns the offsets at which a byte can be changed.
#[must_use]
pub fn places(bytes: &[u8]) -> Range<usize> {
    MAGIC..bytes.len() - CHECKSUM
}

/// Returns the same bytes with these bits flipped at one offset, and with the right checksum.
#[must_use]
pub fn flipped(bytes: &[u8], at: usize, bits: u8) -> Vec<u8> {
    with(bytes, at, bytes[at] ^ bits)
}

/// Returns the same bytes with this byte at one offset, and with the right checksum.
#[must_use]
pub fn with(bytes: &[u8], at: usize, byte: u8) -> Vec<u8> {
    let mut forged = bytes[..bytes.len() - CHECKSUM].to_vec();
    forged[at] = byte;
    sealed(forged)
}

/// Returns a worker's address as later minor versions of the record and of the messages may write it: with unknown bytes after the
/// known ones.
#[must_use]
pub fn with_later_minor(address: &[u8]) -> Vec<u8> {
    let mut later = address[..address.len() - CHECKSUM].to_vec();
    (later[MAJOR + 1], later[MESSAGES + 1]) = (99, 99);
    later.extend_from_slice(b"what nobody knows yet");
    sealed(later)
}

/// Appends the checksum to the bytes.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = bytes
        .iter()
        .fold(0x811c_9dc5u32, |hash, &b| (hash ^ u32::from(b)).wrapping_mul(0x0100_0193));
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// Returns the range of the worker's number in its address.
#[must_use]
pub fn worker(address: &[u8]) -> Range<usize> {
    let number = ADDRESS_HEAD + 1 + usize::from(address[ADDRESS_HEAD]);
    number..number + WORKER
}

/// Returns the range of one provider's interface in a worker's address.
///
/// # Panics
/// Panics if the address has no candidate of that provider.
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

/// Returns the range of shm's secret in a worker's address.
///
/// # Panics
/// Panics if the address has no candidate of shm.
#[must_use]
pub fn secret(address: &[u8]) -> Range<usize> {
    let shm = candidate(address, b"shm");
    shm.start + 1..shm.start + 17 // behind the version
}
