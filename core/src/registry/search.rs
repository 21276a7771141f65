//! Where providers are looked for, and which of the files found there are fit to be opened.
//!
//! In this order: the directories of `TIELINE_PROVIDER_PATH`, the directory beside the library (or beside
//! the executable that the core is linked into) and its `tieline-1/providers`, and the system directory that
//! was compiled in. A directory or file that cannot be used is recorded and never ends the search.

use super::elf::{self, OpenFile, Unfit};
use super::identity::{self, Identity, Refusal};
use super::{Settings, load, sys};
use crate::explain::{Record, Verdict};
use std::collections::HashSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tieline_plugin_api::abi::ABI_MAJOR;

/// The variable that names directories.
const VARIABLE: &str = "TIELINE_PROVIDER_PATH";

/// `<libdir>`, as the package was configured (`TIELINE_LIBDIR` when it was built).
const LIBDIR: &str = match option_env!("TIELINE_LIBDIR") {
    Some(libdir) => libdir,
    None => "/usr/lib",
};

/// Why a directory is in the search path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Named by the user: what is wrong with it is told.
    Named,
    /// Beside the library or the executable: told only if it holds providers.
    Beside,
    /// The package manager's: its files are not tried in a child process.
    System,
}

/// The directories to search, in order, and what was wrong with the names of others.
pub(crate) struct SearchPath {
    directories: Vec<(PathBuf, Kind)>,
    records: Vec<Record>,
}

/// A file that is a provider by its name and its rights.
pub(super) struct Candidate {
    pub(super) path: PathBuf,
    pub(super) name_in_file: String,
    /// From the system directory.
    pub(super) system: bool,
}

/// A candidate that was opened and read.
pub(super) struct Examined {
    pub(super) identity: Identity,
    pub(super) meta: fs::Metadata,
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
    /// The path that the settings and this installation give.
    pub(crate) fn from_settings(settings: &dyn Settings) -> SearchPath {
        let mut path = SearchPath::named(settings.get(VARIABLE).as_deref(), sys::is_set_uid());
        if let Some(beside) = load::own_object().as_deref().and_then(Path::parent) {
            path.push(beside.to_path_buf(), Kind::Beside);
            path.push(beside.join(format!("tieline-{ABI_MAJOR}/providers")), Kind::Beside);
        }
        path.push(system_directory(), Kind::System);
        path
    }

    /// Only what `TIELINE_PROVIDER_PATH` names.
    pub(crate) fn named(value: Option<&str>, set_uid: bool) -> SearchPath {
        let mut path = SearchPath { directories: Vec::new(), records: Vec::new() };
        let Some(value) = value.filter(|value| !value.is_empty()) else { return path };
        if set_uid {
            let found = format!("a set-uid process: {VARIABLE}={value} is ignored");
            path.records.push(refused(
                Path::new(VARIABLE),
                "search",
                "a process without extra rights",
                found,
            ));
            return path;
        }
        for entry in value.split(':').filter(|entry| !entry.is_empty()) {
            match std::path::absolute(entry) {
                Ok(directory) => path.push(directory, Kind::Named),
                Err(error) => {
                    let found = error.to_string();
                    path.records.push(refused(Path::new(entry), "search", "a directory", found));
                }
            }
        }
        path
    }

    fn push(&mut self, directory: PathBuf, kind: Kind) {
        match self.directories.iter_mut().find(|(known, _)| *known == directory) {
            // The user may name the system directory: it stays the system's.
            Some((_, known)) if kind == Kind::System => *known = Kind::System,
            Some(_) => {}
            None => self.directories.push((directory, kind)),
        }
    }

    /// The directories, for the words of a record.
    pub(crate) fn looked(&self) -> String {
        let names: Vec<String> =
            self.directories.iter().map(|(directory, _)| directory.display().to_string()).collect();
        names.join(":")
    }

    /// Lists the candidates in the order of the search, and records what cannot be one.
    pub(super) fn candidates(self) -> (Vec<Candidate>, Vec<Record>) {
        let mut records = self.records;
        let mut candidates = Vec::new();
        let mut seen = HashSet::new();
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
            if let Err(unfit) = directory_is_safe(directory) {
                records.push(refused(directory, "permissions", unfit.expected, unfit.found));
                continue;
            }
            for (file_name, name_in_file) in names {
                let path = directory.join(file_name);
                // The same file again, through a second name of its directory, is no second provider.
                let real = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
                if seen.insert(real) {
                    let system = *kind == Kind::System;
                    candidates.push(Candidate { path, name_in_file, system });
                }
            }
        }
        (candidates, records)
    }
}

fn system_directory() -> PathBuf {
    Path::new(LIBDIR).join(format!("tieline-{ABI_MAJOR}/providers"))
}

/// The provider files of a directory with the names in their names, sorted.
fn names(directory: &Path) -> std::io::Result<Vec<(std::ffi::OsString, String)>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        // One entry that cannot be read is not a reason to miss the others.
        let Ok(entry) = entry else { continue };
        let file_name = entry.file_name();
        let in_file =
            std::str::from_utf8(file_name.as_bytes()).ok().and_then(identity::name_in_file);
        if let Some(in_file) = in_file.map(str::to_string) {
            names.push((file_name, in_file));
        }
    }
    names.sort();
    Ok(names)
}

/// Whether only root and this user can put something there.
fn safe(meta: &fs::Metadata, what: &str) -> Result<(), Unfit> {
    let user = sys::effective_uid();
    if meta.mode() & 0o002 != 0 {
        return Err(Unfit {
            expected: format!("{what} that not everybody can write"),
            found: format!("mode {:04o}: world-writable", meta.mode() & 0o7777),
        });
    }
    if meta.uid() != 0 && meta.uid() != user {
        return Err(Unfit {
            expected: format!("{what} that belongs to root or to user {user}"),
            found: format!("it belongs to user {}", meta.uid()),
        });
    }
    Ok(())
}

fn directory_is_safe(directory: &Path) -> Result<(), Unfit> {
    match fs::metadata(directory) {
        Ok(meta) => safe(&meta, "a directory"),
        Err(error) => {
            Err(Unfit { expected: "a directory that can be read".into(), found: error.to_string() })
        }
    }
}

/// Checks a candidate's rights, structure and note. None of its code runs.
pub(super) fn examine(candidate: &Candidate) -> Result<Examined, Refusal> {
    let unreadable = |error: std::io::Error| -> Refusal {
        ("search", Unfit { expected: "a file that can be read".into(), found: error.to_string() })
    };
    // A FIFO with a provider's name must not hang the search.
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&candidate.path)
        .map_err(unreadable)?;
    let meta = file.metadata().map_err(unreadable)?;
    if !meta.is_file() {
        let (expected, found) = ("a regular file".to_string(), "something else".to_string());
        return Err(("permissions", Unfit { expected, found }));
    }
    safe(&meta, "a file").map_err(|unfit| ("permissions", unfit))?;
    // Behind a symbolic link the file's own directory counts too.
    if let Some(real) = fs::canonicalize(&candidate.path).ok().as_deref().and_then(Path::parent) {
        directory_is_safe(real).map_err(|unfit| ("permissions", unfit))?;
    }
    let image =
        elf::read(&OpenFile { file: &file, len: meta.len() }).map_err(|unfit| ("elf", unfit))?;
    let identity = identity::check(image.note.as_deref(), &candidate.name_in_file)?;
    Ok(Examined { identity, meta })
}
