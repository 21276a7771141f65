//! Supervises the job until the last rank and the processes that ranks left behind have ended.

use super::launch::{Failure, Launch};
use crate::say;
use crate::sys::{self, Dead};
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tieline::Error;

/// The time between SIGTERM and the kill of a process, when another process has failed or the job is over.
const GRACE: Duration = Duration::from_secs(2);

/// The interval at which the launcher searches for processes that ranks left behind, while some of them are still ending.
const LOOK: Duration = Duration::from_millis(50);

impl Launch {
    /// Serves the exchange, forwards signals and reaps ended processes, until the ranks and what they left behind have ended.
    pub(super) fn supervise(mut self) -> Result<ExitCode, Error> {
        while self.processes.iter().any(|p| p.running) {
            // The check costs a system call for every rank, and most turns only handle lookups.
            if self.turn(None)? {
                self.collect();
            }
            let due = |at: Option<Instant>| at.is_some_and(|at| Instant::now() >= at);
            if due(self.kill_at) {
                self.kill();
            }
            if due(self.cut_at) {
                // The process did not react to the signal, so the connection does not work.
                self.cut_at = None;
                for process in self.processes.iter().filter(|p| p.running) {
                    let _ = sys::kill(process.child.id(), libc::SIGKILL);
                }
            }
        }
        self.clear()?;
        self.pass_on()?;
        Ok(match self.failure {
            None => ExitCode::SUCCESS,
            Some(failure) => {
                say::error(failure.text);
                ExitCode::from(failure.code)
            }
        })
    }

    /// Waits for an event. Returns whether a process may have ended.
    fn turn(&mut self, atmost: Option<Duration>) -> Result<bool, Error> {
        let due = [self.kill_at, self.cut_at].into_iter().flatten().min();
        let due = due.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = [due, atmost].into_iter().flatten().min();
        // The output of a dying process is read before its death is reported.
        let others = [self.signals.as_raw_fd(), self.copying.woken()];
        self.server.turn(&others, timeout)?;
        let mut ended = self.copying.look();
        while let Some(signal) = self.signals.next() {
            match signal.number {
                libc::SIGCHLD => ended = true,
                number => self.forward(number, signal.from_terminal),
            }
        }
        Ok(ended)
    }

    fn forward(&mut self, signal: i32, from_terminal: bool) {
        if self.interrupted {
            self.kill(); // asked a second time
        } else {
            if !from_terminal {
                self.terminate(signal);
            }
            // Ctrl-C reaches the program from the terminal, and the program may handle it. After SIGTERM, processes that do not end
            // are killed when `kill_after` has passed. A second signal of either kind kills the remaining processes.
            if signal == libc::SIGTERM {
                self.kill_in(self.kill_after);
            }
        }
        self.interrupted = true;
    }

    fn kill_in(&mut self, time: Duration) {
        let at = Instant::now().checked_add(time);
        self.kill_at = [self.kill_at, at].into_iter().flatten().min();
    }

    fn kill(&mut self) {
        self.terminate(libc::SIGKILL);
        self.kill_at = None;
        self.cut_at = Some(Instant::now() + GRACE);
    }

    fn collect(&mut self) {
        for rank in 0..self.processes.len() {
            let process = &mut self.processes[rank];
            let Some(end) = process.running.then(|| process.end()).flatten() else { continue };
            process.running = false;
            match &process.control {
                // The last output may still be in the pipe, which is read to its end; `clear` waits for that end.
                Some(control) => control.close(),
                None => drop(process.life.take()),
            }
            let who = self.name(rank);
            self.server.ended(rank, &format!("{who} {}", end.how));
            if end.code != 0 && self.failure.is_none() {
                let process = &self.processes[rank];
                let left = self.processes.iter().filter(|p| p.running).count();
                let goes_on = self.keep_going && left > 0;
                let others = match (left, goes_on) {
                    (0, _) => String::new(),
                    (1, true) => "; the other one goes on".into(),
                    (n, true) => format!("; the {n} others that still run go on"),
                    (1, false) => "; the other one was ended".into(),
                    (n, false) => format!("; the {n} others that still ran were ended"),
                };
                let which = match process.control {
                    Some(_) if end.is_the_ways => "the way to it (ssh) ".to_owned(),
                    Some(_) => "it ".to_owned(),
                    None => format!("pid {} ", process.child.id()),
                };
                let text = format!("{who} failed: {which}{}{others}", end.how);
                if goes_on {
                    say::error(text);
                    continue;
                }
                self.failure = Some(Failure { text, code: end.code });
                self.terminate(libc::SIGTERM);
                self.kill_in(GRACE);
            }
        }
        // These processes are orphans that were reparented to the launcher. Ranks are reaped above.
        while let Dead::Pid(pid) = sys::next_dead() {
            if self.processes.iter().any(|p| p.running && p.child.id() == pid) {
                break;
            }
            sys::collect(pid);
        }
    }

    /// Ends the processes that ranks left behind, so that no process of the job remains.
    fn clear(&mut self) -> Result<(), Error> {
        // A connection to another host ends by itself when the shell there has ended its processes.
        let ways: BTreeSet<u32> = self.processes.iter().map(|p| p.child.id()).collect();
        let mut told = BTreeSet::new();
        self.interrupted = false;
        let (soft, hard) = (Instant::now() + GRACE, Instant::now() + 2 * GRACE);
        loop {
            (self.kill_at, self.cut_at) = (None, None);
            self.collect();
            let now = Instant::now();
            if sys::next_dead() == Dead::NoChild || now >= hard {
                return Ok(());
            }
            let kill = now >= soft || self.interrupted;
            for pid in children() {
                if kill {
                    let _ = sys::kill(pid, libc::SIGKILL);
                } else if !ways.contains(&pid) && told.insert(pid) {
                    let _ = sys::kill(pid, libc::SIGTERM);
                }
            }
            let _ = self.turn(Some(LOOK))?;
        }
    }

    /// Waits until the output is written, which a slow reader or a signal can delay.
    fn pass_on(&mut self) -> Result<(), Error> {
        self.processes.iter_mut().for_each(|process| drop(process.life.take()));
        self.interrupted = false;
        (self.kill_at, self.cut_at) = (None, None);
        while !self.copying.is_done() && !self.interrupted {
            let _ = self.turn(None)?;
        }
        Ok(())
    }
}

/// Returns the children of all threads of this process; empty if the kernel does not list children.
fn children() -> Vec<u32> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}
