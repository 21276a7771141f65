//! The state of the device double: the interaction of queue pairs, keys and completions. Every thread has its own world, so
//! tests are independent.

pub(crate) use super::faults::Faults;
use super::nature::Nature;
use super::sys::{bytes_at, write_at};
use crate::abi::*;
use core::cell::RefCell;
use core::ffi::{c_int, c_uint};
use std::collections::{BTreeMap, VecDeque};

/// The state of a datagram queue pair after a failed send: the queue pair still receives.
pub(super) const IBV_QPS_SQE: c_uint = 5;

/// Counters of device operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) sends: usize,
    /// The number of calls that post sends.
    pub(crate) send_calls: usize,
    pub(crate) signalled: usize,
    pub(crate) inline: usize,
    /// The number of sends that wait for earlier reads and atomics.
    pub(crate) fenced: usize,
    pub(crate) receives: usize,
    /// The number of calls that post receives.
    pub(crate) receive_calls: usize,
    pub(crate) registrations: usize,
    /// The number of polls of completion queues, and of requests for a notification.
    pub(crate) looks: usize,
    pub(crate) asks: usize,
    /// The number of requested address handles.
    pub(crate) handles: usize,
}

pub(super) struct Area {
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) rights: c_uint,
    /// Whether the registration is memory of another device, which the processor must not access.
    pub(super) foreign: bool,
}

pub(super) struct Send {
    pub(super) id: u64,
    pub(super) opcode: c_uint,
    pub(super) flags: c_uint,
    pub(super) imm: u32,
    pub(super) pieces: Vec<ibv_sge>,
    /// The payload of an inline send.
    pub(super) copied: Option<Vec<u8>>,
    /// The address and key, or the queue pair of a datagram.
    pub(super) target: (u64, u32),
    pub(super) operands: (u64, u64),
}

pub(super) struct Pair {
    pub(super) object: *mut ibv_qp,
    /// The address of the open device's context.
    pub(super) context: usize,
    pub(super) datagrams: bool,
    pub(super) peer: u32,
    /// The send queue depth, and the maximum number of inline bytes.
    pub(super) depth: usize,
    pub(super) inline: u32,
    /// The maximum number of pieces of a request.
    pub(super) pieces: usize,
    pub(super) attr: ibv_qp_attr,
    pub(super) waiting: VecDeque<Send>,
    /// The source of the queue pair's receives, and the queue pair's completion queue: the addresses of the objects.
    pub(super) receives: usize,
    pub(super) cq: usize,
    /// The receives that the queue pair had prefetched when it entered ERR, and has not flushed.
    pub(super) taken: Vec<u64>,
    /// Whether the queue pair has not reported its last receive yet.
    pub(super) owes_last: bool,
}

#[derive(Default)]
pub(super) struct World {
    pub(super) nature: Nature,
    pub(super) faults: Faults,
    pub(super) counts: Counts,
    pub(super) next: u32,
    pub(super) pairs: BTreeMap<u32, Pair>,
    pub(super) memory: BTreeMap<u32, Area>,
    pub(super) receives: BTreeMap<usize, VecDeque<(u64, ibv_sge)>>,
    /// The capacity of each receive queue.
    pub(super) depths: BTreeMap<usize, usize>,
    pub(super) done: BTreeMap<usize, VecDeque<ibv_wc>>,
    /// The capacity of each completion queue. A completion beyond the capacity is lost, and the queue fails.
    pub(super) room: BTreeMap<usize, usize>,
    /// The number of notifications pending in a completion channel, and of notifications read but not acknowledged.
    pub(super) wakes: u32,
    pub(super) taken: i64,
    /// The pending asynchronous events per open device, by the address of its context.
    pub(super) async_events: BTreeMap<usize, VecDeque<(c_uint, usize)>>,
    /// The device events reported to the host.
    pub(super) reported: Vec<(u32, String)>,
    /// The lines in the host's log.
    pub(super) logged: Vec<String>,
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::default();
}

pub(super) fn world<R>(act: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with_borrow_mut(act)
}

/// Changes the faults and continues pending work.
pub(crate) fn fault(change: impl FnOnce(&mut Faults)) {
    world(|world| {
        change(&mut world.faults);
        world.run();
    });
}

/// Returns the remaining value of `chatter`.
pub(crate) fn chatter() -> u32 {
    world(|world| world.faults.chatter)
}

pub(crate) fn counts() -> Counts {
    world(|world| world.counts)
}

/// Returns the rights of all live registrations.
pub(crate) fn rights() -> Vec<c_uint> {
    world(|world| world.memory.values().map(|area| area.rights).collect())
}

/// Returns the number of live registrations.
pub(crate) fn registrations() -> usize {
    world(|world| world.memory.len())
}

/// Returns the total number of registered bytes.
pub(crate) fn locked() -> usize {
    world(|world| world.memory.values().map(|area| area.len as usize).sum())
}

/// Returns the device events reported to the host, with the domain's name.
pub(crate) fn reported() -> Vec<(u32, String)> {
    world(|world| world.reported.clone())
}

/// Returns the lines of the host's log since the last call.
pub(crate) fn logged() -> Vec<String> {
    world(|world| std::mem::take(&mut world.logged))
}

/// Raises an event (`IBV_EVENT_*`) of the device about itself or about port 1.
pub(crate) fn announce(kind: c_uint) {
    announce_of(1, kind);
}

/// Raises an event of the device about a port.
pub(crate) fn announce_of(port: usize, kind: c_uint) {
    let said = |world: &mut World| {
        world.async_events.values_mut().for_each(|events| events.push_back((kind, port)));
    };
    world(said);
}

/// Fails a queue of this queue pair, as after an overrun: its completion queue, its source of receives, or the queue pair itself.
pub(crate) fn queue_fails(qpn: u32, kind: c_uint) {
    world(|world| {
        let pair = &world.pairs[&qpn];
        let element = match kind {
            IBV_EVENT_CQ_ERR => pair.cq,
            IBV_EVENT_SRQ_ERR => pair.receives,
            _ => pair.object.expose_provenance(),
        };
        if let Some(async_events) = world.async_events.get_mut(&pair.context) {
            async_events.push_back((kind, element));
        }
    });
}

/// Moves this queue pair to ERR without an event.
pub(crate) fn errs(qpn: u32) {
    world(|world| world.enter_error(qpn, None));
}

/// Sets the number of notifications pending for the next reader of a completion channel.
pub(crate) fn wake(times: u32) {
    world(|world| world.wakes = times);
}

/// Returns the number of notifications that were not read, and the number read but not acknowledged. A driver does not destroy a
/// completion queue before all are acknowledged.
pub(crate) fn wakes() -> (u32, i64) {
    world(|world| (world.wakes, world.taken))
}

/// Returns the current attributes of a queue pair, by its number.
pub(crate) fn attributes(qpn: u32) -> ibv_qp_attr {
    world(|world| world.pairs[&qpn].attr)
}

/// Returns the number of unread completions of a queue pair.
pub(crate) fn unread(qpn: u32) -> usize {
    world(|world| world.done.values().flatten().filter(|wc| wc.qp_num == qpn).count())
}

/// Returns the number of posted receives in all queues.
pub(crate) fn receives() -> usize {
    world(|world| world.receives.values().map(VecDeque::len).sum())
}

/// Returns the number of completion queues, and of receive queues.
pub(crate) fn queues() -> (usize, usize) {
    world(|world| (world.room.len(), world.depths.len()))
}

/// Returns the numbers of all queue pairs.
pub(crate) fn pairs() -> Vec<u32> {
    world(|world| world.pairs.keys().copied().collect())
}

enum Outcome {
    Done,
    Wait,
    Failed(c_uint),
}

impl World {
    pub(super) fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Checks whether the processor may access the range.
    pub(super) fn touchable(&self, address: u64, len: u32) -> bool {
        let end = address + u64::from(len);
        let mut foreign = self.memory.values().filter(|area| area.foreign);
        !foreign.any(|area| address < area.start + area.len && area.start < end)
    }

    /// Returns the error number for posting a receive to this queue, or 0.
    pub(super) fn refuses_receive(&mut self, queue: usize) -> c_int {
        let named = self.faults.refuse_receives_of.and_then(|(qpn, _)| self.pairs.get(&qpn));
        if let (Some(pair), Some((_, left))) = (named, &mut self.faults.refuse_receives_of) {
            if pair.receives == queue {
                match left.checked_sub(1) {
                    Some(less) => *left = less,
                    None => return libc::EINVAL,
                }
            }
        }
        let posted = self.receives.get(&queue).map_or(0, VecDeque::len);
        let full = self.depths.get(&queue).is_some_and(|depth| posted >= *depth);
        if self.faults.refuse_receives == 0 && full {
            libc::ENOMEM
        } else {
            self.faults.refuse_receives
        }
    }

    fn admits(&self, key: u32, address: u64, len: u64, right: c_uint) -> bool {
        self.memory.get(&key).is_some_and(|area| {
            let end = area.start + area.len;
            area.rights & right == right && address >= area.start && address + len <= end
        })
    }

    /// Returns the payload of a send; `None` if a piece is not registered.
    fn gather(&self, send: &Send) -> Option<Vec<u8>> {
        if let Some(copied) = &send.copied {
            return Some(copied.clone());
        }
        let mut all = Vec::new();
        for piece in &send.pieces {
            if !self.admits(piece.lkey, piece.addr, u64::from(piece.length), 0) {
                return None;
            }
            all.extend_from_slice(bytes_at(piece.addr, piece.length));
        }
        Some(all)
    }

    /// Writes bytes into the pieces of a send. Returns `false` if a piece is not writable.
    fn scatter(&self, send: &Send, mut bytes: &[u8]) -> bool {
        for piece in &send.pieces {
            if !self.admits(piece.lkey, piece.addr, u64::from(piece.length), IBV_ACCESS_LOCAL_WRITE)
            {
                return false;
            }
            let (here, rest) = bytes.split_at(bytes.len().min(piece.length as usize));
            write_at(piece.addr, here);
            bytes = rest;
        }
        true
    }

    /// Completes one more receive without a payload on this completion queue.
    pub(super) fn chatter(&mut self, cq: usize) {
        if self.faults.chatter == 0 {
            return;
        }
        let pair = self.pairs.iter().find(|(_, pair)| pair.cq == cq);
        let Some((&qpn, queue)) = pair.map(|(qpn, pair)| (qpn, pair.receives)) else { return };
        let Some((id, _)) = self.receives.get_mut(&queue).and_then(VecDeque::pop_front) else {
            return;
        };
        self.faults.chatter -= 1;
        self.complete(qpn, cq, ibv_wc { wr_id: id, ..ibv_wc::default() });
    }

    fn complete(&mut self, qpn: u32, cq: usize, wc: ibv_wc) {
        let wc = ibv_wc { qp_num: qpn, ..wc };
        let done = self.done.entry(cq).or_default();
        if self.room.get(&cq).is_none_or(|room| done.len() < *room) {
            return done.push_back(wc);
        }
        if let Some(events) =
            self.pairs.get(&qpn).and_then(|p| self.async_events.get_mut(&p.context))
        {
            events.push_back((IBV_EVENT_CQ_ERR, cq));
        }
    }

    pub(super) fn run(&mut self) {
        let has_work = |pair: &Pair| !pair.waiting.is_empty() || pair.attr.qp_state == IBV_QPS_ERR;
        let with_work = self.pairs.iter().filter(|(_, pair)| has_work(pair));
        let numbers: Vec<u32> = with_work.map(|(qpn, _)| *qpn).collect();
        let mut moved = true;
        while moved {
            moved = false;
            for &qpn in &numbers {
                while self.step(qpn) {
                    moved = true;
                }
            }
        }
        numbers.into_iter().for_each(|qpn| self.give_receives_back(qpn));
    }

    /// Flushes the shared receives that a queue pair in ERR has prefetched, or all receives of its own queue, and reports the last
    /// one.
    fn give_receives_back(&mut self, qpn: u32) {
        let waits = self.faults.hung || self.faults.late > 0;
        let Some(pair) = self.pairs.get_mut(&qpn) else { return };
        if pair.attr.qp_state != IBV_QPS_ERR || pair.datagrams || waits {
            return;
        }
        let (cq, context, object) = (pair.cq, pair.context, pair.object);
        let mut back = core::mem::take(&mut pair.taken);
        let last = core::mem::take(&mut pair.owes_last);
        if pair.receives == object.addr() {
            let own = self.receives.remove(&object.addr()).unwrap_or_default();
            back.extend(own.into_iter().map(|(id, _)| id));
        }
        for wr_id in back {
            let status = IBV_WC_WR_FLUSH_ERR;
            self.complete(qpn, cq, ibv_wc { wr_id, status, ..ibv_wc::default() });
        }
        if let Some(async_events) = self.async_events.get_mut(&context) {
            let element = object.expose_provenance();
            async_events.extend(last.then_some((IBV_EVENT_QP_LAST_WQE_REACHED, element)));
        }
    }

    /// Executes the oldest send of a queue pair. Returns whether the send has ended.
    fn step(&mut self, qpn: u32) -> bool {
        let Some(pair) = self.pairs.get_mut(&qpn) else { return false };
        let (cq, state) = (pair.cq, pair.attr.qp_state);
        let Some(send) = pair.waiting.pop_front() else { return false };
        let outcome = match state {
            IBV_QPS_ERR if self.faults.hung || self.faults.late > 0 => Outcome::Wait,
            IBV_QPS_ERR | IBV_QPS_SQE => Outcome::Failed(IBV_WC_WR_FLUSH_ERR),
            _ if self.faults.stuck => Outcome::Wait,
            _ => self.execute(qpn, &send),
        };
        let status = match outcome {
            Outcome::Wait => {
                if let Some(pair) = self.pairs.get_mut(&qpn) {
                    pair.waiting.push_front(send);
                }
                return false;
            }
            Outcome::Done => IBV_WC_SUCCESS,
            Outcome::Failed(status) => status,
        };
        if status != IBV_WC_SUCCESS || send.flags & IBV_SEND_SIGNALED != 0 {
            self.complete(qpn, cq, ibv_wc { wr_id: send.id, status, ..ibv_wc::default() });
        }
        match self.pairs.get_mut(&qpn) {
            Some(pair) if status != IBV_WC_SUCCESS && pair.datagrams => {
                pair.attr.qp_state = IBV_QPS_SQE;
            }
            _ if status != IBV_WC_SUCCESS => self.enter_error(qpn, None),
            _ => {}
        }
        true
    }

    /// Returns the peer of a connected queue pair.
    fn other(&self, qpn: u32) -> Option<u32> {
        let peer = self.pairs.get(&qpn)?.peer;
        let there = self.pairs.get(&peer)?;
        let ready = matches!(there.attr.qp_state, IBV_QPS_RTR | IBV_QPS_RTS);
        (ready && there.peer == qpn).then_some(peer)
    }

    fn execute(&mut self, qpn: u32, send: &Send) -> Outcome {
        if let Some((left, status)) = self.faults.fails_after {
            self.faults.fails_after = left.checked_sub(1).map(|left| (left, status));
            if left == 0 {
                return Outcome::Failed(status);
            }
        }
        if self.pairs[&qpn].datagrams {
            return self.datagram(qpn, send);
        }
        let peer = match self.other(qpn) {
            Some(peer) if !self.faults.cut => peer,
            _ => return Outcome::Failed(IBV_WC_RETRY_EXC_ERR),
        };
        let (address, rkey) = send.target;
        match send.opcode {
            IBV_WR_SEND_WITH_IMM => {
                let Some(payload) = self.gather(send) else {
                    return Outcome::Failed(IBV_WC_LOC_PROT_ERR);
                };
                let arrived = self.with_imm(send, 0);
                self.arrive(peer, qpn, &payload, arrived)
            }
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => {
                let Some(payload) = self.gather(send) else {
                    return Outcome::Failed(IBV_WC_LOC_PROT_ERR);
                };
                let len = payload.len() as u64;
                if len > 0 && !self.admits(rkey, address, len, IBV_ACCESS_REMOTE_WRITE) {
                    return self.refused(peer);
                }
                if send.opcode == IBV_WR_RDMA_WRITE {
                    write_at(address, &payload);
                    return Outcome::Done;
                }
                // The write consumes a receive, and the receive's buffer stays untouched.
                let opcode = IBV_WC_RECV_RDMA_WITH_IMM;
                let arrived = self.with_imm(send, opcode);
                let arrived = self.arrive(peer, qpn, &[], arrived);
                if matches!(arrived, Outcome::Done) {
                    write_at(address, &payload);
                }
                arrived
            }
            IBV_WR_RDMA_READ => {
                let len: u32 = send.pieces.iter().map(|piece| piece.length).sum();
                if !self.admits(rkey, address, u64::from(len), IBV_ACCESS_REMOTE_READ) {
                    return self.refused(peer);
                }
                self.answer(send, bytes_at(address, len))
            }
            IBV_WR_ATOMIC_FETCH_AND_ADD | IBV_WR_ATOMIC_CMP_AND_SWP => {
                if !self.admits(rkey, address, 8, IBV_ACCESS_REMOTE_ATOMIC) {
                    return self.refused(peer);
                }
                let mut word = [0; 8];
                word.copy_from_slice(bytes_at(address, 8));
                let old = u64::from_ne_bytes(word);
                let (first, second) = send.operands;
                let new = match send.opcode {
                    IBV_WR_ATOMIC_FETCH_AND_ADD => old.wrapping_add(first),
                    _ if old == first => second,
                    _ => old,
                };
                write_at(address, &new.to_ne_bytes());
                self.answer(send, &word)
            }
            _ => Outcome::Failed(IBV_WC_LOC_QP_OP_ERR),
        }
    }

    fn answer(&self, send: &Send, bytes: &[u8]) -> Outcome {
        match self.scatter(send, bytes) {
            true => Outcome::Done,
            false => Outcome::Failed(IBV_WC_LOC_PROT_ERR),
        }
    }

    /// Handles a rejected key, which also fails the target's queue pair.
    fn refused(&mut self, peer: u32) -> Outcome {
        self.enter_error(peer, Some(IBV_EVENT_QP_ACCESS_ERR));
        Outcome::Failed(IBV_WC_REM_ACCESS_ERR)
    }

    /// Moves a queue pair from any state to ERR, with an optional event. The queue pair has prefetched some shared receives.
    pub(super) fn enter_error(&mut self, qpn: u32, why: Option<c_uint>) {
        let Some(pair) = self.pairs.get_mut(&qpn) else { return };
        let element = pair.object.expose_provenance();
        let first = core::mem::replace(&mut pair.attr.qp_state, IBV_QPS_ERR) != IBV_QPS_ERR;
        let shares = first && pair.receives != pair.object.addr();
        pair.owes_last |= shares && self.nature.says_last && !self.faults.mute;
        let ahead = if shares { self.nature.ahead } else { 0 };
        if let Some(queue) = self.receives.get_mut(&pair.receives) {
            pair.taken.extend(queue.drain(..ahead.min(queue.len())).map(|(id, _)| id));
        }
        if let Some(async_events) = self.async_events.get_mut(&pair.context) {
            async_events.extend(why.map(|kind| (kind, element)));
        }
        self.give_receives_back(qpn);
    }

    /// Removes the state of a queue pair that is reset or destroyed. Its prefetched and unflushed receives are lost, and so are
    /// those in its own queue. Most drivers also discard its unread completions.
    pub(super) fn purge(&mut self, qpn: u32) {
        let Some(pair) = self.pairs.get_mut(&qpn) else { return };
        pair.waiting.clear();
        pair.taken.clear();
        pair.owes_last = false;
        let own = pair.object.addr();
        let _ = self.receives.remove(&own);
        if let (true, Some(done)) = (self.nature.purges, self.done.get_mut(&pair.cq)) {
            done.retain(|wc| wc.qp_num != qpn);
        }
    }

    /// Consumes a receive of a queue pair and completes it with the fields of `wc`.
    fn arrive(&mut self, at: u32, from: u32, payload: &[u8], wc: ibv_wc) -> Outcome {
        let pair = &self.pairs[&at];
        let (cq, queue) = (pair.cq, pair.receives);
        let Some((id, piece)) = self.receives.get_mut(&queue).and_then(VecDeque::pop_front) else {
            // The receiver is not ready: the send is retried indefinitely.
            return Outcome::Wait;
        };
        let fits = payload.len() <= piece.length as usize
            && self.admits(piece.lkey, piece.addr, payload.len() as u64, IBV_ACCESS_LOCAL_WRITE);
        if !fits {
            return Outcome::Failed(IBV_WC_REM_INV_REQ_ERR);
        }
        write_at(piece.addr, payload);
        let byte_len = payload.len() as u32;
        self.complete(at, cq, ibv_wc { wr_id: id, byte_len, src_qp: from, ..wc });
        Outcome::Done
    }

    /// Delivers a datagram, which is lost if the receiver has no posted receive or the network is cut.
    fn datagram(&mut self, qpn: u32, send: &Send) -> Outcome {
        let Some(payload) = self.gather(send) else { return Outcome::Failed(IBV_WC_LOC_PROT_ERR) };
        if self.faults.no_link {
            return Outcome::Failed(IBV_WC_LOC_QP_OP_ERR);
        }
        let peer = send.target.1;
        let there = self.pairs.get(&peer).is_some_and(|pair| pair.datagrams);
        if there && !self.faults.cut {
            let payload = [&[0; 40], payload.as_slice()].concat();
            let _ = self.arrive(peer, qpn, &payload, ibv_wc::default());
        }
        Outcome::Done
    }

    /// Returns the completion fields of a receive for a send with an immediate value.
    fn with_imm(&self, send: &Send, opcode: c_uint) -> ibv_wc {
        let wc_flags = if self.faults.no_number { 0 } else { IBV_WC_WITH_IMM };
        ibv_wc { imm_data: send.imm, wc_flags, opcode, ..ibv_wc::default() }
    }
}
