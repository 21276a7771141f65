//! Puts and gets. A put is complete when its bytes are visible at the target, as `FI_DELIVERY_COMPLETE` requires.

use crate::abi::buffer::Buffer;
use crate::atomics::{AtomicCall, Code};
use crate::endpoint::{Ep, REMOTE_WRITES, id};
use crate::keys::{Found, Known};
use crate::ops::{End, Kind, Op, Work};
use crate::peers::Reached;
use crate::queue::Entry;
use crate::regions::Regions;
use crate::status::Failed;
use std::cell::Cell;
use std::rc::Rc;
use tieline::{Endpoint, Message, Outcome, PostError};
use tieline_libfabric_abi::*;

/// The length up to which a put of several pieces copies its bytes. A longer one uses its buffers until its completion.
const COPIED: usize = 8192;

/// The length of a notice: whether it has data, the length of the put, and the number of its key.
const NOTICE: usize = 24;

/// A masked swap of which a step is posted. Later atomics to the peer wait for its end.
#[derive(Debug)]
pub(crate) struct Swapping(Rc<Cell<usize>>);

impl Swapping {
    fn new(swaps: &Rc<Cell<usize>>) -> Swapping {
        swaps.set(swaps.get() + 1);
        Swapping(swaps.clone())
    }
}

impl Drop for Swapping {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A put, get or atomic.
#[derive(Debug)]
pub(crate) struct Rma {
    pub(crate) kind: Kind,
    pub(crate) to: u64,
    pub(crate) buf: Buffer,
    pub(crate) remote: u64,
    pub(crate) key: u64,
    pub(crate) flags: u64,
    /// Data for the target's completion queue.
    pub(crate) data: Option<u64>,
    pub(crate) atomic: Option<AtomicCall>,
    /// A copy of the bytes, if the application may reuse its buffer.
    pub(crate) copy: Option<Box<[u8]>>,
    /// The target wants a notice of the operation.
    pub(crate) is_noticed: bool,
    /// The key was refused once, and its owner was asked again.
    pub(crate) was_refused: bool,
    pub(crate) swapping: Option<Swapping>,
}

impl Rma {
    pub(crate) fn new(kind: Kind, to: u64, buf: Buffer, remote: u64, key: u64) -> Rma {
        Rma {
            kind,
            to,
            buf,
            remote,
            key,
            flags: 0,
            data: None,
            atomic: None,
            copy: None,
            is_noticed: false,
            was_refused: false,
            swapping: None,
        }
    }

    /// Checks whether the operation uses the memory of the application in place, without a registration.
    fn is_raw(&self) -> bool {
        let is_transfer = matches!(self.kind, Kind::Write | Kind::Read);
        is_transfer && self.flags & FI_INJECT == 0 && self.buf.is_one_piece()
    }

    fn needs_notice(&self) -> bool {
        self.data.is_some() || (self.is_noticed && self.kind != Kind::Read)
    }
}

/// The result of an attempt to post.
enum Started {
    Posted(Outcome, Regions),
    /// The peer or the key is not known yet.
    Later,
}

impl Ep {
    /// Posts a put, get or atomic.
    #[inline]
    pub(crate) fn transfer(&self, mut rma: Rma, end: End) -> Result<(), i32> {
        if self.tx.get().is_some_and(|cq| cq.is_full()) {
            return Err(FI_EAGAIN);
        }
        if rma.atomic.is_some() && self.atomic_waits(rma.to) {
            return self.transfer_later(rma, end);
        }
        match self.start_rma(&mut rma) {
            Ok(Started::Posted(outcome, regions)) => {
                self.started_rma(Op { regions, ..Op::new(end, Work::Nothing) }, rma, outcome);
                Ok(())
            }
            Ok(Started::Later) => self.transfer_later(rma, end),
            Err(failed) => {
                if failed.error == FI_EAGAIN {
                    self.progress();
                }
                Err(failed.error)
            }
        }
    }

    #[cold]
    fn transfer_later(&self, mut rma: Rma, end: End) -> Result<(), i32> {
        if rma.flags & FI_INJECT != 0 && rma.copy.is_none() {
            rma.copy = Some(rma.buf.copy());
        }
        self.keep(Op::new(end, Work::Rma(Box::new(rma))));
        Ok(())
    }

    /// Checks whether an atomic to this peer waits, so that a further one must not overtake it.
    #[inline]
    fn atomic_waits(&self, to: u64) -> bool {
        if self.is_swapping(to) {
            return true;
        }
        let again = self.again.borrow();
        if again.is_empty() {
            return false;
        }
        let ops = self.ops.borrow();
        again.iter().any(|index| match ops.get(*index).map(|op| &op.work) {
            Some(Work::Rma(rma)) => rma.to == to && rma.atomic.is_some(),
            _ => false,
        })
    }

    /// Checks whether a masked swap on this peer is between its steps.
    #[inline]
    fn is_swapping(&self, to: u64) -> bool {
        self.peers.borrow().get(to as usize).is_some_and(|peer| peer.swaps.get() > 0)
    }

    /// Completes or tracks a put, get or atomic that was accepted.
    #[inline]
    fn started_rma(&self, mut op: Op, mut rma: Rma, outcome: Outcome) {
        match outcome {
            Outcome::Done(value) if op.regions.is_empty() && !rma.needs_notice() => {
                if let Some(atomic) = &rma.atomic {
                    atomic.give(value);
                }
                self.tell(op.end, op.failed);
            }
            Outcome::Done(value) => {
                if let Some(()) = self.rma_done(&mut op, Box::new(rma), value) {
                    self.close_op(op);
                }
            }
            pending => {
                if let Some(atomic) = &rma.atomic {
                    let peers = self.peers.borrow();
                    let peer = &peers[rma.to as usize];
                    peer.atomics.set(peer.atomics.get() + 1);
                    if atomic.code == Code::MaskedSwap && rma.swapping.is_none() {
                        rma.swapping = Some(Swapping::new(&peer.swaps));
                    }
                }
                op.work = Work::Rma(Box::new(rma));
                self.track(&pending, op);
            }
        }
    }

    /// Handles the end of a posted put, get or atomic. `None`: the operation continues.
    pub(crate) fn rma_ended(
        &self,
        op: &mut Op,
        mut rma: Box<Rma>,
        result: Result<(), Failed>,
        value: u64,
    ) -> Option<()> {
        if rma.atomic.is_some() {
            let peers = self.peers.borrow();
            if let Some(peer) = peers.get(rma.to as usize) {
                peer.atomics.set(peer.atomics.get().saturating_sub(1));
            }
        }
        match result {
            Ok(()) if rma.atomic.as_mut().is_some_and(|atomic| !atomic.advance(value)) => {
                self.post_again(op, rma);
                None
            }
            Ok(()) => self.rma_done(op, rma, value),
            Err(failed) if failed.may_have_old_key() && !rma.was_refused => {
                rma.was_refused = true;
                self.forget_key(rma.to, rma.key);
                self.post_again(op, rma);
                None
            }
            Err(failed) => {
                op.failed = op.failed.or(Some(failed));
                Some(())
            }
        }
    }

    /// Keeps an operation that is posted again, or whose next step is.
    fn post_again(&self, op: &mut Op, rma: Box<Rma>) {
        let ended = Op::new(op.end.clone(), Work::Nothing);
        let again = std::mem::replace(op, ended);
        self.keep(Op { work: Work::Rma(rma), ..again });
    }

    /// Gives the value of an atomic, and sends the notice if the target wants one. `None`: the notice is not accepted yet.
    fn rma_done(&self, op: &mut Op, rma: Box<Rma>, value: u64) -> Option<()> {
        if let Some(atomic) = &rma.atomic {
            atomic.give(value);
        }
        if !rma.needs_notice() {
            return Some(());
        }
        let taken = std::mem::replace(op, Op::new(op.end.clone(), Work::Nothing));
        self.send_notice(taken, rma);
        None
    }

    /// Tells the target of a complete put.
    pub(crate) fn send_notice(&self, mut op: Op, rma: Box<Rma>) {
        let mut notice = [0; NOTICE];
        notice[0] = u8::from(rma.data.is_some());
        notice[8..16].copy_from_slice(&(op.end.len as u64).to_le_bytes());
        notice[16..].copy_from_slice(&rma.key.to_le_bytes());
        // A notice without data only counts. If its target has ended, the put has succeeded all the same.
        let only_counts = rma.data.is_none();
        let peers = self.peers.borrow();
        let endpoint = peers.get(rma.to as usize).and_then(|peer| peer.endpoint());
        let sent = match endpoint {
            Some(endpoint) => endpoint
                .send(id::WRITTEN, rma.data.unwrap_or(0), &notice)
                .map_err(|error| (matches!(error, PostError::Retry(_)), Failed::from(error))),
            None => Err((false, Failed::PEER)),
        };
        drop(peers);
        match sent {
            Ok(Outcome::Done(_)) => self.close_op(op),
            Ok(outcome) => {
                op.work = if only_counts { Work::Counted } else { Work::Nothing };
                self.track(&outcome, op);
            }
            Err((true, _)) => {
                op.work = Work::Notice(rma);
                self.keep(op);
            }
            Err((false, failed)) => {
                op.failed = (!only_counts).then_some(failed);
                self.close_op(op);
            }
        }
    }

    /// Handles the notice of a peer's put.
    pub(crate) fn written(&self, message: &Message<'_>) {
        let payload = message.payload();
        if payload.len() != NOTICE {
            return;
        }
        let word = |at: usize| payload[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        if let Some(counter) = self.counter(REMOTE_WRITES) {
            counter.count(false);
        }
        let memory = self.domain.memory.borrow().get(&word(16)).cloned();
        if let Some(counter) = memory.as_ref().and_then(|memory| memory.counter.get()) {
            counter.count(false);
        }
        if payload[0] == 0 {
            return;
        }
        if let Some(queue) = self.rx.get() {
            queue.push(Entry {
                len: word(8) as usize,
                data: message.header(),
                source: self.address_of(self.source_of(message.peer())),
                ..Entry::new(0, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA)
            });
        }
    }

    /// Tries an operation again that waited. `blocked` lists the peers whose earlier atomics wait.
    pub(crate) fn retry_rma(&self, mut op: Op, mut rma: Box<Rma>, blocked: &mut Vec<u64>) {
        let is_atomic = rma.atomic.is_some();
        // A masked swap that has begun precedes all atomics that wait.
        let is_free = !is_atomic || rma.swapping.is_some();
        let waits = !is_free && (blocked.contains(&rma.to) || self.is_swapping(rma.to));
        let started = if waits { Ok(Started::Later) } else { self.start_rma(&mut rma) };
        match started {
            Ok(Started::Posted(outcome, regions)) => {
                op.regions.append(regions);
                self.started_rma(op, *rma, outcome);
            }
            Ok(Started::Later) | Err(Failed { error: FI_EAGAIN, .. }) => {
                if is_atomic {
                    blocked.push(rma.to);
                }
                op.work = Work::Rma(rma);
                self.keep(op);
            }
            Err(failed) => {
                op.failed = Some(failed);
                self.close_op(op);
            }
        }
    }

    fn forget_key(&self, to: u64, key: u64) {
        if let Some(peer) = self.peers.borrow().get(to as usize) {
            peer.keys.borrow_mut().forget(key);
        }
    }

    /// Posts a put, get or atomic, if the peer and the key are known.
    #[inline]
    fn start_rma(&self, rma: &mut Rma) -> Result<Started, Failed> {
        let peers = self.peers.borrow();
        let ready = peers.get(rma.to as usize).and_then(|peer| Some((peer, peer.endpoint()?)));
        let Some((peer, endpoint)) = ready else {
            drop(peers);
            let _: Reached = self.reach(rma.to).map_err(Failed::new)?;
            return Ok(Started::Later);
        };
        let found = peer.keys.borrow_mut().find(rma.key);
        let known = match found {
            Found::Ready(known) => known,
            Found::Asked => {
                // A peer that has ended does not reply.
                return match endpoint.error() {
                    Some(error) => Err(Failed::from(error)),
                    None => Ok(Started::Later),
                };
            }
            Found::Refused => return Err(Failed::new(FI_EKEYREJECTED)),
            Found::Missing => {
                return match self.ask_key(rma.to, rma.key) {
                    Ok(()) | Err(PostError::Retry(_)) => Ok(Started::Later),
                    Err(error) => Err(Failed::from(error)),
                };
            }
        };
        rma.is_noticed = known.is_noticed;
        if rma.atomic.is_some() && peer.atomics.get() > 0 {
            endpoint.fence().map_err(Failed::from)?;
        }
        loop {
            return match self.post_rma(endpoint, rma, &known) {
                Ok((outcome, regions)) => {
                    if let (Some(atomic), Outcome::Done(value)) = (&mut rma.atomic, &outcome) {
                        if !atomic.advance(*value) {
                            continue;
                        }
                    }
                    Ok(Started::Posted(outcome, regions))
                }
                Err(failed) if failed.may_have_old_key() && !rma.was_refused => {
                    rma.was_refused = true;
                    peer.keys.borrow_mut().forget(rma.key);
                    Ok(Started::Later)
                }
                Err(failed) => Err(failed),
            };
        }
    }

    #[inline]
    fn post_rma(
        &self,
        endpoint: &Endpoint,
        rma: &Rma,
        known: &Rc<Known>,
    ) -> Result<(Outcome, Regions), Failed> {
        let offset = rma.remote.checked_sub(known.base).ok_or(Failed::OUTSIDE)?;
        if let Some(atomic) = &rma.atomic {
            return Ok((atomic.post(endpoint, &known.key, offset)?, Regions::default()));
        }
        let (len, key, is_put) = (rma.buf.len(), &known.key, rma.kind == Kind::Write);
        if len == 0 {
            return Ok((Outcome::Done(0), Regions::default()));
        }
        if rma.is_raw() {
            let outcome = match is_put {
                true => rma.buf.put(endpoint, key, offset)?,
                false => rma.buf.get(endpoint, key, offset)?,
            };
            return Ok((outcome, Regions::default()));
        }
        if is_put && (len <= COPIED || rma.flags & FI_INJECT != 0) {
            let bytes = rma.copy.as_deref().or_else(|| rma.buf.as_slice());
            let outcome = match bytes {
                Some(bytes) => endpoint.put_bytes(bytes, key, offset)?,
                None => endpoint.put_bytes(&rma.buf.copy(), key, offset)?,
            };
            return Ok((outcome, Regions::default()));
        }
        let regions = rma.buf.lend(&self.domain.context, len)?;
        let outcome = regions.with_pieces(|pieces| match is_put {
            true => endpoint.put_pieces(pieces, key, offset),
            false => endpoint.get_pieces(pieces, key, offset),
        })?;
        Ok((outcome, regions))
    }

    /// Handles an operation with an unknown outcome. A device or the peer may still access the memory that the operation uses in
    /// place, until the endpoint is closed. So the endpoint is closed before the operation is reported.
    pub(crate) fn outcome_unknown(&self, index: u32, failed: Failed) {
        let to = match self.ops.borrow().get(index).map(|op| &op.work) {
            Some(Work::Rma(rma)) if rma.is_raw() => rma.to,
            _ => return,
        };
        // Several addresses may lead to the endpoint.
        let mut peers = self.peers.borrow_mut();
        let source = peers.get(to as usize).and_then(|peer| peer.source);
        let mut closed = Vec::new();
        for (address, peer) in peers.iter_mut().enumerate() {
            if address as u64 == to || (source.is_some() && peer.source == source) {
                closed.push((address as u64, peer.close(failed)));
            }
        }
        drop(peers);
        for (address, endpoint) in closed {
            drop(endpoint);
            self.send_waiting(address);
        }
    }
}
