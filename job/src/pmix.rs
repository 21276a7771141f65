//! PMIx: mpirun, prun and `srun --mpi=pmix` run a server on every host, and processes find each other through it. `libpmix` is
//! loaded at run time, if the environment indicates such a server.
//!
//! An exchange puts the bytes under a key of its own, commits, waits in a fence that collects the data, and gets the bytes of all
//! ranks. The code waits for asynchronous results of the library until the deadline.

mod sys;

use super::link::{late, late_lookup};
use super::process_info::{Get, ProcessInfo};
use super::{Deadline, Exchange};
use crate::{Error, Status};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use sys::{Failed, How, Library, Value};
use tieline_plugin_api::process::Owner;

/// The time limit for finding the missing ranks, after the deadline has passed.
const ASK_WHO: Duration = Duration::from_secs(2);

/// The status of a fence if a rank has left or ended: PMIX_ERR_PARTIAL_SUCCESS.
const PARTIAL: i32 = -52;

/// The status of a get for a key that was not put: PMIX_ERR_NOT_FOUND.
const NOT_FOUND: i32 = -46;

/// The first pause between two gets of a missing key; the pauses double.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The longest pause between two gets of a missing key.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Whether this process has joined or tried to. A server treats a process that has left as gone permanently.
static JOINED: AtomicBool = AtomicBool::new(false);
/// The process that owns the connection to the server. The server would report the end of a forked child as that of the rank.
static OWNER: Owner = Owner::new();

/// Checks whether a PMIx server started this process.
pub(super) fn is_there(get: Get<'_>) -> bool {
    get("PMIX_NAMESPACE").is_some() && get("PMIX_RANK").is_some()
}

/// The connection to this host's server.
pub(super) struct Pmix {
    library: Library,
    size: usize,
    /// Whether every rank is on this host: then this host's server knows the missing ranks.
    all_here: bool,
    rounds: Mutex<Rounds>,
}

#[derive(Default)]
struct Rounds {
    next: u64,
    broken: Option<Error>,
}

impl Pmix {
    /// Joins the job; the server assigns the rank.
    ///
    /// The function refuses to join with raised rights, because libpmix loads code from places that the environment names
    /// (`PMIX_MCA_*`).
    pub(super) fn join(
        deadline: &Deadline,
        raised_rights: bool,
    ) -> Result<(ProcessInfo, Pmix), Error> {
        if raised_rights {
            return Err(Error::new(
                Status::Permission,
                "cannot join the job that PMIx started",
                "this process runs with raised rights, and libpmix loads what the environment names",
                "unset PMIX_NAMESPACE and PMIX_RANK, or set TIELINE_BOOTSTRAP",
            ));
        }
        if !OWNER.take() {
            return Err(Error::new(
                Status::Busy,
                "cannot join the job that PMIx started",
                "this is a forked child, and its parent has joined it or tried to: the rank is the parent's",
                "let the child talk to the parent by addresses that the parent gives it",
            ));
        }
        let library = Library::load().map_err(|why| {
            Error::new(
                Status::NoDevice,
                "cannot join the job that PMIx started",
                why,
                "install libpmix2 (Debian) or pmix (others), or set TIELINE_BOOTSTRAP",
            )
        })?;
        if JOINED.swap(true, Ordering::Relaxed) {
            return Err(Error::new(
                Status::Busy,
                "cannot join the job that PMIx started",
                "this process has joined it before",
                "keep one Job for the life of the process",
            ));
        }
        let me = library.init().map_err(|code| {
            Error::new(
                Status::PeerFailed,
                "cannot reach this host's PMIx server",
                library.text(code),
                "see that the launcher still runs; PMIX_NAMESPACE and PMIX_RANK are to be left as it set them",
            )
        })?;
        let mut pmix = Pmix { library, size: 0, all_here: false, rounds: Mutex::default() };
        let rank = me.rank() as usize;
        pmix.size = pmix.number(None, "pmix.job.size", deadline)?;
        let local_rank = pmix.number(Some(me.rank()), "pmix.lrank", deadline).ok();
        let local_size = pmix.number(None, "pmix.local.size", deadline).ok();
        pmix.all_here = local_size == Some(pmix.size);
        let info =
            ProcessInfo { rank, size: pmix.size, local_rank, local_size, id: me.namespace() };
        if info.rank >= info.size || info.size > super::wire::MAX_RANKS {
            return Err(Error::new(
                Status::BadData,
                "cannot join the job that PMIx started",
                format!("it says rank {rank} of {}", info.size),
                "",
            ));
        }
        Ok((info, pmix))
    }

    fn number(&self, rank: Option<u32>, key: &str, deadline: &Deadline) -> Result<usize, Error> {
        match self.library.get(rank, key, How::Wait, deadline.at()) {
            Ok(Value::Number(number)) => usize::try_from(number).map_err(|_| odd(key)),
            Ok(_) => Err(odd(key)),
            Err(failed) => Err(self.failed(failed, deadline)),
        }
    }

    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), Failed> {
        // The value has at least one byte, because some servers do not keep an empty value.
        self.library.put(key, &[&[1][..], bytes].concat())?;
        self.library.commit()
    }

    fn bytes(&self, rank: u32, key: &str, deadline: &Deadline) -> Result<Vec<u8>, Error> {
        let got = self.library.get(Some(rank), key, How::Wait, deadline.at());
        value_of(got.map_err(|failed| self.failed(failed, deadline))?, key)
    }

    fn round(&self, round: u64, mine: &[u8], deadline: &Deadline) -> Result<Vec<Vec<u8>>, Error> {
        let key = format!("tieline.{round}");
        let outcome = self.put(&key, mine).and_then(|()| self.library.fence(deadline.at()));
        outcome.map_err(|failed| match failed {
            Failed::Late if self.all_here => self.missing_ranks_error(&key, deadline),
            failed => self.failed(failed, deadline),
        })?;
        let rank = |rank| u32::try_from(rank).unwrap_or(u32::MAX);
        (0..self.size).map(|r| self.bytes(rank(r), &key, deadline)).collect()
    }

    fn missing_ranks_error(&self, key: &str, deadline: &Deadline) -> Error {
        let until = Deadline::new(ASK_WHO);
        let missing: Vec<usize> = (0..self.size)
            .filter(|rank| {
                let rank = u32::try_from(*rank).unwrap_or(u32::MAX);
                self.library.get(Some(rank), key, How::Known, until.at()).is_err()
            })
            .collect();
        if missing.is_empty() {
            return self.failed(Failed::Late, deadline);
        }
        let have = if missing.len() == 1 { "has" } else { "have" };
        late(&format!(
            "{} of {} {have} not called exchange within {:?}",
            super::gather::list(missing.iter().copied(), missing.len()),
            self.size,
            deadline.length
        ))
    }

    fn failed(&self, failed: Failed, deadline: &Deadline) -> Error {
        match failed {
            Failed::Late => {
                late(&format!("the PMIx server has not answered within {:?}", deadline.length))
            }
            Failed::Code(PARTIAL) => Error::new(
                Status::PeerFailed,
                "the exchange failed",
                "a rank has ended or left the exchange",
                "see that rank's own output and the launcher's",
            ),
            Failed::Code(code) => Error::new(
                Status::PeerFailed,
                "the exchange failed",
                format!("PMIx says {}", self.library.text(code)),
                "see the launcher's own output",
            ),
        }
    }
}

impl Exchange for Pmix {
    fn allgather(&self, mine: &[u8], deadline: &Deadline) -> Result<Vec<Vec<u8>>, Error> {
        let mut rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = &rounds.broken {
            return Err(error.clone());
        }
        let round = rounds.next;
        rounds.next += 1;
        let outcome = self.round(round, mine, deadline);
        rounds.broken = outcome.as_ref().err().cloned();
        outcome
    }

    fn publish(&self, key: u32, bytes: &[u8], deadline: &Deadline) -> Result<(), Error> {
        self.put(&published(key), bytes).map_err(|failed| self.failed(failed, deadline))
    }

    /// Looks up a key: this host's server asks the server of the rank's host. For a missing key the server may wait, or fail
    /// immediately, as the servers of Open MPI and Slurm do. In that case the get is repeated, since the server sends no
    /// notification.
    fn lookup(&self, rank: usize, key: u32, deadline: &Deadline) -> Result<Vec<u8>, Error> {
        let rank = u32::try_from(rank).unwrap_or(u32::MAX);
        let (mut pause, mut how) = (FIRST_PAUSE, How::Wait);
        loop {
            let failed = match self.library.get(Some(rank), &published(key), how, deadline.at()) {
                Err(failed) => failed,
                Ok(value) => return value_of(value, &published(key)),
            };
            let Some(left) = deadline.left() else {
                let why = format!("PMIx has not had it within {:?}", deadline.length);
                return Err(late_lookup(rank, key, &why));
            };
            if !matches!(failed, Failed::Late | Failed::Code(NOT_FOUND)) {
                return Err(self.failed(failed, deadline));
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(LONGEST_PAUSE);
            how = How::Anew;
        }
    }
}

fn published(key: u32) -> String {
    format!("tieline.published.{key}")
}

/// Extracts the bytes that [`Pmix::put`] stored.
fn value_of(value: Value, key: &str) -> Result<Vec<u8>, Error> {
    let bytes = match &value {
        Value::Bytes(bytes) => bytes.strip_prefix(&[1]),
        _ => None,
    };
    bytes.map(<[u8]>::to_vec).ok_or_else(|| odd(key))
}

fn odd(key: &str) -> Error {
    Error::new(
        Status::BadData,
        "the PMIx server sent malformed data",
        format!("the value of {key} is of an unexpected kind"),
        "",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_testing::holds_in_child;

    #[test]
    fn a_child_does_not_join_in_place_of_a_parent_that_has_joined_or_tried() {
        assert!(OWNER.take());
        assert!(holds_in_child(|| {
            let refused = Pmix::join(&Deadline::new(Duration::from_secs(1)), false).err();
            refused.is_some_and(|error| {
                error.status() == Status::Busy && error.why().contains("this is a forked child")
            })
        }));
    }
}
