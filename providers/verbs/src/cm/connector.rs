//! The connector's interface to the core: datagrams to addresses, events, sleep.

use super::wires::Wires;
use super::{MAX_DATAGRAM, address};
use crate::shared::DomainState;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tieline_net::datagrams::{Datagrams, Links, WAITING};
use tieline_net::routes;
use tieline_plugin_api::{Armed, Connector, Events, Failure, Status, log_level};

/// The time limit for the peers' devices to acknowledge the goodbye when a connector closes.
const GOODBYE: Duration = Duration::from_millis(50);

/// The module `rdmacm`, opened for a worker.
pub struct RdmaCm {
    /// The state, borrowed by one call at a time. The core does not call this object again during a borrow.
    inner: RefCell<ConnectorState>,
}

struct ConnectorState {
    peers: Datagrams,
    wires: Wires,
    begun: Instant,
    /// The number of unproven connections at the last warning to the operator.
    warned_of: u64,
    /// The data to which events of the last poll point.
    handed_out: Vec<Vec<u8>>,
}

impl RdmaCm {
    pub(crate) fn open(domain: Arc<DomainState>) -> Result<RdmaCm, Failure> {
        Wires::open(domain).map(RdmaCm::new)
    }

    pub(super) fn new(wires: Wires) -> RdmaCm {
        let settings = &wires.domain.settings;
        let peers = Datagrams::new(wires.own.clone(), settings.cm_connections, settings.cm_idle);
        let inner = ConnectorState {
            peers,
            wires,
            begun: Instant::now(),
            warned_of: 0,
            handed_out: Vec::new(),
        };
        RdmaCm { inner: RefCell::new(inner) }
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
        let routes = routes(&inner.wires.local, &contact);
        routes.map(|_| ()).map_err(|why| Failure::new(Status::Unreachable, why))
    }

    fn send(&self, to: &[u8], datagram: &[u8]) -> Result<(), Status> {
        if datagram.len() > MAX_DATAGRAM {
            return Err(Status::TooLarge);
        }
        let _ = address::parse(to).map_err(|_| Status::Invalid)?;
        let mut inner = self.inner.borrow_mut();
        let ConnectorState { peers, wires, .. } = &mut *inner;
        peers.send(wires, to, datagram)
    }

    fn poll(&self, events: &mut Events<'_>) -> Result<(), Status> {
        let inner = &mut *self.inner.borrow_mut();
        inner.handed_out.clear();
        inner.peers.show(&mut inner.handed_out, events);
        if events.room() > 0 {
            inner.progress();
            inner.peers.show(&mut inner.handed_out, events);
        }
        Ok(())
    }

    fn arm(&self) -> Result<Armed, Status> {
        let mut inner = self.inner.borrow_mut();
        if !inner.peers.notices.is_empty() || !inner.wires.events.is_empty() {
            return Ok(Armed::Ready);
        }
        let has_links = inner.peers.has_links();
        Ok(if inner.wires.arm(has_links) { Armed::Sleep } else { Armed::Ready })
    }

    fn event_fd(&self) -> Option<i32> {
        Some(self.inner.borrow().wires.fd())
    }
}

impl ConnectorState {
    fn progress(&mut self) {
        let ConnectorState { peers, wires, .. } = self;
        if peers.notices.len() >= WAITING {
            return;
        }
        let ticks = wires.progress();
        while let Some(event) = wires.events.pop_front() {
            peers.handle(wires, event);
        }
        if ticks {
            peers.close_idle(wires, self.begun.elapsed());
            self.warn();
        }
    }

    /// Warns the operator of unproven connections. If processes have different secrets, the listening side thereby reports the
    /// reason, too.
    fn warn(&mut self) {
        let came = self.wires.unproven;
        if came >= (self.warned_of * 2).max(1) {
            self.warned_of = came;
            let text = format!(
                "verbs: {came} connections to rdmacm of this process were closed, because they did not prove to \
                 belong to the job: an outdated address, another program, or another TIELINE_SECRET"
            );
            self.wires.domain.host.log(log_level::WARN, &text);
        }
    }
}

impl Drop for ConnectorState {
    fn drop(&mut self) {
        let links = self.peers.open_links();
        self.wires.say_goodbye(&links, GOODBYE);
        for link in links {
            self.wires.close(link);
        }
    }
}
