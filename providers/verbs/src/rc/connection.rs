//! One end of a reliable connection: its queue pair and what is known of the peer.

use super::address::EndpointAddress;
use super::credits::Credits;
use super::queue::{Ends, RESERVE, SendQueue};
use super::receives::CONTROL;
use crate::abi::*;
use crate::config::Settings;
#[cfg(test)]
use crate::double::clock::Instant;
use crate::queue_pair::{DRAIN_TIME, Held, Qp, QpShape, Remote, Srq, Work};
use crate::shared::DomainState;
use crate::sys::Cq;
use core::ffi::c_uint;
use core::time::Duration;
#[cfg(not(test))]
use std::time::Instant;
use tieline_plugin_api::{Failure, Status};

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Made; the peer's address is not known.
    Unconnected,
    /// Nothing was heard of the peer: neither a message nor that our hello came through.
    Connecting,
    /// Both sides are there.
    Established,
    /// Over, and this is what data calls say once the application has heard why.
    Failed(Status),
}

/// What goes before everything else on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packed {
    Nothing,
    /// The application packs a message, for which there is room: nothing else may take that.
    Packing,
    /// A packed message that the device has not taken yet: its buffer and its length.
    Message(u32, usize),
}

/// Receives of a queue of its own, where the device shares none.
pub(crate) fn own_receives(settings: &Settings) -> usize {
    settings.window.max(settings.max_window) + CONTROL
}

/// Of no connection's sends: of this one more is to be seen to than the word that an operation ended.
pub(crate) const NOT_PLAIN: u32 = u32::MAX;

/// One end.
pub(crate) struct Connection {
    pub(crate) cookie: u64,
    /// Tells the completions of this connection from those of an earlier one in the same slot.
    pub(crate) generation: u8,
    /// What [`whose`] says of its sends as long as it is neither closing nor ending; else [`NOT_PLAIN`], for good.
    pub(crate) plain: u32,
    pub(crate) phase: Phase,
    /// The application has closed it; the goodbye is on its way.
    pub(crate) closing: bool,
    /// Gone as soon as the connection broke: then it is on its way through ERR.
    pub(crate) qp: Option<Qp>,
    pub(crate) own: EndpointAddress,
    pub(crate) peer: Option<EndpointAddress>,
    pub(crate) queue: SendQueue,
    pub(crate) credits: Credits,
    /// The next operation waits for the gets and atomics before it.
    pub(crate) fence: bool,
    /// Something came from the peer since the last tick.
    pub(crate) active: bool,
    pub(crate) last_active: Instant,
    pub(crate) keepalive_pending: bool,
    /// Since when a send is on its way whose end the device will tell, or the goodbye is, and nothing has come back.
    pub(crate) stalled: Option<Instant>,
    pub(crate) deadline: Instant,
    /// The hello is still to be sent, once the peer was heard.
    pub(crate) owes_hello: bool,
    /// What is posted before anything else.
    pub(crate) packed: Packed,
    /// What is told to the device with what follows.
    pub(crate) held: Held,
    /// Why the device has ended it, where it said so before sends came back.
    pub(crate) async_error: Option<Failure>,
    /// Why it is over and since when, while the device has sends to give back.
    pub(crate) ending: Option<(Failure, Instant)>,
    /// The send that it ended with, which has a status of its own.
    pub(crate) blamed: Option<(Ends, Status, u32)>,
}

/// A send that the device did not take, with the error number and what was to end with it.
pub(crate) struct NotPosted {
    pub(crate) errno: i32,
    pub(crate) ends: Ends,
}

impl Connection {
    /// Makes the queue pair and brings it to where a peer can be named.
    pub(crate) fn new(
        domain: &DomainState,
        cq: &Cq,
        srq: Option<&Srq>,
        own: EndpointAddress,
        cookie: u64,
        generation: u8,
    ) -> Result<Connection, Failure> {
        let depth = domain.settings.tx_depth;
        let shape = |inline: usize| QpShape {
            kind: IBV_QPT_RC,
            cq,
            srq,
            send_depth: depth + RESERVE,
            receive_depth: if srq.is_some() { 0 } else { own_receives(&domain.settings) },
            sges: domain.pieces,
            inline,
        };
        let qp = domain.with_inline(|inline| Qp::new(&domain.pd, &shape(inline)))?;
        qp.initialise(&domain.local)?;
        let now = Instant::now();
        let own = EndpointAddress { qpn: qp.number(), ..own };
        Ok(Connection {
            cookie,
            generation,
            plain: whose(send_id(own.slot, generation, 0)),
            phase: Phase::Unconnected,
            closing: false,
            qp: Some(qp),
            peer: None,
            queue: SendQueue::new(depth),
            credits: Credits::new(u32::from(own.window)),
            own,
            fence: false,
            active: false,
            last_active: now,
            keepalive_pending: false,
            stalled: None,
            deadline: now,
            owes_hello: false,
            packed: Packed::Nothing,
            held: Held::default(),
            async_error: None,
            ending: None,
            blamed: None,
        })
    }

    /// Connects the queue pair to the peer's.
    pub(crate) fn ready(
        &self,
        domain: &DomainState,
        peer: &EndpointAddress,
    ) -> Result<(), Failure> {
        let qp = self.qp.as_ref().ok_or(Status::Closed)?;
        let remote = Remote { qpn: peer.qpn, psn: peer.psn, port: &peer.port, reads: peer.reads };
        qp.connect(domain, self.own.psn, &remote)
    }

    /// Starts again with the same numbers, after nobody answered the hello. Nothing else has been sent and
    /// nothing was received, so that the peer, once it is there, finds a connection that looks new. Returns whether to
    /// send the hello now; otherwise it is sent when the peer was heard. It comes first in any case: should the peer have
    /// heard it after all, it takes what has that number for a repetition. A reset takes no completion with it that is unread:
    /// nothing came before the failure, and nothing comes after it.
    pub(crate) fn start_again(&mut self, domain: &DomainState) -> Result<bool, Failure> {
        let peer = self.peer.ok_or(Status::Closed)?;
        let qp = self.qp.as_ref().ok_or(Status::Closed)?;
        qp.reset()?;
        qp.initialise(&domain.local)?;
        self.ready(domain, &peer)?;
        self.owes_hello = !self.own.repeats_hello(&peer);
        Ok(!self.owes_hello)
    }

    /// Whether the time is over: for the peer to come, for a send to end, or for the device to give everything back.
    pub(crate) fn is_late(&self, now: Instant, limit: Duration) -> bool {
        match self.phase {
            Phase::Connecting => now >= self.deadline,
            Phase::Established => {
                self.stalled.is_some_and(|since| now.duration_since(since) >= limit)
            }
            Phase::Failed(_) => {
                let since = self.ending.as_ref().map(|(_, since)| *since);
                since.is_some_and(|since| now.duration_since(since) >= DRAIN_TIME)
            }
            Phase::Unconnected => false,
        }
    }

    /// What a data call says now; `Ok` when it may post. While a connection ends, that is to wait: the first that anyone hears
    /// of the end are its words.
    #[inline(always)]
    pub(crate) fn may_post(&self) -> Result<(), Status> {
        let stands = matches!(self.phase, Phase::Established);
        if stands && self.queue.has_room() && matches!(self.packed, Packed::Nothing) {
            return Ok(());
        }
        self.why_not()
    }

    #[cold]
    fn why_not(&self) -> Result<(), Status> {
        match self.phase {
            Phase::Established | Phase::Unconnected | Phase::Connecting => Err(Status::Again),
            Phase::Failed(_) if self.ending.is_some() => Err(Status::Again),
            Phase::Failed(status) => Err(status),
        }
    }

    /// What a control call says once the connection is over.
    #[cold]
    pub(crate) fn over(&self, status: Status) -> Failure {
        let why = self.ending.as_ref().map_or(status.to_string(), |(why, _)| why.text.clone());
        Failure::new(
            status,
            format!("the connection to the peer has ended ({why}): make a new one"),
        )
    }

    /// What a message says now.
    #[inline]
    pub(crate) fn may_send(&self) -> Result<(), Status> {
        self.may_post()?;
        if self.credits.may_send() { Ok(()) } else { Err(Status::Again) }
    }

    /// Longest payload that goes inline together with the header.
    #[inline]
    pub(crate) fn inline(&self) -> usize {
        self.qp.as_ref().map_or(0, |qp| qp.inline)
    }

    /// Posts and notes what ends with it. A send that the application does not wait for asks for a completion only now
    /// and then. With [`HOLD`] the device need not be told before the next one.
    #[inline(always)]
    pub(crate) fn post(
        &mut self,
        work: Work<'_>,
        pieces: &[ibv_sge],
        ends: Ends,
        mut flags: c_uint,
    ) -> Result<(), NotPosted> {
        let Some(qp) = &self.qp else { return Err(NotPosted { errno: libc::ENOTCONN, ends }) };
        if ends.cookie.is_some() && !ends.silent
            || ends.buffer.is_some()
            || self.queue.must_signal()
        {
            flags |= IBV_SEND_SIGNALED;
        }
        if self.fence {
            flags |= IBV_SEND_FENCE;
        }
        let id = send_id(self.own.slot, self.generation, self.queue.next());
        let posted = match flags & HOLD == 0 && self.held.is_empty() {
            true => qp.post(id, work, pieces, flags),
            false => post_behind(&mut self.held, qp, id, work, pieces, flags),
        };
        if let Err(errno) = posted {
            return Err(NotPosted { errno, ends });
        }
        self.fence = false;
        self.queue.push(ends, flags & IBV_SEND_SIGNALED != 0);
        Ok(())
    }

    /// Tells the device what it was not told yet.
    pub(crate) fn tell(&mut self) -> Result<(), NotPosted> {
        let told = match &self.qp {
            Some(qp) if !self.held.is_empty() => self.held.tell(qp),
            _ => Ok(()),
        };
        told.map_err(|errno| NotPosted { errno, ends: Ends::default() })
    }

    /// The immediate number of messages to the peer.
    #[inline]
    pub(crate) fn to_peer(&self) -> Work<'static> {
        Work::Send { imm: self.peer.as_ref().map_or(0, |peer| peer.slot) }
    }
}

/// Beside the device's own flags of a send: another one follows at once.
pub(crate) const HOLD: c_uint = 1 << 31;

/// Posts a send behind those that the device was not told of, now or with what follows.
#[inline(never)] // whoever holds nothing need not pay for it
fn post_behind(
    held: &mut Held,
    qp: &Qp,
    id: u64,
    work: Work<'_>,
    pieces: &[ibv_sge],
    flags: c_uint,
) -> Result<(), i32> {
    held.push(id, work, pieces, flags & !HOLD);
    if flags & HOLD != 0 {
        return Ok(());
    }
    // What it does not take is a tail of them, and this is the last.
    held.tell(qp).inspect_err(|_| held.pop())
}

/// Marks completions of receives.
const RECEIVE: u64 = 1 << 63;

/// What a completion is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    Receive { buffer: u32, stamp: u32 },
    Send { slot: u32, generation: u8, number: u32 },
}

/// The number of a send.
#[inline]
pub(crate) fn send_id(slot: u32, generation: u8, number: u32) -> u64 {
    (u64::from(slot & 0x7f_ffff) << 40) | (u64::from(generation) << 32) | u64::from(number)
}

/// Of which connection the send of this number is: its slot and generation in one.
#[inline]
pub(crate) fn whose(id: u64) -> u32 {
    (id >> 32) as u32
}

/// The number of a receive. The stamp, of 31 bits, tells one posting of the buffer from another.
#[inline]
pub(crate) fn receive_id(buffer: u32, stamp: u32) -> u64 {
    RECEIVE | u64::from(stamp) << 32 | u64::from(buffer)
}

/// The reverse of both.
#[inline]
pub(crate) fn about(id: u64) -> About {
    if id & RECEIVE != 0 {
        About::Receive { buffer: id as u32, stamp: (id >> 32) as u32 & 0x7fff_ffff }
    } else {
        About::Send { slot: (id >> 40) as u32, generation: (id >> 32) as u8, number: id as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_completion_says_what_it_is_about() {
        for (slot, generation, number) in [(0, 0, 0), (0x7f_ffff, 255, u32::MAX), (9, 1, 77)] {
            let id = send_id(slot, generation, number);
            assert_eq!(about(id), About::Send { slot, generation, number });
            assert_eq!(whose(id), slot << 8 | u32::from(generation));
            assert_ne!(whose(id), NOT_PLAIN);
        }
        for (buffer, stamp) in [(12345, 0), (1, 0x7fff_ffff)] {
            assert_eq!(about(receive_id(buffer, stamp)), About::Receive { buffer, stamp });
        }
    }
}
