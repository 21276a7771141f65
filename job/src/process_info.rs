//! What the environment says about this process's place: our own launcher's variables first, then those of
//! launchers that users already have.

use super::slurm;
use super::wire::{MAX_JOB, MAX_RANKS};
use crate::{Error, Status};
use std::time::Duration;

/// Reads one variable.
pub(super) type Get<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Reads the job's secret, which may also come from a file; empty when there is none.
pub(super) type Secret<'a> = &'a dyn Fn() -> Result<Vec<u8>, Error>;

pub(super) const FIX_LAUNCH: &str = "start the program with `tieline run -n N -- program`";

/// This process's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessInfo {
    pub(super) rank: usize,
    pub(super) size: usize,
    /// As the environment says; an exchange may find it out itself.
    pub(super) local_rank: Option<usize>,
    pub(super) local_size: Option<usize>,
    pub(super) id: String,
}

/// Other launchers' names for rank, size, local rank, local size. They tell who we are where TIELINE_RENDEZVOUS
/// tells where the others are.
const OTHERS: &[[&str; 4]] = &[
    ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""],
    [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ],
    ["PMI_RANK", "PMI_SIZE", "", ""],
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"],
];

impl ProcessInfo {
    /// A job of one.
    pub(super) fn alone() -> ProcessInfo {
        ProcessInfo {
            rank: 0,
            size: 1,
            local_rank: Some(0),
            local_size: Some(1),
            id: String::new(),
        }
    }

    /// From TIELINE_RANK and TIELINE_SIZE; none when neither is set.
    pub(super) fn of_tieline(get: Get<'_>) -> Result<Option<ProcessInfo>, Error> {
        if get("TIELINE_RANK").is_none() && get("TIELINE_SIZE").is_none() {
            return Ok(None);
        }
        let names = ["TIELINE_RANK", "TIELINE_SIZE", "TIELINE_LOCAL_RANK", "TIELINE_LOCAL_SIZE"];
        ProcessInfo::read(get, &names).map(Some)
    }

    /// From the variables of Slurm's srun: a step, and not the script around it.
    pub(super) fn of_slurm(get: Get<'_>) -> Result<Option<ProcessInfo>, Error> {
        let names = &OTHERS[0];
        if names[..2].iter().any(|name| get(name).is_none()) {
            return Ok(None);
        }
        let mut info = ProcessInfo::read(get, names)?;
        info.id = slurm::identity(get, &info.id)?;
        Ok(Some(info))
    }

    /// From the variables of any launcher that numbers its processes.
    pub(super) fn of_any(get: Get<'_>) -> Result<Option<ProcessInfo>, Error> {
        if let Some(info) = ProcessInfo::of_slurm(get)? {
            return Ok(Some(info));
        }
        for names in &OTHERS[1..] {
            if names[..2].iter().all(|name| get(name).is_some()) {
                return ProcessInfo::read(get, names).map(Some);
            }
        }
        Ok(None)
    }

    fn read(
        get: Get<'_>,
        [rank, size, local_rank, local_size]: &[&str; 4],
    ) -> Result<ProcessInfo, Error> {
        let number = |name: &str| -> Result<usize, Error> {
            let text = get(name).unwrap_or_default();
            text.trim().parse().map_err(|_| {
                let found = if text.is_empty() { "not set".into() } else { format!("`{text}`") };
                refuse(format!("{name} is {found}, and should be a number"))
            })
        };
        let maybe = |name: &str| match name {
            "" => Ok(None),
            _ => get(name).map(|_| number(name)).transpose(),
        };
        let info = ProcessInfo {
            rank: number(rank)?,
            size: number(size)?,
            local_rank: maybe(local_rank)?,
            local_size: maybe(local_size)?,
            id: get("TIELINE_JOB").unwrap_or_default(),
        };
        if info.rank >= info.size {
            return Err(refuse(format!(
                "{rank} is {} and {size} is {}: ranks run from 0 to size - 1",
                info.rank, info.size
            )));
        }
        let most = |name: &str, found: usize, most: usize| match found <= most {
            true => Ok(()),
            false => Err(refuse(format!("{name} is {found}, and the most is {most}"))),
        };
        most(size, info.size, MAX_RANKS)?;
        most(local_rank, info.local_rank.unwrap_or(0), MAX_RANKS)?;
        most(local_size, info.local_size.unwrap_or(0), MAX_RANKS)?;
        check_id(&info.id)?;
        Ok(info)
    }
}

/// The identity travels in every hello.
pub(super) fn check_id(id: &str) -> Result<(), Error> {
    match id.len() {
        0..=MAX_JOB => Ok(()),
        len => Err(refuse(format!("TIELINE_JOB has {len} bytes, and the most is {MAX_JOB}"))),
    }
}

/// How long joining and each exchange may take.
pub(super) fn timeout(get: Get<'_>) -> Result<Duration, Error> {
    const NAME: &str = "TIELINE_RENDEZVOUS_TIMEOUT";
    match get(NAME) {
        None => Ok(super::DEADLINE),
        Some(text) => tieline_plugin_api::units::time_limit(text.trim()).ok_or_else(|| {
            refuse(format!("{NAME}: `{text}` is no duration: write 500ms, 20s or 2min"))
        }),
    }
}

pub(super) fn refuse(why: String) -> Error {
    Error::new(Status::Invalid, "cannot join the job", why, FIX_LAUNCH)
}
