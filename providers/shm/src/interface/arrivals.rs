//! Peers that connect: their sockets are accepted, their greetings heard, and what is not right refused.

use super::*;

impl State {
    pub(super) fn look_after_arrivals(&mut self, shared: &Shared) {
        for place in &mut self.arrivals {
            if place.as_ref().is_some_and(|a| a.since.elapsed() > ARRIVAL_DEADLINE) {
                if let Some(arrival) = place.take() {
                    shared.epoll.remove(&arrival.socket);
                    shared.refused.set(shared.refused.get() + 1);
                }
            }
        }
    }

    pub(super) fn accept_all(&mut self, shared: &Shared) {
        for _ in 0..MAX_ARRIVALS {
            match sys::accept(self.listener.socket()) {
                Ok(socket) => {
                    if sys::peer_user(&socket) != Some(shared.user) {
                        refuse(shared, &socket, Refusal::User);
                        continue;
                    }
                    let index = vacancy(&mut self.arrivals);
                    if index >= MAX_ARRIVALS
                        || shared.epoll.add(&socket, token::arrival(index)).is_err()
                    {
                        refuse(shared, &socket, Refusal::Resources);
                        continue;
                    }
                    self.arrivals[index] = Some(Arrival { socket, since: Instant::now() });
                }
                Err(error) if sys::is_exhaustion(&error) && self.spare.is_some() => {
                    // Give up the place that was kept free, to say no instead of nothing.
                    self.spare = None;
                    let waiting = sys::accept(self.listener.socket());
                    let more = waiting.is_ok();
                    if let Ok(socket) = waiting {
                        refuse(shared, &socket, Refusal::Resources);
                    }
                    self.spare = sys::spare();
                    // Without a place the kernel says "full" before it looks whether anybody waits.
                    if !more {
                        return;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.spare = self.spare.take().or_else(sys::spare);
                    return;
                }
            }
        }
    }

    pub(super) fn hear_arrival(&mut self, index: usize, shared: &Shared, cookie: &Id) {
        let Some(Some(arrival)) = self.arrivals.get(index) else { return };
        let mut buffer = [0u8; MAX_RECORD];
        let got = match sys::receive(&arrival.socket, &mut buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
            other => other,
        };
        let Some(Arrival { socket, .. }) = self.arrivals[index].take() else { return };
        shared.epoll.remove(&socket);
        let refusal = match got {
            Ok(got) if got.len > 0 => match Record::parse(&buffer[..got.len]) {
                Ok(Record::Hello(hello)) if !same_secret(&hello.cookie, cookie) => Refusal::Cookie,
                Ok(Record::Hello(_)) if got.cut && got.fds.is_empty() => Refusal::Resources,
                Ok(Record::Hello(hello)) => match got.fds.first() {
                    Some(memory) => return self.admit(&hello, memory, socket, shared),
                    None => Refusal::Malformed,
                },
                Ok(_) => Refusal::Malformed,
                Err(refusal) => refusal,
            },
            _ => return, // gone again
        };
        refuse(shared, &socket, refusal);
    }

    /// A greeting that is in order: makes the receiving end.
    fn admit(&mut self, hello: &Hello, memory: &OwnedFd, socket: OwnedFd, shared: &Shared) {
        let index = vacancy(&mut self.inbound);
        if index >= MAX_INBOUND || self.ensure_doorbell(index).is_err() {
            return refuse(shared, &socket, Refusal::Resources);
        }
        let channel = match RecvChannel::accept(hello, memory, socket, index as u64) {
            Ok(channel) => channel,
            Err((socket, refusal)) => return refuse(shared, &socket, refusal),
        };
        let (Some(socket), Some((page, _))) = (&channel.socket, &self.doorbell) else { return };
        if shared.epoll.add(socket, token::inbound(index)).is_err() {
            return refuse(shared, socket, Refusal::Resources);
        }
        let ack = Record::Ack { asymmetric: sys::asymmetric(), bell: index as u32 };
        // A peer that does not get this goes on with fences and without bell.
        let _ = sys::send(socket, &ack.pack(), &[page.as_fd()]);
        self.inbound[index] = Some(channel);
        self.direct.push(index as u32);
        let event = Event { kind: event::PEER_ARRIVED, peer: index as u64, ..Event::empty() };
        shared.notify(event, &hello.identity);
    }

    fn ensure_doorbell(&mut self, index: usize) -> Result<(), Failure> {
        if self.doorbell.is_none() {
            let fd = sys::memory_file(c"tieline-shm-doorbell", sys::PAGE)?;
            sys::reserve(&fd, 0, sys::PAGE)?;
            let map = Mapping::new(fd.as_fd(), sys::PAGE, true)?;
            self.doorbell = Some((fd, map));
        }
        if self.rung.len() <= index / 64 {
            self.rung.resize(index / 64 + 1, 0);
        }
        Ok(())
    }

    pub(super) fn hear_inbound(&mut self, index: usize, shared: &Shared) {
        let Some(Some(channel)) = self.inbound.get_mut(index) else { return };
        channel.read_socket(shared);
    }
}

/// Tells a connection why it is closed.
fn refuse(shared: &Shared, socket: &OwnedFd, refusal: Refusal) {
    shared.refused.set(shared.refused.get() + 1);
    let _ = sys::send(socket, &Record::Refused(refusal).pack(), &[]);
}
