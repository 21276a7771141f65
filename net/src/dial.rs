//! An outgoing connection that never blocks: connect, handshake, and the next route if one fails.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use crate::auth::{Dialler, Hello, Key, Refusal};
use crate::routes::Route;
use crate::sys::{self, Interest, Poller, Timer};

/// The time limit of a connect, and of the retries of a route, while other routes remain. Three seconds are two lost SYNs.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// The mean of the first pause before a route is retried, and of the longest. A pause is random, from half of its mean to one and a
/// half.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(80));

/// The advice for unanswered packets. Without a firewall, a running host answers packets to a closed port with a refusal.
const FIREWALL: &str = " (a firewall that drops what comes to that port, or the host is down: open the port there, or choose by \
                        TIELINE_TCP_PORTS ports that are open)";

/// The advice for a rejection. Its common causes are a firewall, or a host that is down and does not answer its neighbours.
const REJECTED: &str = " (the host is down, or a firewall there rejects what comes to that port: open the port there, or choose by \
                        TIELINE_TCP_PORTS ports that are open)";

/// The state of a [`Dial`].
#[derive(Debug)]
pub enum Progress {
    /// The dial is in progress: wait for [`Dial::fd`], but no longer than until [`Dial::timeout`].
    Waiting,
    /// The dial is connected, and both sides have proven themselves. The stream is non-blocking.
    Done(TcpStream),
    /// No route succeeded. The text has every route with the reason for its failure.
    Failed(String),
}

/// A connection attempt. Dropping it abandons the attempt.
#[derive(Debug)]
pub struct Dial {
    routes: std::vec::IntoIter<Route>,
    key: Key,
    hello: Hello,
    deadline: Instant,
    current: Option<Attempt>,
    /// The route of the current attempt.
    route: Option<Route>,
    /// The number of retries of the route after its listener closed without an answer, and the time of the first such close.
    closed: (u32, Option<Instant>),
    /// The time of the next retry of the route.
    pause: Option<(Timer, Instant)>,
    attempts: u32,
    failures: Vec<String>,
    refusals: usize,
    wrong_secrets: usize,
    /// Whether a listener has another version.
    other_version: bool,
    /// Whether a listener had no room.
    busy: bool,
    /// The number of routes that this side could not start for lack of an address or a network: they say nothing about the peer.
    unusable: usize,
    /// The number of routes without an answer, or on which the host was reported as unreachable.
    unanswered: usize,
    /// The number of routes for which no time was left.
    untried: usize,
    /// The index of the failure that gets advice about firewalls, and the text. The failure is that of the last route without any
    /// answer, or else of the last route that was rejected.
    advice: Option<(usize, &'static str)>,
    /// Whether the descriptor limit of this process or of the system prevented opening a socket.
    starved: bool,
}

#[derive(Debug)]
struct Attempt {
    stream: TcpStream,
    dialler: Dialler,
    connected: bool,
    until: Instant,
    what: String,
    /// Whether the host reported that no process listens, or the listener reported that there is no such target.
    refused: bool,
    /// Whether the route got no answer, not even a refusal.
    unanswered: bool,
    /// Whether this host, or one on the route, reports that the destination host is unreachable.
    rejected: bool,
    /// Whether the listener reported a wrong proof.
    wrong_secret: bool,
    /// Whether the listener has another version.
    other_version: bool,
    /// Whether the listener reported that it has no room.
    busy: bool,
    /// Whether the listener closed or reset the connection without an answer.
    turned_away: bool,
}

impl Dial {
    /// Starts to connect over the first route. The handshake begins with [`Dial::advance`].
    #[must_use]
    pub fn start(routes: Vec<Route>, key: Key, hello: Hello, deadline: Instant) -> Dial {
        let mut dial = Dial {
            routes: routes.into_iter(),
            key,
            hello,
            deadline,
            current: None,
            route: None,
            closed: (0, None),
            pause: None,
            attempts: 0,
            failures: Vec::new(),
            refusals: 0,
            wrong_secrets: 0,
            other_version: false,
            busy: false,
            unusable: 0,
            unanswered: 0,
            untried: 0,
            advice: None,
            starved: false,
        };
        dial.next_route(Instant::now());
        dial
    }

    /// Returns the socket of the current attempt, or a timer between two attempts. The descriptor changes after each failure: watch
    /// it again when [`Dial::attempt`] has changed. Returns `None` if [`Dial::advance`] must be called immediately.
    #[must_use]
    pub fn fd(&self) -> Option<RawFd> {
        if let Some((timer, _)) = &self.pause {
            return Some(timer.as_fd().as_raw_fd());
        }
        self.current.as_ref().map(|attempt| attempt.stream.as_raw_fd())
    }

    /// Returns the events to wait for on [`Dial::fd`].
    #[must_use]
    pub fn wants(&self) -> Interest {
        match &self.current {
            Some(attempt) if !attempt.connected => Interest::WRITE,
            Some(attempt) if !attempt.dialler.output().is_empty() => Interest::BOTH,
            _ => Interest::READ,
        }
    }

    /// Returns the number of starts of routes, retries included, plus the number of pauses before retries.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempts
    }

    /// Checks whether every usable route so far led to a running host without a listener for this target. For example, its process
    /// has ended.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.refusals > 0 && self.refusals + self.unusable == self.failures.len()
    }

    /// Checks whether no tried route led to a host that answers: packets were lost, or the network reports that the host is
    /// unreachable. A host whose process does not answer accepts the connection, so that the result is `false`.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        let silent = self.unanswered + self.unusable + self.untried;
        self.unanswered > 0 && silent == self.failures.len()
    }

    /// Checks whether a reached listener reported a wrong proof. A retry there would fail with the same result.
    #[must_use]
    pub fn is_wrong_secret(&self) -> bool {
        self.wrong_secrets > 0
    }

    /// Checks whether a reached listener has another version. A retry there would fail with the same result.
    #[must_use]
    pub fn is_other_version(&self) -> bool {
        self.other_version
    }

    /// Checks whether this process or the system had no descriptor left for the socket of a route.
    #[must_use]
    pub fn is_starved(&self) -> bool {
        self.starved
    }

    /// Checks whether a reached listener had no room, which may change later.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// Returns the time at which [`Dial::advance`] must be called even without an event.
    #[must_use]
    pub fn timeout(&self) -> Instant {
        match (&self.pause, &self.current) {
            (Some((_, until)), _) => *until,
            (None, Some(attempt)) => attempt.until,
            (None, None) => self.deadline,
        }
    }

    /// Makes progress without waiting.
    pub fn advance(&mut self, now: Instant) -> Progress {
        if let Some((_, until)) = &self.pause {
            if now < *until {
                return Progress::Waiting;
            }
            self.pause = None;
            let route = self.route.take();
            if !route.is_some_and(|route| self.begin_route(route, now)) {
                self.next_route(now);
            }
        }
        while let Some(attempt) = &mut self.current {
            let left = self.routes.len();
            match attempt.advance(now, self.deadline, left) {
                Ok(false) => return Progress::Waiting,
                Ok(true) => {
                    if let Some(attempt) = self.current.take() {
                        return Progress::Done(attempt.stream);
                    }
                }
                Err(words) => {
                    let turned_away = attempt.turned_away;
                    if turned_away && self.pauses(now) {
                        return Progress::Waiting;
                    }
                    let Some(attempt) = self.current.take() else { break };
                    let what = attempt.what;
                    self.refusals += usize::from(attempt.refused);
                    self.wrong_secrets += usize::from(attempt.wrong_secret);
                    self.other_version |= attempt.other_version;
                    self.busy |= attempt.busy;
                    let (unanswered, rejected) = (attempt.unanswered, attempt.rejected);
                    self.unanswered += usize::from(unanswered || rejected);
                    self.advise(unanswered, rejected);
                    let times = match self.closed.0 {
                        before if before > 0 && turned_away => format!(", {} times", before + 1),
                        _ => String::new(),
                    };
                    self.failures.push(format!("{what}: {words}{times}"));
                    self.next_route(now);
                }
            }
        }
        Progress::Failed(self.words())
    }

    /// Handles a close of the listener without an answer, which also happens when the listener has no room. Returns `true` if the
    /// route is retried after a pause. The last route is retried until the deadline, since a crowd of connections may fill the
    /// listener for long.
    fn pauses(&mut self, now: Instant) -> bool {
        let (times, first) = self.closed;
        let first = first.unwrap_or(now);
        let longest = limit(first, self.deadline, self.routes.len(), CONNECT_LIMIT);
        let (shortest, most) = PAUSES;
        // Peers that were turned away together retry at different times.
        let mut random = [0; 1];
        let part = sys::random(&mut random).map_or(1, |()| 1 + u32::from(random[0]));
        let pause = (shortest * (1 << times.min(3))).min(most);
        let until = now + pause / 2 + pause * part / 256;
        let Ok(timer) = Timer::new() else { return false };
        if until >= longest {
            return false;
        }
        timer.set(Some(until));
        self.closed = (times + 1, Some(first));
        self.attempts += 1;
        self.current = None;
        self.pause = Some((timer, until));
        true
    }

    /// Gives advice to the failure that is recorded next, if it was unanswered or rejected.
    fn advise(&mut self, unanswered: bool, rejected: bool) {
        let at = self.failures.len();
        let knows = self.advice.is_some_and(|(_, words)| words == FIREWALL);
        match (unanswered, rejected) {
            (true, _) => self.advice = Some((at, FIREWALL)),
            (_, true) if !knows => self.advice = Some((at, REJECTED)),
            _ => {}
        }
    }

    /// Starts the next route that can be started.
    fn next_route(&mut self, now: Instant) {
        self.current = None;
        self.closed = (0, None);
        while self.current.is_none() {
            let Some(route) = self.routes.next() else { return };
            let _ = self.begin_route(route, now);
        }
    }

    /// Starts a route. Returns `false` if it cannot be started.
    fn begin_route(&mut self, route: Route, now: Instant) -> bool {
        let what = format!("{} ({})", route.remote, route.why);
        if now >= self.deadline {
            self.untried += 1;
            self.failures.push(format!("{what}: no time left to try"));
            return false;
        }
        self.attempts += 1;
        let until = limit(now, self.deadline, self.routes.len(), CONNECT_LIMIT);
        let begun = nonce().and_then(|nonce| Ok((nonce, begin(&route)?)));
        match begun {
            Ok((nonce, stream)) => {
                let dialler = Dialler::new(self.key.clone(), &self.hello, nonce);
                self.route = Some(route);
                self.current = Some(Attempt {
                    stream,
                    dialler,
                    connected: false,
                    until,
                    what,
                    refused: false,
                    unanswered: false,
                    rejected: false,
                    wrong_secret: false,
                    other_version: false,
                    busy: false,
                    turned_away: false,
                });
                true
            }
            Err(error) => {
                let kind = error.kind();
                let number = error.raw_os_error();
                self.starved |= matches!(number, Some(libc::EMFILE | libc::ENFILE));
                self.refusals += usize::from(kind == io::ErrorKind::ConnectionRefused);
                self.unusable += usize::from(matches!(
                    kind,
                    io::ErrorKind::AddrNotAvailable | io::ErrorKind::NetworkUnreachable
                ));
                self.unanswered += usize::from(kind == io::ErrorKind::HostUnreachable);
                self.advise(false, kind == io::ErrorKind::HostUnreachable);
                self.failures.push(format!("{what}: {error}"));
                false
            }
        }
    }

    /// Returns every route that failed, with the reason, even if a later route succeeded.
    #[must_use]
    pub fn failures(&self) -> &[String] {
        &self.failures
    }

    fn words(&self) -> String {
        if self.failures.is_empty() {
            return "there is no address to connect to".into();
        }
        let mut words = String::new();
        for (at, failure) in self.failures.iter().enumerate() {
            words.push_str(if at > 0 { "; " } else { "" });
            words.push_str(failure);
            // Only one failure gets advice.
            let advice = self.advice.filter(|(of, _)| *of == at);
            words.push_str(advice.map_or("", |(_, advice)| advice));
        }
        words
    }
}

impl Attempt {
    /// Advances the attempt. Returns `true` if it is connected and proven.
    fn advance(&mut self, now: Instant, deadline: Instant, left: usize) -> Result<bool, String> {
        if !self.connected {
            if let Some(error) = self.stream.take_error().map_err(words)? {
                self.refused = error.kind() == io::ErrorKind::ConnectionRefused;
                self.unanswered = error.kind() == io::ErrorKind::TimedOut;
                self.rejected = error.kind() == io::ErrorKind::HostUnreachable;
                self.turned_away = error.kind() == io::ErrorKind::ConnectionReset;
                return Err(words(error));
            }
            match self.stream.peer_addr() {
                // A socket may connect to itself if no process listens on the port.
                Ok(peer) if self.stream.local_addr().ok() == Some(peer) => {
                    return Err("nobody listens there".into());
                }
                Ok(_) => {
                    self.connected = true;
                    let _ = self.stream.set_nodelay(true);
                    let half = deadline.saturating_duration_since(now) / 2;
                    self.until = limit(now, deadline, left, half);
                }
                Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                    self.unanswered = now >= self.until;
                    return self.in_time(now, "no answer");
                }
                Err(error) => return Err(words(error)),
            }
        }
        loop {
            self.write()?;
            let mut bytes = [0u8; 256];
            let expects = self.dialler.expects().min(bytes.len());
            match self.stream.read(&mut bytes[..expects]) {
                Ok(0) => {
                    self.turned_away = true;
                    return Err("the listener closed the connection".into());
                }
                Ok(count) => {
                    let received = self.dialler.receive(&bytes[..count]);
                    self.refused = received == Err(Refusal::UnknownTarget);
                    self.wrong_secret = received == Err(Refusal::WrongSecret);
                    self.other_version = matches!(received, Err(Refusal::OtherVersion(_)));
                    self.busy = received == Err(Refusal::Busy);
                    if received.map_err(|why| why.to_string())? {
                        return Ok(true);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return self.in_time(now, "connected, but the process there does not answer");
                }
                Err(error) => {
                    self.turned_away = error.kind() == io::ErrorKind::ConnectionReset;
                    return Err(words(error));
                }
            }
        }
    }

    fn write(&mut self) -> Result<(), String> {
        while !self.dialler.output().is_empty() {
            match self.stream.write(self.dialler.output()) {
                Ok(count) => self.dialler.sent(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The listener's last message before its close may be unread.
                Err(_) => break,
            }
        }
        Ok(())
    }

    fn in_time(&self, now: Instant, what: &str) -> Result<bool, String> {
        if now < self.until { Ok(false) } else { Err(format!("{what} in time")) }
    }
}

/// Returns the time limit of a step: the last route has all the remaining time.
fn limit(now: Instant, deadline: Instant, ways_left: usize, at_most: Duration) -> Instant {
    if ways_left == 0 { deadline } else { deadline.min(now + at_most) }
}

fn words(error: io::Error) -> String {
    error.to_string()
}

fn nonce() -> io::Result<[u8; 32]> {
    let mut nonce = [0; 32];
    sys::random(&mut nonce).map(|()| nonce)
}

fn begin(route: &Route) -> io::Result<TcpStream> {
    let socket = Socket::new(
        Domain::for_address(route.remote),
        Type::STREAM.nonblocking(),
        Some(Protocol::TCP),
    )?;
    if let Some(local) = &route.local {
        sys::bind_address_no_port(socket.as_fd());
        let from = match SocketAddr::new(local.ip, 0) {
            SocketAddr::V6(mut v6) => {
                v6.set_scope_id(local.scope_id);
                SocketAddr::V6(v6)
            }
            v4 => v4,
        };
        socket.bind(&from.into())?;
    }
    match socket.connect(&route.remote.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    Ok(socket.into())
}

/// Dials one address and waits for the result. The returned stream is blocking.
///
/// # Errors
/// The reason why there is no connection, as text.
pub fn dial_blocking(
    remote: SocketAddr,
    key: &Key,
    hello: &Hello,
    deadline: Instant,
) -> Result<TcpStream, String> {
    let route = Route { local: None, remote, why: "as given".into() };
    let mut dial = Dial::start(vec![route], key.clone(), hello.clone(), deadline);
    let poller = Poller::new().map_err(words)?;
    let mut ready = Vec::new();
    loop {
        let now = Instant::now();
        match dial.advance(now) {
            Progress::Waiting => {
                if let Some(fd) = dial.fd() {
                    poller.watch(fd, dial.wants(), 0).map_err(words)?;
                }
                let left = dial.timeout().saturating_duration_since(now);
                poller.wait(&mut ready, Some(left)).map_err(words)?;
            }
            Progress::Done(stream) => {
                stream.set_nonblocking(false).map_err(words)?;
                return Ok(stream);
            }
            Progress::Failed(words) => return Err(words),
        }
    }
}

#[cfg(test)]
#[path = "dial_tests.rs"]
mod tests;
