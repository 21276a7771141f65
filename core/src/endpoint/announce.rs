//! Messages of any length: what is longer than the message lane carries is announced in its place, and its receiver fetches it.
//!
//! What peers get is a region of exactly those bytes, for as long as the operation is open: it ends with the receiver's word that nobody
//! reads there any more, and where that does not come, because the endpoint ended, the region's own end keeps the memory.

use super::queued::QueuedOp;
use super::{Inner, MAX_MESSAGE_ID, State};
use crate::address::{ANNOUNCEMENTS, EXITS};
use crate::op::{Id, Kind, LocalBuffer, Memory, Pieces};
use crate::proto::announce::{Announce, NO_ANSWER};
use crate::proto::id;
use crate::region::{Access, Counted, Region};
use crate::registry::abi::PackBuffer;
use crate::request::Outcome;
use crate::{Error, Status};
use std::sync::atomic::Ordering;

impl Inner {
    /// Announces a copy of these bytes.
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

    /// Announces pieces of regions: in place where they are one, else a copy.
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

    /// Announces a whole region, which nobody else has.
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
            // What a flush waits for.
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

    /// `Again` where so much more must not be copied. An endpoint that has copied nothing may copy any length.
    fn check_copy(&self, len: usize) -> Result<(), Status> {
        let copied = self.announced_bytes.load(Ordering::Relaxed);
        if copied > 0 && copied.saturating_add(len) > self.shared.core.queue_bytes {
            return Err(Status::Again);
        }
        Ok(())
    }

    /// Asks the receiver to leave an announced message: its word ends the operation, as it would have anyway.
    pub(crate) fn withdraw_announced(&self, announced: Id) {
        if self.shared.ops.borrow().is_wanted_back(announced) {
            return;
        }
        self.shared.ops.borrow_mut().want_back(announced);
        self.post(QueuedOp::ask(id::WITHDRAW, announced, Vec::new()));
    }

    /// Whether the endpoint is connected to a peer that understands a report of an exit.
    pub(crate) fn knows_of_exits(&self) -> bool {
        let is_connected = matches!(self.state.get(), State::Ready | State::Queueing);
        is_connected && self.address.messages.1 >= EXITS
    }

    /// Reports that this process exits with so many operations unsent. `false`: the lane has no room.
    pub(crate) fn notify_of_exit(&self, unsent: u64) -> bool {
        self.message_now(id::EXITED, unsent, &NO_ANSWER) != Err(Status::Again)
    }

    /// The endpoint is about to end, and with it the memory of what it has announced: who has not begun to take it is told, so that no
    /// device is asked for memory that is gone, which ends a connection of some. Where the lane has no room nobody is.
    pub(super) fn withdraw_all(&self) {
        if !self.is_alive() || !self.shared.same_process() {
            return;
        }
        let announced = self.shared.ops.borrow().ids_apart(self.index);
        let told = |id: &Id| self.message_now(id::WITHDRAW, id.raw(), &NO_ANSWER).is_ok();
        let _ = announced.iter().take_while(|id| told(id)).count();
    }
}

/// Memory for a copy of so many bytes: an application may announce more than there is memory for.
fn room_for(len: usize) -> Result<Vec<u8>, Error> {
    let mut room = Vec::new();
    room.try_reserve_exact(len).map_err(|_| {
        let why = "there is no memory for a copy of it";
        let fix = "send it from a region in one piece, of which no copy is made, or in parts";
        Error::new(Status::NoMemory, format!("a message of {len} bytes"), why, fix)
    })?;
    Ok(room)
}
