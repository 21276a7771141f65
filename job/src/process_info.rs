//! The place of this process in its job, as the environment describes it: the variables of Tieline's launcher have precedence over
//! those of common launchers.

use super::slurm;
use super::wire::{MAX_JOB, MAX_RANKS};
use crate::{Error, Status};
use std::time::Duration;

/// A function that reads one variable.
pub(super) type Get<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A function that reads the job's secret, which may also come from a file; the secret is empty if there is none.
pub(super) type Secret<'a> = &'a dyn Fn() -> Result<Vec<u8>, Error>;

pub(super) const FIX_LAUNCH: &str = "start the program with `tieline run -n N -- program`";

/// The rank of this process and the size of its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessInfo {
    pub(super) rank: usize,
    pub(super) size: usize,
    /// The rank on this host, from the environment or the PMIx server. If it is `None`, a bootstrap determines it, and any other
    /// exchange takes 0 of 1.
    pub(super) local_rank: Option<usize>,
    pub(super) local_size: Option<usize>,
    pub(super) id: String,
}

/// The variables of other launchers for rank, size, local rank, local size. These variables are used together with
/// TIELINE_BOOTSTRAP, which contains the address; those of Slurm also without it.
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
    /// Describes a job of one process.
    pub(super) fn alone() -> ProcessInfo {
        ProcessInfo {
            rank: 0,
            size: 1,
            local_rank: Some(0),
            local_size: Some(1),
            id: String::new(),
        }
    }

    /// Reads TIELINE_RANK and TIELINE_SIZE; returns `None` if neither is set.
    pub(super) fn from_tieline(get: Get<'_>) -> Result<Option<ProcessInfo>, Error> {
        if get("TIELINE_RANK").is_none() && get("TIELINE_SIZE").is_none() {
            return Ok(None);
        }
        let names = ["TIELINE_RANK", "TIELINE_SIZE", "TIELINE_LOCAL_RANK", "TIELINE_LOCAL_SIZE"];
        ProcessInfo::read(get, &names).map(Some)
    }

    /// Reads the variables of Slurm's srun: those of a step, not of the batch script.
    pub(super) fn from_slurm(get: Get<'_>) -> Result<Option<ProcessInfo>, Error> {
        let names = &OTHERS[0];
        if names[..2].iter().any(|name| get(name).is_none()) {
            return Ok(None);
        }
        let mut info = ProcessInfo::read(get, names)?;
        info.id = slurm::identity(get, &info.id)?;
        Ok(Some(info))
    }

    /// Reads the variables of any launcher that numbers its processes.
    pub(super) fn from_any_launcher(get: Get<'_>) -> Result<Option<ProcessInfo>, Error> {
        if let Some(info) = ProcessInfo::from_slurm(get)? {
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

/// Checks the length of the job's identity, because every hello contains the identity.
pub(super) fn check_id(id: &str) -> Result<(), Error> {
    match id.len() {
        0..=MAX_JOB => Ok(()),
        len => Err(refuse(format!("TIELINE_JOB has {len} bytes, and the most is {MAX_JOB}"))),
    }
}

/// The name of a variable, and its former name, which is read if the first is not set.
pub(super) type Renamed = (&'static str, &'static str);

/// The variable with the address at which ranks meet.
pub(super) const BOOTSTRAP: Renamed = ("TIELINE_BOOTSTRAP", "TIELINE_RENDEZVOUS");
/// The variable with the port of rank 0 under Slurm.
pub(super) const PORT: Renamed = ("TIELINE_BOOTSTRAP_PORT", "TIELINE_RENDEZVOUS_PORT");
const TIMEOUT: Renamed = ("TIELINE_BOOTSTRAP_TIMEOUT", "TIELINE_RENDEZVOUS_TIMEOUT");

/// Returns the name that is set, and its value.
pub(super) fn renamed(get: Get<'_>, (new, old): Renamed) -> Option<(&'static str, String)> {
    let read = |name| Some((name, get(name)?));
    read(new).or_else(|| read(old))
}

/// Returns the deadline of joining and of each exchange.
pub(super) fn timeout(get: Get<'_>) -> Result<Duration, Error> {
    match renamed(get, TIMEOUT) {
        None => Ok(super::DEADLINE),
        Some((name, text)) => tieline_plugin_api::units::time_limit(text.trim()).ok_or_else(|| {
            refuse(format!("{name}: `{text}` is no duration: write 500ms, 20s or 2min"))
        }),
    }
}

pub(super) fn refuse(why: String) -> Error {
    Error::new(Status::Invalid, "cannot join the job", why, FIX_LAUNCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(set: &[(&str, &str)]) -> Result<Option<ProcessInfo>, String> {
        let get = |name: &str| {
            set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        let own = ProcessInfo::from_tieline(&get).map_err(|error| error.why().to_owned())?;
        match own {
            Some(info) => Ok(Some(info)),
            None => ProcessInfo::from_any_launcher(&get).map_err(|error| error.why().to_owned()),
        }
    }

    fn info(
        rank: usize,
        size: usize,
        local: (Option<usize>, Option<usize>),
        id: &str,
    ) -> ProcessInfo {
        ProcessInfo { rank, size, local_rank: local.0, local_size: local.1, id: id.into() }
    }

    #[test]
    fn each_launcher_says_it_by_its_own_names_and_ours_goes_first() {
        let (none, ompi) =
            ((None, None), [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "3")]);
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&ompi), Ok(Some(info(1, 3, none, ""))));
        let own = [("TIELINE_RANK", "0"), ("TIELINE_SIZE", " 2 "), ("TIELINE_JOB", "j")];
        assert_eq!(read(&[&ompi[..], &own].concat()), Ok(Some(info(0, 2, none, "j"))));
        let local = [("TIELINE_LOCAL_RANK", "4"), ("TIELINE_LOCAL_SIZE", "5")];
        let all = info(0, 2, (Some(4), Some(5)), "j");
        assert_eq!(read(&[&own[..], &local].concat()), Ok(Some(all)));
        assert_eq!(read(&[("PMI_RANK", "1"), ("PMI_SIZE", "2")]), Ok(Some(info(1, 2, none, ""))));
        assert_eq!(read(&[("PMI_RANK", "1")]), Ok(None), "half of a pair says nothing");
        assert_eq!(read(&[("SLURM_PROCID", "0")]), Ok(None), "the script around a step");
        let torch = [("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")];
        assert_eq!(read(&torch), Ok(Some(info(1, 2, (Some(0), None), ""))));
        let step = [("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_JOB_ID", "7")];
        assert_eq!(read(&step), Ok(Some(info(1, 2, none, "slurm - 7.-"))));
        assert_eq!(ProcessInfo::alone(), info(0, 1, (Some(0), Some(1)), ""));
    }

    #[test]
    fn invalid_value_is_refused_with_name_of_variable() {
        let of = |rank: &str, size: &str, more: &[(&str, &str)]| {
            let set = [("TIELINE_RANK", rank), ("TIELINE_SIZE", size)];
            let set: Vec<_> = set.into_iter().filter(|(_, value)| !value.is_empty()).collect();
            read(&[&set[..], more].concat()).map(|info| info.is_some())
        };
        let why = |words: &str| Err(words.to_owned());
        assert_eq!(of("0", "", &[]), why("TIELINE_SIZE is not set, and should be a number"));
        assert_eq!(of("", "2", &[]), why("TIELINE_RANK is not set, and should be a number"));
        assert_eq!(of("-1", "2", &[]), why("TIELINE_RANK is `-1`, and should be a number"));
        let ranks = "TIELINE_RANK is 2 and TIELINE_SIZE is 2: ranks run from 0 to size - 1";
        assert_eq!((of("2", "2", &[]), of("1", "2", &[])), (why(ranks), Ok(true)));
        let (most, more) = (MAX_RANKS.to_string(), (MAX_RANKS + 1).to_string());
        assert_eq!(of("0", &most, &[]), Ok(true));
        let beyond = |name: &str| Err(format!("{name} is {more}, and the most is {most}"));
        assert_eq!(of("0", &more, &[]), beyond("TIELINE_SIZE"));
        for name in ["TIELINE_LOCAL_RANK", "TIELINE_LOCAL_SIZE"] {
            assert_eq!(of("0", "2", &[(name, &most)]), Ok(true));
            assert_eq!(of("0", "2", &[(name, &more)]), beyond(name));
        }
        let long = "j".repeat(MAX_JOB + 1);
        assert_eq!(of("0", "2", &[("TIELINE_JOB", &long[1..])]), Ok(true));
        let words = format!("TIELINE_JOB has {} bytes, and the most is {MAX_JOB}", MAX_JOB + 1);
        assert_eq!(of("0", "2", &[("TIELINE_JOB", &long)]), Err(words));
    }

    #[test]
    fn earlier_name_of_a_variable_counts_if_the_new_one_is_not_set() {
        let read = |set: &'static [&'static str]| {
            renamed(&|name| set.contains(&name).then(|| name.to_lowercase()), BOOTSTRAP)
        };
        let (new, old) = BOOTSTRAP;
        assert_eq!(read(&[]), None);
        assert_eq!(read(&["TIELINE_RENDEZVOUS"]), Some((old, "tieline_rendezvous".to_owned())));
        let both = &["TIELINE_RENDEZVOUS", "TIELINE_BOOTSTRAP"];
        assert_eq!(read(both), Some((new, "tieline_bootstrap".to_owned())));
    }

    #[test]
    fn how_long_is_waited_is_a_duration_or_the_usual_one() {
        let of = |text: Option<&str>| timeout(&|_| text.map(str::to_owned));
        assert_eq!(of(None), Ok(super::super::DEADLINE));
        assert_eq!(of(Some(" 500ms ")), Ok(Duration::from_millis(500)));
        let why = of(Some("20")).map_err(|error| error.why().to_owned());
        let words = "TIELINE_BOOTSTRAP_TIMEOUT: `20` is no duration: write 500ms, 20s or 2min";
        assert_eq!(why, Err(words.into()));
    }
}
