//! Looks into other processes: finds their files, and observes them twice.

use super::process::{Process, ended, stuck};
use super::read::{BETWEEN, Head, Words, read, used};
use super::room::Room;
use crate::Error;
use crate::snapshot::{Doing, PeerStatus, Status};
use std::fs::File;
use tieline_plugin_api::Status as Code;

/// The maximum number of processes that are observed because operations wait for them.
const MOST_PEERS: usize = 64;

/// Returns the published state of the open contexts of a running process, at most 64. The call pauses for a quarter of a second,
/// and once more if operations wait for other processes that publish their state; the processes continue meanwhile. Reading ends
/// after three seconds, or after two MiB of text. The rest is left out, and [`Status::incomplete`] is set.
///
/// # Errors
/// `Invalid`: there is no such process, it has ended, or it publishes no context. `Permission`: this user may not inspect it.
/// `TimedOut`: the process has many descriptors, and none of a context was found within the time limit. Other errors are those of
/// the system.
pub fn status_of(pid: u32) -> Result<Vec<Status>, Error> {
    let process = Process::of(pid)?;
    let mut room = Room::for_a_look();
    let first = looks(&process, &mut room)?;
    std::thread::sleep(BETWEEN);
    let mut all = Vec::new();
    for (file, before) in &first {
        // A context that was closed meanwhile is still readable, because the file is held open here.
        all.extend(read(file, Some(before), process.holds(), &mut room));
    }
    // The process may have ended meanwhile.
    let process = Process::of(process.pid).map_err(|_| ended(pid))?;
    for status in &mut all {
        (status.pid, status.program) = (process.pid, process.name.clone());
    }
    if process.shares_numbers() {
        let workers = all.iter_mut().flat_map(|status| &mut status.workers);
        for worker in workers.take_while(|_| room.has_time()) {
            worker.stuck = stuck(&process.task(worker.thread));
        }
        let asked: Vec<Vec<Peer>> = all.iter().map(|status| peers(status, &mut room)).collect();
        // A second observation shows the activity of peers that publish their state.
        if asked.iter().flatten().any(|peer| matches!(peer, Peer::Shows(..))) {
            std::thread::sleep(BETWEEN);
        }
        for (status, peers) in all.iter_mut().zip(asked) {
            status.peers = peers.into_iter().filter_map(|peer| peer.status(&mut room)).collect();
        }
    }
    all.iter_mut().for_each(|status| status.incomplete = room.has_ended());
    Ok(all)
}

/// Does the same as [`status_of`], of which this is the earlier name.
///
/// # Errors
/// The errors of [`status_of`].
#[deprecated(since = "0.2.0", note = "renamed to `status_of`")]
pub fn of_process(pid: u32) -> Result<Vec<Status>, Error> {
    status_of(pid)
}

/// A file, and the places that were seen in use at the first observation.
type Look = (File, Vec<(usize, Words)>);

/// Returns the files that belong to a process, each with a first observation.
fn looks(process: &Process, room: &mut Room) -> Result<Vec<Look>, Error> {
    let mut parent = None;
    let mut found = Vec::new();
    for file in process.files(room)? {
        let Some(head) = Head::read(&file) else { continue };
        if process.number.is_none_or(|own| own == head.pid) {
            let words = used(&file, room);
            found.push((file, words));
        } else {
            parent = Some(head.pid);
        }
    }
    if !found.is_empty() {
        return Ok(found);
    }
    let what = format!("process {} ({}) shows nothing", process.pid, process.name);
    Err(match parent {
        Some(parent) => Error::new(
            Code::Invalid,
            what,
            format!("it was forked by process {parent} and cannot use that process's context"),
            format!("ask process {parent}"),
        ),
        None if process.is_dead() => ended(process.pid),
        None if room.has_ended() => Error::new(
            Code::TimedOut,
            what,
            "its descriptors are so many that those of a context were not found within three seconds",
            "",
        ),
        None => Error::new(
            Code::Invalid,
            what,
            "it has no context of Tieline open, or one with TIELINE_LIVE=off, or of a version that shows none",
            "",
        ),
    })
}

/// Returns other processes on this host for which operations wait, at most `MOST_PEERS`, each with a first observation if it can be
/// observed.
fn peers(status: &Status, room: &mut Room) -> Vec<Peer> {
    let waits = status.workers.iter().flat_map(|worker| &worker.endpoints);
    let waits = waits.filter(|endpoint| endpoint.waits.is_some());
    let mut asked: Vec<(u32, &str)> = Vec::new();
    for endpoint in waits {
        if asked.len() == MOST_PEERS {
            break;
        }
        let whom = endpoint.peer_pid.filter(|pid| *pid != status.pid);
        if let Some(pid) = whom.filter(|pid| !asked.iter().any(|(known, _)| known == pid)) {
            asked.push((pid, &endpoint.peer_worker));
        }
    }
    asked.into_iter().map_while(|peer| room.has_time().then(|| Peer::of(peer, room))).collect()
}

/// A process for which an operation waits.
enum Peer {
    Gone(u32),
    /// The process may have a worker of this name, whose activity a second observation shows.
    Shows(Process, String, Vec<Look>),
    Unknown,
}

impl Peer {
    fn of((pid, worker): (u32, &str), room: &mut Room) -> Peer {
        match Process::of(pid) {
            Ok(process) if process.is_dead() => Peer::Gone(pid),
            Ok(process) => match looks(&process, room) {
                Ok(first) => Peer::Shows(process, worker.to_owned(), first),
                // The process id may have been reused.
                Err(_) => Peer::Unknown,
            },
            Err(_) if Process::is_gone(pid) => Peer::Gone(pid),
            Err(_) => Peer::Unknown,
        }
    }

    fn status(self, room: &mut Room) -> Option<PeerStatus> {
        let (process, worker, first) = match self {
            Peer::Gone(pid) => {
                let text = format!("process {pid} is not there any more");
                return Some(PeerStatus { pid, text, ..PeerStatus::default() });
            }
            Peer::Shows(process, worker, first) => (process, worker, first),
            Peer::Unknown => return None,
        };
        let mut all = first
            .iter()
            .filter_map(|(file, words)| read(file, Some(words), process.holds(), room))
            .flat_map(|status| status.workers);
        // The worker's name confirms that the id belongs to the intended process.
        let mut its = all.find(|other| other.worker == worker)?;
        its.stuck = stuck(&process.task(its.thread));
        let Process { pid, name, .. } = &process;
        let text = match its.doing {
            Doing::Stopped => {
                format!("process {pid} ({name}) is stopped: `kill -CONT {pid}` lets it go on")
            }
            Doing::Traced => format!("process {pid} ({name}) is held by a debugger"),
            _ => format!("process {pid} ({name}): its worker {}", its.does()?),
        };
        let (doing, doing_ms) = (Some(its.doing), its.doing_ms);
        Some(PeerStatus { pid: *pid, program: name.clone(), doing, doing_ms, text })
    }
}
