//! One end of a reliable connection: its queue pair and what is known of the peer.

use super::address::EndpointAddress;
use super::credits::Credits;
use super::queue::{Ends, RESERVE, SendQueue};
use crate::abi::*;
use crate::domain::DomainState;
#[cfg(test)]
use crate::double::clock::Instant;
use crate::port::mtu_bytes;
use crate::sys::{Cq, Qp, QpShape, Srq, Work};
use core::ffi::c_uint;
use core::time::Duration;
#[cfg(not(test))]
use std::time::Instant;
use tieline_plugin_api::{Failure, Status};

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Made; the peer's address is not known.
    Fresh,
    /// Nothing was heard of the peer: neither a word nor that ours came through.
    Connecting,
    /// Both sides are there.
    Standing,
    /// Over, and this is what data calls say.
    Broken(Status),
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

/// One end.
pub(crate) struct Connection {
    pub(crate) cookie: u64,
    /// Tells the completions of this connection from those of an earlier one in the same slot.
    pub(crate) life: u8,
    pub(crate) phase: Phase,
    /// The application has closed it; the last word is on its way.
    pub(crate) closing: bool,
    /// Gone as soon as the connection broke: the device then touches nothing any more.
    pub(crate) qp: Option<Qp>,
    pub(crate) own: EndpointAddress,
    pub(crate) peer: Option<EndpointAddress>,
    pub(crate) queue: SendQueue,
    pub(crate) credits: Credits,
    /// The next operation waits for the gets and atomics before it.
    pub(crate) fence: bool,
    /// Something came from the peer since the last tick.
    pub(crate) heard: bool,
    pub(crate) heard_at: Instant,
    pub(crate) probing: bool,
    /// Since when a send is on its way whose end the device will tell, or the last word is, and nothing has come back.
    pub(crate) stalled: Option<Instant>,
    pub(crate) deadline: Instant,
    /// The peer has sent something on this connection.
    pub(crate) received: bool,
    /// The first word is still to be said, once the peer was heard.
    pub(crate) owes_word: bool,
    /// What is posted before anything else.
    pub(crate) packed: Packed,
    /// Why the device has ended it, where it said so before sends came back.
    pub(crate) blame: Option<Failure>,
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
        srq: &Srq,
        own: EndpointAddress,
        cookie: u64,
        life: u8,
    ) -> Result<Connection, Failure> {
        let depth = domain.settings.tx_depth;
        let shape = |inline| QpShape {
            kind: IBV_QPT_RC,
            cq,
            srq: Some(srq),
            send_depth: depth + RESERVE,
            receive_depth: 0,
            sges: domain.max_iov + 1,
            inline,
        };
        // A device that cannot inline as much as is wanted refuses the whole queue pair.
        let qp = Qp::new(&domain.pd, &shape(domain.settings.inline))
            .or_else(|_| Qp::new(&domain.pd, &shape(0)))?;
        let now = Instant::now();
        let own = EndpointAddress { qpn: qp.number(), ..own };
        let connection = Connection {
            cookie,
            life,
            phase: Phase::Fresh,
            closing: false,
            qp: Some(qp),
            peer: None,
            queue: SendQueue::new(depth),
            credits: Credits::new(u32::from(own.window)),
            own,
            fence: false,
            heard: false,
            heard_at: now,
            probing: false,
            stalled: None,
            deadline: now,
            received: false,
            owes_word: false,
            packed: Packed::Nothing,
            blame: None,
        };
        connection.initialise(domain)?;
        Ok(connection)
    }

    fn modify(&self, attr: ibv_qp_attr, mask: c_uint, what: &str) -> Result<(), Failure> {
        match &self.qp {
            Some(qp) => qp.modify(attr, mask | IBV_QP_STATE, what),
            None => Err(Status::Closed.into()),
        }
    }

    fn initialise(&self, domain: &DomainState) -> Result<(), Failure> {
        let attr = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            pkey_index: domain.local.partition_index,
            port_num: domain.local.number,
            qp_access_flags: IBV_ACCESS_REMOTE_READ
                | IBV_ACCESS_REMOTE_WRITE
                | IBV_ACCESS_REMOTE_ATOMIC,
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        self.modify(attr, mask, "preparing a queue pair")
    }

    /// Connects the queue pair to the peer's.
    pub(crate) fn ready(
        &self,
        domain: &DomainState,
        peer: &EndpointAddress,
    ) -> Result<(), Failure> {
        let settings = &domain.settings;
        let mtu = self.own.port.mtu.min(peer.port.mtu);
        let receive = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: c_uint::from(mtu),
            dest_qp_num: peer.qpn,
            rq_psn: peer.psn,
            max_dest_rd_atomic: domain.reads_served,
            min_rnr_timer: settings.rnr_timer,
            ah_attr: peer.port.route(&domain.local, settings),
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        let what = format!(
            "connecting to queue pair {} at {} with an MTU of {}",
            peer.qpn,
            crate::gid::words(&peer.port.gid),
            mtu_bytes(mtu)
        );
        self.modify(receive, mask, &what)?;
        let send = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            timeout: settings.ack_timeout,
            retry_cnt: settings.retry_count,
            // Without end: a receiver that lives and does not poll is waited for.
            rnr_retry: 7,
            sq_psn: self.own.psn,
            max_rd_atomic: domain.reads_asked.min(peer.reads).max(1),
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(send, mask, "starting a queue pair")
    }

    /// Starts again with the same numbers, after nobody answered the first word. Nothing else has been sent and
    /// nothing was received, so that the peer, once it is there, finds a connection that looks new. Returns whether to
    /// say the word now; otherwise it is said when the peer was heard. It comes first in any case: should the peer have
    /// heard it after all, it takes what has that number for a repetition.
    pub(crate) fn start_again(&mut self, domain: &DomainState) -> Result<bool, Failure> {
        let peer = self.peer.ok_or(Status::NotConnected)?;
        let reset = ibv_qp_attr { qp_state: IBV_QPS_RESET, ..ibv_qp_attr::default() };
        self.modify(reset, 0, "resetting a queue pair")?;
        self.initialise(domain)?;
        self.ready(domain, &peer)?;
        self.owes_word = !self.own.repeats_first_word(&peer);
        Ok(!self.owes_word)
    }

    /// Whether the time is over: for the peer to come, or for a send to end.
    pub(crate) fn is_late(&self, now: Instant, limit: Duration) -> bool {
        match self.phase {
            Phase::Connecting => now >= self.deadline,
            Phase::Standing => self.stalled.is_some_and(|since| now.duration_since(since) >= limit),
            _ => false,
        }
    }

    /// What a data call says now; `Ok` when it may post.
    #[inline]
    pub(crate) fn may_post(&self) -> Result<(), Status> {
        match self.phase {
            Phase::Standing if self.queue.has_room() && self.packed == Packed::Nothing => Ok(()),
            Phase::Standing | Phase::Fresh | Phase::Connecting => Err(Status::Again),
            Phase::Broken(status) => Err(status),
        }
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
    /// and then.
    #[inline(always)]
    pub(crate) fn post(
        &mut self,
        work: Work<'_>,
        pieces: &[ibv_sge],
        ends: Ends,
        mut flags: c_uint,
    ) -> Result<(), NotPosted> {
        let Some(qp) = &self.qp else { return Err(NotPosted { errno: libc::ENOTCONN, ends }) };
        if ends.cookie.is_some() || ends.buffer.is_some() || self.queue.must_signal() {
            flags |= IBV_SEND_SIGNALED;
        }
        if self.fence {
            flags |= IBV_SEND_FENCE;
        }
        let id = send_id(self.own.slot, self.life, self.queue.next());
        if let Err(errno) = qp.post(id, work, pieces, flags) {
            return Err(NotPosted { errno, ends });
        }
        self.fence = false;
        self.queue.push(ends, flags & IBV_SEND_SIGNALED != 0);
        Ok(())
    }

    /// The immediate number of messages to the peer.
    #[inline]
    pub(crate) fn to_peer(&self) -> Work<'static> {
        Work::Send { imm: self.peer.as_ref().map_or(0, |peer| peer.slot) }
    }
}

/// Marks completions of receives.
const RECEIVE: u64 = 1 << 63;

/// What a completion is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    Receive { buffer: u32 },
    Send { slot: u32, life: u8, number: u32 },
}

/// The number of a send.
#[inline]
pub(crate) fn send_id(slot: u32, life: u8, number: u32) -> u64 {
    (u64::from(slot & 0x7f_ffff) << 40) | (u64::from(life) << 32) | u64::from(number)
}

/// The number of a receive.
#[inline]
pub(crate) fn receive_id(buffer: u32) -> u64 {
    RECEIVE | u64::from(buffer)
}

/// The reverse of both.
#[inline]
pub(crate) fn about(id: u64) -> About {
    if id & RECEIVE != 0 {
        About::Receive { buffer: id as u32 }
    } else {
        About::Send { slot: (id >> 40) as u32, life: (id >> 32) as u8, number: id as u32 }
    }
}

/// How a connection ended: what the operation itself gets, what the connection gets, and the words.
pub(crate) fn verdict(
    wc: &ibv_wc,
    domain: &DomainState,
    peer: Option<&EndpointAddress>,
) -> (Status, Failure) {
    let port = domain.name.words();
    let peer = peer.map_or_else(String::new, |peer| {
        format!(" (queue pair {} at {})", peer.qpn, crate::gid::words(&peer.port.gid))
    });
    let both = |status, text: String| (status, Failure::new(status, text));
    if domain.watch.device_gone() {
        return both(Status::NoDevice, format!("the device {} was removed", domain.name.device));
    }
    if domain.watch.port_down() {
        return both(
            Status::Unreachable,
            format!("{port} is down, and the peer{peer} did not answer"),
        );
    }
    match wc.status {
        IBV_WC_RETRY_EXC_ERR => both(
            Status::TimedOut,
            format!(
                "the peer{peer} did not acknowledge in {} tries of {:?} together: its process is gone, or the way to \
                 it is cut",
                u32::from(domain.settings.retry_count) + 1,
                domain.settings.patience()
            ),
        ),
        IBV_WC_REM_ACCESS_ERR => (
            Status::KeyRejected,
            Failure::new(
                Status::KeyRejected,
                format!(
                    "the peer's device{peer} refused a remote key: its region was deregistered; RDMA devices end the \
                     connection after such an error"
                ),
            ),
        ),
        IBV_WC_LOC_QP_OP_ERR => both(
            Status::Unreachable,
            format!("{port} could not send to the peer{peer}: its link, address or route is gone"),
        ),
        IBV_WC_LOC_PROT_ERR => (
            Status::Invalid,
            Failure::new(
                Status::Io,
                "the device could not reach local memory of an operation: it was unmapped or deregistered before \
                 the operation ended",
            ),
        ),
        IBV_WC_REM_OP_ERR | IBV_WC_REM_INV_REQ_ERR => {
            both(Status::PeerFailed, format!("the peer's device{peer} refused an operation"))
        }
        // The peer lives: it asked for something.
        IBV_WC_WR_FLUSH_ERR => both(
            Status::Io,
            format!(
                "{port} ended the connection to the peer{peer}: it refused what the peer asked for, such as an access \
                 with the key of a region that was deregistered"
            ),
        ),
        other => both(
            Status::Io,
            format!(
                "{port} ended the connection to the peer{peer}: completion status {other}, vendor error {:#x}",
                wc.vendor_err
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_completion_says_what_it_is_about() {
        for (slot, life, number) in [(0, 0, 0), (0x7f_ffff, 255, u32::MAX), (9, 1, 77)] {
            assert_eq!(about(send_id(slot, life, number)), About::Send { slot, life, number });
        }
        assert_eq!(about(receive_id(12345)), About::Receive { buffer: 12345 });
    }
}
