//! The sending end of a channel: numbers messages, keeps them until they are acknowledged, and retransmits them.
//!
//! Pure: the time is a parameter, and packets leave through a function.

use super::packet::{End, HEADER_LEN, Kind, Packet};
use core::time::Duration;
use std::collections::VecDeque;
use tieline_plugin_api::Status;

/// The maximum window of one channel, in packets.
pub(crate) const WINDOW: usize = 32;
/// Initial and maximum time to wait for an acknowledgement.
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// The minimum number of retransmissions before the peer counts as failed, regardless of the elapsed time: this process may have
/// been suspended.
const RETRANSMISSIONS: u32 = 3;

/// The function that transmits packets.
pub(crate) type Wire<'a> = &'a mut dyn FnMut(&[u8]);

/// The sending end of a channel.
pub(crate) struct Sender {
    own: End,
    peer: Option<End>,
    hello: Vec<u8>,
    /// Unacknowledged packets in wire format, oldest first.
    unacked: VecDeque<Vec<u8>>,
    /// The number of the oldest unacknowledged packet.
    first: u32,
    wait: Duration,
    /// The number of retransmissions since the peer's last progress.
    retransmissions: u32,
    retransmit_at: Option<Duration>,
    /// The present limit on outstanding messages: the peer divides its buffers among all its senders.
    window: usize,
    /// The time of the peer's last progress, or of the first unacknowledged packet.
    since: Duration,
    /// The number of the message that a gap report last caused to be repaired.
    repaired: Option<u32>,
    timeout: Duration,
}

impl Sender {
    /// Makes an end that will open its channel to the interface with this cookie. `introduction` travels with the first packet.
    pub(crate) fn new(own: End, cookie: u64, introduction: &[u8], timeout: Duration) -> Sender {
        let head = Packet { kind: Kind::Hello, end: own, sequence: 0, id: 0, header: cookie };
        let mut hello = head.pack().to_vec();
        hello.extend_from_slice(introduction);
        Sender {
            own,
            peer: None,
            hello,
            unacked: VecDeque::new(),
            window: WINDOW,
            first: 0,
            wait: FIRST_WAIT,
            retransmissions: 0,
            retransmit_at: None,
            since: Duration::ZERO,
            repaired: None,
            timeout,
        }
    }

    pub(crate) fn own(&self) -> End {
        self.own
    }

    /// Sends the Hello.
    pub(crate) fn start(&mut self, now: Duration, wire: Wire<'_>) {
        self.since = now;
        self.retransmit_at = Some(now + self.wait);
        wire(&self.hello);
    }

    pub(crate) fn has_room(&self) -> bool {
        self.unacked.len() < self.window
    }

    /// Applies the window that the peer grants to this channel. 0 and values beyond `WINDOW` are ignored.
    pub(crate) fn allow(&mut self, messages: u64) {
        if (1..=WINDOW as u64).contains(&messages) {
            self.window = messages as usize;
        }
    }

    /// Checks whether all messages have been acknowledged.
    pub(crate) fn is_quiet(&self) -> bool {
        self.unacked.is_empty()
    }

    /// Checks whether a timer is running, so that [`Sender::retransmit`] must be called regularly.
    pub(crate) fn is_waiting(&self) -> bool {
        self.retransmit_at.is_some()
    }

    /// Checks whether a retransmission or the failure is due.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.retransmit_at.is_some_and(|at| now >= at)
    }

    /// Returns the number of the next message.
    pub(crate) fn next(&self) -> u32 {
        self.first.wrapping_add(self.unacked.len() as u32)
    }

    /// Checks whether all messages before `number` have been acknowledged.
    pub(crate) fn is_past(&self, number: u32) -> bool {
        self.first.wrapping_sub(number) < 1 << 31
    }

    /// Sends a message. If [`Sender::has_room`] is false, the other end may drop the message, which is then retransmitted.
    pub(crate) fn offer(
        &mut self,
        kind: Kind,
        id: u32,
        header: u64,
        payload: &[u8],
        now: Duration,
        wire: Wire<'_>,
    ) {
        let end = self.peer.unwrap_or_default();
        let head = Packet { kind, end, sequence: self.next(), id, header };
        let mut packet = Vec::with_capacity(HEADER_LEN + payload.len());
        packet.extend(head.pack());
        packet.extend_from_slice(payload);
        if self.retransmit_at.is_none() {
            self.since = now;
            self.retransmit_at = Some(now + self.wait);
        }
        if self.peer.is_some() {
            wire(&packet);
        }
        self.unacked.push_back(packet);
    }

    /// Handles a Welcome: the peer has opened its end of the channel.
    pub(crate) fn welcomed(&mut self, peer: End, now: Duration, wire: Wire<'_>) {
        if self.peer.is_some() {
            return;
        }
        self.peer = Some(peer);
        for packet in &mut self.unacked {
            packet[4..8].copy_from_slice(&peer.number.to_le_bytes());
            packet[8..12].copy_from_slice(&peer.token.to_le_bytes());
        }
        self.progress(now);
        self.send_all(wire);
    }

    fn send_all(&self, wire: Wire<'_>) {
        for packet in &self.unacked {
            wire(packet);
        }
    }

    /// Records the peer's progress.
    fn progress(&mut self, now: Duration) {
        self.since = now;
        self.wait = FIRST_WAIT;
        self.retransmissions = 0;
        self.retransmit_at = (!self.unacked.is_empty()).then_some(now + self.wait);
    }

    /// Handles an acknowledgement. The peer expects message `next`; `gap` means that the peer has received later messages.
    pub(crate) fn acked(&mut self, next: u32, gap: bool, now: Duration, wire: Wire<'_>) {
        let count = next.wrapping_sub(self.first) as usize;
        if self.peer.is_none() || count > self.unacked.len() {
            return;
        }
        if count > 0 {
            drop(self.unacked.drain(..count));
            self.first = next;
            self.progress(now);
        }
        if gap && !self.unacked.is_empty() && self.repaired != Some(self.first) {
            // A gap causes one repair, of the missing message only: the receiver keeps early messages. If the repair is lost, too,
            // the timer retransmits.
            self.repaired = Some(self.first);
            self.retransmit_at = Some(now + self.wait);
            wire(&self.unacked[0]);
        }
    }

    /// Retransmits the unacknowledged packets if the timer has expired.
    ///
    /// # Errors
    /// The peer has acknowledged nothing for the timeout, in spite of `RETRANSMISSIONS` retransmissions.
    pub(crate) fn retransmit(&mut self, now: Duration, wire: Wire<'_>) -> Result<(), Status> {
        if !self.is_due(now) {
            return Ok(());
        }
        if now.saturating_sub(self.since) >= self.timeout && self.retransmissions >= RETRANSMISSIONS
        {
            self.retransmit_at = None;
            return Err(Status::TimedOut);
        }
        self.retransmissions += 1;
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
        self.retransmit_at = Some(now + self.wait);
        if self.peer.is_some() {
            self.send_all(wire)
        } else {
            wire(&self.hello)
        }
        Ok(())
    }
}
