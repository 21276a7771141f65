//! The processes of a test, as seen by the test.

use crate::exchange::{self, Mailbox};
use crate::{leftovers, runner, sys};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time limit of a step, after which the step counts as hanging.
pub const DEADLINE: Duration = Duration::from_secs(60);
const KEPT: usize = 12;

type Log = Arc<Mutex<VecDeque<String>>>;

/// The last reports of every process of this test.
static LOGS: Mutex<Vec<(String, Log)>> = Mutex::new(Vec::new());

/// Returns the text for the report of a failed test.
#[must_use]
pub fn collected_reports() -> String {
    let mut text = String::new();
    for (name, log) in LOGS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        for line in log.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            text += &format!("  {name}: {line}\n");
        }
    }
    text
}

/// Resets the reports before the next test.
pub fn forget_reports() {
    LOGS.lock().unwrap_or_else(PoisonError::into_inner).clear();
    exchange::forget();
}

/// A process that is about to be started.
pub struct Launch {
    name: String,
    role: String,
    wrapper: Vec<OsString>,
    environment: Vec<(String, String)>,
}

impl Launch {
    /// Prepares a process in a role; the name appears in reports.
    #[must_use]
    pub fn new(name: &str, role: &str) -> Launch {
        Launch {
            name: name.to_string(),
            role: role.to_string(),
            wrapper: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// Sets a variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl ToString) -> Launch {
        self.environment.push((name.to_string(), value.to_string()));
        self
    }

    /// Starts the process through another program: `unshare --pid --fork`.
    #[must_use]
    pub fn through(mut self, wrapper: &[&str]) -> Launch {
        self.wrapper = wrapper.iter().map(OsString::from).collect();
        self
    }

    /// Starts the process.
    ///
    /// # Panics
    /// Panics if the process cannot be started.
    #[must_use]
    pub fn start(self) -> Peer {
        let (mark, folder) = leftovers::current();
        let program = std::env::current_exe().expect("the path of this program");
        let mut words = self.wrapper;
        words.push(program.into());
        let mut command = Command::new(&words[0]);
        let _ = command.args(&words[1..]);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TIELINE_") {
                let _ = command.env_remove(name);
            }
        }
        let _ = command
            .env(runner::ROLE, &self.role)
            .env(leftovers::MARK, mark)
            .env("TMPDIR", folder.join("tmp"))
            .env("XDG_RUNTIME_DIR", folder.join("run"))
            .envs(self.environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        sys::die_with_parent(&mut command);
        let mut child = command.spawn().expect("starting a peer");
        let log = Log::default();
        LOGS.lock().unwrap_or_else(PoisonError::into_inner).push((self.name.clone(), log.clone()));
        let output = child.stdout.take().expect("a pipe from the peer");
        let (sender, lines) = channel();
        let theirs = log.clone();
        let _ = std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let mut log = theirs.lock().unwrap_or_else(PoisonError::into_inner);
                if log.len() == KEPT {
                    let _ = log.pop_front();
                }
                let mut short = line.clone();
                short.truncate(300);
                log.push_back(short);
                drop(log);
                if exchange::takes(&line) {
                    continue;
                }
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let input: Mailbox = Arc::new(Mutex::new(child.stdin.take()));
        exchange::join(&self.name, input.clone());
        Peer { name: self.name, child, input, lines, log }
    }
}

/// A running process, which is killed on drop.
pub struct Peer {
    /// The name in reports.
    pub name: String,
    child: Child,
    input: Mailbox,
    lines: Receiver<String>,
    log: Log,
}

impl Peer {
    /// Returns the process number, as seen by this process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives an order. A process that has died ignores it.
    pub fn tell(&mut self, order: &str) {
        self.note(&format!("<- {order}"));
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(input) = &mut *input {
            let _ = input.write_all(format!("{order}\n").as_bytes());
        }
    }

    fn note(&self, text: &str) {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if log.len() == KEPT {
            let _ = log.pop_front();
        }
        log.push_back(text.chars().take(300).collect());
    }

    /// Waits for the next report.
    ///
    /// # Panics
    /// Panics after the deadline, and if the process has ended.
    pub fn hear(&mut self) -> String {
        match self.hear_or_end() {
            Some(line) => line,
            None => {
                let status = self.child.wait();
                panic!("{} has ended: {status:?}", self.name)
            }
        }
    }

    /// Waits for the next report; returns `None` if the process has ended instead.
    ///
    /// # Panics
    /// Panics after the deadline.
    pub fn hear_or_end(&mut self) -> Option<String> {
        match self.lines.recv_timeout(DEADLINE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                panic!("{} (process {}) said nothing for {DEADLINE:?}", self.name, self.pid())
            }
        }
    }

    /// Waits for an end that was not ordered.
    ///
    /// # Panics
    /// Panics as [`Peer::hear_or_end`] does.
    pub fn ended(&mut self) -> ExitStatus {
        while self.hear_or_end().is_some() {}
        self.child.wait().expect("collecting a peer")
    }

    /// Waits for the next report, which has to begin with `word`; returns the rest of the report.
    ///
    /// # Panics
    /// Panics as [`Peer::hear`] does, and if the report begins with another word.
    pub fn expect(&mut self, word: &str) -> String {
        let line = self.hear();
        match line.strip_prefix(word) {
            Some(rest) => rest.trim_start().to_string(),
            None => panic!("{} should say `{word}` and says `{line}`", self.name),
        }
    }

    /// Returns the next report if it arrives within this time.
    pub fn hear_within(&mut self, time: Duration) -> Option<String> {
        self.lines.recv_timeout(time).ok()
    }

    /// Returns the next report if it has already arrived.
    pub fn hear_now(&mut self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// Kills the process with SIGKILL; returns the time just before the kill, in nanoseconds.
    ///
    /// # Panics
    /// Panics if the process cannot be killed.
    pub fn kill(&mut self) -> u64 {
        let at = sys::now_ns();
        self.child.kill().expect("killing a peer");
        let _ = self.child.wait();
        at
    }

    /// Lets the process end by itself.
    ///
    /// # Panics
    /// Panics if the process does not end, or fails.
    pub fn end(mut self) {
        let status = self.leave();
        assert!(status.success(), "{} ended with {status}", self.name);
    }

    fn hang_up(&self) {
        *self.input.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn leave(&mut self) -> ExitStatus {
        self.hang_up();
        let deadline = Instant::now() + DEADLINE;
        // The end of the process closes the pipe.
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("{} does not end", self.name),
            }
        }
        self.child.wait().expect("collecting a peer")
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.hang_up();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
