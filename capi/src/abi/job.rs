//! The job: its ranks and the exchange of addresses, by a launcher or by the caller's own functions.

use super::bytes::{Room, bytes};
use super::context::{change, keep, take};
use super::enter::{guarded, object};
use super::error::{Fault, Kind, answer, done};
use super::records::{self, Params, null, out_handle};
use super::table::{self, Handle, Object};
use super::worker::{WorkerHandle, WorkerState, drive};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tieline::{Error, Job, Status, Worker};

/// The processes of one job, as seen by one of these processes. Any thread may use the handle.
pub struct JobHandle(());

/// The caller's own exchange, which replaces the launcher's. Every function returns TIELINE_OK or a status below 0. It runs in the
/// thread of the call, except in tieline_job_barrier with a worker, which calls `barrier`, or `allgather`, in a thread of the
/// library.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Exchange {
    /// The size of this record in bytes.
    pub size: usize,
    /// The rank of this process, from 0.
    pub rank: usize,
    /// The number of processes, at most 16777216.
    pub ranks: usize,
    /// The rank of this process on its host.
    pub local_rank: usize,
    /// The number of processes on this host; 0: unknown, treated as 1.
    pub local_ranks: usize,
    /// The first argument of each function in this record.
    pub user: *mut c_void,
    /// Sends `mine`, `len` bytes, to every rank, and calls take(to, rank, bytes, len) for each rank, once and in any order, before
    /// it returns. `to` is a handle: bytes that arrive after the return are discarded.
    pub allgather: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            mine: *const c_void,
            len: usize,
            take: TakeFn,
            to: *mut c_void,
        ) -> i32,
    >,
    /// Publishes bytes under this process's rank and `key`.
    pub publish: Option<
        unsafe extern "C" fn(user: *mut c_void, key: u32, bytes: *const c_void, len: usize) -> i32,
    >,
    /// Waits until `rank` has published `key`, and passes its bytes to `take` once.
    pub lookup: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            rank: usize,
            key: u32,
            take: TakeFn,
            to: *mut c_void,
        ) -> i32,
    >,
    /// Returns when every process has called `barrier`. If the function is null, the library uses an allgather of no bytes instead.
    pub barrier: Option<unsafe extern "C" fn(user: *mut c_void) -> i32>,
}

/// A function of the library, which the caller's exchange calls with the bytes of a rank.
pub type TakeFn =
    Option<unsafe extern "C" fn(to: *mut c_void, rank: usize, bytes: *const c_void, len: usize)>;

// SAFETY: `Exchange` consists of numbers and addresses only.
unsafe impl Params for Exchange {}

enum Source {
    Launcher(Job),
    Callers(Exchange),
}

struct JobObject {
    /// The functions of the exchange. A call in progress also owns them, because the job may be closed during the call.
    source: Arc<Source>,
}

// SAFETY: the header requires the caller's functions and their word to be usable from every thread.
unsafe impl Send for Exchange {}
// SAFETY: the header requires the caller's functions and their word to be usable from every thread.
unsafe impl Sync for Exchange {}

impl Object for JobObject {
    const KIND: u8 = 11;
    const NAME: &'static str = "a job";
}

/// The maximum number of ranks of a caller's exchange, which limits the memory per exchange.
const MOST_RANKS: usize = 1 << 24;

/// The collector of the bytes that the caller's exchange delivers for the ranks from `first` on. The exchange gets a handle of the
/// collector. The handle ends with the call: bytes that arrive later are discarded.
struct Parts {
    first: usize,
    given: Vec<Option<Vec<u8>>>,
}

impl Object for Parts {
    const KIND: u8 = 14;
    const NAME: &'static str = "the results of an exchange";
}

/// Runs `body` with exclusive access to the parts; `None` if the call that made the parts has returned.
fn with_parts<T>(handle: Handle<Parts>, body: impl FnOnce(NonNull<Parts>) -> T) -> Option<T> {
    loop {
        if let Some(parts) = table::hold(handle) {
            return Some(body(parts));
        }
        if !table::is_held(handle) {
            return None;
        }
        std::thread::yield_now();
    }
}

unsafe extern "C" fn collect(to: *mut c_void, rank: usize, start: *const c_void, len: usize) {
    let handle = Handle::<Parts>::of(to);
    let _ = with_parts(handle, |mut parts| {
        // SAFETY: `keep` stored a box, and no other thread has access while this function holds the object.
        let Parts { first, given } = unsafe { parts.as_mut() };
        let place = rank.checked_sub(*first).and_then(|at| given.get_mut(at));
        if let (Some(place), Ok(bytes)) = (place, bytes(start, len)) {
            *place = Some(bytes.to_vec());
        }
        table::restore(handle);
    });
}

/// Calls the caller's exchange with the handle of a collector, and returns the bytes of `ranks` ranks from `first` on.
fn collected(
    what: &str,
    first: usize,
    ranks: usize,
    call: impl FnOnce(*mut c_void) -> i32,
) -> Result<Vec<Vec<u8>>, Error> {
    let mut parts = Parts { first, given: Vec::new() };
    parts.given.try_reserve_exact(ranks).map_err(|_| {
        let why = format!("there is no memory for {ranks} ranks");
        Error::new(Status::NoMemory, what, why, "start fewer")
    })?;
    parts.given.resize(ranks, None);
    let handle = keep(parts).map_err(|fault| fault.error)?;
    let status = call(handle.to_c());
    let ended = with_parts(handle, |parts| {
        table::release(handle);
        // SAFETY: `keep` stored a box, and there is no other reference to the object after `release`.
        *unsafe { Box::from_raw(parts.as_ptr()) }
    });
    let parts = ended.ok_or_else(|| Error::from_status(Status::Closed))?;
    failed(what, status)?;
    if let Some(at) = parts.given.iter().position(Option::is_none) {
        let why = format!("it delivered nothing of rank {}", first + at);
        let fix = "call take for each requested rank before returning";
        return Err(Error::new(Status::BadData, "the caller's exchange", why, fix));
    }
    Ok(parts.given.into_iter().flatten().collect())
}

fn failed(what: &str, status: i32) -> Result<(), Error> {
    if status >= 0 {
        return Ok(());
    }
    let why = format!("the caller's exchange returned {status}");
    Err(Error::new(Status::from_code(status), what, why, "see the errors of that exchange"))
}

fn lacks(what: &str) -> Error {
    Error::new(
        Status::Unsupported,
        what,
        "the caller's exchange has no function for it",
        "give one",
    )
}

impl Exchange {
    fn all(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let allgather = self.allgather.ok_or_else(|| lacks("an exchange"))?;
        let (start, len) = (mine.as_ptr().cast(), mine.len());
        // SAFETY: the caller guarantees that its function may be called with these arguments. The function's calls of `collect`
        // write only through the handle `to`.
        let call = |to| unsafe { allgather(self.user, start, len, Some(collect), to) };
        collected("an exchange", 0, self.ranks, call)
    }

    fn one(&self, rank: usize, key: u32) -> Result<Vec<u8>, Error> {
        let lookup = self.lookup.ok_or_else(|| lacks("a lookup"))?;
        if rank >= self.ranks {
            let why = format!("there is no rank {rank} in this job of {}", self.ranks);
            return Err(Error::new(
                Status::Invalid,
                "cannot look that up",
                why,
                "ranks run from 0",
            ));
        }
        // SAFETY: the caller guarantees that its function may be called with these arguments. The function's calls of `collect`
        // write only through the handle `to`.
        let call = |to| unsafe { lookup(self.user, rank, key, Some(collect), to) };
        Ok(collected("a lookup", rank, 1, call)?.swap_remove(0))
    }
}

/// Returns the job, which the result keeps alive for the duration of a call.
fn source_of(job: *const JobHandle) -> Result<Arc<Source>, Fault> {
    Ok(object::<JobObject, _>(job)?.source.clone())
}

impl Source {
    fn exchange(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        match self {
            Source::Launcher(job) => job.exchange(mine),
            Source::Callers(own) => own.all(mine),
        }
    }

    fn barrier(&self) -> Result<(), Error> {
        match self {
            Source::Launcher(job) => job.barrier(),
            Source::Callers(Exchange { barrier: Some(barrier), user, .. }) => {
                // SAFETY: the caller guarantees that its function may be called with these arguments.
                failed("a barrier", unsafe { barrier(*user) })
            }
            Source::Callers(own) => own.all(&[]).map(drop),
        }
    }

    /// Runs a barrier during which the worker makes progress.
    fn barrier_with(&self, worker: &Worker) -> Result<(), Error> {
        if let Source::Launcher(job) = self {
            return worker.barrier(job);
        }
        let waker = worker.waker()?;
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiting = std::thread::Builder::new().spawn_scoped(scope, || {
                let met = catch_unwind(AssertUnwindSafe(|| self.barrier()));
                over.store(true, Ordering::Release);
                waker.wake();
                met.unwrap_or_else(|_| Err(Error::from_status(Status::Io)))
            });
            let waiting = waiting.map_err(|error| {
                let why = format!("a thread for waiting cannot be started: {error}");
                Error::new(Status::NoMemory, "a barrier", why, "raise the limit of threads")
            })?;
            worker.progress_until(&|| over.load(Ordering::Acquire));
            waiting.join().unwrap_or_else(|_| Err(Error::from_status(Status::Io)))
        })
    }
}

/// Joins the job that the environment describes (tieline run, mpirun, srun, TIELINE_BOOTSTRAP). Without a launcher, the process is
/// rank 0 of 1. If `own` is not null, the caller's exchange is used instead.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_job_open(own: *const Exchange, job: *mut *mut JobHandle) -> i32 {
    done(guarded(|| {
        let out = out_handle(job)?;
        let source = if own.is_null() {
            Source::Launcher(Job::from_env()?)
        } else {
            let own = records::read(own)?;
            if own.rank >= own.ranks || own.ranks > MOST_RANKS {
                let why = format!("rank {} of {}", own.rank, own.ranks);
                let fix = format!("ranks run from 0, and there are {MOST_RANKS} at most");
                return Err(Fault::new(Status::Invalid, "a job", why, fix));
            }
            let (local, locals) = (own.local_rank, own.local_ranks);
            if locals > own.ranks || locals > 0 && local >= locals {
                let why =
                    format!("rank {local} of {locals} of its host, in a job of {}", own.ranks);
                let fix = "a host has at most as many ranks as the job, numbered from 0";
                return Err(Fault::new(Status::Invalid, "a job", why, fix));
            }
            Source::Callers(own)
        };
        out.set(keep(JobObject { source: Arc::new(source) })?.to_c());
        Ok(())
    }))
}

/// Leaves the job. A handler may call this function; if the handler runs inside a call of the job, that call completes normally.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_job_close(job: *mut JobHandle) -> i32 {
    done(guarded(|| take::<JobObject, _>(job).map(drop)))
}

/// The place of a process in its job.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct JobPlace {
    /// The size of this record in bytes. Set this field before the call.
    pub size: usize,
    /// The rank of this process, from 0.
    pub rank: usize,
    /// The number of processes.
    pub ranks: usize,
    /// The rank of this process on its host.
    pub local_rank: usize,
    /// The number of processes on this host.
    pub local_ranks: usize,
}

/// Reports the rank of this process and the size of its job.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_job_place(job: *const JobHandle, place: *mut JobPlace) -> i32 {
    done(guarded(|| {
        let found = match &*source_of(job)? {
            Source::Launcher(job) => JobPlace {
                size: 0,
                rank: job.rank(),
                ranks: job.size(),
                local_rank: job.local_rank(),
                local_ranks: job.local_size(),
            },
            Source::Callers(own) => JobPlace {
                size: 0,
                rank: own.rank,
                ranks: own.ranks,
                local_rank: own.local_rank,
                local_ranks: own.local_ranks.max(1),
            },
        };
        // SAFETY: the caller guarantees that its record is null or valid during this call.
        unsafe { records::write(place, &found) }
    }))
}

#[cold]
fn in_a_call() -> Fault {
    let why = "another call of this job is in progress, in another thread or around this call";
    let fix = "set it when that call has returned";
    Fault::new(Status::Busy, "the deadline of a job", why, fix).of(Kind::Retry)
}

/// Sets the time limit of each exchange, publication and lookup of the launcher; a caller's own exchange has its own. Returns
/// TIELINE_BUSY while another call of the job is in progress.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_job_set_deadline(job: *mut JobHandle, deadline_ns: u64) -> i32 {
    done(guarded(|| {
        change::<JobObject, _>(job, |object| {
            if let Source::Launcher(job) = Arc::get_mut(&mut object.source).ok_or_else(in_a_call)? {
                job.set_deadline(Duration::from_nanos(deadline_ns));
            }
            Ok(())
        })
    }))
}

/// Publishes bytes under this process's rank and `key`. The call does not wait for other processes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_job_publish(
    job: *const JobHandle,
    key: u32,
    data: *const c_void,
    len: usize,
) -> i32 {
    done(guarded(|| {
        let data = bytes(data, len)?;
        let published = match &*source_of(job)? {
            Source::Launcher(job) => job.publish(key, data),
            Source::Callers(own) => {
                let publish = own.publish.ok_or_else(|| lacks("publishing"))?;
                // SAFETY: the caller guarantees that its function may be called with these arguments.
                let said = unsafe { publish(own.user, key, data.as_ptr().cast(), len) };
                failed("publishing", said)
            }
        };
        Ok(published?)
    }))
}

/// Waits until `rank` has published `key`, and writes the published bytes. A launcher's job waits at most for its time limit. `len`
/// has the same meaning as for tieline_worker_address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_job_lookup(
    job: *const JobHandle,
    rank: usize,
    key: u32,
    data: *mut c_void,
    len: *mut usize,
) -> i32 {
    done(guarded(|| {
        let room = Room::new(data, len)?;
        room.fill(&match &*source_of(job)? {
            Source::Launcher(job) => job.lookup(rank, key)?,
            Source::Callers(own) => own.one(rank, key)?,
        })
    }))
}

/// Makes the failure of an exchange. After a timeout there are no more exchanges, so the call is not to be made again.
fn unrepeatable(error: Error) -> Fault {
    match error.status() {
        Status::TimedOut => Fault::from(error).of(Kind::Configure),
        _ => Fault::from(error),
    }
}

/// Sends `mine` to every process (an all-gather), and calls `take` with the bytes of each rank, in rank order. Every process must
/// make the same number of calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_job_exchange(
    job: *const JobHandle,
    mine: *const c_void,
    len: usize,
    take: TakeFn,
    to: *mut c_void,
) -> i32 {
    done(guarded(|| {
        let take = take.ok_or_else(|| null("what takes the bytes"))?;
        let all = source_of(job)?.exchange(bytes(mine, len)?).map_err(unrepeatable)?;
        for (rank, bytes) in all.iter().enumerate() {
            // SAFETY: the caller guarantees that its function may be called with these arguments.
            unsafe { take(to, rank, bytes.as_ptr().cast(), bytes.len()) };
        }
        Ok(())
    }))
}

/// Returns when every process has called tieline_job_barrier. If `worker` is not null, the call makes progress on the worker, and
/// sleeps while there is nothing to do. Pass a worker if peers may still access its memory or wait for its replies. Returns
/// TIELINE_BUSY in a handler or in the condition of a wait of that worker.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_job_barrier(
    job: *const JobHandle,
    worker: *const WorkerHandle,
) -> i32 {
    answer(guarded(|| {
        let job = source_of(job)?;
        if worker.is_null() {
            job.barrier().map_err(unrepeatable)?;
            return Ok(0);
        }
        if object::<WorkerState, _>(worker)?.mark.is_in_handler() {
            let why = "it waits, and this is in a handler or in the condition of another wait";
            let fix = "call it when the surrounding call has returned";
            return Err(Fault::new(Status::Busy, "a barrier", why, fix));
        }
        drive(worker, |_, worker| {
            job.barrier_with(worker).map_err(unrepeatable)?;
            Ok(0)
        })
    }))
}
