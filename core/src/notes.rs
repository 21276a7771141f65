//! What is worth a line in the report while a context is used: a library does not print.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Lines of each half that are kept.
const NOTES: usize = 128;

/// The lines so far. Any thread may add some.
#[derive(Default)]
pub(crate) struct Notes(Mutex<Lines>);

impl Notes {
    /// Keeps a line, once.
    pub(crate) fn add(&self, text: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(text);
    }

    /// The lines kept so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).lines()
    }
}

/// How it began, and what came last.
#[derive(Default)]
struct Lines {
    first: Vec<String>,
    last: VecDeque<String>,
    /// Lines that had to make room between the two.
    left_out: u64,
}

impl Lines {
    fn add(&mut self, text: String) {
        if self.first.contains(&text) || self.last.contains(&text) {
            return;
        }
        if self.first.len() < NOTES {
            return self.first.push(text);
        }
        if self.last.len() == NOTES {
            let _ = self.last.pop_front();
            self.left_out += 1;
        }
        self.last.push_back(text);
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = self.first.clone();
        if self.left_out > 0 {
            lines.push(format!("({} lines are left out here)", self.left_out));
        }
        lines.extend(self.last.iter().cloned());
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_notes_the_first_and_the_last_are_kept_and_the_others_counted() {
        let notes = Notes::default();
        for n in 0..1000 {
            notes.add(format!("line {n}"));
            notes.add("line 0".into());
        }
        let lines = notes.lines();
        assert_eq!(lines.len(), 2 * NOTES + 1);
        assert_eq!((&lines[0][..], &lines[NOTES - 1][..]), ("line 0", "line 127"));
        assert_eq!(lines[NOTES], "(744 lines are left out here)");
        assert_eq!((&lines[NOTES + 1][..], &lines[2 * NOTES][..]), ("line 872", "line 999"));
    }
}
