//! What `TIELINE_REPORT` asks for: the report, written while it is made, to stderr or to a file. The one place where the library
//! writes anything that a person reads, and only by that name.
//!
//! Several processes may share a file: a line is never cut by another one's, and each begins with who says it. What peers say of
//! themselves stands in some of them, so whatever would end a line, or hide what stands in it, is taken out of it first. Nothing is
//! made before there is something to say, nothing waits for a reader, no lock is held while something is written, and what cannot
//! be written is counted and said in the report, since it is no reason for a program to end. How much is written is bounded: what
//! repeats itself is told ever more seldom, and what comes by the thousands is counted.

mod bounds;
mod sys;

use crate::config::ReportTo;
use crate::log::is_plain;
use bounds::{Allowance, Said};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Peers whose lanes were told that are remembered, so that the same is not told for each endpoint.
const REMEMBERED: usize = 4096;
/// So often in a row the same failure may be one of several endpoints; more often it comes again.
const SAME_LOSS: u64 = 4;
/// What is written at once is no longer: a pipe takes as much whole (PIPE_BUF).
const WRITE: usize = 4096;
/// A line with its end is no longer: one more byte may come before it, see `torn`.
const LINE: usize = WRITE - 1;

/// Where the report is written.
pub(crate) struct Journal {
    place: Place,
    /// What each line begins with.
    mark: String,
    state: Mutex<State>,
    /// The last write was cut: what follows begins a line of its own.
    torn: AtomicBool,
}

enum Place {
    Stderr,
    File(PathBuf),
}

#[derive(Default)]
struct State {
    file: Option<Arc<File>>,
    /// What was said last of a peer's lanes, as a number, by its worker.
    peers: BTreeMap<[u8; 16], u64>,
    failure: Option<u64>,
    said: Said,
    allowance: Allowance,
    /// How often nothing, or not all, could be written, and why the last time.
    lost: u64,
    why: String,
}

impl Journal {
    /// One that has written nothing yet. `pid` and `host`: who writes.
    pub(crate) fn new(to: &ReportTo, pid: u32, host: &str) -> Journal {
        let host: String = host.chars().filter(|c| c.is_ascii_graphic()).collect();
        let place = match to {
            ReportTo::Stderr => Place::Stderr,
            // The program may go elsewhere before there is something to say.
            ReportTo::File(path) => {
                let path = path.replace("%h", &host.replace('/', "_"));
                let path = PathBuf::from(path.replace("%p", &pid.to_string()));
                Place::File(std::path::absolute(&path).unwrap_or(path))
            }
        };
        let mark = format!("tieline[{pid}@{host}] ");
        Journal { place, mark, state: Mutex::default(), torn: AtomicBool::new(false) }
    }

    /// Writes one line, whatever stands in the text.
    pub(crate) fn tell(&self, text: &str) {
        self.tell_all(&[text]);
    }

    /// Writes lines that belong together.
    pub(crate) fn tell_all(&self, lines: &[impl AsRef<str>]) {
        let left_out = {
            let mut state = self.locked();
            let Some(left_out) = state.allowance.take(lines.len(), Instant::now()) else { return };
            left_out
        };
        self.write(left_out, lines);
    }

    /// What leads to a peer, unless just that was said of it last.
    pub(crate) fn tell_of_peer(&self, worker: [u8; 16], text: &str) {
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

    /// A failure, unless it was said last: a peer that is lost is one for the peer and for each endpoint to it, a few times then. Its
    /// lanes are told anew where there is another endpoint.
    pub(crate) fn tell_of_failure(&self, worker: Option<[u8; 16]>, text: &str) {
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

    /// For the report: what could not be written.
    pub(crate) fn trouble(&self) -> Option<String> {
        let state = self.locked();
        let place = match &self.place {
            Place::Stderr => "stderr".into(),
            Place::File(path) => path.display().to_string(),
        };
        let State { lost, why, .. } = &*state;
        (*lost > 0).then(|| {
            format!("TIELINE_REPORT: {lost} times not all could be written to {place}: {why}")
        })
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

    /// Puts a line behind the last piece, or into another one where it would be longer than a pipe takes whole.
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

    /// Each piece is one write, which appends: nothing is locked for that.
    fn write_pieces(&self, pieces: &[String]) -> io::Result<()> {
        let file = match &self.place {
            Place::Stderr => None,
            Place::File(path) => Some(self.file(path)?),
        };
        for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
            let torn = self.torn.load(Ordering::Relaxed);
            let bytes = if torn { format!("\n{piece}") } else { piece.clone() };
            let written = match &file {
                None => sys::write(&io::stderr(), bytes.as_bytes())?,
                Some(file) => sys::write(&**file, bytes.as_bytes())?,
            };
            // The rest would come behind what others have written meanwhile.
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
