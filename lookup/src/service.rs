//! Client/server services: one worker listens under a name, and another worker requests the service and is accepted or rejected.
//!
//! Names of services have their own name space. The messages use an existing channel that is reliable and keeps the order, such as
//! the core's message lane. So the state machine repeats no message. [`Services`] is pure: it reads no clock and sends nothing. The
//! caller takes [`ServiceAction`]s out after every call.
//!
//! ```text
//! client                              server
//! ask("store", "I am 7") ── ASK ────> Arrived
//! result: "shelf 3"       <─ ACCEPTED ─ answer("shelf 3")
//! ```

mod message;

use crate::{Error, Status};
use message::{Message, VERSION, encode, parse};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;
use tieline_wireup::{WorkerId, short};

/// The maximum length in bytes of an application's private data in a request or an answer.
const MAX_PRIVATE: usize = 1024;
/// The number of answers that are kept, for repeated requests.
const MAX_ANSWERED: usize = 64;
/// The additional time in ns that a client waits beyond the server's time limit, to receive the server's own error text.
const GRACE: u64 = 5_000_000_000;

/// The bounds of [`Services`] in time and memory. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct ServiceLimits {
    /// The time in nanoseconds until a server refuses a request without an answer.
    pub waiting: u64,
    /// The time in nanoseconds until a client's request times out. [`ServiceLimits::of`] makes this time longer than `waiting`, so
    /// that the server's refusal can arrive first.
    pub asking: u64,
    /// The maximum number of a client's open requests.
    pub max_asking: usize,
}

impl Default for ServiceLimits {
    fn default() -> ServiceLimits {
        ServiceLimits::of(Duration::from_secs(30))
    }
}

impl ServiceLimits {
    /// Returns the limits of a server that answers within this time, and of its clients.
    pub fn of(timeout: Duration) -> ServiceLimits {
        let waiting = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4);
        ServiceLimits { waiting, asking: waiting + GRACE, max_asking: 4096 }
    }
}

/// The answer of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceAnswer {
    /// The server accepted the request, with its private data.
    Accepted(Vec<u8>),
    /// The server rejected the request, with its private data.
    Rejected(Vec<u8>),
}

/// The result of a client's request: the answer, or the reason why there is none.
type Answered = Result<ServiceAnswer, Error>;

/// The identity, on the server, of a request that waits for [`Services::answer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(u64);

/// A request that has arrived at the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The identity of the request.
    pub id: RequestId,
    /// The name of the service that the client requests.
    pub service: String,
    /// The worker that sent the request.
    pub peer: WorkerId,
    /// The client's private data, at most 1 KiB.
    pub private: Vec<u8>,
}

/// A step that [`Services`] requests from its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceAction {
    /// A request to pass a request to the listener of its service, which answers it with [`Services::answer`].
    Arrived(Arrival),
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
/// monotonic clock of the caller. `L` is what the caller keeps for each service that it offers.
#[derive(Debug)]
pub struct Services<L> {
    limits: ServiceLimits,
    listeners: BTreeMap<String, Listener<L>>,
    waiting: BTreeMap<RequestId, Waiting>,
    /// The waiting requests, by client and token.
    known: BTreeMap<(WorkerId, u64), RequestId>,
    answered: VecDeque<((WorkerId, u64), Vec<u8>)>,
    asking: BTreeMap<u64, Asking>,
    /// The requests of this worker whose result the caller has not dropped, by token.
    results: HashMap<u64, Option<Answered>>,
    timers: BTreeSet<(u64, Timer)>,
    actions: VecDeque<ServiceAction>,
    last_id: u64,
    last_token: u64,
}

#[derive(Clone, Debug)]
struct Listener<L> {
    kept: L,
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

impl<L: Clone> Services<L> {
    /// Makes the state of a worker without services or requests.
    pub fn new(limits: ServiceLimits) -> Services<L> {
        Services {
            limits,
            listeners: BTreeMap::new(),
            waiting: BTreeMap::new(),
            known: BTreeMap::new(),
            answered: VecDeque::new(),
            asking: BTreeMap::new(),
            results: HashMap::new(),
            timers: BTreeSet::new(),
            actions: VecDeque::new(),
            last_id: 0,
            last_token: 0,
        }
    }

    /// Accepts requests for `name` at the server, at most `backlog` unanswered ones at a time. A name has 1 to 255 bytes.
    /// [`Services::listener`] returns `kept`.
    ///
    /// # Errors
    /// `Busy` if the worker listens for this service, `Invalid` for an invalid name.
    pub fn listen(&mut self, name: &str, backlog: usize, kept: L) -> Result<(), Error> {
        let no = |status, why| {
            Err(Error::new(status, format!("cannot listen for service `{name}`"), why, ""))
        };
        if let Err(why) = check_name(name) {
            return no(Status::Invalid, why);
        }
        if self.listeners.contains_key(name) {
            return no(Status::Busy, format!("this worker listens for service `{name}` already"));
        }
        let _ = self.listeners.insert(name.to_string(), Listener { kept, backlog, waiting: 0 });
        Ok(())
    }

    /// Returns what [`Services::listen`] got for this service.
    pub fn listener(&self, name: &str) -> Option<L> {
        Some(self.listeners.get(name)?.kept.clone())
    }

    /// Stops accepting requests for `name` at the server, and refuses the waiting ones. The caller drops the result while nothing
    /// of this state is borrowed.
    pub fn unlisten(&mut self, name: &str) -> Option<L> {
        let listener = self.listeners.remove(name)?;
        let all = self.waiting.iter().filter(|(_, w)| w.service == name);
        let ids: Vec<_> = all.map(|(id, _)| *id).collect();
        for id in ids {
            let text = format!("service `{name}` has closed");
            self.refuse_waiting(id, &text);
        }
        Some(listener.kept)
    }

    /// Does the same as [`Services::unlisten`] for every service.
    pub fn unlisten_all(&mut self) -> Vec<L> {
        let names: Vec<String> = self.listeners.keys().cloned().collect();
        names.iter().filter_map(|name| self.unlisten(name)).collect()
    }

    /// Answers a request at the server, with at most 1 KiB of private data.
    ///
    /// # Errors
    /// `TooLarge`: there are more than 1 KiB, and the request still waits for an answer. `TimedOut`: the request has ended.
    pub fn answer(&mut self, to: &Arrival, private: &[u8], accepts: bool) -> Result<(), Error> {
        let service = &to.service;
        check_private(private).map_err(|why| {
            Error::new(Status::TooLarge, format!("an answer of service {service}"), why, "")
        })?;
        let waiting = self.no_longer_waiting(to.id).ok_or_else(|| {
            Error::new(
                Status::TimedOut,
                format!("no client waits for this answer of service {service}"),
                "the client gave up, or is gone",
                "answer within TIELINE_CONNECT_TIMEOUT",
            )
        })?;
        let answer =
            if accepts { Message::Accepted { private } } else { Message::Rejected { private } };
        self.finish(&waiting, &answer);
        Ok(())
    }

    /// Requests `service` from `peer` for a client, with at most 1 KiB of private data. Returns the token of the request.
    ///
    /// # Errors
    /// `Invalid` for an invalid name or too much private data, `Again` while too many requests are open.
    pub fn ask(
        &mut self,
        now: u64,
        peer: WorkerId,
        service: &str,
        private: &[u8],
    ) -> Result<u64, Error> {
        let no = |status, why| {
            Error::new(status, format!("cannot ask for service `{service}`"), why, "")
        };
        check_name(service)
            .and_then(|()| check_private(private))
            .map_err(|why| no(Status::Invalid, why))?;
        let open = self.asking.len();
        if open >= self.limits.max_asking {
            let why = format!("{open} requests for services are open, which is the limit");
            return Err(no(Status::Again, why));
        }
        self.last_token += 1;
        let token = self.last_token;
        let deadline = now.saturating_add(self.limits.asking);
        let asking = Asking { peer, service: service.to_string(), deadline };
        let _ = self.asking.insert(token, asking);
        let _ = self.results.insert(token, None);
        let _ = self.timers.insert((deadline, Timer::Asking(token)));
        self.send(peer, encode(token, &Message::Ask { service, private }));
        Ok(token)
    }

    /// Returns the answer to a request of this worker, or the reason for its end without an answer. Returns `None` while the
    /// request is open, and after [`Services::forget`].
    pub fn result(&self, token: u64) -> Option<Result<ServiceAnswer, Error>> {
        self.results.get(&token)?.clone()
    }

    /// Drops the result of a request of this worker, now or when the request ends.
    pub fn forget(&mut self, token: u64) {
        let _ = self.results.remove(&token);
    }

    /// Handles a message of `peer`, which arrived over the channel between the two workers.
    ///
    /// # Errors
    /// `BadData` for bytes that are no message of services.
    pub fn receive(&mut self, now: u64, peer: WorkerId, bytes: &[u8]) -> Result<(), Status> {
        let (version, token, message) = parse(bytes)?;
        match message {
            Some(Message::Ask { service, private }) => {
                self.asked(now, peer, token, service, private)
            }
            Some(Message::Cancel) => {
                // The listener learns that the client gave up waiting when it answers.
                if let Some(id) = self.known.get(&(peer, token)).copied() {
                    let _ = self.no_longer_waiting(id);
                }
            }
            Some(Message::Accepted { private }) => {
                self.succeeded(peer, token, ServiceAnswer::Accepted(private.to_vec()));
            }
            Some(Message::Rejected { private }) => {
                self.succeeded(peer, token, ServiceAnswer::Rejected(private.to_vec()));
            }
            Some(Message::Refused { text }) => {
                let fix = "see what the server listens for";
                self.failed(peer, token, Status::Unreachable, text, fix);
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
            let _ = self.no_longer_waiting(id);
        }
        self.answered.retain(|((who, _), _)| *who != peer);
        let asking = self.asking.iter().filter(|(_, a)| a.peer == peer);
        let tokens: Vec<_> = asking.map(|(token, _)| *token).collect();
        for token in tokens {
            self.failed(peer, token, Status::PeerFailed, why, "");
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
                    self.send(peer, encode(token, &Message::Cancel));
                    let (why, fix) =
                        ("no answer came in time", "see that the server makes progress");
                    self.failed(peer, token, Status::TimedOut, why, fix);
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
    fn open(&self) -> (usize, usize) {
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
        let arrival = Arrival { id, service, peer, private };
        self.actions.push_back(ServiceAction::Arrived(arrival));
    }

    fn refuse_waiting(&mut self, id: RequestId, text: &str) {
        if let Some(waiting) = self.no_longer_waiting(id) {
            self.finish(&waiting, &Message::Refused { text });
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

    fn succeeded(&mut self, peer: WorkerId, token: u64, answer: ServiceAnswer) {
        if self.no_longer_asking(peer, token).is_some() {
            self.ended(token, Ok(answer));
        }
    }

    fn failed(&mut self, peer: WorkerId, token: u64, status: Status, why: &str, fix: &str) {
        let Some(asking) = self.no_longer_asking(peer, token) else { return };
        let why = format!("service `{}` of worker {}: {why}", asking.service, short(&peer));
        self.ended(token, Err(Error::new(status, "the service gave no answer", why, fix)));
    }

    fn ended(&mut self, token: u64, result: Answered) {
        if let Some(open) = self.results.get_mut(&token) {
            *open = Some(result);
        }
    }

    fn send(&mut self, peer: WorkerId, message: Vec<u8>) {
        self.actions.push_back(ServiceAction::Send { peer, message, answers: false });
    }

    fn reply(&mut self, peer: WorkerId, message: Vec<u8>) {
        self.actions.push_back(ServiceAction::Send { peer, message, answers: true });
    }
}

fn check_name(name: &str) -> Result<(), String> {
    if (1..=255).contains(&name.len()) {
        return Ok(());
    }
    Err(format!("a service's name has 1 to 255 bytes, this one {}", name.len()))
}

fn check_private(private: &[u8]) -> Result<(), String> {
    if private.len() <= MAX_PRIVATE {
        return Ok(());
    }
    Err(format!("{} bytes of private data; at most {MAX_PRIVATE} are allowed", private.len()))
}

#[cfg(test)]
mod parser_tests;
#[cfg(test)]
mod tests;
