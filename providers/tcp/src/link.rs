//! The forming of streams: which side dials, and the treatment of a broken stream. `crossing.rs` chooses among several connections;
//! this file handles the sockets.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use tieline_net::{Dial, Hello, Incoming, Key, Progress};
use tieline_plugin_api::Status;

use crate::conn::{ConnectionState, Phase};
use crate::crossing::{Arrival, Crossing};
use crate::frame::{HEAD, Head, Kind};
use crate::shared::{Shared, Watched};
use crate::stream::{Broke, Stream};
use crate::sys;

/// The time that the side with the higher address waits for the other side's dial before it dials itself.
const DIAL_DELAY: Duration = Duration::from_millis(300);
/// The time that the lower side's own dial may take while a connection waits in reserve.
const RESERVE_TIMEOUT: Duration = Duration::from_millis(500);
/// The base of the pause after `n` consecutive failed dials: this value times 2^n, at most times sixteen.
const BACKOFF: Duration = Duration::from_millis(50);
/// The time without a listener at the peer's addresses after which the peer is considered dead.
const GONE: Duration = Duration::from_secs(1);
/// The number of connections for one stream at which the upper side closes the oldest one to keep another one of the peer.
const MAX_STANDBYS: usize = 4;
/// The maximum number of connections that are kept before the peer's address is known.
pub(crate) const MAX_EARLY: usize = 4 * crate::config::MAX_STREAMS;

/// The purpose in a greeting to a hub whose users are interfaces: a stream between two endpoints.
pub(crate) const PURPOSE: u8 = 1;
const GREETING_LEN: usize = 8 + 16 + 8 + 1 + 4;

/// The greeting of a dialler: its identity, and the target of the dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    /// The target endpoint.
    pub(crate) to: u64,
    /// The dialler's interface and endpoint.
    pub(crate) from_target: [u8; 16],
    pub(crate) from: u64,
    pub(crate) stream: u8,
    /// The number of connections that the dialler has seen of that stream.
    pub(crate) round: u32,
}

impl Greeting {
    pub(crate) fn pack(&self) -> [u8; GREETING_LEN] {
        let mut out = [0; GREETING_LEN];
        out[..8].copy_from_slice(&self.to.to_le_bytes());
        out[8..24].copy_from_slice(&self.from_target);
        out[24..32].copy_from_slice(&self.from.to_le_bytes());
        out[32] = self.stream;
        out[33..].copy_from_slice(&self.round.to_le_bytes());
        out
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Greeting> {
        let bytes: &[u8; GREETING_LEN] = bytes.try_into().ok()?;
        let (to, rest) = bytes.split_first_chunk::<8>()?;
        let (from_target, rest) = rest.split_first_chunk::<16>()?;
        let (from, rest) = rest.split_first_chunk::<8>()?;
        let (stream, round) = rest.split_first()?;
        Some(Greeting {
            to: u64::from_le_bytes(*to),
            from_target: *from_target,
            from: u64::from_le_bytes(*from),
            stream: *stream,
            round: u32::from_le_bytes(round.try_into().ok()?),
        })
    }
}

/// A connection that arrived before the peer's address was known.
#[derive(Debug)]
pub(crate) struct Early {
    greeting: Greeting,
    socket: OwnedFd,
    from: SocketAddr,
}

/// A connection that is not in use yet: on the upper side it waits for `Start`, on the lower side it is in reserve.
#[derive(Debug)]
struct Standby {
    socket: OwnedFd,
    peer: Option<SocketAddr>,
    head: [u8; HEAD],
    got: usize,
}

/// The state of forming one stream.
#[derive(Debug, Default)]
pub(crate) struct Link {
    crossing: Crossing,
    dial: Option<Box<Dial>>,
    standbys: Vec<Standby>,
    pub(crate) stream: Option<Box<Stream>>,
    dial_at: Option<Instant>,
    reserve_since: Option<Instant>,
    failures: u32,
}

impl Link {
    pub(crate) fn new(lower: bool, now: Instant) -> Link {
        let dial_at = Some(if lower { now } else { now + DIAL_DELAY });
        Link { crossing: Crossing::new(lower), dial_at, ..Link::default() }
    }

    /// Ends a dial. Its socket is not watched any more: closing it does not suffice while a forked child holds a copy.
    fn end_dial(&mut self, shared: &Shared) {
        if let Some(dial) = self.dial.take() {
            dial.fd().iter().for_each(|fd| shared.poller.forget(*fd));
        }
    }

    /// Closes a connection that was not used.
    fn close_standby(&mut self, at: usize, shared: &Shared) {
        let standby = self.standbys.remove(at);
        shared.poller.forget(standby.socket.as_raw_fd());
    }

    /// Closes all connections that were not used.
    fn close_standbys(&mut self, shared: &Shared) {
        while !self.standbys.is_empty() {
            self.close_standby(0, shared);
        }
    }

    /// Ends the dial, and closes the connections that were not used.
    pub(crate) fn close(&mut self, shared: &Shared) {
        self.end_dial(shared);
        self.close_standbys(shared);
    }

    /// Schedules the next dial, after the stream broke.
    pub(crate) fn broke(&mut self, now: Instant) {
        self.failures = 0;
        self.dial_at = Some(if self.crossing.is_lower() { now } else { now + DIAL_DELAY });
    }
}

#[cfg(test)]
impl Link {
    pub(crate) fn dial_now(&mut self) {
        self.dial_at = Some(Instant::now());
    }

    pub(crate) fn dials_at(&self) -> Option<Instant> {
        self.dial_at
    }

    pub(crate) fn is_dialling(&self) -> bool {
        self.dial.is_some()
    }

    pub(crate) fn is_lower(&self) -> bool {
        self.crossing.is_lower()
    }

    pub(crate) fn standbys(&self) -> usize {
        self.standbys.len()
    }
}

impl ConnectionState {
    /// Connects an endpoint to itself.
    pub(crate) fn link_to_itself(&mut self) -> Result<(), std::io::Error> {
        let stream = Stream::to_itself()?;
        self.links = vec![Link::default()];
        self.phase = Phase::Linking;
        self.stream_up(0, stream);
        Ok(())
    }

    /// Begins to form `count` streams.
    pub(crate) fn begin_links(&mut self, count: usize, lower: bool) {
        let now = Instant::now();
        self.links = (0..count).map(|_| Link::new(lower, now)).collect();
        self.phase = Phase::Linking;
        self.since = now;
        for early in std::mem::take(&mut self.early) {
            self.arrive(early);
        }
        self.tend_links(now);
        self.keep_time();
    }

    /// Handles an arrived connection for this endpoint.
    pub(crate) fn incoming(&mut self, greeting: Greeting, incoming: Incoming) {
        let from = incoming.from;
        let early = Early { greeting, socket: incoming.stream.into(), from };
        match self.phase {
            Phase::Waiting if self.early.len() < MAX_EARLY => self.early.push(early),
            Phase::Waiting => {}
            Phase::Failed(_) => turn_away(&early.socket),
            _ => self.arrive(early),
        }
    }

    fn arrive(&mut self, early: Early) {
        let Early { greeting, socket, from } = early;
        let number = usize::from(greeting.stream);
        let Some(peer) = &self.peer else { return };
        if peer.contact.target != greeting.from_target || peer.id != greeting.from {
            return turn_away(&socket);
        }
        let retains = self.outbox.retains();
        let (phase, index) = (self.phase, self.index);
        let Some(link) = self.links.get_mut(number) else { return };
        self.gone_since = None;
        // Without kept data nothing can be sent again, so a broken stream stays broken.
        let over = phase == Phase::Closing || link.crossing.round() > 0;
        if over && !retains {
            return;
        }
        let standby = Standby { socket, peer: Some(from), head: [0; HEAD], got: 0 };
        match link.crossing.arrived(greeting.round) {
            Arrival::Refuse => {}
            Arrival::Keep => {
                if link.crossing.is_lower() {
                    link.close_standbys(&self.shared);
                    link.reserve_since = Some(Instant::now());
                } else if link.standbys.len() >= MAX_STANDBYS {
                    link.close_standby(0, &self.shared);
                }
                let fd = standby.socket.as_raw_fd();
                link.standbys.push(standby);
                if !link.crossing.is_lower() {
                    self.shared.watch(fd, index, number, Watched::Standby);
                }
            }
            Arrival::Start => self.start(number, standby.socket, Some(from)),
        }
    }

    /// Chooses this connection for the stream, as the lower side.
    fn start(&mut self, number: usize, socket: OwnedFd, peer: Option<SocketAddr>) {
        if self.links[number].stream.is_some() {
            self.drop_stream(number);
            self.outbox.stream_broke(number as u8);
        }
        let mut start = Head::bare(Kind::Start, 0, u64::from(self.links[number].crossing.round()));
        start.ack = self.acknowledge();
        let mut stream = Stream::new(number as u8, socket, peer);
        let _ = stream.track.send_aside(&start);
        self.use_stream(number, stream);
        self.flush_stream(number);
    }

    fn use_stream(&mut self, number: usize, mut stream: Stream) {
        let link = &mut self.links[number];
        link.close(&self.shared);
        link.dial_at = None;
        link.failures = 0;
        let tcp = TcpStream::from(stream.socket);
        tieline_net::tune_for_streams(&tcp, self.shared.settings.failure_timeout);
        stream.socket = tcp.into();
        self.stream_up(number, stream);
    }

    /// Handles data that has arrived on a connection that waits for `Start`.
    pub(crate) fn tend_standbys(&mut self, number: usize) {
        let Some(link) = self.links.get_mut(number) else { return };
        if link.crossing.is_lower() {
            return;
        }
        let mut chosen = None;
        let mut gone = false;
        let mut at = 0;
        while at < link.standbys.len() {
            let standby = &mut link.standbys[at];
            let got = standby.got;
            match sys::receive(standby.socket.as_raw_fd(), &mut standby.head[got..]) {
                Ok(count) if count > 0 => {
                    standby.got += count;
                    if standby.got < HEAD {
                        at += 1;
                        continue;
                    }
                    match Head::parse(&standby.head) {
                        Ok(head) if head.kind == Kind::Start => {
                            let round = u32::try_from(head.word).unwrap_or(0);
                            if link.crossing.started(round) {
                                chosen = Some((link.standbys.remove(at), head));
                                break;
                            }
                        }
                        Ok(head) if head.kind == Kind::Gone => gone = true,
                        _ => {}
                    }
                    link.close_standby(at, &self.shared);
                }
                Err(error) if sys::is_passing(&error) => at += 1,
                _ => link.close_standby(at, &self.shared),
            }
        }
        if let Some((standby, head)) = chosen {
            if self.links[number].stream.is_some() {
                self.drop_stream(number);
                self.outbox.stream_broke(number as u8);
            }
            if let Err(why) = self.outbox.acknowledged(head.ack) {
                self.shared.poller.forget(standby.socket.as_raw_fd());
                let broke = Broke::malformed("the peer", why);
                return self.fail(broke.status, &broke.text);
            }
            let stream = Stream::new(number as u8, standby.socket, standby.peer);
            self.use_stream(number, stream);
            self.flush_stream(number);
        } else if gone {
            self.fail(Status::Closed, "the peer's endpoint is not there any more");
        }
    }

    /// Asks epoll again to watch a descriptor.
    pub(crate) fn watch_again(&mut self, number: usize, what: Watched) {
        let Some(link) = self.links.get(number) else { return };
        match (what, &link.stream) {
            (Watched::Stream, Some(stream)) => self.shared.watch_stream(stream, self.index, number),
            (Watched::Standby, _) if !link.crossing.is_lower() => {
                for standby in &link.standbys {
                    self.shared.watch(standby.socket.as_raw_fd(), self.index, number, what);
                }
            }
            _ => {}
        }
    }

    /// Advances a dial.
    pub(crate) fn tend_dial(&mut self, number: usize) {
        let now = Instant::now();
        let index = self.index;
        let Some(link) = self.links.get_mut(number) else { return };
        let Some(dial) = &mut link.dial else { return };
        // The dial may close its socket for the next one.
        dial.fd().iter().for_each(|fd| self.shared.poller.forget(*fd));
        match dial.advance(now) {
            Progress::Waiting => {
                if let Some(fd) = dial.fd() {
                    self.shared.watch_for(fd, dial.wants(), index, number, Watched::Dial);
                }
            }
            Progress::Done(stream) => {
                link.dial = None;
                let peer = stream.peer_addr().ok();
                self.gone_since = None;
                if link.crossing.dialled() {
                    return self.start(number, stream.into(), peer);
                }
                let standby = Standby { socket: stream.into(), peer, head: [0; HEAD], got: 0 };
                let fd = standby.socket.as_raw_fd();
                link.standbys.push(standby);
                self.shared.watch(fd, index, number, Watched::Standby);
            }
            Progress::Failed(words) => {
                let gone = dial.is_refused();
                self.starved = dial.is_starved();
                link.dial = None;
                link.failures += 1;
                link.dial_at = Some(now + BACKOFF * (1 << link.failures.min(4)));
                match (gone, self.gone_since) {
                    (true, None) => self.gone_since = Some(now),
                    (false, _) => self.gone_since = None,
                    _ => {}
                }
                self.last_words = words;
                if link.crossing.dial_failed() {
                    if let Some(standby) = link.standbys.pop() {
                        self.start(number, standby.socket, standby.peer);
                    }
                }
            }
        }
    }

    /// Starts and advances the dials, and fails a connection that has been without a stream for too long.
    pub(crate) fn tend_links(&mut self, now: Instant) {
        for number in 0..self.links.len() {
            self.drop_dead_reserve(number);
            let Some(link) = self.links.get(number) else { return };
            let due = link.dial_at.is_some_and(|at| now >= at);
            let idle = link.stream.is_none() && link.dial.is_none();
            if due && idle && (link.crossing.is_lower() || link.standbys.is_empty()) {
                self.dial(number, now);
            }
            self.tend_dial(number);
            self.give_way(number, now);
        }
        if self.outbox.retains() {
            self.tend_stall();
        }
        if matches!(self.phase, Phase::Failed(_)) || self.links.iter().any(|l| l.stream.is_some()) {
            return;
        }
        let settings = &self.shared.settings;
        let (limit, what) = match self.phase {
            Phase::Linking => (settings.connect_timeout, "no connection came about"),
            _ => (settings.failure_timeout, "the connection broke and did not come back"),
        };
        let waited = now.duration_since(self.since);
        let words = if self.last_words.is_empty() { "no answer" } else { &self.last_words };
        if self.gone_since.is_some_and(|since| now.duration_since(since) > GONE) {
            let text = format!("the peer process is gone: {words}");
            self.fail(Status::PeerFailed, &text);
        } else if waited > limit {
            let (status, advice) = match self.starved {
                true => (Status::NoMemory, "; release some, or raise the limit (`ulimit -n`)"),
                false => (Status::TimedOut, ""),
            };
            let text = format!("{what} in {:.1} s: {words}{advice}", waited.as_secs_f64());
            self.fail(status, &text);
        }
    }

    /// Removes a broken reserve connection, so that it is not chosen.
    fn drop_dead_reserve(&mut self, number: usize) {
        let Some(link) = self.links.get_mut(number) else { return };
        if !link.crossing.is_lower() || link.standbys.is_empty() {
            return;
        }
        // The upper side sends nothing before `Start`, so readable data means the end of the connection.
        link.standbys.retain_mut(|standby| {
            let fd = standby.socket.as_raw_fd();
            let is_open = matches!(sys::receive(fd, &mut standby.head),
                     Err(error) if sys::is_passing(&error));
            if !is_open {
                self.shared.poller.forget(fd);
            }
            is_open
        });
        if link.standbys.is_empty() {
            link.crossing.reserve_lost();
        }
    }

    /// Uses a connection of the peer while the dial of this side is stuck.
    fn give_way(&mut self, number: usize, now: Instant) {
        let Some(link) = self.links.get_mut(number) else { return };
        let waits =
            link.reserve_since.is_some_and(|since| now.duration_since(since) > RESERVE_TIMEOUT);
        if waits && link.dial.is_some() && !link.standbys.is_empty() {
            // Using another connection ends the dial.
            if link.crossing.dial_failed() {
                if let Some(standby) = link.standbys.pop() {
                    self.start(number, standby.socket, standby.peer);
                }
            }
        }
    }

    fn dial(&mut self, number: usize, now: Instant) {
        let shared = &self.shared;
        let Some(peer) = &self.peer else { return };
        let greeting = Greeting {
            to: peer.id,
            from_target: shared.target,
            from: self.id,
            stream: number as u8,
            round: self.links[number].crossing.round(),
        };
        let hello = Hello::new(PURPOSE, peer.contact.target, &greeting.pack());
        let routes = shared.routes(&peer.contact, number);
        let key = Key::derive(&shared.settings.net.secret, &peer.contact.cookie);
        let link = &mut self.links[number];
        match (routes, hello) {
            (Ok(routes), Ok(hello)) => {
                let deadline = now + shared.settings.connect_timeout;
                link.dial = Some(Box::new(Dial::start(routes, key, hello, deadline)));
                link.crossing.dial_begun();
                link.dial_at = None;
            }
            (Err(words), _) | (_, Err(words)) => {
                // The peer may still reach this side.
                link.failures += 1;
                link.dial_at = Some(now + BACKOFF * (1 << link.failures.min(4)));
                self.last_words = format!("there is no route to the peer: {words}");
                self.starved = false;
            }
        }
    }
}

/// Notifies a dialler that the endpoint does not exist, or is not connected to the dialler.
pub(crate) fn turn_away(socket: &OwnedFd) {
    let _ = sys::send(socket.as_raw_fd(), &Head::bare(Kind::Gone, 0, 0).pack());
}
