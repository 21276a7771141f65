//! The end of a connection and of its streams: close, failure, silence, and streams that are formed again.

use std::time::{Duration, Instant};

use tieline_plugin_api::Status;

use crate::conn::{Conn, ConnectionState, Peer, Phase};
use crate::frame::{ANSWER, Head, Kind};
use crate::link::Link;
use crate::lost;
use crate::ops::Ops;
use crate::outbox::Outbox;
use crate::probe::Probe;
use crate::stream::{Broke, Stream};
use crate::sys;
use crate::window::Window;

/// The time that a closed endpoint waits for the peer's goodbye after the peer's kernel has received everything.
const LINGER: Duration = Duration::from_secs(5);

impl ConnectionState {
    /// Fails the connection. Unless the endpoint is closed, every pending operation completes with the status, then the endpoint's
    /// failure is reported.
    pub(crate) fn fail(&mut self, status: Status, text: &str) {
        if matches!(self.phase, Phase::Failed(_)) {
            return;
        }
        self.phase = Phase::Failed(status);
        if !self.abandoned {
            for cookie in self.ops.take().map(|ops| ops.cookies()).unwrap_or_default() {
                self.shared.completed(cookie, Err(status));
            }
            self.shared.endpoint_failed(self.cookie, status, text);
        }
        self.release();
        self.call_attention();
    }

    /// Releases the streams, dials, operations and buffers.
    pub(crate) fn release(&mut self) {
        for number in 0..self.links.len() {
            self.drop_stream(number);
        }
        for mut link in std::mem::take(&mut self.links) {
            link.close(&self.shared);
        }
        self.early = Vec::new();
        self.ops = None;
        self.outbox = Outbox::new(self.shared.settings.send_buffer, false);
        self.window = Window::default();
        self.held_bytes = 0;
    }

    /// Handles the application's close of the endpoint.
    pub(crate) fn close(&mut self) {
        self.abandoned = true;
        match self.phase {
            Phase::Open => {
                // The answers for completed operations of the peer are sent here; the operations' memory may be freed after this
                // call.
                self.answer();
                self.ops = None;
                self.outbox.own_payloads();
                self.phase = Phase::Closing;
                self.since = Instant::now();
                self.finish();
                self.keep_time();
            }
            _ => {
                self.phase = Phase::Failed(Status::Closed);
                self.release();
            }
        }
        self.call_attention();
    }

    /// Sends a goodbye after all pending data, and ends the sending direction once the outbox is empty.
    pub(crate) fn finish(&mut self) {
        if !self.goodbye_sent && self.outbox.has_room_for_answer() {
            let mut head = Head::bare(Kind::Goodbye, 0, 0);
            head.ack = self.acknowledge();
            self.outbox.push(head, None, &[]);
            self.goodbye_sent = true;
        }
        self.flush();
        if self.goodbye_sent && self.outbox.is_empty() {
            for stream in self.links.iter().filter_map(|link| link.stream.as_ref()) {
                sys::end_sending(stream.sender());
            }
            if self.leads_to_itself() {
                self.phase = Phase::Failed(Status::Closed);
                self.release();
            }
        }
    }

    fn leads_to_itself(&self) -> bool {
        self.links.iter().filter_map(|link| link.stream.as_ref()).any(|s| s.leads_to_itself())
    }

    /// Checks whether no data that was sent before closing must still reach the peer's kernel. If a socket with unread received
    /// data is closed, it sends a reset and drops the data that is still in the kernel of this side.
    pub(crate) fn has_handed_over(&self) -> bool {
        let acknowledged = || {
            let mut streams = self.links.iter().filter_map(|link| link.stream.as_ref());
            streams.all(|stream| {
                stream.error.is_some()
                    || sys::unanswered(stream.sender()).is_none_or(|seen| !seen.waits)
            })
        };
        self.phase != Phase::Closing
            || self.goodbye_sent && self.outbox.is_written_out() && acknowledged()
    }

    /// Checks whether neither the endpoint nor the interface needs the connection any more.
    pub(crate) fn is_over(&self) -> bool {
        self.abandoned && matches!(self.phase, Phase::Failed(_))
    }

    /// Removes a stream from use.
    pub(crate) fn drop_stream(&mut self, number: usize) {
        self.unblock(number);
        let Some(mut stream) = self.links.get_mut(number).and_then(|link| link.stream.take())
        else {
            return;
        };
        if self.phase != Phase::Open {
            stream.discard();
        }
        // Closing a socket ends its watching only if no forked child holds a copy.
        self.shared.poller.forget(stream.sender());
        if stream.leads_to_itself() {
            self.shared.poller.forget(stream.receiver());
        }
        if let Some(buffer) = stream.buffer.take() {
            self.shared.pool.borrow_mut().give(buffer);
        }
        if stream.hot {
            self.shared.cool(self.index, number);
        }
        self.shared.streams.set(self.shared.streams.get().saturating_sub(1));
    }

    /// Handles a broken stream.
    pub(crate) fn stream_broke(&mut self, number: usize, broke: &Broke) {
        self.drop_stream(number);
        if self.phase == Phase::Closing && !self.outbox.retains() {
            self.phase = Phase::Failed(Status::Closed);
            self.release();
            return self.call_attention();
        }
        if !self.outbox.retains()
            || broke.status == Status::BadData
            || broke.status == Status::Closed
        {
            return self.fail(broke.status, &broke.text);
        }
        self.outbox.stream_broke(number as u8);
        self.last_words.clone_from(&broke.text);
        self.starved = false;
        let now = Instant::now();
        if self.links.iter().all(|link| link.stream.is_none()) {
            // A reset proves that the host is alive. A timeout proves nothing since the last received data.
            self.since = match broke.status {
                Status::PeerFailed => now,
                _ => self.shared.at_ms(self.last_received_ms),
            };
        }
        self.links[number].broke(now);
        self.keep_time();
        self.call_attention();
    }

    /// Records that data is sent, so that the peer's answer will be checked.
    #[inline]
    pub(crate) fn expect_answer(&self) {
        if !self.expects.replace(true) {
            let now = Instant::now();
            self.expects_since.set(now);
            self.shared.expect_answer(self.index, now);
        }
    }

    /// Breaks streams whose peer does not answer. Returns `false` if no further check is needed.
    pub(crate) fn look_for_silence(&mut self, now: Instant) -> bool {
        self.expects.set(false);
        let (limit, marked) = (self.shared.settings.failure_timeout, self.expects_since.get());
        let mut busy = false;
        for number in 0..self.links.len() {
            let link = self.links.get_mut(number);
            let Some(stream) = link.and_then(|link| link.stream.as_mut()) else { continue };
            let Some(seen) = sys::unanswered(stream.sender()) else { continue };
            busy |= seen.is_busy();
            let silent = stream.silence.observe(now, marked, &seen);
            let asked = stream.probe.as_mut();
            let _ = asked.map(|probe| probe.look(now));
            if silent >= seen.timeout(limit) {
                let tried = now.checked_sub(seen.since_sent).unwrap_or(now);
                let broke = lost::silent(stream, silent, tried, self.shared.hub.local());
                self.stream_broke(number, &broke);
            } else if silent < seen.timeout(limit) / 4 {
                stream.probe = None;
            } else if stream.probe.is_none() {
                let (local, peer) = stream.addresses();
                stream.probe = peer.and_then(|peer| Probe::begin(local, peer, &self.shared.probes));
            }
        }
        busy
    }

    /// Requests regular visits.
    pub(crate) fn keep_time(&self) {
        if !self.timed.replace(true) {
            self.shared.timed.borrow_mut().push(self.index);
        }
    }

    /// Makes a regular visit. Returns `false` if no further visit is needed.
    pub(crate) fn tick(&mut self, now: Instant) -> bool {
        match self.phase {
            Phase::Waiting | Phase::Failed(_) => return false,
            Phase::Linking | Phase::Open => self.tend_links(now),
            Phase::Closing => {
                self.finish();
                let stands = self.links.iter().any(|link| link.stream.is_some());
                if stands && !self.has_handed_over() {
                    self.since = now; // a peer that computes may take any time
                }
                if stands && now.duration_since(self.since) > LINGER {
                    self.phase = Phase::Failed(Status::Closed);
                    self.release();
                    self.call_attention();
                    return false;
                }
                if self.outbox.retains() {
                    self.tend_links(now);
                }
            }
        }
        match self.phase {
            Phase::Failed(_) => false,
            Phase::Open => {
                self.outbox.retains() && !self.outbox.is_empty()
                    || self.links.iter().any(|link| link.stream.is_none())
            }
            _ => true,
        }
    }

    /// Closes a stream that delays the others, if the peer answers on them. Fails the connection if its session is lost.
    pub(crate) fn tend_stall(&mut self) {
        if self.outbox.is_lost() {
            let text =
                "memory was deregistered while it was being sent again after a connection broke";
            return self.fail(Status::Io, text);
        }
        let Some((stream, since)) = self.outbox.oldest() else { return };
        let (suspect, now) = (usize::from(stream), self.shared.now_ms());
        let waited = now.saturating_sub(since);
        let stall = self.shared.settings.stall.as_millis() as u64;
        let streams = |wanted: bool| {
            let streams = self.links.iter().filter_map(|link| link.stream.as_ref());
            streams.filter(move |stream| (usize::from(stream.track.number) == suspect) == wanted)
        };
        let silent = streams(true).all(|stream| stream.last_received_ms <= since);
        if waited <= stall / 2 || !silent {
            return;
        }
        let others_answer =
            streams(false).any(|stream| stream.last_received_ms > since + stall / 2);
        if waited > stall && others_answer {
            let Some(peer) = streams(true).next().map(|stream| stream.peer()) else { return };
            let text = format!("nothing moves on the connection to {peer}, while others do");
            return self.stream_broke(suspect, &Broke { status: Status::TimedOut, text });
        }
        self.ask_others(suspect);
    }

    /// Requests a sign of life from the peer on the other streams.
    fn ask_others(&mut self, suspect: usize) {
        let mut head = Head::bare(Kind::Ack, self.window.highest(), ANSWER);
        head.ack = self.window.expected();
        for number in (0..self.links.len()).filter(|&number| number != suspect) {
            if let Some(stream) = self.links[number].stream.as_mut() {
                if stream.track.send_aside(&head) {
                    self.flush_stream(number);
                }
            }
        }
    }

    /// Takes a connected stream into use. The next poll sends the data that waits.
    pub(crate) fn stream_up(&mut self, number: usize, stream: Stream) {
        self.drop_stream(number);
        self.shared.streams.set(self.shared.streams.get() + 1);
        self.shared.watch_stream(&stream, self.index, number);
        self.links[number].stream = Some(Box::new(stream));
        // The stream may break before anything arrives on it.
        self.last_received_ms = self.shared.now_ms();
        self.gone_since = None;
        if self.phase == Phase::Linking {
            self.phase = Phase::Open;
        }
        if self.outbox.retains() {
            self.keep_time();
        }
        self.call_attention();
    }

    /// Returns the memory of this connection: of its state, and of buffers.
    pub(crate) fn memory(&self) -> (usize, usize) {
        let streams = self.links.iter().filter_map(|link| link.stream.as_ref());
        let received: usize = streams.clone().map(|stream| stream.committed()).sum();
        let state = size_of::<Conn>()
            + self.links.capacity() * size_of::<Link>()
            + streams.count() * size_of::<Stream>()
            + self.peer.as_ref().map_or(0, |peer| {
                size_of::<Peer>()
                    + peer.contact.addresses.capacity() * size_of::<tieline_net::ListenAddress>()
            })
            + self.ops.as_ref().map_or(0, |_| size_of::<Ops>());
        let held = self.outbox.committed() + self.held_bytes + received;
        (state, held)
    }
}
