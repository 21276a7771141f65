//! Reports of waiting processes, for a test or a command that does not end. A report covers the descendants of a process with their
//! threads: the system call with its object, and stacks of a few processes if a debugger is installed.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The maximum number of processes whose stacks are read: a debugger takes one or two seconds for each.
const MOST_DEBUGGED: usize = 4;
/// The maximum number of stack lines of one process.
const MOST_FUNCTIONS: usize = 60;

/// A time limit, which runs an action after the limit has passed. Dropping the value earlier cancels the action.
pub struct Limit {
    /// The channel that is dropped first, which ends the thread's wait.
    ended: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Limit {
    /// Calls `expired` on a separate thread after `length`.
    pub fn new(length: Duration, expired: impl FnOnce() + Send + 'static) -> Limit {
        let (ended, waits) = channel::<()>();
        let thread = std::thread::spawn(move || {
            if let Err(RecvTimeoutError::Timeout) = waits.recv_timeout(length) {
                expired();
            }
        });
        Limit { ended: Some(ended), thread: Some(thread) }
    }
}

impl Drop for Limit {
    /// Ends the limit. If `expired` is running, waits for its end.
    fn drop(&mut self) {
        drop(self.ended.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns the descendants of a process, parents before children, without the process itself.
#[must_use]
pub fn descendants(of: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if let Some((_, parent)) = state_and_parent(id) {
            children.entry(parent).or_default().push(id);
        }
    }
    let mut found = vec![of];
    let mut next = 0;
    while let Some(id) = found.get(next).copied() {
        next += 1;
        found.extend(children.remove(&id).unwrap_or_default());
    }
    let _ = found.remove(0);
    found
}

/// Returns the state and the parent in `/proc/ID/stat`. These fields follow the name, which may contain any character.
fn state_and_parent(id: u32) -> Option<(char, u32)> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let mut fields = text.get(text.rfind(')')? + 1..)?.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Returns the waits of a process and its descendants, as text. If the process is the caller, the text covers only its descendants.
/// `own` is the directory of the programs whose stacks are read, such as cargo's target directory.
#[must_use]
pub fn told(of: u32, own: &Path) -> String {
    let mut text = String::new();
    let mut all = descendants(of);
    if of != std::process::id() {
        all.insert(0, of);
    }
    for id in &all {
        tell_process(&mut text, *id);
    }
    let is_own = |id: &&u32| {
        let program = fs::read_link(format!("/proc/{id}/exe"));
        program.is_ok_and(|program| program.starts_with(own))
    };
    // The processes at the end of the list are those for which the others wait.
    for id in all.iter().rev().filter(is_own).take(MOST_DEBUGGED) {
        tell_functions(&mut text, *id);
    }
    if text.is_empty() {
        text.push_str("no process is left\n");
    }
    text
}

fn tell_process(text: &mut String, id: u32) {
    let command = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    let command = String::from_utf8_lossy(&command).replace('\0', " ");
    let short: String = command.trim().chars().take(200).collect();
    let state = state_and_parent(id).map_or('?', |(state, _)| state);
    let _ = writeln!(text, "process {id} ({state}): {short}");
    let mut threads: Vec<u32> = fs::read_dir(format!("/proc/{id}/task"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    threads.sort_unstable();
    for thread in threads {
        let at = format!("/proc/{id}/task/{thread}");
        let name = fs::read_to_string(format!("{at}/comm")).unwrap_or_default();
        let channel = fs::read_to_string(format!("{at}/wchan")).unwrap_or_default();
        let call = fs::read_to_string(format!("{at}/syscall")).unwrap_or_default();
        let call = waits_for(call.trim(), |descriptor| {
            let link = fs::read_link(format!("/proc/{id}/fd/{descriptor}"));
            link.map_or(String::new(), |link| link.to_string_lossy().into_owned())
        });
        let channel = match channel.trim() {
            "" | "0" => String::new(),
            channel => format!(", {channel}"),
        };
        let _ = writeln!(text, "  thread {thread} {}: {call}{channel}", name.trim());
    }
}

/// Describes a line of `/proc/*/syscall`: the number of the call and its arguments.
fn waits_for(line: &str, descriptor: impl Fn(u64) -> String) -> String {
    let mut words = line.split_whitespace();
    let number: i64 = match words.next() {
        Some("running") => return "runs".into(),
        Some(word) => match word.parse() {
            Ok(number) => number,
            Err(_) => return line.into(),
        },
        None => return "waits".into(),
    };
    let argument = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
    let first = words.next().and_then(argument).unwrap_or(0);
    match call(number) {
        Some((name, true)) => format!("in {name}({first} {})", descriptor(first)),
        Some((name, false)) => format!("in {name}"),
        None => format!("in system call {number}"),
    }
}

/// Returns the name of a blocking call, and whether the call waits for a descriptor.
fn call(number: i64) -> Option<(&'static str, bool)> {
    if cfg!(not(target_arch = "x86_64")) {
        return None;
    }
    Some(match number {
        0 => ("read", true),
        1 => ("write", true),
        7 => ("poll", false),
        20 => ("writev", true),
        23 => ("select", false),
        35 => ("nanosleep", false),
        43 => ("accept", true),
        44 => ("sendto", true),
        45 => ("recvfrom", true),
        46 => ("sendmsg", true),
        47 => ("recvmsg", true),
        61 => ("wait4", false),
        73 => ("flock", true),
        202 => ("futex", false),
        230 => ("clock_nanosleep", false),
        232 | 281 => ("epoll_wait", true),
        247 => ("waitid", false),
        270 => ("pselect", false),
        271 => ("ppoll", false),
        288 => ("accept4", true),
        _ => return None,
    })
}

/// Appends the stack of a process, if a debugger is installed.
fn tell_functions(text: &mut String, id: u32) {
    let mut debugger = Command::new("timeout");
    let _ = debugger
        .args(["-s", "KILL", "20", "gdb", "-nx", "-batch", "-ex", "thread apply all bt 20", "-p"])
        .arg(id.to_string())
        .env("DEBUGINFOD_URLS", "")
        .stdin(Stdio::null());
    let Ok(output) = debugger.output() else { return };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let functions = said.lines().filter(|line| line.starts_with('#') || line.starts_with("Thread"));
    let functions: Vec<&str> = functions.take(MOST_FUNCTIONS).collect();
    if !functions.is_empty() {
        let _ = writeln!(text, "functions of process {id}:");
    }
    for line in functions {
        let short: String = line.chars().take(180).collect();
        let _ = writeln!(text, "  {short}");
    }
}

/// Kills the descendants of a process.
pub fn end(of: u32) {
    // The next round finds processes that were started during this round.
    for _ in 0..10 {
        let all = descendants(of);
        let alive = |id: &u32| state_and_parent(*id).is_some_and(|(state, _)| state != 'Z');
        let alive: Vec<String> = all.into_iter().filter(alive).map(|id| id.to_string()).collect();
        if alive.is_empty() {
            return;
        }
        // The shell itself is a child of the caller, and has ended when the call returns. Small systems have no program `kill`.
        let kill = ["-c", "kill -KILL \"$@\"", "sh"];
        let _ = Command::new("sh").args(kill).args(&alive).stderr(Stdio::null()).status();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Child;

    fn waiting() -> Child {
        let mut shell = Command::new("sh");
        let _ = shell.args(["-c", "sleep 1000; :"]).stdin(Stdio::piped());
        let child = shell.spawn().unwrap();
        while descendants(child.id()).is_empty() {
            std::thread::yield_now();
        }
        child
    }

    #[test]
    fn descendants_are_found_told_and_ended_and_their_parent_is_left() {
        let mut child = waiting();
        let below = descendants(child.id());
        assert_eq!(below.len(), 1);
        let text = told(child.id(), Path::new("/nowhere"));
        assert!(text.contains(&format!("process {} (", below[0])), "{text}");
        assert!(
            text.contains(&format!("process {} (", child.id())),
            "who asks is another one: {text}"
        );
        let below_us = told(std::process::id(), Path::new("/nowhere"));
        assert!(!below_us.contains(&format!("process {} (", std::process::id())), "{below_us}");
        assert!(below_us.contains(&format!("process {} (", child.id())), "{below_us}");
        end(child.id());
        // The shell continues after its child `sleep` was killed.
        assert!(child.wait().unwrap().success());
        assert!(descendants(child.id()).is_empty());
    }

    #[test]
    fn syscall_line_is_reported_with_its_descriptor() {
        let named = |descriptor: u64| format!("pipe:[{descriptor}]");
        assert_eq!(waits_for("running", named), "runs");
        if cfg!(target_arch = "x86_64") {
            assert_eq!(waits_for("0 0x3 0x7ff 0x1 0x0", named), "in read(3 pipe:[3])");
            assert_eq!(waits_for("202 0x7f 0x80", named), "in futex");
        }
        assert_eq!(waits_for("999 0x0", named), "in system call 999");
        assert_eq!(waits_for("", named), "waits");
    }

    #[test]
    fn dropped_limit_does_nothing_and_passed_one_runs_once() {
        let (sender, receiver) = channel();
        let again = sender.clone();
        drop(Limit::new(Duration::from_secs(1000), move || sender.send("never").unwrap()));
        let limit = Limit::new(Duration::from_millis(1), move || again.send("passed").unwrap());
        assert_eq!(receiver.recv(), Ok("passed"));
        drop(limit);
        assert!(receiver.recv().is_err());
    }
}
