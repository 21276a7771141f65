//! What `TIELINE_REPORT` asks for: the report, written while it is made, to stderr or to a file. The one place where the library
//! writes anything that a person reads, and only by that name.
//!
//! Several processes may share a file: what is said at once is one write to a descriptor that appends, and each line begins
//! with who says it. Nothing is made before there is something to say, nothing waits for a reader of a pipe, and what cannot be
//! written is counted and said in the report, since it is no reason for a program to end.

mod sys;

use crate::config::ReportTo;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Peers whose lanes were told that are remembered, so that the same is not told for each endpoint.
const REMEMBERED: usize = 4096;

/// Where the report is written.
pub(crate) struct Journal {
    place: Place,
    /// What each line begins with.
    mark: String,
    state: Mutex<State>,
}

enum Place {
    Stderr,
    File(PathBuf),
}

#[derive(Default)]
struct State {
    file: Option<File>,
    /// What was said of a peer's lanes, by its worker.
    peers: BTreeMap<[u8; 16], String>,
    failure: String,
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
                let path = PathBuf::from(path.replace("%p", &pid.to_string()));
                Place::File(std::path::absolute(&path).unwrap_or(path))
            }
        };
        Journal { place, mark: format!("tieline[{pid}@{host}] "), state: Mutex::default() }
    }

    /// Writes lines, all of them at once.
    pub(crate) fn tell(&self, text: &str) {
        self.write(&mut self.locked(), text);
    }

    /// What leads to a peer, unless just that was said of it last.
    pub(crate) fn tell_of_peer(&self, worker: [u8; 16], text: String) {
        let mut state = self.locked();
        if state.peers.get(&worker) == Some(&text) {
            return;
        }
        self.write(&mut state, &text);
        if state.peers.len() == REMEMBERED {
            let _ = state.peers.pop_first();
        }
        let _ = state.peers.insert(worker, text);
    }

    /// A failure, unless it was said last: a peer that is lost is one for the peer and for each endpoint to it. Its lanes are told
    /// anew where there is another endpoint.
    pub(crate) fn tell_of_failure(&self, worker: Option<[u8; 16]>, text: &str) {
        let mut state = self.locked();
        let _ = worker.map(|worker| state.peers.remove(&worker));
        if state.failure != text {
            self.write(&mut state, text);
            text.clone_into(&mut state.failure);
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
            format!("TIELINE_REPORT: {lost} times nothing could be written to {place}: {why}")
        })
    }

    fn write(&self, state: &mut State, text: &str) {
        let mut bytes = String::new();
        for line in text.lines() {
            bytes.push_str(&self.mark);
            // Names of files and hosts may hold what a terminal obeys.
            bytes.extend(line.chars().map(|c| if c.is_control() { ' ' } else { c }));
            bytes.push('\n');
        }
        if let Err(error) = self.write_whole(state, bytes.as_bytes()) {
            state.lost += 1;
            state.why = error.to_string();
        }
    }

    fn write_whole(&self, state: &mut State, bytes: &[u8]) -> io::Result<()> {
        let written = match &self.place {
            Place::Stderr => sys::write(&io::stderr(), bytes)?,
            Place::File(path) => {
                if state.file.is_none() {
                    state.file = Some(sys::open(path)?);
                }
                state.file.as_ref().map_or(Ok(0), |file| sys::write(file, bytes))?
            }
        };
        // The rest would come behind what others have written meanwhile.
        if written == bytes.len() { Ok(()) } else { Err(io::Error::other("a line was cut")) }
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
