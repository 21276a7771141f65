//! Puts and gets, and the posting and completion of atomics.

use super::Engine;
use super::channels::{Imported, Lost, Outbound, RemoteKey};
use super::limits::Limits;
use super::ops::{Kept, Transfer, Work};
use super::sending::completion;
use crate::abi::{FI_EAGAIN, FI_ENOKEY};
use crate::atomics;
use crate::keys::PackedKey;
use crate::memory;
use crate::registered::sys::Mapped;
use crate::sys::{Ep, Remote};
use core::ffi::{c_int, c_void};
use std::rc::Rc;
use tieline_plugin_api::{Events, Failure, Posted, Posting, RmaOp, Status, access, op_flags};

/// The target of a transfer.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    at: usize,
    peer: usize,
    address: u64,
    key: u64,
    connected: bool,
    imported: &'a Rc<Imported>,
}

/// What a transfer keeps until it completes, and how it completes; see `Transfer`.
#[derive(Default)]
pub(super) struct Held {
    pub(super) slot: Option<u32>,
    pub(super) value: u8,
    pub(super) silent: bool,
    pub(super) kept: Option<Box<Kept>>,
}

/// Checks whether an error means that the connection is lost, and not only that one operation failed.
fn ends_connection(errno: c_int) -> bool {
    matches!(
        errno,
        libc::EPIPE
            | libc::ENETUNREACH
            | libc::ECONNABORTED
            | libc::ECONNRESET
            | libc::ENOTCONN
            | libc::ESHUTDOWN
            | libc::ETIMEDOUT
            | libc::ECONNREFUSED
            | libc::EHOSTDOWN
            | libc::EHOSTUNREACH
            | libc::ECANCELED
    )
}

impl Engine {
    /// Checks whether an error of this provider ends the connection. `sockets` reports the death of a peer with EIO. Others report
    /// EIO for any error that has no better code (cxi, EFA; source: their tables); with these EIO fails one operation only.
    fn ends_connection(&self, errno: c_int) -> bool {
        ends_connection(errno) || errno == libc::EIO && self.address.provider == "sockets"
    }

    fn status_of(&self, errno: c_int) -> Status {
        match errno {
            libc::EACCES | libc::EPERM | libc::EKEYREJECTED | FI_ENOKEY => Status::KeyRejected,
            libc::ENOMEM => Status::NoMemory,
            libc::ENOSYS | libc::EOPNOTSUPP => Status::Unsupported,
            errno if self.ends_connection(errno) => Status::PeerFailed,
            _ => Status::Io,
        }
    }

    pub(crate) fn import_key(&mut self, at: usize, bytes: &[u8]) -> Result<RemoteKey, Failure> {
        let Some(channel) = self.outbound.get_mut(at).and_then(Option::as_mut) else {
            return Err(Status::Closed.into());
        };
        let key = PackedKey::unpack(bytes, &channel.seal)?;
        let raw = key.of(channel.interface).and_then(|key| Some((key.number, key.raw.as_deref()?)));
        let mapped = raw.map(|(base, raw)| Mapped::new(&self.registry.domain, base, raw));
        let mapped = mapped.transpose().map_err(|errno| {
            let error = std::io::Error::from_raw_os_error(errno);
            let status = if errno == libc::ENOMEM { Status::NoMemory } else { Status::KeyRejected };
            Failure::new(status, format!("libfabric does not map the remote key: {error}"))
        })?;
        Ok(channel.import(key, mapped))
    }

    /// Resolves the target of a transfer, if the channel and the key permit it.
    #[inline]
    pub(super) fn target<'a>(
        &self,
        at: usize,
        key: &'a RemoteKey,
        right: u64,
        offset: u64,
        len: usize,
    ) -> Result<Target<'a>, Status> {
        let Some(channel) = self.outbound.get(at).and_then(Option::as_ref) else {
            return Err(Status::Closed);
        };
        if let Some(status) = channel.failed {
            return Err(status);
        }
        let imported = &key.0;
        if imported.revoked.get() {
            return Err(Status::KeyRejected);
        }
        let address = imported.key.grant.admit(right, offset, len)?;
        // The key is older than the target interface. The core sends messages instead.
        let number = imported.number.ok_or(Status::Declined)?;
        let (peer, connected) = (channel.peer, channel.remote.is_some());
        Ok(Target { at, peer, address, key: number, connected, imported })
    }

    /// Checks whether one more transfer may be posted. Transfers of closed endpoints count against their peer.
    #[inline]
    pub(super) fn admits(&mut self, target: &Target<'_>) -> Result<(), Status> {
        let Limits { operations, of_peer, .. } = self.limits;
        let full = self.peers.get(target.peer).is_some_and(|peer| peer.transfers >= of_peer);
        let busy = !target.connected || full || self.transfers >= operations;
        if busy { Err(Status::Again) } else { Ok(()) }
    }

    pub(crate) fn transfer(
        &mut self,
        at: usize,
        put: bool,
        key: &RemoteKey,
        op: &RmaOp<'_>,
    ) -> Posted {
        let right = if put { access::REMOTE_WRITE } else { access::REMOTE_READ };
        if op.len > self.limits.bytes {
            return Err(Status::TooLarge);
        }
        if op.iov.len() > self.limits.pieces {
            return Err(Status::Invalid);
        }
        let target = self.target(at, key, right, op.offset, op.len)?;
        if op.len == 0 {
            // Not every provider completes a transfer of zero bytes.
            return Ok(Posting::Done);
        }
        self.admits(&target)?;
        match op.len <= self.settings.eager {
            true => self.short_transfer(target, put, op),
            false => self.direct_transfer(target, put, op),
        }
    }

    /// Posts a transfer from or to the application's memory.
    fn direct_transfer(&mut self, target: Target<'_>, put: bool, op: &RmaOp<'_>) -> Posted {
        let (own, mut loans) = (self.inbox.number, Vec::new());
        let local = memory::pieces(&self.lender, op.iov, own, !put, &mut loans)?;
        let kept = (!loans.is_empty()).then(|| Box::new(Kept { _loans: loans, ..Kept::default() }));
        let held = Held { kept, ..Held::default() };
        self.begin_transfer(target, op.cookie, held, |ep, to, context| {
            ep.transfer(put, &local, to, context)
        })
    }

    /// Posts a short transfer from a slot: it needs no registration and does not delay the closing of its endpoint.
    #[inline(always)]
    fn short_transfer(&mut self, target: Target<'_>, put: bool, op: &RmaOp<'_>) -> Posted {
        let slot = self.slots.take()?;
        let (bytes, local) = self.slots.room(slot, op.len);
        // An empty piece may have an invalid address.
        let pieces = op.iov.iter().filter(|iov| iov.len > 0).map(|iov| (iov.base, iov.len));
        let kept = match put {
            true => {
                memory::sys::copy(pieces, bytes, false);
                None
            }
            false => Some(Box::new(Kept { back: pieces.collect(), ..Kept::default() })),
        };
        // A put that completes locally has completed when the call returns; no completion is reported (`max_short_put`).
        let named = op_flags::REMOTE_COMPLETION | op_flags::MORE;
        let silent = put && op.iov.len() == 1 && op.flags & named == 0;
        let held = Held { slot: Some(slot), value: 0, silent, kept };
        let posted = self.begin_transfer(target, op.cookie, held, |ep, to, context| {
            ep.transfer(put, &[local], to, context)
        });
        if silent { posted.map(|_| Posting::Done) } else { posted }
    }

    /// Posts a transfer, and keeps its resources until it completes.
    #[inline(always)]
    pub(super) fn begin_transfer(
        &mut self,
        target: Target<'_>,
        cookie: u64,
        held: Held,
        post: impl FnOnce(&Ep, Remote, *mut c_void) -> Result<(), c_int>,
    ) -> Posted {
        let Target { at, peer, address, key, imported, .. } = target;
        let Held { slot, value, silent, mut kept } = held;
        if imported.mapped.is_some() {
            kept.get_or_insert_default().mapped = Some(imported.clone());
        }
        let channel = self.outbound.get_mut(at).and_then(Option::as_mut);
        let (Some(channel), Some(there)) = (channel, self.peers.get(peer)) else {
            return Err(Status::Closed);
        };
        let (index, context) = self.ops.begin(Work::Transfer(Transfer {
            cookie,
            number: channel.posted,
            generation: imported.key.generation,
            channel: at as u32,
            slot,
            value,
            silent,
            kept,
        }));
        if let Err(code) = post(&self.ep, Remote { peer: there.number, address, key }, context) {
            return self.not_accepted(index, code);
        }
        channel.posted += 1;
        channel.under_way += 1;
        there.transfers += 1;
        there.refused = None;
        self.transfers += 1;
        Ok(Posting::Pending)
    }

    /// Takes back a transfer that the library has not accepted.
    #[cold]
    fn not_accepted(&mut self, index: u32, code: c_int) -> Posted {
        let Work::Transfer(transfer) = self.ops.end(index) else { return Err(Status::Invalid) };
        transfer.slot.into_iter().for_each(|slot| self.slots.give(slot));
        let channel = self.outbound[transfer.channel as usize].as_ref();
        let Some(peer) = channel.map(|channel| channel.peer) else { return Err(Status::Closed) };
        if code == FI_EAGAIN {
            self.starving = true;
            self.refused(peer);
            let channel = self.outbound[transfer.channel as usize].as_ref();
            return Err(channel.and_then(|channel| channel.failed).unwrap_or(Status::Again));
        }
        if self.ends_connection(code) || code == libc::ENOENT {
            let error = std::io::Error::from_raw_os_error(code);
            let text = format!("libfabric cannot reach this peer: {error}");
            self.fail_peer(peer, &Failure::new(Status::PeerFailed, text));
            return Err(Status::PeerFailed);
        }
        Err(self.status_of(code))
    }

    /// Removes a transfer from the counters; returns its channel.
    #[inline]
    pub(super) fn one_less(&mut self, transfer: &Transfer) -> Option<&mut Outbound> {
        let channel = self.outbound.get_mut(transfer.channel as usize)?.as_mut()?;
        // Transfers of closed endpoints count against their peer alone.
        self.transfers -= usize::from(channel.open);
        if let Some(peer) = self.peers.get(channel.peer) {
            peer.transfers -= 1;
        }
        channel.ended(transfer.number);
        Some(channel)
    }

    /// Handles the completion of a transfer, whose memory the library has released.
    #[inline]
    pub(super) fn transferred(&mut self, transfer: Transfer, events: &mut Events<'_>) {
        let Some(channel) = self.one_less(&transfer) else { return };
        let (open, waits) = (channel.open, channel.awaits_transfers());
        let mut value = 0;
        if let Some(slot) = transfer.slot {
            if transfer.value > 0 {
                let bytes = self.slots.bytes_mut(slot, atomics::PARTS);
                value = atomics::value(&bytes[atomics::RESULT..][..usize::from(transfer.value)]);
            }
            if let Some(kept) = transfer.kept.as_deref().filter(|_| open) {
                self.bring_back(slot, kept);
            }
            self.slots.give(slot);
        }
        // Most transfers keep nothing, and need no call that drops it.
        if let Some(kept) = transfer.kept {
            drop(kept);
        }
        if open && !transfer.silent {
            self.tell(completion(transfer.cookie, Ok(value)), events);
        }
        if waits {
            self.settle_transfers(transfer.channel as usize);
        }
    }

    /// Copies the bytes of a get to the application's memory.
    fn bring_back(&mut self, slot: u32, kept: &Kept) {
        let len = kept.back.iter().map(|piece| piece.1).sum();
        let bytes = self.slots.bytes_mut(slot, len);
        memory::sys::copy(kept.back.iter().copied(), bytes, true);
    }

    /// Handles the failure of a transfer, whose memory the library has released.
    #[cold]
    pub(super) fn transfer_failed(&mut self, transfer: Transfer, errno: c_int, words: String) {
        let ends = self.ends_connection(errno);
        let Some(channel) = self.one_less(&transfer) else { return };
        let (open, failed, peer) = (channel.open, channel.failed, channel.peer);
        let (at, number) = (transfer.channel as usize, transfer.number);
        transfer.slot.into_iter().for_each(|slot| self.slots.give(slot));
        let lost = (ends && failed.is_none()).then(|| {
            let text = format!("the connection ended: {words}");
            Failure::new(Status::PeerFailed, text)
        });
        if open {
            let status = failed.unwrap_or(self.status_of(errno));
            match self.outbound[at].as_mut().filter(|_| transfer.silent) {
                Some(channel) => channel.lose(number, Lost { status, errno, words }),
                None => self.completed(transfer.cookie, Err((status, errno)), &words),
            }
        }
        drop(transfer);
        if let Some(failure) = lost {
            self.fail_peer(peer, &failure);
        }
        self.settle_transfers(at);
    }

    /// Handles the consequences of the end of a transfer for its channel.
    #[cold]
    fn settle_transfers(&mut self, at: usize) {
        if self.outbound[at].as_ref().is_some_and(|channel| !channel.revoking.is_empty()) {
            self.answer_revokes(at);
        }
        self.settle(at);
    }
}
