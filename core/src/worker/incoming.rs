//! Incoming internal messages. A malformed message is counted and dropped. A well-formed request that is refused gets an answer if
//! its sender expects one.

use super::WorkerState;
use super::wiring::Sender;
use crate::endpoint::Endpoint;
use crate::mem::local::{LocalBuffer, Memory};
use crate::proto::announce::KEPT;
use crate::proto::emulate::{self, Answer, Here};
use crate::proto::{Origin, handles, id};
use crate::sys::Refusal;
use crate::{Error, Status};
use std::rc::Rc;
use tieline_order::held::Through;
use tieline_order::{Id, Kind};

impl WorkerState {
    /// Handles an internal message. Returns the word of a notification, which is reported to the application after the payload has
    /// been released.
    pub(super) fn handle(
        self: &Rc<Self>,
        message: u16,
        token: u64,
        from: Origin,
        data: &[u8],
    ) -> Option<u32> {
        let (peer, mut told) = (from.peer, None);
        if matches!(message, id::PUT | id::PUT_NOTIFY | id::GET | id::ATOMIC) {
            self.bump(|c| c.emulated += 1);
        }
        let (memory, touch) = (&*self.shared.core.memory, &self.shared.touch);
        let here = Here { memory, touch, torn: &self.torn, from };
        let answered = match message {
            id::REPLY => self.on_reply(token, from, data).map(|()| None),
            id::GET_DATA => self.on_get_data(token, from, data).map(|()| None),
            id::PUT => here.put(token, data),
            id::PUT_NOTIFY => here.put_notify(token, data).map(|(answer, word)| {
                told = word;
                answer
            }),
            id::NOTIFY => u32::try_from(token).map_err(|_| Status::BadData).map(|word| {
                told = Some(word);
                None
            }),
            id::GET => here.get(token, data).map(Some),
            id::ATOMIC => here.atomic(token, data).map(Some),
            id::PING => Ok(Some(Answer::reply(token, Ok(0)))),
            id::KEY | id::KEY_NUMBERED => {
                handles::on_key(message, &memory.regions, token, data).map(Some)
            }
            id::KEY_IS => self.on_key_is(token, from, data).map(|()| None),
            id::ASSIST => self.on_assist(peer, data).map(|()| None),
            id::SERVICE => self.on_service(from, data).map(|()| None),
            id::WITHDRAW => self.on_withdraw(token, from, data).map(|()| None),
            id::DELIVERED => self.on_delivered(token, from, data).map(|()| None),
            id::NAMED => self.on_named(peer, data).map(|()| None),
            id::EXITED => self.on_exited(peer, token).map(|()| None),
            id::WIREUP => self.on_wireup(peer, data).map(|()| None),
            _ => Err(Status::BadData),
        };
        match answered {
            Ok(Some(answer)) => self.answer(from, answer),
            Ok(None) => {}
            Err(status) => self.count_bad(peer, status),
        }
        told
    }

    /// Handles a wire-up datagram that a message of a known peer carried.
    fn on_wireup(self: &Rc<Self>, peer: u32, data: &[u8]) -> Result<(), Status> {
        let address = self.address_of_peer(peer).ok_or(Status::BadData)?;
        // `on_datagram` counts errors.
        let _ = self.on_datagram(data, Sender::Worker(&address));
        Ok(())
    }

    fn on_assist(self: &Rc<Self>, peer: u32, data: &[u8]) -> Result<(), Status> {
        // Keys imported for later transfers must not keep an endpoint of the application open.
        let endpoint = || self.own_endpoint(peer).ok().map(Endpoint::internal);
        self.helps.ask(peer, data, endpoint)?;
        self.shared.note_work();
        Ok(())
    }

    /// Returns the operation of an answer. The operation must be waiting for an answer of this peer, and over this circuit if a
    /// circuit carried the request.
    pub(super) fn answered(&self, token: u64, from: Origin) -> Result<(Id, Kind), Status> {
        let id = Id::from_raw(token).ok_or(Status::BadData)?;
        let (asked, kind) = self.shared.ops.borrow().asked(id).ok_or(Status::BadData)?;
        self.check_answer(asked, from)?;
        Ok((id, kind))
    }

    /// Checks that the worker to which the request was sent has sent the answer. If a connection carried the request, the answer
    /// must arrive over that connection.
    fn check_answer(&self, asked: usize, from: Origin) -> Result<(), Status> {
        let known = &self.answering[asked % self.answering.len()];
        if from.circuit.is_none() && known.get().is_some_and(|(_, peer)| peer == from.peer) {
            let id = self.endpoints.borrow().at(asked);
            if id.is_some() && id == known.get().map(|(id, _)| id) {
                return Ok(());
            }
        }
        let asked = self.endpoint_at(asked).ok_or(Status::BadData)?;
        {
            let peers = self.peers.borrow();
            let peer = peers.get(from.peer).and_then(|peer| peer.address.as_ref());
            let peer = peer.ok_or(Status::BadData)?;
            let (there, here) = (&peer.entry.worker, &asked.address.entry.worker);
            if there != here || peer.context != asked.address.context {
                return Err(Status::BadData);
            }
        }
        let over = asked.route.message().ok_or(Status::BadData)?.interface;
        if self.shared.interfaces[over].to_endpoint {
            let circuit = self.circuit_over(&asked, over);
            if circuit.is_none() || circuit != from.circuit {
                return Err(Status::BadData);
            }
        } else if from.circuit.is_none() {
            known.set(Some((asked.id, from.peer)));
        }
        Ok(())
    }

    fn on_reply(&self, token: u64, from: Origin, data: &[u8]) -> Result<(), Status> {
        let (status, value) = emulate::read_reply(data)?;
        let (id, kind) = match self.answered(token, from) {
            Err(_) if self.release_withdrawn(token, from) => return Ok(()),
            answered => answered?,
        };
        if kind == Kind::Announced {
            match status {
                0 => self.taken(id, value == KEPT),
                status => self.not_taken(id, Status::from_code(status)),
            }
            return Ok(());
        }
        let result = match (status, kind) {
            (0, Kind::Fetch) => Ok(value),
            // Only data completes a get, only a key completes a request for a key, and only DELIVERED acknowledges a message.
            (_, Kind::Delivery) | (0, Kind::Get | Kind::Key) => return Err(Status::BadData),
            (0, _) => Ok(0),
            (status, Kind::Key) => {
                let asked =
                    self.shared.ops.borrow().key_asked(id).and_then(LocalBuffer::key_request);
                Err(handles::no_key(Status::from_code(status), asked.map(|(_, name)| name)))
            }
            (status, _) => Err(self.refused(id, emulate::read_refusal(status, value))),
        };
        self.shared.part(id, result);
        Ok(())
    }

    /// Makes the error of an operation that its target refused.
    fn refused(&self, id: Id, refusal: Refusal) -> Error {
        if refusal.status == Status::KeyRejected {
            self.key_refused(id);
        }
        emulate::refused(refusal)
    }

    /// Makes an endpoint request the keys of its handles again before their next use, because one of its operations was refused as
    /// `KeyRejected`.
    #[cold]
    pub(super) fn key_refused(&self, id: Id) {
        let owner = self.shared.ops.borrow().owner(id);
        if let Some(endpoint) = owner.and_then(|owner| self.endpoint_at(owner)) {
            endpoint.key_refused();
        }
    }

    /// Handles the answer to a key request.
    fn on_key_is(&self, token: u64, from: Origin, data: &[u8]) -> Result<(), Status> {
        let (id, _) = self.answered(token, from)?;
        let asked = self.shared.ops.borrow().key_asked(id).and_then(LocalBuffer::key_request);
        let (of, name) = asked.ok_or(Status::BadData)?;
        let told = match self.endpoint(of) {
            Some(endpoint) => endpoint.key_told(name, data),
            // The endpoint that requested the key does not exist any more.
            None => Ok(()),
        };
        // A key from an incompatible library version is unusable, but not a false answer.
        let lies = told.as_ref().is_err_and(|error| error.status() == Status::KeyRejected);
        self.shared.part(id, told.map(|()| 0));
        if lies { Err(Status::BadData) } else { Ok(()) }
    }

    /// Releases the memory of a rendezvous message whose endpoint has ended. `false`: the worker holds no such memory.
    fn release_withdrawn(&self, token: u64, from: Origin) -> bool {
        let (Some(id), Some(circuit)) = (Id::from_raw(token), from.circuit) else { return false };
        // The memory is dropped while nothing is borrowed.
        let memory = self.shared.held.borrow_mut().answered(id, Through::Circuit(circuit));
        memory.is_some()
    }

    /// Ends the operation of a rendezvous message that the receiver has received. `is_kept`: the receiver has kept the key.
    fn taken(&self, id: Id, is_kept: bool) {
        let (owner, received, has_ended) = {
            let mut ops = self.shared.ops.borrow_mut();
            let owner = ops.owner(id);
            match ops.received(id) {
                Some(buffer) => (owner, Some(buffer), true),
                None => (owner, ops.received_and_told(id), false),
            }
        };
        match received.map(|buffer| buffer.memory) {
            Some(Memory::Region(region)) => {
                let part = region.message_received(is_kept);
                if let (Some(part), Some(owner)) = (part, owner) {
                    if let Some(endpoint) = self.endpoint_at(owner) {
                        endpoint.sent_parts.keep(part);
                    }
                }
            }
            Some(other) => drop(other),
            None => {}
        }
        if !has_ended {
            self.shared.part(id, Ok(0));
        }
    }

    /// Ends the operation of a rendezvous message that the receiver has not received.
    fn not_taken(&self, id: Id, status: Status) {
        let back = status == Status::Canceled && self.shared.ops.borrow().is_wanted_back(id);
        let why = match status {
            Status::Canceled if back => "it was canceled before its receiver read any of it".into(),
            Status::Unsupported => "its receiver refused it, or has no handler for it".into(),
            Status::Closed => "its receiver has closed its worker, or its endpoint".into(),
            Status::NoMemory => {
                "its receiver has reached its limit of waiting messages, or has no memory".into()
            }
            Refusal::FAULT => "memory of one of the two sides is missing or protected".into(),
            // A failure of the receiver's transfer does not concern this connection.
            status => format!("its receiver could not receive it: {}", status.text()),
        };
        let status = if back { Status::Canceled } else { Status::Unsupported };
        let error = Error::new(status, "a rendezvous message", why, "");
        match back {
            true => self.shared.with_ops(|ops| ops.cancel(id, error)),
            false => self.shared.part(id, Err(error)),
        }
    }

    fn on_get_data(&self, token: u64, from: Origin, data: &[u8]) -> Result<(), Status> {
        let (position, status, data) = emulate::read_data(data)?;
        let (id, kind) = self.answered(token, from)?;
        if kind != Kind::Get {
            return Err(Status::BadData);
        }
        if status != 0 {
            let refused = self.refused(id, emulate::read_refusal(status, position));
            self.shared.part(id, Err(refused));
            return Ok(());
        }
        let whole = {
            let mut ops = self.shared.ops.borrow_mut();
            let local_buffer = ops.buffer_of_get(id).ok_or(Status::BadData)?;
            local_buffer.take(position, data)?
        };
        if whole {
            self.shared.part(id, Ok(0));
        }
        Ok(())
    }
}
