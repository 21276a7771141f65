//! The reader's side: finds a process's files and trusts none of their contents.

use super::file;
use super::process::{Process, ended, stuck};
use super::room::Room;
use super::sys::now_ns;
use super::values::{Doing, PeerStatus, Status, WorkerStatus};
use super::{
    AT_ASLEEP, AT_CONTEXT, AT_LEN, AT_MAGIC, AT_OPEN, AT_OPENED, AT_PID, AT_POLLS, AT_TEXT,
    AT_TEXTS, AT_UNSEEN, AT_USED, AT_VERSION, AT_WAITING, AT_WRITTEN, HEAD, MAGIC, MOST_TEXT,
    PLACE, PLACES, VERSION_BYTES, WORDS, slot,
};
use crate::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;
use tieline_plugin_api::Status as Code;

/// The time between two observations, whose difference shows whether a worker is active. A polling worker polls the kernel some
/// thousand times in this time.
const BETWEEN: Duration = Duration::from_millis(250);
/// The maximum number of observed processes for which operations wait.
const MOST_PEERS: usize = 64;
/// The maximum number of retries of reading a text that changes meanwhile.
const TRIES: usize = 100;

/// Returns the published state of a running process: each of its open contexts. The call takes a quarter of a second, during which
/// the process continues. The call takes at most three seconds and some ten MiB of memory, regardless of the amount that the
/// process publishes; the rest is left out and counted ([`Status::incomplete`]).
///
/// # Errors
/// `Invalid`: there is no such process, or it has no open context. `Permission`: this user may not inspect it. `TimedOut`: the
/// process has many descriptors, and none of a context was found within the time limit.
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

/// Returns the state that a context of this process publishes, by one observation; `None` in a forked child.
pub(crate) fn own(of: &file::File) -> Option<Status> {
    let mut status = read(of.opened()?, None, None, &mut Room::without_bounds())?;
    status.pid = std::process::id();
    Some(status)
}

/// A file, and the places that were in use at the first observation.
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

/// Returns the processes for which operations wait, each with a first observation.
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

/// The first page of a file.
struct Head {
    pid: u32,
    context: [u8; 16],
    opened: u64,
    unseen: u64,
    version: String,
}

impl Head {
    fn read(file: &File) -> Option<Head> {
        let mut page = [0; AT_VERSION + VERSION_BYTES];
        file.read_exact_at(&mut page, 0).ok()?;
        if word(&page, AT_MAGIC) != MAGIC {
            return None;
        }
        let version = &page[AT_VERSION..];
        let end = version.iter().position(|byte| *byte == 0).unwrap_or(version.len());
        let mut context = [0; 16];
        context.copy_from_slice(&page[AT_CONTEXT..AT_CONTEXT + 16]);
        Some(Head {
            pid: u32::try_from(word(&page, AT_PID)).ok()?,
            context,
            opened: word(&page, AT_OPENED),
            unseen: word(&page, AT_UNSEEN),
            version: clean(&String::from_utf8_lossy(&version[..end])),
        })
    }
}

/// The words of a worker's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Words {
    texts: u64,
    polls: u64,
    open: u64,
    asleep: u64,
    armed: bool,
    waiting: u64,
}

/// Returns the words of a place, if the place is in use.
fn words(file: &File, at: usize) -> Option<Words> {
    let mut bytes = [0; WORDS];
    file.read_exact_at(&mut bytes, (HEAD + at * PLACE) as u64).ok()?;
    let word = |at: usize| word(&bytes, at);
    (word(AT_USED) != 0).then(|| Words {
        texts: word(AT_TEXTS),
        polls: word(AT_POLLS),
        open: word(AT_OPEN),
        asleep: word(AT_ASLEEP) & !1,
        armed: word(AT_ASLEEP) & 1 != 0,
        waiting: word(AT_WAITING),
    })
}

/// Returns the words of all places in use.
pub(super) fn used(file: &File, room: &mut Room) -> Vec<(usize, Words)> {
    let len = file.metadata().map_or(0, |about| about.len());
    let places = len.saturating_sub(HEAD as u64) / PLACE as u64;
    let places = usize::try_from(places).unwrap_or(PLACES).min(PLACES);
    let mut all = Vec::new();
    for at in 0..places {
        if !room.has_time() {
            break;
        }
        match words(file, at) {
            Some(words) if room.takes_words() => all.push((at, words)),
            _ => {}
        }
    }
    all
}

/// Reads a whole file. `before`: an earlier observation; `holds`: the reason that the file's process cannot run; `room`: the
/// remaining limits of the read.
pub(super) fn read(
    file: &File,
    before: Option<&[(usize, Words)]>,
    holds: Option<Doing>,
    room: &mut Room,
) -> Option<Status> {
    let head = Head::read(file)?;
    let (mut workers, mut unread) = (Vec::new(), 0);
    for (at, _) in used(file, room) {
        if room.has_ended() {
            unread += 1;
            continue;
        }
        let (words, written, mut worker) = match text(file, at, room) {
            Some(Some(text)) => text,
            Some(None) => continue,
            None => {
                unread += 1;
                continue;
            }
        };
        let now = now_ns();
        let since = |ns: u64| now.saturating_sub(ns) / 1_000_000;
        let earlier = before.and_then(|all| all.iter().find(|(place, _)| *place == at));
        let has_moved = words.polls != worker.polls;
        if worker.unknown.is_none() {
            worker.age_ms = since(written);
        }
        if words.asleep != 0 && !has_moved {
            worker.grow_older(worker.age_ms);
        }
        if has_moved && words.open == 0 {
            worker.ends_operations();
        }
        worker.waiting_ms = (words.waiting != 0).then(|| since(words.waiting));
        (worker.doing, worker.doing_ms) = match (holds, earlier) {
            (Some(holds), _) => (holds, 0),
            _ if words.asleep != 0 && words.armed => (Doing::Armed, since(words.asleep)),
            _ if words.asleep != 0 => (Doing::Sleeps, since(words.asleep)),
            (_, Some((_, earlier))) if earlier.polls == words.polls => match has_moved {
                true => (Doing::NotCalled, BETWEEN.as_millis() as u64),
                false => (Doing::NotCalled, worker.age_ms),
            },
            (_, Some(_)) => (Doing::Polls, 0),
            (_, None) => (Doing::Asked, 0),
        };
        worker.polls = words.polls;
        workers.push(worker);
    }
    let context: String = head.context[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    let open_ms = now_ns().saturating_sub(head.opened) / 1_000_000;
    let (version, unseen) = (head.version, head.unseen);
    Some(Status { version, context, open_ms, workers, unseen, unread, ..Status::default() })
}

/// Returns the last text of a place, and the time at which it was written. The inner `None`: the place is not in use any more. The
/// outer `None`: the limits are exhausted.
fn text(file: &File, at: usize, room: &mut Room) -> Option<Option<(Words, u64, WorkerStatus)>> {
    let Some(mut last) = words(file, at) else { return Some(None) };
    for _ in 0..TRIES {
        let (before, from) = (last, (HEAD + at * PLACE + slot(last.texts)) as u64);
        // The data read below is at least as new as the count.
        fence(Ordering::Acquire);
        let mut about = [0; AT_TEXT];
        if file.read_exact_at(&mut about, from).is_err() {
            return Some(None);
        }
        let (written, len) = (word(&about, AT_WRITTEN), word(&about, AT_LEN));
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX).min(MOST_TEXT)];
        if !room.takes(bytes.len()) {
            return None;
        }
        let whole = file.read_exact_at(&mut bytes, from + AT_TEXT as u64).is_ok();
        fence(Ordering::Acquire);
        match words(file, at) {
            Some(words) => last = words,
            None => return Some(None),
        }
        if whole && before.texts == last.texts {
            let worker = match len {
                0 => unknown("it has not shown itself yet, or had no memory to"),
                _ => parse(&bytes),
            };
            return Some(Some((last, written, worker)));
        }
        std::thread::yield_now();
    }
    Some(Some((last, 0, unknown("its text changes all the time"))))
}

fn unknown(why: &str) -> WorkerStatus {
    WorkerStatus { unknown: Some(why.to_owned()), ..WorkerStatus::default() }
}

/// Parses text from an untrusted writer.
pub(super) fn parse(bytes: &[u8]) -> WorkerStatus {
    let cleaned = serde_json::from_slice(bytes).map(|mut value| {
        clean_all(&mut value);
        value
    });
    let parsed: Result<WorkerStatus, _> = cleaned.and_then(serde_json::from_value);
    let mut worker = parsed.unwrap_or_else(|_| unknown("its text is none that this version reads"));
    worker.bound();
    worker
}

fn clean_all(value: &mut serde_json::Value) {
    use serde_json::Value;
    match value {
        Value::String(text) => *text = clean(text),
        Value::Array(all) => all.iter_mut().for_each(clean_all),
        Value::Object(fields) => {
            let all = std::mem::take(fields).into_iter().map(|(name, mut value)| {
                clean_all(&mut value);
                (clean(&name), value)
            });
            *fields = all.collect();
        }
        _ => {}
    }
}

/// Returns a text in one line, without characters that a terminal or a reader could misinterpret.
pub(super) fn clean(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if c.is_control() || turns(c) { '?' } else { c }).collect()
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
    word.map_or(0, u64::from_ne_bytes)
}
