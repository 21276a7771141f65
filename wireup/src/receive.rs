//! The machine's processing of received datagrams, which are untrusted.

use super::machine::{Connection, LastWord, Machine};
use super::message::{Body, Header, Malformed, Parsed, VERSION, encode, parse};
use super::tables::WINDOW;
use super::{Action, ConnectionKey, Phase, ReasonKind, WorkerId, short};
use tieline_plugin_api::address_hash;

impl Machine {
    /// Handles a received datagram. A datagram that is malformed or addressed to another worker changes no connection.
    pub fn receive(&mut self, now: u64, bytes: &[u8]) -> Result<(), Malformed> {
        match parse(bytes) {
            Ok(Parsed::Message(header, body)) => self.message(now, &header, &body),
            Ok(Parsed::OtherRequest { version, header, identity }) => {
                let text = format!(
                    "this side speaks version {VERSION} of the wire-up, the request came in version {version}"
                );
                self.answer(&header, identity, ReasonKind::Version, &text);
            }
            Ok(Parsed::OtherReject { version, header, text }) => {
                let text = format!(
                    "the peer speaks version {version} of the wire-up, this side version {VERSION}: {text}"
                );
                self.rejected_in_other_version(now, &header, &text);
            }
            Ok(Parsed::Other { .. }) => self.counters.stale += 1,
            Err(malformed) => {
                self.counters.malformed += 1;
                return Err(malformed);
            }
        }
        Ok(())
    }

    fn message(&mut self, now: u64, header: &Header<'_>, body: &Body<'_>) {
        // The sender of an address repeats the message until there is an answer, and the answer is sent to the message's identity.
        let sender = match body {
            Body::Request { identity, .. } | Body::Reply { identity, .. } => Some(*identity),
            Body::Ready { .. } | Body::Reject { .. } | Body::Duplicate { .. } => None,
        };
        if header.to != self.me {
            self.counters.stale += 1;
            if let Some(identity) = sender {
                let text = format!(
                    "this address belongs to worker {}, not to worker {}",
                    short(&self.me),
                    short(&header.to)
                );
                self.answer(header, identity, ReasonKind::NoSuchWorker, &text);
            }
            return;
        }
        if header.from == self.me {
            self.counters.stale += 1;
            return;
        }
        if header.to_epoch != 0 && header.to_epoch != self.epoch {
            self.counters.stale += 1;
            if let Some(identity) = sender {
                // The local epoch in the answer reports the current epoch to the sender.
                self.answer(
                    header,
                    identity,
                    ReasonKind::Closed,
                    "the message is for another life of this worker",
                );
            }
            return;
        }
        if header.from_epoch != 0 && !self.same_life(now, header, sender) {
            return;
        }
        let key = ConnectionKey { peer: header.from, module: header.module.into(), n: header.n };
        match *body {
            Body::Request { identity, address } => {
                self.request(now, header, &key, identity, address)
            }
            Body::Reply { identity, address, bound_to } => {
                self.reply(now, header, &key, identity, address, bound_to);
            }
            Body::Ready { mine, yours } => self.readiness(&key, mine, yours),
            Body::Reject { kind, next, text } => self.reject(now, &key, kind, next, text),
            Body::Duplicate { ready } => self.duplicate(now, &key, ready),
        }
    }

    /// Checks that a message is not of an older epoch than the known one of its sender. A message of a newer epoch makes that epoch
    /// the known one.
    fn same_life(&mut self, now: u64, header: &Header<'_>, sender: Option<&[u8]>) -> bool {
        let known = self.peers.get(&header.from).map_or(0, |peer| peer.epoch);
        if header.from_epoch < known {
            self.counters.stale += 1;
            if let Some(identity) = sender {
                let text = "a later life of the requesting worker is known here";
                self.answer(header, identity, ReasonKind::Outlived, text);
            }
            return false;
        }
        if header.from_epoch > known {
            if let Some(peer) = self.peers.get_mut(&header.from) {
                peer.epoch = header.from_epoch;
            }
            if known != 0 {
                self.end_of_life(now, &header.from);
            }
        }
        true
    }

    /// Handles a restart of the peer: connections of its older epoch end, or continue under a new number. Claimed connections
    /// without any message stay.
    fn end_of_life(&mut self, now: u64, peer: &WorkerId) {
        let first = ConnectionKey { peer: *peer, module: "".into(), n: 0 };
        let all = self.connections.range(first..).take_while(|(key, _)| key.peer == *peer);
        // The unclaimed connections end first, so that a connection that starts over cannot claim one of them.
        let mut keys: Vec<_> = all.map(|(key, c)| (c.claimed, key.clone())).collect();
        keys.sort();
        for (_, key) in keys {
            let Some(c) = self.connections.get(&key) else { continue };
            // No message of this connection was sent or received.
            let untold = c.phase == Phase::Making && c.claimed && c.theirs.is_none();
            if !untold {
                self.start_over(now, &key, 0, "the peer restarted");
            }
        }
    }

    fn request(
        &mut self,
        now: u64,
        header: &Header<'_>,
        key: &ConnectionKey,
        identity: &[u8],
        address: &[u8],
    ) {
        self.counters.requests += 1;
        let hash = address_hash(address);
        let Some(c) = self.connections.get_mut(key) else {
            return self.request_for_none(now, header, key, identity, address);
        };
        c.heard = Some((now, LastWord::Request));
        c.losses = 0;
        match c.phase {
            Phase::Making if c.theirs.is_none() => c.theirs = Some(address.to_vec()),
            Phase::Making if c.theirs.as_deref() == Some(address) => {
                self.repeat(key, Body::Duplicate { ready: false });
            }
            Phase::Asked => self.bind(key, address.to_vec()),
            Phase::Binding if c.their_hash == hash => {
                self.repeat(key, Body::Duplicate { ready: false });
            }
            Phase::Bound if c.their_hash == hash => {
                self.counters.duplicates += 1;
                self.send_address(key);
            }
            Phase::Ready if c.their_hash == hash => {
                self.repeat(key, Body::Duplicate { ready: true });
            }
            Phase::Making | Phase::Binding | Phase::Bound | Phase::Ready => {
                self.counters.stale += 1;
                self.answer(
                    header,
                    identity,
                    ReasonKind::Closed,
                    "another endpoint has this number",
                );
            }
        }
    }

    /// Handles a request for an unknown connection: it is new, has ended, or exceeds a limit.
    fn request_for_none(
        &mut self,
        now: u64,
        header: &Header<'_>,
        key: &ConnectionKey,
        identity: &[u8],
        address: &[u8],
    ) {
        let peer = self.peers.get(&key.peer);
        let pair = peer.and_then(|peer| peer.pairs.get(&key.module));
        if pair.is_some_and(|pair| pair.used.contains(key.n)) {
            return self.answer_gone(header, key, identity);
        }
        let limits = &self.limits;
        let busy = if peer.is_some_and(|peer| peer.early >= limits.max_unfinished_per_peer) {
            Some(format!(
                "{} connections with this peer are forming",
                limits.max_unfinished_per_peer
            ))
        } else if self.early >= limits.max_early {
            Some(format!(
                "{} connections are forming that this side has not requested",
                limits.max_early
            ))
        } else if self.connections.len() >= limits.max_connections {
            Some(format!("all {} connections are taken", limits.max_connections))
        } else {
            None
        };
        if let Some(text) = busy {
            self.counters.busy += 1;
            return self.answer(header, identity, ReasonKind::Busy, &text);
        }
        let highest = self.highest(&key.peer, &key.module).max(self.floor);
        if key.n > highest.saturating_add(WINDOW) {
            let text =
                format!("number {} is too far from {highest}, the highest known here", key.n);
            return self.answer(header, identity, ReasonKind::Rejected, &text);
        }
        let deadline = now.saturating_add(self.limits.deadline);
        let mut connection = Connection::new(now, deadline, self.limits.first_retry);
        connection.early = true;
        connection.theirs = Some(address.to_vec());
        connection.heard = Some((now, LastWord::Request));
        self.insert(key.clone(), connection);
        if let Some(peer) = self.peers.get_mut(&key.peer) {
            peer.epoch = header.from_epoch;
        }
        self.actions.push_back(Action::Create { key: key.clone(), identity: identity.to_vec() });
    }

    fn reply(
        &mut self,
        now: u64,
        header: &Header<'_>,
        key: &ConnectionKey,
        identity: &[u8],
        address: &[u8],
        bound_to: u64,
    ) {
        let Some(c) = self.connections.get_mut(key) else {
            return self.answer_gone(header, key, identity);
        };
        let ours = c.phase != Phase::Making && bound_to == c.our_hash;
        if !ours || (c.phase != Phase::Asked && address_hash(address) != c.their_hash) {
            self.counters.stale += 1;
            let text = "the reply is bound to an endpoint that is gone";
            return self.answer(header, identity, ReasonKind::Closed, text);
        }
        c.heard = Some((now, LastWord::Reply));
        c.losses = 0;
        match c.phase {
            Phase::Asked => {
                c.peer_bound = true;
                self.bind(key, address.to_vec());
            }
            Phase::Making | Phase::Binding => c.peer_bound = true,
            Phase::Bound => {
                self.ready(key);
                self.send_ready(key);
            }
            Phase::Ready => {
                c.heard = None;
                self.counters.duplicates += 1;
                self.send_ready(key);
            }
        }
    }

    fn readiness(&mut self, key: &ConnectionKey, mine: u64, yours: u64) {
        let connection = self.connections.get(key);
        let phase =
            connection.filter(|c| c.our_hash == yours && c.their_hash == mine).map(|c| c.phase);
        match phase {
            Some(Phase::Bound) => self.ready(key),
            Some(Phase::Ready) => self.counters.duplicates += 1,
            Some(Phase::Making | Phase::Asked | Phase::Binding) | None => self.counters.stale += 1,
        }
    }

    fn duplicate(&mut self, now: u64, key: &ConnectionKey, ready: bool) {
        let last_retry = self.limits.last_retry;
        match self.connections.get_mut(key) {
            Some(c) if c.phase == Phase::Asked && !ready => {
                c.heard = Some((now, LastWord::InWork));
                c.losses = 0;
                c.interval = last_retry;
            }
            _ => self.counters.stale += 1,
        }
    }

    fn reject(&mut self, now: u64, key: &ConnectionKey, kind: ReasonKind, next: u32, text: &str) {
        let phase = self.phase(key);
        let Some(c) = self.connections.get_mut(key).filter(|c| c.phase != Phase::Ready) else {
            // The endpoint of a ready connection reports the end itself, after the connection's data.
            self.counters.stale += 1;
            return;
        };
        match kind {
            ReasonKind::Busy => {
                if phase == Some(Phase::Asked) {
                    c.heard = Some((now, LastWord::Busy(text.to_string())));
                    c.losses = 0;
                }
            }
            ReasonKind::Closed => self.start_over(now, key, next, text),
            _ => {
                let text = format!("{key} was rejected by the peer: {text}");
                self.fail(now, key, kind, text, None);
            }
        }
    }

    fn rejected_in_other_version(&mut self, now: u64, header: &Header<'_>, text: &str) {
        let key = ConnectionKey { peer: header.from, module: header.module.into(), n: header.n };
        let ours = header.to == self.me && header.to_epoch == self.epoch;
        if ours && self.phase(&key) == Some(Phase::Asked) {
            self.fail(now, &key, ReasonKind::Version, format!("{key}: {text}"), None);
        } else {
            self.counters.stale += 1;
        }
    }

    /// Answers a message without new information.
    fn repeat(&mut self, key: &ConnectionKey, body: Body<'_>) {
        self.counters.duplicates += 1;
        self.send(key, &body);
    }

    /// Rejects a message for a connection that has ended on this side, with the text of that end if it is still kept.
    fn answer_gone(&mut self, header: &Header<'_>, key: &ConnectionKey, identity: &[u8]) {
        self.counters.stale += 1;
        match self.refusals.iter().find(|(refused, ..)| refused == key).cloned() {
            Some((_, kind, text)) => self.answer(header, identity, kind, &text),
            None => {
                let text = "the connection of this number has ended";
                self.answer(header, identity, ReasonKind::Closed, text);
            }
        }
    }

    /// Rejects a message without keeping state.
    fn answer(&mut self, header: &Header<'_>, identity: &[u8], kind: ReasonKind, text: &str) {
        self.counters.rejected += 1;
        let stranger = header.to != self.me;
        let next = self.highest(&header.from, header.module).saturating_add(1);
        let back = Header {
            from: header.to,
            to: header.from,
            from_epoch: if stranger { 0 } else { self.epoch },
            to_epoch: header.from_epoch,
            module: header.module,
            n: header.n,
        };
        let datagram = encode(&back, &Body::Reject { kind, next, text });
        self.actions.push_back(Action::Answer { identity: identity.to_vec(), datagram });
    }
}
