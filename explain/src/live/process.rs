//! The state of a process according to `/proc`.

use super::read::clean;
use super::room::Room;
use super::sys::{is_sealed, memory_file};
use super::{LINK, NAME};
use crate::Error;
use crate::snapshot::Doing;
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tieline_plugin_api::{Failure, Status as Code};

/// The maximum number of observed contexts per process.
const MOST: usize = 64;

/// A process, as described in `/proc`.
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) name: String,
    state: char,
    threads: u32,
    /// The process's number in the innermost process namespace that contains it.
    pub(super) number: Option<u32>,
    pub(super) user: u32,
}

impl Process {
    /// Reads the process with this number; a thread's number selects the thread's process.
    pub(super) fn of(pid: u32) -> Result<Process, Error> {
        let (process, whole) = Process::read(pid)?;
        if whole == pid { Ok(process) } else { Ok(Process::read(whole)?.0) }
    }

    fn read(pid: u32) -> Result<(Process, u32), Error> {
        let text = std::fs::read(format!("/proc/{pid}/status")).map_err(|_| {
            let what = format!("process {pid} is not there");
            let fix = "`pgrep -l NAME` tells the number of a program's process";
            Error::new(Code::Invalid, what, "it has ended, or this user may not see it", fix)
        })?;
        let text = String::from_utf8_lossy(&text);
        let field = |name: &str| {
            let of =
                |line: &str| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned());
            text.lines().find_map(of).unwrap_or_default()
        };
        let process = Process {
            pid,
            name: clean(&field("Name")),
            state: field("State").chars().next().unwrap_or(' '),
            threads: field("Threads").parse().unwrap_or(1),
            number: field("NStgid").split_whitespace().last().and_then(|n| n.parse().ok()),
            user: field("Uid").split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0),
        };
        Ok((process, field("Tgid").parse().unwrap_or(pid)))
    }

    /// Checks whether there is certainly no process with that number. A process that cannot be inspected may exist.
    pub(super) fn is_gone(pid: u32) -> bool {
        let status = std::fs::metadata(format!("/proc/{pid}/status"));
        let hides = || std::fs::metadata("/proc/1/status").is_err();
        status.is_err_and(|error| error.kind() == ErrorKind::NotFound) && !hides()
    }

    /// Returns the reason that the process cannot run, if there is one.
    pub(super) fn holds(&self) -> Option<Doing> {
        match self.state {
            'T' => Some(Doing::Stopped),
            't' => Some(Doing::Traced),
            _ => None,
        }
    }

    /// Checks whether the process has ended. The first thread may end before the others, and is then a zombie of a running process.
    pub(super) fn is_dead(&self) -> bool {
        self.state == 'X' || self.state == 'Z' && self.threads <= 1
    }

    /// Checks whether the other process is in this process's PID namespace, so that process numbers have the same meaning.
    pub(super) fn shares_numbers(&self) -> bool {
        let of = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/pid")).ok();
        of("self").is_some_and(|ours| of(&self.pid.to_string()) == Some(ours))
    }

    /// Returns the folder of one of the process's threads in `/proc`.
    pub(super) fn task(&self, thread: u32) -> PathBuf {
        format!("/proc/{}/task/{thread}", self.pid).into()
    }

    /// Opens the files of the process's contexts, and of contexts inherited from its parent: at most `MOST`, within the time limit.
    pub(super) fn files(&self, room: &mut Room) -> Result<Vec<File>, Error> {
        let folder = format!("/proc/{}/fd", self.pid);
        let entries = std::fs::read_dir(&folder).map_err(|error| self.may_not(&error))?;
        let mut files = Vec::new();
        let mut known = HashSet::new();
        let where_memory_is = memory_mount();
        for entry in entries.map_while(Result::ok).take_while(|_| room.has_time()) {
            let named = std::fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str() == LINK);
            if !named || files.len() == MOST {
                continue;
            }
            let file = match open(&entry.path(), where_memory_is.as_deref()) {
                Ok(Some(file)) => file,
                Ok(None) => continue,
                // The process has just closed this descriptor.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(self.may_not(&error)),
            };
            let about = file.metadata().ok().filter(|about| about.is_file() && is_sealed(&file));
            if about.is_some_and(|about| known.insert((about.dev(), about.ino()))) {
                files.push(file);
            }
        }
        Ok(files)
    }

    /// Makes the error for an inspection that failed.
    pub(super) fn may_not(&self, error: &io::Error) -> Error {
        let Process { pid, user, .. } = self;
        if self.is_dead() || Process::is_gone(*pid) {
            return ended(*pid);
        }
        if error.kind() != ErrorKind::PermissionDenied {
            return Failure::from_io(&format!("looking at process {pid}"), error).into();
        }
        let ours = std::fs::metadata("/proc/self").map_or(0, |about| about.uid());
        let (why, fix) = if ours == *user {
            (
                "it has changed its user, has capabilities that this one lacks, or has forbidden to be inspected \
                 (PR_SET_DUMPABLE); or a security module forbids it",
                "ask as root, in a container with CAP_SYS_PTRACE",
            )
        } else {
            (
                "it is another user's",
                "ask as that user or as root, in a container with CAP_SYS_PTRACE",
            )
        };
        let what = format!("process {pid} (of user {user}) cannot be looked into");
        Error::new(Code::Permission, what, why, fix)
    }
}

/// Opens a memory file. An object with the name of a memory file may be any object and may change at any moment. An example is a
/// file of a server that never answers. So the object is first held by O_PATH, which contacts no server, and opened only if it lies
/// on the mount of all memory files. This check is omitted if that mount is unknown.
fn open(path: &Path, where_memory_is: Option<&str>) -> io::Result<Option<File>> {
    let held = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
    let own = format!("/proc/self/fd/{}", held.as_raw_fd());
    let is_named = std::fs::read_link(&own).is_ok_and(|to| to.as_os_str() == LINK);
    if !is_named || where_memory_is.is_some_and(|mount| mount_of(&held).as_deref() != Some(mount)) {
        return Ok(None);
    }
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    OpenOptions::new().read(true).custom_flags(flags).open(own).map(Some)
}

/// Returns the id of the mount on which a file lies.
fn mount_of(file: &impl AsRawFd) -> Option<String> {
    let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    let number = about.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
    Some(number.trim().to_owned())
}

/// Returns the mount id of memory files; `None` if this process cannot create one, or cannot read its mount.
fn memory_mount() -> Option<String> {
    mount_of(&memory_file(NAME, 0).ok()?)
}

/// Returns the kernel's state of the thread in that folder (see [`Process::task`]) if the thread is in uninterruptible sleep: `D
/// (disk sleep) in nfs_wait`.
pub(super) fn stuck(task: &Path) -> Option<String> {
    let status = std::fs::read(task.join("status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let state = status.lines().find_map(|line| line.strip_prefix("State:"))?.trim();
    let state = state.starts_with('D').then(|| clean(state))?;
    let place = std::fs::read_to_string(task.join("wchan")).unwrap_or_default();
    match place.as_str() {
        "" | "0" => Some(state),
        place => Some(format!("{state} in {}", clean(place))),
    }
}

pub(super) fn ended(pid: u32) -> Error {
    Error::new(Code::Invalid, format!("process {pid} has ended"), "it did so just now", "")
}
