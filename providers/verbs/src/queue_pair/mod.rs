//! The life of a queue pair: its states, the meaning of its errors, and its teardown.
//!
//! The states are those of the specification: RESET after creation, INIT with a port, RTR ("ready to receive") with a known peer,
//! RTS ("ready to send") in use. The two sides of a connection enter RTS independently. An error moves a connection to ERR, in
//! which the device flushes everything that was posted. A failed send moves a datagram queue pair to SQE: in this state the queue
//! pair receives, cannot send, and can return to RTS. Connections of `rdmacm` go through the same states, with attributes from the
//! connection manager (`cm/wire.rs`).
//!
//! Teardown has three steps ([`Cleanup`]). First, in ERR, the device flushes the posted requests; with shared receives the device
//! also reports the last receive that the queue pair has taken. Second, the completion queue is read up to its fill level at that
//! point. Third, the queue pair is reset or destroyed. After that the device no longer accesses any posted memory. Unread
//! completions of the queue pair may have been removed from the completion queue (mlx5) or still be there (soft RoCE). In the
//! latter case they take queue entries until the queue has been read to its end.

mod sys;
#[cfg(test)]
mod tests;

pub(crate) use sys::{AddressHandle, Held, NotReceived, Qp, QpShape, Receive, Srq, Work};

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

/// The peer's part of a connected queue pair.
pub(crate) struct Remote<'a> {
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) port: &'a Port,
    /// The number of reads and atomics that the peer's device serves concurrently.
    pub(crate) reads: u8,
}

impl Qp {
    /// Moves the queue pair from RESET to INIT, for a connection.
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

    /// Moves the queue pair from INIT to RTS, connected to a peer's queue pair. `psn` is the number of the first packet.
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
            // 7 means no limit: a send to a live receiver that does not poll is retried indefinitely.
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

    /// Moves the queue pair from RESET to RTS, for datagrams with this queue key.
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

    /// Moves the queue pair from SQE to RTS, after a datagram that could not be sent.
    #[cold]
    pub(crate) fn resume_datagrams(&self) {
        let send = ibv_qp_attr { qp_state: IBV_QPS_RTS, ..ibv_qp_attr::default() };
        // In any state but SQE the device refuses the transition or changes nothing, which is harmless.
        let _ = self.modify(send, IBV_QP_STATE, "restarting a datagram queue pair");
    }

    /// Moves the queue pair from any state to ERR: the device flushes the posted requests.
    pub(crate) fn to_error(&self) -> Result<(), Failure> {
        let error = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..ibv_qp_attr::default() };
        self.modify(error, IBV_QP_STATE, "ending a queue pair")
    }

    /// Moves the queue pair from any state to RESET: the device is done with everything that was posted.
    pub(crate) fn reset(&self) -> Result<(), Failure> {
        let reset = ibv_qp_attr { qp_state: IBV_QPS_RESET, ..ibv_qp_attr::default() };
        self.modify(reset, IBV_QP_STATE, "resetting a queue pair")
    }
}

/// Returns the errors that a failed completion causes: one for the operation, one for the connection.
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
        // The peer is alive: one of its requests is the likely cause.
        IBV_WC_WR_FLUSH_ERR => both(
            Status::Io,
            format!(
                "{port} ended the connection to the peer{peer}: it refused a request of the peer, such as an access \
                 with the key of a deregistered region"
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

/// Returns the error that an asynchronous event of a queue pair causes for its connection.
pub(crate) fn event_error(kind: c_uint) -> Failure {
    let (status, text) = match kind {
        IBV_EVENT_QP_ACCESS_ERR => (
            Status::KeyRejected,
            "the peer used a remote key that this process's device refused, which ended the connection",
        ),
        IBV_EVENT_QP_REQ_ERR => {
            (Status::Io, "the peer sent a request that this process's device refused")
        }
        _ => (Status::Io, "the device reported that the connection's queue pair failed"),
    };
    Failure::new(status, text)
}

/// The time limit for the device to flush a queue pair in ERR and to report its last receive. Most devices need microseconds; soft
/// RoCE of older kernels never sends the report. Without the report, the receives that the device has taken are unknown: the shared
/// queue serves all queue pairs, and devices take receives in an order of their own.
pub(crate) const DRAIN_TIME: Duration = Duration::from_secs(1);
/// The minimum time for which a queue pair with a broken connection is kept before it is destroyed. The close of the interface and
/// a failed reset destroy the queue pair earlier.
const KEPT_FOR: Duration = Duration::from_secs(1);
/// The number of retired queue pairs from which on a new connection first destroys the oldest ones, because peers that reconnect
/// repeatedly would exhaust the device. While the port is down, all retired queue pairs are kept, and no connection is made beyond
/// this number.
const KEPT: usize = 64;

/// A retired queue pair that is not destroyed yet.
struct Ending {
    qp: Qp,
    since: Instant,
    /// Whether the connection of this queue pair broke, perhaps because the link went down. While a packet is in the driver of a
    /// link that is down, soft RoCE takes up to a minute to destroy the queue pair. The link event arrives slightly later.
    broke: bool,
    /// Whether the connection of this queue pair waits for the device to flush its sends.
    waits: bool,
    /// The number of completions to read until all completions of this queue pair have been read; `None` while the queue pair may
    /// take further receives.
    unread: Option<usize>,
}

/// Pending teardown work for retired queue pairs.
#[derive(Default)]
pub(crate) struct Cleanup {
    endings: Vec<Ending>,
    /// The number of completion queue entries that unread completions of already destroyed queue pairs may still take.
    stale: usize,
    /// The numbers of the queue pairs that have released all receives since the last query.
    gone: Vec<u32>,
}

impl Cleanup {
    /// Destroys a queue pair without shared receives. Up to `completions` of its completions may still arrive.
    pub(crate) fn destroy(&mut self, qp: Option<Qp>, completions: usize) {
        self.stale += completions;
        drop(qp);
    }

    /// Destroys a queue pair in ERR once all its receives have completed or been reported. `unread` is `Some(0)` if no receives of
    /// the queue pair are outstanding. `waits` states whether the connection still waits for sends.
    pub(crate) fn drain(&mut self, qp: Qp, broke: bool, waits: bool, unread: Option<usize>) {
        if !broke && unread == Some(0) {
            return self.destroyed(qp);
        }
        self.endings.push(Ending { qp, since: Instant::now(), broke, waits, unread });
    }

    /// Records that a connection no longer waits for sends of its queue pair.
    pub(crate) fn given_back(&mut self, qpn: u32) {
        for ending in self.endings.iter_mut().filter(|ending| ending.qp.number() == qpn) {
            ending.waits = false;
        }
    }

    /// Records that a queue pair has taken its last receive, while at most `most` completions are unread. If the connection broke
    /// first, the device may have sent this event before the queue pair was retired. Such a queue pair is kept like one whose event
    /// never comes.
    pub(crate) fn last_receive(&mut self, qp: Option<u32>, most: usize) {
        for ending in self.endings.iter_mut().filter(|ending| qp == Some(ending.qp.number())) {
            let _ = ending.unread.get_or_insert(most);
        }
    }

    /// Returns a nonzero number if the teardown needs the count of completions read.
    #[inline(always)]
    pub(crate) fn waits(&self) -> usize {
        self.endings.len() | self.stale
    }

    /// Records that `count` completions were read. `all` states whether the completion queue was then empty.
    #[inline]
    pub(crate) fn fetched(&mut self, count: usize, all: bool) {
        if all {
            self.stale = 0;
        }
        for unread in self.endings.iter_mut().filter_map(|ending| ending.unread.as_mut()) {
            *unread = if all { 0 } else { unread.saturating_sub(count) };
        }
    }

    /// Stops waiting for the device and resets the queue pair, or destroys it if the reset fails. Everything that was posted is
    /// thereby released. Up to `completions` of its completions may still arrive.
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

    /// Destroys the selected queue pairs, oldest first.
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

    /// Destroys one queue pair. If the device fails to destroy the queue pair, the posted buffers stay reserved.
    fn destroyed(&mut self, qp: Qp) {
        let qpn = qp.number();
        if qp.destroy().is_ok() {
            self.gone.push(qpn);
        }
    }

    /// Returns the queue pairs that have released all their receives since the last call.
    pub(crate) fn gone(&mut self) -> Vec<u32> {
        core::mem::take(&mut self.gone)
    }

    /// Destroys the drained queue pairs, unless the port is down, the connection broke less than `KEPT_FOR` ago, or the connection
    /// waits for sends. A queue pair that has reached the time limit without a report is drained after `most` more completions have
    /// been read.
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

    /// Destroys retired queue pairs early, oldest first, to make room for a new one: all of them, or enough to get below the
    /// limit. Reports about their receives that the device has not sent yet are lost. Queue pairs with a possibly lost link
    /// stay, because destroying them could take long. Queue pairs whose connection waits for sends stay, too.
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

    /// Checks whether the limit on retired queue pairs is reached.
    pub(crate) fn is_full(&self) -> bool {
        self.endings.len() >= KEPT
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.endings.is_empty()
    }

    /// Returns the number of completion queue entries that destroyed and reset queue pairs may still take.
    pub(crate) fn stale(&self) -> usize {
        self.stale
    }
}
