//! An interface: its mailbox at the process's listener, its connections, and the poll that serves them all.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tieline_net::touch::Touch;
use tieline_net::{Hub, Interest, Poller, Timer};
use tieline_plugin_api::{Armed, Events, Failure, Interface, MemoryReport, Status};

use crate::address;
use crate::config::Settings;
use crate::conn::{Conn, Phase};
use crate::endpoint::StreamEndpoint;
use crate::poll::State;
use crate::probe::Token;
use crate::regions::Regions;
use crate::shared::{HUB, MAILBOX, Shared, TIMER};

/// The longest sleep between checks of the peers' kernels while an interface closes.
const CLOSING_NAP: Duration = Duration::from_millis(1);

/// The module `stream`, opened for one worker.
pub struct StreamInterface {
    /// The state, borrowed by one call at a time. That call may borrow connections, but a call that has borrowed a connection must
    /// not borrow the state.
    state: RefCell<State>,
    shared: Rc<Shared>,
}

impl StreamInterface {
    pub(crate) fn open(
        regions: Arc<Regions>,
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
            regions,
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
            filled: RefCell::default(),
            unwatched: RefCell::default(),
            #[cfg(test)]
            watches_none: Cell::new(false),
            expecting: RefCell::default(),
            checked: Cell::new(now),
            probes: Token::default(),
            hot: RefCell::default(),
            readers: RefCell::default(),
            received: Cell::new(0),
            notices: RefCell::default(),
            handed_out: RefCell::default(),
            pool: RefCell::default(),
            gathered: RefCell::default(),
            pieces: RefCell::default(),
            touch: Touch::default(),
            #[cfg(test)]
            copied: Cell::new(0),
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
            handed_out: Vec::new(),
            asked: now,
            ticked: now,
            turn: 0,
            kept: Vec::new(),
            quiet: 0,
        };
        Ok(StreamInterface { state: RefCell::new(state), shared: Rc::new(shared) })
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Makes a regular visit at the time `now`.
    #[cfg(test)]
    pub(crate) fn tick(&self, now: Instant) {
        self.state.borrow_mut().tick(&self.shared, now);
    }

    /// Postpones the next query of epoll.
    #[cfg(test)]
    pub(crate) fn ask_later(&self) {
        self.state.borrow_mut().asked = Instant::now() + Duration::from_secs(3600);
    }
}

impl Interface for StreamInterface {
    type Endpoint = StreamEndpoint;

    fn address(&self) -> Vec<u8> {
        address::pack(&self.shared.hub.contact(self.shared.target))
    }

    fn reachable(&self, address: &[u8]) -> Result<(), Failure> {
        let refuse = |why| Failure::new(Status::Invalid, format!("no address of tcp: {why}"));
        let (contact, rest) = address::parse(address).map_err(refuse)?;
        if !rest.is_empty() {
            return Err(refuse("it goes on after its end".into()));
        }
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
            return Err(Status::Again.into()); // two equal random numbers
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

    fn leave(&self) {
        // A process may call exit inside a function that packs a message, or in a signal's handler that interrupts any call.
        if let Ok(mut state) = self.state.try_borrow_mut() {
            if state.conns.iter().flatten().all(|conn| conn.inner.try_borrow_mut().is_ok()) {
                state.leave(&self.shared);
            }
        }
    }

    fn memory(&self) -> MemoryReport {
        self.state.borrow().memory(&self.shared)
    }
}

impl State {
    /// Closes every connection, and transmits the data that was sent before, within `TIELINE_CLOSE_TIMEOUT`.
    fn leave(&mut self, shared: &Shared) {
        for conn in self.conns.iter().flatten() {
            let mut inner = conn.inner.borrow_mut();
            if !inner.abandoned {
                inner.close();
            }
        }
        let until = Instant::now() + shared.settings.close_timeout;
        let has_to_send = |state: &State| {
            state.conns.iter().flatten().any(|conn| !conn.inner.borrow().has_handed_over())
        };
        while has_to_send(self) && Instant::now() < until {
            self.begin(shared);
            shared.now.set(Instant::now());
            let mut none = Events::new(&mut []);
            self.attend(shared);
            self.ask_kernel(shared, Some(CLOSING_NAP));
            self.serve(shared, &mut none);
            self.tick(shared, Instant::now());
        }
        for conn in self.conns.iter().flatten() {
            let mut inner = conn.inner.borrow_mut();
            inner.phase = Phase::Failed(Status::Closed);
            inner.release();
        }
    }
}

impl Drop for StreamInterface {
    fn drop(&mut self) {
        self.state.get_mut().leave(&self.shared);
    }
}
