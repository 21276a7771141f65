//! The answers of trials, kept in a file of the user's cache directory.
//!
//! The cache only saves time. A cache that cannot be read, or that another user could have written or placed, counts as empty. A
//! failed write is ignored.

use crate::Trust;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use tieline_plugin_api::raised_rights;

/// The time in seconds for which a negative answer is valid.
const NO_LASTS_SECONDS: u64 = 24 * 3600;
/// The maximum number of answers that a write keeps: the added answer, and the latest of the others.
const MOST_ENTRIES: usize = 256;
const MOST_CACHE_BYTES: u64 = 256 * 1024;

/// The identity of one state of a file: device, inode, size, and the times of modification and of status change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileKey([i64; 7]);

impl FileKey {
    /// Returns the identity of the state that these attributes describe.
    #[must_use]
    pub fn of(meta: &fs::Metadata) -> FileKey {
        FileKey([
            meta.dev() as i64,
            meta.ino() as i64,
            meta.size() as i64,
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ctime(),
            meta.ctime_nsec(),
        ])
    }
}

/// The subject of an answer: a state of a file, or one use of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    file: FileKey,
    /// One word for the use; empty for the file itself.
    of: String,
}

impl From<FileKey> for Key {
    fn from(file: FileKey) -> Key {
        Key { file, of: String::new() }
    }
}

impl Key {
    /// Returns the key of one use of the file, for example of a device.
    #[must_use]
    pub fn of(file: FileKey, of: &str) -> Key {
        let one_word = |c: char| if c.is_whitespace() || c.is_control() { '_' } else { c };
        Key { file, of: of.chars().map(one_word).collect() }
    }
}

/// An answer in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The fault; `None`: the attempt succeeded.
    pub fault: Option<String>,
    /// The time of the trial, in seconds since 1970.
    pub at: u64,
}

impl Answer {
    /// Checks whether the answer is still valid. A positive answer is always valid. A negative answer is valid for a day, because
    /// the cause of a crash may be removed without a change of the file. A negative answer with a time in the future is invalid.
    #[must_use]
    pub fn holds(&self, now: u64) -> bool {
        self.fault.is_none() || now.checked_sub(self.at).is_some_and(|age| age < NO_LASTS_SECONDS)
    }
}

/// Returns the time in seconds since 1970.
#[must_use]
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A file of answers.
#[derive(Clone, Debug)]
pub struct Cache(PathBuf);

impl Cache {
    /// Returns `$XDG_CACHE_HOME/tieline/NAME`, or `~/.cache/tieline/NAME`. `None` if neither variable (`XDG_CACHE_HOME`, `HOME`) is
    /// an absolute path, and in a program that was started with raised rights.
    #[must_use]
    pub fn named(name: &str) -> Option<Cache> {
        if raised_rights() {
            return None;
        }
        let absolute = |name: &str| {
            std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
        };
        let base = absolute("XDG_CACHE_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
        Some(Cache(base.join("tieline").join(name)))
    }

    /// Returns the cache in this file.
    #[must_use]
    pub fn at(file: PathBuf) -> Cache {
        Cache(file)
    }

    /// Reads the answers. A cache that cannot be read has none, and malformed lines are skipped.
    #[must_use]
    pub fn read(&self) -> HashMap<Key, Answer> {
        self.text(&Trust::current_process()).unwrap_or_default().lines().filter_map(parse).collect()
    }

    /// Returns the answers, each of which is read when it is looked up.
    #[must_use]
    pub fn answers(&self) -> Answers {
        self.answers_by(&Trust::current_process())
    }

    /// Does the same as [`Cache::answers`], with the trust of the caller.
    #[must_use]
    pub fn answers_by(&self, trust: &Trust) -> Answers {
        Answers { lines: self.text(trust).unwrap_or_default(), ..Answers::default() }
    }

    /// Returns the answer for this key if it is still valid.
    #[must_use]
    pub fn valid(&self, key: &Key) -> Option<Answer> {
        self.answers().valid(key, now())
    }

    fn text(&self, trust: &Trust) -> Option<String> {
        let (_, about) = trust.target(self.0.parent()?).ok()?;
        let mut file = fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&self.0)
            .ok()?;
        let meta = file.metadata().ok()?;
        let is_safe = ours(&meta, trust) && ours(&about, trust);
        if !meta.is_file() || !is_safe || meta.len() > MOST_CACHE_BYTES {
            return None;
        }
        // A write replaces the file, so its length stays the same.
        let mut text = vec![0; usize::try_from(meta.len()).ok()?];
        file.read_exact(&mut text).ok()?;
        String::from_utf8(text).ok()
    }

    /// Sets the answer for this key, by replacing the file with a new one. Errors are ignored.
    pub fn add(&self, key: &Key, answer: &Answer) {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let Some(directory) = self.0.parent() else { return };
        let trust = Trust::current_process();
        if !is_of_ours(directory, &trust) {
            return;
        }
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        if made.is_err() || !fs::metadata(directory).is_ok_and(|meta| ours(&meta, &trust)) {
            return;
        }
        let mut entries = self.read();
        let _ = entries.remove(key);
        let mut entries: Vec<(Key, Answer)> = entries.into_iter().collect();
        entries.sort_by_key(|(_, answer)| std::cmp::Reverse(answer.at));
        entries.truncate(MOST_ENTRIES - 1);
        entries.push((key.clone(), answer.clone()));
        let text: String = entries.iter().map(|(key, answer)| line(key, answer)).collect();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = self.0.file_name().unwrap_or_default().to_string_lossy();
        let new = directory.join(format!("{name}.{}.{number}", std::process::id()));
        let written = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)
            .and_then(|mut out| out.write_all(text.as_bytes()))
            .and_then(|()| fs::rename(&new, &self.0));
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
    }
}

/// The answers of a cache at one time, and those that this process has added since.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// The lines of the file. A process needs a few of the answers, so the others are not parsed.
    lines: String,
    /// The keys that were looked up.
    asked: Vec<Key>,
    /// Whether lines of other keys were dropped.
    is_part: bool,
}

impl Answers {
    /// Returns the last answer for this key, if it is valid at this time.
    #[must_use]
    pub fn valid(&mut self, key: &Key, now: u64) -> Option<Answer> {
        if !self.asked.contains(key) {
            self.asked.push(key.clone());
        }
        let subject = subject(key);
        let of_key = self.lines.lines().filter(|line| line.starts_with(&subject));
        let (_, answer) = of_key.filter_map(parse).rfind(|(other, _)| other == key)?;
        Some(answer).filter(|answer| answer.holds(now))
    }

    /// Checks whether the lines of this key may have been dropped.
    #[must_use]
    pub fn lacks(&self, key: &Key) -> bool {
        self.is_part && !self.asked.contains(key)
    }

    /// Drops the lines of the keys that were not looked up, whose number is not bounded by what this process uses.
    pub fn keep_asked(&mut self) {
        let subjects: Vec<String> = self.asked.iter().map(subject).collect();
        let is_asked = |line: &&str| subjects.iter().any(|subject| line.starts_with(subject));
        self.lines = self.lines.lines().filter(is_asked).flat_map(|line| [line, "\n"]).collect();
        self.is_part = true;
    }

    /// Adds the answers of a cache. The present ones apply if the cache has another answer.
    pub fn fill_up(&mut self, cache: Answers) {
        let mine = std::mem::replace(&mut self.lines, cache.lines);
        self.append(&mine);
        self.is_part = false;
    }

    /// Adds an answer, which takes the place of an earlier one for this key.
    pub fn add(&mut self, key: &Key, answer: &Answer) {
        self.append(&line(key, answer));
    }

    fn append(&mut self, lines: &str) {
        if !self.lines.is_empty() && !self.lines.ends_with('\n') {
            self.lines.push('\n');
        }
        self.lines.push_str(lines);
    }
}

/// Returns the line of an answer: `<7 numbers> [=<use>] <when> starts`, or `no <why>` in place of `starts`.
fn line(key: &Key, answer: &Answer) -> String {
    let verdict =
        answer.fault.as_ref().map_or_else(|| "starts".to_string(), |why| format!("no {why}"));
    format!("{}{} {verdict}\n", subject(key), answer.at)
}

/// Returns the beginning of the lines for this key: `<7 numbers> [=<use>] `.
fn subject(key: &Key) -> String {
    let mut subject = String::new();
    for number in key.file.0 {
        let _ = write!(subject, "{number} ");
    }
    if !key.of.is_empty() {
        let _ = write!(subject, "={} ", key.of);
    }
    subject
}

fn parse(line: &str) -> Option<(Key, Answer)> {
    let mut rest = line;
    let mut word = || -> Option<&str> {
        let (word, behind) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = behind;
        (!word.is_empty()).then_some(word)
    };
    let mut numbers = [0; 7];
    for number in &mut numbers {
        *number = word()?.parse().ok()?;
    }
    let mut at = word()?;
    let mut of = "";
    if let Some(named) = at.strip_prefix('=') {
        (of, at) = (named, word()?);
    }
    let at = at.parse().ok()?;
    let fault = match (word()?, rest) {
        ("starts", "") => None,
        ("no", why) if !why.is_empty() => Some(why.chars().filter(|c| !c.is_control()).collect()),
        _ => return None,
    };
    Some((Key { file: FileKey(numbers), of: of.to_string() }, Answer { fault, at }))
}

/// Checks whether root or this user owns the file or directory, and neither its group nor others can write it.
fn ours(meta: &fs::Metadata, trust: &Trust) -> bool {
    trust.is_owned(meta) && meta.mode() & 0o022 == 0
}

/// Checks whether no other user can redirect the existing part of a path. If root runs a program with another user's HOME (as under
/// sudo), the cache there is neither read nor written.
fn is_of_ours(directory: &Path, trust: &Trust) -> bool {
    let there = directory.ancestors().find(|part| fs::symlink_metadata(part).is_ok());
    there.is_some_and(|there| trust.follow(there).is_ok())
}

#[cfg(test)]
mod tests;
