//! The poll: which streams are read and written, which events are reported, and when to wake for the next poll.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tieline_net::{Mailbox, Ready, Timer};
use tieline_plugin_api::{Armed, Events, MemoryReport};

use crate::config::MOST_VISITS;
use crate::conn::{Conn, ConnectionState, Phase};
use crate::link::{Greeting, PURPOSE, turn_away};
use crate::receive::Read;
use crate::shared::{HUB, MAILBOX, Notice, Shared, TICK, TIMER, token};

/// The maximum number of recently active streams with which polls read without a query of epoll.
const MAX_HOT: usize = 4;
/// The interval after which epoll is queried nevertheless.
const ASK_EVERY: Duration = Duration::from_micros(50);
/// The number of direct reads without data in a row after which the stream read last is left to epoll.
pub(crate) const COOL_AFTER: u32 = 100_000;
/// The number of bytes after which a poll reads no further connection.
const MOST_BYTES: usize = 4 << 20;
/// The number of event slots that a connection may always fill, if there are that many, before the next connection is read.
const LEAST_SHARE: usize = 4;

/// The connections of an interface, and the state of serving them.
pub(crate) struct State {
    pub(crate) conns: Vec<Option<Rc<Conn>>>,
    pub(crate) free: Vec<u32>,
    pub(crate) by_id: HashMap<u64, u32>,
    pub(crate) mailbox: Mailbox,
    pub(crate) timer: Timer,
    pub(crate) timer_at: Option<Instant>,
    pub(crate) ready: Vec<Ready>,
    pub(crate) handed_out: Vec<Notice>,
    pub(crate) asked: Instant,
    pub(crate) ticked: Instant,
    pub(crate) turn: usize,
    /// The connections that keep their place in the queue.
    pub(crate) kept: Vec<u32>,
    pub(crate) quiet: u32,
}

impl State {
    fn conn(&self, index: u32) -> Option<Rc<Conn>> {
        self.conns.get(index as usize)?.clone()
    }

    pub(crate) fn poll(&mut self, shared: &Shared, events: &mut Events<'_>) {
        self.begin(shared);
        // The poll leaves room for the events of streams.
        self.hand_out(shared, events, events.room() / 2);
        let now = Instant::now();
        shared.now.set(now);
        // The poll either reads directly or queries epoll: epoll also reports the active streams.
        let hot = shared.hot.borrow().len();
        let since = now.duration_since(self.asked);
        let asks = hot == 0 || hot > MAX_HOT || shared.blocked.get() > 0 || since > ASK_EVERY;
        if asks {
            self.asked = now;
            self.ask_kernel(shared, Some(Duration::ZERO));
        }
        let queue = !shared.readers.borrow().is_empty();
        if queue && !asks {
            self.queue_hot(shared);
        }
        if queue || asks {
            self.serve(shared, events);
        } else {
            self.read_hot(shared, events);
        }
        if now.duration_since(self.ticked) >= TICK {
            self.ticked = now;
            self.tick(shared, now);
            shared.pool.borrow_mut().trim();
        }
        self.attend(shared);
        self.hand_out(shared, events, 0);
    }

    /// Frees the memory that events of the previous poll pointed to.
    #[inline]
    pub(crate) fn begin(&mut self, shared: &Shared) {
        shared.round.set(shared.round.get() + 1);
        self.handed_out.clear();
        shared.handed_out.borrow_mut().clear();
        shared.received.set(0);
        shared.pool.borrow_mut().begin();
    }

    /// Delivers pending events, but leaves `leave` slots free.
    fn hand_out(&mut self, shared: &Shared, events: &mut Events<'_>, leave: usize) {
        let mut notices = shared.notices.borrow_mut();
        while events.room() > leave {
            let Some(Notice { mut event, data }) = notices.pop_front() else { return };
            if !data.is_empty() {
                event.data = data.as_ptr();
                event.len = data.len();
            }
            let _ = events.push(event);
            self.handed_out.push(Notice { event, data });
        }
    }

    /// Returns the next of the recently active streams.
    fn next_hot(&mut self, shared: &Shared) -> Option<(u32, usize)> {
        let hot = shared.hot.borrow();
        let next = hot.get(self.turn).or(hot.first()).copied();
        self.turn = if self.turn + 1 < hot.len() { self.turn + 1 } else { 0 };
        next
    }

    /// Reads one of the recently active streams directly.
    fn read_hot(&mut self, shared: &Shared, events: &mut Events<'_>) {
        let Some((index, number)) = self.next_hot(shared) else { return };
        let Some(conn) = self.conn(index) else { return };
        {
            let mut inner = conn.inner.borrow_mut();
            inner.floor = 0;
            if inner.read(number, events) == Read::Some {
                self.quiet = 0;
                return;
            }
        }
        self.quiet += 1;
        if self.quiet > COOL_AFTER {
            self.quiet = 0;
            self.cool_down(shared, index, number);
        }
    }

    /// Queues one of the recently active streams like any other.
    fn queue_hot(&mut self, shared: &Shared) {
        let Some((index, number)) = self.next_hot(shared) else { return };
        if let Some(conn) = self.conn(index) {
            conn.inner.borrow_mut().fall_behind(number);
        }
    }

    /// Reads the queued connections. Each connection fills at most its share of the events and reads a limited number of bytes
    /// before the next one. If no event slot is left for a connection's first message, this connection is the first of the next
    /// poll. Without an event slot, data that needs no event is read until a message comes or the poll's limit of bytes is reached.
    pub(crate) fn serve(&mut self, shared: &Shared, events: &mut Events<'_>) {
        let mut kept = std::mem::take(&mut self.kept);
        // The second round gives the remaining slots to connections with more messages.
        for _ in 0..2 {
            let mut waiting = shared.readers.borrow().len().min(MOST_VISITS);
            while waiting > 0 && shared.received.get() < MOST_BYTES {
                let before = events.room();
                let share = before.div_ceil(waiting).max(LEAST_SHARE);
                let Some(index) = shared.readers.borrow_mut().pop_front() else { break };
                self.visit(shared, events, index, before.saturating_sub(share));
                waiting -= 1;
                let mut readers = shared.readers.borrow_mut();
                if before == 0 && readers.back() == Some(&index) {
                    kept.extend(readers.pop_back());
                }
            }
            if events.room() == 0 {
                break;
            }
        }
        let mut readers = shared.readers.borrow_mut();
        kept.drain(..).rev().for_each(|index| readers.push_front(index));
        self.kept = kept;
    }

    /// Reads one connection until only `floor` slots are left for events, or it has used up its share.
    fn visit(&mut self, shared: &Shared, events: &mut Events<'_>, index: u32, floor: usize) {
        let Some(conn) = self.conn(index) else { return };
        let mut inner = conn.inner.borrow_mut();
        inner.queued.set(false);
        inner.floor = floor;
        inner.drain_held(events);
        for number in 0..inner.links.len() {
            let (read, hot) = inner.read_behind(number, events);
            if read == Read::Some && !hot {
                drop(inner);
                self.warm_up(shared, index, number);
                inner = conn.inner.borrow_mut();
            }
        }
    }

    /// Ends the direct reading of a stream, and returns its buffer to the pool.
    fn cool_down(&mut self, shared: &Shared, index: u32, number: usize) {
        shared.cool(index, number);
        let Some(conn) = self.conn(index) else { return };
        let mut inner = conn.inner.borrow_mut();
        inner.outbox.trim();
        if let Some(stream) = inner.links.get_mut(number).and_then(|link| link.stream.as_mut()) {
            stream.hot = false;
            stream.put_away(&shared.pool);
        }
    }

    fn warm_up(&mut self, shared: &Shared, index: u32, number: usize) {
        let evicted = {
            let mut hot = shared.hot.borrow_mut();
            hot.push((index, number));
            self.turn = hot.len() - 1;
            (hot.len() > 4 * MAX_HOT).then(|| hot[0])
        };
        if let Some((index, number)) = evicted {
            self.cool_down(shared, index, number);
            self.turn = 0;
        }
    }

    /// Queries epoll and handles its events: queues the readable connections, and takes the connections of peers.
    pub(crate) fn ask_kernel(&mut self, shared: &Shared, timeout: Option<Duration>) {
        let mut ready = std::mem::take(&mut self.ready);
        if shared.poller.wait(&mut ready, timeout).is_err() {
            ready.clear();
        }
        let mut arrivals = false;
        for at in &ready {
            match at.token {
                HUB => {
                    shared.hub.poll();
                    arrivals = true;
                }
                TIMER => {
                    self.timer.set(None);
                    self.timer_at = None;
                    self.ticked = shared.now.get();
                    self.tick(shared, shared.now.get());
                }
                MAILBOX => arrivals = true,
                token => self.ready(token, *at),
            }
        }
        self.ready = ready;
        while let Some(incoming) = arrivals.then(|| self.mailbox.take()).flatten() {
            let greeting = Greeting::parse(incoming.hello.payload());
            let Some(greeting) = greeting.filter(|_| incoming.hello.purpose == PURPOSE) else {
                continue;
            };
            match self.by_id.get(&greeting.to).and_then(|index| self.conn(*index)) {
                Some(conn) => conn.inner.borrow_mut().incoming(greeting, incoming),
                None => turn_away(&incoming.stream.into()),
            }
        }
    }

    fn ready(&mut self, token: u64, ready: Ready) {
        let (index, number) = ((token >> 16) as u32, (token >> 8 & 0xff) as usize);
        let Some(conn) = self.conn(index) else { return };
        let mut inner = conn.inner.borrow_mut();
        match token & 0xff {
            1 => inner.tend_dial(number),
            2 => inner.tend_standbys(number),
            _ => {
                if ready.writable {
                    inner.unblock(number);
                    inner.flush_stream(number);
                }
                if ready.readable {
                    inner.fall_behind(number);
                }
            }
        }
    }

    /// Handles the connections that requested attention.
    pub(crate) fn attend(&mut self, shared: &Shared) {
        if shared.attention.borrow().is_empty() {
            return;
        }
        let list = shared.attention.take();
        for &index in &list {
            let Some(conn) = self.conn(index) else { continue };
            let mut inner = conn.inner.borrow_mut();
            inner.flagged.set(false);
            inner.attend();
            if inner.is_over() {
                drop(inner);
                self.remove(&conn);
            }
        }
        let mut attention = shared.attention.borrow_mut();
        if attention.is_empty() {
            let mut list = list;
            list.clear();
            *attention = list;
        }
    }

    fn remove(&mut self, conn: &Conn) {
        if conn.inner.borrow().is_filled {
            conn.inner.borrow().shared.filled.borrow_mut().retain(|index| *index != conn.index);
        }
        let _ = self.by_id.remove(&conn.id);
        self.conns[conn.index as usize] = None;
        self.free.push(conn.index);
    }

    /// Treats the descriptors that epoll has refused to watch as ready, and asks epoll again.
    fn visit_unwatched(&mut self, shared: &Shared) {
        for (index, number, what) in shared.unwatched.take() {
            let Some(conn) = self.conn(index) else { continue };
            conn.inner.borrow_mut().watch_again(number, what);
            let token = token(index, number, what);
            self.ready(token, Ready { token, readable: true, writable: true });
        }
    }

    /// Frees the memory of the send buffers that are empty.
    fn free_send_buffers(&self, shared: &Shared) {
        let mut filled = shared.filled.take();
        filled.retain(|index| {
            self.conn(*index).is_some_and(|conn| conn.inner.borrow_mut().free_memory())
        });
        shared.filled.borrow_mut().extend(filled);
    }

    pub(crate) fn tick(&mut self, shared: &Shared, now: Instant) {
        self.visit_unwatched(shared);
        if shared.next_check().is_some_and(|at| now >= at) {
            self.look_for_silence(shared, now);
        }
        let list = shared.timed.take();
        for index in list {
            let Some(conn) = self.conn(index) else { continue };
            let mut inner = conn.inner.borrow_mut();
            inner.timed.set(false);
            if inner.tick(now) {
                inner.keep_time();
            }
        }
    }

    fn look_for_silence(&mut self, shared: &Shared, now: Instant) {
        shared.checked.set(now);
        for index in shared.expecting.take() {
            let Some(conn) = self.conn(index) else { continue };
            let mut inner = conn.inner.borrow_mut();
            if inner.look_for_silence(now) && !inner.expects.replace(true) {
                shared.expecting.borrow_mut().push(index);
            }
        }
    }

    pub(crate) fn arm(&mut self, shared: &Shared) -> Armed {
        let busy = !shared.attention.borrow().is_empty()
            || !shared.readers.borrow().is_empty()
            || !shared.notices.borrow().is_empty()
            || !self.mailbox.is_empty();
        if busy {
            return Armed::Ready;
        }
        // Each stream may be idle for long, so its memory is not needed.
        while let Some((index, number)) = shared.hot.borrow_mut().pop() {
            self.cool_down(shared, index, number);
        }
        shared.pool.borrow_mut().clear();
        self.free_send_buffers(shared);
        let ticks = !shared.timed.borrow().is_empty() || !shared.unwatched.borrow().is_empty();
        let next = if ticks { Some(Instant::now() + TICK) } else { shared.next_check() };
        if next != self.timer_at {
            self.timer.set(next);
            self.timer_at = next;
        }
        Armed::Sleep
    }

    pub(crate) fn memory(&self, shared: &Shared) -> MemoryReport {
        let mut report = MemoryReport {
            base_bytes: (size_of::<State>()
                + size_of::<Shared>()
                + self.conns.capacity() * size_of::<Option<Rc<Conn>>>()
                + self.by_id.capacity() * (size_of::<(u64, u32)>() + 1)
                + shared.scratch.borrow().capacity()) as u64,
            buffer_bytes: shared.pool.borrow().committed() as u64,
            ..MemoryReport::default()
        };
        for conn in self.conns.iter().flatten() {
            let (state, buffers) = conn.inner.borrow().memory();
            report.peers += 1;
            report.peer_bytes += state as u64;
            report.buffer_bytes += buffers as u64;
        }
        report
    }
}

impl ConnectionState {
    /// Reads a stream that may have data to read. Also returns whether the stream needs no place among the recently active ones.
    fn read_behind(&mut self, number: usize, events: &mut Events<'_>) -> (Read, bool) {
        let behind = |inner: &ConnectionState| {
            let stream = inner.links.get(number).and_then(|link| link.stream.as_ref());
            stream.is_some_and(|stream| stream.behind)
        };
        if !behind(self) {
            return (Read::Quiet, true);
        }
        let read = self.read(number, events);
        let Some(stream) = self.links.get_mut(number).and_then(|link| link.stream.as_mut()) else {
            return (Read::Quiet, true);
        };
        let (hot, failed) = (stream.hot, stream.error.is_some());
        if read == Read::Some {
            stream.hot = true;
            if failed {
                self.fall_behind(number);
            }
        } else {
            stream.put_away(&self.shared.pool);
            self.fail_stream(number);
        }
        (read, hot)
    }

    /// Does the deferred work: answers, acknowledgements, the end of the connection.
    fn attend(&mut self) {
        for number in 0..self.links.len() {
            let stream = self.links.get(number).and_then(|link| link.stream.as_ref());
            if stream.is_some_and(|stream| stream.error.is_some()) {
                self.fall_behind(number); // data that arrived before the error must still be read
            }
        }
        if self.phase == Phase::Closing {
            return self.finish();
        }
        if self.outbox.retains() && self.ack_owed > 0 {
            if self.ack_round == self.shared.round.get() {
                self.call_attention(); // a reply may carry the acknowledgement
            } else {
                self.send_ack();
            }
        }
        self.flush();
    }

    /// Ends a stream that could not be written to, when all received data is read.
    fn fail_stream(&mut self, number: usize) {
        let Some(stream) = self.links.get_mut(number).and_then(|link| link.stream.as_mut()) else {
            return;
        };
        if let Some(error) = stream.error.take() {
            let broke = crate::stream::Broke::error(&stream.peer(), &error);
            self.stream_broke(number, &broke);
        }
    }
}
