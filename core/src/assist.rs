//! Large transfers copied from both ends: while one process is in its put or get, the other, if it is
//! making progress, copies too.
//!
//! The initiator splits the transfer into chunks and takes them from the front. It tells the peer in one
//! message, and the peer takes chunks from the back, copying with its own single-copy module in the other
//! direction. Who takes what is settled by one word in memory that both map (a job slot in a region of the
//! initiator): `sequence | taken from the front | taken from the back`. A peer that does not look costs
//! one message; one that looks late finds nothing left, or another sequence, and does nothing.

use crate::emulate::Target;
use crate::endpoint::key::{KeyInner, Native};
use crate::endpoint::queue::Failed;
use crate::endpoint::{AtomicOp, Endpoint, Inner as EndpointInner, RemoteKey, State, Width};
use crate::op::{Id, Kind, Landing, Memory};
use crate::region::{Access, Region};
use crate::request::Outcome;
use crate::wire::{Reader, Writer};
use crate::worker::Inner as WorkerInner;
use crate::{Error, Status};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

const SLOTS: usize = 16;
const SLOT_BYTES: usize = 128;
const CHUNK: usize = 64 * 1024;
/// Words of a slot: claims, chunks the helper has finished, whether the helper failed.
const CLAIMS: usize = 0;
const FINISHED: usize = 8;
const TROUBLE: usize = 16;
/// The longest piece, in chunks: nobody is away for longer than it takes.
const MOST_AT_ONCE: u64 = 16;
/// Pieces that a helper copies in one progress call, for all who have asked, so that the rest of its work goes on.
const HELP_AT_ONCE: usize = 8;
/// How often the initiator looks for the helper's last chunk before it turns to other work.
const PATIENCE: usize = 20_000;
/// So many transfers without help, and the peer is asked only for every `ASK_AGAIN`th one.
const LONELY: u32 = 4;
const ASK_AGAIN: u32 = 16;
const MOST_CHUNKS: u64 = (1 << 24) - 1;

/// The word that both sides take chunks with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claims {
    sequence: u16,
    front: u64,
    back: u64,
}

impl Claims {
    fn unpack(word: u64) -> Claims {
        Claims {
            sequence: (word >> 48) as u16,
            front: word >> 24 & MOST_CHUNKS,
            back: word & MOST_CHUNKS,
        }
    }

    fn pack(self) -> u64 {
        u64::from(self.sequence) << 48 | self.front << 24 | self.back
    }

    /// Some more from the front, if any of `chunks` is left, and the new word.
    fn take_front(self, chunks: u64) -> Option<(Run, Claims)> {
        let count = self.share(chunks)?;
        Some((Run { first: self.front, count }, Claims { front: self.front + count, ..self }))
    }

    /// The same for who has taken `front` so far. Nobody else takes there, so that a word that says otherwise is not the
    /// helper's work: what the peer writes there might go on without end.
    fn next_front(
        self,
        chunks: u64,
        sequence: u16,
        front: u64,
    ) -> Result<Option<(Run, Claims)>, Status> {
        if self.sequence != sequence || self.front != front {
            return Err(Status::BadData);
        }
        Ok(self.take_front(chunks))
    }

    /// Some more from the back.
    fn take_back(self, chunks: u64) -> Option<(Run, Claims)> {
        let count = self.share(chunks)?;
        let back = self.back + count;
        Some((Run { first: chunks - back, count }, Claims { back, ..self }))
    }

    /// How much to take at once: much while much is left, since every piece costs system calls, and little
    /// in the end, so that neither side waits long for the other.
    fn share(self, chunks: u64) -> Option<u64> {
        let left = chunks.checked_sub(self.front + self.back).filter(|&left| left > 0)?;
        Some((left / 4).clamp(1, MOST_AT_ONCE))
    }
}

/// Neighbouring chunks that are copied as one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: u64,
    count: u64,
}

/// A transfer as both sides see it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plan {
    put: bool,
    sequence: u16,
    slot: u16,
    len: u64,
    /// Where in the initiator's region.
    at: u64,
    target: Target,
}

impl Plan {
    fn chunks(&self) -> u64 {
        self.len.div_ceil(CHUNK as u64)
    }

    /// Offset and length of a run.
    fn piece(&self, run: Run) -> (u64, u64) {
        let from = run.first * CHUNK as u64;
        (from, (run.count * CHUNK as u64).min(self.len - from))
    }
}

/// A transfer of ours whose last chunks the helper still has: until it is through with them it may read or write our
/// memory, and count in the slot.
struct Job {
    plan: Plan,
    request: Option<Id>,
    local: Region,
    key: Rc<KeyInner>,
    /// What our own part ended with.
    copied: Result<(), Status>,
}

/// A transfer of a peer that we help with.
struct Help {
    /// Who asked, by its number on this worker.
    peer: u32,
    plan: Plan,
    control: RemoteKey,
    memory: RemoteKey,
}

/// The worker's shared copies: ours and those that we help with.
#[derive(Default)]
pub(crate) struct Desk {
    region: RefCell<Option<Region>>,
    unavailable: Cell<bool>,
    sequence: Cell<u16>,
    taken: Cell<u32>,
    jobs: RefCell<Vec<Job>>,
    /// At most one for each peer and slot: what an earlier request for the same slot asked for has ended.
    helps: RefCell<VecDeque<Help>>,
    /// Keys that peers have sent lately, imported.
    keys: RefCell<Vec<(u32, Vec<u8>, RemoteKey)>>,
}

impl Desk {
    pub(crate) fn is_busy(&self) -> bool {
        !self.jobs.borrow().is_empty() || !self.helps.borrow().is_empty()
    }

    pub(crate) fn close(&self) {
        self.jobs.borrow_mut().clear();
        self.helps.borrow_mut().clear();
        self.keys.borrow_mut().clear();
        *self.region.borrow_mut() = None;
    }

    /// Notes a request. The same peer's for the same slot has ended, or it would not have been used again.
    fn add_help(&self, help: Help) {
        let before = {
            let mut helps = self.helps.borrow_mut();
            let same = |h: &Help| (h.peer, h.plan.slot) == (help.peer, help.plan.slot);
            let before = helps.iter().position(same).and_then(|at| helps.remove(at));
            helps.push_back(help);
            before
        };
        drop(before);
    }

    fn take_slot(&self) -> Option<u16> {
        let free = (!self.taken.get()).trailing_zeros() as usize;
        if free >= SLOTS {
            return None;
        }
        self.taken.set(self.taken.get() | 1 << free);
        Some(free as u16)
    }

    fn give_slot(&self, slot: u16) {
        self.taken.set(self.taken.get() & !(1 << slot));
    }

    /// The region with the job slots, allocated on first use.
    fn slots(&self, worker: &WorkerInner) -> Option<Region> {
        if self.unavailable.get() {
            return None;
        }
        let mut region = self.region.borrow_mut();
        if region.is_none() {
            *region = worker
                .core
                .memory
                .alloc(SLOTS * SLOT_BYTES, Access::ALL)
                .ok()
                .filter(Region::is_shared);
            self.unavailable.set(region.is_none());
        }
        region.clone()
    }
}

fn word(region: &Region, slot: u16, at: usize) -> Result<&AtomicU64, Error> {
    region.atomic_u64(usize::from(slot) * SLOT_BYTES + at)
}

/// Shares a large transfer with the peer. `None`: it is not one to share, the caller copies alone.
#[allow(clippy::too_many_arguments)] // the arguments of a put or get, plus its way
pub(crate) fn start(
    ep: &Rc<EndpointInner>,
    put: bool,
    local: &Region,
    at: usize,
    len: usize,
    key: &RemoteKey,
    native: &Native,
    offset: u64,
) -> Option<Result<Outcome, Error>> {
    let worker = &ep.worker;
    let needed = if put { Access::READ } else { Access::WRITE };
    if len < worker.core.assist_size
        || !native.copies_between_processes()
        || !local.inner.access.allows(needed)
        || ep.address.context == worker.core.id
        || len.div_ceil(CHUNK) as u64 > MOST_CHUNKS
    {
        return None;
    }
    if ep.state.get() == State::New {
        // Nothing but memory operations so far: the peer is asked for help over the message lane.
        ep.open_message_lane().ok()?;
    }
    if ep.state.get() != State::Ready {
        return None;
    }
    if !worth_asking(ep) {
        return None;
    }
    let region = worker.assist.slots(worker)?;
    let (control_key, memory_key) = (region.packed_key().ok()?, local.packed_key().ok()?);
    let slot = worker.assist.take_slot()?;
    let sequence = worker.assist.sequence.get().wrapping_add(1).max(1);
    worker.assist.sequence.set(sequence);
    let target =
        Target { region: key.inner.record.region, generation: key.inner.record.generation, offset };
    let plan = Plan { put, sequence, slot, len: len as u64, at: at as u64, target };
    let outcome = (|| {
        word(&region, slot, FINISHED)?.store(0, Ordering::SeqCst);
        word(&region, slot, TROUBLE)?.store(0, Ordering::SeqCst);
        let claims = Claims { sequence, front: 0, back: 0 };
        word(&region, slot, CLAIMS)?.store(claims.pack(), Ordering::SeqCst);
        let bytes = request_bytes(&plan, control_key, memory_key)?;
        // A full queue only means that nobody helps.
        let _ = ep.pack_now(crate::emulate::id::ASSIST, 0, bytes.len(), |out| out.put(&bytes));
        let (local, key) = (local.hold(), key.inner.clone());
        let mut job = Job { plan, request: None, local, key, copied: Ok(()) };
        job.copied = copy_front(&job, &region);
        let now = Claims::unpack(word(&region, slot, CLAIMS)?.load(Ordering::SeqCst));
        ep.lonely.set(if now.back > 0 { 0 } else { ep.lonely.get().saturating_add(1) });
        conclude(worker, ep, native, job, &region)
    })();
    if !matches!(outcome, Ok(Outcome::Pending(_))) {
        worker.assist.give_slot(slot);
    }
    Some(outcome)
}

/// A peer that has not helped lately is asked ever more rarely: asking costs, and so do the smaller pieces.
fn worth_asking(ep: &EndpointInner) -> bool {
    let lonely = ep.lonely.get();
    if lonely < LONELY || lonely % ASK_AGAIN == 0 {
        return true;
    }
    ep.lonely.set(lonely + 1);
    false
}

/// Copies chunks from the front until none is left.
fn copy_front(job: &Job, region: &Region) -> Result<(), Status> {
    let claims = word(region, job.plan.slot, CLAIMS).map_err(|error| error.status())?;
    let chunks = job.plan.chunks();
    let mut front = 0;
    loop {
        let mut taken = Ok(None);
        let updated = claims.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |word| {
            taken = Claims::unpack(word).next_front(chunks, job.plan.sequence, front);
            taken.ok().flatten().map(|(_, next)| next.pack())
        });
        let (run, next) = match (updated, taken?) {
            (Ok(_), Some(taken)) => taken,
            _ => return Ok(()),
        };
        front = next.front;
        if let Err(status) = copy_run(job, run) {
            // Nobody may take another chunk; what the helper has in its hands it finishes.
            let stop = |word| {
                let now = Claims::unpack(word);
                Some(Claims { front: chunks.saturating_sub(now.back), ..now }.pack())
            };
            let _ = claims.fetch_update(Ordering::SeqCst, Ordering::SeqCst, stop);
            return Err(status);
        }
    }
}

fn copy_run(job: &Job, run: Run) -> Result<(), Status> {
    let (from, n) = job.plan.piece(run);
    let base = job.local.inner.span.range((job.plan.at + from) as usize, n as usize)?;
    job.key.copy(job.plan.put, base, n as usize, job.plan.target.offset + from)
}

enum Helper {
    Finished,
    Working,
    GaveUp,
}

fn helper(job: &Job, region: &Region) -> Helper {
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

fn wait_for_helper(job: &Job, region: &Region) {
    for _ in 0..PATIENCE {
        if !matches!(helper(job, region), Helper::Working) {
            return;
        }
        std::hint::spin_loop();
    }
}

/// Ends the operation, or leaves it to progress when the helper still copies.
fn conclude(
    worker: &Rc<WorkerInner>,
    ep: &Rc<EndpointInner>,
    native: &Native,
    mut job: Job,
    region: &Region,
) -> Result<Outcome, Error> {
    wait_for_helper(&job, region);
    if let Some(result) = ended(&job, region) {
        let failed = |status| ep.failed(Failed::by(native.interface, status));
        return result.map(|()| Outcome::Done(0)).map_err(failed);
    }
    let request = worker.ops.borrow_mut().open_inner(ep.index, Kind::Copy)?;
    let landing = Landing::held(Memory::Region(job.local.clone()), 0, 0);
    worker.ops.borrow_mut().set_landing(request, landing);
    job.request = Some(request);
    worker.assist.jobs.borrow_mut().push(job);
    worker.note_work();
    ep.outcome(request)
}

/// How a transfer ended, once the helper has nothing of it any more.
fn ended(job: &Job, region: &Region) -> Option<Result<(), Status>> {
    if job.copied == Err(Status::BadData) {
        // What stands in the slot is not the work of one who helps.
        return Some(job.copied);
    }
    match helper(job, region) {
        Helper::Working => None,
        Helper::Finished => Some(job.copied),
        Helper::GaveUp => Some(job.copied.and_then(|()| redo_back(job, region))),
    }
}

/// Copies what a helper had taken and gave up.
fn redo_back(job: &Job, region: &Region) -> Result<(), Status> {
    let now = word(region, job.plan.slot, CLAIMS).map_err(|e| e.status())?.load(Ordering::SeqCst);
    let count = Claims::unpack(now).back;
    if count == 0 {
        return Ok(());
    }
    // The word lies in memory that the peer can write.
    let first = job.plan.chunks().checked_sub(count).ok_or(Status::BadData)?;
    copy_run(job, Run { first, count })
}

/// The kernel has begun to refuse what this side was to copy.
fn another_way(job: &Job, request: Id) -> Result<(), Error> {
    let Plan { put, len, at, ref target, .. } = job.plan;
    let place = (at as usize, len as usize);
    job.key.endpoint.copy_another_way(request, put, &job.local, place, &job.key, target.offset)
}

/// One round of progress over shared copies.
pub(crate) fn run(worker: &Rc<WorkerInner>) -> usize {
    let mut count = 0;
    let jobs = std::mem::take(&mut *worker.assist.jobs.borrow_mut());
    for job in jobs {
        let region = worker.assist.region.borrow().clone();
        let endpoint = &job.key.endpoint;
        let result = match region.as_ref().map(|region| ended(&job, region)) {
            Some(Some(result)) => result,
            // Nobody copies any more when the peer is gone. Otherwise the slot and the memory are its until it is
            // through, also when the operation has ended with its endpoint.
            Some(None) if !endpoint.has_failed(Status::PeerFailed) => {
                worker.assist.jobs.borrow_mut().push(job);
                continue;
            }
            Some(None) => Err(Status::PeerFailed),
            None => Err(Status::Closed),
        };
        worker.assist.give_slot(job.plan.slot);
        if let Some(request) = job.request {
            if result == Err(Status::Unreachable) {
                let again = another_way(&job, request);
                worker.part(request, again.map(|()| 0));
                count += 1;
                continue;
            }
            let interface = job.key.interface();
            let failed = |status| match interface {
                Some(interface) => endpoint.failed(Failed::by(interface, status)),
                None => endpoint.failed(Failed::by_nobody(status)),
            };
            worker.part(request, result.map(|()| 0).map_err(failed));
        }
        count += 1;
    }
    count + help_in_turn(worker)
}

/// Helps those who asked, one after the other, with a bounded number of pieces for all of them together.
fn help_in_turn(worker: &Rc<WorkerInner>) -> usize {
    let mut left = HELP_AT_ONCE;
    let mut count = 0;
    let waiting = worker.assist.helps.borrow().len();
    for _ in 0..waiting {
        let Some(help) = worker.assist.helps.borrow_mut().pop_front() else { break };
        count += 1;
        if assist(worker, &help, &mut left) {
            worker.assist.helps.borrow_mut().push_back(help);
        }
        if left == 0 {
            break;
        }
    }
    count
}

// ---- the helper's side ----

fn request_bytes(plan: &Plan, control: &[u8], memory: &[u8]) -> Result<Vec<u8>, Status> {
    let mut w = Writer::default();
    let _ = w.u8(u8::from(plan.put)).u16(plan.sequence).u16(plan.slot).u64(plan.len).u64(plan.at);
    plan.target.write(&mut w);
    let _ = w.blob(control)?.blob(memory)?;
    Ok(w.bytes)
}

fn parse_request(data: &[u8]) -> Result<(Plan, &[u8], &[u8]), Status> {
    let mut r = Reader::new(data);
    let plan = Plan {
        put: r.u8()? != 0,
        sequence: r.u16()?,
        slot: r.u16()?,
        len: r.u64()?,
        at: r.u64()?,
        target: Target { region: r.u64()?, generation: r.u64()?, offset: r.u64()? },
    };
    if usize::from(plan.slot) >= SLOTS || plan.chunks() > MOST_CHUNKS {
        return Err(Status::BadData);
    }
    Ok((plan, r.blob()?, r.blob()?))
}

/// A peer asks for help with its transfer. Help is voluntary: whatever is missing, the peer copies alone.
pub(crate) fn on_request(
    worker: &Rc<WorkerInner>,
    _token: u64,
    peer: u32,
    data: &[u8],
) -> Result<(), Status> {
    let (plan, control, memory) = parse_request(data)?;
    let Ok(endpoint) = worker.reply_endpoint(peer) else { return Ok(()) };
    let endpoint = Endpoint { inner: endpoint };
    let (Some(control), Some(memory)) = (
        imported(worker, &endpoint, peer, control, true),
        imported(worker, &endpoint, peer, memory, false),
    ) else {
        return Ok(());
    };
    worker.assist.add_help(Help { peer, plan, control, memory });
    worker.note_work();
    Ok(())
}

/// A peer's key, imported once; `None` while it has no native path that fits its use.
fn imported(
    worker: &WorkerInner,
    endpoint: &Endpoint,
    peer: u32,
    bytes: &[u8],
    control: bool,
) -> Option<RemoteKey> {
    let mut keys = worker.assist.keys.borrow_mut();
    let known = keys.iter().position(|(p, b, key)| {
        *p == peer && b == bytes && Rc::ptr_eq(&key.inner.endpoint, &endpoint.inner)
    });
    let index = match known {
        Some(index) => index,
        None => {
            if keys.len() >= 16 {
                let _ = keys.remove(0);
            }
            keys.push((peer, bytes.to_vec(), endpoint.import_key(bytes).ok()?));
            keys.len() - 1
        }
    };
    let key = keys[index].2.clone();
    let native = key.inner.native_now()?;
    let fits = if control { native.maps_memory() } else { native.copies_between_processes() };
    fits.then_some(key)
}

/// Copies chunks from the back, at most `left` pieces; `true`: there are more.
fn assist(worker: &Rc<WorkerInner>, help: &Help, left: &mut usize) -> bool {
    let endpoint = Endpoint { inner: help.memory.inner.endpoint.clone() };
    if endpoint.inner.check_alive().is_err() {
        return false;
    }
    let plan = &help.plan;
    let base = u64::from(plan.slot) * SLOT_BYTES as u64;
    let at = |word: usize| base + word as u64;
    let done_now = |outcome: Result<Outcome, Error>| match outcome {
        Ok(Outcome::Done(value)) => Some(value),
        _ => None,
    };
    while *left > 0 {
        *left -= 1;
        let read = endpoint.fetch(AtomicOp::Or, Width::Bits64, &help.control, at(CLAIMS), 0);
        let Some(seen) = done_now(read) else { return false };
        let claims = Claims::unpack(seen);
        if claims.sequence != plan.sequence {
            return false;
        }
        let Some((run, next)) = claims.take_back(plan.chunks()) else { return false };
        let swapped =
            endpoint.compare_swap(Width::Bits64, &help.control, at(CLAIMS), seen, next.pack());
        match done_now(swapped) {
            Some(before) if before == seen => {}
            Some(_) => continue,
            None => return false,
        }
        let (from, n) = plan.piece(run);
        let needed = if plan.put { Access::WRITE } else { Access::READ };
        let copied = worker.core.memory.regions.reach(
            plan.target.region,
            plan.target.generation,
            (plan.target.offset.saturating_add(from), n),
            needed,
            |span, offset| {
                let base = span.range(offset, n as usize)?;
                // Where in the peer's memory is what the peer says.
                let at = plan.at.checked_add(from).ok_or(Status::OutOfRange)?;
                // A put of the peer's is a get of ours.
                let needed = if plan.put { Access::READ } else { Access::WRITE };
                help.memory.inner.check(at, n, needed).map_err(|error| error.status())?;
                help.memory.inner.copy(!plan.put, base, n as usize, at)
            },
        );
        let (word, by) = if copied.is_ok() { (FINISHED, run.count) } else { (TROUBLE, 1) };
        let told = endpoint.fetch(AtomicOp::Add, Width::Bits64, &help.control, at(word), by);
        if done_now(told).is_none() || copied.is_err() {
            return false;
        }
        worker.bump(|c| c.assisted_chunks += run.count);
    }
    true
}

#[cfg(test)]
mod tests;
