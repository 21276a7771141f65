//! What is kept for the report while a context is used, since a library does not print: how it began, and what came last.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lines of each half that are kept.
const KEPT: usize = 256;

/// The lines so far, of words or of more. Any thread may add some.
pub(crate) struct Log<T>(Mutex<Lines<T>>);

struct Lines<T> {
    first: Vec<T>,
    last: VecDeque<T>,
    /// Lines that had to make room between the two.
    left_out: u64,
}

impl<T: Clone + PartialEq + From<String>> Log<T> {
    pub(crate) fn new() -> Log<T> {
        Log(Mutex::new(Lines { first: Vec::new(), last: VecDeque::new(), left_out: 0 }))
    }

    /// Keeps a line.
    pub(crate) fn add(&self, line: T) {
        self.locked().add(line);
    }

    /// Keeps a line, unless the same is there.
    pub(crate) fn add_once(&self, line: T) {
        let mut lines = self.locked();
        if !lines.first.contains(&line) && !lines.last.contains(&line) {
            lines.add(line);
        }
    }

    /// The lines kept so far, oldest first.
    pub(crate) fn lines(&self) -> Vec<T> {
        let Lines { first, last, left_out } = &*self.locked();
        let between =
            (*left_out > 0).then(|| T::from(format!("({left_out} lines are left out here)")));
        first.iter().cloned().chain(between).chain(last.iter().cloned()).collect()
    }

    fn locked(&self) -> MutexGuard<'_, Lines<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Lines<T> {
    fn add(&mut self, line: T) {
        if self.first.len() < KEPT {
            return self.first.push(line);
        }
        if self.last.len() == KEPT {
            let _ = self.last.pop_front();
            self.left_out += 1;
        }
        self.last.push_back(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_lines_the_first_and_the_last_are_kept_and_the_others_counted() {
        let log = Log::<String>::new();
        for n in 0..1000 {
            log.add_once(format!("line {n}"));
            log.add_once("line 0".into());
        }
        let lines = log.lines();
        assert_eq!(lines.len(), 2 * KEPT + 1);
        assert_eq!((&lines[0][..], &lines[KEPT - 1][..]), ("line 0", "line 255"));
        assert_eq!(lines[KEPT], "(488 lines are left out here)");
        assert_eq!((&lines[KEPT + 1][..], &lines[2 * KEPT][..]), ("line 744", "line 999"));
        log.add("line 999".into());
        assert_eq!(log.lines()[2 * KEPT - 1..], ["line 999", "line 999"]);
    }
}
