//! A job: the processes that one launcher started, and the exchange through which they hand each other
//! the few bytes that it takes to connect.
//!
//! ```no_run
//! use tieline_job::Job;
//!
//! fn main() -> Result<(), tieline_config::Error> {
//!     let job = Job::from_env()?; // rank 0 of 1 when nobody launched us
//!     let address = b"what worker.address() gave".to_vec();
//!     let everyone = job.exchange(&address)?; // everyone[r] came from rank r
//!     assert_eq!(everyone.len(), job.size());
//!     job.barrier()
//! }
//! ```
//!
//! The first of these that the environment names is taken:
//!
//! 1. `TIELINE_RANK` and `TIELINE_SIZE` with `TIELINE_EXCHANGE`, which `tieline run` sets: its own socket;
//! 2. `TIELINE_RENDEZVOUS=host:port`: rank 0 listens there. Rank and size are TIELINE_RANK and TIELINE_SIZE, or
//!    those of Slurm, Open MPI, PMI or torchrun;
//! 3. PMIx (`PMIX_NAMESPACE`), which mpirun, prun and `srun --mpi=pmix` bring along;
//! 4. a step of Slurm: a rendezvous on its first node;
//! 5. nobody: rank 0 of 1.
//!
//! Nothing here waits without end: a rank that dies ends the exchange for all others with that rank's number
//! and the way it ended, and a deadline bounds what is merely slow and names who is missing.

use std::fmt;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tieline_config::{Config, Error};
use tieline_plugin_api::Status;

mod connection;
mod gather;
mod handshake;
mod host;
mod link;
mod local;
mod pmix;
mod process_info;
mod rendezvous;
pub mod server;
mod slurm;
mod stream;
mod sys;
pub mod wire;

use link::Link;
use process_info::{Get, ProcessInfo, Secret, refuse};
use rendezvous::Rendezvous;
use stream::Stream;

/// How long joining, and each exchange, may take unless `TIELINE_RENDEZVOUS_TIMEOUT` or [`Job::set_deadline`]
/// says otherwise.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// This process's place in its job.
pub struct Job {
    rank: usize,
    size: usize,
    local_rank: usize,
    local_size: usize,
    id: String,
    deadline: Duration,
    exchange: Mutex<Box<dyn Exchange + Send>>,
}

/// One way to hand every process's bytes to every other one. All processes call it equally often.
trait Exchange {
    fn allgather(&mut self, mine: &[u8], deadline: &Deadline) -> Result<Vec<Vec<u8>>, Error>;
}

/// A length of time, and when it is over.
struct Deadline {
    length: Duration,
    at: Option<Instant>,
}

impl Deadline {
    fn new(length: Duration) -> Deadline {
        Deadline { length, at: Instant::now().checked_add(length) }
    }

    /// When; where that is beyond what the clock can say, a day from now.
    fn at(&self) -> Instant {
        self.at.unwrap_or_else(|| Instant::now() + Duration::from_secs(24 * 60 * 60))
    }

    fn left(&self) -> Option<Duration> {
        let left = self.at().saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }
}

impl Job {
    /// Joins the job that the environment names; rank 0 of 1 when it names none.
    ///
    /// # Errors
    /// `Invalid` when the variables contradict each other or those of another rank, `PeerFailed` when the launcher
    /// cannot be reached, `TimedOut` with the ranks that have not come, `Permission` for a wrong secret.
    pub fn from_env() -> Result<Job, Error> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let job = Job::from_variables(&variable, &|| Ok(secret()?.into_bytes()))?;
        let _ = JOINED.fetch_max(job.local_size, Ordering::Relaxed);
        Ok(job)
    }

    fn from_variables(get: Get<'_>, secret: Secret<'_>) -> Result<Job, Error> {
        let timeout = process_info::timeout(get)?;
        let deadline = Deadline::new(timeout);
        let own = ProcessInfo::of_tieline(get)?;
        let spoken = get("TIELINE_EXCHANGE");
        let mut job = if let (Some(info), Some(spoken)) = (&own, &spoken) {
            Job::of_launcher(info, spoken, secret, &deadline)?
        } else if let Some(addresses) = get("TIELINE_RENDEZVOUS") {
            let info = own.map_or_else(|| ProcessInfo::of_any(get), |own| Ok(Some(own)))?;
            let info = info.ok_or_else(|| {
                refuse(
                    "TIELINE_RENDEZVOUS is set, and TIELINE_RANK and TIELINE_SIZE are not".into(),
                )
            })?;
            Job::at_rendezvous(
                &info,
                &Rendezvous::new(addresses, "TIELINE_RENDEZVOUS", secret)?,
                &deadline,
            )?
        } else if let Some(info) = own {
            match info.size {
                1 => Job::new(ProcessInfo::alone(), Box::new(Alone)),
                _ => return Err(rendezvous::unknown_exchange("")),
            }
        } else if pmix::is_there(get) {
            let (info, pmix) = pmix::Pmix::join(&deadline)?;
            Job::new(info, Box::new(pmix))
        } else if let Some(info) = ProcessInfo::of_slurm(get)? {
            Job::at_rendezvous(&info, &slurm::rendezvous(get, &info, secret)?, &deadline)?
        } else {
            Job::new(ProcessInfo::alone(), Box::new(Alone))
        };
        job.deadline = timeout;
        Ok(job)
    }

    /// `TIELINE_EXCHANGE`: a launcher of ours serves.
    fn of_launcher(
        info: &ProcessInfo,
        spoken: &str,
        secret: Secret<'_>,
        deadline: &Deadline,
    ) -> Result<Job, Error> {
        let exchange: Box<dyn Exchange + Send> = match spoken.split_once(':') {
            Some(("unix", name)) => Box::new(launcher(name, info, deadline)?),
            Some(("tcp", addresses)) => {
                let rendezvous = Rendezvous::new(addresses.to_owned(), "TIELINE_EXCHANGE", secret)?;
                let hello = host::hello(info.rank, info.size, &info.id);
                Box::new(rendezvous.join(hello, deadline)?)
            }
            _ => return Err(rendezvous::unknown_exchange(spoken)),
        };
        Ok(Job::new(info.clone(), exchange))
    }

    /// Rank 0 serves. The first exchange tells who shares a host with whom.
    fn at_rendezvous(
        info: &ProcessInfo,
        rendezvous: &Rendezvous,
        deadline: &Deadline,
    ) -> Result<Job, Error> {
        let hello = host::hello(info.rank, info.size, &info.id);
        let mut exchange: Box<dyn Exchange + Send> = match (info.size, info.rank) {
            (1, _) => Box::new(Alone),
            (_, 0) => Box::new(rendezvous.serve(hello, deadline)?),
            _ => Box::new(rendezvous.join(hello, deadline)?),
        };
        let facts = exchange.allgather(&host::facts(), deadline)?;
        let (local_rank, local_size) = host::local_place(&facts, info.rank);
        let mut job = Job::new(info.clone(), exchange);
        job.local_rank = info.local_rank.unwrap_or(local_rank);
        job.local_size = info.local_size.unwrap_or(local_size);
        Ok(job)
    }

    fn new(info: ProcessInfo, exchange: Box<dyn Exchange + Send>) -> Job {
        Job {
            rank: info.rank,
            size: info.size,
            local_rank: info.local_rank.unwrap_or(0),
            local_size: info.local_size.unwrap_or(1),
            id: info.id,
            deadline: DEADLINE,
            exchange: Mutex::new(exchange),
        }
    }

    /// Number of this process, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of processes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Number of this process among those of its host, from 0.
    #[must_use]
    pub fn local_rank(&self) -> usize {
        self.local_rank
    }

    /// Number of the job's processes on this host.
    #[must_use]
    pub fn local_size(&self) -> usize {
        self.local_size
    }

    /// The job's identity; empty where nobody gave it one.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// How long one exchange may take; `TIELINE_RENDEZVOUS_TIMEOUT` or [`DEADLINE`] by default. The first process
    /// whose deadline passes ends the exchange for all.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    /// Hands `mine` to every process and returns everyone's bytes, in rank order. Collective: every process
    /// calls it, equally often. At most [`wire::MAX_CONTRIBUTION`] bytes.
    ///
    /// # Errors
    /// `TooLarge`; `PeerFailed` with the rank that ended and how; `TimedOut` after the deadline, with the ranks
    /// that have not come. The exchange is unusable after any of them but the first.
    pub fn exchange(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        if mine.len() > wire::MAX_CONTRIBUTION {
            return Err(Error::new(
                Status::TooLarge,
                "cannot exchange that much",
                format!("{} bytes were given, at most {} fit", mine.len(), wire::MAX_CONTRIBUTION),
                "exchange addresses and keys, and move data through endpoints",
            ));
        }
        let deadline = Deadline::new(self.deadline);
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner).allgather(mine, &deadline)
    }

    /// Returns when every process has called it.
    ///
    /// # Errors
    /// As [`Job::exchange`].
    pub fn barrier(&self) -> Result<(), Error> {
        self.exchange(&[]).map(drop)
    }

    /// [`Job::barrier`] for a process that peers may still need something of: calls `progress` again and
    /// again until everybody has come. A thread waits for them meanwhile, and ends with this call.
    ///
    /// ```
    /// # fn main() -> Result<(), tieline_config::Error> {
    /// # struct Worker;
    /// # impl Worker { fn progress(&self) -> Result<(), tieline_config::Error> { Ok(()) } }
    /// # let (job, worker) = (tieline_job::Job::from_env()?, Worker);
    /// job.barrier_while(|| worker.progress())?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Job::exchange`], and what `progress` returned: then it is not called again, but this call, and a panic of it, end no
    /// sooner than the barrier does.
    pub fn barrier_while(
        &self,
        mut progress: impl FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        std::thread::scope(|scope| {
            let waiting = std::thread::Builder::new()
                .name("tieline-barrier".into())
                .spawn_scoped(scope, || self.barrier())
                .map_err(|e| {
                    let why = format!("no thread to wait with: {e}");
                    Error::new(Status::NoMemory, "a barrier", why, "raise the limit of threads")
                })?;
            let mut moved = Ok(());
            while !waiting.is_finished() && moved.is_ok() {
                moved = progress();
            }
            let met = waiting.join().unwrap_or_else(|_| Err(Error::from_status(Status::Io)));
            moved.and(met)
        })
    }
}

/// Processes on this host of the largest job that this one has joined.
static JOINED: AtomicUsize = AtomicUsize::new(0);

/// How many processes of its job this host has, this one among them, as far as it has joined one.
#[must_use]
pub fn joined_processes() -> usize {
    JOINED.load(Ordering::Relaxed)
}

/// The same for a process that has not joined a job (yet), as its launcher says in the environment; else 1.
#[must_use]
pub fn processes_on_this_host() -> usize {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let info = match ProcessInfo::of_tieline(&variable) {
        Ok(None) => ProcessInfo::of_any(&variable),
        info => info,
    };
    // What makes no sense there is for who joins the job to say.
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

/// The job's secret as `TIELINE_SECRET`, `TIELINE_SECRET_FILE` or a file of settings tells this process; empty
/// when there is none. For launchers: not to be shown.
///
/// # Errors
/// A file that cannot be read.
pub fn secret() -> Result<String, Error> {
    let config = Config::builder().process_environment().build()?;
    Ok(config.secret()?.unwrap_or_default())
}

/// A job of one process.
struct Alone;

impl Exchange for Alone {
    fn allgather(&mut self, mine: &[u8], _deadline: &Deadline) -> Result<Vec<Vec<u8>>, Error> {
        Ok(vec![mine.to_vec()])
    }
}

/// The socket of a launcher on this host.
fn launcher(name: &str, info: &ProcessInfo, deadline: &Deadline) -> Result<Link, Error> {
    let name = name
        .strip_prefix('@')
        .ok_or_else(|| refuse("TIELINE_EXCHANGE has a socket name without `@`".into()))?;
    let timeout = deadline.left().unwrap_or_default();
    let stream = local::connect(name, timeout).map_err(|refused| {
        let (status, why) = match refused {
            local::Refused::System(e) => (Status::PeerFailed, e.to_string()),
            local::Refused::User(user) => (Status::Permission, format!("{user} listens there")),
        };
        Error::new(
            status,
            "cannot reach the launcher",
            format!("socket @{name}: {why}"),
            "see that `tieline run` still runs, as the same user and in the same network namespace",
        )
    })?;
    let hello = host::hello(info.rank, info.size, &info.id);
    Link::open(Stream::Unix(stream), hello, "the launcher", deadline)
}

fn retries(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(set: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        let set: Vec<(String, String)> =
            set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        move |name| set.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone())
    }

    fn join(get: Get<'_>) -> Result<Job, Error> {
        Job::from_variables(get, &|| Ok(Vec::new()))
    }

    #[test]
    fn without_a_launcher_the_job_is_one_process() {
        let job = join(&variables(&[])).unwrap();
        assert_eq!((job.rank(), job.size()), (0, 1));
        assert_eq!(job.exchange(b"me").unwrap(), vec![b"me".to_vec()]);
        job.barrier().unwrap();
    }

    /// Peers that come when this process has made progress, or has hung up.
    struct Awaited(std::sync::mpsc::Receiver<()>);

    impl Exchange for Awaited {
        fn allgather(&mut self, mine: &[u8], _: &Deadline) -> Result<Vec<Vec<u8>>, Error> {
            let _ = self.0.recv();
            Ok(vec![mine.to_vec(); 2])
        }
    }

    #[test]
    fn a_barrier_makes_progress_until_all_have_come_and_tells_what_became_of_that() {
        let awaited = || {
            let (came, comes) = std::sync::mpsc::channel();
            let mut job = join(&variables(&[])).unwrap();
            job.exchange = Mutex::new(Box::new(Awaited(comes)));
            (job, came)
        };
        let (job, came) = awaited();
        let mut calls = 0;
        let met = job.barrier_while(|| {
            calls += 1;
            if calls == 3 {
                came.send(()).unwrap();
            }
            Ok(())
        });
        assert!(met.is_ok() && calls >= 3, "{met:?} after {calls}");

        let (job, came) = awaited();
        let mut calls = 0;
        let met = job.barrier_while(|| {
            calls += 1;
            came.send(()).unwrap();
            Err(Error::from_status(Status::NoMemory))
        });
        assert_eq!((met.unwrap_err().status(), calls), (Status::NoMemory, 1));
    }

    #[test]
    fn variables_that_contradict_each_other_are_refused_by_name() {
        for (set, says) in [
            (&[("TIELINE_RANK", "0")][..], "TIELINE_SIZE is not set"),
            (&[("TIELINE_RANK", "x"), ("TIELINE_SIZE", "2")], "TIELINE_RANK is `x`"),
            (&[("TIELINE_RANK", "2"), ("TIELINE_SIZE", "2")], "ranks run from 0"),
            (&[("TIELINE_RANK", "0"), ("TIELINE_SIZE", "2")], "TIELINE_RENDEZVOUS is not set"),
        ] {
            let error = join(&variables(set)).unwrap_err();
            assert_eq!(error.status(), Status::Invalid);
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn a_number_beyond_reason_is_an_error_that_names_its_variable() {
        let step = [("SLURM_JOB_ID", "1"), ("SLURM_STEP_NODELIST", "127.0.0.1")];
        for (set, says) in [
            (&[("TIELINE_RANK", "0"), ("TIELINE_SIZE", "4000000000")][..], "TIELINE_SIZE"),
            (&[("TIELINE_RANK", "0"), ("TIELINE_SIZE", "18446744073709551615")], "TIELINE_SIZE"),
            (&[("TIELINE_RANK", "0"), ("TIELINE_SIZE", "99999999999999999999")], "TIELINE_SIZE"),
            (&[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "4000000000")], "NUM_TASKS"),
            (&[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "4000000000")], "OMPI"),
            (
                &[
                    ("SLURM_PROCID", "0"),
                    ("SLURM_STEP_NUM_TASKS", "2"),
                    ("SLURM_LOCALID", "4000000000"),
                ],
                "SLURM_LOCALID",
            ),
        ] {
            let meet =
                [("TIELINE_RENDEZVOUS", "127.0.0.1:9"), ("TIELINE_RENDEZVOUS_TIMEOUT", "1s")];
            let error = join(&variables(&[set, &step, &meet].concat())).unwrap_err();
            assert_eq!(error.status(), Status::Invalid);
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn a_launcher_that_is_gone_is_an_error_and_not_a_wait() {
        let set = [
            ("TIELINE_RANK", "0"),
            ("TIELINE_SIZE", "2"),
            ("TIELINE_EXCHANGE", "unix:@tieline-nobody-listens-here"),
        ];
        let error = join(&variables(&set)).unwrap_err();
        assert_eq!(error.status(), Status::PeerFailed);
    }

    #[test]
    fn too_much_is_refused_and_the_exchange_lives_on() {
        let job = join(&variables(&[])).unwrap();
        let error = job.exchange(&vec![0; wire::MAX_CONTRIBUTION + 1]).unwrap_err();
        assert_eq!(error.status(), Status::TooLarge);
        job.barrier().unwrap();
    }

    /// Who waits asks how many processes share the processors of this host. As a process of its own: what it has joined
    /// is of the whole process, and so is the environment.
    #[test]
    fn the_processes_of_a_job_on_this_host_are_known_before_it_is_joined_and_afterwards() {
        const ROLE: &str = "TIELINE_JOB_TEST_OF_PROCESSES";
        if std::env::var_os(ROLE).is_some() {
            assert_eq!((processes_on_this_host(), joined_processes()), (3, 0));
            let job = Job::from_env().unwrap();
            assert_eq!((job.local_size(), joined_processes()), (3, 3));
            return;
        }
        let name = "tests::the_processes_of_a_job_on_this_host_are_known_before_it_is_joined_and_afterwards";
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let output = alone
            .args(["--exact", name, "--nocapture"])
            .envs([(ROLE, "1"), ("TIELINE_RANK", "0"), ("TIELINE_SIZE", "1")])
            .envs([("TIELINE_LOCAL_RANK", "0"), ("TIELINE_LOCAL_SIZE", "3")])
            .env("TIELINE_RENDEZVOUS", "127.0.0.1:9")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }
}
