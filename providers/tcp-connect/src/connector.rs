//! The module's contract with the core: datagrams to addresses, events, sleep.

use std::cell::RefCell;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use tieline_net::{Contact, Hub, Mailbox, VERSION, random, routes};
use tieline_plugin_api::{Armed, Connector, Events, Failure, HostHandle, Status, log_level};

use crate::config::Settings;
use crate::frame::MAX_DATAGRAM;
use crate::peers::Peers;

/// The module `stream`, opened for a worker.
pub struct Stream {
    host: Option<HostHandle>,
    address: Vec<u8>,
    /// The state, borrowed by one call at a time. The core does not call this object again during a borrow.
    inner: RefCell<ConnectorState>,
}

struct ConnectorState {
    peers: Peers,
    /// The payloads of the events of the last poll.
    handed_out: Vec<Vec<u8>>,
}

impl Stream {
    pub(crate) fn open(
        hub: Arc<Hub>,
        settings: &Settings,
        worker_id: [u8; 16],
        host: Option<HostHandle>,
    ) -> Result<Stream, Failure> {
        let mailbox = register(&hub, worker_id)?;
        let address = mailbox.contact().pack();
        let peers = Peers::open(mailbox, address.clone(), settings)
            .map_err(|error| Failure::from_io("opening a connector", &error))?;
        Ok(Stream {
            host,
            address,
            inner: RefCell::new(ConnectorState { peers, handed_out: Vec::new() }),
        })
    }
}

impl Stream {
    /// Logs addresses that failed before another one succeeded, because they would cost the next peer time, too.
    fn tell_of_detours(&self, detours: &mut Vec<String>) {
        for detour in detours.drain(..) {
            if let Some(host) = self.host {
                host.log(log_level::WARN, &detour);
            }
        }
    }

    /// Warns the operator of unproven connections. If processes have different secrets, the listening side thereby logs the reason,
    /// too.
    fn warn(&self, hub: &Hub) {
        if let Some((count, host)) = hub.unproven_to_report().zip(self.host) {
            let other = hub.take_other_version().map_or_else(String::new, |version| {
                format!(
                    "; one spoke version {version} of the handshake, where this side speaks version {VERSION}: use versions of \
                     Tieline that go together on both sides"
                )
            });
            let text = format!(
                "tcp-connect: {count} connections to this process were closed, because they did not prove to \
                 belong to the job. Possible causes: port scanners, an outdated address, another TIELINE_SECRET, or a peer \
                 with a silent connection that probes this host{other}"
            );
            host.log(log_level::WARN, &text);
        }
    }
}

/// Registers a connector at the listener. If a worker has more than one connector, the others get ids of their own.
fn register(hub: &Arc<Hub>, worker_id: [u8; 16]) -> Result<Mailbox, Failure> {
    hub.register(worker_id).or_else(|_| {
        let mut id = [0; 16];
        random(&mut id).map_err(|error| Failure::from_io("random bytes", &error))?;
        hub.register(id).map_err(|why| Failure::new(Status::NoMemory, why))
    })
}

impl Connector for Stream {
    fn address(&self) -> Vec<u8> {
        self.address.clone()
    }

    fn reachable(&self, address: &[u8]) -> Result<(), Failure> {
        let contact = Contact::parse(address)
            .map_err(|why| Failure::new(Status::Invalid, why.to_string()))?;
        let inner = self.inner.borrow();
        let ways = routes(inner.peers.hub().local(), &contact);
        ways.map(|_| ()).map_err(|why| Failure::new(Status::Unreachable, why))
    }

    fn send(&self, address: &[u8], datagram: &[u8]) -> Result<(), Status> {
        if datagram.len() > MAX_DATAGRAM {
            return Err(Status::TooLarge);
        }
        self.inner.borrow_mut().peers.send(address, datagram)
    }

    fn poll(&self, events: &mut Events<'_>) -> Result<(), Status> {
        let mut inner = self.inner.borrow_mut();
        let ConnectorState { peers, handed_out } = &mut *inner;
        handed_out.clear();
        peers.datagrams.show(handed_out, events);
        if events.room() > 0 {
            peers.turn().map_err(|_| Status::Io)?;
            self.warn(peers.hub());
            self.tell_of_detours(&mut peers.links.detours);
            peers.datagrams.show(handed_out, events);
        }
        Ok(())
    }

    fn arm(&self) -> Result<Armed, Status> {
        let inner = self.inner.borrow();
        Ok(if inner.peers.datagrams.notices.is_empty() { Armed::Sleep } else { Armed::Ready })
    }

    fn event_fd(&self) -> Option<i32> {
        Some(self.inner.borrow().peers.fd().as_raw_fd())
    }
}
