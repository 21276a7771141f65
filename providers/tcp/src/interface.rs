//! An interface: the mailbox in the process's listener, the connections, and the poll that serves them all.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tieline_net::{Contact, Hub, Interest, Mailbox, Poller, Ready, Route, Timer};
use tieline_plugin_api::abi::{Event, Iov};
use tieline_plugin_api::{Armed, Events, Failure, Interface, MemoryReport, Status, event};

use crate::config::Settings;
use crate::conn::{Conn, Phase};
use crate::domain::DomainState;
use crate::endpoint::StreamEndpoint;
use crate::link::{Greeting, PURPOSE, What, turn_away};
use crate::outbox::Gathered;
use crate::receive::{Read, recycled};
use crate::stream::{Buffer, Stream};

/// How often connections that are being formed, closed or waited for are visited.
const TICK: Duration = Duration::from_millis(10);
/// The most streams that are read without asking epoll first, and how often epoll is asked all the same.
const MAX_HOT: usize = 4;
const ASK_EVERY: Duration = Duration::from_micros(50);
/// Streams without news for this many polls are left to epoll.
const COOL_AFTER: u32 = 100_000;
/// Receive buffers that are kept for the next stream.
const MAX_SPARE: usize = 4;
/// How long closing an interface may take to hand to the kernel what was sent.
const CLOSING: Duration = Duration::from_secs(1);

const HUB: u64 = 0;
const MAILBOX: u64 = 1;
const TIMER: u64 = 2;
const LINK: u64 = 1 << 63;

fn token(index: u32, number: usize, what: What) -> u64 {
    let what = match what {
        What::Stream => 0,
        What::Dial => 1,
        What::Candidate => 2,
    };
    LINK | u64::from(index) << 16 | (number as u64) << 8 | what
}

/// An event that waits for room, and the words that it points to.
struct Notice {
    event: Event,
    data: Box<[u8]>,
}

/// What an interface's connections share with it.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) domain: Arc<DomainState>,
    pub(crate) hub: Arc<Hub>,
    /// Names this interface to its process's listener.
    pub(crate) target: [u8; 16],
    poller: Poller,
    /// Counts polls.
    pub(crate) round: Cell<u64>,
    began: Instant,
    now: Cell<Instant>,
    /// Streams that the kernel takes nothing more from.
    pub(crate) blocked: Cell<usize>,
    pub(crate) streams: Cell<usize>,
    /// Connections that the next poll looks at, and those that are looked at regularly.
    pub(crate) attention: RefCell<Vec<u32>>,
    pub(crate) timed: RefCell<Vec<u32>>,
    /// Connections that wait for an answer of the peer's kernel, and when they were last looked at.
    expecting: RefCell<Vec<u32>>,
    looked: Cell<Instant>,
    hot: RefCell<Vec<(u32, usize)>>,
    notices: RefCell<VecDeque<Notice>>,
    /// What events of this round point to.
    pub(crate) told: RefCell<Vec<Box<[u8]>>>,
    pub(crate) cooling: RefCell<Vec<Buffer>>,
    spare: RefCell<Vec<Buffer>>,
    pub(crate) gathered: RefCell<Gathered>,
    pub(crate) pieces: RefCell<Vec<Iov>>,
    /// Where messages are packed and gathered.
    pub(crate) scratch: RefCell<Vec<u8>>,
}

impl Shared {
    pub(crate) fn now_ms(&self) -> u64 {
        self.now.get().duration_since(self.began).as_millis() as u64
    }

    /// The time that [`Shared::now_ms`] had that value.
    pub(crate) fn at_ms(&self, ms: u64) -> Instant {
        self.began + Duration::from_millis(ms)
    }

    fn notify(&self, event: Event, data: &[u8]) {
        self.notices.borrow_mut().push_back(Notice { event, data: data.into() });
    }

    pub(crate) fn completed(&self, cookie: u64, result: Result<u64, Status>) {
        let status = result.err().map_or(0, |status| status as i32);
        self.notify(Event { kind: event::COMPLETION, status, cookie, ..Event::empty() }, &[]);
    }

    pub(crate) fn endpoint_failed(&self, cookie: u64, status: Status, why: &str) {
        let event =
            Event { kind: event::ENDPOINT_FAILED, status: status as i32, cookie, ..Event::empty() };
        self.notify(event, why.as_bytes());
    }

    /// A connection has sent something.
    pub(crate) fn expect_answer(&self, index: u32, now: Instant) {
        let mut expecting = self.expecting.borrow_mut();
        if expecting.is_empty() {
            self.looked.set(now);
        }
        expecting.push(index);
    }

    /// When connections that wait for an answer are looked at next.
    fn next_look(&self) -> Option<Instant> {
        let every = (self.settings.failure_timeout / 8).max(TICK);
        (!self.expecting.borrow().is_empty()).then(|| self.looked.get() + every)
    }

    /// An empty receive buffer.
    pub(crate) fn buffer(&self) -> Buffer {
        self.spare.borrow_mut().pop().unwrap_or_else(Buffer::new)
    }

    pub(crate) fn watch_for(
        &self,
        fd: RawFd,
        interest: Interest,
        index: u32,
        number: usize,
        what: What,
    ) {
        // A descriptor that cannot be watched is visited regularly, or found by who polls.
        let _ = self.poller.watch(fd, interest, token(index, number, what));
    }

    pub(crate) fn watch(&self, fd: RawFd, index: u32, number: usize, what: What) {
        self.watch_for(fd, Interest::READ, index, number, what);
    }

    /// Watches a stream in use for what it waits for.
    pub(crate) fn watch_stream(&self, stream: &Stream, index: u32, number: usize) {
        let writes = if stream.blocked { Interest::WRITE } else { Interest::NONE };
        if stream.leads_to_itself() {
            self.watch(stream.receiver(), index, number, What::Stream);
            self.watch_for(stream.sender(), writes, index, number, What::Stream);
        } else {
            let interest = Interest { readable: true, ..writes };
            self.watch_for(stream.sender(), interest, index, number, What::Stream);
        }
    }

    /// The stream is not read directly any more.
    pub(crate) fn cool(&self, index: u32, number: usize) {
        if let Ok(mut hot) = self.hot.try_borrow_mut() {
            hot.retain(|&entry| entry != (index, number));
        }
    }

    /// Ways to a peer for one of its streams: rails take turns, and each falls back on the others.
    pub(crate) fn routes(&self, contact: &Contact, number: usize) -> Result<Vec<Route>, String> {
        let routes = tieline_net::routes(self.hub.local(), contact)?;
        let mut rails: Vec<String> = Vec::new();
        for route in &routes {
            let name = rail_of(route);
            if !rails.contains(&name) {
                rails.push(name);
            }
        }
        let used = self.settings.rails(rails.len());
        let rail = rails[number % used].clone();
        let (mut first, rest): (Vec<Route>, Vec<Route>) =
            routes.into_iter().partition(|route| rail_of(route) == rail);
        first.extend(rest);
        Ok(first)
    }
}

fn rail_of(route: &Route) -> String {
    route.local.as_ref().map_or_else(|| route.why.clone(), |local| local.interface.clone())
}

struct State {
    conns: Vec<Option<Rc<Conn>>>,
    free: Vec<u32>,
    by_id: HashMap<u64, u32>,
    mailbox: Mailbox,
    timer: Timer,
    timer_at: Option<Instant>,
    ready: Vec<Ready>,
    told: Vec<Notice>,
    asked: Instant,
    ticked: Instant,
    turn: usize,
    quiet: u32,
}

/// The module `stream`, opened for one worker.
pub struct StreamInterface {
    state: RefCell<State>,
    shared: Rc<Shared>,
}

impl StreamInterface {
    pub(crate) fn open(
        domain: Arc<DomainState>,
        settings: Settings,
        hub: Arc<Hub>,
    ) -> Result<StreamInterface, Failure> {
        let failed = |text: String| Failure::new(Status::NoMemory, text);
        let mut target = [0; 16];
        tieline_net::random(&mut target).map_err(|e| Failure::from_io("random bytes", &e))?;
        let poller = Poller::new().map_err(|e| Failure::from_io("epoll", &e))?;
        let timer = Timer::new().map_err(|e| Failure::from_io("timerfd", &e))?;
        let mailbox = hub.register(target).map_err(failed)?;
        for (fd, token) in [
            (hub.fd().as_raw_fd(), HUB),
            (mailbox.fd().as_raw_fd(), MAILBOX),
            (timer.as_fd().as_raw_fd(), TIMER),
        ] {
            poller.watch(fd, Interest::READ, token).map_err(|e| Failure::from_io("epoll", &e))?;
        }
        let now = Instant::now();
        let shared = Shared {
            settings,
            domain,
            hub,
            target,
            poller,
            round: Cell::new(1),
            began: now,
            now: Cell::new(now),
            blocked: Cell::new(0),
            streams: Cell::new(0),
            attention: RefCell::default(),
            timed: RefCell::default(),
            expecting: RefCell::default(),
            looked: Cell::new(now),
            hot: RefCell::default(),
            notices: RefCell::default(),
            told: RefCell::default(),
            cooling: RefCell::default(),
            spare: RefCell::default(),
            gathered: RefCell::default(),
            pieces: RefCell::default(),
            scratch: RefCell::default(),
        };
        let state = State {
            conns: Vec::new(),
            free: Vec::new(),
            by_id: HashMap::new(),
            mailbox,
            timer,
            timer_at: None,
            ready: Vec::new(),
            told: Vec::new(),
            asked: now,
            ticked: now,
            turn: 0,
            quiet: 0,
        };
        Ok(StreamInterface { state: RefCell::new(state), shared: Rc::new(shared) })
    }
}

impl Interface for StreamInterface {
    type Endpoint = StreamEndpoint;

    fn address(&self) -> Vec<u8> {
        self.shared.hub.contact(self.shared.target).pack()
    }

    fn reachable(&self, address: &[u8]) -> Result<(), Failure> {
        let contact = Contact::parse(address)
            .map_err(|why| Failure::new(Status::Invalid, format!("no address of tcp: {why}")))?;
        tieline_net::routes(self.shared.hub.local(), &contact)
            .map(drop)
            .map_err(|why| Failure::new(Status::Unreachable, why))
    }

    fn connect(&self, address: &[u8], _: &[u8], cookie: u64) -> Result<StreamEndpoint, Failure> {
        if !address.is_empty() {
            let text = "tcp connects to endpoints: an endpoint is made without an address";
            return Err(Failure::new(Status::Invalid, text));
        }
        let mut state = self.state.borrow_mut();
        let id = crate::regions::random()?;
        if state.by_id.contains_key(&id) {
            return Err(Status::Again.into()); // one chance in 2^64
        }
        let index = match state.free.pop() {
            Some(index) => index,
            None => {
                state.conns.push(None);
                u32::try_from(state.conns.len() - 1).map_err(|_| Failure::from(Status::NoMemory))?
            }
        };
        let conn = Rc::new(Conn::new(&self.shared, cookie, id, index));
        state.conns[index as usize] = Some(Rc::clone(&conn));
        let _ = state.by_id.insert(id, index);
        Ok(StreamEndpoint::new(conn, Rc::clone(&self.shared)))
    }

    fn poll(&self, events: &mut Events<'_>) -> Result<(), Status> {
        self.state.borrow_mut().poll(&self.shared, events);
        Ok(())
    }

    fn arm(&self) -> Result<Armed, Status> {
        Ok(self.state.borrow_mut().arm(&self.shared))
    }

    fn event_fd(&self) -> Option<i32> {
        Some(self.shared.poller.as_fd().as_raw_fd())
    }

    fn memory(&self) -> MemoryReport {
        self.state.borrow().memory(&self.shared)
    }
}

impl State {
    fn conn(&self, index: u32) -> Option<Rc<Conn>> {
        self.conns.get(index as usize)?.clone()
    }

    fn poll(&mut self, shared: &Shared, events: &mut Events<'_>) {
        self.begin(shared);
        self.tell(shared, events);
        let now = Instant::now();
        shared.now.set(now);
        // One or the other: epoll names the active streams too.
        let hot = shared.hot.borrow().len();
        let since = now.duration_since(self.asked);
        if hot == 0 || hot > MAX_HOT || shared.blocked.get() > 0 || since > ASK_EVERY {
            self.asked = now;
            self.ask_kernel(shared, events, Some(Duration::ZERO));
        } else {
            self.read_hot(shared, events);
        }
        if now.duration_since(self.ticked) >= TICK {
            self.ticked = now;
            self.tick(shared, now);
        }
        self.attend(shared, events);
        self.tell(shared, events);
    }

    /// What the events of the poll before pointed to is free again.
    #[inline]
    fn begin(&mut self, shared: &Shared) {
        shared.round.set(shared.round.get() + 1);
        self.told.clear();
        shared.told.borrow_mut().clear();
        let mut cooling = shared.cooling.borrow_mut();
        if !cooling.is_empty() {
            let mut spare = shared.spare.borrow_mut();
            spare.extend(cooling.drain(..).map(recycled));
            spare.truncate(MAX_SPARE);
        }
    }

    fn tell(&mut self, shared: &Shared, events: &mut Events<'_>) {
        let mut notices = shared.notices.borrow_mut();
        while events.room() > 0 {
            let Some(Notice { mut event, data }) = notices.pop_front() else { return };
            if !data.is_empty() {
                event.data = data.as_ptr();
                event.len = data.len();
            }
            let _ = events.push(event);
            self.told.push(Notice { event, data });
        }
    }

    /// Reads one of the streams that were active lately.
    fn read_hot(&mut self, shared: &Shared, events: &mut Events<'_>) {
        let (count, (index, number)) = {
            let hot = shared.hot.borrow();
            if hot.is_empty() || hot.len() > MAX_HOT || events.room() == 0 {
                return;
            }
            (hot.len(), hot[self.turn % hot.len()])
        };
        let Some(conn) = self.conn(index) else { return };
        if conn.inner.borrow_mut().read(number, events) == Read::Some {
            self.quiet = 0;
            return;
        }
        self.turn = (self.turn + 1) % count;
        self.quiet += 1;
        if self.quiet > COOL_AFTER {
            self.quiet = 0;
            self.cool_down(shared, index, number);
        }
    }

    /// A stream that was active for nothing gives its buffer back.
    fn cool_down(&mut self, shared: &Shared, index: u32, number: usize) {
        shared.cool(index, number);
        let Some(conn) = self.conn(index) else { return };
        let mut inner = conn.inner.borrow_mut();
        inner.outbox.trim();
        if let Some(stream) = inner.links.get_mut(number).and_then(|link| link.stream.as_mut()) {
            stream.hot = false;
            if stream.buffer.as_ref().is_some_and(|buffer| buffer.is_empty()) {
                shared.cooling.borrow_mut().extend(stream.buffer.take());
            }
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

    /// Asks epoll, and serves what it names.
    fn ask_kernel(&mut self, shared: &Shared, events: &mut Events<'_>, timeout: Option<Duration>) {
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
                token => self.serve(shared, events, token, *at),
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

    fn serve(&mut self, shared: &Shared, events: &mut Events<'_>, token: u64, ready: Ready) {
        let (index, number) = ((token >> 16) as u32, (token >> 8 & 0xff) as usize);
        let Some(conn) = self.conn(index) else { return };
        let mut inner = conn.inner.borrow_mut();
        match token & 0xff {
            1 => inner.tend_dial(number),
            2 => inner.tend_candidates(number),
            _ => {
                if ready.writable {
                    inner.unblock(number);
                    inner.flush_stream(number);
                }
                if !ready.readable || events.room() == 0 && inner.phase == Phase::Open {
                    return;
                }
                let read = inner.read(number, events);
                let stream = inner.links.get_mut(number).and_then(|link| link.stream.as_mut());
                if let Some(stream) = stream.filter(|stream| read == Read::Some && !stream.hot) {
                    stream.hot = true;
                    drop(inner);
                    self.warm_up(shared, index, number);
                }
            }
        }
    }

    /// Looks at connections that asked for it.
    fn attend(&mut self, shared: &Shared, events: &mut Events<'_>) {
        if shared.attention.borrow().is_empty() {
            return;
        }
        let list = shared.attention.take();
        for &index in &list {
            let Some(conn) = self.conn(index) else { continue };
            let mut inner = conn.inner.borrow_mut();
            inner.flagged.set(false);
            inner.attend(events);
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
        let _ = self.by_id.remove(&conn.id);
        self.conns[conn.index as usize] = None;
        self.free.push(conn.index);
    }

    fn tick(&mut self, shared: &Shared, now: Instant) {
        if shared.next_look().is_some_and(|at| now >= at) {
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
        shared.looked.set(now);
        for index in shared.expecting.take() {
            let Some(conn) = self.conn(index) else { continue };
            let mut inner = conn.inner.borrow_mut();
            if inner.look_for_silence(now) && !inner.expects.replace(true) {
                shared.expecting.borrow_mut().push(index);
            }
        }
    }

    fn arm(&mut self, shared: &Shared) -> Armed {
        let busy = !shared.attention.borrow().is_empty()
            || !shared.notices.borrow().is_empty()
            || !self.mailbox.is_empty();
        if busy {
            return Armed::Ready;
        }
        // Each of them may sleep for long: the memory is not needed.
        while let Some((index, number)) = shared.hot.borrow_mut().pop() {
            self.cool_down(shared, index, number);
        }
        let ticks = !shared.timed.borrow().is_empty();
        let next = if ticks { Some(Instant::now() + TICK) } else { shared.next_look() };
        if next != self.timer_at {
            self.timer.set(next);
            self.timer_at = next;
        }
        Armed::Sleep
    }

    fn memory(&self, shared: &Shared) -> MemoryReport {
        let spare = shared.spare.borrow().len() + shared.cooling.borrow().len();
        let mut report = MemoryReport {
            base_bytes: (size_of::<State>()
                + size_of::<Shared>()
                + self.conns.capacity() * size_of::<Option<Rc<Conn>>>()
                + self.by_id.capacity() * (size_of::<(u64, u32)>() + 1)
                + shared.scratch.borrow().capacity()) as u64,
            buffer_bytes: (spare * crate::stream::BUFFER) as u64,
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

impl crate::conn::Inner {
    /// What was put off: reading that found no room for events, answers, acknowledgements, the end.
    fn attend(&mut self, events: &mut Events<'_>) {
        self.drain_held(events);
        for number in 0..self.links.len() {
            let Some(stream) = self.links.get(number).and_then(|link| link.stream.as_ref()) else {
                continue;
            };
            if stream.behind || stream.error.is_some() {
                if events.room() > 0 || self.phase != Phase::Open {
                    let failed = stream.error.is_some();
                    let read = self.read(number, events);
                    if failed && read == Read::Quiet {
                        self.fail_stream(number);
                    }
                } else {
                    self.call_attention();
                }
            }
        }
        if self.phase == Phase::Closing {
            return self.finish();
        }
        if self.outbox.retains() && self.ack_owed > 0 {
            if self.ack_round == self.shared.round.get() {
                self.call_attention(); // a reply may carry it
            } else {
                self.send_ack();
            }
        }
        self.flush();
    }

    /// Nothing more is to be read from a stream that could not be written to.
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

impl Drop for StreamInterface {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let until = Instant::now() + CLOSING;
        let speaks = |state: &State| {
            state.conns.iter().flatten().any(|conn| !conn.inner.borrow().has_said_goodbye())
        };
        while speaks(state) && Instant::now() < until {
            state.begin(&self.shared);
            self.shared.now.set(Instant::now());
            let mut none = Events::new(&mut []);
            state.attend(&self.shared, &mut none);
            state.ask_kernel(&self.shared, &mut none, Some(Duration::from_millis(5)));
            state.tick(&self.shared, Instant::now());
        }
        for conn in state.conns.iter().flatten() {
            let mut inner = conn.inner.borrow_mut();
            inner.phase = Phase::Failed(Status::Closed);
            inner.let_go();
        }
    }
}
