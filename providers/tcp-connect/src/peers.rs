//! All peers of a connector: selects the connection to each of them by [`Datagrams`], and serves the connections.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tieline_net::datagrams::{Datagrams, LinkEvent, QUEUE, WAITING};
use tieline_net::{Contact, Hub, Incoming, Mailbox, Ready};
use tieline_plugin_api::Status;

use crate::config::Settings;
use crate::frame::{Frame, MAX_DATAGRAM};
use crate::links::{BATCH, HUB, MAILBOX, PURPOSE, TIMER, Wires};
use crate::wire::Arrival;

/// The limit on reads from one connection per turn, so that the others are served.
const READS: usize = 4;

/// The number of queries without an event after which nothing is under way: a handshake takes less time.
pub(crate) const SETTLED: u32 = 256;

const _: () = assert!(MAX_DATAGRAM <= QUEUE);

/// All peers of this connector.
pub(crate) struct Peers {
    pub(crate) datagrams: Datagrams,
    pub(crate) links: Wires,
    ready: Vec<Ready>,
    /// The number of queries of the kernel, and the number of the latest ones in a row that found no event.
    pub(crate) queries: u64,
    without_event: u32,
    scratch: Vec<u8>,
}

impl Peers {
    pub(crate) fn open(mailbox: Mailbox, own: Vec<u8>, settings: &Settings) -> io::Result<Peers> {
        // Idle connections are closed beyond the limit alone, not after a time.
        let datagrams = Datagrams::new(own.clone(), settings.max_wires, Duration::MAX);
        let links = Wires::open(mailbox, own, settings)?;
        Ok(Peers {
            datagrams,
            links,
            ready: Vec::new(),
            queries: 0,
            without_event: 0,
            scratch: Vec::new(),
        })
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        self.links.mailbox.hub()
    }

    /// Returns the descriptor that is readable when [`Peers::turn`] has work.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.links.poller.as_fd()
    }

    /// Accepts a datagram for a peer.
    pub(crate) fn send(&mut self, address: &[u8], datagram: &[u8]) -> Result<(), Status> {
        let _ = Contact::parse(address).map_err(|_| Status::Invalid)?;
        self.datagrams.send(&mut self.links, address, datagram)?;
        self.settle();
        Ok(())
    }

    /// Checks whether no connection is being formed, and the last queries of the kernel found nothing.
    pub(crate) fn is_quiet(&self) -> bool {
        self.without_event >= SETTLED && self.links.dials.is_empty() && self.links.is_written()
    }

    /// Makes progress: accepts, advances and closes connections; sends and receives datagrams.
    pub(crate) fn turn(&mut self) -> io::Result<()> {
        let mut ready = std::mem::take(&mut self.ready);
        let waited = self.links.poller.wait(&mut ready, Some(Duration::ZERO));
        if waited.is_ok() && !ready.is_empty() {
            let now = Instant::now();
            for event in &ready {
                match event.token {
                    HUB => self.hub().poll(),
                    MAILBOX | TIMER => {}
                    token if self.links.dials.contains_key(&token) => {
                        self.links.advance(token, now);
                    }
                    link => {
                        if event.writable {
                            self.links.write(link);
                            self.handle(LinkEvent::Room { link });
                        }
                        if event.readable {
                            self.read(link);
                        }
                    }
                }
                self.settle();
            }
            self.links.advance_late(now);
        }
        self.queries += 1;
        self.without_event =
            if ready.is_empty() { self.without_event.saturating_add(1) } else { 0 };
        self.ready = ready;
        while let Some(incoming) = self.mailbox_take() {
            self.welcome(incoming);
            self.without_event = 0;
        }
        self.settle();
        waited
    }

    fn mailbox_take(&self) -> Option<Incoming> {
        let mailbox = &self.links.mailbox;
        if mailbox.is_empty() { None } else { mailbox.take() }
    }

    fn handle(&mut self, event: LinkEvent) {
        self.datagrams.handle(&mut self.links, event);
    }

    /// Writes what the connections have got, and handles the events that follow.
    fn settle(&mut self) {
        loop {
            self.links.write_fresh();
            let Some(event) = self.links.events.pop_front() else { break };
            self.handle(event);
        }
        self.links.set_timer();
    }

    /// Handles a connection that a peer has made to this side.
    fn welcome(&mut self, incoming: Incoming) {
        let address = incoming.hello.payload();
        let known = incoming.hello.purpose == PURPOSE && Contact::parse(address).is_ok();
        if !known || address == self.links.own {
            return; // the dialler is a member of the job with another purpose: its socket is closed
        }
        // A peer makes a second connection only if its first one has ended on its side. The data on the first one comes first.
        for link in self.datagrams.replaced_by(address) {
            self.read(link);
        }
        let (peer, link) = (address.to_vec(), self.links.adopt(incoming.stream));
        self.handle(LinkEvent::Up { link, peer, dial: None });
        self.settle();
    }

    /// Reads from a connection.
    fn read(&mut self, link: u64) {
        let mut scratch = std::mem::take(&mut self.scratch);
        // A connector without a connection needs no memory for what arrives.
        scratch.resize(BATCH, 0);
        for _ in 0..READS {
            if self.datagrams.notices.len() >= WAITING {
                break;
            }
            let Some(wire) = self.links.wires.get_mut(&link) else { break };
            let status = Status::Io;
            let end = match wire.read(&mut scratch) {
                Ok(Arrival::Quiet) => break,
                Ok(Arrival::Frames(frames)) => {
                    for frame in frames {
                        self.handle(match frame {
                            Frame::Datagram(bytes) => LinkEvent::Datagram { link, bytes },
                            Frame::Note(note) => LinkEvent::Note { link, note },
                        });
                    }
                    continue;
                }
                Ok(Arrival::End) => {
                    let why = wire.failed.take();
                    let words = why.unwrap_or_else(|| "the peer has closed it".into());
                    LinkEvent::Lost { link, status, words }
                }
                Err(words) => LinkEvent::Broke { link, status, words },
            };
            self.handle(end);
            break;
        }
        self.scratch = scratch;
        self.links.watch(link);
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        let links: Vec<u64> = self.links.wires.keys().copied().collect();
        for link in links {
            self.links.write(link);
            self.handle(LinkEvent::Room { link });
            if let Some(wire) = self.links.wires.remove(&link) {
                self.scratch.resize(BATCH, 0);
                wire.leave(&mut self.scratch);
            }
        }
    }
}

#[cfg(test)]
#[path = "peers_tests.rs"]
mod tests;
