//! Whose a segment is: the number of one says only which process had it when it was told.
//!
//! The module counts a process's segments from 1, and from 1 again when that process has called exec, or when another one has
//! got its number. So whoever has asked for a permit by a number that he was told looks at the owner's *card* next, a page of
//! its own that begins with its nonce: if that is there still, then it was when the permit was given.

use tieline_memory_file::{Nonce, Piece};

use crate::sys::{Direction, Errno, Kernel, Permit, Segment};

/// What is released when it goes out of use: a permit, and with it whatever was attached by it.
pub(crate) struct Permitted<'a> {
    pub(crate) kernel: &'a dyn Kernel,
    pub(crate) permit: Permit,
}

impl Drop for Permitted<'_> {
    fn drop(&mut self) {
        let _ = self.kernel.release(self.permit);
    }
}

/// How a look at a card fails.
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
            // Of a segment that was made by somebody else, at its number.
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

/// Whether the owner that a card is of is there as it was, in the module's words: `ENOENT` where it is not.
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
