//! Reads a file of any process, and trusts none of its contents.

use super::file;
use super::room::Room;
use super::sys::now_ns;
use super::{
    AT_ASLEEP, AT_CONTEXT, AT_LEN, AT_MAGIC, AT_OPEN, AT_OPENED, AT_PID, AT_POLLS, AT_TEXT,
    AT_TEXTS, AT_UNSEEN, AT_USED, AT_VERSION, AT_WAITING, AT_WRITTEN, HEAD, MAGIC, MOST_TEXT,
    PLACE, PLACES, VERSION_BYTES, WORDS, slot,
};
use crate::snapshot::{Doing, Status, WorkerStatus, short};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// The time between two observations, whose difference shows whether a worker is active.
pub(super) const BETWEEN: Duration = Duration::from_millis(250);
/// The maximum number of attempts to read a text that changes meanwhile.
const TRIES: usize = 100;

/// Returns the state that a context of this process publishes, by one observation; `None` in a forked child.
pub fn own(of: &file::File) -> Option<Status> {
    let mut status = read(of.opened()?, None, None, &mut Room::without_bounds())?;
    status.pid = std::process::id();
    Some(status)
}

/// The contents of a file's first page.
pub(super) struct Head {
    pub(super) pid: u32,
    context: [u8; 16],
    opened: u64,
    unseen: u64,
    version: String,
}

impl Head {
    pub(super) fn read(file: &File) -> Option<Head> {
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

/// Returns the words of the places in use, as far as the limits permit.
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

/// Reads a file, as far as the limits permit; `None` if it is no live file. `before`: an earlier observation; `holds`: the reason
/// that the file's process cannot run; `room`: the remaining limits of the read.
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
    let context = short(&head.context);
    let open_ms = now_ns().saturating_sub(head.opened) / 1_000_000;
    let (version, unseen) = (head.version, head.unseen);
    Some(Status { version, context, open_ms, workers, unseen, unread, ..Status::default() })
}

/// Returns the last text of a place, parsed, with the place's words and the time at which it was written. The inner `None`: the
/// place is not in use any more, or the file is too short. The outer `None`: the limits are exhausted.
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

/// Parses text from an untrusted writer. A text that cannot be parsed gives a status with `unknown` set.
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

/// Replaces control characters and characters that change the direction of text by question marks.
pub(super) fn clean(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if c.is_control() || turns(c) { '?' } else { c }).collect()
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
    word.map_or(0, u64::from_ne_bytes)
}
