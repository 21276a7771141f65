//! The contract with the core: datagrams to addresses, events, sleep.

use super::book::{Book, Found, Net, WAITING};
use super::net::Wires;
use super::{MAX_DATAGRAM, address};
use crate::shared::DomainState;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tieline_net::routes;
use tieline_plugin_api::abi::Event;
use tieline_plugin_api::{Armed, Connector, Events, Failure, Status, event, log_level};

/// How long closing waits for the other sides' devices to take the goodbye.
const GOODBYE: Duration = Duration::from_millis(50);

/// The module `rdmacm`, opened for a worker.
pub struct RdmaCm {
    inner: RefCell<Inner>,
}

struct Inner {
    book: Book,
    wires: Wires,
    begun: Instant,
    /// Strangers that an operator was told of.
    told: u64,
    /// What the events of the last poll point to.
    shown: Vec<Vec<u8>>,
}

impl RdmaCm {
    pub(crate) fn open(domain: Arc<DomainState>) -> Result<RdmaCm, Failure> {
        let (most, idle) = (domain.settings.cm_connections, domain.settings.cm_idle);
        let wires = Wires::open(domain)?;
        let book = Book::new(wires.own.clone(), most, idle);
        let inner = Inner { book, wires, begun: Instant::now(), told: 0, shown: Vec::new() };
        Ok(RdmaCm { inner: RefCell::new(inner) })
    }
}

impl Connector for RdmaCm {
    fn address(&self) -> Vec<u8> {
        self.inner.borrow().wires.own.clone()
    }

    fn reachable(&self, bytes: &[u8]) -> Result<(), Failure> {
        let contact = address::parse(bytes)?;
        let inner = self.inner.borrow();
        if let Some(words) = &inner.wires.broken {
            return Err(Failure::new(Status::NoDevice, words.clone()));
        }
        let ways = routes(&inner.wires.local, &contact);
        ways.map(|_| ()).map_err(|why| Failure::new(Status::Unreachable, why))
    }

    fn send(&self, to: &[u8], datagram: &[u8]) -> Result<(), Status> {
        if datagram.len() > MAX_DATAGRAM {
            return Err(Status::TooLarge);
        }
        let _ = address::parse(to).map_err(|_| Status::Invalid)?;
        let mut inner = self.inner.borrow_mut();
        let Inner { book, wires, .. } = &mut *inner;
        book.send(wires, to, datagram)
    }

    fn poll(&self, events: &mut Events<'_>) -> Result<(), Status> {
        let mut inner = self.inner.borrow_mut();
        inner.shown.clear();
        inner.show(events);
        if events.room() > 0 {
            inner.turn();
            inner.show(events);
        }
        Ok(())
    }

    fn arm(&self) -> Result<Armed, Status> {
        let mut inner = self.inner.borrow_mut();
        if !inner.book.found.is_empty() || !inner.wires.events.is_empty() {
            return Ok(Armed::Ready);
        }
        let has_links = inner.book.has_links();
        Ok(if inner.wires.arm(has_links) { Armed::Sleep } else { Armed::Ready })
    }

    fn event_fd(&self) -> Option<i32> {
        Some(self.inner.borrow().wires.fd())
    }
}

impl Inner {
    fn turn(&mut self) {
        let Inner { book, wires, .. } = self;
        if book.found.len() >= WAITING {
            return;
        }
        let ticks = wires.turn();
        while let Some(event) = wires.events.pop_front() {
            book.handle(wires, event);
        }
        if ticks {
            book.tick(wires, self.begun.elapsed());
            self.tell();
        }
    }

    /// An operator whose processes have different secrets finds the reason on the listening side, too.
    fn tell(&mut self) {
        let came = self.wires.strangers;
        if came >= (self.told * 2).max(1) {
            self.told = came;
            let text = format!(
                "verbs: {came} connections to rdmacm of this process were closed, because they did not prove to \
                 belong to the job: an outdated address, another program, or another TIELINE_SECRET"
            );
            self.wires.domain.host.log(log_level::WARN, &text);
        }
    }

    /// Moves what was found into the caller's array.
    fn show(&mut self, events: &mut Events<'_>) {
        while events.room() > 0 {
            let Some(found) = self.book.found.pop_front() else { return };
            let mut event = Event::empty();
            let bytes = match found {
                Found::Datagram(from, bytes) => {
                    event.kind = event::DATAGRAM;
                    event.header = from;
                    bytes
                }
                Found::Left { hash, status, words } => {
                    event.kind = event::PEER_LEFT;
                    event.header = hash;
                    event.status = status as i32;
                    words.into_bytes()
                }
            };
            event.data = bytes.as_ptr();
            event.len = bytes.len();
            self.shown.push(bytes); // its bytes stay where they are
            let _ = events.push(event);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let links = self.book.open_links();
        self.wires.leave(&links, GOODBYE);
        for link in links {
            self.wires.close(link);
        }
    }
}
