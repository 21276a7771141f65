//! The published state, as values for programs. Fields are only ever added, so tool and process may have different versions.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The state of a context and its workers. `Display` is the output of `tieline info --pid`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Status {
    /// The process number, as the reader sees it.
    pub pid: u32,
    /// The name of the program.
    pub program: String,
    /// The version of its library.
    pub version: String,
    /// The first bytes of the context's number.
    pub context: String,
    /// Milliseconds since the context was opened.
    pub open_ms: u64,
    /// The context's workers.
    pub workers: Vec<WorkerStatus>,
    /// The number of workers without a place in the file.
    pub unseen: u64,
    /// The known state of processes on this host that an operation waits for.
    pub peers: Vec<PeerStatus>,
    /// The number of workers, or their texts, that were not read, because there are more of them than this process could have made.
    pub unread: usize,
    /// The time or memory bound of the look was reached before everything was read.
    pub incomplete: bool,
}

/// A process that an operation waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PeerStatus {
    /// Its process number.
    pub pid: u32,
    /// The name of its program; empty if the process no longer exists.
    pub program: String,
    /// The activity of the worker that the operation waits for, if known.
    pub doing: Option<Doing>,
    /// The duration of that activity in ms, as far as known.
    pub doing_ms: u64,
    /// A summary for people: `process 4243 (solver): its worker has slept for 3.1 s`.
    pub text: String,
}

/// A worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct WorkerStatus {
    /// The first bytes of the worker's number.
    pub worker: String,
    /// Whether it is the progress thread's worker.
    pub service: bool,
    /// The thread that used it last, by the thread number of its own process.
    pub thread: u32,
    /// Its present activity.
    pub doing: Doing,
    /// The minimum duration of that activity, in ms.
    pub doing_ms: u64,
    /// The time that it has spent in a call that waits, in ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_ms: Option<u64>,
    /// The kernel's state of its thread, if the thread is blocked and cannot be woken: `D (disk sleep) in nfs_wait`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stuck: Option<String>,
    /// The reason why no field below is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
    /// The number of times it has polled the kernel for events.
    pub polls: u64,
    /// The age of all fields below, in ms: waiting operations waited at that time. While it sleeps, they have not changed since.
    pub age_ms: u64,
    /// The number of pending operations.
    pub pending: usize,
    /// The number of tracked operations that have ended and have not been taken.
    pub untaken: usize,
    /// The number of answers without a route to the requester.
    pub owed: usize,
    /// The number of known peers.
    pub peers: usize,
    /// Its endpoints, the ones that have waited longest first.
    pub endpoints: Vec<EndpointStatus>,
    /// The number of endpoints without room in the text.
    pub more_endpoints: usize,
    /// Connections being formed.
    pub forming: Vec<FormingStatus>,
    /// Its open interfaces.
    pub interfaces: Vec<InterfaceStatus>,
    /// Its counters ([`Counters`](crate::Counters)) that are not 0.
    pub counters: BTreeMap<String, u64>,
}

/// The activity of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Doing {
    /// The worker reported its own state, or only one look was taken.
    #[default]
    Asked,
    /// It makes progress.
    Polls,
    /// It sleeps in a call that waits.
    Sleeps,
    /// It was armed: its application sleeps on its descriptor, has not called it since, or a handler runs in the first call.
    Armed,
    /// Between two looks its application has not called it, or only a few times, or it is in a handler.
    NotCalled,
    /// Its process is stopped by a signal.
    Stopped,
    /// A debugger holds its process.
    Traced,
}

/// An endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct EndpointStatus {
    /// Its peer: `process 4243 on nodeb`.
    pub peer: String,
    /// The peer's process, if it runs on this host with the same process numbers.
    pub peer_pid: Option<u32>,
    /// The first bytes of the peer worker's number.
    pub peer_worker: String,
    /// `application`, `library` (it serves peers) or `answers` (over one connection).
    pub owner: String,
    /// The word set by the application.
    pub user: u64,
    /// `unconnected`, `ready`, `queueing`, `failed` or `closed`.
    pub state: String,
    /// The module that carries its messages: `shm/ring`.
    pub message: String,
    /// The modules of its open lanes.
    pub lanes: Vec<String>,
    /// The number of pending operations.
    pub open: usize,
    /// The number of those that no lane has accepted yet.
    pub queued: usize,
    /// The bytes that were copied for the queued operations.
    pub queued_bytes: usize,
    /// The number of answers to the peer that have found no room.
    pub answers: usize,
    /// Its counters ([`EndpointCounters`](crate::EndpointCounters)) that are not 0.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, u64>,
    /// The reason why its oldest operation waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waits>,
    /// The error by which it has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The reason why an endpoint waits, and for how long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Waits {
    /// A text: `room in shm/ring: the peer has not received earlier data`.
    pub for_what: String,
    /// The minimum duration in ms: its oldest operation has been the oldest one since then.
    pub ms: u64,
}

/// A connection being formed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct FormingStatus {
    /// Its peer.
    pub peer: String,
    /// The module that the connection is for.
    pub module: String,
    /// The carrier of its datagrams.
    pub by: String,
    /// Its phase.
    pub phase: String,
    /// The minimum duration in ms.
    pub ms: u64,
    /// The last error of the carrier.
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
    /// The number of peers that it knows.
    pub peers: u64,
    /// The bytes of memory that it holds.
    pub bytes: u64,
    /// The reason why it accepts no new endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_use: Option<String>,
}

impl Status {
    /// Returns the whole state as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Maps have plain keys, and a string is written to: neither fails.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

impl WorkerStatus {
    /// Returns the whole state as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// So much later it is all still so.
    pub(super) fn grow_older(&mut self, ms: u64) {
        for endpoint in &mut self.endpoints {
            if let Some(waits) = &mut endpoint.waits {
                waits.ms = waits.ms.saturating_add(ms);
            }
        }
        self.forming.iter_mut().for_each(|circuit| circuit.ms = circuit.ms.saturating_add(ms));
    }

    /// At a later look nothing was open any more.
    pub(super) fn ends_operations(&mut self) {
        self.pending = 0;
        for endpoint in &mut self.endpoints {
            (endpoint.open, endpoint.queued, endpoint.queued_bytes) = (0, 0, 0);
            endpoint.waits = endpoint.waits.take().filter(|_| endpoint.answers > 0);
        }
    }

    /// No more of anything than a worker writes, which may be somebody else.
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

    /// Its text, with as many endpoints as there is room for.
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

/// Endpoints, connections, interfaces of one worker.
pub(crate) const MOST_SHOWN: usize = 128;

/// At most so many bytes of a text that others may have chosen.
pub(crate) fn cut(text: &str) -> String {
    const MOST: usize = 300;
    if text.len() <= MOST {
        return text.to_owned();
    }
    let end = (0..=MOST).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    format!("{}...", &text[..end])
}
