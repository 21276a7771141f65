//! The identity of a peer, and the test whether the kernel module allows attaching its memory.
//!
//! A real copy of the peer's *card* decides. The card is a page that begins with 16 random bytes. The card's segment is part of the
//! address. A peer under another kernel or in another PID namespace is refused without a copy. The user and the user namespace are
//! compared only for the error texts.

use std::sync::Arc;

use tieline_memory_file::{Facts, Nonce, Piece};
use tieline_plugin_api::{Failure, Status};
use tieline_single_copy::{
    Address, Direction, Errno, Miss as NoCard, TablePeer, Wording, failed_here, words,
};

use crate::card::{Miss, Permitted, look};
use crate::device::Lease;
use crate::keys::{WORDS, not_made};
use crate::sys::{self, Kernel, Segment};

/// The first bytes of an address, of which the last one is the version.
pub(crate) const MAGIC: [u8; 4] = *b"xpm\x01";

const WORDING: Wording = Wording {
    module: "xpmem",
    verb: "attach",
    refused: "attach memory of",
    gone: "no such segment: it has closed the domain or a descriptor of the device, called exec, or has another device open as \
           /dev/xpmem",
};

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
        errno => words(errno),
    }
}

/// Tests every step of an access on this process itself. The error names the failed step.
pub(crate) fn on_oneself(kernel: &dyn Kernel, page: u64) -> Result<(), Failure> {
    let failed = |step: &str, why: String| failed_here(step, &why);
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
pub struct Peer {
    pub(crate) theirs: TablePeer<WORDS>,
    /// The segment of the peer's card.
    pub(crate) card: Segment,
    /// Whether the kernel can also copy between that process and this one.
    pub(crate) kernel_copies: bool,
}

/// Checks the peer with this address: reads its card, and opens its files. The error text names the likely cause.
pub(crate) fn reach(lease: &Lease, page: u64, me: &Facts, address: &[u8]) -> Result<Peer, Failure> {
    let peer = Address::decode(crate::DOMAIN, MAGIC, address)?;
    let card = peer.card as Segment;
    let theirs = WORDING.reach(me, &peer, || {
        look(&*lease.kernel, card, page).map_err(|miss| match miss {
            Miss::Gone => NoCard::Gone,
            Miss::Refused => NoCard::Refused,
            Miss::Other(step, errno) => {
                NoCard::Other(format!("{step} of the peer's card failed: {}", system(errno)))
            }
        })
    })?;
    Ok(Peer { theirs, card, kernel_copies: sys::kernel_copies_from(peer.facts.pid) })
}

#[cfg(test)]
mod tests;
