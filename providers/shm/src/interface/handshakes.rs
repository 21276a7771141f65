//! The handshakes of connecting peers: sockets are accepted, greetings are read, and invalid greetings refused.
//!
//! A peer whose greeting has arrived when its connection is accepted does not enter the list of handshakes. The list is for
//! connections on which nothing has arrived yet. If there are too many, the connection that has been silent for longest is closed.
//! Before that connection has had some time for its greeting, no further connection is accepted.

use super::*;

/// The maximum number of connections without a greeting.
const MAX_HANDSHAKES: usize = 256;
/// The time limit for the greeting.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time that a connection may be silent while others wait.
const GRACE: Duration = Duration::from_millis(100);
/// The maximum number of connections that are accepted in a row.
pub(super) const MOST_ACCEPTED: u32 = 256;

/// A connection whose greeting has not arrived yet.
pub(super) struct Handshake {
    socket: OwnedFd,
    since: Instant,
}

impl State {
    pub(super) fn expire_handshakes(&mut self, shared: &Shared) {
        for slot in &mut self.handshakes {
            if slot.as_ref().is_some_and(|a| a.since.elapsed() > HANDSHAKE_TIMEOUT) {
                expire(slot, shared);
            }
        }
        let crowded = self.oldest_of_all().is_some_and(|(since, _)| since.elapsed() <= GRACE);
        if self.accept_paused && !crowded && !shared.closer.is_full() {
            if let Some(listener) = self.listener.socket() {
                self.accept_paused = shared.epoll.add(listener, token::LISTENER).is_err();
            }
        }
    }

    /// Accepts no connection until a maintenance finds space for more; connecting peers wait in the kernel's queue meanwhile.
    fn pause_accepting(&mut self, shared: &Shared) {
        if let Some(listener) = self.listener.socket() {
            shared.epoll.remove(listener);
            self.accept_paused = true;
        }
    }

    /// Accepts waiting connections, at most [`MOST_ACCEPTED`], and returns the number of attempts.
    pub(super) fn accept_some(&mut self, shared: &Shared, cookie: &Id) -> u32 {
        for accepted in 0..MOST_ACCEPTED {
            if shared.closer.is_full() || !self.has_room(shared, cookie) {
                self.pause_accepting(shared);
                return accepted;
            }
            let Some(listener) = self.listener.socket() else { return accepted };
            match sys::accept(listener) {
                Ok(socket) => self.begin_handshake(socket, shared, cookie),
                Err(error) if sys::is_exhaustion(&error) && self.spare.is_some() => {
                    // The descriptor that was kept free is used to send a refusal.
                    self.spare = None;
                    let waiting = sys::accept(listener);
                    let more = waiting.is_ok();
                    if let Ok(socket) = waiting {
                        shared
                            .domain
                            .lacks(&Failure::from_io("a descriptor for its connection", &error));
                        turn_away(shared, socket, Refusal::Resources);
                    }
                    self.spare = sys::spare().ok();
                    // Without a free descriptor the kernel reports "full" before it checks whether a connection waits.
                    if !more {
                        return accepted;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.spare = self.spare.take().or_else(|| sys::spare().ok());
                    return accepted;
                }
            }
        }
        MOST_ACCEPTED
    }

    /// Refuses the peers that are not admitted yet, because this interface closes, while the process may live on.
    pub(super) fn turn_all_away(&mut self, shared: &Shared) {
        for handshake in self.handshakes.drain(..).flatten() {
            refuse(shared, &handshake.socket, Refusal::Closing);
        }
        let Some(listener) = self.listener.socket() else { return };
        sys::shut_down(listener);
        // Otherwise there may be no descriptor for sending the refusals.
        self.spare = None;
        while !shared.closer.is_full() {
            match sys::accept(listener) {
                Ok(socket) => turn_away(shared, socket, Refusal::Closing),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Returns the handshake that has been silent for longest, if the list is full.
    fn oldest_of_all(&self) -> Option<(Instant, usize)> {
        let taken = self.handshakes.iter().enumerate();
        let taken = taken.filter_map(|(index, slot)| Some((slot.as_ref()?.since, index)));
        if taken.clone().count() < MAX_HANDSHAKES { None } else { taken.min() }
    }

    /// Checks whether the list can take another silent connection.
    fn has_room(&mut self, shared: &Shared, cookie: &Id) -> bool {
        let Some((since, oldest)) = self.oldest_of_all() else { return true };
        // The greeting of the oldest connection may have arrived since this maintenance began.
        self.read_greeting(oldest, shared, cookie);
        if self.handshakes[oldest].is_some() && since.elapsed() > GRACE {
            expire(&mut self.handshakes[oldest], shared);
        }
        self.handshakes[oldest].is_none()
    }

    /// Handles a connection that was just accepted: most peers have already greeted.
    fn begin_handshake(&mut self, socket: OwnedFd, shared: &Shared, cookie: &Id) {
        if sys::peer_user(&socket) != Some(shared.user) {
            return turn_away(shared, socket, Refusal::User);
        }
        let mut buffer = [0u8; MAX_RECORD];
        match sys::receive(&socket, &mut buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                let vacant = self.handshakes.iter().position(Option::is_none);
                let index = vacant.unwrap_or(self.handshakes.len());
                if let Err(failure) = shared.epoll.add(&socket, token::handshake(index)) {
                    return refuse_for_want(shared, &socket, &failure);
                }
                self.handshakes.resize_with(self.handshakes.len().max(index + 1), || None);
                self.handshakes[index] = Some(Handshake { socket, since: Instant::now() });
            }
            got => self.greeted(socket, got, &buffer, shared, cookie),
        }
    }

    pub(super) fn read_greeting(&mut self, index: usize, shared: &Shared, cookie: &Id) {
        let Some(Some(handshake)) = self.handshakes.get(index) else { return };
        let mut buffer = [0u8; MAX_RECORD];
        let got = match sys::receive(&handshake.socket, &mut buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
            other => other,
        };
        let Some(Handshake { socket, .. }) = self.handshakes[index].take() else { return };
        shared.epoll.remove(&socket);
        self.greeted(socket, got, &buffer, shared, cookie);
    }

    /// Handles the first record of a connection, or its end.
    fn greeted(
        &mut self,
        socket: OwnedFd,
        got: std::io::Result<sys::Received>,
        buffer: &[u8],
        shared: &Shared,
        cookie: &Id,
    ) {
        let refusal = match got {
            Ok(got) if got.len > 0 => match Record::parse(&buffer[..got.len]) {
                Ok(Record::Hello(hello)) if !same_secret(&hello.cookie, cookie) => Refusal::Cookie,
                Ok(Record::Hello(_)) if got.cut && got.fds.is_empty() => {
                    let why = "no descriptor for the memory that the peer sent (ulimit -n)";
                    return refuse_for_want(shared, &socket, &Failure::new(Status::NoMemory, why));
                }
                Ok(Record::Hello(hello)) => match got.fds.first() {
                    Some(memory) => return self.admit(&hello, memory, socket, shared),
                    None => Refusal::Malformed,
                },
                Ok(_) => Refusal::Malformed,
                Err(refusal) => refusal,
            },
            _ => return, // the peer is already disconnected
        };
        refuse(shared, &socket, refusal);
    }

    /// Handles a valid greeting: creates the receiving end.
    fn admit(&mut self, hello: &Hello, memory: &OwnedFd, socket: OwnedFd, shared: &Shared) {
        let index = next_slot(&self.inbound, &self.free_inbound);
        if index >= MAX_INBOUND {
            let why = format!("{MAX_INBOUND} peers are connected, and no more fit");
            return refuse_for_want(shared, &socket, &Failure::new(Status::NoMemory, why));
        }
        if let Err(failure) = self.ensure_doorbell(index) {
            return refuse_for_want(shared, &socket, &failure);
        }
        let channel = match RecvChannel::accept(hello, memory, socket, index as u64) {
            Ok(channel) => channel,
            Err((socket, Refusal::Resources)) => {
                let why = "the memory of the peer's channel could not be mapped";
                return refuse_for_want(shared, &socket, &Failure::new(Status::NoMemory, why));
            }
            Err((socket, refusal)) => return refuse(shared, &socket, refusal),
        };
        let Some((page, _)) = &self.doorbell else { return };
        if let Err(failure) = shared.epoll.add(&channel.socket, token::inbound(index)) {
            return refuse_for_want(shared, &channel.socket, &failure);
        }
        let ack = Record::Ack { asymmetric: sys::asymmetric(), bell: index as u32 };
        // Without the page the peer continues without a bell. Without this record the peer would take a later refusal for a refusal
        // of the first contact.
        let said = sys::send(&channel.socket, &ack.pack(), &[page.as_fd()])
            .or_else(|_| sys::send(&channel.socket, &ack.pack(), &[]));
        if let Err(error) = said {
            if sys::is_temporary(&error) {
                let failure = Failure::from_io("a word to the peer", &error);
                return refuse_for_want(shared, &channel.socket, &failure);
            }
        }
        insert(&mut self.inbound, &mut self.free_inbound, Box::new(channel));
        let event = Event { kind: event::PEER_ARRIVED, peer: index as u64, ..Event::empty() };
        shared.notify(event, &hello.identity);
    }

    fn ensure_doorbell(&mut self, index: usize) -> Result<(), Failure> {
        if self.doorbell.is_none() {
            let fd = sys::memory_file(c"tieline-shm-doorbell", sys::PAGE)?;
            sys::reserve(&fd, 0, sys::PAGE)?;
            let map = Mapping::new(fd.as_fd(), sys::PAGE, true)?;
            self.doorbell = Some((fd, Arc::new(map)));
        }
        let Some((_, page)) = &self.doorbell else { return Ok(()) };
        for number in self.bells.len()..=index / 64 {
            let word = Word::of(page, number * 8).ok_or(Status::Invalid)?;
            self.bells.push(Bell { word, rung: 0 });
        }
        Ok(())
    }

    pub(super) fn read_inbound(&mut self, index: usize, shared: &Shared) {
        let Some(Some(channel)) = self.inbound.get_mut(index) else { return };
        let _ = channel.read_socket(shared);
    }
}

/// Refuses the peer, because this side cannot receive, and reports the missing resource.
#[cold]
fn refuse_for_want(shared: &Shared, socket: &OwnedFd, what: &Failure) {
    shared.domain.lacks(what);
    refuse(shared, socket, Refusal::Resources);
}

/// Notifies a connection of the reason for closing it.
fn refuse(shared: &Shared, socket: &OwnedFd, refusal: Refusal) {
    shared.refused.set(shared.refused.get() + 1);
    let _ = sys::send(socket, &Record::Refused(refusal).pack(), &[]);
}

/// Refuses a connection of possibly another user, which may have sent anything.
fn turn_away(shared: &Shared, socket: OwnedFd, refusal: Refusal) {
    refuse(shared, &socket, refusal);
    if sys::peer_user(&socket) != Some(shared.user) {
        shared.closer.close(socket);
    }
}

/// Closes a connection that was silent for too long.
fn expire(slot: &mut Option<Handshake>, shared: &Shared) {
    if let Some(handshake) = slot.take() {
        shared.epoll.remove(&handshake.socket);
        shared.refused.set(shared.refused.get() + 1);
    }
}
