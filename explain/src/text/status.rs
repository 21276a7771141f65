//! The state as text for users: waiting operations are listed first.

use crate::snapshot::{Doing, EndpointStatus, Status, WorkerStatus};
use std::collections::BTreeMap;
use std::fmt;

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = format!("process {}", self.pid);
        if !self.program.is_empty() {
            text += &format!(" ({})", self.program);
        }
        let (version, context, open) = (&self.version, &self.context, time(self.open_ms));
        text += &format!(", Tieline {version}, context {context}, open for {open}\n");
        if let Some(how) = self.workers.iter().find_map(|worker| held(worker.doing)) {
            text += &format!("the process {how}; all below is as it was before\n");
        }
        let waiting = self.workers.iter().flat_map(WorkerStatus::waits);
        let peers = self.peers.iter().map(|peer| peer.text.clone());
        let lines: Vec<String> = waiting.chain(peers).collect();
        if !lines.is_empty() {
            text += "WAITS\n";
            lines.iter().for_each(|line| text += &format!("  {line}\n"));
        }
        let hidden = |worker: &&WorkerStatus| worker.unknown.is_some() || worker.more_endpoints > 0;
        let hidden = self.workers.iter().filter(hidden).count() + self.unread;
        match hidden as u64 + self.unseen {
            _ if self.workers.is_empty() && self.unseen == 0 => text += "it has no worker\n",
            0 if lines.is_empty() => text += "no operation of the application is open\n",
            0 => {}
            n => text += &format!("{n} workers are only partly known\n"),
        }
        if self.incomplete {
            text += "the look ended before all was read: it has three seconds and 2 MiB for everything that is shown\n";
        }
        if self.unseen > 0 {
            text += &format!("{} workers found no place to show themselves in\n", self.unseen);
        }
        self.workers.iter().for_each(|worker| text += &worker.to_string());
        f.write_str(&plain(&text))
    }
}

impl fmt::Display for WorkerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if self.service { " of the progress thread" } else { "" };
        let mut text = match &self.unknown {
            Some(why) => format!("\nA WORKER of which nothing is known: {why}"),
            None => format!("\nWORKER {}{whose}, thread {}", self.worker, self.thread),
        };
        if let Some(does) = self.does() {
            text += &format!(", {does}");
        }
        if self.unknown.is_some() {
            return f.write_str(&plain(&(text + "\n")));
        }
        let (pending, peers) = (self.pending, self.peers);
        text += &format!("\n  {pending} operations pending, {peers} peers known");
        if self.untaken > 0 {
            text += &format!(", {} ended and not taken", self.untaken);
        }
        if self.owed > 0 {
            text += &format!(", {} answers owed without a route", self.owed);
        }
        if self.age_ms >= 1000 {
            text += &format!(", as of {} ago", time(self.age_ms));
        }
        text.push('\n');
        for endpoint in &self.endpoints {
            text += &format!("  {}\n", line(endpoint));
        }
        if self.more_endpoints > 0 {
            text += &format!("  and {} endpoints more\n", self.more_endpoints);
        }
        for interface in &self.interfaces {
            let (path, peers, bytes) = (&interface.path, interface.peers, size(interface.bytes));
            text += &format!("  {path}: {peers} peers, {bytes}");
            if let Some(why) = &interface.out_of_use {
                text += &format!("; {why}");
            }
            text.push('\n');
        }
        if !self.counters.is_empty() {
            text += &format!("  counted: {}\n", counted(&self.counters));
        }
        f.write_str(&plain(&text))
    }
}

impl WorkerStatus {
    /// Describes the worker's activity; the text follows the worker's name.
    pub(crate) fn does(&self) -> Option<String> {
        let ms = time(self.doing_ms);
        let waits =
            self.waiting_ms.map(|ms| format!(" in a call that has waited for {}", time(ms)));
        let waits = waits.unwrap_or_default();
        let stuck = self.stuck.as_ref().map(|state| format!("; its thread is {state}"));
        let stuck = stuck.unwrap_or_default();
        Some(match self.doing {
            Doing::Asked => return None,
            Doing::Polls => format!("makes progress{waits}"),
            Doing::Sleeps if waits.is_empty() => format!("has slept for {ms}"),
            Doing::Sleeps => format!("sleeps{waits}"),
            Doing::Armed => {
                format!("waits on its descriptor, for its application or in a handler, for {ms}")
            }
            Doing::NotCalled => format!(
                "has made no progress for {ms} or longer: its application has called it seldom or not at all, or a handler runs{stuck}"
            ),
            held_so => format!("is of a process that {}", held(held_so).unwrap_or("shows nothing")),
        })
    }

    /// Returns the worker's first lines: the waiting operations.
    fn waits(&self) -> Vec<String> {
        let asleep = matches!(self.doing, Doing::Sleeps | Doing::Armed | Doing::Asked);
        let since = match self.age_ms {
            age @ 1000.. if !asleep => format!(" ({} ago)", time(age)),
            _ => String::new(),
        };
        let operations = self.endpoints.iter().filter_map(|endpoint| {
            let waits = endpoint.waits.as_ref()?;
            let (open, peer, ms) = (endpoint.open, &endpoint.peer, time(waits.ms));
            let what = match (open, endpoint.answers) {
                (0, 0) => format!("a message of the library's own to {peer}"),
                (0, 1) => format!("an answer to {peer}"),
                (0, answers) => format!("{answers} answers to {peer}"),
                (1, _) => format!("an operation to {peer}"),
                (open, _) => format!("{open} operations to {peer}"),
            };
            Some(format!("{what}, for {ms}{since}: {}", waits.for_what))
        });
        let forming = self.forming.iter().map(|circuit| {
            let (peer, module, ms) = (&circuit.peer, &circuit.module, time(circuit.ms));
            let mut line = format!("a connection to {peer} over {module} is being formed for {ms}");
            line += &format!("{since} by {}: {}", circuit.by, circuit.phase);
            if !circuit.trouble.is_empty() {
                line += &format!("; {}", circuit.trouble);
            }
            line
        });
        operations.chain(forming).collect()
    }
}

/// Returns the text for a process that cannot run.
fn held(doing: Doing) -> Option<&'static str> {
    match doing {
        Doing::Stopped => Some("is stopped by a signal"),
        Doing::Traced => Some("is held by a debugger"),
        _ => None,
    }
}

fn line(endpoint: &EndpointStatus) -> String {
    let mut text = format!("to {} ({}), {}", endpoint.peer, endpoint.peer_worker, endpoint.state);
    if endpoint.owner != "application" {
        text += &format!(", of the {}", endpoint.owner);
    }
    text += &format!(", messages over {}", endpoint.message);
    if !endpoint.lanes.is_empty() {
        text += &format!(", open: {}", endpoint.lanes.join(" "));
    }
    if endpoint.open > 0 {
        text += &format!(", {} pending", endpoint.open);
    }
    if endpoint.queued > 0 {
        text += &format!(", {} queued of {}", endpoint.queued, size(endpoint.queued_bytes as u64));
    }
    if endpoint.answers > 0 {
        text += &format!(", {} answers wait", endpoint.answers);
    }
    if !endpoint.counters.is_empty() {
        text += &format!(", counted: {}", counted(&endpoint.counters));
    }
    if let Some(error) = &endpoint.error {
        text += &format!("; {error}");
    }
    text
}

fn counted(counters: &BTreeMap<String, u64>) -> String {
    let each = counters.iter().map(|(name, n)| format!("{name} {n}"));
    each.collect::<Vec<_>>().join(", ")
}

/// Formats a time with the precision that a reader needs.
fn time(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        60_000..3_600_000 => format!("{} min {} s", ms / 60_000, ms % 60_000 / 1_000),
        _ => format!("{} h {} min", ms / 3_600_000, ms % 3_600_000 / 60_000),
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} bytes"),
        10_240..10_485_760 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// Removes control characters from a text, because its writer is not trusted.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect()
}
