//! The slow way of put, get and atomics: whatever did not complete in one call.

use super::key::{KeyInner, Native, RemoteKey};
use super::queue::{Source, Task};
use super::rma::{Completion, rma_op};
use super::{Inner, State};
use crate::emulate::{self, id};
use crate::region::{Access, Region};
use crate::request::{Landing, Memory, Outcome, Request};
use crate::{Error, Status};
use std::rc::Rc;
use std::sync::Arc;
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{OK, PENDING};

/// A native put or get that waits for room in the provider.
pub(crate) struct NativeOp {
    pub(crate) put: bool,
    pub(crate) memory: Memory,
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) key: Rc<KeyInner>,
    pub(crate) offset: u64,
    pub(crate) request: u64,
    /// Which way to the peer's memory.
    pub(super) rank: usize,
}

impl NativeOp {
    /// Bytes of a copy, which counts against the bound of the queue.
    pub(super) fn copied(&self) -> usize {
        if matches!(self.memory, Memory::Bytes(_)) { self.len } else { 0 }
    }
}

/// Whether a lane says by this status that it is finished, rather than what is wrong with the operation.
fn is_over(status: Status) -> bool {
    use Status::*;
    matches!(status, PeerFailed | TimedOut | Unreachable | NoDevice | Io | Closed)
}

impl Inner {
    /// Whether memory operations may be posted now rather than queued: no barrier is in the queue.
    #[inline]
    pub(crate) fn may_post_memory(&self) -> bool {
        match self.state.get() {
            State::Ready => true,
            State::New => self.queue_len() == 0,
            State::Failed | State::Closed | State::Queueing => false,
        }
    }

    /// Everything that is checked once an operation did not take the short way.
    pub(super) fn prepare(
        self: &Rc<Self>,
        key: &RemoteKey,
        offset: u64,
        len: usize,
        needed: Access,
    ) -> Result<(), Error> {
        self.check_alive()?;
        if !Rc::ptr_eq(&key.inner.endpoint, self) {
            return Err(Error::new(
                Status::KeyRejected,
                "a key that was imported on another endpoint",
                "an imported key belongs to its endpoint",
                "import the key's bytes on this endpoint too",
            ));
        }
        key.inner.check(offset, len as u64, needed)?;
        key.inner.resolve_now_and_then();
        Ok(())
    }

    /// Local memory belongs to a context, as this worker does. The short way does not ask: what it does is over when
    /// the call returns, and needs of the region nothing but its bytes, which the caller's handle keeps. Here a provider,
    /// or a helper, would take its registrations for those of this context.
    pub(super) fn check_local(&self, local: &Region) -> Result<(), Error> {
        if Arc::ptr_eq(&local.inner.core, &self.worker.core) {
            return Ok(());
        }
        Err(Error::new(
            Status::Invalid,
            "local memory of another context",
            "a region is registered for the workers of its own context",
            "register the memory in the context of this endpoint's worker too",
        ))
    }

    #[inline(never)]
    pub(super) fn put_slow(
        self: &Rc<Self>,
        local: &Region,
        at: usize,
        len: usize,
        key: &RemoteKey,
        offset: u64,
        completion: Completion,
    ) -> Result<Outcome, Error> {
        self.check_local(local)?;
        self.prepare(key, offset, len, Access::WRITE)?;
        if let Some(outcome) =
            self.post_now(true, || Memory::Region(local.hold()), at, len, key, offset)?
        {
            return Ok(outcome);
        }
        if let Some(outcome) = self.try_native(true, local, at, len, key, offset)? {
            return Ok(outcome);
        }
        let source = Source::Region(local.hold(), at);
        self.put_emulated(source, len, key, offset, completion)
    }

    #[cold]
    pub(super) fn put_bytes_slow(
        self: &Rc<Self>,
        data: &[u8],
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Outcome, Error> {
        self.prepare(key, offset, data.len(), Access::WRITE)?;
        while let Some(native) = key.inner.best.get() {
            if !native.synchronous {
                if !self.has_room(data.len()) {
                    return Err(Status::Again.into());
                }
                let (memory, len) = (Memory::Bytes(data.into()), data.len());
                if let Some(outcome) =
                    self.post_now(true, || memory.clone(), 0, len, key, offset)?
                {
                    return Ok(outcome);
                }
                return self.post_in_turn(true, memory, 0, len, key, offset, native.rank);
            }
            if !self.may_post_memory() {
                break;
            }
            match self.post_pieces(true, data.as_ptr().cast_mut(), data.len(), &native, offset) {
                Ok(()) => return Ok(Outcome::Done(0)),
                Err(Status::Unreachable) => key.inner.downgrade(&native, Status::Unreachable),
                Err(Status::Again) => break,
                Err(status) => return Err(self.memory_failure(status)),
            }
        }
        if !self.has_room(data.len()) {
            return Err(Status::Again.into());
        }
        if let Some(rank) = key.inner.forming() {
            let memory = Memory::Bytes(data.into());
            return self.post_in_turn(true, memory, 0, data.len(), key, offset, rank);
        }
        self.put_emulated(Source::Bytes(data.into()), data.len(), key, offset, Completion::Remote)
    }

    #[inline(never)]
    pub(super) fn get_slow(
        self: &Rc<Self>,
        local: &Region,
        at: usize,
        len: usize,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Outcome, Error> {
        self.check_local(local)?;
        self.prepare(key, offset, len, Access::READ)?;
        if let Some(outcome) =
            self.post_now(false, || Memory::Region(local.hold()), at, len, key, offset)?
        {
            return Ok(outcome);
        }
        if let Some(outcome) = self.try_native(false, local, at, len, key, offset)? {
            return Ok(outcome);
        }
        let control = self.emulating()?;
        let memory = Memory::Region(local.hold());
        let landing = Landing { memory, offset: at, len, missing: len };
        let request = self.worker.requests.borrow_mut().open(control.index, 1, Some(landing));
        let bytes = emulate::get_request(&key.inner.target(offset), len as u64);
        self.emulate(&control, Task::control(id::GET, request, bytes));
        self.outcome(request)
    }

    /// Posts to a module that says later how it ended, where nothing waits and one lane carries all of it: what most
    /// puts and gets of a network do. `None`: nothing was posted.
    #[inline(always)]
    fn post_now(
        &self,
        put: bool,
        memory: impl FnOnce() -> Memory,
        at: usize,
        len: usize,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Option<Outcome>, Error> {
        let Some(native) = key.inner.best.get() else { return Ok(None) };
        let waits = self.queue_len() > 0 || !self.may_post_memory();
        if native.synchronous || len >= super::rails::SHARED_FROM || waits {
            return Ok(None);
        }
        let memory = memory();
        let iov = Iov { base: memory.at(at, len)?, len };
        let landing = Landing { memory, offset: at, len, missing: 0 };
        let request = self.worker.requests.borrow_mut().open(self.index, 1, Some(landing));
        let record = rma_op(&iov, native.key, offset, request);
        let code = if put { native.raw.put(&record) } else { native.raw.get(&record) };
        let mut requests = self.worker.requests.borrow_mut();
        if code == PENDING {
            // How it ended, only progress can bring.
            requests.posted(request);
            return Ok(Some(Outcome::Pending(Request {
                worker: self.worker.clone(),
                id: request,
            })));
        }
        requests.forget(request);
        let _ = requests.part(request, Ok(0));
        Ok((code == OK).then_some(Outcome::Done(0)))
    }

    /// Posts natively, splits, shares the work with the peer, or queues; `None`: there is no native way.
    fn try_native(
        self: &Rc<Self>,
        put: bool,
        local: &Region,
        at: usize,
        len: usize,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Option<Outcome>, Error> {
        while let Some(native) = key.inner.best.get() {
            if native.synchronous && self.may_post_memory() {
                if let Some(outcome) =
                    crate::assist::start(self, put, local, at, len, key, &native, offset)
                {
                    return outcome.map(Some);
                }
                let base = local.inner.span.range(at, len)?;
                match self.post_pieces(put, base, len, &native, offset) {
                    Ok(()) => return Ok(Some(Outcome::Done(0))),
                    Err(Status::Unreachable) => {
                        key.inner.downgrade(&native, Status::Unreachable);
                        continue;
                    }
                    Err(Status::Again) => {}
                    Err(status) => return Err(self.memory_failure(status)),
                }
            }
            let memory = Memory::Region(local.hold());
            if native.synchronous || len < super::rails::SHARED_FROM {
                return self.post_in_turn(put, memory, at, len, key, offset, native.rank).map(Some);
            }
            return self.post_shared(put, &memory, at, len, key, offset, &native).map(Some);
        }
        let Some(rank) = key.inner.forming() else { return Ok(None) };
        let memory = Memory::Region(local.hold());
        self.post_in_turn(put, memory, at, len, key, offset, rank).map(Some)
    }

    /// Posts behind what is queued, and once the connection has formed that it goes over; see
    /// [`Inner::attempt_native`].
    #[expect(clippy::too_many_arguments, reason = "one operation, taken apart")]
    fn post_in_turn(
        self: &Rc<Self>,
        put: bool,
        memory: Memory,
        at: usize,
        len: usize,
        key: &RemoteKey,
        offset: u64,
        rank: usize,
    ) -> Result<Outcome, Error> {
        let landing = Landing { memory: memory.clone(), offset: at, len, missing: 0 };
        let request = self.worker.requests.borrow_mut().open(self.index, 1, Some(landing));
        let key = key.inner.clone();
        self.enqueue(Task::Native(NativeOp { put, memory, at, len, key, offset, request, rank }));
        self.outcome(request)
    }

    /// The same over all domains that lead to that memory, by their bandwidth.
    #[expect(clippy::too_many_arguments, reason = "one operation, taken apart")]
    fn post_shared(
        self: &Rc<Self>,
        put: bool,
        memory: &Memory,
        at: usize,
        len: usize,
        key: &RemoteKey,
        offset: u64,
        native: &Native,
    ) -> Result<Outcome, Error> {
        let rails = key.inner.rails(native, offset, len);
        if let [_] = rails[..] {
            return self.post_in_turn(put, memory.clone(), at, len, key, offset, native.rank);
        }
        self.shared.set(true);
        let landing = Landing { memory: memory.clone(), offset: at, len, missing: 0 };
        let parts = rails.len() as u32;
        let request = self.worker.requests.borrow_mut().open(self.index, parts, Some(landing));
        let mut done = 0;
        for (rank, len) in rails {
            self.enqueue(Task::Native(NativeOp {
                put,
                memory: memory.clone(),
                at: at + done,
                len,
                key: key.inner.clone(),
                offset: offset + done as u64,
                request,
                rank,
            }));
            done += len;
        }
        self.outcome(request)
    }

    /// Posts one transfer to a synchronous module, in pieces that it takes.
    pub(super) fn post_pieces(
        &self,
        put: bool,
        base: *mut u8,
        len: usize,
        native: &Native,
        offset: u64,
    ) -> Result<(), Status> {
        let max = match native.max[usize::from(!put)] {
            0 => usize::MAX,
            max => max,
        };
        let mut done = 0;
        loop {
            let n = max.min(len - done);
            let iov = Iov { base: base.wrapping_add(done), len: n };
            let op = rma_op(&iov, native.key, offset + done as u64, 0);
            let code = if put { native.raw.put(&op) } else { native.raw.get(&op) };
            if code != OK {
                return Err(Status::from_code(code));
            }
            done += n;
            if done >= len {
                return Ok(());
            }
        }
    }

    /// Posts a queued native operation with its request. A lane that refuses it because it is finished gives way to
    /// the next one to that memory: nothing was posted. What had been posted on it has failed and is not done again
    /// here: its device, or the network, may still carry it out.
    pub(crate) fn attempt_native(&self, op: &NativeOp) -> Result<bool, Status> {
        loop {
            let Some(native) = op.key.way(op.rank).or_else(|| op.key.native_now()) else {
                return if op.key.forming().is_some() {
                    Ok(false)
                } else {
                    self.emulate_instead(op)
                };
            };
            match self.post_native(op, &native) {
                Err(status) if is_over(status) && op.key.has_another(&native) => {
                    op.key.downgrade(&native, status);
                }
                result => return result,
            }
        }
    }

    /// No connection came about over which the provider would do it: it goes over messages.
    fn emulate_instead(&self, op: &NativeOp) -> Result<bool, Status> {
        let me = self.worker.endpoint(self.index).ok_or(Status::Closed)?;
        let control = me.emulating().map_err(|error| error.status())?;
        let target = op.key.target(op.offset);
        let task = {
            let mut requests = self.worker.requests.borrow_mut();
            let slot = requests.get(op.request).ok_or(Status::Closed)?;
            if let Some(landing) = &mut slot.landing {
                landing.missing = if op.put { 0 } else { op.len };
            }
            requests.goes_through(op.request, control.index);
            let request = op.request;
            if op.put {
                let source = match &op.memory {
                    Memory::Region(region) => Source::Region(region.clone(), op.at),
                    Memory::Bytes(bytes) => Source::Bytes((**bytes).into()),
                };
                Task::Put { source, len: op.len, sent: 0, target, request, answer: request }
            } else {
                Task::control(id::GET, request, emulate::get_request(&target, op.len as u64))
            }
        };
        me.emulate(&control, task);
        Ok(true)
    }

    fn post_native(&self, op: &NativeOp, native: &Native) -> Result<bool, Status> {
        let iov = Iov { base: op.memory.at(op.at, op.len)?, len: op.len };
        let record = rma_op(&iov, native.key, op.offset, op.request);
        let code = if op.put { native.raw.put(&record) } else { native.raw.get(&record) };
        match code {
            OK => {
                let _ = self.worker.requests.borrow_mut().part(op.request, Ok(0));
                Ok(true)
            }
            PENDING => {
                self.worker.requests.borrow_mut().posted(op.request);
                Ok(true)
            }
            code if Status::from_code(code) == Status::Again => Ok(false),
            code => Err(Status::from_code(code)),
        }
    }

    fn put_emulated(
        self: &Rc<Self>,
        source: Source,
        len: usize,
        key: &RemoteKey,
        offset: u64,
        completion: Completion,
    ) -> Result<Outcome, Error> {
        let control = self.emulating()?;
        let request = control.open_request(1);
        let target = key.inner.target(offset);
        let answer = match completion {
            Completion::Remote => request,
            // The operation ends when its bytes are sent; what the target says of it, the next flush says.
            Completion::Local => self.worker.requests.borrow_mut().open_late(control.index),
        };
        self.emulate(&control, Task::Put { source, len, sent: 0, target, request, answer });
        self.outcome(request)
    }

    /// The endpoint that emulated operations go through.
    pub(super) fn emulating(self: &Rc<Self>) -> Result<Rc<Inner>, Error> {
        let control = match self.control()? {
            Some(control) => control,
            None => self.clone(),
        };
        control.check_alive()?;
        self.note_emulated();
        Ok(control)
    }

    /// The error of a native operation; what means the end of the endpoint ends it.
    pub(crate) fn memory_failure(&self, status: Status) -> Error {
        let error = self.failure(status);
        if matches!(status, Status::PeerFailed | Status::ProviderFailed) {
            self.endpoint_status(status, error.clone());
            if status == Status::PeerFailed {
                self.worker.peer_failed(self.address.context, &error);
            }
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Context;

    #[test]
    fn a_transfer_whose_connection_did_not_come_about_goes_over_messages() -> Result<(), Error> {
        let context = Context::open()?;
        let worker = context.worker()?;
        let (local, target) =
            (context.register(vec![7u8; 500])?, context.register(vec![1u8; 500])?);
        let endpoint = worker.connect(&worker.address()?)?;
        let key = endpoint.import_key(&target.remote_key()?)?;
        let op = |put, memory: Memory, at, len| {
            let landing = Landing { memory: memory.clone(), offset: at, len, missing: 0 };
            let request =
                worker.inner.requests.borrow_mut().open(endpoint.inner.index, 1, Some(landing));
            NativeOp { put, memory, at, len, key: key.inner.clone(), offset: 100, request, rank: 0 }
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
