//! Client/server services: one worker listens under a name, and another worker requests the service and is accepted or rejected.
//!
//! Names of services have their own name space, which is independent of the numbers of connections between peers. The messages use
//! an existing channel that is reliable and keeps the order, such as the core's message lane. So no message is repeated.
//! [`Services`] is pure, like [`crate::Machine`].
//!
//! ```text
//! client                              server
//! ask("store", "I am 7") ── ASK ────> Arrived { id, .. }
//! Accepted { "shelf 3" } <─ ACCEPTED ─ accept(id, "shelf 3")
//! ```

use super::message::cut;
use super::{Malformed, Reason, ReasonKind, WorkerId, short};
use crate::wire::{Reader, Writer};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The maximum length in bytes of an application's private data in a request or an answer.
pub(crate) const MAX_PRIVATE: usize = 1024;
const MAGIC: [u8; 2] = *b"TS";
const VERSION: u8 = 1;
/// The number of answers that are kept, for repeated requests.
const MAX_ANSWERED: usize = 64;

/// The bounds of [`Services`] in time and memory. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct ServiceLimits {
    /// The time in nanoseconds until a server refuses a request without an answer.
    pub waiting: u64,
    /// The time in nanoseconds until a client's request times out. This time is longer than `waiting`, so that the server's refusal
    /// arrives first.
    pub asking: u64,
    /// The maximum number of a client's open requests.
    pub max_asking: usize,
}

impl Default for ServiceLimits {
    fn default() -> ServiceLimits {
        const S: u64 = 1_000_000_000;
        ServiceLimits { waiting: 30 * S, asking: 35 * S, max_asking: 4096 }
    }
}

/// The identity, on the server, of a request that waits for [`Services::accept`] or [`Services::reject`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(u64);

/// A step that [`Services`] requests from its caller, or an event for the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceAction {
    /// The arrival of a request at the server, which answers it with [`Services::accept`] or [`Services::reject`].
    Arrived {
        /// The identity of the request.
        id: RequestId,
        /// The name of the service that the client requests.
        service: String,
        /// The worker that sent the request.
        peer: WorkerId,
        /// The client's private data, at most 1 KiB.
        private: Vec<u8>,
    },
    /// The end of a request at the server before it was answered.
    Withdrawn {
        /// The identity of the request, which has ended.
        id: RequestId,
        /// The reason as text.
        text: String,
    },
    /// The report to the client that the server has accepted the request.
    Accepted {
        /// The token of the request, as returned by [`Services::ask`].
        token: u64,
        /// The server's private data, at most 1 KiB.
        private: Vec<u8>,
    },
    /// The report to the client that the server's application has rejected the request.
    Rejected {
        /// The token of the request, as returned by [`Services::ask`].
        token: u64,
        /// The server's private data, at most 1 KiB.
        private: Vec<u8>,
    },
    /// The report to the client that the request ended without an answer from the server's application.
    Failed {
        /// The token of the request, as returned by [`Services::ask`].
        token: u64,
        /// The reason, as a kind and as text.
        reason: Reason,
    },
    /// A request to send a message over the channel to a peer.
    Send {
        /// The worker to which the message is sent.
        peer: WorkerId,
        /// The bytes of the message.
        message: Vec<u8>,
        /// Whether the message answers a request of the peer; otherwise it belongs to a request of this worker.
        answers: bool,
    },
}

/// The services of one worker, and its requests for services of others. Every `now` is a time in nanoseconds on one
/// monotonic clock of the caller.
#[derive(Clone, Debug)]
pub struct Services {
    limits: ServiceLimits,
    listeners: BTreeMap<String, Listener>,
    waiting: BTreeMap<RequestId, Waiting>,
    /// The waiting requests, by client and token.
    known: BTreeMap<(WorkerId, u64), RequestId>,
    answered: VecDeque<((WorkerId, u64), Vec<u8>)>,
    asking: BTreeMap<u64, Asking>,
    timers: BTreeSet<(u64, Timer)>,
    actions: VecDeque<ServiceAction>,
    last_id: u64,
    last_token: u64,
}

#[derive(Clone, Debug)]
struct Listener {
    backlog: usize,
    waiting: usize,
}

#[derive(Clone, Debug)]
struct Waiting {
    peer: WorkerId,
    token: u64,
    service: String,
    deadline: u64,
}

#[derive(Clone, Debug)]
struct Asking {
    peer: WorkerId,
    service: String,
    deadline: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Waiting(RequestId),
    Asking(u64),
}

impl Services {
    /// Makes the state of a worker without services or requests.
    pub fn new(limits: ServiceLimits) -> Services {
        Services {
            limits,
            listeners: BTreeMap::new(),
            waiting: BTreeMap::new(),
            known: BTreeMap::new(),
            answered: VecDeque::new(),
            asking: BTreeMap::new(),
            timers: BTreeSet::new(),
            actions: VecDeque::new(),
            last_id: 0,
            last_token: 0,
        }
    }

    /// Accepts requests for `name` at the server, at most `backlog` unanswered ones at a time. A name has 1 to 255 bytes.
    pub fn listen(&mut self, name: &str, backlog: usize) -> Result<(), Reason> {
        check_name(name)?;
        if self.listeners.contains_key(name) {
            let text = format!("this worker listens for service `{name}` already");
            return Err(Reason::new(ReasonKind::Local, text));
        }
        let _ = self.listeners.insert(name.to_string(), Listener { backlog, waiting: 0 });
        Ok(())
    }

    /// Stops accepting requests for `name` at the server, and refuses the waiting ones.
    pub fn unlisten(&mut self, name: &str) {
        if self.listeners.remove(name).is_none() {
            return;
        }
        let all = self.waiting.iter().filter(|(_, w)| w.service == name);
        let ids: Vec<_> = all.map(|(id, _)| *id).collect();
        for id in ids {
            let text = format!("service `{name}` has closed");
            self.refuse_waiting(id, &text);
        }
    }

    /// Accepts a request at the server, with at most 1 KiB of private data. `false`: the request has ended.
    pub fn accept(&mut self, id: RequestId, private: &[u8]) -> Result<bool, Reason> {
        self.answer(id, private, true)
    }

    /// Rejects a request at the server, with at most 1 KiB of private data. `false`: the request has ended.
    pub fn reject(&mut self, id: RequestId, private: &[u8]) -> Result<bool, Reason> {
        self.answer(id, private, false)
    }

    /// Requests `service` from `peer` for a client, with at most 1 KiB of private data. Returns a token, which the actions that end
    /// the request contain.
    pub fn ask(
        &mut self,
        now: u64,
        peer: WorkerId,
        service: &str,
        private: &[u8],
    ) -> Result<u64, Reason> {
        check_name(service)?;
        check_private(private)?;
        if self.asking.len() >= self.limits.max_asking {
            let text =
                format!("{} requests for services are open, which is the limit", self.asking.len());
            return Err(Reason::new(ReasonKind::Busy, text));
        }
        self.last_token += 1;
        let token = self.last_token;
        let deadline = now.saturating_add(self.limits.asking);
        let asking = Asking { peer, service: service.to_string(), deadline };
        let _ = self.asking.insert(token, asking);
        let _ = self.timers.insert((deadline, Timer::Asking(token)));
        self.send(peer, encode(token, &Message::Ask { service, private }));
        Ok(token)
    }

    /// Handles a message of `peer`, which arrived over the channel between the two workers.
    pub fn receive(&mut self, now: u64, peer: WorkerId, bytes: &[u8]) -> Result<(), Malformed> {
        let (version, token, message) = parse(bytes)?;
        match message {
            Some(Message::Ask { service, private }) => {
                self.asked(now, peer, token, service, private)
            }
            Some(Message::Cancel) => {
                if let Some(id) = self.known.get(&(peer, token)).copied() {
                    self.withdraw(id, "the client gave up waiting");
                }
            }
            Some(Message::Accepted { private }) => {
                if self.no_longer_asking(peer, token).is_some() {
                    let private = private.to_vec();
                    self.actions.push_back(ServiceAction::Accepted { token, private });
                }
            }
            Some(Message::Rejected { private }) => {
                if self.no_longer_asking(peer, token).is_some() {
                    let private = private.to_vec();
                    self.actions.push_back(ServiceAction::Rejected { token, private });
                }
            }
            Some(Message::Refused { text }) => {
                if let Some(asking) = self.no_longer_asking(peer, token) {
                    self.failed(token, &asking, ReasonKind::Rejected, text);
                }
            }
            None => {
                let text = format!(
                    "this side speaks version {VERSION} of services, the request came in version {version}"
                );
                self.reply(peer, encode(token, &Message::Refused { text: &text }));
            }
        }
        Ok(())
    }

    /// Ends the requests in both directions, because the channel to `peer` has ended, for the reason `why`.
    pub fn peer_lost(&mut self, peer: WorkerId, why: &str) {
        let waiting = self.waiting.iter().filter(|(_, w)| w.peer == peer);
        let ids: Vec<_> = waiting.map(|(id, _)| *id).collect();
        for id in ids {
            self.withdraw(id, why);
        }
        self.answered.retain(|((who, _), _)| *who != peer);
        let asking = self.asking.iter().filter(|(_, a)| a.peer == peer);
        let tokens: Vec<_> = asking.map(|(token, _)| *token).collect();
        for token in tokens {
            if let Some(asking) = self.no_longer_asking(peer, token) {
                self.failed(token, &asking, ReasonKind::Transport, why);
            }
        }
    }

    /// Ends requests that are due by `now`.
    pub fn tick(&mut self, now: u64) {
        while let Some((at, timer)) = self.timers.first().copied() {
            if at > now {
                return;
            }
            let _ = self.timers.remove(&(at, timer));
            match timer {
                Timer::Waiting(id) => {
                    self.refuse_waiting(id, "the server did not answer in time");
                }
                Timer::Asking(token) => {
                    let Some(peer) = self.asking.get(&token).map(|asking| asking.peer) else {
                        continue;
                    };
                    if let Some(asking) = self.no_longer_asking(peer, token) {
                        self.send(peer, encode(token, &Message::Cancel));
                        self.failed(token, &asking, ReasonKind::TimedOut, "no answer came in time");
                    }
                }
            }
        }
    }

    /// Returns the time at which [`Services::tick`] next has work; `None` if no request is open.
    #[inline]
    pub fn next_timer(&self) -> Option<u64> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Returns the next action. The caller takes and executes all actions, in this order, after every call.
    #[inline]
    pub fn take_action(&mut self) -> Option<ServiceAction> {
        self.actions.pop_front()
    }

    /// Returns the number of waiting requests of peers, and of open requests of this worker.
    #[cfg(test)]
    pub(crate) fn open(&self) -> (usize, usize) {
        (self.waiting.len(), self.asking.len())
    }

    fn asked(&mut self, now: u64, peer: WorkerId, token: u64, service: &str, private: &[u8]) {
        let name = (peer, token);
        if self.known.contains_key(&name) {
            return;
        }
        if let Some((_, answer)) = self.answered.iter().find(|(who, _)| *who == name) {
            let answer = answer.clone();
            return self.reply(peer, answer);
        }
        let refusal = match self.listeners.get_mut(service) {
            None => Some(format!("nobody listens for service `{service}`")),
            Some(listener) if listener.waiting >= listener.backlog => {
                Some(format!("{} requests wait for service `{service}` already", listener.waiting))
            }
            Some(listener) => {
                listener.waiting += 1;
                None
            }
        };
        if let Some(text) = refusal {
            return self.reply(peer, encode(token, &Message::Refused { text: &text }));
        }
        self.last_id += 1;
        let id = RequestId(self.last_id);
        let deadline = now.saturating_add(self.limits.waiting);
        let waiting = Waiting { peer, token, service: service.to_string(), deadline };
        let _ = self.waiting.insert(id, waiting);
        let _ = self.known.insert(name, id);
        let _ = self.timers.insert((deadline, Timer::Waiting(id)));
        let (service, private) = (service.to_string(), private.to_vec());
        self.actions.push_back(ServiceAction::Arrived { id, service, peer, private });
    }

    fn answer(&mut self, id: RequestId, private: &[u8], yes: bool) -> Result<bool, Reason> {
        check_private(private)?;
        let Some(waiting) = self.no_longer_waiting(id) else { return Ok(false) };
        let answer =
            if yes { Message::Accepted { private } } else { Message::Rejected { private } };
        self.finish(&waiting, &answer);
        Ok(true)
    }

    fn refuse_waiting(&mut self, id: RequestId, text: &str) {
        if let Some(waiting) = self.no_longer_waiting(id) {
            self.finish(&waiting, &Message::Refused { text });
            self.actions.push_back(ServiceAction::Withdrawn { id, text: text.to_string() });
        }
    }

    fn withdraw(&mut self, id: RequestId, text: &str) {
        if self.no_longer_waiting(id).is_some() {
            self.actions.push_back(ServiceAction::Withdrawn { id, text: text.to_string() });
        }
    }

    fn finish(&mut self, waiting: &Waiting, answer: &Message<'_>) {
        let message = encode(waiting.token, answer);
        self.answered.push_back(((waiting.peer, waiting.token), message.clone()));
        if self.answered.len() > MAX_ANSWERED {
            let _ = self.answered.pop_front();
        }
        self.reply(waiting.peer, message);
    }

    fn no_longer_waiting(&mut self, id: RequestId) -> Option<Waiting> {
        let waiting = self.waiting.remove(&id)?;
        let _ = self.known.remove(&(waiting.peer, waiting.token));
        let _ = self.timers.remove(&(waiting.deadline, Timer::Waiting(id)));
        if let Some(listener) = self.listeners.get_mut(&waiting.service) {
            listener.waiting -= 1;
        }
        Some(waiting)
    }

    fn no_longer_asking(&mut self, peer: WorkerId, token: u64) -> Option<Asking> {
        if self.asking.get(&token)?.peer != peer {
            return None;
        }
        let asking = self.asking.remove(&token)?;
        let _ = self.timers.remove(&(asking.deadline, Timer::Asking(token)));
        Some(asking)
    }

    fn failed(&mut self, token: u64, asking: &Asking, kind: ReasonKind, why: &str) {
        let text = format!("service `{}` of worker {}: {why}", asking.service, short(&asking.peer));
        self.actions.push_back(ServiceAction::Failed { token, reason: Reason { kind, text } });
    }

    fn send(&mut self, peer: WorkerId, message: Vec<u8>) {
        self.actions.push_back(ServiceAction::Send { peer, message, answers: false });
    }

    fn reply(&mut self, peer: WorkerId, message: Vec<u8>) {
        self.actions.push_back(ServiceAction::Send { peer, message, answers: true });
    }
}

fn check_name(name: &str) -> Result<(), Reason> {
    if (1..=255).contains(&name.len()) {
        return Ok(());
    }
    let text = format!("a service's name has 1 to 255 bytes, this one {}", name.len());
    Err(Reason::new(ReasonKind::Local, text))
}

fn check_private(private: &[u8]) -> Result<(), Reason> {
    if private.len() <= MAX_PRIVATE {
        return Ok(());
    }
    let text =
        format!("{} bytes of private data; at most {MAX_PRIVATE} are allowed", private.len());
    Err(Reason::new(ReasonKind::Local, text))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message<'a> {
    Ask {
        service: &'a str,
        private: &'a [u8],
    },
    Accepted {
        private: &'a [u8],
    },
    Rejected {
        private: &'a [u8],
    },
    Refused {
        text: &'a str,
    },
    /// The message by which a client stops waiting.
    Cancel,
}

pub(super) fn encode(token: u64, message: &Message<'_>) -> Vec<u8> {
    let mut out = Writer::default();
    let _ = out.raw(&MAGIC).u8(VERSION);
    // Private data has at most MAX_PRIVATE bytes, which fits its length field.
    let _ = match *message {
        Message::Ask { service, private } => {
            out.u8(1).u64(token).name(service).u16(private.len() as u16).raw(private)
        }
        Message::Accepted { private } => {
            out.u8(2).u64(token).u16(private.len() as u16).raw(private)
        }
        Message::Rejected { private } => {
            out.u8(3).u64(token).u16(private.len() as u16).raw(private)
        }
        Message::Refused { text } => out.u8(4).u64(token).name(cut(text, 255)),
        Message::Cancel => out.u8(5).u64(token),
    };
    out.bytes
}

/// Returns version, token and message; there is no message for an ASK in another version.
pub(super) fn parse(bytes: &[u8]) -> Result<(u8, u64, Option<Message<'_>>), Malformed> {
    let mut reader = Reader::new(bytes);
    if reader.bytes(2)? != MAGIC {
        return Err(Malformed("they do not begin with `TS`"));
    }
    let (version, kind, token) = (reader.u8()?, reader.u8()?, reader.u64()?);
    // An ASK and a refusal can be read in every version, so that workers of two versions do not answer each other endlessly.
    if version != VERSION && kind == 1 {
        return Ok((version, token, None));
    }
    if version != VERSION && kind != 4 {
        return Err(Malformed("an answer in a version other than that of the request"));
    }
    let message = match kind {
        1 => Message::Ask { service: reader.name()?, private: private(&mut reader)? },
        2 => Message::Accepted { private: private(&mut reader)? },
        3 => Message::Rejected { private: private(&mut reader)? },
        4 => Message::Refused { text: reader.name()? },
        5 => Message::Cancel,
        _ => return Err(Malformed("there is no service message of this kind")),
    };
    if version == VERSION && !reader.rest().is_empty() {
        return Err(Malformed("something follows the message"));
    }
    Ok((version, token, Some(message)))
}

fn private<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Malformed> {
    let bytes = reader.blob()?;
    if bytes.len() > MAX_PRIVATE {
        return Err(Malformed("more than 1 KiB of private data"));
    }
    Ok(bytes)
}
