//! Arrivals: messages, acknowledgements, and Hellos of unknown peers.

use super::*;

impl State {
    /// Fetches a batch of completions. Returns whether there was any.
    pub(super) fn fetch(&mut self, mut events: Option<&mut Events<'_>>) -> bool {
        let mut batch = core::mem::take(&mut self.batch);
        let count = match self.cq.poll(&mut batch) {
            Ok(count) => count,
            Err(failure) => {
                self.fail_all(&failure, events.as_deref_mut());
                0
            }
        };
        for wc in &batch[..count] {
            let buffer = wc.wr_id as u32;
            if wc.wr_id & RECEIVE == 0 {
                self.sends.give(buffer);
                if wc.status != IBV_WC_SUCCESS {
                    self.qp.resume_datagrams(); // lost packets are retransmitted later
                }
            } else if !self.received(buffer, wc, events.as_deref_mut()) {
                self.post_again(buffer);
            }
        }
        self.batch = batch;
        self.acknowledge();
        if let Err(failure) = self.post_receives() {
            self.fail_all(&failure, events);
        }
        count > 0
    }

    /// Fetches every completion from before the call, limited to the capacity of the queue: a peer may send as fast as this side
    /// reads. Returns whether the queue was then empty.
    pub(super) fn catch_up(&mut self, mut events: Option<&mut Events<'_>>) -> bool {
        let batches = self.cq.capacity().div_ceil(WC_BATCH);
        !(0..batches).all(|_| self.fetch(events.as_deref_mut()))
    }

    /// Handles an arrived datagram. Returns whether the datagram's buffer stays in use.
    pub(super) fn received(
        &mut self,
        buffer: u32,
        wc: &Wc,
        events: Option<&mut Events<'_>>,
    ) -> bool {
        if wc.status != IBV_WC_SUCCESS {
            return false;
        }
        let Some(bytes) = self.receives.bytes(buffer, wc.byte_len as usize).get(GRH..) else {
            return false;
        };
        let Ok((packet, payload)) = Packet::unpack(bytes) else { return false };
        match packet.kind {
            Kind::Hello => {
                if let Ok(peer) = Address::unpack(payload) {
                    self.hello(&packet, &peer);
                }
            }
            Kind::Welcome | Kind::Ack => self.answered(&packet, events),
            Kind::Identity | Kind::Part | Kind::Message | Kind::Bye => {
                return self.arrived(buffer, wc.byte_len as usize, &packet, events);
            }
        }
        false
    }

    /// Handles an arrival on an inbound channel. Returns whether the datagram's buffer stays in use.
    fn arrived(
        &mut self,
        buffer: u32,
        len: usize,
        packet: &Packet,
        mut events: Option<&mut Events<'_>>,
    ) -> bool {
        let number = packet.end.number;
        let Some(inbound) = self.inbound.get_mut(number as usize) else { return false };
        if inbound.token != packet.end.token {
            return false;
        }
        self.activity.note(&mut inbound.active_in);
        inbound.era = self.era;
        let verdict = inbound.receiver.accept(packet.sequence);
        if !core::mem::replace(&mut inbound.ack_due, true) {
            self.acks_due.push(number);
        }
        match verdict {
            Verdict::Duplicate | Verdict::Gap => false,
            Verdict::Early if self.early >= EARLY => false,
            Verdict::Early => {
                inbound.receiver.keep(packet.sequence, Early { buffer, len });
                self.early += 1;
                true
            }
            Verdict::Deliver => {
                let in_use = self.deliver(number, buffer, len, events.as_deref_mut());
                while let Some(next) =
                    self.inbound.get_mut(number as usize).and_then(|i| i.receiver.following())
                {
                    self.early -= 1;
                    if !self.deliver(number, next.buffer, next.len, events.as_deref_mut()) {
                        self.post_again(next.buffer);
                    }
                }
                in_use
            }
        }
    }

    /// Delivers the next packet in order. Returns whether the application now holds the packet's buffer.
    fn deliver(
        &mut self,
        number: u32,
        buffer: u32,
        len: usize,
        events: Option<&mut Events<'_>>,
    ) -> bool {
        let bytes = self.receives.bytes(buffer, len).get(GRH..).unwrap_or_default();
        let Ok((packet, payload)) = Packet::unpack(bytes) else { return false };
        let (data, len) = (payload.as_ptr(), payload.len());
        let Some(inbound) = self.inbound.get_mut(number as usize) else { return false };
        if inbound.left {
            return false;
        }
        let peer = inbound.peer;
        if packet.kind == Kind::Identity {
            if let Some(identity) = inbound.assemble(&packet, payload) {
                let event = Event { kind: event::PEER_ARRIVED, peer, ..Event::empty() };
                self.notices.push(event, Attached::Text(identity.into()), events);
            }
            return false;
        }
        if !inbound.arrived {
            return false;
        }
        if packet.kind == Kind::Part {
            inbound.begin(packet.header, payload, crate::ud::max_message(crate::ud::WIDEST));
            return false;
        }
        if packet.kind == Kind::Bye {
            inbound.left = true;
            self.closed.push_back(number);
            let event = Event { kind: event::PEER_LEFT, peer, ..Event::empty() };
            self.notices.push(event, Attached::Nothing, events);
            return false;
        }
        let event = Event {
            kind: event::MESSAGE,
            id: packet.id,
            peer,
            header: packet.header,
            data,
            len,
            ..Event::empty()
        };
        if inbound.begun.is_empty() {
            self.notices.push(event, Attached::Message(buffer), events);
            return true;
        }
        let mut whole = core::mem::take(&mut inbound.begun);
        whole.extend_from_slice(payload);
        self.notices.push(event, Attached::Text(whole.into()), events);
        false
    }

    /// Returns the address handle of an unknown peer. A failure is cached, because the peer retransmits its Hello.
    fn handle_back(&mut self, port: &Port) -> Result<Rc<AddressHandle>, Failure> {
        let (key, now) = (port.pack(), self.now());
        self.unresolved.retain(|_, since| now.saturating_sub(*since) < UNRESOLVED_FOR);
        if self.unresolved.contains_key(&key) {
            return Err(Status::Unreachable.into());
        }
        let handle = self.handle(port);
        if handle.is_err() {
            let _ = self.unresolved.insert(key, self.now());
        }
        handle
    }

    /// Handles a Hello to this interface: opens the channel, unless it exists, and sends the Welcome.
    pub(super) fn hello(&mut self, packet: &Packet, peer: &Address) {
        if packet.header != self.own.target.cookie {
            return;
        }
        let key = (peer.target, packet.end);
        let known = self.known.get(&key).copied();
        let slot = match known {
            Some(slot) => slot,
            None => {
                let (Ok(handle), Ok(token)) = (self.handle_back(&peer.port), number()) else {
                    return;
                };
                let Some(slot) = self.free_slot() else { return };
                let number = self.next_peer;
                self.next_peer += 1;
                let inbound = Inbound {
                    token,
                    peer_end: packet.end,
                    to: peer.target,
                    handle,
                    receiver: Receiver::default(),
                    identity: Vec::new(),
                    arrived: false,
                    begun: Vec::new(),
                    peer: number,
                    ack_due: false,
                    left: false,
                    active_in: 0,
                    era: self.era,
                };
                self.drop_early(slot);
                match self.inbound.get_mut(slot) {
                    Some(old) => {
                        let old = core::mem::replace(old, inbound);
                        let _ = self.known.remove(&(old.to, old.peer_end));
                        self.evicted(&old);
                    }
                    None => self.inbound.push(inbound),
                }
                let _ = self.known.insert(key, slot as u32);
                slot as u32
            }
        };
        let inbound = &mut self.inbound[slot as usize];
        inbound.era = self.era;
        let here = End { number: slot, token: inbound.token };
        let welcome = Packet {
            kind: Kind::Welcome,
            end: inbound.peer_end,
            sequence: 0,
            id: 0,
            header: here.to_word(),
        };
        transmit(&self.qp, &mut self.sends, &inbound.handle, inbound.to, &welcome.pack());
    }

    /// Selects the slot of a new channel, in this order. First, the oldest closed channel, if `KEPT_CLOSED` of them still answer or
    /// all slots are taken. Second, a new slot while there are few. Third, the channel of a silent peer with unfinished data.
    /// Fourth, a new slot up to `MAX_INBOUND`. Last, the channel that has been silent longest; `None` if no channel is silent.
    fn free_slot(&mut self) -> Option<usize> {
        let (len, era) = (self.inbound.len(), self.era);
        if self.closed.len() >= KEPT_CLOSED || len >= MAX_INBOUND {
            if let Some(slot) = self.closed.pop_front() {
                return Some(slot as usize);
            }
        }
        if len < KEPT_INBOUND {
            return Some(len);
        }
        let is_dead = |inbound: &Inbound| !inbound.left && inbound.is_owed();
        let silent = self.inbound.iter().enumerate().filter(|(_, i)| i.is_silent(era));
        let free = silent.clone().find(|(_, inbound)| is_dead(inbound)).map(|(slot, _)| slot);
        if free.is_some() || len < MAX_INBOUND {
            return free.or(Some(len));
        }
        silent.min_by_key(|(_, inbound)| inbound.era).map(|(slot, _)| slot)
    }

    /// Reports the eviction of a channel from its slot, if its peer has arrived and not left.
    fn evicted(&mut self, old: &Inbound) {
        if old.left || !old.arrived {
            return;
        }
        let text = format!(
            "nothing arrived for {:?} (twice TIELINE_FAILURE_TIMEOUT) or longer, and another peer got its slot",
            self.domain.settings.failure * 2
        );
        let (kind, status) = (event::PEER_LEFT, Status::TimedOut as i32);
        let event = Event { kind, status, peer: old.peer, ..Event::empty() };
        self.notices.push(event, Attached::Text(text.into_bytes().into()), None);
    }

    /// Releases the early messages of silent peers, once per era; called regularly. A live peer retransmits them.
    pub(super) fn drop_silent(&mut self, now: Duration, events: Option<&mut Events<'_>>) {
        if now - self.era_began < self.domain.settings.failure {
            return;
        }
        (self.era, self.era_began) = (self.era + 1, now);
        for slot in 0..self.inbound.len() {
            if self.inbound[slot].is_silent(self.era) {
                self.drop_early(slot);
            }
        }
        if let Err(failure) = self.post_receives() {
            self.fail_all(&failure, events);
        }
    }

    /// Releases the early messages of a channel. The caller posts the receives.
    fn drop_early(&mut self, slot: usize) {
        let Some(inbound) = self.inbound.get_mut(slot) else { return };
        let kept: Vec<Early> = inbound.receiver.drain().collect();
        self.early -= kept.len();
        kept.into_iter().for_each(|early| self.post_again(early.buffer));
    }

    /// Handles a packet from the receiver of an outbound channel.
    pub(super) fn answered(&mut self, packet: &Packet, mut events: Option<&mut Events<'_>>) {
        let now = self.now();
        let number = packet.end.number as usize;
        let Some(Some(outbound)) = self.outbound.get_mut(number) else { return };
        let Outbound { sender, handle, to, .. } = outbound;
        if sender.own() != packet.end {
            return;
        }
        let (qp, sends) = (&self.qp, &mut self.sends);
        let wire: &mut dyn FnMut(&[u8]) = &mut |bytes| transmit(qp, sends, handle, *to, bytes);
        if packet.kind == Kind::Welcome {
            sender.welcomed(End::from_word(packet.header), now, wire);
        } else {
            sender.allow(packet.header);
            sender.acked(packet.sequence, packet.id != 0, now, wire);
        }
        if outbound.closing && outbound.sender.is_quiet() {
            self.outbound[number] = None;
            return;
        }
        while let Some(at) =
            outbound.flushes.iter().position(|&(upto, _)| outbound.sender.is_past(upto))
        {
            let (_, cookie) = outbound.flushes.remove(at);
            self.notices.completed(cookie, Ok(0), events.as_deref_mut());
        }
    }

    /// Sends one acknowledgement per channel for all arrivals of the batch.
    pub(super) fn acknowledge(&mut self) {
        let window = self.activity.share();
        for number in core::mem::take(&mut self.acks_due) {
            let Some(inbound) = self.inbound.get_mut(number as usize) else { continue };
            inbound.ack_due = false;
            let ack = Packet {
                kind: Kind::Ack,
                end: inbound.peer_end,
                sequence: inbound.receiver.next,
                id: u32::from(inbound.receiver.gap),
                header: window,
            };
            transmit(&self.qp, &mut self.sends, &inbound.handle, inbound.to, &ack.pack());
        }
    }
}
