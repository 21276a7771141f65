//! The interface: the queues that its endpoints share, and progress.

use super::address::{EndpointAddress, InterfaceAddress};
use super::connection::{About, Connection, NotPosted, Phase, about, receive_id, verdict};
use super::endpoint::RcEndpoint;
use super::queue::{Ends, RESERVE, Role};
use super::wire::{HEADER_LEN, Header, Kind};
use crate::abi::*;
use crate::buffers::Pool;
use crate::domain::DomainState;
use crate::memory::Recent;
use crate::sys::{Cq, Receive, Srq, WC_BATCH, Wc, Work};
use crate::wake::{Sleep, sys::random};
use core::time::Duration;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use tieline_plugin_api::abi::Event;
use tieline_plugin_api::{Armed, Events, Failure, MemoryReport, Status, event};

/// Receive buffers and send buffers are made this many at a time.
const CHUNK: usize = 32;
/// Places for values from before; a page of them at a time.
const RESULTS: usize = 1024;
/// Polls between two looks at the clock, and the time between two looks at everything that is not the completion queue.
const CLOCK_EVERY: u32 = 256;
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long closing the interface waits for last words to be acknowledged.
const LINGER: Duration = Duration::from_millis(100);

/// An event that waits for room, with the bytes or the buffer that it points to.
struct Notice {
    event: Event,
    text: Option<Box<[u8]>>,
    message: Option<Delivered>,
}

/// A message that the application has, or soon will have.
#[derive(Clone, Copy)]
struct Delivered {
    buffer: u32,
    slot: u32,
    life: u8,
}

/// Everything of an interface. The order of the fields is the order in which they go: queue pairs before the queues
/// that they use, queues before the buffers that they hold.
pub(crate) struct State {
    pub(crate) connections: Vec<Option<Box<Connection>>>,
    srq: Srq,
    sleep: Sleep,
    cq: Cq,
    receives: Pool,
    pub(crate) sends: Pool,
    pub(crate) results: Pool,
    pub(crate) recent: Recent,
    pub(crate) pieces: Vec<ibv_sge>,
    pub(crate) domain: Arc<DomainState>,
    lives: Vec<u8>,
    backlog: VecDeque<Notice>,
    /// Words that events of the poll before point to.
    told: Vec<Box<[u8]>>,
    /// Messages of the poll before.
    delivered: Vec<Delivered>,
    to_post: Vec<Receive>,
    /// Room for completions.
    batch: Vec<Wc>,
    /// Connections that owe credits and found no room to say so.
    owing: Vec<u32>,
    /// Places in the completion queue that ended connections may still fill.
    ghosts: usize,
    countdown: u32,
    looked: Instant,
    ticked: Instant,
}

/// The module `rc`, opened for one worker.
pub struct RcInterface {
    pub(crate) state: Rc<RefCell<State>>,
    address: InterfaceAddress,
}

impl RcInterface {
    pub(crate) fn open(domain: Arc<DomainState>) -> Result<RcInterface, Failure> {
        let settings = &domain.settings;
        let places = settings.rx_buffers + 4 * (settings.tx_depth + RESERVE);
        let cq = Cq::new(&domain.device, places.min(domain.max_cqe))?;
        let sleep = Sleep::new(&domain.watch, &cq)?;
        let message = HEADER_LEN + settings.segment;
        let now = Instant::now();
        let mut state = State {
            connections: Vec::new(),
            srq: Srq::new(&domain.pd, settings.rx_buffers.next_multiple_of(CHUNK))?,
            sleep,
            cq,
            receives: Pool::new(&domain.pd, message, CHUNK, settings.rx_buffers),
            sends: Pool::new(&domain.pd, message, CHUNK, settings.tx_buffers),
            results: Pool::new(&domain.pd, 64, 64, RESULTS),
            recent: Recent::default(),
            pieces: Vec::new(),
            lives: Vec::new(),
            backlog: VecDeque::new(),
            told: Vec::new(),
            delivered: Vec::new(),
            to_post: Vec::new(),
            batch: vec![Wc::default(); WC_BATCH],
            owing: Vec::new(),
            ghosts: 0,
            countdown: CLOCK_EVERY,
            looked: now,
            ticked: now,
            domain: domain.clone(),
        };
        state.provide_receives()?;
        let address = InterfaceAddress { port: domain.port, segment: settings.segment as u32 };
        Ok(RcInterface { state: Rc::new(RefCell::new(state)), address })
    }

    pub(crate) fn address(&self) -> Vec<u8> {
        self.address.pack()
    }

    pub(crate) fn reachable(&self, address: &[u8]) -> Result<(), Failure> {
        let peer = InterfaceAddress::unpack(address)?;
        self.address.port.reaches(&peer.port)?;
        fits(self.address.segment, peer.segment)
    }

    pub(crate) fn connect(&self, cookie: u64) -> Result<RcEndpoint, Failure> {
        let slot = self.state.borrow_mut().new_connection(cookie)?;
        Ok(RcEndpoint::new(self.state.clone(), slot))
    }

    #[inline]
    pub(crate) fn poll(&self, events: &mut Events<'_>) -> Result<(), Status> {
        self.state.borrow_mut().poll(events);
        Ok(())
    }

    pub(crate) fn arm(&self) -> Result<Armed, Status> {
        Ok(self.state.borrow_mut().arm())
    }

    pub(crate) fn event_fd(&self) -> i32 {
        self.state.borrow().sleep.raw()
    }

    pub(crate) fn memory(&self) -> MemoryReport {
        let state = self.state.borrow();
        let peers = state.connections.iter().flatten().count() as u64;
        // A work request takes about 128 bytes in the queue pair and as much in our list.
        let each = (state.domain.settings.tx_depth + RESERVE) * 256 + size_of::<Connection>();
        MemoryReport {
            base_bytes: (size_of::<State>() + state.cq.capacity() * 64) as u64,
            peer_bytes: peers * each as u64,
            peers,
            buffer_bytes: (state.receives.committed()
                + state.sends.committed()
                + state.results.committed()) as u64,
        }
    }
}

/// Whether a peer with receive buffers of `theirs` takes the longest message of this side.
pub(crate) fn fits(ours: u32, theirs: u32) -> Result<(), Failure> {
    if theirs >= ours {
        return Ok(());
    }
    let text = format!(
        "the peer takes messages of at most {theirs} bytes and this side sends up to {ours}: \
         TIELINE_VERBS_SEGMENT_SIZE must be the same"
    );
    Err(Failure::new(Status::Unreachable, text))
}

impl Drop for RcInterface {
    fn drop(&mut self) {
        let Ok(mut state) = self.state.try_borrow_mut() else { return };
        let until = Instant::now() + LINGER;
        while state.connections.iter().flatten().any(|c| c.closing) && Instant::now() < until {
            let _ = state.fetch(None);
            std::thread::yield_now();
        }
        // Endpoints are closed already; one that is not must find nothing.
        state.connections.clear();
    }
}

impl State {
    fn new_connection(&mut self, cookie: u64) -> Result<u32, Failure> {
        if self.domain.watch.device_gone() {
            let text = format!("the device {} was removed", self.domain.name.device);
            return Err(Failure::new(Status::NoDevice, text));
        }
        let slot = match self.connections.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                self.connections.push(None);
                self.lives.push(0);
                self.connections.len() - 1
            }
        };
        self.provide_completions()?;
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
        let life = self.lives[slot];
        let connection = Connection::new(&self.domain, &self.cq, &self.srq, own, cookie, life)?;
        self.connections[slot] = Some(Box::new(connection));
        self.provide_receives()?;
        self.tick_while_needed();
        Ok(slot as u32)
    }

    fn tick_while_needed(&self) {
        let interval = (self.domain.settings.failure / 8)
            .clamp(Duration::from_millis(20), Duration::from_secs(1));
        let any = self.connections.iter().any(Option::is_some);
        self.sleep.tick(any.then_some(interval));
    }

    /// Room in the completion queue for everything that can complete at once.
    fn provide_completions(&mut self) -> Result<(), Failure> {
        let settings = &self.domain.settings;
        let connections = self.connections.iter().flatten().count() + 1;
        let need = settings.rx_buffers + self.ghosts + connections * (settings.tx_depth + RESERVE);
        if need <= self.cq.capacity() {
            return Ok(());
        }
        let places = need.next_power_of_two().min(self.domain.max_cqe);
        if places < need {
            let text = format!(
                "{} endpoints need {need} places in a completion queue and {} has {} at most: lower \
                 TIELINE_VERBS_TX_DEPTH",
                connections, self.domain.name.device, self.domain.max_cqe
            );
            return Err(Failure::new(Status::NoMemory, text));
        }
        self.cq.resize(places)
    }

    /// Posts as many receives as the endpoints' windows ask for, within the bound.
    fn provide_receives(&mut self) -> Result<(), Failure> {
        let settings = &self.domain.settings;
        let connections = self.connections.iter().flatten().count();
        let want = (CHUNK + connections * (settings.window + 4)).min(settings.rx_buffers);
        while self.receives.total() < want {
            match self.receives.grow() {
                Err(failure) if failure.status == Status::Again => break,
                // With some buffers posted the interface works, only slower.
                Err(_) if self.receives.total() > 0 => break,
                other => other?,
            }
        }
        while let Some(buffer) = self.receives.take_made() {
            self.to_post.push(Receive { id: receive_id(buffer), sge: self.receives.whole(buffer) });
        }
        self.post_receives()
    }

    fn post_receives(&mut self) -> Result<(), Failure> {
        if self.to_post.is_empty() {
            return Ok(());
        }
        let result = self.srq.post(&self.to_post);
        self.to_post.clear();
        result
    }

    #[inline]
    fn poll(&mut self, events: &mut Events<'_>) {
        if !self.delivered.is_empty() || !self.told.is_empty() {
            self.release();
        }
        self.countdown -= 1;
        if self.countdown == 0 {
            self.countdown = CLOCK_EVERY;
            self.look(Some(events), false);
        }
        while let Some(notice) = self.backlog.pop_front() {
            if events.room() == 0 {
                self.backlog.push_front(notice);
                return;
            }
            self.hand_over(notice, events);
        }
        if events.room() > 0 {
            let _ = self.fetch(Some(events));
        }
    }

    /// The application is done with what the poll before delivered.
    fn release(&mut self) {
        self.told.clear();
        for at in 0..self.delivered.len() {
            let Delivered { buffer, slot, life } = self.delivered[at];
            self.to_post.push(Receive { id: receive_id(buffer), sge: self.receives.whole(buffer) });
            if let Some(connection) = self.living(slot, life) {
                connection.credits.taken();
                if connection.credits.is_due() && !self.owing.contains(&slot) {
                    self.owing.push(slot);
                }
            }
        }
        self.delivered.clear();
        if self.post_receives().is_err() {
            self.break_all(Status::Io, "the device takes no receives any more", None);
        }
        self.pay();
    }

    /// Gives credits back that no message has carried.
    fn pay(&mut self) {
        let mut owing = core::mem::take(&mut self.owing);
        owing.retain(|&slot| {
            let due = self
                .connection(slot)
                .is_some_and(|c| c.phase == Phase::Standing && !c.closing && c.credits.is_due());
            due && !self.control(slot, Kind::Credit, Role::User)
        });
        self.owing = owing;
    }

    pub(crate) fn connection(&mut self, slot: u32) -> Option<&mut Connection> {
        self.connections.get_mut(slot as usize)?.as_deref_mut()
    }

    fn living(&mut self, slot: u32, life: u8) -> Option<&mut Connection> {
        self.connection(slot).filter(|connection| connection.life == life)
    }

    /// Sends a word of the connection itself; `false` when there is no room now.
    fn control(&mut self, slot: u32, kind: Kind, role: Role) -> bool {
        let Some(connection) =
            self.connections.get_mut(slot as usize).and_then(Option::as_deref_mut)
        else {
            return true;
        };
        if !connection.queue.has_reserve() {
            return false;
        }
        let credits = connection.credits.owed_now();
        let head = Header { header: 0, id: 0, credits, kind }.pack();
        // A credit is the only word whose end nobody waits for.
        let mut flags = if kind == Kind::Credit { 0 } else { IBV_SEND_SIGNALED };
        let mut ends = Ends { role, ..Ends::default() };
        let piece = if connection.inline() >= HEADER_LEN {
            flags |= IBV_SEND_INLINE;
            borrowed(&head)
        } else {
            let Ok(buffer) = self.sends.take() else { return false };
            self.sends.bytes_mut(buffer)[..HEADER_LEN].copy_from_slice(&head);
            ends.buffer = Some(buffer);
            self.sends.sge(buffer, HEADER_LEN)
        };
        let work = connection.to_peer();
        match connection.post(work, &[piece], ends, flags) {
            Ok(()) => {
                connection.credits.told(credits);
                true
            }
            Err(refused) => {
                self.release_ends(refused.ends);
                false
            }
        }
    }

    /// Gives back what a send held.
    pub(crate) fn release_ends(&mut self, ends: Ends) {
        if let Some(buffer) = ends.buffer {
            self.sends.give(buffer);
        }
        if let Some(result) = ends.result {
            self.results.give(result);
        }
    }

    /// What a data call says when the device did not take its send.
    #[cold]
    pub(crate) fn refused(&mut self, slot: u32, refused: NotPosted) -> Status {
        let errno = refused.errno;
        self.release_ends(refused.ends);
        if errno == libc::ENOMEM || errno == libc::EAGAIN {
            return Status::Again;
        }
        let error = std::io::Error::from_raw_os_error(errno);
        let text = format!("{} does not take sends any more: {error}", self.domain.name.words());
        self.break_connection(slot, &Failure::new(Status::Io, text), None);
        Status::Io
    }

    /// Connects an endpoint to its peer's.
    pub(crate) fn connect(&mut self, slot: u32, address: &[u8]) -> Result<(), Failure> {
        let peer = EndpointAddress::unpack(address)?;
        let domain = self.domain.clone();
        let connection = self.connection(slot).ok_or(Status::Closed)?;
        match connection.phase {
            Phase::Fresh => {}
            Phase::Broken(status) => return Err(status.into()),
            _ => return Err(Failure::new(Status::Busy, "this endpoint is connected already")),
        }
        domain.port.reaches(&peer.port)?;
        fits(domain.settings.segment as u32, peer.segment)?;
        connection.ready(&domain, &peer)?;
        connection.peer = Some(peer);
        connection.credits.open(u32::from(peer.window));
        connection.phase = Phase::Connecting;
        connection.deadline = Instant::now() + domain.settings.connect;
        if connection.own.speaks_first(&peer) && !self.control(slot, Kind::Hello, Role::Hello) {
            return Err(Failure::new(
                Status::Io,
                "the first word of a connection cannot be posted",
            ));
        }
        Ok(())
    }

    /// Closes an endpoint. What was sent before still arrives, unless the device works on memory of the application.
    pub(crate) fn close(&mut self, slot: u32) {
        let Some(connection) = self.connection(slot) else { return };
        connection.closing = true;
        if connection.phase != Phase::Standing || connection.queue.touches_application() {
            return self.bury(slot);
        }
        if !self.control(slot, Kind::Bye, Role::Bye) {
            self.bury(slot);
        }
    }

    /// Destroys a connection; everything that it held is given back, without an event.
    fn bury(&mut self, slot: u32) {
        let Some(place) = self.connections.get_mut(slot as usize) else { return };
        let Some(mut connection) = place.take() else { return };
        self.ghosts += connection.queue.len();
        connection.qp = None;
        let last = connection.queue.next().wrapping_sub(1);
        while let Some(ends) = connection.queue.retire(last) {
            self.release_ends(ends);
        }
        self.lives[slot as usize] = self.lives[slot as usize].wrapping_add(1);
        self.tick_while_needed();
    }

    /// Fetches a batch of completions; whether there was any.
    fn fetch(&mut self, mut events: Option<&mut Events<'_>>) -> bool {
        let mut batch = core::mem::take(&mut self.batch);
        let count = match self.cq.poll(&mut batch) {
            Ok(count) => count,
            Err(failure) => {
                self.break_all(failure.status, &failure.text, events.as_deref_mut());
                0
            }
        };
        for wc in &batch[..count] {
            match about(wc.wr_id) {
                About::Receive { buffer } => self.received(buffer, wc, events.as_deref_mut()),
                About::Send { slot, life, number } => {
                    self.sent(slot, life, number, wc, events.as_deref_mut());
                }
            }
        }
        self.batch = batch;
        if count == 0 {
            self.ghosts = 0;
            return false;
        }
        if self.post_receives().is_err() {
            self.break_all(Status::Io, "the device takes no receives any more", events);
        }
        true
    }

    /// A send has completed, and with it all before it.
    fn sent(
        &mut self,
        slot: u32,
        life: u8,
        number: u32,
        wc: &Wc,
        mut events: Option<&mut Events<'_>>,
    ) {
        let failed = wc.status != IBV_WC_SUCCESS;
        let upto = if failed { number.wrapping_sub(1) } else { number };
        loop {
            let Some(connection) = self.living(slot, life) else { return };
            if !failed {
                connection.heard = true;
            }
            if failed && !connection.queue.holds(upto) {
                break;
            }
            let Some(ends) = connection.queue.retire(upto) else { break };
            match ends.role {
                Role::Hello if connection.phase == Phase::Connecting => {
                    connection.phase = Phase::Standing;
                }
                Role::Probe => connection.probing = false,
                Role::Bye => {
                    self.release_ends(ends);
                    return self.bury(slot);
                }
                _ => {}
            }
            self.finish(slot, ends, Ok(()), events.as_deref_mut());
        }
        if failed {
            self.broke(slot, number, wc, events);
        }
    }

    /// Tells the application how an operation ended.
    fn finish(
        &mut self,
        slot: u32,
        ends: Ends,
        result: Result<(), Status>,
        events: Option<&mut Events<'_>>,
    ) {
        let value = match (result, ends.result) {
            (Ok(()), Some(place)) => Ok(self.results.word(place)),
            (Ok(()), None) => Ok(0),
            (Err(status), _) => Err(status),
        };
        let silent = self.connection(slot).is_none_or(|connection| connection.closing);
        if let (Some(cookie), false) = (ends.cookie, silent) {
            let (status, header) = match value {
                Ok(value) => (0, value),
                Err(status) => (status as i32, 0),
            };
            let event = Event { kind: event::COMPLETION, status, header, cookie, ..Event::empty() };
            self.emit(Notice { event, text: None, message: None }, events);
        }
        self.release_ends(ends);
    }

    /// A send has failed: the connection is over, or has to be begun again.
    #[cold]
    fn broke(&mut self, slot: u32, number: u32, wc: &Wc, mut events: Option<&mut Events<'_>>) {
        let domain = self.domain.clone();
        let Some(connection) = self.connection(slot) else { return };
        let (own, failure) = verdict(wc, &domain, connection.peer.as_ref());
        let unanswered = connection.phase == Phase::Connecting && !connection.received;
        if unanswered
            && wc.status == IBV_WC_RETRY_EXC_ERR
            && !domain.watch.device_gone()
            && Instant::now() < connection.deadline
        {
            let ends = connection.queue.retire(number);
            let again = connection.start_again(&domain);
            if let Some(ends) = ends {
                self.release_ends(ends);
            }
            if again.is_ok() && self.control(slot, Kind::Hello, Role::Hello) {
                return;
            }
        } else if let Some(ends) = connection.queue.retire(number) {
            self.finish(slot, ends, Err(own), events.as_deref_mut());
        }
        self.break_connection(slot, &failure, events);
    }

    /// A message has arrived, or a receive has failed.
    fn received(&mut self, buffer: u32, wc: &Wc, events: Option<&mut Events<'_>>) {
        let again = Receive { id: receive_id(buffer), sge: self.receives.whole(buffer) };
        if wc.status != IBV_WC_SUCCESS || wc.wc_flags & IBV_WC_WITH_IMM == 0 {
            return self.to_post.push(again);
        }
        let slot = u32::from_be(wc.imm_data);
        let head = Header::unpack(self.receives.bytes(buffer, wc.byte_len as usize));
        // Whoever sent this is whoever the queue pair is connected to: the number must be that connection's.
        let Some(connection) = self.connection(slot).filter(|c| {
            c.own.qpn == wc.qp_num && !matches!(c.phase, Phase::Broken(_) | Phase::Fresh)
        }) else {
            return self.to_post.push(again);
        };
        connection.heard = true;
        connection.received = true;
        let accepted =
            head.and_then(|head| connection.credits.returned(head.credits).map(|()| head));
        let Ok(head) = accepted else {
            self.to_post.push(again);
            let text = "the peer sent a message that makes no sense".to_string();
            return self.break_connection(slot, &Failure::new(Status::BadData, text), events);
        };
        if connection.phase == Phase::Connecting {
            connection.phase = Phase::Standing;
        }
        match head.kind {
            Kind::Message if !connection.closing => {
                let (peer, life) = (connection.cookie, connection.life);
                let payload = &self.receives.bytes(buffer, wc.byte_len as usize)[HEADER_LEN..];
                let event = Event {
                    kind: event::MESSAGE,
                    id: head.id,
                    peer,
                    header: head.header,
                    data: payload.as_ptr(),
                    len: payload.len(),
                    ..Event::empty()
                };
                let message = Some(Delivered { buffer, slot, life });
                self.emit(Notice { event, text: None, message }, events);
            }
            Kind::Bye => {
                self.to_post.push(again);
                let failure = Failure::new(Status::Closed, "the peer closed the connection");
                self.break_connection(slot, &failure, events);
            }
            Kind::Message | Kind::Hello | Kind::Credit => self.to_post.push(again),
        }
    }

    /// Ends a connection: everything on its way ends with `failure`, and the application is told.
    #[cold]
    pub(crate) fn break_connection(
        &mut self,
        slot: u32,
        failure: &Failure,
        mut events: Option<&mut Events<'_>>,
    ) {
        let Some(connection) = self.connection(slot) else { return };
        if connection.closing {
            return self.bury(slot);
        }
        if matches!(connection.phase, Phase::Broken(_)) {
            return;
        }
        connection.phase = Phase::Broken(failure.status);
        // First the queue pair: when the application hears of the end, the device touches its memory no more.
        connection.qp = None;
        let left = connection.queue.len();
        let cookie = connection.cookie;
        self.ghosts += left;
        // Completions that are still to be fetched belong to the past.
        let life = self.lives[slot as usize].wrapping_add(1);
        self.lives[slot as usize] = life;
        while let Some(ends) = self.connection(slot).and_then(|c| {
            let last = c.queue.next().wrapping_sub(1);
            c.queue.retire(last)
        }) {
            self.finish(slot, ends, Err(failure.status), events.as_deref_mut());
        }
        if let Some(connection) = self.connection(slot) {
            connection.life = life;
        }
        let event = Event {
            kind: event::ENDPOINT_FAILED,
            status: failure.status as i32,
            cookie,
            ..Event::empty()
        };
        let text = Some(failure.text.as_bytes().into());
        self.emit(Notice { event, text, message: None }, events);
    }

    /// Ends every connection.
    #[cold]
    fn break_all(&mut self, status: Status, text: &str, mut events: Option<&mut Events<'_>>) {
        for slot in 0..self.connections.len() {
            let failure = Failure::new(status, text);
            self.break_connection(slot as u32, &failure, events.as_deref_mut());
        }
    }

    /// An event goes to the application now, or when there is room.
    fn emit(&mut self, notice: Notice, events: Option<&mut Events<'_>>) {
        match events {
            Some(events) if self.backlog.is_empty() && events.room() > 0 => {
                self.hand_over(notice, events);
            }
            _ => self.backlog.push_back(notice),
        }
    }

    #[inline]
    fn hand_over(&mut self, notice: Notice, events: &mut Events<'_>) {
        let mut event = notice.event;
        if let Some(text) = notice.text {
            (event.data, event.len) = (text.as_ptr(), text.len());
            self.told.push(text);
        }
        if let Some(message) = notice.message {
            self.delivered.push(message);
        }
        let _ = events.push(event);
    }

    /// What is not the completion queue: the device's own news, and what has to happen in time.
    #[cold]
    fn look(&mut self, mut events: Option<&mut Events<'_>>, now_or_never: bool) {
        let now = Instant::now();
        if !now_or_never && now.duration_since(self.looked) < LOOK_EVERY {
            return;
        }
        self.looked = now;
        let mut port_changed = false;
        for news in self.sleep.news() {
            match news.kind {
                IBV_EVENT_DEVICE_FATAL => {
                    let text = format!("the device {} was removed", self.domain.name.device);
                    self.break_all(Status::NoDevice, &text, events.as_deref_mut());
                }
                IBV_EVENT_CQ_ERR | IBV_EVENT_SRQ_ERR => {
                    let text = format!("a queue of {} failed", self.domain.name.words());
                    self.break_all(Status::Io, &text, events.as_deref_mut());
                }
                IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR => {
                    self.queue_pair_failed(news.kind, news.qp, events.as_deref_mut());
                }
                IBV_EVENT_PORT_ERR => port_changed = true,
                _ => {}
            }
        }
        if port_changed || now.duration_since(self.ticked) >= LOOK_EVERY {
            self.ticked = now;
            self.tick(now, port_changed, events);
        }
        self.pay();
        self.tick_while_needed();
    }

    fn queue_pair_failed(&mut self, kind: u32, qp: Option<u32>, events: Option<&mut Events<'_>>) {
        let slot =
            self.connections.iter().flatten().find(|c| Some(c.own.qpn) == qp && c.qp.is_some());
        let Some(slot) = slot.map(|c| c.own.slot) else { return };
        // What completed before is told first.
        let mut events = events;
        while self.fetch(events.as_deref_mut()) {}
        let text = match kind {
            IBV_EVENT_QP_ACCESS_ERR => {
                "the peer used a remote key that this process's device refused, which ended the connection"
            }
            IBV_EVENT_QP_REQ_ERR => "the peer sent what this process's device refused",
            _ => "the device reported that the connection's queue pair failed",
        };
        self.break_connection(slot, &Failure::new(Status::Io, text), events);
    }

    /// Asks silent peers for a sign of life and gives up what took too long.
    fn tick(&mut self, now: Instant, ask_all: bool, mut events: Option<&mut Events<'_>>) {
        let quiet = self.domain.settings.failure / 4;
        for slot in 0..self.connections.len() as u32 {
            let Some(connection) = self.connection(slot) else { continue };
            if core::mem::take(&mut connection.heard) {
                connection.heard_at = now;
            }
            match connection.phase {
                Phase::Connecting if now >= connection.deadline => {
                    let text = format!(
                        "the peer did not come to the connection within {:?} (TIELINE_CONNECT_TIMEOUT)",
                        self.domain.settings.connect
                    );
                    let failure = Failure::new(Status::TimedOut, text);
                    self.break_connection(slot, &failure, events.as_deref_mut());
                }
                Phase::Standing if !connection.probing && !connection.closing => {
                    let silent = now.duration_since(connection.heard_at) >= quiet;
                    if (silent || ask_all) && connection.queue.has_reserve() {
                        // A write of nothing: acknowledged by the peer's device, and nothing to the peer itself.
                        let ends = Ends { role: Role::Probe, ..Ends::default() };
                        let work = Work::Write { address: 0, rkey: 0 };
                        if let Ok(()) = connection.post(work, &[], ends, IBV_SEND_SIGNALED) {
                            connection.probing = true;
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn arm(&mut self) -> Armed {
        self.look(None, true);
        if !self.delivered.is_empty() || !self.told.is_empty() || !self.backlog.is_empty() {
            return Armed::Ready;
        }
        self.cq.drain_channel();
        if let Err(failure) = self.cq.arm() {
            self.break_all(failure.status, &failure.text, None);
        }
        // What came before the request wakes nobody.
        while self.fetch(None) {}
        if self.backlog.is_empty() { Armed::Sleep } else { Armed::Ready }
    }
}

/// Bytes that the device copies while the send is posted.
#[inline]
pub(crate) fn borrowed(bytes: &[u8]) -> ibv_sge {
    ibv_sge { addr: bytes.as_ptr().expose_provenance() as u64, length: bytes.len() as u32, lkey: 0 }
}
