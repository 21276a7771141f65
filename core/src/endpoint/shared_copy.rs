//! The initiating side of a copy that a peer shares; see [`crate::proto::shared_copy`].

use super::key::ImportedKey;
use super::post::Transfer;
use super::queued::{Failed, NativeOp, QueuedOp, SharedCopy};
use super::{EndpointState, State};
use crate::mem::local::{LocalBuffer, Memory};
use crate::proto::id;
use crate::proto::shared_copy::{
    CLAIMS, Claims, FINISHED, Plan, Run, TROUBLE, request_bytes, word,
};
use crate::region::{Access, Region};
use crate::request::Outcome;
use crate::shared::Shared;
use crate::{Error, Status};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::Ordering;
use tieline_order::{Id, Kind, way};

/// The number of times that the initiator checks for the helper's last chunk before it does other work.
const PATIENCE: usize = 20_000;
/// The maximum number of pieces of rendezvous messages that one progress call copies.
const AT_ONCE: usize = 2;
/// The number of transfers without help after which the peer is asked only for every `ASK_AGAIN`th transfer.
const UNHELPED: u32 = 4;
const ASK_AGAIN: u32 = 16;

impl EndpointState {
    /// Starts [`Protocol::Together`](super::plan::Protocol::Together): shares a large transfer with the peer. `None`: the transfer
    /// cannot be shared, and the caller copies it alone.
    pub(super) fn share_copy(
        &self,
        transfer: &Transfer<'_>,
        local: &Region,
        native: &ImportedKey,
        declined: u64,
    ) -> Option<Result<Outcome, Error>> {
        let &Transfer { put, at, len, key, offset, .. } = transfer;
        let core = &self.shared.core;
        let needed = if put { Access::READ } else { Access::WRITE };
        if key.inner.alone.get()
            || !(local.is_lent() || local.inner.access.allows(needed))
            || self.address.context == core.id
            || !Plan::fits(len)
        {
            return None;
        }
        if self.state.get() == State::New {
            // The endpoint has posted only memory operations so far, but the request for help needs the message lane.
            self.open_message_lane().ok()?;
        }
        if self.state.get() != State::Ready || !self.worth_asking() {
            return None;
        }
        let slots = &self.shared.slots;
        if !slots.has_free() {
            return None;
        }
        let region = slots.region(&core.memory)?;
        // The peer gets a key of exactly these bytes, which ends with the transfer. If a request is read after its number was
        // reused, it cannot access memory.
        let part = self.part_for_copy(local, at..at + len, needed, native)?;
        let (control_key, memory_key) = (region.packed_key().ok()?, part.packed_key().ok()?);
        let slot = slots.take()?;
        let sequence = slots.next_sequence();
        let target = key.inner.target(offset);
        let plan = Plan { put, sequence, slot, len: len as u64, at: 0, target };
        let outcome = (|| {
            word(&region, slot, FINISHED)?.store(0, Ordering::SeqCst);
            word(&region, slot, TROUBLE)?.store(0, Ordering::SeqCst);
            let claims = Claims { sequence, front: 0, back: 0 };
            word(&region, slot, CLAIMS)?.store(claims.pack(), Ordering::SeqCst);
            let bytes = request_bytes(&plan, control_key, memory_key)?;
            if bytes.len() > self.message.max_packed() {
                return Ok(None);
            }
            match self.pack_now(id::ASSIST, 0, bytes.len(), |out| out.put(&bytes)) {
                Ok(()) => slots.used(sequence),
                Err(
                    status @ (Status::ProviderFailed
                    | Status::PeerFailed
                    | Status::Closed
                    | Status::BadData
                    | Status::Io),
                ) => return Err(self.failed(self.by_message_lane(status))),
                // The lane does not accept the request: this side copies alone.
                Err(_) => return Ok(None),
            }
            let (local, key, rank) = (part.hold(), key.inner.clone(), native.rank);
            let (request, front, copied) = (None, Some(0), Ok(()));
            let mut job = SharedCopy { plan, request, local, key, rank, declined, front, copied };
            // Progress calls copy the bytes of a rendezvous message, so that the peer can begin with the next one meanwhile.
            if job.key.in_parts.get() {
                return self.go_on_later(job).map(Some);
            }
            while copy_next(&mut job, &region) {}
            self.conclude(native, job, &region).map(Some)
        })();
        if !matches!(outcome, Ok(Some(Outcome::Pending(_)))) {
            slots.give_back(slot);
        }
        outcome.transpose()
    }

    /// Makes a region of a part of local memory for the peer's copy. The peer reaches only that part.
    fn part_for_copy(
        &self,
        local: &Region,
        range: Range<usize>,
        needed: Access,
        native: &ImportedKey,
    ) -> Option<Region> {
        let slot = &self.shared.interfaces[native.interface];
        let domain = (&*slot.provider.name, &*slot.domain);
        self.shared.core.memory.part_for_copy(local, range, needed, domain).ok()
    }

    /// Decides whether to request help: a peer that has not helped recently gets fewer requests, because requests and smaller
    /// pieces cost time.
    fn worth_asking(&self) -> bool {
        let unhelped = self.unhelped.get();
        if unhelped < UNHELPED || unhelped % ASK_AGAIN == 0 {
            return true;
        }
        self.unhelped.set(unhelped + 1);
        false
    }

    /// Ends the operation, or continues it in progress calls while the helper still copies.
    fn conclude(
        &self,
        native: &ImportedKey,
        job: SharedCopy,
        region: &Region,
    ) -> Result<Outcome, Error> {
        wait_for_helper(&job, region);
        if let Some(result) = ended(&job, region) {
            let failed = |status| self.copy_failed(Some(native.interface), status);
            return result.map(|()| Outcome::Done(0)).map_err(failed);
        }
        self.go_on_later(job)
    }

    /// Returns the error of a shared copy, the same as for any other copy. A peer that has died may have sent messages before,
    /// which are still delivered. A peer with an invalid answer ends the endpoint. A provider that broke its contract is taken out
    /// of use. Any other failure of a module ends only that copy.
    fn copy_failed(&self, interface: Option<usize>, status: Status) -> Error {
        match (status, interface) {
            (Status::PeerFailed, Some(lane)) => {
                self.peer_lost(self.failure_over(status, interface), lane)
            }
            (Status::PeerFailed | Status::BadData | Status::ProviderFailed, _) => {
                self.failed(Failed { status, interface })
            }
            _ => self.failure_over(status, interface),
        }
    }

    /// Leaves the rest of the copy to progress calls.
    fn go_on_later(&self, mut job: SharedCopy) -> Result<Outcome, Error> {
        // The route is recorded again: opening the message lane may have called the application, whose fences clear routes that are
        // not open yet.
        self.order.note_posted(way::AT_ONCE);
        let request = {
            let mut ops = self.shared.ops.borrow_mut();
            let request = ops.open_inner(self.index, Kind::Copy)?;
            ops.set_local_buffer(
                request,
                LocalBuffer::held(Memory::Region(job.local.clone()), 0, 0),
            );
            request
        };
        job.request = Some(request);
        self.worker.add_copy(job);
        self.outcome(request)
    }

    /// Moves the whole transfer to another route or into the queue. The reason is that the kernel refuses this side's copies, or
    /// that the lane has declined the transfer or does not accept it at present. The transfer stays a part of the same operation,
    /// ahead of later queued operations.
    fn copy_another_way(&self, request: Id, job: &SharedCopy, why: Status) -> Result<(), Error> {
        self.check_alive()?;
        let (SharedCopy { plan, local, key, .. }, mut declined) = (job, job.declined);
        if let Some(native) = key.at_once(Some(job.rank)) {
            match why {
                Status::Declined => declined |= native.mark(),
                // The transfer waits until the lane accepts it.
                Status::Again => {}
                why => key.downgrade(&native, why),
            }
        }
        let (at, len) = (plan.at as usize, plan.len as usize);
        let memory = Memory::Region(local.clone());
        let part = self.open_native(Some(request), memory.clone(), at, len)?;
        let remote = (key.clone(), plan.target.offset);
        let op = NativeOp::new(plan.put, (memory, at, len), remote, part);
        self.put_first(QueuedOp::Native(NativeOp { rank: job.rank, declined, begun: true, ..op }));
        Ok(())
    }
}

/// Copies some chunks from the front. `false`: no chunk remained, or the copy failed; this side's own part has ended.
fn copy_next(job: &mut SharedCopy, region: &Region) -> bool {
    let Some(front) = job.front else { return false };
    match copy_from(job, region, front) {
        Ok(Some(front)) => job.front = Some(front),
        ended => stop(job, region, ended.map(drop)),
    }
    job.front.is_some()
}

/// Copies some chunks after the first `front` chunks. Returns the new number of copied chunks, if any chunk remained.
fn copy_from(job: &SharedCopy, region: &Region, front: u64) -> Result<Option<u64>, Status> {
    let claims = word(region, job.plan.slot, CLAIMS).map_err(|error| error.status())?;
    let chunks = job.plan.chunks();
    let mut taken = Ok(None);
    let updated = claims.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |word| {
        taken = Claims::unpack(word).next_front(chunks, job.plan.sequence, front);
        taken.ok().flatten().map(|(_, next)| next.pack())
    });
    match (updated, taken?) {
        (Ok(_), Some((run, next))) => copy_run(job, run).map(|()| Some(next.front)),
        _ => Ok(None),
    }
}

/// Records the result with which this side's own part has ended.
fn stop(job: &mut SharedCopy, region: &Region, ended: Result<(), Status>) {
    (job.front, job.copied) = (None, ended);
    let Ok(claims) = word(region, job.plan.slot, CLAIMS) else { return };
    let now = Claims::unpack(claims.load(Ordering::SeqCst));
    if ended.is_err() && ended != Err(Status::BadData) {
        // No further chunk may be claimed; the helper finishes the chunks it has claimed.
        let chunks = job.plan.chunks();
        let stop = |word| {
            let now = Claims::unpack(word);
            Some(Claims { front: chunks.saturating_sub(now.back), ..now }.pack())
        };
        let _ = claims.fetch_update(Ordering::SeqCst, Ordering::SeqCst, stop);
    }
    let (endpoint, was_helped) = (&job.key.endpoint, now.back > 0);
    endpoint.count(|counters| counters.shared += u64::from(was_helped));
    let before = endpoint.unhelped.get();
    endpoint.unhelped.set(if was_helped { 0 } else { before.saturating_add(1) });
}

fn copy_run(job: &SharedCopy, run: Run) -> Result<(), Status> {
    let (from, n) = job.plan.piece(run);
    let base = job.local.inner.span.range((job.plan.at + from) as usize, n as usize)?;
    job.key.copy(Some(job.rank), job.plan.put, base, n as usize, job.plan.target.offset + from)
}

enum Helper {
    Finished,
    Working,
    GaveUp,
}

fn helper(job: &SharedCopy, region: &Region) -> Helper {
    let read = |at| word(region, job.plan.slot, at).map_or(0, |w| w.load(Ordering::SeqCst));
    if read(TROUBLE) != 0 {
        return Helper::GaveUp;
    }
    if read(FINISHED) >= Claims::unpack(read(CLAIMS)).back {
        Helper::Finished
    } else {
        Helper::Working
    }
}

fn wait_for_helper(job: &SharedCopy, region: &Region) {
    for _ in 0..PATIENCE {
        if !matches!(helper(job, region), Helper::Working) {
            return;
        }
        std::hint::spin_loop();
    }
}

/// Returns the result of a transfer, once the helper works on no part of it or the slot's content is invalid.
fn ended(job: &SharedCopy, region: &Region) -> Option<Result<(), Status>> {
    if job.copied == Err(Status::BadData) {
        // The content of the slot is not that of a helping peer.
        return Some(job.copied);
    }
    match helper(job, region) {
        Helper::Working => None,
        Helper::Finished => Some(job.copied),
        Helper::GaveUp => Some(job.copied.and_then(|()| redo_back(job, region))),
    }
}

/// Copies the chunks that a helper had claimed and then abandoned.
fn redo_back(job: &SharedCopy, region: &Region) -> Result<(), Status> {
    let now = word(region, job.plan.slot, CLAIMS).map_err(|e| e.status())?.load(Ordering::SeqCst);
    let count = Claims::unpack(now).back;
    if count == 0 {
        return Ok(());
    }
    // The peer can write the memory of this word.
    let first = job.plan.chunks().checked_sub(count).ok_or(Status::BadData)?;
    copy_run(job, Run { first, count })
}

/// Checks whether the kernel reports that the peer's process is gone. If the lane of the copy cannot ask the kernel, another lane
/// is used. If no lane remains that could ask the kernel, a failed connection counts as proof.
fn is_gone(job: &SharedCopy) -> bool {
    let endpoint = &job.key.endpoint;
    let own = |native: &&ImportedKey| native.rank == job.rank && native.synchronous;
    let asks = |native: &&ImportedKey| own(native) || native.copies_between_processes();
    let lanes: Vec<_> = job.key.imported.borrow().iter().filter(asks).copied().collect();
    for native in lanes {
        let at = std::ptr::NonNull::dangling().as_ptr();
        let offset = job.plan.target.offset;
        match endpoint.post_at_once(job.plan.put, at, 0, &native, offset, &mut 0) {
            Err(Status::Declined | Status::Unreachable) => {}
            asked => return asked == Err(Status::PeerFailed),
        }
    }
    endpoint.dead_error().status() == Status::PeerFailed
}

/// Runs one round of progress over a worker's shared copies. Returns 0 if nothing was copied and no copy has ended.
pub(crate) fn run(shared: &Shared, copies: &RefCell<Vec<SharedCopy>>) -> usize {
    let (mut count, mut left) = (0, AT_ONCE);
    let jobs = std::mem::take(&mut *copies.borrow_mut());
    for mut job in jobs {
        let region = shared.slots.open_region();
        let of_ours = region.as_ref().filter(|_| job.front.is_some());
        if let Some(region) = of_ours {
            count += left.min(1);
            if !job.key.endpoint.is_alive() {
                stop(&mut job, region, Err(Status::PeerFailed));
            }
            while left > 0 && copy_next(&mut job, region) {
                left -= 1;
            }
            if job.front.is_some() {
                copies.borrow_mut().push(job);
                continue;
            }
        }
        let endpoint = &job.key.endpoint;
        let result = match region.as_ref().map(|region| ended(&job, region)) {
            Some(Some(result)) => result,
            // If the peer's process is gone, it copies nothing more. Otherwise the peer uses the slot and the memory until it has
            // finished, even if the operation has ended with its endpoint.
            Some(None) if endpoint.is_alive() || !is_gone(&job) => {
                copies.borrow_mut().push(job);
                continue;
            }
            Some(None) => Err(Status::PeerFailed),
            None => Err(Status::Closed),
        };
        shared.slots.give_back(job.plan.slot);
        count += 1;
        let Some(request) = job.request else { continue };
        if let Err(why @ (Status::Unreachable | Status::Declined | Status::Again)) = result {
            let again = endpoint.copy_another_way(request, &job, why);
            shared.part(request, again.map(|()| 0));
            continue;
        }
        let failed = |status| {
            let native = job.key.at_once(Some(job.rank));
            endpoint.copy_failed(native.map(|native| native.interface), status)
        };
        shared.part(request, result.map(|()| 0).map_err(failed));
    }
    count
}
