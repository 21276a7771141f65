//! The life of a queue pair: the states that it goes through, what its errors mean, how it ends.
//!
//! The states are those of the specification: RESET when it is made, INIT once it has a port, RTR ("ready to receive") once it
//! knows its peer, RTS ("ready to send") in use. The two sides of a connection go to RTS without each other. An error takes a
//! connection to ERR, where the device gives everything back that was posted, and a datagram queue pair to SQE, in which it
//! receives and does not send, and from which it goes on.
//! Connections of `rdmacm` go the same way, with the attributes that the connection manager says (`cm/wire.rs`).
//!
//! It ends in steps ([`Cleanup`]): in ERR the device gives back what was posted and, where receives are shared, says when it has
//! taken its last one; the completion queue is read as far as it was filled then; and only then the queue pair is reset or
//! destroyed. From there on the device touches nothing any more that was posted to it, and what is unread of its completions may be
//! gone from the queue (mlx5 removes them) or still lie there (soft RoCE does not), where it takes places until somebody has
//! read the queue to its end.

mod sys;
#[cfg(test)]
mod tests;

pub(crate) use sys::{AddressHandle, Held, Qp, QpShape, Receive, Srq, Untaken, Work};

use crate::abi::*;
#[cfg(test)]
use crate::double::clock::Instant;
use crate::gid;
use crate::port::{Local, Port, mtu_bytes};
use crate::shared::DomainState;
use core::ffi::c_uint;
use core::time::Duration;
#[cfg(not(test))]
use std::time::Instant;
use tieline_plugin_api::{Failure, Status};

/// What a connected queue pair must know of its peer.
pub(crate) struct Remote<'a> {
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) port: &'a Port,
    /// Reads and atomics that its device answers at once.
    pub(crate) reads: u8,
}

impl Qp {
    /// RESET to INIT, for a connection.
    pub(crate) fn initialise(&self, local: &Local) -> Result<(), Failure> {
        let attr = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            pkey_index: local.partition_index,
            port_num: local.number,
            qp_access_flags: IBV_ACCESS_REMOTE_READ
                | IBV_ACCESS_REMOTE_WRITE
                | IBV_ACCESS_REMOTE_ATOMIC,
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        self.modify(attr, mask, "preparing a queue pair")
    }

    /// INIT to RTS, connected to a peer's queue pair; the first packet has the number `psn`.
    pub(crate) fn connect(
        &self,
        domain: &DomainState,
        psn: u32,
        peer: &Remote<'_>,
    ) -> Result<(), Failure> {
        let settings = &domain.settings;
        let mtu = domain.port.mtu.min(peer.port.mtu);
        let receive = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: c_uint::from(mtu),
            dest_qp_num: peer.qpn,
            rq_psn: peer.psn,
            max_dest_rd_atomic: domain.reads_served,
            min_rnr_timer: settings.rnr_timer,
            ah_attr: domain.route(peer.port),
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        let what = format!(
            "connecting to queue pair {} at {} with an MTU of {}",
            peer.qpn,
            gid::words(&peer.port.gid),
            mtu_bytes(mtu)
        );
        self.modify(receive, mask, &what)?;
        let send = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            timeout: settings.ack_timeout,
            retry_cnt: settings.retry_count,
            // Without end: a receiver that lives and does not poll is waited for.
            rnr_retry: 7,
            sq_psn: psn,
            max_rd_atomic: domain.reads_asked.min(peer.reads).max(1),
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_STATE
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(send, mask, "starting a queue pair")
    }

    /// RESET to RTS, for datagrams to this queue key.
    pub(crate) fn start_datagrams(&self, local: &Local, qkey: u32) -> Result<(), Failure> {
        let init = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            pkey_index: local.partition_index,
            port_num: local.number,
            qkey,
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
        self.modify(init, mask, "preparing a datagram queue pair")?;
        let ready = ibv_qp_attr { qp_state: IBV_QPS_RTR, ..ibv_qp_attr::default() };
        self.modify(ready, IBV_QP_STATE, "opening a datagram queue pair")?;
        let send = ibv_qp_attr { qp_state: IBV_QPS_RTS, ..ibv_qp_attr::default() };
        self.modify(send, IBV_QP_STATE | IBV_QP_SQ_PSN, "starting a datagram queue pair")
    }

    /// SQE to RTS, after a datagram that could not be sent.
    #[cold]
    pub(crate) fn resume_datagrams(&self) {
        let send = ibv_qp_attr { qp_state: IBV_QPS_RTS, ..ibv_qp_attr::default() };
        // In every other state the device refuses, which is right as well.
        let _ = self.modify(send, IBV_QP_STATE, "restarting a datagram queue pair");
    }

    /// Any state to ERR: the device gives back what was posted.
    pub(crate) fn to_error(&self) -> Result<(), Failure> {
        let error = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..ibv_qp_attr::default() };
        self.modify(error, IBV_QP_STATE, "ending a queue pair")
    }

    /// Any state to RESET: the device is done with everything that was posted.
    pub(crate) fn reset(&self) -> Result<(), Failure> {
        let reset = ibv_qp_attr { qp_state: IBV_QPS_RESET, ..ibv_qp_attr::default() };
        self.modify(reset, IBV_QP_STATE, "resetting a queue pair")
    }
}

/// What a completion with an error means: for the operation itself, and for the connection.
pub(crate) fn completion_error(
    wc: &ibv_wc,
    domain: &DomainState,
    peer: Option<(u32, &Port)>,
) -> (Status, Failure) {
    let port = domain.name.words();
    let peer = peer.map_or_else(String::new, |(qpn, port)| {
        format!(" (queue pair {qpn} at {})", gid::words(&port.gid))
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
                domain.settings.retry_time()
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

/// What an asynchronous event of a queue pair means for its connection.
pub(crate) fn event_error(kind: c_uint) -> Failure {
    let (status, text) = match kind {
        IBV_EVENT_QP_ACCESS_ERR => (
            Status::KeyRejected,
            "the peer used a remote key that this process's device refused, which ended the connection",
        ),
        IBV_EVENT_QP_REQ_ERR => (Status::Io, "the peer sent what this process's device refused"),
        _ => (Status::Io, "the device reported that the connection's queue pair failed"),
    };
    Failure::new(status, text)
}

/// How long a device has to give back what was posted to a queue pair in ERR, and to say that it has taken its last receive:
/// most need microseconds, and some never say it (soft RoCE of older kernels). Which receives it has taken and not given back
/// nobody else knows: a shared queue is one for all, and devices take from it in an order of their own.
pub(crate) const DRAIN_TIME: Duration = Duration::from_secs(1);
/// How long a queue pair whose connection broke is kept before it is destroyed, at least.
const KEPT_FOR: Duration = Duration::from_secs(1);
/// So many may be there when another queue pair is made. While the port is down all are kept, and beyond that none is made
/// until it is up; otherwise the oldest make room, or peers that come and go again and again would use up the device.
const KEPT: usize = 64;

/// A queue pair that is out of use and still there.
struct Ending {
    qp: Qp,
    since: Instant,
    /// Its connection broke, perhaps because its link did, or the link is down. To destroy one takes soft RoCE most of a
    /// minute while a packet of it lies in the driver of a link that is down, which is heard a little later.
    broke: bool,
    /// Its connection waits for the device to give back sends of it.
    waits: bool,
    /// It takes no receive any more: so many completions are to be read until those of it surely are among them.
    unread: Option<usize>,
}

/// What has to be done behind queue pairs that are out of use.
#[derive(Default)]
pub(crate) struct Cleanup {
    endings: Vec<Ending>,
    /// Places in the completion queue that completions of those may still take that were not waited for.
    stale: usize,
    /// Numbers of queue pairs that have let go of all receives since somebody asked.
    gone: Vec<u32>,
}

impl Cleanup {
    /// Destroys a queue pair that shares no receives, of which this many completions may still come.
    pub(crate) fn destroy(&mut self, qp: Option<Qp>, completions: usize) {
        self.stale += completions;
        drop(qp);
    }

    /// Destroys a queue pair that is in ERR when its receives are accounted for, or one that never had any (`unread` is 0).
    /// While `waits`, its connection waits for sends of it.
    pub(crate) fn drain(&mut self, qp: Qp, broke: bool, waits: bool, unread: Option<usize>) {
        if !broke && unread == Some(0) {
            return self.destroyed(qp);
        }
        self.endings.push(Ending { qp, since: Instant::now(), broke, waits, unread });
    }

    /// A connection waits for no send of its queue pair any more.
    pub(crate) fn given_back(&mut self, qpn: u32) {
        for ending in self.endings.iter_mut().filter(|ending| ending.qp.number() == qpn) {
            ending.waits = false;
        }
    }

    /// A queue pair has taken its last receive, while `most` completions at most are unread. Of one that broke before it came
    /// here that may have been said already: it is kept as long as one of which it is never said.
    pub(crate) fn last_receive(&mut self, qp: Option<u32>, most: usize) {
        for ending in self.endings.iter_mut().filter(|ending| qp == Some(ending.qp.number())) {
            let _ = ending.unread.get_or_insert(most);
        }
    }

    /// Whether it matters what is read of completions: not 0.
    #[inline(always)]
    pub(crate) fn waits(&self) -> usize {
        self.endings.len() | self.stale
    }

    /// So many completions were read; `all`: there were no more.
    #[inline]
    pub(crate) fn fetched(&mut self, count: usize, all: bool) {
        if all {
            self.stale = 0;
        }
        for unread in self.endings.iter_mut().filter_map(|ending| ending.unread.as_mut()) {
            *unread = if all { 0 } else { unread.saturating_sub(count) };
        }
    }

    /// The device is not waited for any more: it lets go at once of what was posted, of which so many completions may still
    /// come.
    pub(crate) fn reset(&mut self, qpn: u32, completions: usize) {
        self.stale += completions;
        let Some(at) = self.endings.iter().position(|ending| ending.qp.number() == qpn) else {
            return;
        };
        match self.endings[at].qp.reset() {
            Ok(()) => {
                self.endings[at].unread = Some(0);
                self.gone.push(qpn);
            }
            Err(_) => {
                let ending = self.endings.swap_remove(at);
                self.destroyed(ending.qp);
            }
        }
    }

    /// The oldest first.
    fn destroy_those(&mut self, mut which: impl FnMut(&mut Ending) -> bool) {
        let mut at = 0;
        while let Some(ending) = self.endings.get_mut(at) {
            if which(ending) {
                let ending = self.endings.remove(at);
                self.destroyed(ending.qp);
            } else {
                at += 1;
            }
        }
    }

    /// Destroys one. Where the device does not let go of it, what was posted to it stays with it.
    fn destroyed(&mut self, qp: Qp) {
        let qpn = qp.number();
        if qp.destroy().is_ok() {
            self.gone.push(qpn);
        }
    }

    /// Those that have let go of all their receives since the last call.
    pub(crate) fn gone(&mut self) -> Vec<u32> {
        core::mem::take(&mut self.gone)
    }

    /// Destroys those that are through, or had time enough.
    pub(crate) fn destroy_drained(&mut self, now: Instant, port_down: bool, most: usize) {
        let through = |ending: &mut Ending| {
            let age = now.duration_since(ending.since);
            if age >= DRAIN_TIME {
                let _ = ending.unread.get_or_insert(most);
            }
            let kept = port_down || ending.broke && age < KEPT_FOR;
            ending.unread == Some(0) && !ending.waits && !kept
        };
        self.destroy_those(through);
    }

    /// Destroys some before their time, so that another one can be made: all, or as many as it takes to be no longer full, the
    /// oldest first. The device has had a moment for most; what it would have said later of receives that they took is lost.
    /// Those whose link may be lost stay, since to destroy one could take so long, and those whose connection waits.
    pub(crate) fn make_room(&mut self, all: bool) {
        let keep = if all { 0 } else { KEPT - 1 };
        let mut more = self.endings.len().saturating_sub(keep);
        let goes = |ending: &mut Ending| {
            let goes = more > 0 && !ending.broke && !ending.waits;
            more -= usize::from(goes);
            goes
        };
        self.destroy_those(goes);
    }

    /// Whether no more can be kept.
    pub(crate) fn is_full(&self) -> bool {
        self.endings.len() >= KEPT
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.endings.is_empty()
    }

    /// Places in the completion queue that are taken by what is out of use.
    pub(crate) fn stale(&self) -> usize {
        self.stale
    }
}
