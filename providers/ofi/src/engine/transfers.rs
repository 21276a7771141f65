//! Puts and gets.

use super::Engine;
use super::channels::RemoteKey;
use super::ops::{Transfer, Work};
use super::sending::share;
use crate::abi::{FI_EAGAIN, FI_ENOKEY};
use crate::keys::PackedKey;
use crate::memory;
use crate::sys::Remote;
use core::ffi::c_int;
use tieline_plugin_api::{Failure, Posted, Posting, RmaOp, Status, access};

/// Whether an error says that a connection is gone, and not that one operation was wrong.
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
    /// With EIO `sockets` says that a peer has died; others say so of whatever they have no word for (cxi, EFA: read in their
    /// tables), which is one operation's end.
    fn ends_connection(&self, errno: c_int) -> bool {
        ends_connection(errno) || errno == libc::EIO && self.address.provider == "sockets"
    }

    fn status_of(&self, errno: c_int) -> Status {
        match errno {
            libc::EACCES | libc::EPERM | FI_ENOKEY => Status::KeyRejected,
            libc::ENOMEM => Status::NoMemory,
            errno if self.ends_connection(errno) => Status::PeerFailed,
            _ => Status::Io,
        }
    }

    /// Bytes of one transfer at most.
    pub(crate) fn longest(&self) -> usize {
        super::longest_transfer(&self.registry.domain.info)
    }

    pub(crate) fn import_key(&mut self, at: usize, bytes: &[u8]) -> Result<RemoteKey, Failure> {
        let Some(channel) = self.outbound.get_mut(at).and_then(Option::as_mut) else {
            return Err(Status::Closed.into());
        };
        let key = PackedKey::unpack(bytes, &channel.seal)?;
        Ok(channel.import(key))
    }

    pub(crate) fn transfer(
        &mut self,
        at: usize,
        put: bool,
        key: &RemoteKey,
        op: &RmaOp<'_>,
    ) -> Posted {
        let Some(channel) = self.outbound.get(at).and_then(Option::as_ref) else {
            return Err(Status::Closed);
        };
        if let Some(status) = channel.failed {
            return Err(status);
        }
        let (token, interface, peer) = (channel.token, channel.interface, channel.peer);
        let connected = channel.remote.is_some();
        if op.len > self.longest() {
            return Err(Status::TooLarge);
        }
        if op.iov.len() > super::most_pieces(&self.registry.domain.info) {
            return Err(Status::Invalid);
        }
        let imported = &key.0;
        if imported.revoked.get() {
            return Err(Status::KeyRejected);
        }
        let right = if put { access::REMOTE_WRITE } else { access::REMOTE_READ };
        let address = imported.key.admit(right, op.offset, op.len)?;
        // The key is older than the interface that is to be reached by it: messages go there.
        let remote = imported.key.of(interface).ok_or(Status::Declined)?;
        if op.len == 0 {
            // Not every provider completes one of no bytes.
            return Ok(Posting::Done);
        }
        let most = self.most_transfers();
        let full = self.peers.get(peer).is_some_and(|peer| peer.transfers >= share(most));
        if !connected || full || self.transfers >= most {
            return Err(Status::Again);
        }
        let (mut loans, mut back) = (Vec::new(), Vec::new());
        // What is short goes through a slot of ours: it needs no registration, and holds nobody up who closes its endpoint.
        let (slot, local) = match op.len <= self.settings.eager {
            true => {
                let slot = self.slots.take()?;
                let pieces: Vec<(*mut u8, usize)> =
                    op.iov.iter().map(|iov| (iov.base, iov.len)).collect();
                let pieces: Vec<_> = pieces.into_iter().filter(|piece| piece.1 > 0).collect();
                match put {
                    true => memory::sys::copy(&pieces, self.slots.bytes_mut(slot, op.len), false),
                    false => back = pieces,
                }
                (Some(slot), vec![self.slots.local(slot, op.len)])
            }
            false => {
                let own = self.inbox.number;
                (None, memory::pieces(&self.lender, op.iov, own, !put, &mut loans)?)
            }
        };
        let Some(number) = self.outbound[at].as_mut().map(super::Outbound::began) else {
            return Err(Status::Closed);
        };
        let (index, context) = self.ops.begin(Work::Transfer(Transfer {
            channel: at as u32,
            token,
            number,
            generation: imported.key.generation,
            cookie: op.cookie,
            peer,
            slot,
            back,
            _loans: loans,
        }));
        let to = self.peers.get(peer).map_or(u64::MAX, |peer| peer.number);
        let posted =
            self.ep.transfer(put, &local, Remote { peer: to, address, key: remote }, context);
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
        }
        Err(self.status_of(code))
    }

    /// A transfer has ended, and the library is done with its memory.
    pub(super) fn transferred(&mut self, transfer: Transfer, result: Result<(), (c_int, String)>) {
        self.transfers -= 1;
        let (at, peer) = (transfer.channel as usize, transfer.peer);
        if let Some(peer) = self.peers.get(peer) {
            peer.transfers -= 1;
        }
        let is_on = |channel: &&super::Outbound| channel.token == transfer.token;
        let open = self.outbound[at].as_ref().filter(is_on).is_some_and(|channel| channel.open);
        if let Some(slot) = transfer.slot {
            if open && result.is_ok() && !transfer.back.is_empty() {
                let len = transfer.back.iter().map(|piece| piece.1).sum();
                memory::sys::copy(&transfer.back, self.slots.bytes_mut(slot, len), true);
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
                Ok(()) => self.completed(transfer.cookie, Ok(()), ""),
                Err((errno, words)) => {
                    let status = failed.unwrap_or(self.status_of(*errno));
                    self.completed(transfer.cookie, Err((status, *errno)), words);
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
