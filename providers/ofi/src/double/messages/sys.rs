//! Messages of the simulated library.

#![allow(unsafe_code)]

use crate::abi::*;
use crate::double::sys::{copy, number};
use crate::double::world::{Entry, Posted, World, world};
use core::ffi::{c_int, c_void};

/// The error for a message that is longer than its buffer (fi_errno.h).
const FI_ETRUNC: c_int = 265;

/// Returns the pieces of a message or transfer; each has a descriptor if one is required.
pub(in crate::double) fn pieces(
    world: &mut World,
    iov: *const libc::iovec,
    desc: *mut *mut c_void,
    count: usize,
) -> Vec<(usize, usize)> {
    let needs = world.manners.mr_mode & FI_MR_LOCAL != 0;
    (0..count)
        .map(|n| {
            // SAFETY: the arrays have the stated number of pieces and descriptors.
            let (piece, desc) = unsafe { (&*iov.add(n), *desc.add(n)) };
            let (base, len) = (piece.iov_base.expose_provenance(), piece.iov_len);
            let inside = world.memory.get(&(desc.addr() as u64)).is_some_and(|memory| {
                base >= memory.base && base + len <= memory.base + memory.len
            });
            if needs && !inside {
                world.complaints.push(format!("{len} bytes at {base:#x} without their descriptor"));
            }
            (base, len)
        })
        .collect()
}

/// Copies the messages that have arrived into the posted buffers.
pub(in crate::double) fn deliver(world: &mut World, at: usize) {
    let end = &mut world.ends[at];
    let mut came = Vec::new();
    while let (Some(message), Some(buffer)) = (end.early.front(), end.buffers.front_mut()) {
        let (context, left) = (buffer.context, buffer.len - buffer.used);
        if message.len() > left {
            // The message consumes the buffer, whose release is not reported (rxm, sockets; source: rxm_cq.c, sock_progress.c).
            let error = FI_ETRUNC;
            came.push(Entry { context, flags: 0, at: 0, len: 0, error });
            let _ = (end.early.pop_front(), end.buffers.pop_front());
            continue;
        }
        let place = buffer.base + buffer.used;
        copy(message.as_ptr().expose_provenance(), place, message.len());
        buffer.used += message.len();
        let (many, rest) = (buffer.many, buffer.len - buffer.used);
        let full = !many || rest < end.least_room;
        let apart = world.manners.separate_release;
        let flags = FI_RECV | if full && many && !apart { FI_MULTI_RECV } else { 0 };
        // The position is reported only for buffers for many messages (fi_cq(3)).
        let at = if many { place } else { 0 };
        came.push(Entry { context, flags, at, len: message.len(), error: 0 });
        if full && many && apart {
            let at = place + message.len();
            came.push(Entry { context, flags: FI_MULTI_RECV, at, len: rest, error: 0 });
        }
        let _ = end.early.pop_front();
        if full {
            let _ = end.buffers.pop_front();
        }
    }
    let twice = if world.manners.doubles { 2 } else { 1 };
    end.entries.extend(came.into_iter().flat_map(|entry| core::iter::repeat_n(entry, twice)));
    world.check_room(at);
}

/// Delivers a packet to an endpoint as if a peer had sent it.
pub(crate) fn inject(to: usize, packet: &[u8]) {
    world(|world| {
        world.ends[to].early.push_back(packet.to_vec());
        deliver(world, to);
    });
}

pub(in crate::double) unsafe extern "C" fn recvmsg(
    ep: *mut fid_ep,
    message: *const fi_msg,
    flags: u64,
) -> isize {
    let many = flags & FI_MULTI_RECV != 0;
    let at = number(ep) as usize;
    world(|world| {
        if world.manners.has_notices && !world.ends[at].has_notices {
            world.complaints.push("an endpoint without a queue of events".into());
        }
        if world.manners.receives != 0 && world.ends[at].buffers.len() >= world.manners.receives {
            world.complaints.push("more receives were posted than are taken".into());
            return -(FI_EAGAIN as isize);
        }
        // SAFETY: the record is filled.
        let message = unsafe { &*message };
        let pieces = pieces(world, message.msg_iov, message.desc, message.iov_count);
        let (base, len) = pieces[0];
        let context = message.context.expose_provenance();
        let layered = world.manners.provider.to_bytes().ends_with(b"ofi_rxm");
        let twice = |other: &Posted| base < other.base + other.len && other.base < base + len;
        if layered && many || world.ends[at].buffers.iter().any(twice) {
            world
                .complaints
                .push("a buffer was posted that this library does not know the end of".into());
        }
        world.ends[at].buffers.push_back(Posted { base, len, used: 0, context, many });
        deliver(world, at);
        0
    })
}

pub(in crate::double) unsafe extern "C" fn sendmsg(
    ep: *mut fid_ep,
    message: *const fi_msg,
    _: u64,
) -> isize {
    let from = number(ep) as usize;
    world(|world| {
        // SAFETY: the record is filled.
        let message = unsafe { &*message };
        let (to, context) = (message.addr as usize, message.context.expose_provenance());
        if let Some(error) = world.manners.refuse_send.take() {
            return -(error as isize);
        }
        // No receiver: EAGAIN for ever, and no event (tcp;ofi_rxm, observed).
        if world.refuses(to) || !world.ends.get(to).is_some_and(|end| end.open) {
            return -(FI_EAGAIN as isize);
        }
        let pieces = pieces(world, message.msg_iov, message.desc, message.iov_count);
        let error = world.manners.fail_send.take().unwrap_or(0);
        if error == 0 && !core::mem::take(&mut world.manners.lose_send) {
            let mut bytes = vec![0; pieces.iter().map(|piece| piece.1).sum()];
            let mut at = bytes.as_mut_ptr().expose_provenance();
            for (base, len) in pieces {
                copy(base, at, len);
                at += len;
            }
            if let (Some(status), [3, ..]) = (world.manners.refusals_say, &bytes[..]) {
                bytes[20..24].copy_from_slice(&status.to_le_bytes());
            }
            if core::mem::take(&mut world.manners.swap_sends) {
                world.aside = Some(bytes);
            } else {
                world.ends[to].early.push_back(bytes);
                let behind = world.aside.take();
                world.ends[to].early.extend(behind);
                deliver(world, to);
            }
        }
        world.complete(from, Entry { context, flags: 0, at: 0, len: 0, error });
        0
    })
}
