//! Puts and gets, and the posting and completion of atomics.

use super::Engine;
use super::channels::{Imported, Lost, RemoteKey};
use super::ops::{Transfer, Work};
use super::sending::share;
use crate::abi::{FI_EAGAIN, FI_ENOKEY};
use crate::atomics;
use crate::keys::PackedKey;
use crate::memory::{self, Loan};
use crate::registered::sys::Mapped;
use crate::sys::{Ep, Remote};
use core::ffi::{c_int, c_void};
use std::rc::Rc;
use tieline_plugin_api::{Failure, Posted, Posting, RmaOp, Status, access, op_flags};

/// The target of a transfer.
pub(super) struct Target {
    at: usize,
    token: u64,
    peer: usize,
    address: u64,
    key: u64,
    generation: u64,
    connected: bool,
    /// The mapping of the key, which this field keeps.
    mapped: Option<Rc<Imported>>,
}

/// The resources that a transfer keeps until it completes; see `Transfer`.
pub(super) struct Held {
    pub(super) slot: Option<u32>,
    pub(super) back: Vec<(*mut u8, usize)>,
    pub(super) value: usize,
    pub(super) silent: bool,
    pub(super) loans: Vec<Loan>,
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

    /// Returns the maximum number of bytes of one transfer.
    pub(crate) fn longest(&self) -> usize {
        super::longest_transfer(&self.registry.domain.info)
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
    pub(super) fn target(
        &self,
        at: usize,
        key: &RemoteKey,
        right: u64,
        offset: u64,
        len: usize,
    ) -> Result<Target, Status> {
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
        let remote = imported.key.of(channel.interface).ok_or(Status::Declined)?;
        let (token, peer) = (channel.token, channel.peer);
        let (generation, connected) = (imported.key.generation, channel.remote.is_some());
        let mapped = imported.mapped.as_ref().map(|_| key.0.clone());
        let key = imported.mapped.as_ref().map_or(remote.number, Mapped::key);
        Ok(Target { at, token, peer, address, key, generation, connected, mapped })
    }

    /// Checks whether one more transfer may be posted. Transfers of closed endpoints count against their peer.
    pub(super) fn admits(&mut self, target: &Target) -> Result<(), Status> {
        let most = self.most_transfers();
        let full = self.peers.get(target.peer).is_some_and(|peer| peer.transfers >= share(most));
        let busy = !target.connected || full || self.transfers >= most;
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
        if op.len > self.longest() {
            return Err(Status::TooLarge);
        }
        if op.iov.len() > super::most_pieces(&self.registry.domain.info) {
            return Err(Status::Invalid);
        }
        let target = self.target(at, key, right, op.offset, op.len)?;
        if op.len == 0 {
            // Not every provider completes a transfer of zero bytes.
            return Ok(Posting::Done);
        }
        self.admits(&target)?;
        if op.len <= self.settings.eager {
            return self.short_transfer(&target, put, op);
        }
        let (own, mut loans) = (self.inbox.number, Vec::new());
        let local = memory::pieces(&self.lender, op.iov, own, !put, &mut loans)?;
        let held = Held { slot: None, back: Vec::new(), value: 0, silent: false, loans };
        self.begin_transfer(&target, op.cookie, held, |ep, to, context| {
            ep.transfer(put, &local, to, context)
        })
    }

    /// Posts a short transfer from a slot: it needs no registration and does not delay the closing of its endpoint.
    fn short_transfer(&mut self, target: &Target, put: bool, op: &RmaOp<'_>) -> Posted {
        let slot = self.slots.take()?;
        // An empty piece may have an invalid address.
        let pieces = op.iov.iter().filter(|iov| iov.len > 0).map(|iov| (iov.base, iov.len));
        let mut back = Vec::new();
        match put {
            true => memory::sys::copy(pieces, self.slots.bytes_mut(slot, op.len), false),
            false => back.extend(pieces),
        }
        let local = self.slots.local(slot, op.len);
        // A put that completes locally has completed when the call returns; no completion is reported (`max_short_put`).
        let named = op_flags::REMOTE_COMPLETION | op_flags::MORE;
        let silent = put && op.iov.len() == 1 && op.flags & named == 0;
        let held = Held { slot: Some(slot), back, value: 0, silent, loans: Vec::new() };
        let posted = self.begin_transfer(target, op.cookie, held, |ep, to, context| {
            ep.transfer(put, &[local], to, context)
        });
        if silent { posted.map(|_| Posting::Done) } else { posted }
    }

    /// Posts a transfer, and keeps its resources until it completes.
    pub(super) fn begin_transfer(
        &mut self,
        target: &Target,
        cookie: u64,
        held: Held,
        post: impl FnOnce(&Ep, Remote, *mut c_void) -> Result<(), c_int>,
    ) -> Posted {
        let Target { at, token, peer, address, key, generation, .. } = *target;
        let Held { slot, back, value, silent, loans } = held;
        let Some(number) = self.outbound[at].as_mut().map(super::Outbound::began) else {
            return Err(Status::Closed);
        };
        let (index, context) = self.ops.begin(Work::Transfer(Transfer {
            channel: at as u32,
            token,
            number,
            generation,
            cookie,
            peer,
            slot,
            back,
            value,
            silent,
            _loans: loans,
            _mapped: target.mapped.clone(),
        }));
        let to = self.peers.get(peer).map_or(u64::MAX, |peer| peer.number);
        let posted = post(&self.ep, Remote { peer: to, address, key }, context);
        let Err(code) = posted else {
            self.transfers += 1;
            if let Some(peer) = self.peers.get(peer) {
                peer.transfers += 1;
                peer.refused = None;
            }
            return Ok(Posting::Pending);
        };
        let _ = self.ops.end(index);
        slot.into_iter().for_each(|slot| self.slots.give(slot));
        if let Some(channel) = self.outbound[at].as_mut() {
            channel.not_begun();
        }
        if code == FI_EAGAIN {
            self.starving = true;
            self.refused(peer);
            let failed = self.outbound[at].as_ref().and_then(|channel| channel.failed);
            return Err(failed.unwrap_or(Status::Again));
        }
        if self.ends_connection(code) || code == libc::ENOENT {
            let error = std::io::Error::from_raw_os_error(code);
            let text = format!("libfabric cannot reach this peer: {error}");
            self.fail_peer(peer, &Failure::new(Status::PeerFailed, text));
            return Err(Status::PeerFailed);
        }
        Err(self.status_of(code))
    }

    /// Removes a transfer from the counters.
    pub(super) fn one_less(&mut self, transfer: &Transfer) {
        // A channel stays until its transfers have completed.
        let channel = self.outbound[transfer.channel as usize].as_ref();
        let is_open = channel.is_none_or(|channel| channel.token != transfer.token || channel.open);
        *(if is_open { &mut self.transfers } else { &mut self.orphans }) -= 1;
        if let Some(peer) = self.peers.get(transfer.peer) {
            peer.transfers -= 1;
        }
    }

    /// Handles the completion of a transfer, whose memory the library has released.
    pub(super) fn transferred(&mut self, transfer: Transfer, result: Result<(), (c_int, String)>) {
        self.one_less(&transfer);
        let (at, peer) = (transfer.channel as usize, transfer.peer);
        let is_on = |channel: &&super::Outbound| channel.token == transfer.token;
        let open = self.outbound[at].as_ref().filter(is_on).is_some_and(|channel| channel.open);
        let mut value = 0;
        if let Some(slot) = transfer.slot {
            if transfer.value > 0 {
                let bytes = self.slots.bytes_mut(slot, atomics::PARTS);
                value = atomics::value(&bytes[atomics::RESULT..][..transfer.value]);
            }
            if open && result.is_ok() && !transfer.back.is_empty() {
                let len = transfer.back.iter().map(|piece| piece.1).sum();
                let pieces = transfer.back.iter().copied();
                memory::sys::copy(pieces, self.slots.bytes_mut(slot, len), true);
            }
            self.slots.give(slot);
        }
        let Some(channel) =
            self.outbound[at].as_mut().filter(|channel| channel.token == transfer.token)
        else {
            return;
        };
        channel.ended(transfer.number);
        let (failed, revoking) = (channel.failed, !channel.revoking.is_empty());
        let lost = match &result {
            Err((errno, words)) if self.ends_connection(*errno) && failed.is_none() => {
                let text = format!("the connection ended: {words}");
                Some(Failure::new(Status::PeerFailed, text))
            }
            _ => None,
        };
        if open {
            match &result {
                Ok(()) if transfer.silent => {}
                Ok(()) => self.completed(transfer.cookie, Ok(value), ""),
                Err((errno, words)) => {
                    let status = failed.unwrap_or(self.status_of(*errno));
                    match self.outbound[at].as_mut().filter(|_| transfer.silent) {
                        Some(channel) => {
                            let (errno, words) = (*errno, words.clone());
                            channel.lose(transfer.number, Lost { status, errno, words });
                        }
                        None => self.completed(transfer.cookie, Err((status, *errno)), words),
                    }
                }
            }
        }
        drop(transfer);
        if let Some(failure) = lost {
            self.fail_peer(peer, &failure);
        }
        if revoking {
            self.answer_revokes(at);
        }
        self.settle(at);
    }
}
