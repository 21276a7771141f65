//! The listening socket of an interface, by abstract name or in a directory.
//!
//! Without `TIELINE_SHM_DIR` the name is abstract: 128 random bits, nothing in the file system, gone with
//! the process. With it, the socket lies in that directory, for processes that share the directory but no
//! network namespace. Its file is removed by its owner, and if that was killed by the next one who comes
//! or goes: a socket that nobody listens on refuses connections.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tieline_plugin_api::{Failure, Status};

use crate::sys;

const PREFIX: &str = "tieline-";
const SUFFIX: &str = ".sock";
const STARTING: &str = ".new";
/// A socket that was bound but never came into use is removed after so long.
const STARTING_DEADLINE: Duration = Duration::from_secs(60);

/// A socket that listens, and its name.
pub(crate) struct Listener {
    socket: OwnedFd,
    name: Vec<u8>,
    file: Option<PathBuf>,
}

impl Listener {
    pub(crate) fn open(dir: Option<&Path>) -> Result<Listener, Failure> {
        let number: String =
            sys::random::<16>()?.iter().map(|byte| format!("{byte:02x}")).collect();
        let Some(dir) = dir else {
            let mut name = vec![0];
            name.extend(PREFIX.bytes());
            name.extend(number.bytes());
            return Ok(Listener { socket: sys::listen(&name)?, name, file: None });
        };
        prepare(dir)?;
        sweep(dir);
        let file = dir.join(format!("{PREFIX}{number}{SUFFIX}"));
        let starting = dir.join(format!("{PREFIX}{number}{STARTING}"));
        let name = file.as_os_str().as_bytes().to_vec();
        let advise = |failure: Failure| Failure {
            text: format!("TIELINE_SHM_DIR={}: {}", dir.display(), failure.text),
            ..failure
        };
        // Nobody sees the final name before the socket listens: a sweeper would take it for a dead one.
        let socket = sys::listen(starting.as_os_str().as_bytes()).map_err(advise)?;
        fs::rename(&starting, &file).map_err(|error| {
            let _ = fs::remove_file(&starting);
            advise(Failure::from_io("naming the socket", &error))
        })?;
        Ok(Listener { socket, name, file: Some(file) })
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// What goes into `sun_path`.
    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = fs::remove_file(file);
            // Who is last to leave finds the sockets of those that were killed, and whom nobody else buried:
            // a dying process may have closed its channels before its listening socket.
            if let Some(dir) = file.parent() {
                sweep(dir);
            }
        }
    }
}

/// The names to try for a peer's socket: our own view of the directory first, because the peer's path may
/// lead elsewhere here.
pub(crate) fn targets(socket: &[u8], own_dir: Option<&Path>) -> Vec<Vec<u8>> {
    let mut names = Vec::with_capacity(2);
    if let (Some(dir), Some(file)) = (own_dir, file_name(socket)) {
        names.push(dir.join(file).into_os_string().into_encoded_bytes());
    }
    if !names.iter().any(|name| name == socket) {
        names.push(socket.to_vec());
    }
    names
}

/// The file's name when the socket lies in a directory and is one of ours.
fn file_name(socket: &[u8]) -> Option<&OsStr> {
    if socket.first() != Some(&b'/') {
        return None;
    }
    Path::new(OsStr::from_bytes(socket)).file_name()
}

/// Whether one of the names is there.
pub(crate) fn is_visible(socket: &[u8], own_dir: Option<&Path>) -> bool {
    targets(socket, own_dir).iter().any(|name| Path::new(OsStr::from_bytes(name)).exists())
}

/// Makes the directory, or checks that it is ours alone.
fn prepare(dir: &Path) -> Result<(), Failure> {
    let name = dir.display();
    if !dir.is_absolute() {
        let text = format!("TIELINE_SHM_DIR={name} is not an absolute path");
        return Err(Failure::new(Status::Invalid, text));
    }
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(Failure::from_io(&format!("creating TIELINE_SHM_DIR={name}"), &error));
        }
        _ => {}
    }
    let about = fs::symlink_metadata(dir)
        .map_err(|error| Failure::from_io(&format!("reading TIELINE_SHM_DIR={name}"), &error))?;
    let fault = if !about.is_dir() {
        "is not a directory".to_string()
    } else if about.uid() != sys::user() {
        format!("belongs to user {}, not to {}", about.uid(), sys::user())
    } else if about.mode() & 0o077 != 0 {
        format!("is open to others (mode {:o}): chmod 700 it", about.mode() & 0o777)
    } else {
        return Ok(());
    };
    Err(Failure::new(Status::Permission, format!("TIELINE_SHM_DIR={name} {fault}")))
}

/// Removes the sockets of processes that were killed.
fn sweep(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        let Ok(about) = entry.metadata() else { continue };
        if !about.file_type().is_socket() {
            continue;
        }
        let path = entry.path();
        let dead = if name.ends_with(SUFFIX) {
            remove_if_dead(&path);
            continue;
        } else if name.ends_with(STARTING) {
            let age = about.modified().ok().and_then(|at| at.elapsed().ok());
            age.is_some_and(|age| age > STARTING_DEADLINE)
        } else {
            false
        };
        if dead {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Removes a socket that nobody listens on.
fn remove_if_dead(path: &Path) {
    let refused = |failure: Failure| failure.status == Status::PeerFailed;
    if sys::connect(path.as_os_str().as_bytes()).is_err_and(refused) {
        let _ = fs::remove_file(path);
    }
}

/// Removes the socket file of a peer that was seen to be dead.
pub(crate) fn bury(names: &[Vec<u8>]) {
    for name in names.iter().filter(|name| file_name(name).is_some()) {
        let path = Path::new(OsStr::from_bytes(name));
        let ours = path
            .file_name()
            .and_then(OsStr::to_str)
            .is_some_and(|file| file.starts_with(PREFIX) && file.ends_with(SUFFIX));
        if ours {
            remove_if_dead(path);
        }
    }
}
