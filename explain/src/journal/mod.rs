//! The output of `TIELINE_REPORT`: the report, written to stderr or to a file as events occur. No other part of the library prints
//! text, and this output is off unless the setting is given.
//!
//! Several processes may share a local file: each write appends whole lines, and each line begins with the name of its writer. Some
//! text originates from peers, so a space replaces each control character and each invisible character that changes the display of
//! others. The file is opened when there is something to write. Writing holds no lock, and is given up if a pipe is full. On
//! stderr, it may still wait for a reader if another process fills the pipe at the same moment. Write errors do not end the
//! program; they are counted and shown in the report. The amount of output is bounded: repetitions of a failure, or of the lanes to
//! a peer, are written at growing intervals. Lines beyond the limit are only counted.

mod bounds;
mod sys;

use crate::is_plain;
use bounds::{Allowance, Said};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The maximum number of remembered peers. The lanes to a remembered peer are not repeated for each endpoint.
const REMEMBERED: usize = 4096;
/// A failure that equals the previous failure is not written unless it was counted more than this number of times. The first
/// repetitions may be the same failure, of several endpoints.
const SAME_LOSS: u64 = 4;
/// The maximum length of one write, which a pipe takes atomically (PIPE_BUF).
const WRITE: usize = 4096;
/// The maximum length of a line with its end; one more byte may precede the line, see `torn`.
const LINE: usize = WRITE - 1;

/// The destination of the report of a context, as the setting states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportTo {
    /// The stderr of the process.
    Stderr,
    /// The path of a file, as it was set: `%p` is replaced by the process's number, `%h` by the host's name.
    File(String),
}

/// The word that selects stderr.
pub const STDERR: &str = "stderr";

impl ReportTo {
    /// Reads a value; returns `None` if the value is empty, or neither `stderr` nor a path.
    #[must_use]
    pub fn read(text: &str) -> Option<ReportTo> {
        match text {
            STDERR => Some(ReportTo::Stderr),
            text => text.contains('/').then(|| ReportTo::File(text.to_owned())),
        }
    }
}

/// The open destination, and its limits.
pub struct Journal {
    /// The path of the file; `None`: stderr.
    place: Option<PathBuf>,
    /// The prefix of each line.
    mark: String,
    state: Mutex<State>,
    /// Whether the last write was cut, so that the next one must begin a new line.
    torn: AtomicBool,
}

#[derive(Default)]
struct State {
    file: Option<Arc<File>>,
    /// The hash of the last text about the lanes to each remembered worker.
    peers: BTreeMap<[u8; 16], u64>,
    failure: Option<u64>,
    said: Said,
    allowance: Allowance,
    /// The number of writes that failed or were incomplete, and the last reason.
    lost: u64,
    why: String,
}

impl Journal {
    /// Makes a journal that has written nothing yet. `pid` and `host` identify the writer.
    #[must_use]
    pub fn new(to: &ReportTo, pid: u32, host: &str) -> Journal {
        let host: String = host.chars().filter(|c| c.is_ascii_graphic()).collect();
        let place = match to {
            ReportTo::Stderr => None,
            // The program may change its directory before the file is opened.
            ReportTo::File(path) => {
                let path = path.replace("%h", &host.replace('/', "_"));
                let path = PathBuf::from(path.replace("%p", &pid.to_string()));
                Some(std::path::absolute(&path).unwrap_or(path))
            }
        };
        let mark = format!("tieline[{pid}@{host}] ");
        Journal { place, mark, state: Mutex::default(), torn: AtomicBool::new(false) }
    }

    /// Writes one line of text, within the limits.
    pub fn tell(&self, text: &str) {
        self.tell_all(&[text]);
    }

    /// Writes related lines. The limit suppresses all or none of them.
    pub fn tell_all(&self, lines: &[impl AsRef<str>]) {
        let left_out = {
            let mut state = self.locked();
            let Some(left_out) = state.allowance.take(lines.len(), Instant::now()) else { return };
            left_out
        };
        self.write(left_out, lines);
    }

    /// Writes the lanes to a peer, unless the last text about the peer was the same. If texts alternate, each is written the 1st,
    /// 2nd, 4th, 8th time and so on.
    pub fn tell_of_peer(&self, worker: [u8; 16], text: &str) {
        let tells = {
            let mut state = self.locked();
            let what = state.said.number(text);
            if state.peers.insert(worker, what) == Some(what) {
                return;
            }
            if state.peers.len() > REMEMBERED {
                let _ = state.peers.pop_first();
            }
            let both = state.said.number(&(worker, what));
            state.said.again(both).is_some()
        };
        if tells {
            self.tell(text);
        }
    }

    /// Writes a failure the 1st, 2nd, 4th, 8th time and so on. If it equals the previous failure, the 2nd and the 4th time are left
    /// out, because each endpoint to a lost peer reports the loss. After the failure, the lanes of a new endpoint to the peer count
    /// as new.
    pub fn tell_of_failure(&self, worker: Option<[u8; 16]>, text: &str) {
        let times = {
            let mut state = self.locked();
            let _ = worker.map(|worker| state.peers.remove(&worker));
            let what = state.said.number(text);
            let is_same = state.failure.replace(what) == Some(what);
            state.said.again(what).filter(|times| !is_same || *times > SAME_LOSS)
        };
        match times {
            None => {}
            Some(1) => self.tell(text),
            Some(times) => self.tell(&format!("({times} times so far) {text}")),
        }
    }

    /// Returns the number of failed or incomplete writes and the last reason; `None` if there were none.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let state = self.locked();
        let place = match &self.place {
            None => STDERR.into(),
            Some(path) => path.display().to_string(),
        };
        let State { lost, why, .. } = &*state;
        (*lost > 0).then(|| format!("TIELINE_REPORT: {lost} incomplete writes to {place}: {why}"))
    }

    fn write(&self, left_out: u64, lines: &[impl AsRef<str>]) {
        let mut pieces = vec![String::new()];
        if left_out > 0 {
            let words = if left_out == 1 { "line is" } else { "lines are" };
            self.append(&mut pieces, &format!("({left_out} {words} left out here)"));
        }
        lines.iter().for_each(|line| self.append(&mut pieces, line.as_ref()));
        if let Err(error) = self.write_pieces(&pieces) {
            let mut state = self.locked();
            state.lost += 1;
            state.why = error.to_string();
        }
    }

    /// Appends a line, cut to `LINE` bytes, to the last piece, or to a new piece if the last one would exceed `LINE` bytes.
    fn append(&self, pieces: &mut Vec<String>, text: &str) {
        const CUT: &str = "...";
        let mut line = self.mark.clone();
        for c in text.chars() {
            if line.len() + c.len_utf8() + CUT.len() + 1 > LINE {
                line.push_str(CUT);
                break;
            }
            line.push(if is_plain(c) { c } else { ' ' });
        }
        line.push('\n');
        match pieces.last_mut() {
            Some(piece) if piece.len() + line.len() <= LINE => piece.push_str(&line),
            _ => pieces.push(line),
        }
    }

    /// Writes each piece by one system call, which needs no lock. Stops at the first failure.
    fn write_pieces(&self, pieces: &[String]) -> io::Result<()> {
        let file = match &self.place {
            None => None,
            Some(path) => Some(self.file(path)?),
        };
        for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
            let torn = self.torn.load(Ordering::Relaxed);
            let bytes = if torn { format!("\n{piece}") } else { piece.clone() };
            let written = match &file {
                None => sys::write(&io::stderr(), bytes.as_bytes())?,
                Some(file) => sys::write(&**file, bytes.as_bytes())?,
            };
            // The rest of the line would follow text of other writers.
            let is_cut = written < bytes.len();
            self.torn.store(is_cut, Ordering::Relaxed);
            if is_cut {
                return Err(io::Error::other("a line was cut"));
            }
        }
        Ok(())
    }

    fn file(&self, path: &std::path::Path) -> io::Result<Arc<File>> {
        let mut state = self.locked();
        if let Some(file) = &state.file {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(sys::open(path)?);
        state.file = Some(Arc::clone(&file));
        Ok(file)
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
