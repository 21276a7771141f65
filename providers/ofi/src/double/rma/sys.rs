//! Puts and gets of the simulated library.

#![allow(unsafe_code)]

use crate::abi::*;
use crate::double::messages::sys::pieces;
use crate::double::sys::{number, progress};
use crate::double::world::{Entry, Way, World, world};

/// Returns the memory of an endpoint that an address and a key designate. The check happens when the operation is posted.
pub(in crate::double) fn reached(
    world: &World,
    to: usize,
    (address, len, key): (u64, usize, u64),
    rights: u64,
) -> Option<usize> {
    let mode = world.manners.mr_mode;
    let key = if mode & FI_MR_RAW != 0 { world.mapped.get(&key)?.1 } else { key };
    let memory = world.memory.get(&key).filter(|memory| {
        memory.access & rights == rights && (mode & FI_MR_ENDPOINT == 0 || memory.bound == Some(to))
    })?;
    // With FI_MR_VIRT_ADDR the address is a virtual address, without it an offset.
    let start = if mode & FI_MR_VIRT_ADDR != 0 { memory.base } else { 0 };
    let offset = (address as usize).checked_sub(start)?;
    (offset + len <= memory.len).then_some(memory.base + offset)
}

fn transfer(ep: *mut fid_ep, message: *const fi_msg_rma, flags: u64, put: bool) -> isize {
    let from = number(ep) as usize;
    world(|world| {
        // SAFETY: both records are filled.
        let (message, there) = unsafe { (&*message, &*(*message).rma_iov) };
        assert!(!put || flags & FI_DELIVERY_COMPLETE != 0, "a put completes at its target");
        let (to, context) = (message.addr as usize, message.context.expose_provenance());
        if world.refuses(to) || !world.ends.get(to).is_some_and(|end| end.open) {
            return -(FI_EAGAIN as isize);
        }
        if let Some(error) = world.manners.refuse_transfer.take() {
            return -(error as isize);
        }
        let local = pieces(world, message.msg_iov, message.desc, message.iov_count);
        let right = if put { FI_REMOTE_WRITE } else { FI_REMOTE_READ };
        let remote = reached(world, to, (there.addr, there.len, there.key), right);
        let error = world.manners.fail_transfer.take().or(remote.is_none().then_some(libc::EACCES));
        match (error, remote) {
            (None, Some(remote)) => {
                let lies = put && world.manners.lies;
                if lies {
                    world.complete(from, Entry { context, flags: 0, at: 0, len: 0, error: 0 });
                }
                let context = (!lies).then_some(context);
                world.ends[to].ways.push_back(Way {
                    put,
                    atomic: None,
                    local,
                    remote,
                    from,
                    context,
                    key: there.key,
                });
                if !world.manners.manual {
                    progress(world, to);
                }
            }
            (error, _) => {
                let error = error.unwrap_or(libc::EIO);
                world.complete(from, Entry { context, flags: 0, at: 0, len: 0, error });
            }
        }
        0
    })
}

pub(in crate::double) unsafe extern "C" fn writemsg(
    ep: *mut fid_ep,
    message: *const fi_msg_rma,
    flags: u64,
) -> isize {
    transfer(ep, message, flags, true)
}

pub(in crate::double) unsafe extern "C" fn readmsg(
    ep: *mut fid_ep,
    message: *const fi_msg_rma,
    flags: u64,
) -> isize {
    transfer(ep, message, flags, false)
}
