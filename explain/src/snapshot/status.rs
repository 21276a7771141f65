//! The published state as values for programs. Later versions only add fields, so the tool and the observed process may have
//! different versions.

use super::json;
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
    /// The version of the library in the process.
    pub version: String,
    /// The first bytes of the context's id.
    pub context: String,
    /// The time since the context was opened, in milliseconds.
    pub open_ms: u64,
    /// The context's workers.
    pub workers: Vec<WorkerStatus>,
    /// The number of workers that got no place in the file when they were opened. Workers that were closed later are included.
    pub unseen: u64,
    /// The known state of other processes on this host for which operations wait, at most 64.
    pub peers: Vec<PeerStatus>,
    /// The number of workers whose text was not read because the limit of time or memory was reached.
    pub unread: usize,
    /// Whether the limit of time or memory was reached before everything was read.
    pub incomplete: bool,
}

/// A process for which an operation waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PeerStatus {
    /// The process id.
    pub pid: u32,
    /// The name of the process; empty if the process does not exist any more.
    pub program: String,
    /// The activity of the worker for which the operation waits, if known.
    pub doing: Option<Doing>,
    /// The known duration of that activity, in ms.
    pub doing_ms: u64,
    /// All known facts, as text: `process 4243 (solver): its worker has slept for 3.1 s`.
    pub text: String,
}

/// The state of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct WorkerStatus {
    /// The first bytes of the worker's id.
    pub worker: String,
    /// Whether the worker belongs to the progress thread.
    pub service: bool,
    /// The number, within its process, of the thread that last used the worker.
    pub thread: u32,
    /// The worker's current activity.
    pub doing: Doing,
    /// The minimum duration of that activity, in ms.
    pub doing_ms: u64,
    /// The time in ms since the worker's blocking call stopped spinning; `None`: there is no such call, or it spins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_ms: Option<u64>,
    /// The kernel's state of the worker's thread, if that thread is in uninterruptible sleep: `D (disk sleep) in nfs_wait`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stuck: Option<String>,
    /// The reason that the fields about operations, endpoints and modules are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
    /// The number of times that the worker has polled the kernel for events, as it publishes it. A sleep without open operations
    /// may count as one more.
    pub polls: u64,
    /// The age of the fields below, in ms. An operation that they show as waiting was waiting at that time. While the worker
    /// sleeps, the worker's state does not change.
    pub age_ms: u64,
    /// The number of open operations.
    pub pending: usize,
    /// The number of tracked operations that have ended and that the application has not taken.
    pub untaken: usize,
    /// The number of answers to requesters that no lane reaches.
    pub owed: usize,
    /// The number of known peers.
    pub peers: usize,
    /// The worker's endpoints, the longest waiting first.
    pub endpoints: Vec<EndpointStatus>,
    /// The number of endpoints that `endpoints` leaves out.
    pub more_endpoints: usize,
    /// The connections being established, as far as they fit.
    pub forming: Vec<FormingStatus>,
    /// The worker's open modules.
    pub interfaces: Vec<InterfaceStatus>,
    /// The worker's nonzero counters (`Counters`).
    pub counters: BTreeMap<String, u64>,
}

/// The activity of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Doing {
    /// Unknown: the worker produced this status itself, or it was observed only once.
    #[default]
    Asked,
    /// The worker makes progress.
    Polls,
    /// The worker sleeps in a blocking call.
    Sleeps,
    /// The worker was armed: its application sleeps on the worker's descriptor, has not called the worker since, or runs a handler
    /// in the first call.
    Armed,
    /// Between two observations the application has not called the worker, or only a few times, or it runs a handler.
    NotCalled,
    /// A signal has stopped the worker's process.
    Stopped,
    /// A debugger has stopped the worker's process.
    Traced,
}

/// The state of an endpoint.
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
    /// The owner: `application`, `library` (the endpoint serves peers) or `answers` (over one connection).
    pub owner: String,
    /// The word that the application assigned to the endpoint.
    pub user: u64,
    /// The endpoint's state: `unconnected`, `ready`, `queueing`, `failed` or `closed`.
    pub state: String,
    /// The module that carries the endpoint's messages: `shm/ring`.
    pub message: String,
    /// The modules of the endpoint's open lanes.
    pub lanes: Vec<String>,
    /// The number of open operations.
    pub open: usize,
    /// The number of open operations that no lane has accepted yet.
    pub queued: usize,
    /// The number of bytes copied for the queued operations.
    pub queued_bytes: usize,
    /// The number of answers to the peer that wait for the message lane.
    pub answers: usize,
    /// The endpoint's nonzero counters (`EndpointCounters`).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, u64>,
    /// The wait of the endpoint's oldest operation, or of its answers and other messages of the library.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waits>,
    /// The reason that the endpoint has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The wait of an endpoint: its cause and duration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Waits {
    /// The cause, as text: `room in shm/ring: the peer has not taken what came before`.
    pub for_what: String,
    /// The minimum duration of the wait in ms: the time for which the oldest operation has been the oldest one.
    pub ms: u64,
}

/// A connection being established.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct FormingStatus {
    /// The name of the peer.
    pub peer: String,
    /// The module that needs the connection.
    pub module: String,
    /// The module that carries the datagrams of the wire-up.
    pub by: String,
    /// The phase of the wire-up.
    pub phase: String,
    /// The minimum duration of the wire-up in ms.
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
    /// The name of the module: `shm/ring`.
    pub path: String,
    /// The number of known peers.
    pub peers: u64,
    /// The memory that the module holds, in bytes.
    pub bytes: u64,
    /// The reason that the module serves no new endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_use: Option<String>,
}

impl Status {
    /// Returns the whole status as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        json(self)
    }
}

impl WorkerStatus {
    /// Returns the whole status as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        json(self)
    }

    /// Increases the durations of waits and of forming connections by `ms`, for a status that has not changed in this time.
    pub(crate) fn grow_older(&mut self, ms: u64) {
        for endpoint in &mut self.endpoints {
            if let Some(waits) = &mut endpoint.waits {
                waits.ms = waits.ms.saturating_add(ms);
            }
        }
        self.forming.iter_mut().for_each(|circuit| circuit.ms = circuit.ms.saturating_add(ms));
    }

    /// Clears the open operations, because a later observation found none.
    pub(crate) fn ends_operations(&mut self) {
        self.pending = 0;
        for endpoint in &mut self.endpoints {
            (endpoint.open, endpoint.queued, endpoint.queued_bytes) = (0, 0, 0);
            endpoint.waits = endpoint.waits.take().filter(|_| endpoint.answers > 0);
        }
    }

    /// Limits the lists and counters to `MOST_SHOWN` entries each, since the text may come from another program.
    pub(crate) fn bound(&mut self) {
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

    /// Returns the status as JSON of at most `most` bytes. Halves the number of endpoints, and then of forming connections, until
    /// the text fits; `None` if it never does.
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

/// The maximum number of endpoints in a worker's text; readers limit the text's other lists to this number too.
pub const MOST_SHOWN: usize = 128;

/// Limits a text that other processes may have chosen to 300 bytes and an ellipsis.
#[must_use]
pub fn cut(text: &str) -> String {
    const MOST: usize = 300;
    if text.len() <= MOST {
        return text.to_owned();
    }
    let end = (0..=MOST).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    format!("{}...", &text[..end])
}

/// Returns the first four bytes of the id of a context or a worker as hexadecimal text.
#[must_use]
pub fn short(id: &[u8; 16]) -> String {
    id[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}
