//! The life of a connection: creation, connecting, closing, failure.

use super::sends::LostParts;
use super::*;
use crate::rc::connection::{NOT_PLAIN, Packed};

/// The time limit for the device to flush sends with application memory when an endpoint is closed. Most devices need microseconds.
const MOMENT: Duration = Duration::from_micros(500);

/// Checks whether a send that failed with this error number may succeed later.
fn is_transient(errno: i32) -> bool {
    errno == libc::ENOMEM || errno == libc::EAGAIN
}

impl State {
    pub(crate) fn new_connection(&mut self, cookie: u64) -> Result<u32, Failure> {
        if self.cq.is_none() {
            let _ = self.read_async_events(None); // while there was no connection, no poll has read the device's events
        }
        if self.domain.watch.device_gone() {
            let text = format!("the device {} was removed", self.domain.name.device);
            return Err(Failure::new(Status::NoDevice, text));
        }
        if let Some(why) = self.domain.watch.moved() {
            return Err(Failure::new(Status::Unreachable, why));
        }
        self.has_room()?;
        if self.cleanup.is_full() {
            self.finish_endings(false);
            if self.domain.watch.port_down() {
                let text = format!("{} is down", self.domain.name.words());
                return Err(Failure::new(Status::Unreachable, text));
            }
        }
        self.open_queues()?;
        let depth = self.provide_completions()?;
        let slot = self.free_slot();
        let mut psn = [0; 4];
        random(&mut psn)?;
        let settings = &self.domain.settings;
        let own = EndpointAddress {
            port: self.domain.port,
            qpn: 0,
            psn: u32::from_le_bytes(psn) & 0xff_ffff,
            slot: slot as u32,
            window: settings.window as u16,
            reads: self.domain.reads_served,
            segment: settings.segment as u32,
            seal: self.domain.seal,
        };
        let generation = self.generations[slot];
        let make = |state: &State| {
            let cq = state.cq.as_ref().ok_or(Status::Closed)?;
            let srq = state.receives.shared();
            Connection::new(&state.domain, cq, srq, own, cookie, generation)
        };
        let made = match make(self) {
            // Devices report exhaustion with different errors. Destroying retired queue pairs frees resources, so the creation is
            // retried once.
            Err(_) if !self.cleanup.is_empty() => {
                self.finish_endings(true);
                make(self)
            }
            made => made,
        };
        let mut connection = match made {
            Ok(connection) => connection,
            Err(failure) => {
                self.free.push(slot as u32);
                return Err(failure);
            }
        };
        let _ = connection.queue.limit(depth);
        self.connections[slot] = Some(Box::new(connection));
        self.live += 1;
        self.windows += usize::from(own.window) + CONTROL;
        if let Err(failure) = self.provide_receives(usize::from(own.window) + CONTROL, slot as u32)
        {
            self.destroy(slot as u32); // the caller gets no endpoint to close
            return Err(failure);
        }
        self.wake_while_needed();
        Ok(slot as u32)
    }

    fn free_slot(&mut self) -> usize {
        if let Some(free) = self.free.pop() {
            return free as usize;
        }
        self.connections.push(None);
        self.generations.push(0);
        self.connections.len() - 1
    }

    /// Destroys retired queue pairs to make room for another one, see [`Cleanup::make_room`]. Before that, reads the device's
    /// events and the unread completions.
    #[cold]
    fn finish_endings(&mut self, all: bool) {
        self.note_more_to_do();
        let _ = self.read_async_events(None);
        let _ = self.catch_up(None);
        let down = self.domain.watch.port_down();
        self.cleanup.destroy_drained(Instant::now(), down, self.places());
        if !down {
            self.cleanup.make_room(all);
        }
        self.reclaim_receives();
    }

    /// Sends a control message.
    ///
    /// # Errors
    /// `Again` if the send queue is full, or if the device or the provider is out of memory; `Io` if the device rejects the
    /// message.
    pub(super) fn control(&mut self, slot: u32, kind: Kind, role: Role) -> Result<(), Status> {
        let Some(connection) =
            self.connections.get_mut(slot as usize).and_then(Option::as_deref_mut)
        else {
            return Ok(());
        };
        if !connection.queue.has_reserve() {
            return Err(Status::Again);
        }
        let grant = connection.credits.next_grant();
        let head = Header { header: 0, id: 0, grant, kind }.pack();
        // A credit message is the only kind that need not be signalled: nothing depends on its completion.
        let mut flags = if kind == Kind::Credit { 0 } else { IBV_SEND_SIGNALED };
        let mut ends = Ends { role, ..Ends::default() };
        let piece = if connection.inline() >= HEADER_LEN {
            flags |= IBV_SEND_INLINE;
            borrowed(&head)
        } else {
            let Ok(buffer) = self.sends.take() else { return Err(Status::Again) };
            self.sends.bytes_mut(buffer)[..HEADER_LEN].copy_from_slice(&head);
            ends.buffer = Some(buffer);
            self.sends.sge(buffer, HEADER_LEN)
        };
        let work = connection.to_peer();
        match connection.post(work, &[piece], ends, flags) {
            Ok(()) => {
                connection.credits.grant_sent(grant);
                Ok(())
            }
            Err(refused) => {
                self.release_ends(refused.ends);
                Err(if is_transient(refused.errno) { Status::Again } else { Status::Io })
            }
        }
    }

    /// Posts the held sends of a connection. If the device is out of memory, the sends are retried later.
    #[cold]
    pub(crate) fn tell(&mut self, slot: u32) -> Result<(), Status> {
        let Some(Err(refused)) = self.connection(slot).map(Connection::tell) else { return Ok(()) };
        if is_transient(refused.errno) {
            self.post_later(slot);
            return Ok(());
        }
        Err(self.refused(slot, refused))
    }

    /// Queues a connection for posting at the next poll.
    pub(crate) fn post_later(&mut self, slot: u32) {
        self.note_more_to_do();
        if !self.unposted.contains(&slot) {
            self.unposted.push(slot);
        }
    }

    /// Posts the packed message of a connection. If the device is out of memory, the post is retried later.
    #[inline]
    pub(crate) fn post_packed_of(&mut self, slot: u32) -> Result<(), Status> {
        let Some(connection) =
            self.connections.get_mut(slot as usize).and_then(Option::as_deref_mut)
        else {
            return Err(Status::Closed);
        };
        let Packed::Message(buffer, len) = connection.packed else { return Ok(()) };
        connection.packed = Packed::Nothing;
        let piece = self.sends.sge(buffer, len);
        let ends = Ends { buffer: Some(buffer), ..Ends::default() };
        let work = connection.to_peer();
        let Err(refused) = connection.post(work, &[piece], ends, 0) else { return Ok(()) };
        if is_transient(refused.errno) {
            connection.packed = Packed::Message(buffer, len);
            self.post_later(slot);
            return Ok(());
        }
        Err(self.refused(slot, refused))
    }

    /// Retries the sends that the device did not accept.
    #[cold]
    pub(super) fn post_packed(&mut self) {
        for slot in core::mem::take(&mut self.unposted) {
            // A broken connection reports its own failure.
            let _ = self.tell(slot).and_then(|()| self.post_packed_of(slot));
        }
    }

    /// Returns the status of a data call whose send the device rejected.
    #[cold]
    pub(crate) fn refused(&mut self, slot: u32, refused: NotPosted) -> Status {
        let errno = refused.errno;
        self.release_ends(refused.ends);
        if is_transient(errno) {
            return Status::Again;
        }
        let error = std::io::Error::from_raw_os_error(errno);
        let text = format!("{} accepts no more sends: {error}", self.domain.name.words());
        self.fail_connection(slot, &Failure::new(Status::Io, text), None);
        // While the device flushes the connection, the status is `Again`: the reason is reported later.
        self.connection(slot).and_then(|c| c.may_post().err()).unwrap_or(Status::Io)
    }

    /// Connects an endpoint to the endpoint of the peer.
    pub(crate) fn connect(&mut self, slot: u32, address: &[u8]) -> Result<(), Failure> {
        let peer = EndpointAddress::unpack(address)?;
        let domain = self.domain.clone();
        let connection = self.connection(slot).ok_or(Status::Closed)?;
        match connection.phase {
            Phase::Unconnected => {}
            Phase::Failed(status) => return Err(connection.over(status)),
            _ => return Err(Failure::new(Status::Busy, "this endpoint is connected already")),
        }
        domain.reaches(&peer.port)?;
        fits(domain.settings.segment as u32, peer.segment)?;
        connection.peer = Some(peer);
        connection.ready(&domain, &peer)?;
        connection.credits.open(u32::from(peer.window));
        connection.phase = Phase::Connecting;
        connection.deadline = Instant::now() + domain.settings.connect;
        // Both sides send a hello. The hello of the side that connects last arrives immediately. Only one side retransmits its
        // hello. The other side is connected when that hello arrives, no matter which side polls.
        if self.control(slot, Kind::Hello, Role::Hello).is_err() {
            return Err(Failure::new(
                Status::Io,
                "the first message of a connection cannot be posted",
            ));
        }
        Ok(())
    }

    /// Closes an endpoint. Earlier sends still arrive, unless the device works on memory of the application or the connection is
    /// not established.
    pub(crate) fn close(&mut self, slot: u32) {
        let Some(connection) = self.connection(slot) else { return };
        (connection.closing, connection.plain) = (true, NOT_PLAIN);
        let _ = self.post_packed_of(slot); // if the device accepts the packed message later, the message still precedes the goodbye
        let Some(connection) = self.connection(slot) else { return };
        let touches = |c: &mut Connection| c.queue.touches_application();
        if connection.phase != Phase::Established || touches(connection) {
            self.destroy(slot);
            // After this call the device must not access the application's memory. A device that flushes in time also returns its
            // shared receives.
            let until = Instant::now() + MOMENT;
            while self.connection(slot).is_some_and(touches) {
                let late = Instant::now() >= until;
                let _ = self.catch_up(None);
                if late && self.connection(slot).is_some_and(touches) {
                    return self.abandon(slot, None);
                }
            }
            return;
        }
        self.send_goodbye(slot);
    }

    /// Sends the goodbye of a connection after all other sends. If there is no room or memory for the goodbye, it is retried later.
    fn send_goodbye(&mut self, slot: u32) {
        let Some(connection) = self.connection(slot) else { return };
        let (generation, waits) = (connection.generation, connection.packed != Packed::Nothing);
        match if waits { Err(Status::Again) } else { self.control(slot, Kind::Bye, Role::Bye) } {
            Ok(()) => {
                if let Some(connection) = self.connection(slot) {
                    connection.stalled = None;
                }
            }
            Err(Status::Again) => self.goodbyes.push((slot, generation)),
            Err(_) => self.destroy(slot),
        }
    }

    /// Retries the goodbyes that are not posted yet.
    #[cold]
    pub(super) fn retry_goodbyes(&mut self) {
        for (slot, generation) in core::mem::take(&mut self.goodbyes) {
            if self.current(slot, generation).is_some() {
                self.send_goodbye(slot);
            }
        }
    }

    /// Destroys a connection and releases its resources, without an event.
    pub(super) fn destroy(&mut self, slot: u32) {
        let Some(connection) = self.connection(slot) else { return };
        (connection.closing, connection.plain) = (true, NOT_PLAIN);
        self.end(slot, Status::Closed.into(), None);
    }

    /// Fails a connection: all its outstanding operations fail with `failure`, and the application is notified. A closing
    /// connection is destroyed without an event.
    #[cold]
    pub(crate) fn fail_connection(
        &mut self,
        slot: u32,
        failure: &Failure,
        events: Option<&mut Events<'_>>,
    ) {
        match self.connection(slot) {
            Some(connection) if connection.closing => self.destroy(slot),
            Some(Connection { phase: Phase::Failed(_), .. }) | None => {}
            Some(_) => self.end(slot, failure.clone(), events),
        }
    }

    /// Retires the queue pair of a failed connection. When the application is notified, the device must no longer access the
    /// application's memory. The notification therefore comes in [`State::ended`], after the device has flushed the last send.
    #[cold]
    fn end(&mut self, slot: u32, failure: Failure, events: Option<&mut Events<'_>>) {
        self.note_more_to_do();
        let Some(connection) = self.connection(slot).filter(|c| c.ending.is_none()) else { return };
        // As an operation's status, `KeyRejected` means that the endpoint stays usable. That status applies to one operation only,
        // so the connection gets `Io`.
        connection.phase = Phase::Failed(match failure.status {
            Status::KeyRejected => Status::Io,
            other => other,
        });
        // After these errors the link may be down, unless either side ended the connection.
        let lost =
            matches!(failure.status, Status::TimedOut | Status::Unreachable | Status::NoDevice);
        connection.ending = Some((failure, Instant::now()));
        connection.plain = NOT_PLAIN;
        let packed = std::mem::replace(&mut connection.packed, Packed::Nothing);
        let waits = !connection.queue.is_empty();
        let drains = connection.peer.is_some()
            && connection.qp.as_ref().is_some_and(|qp| qp.to_error().is_ok());
        if drains && waits {
            // Earlier sends may have ended without a completion; this signalled send completes when the device flushes it. Some
            // devices accept no send in ERR. Then the last outstanding send marks the end of the flush.
            let work = Work::Write { address: 0, rkey: 0 };
            let _ = connection.post(work, &[], Ends::default(), IBV_SEND_SIGNALED);
        }
        if let Some(qp) = connection.qp.take() {
            let broke = lost || self.domain.watch.port_down();
            // The device flushes all receives in a queue pair's own queue. If none is posted, no flush is pending.
            let none_left = !drains || self.receives.posted_to(qp.number()) == Some(0);
            self.cleanup.drain(qp, broke, waits, none_left.then_some(0));
            self.reclaim_receives();
        }
        if let Packed::Message(buffer, _) = packed {
            self.sends.give(buffer);
        }
        match (drains, waits) {
            (true, true) => {}
            (false, true) => self.abandon(slot, events),
            (_, false) => self.ended(slot, events),
        }
    }

    /// Stops waiting for the device to flush the sends of an ended connection.
    pub(super) fn abandon(&mut self, slot: u32, events: Option<&mut Events<'_>>) {
        let Some(connection) = self.connection(slot).filter(|c| c.ending.is_some()) else { return };
        let (qpn, outstanding) = (connection.own.qpn, connection.queue.len());
        self.cleanup.reset(qpn, outstanding);
        self.reclaim_receives();
        self.ended(slot, events);
    }

    /// Handles the end of the flush: fails all outstanding operations and notifies the application.
    #[cold]
    pub(super) fn ended(&mut self, slot: u32, mut events: Option<&mut Events<'_>>) {
        self.note_more_to_do();
        let Some(connection) = self.connection(slot) else { return };
        let Some((failure, _)) = connection.ending.take() else { return };
        let Phase::Failed(status) = connection.phase else { return };
        let (closing, cookie, qpn) = (connection.closing, connection.cookie, connection.own.qpn);
        let (blamed, mut lost) = (connection.blamed.take(), LostParts::default());
        // Completions that are still unread are stale from here on.
        connection.generation = connection.generation.wrapping_add(1);
        self.generations[slot as usize] = connection.generation;
        self.cleanup.given_back(qpn);
        if let Some((ends, own, vendor)) = blamed {
            let lost = (&mut lost, &*failure.text);
            self.complete_failed(slot, ends, (own, vendor), lost, events.as_deref_mut());
        }
        while let Some(ends) = self.connection(slot).and_then(|c| {
            let last = c.queue.next().wrapping_sub(1);
            c.queue.retire(last)
        }) {
            let lost = (&mut lost, &*failure.text);
            self.complete_failed(slot, ends, (status, 0), lost, events.as_deref_mut());
        }
        match closing {
            true => self.forget_connection(slot),
            false => self.notices.endpoint_failed(cookie, &failure, events),
        }
        self.wake_while_needed();
    }

    /// Fails every connection immediately, because the state of the device and its queues is unknown.
    #[cold]
    pub(super) fn fail_all(
        &mut self,
        status: Status,
        text: &str,
        mut events: Option<&mut Events<'_>>,
    ) {
        for slot in 0..self.connections.len() {
            let failure = Failure::new(status, text);
            self.fail_connection(slot as u32, &failure, events.as_deref_mut());
            self.abandon(slot as u32, events.as_deref_mut());
        }
    }
}
