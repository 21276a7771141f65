//! One end of a reliable connection: its queue pair and the peer's state.

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

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The connection is created; the peer's address is unknown.
    Unconnected,
    /// The peer has neither sent a message nor acknowledged the hello of this side.
    Connecting,
    /// Both sides are connected.
    Established,
    /// The connection has ended. Data calls return this status once the application has received the reason.
    Failed(Status),
}

/// A packed message, which is posted before everything else on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packed {
    Nothing,
    /// The application is packing a message, whose send queue entry is reserved.
    Packing,
    /// A packed message that the device has not accepted yet: its buffer and its length.
    Message(u32, usize),
}

/// Returns the depth of a connection's own receive queue, for devices without shared receive queues.
pub(crate) fn own_receives(settings: &Settings) -> usize {
    settings.window.max(settings.max_window) + CONTROL
}

/// A value of [`Connection::plain`] that matches no send: every completion on this connection then takes the slow path.
pub(crate) const NOT_PLAIN: u32 = u32::MAX;

/// One end of a connection.
pub(crate) struct Connection {
    pub(crate) cookie: u64,
    /// The number that distinguishes the completions of this connection from those of an earlier one in the same slot.
    pub(crate) generation: u8,
    /// The [`whose`] of this connection's sends until the connection closes or ends; from then on [`NOT_PLAIN`].
    pub(crate) plain: u32,
    pub(crate) phase: Phase,
    /// Whether the application has closed the endpoint, and the goodbye is outstanding.
    pub(crate) closing: bool,
    /// The queue pair; `None` once the connection has broken and the queue pair is draining in ERR.
    pub(crate) qp: Option<Qp>,
    pub(crate) own: EndpointAddress,
    pub(crate) peer: Option<EndpointAddress>,
    pub(crate) queue: SendQueue,
    pub(crate) credits: Credits,
    /// Whether the next operation waits for all earlier gets and atomics.
    pub(crate) fence: bool,
    /// Whether the peer has shown activity since the last tick.
    pub(crate) active: bool,
    pub(crate) last_active: Instant,
    pub(crate) keepalive_pending: bool,
    /// The start of the current stall: a signalled send or the goodbye is outstanding, and nothing has come back from the peer
    /// since then.
    pub(crate) stalled: Option<Instant>,
    pub(crate) deadline: Instant,
    /// Whether the hello is sent as soon as the peer has been heard.
    pub(crate) owes_hello: bool,
    /// A packed message, posted before anything else.
    pub(crate) packed: Packed,
    /// Sends that are posted together with the next one.
    pub(crate) held: Held,
    /// The device's asynchronous error, if it arrived before the failed sends.
    pub(crate) async_error: Option<Failure>,
    /// The reason and the start of the teardown, while the device still has sends to flush.
    pub(crate) ending: Option<(Failure, Instant)>,
    /// The send that caused the failure. It completes with a status of its own.
    pub(crate) blamed: Option<(Ends, Status, u32)>,
}

/// A send that the device did not accept: the error number and the resources to release.
pub(crate) struct NotPosted {
    pub(crate) errno: i32,
    pub(crate) ends: Ends,
}

impl Connection {
    /// Makes the queue pair and moves it to INIT.
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

    /// Connects the queue pair to the peer's queue pair.
    pub(crate) fn ready(
        &self,
        domain: &DomainState,
        peer: &EndpointAddress,
    ) -> Result<(), Failure> {
        let qp = self.qp.as_ref().ok_or(Status::Closed)?;
        let remote = Remote { qpn: peer.qpn, psn: peer.psn, port: &peer.port, reads: peer.reads };
        qp.connect(domain, self.own.psn, &remote)
    }

    /// Restarts the connection with the same numbers after the hello timed out. Nothing else was sent and nothing was received, so
    /// for the peer the connection looks new. Returns whether to send the hello immediately; otherwise the hello is sent once the
    /// peer has been heard. The hello is always the first packet: if the peer did receive the earlier hello, its device drops this
    /// one as a duplicate. The reset loses no unread completion, because no other operation was posted before the failure.
    pub(crate) fn start_again(&mut self, domain: &DomainState) -> Result<bool, Failure> {
        let peer = self.peer.ok_or(Status::Closed)?;
        let qp = self.qp.as_ref().ok_or(Status::Closed)?;
        qp.reset()?;
        qp.initialise(&domain.local)?;
        self.ready(domain, &peer)?;
        self.owes_hello = !self.own.repeats_hello(&peer);
        Ok(!self.owes_hello)
    }

    /// Checks whether a time limit has expired: for the peer to connect, for a send to complete, or for the device to flush.
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

    /// Checks whether a data call may post, and returns the call's status if not. While the connection drains, the status is
    /// `Again`: the application must receive the reason in an event first.
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

    /// Returns the error of a control call after the connection has ended.
    #[cold]
    pub(crate) fn over(&self, status: Status) -> Failure {
        let why = self.ending.as_ref().map_or(status.to_string(), |(why, _)| why.text.clone());
        Failure::new(
            status,
            format!("the connection to the peer has ended ({why}): make a new one"),
        )
    }

    /// Checks whether a message may be posted: like [`Connection::may_post`], and the message needs a credit.
    #[inline]
    pub(crate) fn may_send(&self) -> Result<(), Status> {
        self.may_post()?;
        if self.credits.may_send() { Ok(()) } else { Err(Status::Again) }
    }

    /// Returns the number of bytes, a message's header included, that the device copies during a post.
    #[inline]
    pub(crate) fn inline(&self) -> usize {
        self.qp.as_ref().map_or(0, |qp| qp.inline)
    }

    /// Posts a send and records the resources to release at its completion. A send without a waiting application and without a
    /// message buffer is signalled only once in a while. With [`HOLD`] the doorbell may wait for the next send.
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

    /// Posts the held sends of this connection.
    pub(crate) fn tell(&mut self) -> Result<(), NotPosted> {
        let told = match &self.qp {
            Some(qp) if !self.held.is_empty() => self.held.tell(qp),
            _ => Ok(()),
        };
        told.map_err(|errno| NotPosted { errno, ends: Ends::default() })
    }

    /// Returns the send operation with the peer's slot as its immediate value.
    #[inline]
    pub(crate) fn to_peer(&self) -> Work<'static> {
        Work::Send { imm: self.peer.as_ref().map_or(0, |peer| peer.slot) }
    }
}

/// A flag beside the device's send flags: another send follows immediately.
pub(crate) const HOLD: c_uint = 1 << 31;

/// Appends a send to the held ones. Without [`HOLD`], posts all held sends.
#[inline(never)] // keeps this function out of the path without held sends
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
    // The device rejects the end of the list, and this send is the last one.
    held.tell(qp).inspect_err(|_| held.pop())
}

/// The bit that marks the work request ids of receives.
const RECEIVE: u64 = 1 << 63;

/// The work request that a completion is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    Receive { buffer: u32, stamp: u32 },
    Send { slot: u32, generation: u8, number: u32 },
}

/// Returns the work request id of a send.
#[inline]
pub(crate) fn send_id(slot: u32, generation: u8, number: u32) -> u64 {
    (u64::from(slot & 0x7f_ffff) << 40) | (u64::from(generation) << 32) | u64::from(number)
}

/// Returns the connection of a send id: its slot and generation in one number.
#[inline]
pub(crate) fn whose(id: u64) -> u32 {
    (id >> 32) as u32
}

/// Returns the work request id of a receive. The 31-bit stamp distinguishes successive postings of a buffer.
#[inline]
pub(crate) fn receive_id(buffer: u32, stamp: u32) -> u64 {
    RECEIVE | u64::from(stamp) << 32 | u64::from(buffer)
}

/// Decodes a work request id of either kind.
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
    fn completion_id_identifies_its_request() {
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
