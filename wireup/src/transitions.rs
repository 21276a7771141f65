//! The transitions of a connection from one phase to the next, and their messages to the peer.

use super::machine::{LastWord, Machine};
use super::message::{Body, Header, cut, encode};
use super::{Action, Claim, ConnectionKey, Phase, Reason, ReasonKind};
use tieline_plugin_api::address_hash;

/// The number of rejections whose texts are kept, for repeated requests.
const MAX_REFUSALS: usize = 64;

impl Machine {
    /// Requests the caller to connect the endpoint, because both addresses are known.
    pub(super) fn bind(&mut self, key: &ConnectionKey, address: Vec<u8>) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.phase = Phase::Binding;
        connection.their_hash = address_hash(&address);
        connection.retry = None;
        self.set_timer(key);
        self.actions.push_back(Action::Bind { key: key.clone(), address });
    }

    /// Makes a connection ready, because both sides are bound.
    pub(super) fn ready(&mut self, key: &ConnectionKey) {
        self.no_longer_early(key);
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.phase = Phase::Ready;
        connection.address = Vec::new();
        connection.heard = None;
        connection.retry = None;
        self.set_timer(key);
        self.counters.ready += 1;
        self.actions.push_back(Action::Ready { key: key.clone() });
    }

    /// Starts sending the message of the phase.
    pub(super) fn say_first(&mut self, now: u64, key: &ConnectionKey) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.interval = self.limits.first_retry;
            connection.sent = 0;
            self.say(now, key);
        }
    }

    /// Sends the message of the phase, and schedules its repetition after the current interval.
    pub(super) fn say(&mut self, now: u64, key: &ConnectionKey) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.retry = Some(now.saturating_add(connection.interval));
        self.set_timer(key);
        self.send_address(key);
    }

    /// Sends REQUEST while the peer's address is not known, and REPLY once the local endpoint is bound.
    pub(super) fn send_address(&mut self, key: &ConnectionKey) {
        let header = self.header(key);
        let Some(connection) = self.connections.get(key) else { return };
        let (identity, address) = (&self.identity[..], &connection.address[..]);
        let body = match connection.phase {
            Phase::Asked => Body::Request { identity, address },
            Phase::Bound => Body::Reply { identity, address, bound_to: connection.their_hash },
            Phase::Making | Phase::Binding | Phase::Ready => return,
        };
        let datagram = encode(&header, &body);
        if let Some(connection) = self.connections.get_mut(key) {
            connection.sent += 1;
        }
        self.actions.push_back(Action::Send { key: key.clone(), datagram });
    }

    pub(super) fn send_ready(&mut self, key: &ConnectionKey) {
        let Some(connection) = self.connections.get(key) else { return };
        let body = Body::Ready { mine: connection.our_hash, yours: connection.their_hash };
        self.send(key, &body);
    }

    pub(super) fn send_reject(&mut self, key: &ConnectionKey, kind: ReasonKind, text: &str) {
        let datagram = self.rejection(key, kind, text);
        self.actions.push_back(Action::Send { key: key.clone(), datagram });
    }

    /// Encodes the message that ends a connection at the peer, too.
    pub(super) fn rejection(
        &mut self,
        key: &ConnectionKey,
        kind: ReasonKind,
        text: &str,
    ) -> Vec<u8> {
        self.counters.rejected += 1;
        if kind == ReasonKind::Rejected {
            self.refusals.push_back((key.clone(), kind, cut(text, 255).to_string()));
            if self.refusals.len() > MAX_REFUSALS {
                let _ = self.refusals.pop_front();
            }
        }
        encode(&self.header(key), &Body::Reject { kind, next: self.next(key), text })
    }

    pub(super) fn send(&mut self, key: &ConnectionKey, body: &Body<'_>) {
        let datagram = encode(&self.header(key), body);
        self.actions.push_back(Action::Send { key: key.clone(), datagram });
    }

    /// Returns the lowest number that would be new on this side.
    pub(super) fn next(&self, key: &ConnectionKey) -> u32 {
        self.highest(&key.peer, &key.module).saturating_add(1)
    }

    pub(super) fn header<'a>(&self, key: &'a ConnectionKey) -> Header<'a> {
        Header {
            from: self.me,
            to: key.peer,
            from_epoch: self.epoch,
            to_epoch: self.peers.get(&key.peer).map_or(0, |peer| peer.epoch),
            module: &key.module,
            n: key.n,
        }
    }

    pub(super) fn time_out(&mut self, now: u64, key: &ConnectionKey) {
        let Some(c) = self.connections.get(key) else { return };
        let waited = seconds(now.saturating_sub(c.began));
        let done = match c.phase {
            Phase::Making => "the local endpoint was not made in time".to_string(),
            Phase::Binding => "the local endpoint was not connected in time".to_string(),
            Phase::Asked => format!("the request was sent {}", times(c.sent)),
            _ => format!("it is bound here, which was reported to the peer {}", times(c.sent)),
        };
        let heard = match &c.heard {
            None => "nothing was heard of the peer".to_string(),
            Some((at, what)) => {
                let what = match what {
                    LastWord::Request => "its request".to_string(),
                    LastWord::Reply => "its reply".to_string(),
                    LastWord::InWork => "that it is making its endpoint".to_string(),
                    LastWord::Busy(text) => format!("that it is busy ({text})"),
                };
                format!("last heard of the peer: {what}, {} ago", seconds(now.saturating_sub(*at)))
            }
        };
        let text = format!("{key} is not ready after {waited}: {done}; {heard}");
        let tell = (ReasonKind::Closed, "the peer gave up waiting");
        self.fail(now, key, ReasonKind::TimedOut, text, Some(tell));
    }

    /// Ends a connection; `tell` is the rejection for the peer, if there is one.
    pub(super) fn fail(
        &mut self,
        _now: u64,
        key: &ConnectionKey,
        kind: ReasonKind,
        text: String,
        tell: Option<(ReasonKind, &str)>,
    ) {
        if let Some((kind, text)) = tell {
            self.send_reject(key, kind, text);
        }
        if self.remove(key).is_some() {
            self.counters.failed += 1;
            let reason = Reason { kind, text };
            self.actions.push_back(Action::Failed { key: key.clone(), reason });
        }
    }

    /// Ends a connection whose peer's side is gone. A claimed, unfinished one continues as an unclaimed connection, or as a new one
    /// with a number that the peer accepts (`next`), up to [`max_renumbered`](super::Limits::max_renumbered) times.
    pub(super) fn start_over(&mut self, now: u64, key: &ConnectionKey, next: u32, why: &str) {
        let Some(c) = self.connections.get(key) else { return };
        let (deadline, began, renumbered) = (c.deadline, c.began, c.renumbered);
        if !c.claimed || c.phase == Phase::Ready || renumbered >= self.limits.max_renumbered {
            let text = match renumbered {
                0 => format!("{key} is closed: {why}"),
                _ => {
                    format!("{key} is closed: {why}; it was restarted {}", times(renumbered.into()))
                }
            };
            return self.fail(now, key, ReasonKind::Closed, text, None);
        }
        let _ = self.remove(key);
        let to = match self.claim(key.peer, &key.module) {
            Some(key) => Ok(Claim::Existing(key)),
            None => self.begin(now, deadline, key.peer, &key.module, next).map(Claim::New),
        };
        match to {
            Ok(to) => {
                self.counters.renumbered += 1;
                self.postpone(to.key(), began, deadline);
                if let Some(connection) = self.connections.get_mut(to.key()) {
                    connection.renumbered = renumbered + 1;
                }
                self.actions.push_back(Action::Renumbered { from: key.clone(), to });
            }
            Err(reason) => {
                self.counters.failed += 1;
                self.actions.push_back(Action::Failed { key: key.clone(), reason });
            }
        }
    }
}

fn times(count: u32) -> String {
    match count {
        1 => "once".to_string(),
        n => format!("{n} times"),
    }
}

fn seconds(ns: u64) -> String {
    format!("{:.1} s", ns as f64 / 1e9)
}
