//! The socket of a sending channel: its connection, the records of the receiver, and its end.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use tieline_plugin_api::{Failure, NO_GOODBYE, Status};

use super::{Doorbell, SendChannel, Stage, after};
use crate::hello::{MAX_RECORD, Record, Refusal};
use crate::imports::ImportedKey;
use crate::keys::Key;
use crate::receiver::MOST_IN_TURN;
use crate::shared::Returned;
use crate::sys;

impl SendChannel {
    /// Continues to connect. Returns `false` if the socket is not connected yet.
    pub(crate) fn advance(&self) -> Result<bool, Failure> {
        if self.stage.get() != Stage::Connecting {
            return Ok(true);
        }
        let socket = match self.socket.get() {
            Some(socket) => socket,
            None => {
                let Some(socket) = self.dial()? else { return Ok(false) };
                let peer = sys::peer(&socket);
                if peer.map(|(user, _)| user) != Some(self.shared.user) {
                    self.shared.closer.close(socket);
                    return Err(Failure::new(
                        Status::Permission,
                        "the socket at the peer's address belongs to another user",
                    ));
                }
                // The kernel is asked instead of the address. A peer that claims the domain of this process in its address must not
                // reach the memory of this process.
                self.leads_home.set(peer.map(|(_, pid)| pid) == Some(sys::own_pid()));
                self.shared.epoll.add(&socket, crate::shared::token::outbound(self.index))?;
                self.socket.get_or_init(|| socket)
            }
        };
        let greeting = self.greeting.borrow_mut().take();
        if let Some((file, hello)) = greeting {
            match sys::send(socket, &hello, &[file.as_fd()]) {
                Ok(()) => {}
                Err(error) if sys::is_temporary(&error) => {
                    *self.greeting.borrow_mut() = Some((file, hello));
                    return Ok(false);
                }
                // The connection was refused before the greeting was read: the refusal is on the socket, and is read as after a
                // greeting.
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
                Err(error) => return Err(Failure::from_io("greeting the peer", &error)),
            }
        }
        let _ = self.enter(Stage::Open);
        let _ = self.ring.refresh();
        Ok(true)
    }

    /// Tries to connect with each name, until one connects. Returns `None` if a listener's queue is full.
    pub(super) fn dial(&self) -> Result<Option<OwnedFd>, Failure> {
        let mut failure = Failure::new(Status::Unreachable, "no socket name to connect to");
        for target in &self.targets {
            match sys::connect(target) {
                Ok(socket) => return Ok(Some(socket)),
                Err(f) if f.status == Status::Again => return Ok(None),
                Err(_) if failure.status == Status::PeerFailed => {}
                Err(f) => failure = f,
            }
        }
        if failure.status == Status::PeerFailed {
            failure.text = "there is no listener at the peer's address: the peer has exited".into();
        }
        Err(failure)
    }

    pub(crate) fn is_connecting(&self) -> bool {
        self.stage.get() == Stage::Connecting
    }

    /// Handles a record from the receiver. With `Err` the endpoint has failed, for the reason given.
    pub(crate) fn handle(&self, record: Record, fds: &[OwnedFd], cut: bool) -> Result<(), String> {
        match record {
            Record::Ack { asymmetric, bell } => {
                self.admitted.set(true);
                if asymmetric && sys::asymmetric() {
                    self.set_after(after::FENCE, false);
                }
                let page = fds.first().and_then(|fd| sys::map_peer(fd, sys::PAGE, true));
                if let (Some(map), true) = (page, (bell as usize) < sys::PAGE * 8) {
                    let word = bell as usize / 64 * 8;
                    let _ = self.bell.set(Doorbell { map, word, bit: 1 << (bell % 64) });
                    self.announce_bell();
                }
                Ok(())
            }
            Record::Wake => Ok(()),
            Record::Refused(refusal) => Err(refusal.text().to_string()),
            Record::KeyReply { segment, len, table_len, writable } => {
                if !self.asking.answered(segment, (len, table_len), writable, fds, cut) {
                    return Err("the peer sent memory without a request".to_string());
                }
                Ok(())
            }
            _ => Err("the peer sent an invalid record".to_string()),
        }
    }

    /// Returns a key of the peer, if the key's region is mapped in this process. `Err(Again)` means that the key must be requested.
    pub(crate) fn find_key(&self, key: Key) -> Result<ImportedKey, Failure> {
        let exports = &self.shared.domain.exports;
        let home = self.leads_home.get() && key.domain == self.shared.domain.id;
        self.asking.find(key, home.then_some(exports))
    }

    /// Requests a region of the peer's domain, and checks for the answer, so that the initiator need not make progress for the
    /// answer.
    pub(crate) fn request_key(&self, key: Key) -> Status {
        if let Err(failure) = self.advance() {
            self.fail(failure.status, &failure.text);
        }
        self.read_socket();
        if let Some(known) = self.asking.known(key) {
            return known;
        }
        match self.stage.get() {
            Stage::Over(status) => return self.status().err().unwrap_or(status),
            Stage::Closing => return Status::Closed,
            Stage::Connecting => {}
            Stage::Open => {
                if let Some(socket) = self.socket.get() {
                    self.asking.ask(key, socket);
                }
            }
        }
        Status::Again
    }

    /// Reads records of the peer from the socket, at most [`MOST_IN_TURN`].
    pub(crate) fn read_socket(&self) {
        let Some(socket) = self.socket.get() else { return };
        let mut buffer = [0u8; MAX_RECORD];
        for _ in 0..MOST_IN_TURN {
            if matches!(self.stage.get(), Stage::Over(_)) {
                return;
            }
            let outcome = match sys::receive(socket, &mut buffer) {
                Ok(got) if got.len == 0 => Err((Status::PeerFailed, NO_GOODBYE.to_string())),
                Ok(got) => match Record::parse(&buffer[..got.len]) {
                    Ok(Record::Refused(refusal)) => return self.refused(refusal),
                    Ok(record) => {
                        let handled = self.handle(record, &got.fds, got.cut);
                        handled.map_err(|why| (Status::BadData, why))
                    }
                    Err(_) => {
                        Err((Status::BadData, "the peer sent a malformed record".to_string()))
                    }
                },
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) if sys::is_passing(&error) => Ok(()),
                Err(error) => Err((Status::PeerFailed, format!("{NO_GOODBYE}: {error}"))),
            };
            if let Err((status, why)) = outcome {
                return self.fail(status, &why);
            }
        }
    }

    /// Handles the failure of the endpoint. An event notifies the application, after the data that the peer had written; later
    /// sends return `status`. Sends before the event find no room, because the status would reveal the failure too early.
    pub(crate) fn fail(&self, status: Status, why: &str) {
        self.end(status, why, None);
    }

    /// Handles the peer's refusal or abandonment of this channel.
    fn refused(&self, refusal: Refusal) {
        let returned = match refusal {
            // The peer lacks a resource, or uses another version, so another route may work. If this process was refused for lack
            // of permission, every route would be refused.
            Refusal::Resources | Refusal::Version => self.untaken(),
            _ => None,
        };
        self.end(status_of(refusal), refusal.text(), returned);
    }

    /// Ends the channel. `returned` has the messages sent to a peer that received none of them.
    fn end(&self, status: Status, why: &str, returned: Option<Vec<Returned>>) {
        if matches!(self.stage.get(), Stage::Over(_)) {
            return;
        }
        let closing = self.stage.get() == Stage::Closing;
        let _ = self.enter(if closing { Stage::Closing } else { Stage::Over(status) });
        self.ring.shut();
        self.gone.set(true);
        self.hang_up();
        self.recover_chunks();
        if status == Status::PeerFailed {
            crate::listener::remove_dead(&self.targets);
        }
        if !closing {
            self.status.set(Err(Status::Again));
            match returned {
                Some(messages) => {
                    let failed = (status, why);
                    self.shared.endpoint_untaken(self.index, self.cookie, failed, messages);
                }
                None => self.shared.endpoint_failed(self.index, self.cookie, status, why),
            }
        }
    }

    /// Records that the application has been notified of the endpoint's failure.
    pub(crate) fn told(&self) {
        let _ = self.enter(self.stage.get());
    }

    pub(super) fn hang_up(&self) {
        if let Some(socket) = self.socket.get() {
            self.shared.epoll.remove(socket);
        }
    }

    /// Takes back the unread chunks of a receiver that has ended, or has closed its end because it has finished reading.
    pub(super) fn recover_chunks(&self) {
        for (_, chunk) in self.flight.borrow_mut().drain(..) {
            self.shared.pool.give(chunk);
        }
        self.flight_bytes.set(0);
    }

    #[inline]
    pub(crate) fn status(&self) -> Result<(), Status> {
        self.status.get()
    }

    /// Returns the status, even if the application has not been notified yet.
    pub(super) fn outcome(&self) -> Result<(), Status> {
        if let Stage::Over(status) = self.stage.get() { Err(status) } else { self.status() }
    }

    /// Handles a socket that accepts nothing. If it was disconnected, reading it reports that.
    #[cold]
    pub(super) fn sending_failed(&self) -> Status {
        self.read_socket();
        self.status().err().unwrap_or(Status::PeerFailed)
    }

    /// Enters a stage and returns the previous stage.
    fn enter(&self, stage: Stage) -> Stage {
        self.status.set(match stage {
            Stage::Over(status) => Err(status),
            Stage::Closing => Err(Status::Closed),
            Stage::Connecting | Stage::Open => Ok(()),
        });
        self.stage.replace(stage)
    }

    /// Handles the application's close of the endpoint. Sent data stays until the receiver has drained it and disconnects.
    pub(crate) fn close(&self) {
        let was = self.enter(Stage::Closing);
        self.ring.shut();
        match (was, self.socket.get()) {
            (Stage::Open, Some(socket)) => self.say_bye(socket),
            // The endpoint has already left with its interface.
            (Stage::Closing, _) => {}
            _ => self.gone.set(true),
        }
    }

    /// Checks whether the channel is closed, with nothing remaining to wait for.
    pub(crate) fn is_done(&self) -> bool {
        self.stage.get() == Stage::Closing && self.gone.get()
    }

    /// Checks whether a record that could not be sent before is still owed.
    pub(crate) fn owes(&self) -> bool {
        self.bye_due.get() && !self.gone.get()
    }

    /// Sends a goodbye. If the socket is full, the goodbye is retried later.
    pub(super) fn say_bye(&self, socket: &OwnedFd) {
        let sent = sys::send(socket, &Record::Bye.pack(), &[]);
        self.bye_due.set(sent.is_err_and(|error| sys::is_temporary(&error)));
    }

    /// Waits for room for the goodbye: without the goodbye, the receiver takes the end of the socket for a death.
    pub(crate) fn insist_on_bye(&self, until: Instant) {
        let Some(socket) = self.socket.get() else { return };
        while self.owes() && sys::wait_for_room(socket, until) {
            self.say_bye(socket);
        }
    }

    #[cfg(test)]
    pub(crate) fn memory_map(&self) -> &sys::Mapping {
        &self.map
    }

    /// Checks whether a message that found no room may find room again.
    pub(crate) fn has_news(&self) -> bool {
        let moved = |since: u64| self.ring.tail_now() != since;
        match self.starved.get() {
            Some(since) if moved(since) => {
                self.starved.set(None);
                true
            }
            None if self.shared.pool_starved.get() && self.flight_bytes.get() > 0 => {
                moved(self.ring.seen())
            }
            _ => false,
        }
    }
}

/// Returns the status with which an endpoint ends after a refusal.
fn status_of(refusal: Refusal) -> Status {
    match refusal {
        Refusal::Cookie | Refusal::User => Status::Permission,
        Refusal::Version => Status::Unreachable,
        Refusal::Resources | Refusal::Unanswered => Status::NoMemory,
        Refusal::Malformed | Refusal::BadChannel => Status::BadData,
        Refusal::Closing => Status::Closed,
    }
}
