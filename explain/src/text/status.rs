//! The state as text for users: waiting operations are listed before the workers.

use crate::snapshot::{Doing, EndpointStatus, Status, WorkerStatus};
use std::collections::BTreeMap;
use std::fmt;

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.workers.iter().flat_map(WorkerStatus::waits);
        let waiting: Vec<String> =
            waiting.chain(self.peers.iter().map(|peer| peer.text.clone())).collect();
        let hidden = |worker: &&WorkerStatus| worker.unknown.is_some() || worker.more_endpoints > 0;
        let hidden = self.workers.iter().filter(hidden).count() + self.unread;
        let halted = self.workers.iter().find_map(|worker| held(worker.doing));
        let head = [
            format!("process {}", self.pid),
            when(!self.program.is_empty(), || format!(" ({})", self.program)),
            format!(", Tieline {}, context {}", self.version, self.context),
            format!(", open for {}\n", time(self.open_ms)),
            halted.map_or(String::new(), |how| {
                format!("the process {how}; all below is as it was before\n")
            }),
            when(!waiting.is_empty(), || format!("WAITS\n  {}\n", waiting.join("\n  "))),
            match hidden as u64 + self.unseen {
                _ if self.workers.is_empty() && self.unseen == 0 => "it has no worker\n".to_owned(),
                0 => when(waiting.is_empty(), || NONE_OPEN.to_owned()),
                n => format!("{n} workers are only partly known\n"),
            },
            when(self.incomplete, || INCOMPLETE.to_owned()),
            when(self.unseen > 0, || {
                format!("{} workers found no place to show themselves in\n", self.unseen)
            }),
        ];
        f.write_str(&plain(&head.concat()))?;
        self.workers.iter().try_for_each(|worker| worker.fmt(f))
    }
}

const NONE_OPEN: &str = "no operation of the application is open\n";
const INCOMPLETE: &str = "the look ended before all was read: it has three seconds and 2 MiB for everything that is shown\n";

impl fmt::Display for WorkerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if self.service { " of the progress thread" } else { "" };
        let does = self.does().map_or(String::new(), |does| format!(", {does}"));
        if let Some(why) = &self.unknown {
            let text = format!("\nA WORKER of which nothing is known: {why}{does}\n");
            return f.write_str(&plain(&text));
        }
        let (pending, peers, age) = (self.pending, self.peers, time(self.age_ms));
        let mut text = [
            format!("\nWORKER {}{whose}, thread {}{does}", self.worker, self.thread),
            format!("\n  {pending} operations pending, {peers} peers known"),
            when(self.untaken > 0, || format!(", {} ended and not taken", self.untaken)),
            when(self.owed > 0, || format!(", {} answers owed without a route", self.owed)),
            when(self.age_ms >= 1000, || format!(", as of {age} ago")),
            "\n".to_owned(),
        ]
        .concat();
        self.endpoints.iter().for_each(|endpoint| text += &format!("  {}\n", line(endpoint)));
        text += &when(self.more_endpoints > 0, || {
            format!("  and {} endpoints more\n", self.more_endpoints)
        });
        for interface in &self.interfaces {
            let (path, peers, bytes) = (&interface.path, interface.peers, size(interface.bytes));
            let why = interface.out_of_use.as_ref().map(|why| format!("; {why}"));
            text += &format!("  {path}: {peers} peers, {bytes}{}\n", why.unwrap_or_default());
        }
        text += &when(!self.counters.is_empty(), || {
            format!("  counted: {}\n", counted(&self.counters))
        });
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

    /// Returns a line for each waiting endpoint and for each connection being established.
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

fn line(e: &EndpointStatus) -> String {
    let (waits, bytes) = (e.queued, size(e.queued_bytes as u64));
    [
        format!("to {} ({}), {}", e.peer, e.peer_worker, e.state),
        when(e.owner != "application", || format!(", of the {}", e.owner)),
        format!(", messages over {}", e.message),
        when(!e.lanes.is_empty(), || format!(", open: {}", e.lanes.join(" "))),
        when(e.open > 0, || format!(", {} pending", e.open)),
        when(waits > 0, || format!(", {waits} queued of {bytes}")),
        when(e.answers > 0, || format!(", {} answers wait", e.answers)),
        when(!e.counters.is_empty(), || format!(", counted: {}", counted(&e.counters))),
        e.error.as_ref().map_or(String::new(), |error| format!("; {error}")),
    ]
    .concat()
}

/// Returns the text if it applies.
fn when(applies: bool, text: impl FnOnce() -> String) -> String {
    if applies { text() } else { String::new() }
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

/// Replaces control characters other than line ends by question marks, because the text's writer is not trusted.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect()
}
