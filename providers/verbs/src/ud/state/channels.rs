//! Outbound channels: opening, use, failure.

use super::*;

impl State {
    pub(crate) fn open_channel(
        &mut self,
        peer: &Address,
        identity: &[u8],
        cookie: u64,
    ) -> Result<u32, Failure> {
        if self.dead || self.domain.watch.device_gone() {
            let text = format!("the device {} was removed", self.domain.name.device);
            return Err(Failure::new(Status::NoDevice, text));
        }
        let handle = self.handle(&peer.port)?;
        let slot = match self.outbound.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                self.outbound.push(None);
                self.outbound.len() - 1
            }
        };
        let own = End { number: slot as u32, token: number()? };
        let timeout = self.domain.settings.failure;
        let mut sender = Sender::new(own, peer.target.cookie, &self.own.pack(), timeout);
        let (now, to) = (self.now(), peer.target);
        sender.start(now, &mut |bytes| transmit(&self.qp, &mut self.sends, &handle, to, bytes));
        let piece = crate::ud::max_message(self.own.port.mtu.min(peer.port.mtu));
        let outbound = Outbound {
            cookie,
            sender,
            to,
            handle,
            piece,
            listed: true,
            flushes: Vec::new(),
            packing: false,
            closing: false,
            failed: None,
        };
        self.outbound[slot] = Some(outbound);
        self.awaiting.push(slot as u32);
        self.countdown = 1;
        // The identity travels in one or more parts. The last part introduces this side to the peer.
        let len = identity.len();
        for at in (0..len.max(1)).step_by(piece) {
            let bytes = &identity[at..len.min(at + piece)];
            self.queue(slot as u32, Kind::Identity, len as u32, at as u64, bytes)?;
        }
        Ok(slot as u32)
    }

    pub(crate) fn healthy(&self, number: u32) -> Result<(), Status> {
        match self.outbound.get(number as usize).and_then(Option::as_ref) {
            Some(Outbound { failed: None, .. }) => Ok(()),
            Some(Outbound { failed: Some(status), .. }) => Err(*status),
            None => Err(Status::Closed),
        }
    }

    /// Reserves room in the window while the application packs a message of at most `max` bytes.
    pub(crate) fn begin_packing(&mut self, number: u32, max: usize) -> Result<(), Status> {
        self.healthy(number)?;
        if max > crate::ud::max_message(self.own.port.mtu) {
            return Err(Status::TooLarge);
        }
        self.check_room(number)?;
        if let Some(channel) = self.outbound.get_mut(number as usize).and_then(Option::as_mut) {
            channel.packing = true;
        }
        Ok(())
    }

    /// Ends the packing. A packed message is queued even if the window is full.
    pub(crate) fn end_packing(
        &mut self,
        number: u32,
        id: u32,
        header: u64,
        packed: Result<&[u8], Status>,
    ) -> Result<(), Status> {
        if let Some(channel) = self.outbound.get_mut(number as usize).and_then(Option::as_mut) {
            channel.packing = false;
        }
        // If the channel failed while the application packed, the channel's status is the result.
        self.healthy(number)?;
        let payload = packed?;
        self.queue_message(number, id, header, payload)
    }

    pub(crate) fn send(&mut self, number: u32, id: u32, header: u64, payload: &[u8]) -> Posted {
        self.healthy(number)?;
        if payload.len() > crate::ud::max_message(self.own.port.mtu) {
            return Err(Status::TooLarge);
        }
        self.check_room(number)?;
        self.queue_message(number, id, header, payload)?;
        Ok(Posting::Done)
    }

    /// Queues a message. A message that exceeds the peer's packets is split into parts, for which one place in the window is
    /// enough.
    fn queue_message(
        &mut self,
        number: u32,
        id: u32,
        header: u64,
        payload: &[u8],
    ) -> Result<(), Status> {
        let channel = self.outbound.get(number as usize).and_then(Option::as_ref);
        let piece = channel.map_or(usize::MAX, |channel| channel.piece);
        let last = payload.len().saturating_sub(1) / piece * piece;
        for at in (0..last).step_by(piece) {
            self.queue(number, Kind::Part, 0, at as u64, &payload[at..at + piece])?;
        }
        self.queue(number, Kind::Message, id, header, &payload[last..])
    }

    fn check_room(&self, number: u32) -> Result<(), Status> {
        let channel = self.outbound.get(number as usize).and_then(Option::as_ref);
        match channel {
            Some(Outbound { packing: true, .. }) => Err(Status::Again),
            Some(channel) if !channel.sender.has_room() => Err(Status::Again),
            _ => Ok(()),
        }
    }

    fn queue(
        &mut self,
        number: u32,
        kind: Kind,
        id: u32,
        header: u64,
        payload: &[u8],
    ) -> Result<(), Status> {
        let now = self.now();
        let channel = self.outbound.get_mut(number as usize).and_then(Option::as_mut);
        let Some(Outbound { sender, handle, to, listed, .. }) = channel else {
            return Err(Status::Closed);
        };
        if !core::mem::replace(listed, true) {
            self.awaiting.push(number);
        }
        let (qp, sends) = (&self.qp, &mut self.sends);
        sender.offer(kind, id, header, payload, now, &mut |bytes| {
            transmit(qp, sends, handle, *to, bytes)
        });
        self.countdown = self.countdown.min(CLOCK_WAITING);
        Ok(())
    }

    pub(crate) fn flush(&mut self, number: u32, cookie: u64) -> Posted {
        self.healthy(number)?;
        match self.outbound.get_mut(number as usize).and_then(Option::as_mut) {
            Some(outbound) if !outbound.sender.is_quiet() => {
                outbound.flushes.push((outbound.sender.next(), cookie));
                Ok(Posting::Pending)
            }
            _ => Ok(Posting::Done),
        }
    }

    /// Closes a channel. The goodbye is retransmitted until the peer acknowledges it, the channel times out, or the interface
    /// closes. A failed channel sends no goodbye.
    pub(crate) fn close(&mut self, number: u32) {
        let Some(Some(outbound)) = self.outbound.get_mut(number as usize) else { return };
        outbound.closing = true;
        outbound.flushes.clear();
        // The goodbye follows all queued messages. It is queued like every unacknowledged packet.
        if outbound.failed.is_some() || self.queue(number, Kind::Bye, 0, 0, &[]).is_err() {
            self.outbound[number as usize] = None;
        }
    }

    /// Retransmits expired packets, and fails channels that have been silent for too long.
    pub(super) fn check_timeouts(&mut self, now: Duration, mut events: Option<&mut Events<'_>>) {
        // Time without polls counts, too: the acknowledgement may be in the queue, unread.
        let due = |number: &u32| {
            let outbound = self.outbound.get(*number as usize).and_then(Option::as_ref);
            outbound.is_some_and(|o| o.failed.is_none() && o.sender.is_due(now))
        };
        if self.awaiting.iter().any(due) {
            let _ = self.catch_up(events.as_deref_mut());
        }
        for number in core::mem::take(&mut self.awaiting) {
            let number = number as usize;
            let Some(Some(outbound)) = self.outbound.get_mut(number) else { continue };
            if outbound.failed.is_some() || !outbound.sender.is_waiting() {
                outbound.listed = false;
                continue;
            }
            self.awaiting.push(number as u32);
            let Outbound { sender, handle, to, .. } = outbound;
            let (qp, sends) = (&self.qp, &mut self.sends);
            if sender.retransmit(now, &mut |bytes| transmit(qp, sends, handle, *to, bytes)).is_err()
            {
                let down = self.domain.watch.port_down();
                let status = if down { Status::Unreachable } else { Status::TimedOut };
                let why = if down {
                    format!("{} is down", self.domain.name.words())
                } else {
                    format!(
                        "the peer acknowledged nothing for {:?} (TIELINE_FAILURE_TIMEOUT): its process is gone or does \
                         not poll, or the route to it is cut",
                        self.domain.settings.failure
                    )
                };
                self.fail(number, &Failure::new(status, why), events.as_deref_mut());
            }
        }
    }

    /// Fails an outbound channel.
    pub(super) fn fail(
        &mut self,
        number: usize,
        failure: &Failure,
        mut events: Option<&mut Events<'_>>,
    ) {
        let Some(outbound) = &mut self.outbound[number] else { return };
        if outbound.closing {
            self.outbound[number] = None;
            return;
        }
        if outbound.failed.replace(failure.status).is_some() {
            return;
        }
        let cookie = outbound.cookie;
        for (_, flush) in core::mem::take(&mut outbound.flushes) {
            self.notices.completed(flush, Err(failure.status), events.as_deref_mut());
        }
        self.notices.endpoint_failed(cookie, failure, events);
    }

    pub(super) fn fail_all(&mut self, failure: &Failure, mut events: Option<&mut Events<'_>>) {
        self.dead = true;
        for number in 0..self.outbound.len() {
            self.fail(number, failure, events.as_deref_mut());
        }
    }
}
