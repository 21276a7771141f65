//! The owner of a segment. A segment's number only identifies the process that had the number when it was published.
//!
//! The module numbers a process's segments from 1. The numbering restarts at 1 when that process calls exec, and when another
//! process gets its number. After getting a permit for a published number, a process therefore reads the owner's *card*: a separate
//! page that begins with the owner's nonce. If the card is still in place, it was in place when the permit was granted.

use tieline_memory_file::{Nonce, Piece};

use crate::sys::{Direction, Errno, Kernel, Permit, Segment};

/// A permit that is released on drop, with all its attachments.
pub(crate) struct Permitted<'a> {
    pub(crate) kernel: &'a dyn Kernel,
    pub(crate) permit: Permit,
}

impl Drop for Permitted<'_> {
    fn drop(&mut self) {
        let _ = self.kernel.release(self.permit);
    }
}

/// The causes of a failed read of a card.
pub(crate) enum Miss {
    Gone,
    Refused,
    Other(&'static str, Errno),
}

/// Copies the first bytes of a card.
pub(crate) fn look(kernel: &dyn Kernel, card: Segment, page: u64) -> Result<Nonce, Miss> {
    let miss = |step: &'static str| {
        move |errno| match errno {
            libc::ENOENT => Miss::Gone,
            // Another process made the segment with this number.
            libc::EINVAL => Miss::Gone,
            libc::EACCES | libc::EPERM => Miss::Refused,
            errno => Miss::Other(step, errno),
        }
    };
    let permit = kernel.get(card).map_err(miss("getting a permit"))?;
    let _permitted = Permitted { kernel, permit };
    let at = kernel.attach(permit, 0, page).map_err(miss("attaching"))?;
    let mut nonce: Nonce = [0; 16];
    let piece = Piece::of(&mut nonce);
    let copied = kernel.copy(Direction::Get, &[piece], at, piece.len());
    let _ = kernel.detach(at);
    match copied {
        Ok(16) => Ok(*core::hint::black_box(&nonce)),
        Ok(_) | Err(libc::EFAULT) => Err(Miss::Gone),
        Err(errno) => Err(Miss::Other("copying", errno)),
    }
}

/// Checks whether the owner of a card still exists unchanged. The error is `ENOENT` if the owner does not exist, or else that of the module.
pub(crate) fn is_theirs(
    kernel: &dyn Kernel,
    card: Segment,
    owner: &Nonce,
    page: u64,
) -> Result<(), Errno> {
    match look(kernel, card, page) {
        Ok(nonce) if nonce == *owner => Ok(()),
        Ok(_) | Err(Miss::Gone) => Err(libc::ENOENT),
        Err(Miss::Refused) => Err(libc::EACCES),
        Err(Miss::Other(_, errno)) => Err(errno),
    }
}
