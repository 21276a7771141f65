//! The listener's sockets, and the handshakes of unproven connections.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use super::{Hub, Incoming, Listen, Settings, Slot, count};
use crate::admission::{Admission, LOOK, Source, Verdict};
use crate::auth::{Acceptor, HandshakeError, Hello, Key};
use crate::filter::Filter;
use crate::interfaces::local_addresses;
use crate::options::{reset, stop_listening};
use crate::sys::{self, Interest, Poller, Ready, Timer};

/// The time for which no connection is accepted after the system lacked resources for one.
pub(super) const PAUSE: Duration = Duration::from_millis(200);
/// The limit on connections that one poll accepts from one listener, so that a flood does not hold up the caller.
const PER_POLL: usize = 64;
const BACKLOG: i32 = 4096;

const TIMER: u64 = u64::MAX;
const FIRST_TOKEN: u64 = 16; // the tokens below belong to the listeners

#[derive(Debug)]
pub(super) struct Handshakes {
    listeners: Vec<Socket>,
    key: Key,
    filter: Filter,
    allowed: Vec<IpAddr>,
    timeout: Duration,
    pending: HashMap<u64, Handshake>,
    admission: Admission<u64>,
    next_token: u64,
    timer: Timer,
    timer_at: Option<Instant>,
    /// The time before which no connection is accepted.
    paused: Option<Instant>,
    listening: bool,
    ready: Vec<Ready>,
}

/// A connection in the middle of its handshake.
#[derive(Debug)]
struct Handshake {
    stream: TcpStream,
    from: SocketAddr,
    acceptor: Acceptor,
}

/// The result of one step of a handshake.
enum Outcome {
    Waits,
    Proven(Hello),
    /// The peer's proof is wrong.
    Unproven,
    /// The peer has another version.
    Version(u8),
    Fails,
}

impl Handshakes {
    pub(super) fn new(
        listeners: Vec<Socket>,
        key: Key,
        settings: &Settings,
        poller: &Poller,
    ) -> io::Result<Handshakes> {
        let timer = Timer::new()?;
        poller.watch(timer.as_fd().as_raw_fd(), Interest::READ, TIMER)?;
        let mut handshakes = Handshakes {
            listeners,
            key,
            filter: settings.filter.clone(),
            allowed: Vec::new(),
            timeout: settings.handshake_timeout,
            pending: HashMap::new(),
            admission: Admission::default(),
            next_token: FIRST_TOKEN,
            timer,
            timer_at: None,
            paused: None,
            listening: false,
            ready: Vec::new(),
        };
        if settings.expected > 0 {
            handshakes.admission.expect(settings.expected.min(sys::descriptors() / 2));
        }
        handshakes.open(poller)?;
        Ok(handshakes)
    }

    pub(super) fn poll(&mut self, hub: &Hub, now: Instant) {
        let mut ready = std::mem::take(&mut self.ready);
        if hub.poller.wait(&mut ready, Some(Duration::ZERO)).is_err() {
            ready.clear();
        }
        if ready.is_empty() {
            self.ready = ready;
            return;
        }
        for event in ready.iter().filter(|event| event.token >= FIRST_TOKEN && event.token != TIMER)
        {
            self.advance(hub, event.token);
        }
        self.drop_late(hub, now);
        if ready.iter().any(|event| event.token < FIRST_TOKEN || event.token == TIMER) {
            self.accept_all(hub, now);
        }
        self.ready = ready;
        self.rearm(hub, now);
    }

    /// Returns the number of handshakes, whether listeners are watched, and the time to which the timer is set.
    #[cfg(test)]
    pub(super) fn state(&self) -> (usize, bool, Option<Instant>) {
        assert_eq!(self.pending.len(), self.admission.len());
        (self.pending.len(), self.listening, self.timer_at)
    }

    /// Ends all listeners and handshakes, in every process that has copies of their sockets.
    pub(super) fn end(&mut self) {
        self.listeners.iter().for_each(stop_listening);
        for handshake in self.pending.values() {
            let _ = handshake.stream.shutdown(Shutdown::Both);
        }
    }

    /// Closes a connection, even if a forked child holds a copy of its socket.
    fn close(&mut self, hub: &Hub, token: u64) {
        if let Some(handshake) = self.remove(hub, token) {
            let _ = handshake.stream.shutdown(Shutdown::Both);
        }
    }

    /// Copies of the listeners, as a forked child has them.
    #[cfg(test)]
    pub(super) fn listener_copies(&self) -> Vec<Socket> {
        self.listeners.iter().map(|one| one.try_clone().expect("a copy")).collect()
    }

    /// Copies of the sockets, as a forked child has them.
    #[cfg(test)]
    pub(super) fn copies(&self) -> Vec<TcpStream> {
        self.pending.values().map(|one| one.stream.try_clone().expect("a copy")).collect()
    }

    /// Removes a connection that is complete or closed. Closing its socket ends the watching only if no forked child holds a copy.
    fn remove(&mut self, hub: &Hub, token: u64) -> Option<Handshake> {
        self.admission.remove(token);
        let handshake = self.pending.remove(&token)?;
        hub.poller.forget(handshake.stream.as_raw_fd());
        Some(handshake)
    }

    /// Advances one handshake. When the peer has proven itself, passes the connection to the target, if the target admits it.
    fn advance(&mut self, hub: &Hub, token: u64) {
        let Some(handshake) = self.pending.get_mut(&token) else { return };
        match handshake.receive() {
            Outcome::Waits => {}
            Outcome::Version(version) => {
                hub.heard_version(version);
                count(&hub.counts.unproven);
                self.close(hub, token);
            }
            Outcome::Fails => {
                count(&hub.counts.unproven);
                self.close(hub, token);
            }
            Outcome::Unproven => {
                count(&hub.counts.unproven);
                let Some(mut handshake) = self.remove(hub, token) else { return };
                if handshake.acceptor.asked_for().is_some_and(|target| !hub.knows(&target)) {
                    handshake.acceptor.answer_unknown();
                }
                let _ = handshake.flush();
                let _ = handshake.stream.shutdown(Shutdown::Write);
            }
            Outcome::Proven(hello) => {
                let Some(mut handshake) = self.remove(hub, token) else { return };
                let admitted = hub.admits(&hello);
                handshake.acceptor.answer(admitted.as_ref().map(|_| ()).map_err(|why| *why));
                // The few bytes of an answer fit into the buffer of a socket that has sent only a greeting.
                let answered = handshake.flush() && handshake.acceptor.output().is_empty();
                match admitted {
                    Ok(slot) if answered => hand_over(hub, &slot, handshake, hello),
                    _ => drop(handshake.stream.shutdown(Shutdown::Write)),
                }
            }
        }
    }

    fn drop_late(&mut self, hub: &Hub, now: Instant) {
        let Some(by) = now.checked_sub(self.timeout) else { return };
        while let Some(late) = self.admission.oldest_by(by) {
            count(&hub.counts.slow);
            self.close(hub, late);
        }
    }

    fn accept_all(&mut self, hub: &Hub, now: Instant) {
        if self.paused.is_some_and(|until| now < until) {
            return;
        }
        self.paused = None;
        for n in 0..self.listeners.len() {
            for _ in 0..PER_POLL {
                if !self.accepts(now) {
                    return;
                }
                match self.listeners[n].accept() {
                    Ok((socket, from)) => self.admit(hub, socket, from.as_socket(), now),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if is_out_of_resources(&error) && self.make_room(hub, now) => {}
                    Err(error) if is_out_of_resources(&error) => {
                        self.paused = Some(now + PAUSE);
                        return;
                    }
                    Err(_) => {} // such as an error of the connection that was to be accepted
                }
            }
        }
    }

    /// Finds room for a connection, or closes the connection.
    fn admit(&mut self, hub: &Hub, socket: Socket, from: Option<SocketAddr>, now: Instant) {
        let Some(from) = from else { return count(&hub.counts.unproven) };
        match self.admission.admit(from.ip().into(), now, false) {
            Verdict::Enters => {}
            Verdict::Instead(oldest) => {
                count(&hub.counts.slow);
                self.close(hub, oldest);
            }
            Verdict::TurnedAway => {
                count(&hub.counts.turned_away);
                return reset(&socket);
            }
        }
        self.begin(hub, socket.into(), from, now);
    }

    fn begin(&mut self, hub: &Hub, stream: TcpStream, from: SocketAddr, now: Instant) {
        let (mut nonce, token) = ([0; 32], self.next_token);
        let local = stream.local_addr().map(|at| at.ip().to_canonical());
        let mut ready = || {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            sys::random(&mut nonce)?;
            // Last: a watched socket is not closed without `forget`.
            hub.poller.watch(stream.as_raw_fd(), Interest::READ, token)
        };
        if !local.is_ok_and(|local| self.is_allowed(local)) || ready().is_err() {
            count(&hub.counts.unproven);
            return;
        }
        self.next_token += 1;
        let acceptor = Acceptor::new(self.key.clone(), nonce);
        self.admission.insert(token, Source::from(from.ip()), now, false);
        let _ = self.pending.insert(token, Handshake { stream, from, acceptor });
        self.advance(hub, token); // the greeting has often arrived already
    }

    /// Checks whether the user allows connections over the interface with this address.
    fn is_allowed(&mut self, local: IpAddr) -> bool {
        if self.filter.is_empty() || self.allowed.contains(&local) {
            return true;
        }
        // Addresses come and go, so the list is read again before a refusal.
        let now_there = local_addresses(&self.filter).unwrap_or_default();
        self.allowed = now_there.into_iter().map(|local| local.ip).collect();
        self.allowed.contains(&local)
    }

    /// Checks whether connections are accepted now.
    fn accepts(&self, now: Instant) -> bool {
        self.admission.accepts(now, || self.listeners.iter().any(sys::is_crowded))
    }

    /// Closes the oldest connection to free a descriptor. Returns `false` if no connection is past its time.
    fn make_room(&mut self, hub: &Hub, now: Instant) -> bool {
        let oldest = self.admission.makes_room(now);
        if let Some(token) = oldest {
            count(&hub.counts.slow);
            self.close(hub, token);
        }
        oldest.is_some()
    }

    /// Watches the listeners only while a connection can be accepted, and sets the timer to the next deadline.
    fn rearm(&mut self, hub: &Hub, now: Instant) {
        let full = !self.accepts(now);
        if full || self.paused.is_some() {
            if self.listening {
                self.listening = false;
                for listener in &self.listeners {
                    hub.poller.forget(listener.as_raw_fd());
                }
            }
        } else if !self.listening && self.open(&hub.poller).is_err() {
            self.paused = Some(now + PAUSE);
        }
        let earliest = self.admission.oldest().map(|since| since + self.timeout);
        let room = self.admission.room_at().filter(|_| full).map(|at| at.min(now + LOOK));
        let next = [earliest, room, self.paused].into_iter().flatten().min();
        if next != self.timer_at {
            self.timer_at = next;
            self.timer.set(next);
        }
    }

    fn open(&mut self, poller: &Poller) -> io::Result<()> {
        for (n, listener) in self.listeners.iter().enumerate() {
            poller.watch(listener.as_raw_fd(), Interest::READ, n as u64)?;
        }
        self.listening = true;
        Ok(())
    }
}

fn is_out_of_resources(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

impl Handshake {
    fn receive(&mut self) -> Outcome {
        loop {
            let mut bytes = [0u8; 512];
            let expects = self.acceptor.expects().min(bytes.len());
            match self.stream.read(&mut bytes[..expects]) {
                Ok(0) => return Outcome::Fails,
                Ok(len) => {
                    match self.acceptor.receive(&bytes[..len]) {
                        Ok(None) if self.flush() => {}
                        Ok(None) => return Outcome::Fails,
                        Ok(Some(hello)) => return Outcome::Proven(hello),
                        Err(HandshakeError::BadProof) => return Outcome::Unproven,
                        Err(HandshakeError::OtherVersion(version)) => {
                            let _ = self.flush(); // sends this side's version
                            return Outcome::Version(version);
                        }
                        Err(_) => return Outcome::Fails,
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Outcome::Waits,
                Err(_) => return Outcome::Fails,
            }
        }
    }

    /// Sends pending bytes. Returns `false` if the connection broke, or does not take all of them now.
    fn flush(&mut self) -> bool {
        while !self.acceptor.output().is_empty() {
            match self.stream.write(self.acceptor.output()) {
                Ok(len) => self.acceptor.sent(len),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }
}

fn hand_over(hub: &Hub, slot: &Arc<Slot>, handshake: Handshake, hello: Hello) {
    hub.deliver(slot, Incoming { stream: handshake.stream, hello, from: handshake.from });
}

/// Opens the listening sockets.
pub(super) fn listen(at: Listen) -> Result<Vec<Socket>, String> {
    let ports = match at {
        Listen::At(address) => {
            let socket =
                bind(address).map_err(|error| format!("listening at {address}: {error}"))?;
            return Ok(vec![socket]);
        }
        Listen::Ports(ports) => ports,
    };
    let mut listeners = Vec::new();
    let mut why_not = Vec::new();
    let start = std::process::id();
    for any in [IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED)] {
        let mut last = None;
        for port in ports.each(start) {
            match bind(SocketAddr::new(any, port)) {
                Ok(socket) => {
                    listeners.push(socket);
                    last = None;
                    break;
                }
                Err(error) => {
                    let taken = error.kind() == io::ErrorKind::AddrInUse;
                    last = Some(error);
                    if !taken {
                        break;
                    }
                }
            }
        }
        if let Some(error) = last {
            if error.kind() == io::ErrorKind::AddrInUse {
                return Err(format!(
                    "every port of {} is taken: widen TIELINE_TCP_PORTS or set it to 0",
                    ports.text()
                ));
            }
            why_not.push(format!("listening on {any}: {error}")); // e.g. a kernel without that address family
        }
    }
    if listeners.is_empty() {
        return Err(why_not.join("; "));
    }
    Ok(listeners)
}

fn bind(address: SocketAddr) -> io::Result<Socket> {
    let kind = Type::STREAM.nonblocking();
    let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // Connections of a process that has just ended do not block its port.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}
