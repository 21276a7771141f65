//! The module's contract with the core: datagrams to addresses, events, sleep.

use std::cell::RefCell;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tieline_net::{Contact, Hub, Mailbox, VERSION, random, routes};
use tieline_plugin_api::{Armed, Connector, Events, Failure, HostHandle, Status, log_level};

use crate::config::Settings;
use crate::frame::MAX_DATAGRAM;
use crate::peers::Peers;
#[cfg(test)]
use crate::peers::SETTLED;

/// The interval between two queries of the kernel while nothing is under way. A worker whose data goes over TCP polls every few
/// microseconds, and a query costs a tenth of such a poll.
const ASK_EVERY: Duration = Duration::from_micros(50);

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
    /// The time of the last query of the kernel; `None` if the next poll has to query it.
    asked: Option<Instant>,
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
            inner: RefCell::new(ConnectorState { peers, handed_out: Vec::new(), asked: None }),
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

/// Checks whether a poll has to query the kernel, and records the time if so.
fn is_due(peers: &Peers, asked: &mut Option<Instant>) -> bool {
    let quiet = peers.is_quiet().then(Instant::now);
    let rests = quiet.zip(*asked).is_some_and(|(now, asked)| now.duration_since(asked) < ASK_EVERY);
    if !rests {
        *asked = quiet;
    }
    !rests
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
        let ConnectorState { peers, handed_out, asked } = &mut *inner;
        handed_out.clear();
        peers.datagrams.show(handed_out, events);
        if events.room() > 0 && is_due(peers, asked) {
            peers.turn().map_err(|_| Status::Io)?;
            self.warn(peers.hub());
            self.tell_of_detours(&mut peers.links.detours);
            peers.datagrams.show(handed_out, events);
        }
        Ok(())
    }

    fn arm(&self) -> Result<Armed, Status> {
        let mut inner = self.inner.borrow_mut();
        inner.asked = None;
        Ok(if inner.peers.datagrams.notices.is_empty() { Armed::Sleep } else { Armed::Ready })
    }

    fn event_fd(&self) -> Option<i32> {
        Some(self.inner.borrow().peers.fd().as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::MaybeUninit;
    use tieline_plugin_api::Domain;
    use tieline_plugin_api::abi::Event;

    fn opened(worker: u8) -> Stream {
        let settings = Settings::of(|_| None).expect("defaults");
        let domain = crate::TcpConnectDomain::new(settings, Arc::default(), None);
        domain.open_connector("stream", [worker; 16]).expect("opens")
    }

    /// Polls once, and returns the number of events.
    fn poll(stream: &Stream) -> usize {
        let mut slots = [const { MaybeUninit::<Event>::uninit() }; 4];
        let mut events = Events::new(&mut slots);
        stream.poll(&mut events).expect("a poll");
        4 - events.room()
    }

    fn queries(stream: &Stream) -> u64 {
        stream.inner.borrow().peers.queries
    }

    #[test]
    fn idle_poll_queries_the_kernel_by_time_and_after_every_arm() {
        let stream = opened(1);
        let began = Instant::now();
        let polls = 20_000;
        for _ in 0..polls {
            assert_eq!(poll(&stream), 0);
        }
        let by_time = began.elapsed().as_micros() / ASK_EVERY.as_micros();
        let most = u64::from(SETTLED) + 2 + u64::try_from(by_time).unwrap();
        assert!(queries(&stream) <= most && most < polls, "{} of {most}", queries(&stream));
        for _ in 0..10 {
            let before = queries(&stream);
            assert_eq!(stream.arm().unwrap(), Armed::Sleep);
            assert_eq!(poll(&stream), 0);
            assert_eq!(queries(&stream), before + 1);
        }
    }

    #[test]
    fn datagram_arrives_however_long_the_receiver_was_idle() {
        let (from, to) = (opened(1), opened(2));
        (0..2000).for_each(|_| assert_eq!(poll(&to) + poll(&from), 0));
        from.send(&to.address(), b"first contact").unwrap();
        let before = queries(&from);
        assert_eq!(poll(&from), 0);
        assert_eq!(queries(&from), before + 1, "a connection is being formed");
        while poll(&to) == 0 {
            let _ = poll(&from);
        }
        let before = queries(&to);
        let _ = poll(&to);
        assert_eq!(queries(&to), before + 1, "more may follow");
    }
}
