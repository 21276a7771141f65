//! One connection: its connection manager id, its queue pair, and its pending and outstanding frames.

use super::abi::*;
use super::credits::{Credits, Weight};
use super::frame::{self, Kind, Reader};
use super::sys::Id;
use super::{COMPLETIONS, DEPTH, WINDOW};
use crate::abi::*;
use crate::buffers::Pool;
use crate::config::Settings;
use crate::queue_pair::{Cleanup, Qp, QpShape, Receive, Work};
use crate::sys::{Cq, Pd};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use tieline_net::{Acceptor, Dialler};
use tieline_plugin_api::{Failure, Status};

/// The state of a connection.
pub(super) enum Phase {
    /// An outgoing connection. First the address of one route is resolved, then the route; then the other side receives the
    /// request. After its answer both sides authenticate.
    Dialling { dial: u64, dialler: Dialler, answered: bool },
    /// An incoming connection whose peer has not yet proven that it belongs to the job.
    Accepting(Acceptor),
    /// The connection is in use.
    Up,
    /// The connection closes as soon as the other side has received everything, or at the deadline.
    Finishing,
}

/// A connection.
pub(super) struct Wire {
    pub(super) id: Id,
    pub(super) phase: Phase,
    /// The time at which an unproven incoming peer was last heard.
    pub(super) silent_since: Option<Instant>,
    /// The time limit of a connection that is not in use.
    pub(super) deadline: Option<Instant>,
    /// The time at which the device last acknowledged a send, or got a send while none was outstanding.
    pub(super) progress: Instant,
    /// Whether the sender waits for an [`LinkEvent::Room`](tieline_net::datagrams::LinkEvent::Room).
    pub(super) full: bool,
    pub(super) credits: Credits,
    pub(super) reader: Reader,
    qp: Option<Qp>,
    pending: VecDeque<(Kind, Vec<u8>)>,
    /// The buffers that the device holds: receives, then sends.
    posted: Vec<u32>,
    outstanding: Vec<u32>,
}

/// Returns the id of a work request: its connection, buffer and direction.
fn number(wire: u64, buffer: u32, is_send: bool) -> u64 {
    wire << 33 | u64::from(buffer) << 1 | u64::from(is_send)
}

/// Decodes the id of [`number`].
pub(super) fn about(number: u64) -> (u64, u32, bool) {
    (number >> 33, (number >> 1) as u32, number & 1 == 1)
}

impl Wire {
    pub(super) fn new(id: Id, phase: Phase, deadline: Instant) -> Wire {
        let silent_since = matches!(phase, Phase::Accepting(_)).then(Instant::now);
        Wire {
            id,
            phase,
            silent_since,
            deadline: Some(deadline),
            progress: Instant::now(),
            full: false,
            credits: Credits::default(),
            reader: Reader::default(),
            qp: None,
            pending: VecDeque::new(),
            posted: Vec::new(),
            outstanding: Vec::new(),
        }
    }

    /// Makes the queue pair, which can receive from then on.
    pub(super) fn prepare(
        &mut self,
        wire: u64,
        pd: &Arc<Pd>,
        cq: &Cq,
        receives: &mut Pool,
    ) -> Result<u32, Failure> {
        let shape = QpShape {
            kind: IBV_QPT_RC,
            cq,
            srq: None,
            send_depth: DEPTH,
            receive_depth: usize::from(WINDOW),
            sges: 1,
            inline: 0,
        };
        let qp = Qp::new(pd, &shape)?;
        let (attr, mask) = self.id.qp_attributes(IBV_QPS_INIT)?;
        qp.modify(attr, mask, "setting a queue pair up")?;
        let mut list = Vec::with_capacity(usize::from(WINDOW));
        for _ in 0..WINDOW {
            let buffer = receives.take()?;
            self.posted.push(buffer);
            list.push(Receive { id: number(wire, buffer, false), sge: receives.whole(buffer) });
        }
        qp.post_receives(&list)?;
        let number = qp.number();
        self.qp = Some(qp);
        Ok(number)
    }

    /// Connects the queue pair to that of the other side.
    pub(super) fn connect(&self, settings: &Settings) -> Result<(), Failure> {
        let qp = self.qp.as_ref().ok_or(Status::Invalid)?;
        let (mut attr, mask) = self.id.qp_attributes(IBV_QPS_RTR)?;
        attr.min_rnr_timer = settings.rnr_timer;
        qp.modify(attr, mask, "connecting a queue pair")?;
        let (mut attr, mask) = self.id.qp_attributes(IBV_QPS_RTS)?;
        attr.timeout = settings.ack_timeout;
        attr.retry_cnt = settings.retry_count;
        attr.rnr_retry = 7;
        qp.modify(attr, mask, "starting a queue pair")
    }

    /// Checks whether the connection is in use and has no pending frames.
    pub(super) fn has_room(&self) -> bool {
        matches!(self.phase, Phase::Up) && self.pending.is_empty()
    }

    /// Checks whether the other side has received everything.
    pub(super) fn is_quiet(&self) -> bool {
        self.pending.is_empty() && self.outstanding.is_empty()
    }

    /// Checks whether sends are outstanding.
    pub(super) fn has_outstanding(&self) -> bool {
        !self.outstanding.is_empty()
    }

    pub(super) fn put(&mut self, kind: Kind, payload: &[u8]) {
        self.pending.push_back((kind, payload.to_vec()));
    }

    /// Posts pending frames as far as credits and buffers allow. Returns `false` if frames or credits are still pending.
    pub(super) fn pump(&mut self, wire: u64, sends: &mut Pool) -> Result<bool, Failure> {
        while let Some((kind, _)) = self.pending.front() {
            let weight = match kind {
                Kind::Part | Kind::Datagram => Weight::Data,
                _ => Weight::Note,
            };
            if !self.credits.allows(weight) || self.outstanding.len() >= DEPTH - 1 {
                break;
            }
            let Ok(buffer) = sends.take() else { break };
            let Some((kind, payload)) = self.pending.pop_front() else { break };
            self.post(wire, sends, buffer, kind, &payload)?;
        }
        if self.credits.is_due()
            && self.credits.allows(Weight::Credits)
            && self.outstanding.len() < DEPTH
        {
            if let Ok(buffer) = sends.take() {
                self.post(wire, sends, buffer, Kind::Credits, b"")?;
            }
        }
        Ok(self.pending.is_empty() && !self.credits.is_due())
    }

    fn post(
        &mut self,
        wire: u64,
        sends: &mut Pool,
        buffer: u32,
        kind: Kind,
        payload: &[u8],
    ) -> Result<(), Failure> {
        let len = frame::write(sends.bytes_mut(buffer), kind, self.credits.send(), payload);
        if self.outstanding.is_empty() {
            self.progress = Instant::now();
        }
        self.outstanding.push(buffer);
        let qp = self.qp.as_ref().ok_or(Status::Invalid)?;
        let sge = [sends.sge(buffer, len)];
        let number = number(wire, buffer, true);
        qp.post(number, Work::Send { imm: 0 }, &sge, IBV_SEND_SIGNALED)
            .map_err(|errno| Failure::from_io("sending", &std::io::Error::from_raw_os_error(errno)))
    }

    /// Handles the completion of a send: the other side's device has received the frame.
    pub(super) fn sent(&mut self, buffer: u32, sends: &mut Pool) {
        if let Some(at) = self.outstanding.iter().position(|outstanding| *outstanding == buffer) {
            let _ = self.outstanding.swap_remove(at);
            sends.give(buffer);
            self.progress = Instant::now();
        }
    }

    /// Posts a receive buffer again.
    pub(super) fn post_again(
        &self,
        wire: u64,
        buffer: u32,
        receives: &Pool,
    ) -> Result<(), Failure> {
        let qp = self.qp.as_ref().ok_or(Status::Invalid)?;
        let id = number(wire, buffer, false);
        Ok(qp.post_receives(&[Receive { id, sge: receives.whole(buffer) }])?)
    }

    /// Closes the connection: disconnects the id, destroys the queue pair, and releases all buffers.
    pub(super) fn close(self, sends: &mut Pool, receives: &mut Pool, cleanup: &mut Cleanup) {
        self.id.disconnect();
        cleanup.destroy(self.qp, COMPLETIONS);
        self.outstanding.into_iter().for_each(|buffer| sends.give(buffer));
        self.posted.into_iter().for_each(|buffer| receives.give(buffer));
    }
}

/// Returns the status and text for a failed completion.
pub(super) fn trouble(status: u32) -> (Status, String) {
    match status {
        IBV_WC_RETRY_EXC_ERR => {
            (Status::PeerFailed, "the peer did not acknowledge what was sent".into())
        }
        IBV_WC_WR_FLUSH_ERR => (Status::Closed, "the queue pair was closed".into()),
        status => (Status::Io, format!("the device failed a request with status {status}")),
    }
}

/// Returns the status and text for a failed connection attempt.
pub(super) fn reason(kind: u32, status: i32) -> (Status, String) {
    // The codes come from the InfiniBand specification, table "REJ reason codes".
    const NO_SUCH_SERVICE: i32 = 8;
    const STALE: i32 = 10;
    const CONSUMER: i32 = 28;
    let os = || std::io::Error::from_raw_os_error(status.saturating_abs());
    match (kind, status) {
        (RDMA_CM_EVENT_REJECTED, NO_SUCH_SERVICE) => {
            let words = "nobody listens there any more: the peer closed, or its process ended";
            (Status::PeerFailed, words.into())
        }
        (RDMA_CM_EVENT_REJECTED, STALE) => {
            // The dial is retried: see `Wires::failed`.
            (Status::Busy, "the peer's host has not yet forgotten an earlier connection".into())
        }
        (RDMA_CM_EVENT_REJECTED, CONSUMER) => {
            (Status::Unreachable, "the peer's connector refused".into())
        }
        (RDMA_CM_EVENT_REJECTED, code) => {
            (Status::Unreachable, format!("the peer's host refused with reason {code}"))
        }
        (RDMA_CM_EVENT_ADDR_ERROR, _) => {
            (Status::Unreachable, format!("its address cannot be resolved: {}", os()))
        }
        (RDMA_CM_EVENT_ROUTE_ERROR, _) => {
            (Status::Unreachable, format!("there is no route: {}", os()))
        }
        (RDMA_CM_EVENT_UNREACHABLE, _) => {
            (Status::Unreachable, format!("its host does not answer: {}", os()))
        }
        (_, _) => (Status::Io, format!("connecting failed: {}", os())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_id_identifies_its_connection() {
        for (wire, buffer, is_send) in
            [(1, 0, true), (0x7fff_ffff, u32::MAX, false), (77, 12, true)]
        {
            assert_eq!(about(number(wire, buffer, is_send)), (wire, buffer, is_send));
        }
    }

    #[test]
    fn closing_connection_disconnects_and_releases_its_buffers() {
        use crate::cm::{BUFFER, double::sys::asked, sys::Channel};
        let domain = crate::double::domain(&[]).expect("it is played");
        let pool = || Pool::new(&domain.state.buffers, BUFFER, 2, 2);
        let (mut sends, mut receives) = (pool(), pool());
        let id = Id::new(&Channel::new().expect("it is played")).expect("it is played");
        let mut wire = Wire::new(id, Phase::Up, Instant::now());
        while let Ok(buffer) = sends.take() {
            wire.outstanding.push(buffer);
        }
        while let Ok(buffer) = receives.take() {
            wire.posted.push(buffer);
        }
        assert!(wire.has_outstanding() && !wire.is_quiet());
        let _ = asked();
        wire.close(&mut sends, &mut receives, &mut Cleanup::default());
        assert_eq!(asked(), ["disconnect"], "the other side hears of it");
        for pool in [&mut sends, &mut receives] {
            assert!(pool.take().is_ok() && pool.take().is_ok() && pool.take().is_err());
        }
    }

    #[test]
    fn failed_request_status_identifies_the_cause() {
        assert_eq!(trouble(IBV_WC_RETRY_EXC_ERR).0, Status::PeerFailed);
        assert_eq!(trouble(IBV_WC_WR_FLUSH_ERR).0, Status::Closed);
        let (status, words) = trouble(9);
        assert!(status == Status::Io && words.contains("status 9"), "{words}");
    }

    #[test]
    fn connect_errors_map_to_statuses() {
        let status = |kind, status| reason(kind, status).0;
        assert_eq!(status(RDMA_CM_EVENT_REJECTED, 8), Status::PeerFailed);
        assert_eq!(status(RDMA_CM_EVENT_REJECTED, 10), Status::Busy, "it is tried again");
        assert_eq!(status(RDMA_CM_EVENT_REJECTED, 28), Status::Unreachable);
        assert_eq!(status(RDMA_CM_EVENT_REJECTED, 99), Status::Unreachable);
        for kind in [RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ROUTE_ERROR, RDMA_CM_EVENT_UNREACHABLE]
        {
            assert_eq!(status(kind, -libc::ETIMEDOUT), Status::Unreachable);
        }
        assert_eq!(status(RDMA_CM_EVENT_CONNECT_ERROR, -libc::ENOMEM), Status::Io);
    }

    #[test]
    fn connect_errors_have_texts() {
        let words = |kind, status| reason(kind, status).1;
        assert!(words(RDMA_CM_EVENT_REJECTED, 8).contains("nobody listens"));
        assert!(words(RDMA_CM_EVENT_ADDR_ERROR, -libc::ETIMEDOUT).contains("timed out"));
        assert!(words(RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT).contains("does not answer"));
        assert!(words(RDMA_CM_EVENT_REJECTED, 99).contains("99"));
    }
}
