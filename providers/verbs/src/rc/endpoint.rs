//! The endpoint of `rc`: data calls, and the calls that connect it.

use super::connection::{Connection, HOLD, Packed, Phase};
use super::credits::Grant;
use super::queue::Ends;
use super::state::{State, borrowed};
use super::wire::{HEADER_LEN, Header, Kind};
use crate::abi::*;
use crate::buffers::sys::{Room, gather};
use crate::keys::PackedKey;
use crate::memory::{local, registered, untouchable};
use crate::queue_pair::Work;
use crate::shared::INLINE_MOST;
use std::cell::RefCell;
use std::rc::Rc;
use tieline_plugin_api::abi::{Atomic, Iov};
use tieline_plugin_api::{
    Failure, Packer, Posted, Posting, RmaOp, Status, access, atomic_op, op_flags,
};

/// A reliable connection to one peer.
pub struct RcEndpoint {
    /// The state shared with the interface; see [`super::interface::RcInterface`].
    state: Rc<RefCell<State>>,
    slot: u32,
}

impl Drop for RcEndpoint {
    fn drop(&mut self) {
        if let Some(mut state) = State::if_free(&self.state) {
            state.close(self.slot);
        }
    }
}

/// Returns the connection of a slot, without borrowing the rest of the state.
macro_rules! connection {
    ($state:ident, $slot:expr) => {
        match $state.connections.get_mut($slot as usize).and_then(Option::as_deref_mut) {
            Some(connection) => connection,
            None => return Err(Status::Closed.into()),
        }
    };
}

mod list;
mod parts;
mod short_put;

use short_put::is_short;

impl RcEndpoint {
    pub(crate) fn new(state: Rc<RefCell<State>>, slot: u32) -> RcEndpoint {
        RcEndpoint { state, slot }
    }

    pub(crate) fn address(&self) -> Vec<u8> {
        let state = self.state.borrow();
        let connection = state.connections.get(self.slot as usize).and_then(Option::as_ref);
        connection.map(|connection| connection.own.pack()).unwrap_or_default()
    }

    pub(crate) fn connect(&self, address: &[u8]) -> Result<(), Failure> {
        self.state.borrow_mut().connect(self.slot, address)
    }

    #[inline]
    pub(crate) fn am_short(&self, id: u32, header: u64, payload: &[u8]) -> Posted {
        let state = &mut *State::if_free(&self.state).ok_or(Status::Again)?;
        let connection = connection!(state, self.slot);
        connection.may_send()?;
        let (head, credits) = head(connection, id, header);
        if HEADER_LEN + payload.len() <= connection.inline() {
            if state.domain.inlines_one_piece {
                return self.short_in_one_piece(state, &head, payload, credits);
            }
            let pieces = [borrowed(&head), borrowed(payload)];
            let pieces = if payload.is_empty() { &pieces[..1] } else { &pieces[..] };
            let work = connection.to_peer();
            match connection.post(work, pieces, Ends::default(), IBV_SEND_INLINE) {
                Ok(()) => sent(connection, credits),
                Err(refused) => return Err(state.refused(self.slot, refused)),
            }
            return Ok(Posting::Done);
        }
        if payload.len() > state.domain.settings.segment {
            return Err(Status::TooLarge);
        }
        let buffer = state.sends.take()?;
        let bytes = state.sends.bytes_mut(buffer);
        bytes[..HEADER_LEN].copy_from_slice(&head);
        bytes[HEADER_LEN..HEADER_LEN + payload.len()].copy_from_slice(payload);
        self.send_buffer(state, buffer, HEADER_LEN + payload.len(), credits)
    }

    /// Sends a message inline, with header and payload assembled in one piece.
    #[cold]
    fn short_in_one_piece(
        &self,
        state: &mut State,
        head: &[u8; HEADER_LEN],
        payload: &[u8],
        credits: Grant,
    ) -> Posted {
        let connection = connection!(state, self.slot);
        let mut whole = [0; INLINE_MOST];
        let len = HEADER_LEN + payload.len();
        whole[..HEADER_LEN].copy_from_slice(head);
        whole[HEADER_LEN..len].copy_from_slice(payload);
        let (work, piece) = (connection.to_peer(), [borrowed(&whole[..len])]);
        match connection.post(work, &piece, Ends::default(), IBV_SEND_INLINE) {
            Ok(()) => sent(connection, credits),
            Err(refused) => return Err(state.refused(self.slot, refused)),
        }
        Ok(Posting::Done)
    }

    /// Sends the first `len` bytes of a message buffer.
    fn send_buffer(&self, state: &mut State, buffer: u32, len: usize, credits: Grant) -> Posted {
        let connection = connection!(state, self.slot);
        let piece = state.sends.sge(buffer, len);
        let ends = Ends { buffer: Some(buffer), ..Ends::default() };
        let work = connection.to_peer();
        match connection.post(work, &[piece], ends, 0) {
            Ok(()) => sent(connection, credits),
            Err(refused) => return Err(state.refused(self.slot, refused)),
        }
        Ok(Posting::Done)
    }

    pub(crate) fn am_packed(
        &self,
        id: u32,
        header: u64,
        packer: Packer<'_>,
        max: usize,
    ) -> Result<usize, Status> {
        let (buffer, room) = {
            let state = &mut *self.state.borrow_mut();
            let connection = connection!(state, self.slot);
            connection.may_send()?;
            if max > state.domain.settings.segment {
                return Err(Status::TooLarge);
            }
            let buffer = state.sends.take()?;
            connection.packed = Packed::Packing;
            (buffer, Room::of(&mut state.sends, buffer, HEADER_LEN, max))
        };
        // No borrow is held while the application packs: the packer may post on other connections and make progress. No other send
        // of the application is posted on this connection meanwhile, so the queue entry stays reserved.
        let packed = room.pack(packer);
        let state = &mut *self.state.borrow_mut();
        let entry = state.connections.get_mut(self.slot as usize).and_then(Option::as_deref_mut);
        let Some(connection) = entry.filter(|c| c.packed == Packed::Packing) else {
            state.sends.give(buffer);
            return Err(self.ended(state));
        };
        connection.packed = Packed::Nothing;
        let len = match packed {
            Ok(len) => len,
            Err(status) => {
                state.sends.give(buffer);
                return Err(status);
            }
        };
        let (head, credits) = head(connection, id, header);
        state.sends.bytes_mut(buffer)[..HEADER_LEN].copy_from_slice(&head);
        sent(connection, credits);
        // If the device has no memory for the packed message, the post is retried until the connection ends.
        connection.packed = Packed::Message(buffer, HEADER_LEN + len);
        state.post_packed_of(self.slot)?;
        Ok(len)
    }

    /// Returns the status for a message whose connection ended while the message was packed.
    #[cold]
    fn ended(&self, state: &State) -> Status {
        let entry = state.connections.get(self.slot as usize).and_then(Option::as_deref);
        entry.and_then(|connection| connection.may_post().err()).unwrap_or(Status::Closed)
    }

    pub(crate) fn am_zcopy(&self, id: u32, header: u64, iov: &[Iov], cookie: u64) -> Posted {
        let state = &mut *self.state.borrow_mut();
        let len = sum(iov)?;
        if len > state.domain.settings.segment {
            return Err(Status::TooLarge);
        }
        if iov.iter().filter(|piece| piece.len > 0).count() > state.domain.max_iov {
            return Err(Status::Invalid);
        }
        let connection = connection!(state, self.slot);
        connection.may_send()?;
        let (head, credits) = head(connection, id, header);
        let inline = connection.inline();
        let copies = !iov.iter().any(untouchable);
        let buffer = state.sends.take()?;
        let bytes = state.sends.bytes_mut(buffer);
        bytes[..HEADER_LEN].copy_from_slice(&head);
        let mut pieces = core::mem::take(&mut state.pieces);
        pieces.clear();
        pieces.push(state.sends.sge(buffer, HEADER_LEN));
        let short = copies && len <= inline;
        let as_it_lies = !short && all_registered(iov, &mut pieces);
        if !as_it_lies && !copies {
            state.pieces = pieces;
            state.sends.give(buffer);
            return Err(Status::Invalid);
        }
        if !as_it_lies {
            // The message is short, or part of its memory is unregistered: one copy costs less than pinning pages.
            gather(iov, &mut state.sends.bytes_mut(buffer)[HEADER_LEN..HEADER_LEN + len]);
            state.pieces = pieces;
            return self.send_buffer(state, buffer, HEADER_LEN + len, credits);
        }
        let connection = connection!(state, self.slot);
        let ends =
            Ends { cookie: Some(cookie), buffer: Some(buffer), foreign: true, ..Ends::default() };
        let work = connection.to_peer();
        let posted = connection.post(work, &pieces, ends, 0);
        state.pieces = pieces;
        match posted {
            Ok(()) => sent(connection, credits),
            Err(refused) => return Err(state.refused(self.slot, refused)),
        }
        Ok(Posting::Pending)
    }

    #[inline(always)]
    pub(crate) fn put(&self, key: &PackedKey, op: &RmaOp<'_>) -> Posted {
        let state = &mut *self.state.borrow_mut();
        match op.iov {
            [piece] if is_short(state, op, piece) => self.put_short(state, key, op, piece),
            _ => self.put_long(state, key, op),
        }
    }

    #[inline(never)] // keeps this function out of the path for short puts
    fn put_long(&self, state: &mut State, key: &PackedKey, op: &RmaOp<'_>) -> Posted {
        let target = admit(state, key, op, access::REMOTE_WRITE)?;
        let connection = connection!(state, self.slot);
        connection.may_post()?;
        if op.len == 0 {
            return self.nothing(state);
        }
        self.write(state, Work::Write { address: target, rkey: key.rkey }, op)
    }

    /// Posts a write with notification. The write consumes a receive at the target, like a message.
    pub(crate) fn put_notify(&self, key: &PackedKey, op: &RmaOp<'_>, word: u32) -> Posted {
        let state = &mut *self.state.borrow_mut();
        let address = admit(state, key, op, access::REMOTE_WRITE)?;
        connection!(state, self.slot).may_send()?;
        let work = Work::WriteNotify { address, rkey: key.rkey, word };
        let posted = match op.len {
            0 => self.start(state, work, &[], ends(op.cookie, op.flags), hold(op.flags)),
            _ => self.write(state, work, op),
        };
        if posted.is_ok() {
            connection!(state, self.slot).credits.sent();
        }
        posted
    }

    /// Posts a write of at least one byte.
    #[inline(always)]
    fn write(&self, state: &mut State, work: Work<'_>, op: &RmaOp<'_>) -> Posted {
        let connection = connection!(state, self.slot);
        let mut ends = ends(op.cookie, op.flags);
        if let [piece] = op.iov {
            let hold = hold(op.flags);
            if op.len <= connection.inline() && !untouchable(piece) {
                // Without `HOLD` the device copies the data during the post, from any memory.
                ends.foreign = hold != 0;
                let flags = IBV_SEND_INLINE | hold;
                return self.start(state, work, &[local(piece, 0)], ends, flags);
            }
            if let Some(sge) = registered(piece, false) {
                ends.foreign = true;
                return self.start(state, work, &[sge], ends, hold);
            }
        }
        self.put_pieces(state, work, op, ends)
    }

    /// Posts a write from several pieces or from unregistered memory.
    fn put_pieces(
        &self,
        state: &mut State,
        work: Work<'_>,
        op: &RmaOp<'_>,
        mut ends: Ends,
    ) -> Posted {
        let inline = connection!(state, self.slot).inline();
        let mut pieces = core::mem::take(&mut state.pieces);
        pieces.clear();
        let mut flags = hold(op.flags);
        let copies = !op.iov.iter().any(untouchable);
        if op.len <= inline && copies && state.domain.inlines_one_piece {
            state.pieces = pieces;
            // The post is not held, because the device copies from this stack buffer during the post.
            let mut whole = [0; INLINE_MOST];
            gather(op.iov, &mut whole[..op.len]);
            return self.start(state, work, &[borrowed(&whole[..op.len])], ends, IBV_SEND_INLINE);
        } else if op.len <= inline && copies {
            pieces.extend(op.iov.iter().filter(|piece| piece.len > 0).map(|piece| local(piece, 0)));
            ends.foreign = flags != 0;
            flags |= IBV_SEND_INLINE;
        } else if all_registered(op.iov, &mut pieces) {
            ends.foreign = true;
        } else if op.len <= state.domain.settings.segment && copies {
            let Ok(buffer) = state.sends.take() else {
                state.pieces = pieces;
                return Err(Status::Again);
            };
            gather(op.iov, &mut state.sends.bytes_mut(buffer)[..op.len]);
            ends.buffer = Some(buffer);
            pieces.clear();
            pieces.push(state.sends.sge(buffer, op.len));
        } else {
            return self.start_lent(state, work, pieces, op, ends, false);
        }
        self.start_list(state, work, pieces, ends, flags)
    }

    pub(crate) fn get(&self, key: &PackedKey, op: &RmaOp<'_>) -> Posted {
        let state = &mut *self.state.borrow_mut();
        let target = admit(state, key, op, access::REMOTE_READ)?;
        connection!(state, self.slot).may_post()?;
        if op.len == 0 {
            return self.nothing(state);
        }
        let work = Work::Read { address: target, rkey: key.rkey };
        let ends = Ends { foreign: true, ..ends(op.cookie, op.flags) };
        if let [piece] = op.iov {
            if let Some(sge) = registered(piece, true) {
                return self.start(state, work, &[sge], ends, hold(op.flags));
            }
        }
        let mut pieces = core::mem::take(&mut state.pieces);
        pieces.clear();
        self.start_lent(state, work, pieces, op, ends, true)
    }

    /// Posts a 64-bit add or compare-swap.
    #[cold]
    pub(crate) fn atomic(&self, key: &PackedKey, op: &Atomic) -> Posted {
        if op.width != 8 || !matches!(op.op, atomic_op::ADD | atomic_op::COMPARE_SWAP) {
            return Err(Status::Unsupported);
        }
        if op.offset % 8 != 0 || key.grant.base.wrapping_add(op.offset) % 8 != 0 {
            return Err(Status::Misaligned);
        }
        let address = key.grant.admit(access::REMOTE_ATOMIC, op.offset, 8)?;
        let rkey = key.rkey;
        let work = match op.op {
            atomic_op::ADD => Work::FetchAdd { address, rkey, add: op.operand },
            _ => Work::CompareSwap { address, rkey, compare: op.compare, swap: op.operand },
        };
        let state = &mut *self.state.borrow_mut();
        connection!(state, self.slot).may_post()?;
        let result = state.results.take()?;
        let sge = state.results.sge(result, 8);
        let ends = Ends { result: Some(result), ..ends(op.cookie, op.flags) };
        self.start(state, work, &[sge], ends, hold(op.flags))
    }

    /// Completes an operation of zero bytes.
    #[cold]
    fn nothing(&self, state: &mut State) -> Posted {
        state.tell(self.slot)?;
        Ok(Posting::Done)
    }

    /// Posts an operation that ends later, with its completion.
    #[inline(always)]
    fn start(
        &self,
        state: &mut State,
        work: Work<'_>,
        pieces: &[ibv_sge],
        ends: Ends,
        flags: u32,
    ) -> Posted {
        let connection = connection!(state, self.slot);
        match connection.post(work, pieces, ends, flags) {
            Ok(()) if flags & HOLD != 0 => state.post_later(self.slot),
            Ok(()) => {}
            Err(refused) => return Err(state.refused(self.slot, refused)),
        }
        Ok(Posting::Pending)
    }

    /// Returns the result of a data call. If the call posted nothing, posts the held sends.
    #[inline(always)]
    pub(crate) fn told<T>(&self, posted: Result<T, Status>) -> Result<T, Status> {
        if posted.is_err() {
            self.tell();
        }
        posted
    }

    #[cold]
    fn tell(&self) {
        // An event reports the failure of the connection. The state is borrowed if a signal handler interrupts another call; the
        // next poll then posts the held sends.
        if let Ok(mut state) = self.state.try_borrow_mut() {
            let _ = state.tell(self.slot);
        }
    }

    /// Posts with the state's reusable list of pieces, then returns the list to the state.
    fn start_list(
        &self,
        state: &mut State,
        work: Work<'_>,
        pieces: Vec<ibv_sge>,
        ends: Ends,
        flags: u32,
    ) -> Posted {
        let posted = self.start(state, work, &pieces, ends, flags);
        state.pieces = pieces;
        posted
    }

    /// Posts with transient registrations for unregistered pieces.
    fn start_lent(
        &self,
        state: &mut State,
        work: Work<'_>,
        mut pieces: Vec<ibv_sge>,
        op: &RmaOp<'_>,
        mut ends: Ends,
        written: bool,
    ) -> Posted {
        pieces.clear();
        let mut loans = Vec::new();
        let all = state.domain.registry.pieces(op.iov, &mut pieces, &mut loans, written);
        if let Err(status) = all {
            state.pieces = pieces;
            return Err(status);
        }
        ends.borrowed = (!loans.is_empty()).then(|| loans.into_boxed_slice());
        ends.foreign = true;
        if written && pieces.len() > state.domain.max_read_pieces {
            return self.read_in_parts(state, work, pieces, ends, hold(op.flags));
        }
        self.start_list(state, work, pieces, ends, hold(op.flags))
    }

    pub(crate) fn flush(&self, cookie: u64) -> Posted {
        let state = &mut *self.state.borrow_mut();
        let connection = connection!(state, self.slot);
        connection.may_post()?;
        if connection.queue.is_empty() {
            return Ok(Posting::Done);
        }
        // The flush is a zero-byte write: the device acknowledges the write after all earlier operations.
        let ends = Ends { cookie: Some(cookie), ..Ends::default() };
        connection.fence = true;
        self.start(state, Work::Write { address: 0, rkey: 0 }, &[], ends, 0)
    }

    pub(crate) fn fence(&self) -> Result<(), Status> {
        let state = &mut *self.state.borrow_mut();
        let connection = connection!(state, self.slot);
        match connection.phase {
            Phase::Failed(_) => connection.may_post(),
            _ => {
                connection.fence = true;
                state.tell(self.slot)
            }
        }
    }

    pub(crate) fn import_key(&self, bytes: &[u8]) -> Result<PackedKey, Failure> {
        let state = &mut *self.state.borrow_mut();
        let connection = connection!(state, self.slot);
        match (connection.phase, connection.peer) {
            (Phase::Failed(status), _) => Err(connection.over(status)),
            (_, Some(peer)) => PackedKey::unpack(bytes, &peer.seal),
            // The owner of a key can only be checked once the peer is known.
            (_, None) => Err(Status::Again.into()),
        }
    }
}

/// Returns the completion record of a put, get or atomic.
#[inline]
fn ends(cookie: u64, flags: u64) -> Ends {
    let silent = flags & op_flags::NO_EVENT != 0;
    Ends { cookie: Some(cookie), silent, ..Ends::default() }
}

/// Returns the flags for a put, get or atomic: `HOLD` if another one follows immediately.
#[inline]
fn hold(flags: u64) -> u32 {
    if flags & op_flags::MORE != 0 { HOLD } else { 0 }
}

/// Returns the header of the next message, and the credits in it.
#[inline]
fn head(connection: &Connection, id: u32, header: u64) -> ([u8; HEADER_LEN], Grant) {
    let grant = connection.credits.next_grant();
    (Header { header, id, grant, kind: Kind::Message }.pack(), grant)
}

/// Records a posted message.
#[inline]
fn sent(connection: &mut Connection, grant: Grant) {
    connection.credits.grant_sent(grant);
    connection.credits.sent();
}

/// Returns the total length of the pieces.
fn sum(iov: &[Iov]) -> Result<usize, Status> {
    iov.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.len)).ok_or(Status::Invalid)
}

/// Validates the operation locally, and returns the remote address.
#[inline]
fn admit(state: &State, key: &PackedKey, op: &RmaOp<'_>, right: u64) -> Result<u64, Status> {
    match op.iov {
        [piece] if piece.len == op.len => {}
        [_] => return Err(Status::Invalid),
        iov => {
            let pieces = iov.iter().filter(|piece| piece.len > 0).count();
            if sum(iov)? != op.len || pieces > state.domain.max_iov {
                return Err(Status::Invalid);
            }
        }
    }
    let target = key.grant.admit(right, op.offset, op.len)?;
    if op.len > state.domain.max_message { Err(Status::TooLarge) } else { Ok(target) }
}

/// Appends the application's pieces if all of them lie in registered memory. Otherwise `pieces` stays unchanged.
fn all_registered(iov: &[Iov], pieces: &mut Vec<ibv_sge>) -> bool {
    let before = pieces.len();
    for piece in iov.iter().filter(|piece| piece.len > 0) {
        match registered(piece, false) {
            Some(sge) => pieces.push(sge),
            None => {
                pieces.truncate(before);
                return false;
            }
        }
    }
    true
}
