//! Messages of any length: a message too long for the message lane is sent as a rendezvous message (announced). The receiver
//! fetches the bytes that it wants.
//!
//! The receiver gets a key of a region of exactly those bytes, for as long as the operation is open. The operation ends when the
//! receiver reports that it has finished reading or refuses the message. If the endpoint ends before that report arrives, the
//! operation ends too; see [`EndpointState::withdraw_all`].

use super::queued::QueuedOp;
use super::{EndpointState, MAX_MESSAGE_ID, State};
use crate::address::{ANNOUNCEMENTS, BARE_KEYS, EXITS};
use crate::mem::key::Form;
use crate::mem::local::{LocalBuffer, Memory};
use crate::message::head::HeaderBytes;
use crate::proto::announce::{NO_ANSWER, message_id, write};
use crate::proto::id;
use crate::region::{Counted, Recipient, Region};
use crate::request::{Outcome, Request};
use crate::wire::Writer;
use crate::{Error, Status};
use std::ops::Range;
use std::sync::atomic::Ordering;
use tieline_host::abi::PackBuffer;
use tieline_order::held::Through;
use tieline_order::{Id, Kind};

/// The id, the word and the header bytes of a message.
type MessageHead = (u16, u64, HeaderBytes);
/// The capacity up to which the buffer of an RTS is kept for the next one.
const MOST_KEPT: usize = 16 << 10;
/// The maximum number of operations whose memory a worker holds when it adds that of a withdrawn message. A peer that never answers
/// thus keeps a bounded number of messages in memory.
const MOST_HELD: usize = 1024;

impl EndpointState {
    /// Sends a copy of these bytes as a rendezvous message.
    #[cold]
    pub(super) fn announce_bytes(
        &self,
        id: u16,
        header: u64,
        header_bytes: HeaderBytes,
        bytes: &[u8],
    ) -> Result<Outcome, Error> {
        self.check_announcing(id, bytes.len())?;
        self.check_copy(bytes.len())?;
        let mut copy = room_for(bytes.len())?;
        copy.extend_from_slice(bytes);
        self.announce_copy((id, header, header_bytes), copy)
    }

    /// Sends pieces of regions as a rendezvous message: a single piece in place, several as a copy.
    #[cold]
    pub(super) fn announce_pieces(
        &self,
        id: u16,
        header: u64,
        header_bytes: HeaderBytes,
        pieces: &[(&Region, Range<usize>)],
        len: usize,
    ) -> Result<Outcome, Error> {
        self.check_announcing(id, len)?;
        let mut full = pieces.iter().filter(|(_, range)| !range.is_empty());
        if let (Some((region, range)), None) = (full.next(), full.next()) {
            let to = Recipient {
                worker: self.shared.id,
                endpoint: self.id.raw(),
                form: self.form_of_keys(),
            };
            let parts = &self.sent_parts;
            let part = self.shared.core.memory.part_to_send(region, range.clone(), &to, parts)?;
            return self.announce((id, header, header_bytes), part);
        }
        self.check_copy(len)?;
        let mut bytes = room_for(len)?;
        bytes.resize(len, 0);
        let mut buffer = PackBuffer::new(&mut bytes);
        for (region, range) in pieces {
            buffer.put_span(&region.inner.span, range.start, range.len())?;
        }
        self.announce_copy((id, header, header_bytes), bytes)
    }

    fn announce_copy(&self, head: MessageHead, bytes: Vec<u8>) -> Result<Outcome, Error> {
        let copy = Counted::new(bytes.into_boxed_slice(), &self.announced_bytes);
        self.announce(head, self.shared.core.memory.readable_copy(copy)?)
    }

    /// Returns the form of keys that the peer reads in an RTS.
    fn form_of_keys(&self) -> Form {
        if self.address.messages.1 >= BARE_KEYS { Form::Bare } else { Form::Sealed }
    }

    /// Sends the bytes of a whole region as a rendezvous message.
    fn announce(&self, head: MessageHead, region: Region) -> Result<Outcome, Error> {
        let mut w = Writer { bytes: self.shared.rts.take() };
        w.bytes.clear();
        let (id, header, header_bytes) = head;
        let message = (id, header, region.len() as u64);
        let form = self.form_of_keys();
        let written = write(&mut w, message, &header_bytes, |w| region.append_key(w, form));
        let announced =
            written.and_then(|()| self.announce_in(message_id(&header_bytes), &w.bytes, region));
        if w.bytes.capacity() <= MOST_KEPT {
            self.shared.rts.set(w.bytes);
        }
        announced
    }

    /// Sends an RTS for the bytes of a region.
    fn announce_in(&self, message: u16, payload: &[u8], region: Region) -> Result<Outcome, Error> {
        let len = region.len();
        if payload.len() > self.most() {
            return Err(Error::new(
                Status::TooLarge,
                format!("the announcement of a message of {len} bytes"),
                format!("{} carries {} bytes at once", self.message_path(), self.most()),
                "split it, or put it into the peer's memory",
            ));
        }
        let memory = LocalBuffer::held(Memory::Region(region.into_sent()), 0, len);
        let opened = self.shared.ops.borrow_mut().open_announced(self.index, memory);
        let announced = opened.map_err(|(status, _)| status)?;
        let sent = match self.state.get() {
            // Nothing is queued, and a flush need not wait for a message that its lane has accepted.
            State::Ready => self.message_now(message, announced.raw(), payload),
            _ => Err(Status::Again),
        };
        match sent {
            Ok(()) => {
                self.count(|counters| counters.announced += 1);
                return Ok(Outcome::Pending(Request::new(self.shared.clone(), announced)));
            }
            Err(Status::Again) => self.announce_later(message, announced, payload),
            Err(status) => {
                self.count(|counters| counters.announced += 1);
                let error = self.failed(self.by_message_lane(status));
                self.shared.part(announced, Err(error));
            }
        }
        self.outcome(announced)
    }

    /// Sends an RTS after queued operations, or when the lane accepts it.
    #[cold]
    fn announce_later(&self, message: u16, announced: Id, payload: &[u8]) {
        // A flush waits for this operation.
        let sent = self.shared.ops.borrow_mut().open_late(self.index, Kind::Send);
        match sent {
            Ok(sent) => {
                self.count(|counters| counters.announced += 1);
                let (id, header, request) = (message, announced.raw(), Some(sent));
                self.post(QueuedOp::Message { id, header, payload: payload.into(), request });
            }
            Err(status) => self.shared.part(announced, Err(status.into())),
        }
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

    /// Checks whether the endpoint's message lane is connected.
    pub(crate) fn is_connected(&self) -> bool {
        matches!(self.state.get(), State::Ready | State::Queueing)
    }

    /// Checks whether the endpoint is connected to a peer that understands a report of an exit.
    pub(crate) fn knows_of_exits(&self) -> bool {
        self.is_connected() && self.address.messages.1 >= EXITS
    }

    /// Reports to the peer that this process exits with `unsent` operations unsent. `false`: the lane accepts no message.
    pub(crate) fn notify_of_exit(&self, unsent: u64) -> bool {
        self.message_now(id::EXITED, unsent, &NO_ANSWER) != Err(Status::Again)
    }

    /// Asks the peer, before the endpoint ends, to drop the open rendezvous messages whose RTS was sent.
    ///
    /// A device's read of missing memory would end the connection. If the messages use a circuit, which outlives the endpoint,
    /// registered memory is therefore held until the peer answers over the circuit. Other memory ends with the endpoint. After the
    /// first request that the lane does not accept, no further request is sent.
    pub(super) fn withdraw_all(&self) {
        if !self.is_alive() || !self.shared.same_process() {
            return;
        }
        let announced = {
            let (ops, queue) = (self.shared.ops.borrow(), self.queue.entries());
            let mut announced = ops.ids_apart(self.index);
            let waits = |id: Id| queue.iter().any(|op| op.announces(id));
            announced.retain(|id| ops.is_announced(*id) && !waits(*id));
            announced
        };
        let pair = self.route.message();
        let circuit = pair.and_then(|pair| self.worker.circuit_over(self, pair.interface));
        let answers = pair.map(|pair| pair.interface).zip(circuit);
        let mut accepts = true;
        for id in announced {
            let has_room = self.shared.held.borrow().count() < MOST_HELD;
            let held = answers.filter(|_| has_room).and_then(|(interface, circuit)| {
                let mut ops = self.shared.ops.borrow_mut();
                Some((ops.leave_memory(id, interface, LocalBuffer::is_registered)?, circuit))
            });
            let asks: &[u8] = if held.is_some() { &[] } else { &NO_ANSWER };
            accepts = accepts && self.message_now(id::WITHDRAW, id.raw(), asks).is_ok();
            if let Some((memory, circuit)) = held {
                self.shared.hold(memory, vec![Through::Circuit(circuit)]);
            }
        }
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
