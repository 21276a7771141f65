//! Puts and gets over messages, for memory that no lane of this endpoint reaches at present.

use super::EndpointState;
use super::post::Transfer;
use super::queued::{NativeOp, QueuedOp};
use super::record::Completion;
use crate::mem::local::LocalBuffer;
use crate::proto::emulate::{PUT_HEAD, PUT_NOTIFY_HEAD, get_request, put_head};
use crate::proto::id;
use crate::request::Outcome;
use crate::{Error, Status};
use tieline_host::abi::PackBuffer;
use tieline_order::{Id, Kind, way};

impl EndpointState {
    /// Posts a put or get that no provider executes, over messages.
    pub(super) fn emulate_transfer(&self, transfer: &Transfer<'_>) -> Result<Outcome, Error> {
        self.emulating()?;
        self.post_emulated(transfer, None)
    }

    /// Posts a put or get over messages. `notify`: the notification word of a put.
    pub(super) fn post_emulated(
        &self,
        transfer: &Transfer<'_>,
        notify: Option<u32>,
    ) -> Result<Outcome, Error> {
        let &Transfer { put, len, completion, .. } = transfer;
        // The memory is held in case the operation has to wait.
        let memory = self.hold_memory(transfer)?;
        let request = self.open(match (put, completion) {
            (false, _) => Kind::Get,
            (true, Completion::Remote) => Kind::Put,
            (true, Completion::Local) => Kind::Send,
        })?;
        let answer = match (put, completion) {
            // The operation ends when its bytes are sent; flushes wait for the target's answer and report its failure.
            (true, Completion::Local) => {
                self.shared.ops.borrow_mut().open_late(self.index, Kind::Put)?
            }
            _ => request,
        };
        let mut op = NativeOp { notify, ..transfer.part(memory, request, 0, 0..len) };
        self.by_messages(&mut op, answer);
        self.count(|counters| counters.emulated += 1);
        self.post(QueuedOp::Native(op));
        self.outcome(request)
    }

    /// Makes messages carry a transfer of which nothing was posted. The target's answer ends `answer`.
    pub(super) fn by_messages(&self, op: &mut NativeOp, answer: Id) {
        if !op.put {
            let &mut NativeOp { at: offset, len, .. } = op;
            let local_buffer = LocalBuffer { memory: op.memory.clone(), offset, len, missing: len };
            self.shared.ops.borrow_mut().set_local_buffer(answer, local_buffer);
        }
        op.answer = Some(answer);
    }

    /// Sends the part of a transfer that the transport accepts now: the bytes of a put, or the request of a get.
    pub(super) fn send_by_messages(&self, op: &mut NativeOp, answer: Id) -> Result<(), Status> {
        if !op.put {
            let request = get_request(&op.key.target(op.offset), op.len as u64);
            return self.message_now(id::GET, answer.raw(), &request);
        }
        let longest_head = if op.notify.is_some() { PUT_NOTIFY_HEAD } else { PUT_HEAD };
        let piece = self.most_behind(longest_head)?;
        loop {
            let n = piece.min(op.len - op.posted);
            let last = op.posted + n == op.len;
            let word = op.notify.filter(|_| last);
            let head = put_head(&op.key.target(op.offset + op.posted as u64), word);
            let pack = |out: &mut PackBuffer<'_>| {
                out.put(&head)?;
                op.memory.pack(op.at + op.posted, n, out)
            };
            let message = if word.is_some() { id::PUT_NOTIFY } else { id::PUT };
            let token = if last { answer.raw() } else { 0 };
            self.pack_now(message, token, head.len() + n, pack)?;
            op.posted += n;
            if last {
                return Ok(());
            }
        }
    }

    /// Determines the endpoint that emulated operations use, and checks the fences; see [`EndpointState::may_go`]. The caller opens
    /// the operation after this call. The endpoint is determined first: connecting may call the application, whose fences clear the
    /// recorded routes, including that of an operation that is not open yet.
    pub(super) fn emulating(&self) -> Result<(), Error> {
        let _ = self.emulates()?;
        let _ = self.may_go(way::EMULATED);
        Ok(())
    }

    /// Makes messages carry the rest of a queued operation, because no lane to the memory is left that has not declined it. The
    /// operation stays in its place, because later operations may wait for it.
    pub(super) fn emulate_instead(&self, op: &mut NativeOp) -> Result<(), Status> {
        if !self.may_leave(op.request, op.fenced, way::EMULATED) {
            return Ok(());
        }
        let _ = self.emulates().map_err(|error| error.status())?;
        let kind = if op.put { Kind::Put } else { Kind::Get };
        let asked = self.shared.ops.borrow_mut().open_part(op.request, self.index, kind)?;
        let done = std::mem::take(&mut op.posted);
        (op.at, op.len, op.offset) = (op.at + done, op.len - done, op.offset + done as u64);
        self.by_messages(op, asked);
        self.count(|counters| counters.emulated += 1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Context;
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
            NativeOp::new(put, (memory, at, len), (key.inner.clone(), 100), request)
        };
        let run = |mut op: NativeOp| {
            let request = op.request;
            assert_eq!(endpoint.inner.emulate_instead(&mut op), Ok(()));
            endpoint.inner.post(QueuedOp::Native(op));
            worker.finish(endpoint.inner.outcome(request)?)
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
