//! What is shown: values for programs. Fields are only ever added, so that tool and process may be of different versions.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a context shows: its workers. `Display` is what `tieline info --pid` prints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Status {
    /// The process, by the number that who asks knows it by.
    pub pid: u32,
    /// What the process is called.
    pub program: String,
    /// Version of its library.
    pub version: String,
    /// The context, by the first bytes of its number.
    pub context: String,
    /// Milliseconds since it was opened.
    pub open_ms: u64,
    /// Its workers.
    pub workers: Vec<WorkerStatus>,
    /// Workers that found no place to show themselves in.
    pub unseen: u64,
    /// What is known of the processes that something waits for, on this host.
    pub peers: Vec<PeerStatus>,
    /// Workers, or texts of theirs, that were not read: there are more of them than this process would have made.
    pub unread: usize,
    /// The time or the memory of a look was over before all was read.
    pub incomplete: bool,
}

/// A process that something waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PeerStatus {
    /// Its number.
    pub pid: u32,
    /// What it is called; empty where it is not there any more.
    pub program: String,
    /// What its worker does that something is waited for from, where that is known.
    pub doing: Option<Doing>,
    /// For how long, in ms, as far as it is known.
    pub doing_ms: u64,
    /// All that is known, in words: `process 4243 (solver): its worker has slept for 3.1 s`.
    pub text: String,
}

/// A worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct WorkerStatus {
    /// The worker, by the first bytes of its number.
    pub worker: String,
    /// It is the progress thread's.
    pub service: bool,
    /// The thread that it was last used by, as its process knows it.
    pub thread: u32,
    /// What it does right now.
    pub doing: Doing,
    /// For how long it has done that, in ms, at least.
    pub doing_ms: u64,
    /// It has been in a call that waits for so long, in ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_ms: Option<u64>,
    /// What the kernel says of its thread, where nothing can wake that: `D (disk sleep) in nfs_wait`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stuck: Option<String>,
    /// Why nothing below is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
    /// How often it has asked the kernel for events.
    pub polls: u64,
    /// How old everything below is, in ms: what is said to wait, waited then. While it sleeps, nothing has changed since.
    pub age_ms: u64,
    /// Operations that have not ended.
    pub pending: usize,
    /// Tracked operations that have ended and that nobody has taken yet.
    pub untaken: usize,
    /// Answers that no way leads to the asker for.
    pub owed: usize,
    /// Peers that are known.
    pub peers: usize,
    /// Its endpoints, those that have waited the longest first.
    pub endpoints: Vec<EndpointStatus>,
    /// Endpoints that there was no room for.
    pub more_endpoints: usize,
    /// Connections that are being formed.
    pub forming: Vec<FormingStatus>,
    /// What it has open.
    pub interfaces: Vec<InterfaceStatus>,
    /// What it has counted ([`Counters`](crate::Counters)), where that is not 0.
    pub counters: BTreeMap<String, u64>,
}

/// What a worker does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Doing {
    /// It was asked itself, or only one look was taken.
    #[default]
    Asked,
    /// It makes progress.
    Polls,
    /// It sleeps, in a call that waits.
    Sleeps,
    /// It was armed: its application sleeps on its descriptor, has not called it since, or a handler runs in the first call.
    Armed,
    /// Between two looks its application has not called it, or a few times only, or it is in a handler.
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
    /// Who it leads to: `process 4243 on nodeb`.
    pub peer: String,
    /// That process, where it runs on this host and has the same process numbers.
    pub peer_pid: Option<u32>,
    /// That worker, by the first bytes of its number.
    pub peer_worker: String,
    /// `application`, `library` (it serves peers) or `answers` (over one connection).
    pub owner: String,
    /// The word that the application gave it.
    pub user: u64,
    /// `unconnected`, `ready`, `queueing`, `failed` or `closed`.
    pub state: String,
    /// What carries its messages: `shm/ring`.
    pub message: String,
    /// The modules of the lanes that are open.
    pub lanes: Vec<String>,
    /// Operations that have not ended.
    pub open: usize,
    /// Of those, the ones that no lane has taken yet, and the bytes that were copied for them.
    pub queued: usize,
    /// See there.
    pub queued_bytes: usize,
    /// Answers to the peer that have found no room.
    pub answers: usize,
    /// What it has counted ([`EndpointCounters`](crate::EndpointCounters)), where that is not 0.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, u64>,
    /// What it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waits>,
    /// Why it has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What an endpoint waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Waits {
    /// In words: `room in shm/ring: the peer has not taken what came before`.
    pub for_what: String,
    /// For how long at least, in ms: its oldest operation has been the oldest one since.
    pub ms: u64,
}

/// A connection that is being formed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct FormingStatus {
    /// Who it leads to.
    pub peer: String,
    /// The module that it is for.
    pub module: String,
    /// What carries its datagrams.
    pub by: String,
    /// How far it is.
    pub phase: String,
    /// For how long at least, in ms.
    pub ms: u64,
    /// What the carrier of the datagrams last complained of.
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
    /// Peers that it knows.
    pub peers: u64,
    /// Memory that it holds.
    pub bytes: u64,
    /// Why it serves no new endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_use: Option<String>,
}

impl Status {
    /// The whole of it.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Maps have plain keys, and a string is written to: neither fails.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

impl WorkerStatus {
    /// The whole of it.
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
