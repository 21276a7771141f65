//! Messages of any length: a message too long for the message lane is sent as a rendezvous message (announced). The receiver
//! fetches the bytes that it wants.
//!
//! The receiver gets a key of a region of exactly those bytes, for as long as the operation is open. The operation ends when the
//! receiver reports that it has finished reading or refuses the message. If the endpoint ends before that report arrives, the
//! operation ends and no longer holds the memory, even if the receiver is reading it.

use super::queued::QueuedOp;
use super::{EndpointState, MAX_MESSAGE_ID, State};
use crate::address::{ANNOUNCEMENTS, EXITS};
use crate::mem::local::{LocalBuffer, Memory};
use crate::mem::pieces::Pieces;
use crate::op::{Id, Kind};
use crate::proto::announce::{Announce, NO_ANSWER};
use crate::proto::id;
use crate::region::{Access, Counted, Region};
use crate::registry::abi::PackBuffer;
use crate::request::Outcome;
use crate::{Error, Status};
use std::sync::atomic::Ordering;

impl EndpointState {
    /// Sends a copy of these bytes as a rendezvous message.
    #[cold]
    pub(super) fn announce_bytes(
        &self,
        id: u16,
        header: u64,
        bytes: &[u8],
    ) -> Result<Outcome, Error> {
        self.check_announcing(id, bytes.len())?;
        self.check_copy(bytes.len())?;
        let mut copy = room_for(bytes.len())?;
        copy.extend_from_slice(bytes);
        self.announce_copy(id, header, copy)
    }

    /// Sends pieces of regions as a rendezvous message: a single piece in place, several as a copy.
    #[cold]
    pub(super) fn announce_pieces(
        &self,
        id: u16,
        header: u64,
        pieces: &Pieces,
        len: usize,
    ) -> Result<Outcome, Error> {
        self.check_announcing(id, len)?;
        let mut parts = pieces.parts(0, len);
        if let (Some((region, at, n)), None) = (parts.next(), parts.next()) {
            let memory = &self.shared.core.memory;
            let part = memory.part_for_peers(region, at..at + n, Access::READ)?;
            return self.announce(id, header, &part);
        }
        self.check_copy(len)?;
        let mut bytes = room_for(len)?;
        bytes.resize(len, 0);
        let mut buffer = PackBuffer::new(&mut bytes);
        pieces.pack(0, len, &mut buffer)?;
        self.announce_copy(id, header, bytes)
    }

    fn announce_copy(&self, id: u16, header: u64, bytes: Vec<u8>) -> Result<Outcome, Error> {
        let copy = Counted::new(bytes.into_boxed_slice(), &self.announced_bytes);
        self.announce(id, header, &self.shared.core.memory.readable_copy(copy)?)
    }

    /// Sends the bytes of a whole region as a rendezvous message.
    fn announce(&self, id: u16, header: u64, region: &Region) -> Result<Outcome, Error> {
        let len = region.len();
        let key = region.packed_key()?;
        let payload = Announce { id, header, len: len as u64, key }.write()?;
        if payload.len() > self.most() {
            return Err(Error::new(
                Status::TooLarge,
                format!("the announcement of a message of {len} bytes"),
                format!("{} carries {} bytes at once", self.message_path(), self.most()),
                "split it, or put it into the peer's memory",
            ));
        }
        let (announced, sent) = {
            let mut ops = self.shared.ops.borrow_mut();
            let announced = ops.open_announced(self.index)?;
            let memory = Memory::Region(region.hold());
            ops.set_local_buffer(announced, LocalBuffer::held(memory, 0, len));
            // A flush waits for this operation.
            (announced, ops.open_late(self.index, Kind::Send))
        };
        match sent {
            Ok(sent) => {
                self.count(|counters| counters.announced += 1);
                self.post(QueuedOp::Announce { announced, sent, payload: payload.into() });
            }
            Err(status) => self.shared.part(announced, Err(status.into())),
        }
        self.outcome(announced)
    }

    fn check_announcing(&self, id: u16, len: usize) -> Result<(), Error> {
        debug_assert!(id <= MAX_MESSAGE_ID);
        let (major, minor) = self.address.messages;
        if minor >= ANNOUNCEMENTS {
            return Ok(());
        }
        Err(Error::new(
            Status::TooLarge,
            format!("a message of {len} bytes to {}", self.address.label()),
            format!(
                "it speaks {major}.{minor} of the library's messages, and 1.{ANNOUNCEMENTS} has the first that announces; {} carries at \
                 most {} at once",
                self.message_path(),
                self.most()
            ),
            "split it, or put it into the peer's memory",
        ))
    }

    /// Returns `Again` if the copies of rendezvous messages would exceed the limit with `len` more bytes. An endpoint that has no
    /// such copies may copy any length.
    fn check_copy(&self, len: usize) -> Result<(), Status> {
        let copied = self.announced_bytes.load(Ordering::Relaxed);
        if copied > 0 && copied.saturating_add(len) > self.shared.core.queue_bytes {
            return Err(Status::Again);
        }
        Ok(())
    }

    /// Asks the receiver to drop a rendezvous message. The receiver's answer ends the operation, as it does without this request.
    pub(crate) fn withdraw_announced(&self, announced: Id) {
        if self.shared.ops.borrow().is_wanted_back(announced) {
            return;
        }
        self.shared.ops.borrow_mut().want_back(announced);
        self.post(QueuedOp::ask(id::WITHDRAW, announced, Vec::new()));
    }

    /// Checks whether the endpoint is connected to a peer that understands a report of an exit.
    pub(crate) fn knows_of_exits(&self) -> bool {
        let is_connected = matches!(self.state.get(), State::Ready | State::Queueing);
        is_connected && self.address.messages.1 >= EXITS
    }

    /// Reports to the peer that this process exits with `unsent` operations unsent. `false`: the lane accepts no message.
    pub(crate) fn notify_of_exit(&self, unsent: u64) -> bool {
        self.message_now(id::EXITED, unsent, &NO_ANSWER) != Err(Status::Again)
    }

    /// Asks the peer, before the endpoint ends, to drop the open rendezvous messages, because their memory ends with the endpoint.
    /// On some devices a read of missing memory would end the connection. After the first request that the lane does not accept, no
    /// further request is sent.
    pub(super) fn withdraw_all(&self) {
        if !self.is_alive() || !self.shared.same_process() {
            return;
        }
        let announced = self.shared.ops.borrow().ids_apart(self.index);
        let told = |id: &Id| self.message_now(id::WITHDRAW, id.raw(), &NO_ANSWER).is_ok();
        let _ = announced.iter().take_while(|id| told(id)).count();
    }
}

/// Allocates a copy buffer of this length; fails if there is not enough memory.
fn room_for(len: usize) -> Result<Vec<u8>, Error> {
    let mut room = Vec::new();
    room.try_reserve_exact(len).map_err(|_| {
        let why = "there is no memory for a copy of it";
        let fix = "send it from a region in one piece, of which no copy is made, or in parts";
        Error::new(Status::NoMemory, format!("a message of {len} bytes"), why, fix)
    })?;
    Ok(room)
}
