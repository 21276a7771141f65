//! State that an interface shares with its connections: the clock, the watched descriptors, and the pending events.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sys::Piece;
use tieline_net::touch::Touch;
use tieline_net::{Contact, Hub, Interest, Poller, Route};
use tieline_plugin_api::abi::Event;
use tieline_plugin_api::{Status, event};

use crate::config::Settings;
use crate::frame::Refused;
use crate::gathered::Gathered;
use crate::pool::Pool;
use crate::probe::Token;
use crate::regions::Regions;
use crate::stream::Stream;

/// The interval of regular visits to connections, such as those that are being formed or closed.
pub(crate) const TICK: Duration = Duration::from_millis(10);

pub(crate) const HUB: u64 = 0;
pub(crate) const MAILBOX: u64 = 1;
pub(crate) const TIMER: u64 = 2;
const LINK: u64 = 1 << 63;

pub(crate) fn token(index: u32, number: usize, what: Watched) -> u64 {
    let what = match what {
        Watched::Stream => 0,
        Watched::Dial => 1,
        Watched::Standby => 2,
    };
    LINK | u64::from(index) << 16 | (number as u64) << 8 | what
}

/// The number of pending events at which no more notifications are accepted.
pub(crate) const MOST_NOTICES: usize = 64;

/// An event that waits for delivery, and its text.
pub(crate) struct Notice {
    pub(crate) event: Event,
    pub(crate) data: Box<[u8]>,
}

/// The purpose of a descriptor that epoll watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    Stream,
    Dial,
    Standby,
}

/// The state that an interface shares with its connections. A cell is borrowed for a single access. `gathered` is borrowed while
/// one stream is written, and no function called meanwhile writes another stream. No application code runs during a borrow.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) regions: Arc<Regions>,
    pub(crate) hub: Arc<Hub>,
    /// The number that identifies this interface at its process's listener.
    pub(crate) target: [u8; 16],
    pub(crate) poller: Poller,
    /// The number of the current poll.
    pub(crate) round: Cell<u64>,
    pub(crate) began: Instant,
    pub(crate) now: Cell<Instant>,
    /// The number of streams whose kernel buffers are full.
    pub(crate) blocked: Cell<usize>,
    pub(crate) streams: Cell<usize>,
    /// The connections that the next poll visits, and those that are visited regularly.
    pub(crate) attention: RefCell<Vec<u32>>,
    pub(crate) timed: RefCell<Vec<u32>>,
    /// The connections whose send buffers have memory.
    pub(crate) filled: RefCell<Vec<u32>>,
    /// The descriptors that epoll has refused to watch, by connection, stream and purpose. They are visited regularly.
    pub(crate) unwatched: RefCell<Vec<(u32, usize, Watched)>>,
    /// Whether epoll refuses every descriptor. For tests.
    #[cfg(test)]
    pub(crate) watches_none: Cell<bool>,
    /// The connections that wait for an answer of the peer's kernel, and the time of the last check.
    pub(crate) expecting: RefCell<Vec<u32>>,
    pub(crate) checked: Cell<Instant>,
    /// The token of which each open probe holds a copy, so that the copies count the probes.
    pub(crate) probes: Token,
    pub(crate) hot: RefCell<Vec<(u32, usize)>>,
    /// The connections that wait to be read, in order.
    pub(crate) readers: RefCell<VecDeque<u32>>,
    /// The number of bytes received in this poll.
    pub(crate) received: Cell<usize>,
    pub(crate) notices: RefCell<VecDeque<Notice>>,
    /// The memory that events of this poll point to.
    pub(crate) handed_out: RefCell<Vec<Box<[u8]>>>,
    pub(crate) pool: RefCell<Pool>,
    pub(crate) gathered: RefCell<Gathered>,
    pub(crate) pieces: RefCell<Vec<Piece>>,
    /// The functions that copy from or to memory that may be unmapped.
    pub(crate) touch: Touch,
    /// The number of payload bytes that were copied from a buffer to their destination.
    #[cfg(test)]
    pub(crate) copied: Cell<usize>,
    /// The scratch memory for packing and gathering messages.
    pub(crate) scratch: RefCell<Vec<u8>>,
}

impl Shared {
    pub(crate) fn now_ms(&self) -> u64 {
        self.now.get().duration_since(self.began).as_millis() as u64
    }

    /// Converts a value of [`Shared::now_ms`] to a time.
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

    /// Reports the end of a put or get, with the target's result.
    pub(crate) fn ended(&self, cookie: u64, result: Result<(), Refused>) {
        let Err(refused) = result else { return self.completed(cookie, Ok(0)) };
        let status = refused.status() as i32;
        let event = Event { kind: event::COMPLETION, status, cookie, ..Event::empty() };
        self.notify(event, refused.words().as_bytes());
    }

    /// Reports the notification of a put of the peer.
    pub(crate) fn notified(&self, peer: u64, header: u64) {
        self.notify(Event { kind: event::NOTIFIED, peer, header, ..Event::empty() }, &[]);
    }

    /// Checks whether the number of pending events is at the limit for notifications: a peer may notify without limit.
    pub(crate) fn tells_enough(&self) -> bool {
        self.notices.borrow().len() >= MOST_NOTICES
    }

    pub(crate) fn endpoint_failed(&self, cookie: u64, status: Status, why: &str) {
        let event =
            Event { kind: event::ENDPOINT_FAILED, status: status as i32, cookie, ..Event::empty() };
        self.notify(event, why.as_bytes());
    }

    /// Records that a connection has sent data.
    pub(crate) fn expect_answer(&self, index: u32, now: Instant) {
        let mut expecting = self.expecting.borrow_mut();
        if expecting.is_empty() {
            self.checked.set(now);
        }
        expecting.push(index);
    }

    /// Returns the time of the next check of the connections that wait for an answer.
    pub(crate) fn next_check(&self) -> Option<Instant> {
        let every = (self.settings.failure_timeout / 8).max(TICK);
        (!self.expecting.borrow().is_empty()).then(|| self.checked.get() + every)
    }

    pub(crate) fn watch_for(
        &self,
        fd: RawFd,
        interest: Interest,
        index: u32,
        number: usize,
        what: Watched,
    ) {
        let watched = self.poller.watch(fd, interest, token(index, number, what));
        #[cfg(test)]
        let watched = if self.watches_none.get() {
            self.poller.forget(fd);
            Err(std::io::ErrorKind::OutOfMemory.into())
        } else {
            watched
        };
        let (place, mut unwatched) = ((index, number, what), self.unwatched.borrow_mut());
        // Dials are visited regularly in any case.
        if watched.is_err() && what != Watched::Dial && !unwatched.contains(&place) {
            unwatched.push(place);
        }
    }

    pub(crate) fn watch(&self, fd: RawFd, index: u32, number: usize, what: Watched) {
        self.watch_for(fd, Interest::READ, index, number, what);
    }

    /// Watches a stream in use for the events that it waits for.
    pub(crate) fn watch_stream(&self, stream: &Stream, index: u32, number: usize) {
        let writes = if stream.blocked { Interest::WRITE } else { Interest::NONE };
        if stream.leads_to_itself() {
            self.watch(stream.receiver(), index, number, Watched::Stream);
            self.watch_for(stream.sender(), writes, index, number, Watched::Stream);
        } else {
            let interest = Interest { readable: true, ..writes };
            self.watch_for(stream.sender(), interest, index, number, Watched::Stream);
        }
    }

    /// Removes a stream from the directly read ones.
    pub(crate) fn cool(&self, index: u32, number: usize) {
        if let Ok(mut hot) = self.hot.try_borrow_mut() {
            hot.retain(|&entry| entry != (index, number));
        }
    }

    /// Returns the routes to a peer for one of its streams. Streams take turns on the rails, and each stream falls back to the
    /// other rails.
    pub(crate) fn routes(&self, contact: &Contact, number: usize) -> Result<Vec<Route>, String> {
        let routes = tieline_net::routes(self.hub.local(), contact)?;
        Ok(in_turn(routes, number, |rails| self.settings.rails(rails)))
    }
}

/// Returns the routes for one of several streams, those of its rail first; `used` maps the number of rails to the number in use.
fn in_turn(routes: Vec<Route>, number: usize, used: impl FnOnce(usize) -> usize) -> Vec<Route> {
    let mut rails: Vec<String> = Vec::new();
    for route in &routes {
        let name = rail_of(route);
        if !rails.contains(&name) {
            rails.push(name);
        }
    }
    let used = used(rails.len());
    let rail = rails[number % used].clone();
    let (mut first, rest): (Vec<Route>, Vec<Route>) =
        routes.into_iter().partition(|route| rail_of(route) == rail);
    first.extend(rest);
    first
}

fn rail_of(route: &Route) -> String {
    route.local.as_ref().map_or_else(|| route.why.clone(), |local| local.interface.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_net::LocalAddress;

    #[test]
    fn a_descriptor_is_known_by_its_connection_its_stream_and_what_it_is_for() {
        for (index, number, what, token_of) in [
            (0, 0, Watched::Stream, 0),
            (5, 3, Watched::Dial, 0x5_0301),
            (u32::MAX, 7, Watched::Standby, 0xffff_ffff_0702),
        ] {
            assert_eq!(token(index, number, what), 1 << 63 | token_of);
        }
    }

    fn route(interface: Option<&str>, port: u16) -> Route {
        let ip = std::net::Ipv4Addr::LOCALHOST.into();
        let local = interface.map(|name| LocalAddress {
            interface: name.to_string(),
            ip,
            prefix: 24,
            scope_id: 0,
            loopback: false,
            last_resort: false,
            mtu: 1500,
            speed_mbps: None,
        });
        Route { local, remote: (ip, port).into(), why: "this host".to_string() }
    }

    #[test]
    fn streams_rotate_over_used_rails_and_fall_back_on_the_others() {
        let order = |number: usize, most: usize| {
            let routes = [Some("eth0"), Some("eth1"), Some("eth0"), None];
            let routes = routes.iter().zip(1..).map(|(name, port)| route(*name, port)).collect();
            let order = in_turn(routes, number, |rails| most.min(rails));
            order.iter().map(|route| route.remote.port()).collect::<Vec<_>>()
        };
        let (first, second, third) = ([1, 3, 2, 4], [2, 1, 3, 4], [4, 1, 2, 3]);
        assert_eq!([0, 1, 2, 3, 4].map(|n| order(n, 9)), [first, second, third, first, second]);
        assert_eq!([0, 1, 2].map(|n| order(n, 2)), [first, second, first]);
        assert_eq!([0, 1, 2].map(|n| order(n, 1)), [first; 3]);
    }
}
