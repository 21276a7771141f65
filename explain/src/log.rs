//! Lines that are kept for the report while a context is used: the first ones, the last ones, and lasting ones between them.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The maximum number of first lines, of last lines, and of lasting lines between them.
const KEPT: usize = 256;

/// Checks whether a character may appear in a line. Control characters, line ends and invisible characters that change the display
/// of others (their direction, for example) may not appear. The check is needed because peers and files influence the text of a
/// line.
pub fn is_plain(c: char) -> bool {
    let is_unseen = matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    !c.is_control() && !is_unseen
}

/// The lines added so far, as text or as records. Any thread may add lines.
pub struct Log<T> {
    lines: Mutex<Lines<T>>,
    /// The function that receives each line that is added, if set.
    heard: OnceLock<Hearer<T>>,
}

type Hearer<T> = Box<dyn Fn(&T) + Send + Sync>;

struct Lines<T> {
    first: Vec<T>,
    last: VecDeque<T>,
    /// The latest lasting lines that lie between the two halves. Only later lasting lines displace them.
    lasting: VecDeque<T>,
    /// The number of lines between the two halves, including the lasting ones that are kept.
    left_out: u64,
}

/// An entry of a log.
pub trait Line: Clone + PartialEq + From<String> {
    /// Checks whether the line is lasting, so that only later lasting lines can displace it.
    fn lasts(&self) -> bool {
        false
    }
}

impl Line for String {}

impl<T> Default for Log<T> {
    fn default() -> Log<T> {
        let lines = Lines {
            first: Vec::new(),
            last: VecDeque::new(),
            lasting: VecDeque::new(),
            left_out: 0,
        };
        Log { lines: Mutex::new(lines), heard: OnceLock::new() }
    }
}

impl<T: Line> Log<T> {
    /// Passes each line that is added later to a function. A second call has no effect.
    pub fn pass_on(&self, to: impl Fn(&T) + Send + Sync + 'static) {
        let _ = self.heard.set(Box::new(to));
    }

    /// Adds a line.
    pub fn add(&self, line: T) {
        self.tell(&line);
        self.locked().add(line);
    }

    fn tell(&self, line: &T) {
        if let Some(heard) = self.heard.get() {
            heard(line);
        }
    }

    /// Adds a line, unless an equal one is among the first or the last lines.
    pub fn add_once(&self, line: T) {
        let _ = self.add_if_new(line);
    }

    /// Adds a line, unless an equal one is among the first or the last lines; `false`: there is one.
    pub fn add_if_new(&self, line: T) -> bool {
        let mut lines = self.locked();
        if lines.first.contains(&line) || lines.last.contains(&line) {
            return false;
        }
        lines.add(line.clone());
        drop(lines);
        self.tell(&line);
        true
    }

    /// Returns the kept lines, oldest first, with a line that counts those left out.
    pub fn lines(&self) -> Vec<T> {
        let Lines { first, last, lasting, left_out } = &*self.locked();
        let between = {
            let left_out = left_out - lasting.len() as u64;
            (left_out > 0).then(|| T::from(format!("({left_out} lines are left out here)")))
        };
        let later = lasting.iter().chain(last);
        first.iter().cloned().chain(between).chain(later.cloned()).collect()
    }

    fn locked(&self) -> MutexGuard<'_, Lines<T>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Line> Lines<T> {
    fn add(&mut self, line: T) {
        if self.first.len() < KEPT {
            return self.first.push(line);
        }
        if self.last.len() == KEPT {
            self.lasting.extend(self.last.pop_front().filter(T::lasts));
            self.left_out += 1;
            if self.lasting.len() > KEPT {
                let _ = self.lasting.pop_front();
            }
        }
        self.last.push_back(line);
    }
}

/// One line that a provider or the library logged.
#[derive(Clone, PartialEq, Eq)]
pub struct LogLine {
    /// The provider that logged the line, or `tieline`.
    pub provider: String,
    /// The level, one of `TIELINE_LOG_*`.
    pub level: u32,
    /// The text of the line.
    pub text: String,
    /// The device event that the line reports, if it reports one: `port_down`.
    pub event: Option<&'static str>,
}

impl LogLine {
    /// Checks whether a report at this level shows the line. Every report shows device events.
    #[must_use]
    pub fn is_shown_at(&self, level: u32) -> bool {
        self.level <= level || self.event.is_some()
    }
}

impl From<String> for LogLine {
    fn from(text: String) -> LogLine {
        LogLine {
            provider: "tieline".into(),
            level: tieline_plugin_api::log_level::WARN,
            text,
            event: None,
        }
    }
}

impl Line for LogLine {
    fn lasts(&self) -> bool {
        self.event.is_some()
    }
}

impl Log<LogLine> {
    /// Adds a line of a provider.
    pub fn push(&self, provider: &str, level: u32, text: String) {
        self.add(LogLine { provider: provider.to_string(), level, text, event: None });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_and_last_lines_are_kept_and_others_counted() {
        let log = Log::<String>::default();
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

    #[test]
    fn device_events_are_not_displaced_by_other_lines() {
        #[derive(Clone, PartialEq, Debug)]
        struct Told(String);
        impl From<String> for Told {
            fn from(text: String) -> Told {
                Told(text)
            }
        }
        impl Line for Told {
            fn lasts(&self) -> bool {
                self.0.starts_with("gone")
            }
        }
        let log = Log::<Told>::default();
        let chatter = || (0..2 * KEPT).for_each(|n| log.add(Told(format!("line {n}"))));
        chatter();
        log.add(Told("gone".into()));
        chatter();
        let lines = log.lines();
        assert_eq!(lines[KEPT].0, "(512 lines are left out here)");
        assert_eq!(lines[KEPT + 1].0, "gone");
        assert_eq!(lines.len(), 2 * KEPT + 2);
        (0..4 * KEPT).for_each(|n| log.add(Told(format!("gone {n}"))));
        assert_eq!(log.lines().len(), 3 * KEPT + 1, "and they are bounded");
    }
}
