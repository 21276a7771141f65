//! The search path of providers, and the checks that a file must pass before it is loaded.
//!
//! The directories are searched in this order: those of `TIELINE_PROVIDER_PATH`; the directory of the library (or of the executable
//! into which the core is linked) and its `tieline-1/providers`; the system directory that was compiled in. A directory or file
//! that cannot be used does not end the search. It is recorded, except for an unnamed directory that does not exist or has no
//! provider file.
//!
//! In a setuid program the directory of the library or executable is not searched. A user could link to the program from another
//! directory and so choose its providers. `TIELINE_PROVIDER_PATH` then counts only if the program or the system file sets it; the
//! environment is ignored (`tieline_config`).

use super::elf::{OpenFile, Windows};
use super::identity::{self, Identity, Refusal};
use super::load;
use super::settings::Settings;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tieline_explain::{Record, Verdict};
use tieline_plugin_api::abi::ABI_MAJOR;
use tieline_plugin_api::raised_rights;
use tieline_trial::{Obstacle, Trust, Unfit};

/// The variable that names directories.
const VARIABLE: &str = "TIELINE_PROVIDER_PATH";

/// The `<libdir>` of the installed package (`TIELINE_LIBDIR` at build time).
const LIBDIR: &str = match option_env!("TIELINE_LIBDIR") {
    Some(libdir) => libdir,
    None => "/usr/lib",
};

/// The reason that a directory is in the search path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The user named the directory, so a problem with it is reported.
    Named,
    /// The directory is that of the library or the executable, or lies in it. The report mentions it only if it contains providers
    /// or cannot be read.
    Beside,
    /// The directory belongs to the installation, so its files are not tried in a child process.
    System,
}

/// The directories to search, in order.
pub struct SearchPath {
    directories: Vec<(PathBuf, Kind)>,
}

/// An entry with the name of a provider file, in a directory that only root and this user control.
pub(crate) struct FoundFile {
    pub(crate) path: PathBuf,
    pub(crate) name_in_file: String,
    /// Whether the file lies in the system directory.
    pub(crate) system: bool,
    /// The file in the real path of its directory, which was checked; `None` if the entry may be a symbolic link, which leads
    /// elsewhere.
    place: Option<PathBuf>,
}

/// A candidate that was opened, and whose note was read.
pub(crate) struct Examined<'s> {
    pub(crate) identity: Identity,
    pub(crate) checked: Checked<'s>,
}

/// The file that was checked, still open for the comparison with the file that is loaded.
pub(crate) struct Checked<'s> {
    pub(crate) file: OpenFile<'s>,
    pub(crate) meta: fs::Metadata,
}

fn refused(
    subject: &Path,
    phase: &str,
    expected: impl Into<String>,
    found: impl Into<String>,
) -> Record {
    Record::provider(
        subject.display().to_string(),
        Verdict::Refused {
            phase: phase.to_string(),
            expected: expected.into(),
            found: found.into(),
        },
    )
}

impl SearchPath {
    /// Returns the path that results from the settings and this installation.
    pub fn from_settings(settings: &dyn Settings) -> SearchPath {
        let mut path = SearchPath::named(settings.get(VARIABLE).map(|set| set.0).as_deref());
        let beside = load::own_object().filter(|_| !raised_rights());
        if let Some(beside) = beside.as_deref().and_then(Path::parent) {
            path.push(beside.to_path_buf(), Kind::Beside);
            path.push(beside.join(format!("tieline-{ABI_MAJOR}/providers")), Kind::Beside);
        }
        path.push(system_directory(), Kind::System);
        path
    }

    /// Returns the directories of `TIELINE_PROVIDER_PATH` alone. A value with a relative directory is refused after the search, so
    /// the search leaves relative directories out.
    pub fn named(value: Option<&str>) -> SearchPath {
        let mut path = SearchPath { directories: Vec::new() };
        for entry in value.unwrap_or_default().split(':').filter(|entry| entry.starts_with('/')) {
            path.push(PathBuf::from(entry), Kind::Named);
        }
        path
    }

    fn push(&mut self, directory: PathBuf, kind: Kind) {
        match self.directories.iter_mut().find(|(known, _)| *known == directory) {
            // A system directory that the user names remains a system directory.
            Some((_, known)) if kind == Kind::System => *known = Kind::System,
            Some(_) => {}
            None => self.directories.push((directory, kind)),
        }
    }

    /// Returns the directories, as text for a record.
    pub(crate) fn looked(&self) -> String {
        let names: Vec<String> =
            self.directories.iter().map(|(directory, _)| directory.display().to_string()).collect();
        names.join(":")
    }

    /// Lists the candidates in search order and records the directories that cannot be searched.
    pub(crate) fn candidates(self, trust: &Trust) -> (Vec<FoundFile>, Vec<Record>) {
        let mut records = Vec::new();
        let mut candidates = Vec::new();
        let mut seen = BTreeSet::new();
        for (directory, kind) in &self.directories {
            let names = match names(directory) {
                Ok(names) => names,
                Err(error) => {
                    let absent = error.kind() == std::io::ErrorKind::NotFound;
                    if *kind == Kind::Named || !absent {
                        let found = error.to_string();
                        records.push(refused(
                            directory,
                            "search",
                            "a directory that can be read",
                            found,
                        ));
                    }
                    continue;
                }
            };
            if names.is_empty() && *kind != Kind::Named {
                continue;
            }
            let folder = match directory_is_safe(trust, directory) {
                Ok(folder) => folder,
                Err((phase, unfit)) => {
                    records.push(refused(directory, phase, unfit.expected, unfit.found));
                    continue;
                }
            };
            for Entry { file_name, name_in_file, is_link } in names {
                let path = directory.join(&file_name);
                let place = (!is_link).then(|| folder.join(&file_name));
                // A second name of the same file is not a second candidate.
                let real = place.clone().or_else(|| fs::canonicalize(&path).ok());
                if seen.insert(real.unwrap_or_else(|| path.clone())) {
                    let system = *kind == Kind::System;
                    candidates.push(FoundFile { path, name_in_file, system, place });
                }
            }
        }
        (candidates, records)
    }
}

fn system_directory() -> PathBuf {
    Path::new(LIBDIR).join(format!("tieline-{ABI_MAJOR}/providers"))
}

/// An entry of a directory with the name of a provider file.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    file_name: std::ffi::OsString,
    name_in_file: String,
    /// Whether the entry is a symbolic link, or its kind is unknown.
    is_link: bool,
}

/// Returns the provider files of a directory, sorted, each with the provider name in its file name.
fn names(directory: &Path) -> std::io::Result<Vec<Entry>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        // An unreadable entry does not affect the other entries.
        let Ok(entry) = entry else { continue };
        let file_name = entry.file_name();
        let in_file =
            std::str::from_utf8(file_name.as_bytes()).ok().and_then(identity::name_in_file);
        if let Some(name_in_file) = in_file.map(str::to_string) {
            // Most file systems report the kind with the name.
            let is_link = entry.file_type().map_or(true, |kind| kind.is_symlink());
            names.push(Entry { file_name, name_in_file, is_link });
        }
    }
    names.sort();
    Ok(names)
}

/// Checks whether only root and this user control the contents of a directory. Returns the directory's real path.
fn directory_is_safe(trust: &Trust, directory: &Path) -> Result<PathBuf, Refusal> {
    let (real, meta) = follow(trust, directory, "a directory that can be read")?;
    trust.check(&real, &meta, "a directory").map_err(|unfit| ("permissions", unfit))?;
    Ok(real)
}

fn follow(trust: &Trust, path: &Path, expected: &str) -> Result<(PathBuf, fs::Metadata), Refusal> {
    trust.target(path).map_err(|obstacle| match obstacle {
        Obstacle::Unsafe(unfit) => ("permissions", unfit),
        Obstacle::Nowhere(found) => ("search", Unfit { expected: expected.into(), found }),
    })
}

/// Checks a candidate's rights and note. None of its code runs.
pub(crate) fn examine<'s>(
    candidate: &FoundFile,
    trust: &Trust,
    memory: &'s mut Windows,
) -> Result<Examined<'s>, Refusal> {
    const READABLE: &str = "a file that can be read";
    let unreadable = |error: std::io::Error| -> Refusal {
        ("search", Unfit { expected: READABLE.into(), found: error.to_string() })
    };
    // The search has checked the directory, and no other user can change its entries since.
    let real = match &candidate.place {
        Some(place) => place.clone(),
        None => {
            let (real, _) = follow(trust, &candidate.path, READABLE)?;
            // A symbolic link leads to a file in another directory, which must be safe too.
            let _ = directory_is_safe(trust, real.parent().unwrap_or(Path::new("/")))?;
            real
        }
    };
    // A FIFO with a provider's name must not block the search.
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
        .open(&real)
        .map_err(unreadable)?;
    let meta = file.metadata().map_err(unreadable)?;
    if !meta.is_file() {
        let (expected, found) = ("a regular file".to_string(), kind(&meta).to_string());
        return Err(("permissions", Unfit { expected, found }));
    }
    trust.check(&real, &meta, "a file").map_err(|unfit| ("permissions", unfit))?;
    let file = OpenFile::new(file, meta.len(), memory);
    let identity = identity::identity_in(&file, &candidate.name_in_file)?;
    Ok(Examined { identity, checked: Checked { file, meta } })
}

fn kind(meta: &fs::Metadata) -> &'static str {
    let kind = meta.file_type();
    if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}
