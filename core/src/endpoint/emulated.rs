//! Puts and gets over messages, where no provider gives this pair access to that memory.

use super::Inner;
use super::order::way;
use super::post::Transfer;
use super::queued::{NativeOp, QueuedOp, Source};
use super::record::Completion;
use crate::op::{Kind, LocalBuffer, Memory};
use crate::proto::{emulate, id};
use crate::request::Outcome;
use crate::{Error, Status};
use std::rc::Rc;

impl Inner {
    pub(super) fn put_emulated(
        self: &Rc<Self>,
        source: Source,
        transfer: &Transfer<'_>,
    ) -> Result<Outcome, Error> {
        let control = self.emulating()?;
        let request = match transfer.completion {
            Completion::Remote => control.open(Kind::Put)?,
            Completion::Local => control.open(Kind::Send)?,
        };
        let target = transfer.key.inner.target(transfer.offset);
        let answer = match transfer.completion {
            Completion::Remote => request,
            // The operation ends when its bytes are sent; what the target says of it, the next flush says.
            Completion::Local => {
                self.shared.ops.borrow_mut().open_late(control.index, Kind::Put)?
            }
        };
        let task = QueuedOp::Put { source, len: transfer.len, sent: 0, target, request, answer };
        self.emulate(&control, task);
        self.outcome(request)
    }

    pub(super) fn get_emulated(self: &Rc<Self>, transfer: Transfer<'_>) -> Result<Outcome, Error> {
        let control = self.emulating()?;
        let request = control.open(Kind::Get)?;
        let (target, len) = (transfer.key.inner.target(transfer.offset), transfer.len);
        let local_buffer =
            LocalBuffer { memory: transfer.memory, offset: transfer.at, len, missing: len };
        self.shared.ops.borrow_mut().set_local_buffer(request, local_buffer);
        let bytes = emulate::get_request(&target, len as u64);
        self.emulate(&control, QueuedOp::ask(id::GET, request, bytes));
        self.outcome(request)
    }

    /// The endpoint that emulated operations go through, which is asked before one is opened: see [`Inner::may_go`].
    pub(super) fn emulating(self: &Rc<Self>) -> Result<Rc<Inner>, Error> {
        let _ = self.may_go(way::EMULATED);
        self.emulates()
    }

    fn emulates(self: &Rc<Self>) -> Result<Rc<Inner>, Error> {
        let control = match self.control()? {
            Some(control) => control,
            None => self.clone(),
        };
        control.check_alive()?;
        Ok(control)
    }

    /// No connection came about over which the provider would do what was queued: it goes over messages, from its place
    /// at the head of the queue, since what is behind it there may wait for it.
    pub(super) fn emulate_instead(&self, op: &NativeOp) -> Result<bool, Status> {
        if !self.may_leave(op.request, op.fenced, way::EMULATED) {
            return Ok(false);
        }
        let me = self.worker.endpoint_at(self.index).ok_or(Status::Closed)?;
        let control = me.emulates().map_err(|error| error.status())?;
        let target = op.key.target(op.offset + op.posted as u64);
        let (at, len) = (op.at + op.posted, op.len - op.posted);
        let task = {
            let mut ops = self.shared.ops.borrow_mut();
            let kind = if op.put { Kind::Put } else { Kind::Get };
            let asked = ops.open_part(op.request, control.index, kind)?;
            if op.put {
                let source = match &op.memory {
                    Memory::Region(region) => Source::Region(region.clone(), at),
                    Memory::Bytes(bytes) => Source::Bytes(bytes[at..at + len].into()),
                };
                QueuedOp::Put { source, len, sent: 0, target, request: asked, answer: asked }
            } else {
                let memory = op.memory.clone();
                ops.set_local_buffer(asked, LocalBuffer { memory, offset: at, len, missing: len });
                QueuedOp::ask(id::GET, asked, emulate::get_request(&target, len as u64))
            }
        };
        match std::ptr::eq(self, Rc::as_ptr(&control)) {
            true => self.put_first(task),
            false => control.enqueue(task),
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
        Ok(())
    }
}
