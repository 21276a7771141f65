//! The published state as values for programs. Later versions only add fields, so tool and process may have different versions.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The state of a context: its workers. `Display` is the output of `tieline info --pid`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Status {
    /// The process id in the observer's namespace.
    pub pid: u32,
    /// The name of the process.
    pub program: String,
    /// The version of its library.
    pub version: String,
    /// The first bytes of the context's id.
    pub context: String,
    /// Milliseconds since the context was opened.
    pub open_ms: u64,
    /// The context's workers.
    pub workers: Vec<WorkerStatus>,
    /// Workers that found no place in the file.
    pub unseen: u64,
    /// The known state of the processes on this host that operations wait for.
    pub peers: Vec<PeerStatus>,
    /// Workers, or their texts, that were not read: the file holds more than this process would have written.
    pub unread: usize,
    /// The limit of time or memory was reached before all was read.
    pub incomplete: bool,
}

/// A process that an operation waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PeerStatus {
    /// Its process id.
    pub pid: u32,
    /// Its name; empty if it does not exist any more.
    pub program: String,
    /// The activity of the worker that the operation waits for, if known.
    pub doing: Option<Doing>,
    /// The known duration of that activity, in ms.
    pub doing_ms: u64,
    /// All that is known, as text: `process 4243 (solver): its worker has slept for 3.1 s`.
    pub text: String,
}

/// A worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct WorkerStatus {
    /// The first bytes of the worker's id.
    pub worker: String,
    /// It belongs to the progress thread.
    pub service: bool,
    /// The thread that used it last, by its number within its process.
    pub thread: u32,
    /// Its current activity.
    pub doing: Doing,
    /// The minimum duration of that activity, in ms.
    pub doing_ms: u64,
    /// How long it has been in a blocking call, in ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_ms: Option<u64>,
    /// The kernel's state of its thread, if that thread cannot be woken: `D (disk sleep) in nfs_wait`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stuck: Option<String>,
    /// The reason that the fields below are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
    /// How often it has polled the kernel for events.
    pub polls: u64,
    /// The age of the fields below, in ms: an operation that they show as waiting was waiting then. While the worker sleeps, they
    /// do not change.
    pub age_ms: u64,
    /// Open operations.
    pub pending: usize,
    /// Tracked operations that have ended and were not taken yet.
    pub untaken: usize,
    /// Answers to requesters that no lane reaches.
    pub owed: usize,
    /// Known peers.
    pub peers: usize,
    /// Its endpoints, the longest waiting first.
    pub endpoints: Vec<EndpointStatus>,
    /// Endpoints that did not fit.
    pub more_endpoints: usize,
    /// Connections being established.
    pub forming: Vec<FormingStatus>,
    /// Its open modules.
    pub interfaces: Vec<InterfaceStatus>,
    /// Its nonzero counters ([`Counters`](crate::Counters)).
    pub counters: BTreeMap<String, u64>,
}

/// The activity of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Doing {
    /// Unknown: it produced this status itself, or it was observed only once.
    #[default]
    Asked,
    /// It makes progress.
    Polls,
    /// It sleeps in a blocking call.
    Sleeps,
    /// It was armed: its application sleeps on its descriptor, or has not called it since, or a handler runs in the first call.
    Armed,
    /// Between two observations its application has not called it, or only a few times, or a handler runs.
    NotCalled,
    /// Its process is stopped by a signal.
    Stopped,
    /// A debugger has stopped its process.
    Traced,
}

/// An endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct EndpointStatus {
    /// The peer: `process 4243 on nodeb`.
    pub peer: String,
    /// The peer's process id, if it runs on this host with the same process namespace.
    pub peer_pid: Option<u32>,
    /// The first bytes of the peer worker's id.
    pub peer_worker: String,
    /// `application`, `library` (it serves peers) or `answers` (over one connection).
    pub owner: String,
    /// The value that the application assigned to it.
    pub user: u64,
    /// `unconnected`, `ready`, `queueing`, `failed` or `closed`.
    pub state: String,
    /// The module that carries its messages: `shm/ring`.
    pub message: String,
    /// The modules of its open lanes.
    pub lanes: Vec<String>,
    /// Open operations.
    pub open: usize,
    /// The open operations that no lane has accepted yet.
    pub queued: usize,
    /// The bytes that were copied for the queued operations.
    pub queued_bytes: usize,
    /// Answers to the peer that wait for room.
    pub answers: usize,
    /// Its nonzero counters ([`EndpointCounters`](crate::EndpointCounters)).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, u64>,
    /// The wait of its oldest operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waits>,
    /// The reason that it has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The wait of an endpoint: its cause and duration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Waits {
    /// As text: `room in shm/ring: the peer has not taken what came before`.
    pub for_what: String,
    /// The minimum duration in ms: how long its oldest operation has been the oldest one.
    pub ms: u64,
}

/// A connection being established.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct FormingStatus {
    /// The peer.
    pub peer: String,
    /// The module that needs the connection.
    pub module: String,
    /// The module that carries its datagrams.
    pub by: String,
    /// The phase of the wire-up.
    pub phase: String,
    /// The minimum duration in ms.
    pub ms: u64,
    /// The last error of the carrier of the datagrams.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub trouble: String,
}

/// A module that is open on a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct InterfaceStatus {
    /// `shm/ring`
    pub path: String,
    /// Known peers.
    pub peers: u64,
    /// Memory that it holds, in bytes.
    pub bytes: u64,
    /// The reason that it serves no new endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_use: Option<String>,
}

impl Status {
    /// The whole status as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Maps have plain keys and the writer is a string, so neither fails.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

impl WorkerStatus {
    /// The whole status as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Ages the status: it is unchanged after this time.
    pub(super) fn grow_older(&mut self, ms: u64) {
        for endpoint in &mut self.endpoints {
            if let Some(waits) = &mut endpoint.waits {
                waits.ms = waits.ms.saturating_add(ms);
            }
        }
        self.forming.iter_mut().for_each(|circuit| circuit.ms = circuit.ms.saturating_add(ms));
    }

    /// A later observation found no open operation.
    pub(super) fn ends_operations(&mut self) {
        self.pending = 0;
        for endpoint in &mut self.endpoints {
            (endpoint.open, endpoint.queued, endpoint.queued_bytes) = (0, 0, 0);
            endpoint.waits = endpoint.waits.take().filter(|_| endpoint.answers > 0);
        }
    }

    /// Limits all lists to the lengths that a worker writes, since the text may come from another program.
    pub(super) fn bound(&mut self) {
        let more = self.endpoints.len().saturating_sub(MOST_SHOWN);
        self.more_endpoints = self.more_endpoints.saturating_add(more);
        bound_list(&mut self.endpoints);
        for endpoint in &mut self.endpoints {
            bound_list(&mut endpoint.lanes);
            bound_map(&mut endpoint.counters);
        }
        bound_list(&mut self.forming);
        bound_list(&mut self.interfaces);
        bound_map(&mut self.counters);
    }

    /// Its text, with as many endpoints as fit.
    pub(crate) fn fit(mut self, most: usize) -> Option<Vec<u8>> {
        loop {
            match serde_json::to_vec(&self) {
                Ok(text) if text.len() <= most => return Some(text),
                Ok(_) if !self.endpoints.is_empty() => {
                    let kept = self.endpoints.len() / 2;
                    self.more_endpoints += self.endpoints.len() - kept;
                    self.endpoints.truncate(kept);
                }
                Ok(_) if !self.forming.is_empty() => self.forming.truncate(self.forming.len() / 2),
                _ => return None,
            }
        }
    }
}

fn bound_list<T>(list: &mut Vec<T>) {
    list.truncate(MOST_SHOWN);
    list.shrink_to_fit();
}

fn bound_map(counters: &mut BTreeMap<String, u64>) {
    while counters.len() > MOST_SHOWN {
        let _ = counters.pop_last();
    }
}

/// The limit of endpoints, connections and interfaces of one worker.
pub(crate) const MOST_SHOWN: usize = 128;

/// Limits the length of a text that others may have chosen.
pub(crate) fn cut(text: &str) -> String {
    const MOST: usize = 300;
    if text.len() <= MOST {
        return text.to_owned();
    }
    let end = (0..=MOST).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    format!("{}...", &text[..end])
}
