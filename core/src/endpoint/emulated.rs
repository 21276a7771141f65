//! Puts and gets over messages, for memory that no lane of this endpoint reaches at present.

use super::EndpointState;
use super::post::Transfer;
use super::queued::{EmulatedPut, NativeOp, QueuedOp};
use super::record::Completion;
use crate::mem::local::LocalBuffer;
use crate::op::{Id, Kind, way};
use crate::proto::emulate::{self, Target};
use crate::proto::id;
use crate::request::Outcome;
use crate::{Error, Status};
use std::rc::Rc;

impl EndpointState {
    /// Posts a put or get that no provider executes, over messages.
    pub(super) fn emulate_transfer(
        self: &Rc<Self>,
        transfer: &Transfer<'_>,
    ) -> Result<Outcome, Error> {
        let control = self.emulating()?;
        self.emulate_over(&control, transfer, None)
    }

    /// Posts a put or get over messages of `control`. `notify`: the notification word of a put.
    pub(super) fn emulate_over(
        self: &Rc<Self>,
        control: &Rc<EndpointState>,
        transfer: &Transfer<'_>,
        notify: Option<u32>,
    ) -> Result<Outcome, Error> {
        let &Transfer { put, at, len, completion, .. } = transfer;
        // The memory is held in case the operation has to wait.
        let memory = control.hold_memory(transfer)?;
        let target = transfer.key.inner.target(transfer.offset);
        let request = control.open(match (put, completion) {
            (false, _) => Kind::Get,
            (true, Completion::Remote) => Kind::Put,
            (true, Completion::Local) => Kind::Send,
        })?;
        let op = if put {
            let answer = match completion {
                Completion::Remote => request,
                // The operation ends when its bytes are sent; flushes wait for the target's answer and report its failure.
                Completion::Local => {
                    self.shared.ops.borrow_mut().open_late(control.index, Kind::Put)?
                }
            };
            QueuedOp::Put(EmulatedPut { memory, at, len, sent: 0, target, request, answer, notify })
        } else {
            self.ask_for(request, LocalBuffer { memory, offset: at, len, missing: len }, &target)
        };
        self.count(|counters| counters.emulated += 1);
        self.emulate(control, op);
        self.outcome(request)
    }

    /// Builds the queued request for the data of an emulated get.
    fn ask_for(&self, request: Id, local_buffer: LocalBuffer, target: &Target) -> QueuedOp {
        let bytes = emulate::get_request(target, local_buffer.len as u64);
        self.shared.ops.borrow_mut().set_local_buffer(request, local_buffer);
        QueuedOp::ask(id::GET, request, bytes)
    }

    /// Returns the endpoint that emulated operations use, after checking the fences; see [`EndpointState::may_go`]. The caller
    /// opens the operation after this call. The endpoint is determined first: connecting may call the application, whose fences
    /// clear the recorded routes, including that of an operation that is not open yet.
    pub(super) fn emulating(self: &Rc<Self>) -> Result<Rc<EndpointState>, Error> {
        let control = self.emulates()?;
        let _ = self.may_go(way::EMULATED);
        Ok(control)
    }

    /// Returns the endpoint that emulated operations use, without checking the fences.
    pub(super) fn emulates(self: &Rc<Self>) -> Result<Rc<EndpointState>, Error> {
        if let Some(control) = self.control()? {
            // This call may be the first to find that the service worker is gone.
            if control.ready_or_opened().is_ok() {
                return Ok(control);
            }
        }
        let control = self.control()?.unwrap_or_else(|| self.clone());
        control.check_alive()?;
        Ok(control)
    }

    /// Emulates the rest of a queued operation by messages, because no lane to the memory is left that has not declined it. If this
    /// endpoint sends the messages, the operation stays at the head of the queue, because later operations may wait for it.
    pub(super) fn emulate_instead(&self, op: &NativeOp) -> Result<bool, Status> {
        if !self.may_leave(op.request, op.fenced, way::EMULATED) {
            return Ok(false);
        }
        let me = self.worker.endpoint_at(self.index).ok_or(Status::Closed)?;
        let control = me.emulates().map_err(|error| error.status())?;
        let target = op.key.target(op.offset + op.posted as u64);
        let (at, len) = (op.at + op.posted, op.len - op.posted);
        let kind = if op.put { Kind::Put } else { Kind::Get };
        let asked = self.shared.ops.borrow_mut().open_part(op.request, control.index, kind)?;
        self.count(|counters| counters.emulated += 1);
        let memory = op.memory.clone();
        let emulated = if op.put {
            QueuedOp::Put(EmulatedPut {
                memory,
                at,
                len,
                sent: 0,
                target,
                request: asked,
                answer: asked,
                notify: None,
            })
        } else {
            self.ask_for(asked, LocalBuffer { memory, offset: at, len, missing: len }, &target)
        };
        match std::ptr::eq(self, Rc::as_ptr(&control)) {
            true => self.put_first(emulated),
            false => control.post(emulated),
        }
        self.shared.part(op.request, Ok(0));
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Context;
    use crate::endpoint::Completion;
    use crate::mem::local::Memory;

    #[test]
    fn a_transfer_whose_connection_did_not_come_about_goes_over_messages() -> Result<(), Error> {
        let context = Context::open()?;
        let worker = context.worker()?;
        let (local, target) =
            (context.register(vec![7u8; 500])?, context.register(vec![1u8; 500])?);
        let endpoint = worker.connect(&worker.address()?)?;
        let key = endpoint.import_key(&target.remote_key()?)?;
        let op = |put, memory: Memory, at, len| {
            let request = endpoint.inner.open(Kind::Native).unwrap();
            NativeOp {
                put,
                memory,
                at,
                len,
                key: key.inner.clone(),
                offset: 100,
                completion: Completion::Remote,
                request,
                rank: 0,
                fenced: 0,
                posted: 0,
                taken: 0,
                declined: 0,
                begun: false,
                notify: None,
            }
        };
        let run = |op: NativeOp| {
            assert_eq!(endpoint.inner.emulate_instead(&op), Ok(true));
            worker.finish(endpoint.inner.outcome(op.request)?)
        };
        let _ = run(op(true, Memory::Region(local.clone()), 10, 40))?;
        assert_eq!(target.to_vec(90..150)?, [vec![1; 10], vec![7; 40], vec![1; 10]].concat());
        let _ = run(op(true, Memory::Bytes([3; 9].into()), 0, 9))?;
        let _ = run(op(false, Memory::Region(local.clone()), 200, 20))?;
        assert_eq!(local.to_vec(199..221)?, [vec![7], vec![3; 9], vec![7; 12]].concat());
        assert!(worker.counters().emulated >= 3);
        assert_eq!(endpoint.counters().emulated, 3);
        Ok(())
    }
}
