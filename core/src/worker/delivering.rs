//! Messages with header bytes or a request for an acknowledgement: dispatching them, and acknowledging them.
//!
//! The acknowledgements of a progress call are collected by peer and sent at its end, each peer's in one message of up to
//! [`MOST_DELIVERED`] numbers.

use super::WorkerState;
use crate::message::abi::Handed;
use crate::message::head::Acknowledgement;
use crate::message::{HEADED, Message};
use crate::proto::Origin;
use crate::proto::emulate::Answer;
use crate::proto::head::{MOST_DELIVERED, Received, delivered, read_delivered};
use crate::{Error, Status};
use std::rc::Rc;
use tieline_host::abi::events::payload;
use tieline_order::Kind;
use tieline_plugin_api::abi::Event;

/// The acknowledgements of messages of one peer that have the same status.
pub(super) struct Deliveries {
    to: Origin,
    status: i32,
    numbers: Vec<u64>,
}

impl Deliveries {
    /// Returns the number of acknowledgements.
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }
}

impl WorkerState {
    /// Runs the handler for the message behind a head. When the handler has returned, the message is acknowledged, unless the
    /// handler has taken the acknowledgement. If the handler panics, the acknowledgement is dropped.
    #[cold]
    pub(super) fn hand_on_headed(
        self: &Rc<Self>,
        interface: usize,
        event: Handed<'_>,
        from: Origin,
    ) {
        let slot = &self.shared.interfaces[interface];
        let Ok(head) = Received::read(event.id as u16, event.header, payload(&event)) else {
            self.count_bad(from.peer, Status::BadData);
            return event.give_back(slot);
        };
        let handlers = self.handlers.borrow();
        let Some(Some(handler)) = handlers.get(usize::from(head.id)) else {
            let what = format!("a message with the id {}", head.id);
            self.dropped_unhandled(&what, slot.peer(event.peer));
            if let Some(number) = head.number {
                self.note_delivery(from, number, Status::Unsupported as i32);
            }
            return event.give_back(slot);
        };
        let acknowledgement =
            head.number.map(|number| Acknowledgement::new(Rc::downgrade(self), from, number));
        self.inbox.header_bytes.set(head.header_bytes);
        self.inbox.acknowledgement.set(acknowledgement);
        let _clear = self.inbox.clear();
        let (id, header) = (u32::from(head.id), head.word);
        let inner = Event { kind: HEADED, id, header, ..**event };
        event.behind(head.len, inner, |event| match event.lent() {
            Ok(lent) => lent.hand_to(&self.inbox, interface, handler),
            Err(event) => handler(&Message::new(event, &self.inbox, interface)),
        });
        if let Some(acknowledgement) = self.inbox.acknowledgement.take() {
            acknowledgement.give();
        }
    }

    /// Notes the outcome of a message that its sender awaits. The running progress call sends it at its end, otherwise the next one.
    pub(crate) fn note_delivery(&self, to: Origin, number: u64, status: i32) {
        if self.closed.get() || self.peers.borrow().is_gone(to.peer) {
            return;
        }
        let mut deliveries = self.deliveries.borrow_mut();
        let same = |other: &&mut Deliveries| other.to == to && other.status == status;
        match deliveries.iter_mut().find(same) {
            Some(same) => same.numbers.push(number),
            None => deliveries.push(Deliveries { to, status, numbers: vec![number] }),
        }
        drop(deliveries);
        self.shared.note_work();
    }

    /// Sends the acknowledgements that were noted.
    pub(super) fn send_deliveries(self: &Rc<Self>) {
        if self.deliveries.borrow().is_empty() {
            return;
        }
        for Deliveries { to, status, numbers } in self.deliveries.take() {
            for some in numbers.chunks(MOST_DELIVERED) {
                let answer = Answer::Delivered { status, numbers: delivered(some) };
                self.answer(to, answer);
            }
        }
    }

    /// Handles a peer's acknowledgements of messages.
    pub(super) fn on_delivered(
        &self,
        status: u64,
        from: Origin,
        data: &[u8],
    ) -> Result<(), Status> {
        let status = i32::try_from(status as i64).map_err(|_| Status::BadData)?;
        let mut bad = Ok(());
        for number in read_delivered(data)? {
            match self.answered(number, from) {
                Ok((id, Kind::Delivery)) => {
                    let result = if status == 0 { Ok(0) } else { Err(not_delivered(status)) };
                    self.shared.part(id, result);
                }
                _ => bad = Err(Status::BadData),
            }
        }
        bad
    }
}

/// Makes the error of a message that its receiver has not acknowledged.
#[cold]
fn not_delivered(status: i32) -> Error {
    let (status, why, fix) = match Status::from_code(status) {
        Status::Unsupported => (
            Status::Unsupported,
            "its receiver has no handler for its id".to_string(),
            "register a handler for the id at the receiver before the message arrives",
        ),
        Status::Canceled => (
            Status::Canceled,
            "its receiver has dropped the acknowledgement, or its handler has panicked".to_string(),
            "",
        ),
        status => (status, format!("its receiver reported: {}", status.text()), ""),
    };
    Error::new(status, "a message with a request for an acknowledgement", why, fix)
}
