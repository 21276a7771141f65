//! The identity of a peer, and the test whether the kernel module allows attaching its memory.
//!
//! A real copy of the peer's *card* decides. The card is a page that begins with 16 random bytes. The card's segment is part of the
//! address. The boot, the namespaces and the user of the peer are compared only for the error texts.

use std::sync::Arc;

use tieline_memory_file::{Accessor, Facts, Nonce, PeerRegistrations, Piece, Process};
use tieline_plugin_api::{Failure, Status};

use crate::card::{Miss, Permitted, look};
use crate::device::{DEVICE, Lease};
use crate::keys::{WORDS, not_made};
use crate::sys::{self, Direction, Errno, Kernel, Segment};

/// The length of an interface address, in bytes.
pub(crate) const ADDRESS_LEN: usize = 84;
/// The first bytes of an address, of which the last one is the version.
const MAGIC: [u8; 4] = *b"xpm\x01";

/// The interface address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) facts: Facts,
    /// The random number that identifies the domain.
    pub(crate) nonce: Nonce,
    /// The segment of the page that begins with the nonce.
    pub(crate) card: Segment,
    /// The peer's descriptor of its key table.
    pub(crate) table: i32,
    /// The peer's descriptor for announced accesses.
    pub(crate) announcements: i32,
}

impl Address {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ADDRESS_LEN);
        bytes.extend(MAGIC);
        bytes.extend(self.facts.encode());
        bytes.extend(self.nonce);
        bytes.extend(self.card.to_ne_bytes());
        bytes.extend(self.table.to_ne_bytes());
        bytes.extend(self.announcements.to_ne_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Address, Failure> {
        let malformed =
            |why: String| Failure::new(Status::BadData, format!("shm-xpmem address {why}"));
        let bytes: &[u8; ADDRESS_LEN] = bytes
            .try_into()
            .map_err(|_| malformed(format!("has {} bytes, expected {ADDRESS_LEN}", bytes.len())))?;
        if bytes[..4] != MAGIC {
            return Err(malformed("is of another kind or version".to_string()));
        }
        let mut facts = [0; Facts::LEN];
        facts.copy_from_slice(&bytes[4..52]);
        let mut nonce = [0; 16];
        nonce.copy_from_slice(&bytes[52..68]);
        let mut card = [0; 8];
        card.copy_from_slice(&bytes[68..76]);
        let word = |at: usize| {
            i32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Ok(Address {
            facts: Facts::decode(&facts)?,
            nonce,
            card: Segment::from_ne_bytes(card),
            table: word(76),
            announcements: word(80),
        })
    }
}

/// The page that peers read before the first access, with a segment of its own. It lives as long as the domain.
pub(crate) struct Card {
    lease: Arc<Lease>,
    segment: Segment,
    /// The memory that contains one whole page which holds nothing else, because a segment covers whole pages.
    _memory: Vec<u8>,
}

impl Card {
    pub(crate) fn new(lease: &Arc<Lease>, nonce: &Nonce, page: u64) -> Result<Card, Failure> {
        let len = page as usize;
        let mut memory = vec![0u8; 2 * len];
        let start = memory.as_ptr().addr();
        let card = &mut memory[start.next_multiple_of(len) - start..][..len];
        card[..nonce.len()].copy_from_slice(nonce);
        let base = card.as_mut_ptr().expose_provenance() as u64;
        let made = lease.kernel.make(base, page);
        let segment = made.map_err(|errno| not_made("a page", errno))?;
        Ok(Card { lease: lease.clone(), segment, _memory: memory })
    }

    pub(crate) fn segment(&self) -> Segment {
        self.segment
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        if self.lease.is_own() {
            let _ = self.lease.kernel.remove(self.segment);
        }
    }
}

fn system(errno: Errno) -> String {
    match errno {
        sys::NOT_OPENED => "the process is not the one that opened the device".into(),
        errno => std::io::Error::from_raw_os_error(errno).to_string(),
    }
}

/// Tests every step of an access on this process itself. The error names the failed step.
pub(crate) fn on_oneself(kernel: &dyn Kernel, page: u64) -> Result<(), Failure> {
    let failed = |step: &str, why: String| {
        let text = format!("tried on this process itself, {step} did not work: {why}");
        Failure::new(Status::Io, text)
    };
    let torn = sys::Torn::new(page as usize)
        .map_err(|error| failed("mapping two pages", error.to_string()))?;
    let made = kernel.make(torn.start(), 2 * page);
    let segment = made.map_err(|errno| failed("making a segment", system(errno)))?;
    let tried = by_segment(kernel, segment, page);
    let removed = kernel.remove(segment);
    tried.map_err(|(step, errno)| match errno {
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS) if step == COPYING => Failure::new(
            Status::Permission,
            "process_vm_readv is forbidden even within this process, and it is what copies from and to attached memory: a \
             seccomp filter does that, or the kernel has no cross memory attach; allow process_vm_readv and process_vm_writev",
        ),
        Some(errno) => failed(step, system(errno)),
        None => failed(step, "other bytes came".into()),
    })?;
    removed.map_err(|errno| failed("removing a segment", system(errno)))
}

const COPYING: &str = "copying to what was attached";

type Step = (&'static str, Option<Errno>);

fn by_segment(kernel: &dyn Kernel, segment: Segment, page: u64) -> Result<(), Step> {
    let named = |step: &'static str| move |errno| (step, Some(errno));
    let permit = kernel.get(segment).map_err(named("getting a permit"))?;
    let permitted = Permitted { kernel, permit };
    let at = kernel.attach(permit, 0, 2 * page).map_err(named("attaching two pages"))?;
    let copied = |direction, bytes: &mut [u8], at| {
        let piece = Piece::of(bytes);
        let copied = kernel.copy(direction, &[piece], at, piece.len());
        copied.map(|copied| (copied, core::hint::black_box(&*bytes).to_vec()))
    };
    let mut sent = [0x5a, 0xa5];
    let _ = copied(Direction::Put, &mut sent, at + page - 2).map_err(named(COPYING))?;
    let came = copied(Direction::Get, &mut [0], at + page - 1);
    if came.map_err(named("copying from what was attached"))? != (1, vec![0xa5]) {
        return Err(("copying", None));
    }
    // The second page is not mapped. Copying is safe, because the result is an error and no signal.
    match copied(Direction::Get, &mut [0], at + page) {
        Err(libc::EFAULT) => {}
        Err(errno) => return Err(("copying from a hole", Some(errno))),
        // Another thread may have mapped memory at that address meanwhile.
        Ok(_) => {}
    }
    kernel.detach(at).map_err(named("detaching"))?;
    core::mem::forget(permitted);
    kernel.release(permit).map_err(named("releasing the permit"))
}

/// A reachable peer.
pub(crate) struct Peer {
    pub(crate) nonce: Nonce,
    /// The segment of the peer's card.
    pub(crate) card: Segment,
    pub(crate) process: Process,
    pub(crate) table: Arc<PeerRegistrations<WORDS>>,
    /// Whether the kernel can also copy between that process and this one.
    pub(crate) kernel_copies: bool,
    /// This side's slot among the peer's accessors.
    pub(crate) accessor: Accessor,
}

/// Copies the peer's card, maps its key table, and takes a slot among the peer's accessors. The error text names the cause.
pub(crate) fn reach(lease: &Lease, page: u64, me: &Facts, peer: &Address) -> Result<Peer, Failure> {
    let them = &peer.facts;
    me.may_name(them)?;
    // The process is opened before the card is read. Only the peer can provide the card, so the process is the peer's and not a
    // later process with the same number.
    let process = Process::open(them.pid);
    match look(&*lease.kernel, peer.card, page) {
        Ok(nonce) if nonce == peer.nonce => {}
        Ok(_) | Err(Miss::Gone) => {
            return Err(Failure::new(Status::PeerFailed, why_gone(them, process.is_alive())));
        }
        Err(Miss::Refused) => {
            return Err(Failure::new(Status::Permission, why_refused(me, them)));
        }
        Err(Miss::Other(step, errno)) => {
            let text = format!("{step} of the peer's card failed: {}", system(errno));
            return Err(Failure::new(Status::Unreachable, text));
        }
    }
    let lost = |failure: Failure| match failure.status {
        Status::PeerFailed | Status::NoMemory => failure,
        _ => Failure::new(
            Status::Unreachable,
            format!(
                "xpmem would attach, but revocation needs a file of the peer's: {}",
                failure.text
            ),
        ),
    };
    let table = PeerRegistrations::open(them.pid, peer.table, &peer.nonce).map_err(lost)?;
    let accessor = Accessor::open(them.pid, peer.announcements, &peer.nonce).map_err(lost)?;
    let (nonce, card, table) = (peer.nonce, peer.card, Arc::new(table));
    let kernel_copies = sys::kernel_copies_from(them.pid);
    Ok(Peer { nonce, card, process, table, kernel_copies, accessor })
}

fn why_refused(me: &Facts, peer: &Facts) -> String {
    let pid = peer.pid;
    if me.uid != peer.uid {
        return format!(
            "xpmem does not let this process attach memory of process {pid}: it runs as user {}, this process as user {}; \
             run both as the same user",
            peer.uid, me.uid
        );
    }
    format!(
        "xpmem does not let this process attach memory of process {pid}, though both run as user {}: their user namespaces \
         may differ",
        me.uid
    )
}

fn why_gone(peer: &Facts, alive: bool) -> String {
    let pid = peer.pid;
    if !alive {
        return format!("process {pid} has ended");
    }
    if peer.was_reused() {
        return format!(
            "the peer has ended and its number was reused: process {pid} was started at another time"
        );
    }
    format!(
        "process {pid} has no such segment: it has closed the domain or a descriptor of the device, called exec, or has another \
         device open as {DEVICE}"
    )
}

#[cfg(test)]
mod tests;
