//! Progress: completions, arrived messages, asynchronous events and timeouts. Completed sends are in `sends.rs`.

use super::*;

impl State {
    #[inline(always)] // inlined into the entry point that the core calls
    pub(crate) fn poll(&mut self, events: &mut Events<'_>) {
        let read = match (self.quiet.take_read(), self.quiet.left()) {
            (0, 0) => return self.poll_all(events),
            (0, _) if events.room() == 0 => return self.poll_all(events),
            (0, left) => {
                self.quiet.set_left(left - 1);
                self.quiet.fetch()
            }
            (read, _) => read,
        };
        match read {
            0 => {}
            count @ 1.. => self.fetched(count as usize, Some(events)),
            _ => self.cannot_be_polled(Some(events)),
        }
    }

    /// Decides whether the next poll must do more than read the completion queue.
    pub(super) fn look_for_more_to_do(&mut self) {
        let waits = self.notices.waits() | self.unposted.len() | self.cleanup.waits();
        if waits != 0 {
            return self.note_more_to_do();
        }
        self.quiet.set_left(self.quiet.left() + core::mem::take(&mut self.polls_behind));
    }

    /// Notes that the next poll must do more than read the completion queue.
    pub(super) fn note_more_to_do(&mut self) {
        self.polls_behind += self.quiet.left();
        self.quiet.set_left(0);
    }

    #[inline(never)] // keeps this function out of an empty poll's path
    fn poll_all(&mut self, events: &mut Events<'_>) {
        self.note_more_to_do();
        if self.notices.are_out() {
            self.release();
        }
        if !self.unposted.is_empty() {
            self.post_packed();
        }
        match self.polls_behind {
            0 => self.slow_progress(Some(events), false),
            polls => self.polls_behind = polls - 1,
        }
        if self.notices.hand_out(events) {
            let _ = self.fetch(Some(events));
        }
        self.look_for_more_to_do();
    }

    /// Releases the messages and texts that the previous poll delivered.
    pub(super) fn release(&mut self) {
        self.notices.release_texts();
        while let Some(Delivered { buffer, slot, generation }) = self.notices.taken() {
            // A new connection in this slot has receives of its own.
            let connection = current(&mut self.connections, slot, generation);
            self.receives.again(buffer, if connection.is_some() { slot } else { NOBODY });
            let Some(connection) = connection else { continue };
            connection.credits.taken();
            if connection.credits.is_due() && !self.credits_due.contains(&slot) {
                self.credits_due.push(slot);
                self.grow_window(slot);
            }
        }
        if let Err(refused) = self.post_receives() {
            self.receives_refused(refused, None);
        }
        if !self.credits_due.is_empty() {
            self.return_credits();
        }
    }

    /// Fetches a batch of completions. Returns whether there was any.
    pub(super) fn fetch(&mut self, events: Option<&mut Events<'_>>) -> bool {
        if self.quiet.is_in_use() {
            // This call is nested in a poll, or in the processing of a batch. The outer call reports the earlier completions.
            return false;
        }
        // Before the first connection, nothing is posted to the device.
        if self.cq.is_none() {
            return false;
        }
        match self.quiet.fetch() {
            0 => self.cleanup.fetched(0, true),
            count @ 1.. => {
                self.fetched(count as usize, events);
                return true;
            }
            _ => {
                self.cannot_be_polled(events);
                self.cleanup.fetched(0, true);
            }
        }
        false
    }

    /// Processes `count` completions of the batch.
    #[inline(never)] // keeps this function out of an empty poll's path
    fn fetched(&mut self, count: usize, mut events: Option<&mut Events<'_>>) {
        self.cleanup.fetched(count, false);
        let Some(batch) = self.quiet.take_batch() else { return };
        let mut rest = batch[..count.min(batch.len())].iter();
        // The fast path needs an empty backlog and room for events.
        if let (Some(events), true) = (events.as_deref_mut(), self.notices.is_empty()) {
            let shares = self.receives.shared().is_some();
            for wc in rest.by_ref() {
                if self.completed_simply(wc, shares, events) {
                    continue;
                }
                self.completed(wc, Some(&mut *events));
                if !self.notices.is_empty() {
                    break;
                }
            }
        }
        for wc in rest {
            self.completed(wc, events.as_deref_mut());
        }
        self.quiet.give_batch(batch);
        if !self.receives.has_none_to_post() {
            if let Err(refused) = self.post_receives() {
                self.receives_refused(refused, events);
            }
        }
        self.look_for_more_to_do();
    }

    /// Processes a completion of the common kind. Returns `false` if the completion is of another kind or the event array is full;
    /// [`State::completed`] must then process it. `shares`: the connections share a receive queue.
    #[inline(always)]
    fn completed_simply(&mut self, wc: &Wc, shares: bool, events: &mut Events<'_>) -> bool {
        if wc.status != IBV_WC_SUCCESS {
            return false;
        }
        match about(wc.wr_id) {
            About::Send { slot, number, .. } => {
                self.plain_sends_completed(wc.wr_id, slot, number, events)
            }
            // Completions of a shared queue are never stale.
            About::Receive { buffer, .. } => shares && self.message_arrived(buffer, wc, events),
        }
    }

    #[inline(never)] // keeps this function out of the simple completions' path
    fn completed(&mut self, wc: &Wc, events: Option<&mut Events<'_>>) {
        match about(wc.wr_id) {
            About::Receive { buffer, stamp } => {
                let (came, last) = self.receives.came(buffer, stamp);
                if last.is_some() {
                    self.cleanup.last_receive(last, 0);
                }
                if came {
                    self.receive_completed(buffer, wc, events);
                }
            }
            About::Send { slot, generation, number } if wc.status == IBV_WC_SUCCESS => {
                self.sends_completed(slot, generation, number, events);
            }
            About::Send { slot, generation, number } => {
                self.send_not_completed(slot, generation, number, wc, events);
            }
        }
    }

    #[cold]
    fn cannot_be_polled(&mut self, events: Option<&mut Events<'_>>) {
        let failure = Cq::not_polled();
        // Without the array there are no nested fetches.
        let batch = self.quiet.take_batch();
        self.fail_all(failure.status, &failure.text, events);
        batch.into_iter().for_each(|batch| self.quiet.give_batch(batch));
    }

    /// Fetches every completion from before the call, limited to the capacity of the queue: a peer may send as fast as this side
    /// reads. Returns whether the queue was then empty.
    pub(super) fn catch_up(&mut self, mut events: Option<&mut Events<'_>>) -> bool {
        let batches = self.places().div_ceil(WC_BATCH);
        batches == 0 || !(0..batches).all(|_| self.fetch(events.as_deref_mut()))
    }

    /// Returns the slot of a queue pair's connection; `u32::MAX` without one, and with a shared queue, which needs no slot.
    #[cold]
    fn slot_of(&self, qpn: u32) -> u32 {
        let mut all = self.connections.iter().flatten();
        let owner = match self.receives.shared() {
            None => all.find(|c| c.own.qpn == qpn && c.qp.is_some()),
            Some(_) => None,
        };
        owner.map_or(u32::MAX, |connection| connection.own.slot)
    }

    /// Delivers a message of an established connection. Returns `false`, without effect, if the arrival is of another kind or the
    /// event array is full.
    #[inline(always)]
    fn message_arrived(&mut self, buffer: u32, wc: &Wc, events: &mut Events<'_>) -> bool {
        if wc.wc_flags & IBV_WC_WITH_IMM == 0 || wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM {
            return false;
        }
        let slot = u32::from_be(wc.imm_data);
        let connection = self.connections.get_mut(slot as usize).and_then(Option::as_deref_mut);
        let Some(connection) = connection else { return false };
        // The queue pair authenticates the sender, so the slot in the immediate value must belong to this queue pair's
        // connection.
        let stands = connection.phase == Phase::Established && !connection.closing;
        if connection.own.qpn != wc.qp_num || !stands || events.room() == 0 {
            return false;
        }
        let bytes = self.receives.bytes(buffer, wc.byte_len as usize);
        let Some((head, payload)) = Header::parse_message(bytes) else { return false };
        if !connection.credits.message(head.grant) {
            return false;
        }
        connection.active = true;
        let event = Event {
            kind: event::MESSAGE,
            id: head.id,
            peer: connection.cookie,
            header: head.header,
            data: payload.as_ptr(),
            len: payload.len(),
            ..Event::empty()
        };
        let message = Delivered { buffer, slot, generation: connection.generation };
        self.notices.message_at_once(event, message, events)
    }

    /// Processes all other arrivals, and failed receives.
    #[inline(never)] // keeps this function out of the messages' path
    pub(super) fn receive_completed(
        &mut self,
        buffer: u32,
        wc: &Wc,
        mut events: Option<&mut Events<'_>>,
    ) {
        if wc.status != IBV_WC_SUCCESS {
            // The queue pair accepts no more receives; its own queue would flush this receive again.
            return self.receives.again(buffer, NOBODY);
        }
        if wc.wc_flags & IBV_WC_WITH_IMM == 0 {
            return self.receives.again(buffer, self.slot_of(wc.qp_num));
        }
        if wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM {
            return self.notified(buffer, wc, events);
        }
        let slot = u32::from_be(wc.imm_data);
        let bytes = self.receives.bytes(buffer, wc.byte_len as usize);
        let (head, arrived) = (Header::unpack(bytes), (bytes.as_ptr(), bytes.len()));
        // The queue pair authenticates the sender, so the slot in the immediate value must belong to this queue pair's
        // connection.
        let Some(connection) = self.connection(slot).filter(|c| {
            c.own.qpn == wc.qp_num && !matches!(c.phase, Phase::Failed(_) | Phase::Unconnected)
        }) else {
            return self.receives.again(buffer, self.slot_of(wc.qp_num));
        };
        connection.active = true;
        let accepted = head
            .and_then(|head| connection.credits.grant_received(head.grant).map(|()| head))
            .map_err(|_| "the peer sent an invalid message")
            .and_then(|head| {
                match head.kind {
                    Kind::Message => connection.credits.arrived().map(|()| head),
                    Kind::Bye | Kind::Hello | Kind::Credit => Ok(head),
                }
                .map_err(|_| "the peer sent more messages than it was granted")
            });
        let head = match accepted {
            Ok(head) => head,
            Err(why) => {
                self.receives.again(buffer, slot);
                let failure = Failure::new(Status::BadData, why);
                return self.fail_connection(slot, &failure, events);
            }
        };
        let mut hello_lost = false;
        if connection.phase == Phase::Connecting {
            connection.phase = Phase::Established;
            // The peer connected after the hello of this side was lost. Another hello makes the peer ask for the missing packet,
            // sooner than the device's own retransmission.
            hello_lost = !connection.queue.is_empty() || connection.owes_hello;
        }
        match head.kind {
            Kind::Message if !connection.closing => {
                let (peer, generation) = (connection.cookie, connection.generation);
                let event = Event {
                    kind: event::MESSAGE,
                    id: head.id,
                    peer,
                    header: head.header,
                    data: arrived.0.wrapping_add(HEADER_LEN),
                    len: arrived.1 - HEADER_LEN,
                    ..Event::empty()
                };
                let message = Delivered { buffer, slot, generation };
                self.notices.message(event, message, events.as_deref_mut());
            }
            Kind::Bye => {
                self.receives.again(buffer, slot);
                let failure = Failure::new(Status::Closed, "the peer closed the connection");
                self.fail_connection(slot, &failure, events.as_deref_mut());
            }
            Kind::Message | Kind::Hello | Kind::Credit => self.receives.again(buffer, slot),
        }
        if hello_lost && self.control(slot, Kind::Hello, Role::User).is_err() {
            let text = "the first message of a connection cannot be posted";
            self.fail_connection(slot, &Failure::new(Status::Io, text), events);
        }
    }

    /// Reports a peer's put with notification. The put has consumed a receive, like a message, but the receive buffer holds no
    /// data.
    #[inline(never)] // keeps this function out of the messages' path
    fn notified(&mut self, buffer: u32, wc: &Wc, events: Option<&mut Events<'_>>) {
        // The immediate value is the notification word. The queue pair identifies the connection.
        let is_it = |c: &Connection| {
            c.own.qpn == wc.qp_num && !matches!(c.phase, Phase::Failed(_) | Phase::Unconnected)
        };
        let known = self.connections.get(self.notified_last as usize).and_then(Option::as_deref);
        let slot = match known.filter(|c| is_it(c)) {
            Some(connection) => connection.own.slot,
            None => match self.connections.iter().flatten().find(|c| is_it(c)) {
                Some(connection) => connection.own.slot,
                None => return self.receives.again(buffer, u32::MAX),
            },
        };
        self.notified_last = slot;
        let Some(connection) = self.connection(slot) else {
            return self.receives.again(buffer, slot);
        };
        connection.active = true;
        if connection.phase == Phase::Connecting {
            connection.phase = Phase::Established;
        }
        if connection.credits.arrived().is_err() {
            self.receives.again(buffer, slot);
            let why = "the peer sent more messages than it was granted";
            return self.fail_connection(slot, &Failure::new(Status::BadData, why), events);
        }
        if connection.closing {
            return self.receives.again(buffer, slot);
        }
        let (peer, generation) = (connection.cookie, connection.generation);
        let header = u64::from(u32::from_be(wc.imm_data));
        let event = Event { kind: event::NOTIFIED, peer, header, ..Event::empty() };
        self.notices.message(event, Delivered { buffer, slot, generation }, events);
    }

    /// Does the work outside the completion queue: asynchronous events, timeouts, and the goodbyes and credits that have not fitted
    /// into their send queues.
    #[cold]
    pub(super) fn slow_progress(
        &mut self,
        mut events: Option<&mut Events<'_>>,
        now_or_never: bool,
    ) {
        self.note_more_to_do();
        if !self.goodbyes.is_empty() {
            self.retry_goodbyes();
        }
        let now = Instant::now();
        let since = now.duration_since(self.slow_progress_at);
        // The interval doubles until a busy poller reads the clock only at every `CLOCK_EVERY`th poll. A rare poller reads the
        // clock at every poll.
        self.clock_every = match since > SLOW_PROGRESS_EVERY * 2 {
            true => 1,
            false => (self.clock_every * 2).min(CLOCK_EVERY),
        };
        self.polls_behind = self.clock_every - 1;
        if !now_or_never && since < SLOW_PROGRESS_EVERY {
            return;
        }
        self.slow_progress_at = now;
        if core::mem::take(&mut self.share_later) {
            let _ = self.share_completions(0);
        }
        let port_changed = self.read_async_events(events.as_deref_mut());
        if port_changed || now.duration_since(self.timeouts_checked) >= SLOW_PROGRESS_EVERY {
            self.timeouts_checked = now;
            self.check_timeouts(now, port_changed, events);
        }
        self.return_credits();
        self.wake_while_needed();
    }

    /// Handles the asynchronous events of the device. Returns whether one was a port error.
    pub(super) fn read_async_events(&mut self, mut events: Option<&mut Events<'_>>) -> bool {
        let mut port_changed = false;
        for event in self.sleep.async_events() {
            match event.kind {
                IBV_EVENT_DEVICE_FATAL => {
                    let text = format!("the device {} was removed", self.domain.name.device);
                    self.fail_all(Status::NoDevice, &text, events.as_deref_mut());
                }
                IBV_EVENT_CQ_ERR | IBV_EVENT_SRQ_ERR if self.is_ours(event.queue) => {
                    // Earlier arrivals are reported first, as far as the queue still delivers them.
                    let _ = self.catch_up(events.as_deref_mut());
                    let text = format!("a queue of {} failed", self.domain.name.words());
                    self.fail_all(Status::Io, &text, events.as_deref_mut());
                }
                IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR => {
                    self.queue_pair_failed(event.kind, event.qp, events.as_deref_mut());
                }
                IBV_EVENT_QP_LAST_WQE_REACHED => {
                    self.cleanup.last_receive(event.qp, self.places());
                }
                IBV_EVENT_PORT_ERR => port_changed = true,
                _ => {}
            }
        }
        if let Some(why) = self.domain.watch.moved() {
            let failure = Failure::new(Status::Unreachable, why);
            for slot in 0..self.connections.len() as u32 {
                self.fail_connection(slot, &failure, events.as_deref_mut());
            }
        }
        port_changed
    }

    /// Checks whether an event is about a shared queue of this interface.
    fn is_ours(&self, queue: Option<usize>) -> bool {
        self.cq.as_ref().is_some_and(|cq| cq.is(queue)) || self.receives.is(queue)
    }

    pub(super) fn queue_pair_failed(
        &mut self,
        kind: u32,
        qp: Option<u32>,
        events: Option<&mut Events<'_>>,
    ) {
        let slot =
            self.connections.iter().flatten().find(|c| Some(c.own.qpn) == qp && c.qp.is_some());
        let Some(slot) = slot.map(|c| c.own.slot) else { return };
        let failure = queue_pair::event_error(kind);
        if let Some(connection) = self.connection(slot) {
            connection.async_error = Some(failure.clone());
        }
        // Earlier completions are reported first.
        let mut events = events;
        let _ = self.catch_up(events.as_deref_mut());
        self.fail_connection(slot, &failure, events);
    }

    /// Returns the error of a connection with a send that did not end within `limit`.
    fn stalled(&self, down: bool, limit: Duration) -> Failure {
        let port = self.domain.name.words();
        if down {
            return Failure::new(Status::Unreachable, format!("{port} is down"));
        }
        let text = format!("{port} neither completed nor failed a send within {limit:?}");
        Failure::new(Status::TimedOut, text)
    }

    /// Returns the error of a connection whose peer never connected.
    fn connect_timed_out(&self) -> Failure {
        let text = format!(
            "the peer did not connect within {:?} (TIELINE_CONNECT_TIMEOUT)",
            self.domain.settings.connect
        );
        Failure::new(Status::TimedOut, text)
    }

    /// Sends keepalives to silent peers, and fails connections that have exceeded a time limit.
    pub(super) fn check_timeouts(
        &mut self,
        now: Instant,
        ask_all: bool,
        mut events: Option<&mut Events<'_>>,
    ) {
        let quiet = self.domain.settings.failure / 4;
        // Most devices fail an unacknowledged send, but some do not while their port is down (soft RoCE retries indefinitely).
        // While the port is up, a receiver may have no buffer posted for a while, and the sender's device waits for a buffer.
        let down = self.domain.watch.port_down();
        let limit = self.domain.settings.failure * if down { 1 } else { 3 };
        self.cleanup.destroy_drained(now, down, self.places());
        self.reclaim_receives();
        let mut late = Vec::new();
        for slot in 0..self.connections.len() as u32 {
            let Some(connection) = self.connection(slot) else { continue };
            if core::mem::take(&mut connection.active) {
                connection.last_active = now;
                connection.stalled = None;
            }
            if !connection.queue.awaits_completion() && !connection.closing {
                connection.stalled = None;
            } else if connection.phase == Phase::Established {
                let _ = connection.stalled.get_or_insert(now);
            }
            if connection.is_late(now, limit) {
                late.push(slot);
                continue;
            }
            match connection.phase {
                Phase::Established if !connection.keepalive_pending && !connection.closing => {
                    let silent = now.duration_since(connection.last_active) >= quiet;
                    if silent || ask_all {
                        let _ = self.keepalive(slot);
                    }
                }
                _ => {}
            }
        }
        // Time without polls counts, too: the acknowledgement may be in the queue, unread.
        if late.is_empty() || self.quiet.is_in_use() {
            return;
        }
        let _ = self.catch_up(events.as_deref_mut());
        for slot in late {
            let Some(connection) = self.connection(slot) else { continue };
            let failure = match connection.phase {
                _ if !connection.is_late(now, limit) => continue,
                Phase::Failed(_) => {
                    self.abandon(slot, events.as_deref_mut());
                    continue;
                }
                _ if connection.active => continue,
                Phase::Connecting => self.connect_timed_out(),
                _ => self.stalled(down, limit),
            };
            self.fail_connection(slot, &failure, events.as_deref_mut());
        }
    }

    pub(crate) fn arm(&mut self) -> Armed {
        self.slow_progress(None, true);
        if self.notices.are_out() || !self.notices.is_empty() || !self.unposted.is_empty() {
            return Armed::Ready;
        }
        let Some(cq) = &self.cq else { return Armed::Sleep };
        cq.drain_channel();
        if let Err(failure) = cq.arm() {
            self.fail_all(failure.status, &failure.text, None);
        }
        // Completions from before the request cause no wake-up, so they are read now.
        let all = self.catch_up(None);
        if all && self.notices.is_empty() { Armed::Sleep } else { Armed::Ready }
    }
}
