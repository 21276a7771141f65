//! The side that reads: finds a process's files and believes nothing of what is in them.

use super::file;
use super::sys::{is_sealed, now_ns};
use super::text::time;
use super::values::{Doing, Status, WorkerStatus};
use super::{
    AT_ARMED, AT_ASLEEP, AT_CHANGES, AT_CONTEXT, AT_LEN, AT_MAGIC, AT_OPENED, AT_PID, AT_POLLS,
    AT_TEXT, AT_UNSEEN, AT_USED, AT_VERSION, AT_WRITTEN, HEAD, LINK, MAGIC, MOST_TEXT, PLACE,
    PLACES, VERSION_BYTES,
};
use crate::Error;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::time::Duration;
use tieline_plugin_api::{Failure, Status as Code};

/// Between two looks, which tell who moves. A worker that polls asks the kernel some thousand times meanwhile.
const BETWEEN: Duration = Duration::from_millis(250);
/// Contexts of one process, and processes that something waits for, that are looked at.
const MOST: usize = 64;
/// How often a text is read that changes meanwhile.
const TRIES: usize = 100;

/// What a running process shows of itself: each of its open contexts. It takes a quarter of a second, in which the process goes on.
///
/// # Errors
/// `Invalid`: there is no such process, or none with an open context; `Permission`: this user may not look into it.
pub fn of_process(pid: u32) -> Result<Vec<Status>, Error> {
    let process = Process::of(pid)?;
    let first = looks(&process)?;
    std::thread::sleep(BETWEEN);
    let mut all = Vec::new();
    for (file, before) in &first {
        // One that was closed meanwhile is still as it was: the file is held here.
        all.extend(read(file, Some(before), process.is_stopped()));
    }
    // By then it may have ended.
    let process = Process::of(pid).map_err(|_| ended(pid))?;
    for status in &mut all {
        (status.pid, status.program) = (pid, process.name.clone());
        if process.shares_numbers() {
            status.peers = peers(status);
        }
    }
    Ok(all)
}

/// What a context of this process shows, by one look.
pub(crate) fn own(of: &file::File) -> Option<Status> {
    let path = format!("/proc/self/fd/{}", of.fd());
    let mut status = read(&File::open(path).ok()?, None, false)?;
    status.pid = std::process::id();
    Some(status)
}

// ---- the process ----

/// What `/proc` says of a process.
struct Process {
    pid: u32,
    name: String,
    state: char,
    /// Its number in each process namespace that it is in.
    numbers: Vec<u32>,
    user: u32,
}

impl Process {
    fn of(pid: u32) -> Result<Process, Error> {
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
        Ok(Process {
            pid,
            name: field("Name"),
            state: field("State").chars().next().unwrap_or(' '),
            numbers: field("NSpid").split_whitespace().filter_map(|n| n.parse().ok()).collect(),
            user: field("Uid").split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0),
        })
    }

    fn is_stopped(&self) -> bool {
        matches!(self.state, 'T' | 't')
    }

    fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// Whether the numbers of processes mean there what they mean here.
    fn shares_numbers(&self) -> bool {
        let of = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/pid")).ok();
        of("self").is_some_and(|ours| of(&self.pid.to_string()) == Some(ours))
    }

    /// Its files, and the number that it has written into them.
    fn files(&self) -> Result<Vec<File>, Error> {
        let folder = format!("/proc/{}/fd", self.pid);
        let entries = std::fs::read_dir(&folder).map_err(|error| self.may_not(&error))?;
        let mut files = Vec::new();
        for entry in entries.map_while(Result::ok) {
            // A name that merely looks so may be anything: nothing is waited for, and nothing else than a sealed file is read.
            let named = std::fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str() == LINK);
            if !named || files.len() == MOST {
                continue;
            }
            let mut how = OpenOptions::new();
            let how = how.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
            let file = how.open(entry.path()).map_err(|error| self.may_not(&error))?;
            if file.metadata().is_ok_and(|about| about.is_file()) && is_sealed(&file) {
                files.push(file);
            }
        }
        Ok(files)
    }

    /// Why the kernel lets nobody look.
    fn may_not(&self, error: &io::Error) -> Error {
        let Process { pid, user, .. } = self;
        if Process::of(*pid).is_err() || self.is_dead() {
            return ended(*pid);
        }
        if error.kind() != ErrorKind::PermissionDenied {
            return Failure::from_io(&format!("looking at process {pid}"), error).into();
        }
        let ours = std::fs::metadata("/proc/self").map_or(0, |about| about.uid());
        let (why, fix) = if ours == *user {
            (
                "it has changed its user or has said that nobody may look into it \
                 (PR_SET_DUMPABLE), or a security module forbids it",
                "ask as root",
            )
        } else {
            ("it is another user's", "ask as that user or as root")
        };
        let what = format!("process {pid} (of user {user}) cannot be looked into");
        Error::new(Code::Permission, what, why, fix)
    }
}

fn ended(pid: u32) -> Error {
    Error::new(Code::Invalid, format!("process {pid} has ended"), "it did so just now", "")
}

/// A file, and the places of it that somebody had at the first look.
type Look = (File, Vec<(usize, Words)>);

/// The files of a process that are its own, each with a first look.
fn looks(process: &Process) -> Result<Vec<Look>, Error> {
    let mut parent = None;
    let mut found = Vec::new();
    for file in process.files()? {
        let Some(head) = Head::read(&file) else { continue };
        if process.numbers.is_empty() || process.numbers.contains(&head.pid) {
            let words = used(&file);
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
            format!("it was forked by process {parent}, whose context it has no use of"),
            format!("ask process {parent}"),
        ),
        None if process.is_dead() => ended(process.pid),
        None => Error::new(
            Code::Invalid,
            what,
            "it has no context of Tieline open, or one with TIELINE_LIVE=off, or of a version that shows none",
            "",
        ),
    })
}

/// What is known of processes that something waits for.
fn peers(status: &Status) -> Vec<String> {
    let waits = status.workers.iter().flat_map(|worker| &worker.endpoints);
    let waits = waits.filter(|endpoint| endpoint.waits.is_some());
    let mut asked: Vec<(u32, &str)> = Vec::new();
    for endpoint in waits {
        let whom = endpoint.peer_pid.filter(|pid| *pid != status.pid);
        if let Some(pid) = whom.filter(|pid| !asked.iter().any(|(known, _)| known == pid)) {
            asked.push((pid, &endpoint.peer_worker));
        }
    }
    asked.truncate(MOST);
    let found: Vec<Peer> = asked.into_iter().map(Peer::of).collect();
    if found.iter().any(|peer| matches!(peer, Peer::Shows(..))) {
        std::thread::sleep(BETWEEN);
    }
    found.into_iter().filter_map(Peer::text).map(|line| clean(&line)).collect()
}

/// A process that something waits for.
enum Peer {
    /// That is all there is to say.
    Is(String),
    /// It has a worker of this name, perhaps, and a second look tells what that does.
    Shows(Process, String, Vec<Look>),
    Unknown,
}

impl Peer {
    fn of((pid, worker): (u32, &str)) -> Peer {
        let process = Process::of(pid).ok().filter(|process| !process.is_dead());
        let Some(process) = process else {
            return Peer::Is(format!("process {pid} is not there any more"));
        };
        if process.is_stopped() {
            let name = &process.name;
            let text = "is stopped: `kill -CONT";
            return Peer::Is(format!("process {pid} ({name}) {text} {pid}` lets it go on"));
        }
        match looks(&process) {
            Ok(first) => Peer::Shows(process, worker.to_owned(), first),
            Err(_) => Peer::Unknown,
        }
    }

    fn text(self) -> Option<String> {
        let (process, worker, first) = match self {
            Peer::Is(text) => return Some(text),
            Peer::Shows(process, worker, first) => (process, worker, first),
            Peer::Unknown => return None,
        };
        let all = first.iter().filter_map(|(file, words)| read(file, Some(words), false));
        let its = all.flat_map(|status| status.workers).find(|other| other.worker == worker)?;
        let ms = time(its.doing_ms);
        let does = match its.doing {
            Doing::Polls => "makes progress".to_owned(),
            Doing::Sleeps => format!("has slept for {ms}"),
            Doing::Armed => format!("waits on its descriptor, or for its application, for {ms}"),
            Doing::NotCalled => {
                let why = "its application has called it seldom or not at all";
                format!("has made no progress for {ms}: {why}")
            }
            _ => return None,
        };
        Some(format!("process {} ({}): its worker {does}", process.pid, process.name))
    }
}

// ---- a file ----

/// The first page.
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
    changes: u64,
    polls: u64,
    asleep: u64,
    armed: bool,
    written: u64,
    len: u64,
}

/// The words of a place, if somebody has it.
fn words(file: &File, at: usize) -> Option<Words> {
    let mut bytes = [0; AT_TEXT];
    file.read_exact_at(&mut bytes, (HEAD + at * PLACE) as u64).ok()?;
    let word = |at: usize| word(&bytes, at);
    (word(AT_USED) != 0).then(|| Words {
        changes: word(AT_CHANGES),
        polls: word(AT_POLLS),
        asleep: word(AT_ASLEEP),
        armed: word(AT_ARMED) != 0,
        written: word(AT_WRITTEN),
        len: word(AT_LEN),
    })
}

/// Every place that somebody has.
pub(super) fn used(file: &File) -> Vec<(usize, Words)> {
    let len = file.metadata().map_or(0, |about| about.len());
    let places = len.saturating_sub(HEAD as u64) / PLACE as u64;
    let places = usize::try_from(places).unwrap_or(PLACES).min(PLACES);
    (0..places).filter_map(|at| Some((at, words(file, at)?))).collect()
}

/// All of a file. `before` is an earlier look.
pub(super) fn read(
    file: &File,
    before: Option<&[(usize, Words)]>,
    stopped: bool,
) -> Option<Status> {
    let head = Head::read(file)?;
    let mut workers = Vec::new();
    for (at, _) in used(file) {
        let Some((words, mut worker)) = text(file, at) else { continue };
        let now = now_ns();
        let since = |ns: u64| now.saturating_sub(ns) / 1_000_000;
        let earlier = before.and_then(|all| all.iter().find(|(place, _)| *place == at));
        worker.grow_older(since(words.written));
        worker.polls = words.polls;
        (worker.doing, worker.doing_ms) = match earlier {
            _ if stopped => (Doing::Stopped, 0),
            _ if words.asleep != 0 && words.armed => (Doing::Armed, since(words.asleep)),
            _ if words.asleep != 0 => (Doing::Sleeps, since(words.asleep)),
            Some((_, earlier)) if earlier.polls == words.polls => {
                (Doing::NotCalled, since(words.written))
            }
            Some(_) => (Doing::Polls, 0),
            None => (Doing::Asked, 0),
        };
        workers.push(worker);
    }
    let context: String = head.context[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    let open_ms = now_ns().saturating_sub(head.opened) / 1_000_000;
    let (version, unseen) = (head.version, head.unseen);
    Some(Status { version, context, open_ms, workers, unseen, ..Status::default() })
}

/// The text of a place, as it was between two changes; empty where none can be had, or is none.
fn text(file: &File, at: usize) -> Option<(Words, WorkerStatus)> {
    let mut last = words(file, at)?;
    for _ in 0..TRIES {
        let before = last;
        let len = usize::try_from(before.len).unwrap_or(usize::MAX).min(MOST_TEXT);
        let mut bytes = vec![0; len];
        let place = (HEAD + at * PLACE + AT_TEXT) as u64;
        let whole = file.read_exact_at(&mut bytes, place).is_ok();
        last = words(file, at)?;
        if whole && before.changes % 2 == 0 && before.changes == last.changes {
            return Some((last, parse(&bytes)));
        }
        std::thread::yield_now();
    }
    Some((
        last,
        WorkerStatus {
            worker: "(its text changes all the time)".into(),
            ..WorkerStatus::default()
        },
    ))
}

/// What somebody has written, who may be anybody.
pub(super) fn parse(bytes: &[u8]) -> WorkerStatus {
    let cleaned = serde_json::from_slice(bytes).map(|mut value| {
        clean_all(&mut value);
        value
    });
    cleaned.and_then(serde_json::from_value).unwrap_or_else(|_| WorkerStatus {
        worker: "(its text is none that this version reads)".into(),
        ..WorkerStatus::default()
    })
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

/// A text in one line, without what a terminal, or a reader's eye, would take for more than text.
pub(super) fn clean(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if c.is_control() || turns(c) { '?' } else { c }).collect()
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
    word.map_or(0, u64::from_ne_bytes)
}
