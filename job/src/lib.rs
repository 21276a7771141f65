//! A job: the processes that a launcher or a user started together, and the exchange by which they pass each other the few bytes
//! needed to connect.
//!
//! ```no_run
//! use tieline_job::Job;
//!
//! fn main() -> Result<(), tieline_explain::Error> {
//!     let job = Job::from_env()?; // rank 0 of 1 without a launcher
//!     let address = b"what worker.address() gave".to_vec();
//!     let everyone = job.exchange(&address)?; // everyone[r] came from rank r
//!     assert_eq!(everyone.len(), job.size());
//!     job.barrier()
//! }
//! ```
//!
//! [`Job::from_env`] uses the first match in the environment:
//!
//! 1. `TIELINE_RANK` and `TIELINE_SIZE` with `TIELINE_EXCHANGE`, which `tieline run` sets: the launcher's socket, local or TCP;
//! 2. `TIELINE_BOOTSTRAP=host:port`: a bootstrap over TCP, where rank 0 listens. Rank and size are TIELINE_RANK and TIELINE_SIZE,
//!    or those of Slurm, Open MPI, PMI or torchrun. TIELINE_RANK and TIELINE_SIZE without 1 and 2 are an error, unless the size is
//!    1;
//! 3. PMIx (`PMIX_NAMESPACE`), which mpirun, prun and `srun --mpi=pmix` provide;
//! 4. a step of Slurm: a bootstrap on its first node;
//! 5. none of these: the process is rank 0 of 1.
//!
//! Every wait for other processes has a deadline; the answer with the missing ranks may take two seconds more. If a rank dies, the
//! exchange fails for all others. The error names that rank and the reason, and after the deadline the missing ranks. PMIx does not
//! name a rank that died, and names missing ranks only if all ranks are on one host.

use std::collections::BTreeSet;
use std::fmt;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tieline_config::Config;
use tieline_explain::Error;
use tieline_plugin_api::{Status, raised_rights};

mod alone;
mod bootstrap;
mod connection;
#[cfg(test)]
mod crowd_tests;
mod directory;
mod gather;
mod handshake;
mod host;
mod link;
mod local;
#[cfg(test)]
mod lookup_tests;
mod pmix;
mod process_info;
mod seats;
pub mod server;
mod slurm;
mod stream;
mod sys;
#[cfg(test)]
mod tests;
mod waiting;
pub mod wire;

use alone::Alone;
use bootstrap::Bootstrap;
use process_info::{BOOTSTRAP, Get, ProcessInfo, Secret, refuse, renamed};
use tieline_plugin_api::process::Mark;
use waiting::Waiting;

/// The default deadline of joining and of each exchange. `TIELINE_BOOTSTRAP_TIMEOUT` overrides both, and [`Job::set_deadline`] that
/// of exchanges.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// This process's place in its job.
pub struct Job {
    rank: usize,
    size: usize,
    local_rank: usize,
    local_size: usize,
    id: String,
    deadline: Duration,
    /// The waiting thread, which is dropped before the exchange.
    waiting: Waiting,
    exchange: Arc<dyn Exchange>,
    published: Mutex<Published>,
    /// The process that joined: a forked child takes no part in its parent's place.
    process: Mark,
}

/// The published keys of this process, and the total of their bytes.
#[derive(Default)]
struct Published {
    keys: BTreeSet<u32>,
    bytes: usize,
}

/// A protocol for the bytes that processes exchange.
trait Exchange: Send + Sync {
    /// Passes all contributions to all processes. The call is collective: each process makes the same number of calls.
    fn allgather(&self, mine: &[u8], deadline: &Deadline) -> Result<Vec<Vec<u8>>, Error>;

    /// Publishes bytes for lookups. Each key is used once, within the limits of `wire`.
    fn publish(&self, key: u32, bytes: &[u8], deadline: &Deadline) -> Result<(), Error>;

    /// Returns the bytes that another process has published, or publishes before the deadline.
    fn lookup(&self, rank: usize, key: u32, deadline: &Deadline) -> Result<Vec<u8>, Error>;
}

/// A duration and the time at which it ends.
struct Deadline {
    length: Duration,
    at: Option<Instant>,
}

impl Deadline {
    fn new(length: Duration) -> Deadline {
        Deadline { length, at: Instant::now().checked_add(length) }
    }

    /// Returns the end; if the clock cannot represent the end, a day from the present time.
    fn at(&self) -> Instant {
        self.at.unwrap_or_else(|| Instant::now() + Duration::from_secs(24 * 60 * 60))
    }

    fn left(&self) -> Option<Duration> {
        let left = self.at().saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }
}

impl Job {
    /// Joins the job that the environment describes. Without such a description, the process is rank 0 of 1.
    ///
    /// # Errors
    /// `Invalid` if the variables contradict each other or those of another rank, or if the secret's file is refused. `PeerFailed`
    /// if the launcher cannot be reached, and `Permission` for a wrong secret. `TimedOut` with the ranks that have not joined. For
    /// PMIx: `NoDevice` without its library, `Permission` with raised rights, and `Busy` if this process or its parent has joined
    /// before.
    pub fn from_env() -> Result<Job, Error> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let job = Job::from_variables(&variable, &|| Ok(secret()?.into_bytes()), raised_rights())?;
        let _ = JOINED.fetch_max(job.local_size, Ordering::Relaxed);
        Ok(job)
    }

    fn from_variables(get: Get<'_>, secret: Secret<'_>, raised_rights: bool) -> Result<Job, Error> {
        let timeout = process_info::timeout(get)?;
        let deadline = Deadline::new(timeout);
        let own = ProcessInfo::from_tieline(get)?;
        let spoken = get("TIELINE_EXCHANGE");
        let mut job = if let (Some(info), Some(spoken)) = (&own, &spoken) {
            Job::from_launcher(info, spoken, secret, &deadline)?
        } else if let Some((name, addresses)) = renamed(get, BOOTSTRAP) {
            let info =
                own.map_or_else(|| ProcessInfo::from_any_launcher(get), |own| Ok(Some(own)))?;
            let info = info.ok_or_else(|| {
                refuse(format!("{name} is set, and TIELINE_RANK and TIELINE_SIZE are not"))
            })?;
            Job::from_bootstrap(&info, &Bootstrap::new(addresses, name, secret)?, &deadline)?
        } else if let Some(info) = own {
            match info.size {
                1 => Job::new(ProcessInfo::alone(), Box::new(Alone::default())),
                _ => return Err(bootstrap::unknown_exchange("")),
            }
        } else if pmix::is_there(get) {
            let (info, pmix) = pmix::Pmix::join(&deadline, raised_rights)?;
            Job::new(info, Box::new(pmix))
        } else if let Some(info) = ProcessInfo::from_slurm(get)? {
            Job::from_bootstrap(&info, &slurm::bootstrap(get, &info, secret)?, &deadline)?
        } else {
            Job::new(ProcessInfo::alone(), Box::new(Alone::default()))
        };
        job.deadline = timeout;
        Ok(job)
    }

    /// Joins the exchange that `TIELINE_EXCHANGE` names, of `tieline run` or another launcher of Tieline.
    fn from_launcher(
        info: &ProcessInfo,
        spoken: &str,
        secret: Secret<'_>,
        deadline: &Deadline,
    ) -> Result<Job, Error> {
        let hello = host::hello(info.rank, info.size, &info.id);
        let exchange: Box<dyn Exchange> = match spoken.split_once(':') {
            Some(("unix", name)) => {
                let name = name.strip_prefix('@').ok_or_else(|| {
                    refuse("TIELINE_EXCHANGE has a socket name without `@`".into())
                })?;
                Box::new(link::launcher(name, hello, deadline)?)
            }
            Some(("tcp", addresses)) => {
                let bootstrap = Bootstrap::new(addresses.to_owned(), "TIELINE_EXCHANGE", secret)?;
                Box::new(bootstrap.join(hello, deadline)?)
            }
            _ => return Err(bootstrap::unknown_exchange(spoken)),
        };
        Ok(Job::new(info.clone(), exchange))
    }

    /// Joins a bootstrap, which rank 0 serves. The first exchange finds the processes that share a host.
    fn from_bootstrap(
        info: &ProcessInfo,
        bootstrap: &Bootstrap,
        deadline: &Deadline,
    ) -> Result<Job, Error> {
        let hello = host::hello(info.rank, info.size, &info.id);
        let exchange: Box<dyn Exchange> = match (info.size, info.rank) {
            (1, _) => Box::new(Alone::default()),
            (_, 0) => Box::new(bootstrap.serve(hello, deadline)?),
            _ => Box::new(bootstrap.join(hello, deadline)?),
        };
        let facts = exchange.allgather(&host::facts(), deadline)?;
        let (local_rank, local_size) = host::local_place(&facts, info.rank);
        let mut job = Job::new(info.clone(), exchange);
        job.local_rank = info.local_rank.unwrap_or(local_rank);
        job.local_size = info.local_size.unwrap_or(local_size);
        Ok(job)
    }

    fn new(info: ProcessInfo, exchange: Box<dyn Exchange>) -> Job {
        Job {
            rank: info.rank,
            size: info.size,
            local_rank: info.local_rank.unwrap_or(0),
            local_size: info.local_size.unwrap_or(1),
            id: info.id,
            deadline: DEADLINE,
            waiting: Waiting::default(),
            exchange: exchange.into(),
            published: Mutex::default(),
            process: Mark::new(),
        }
    }

    /// Refuses calls in a forked child, before any lock that another thread of the parent may have held at the fork.
    fn check_process(&self) -> Result<(), Error> {
        if self.process.is_here() {
            return Ok(());
        }
        Err(Error::new(
            Status::Invalid,
            "a call of a job",
            "this is a forked child, and the job belongs to its parent",
            "call it in the parent",
        ))
    }

    /// Returns the rank of this process, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of processes in the job.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the number of this process among the processes of its host, from 0.
    #[must_use]
    pub fn local_rank(&self) -> usize {
        self.local_rank
    }

    /// Returns the number of the job's processes on this host.
    #[must_use]
    pub fn local_size(&self) -> usize {
        self.local_size
    }

    /// Returns the job's identity, from `TIELINE_JOB`, Slurm or PMIx; empty if none of them states one.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Sets the deadline of each exchange, publication and lookup. The default is `TIELINE_BOOTSTRAP_TIMEOUT`, else [`DEADLINE`].
    /// The first process whose deadline passes ends the exchange for all, except over PMIx. A lookup ends for the requester only.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    /// Passes `mine` to every process and returns the bytes of all processes, in rank order. The call is collective: every process
    /// makes the same number of calls. `mine` has at most [`wire::MAX_CONTRIBUTION`] bytes.
    ///
    /// # Errors
    /// `Invalid` in a forked child; `TooLarge`; `PeerFailed` with the rank that ended and how, except over PMIx; `TimedOut` after
    /// the deadline, with the missing ranks if the server knows them. After any of them but the first two, the exchange is
    /// unusable. `Invalid` also ends the exchange if a rank states another size, or if all contributions together exceed 4 GiB.
    pub fn exchange(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.check_process()?;
        if mine.len() > wire::MAX_CONTRIBUTION {
            return Err(Error::new(
                Status::TooLarge,
                "cannot exchange that much",
                format!("{} bytes were given, at most {} fit", mine.len(), wire::MAX_CONTRIBUTION),
                "exchange addresses and keys, and move data through endpoints",
            ));
        }
        let deadline = Deadline::new(self.deadline);
        self.exchange.allgather(mine, &deadline)
    }

    /// Publishes bytes, such as a worker's address or a key, for [`Job::lookup`] by other processes. The call passes the bytes to
    /// the server of the exchange, and waits for no other process. Except over PMIx, other processes get the bytes only in answer
    /// to a lookup. The bytes stay as long as the server exists, even after this process has ended.
    ///
    /// ```
    /// # fn main() -> Result<(), tieline_explain::Error> {
    /// # let (job, address, neighbour) = (tieline_job::Job::from_env()?, b"what worker.address() gave", 0);
    /// const ADDRESS: u32 = 1;
    /// job.publish(ADDRESS, address)?;
    /// let theirs = job.lookup(neighbour, ADDRESS)?; // waits until that rank has published
    /// # assert_eq!(theirs, address);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `Invalid` for a key that this process has published before, and in a forked child; `TooLarge` beyond
    /// [`wire::MAX_PUBLISHED`] bytes or [`wire::MAX_KEYS`] keys in all; `PeerFailed` if the server of the exchange is gone.
    pub fn publish(&self, key: u32, bytes: &[u8]) -> Result<(), Error> {
        self.check_process()?;
        let refuse = |status, why, fix| Err(Error::new(status, "cannot publish", why, fix));
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        let all = published.bytes.saturating_add(bytes.len());
        if published.keys.contains(&key) {
            let why = format!("this process has published {key} before");
            return refuse(Status::Invalid, why, "take another number: what is published stays");
        }
        if all > wire::MAX_PUBLISHED || published.keys.len() >= wire::MAX_KEYS {
            let (bytes, keys) = (wire::MAX_PUBLISHED, wire::MAX_KEYS);
            let why =
                format!("that would be {all} bytes, and at most {bytes} in {keys} parts are kept");
            return refuse(
                Status::TooLarge,
                why,
                "publish addresses and keys, and move data through endpoints",
            );
        }
        self.exchange.publish(key, bytes, &Deadline::new(self.deadline))?;
        let _ = published.keys.insert(key);
        published.bytes = all;
        Ok(())
    }

    /// Returns the bytes that `rank` has published as `key`; waits for them until the deadline. The call is not collective: any
    /// thread may make it at any time, even while another thread is in [`Job::exchange`]. Results are not cached: a caller that
    /// needs the bytes again keeps them, or looks them up again.
    ///
    /// # Errors
    /// - `Invalid` for a rank that the job does not have, and in a forked child.
    /// - `TimedOut` after the deadline; except over PMIx, the text says whether that rank has joined at all. The lookup may be
    ///   repeated.
    /// - `PeerFailed` if that rank has left without publishing the key, or the server of the exchange is gone. PMIx does not report
    ///   ranks that have left; there the result is `TimedOut`.
    /// - `Again` while [`wire::MAX_LOOKUPS`] lookups of this process are pending.
    pub fn lookup(&self, rank: usize, key: u32) -> Result<Vec<u8>, Error> {
        self.check_process()?;
        if rank >= self.size {
            return Err(Error::new(
                Status::Invalid,
                "cannot look that up",
                format!("there is no rank {rank} in this job of {}", self.size),
                "ranks run from 0 to the job's size - 1",
            ));
        }
        self.exchange.lookup(rank, key, &Deadline::new(self.deadline))
    }

    /// Returns when every process has called `barrier`.
    ///
    /// # Errors
    /// Returns the errors of [`Job::exchange`].
    pub fn barrier(&self) -> Result<(), Error> {
        self.exchange(&[]).map(drop)
    }

    /// [`Job::barrier`] for a process whose peers may still need its progress: calls `progress` repeatedly until every process has
    /// called the barrier. A separate thread waits for the other processes: the first such barrier starts the thread, and the
    /// thread ends with the job. If `progress` sleeps for a short time, other processes can use the processor. `Worker::barrier` of
    /// the crate `tieline` sleeps until an event instead.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), tieline_explain::Error> {
    /// # struct Worker;
    /// # impl Worker { fn wait(&self, _: Option<Duration>) -> Result<(), tieline_explain::Error> { Ok(()) } }
    /// # let (job, worker) = (tieline_job::Job::from_env()?, Worker);
    /// job.barrier_while(|| worker.wait(Some(Duration::from_millis(1))))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Job::exchange`], the error of `progress`, and `NoMemory` if the thread cannot be started. After an
    /// error `progress` is not called again. The call still waits for the end of the barrier, and a panic of `progress` continues
    /// only then.
    pub fn barrier_while(
        &self,
        mut progress: impl FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let until = |is_over: &dyn Fn() -> bool| {
            while !is_over() {
                progress()?;
            }
            Ok(())
        };
        self.barrier_woken(|| {}, until)
    }

    /// Waits for a barrier as [`Job::barrier_while`] does, for a process that sleeps during the barrier. Calls `wait` once, with a
    /// function that returns whether the barrier is over. Calls `wake` in the waiting thread when the barrier is over. If `wake`
    /// ends the wait, the wait needs no timeout.
    ///
    /// # Errors
    /// Returns the errors of [`Job::exchange`], the error of `wait`, and `NoMemory` if the thread cannot be started. After an error
    /// of `wait` the call still waits for the end of the barrier, and a panic of `wait` continues only then.
    pub fn barrier_woken(
        &self,
        wake: impl FnOnce() + Send + 'static,
        wait: impl FnOnce(&dyn Fn() -> bool) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.check_process()?;
        let barrier = self.waiting.begin(&self.exchange, self.deadline, Box::new(wake))?;
        let waited = wait(&|| barrier.is_over());
        waited.and(barrier.met())
    }
}

/// The number of this host's processes in the largest job that this process has joined.
static JOINED: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of this host's processes in the largest job that this process has joined, including this one; 0 before this
/// process has joined a job.
#[must_use]
pub fn joined_processes() -> usize {
    JOINED.load(Ordering::Relaxed)
}

/// Returns the number of the job's processes on this host that the launcher's variables state, whether this process has joined or
/// not; 1 if they state none.
#[must_use]
pub fn processes_on_this_host() -> usize {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let info = match ProcessInfo::from_tieline(&variable) {
        Ok(None) => ProcessInfo::from_any_launcher(&variable),
        info => info,
    };
    // Invalid values are reported when the process joins the job.
    info.ok().flatten().and_then(|info| info.local_size).unwrap_or(1)
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("rank", &self.rank)
            .field("size", &self.size)
            .field("local_rank", &self.local_rank)
            .field("local_size", &self.local_size)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Returns the job's secret from `TIELINE_SECRET`, `TIELINE_SECRET_FILE` or a settings file; empty if there is none. The function
/// is for launchers, which must not show the secret.
///
/// # Errors
/// Returns the errors of reading the settings files and the secret's file.
pub fn secret() -> Result<String, Error> {
    let config = Config::builder().process_environment().build()?;
    Ok(config.secret()?.unwrap_or_default())
}

fn retries(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
