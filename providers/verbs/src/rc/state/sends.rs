//! Completed sends and the work at their completion.

use super::*;

/// The failed parts of the list whose sends end at present. They end in order, and the list completes with its last send.
#[derive(Default)]
pub(super) struct LostParts {
    count: u32,
    first: Option<(Status, u32)>,
}

impl LostParts {
    /// Records a failed send, with the list that it belongs to. Returns the error of the operation that the send completes, and the
    /// index of the first failed part.
    fn note(&mut self, list: Option<u32>, own: (Status, u32)) -> ((Status, u32), u32) {
        match list {
            None => (own, 0),
            Some(0) => {
                self.count += 1;
                (*self.first.get_or_insert(own), 0)
            }
            Some(parts) => {
                let lost = std::mem::take(self);
                (lost.first.unwrap_or(own), (parts - 1).saturating_sub(lost.count))
            }
        }
    }
}

impl State {
    /// Retires a completed send and all sends before it, if each ends with at most a completion event. Returns `false` if a send
    /// needs more work, the event array is full, or the connection is closing or ending.
    #[inline(always)]
    pub(super) fn plain_sends_completed(
        &mut self,
        id: u64,
        slot: u32,
        number: u32,
        events: &mut Events<'_>,
    ) -> bool {
        let entry = self.connections.get_mut(slot as usize).and_then(Option::as_deref_mut);
        let Some(connection) = entry.filter(|c| c.plain == whose(id)) else { return false };
        connection.active = true;
        connection.queue.retire_plain(number, |cookie| events.push(completion(cookie, 0)))
    }

    /// Retires sends with any work at their completion.
    #[inline(never)] // keeps this function out of the plain sends' path
    pub(super) fn sends_completed(
        &mut self,
        slot: u32,
        generation: u8,
        number: u32,
        mut events: Option<&mut Events<'_>>,
    ) {
        let Some(connection) = current(&mut self.connections, slot, generation) else { return };
        connection.active = true;
        while let Some(ends) = connection.queue.retire(number) {
            let Ends { cookie, silent, buffer, result, borrowed, role, .. } = ends;
            if let Some(buffer) = buffer {
                self.sends.give(buffer);
            }
            let value = match result {
                Some(place) => {
                    let value = self.results.word(place);
                    self.results.give(place);
                    value
                }
                None => 0,
            };
            drop(borrowed);
            match role {
                Role::User => {}
                Role::Hello if connection.phase == Phase::Connecting => {
                    connection.phase = Phase::Established;
                }
                Role::Hello => {}
                Role::Keepalive => connection.keepalive_pending = false,
                Role::Bye => return self.destroy(slot),
            }
            if let (Some(cookie), false) = (cookie, silent || connection.closing) {
                self.notices.completed(cookie, Ok(value), events.as_deref_mut());
            }
        }
        if connection.ending.is_some() && connection.queue.is_empty() {
            self.ended(slot, events); // the device accepted no marker send in ERR
        }
    }

    /// Processes a failed send. All sends before it have completed.
    #[cold]
    pub(super) fn send_not_completed(
        &mut self,
        slot: u32,
        generation: u8,
        number: u32,
        wc: &Wc,
        mut events: Option<&mut Events<'_>>,
    ) {
        if let Some(connection) = self.current(slot, generation) {
            if connection.ending.is_some() {
                // The failed send was flushed. The last flushed send marks the end of the flush.
                if number == connection.queue.next().wrapping_sub(1) {
                    self.ended(slot, events);
                }
                return;
            }
        }
        let before = number.wrapping_sub(1);
        if self.current(slot, generation).is_some_and(|c| c.queue.holds(before)) {
            let active = self.current(slot, generation).is_some_and(|c| c.active);
            self.sends_completed(slot, generation, before, events.as_deref_mut());
            // A local completion does not prove that the peer is alive.
            if let Some(connection) = self.current(slot, generation) {
                connection.active = active;
            }
        }
        if self.current(slot, generation).is_some() {
            self.send_failed(slot, number, wc, events);
        }
    }

    /// Completes an operation that failed with its connection. The text has the reason, and the number beside the status is the
    /// vendor's error number. `lost` has the failed parts of the list to which the send may belong.
    #[cold]
    pub(super) fn complete_failed(
        &mut self,
        slot: u32,
        ends: Ends,
        own: (Status, u32),
        (lost, why): (&mut LostParts, &str),
        events: Option<&mut Events<'_>>,
    ) {
        let silent = self.connection(slot).is_none_or(|connection| connection.closing);
        let ((status, vendor), index) = lost.note(ends.list, own);
        if let (Some(cookie), false) = (ends.cookie, silent) {
            self.notices.failed(cookie, status, (u64::from(vendor), index), why, events);
        }
        self.release_ends(ends);
    }

    /// Fails the connection of a failed send, or restarts it while it is connecting.
    #[cold]
    pub(super) fn send_failed(
        &mut self,
        slot: u32,
        number: u32,
        wc: &Wc,
        mut events: Option<&mut Events<'_>>,
    ) {
        let domain = self.domain.clone();
        // An asynchronous event with the reason may have just arrived. That event then fails the connection.
        if self.read_async_events(events.as_deref_mut()) {
            self.check_timeouts(Instant::now(), true, events.as_deref_mut());
        }
        if self.connection(slot).is_none_or(|c| matches!(c.phase, Phase::Failed(_))) {
            return;
        }
        let Some(connection) = self.connection(slot) else { return };
        let (own, failure) = match connection.async_error.take() {
            Some(failure) => (Status::Io, failure),
            None => {
                let peer = connection.peer.as_ref().map(|peer| (peer.qpn, &peer.port));
                queue_pair::completion_error(wc, &domain, peer)
            }
        };
        if connection.phase == Phase::Connecting
            && wc.status == IBV_WC_RETRY_EXC_ERR
            && !domain.watch.device_gone()
            && Instant::now() < connection.deadline
        {
            let ends = connection.queue.retire(number);
            let again = connection.start_again(&domain);
            let qpn = connection.own.qpn;
            self.receives.let_go(qpn, Some(slot));
            if let Some(ends) = ends {
                self.release_ends(ends);
            }
            if again
                .is_ok_and(|speaks| !speaks || self.control(slot, Kind::Hello, Role::Hello).is_ok())
            {
                return;
            }
        } else {
            connection.blamed =
                connection.queue.retire(number).map(|ends| (ends, own, wc.vendor_err));
        }
        self.fail_connection(slot, &failure, events);
    }
}
