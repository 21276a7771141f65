//! Put, get and atomics: natively where a provider gives this pair access to that memory, over messages
//! otherwise.

use super::queue::{Source, Task};
use super::route::Way;
use super::{Endpoint, Inner};
use crate::emulate::{self, AtomicCall, Target, id};
use crate::key::KeyRecord;
use crate::region::{Access, Region};
use crate::registry::abi::RawEndpoint;
use crate::request::{Landing, Outcome};
use crate::{Error, Status};
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ops::Range;
use std::ptr;
use std::rc::Rc;
use tieline_plugin_api::abi::{Atomic, Iov, Rma};
use tieline_plugin_api::{OK, PENDING, atomic_op, caps, op_flags};

/// What an atomic does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum AtomicOp {
    /// Addition, wrapping.
    Add = atomic_op::ADD,
    /// Bitwise and.
    And = atomic_op::AND,
    /// Bitwise or.
    Or = atomic_op::OR,
    /// Bitwise exclusive or.
    Xor = atomic_op::XOR,
    /// Exchange.
    Swap = atomic_op::SWAP,
    /// Unsigned minimum.
    Min = atomic_op::MIN,
    /// Unsigned maximum.
    Max = atomic_op::MAX,
}

/// The width of an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Width {
    /// 32 bits.
    Bits32 = 4,
    /// 64 bits.
    Bits64 = 8,
}

/// When an operation counts as complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The local buffer may be reused; `flush` says when the data is visible at the target.
    Local,
    /// Visible at the target.
    Remote,
}

/// A provider's way to a region: posting needs no further choice.
#[derive(Clone, Copy)]
pub(crate) struct Native {
    pub(crate) raw: RawEndpoint,
    pub(crate) key: *mut c_void,
    pub(crate) interface: usize,
    /// Its place among the ways to the peer's memory.
    rank: usize,
    caps: u64,
    /// Complete when the call returns: no request is needed.
    synchronous: bool,
    post: [u32; 2],
    fetch: [u32; 2],
    max: [usize; 2],
}

impl Native {
    /// Copies between processes through the kernel: two can share the work.
    pub(crate) fn copies_between_processes(&self) -> bool {
        self.synchronous
            && self.caps & caps::LOCAL_ONLY != 0
            && self.caps & caps::OWN_MEMORY_ONLY == 0
    }

    /// Loads and stores to mapped memory.
    pub(crate) fn maps_memory(&self) -> bool {
        self.synchronous && self.caps & caps::OWN_MEMORY_ONLY != 0
    }
}

pub(crate) struct KeyInner {
    pub(crate) endpoint: Rc<Inner>,
    pub(crate) record: KeyRecord,
    best: Cell<Option<Native>>,
    /// Imported provider keys, with the interface that each belongs to.
    imported: RefCell<Vec<Native>>,
    /// Ways whose provider said "ask again", by rank.
    unresolved: RefCell<Vec<usize>>,
}

/// A peer's region, as this endpoint addresses it.
#[derive(Clone)]
pub struct RemoteKey {
    pub(crate) inner: Rc<KeyInner>,
}

impl RemoteKey {
    /// Length of the region in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.inner.record.len
    }

    /// Whether the region has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The path that puts and gets with this key take now: `shm/ring`, `shm-cma/copy`, or
    /// `emulated over shm/ring`.
    #[must_use]
    pub fn path(&self) -> String {
        let key = &*self.inner;
        key.resolve();
        match key.best.get() {
            Some(native) => key.endpoint.worker.interfaces[native.interface].path.clone(),
            None => format!("emulated over {}", key.endpoint.message_path()),
        }
    }

    /// Whether operations complete while the target computes and calls nothing.
    #[must_use]
    pub fn reaches_passive_target(&self) -> bool {
        let key = &*self.inner;
        match key.best.get() {
            Some(native) => native.caps & caps::PASSIVE_TARGET != 0,
            None => key.endpoint.address.service.is_some(),
        }
    }

    /// Whether a provider may still find a better path: make progress and look again.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        self.inner.resolve();
        !self.inner.unresolved.borrow().is_empty()
    }
}

impl KeyInner {
    /// Asks providers that wanted more time once more.
    #[cold]
    fn resolve(&self) {
        let waiting = std::mem::take(&mut *self.unresolved.borrow_mut());
        for rank in waiting {
            self.import_over(rank);
        }
        if !self.unresolved.borrow().is_empty() {
            self.endpoint.worker.note_settling();
        }
    }

    fn import_over(&self, rank: usize) {
        let ep = &*self.endpoint;
        let way: Way = ep.route.memory[rank];
        let slot = &ep.worker.interfaces[way.interface];
        let theirs = &ep.address.candidates[way.candidate].domain;
        let part = self
            .record
            .parts
            .iter()
            .find(|(provider, domain, _)| *provider == slot.provider.name && domain == theirs);
        let Some((_, _, bytes)) = part else { return };
        let retry = || self.unresolved.borrow_mut().push(rank);
        let raw = match ep.lane(way) {
            Ok(raw) => raw,
            Err(error) if error.status() == Status::Again => return retry(),
            Err(_) => return,
        };
        match raw.import_key(bytes) {
            Ok(key) => {
                let a = &slot.attr;
                let native = Native {
                    raw,
                    key,
                    interface: way.interface,
                    rank,
                    caps: a.caps,
                    synchronous: a.caps & caps::SYNCHRONOUS != 0,
                    post: [a.atomic_post32, a.atomic_post64],
                    fetch: [a.atomic_fetch32, a.atomic_fetch64],
                    max: [a.max_put, a.max_get],
                };
                self.imported.borrow_mut().push(native);
                if self.best.get().is_none_or(|best| rank < best.rank) {
                    self.best.set(Some(native));
                }
            }
            Err(code) if Status::from_code(code) == Status::Again => retry(),
            Err(_) => {}
        }
    }

    /// The native way that is there now, after asking providers that wanted more time.
    pub(crate) fn native_now(&self) -> Option<Native> {
        self.resolve();
        self.best.get()
    }

    /// Copies a piece the native way, alone.
    pub(crate) fn copy(
        &self,
        put: bool,
        base: *mut u8,
        len: usize,
        offset: u64,
    ) -> Result<(), Status> {
        let native = self.best.get().ok_or(Status::Unreachable)?;
        self.endpoint.post_pieces(put, base, len, &native, offset)
    }

    fn target(&self, offset: u64) -> Target {
        Target { region: self.record.region, generation: self.record.generation, offset }
    }

    /// Range and rights, from what the key says.
    fn check(&self, offset: u64, len: u64, needed: Access) -> Result<(), Error> {
        if !self.record.access.allows(needed) {
            return Err(emulate::refused(Status::KeyRejected));
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.record.len => Ok(()),
            _ => Err(Error::new(
                Status::OutOfRange,
                format!("bytes {offset}..{} of a remote region", offset.saturating_add(len)),
                format!("it has {} bytes", self.record.len),
                "use a range inside the region",
            )),
        }
    }

    /// This way failed for this pair (the kernel refuses it from now on): the next best one takes over.
    fn downgrade(&self, native: &Native, status: Status) {
        self.imported.borrow_mut().retain(|n| n.rank != native.rank);
        native.raw.drop_key(native.key);
        let best = self.imported.borrow().iter().copied().min_by_key(|n| n.rank);
        self.best.set(best);
        self.endpoint.worker.core.note(format!(
            "{} to {} stopped working ({status}); from now on: {}",
            self.endpoint.worker.interfaces[native.interface].path,
            self.endpoint.address.label(),
            best.map_or_else(
                || format!("emulated over {}", self.endpoint.message_path()),
                |n| self.endpoint.worker.interfaces[n.interface].path.clone()
            ),
        ));
    }
}

impl Drop for KeyInner {
    fn drop(&mut self) {
        for native in self.imported.borrow_mut().drain(..) {
            native.raw.drop_key(native.key);
        }
    }
}

/// A native put or get that waits for room in the provider.
pub(crate) struct NativeOp {
    pub(crate) put: bool,
    pub(crate) region: Region,
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) key: Rc<KeyInner>,
    pub(crate) offset: u64,
    pub(crate) request: u64,
}

impl Endpoint {
    /// Makes a peer's key usable on this endpoint: the bytes of the peer's `Region::remote_key`.
    ///
    /// # Errors
    /// `KeyRejected` when the bytes are damaged or belong to another process than this endpoint's peer.
    pub fn import_key(&self, bytes: &[u8]) -> Result<RemoteKey, Error> {
        let ep = &self.inner;
        ep.check_alive()?;
        let record = KeyRecord::parse(bytes)?;
        if record.context != ep.address.context {
            return Err(Error::new(
                Status::KeyRejected,
                "a remote key of another process",
                format!("this endpoint leads to {}", ep.address.label()),
                "import it on the endpoint that leads to the key's owner",
            ));
        }
        let key = KeyInner {
            endpoint: ep.clone(),
            record,
            best: Cell::new(None),
            imported: RefCell::default(),
            unresolved: RefCell::default(),
        };
        for rank in 0..ep.route.memory.len() {
            key.import_over(rank);
        }
        Ok(RemoteKey { inner: Rc::new(key) })
    }

    /// Writes a range of a local region to the peer's region at `offset`; complete when visible there.
    ///
    /// # Errors
    /// `OutOfRange` and `KeyRejected` belong to this operation: the endpoint lives on.
    #[inline]
    pub fn put(
        &self,
        local: &Region,
        range: Range<usize>,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Outcome, Error> {
        self.put_with(local, range, key, offset, Completion::Remote)
    }

    /// [`Endpoint::put`] with a choice of completion.
    ///
    /// # Errors
    /// As [`Endpoint::put`].
    #[inline]
    pub fn put_with(
        &self,
        local: &Region,
        range: Range<usize>,
        key: &RemoteKey,
        offset: u64,
        completion: Completion,
    ) -> Result<Outcome, Error> {
        let len = range.end.wrapping_sub(range.start);
        let from = local.inner.span.range(range.start, len)?;
        if let Some(native) = self.native_for(key, len, true) {
            let iov = Iov { base: from, len };
            let op = rma_op(&iov, native.key, offset, 0);
            if native.raw.put(&op) == OK {
                return Ok(Outcome::Done(0));
            }
        }
        self.inner.put_slow(local, range.start, len, key, offset, completion)
    }

    /// Writes bytes that lie anywhere; they are free again when the call returns.
    ///
    /// # Errors
    /// As [`Endpoint::put`], and `Again` when they would have to be queued and the queue is full.
    #[inline]
    pub fn put_bytes(&self, data: &[u8], key: &RemoteKey, offset: u64) -> Result<Outcome, Error> {
        if let Some(native) = self.native_for(key, data.len(), true) {
            let iov = Iov { base: data.as_ptr().cast_mut(), len: data.len() };
            let op = rma_op(&iov, native.key, offset, 0);
            if native.raw.put(&op) == OK {
                return Ok(Outcome::Done(0));
            }
        }
        self.inner.put_bytes_slow(data, key, offset)
    }

    /// Reads the peer's region at `offset` into a range of a local region.
    ///
    /// # Errors
    /// As [`Endpoint::put`].
    #[inline]
    pub fn get(
        &self,
        local: &Region,
        range: Range<usize>,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Outcome, Error> {
        let len = range.end.wrapping_sub(range.start);
        let to = local.inner.span.range(range.start, len)?;
        if let Some(native) = self.native_for(key, len, false) {
            let iov = Iov { base: to, len };
            let op = rma_op(&iov, native.key, offset, 0);
            if native.raw.get(&op) == OK {
                return Ok(Outcome::Done(0));
            }
        }
        self.inner.get_slow(local, range.start, len, key, offset)
    }

    /// An atomic without a result.
    ///
    /// # Errors
    /// As [`Endpoint::put`], and `Misaligned`.
    #[inline]
    pub fn atomic(
        &self,
        op: AtomicOp,
        width: Width,
        key: &RemoteKey,
        offset: u64,
        operand: u64,
    ) -> Result<Outcome, Error> {
        let call = AtomicCall { op: op as u32, width: width as u32, operand, compare: 0 };
        self.atomic_call(&call, key, offset, false)
    }

    /// An atomic that returns the value from before.
    ///
    /// # Errors
    /// As [`Endpoint::atomic`].
    #[inline]
    pub fn fetch(
        &self,
        op: AtomicOp,
        width: Width,
        key: &RemoteKey,
        offset: u64,
        operand: u64,
    ) -> Result<Outcome, Error> {
        let call = AtomicCall { op: op as u32, width: width as u32, operand, compare: 0 };
        self.atomic_call(&call, key, offset, true)
    }

    /// Stores `new` if the word equals `expected`; returns the value from before.
    ///
    /// # Errors
    /// As [`Endpoint::atomic`].
    #[inline]
    pub fn compare_swap(
        &self,
        width: Width,
        key: &RemoteKey,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> Result<Outcome, Error> {
        let op = atomic_op::COMPARE_SWAP;
        let call = AtomicCall { op, width: width as u32, operand: new, compare: expected };
        self.atomic_call(&call, key, offset, true)
    }

    /// Adds to a 64-bit word and returns the value from before.
    ///
    /// # Errors
    /// As [`Endpoint::atomic`].
    #[inline]
    pub fn fetch_add(&self, key: &RemoteKey, offset: u64, operand: u64) -> Result<Outcome, Error> {
        self.fetch(AtomicOp::Add, Width::Bits64, key, offset, operand)
    }

    #[inline]
    fn atomic_call(
        &self,
        call: &AtomicCall,
        key: &RemoteKey,
        offset: u64,
        fetch: bool,
    ) -> Result<Outcome, Error> {
        if let Some(native) = self.native_for(key, 0, false) {
            let masks = if fetch { &native.fetch } else { &native.post };
            if masks[(call.width / 8) as usize] & 1 << call.op != 0 {
                let mut result = 0;
                let op = atomic_op_record(call, native.key, offset, fetch, &mut result, 0);
                if native.raw.atomic(&op) == OK {
                    return Ok(Outcome::Done(result));
                }
            }
        }
        self.inner.atomic_slow(call, key, offset, fetch)
    }

    /// The native way of a key, when the short way may be taken: nothing is queued before it.
    #[inline]
    fn native_for(&self, key: &RemoteKey, len: usize, put: bool) -> Option<Native> {
        let ep = &*self.inner;
        let native = key.inner.best.get()?;
        let max = native.max[usize::from(!put)];
        (native.synchronous
            && Rc::ptr_eq(&key.inner.endpoint, &self.inner)
            && ep.may_post_memory()
            && ep.worker.same_process()
            && (max == 0 || len <= max)
            && (len < ep.worker.core.assist_size || native.caps & caps::OWN_MEMORY_ONLY != 0))
            .then_some(native)
    }
}

fn rma_op(iov: &Iov, key: *mut c_void, offset: u64, cookie: u64) -> Rma {
    Rma {
        iov: ptr::from_ref(iov),
        iov_count: 1,
        len: iov.len,
        key,
        offset,
        cookie,
        flags: op_flags::REMOTE_COMPLETION,
        local_region: ptr::null_mut(),
    }
}

fn atomic_op_record(
    call: &AtomicCall,
    key: *mut c_void,
    offset: u64,
    fetch: bool,
    result: &mut u64,
    cookie: u64,
) -> Atomic {
    Atomic {
        op: call.op,
        width: call.width,
        key,
        offset,
        operand: call.operand,
        compare: call.compare,
        result: ptr::from_mut(result),
        cookie,
        flags: op_flags::REMOTE_COMPLETION | if fetch { op_flags::FETCH } else { 0 },
    }
}

impl Inner {
    /// Whether memory operations may be posted now rather than queued: no barrier is in the queue.
    #[inline]
    pub(crate) fn may_post_memory(&self) -> bool {
        !matches!(
            self.state.get(),
            super::State::Failed | super::State::Closed | super::State::Queueing
        )
    }

    /// Everything that is checked once an operation did not take the short way.
    fn prepare(
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
        key.inner.resolve();
        Ok(())
    }

    #[cold]
    fn put_slow(
        self: &Rc<Self>,
        local: &Region,
        at: usize,
        len: usize,
        key: &RemoteKey,
        offset: u64,
        completion: Completion,
    ) -> Result<Outcome, Error> {
        self.prepare(key, offset, len, Access::WRITE)?;
        if let Some(outcome) = self.try_native(true, local, at, len, key, offset)? {
            return Ok(outcome);
        }
        let source = Source::Region(local.clone(), at);
        self.put_emulated(source, len, key, offset, completion)
    }

    #[cold]
    fn put_bytes_slow(
        self: &Rc<Self>,
        data: &[u8],
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Outcome, Error> {
        self.prepare(key, offset, data.len(), Access::WRITE)?;
        if self.may_post_memory() {
            while let Some(native) = key.inner.best.get().filter(|n| n.synchronous) {
                match self.post_pieces(true, data.as_ptr().cast_mut(), data.len(), &native, offset)
                {
                    Ok(()) => return Ok(Outcome::Done(0)),
                    Err(Status::Unreachable) => key.inner.downgrade(&native, Status::Unreachable),
                    Err(Status::Again) => break,
                    Err(status) => return Err(self.memory_failure(status)),
                }
            }
        }
        if !self.has_room(data.len()) {
            return Err(Status::Again.into());
        }
        self.put_emulated(Source::Bytes(data.into()), data.len(), key, offset, Completion::Remote)
    }

    #[cold]
    fn get_slow(
        self: &Rc<Self>,
        local: &Region,
        at: usize,
        len: usize,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Outcome, Error> {
        self.prepare(key, offset, len, Access::READ)?;
        if let Some(outcome) = self.try_native(false, local, at, len, key, offset)? {
            return Ok(outcome);
        }
        let control = self.emulating()?;
        let landing = Landing { region: local.clone(), offset: at, len, missing: len };
        let request = self.worker.requests.borrow_mut().open(control.index, 1, Some(landing));
        let bytes = emulate::get_request(&key.inner.target(offset), len as u64);
        control.enqueue(Task::control(id::GET, request, bytes));
        self.outcome(request)
    }

    #[cold]
    fn atomic_slow(
        self: &Rc<Self>,
        call: &AtomicCall,
        key: &RemoteKey,
        offset: u64,
        fetch: bool,
    ) -> Result<Outcome, Error> {
        self.prepare(key, offset, call.width as usize, Access::ATOMIC)?;
        if offset % u64::from(call.width) != 0 {
            return Err(emulate::refused(Status::Misaligned));
        }
        if self.may_post_memory() {
            if let Some(native) = key.inner.best.get() {
                let masks = if fetch { &native.fetch } else { &native.post };
                if masks[(call.width / 8) as usize] & 1 << call.op != 0 {
                    let request = self.open_request(1);
                    let mut result = 0;
                    let op =
                        atomic_op_record(call, native.key, offset, fetch, &mut result, request);
                    let code = native.raw.atomic(&op);
                    if code == PENDING {
                        return self.outcome(request);
                    }
                    self.worker.requests.borrow_mut().forget(request);
                    let _ = self.worker.requests.borrow_mut().part(request, Ok(0));
                    return match code {
                        OK => Ok(Outcome::Done(result)),
                        code => Err(self.memory_failure(Status::from_code(code))),
                    };
                }
            }
        }
        let control = self.emulating()?;
        let request = control.open_request(1);
        let bytes = emulate::atomic_request(&key.inner.target(offset), call);
        control.enqueue(Task::control(id::ATOMIC, request, bytes));
        self.outcome(request)
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
            let landing = Landing { region: local.clone(), offset: at, len, missing: 0 };
            let request = self.worker.requests.borrow_mut().open(self.index, 1, Some(landing));
            let op = NativeOp {
                put,
                region: local.clone(),
                at,
                len,
                key: key.inner.clone(),
                offset,
                request,
            };
            return self.submit(Task::Native(op)).map(Some);
        }
        Ok(None)
    }

    /// Posts one transfer to a synchronous module, in pieces that it takes.
    fn post_pieces(
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

    /// Posts a queued native operation with its request.
    pub(crate) fn attempt_native(&self, op: &NativeOp) -> Result<bool, Status> {
        let native = op.key.best.get().ok_or(Status::Unreachable)?;
        let base = op.region.inner.span.range(op.at, op.len)?;
        let iov = Iov { base, len: op.len };
        let record = rma_op(&iov, native.key, op.offset, op.request);
        let code = if op.put { native.raw.put(&record) } else { native.raw.get(&record) };
        match code {
            OK => {
                let _ = self.worker.requests.borrow_mut().part(op.request, Ok(0));
                Ok(true)
            }
            PENDING => Ok(true),
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
        control.enqueue(Task::Put { source, len, sent: 0, target, request, answer });
        self.outcome(request)
    }

    /// The endpoint that emulated operations go through.
    fn emulating(self: &Rc<Self>) -> Result<Rc<Inner>, Error> {
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
