//! An interface, and the events that it has delivered.

use crate::interface::{Interface, Received};
use crate::report::{Stop, equal, fail, holds, succeeds};
use std::collections::VecDeque;
use tieline_plugin_api::{Status, event, event_flags};

pub(crate) struct Mailbox {
    pub(crate) interface: Interface,
    pub(crate) messages: VecDeque<Received>,
    pub(crate) completions: Vec<Received>,
    pub(crate) arrived: Vec<Received>,
    pub(crate) left: Vec<Received>,
    pub(crate) failed: Vec<Received>,
    /// The numbers of present peers, with their index in `arrived`.
    here: Vec<(u64, usize)>,
    /// The cookies of endpoints to which a peer's endpoint is connected. They identify peers for which there is no arrival.
    pub(crate) cookies: Vec<u64>,
    pub(crate) at_once: usize,
    /// Whether the check releases lent payloads itself; otherwise they are released as soon as they have been copied.
    pub(crate) keeps_lent: bool,
}

impl Mailbox {
    pub(crate) fn new(interface: Interface) -> Mailbox {
        Mailbox {
            interface,
            messages: VecDeque::new(),
            completions: Vec::new(),
            arrived: Vec::new(),
            left: Vec::new(),
            failed: Vec::new(),
            here: Vec::new(),
            cookies: Vec::new(),
            at_once: 16,
            keeps_lent: false,
        }
    }

    pub(crate) fn forget(&mut self) {
        for list in [&mut self.completions, &mut self.arrived, &mut self.left, &mut self.failed] {
            list.clear();
        }
        self.messages.clear();
        self.cookies.dedup();
        let known = self.here.len().min(8);
        drop(self.here.drain(..self.here.len() - known));
    }

    /// Polls once. Returns `false` if the poll delivered nothing.
    pub(crate) fn turn(&mut self) -> Result<bool, Stop> {
        let events = succeeds("poll", self.interface.poll(self.at_once))?;
        let any = !events.is_empty();
        for mut received in events {
            let unknown = received.flags & !(event_flags::LENT | event_flags::UNTAKEN);
            equal("flags of an event that no minor of this core has", 0, unknown)?;
            match received.kind {
                event::MESSAGE | event::NOTIFIED => {
                    let here = self.here.iter().find(|(peer, _)| *peer == received.peer);
                    if here.is_none() && !self.cookies.contains(&received.peer) {
                        return Err(fail(
                            format!("a message from peer {}", received.peer),
                            "PEER_ARRIVED with that number first, and no PEER_LEFT of it since",
                            format!("{} arrivals", self.arrived.len()),
                        ));
                    }
                    received.sender = here.map(|(_, arrival)| *arrival);
                    if received.flags & event_flags::LENT != 0 && !self.keeps_lent {
                        self.interface.release(received.cookie);
                    }
                    self.messages.push_back(received);
                }
                event::COMPLETION => {
                    let words = std::str::from_utf8(&received.data).is_ok();
                    // A status which means that nothing has happened cannot complete a posted operation.
                    let status = Status::from_code(received.status);
                    let ends =
                        received.status <= 0 && !matches!(status, Status::Again | Status::Declined);
                    holds(ends, "the status of a COMPLETION", "how it has ended", status)?;
                    holds(words, "the reason in a COMPLETION", "words", "bytes that are no text")?;
                    self.completions.push(received);
                }
                event::PEER_ARRIVED => {
                    self.here.retain(|(peer, _)| *peer != received.peer);
                    self.here.push((received.peer, self.arrived.len()));
                    self.arrived.push(received);
                }
                event::PEER_LEFT => {
                    let before = self.here.len();
                    self.here.retain(|(peer, _)| *peer != received.peer);
                    let found = format!("one of {} more", received.peer);
                    let expected = "one for each PEER_ARRIVED";
                    holds(self.here.len() < before, "PEER_LEFT", expected, found)?;
                    self.left.push(received);
                }
                event::ENDPOINT_FAILED => self.failed.push(received),
                // The failure of the endpoint follows, and reports that its peer accepted nothing.
                event::RETURNED => {}
                kind => return Err(fail("the kind of an event", "one that exists", kind)),
            }
        }
        Ok(any)
    }
}
