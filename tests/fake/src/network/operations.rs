//! Memory operations and flushes: accepted, carried out when they are due, and reported as completed.

use super::{Parcel, State};
use crate::calls::{Act, Verdict};
use crate::sys::Piece;
use tieline_plugin_api::{Posted, Posting, Status, caps, event, op_flags};

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// A put, and the word that notifies the target.
    Put {
        from: Vec<Piece>,
        bytes: Vec<u8>,
        word: Option<u32>,
    },
    Get {
        to: Vec<Piece>,
    },
    Atomic {
        op: u32,
        operand: u64,
        compare: u64,
    },
    /// A gathered message, which was already sent; only its memory is still in use.
    Message {
        from: Vec<Piece>,
        bytes: Vec<u8>,
    },
    /// The puts or gets of a list with their targets, and their local pieces.
    List {
        put: bool,
        parts: Vec<(Kind, (u64, u64, usize))>,
        pieces: Vec<Piece>,
    },
    Flush,
}

impl Kind {
    pub(crate) fn list(put: bool, parts: Vec<(Kind, (u64, u64, usize))>) -> Kind {
        let local = |(kind, _): &(Kind, (u64, u64, usize))| match kind {
            Kind::Put { from: pieces, .. } | Kind::Get { to: pieces } => pieces.clone(),
            _ => Vec::new(),
        };
        let pieces = parts.iter().flat_map(local).collect();
        Kind::List { put, parts, pieces }
    }
}

/// A memory operation, a gathered message, or a flush.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) kind: Kind,
    pub(crate) cookie: u64,
    pub(crate) target: (u64, u64, usize),
    pub(crate) flags: u64,
    /// The number of the operation on its endpoint.
    number: u64,
    epoch: u64,
    due: u64,
    held: bool,
    fails: Option<Status>,
    /// The result at the target, and the tick at which its report is due.
    ended: Option<(Result<u64, Status>, u64)>,
    /// The index of the first part that failed, if this is a list.
    pub(crate) failed_part: u32,
    /// Whether the local completion was reported.
    told: bool,
    /// Whether the completion was reported as `OutcomeUnknown`: the memory may be accessed until the endpoint is closed.
    unknown: bool,
}

pub(crate) struct FlushAll {
    cookie: u64,
    held: bool,
    fails: Option<Status>,
    /// The operations that the flush waits for, each as an endpoint and a number on this endpoint.
    before: Vec<(usize, u64)>,
}

impl Op {
    pub(crate) fn new(kind: Kind, cookie: u64, target: (u64, u64, usize), flags: u64) -> Op {
        let (number, epoch, due, held, told) = (0, 0, 0, false, false);
        let (fails, ended, failed_part, unknown) = (None, None, 0, false);
        Op {
            kind,
            cookie,
            target,
            flags,
            number,
            epoch,
            due,
            held,
            fails,
            ended,
            failed_part,
            told,
            unknown,
        }
    }

    /// Checks whether the operation completes when its bytes have been read, because the application requested local completion.
    fn ends_locally(&self) -> bool {
        matches!(self.kind, Kind::Put { .. }) && self.flags & op_flags::REMOTE_COMPLETION == 0
    }

    /// Checks whether this is a put whose source buffer is free when the call returns.
    fn is_short(&self, most: usize) -> bool {
        let more = self.flags & op_flags::MORE != 0;
        match &self.kind {
            Kind::Put { from, bytes, word: None } if !more => {
                from.len() == 1 && (1..=most).contains(&bytes.len())
            }
            _ => false,
        }
    }

    pub(super) fn pieces(&self) -> &[Piece] {
        match &self.kind {
            Kind::Put { .. } if self.told => &[],
            Kind::Put { from, .. } | Kind::Message { from, .. } => from,
            Kind::Get { to } => to,
            Kind::List { pieces, .. } => pieces,
            Kind::Atomic { .. } | Kind::Flush => &[],
        }
    }
}

impl State {
    /// Accepts an operation. `result` receives the value of an atomic that completes inline.
    pub(crate) fn post(
        &mut self,
        endpoint: usize,
        mut op: Op,
        verdict: Verdict,
        result: &mut u64,
    ) -> Posted {
        self.connected(endpoint)?;
        let lane = self.lane_of(endpoint);
        let (caps, delay, at_once) = (lane.caps, lane.delay, lane.at_once);
        let taken = op.is_short(lane.max_short_put);
        let flush = matches!(op.kind, Kind::Flush);
        op.epoch = self.endpoints[endpoint].epoch;
        self.endpoints[endpoint].taken += 1;
        op.number = self.endpoints[endpoint].taken;
        if let (true, Kind::Put { from, .. }) = (taken, &mut op.kind) {
            from.clear();
        }
        match verdict {
            Verdict::Act(Act::Hold) => op.held = true,
            Verdict::Act(Act::FailLater(status)) => op.fails = Some(status),
            Verdict::Act(Act::Lie) => return Ok(Posting::Done),
            _ => {
                let free = match flush {
                    true => {
                        self.endpoints[endpoint].ops.iter().all(|earlier| earlier.ended.is_some())
                    }
                    false => self.may_run(endpoint, &op, self.endpoints[endpoint].ops.len()),
                };
                let now = caps & caps::SYNCHRONOUS != 0
                    || verdict == Verdict::Act(Act::AtOnce)
                    || self.chance.per_mille_chance(at_once);
                // The parts of a list may fail one by one, which only a completion can report.
                if now && free && !matches!(op.kind, Kind::List { .. }) {
                    *result = self.carry_out(endpoint, &op)?;
                    return Ok(Posting::Done);
                }
            }
        }
        op.due = self.soon(delay);
        op.told = taken && op.ends_locally();
        let posting = if op.told { Posting::Done } else { Posting::Pending };
        self.endpoints[endpoint].ops.push(op);
        Ok(posting)
    }

    pub(crate) fn flush_all(&mut self, interface: usize, cookie: u64, verdict: Verdict) -> Posted {
        let under_way = |(at, endpoint): (usize, &super::Endpoint)| {
            let ops: Vec<(usize, u64)> = match endpoint.interface == interface && endpoint.open {
                true => endpoint.ops.iter().map(|op| (at, op.number)).collect(),
                false => Vec::new(),
            };
            ops
        };
        let before = self.endpoints.iter().enumerate().flat_map(under_way).collect();
        let held = verdict == Verdict::Act(Act::Hold);
        let fails = match verdict {
            Verdict::Act(Act::FailLater(status)) => Some(status),
            _ => None,
        };
        self.interfaces[interface].flushes.push(FlushAll { cookie, held, fails, before });
        Ok(Posting::Pending)
    }

    fn flushed_all(&mut self, interface: usize) -> Option<(u64, Result<u64, Status>)> {
        let ends = |flush: &FlushAll| {
            let goes_on = |&(at, number): &(usize, u64)| {
                let endpoint = &self.endpoints[at];
                let lives = endpoint.open && endpoint.failed.is_none();
                lives && endpoint.ops.iter().any(|op| op.number == number && op.ended.is_none())
            };
            !flush.held && !flush.before.iter().any(goes_on)
        };
        let at = self.interfaces[interface].flushes.iter().position(ends)?;
        let flush = self.interfaces[interface].flushes.remove(at);
        let of_it = self.endpoints.iter_mut().filter(|e| e.open && e.interface == interface);
        let late = of_it.filter_map(|endpoint| endpoint.late.drain(..).next()).last();
        let late = late.map(|(_, status)| status);
        Some((flush.cookie, flush.fails.or(late).map_or(Ok(0), Err)))
    }

    /// Cancels an operation that has not been carried out. A gathered message that was already sent is not canceled.
    pub(crate) fn cancel(&mut self, endpoint: usize, cookie: u64) -> Result<(), Status> {
        self.usable(endpoint)?;
        let told_at = self.soon(self.lane_of(endpoint).report);
        let ops = &mut self.endpoints[endpoint].ops;
        let op = ops.iter_mut().find(|op| op.cookie == cookie && !op.told && !op.unknown);
        let op = op.ok_or(Status::Invalid)?;
        let begun = matches!(op.kind, Kind::Message { .. }) && op.fails.is_none();
        if op.ended.is_none() && !begun {
            op.ended = Some((Err(Status::Canceled), told_at));
        }
        Ok(())
    }

    /// Checks whether a flush has nothing to wait for and no failure to report.
    pub(crate) fn nothing_to_flush(&self, endpoint: usize) -> bool {
        let endpoint = &self.endpoints[endpoint];
        endpoint.ops.is_empty() && endpoint.late.is_empty() && endpoint.failed.is_none()
    }

    pub(crate) fn fence(&mut self, endpoint: usize) -> Result<(), Status> {
        self.connected(endpoint)?;
        self.endpoints[endpoint].epoch += 1;
        Ok(())
    }

    /// Checks whether all operations before the operation's fence have been carried out and, for a put with notification, all
    /// earlier puts.
    fn may_run(&self, endpoint: usize, op: &Op, earlier: usize) -> bool {
        let ops = &self.endpoints[endpoint].ops;
        let tells = matches!(op.kind, Kind::Put { word: Some(_), .. });
        let put =
            |earlier: &Op| matches!(earlier.kind, Kind::Put { .. } | Kind::List { put: true, .. });
        ops.iter().all(|earlier| earlier.epoch >= op.epoch || earlier.ended.is_some())
            && (!tells || ops[..earlier].iter().all(|op| !put(op) || op.ended.is_some()))
    }

    fn carry_out(&mut self, endpoint: usize, op: &Op) -> Result<u64, Status> {
        if matches!(op.kind, Kind::Flush) {
            let late = std::mem::take(&mut self.endpoints[endpoint].late);
            let (told, left) = late.into_iter().partition(|(number, _)| *number < op.number);
            self.endpoints[endpoint].late = left;
            let told: Vec<(u64, Status)> = told;
            return told.first().map_or(Ok(0), |(_, status)| Err(*status));
        }
        if let Kind::Message { from, bytes } = &op.kind {
            let now: Vec<u8> = from.iter().flat_map(|piece| piece.read()).collect();
            if now != *bytes {
                self.fault("bytes of a message changed before it had ended");
            }
            return Ok(0);
        }
        let lane = self.interfaces[self.endpoints[endpoint].interface].lane;
        let (region, offset, len) = op.target;
        let memory = self.memory.get(&region).filter(|memory| memory.lane == lane);
        let memory = memory.ok_or(Status::KeyRejected)?;
        let needed = match op.kind {
            Kind::Put { .. } => tieline_plugin_api::access::REMOTE_WRITE,
            Kind::Get { .. } => tieline_plugin_api::access::REMOTE_READ,
            _ => tieline_plugin_api::access::REMOTE_ATOMIC,
        };
        if memory.access & needed == 0 {
            return Err(Status::KeyRejected);
        }
        let target = memory.piece.part(offset, len)?;
        match &op.kind {
            Kind::Put { from, bytes, word } => {
                // The source buffer of a short put is already free.
                if !op.told && !from.is_empty() {
                    let now: Vec<u8> = from.iter().flat_map(|piece| piece.read()).collect();
                    if now != *bytes {
                        self.fault("bytes of a put changed before it had ended");
                    }
                }
                target.write(bytes);
                if let Some(word) = word {
                    self.notify(endpoint, *word);
                }
                Ok(0)
            }
            Kind::Get { to } => {
                let bytes = target.read();
                let mut at = 0;
                for piece in to {
                    piece.write(&bytes[at..at + piece.len()]);
                    at += piece.len();
                }
                Ok(0)
            }
            Kind::Atomic { op: which, operand, compare } => {
                let before = target.atomic(*which, *operand, *compare)?;
                Ok(if op.flags & op_flags::FETCH != 0 { before } else { 0 })
            }
            Kind::Message { .. } | Kind::List { .. } | Kind::Flush => Ok(0),
        }
    }

    /// Carries out the parts of a list up to the first one that fails. An operation that is to fail does so at any of its parts.
    fn carry_out_list(&mut self, endpoint: usize, list: &Op) -> (Result<u64, Status>, u32) {
        let Kind::List { parts, .. } = &list.kind else { return (Ok(0), 0) };
        let most = self.chance.below(parts.len() as u64) as usize;
        for (index, (kind, target)) in parts.iter().enumerate() {
            if let Some(status) = list.fails.filter(|_| index == most) {
                return (Err(status), index as u32);
            }
            let part = Op::new(kind.clone(), list.cookie, *target, list.flags);
            if let Err(status) = self.carry_out(endpoint, &part) {
                return (Err(status), index as u32);
            }
        }
        (Ok(0), 0)
    }

    /// Delivers the notification of a put. The notification is not ordered with messages, but follows earlier notifications.
    fn notify(&mut self, endpoint: usize, word: u32) {
        self.send(endpoint, event::NOTIFIED, 0, u64::from(word), &[]);
        let message = |parcel: &Parcel| parcel.kind == event::MESSAGE;
        let wire = &self.endpoints[endpoint].wire;
        let told = wire.len() - 1;
        let overtakes = wire.iter().take(told).rev().take_while(|parcel| message(parcel)).count();
        let steps = self.chance.below(overtakes as u64 + 1) as usize;
        let wire = &mut self.endpoints[endpoint].wire;
        (told - steps..told).rev().for_each(|at| wire.swap(at, at + 1));
    }

    pub(crate) fn release_held(&mut self) {
        for op in self.endpoints.iter_mut().flat_map(|endpoint| &mut endpoint.ops) {
            op.held = false;
        }
        for flush in self.interfaces.iter_mut().flat_map(|interface| &mut interface.flushes) {
            flush.held = false;
        }
    }

    /// Advances time by one poll: carries out the operations that are due, in any order that fences and flushes allow.
    pub(super) fn step(&mut self, polled: usize) {
        self.tick += 1;
        loop {
            let mut ready: Vec<(usize, usize)> = Vec::new();
            for (at, endpoint) in self.endpoints.iter().enumerate().filter(|(_, e)| e.open) {
                let lane = &self.lanes[self.interfaces[endpoint.interface].lane];
                if lane.caps & caps::PASSIVE_TARGET == 0 && endpoint.to != polled {
                    continue;
                }
                for (place, op) in endpoint.ops.iter().enumerate() {
                    let earlier = &endpoint.ops[..place];
                    let free = match op.kind {
                        Kind::Flush => earlier.iter().all(|earlier| earlier.ended.is_some()),
                        _ => self.may_run(at, op, place),
                    };
                    if op.ended.is_none() && !op.held && op.due <= self.tick && free {
                        ready.push((at, place));
                    }
                }
            }
            if ready.is_empty() {
                return;
            }
            let (at, place) = ready[self.chance.below(ready.len() as u64) as usize];
            let op = self.endpoints[at].ops[place].clone();
            let (result, failed_part) = match (&op.kind, op.fails) {
                (Kind::List { .. }, _) => self.carry_out_list(at, &op),
                (_, Some(status)) => (Err(status), 0),
                (_, None) => (self.carry_out(at, &op), 0),
            };
            self.endpoints[at].ops[place].failed_part = failed_part;
            // If the local completion was already reported, the next flush reports the failure.
            let status = result.err().filter(|status| op.told || *status != Status::OutcomeUnknown);
            if let Some(status) = status.filter(|_| op.ends_locally()) {
                self.endpoints[at].late.push((op.number, status));
            }
            let told_at = self.soon(self.lane_of(at).report);
            self.endpoints[at].ops[place].ended = Some((result, told_at));
        }
    }

    /// Returns the cookie, the result and the failed part of an operation whose completion is due.
    pub(super) fn completion(
        &mut self,
        interface: usize,
    ) -> Option<(u64, Result<u64, Status>, u32)> {
        if let Some((cookie, result)) = self.flushed_all(interface) {
            return Some((cookie, result, 0));
        }
        let tick = self.tick;
        for at in 0..self.endpoints.len() {
            let endpoint = &mut self.endpoints[at];
            // A flush waits for earlier operations whose completion was not reported.
            let first = (0..endpoint.ops.len()).find(|&place| {
                let op = &endpoint.ops[place];
                let ended = op.ended.is_some_and(|(_, told_at)| op.told || told_at <= tick);
                !op.unknown && ended
                    || (op.ended.is_none()
                        && op.ends_locally()
                        && !op.told
                        && !op.held
                        && op.due <= tick)
            });
            let (true, Some(place)) =
                (endpoint.interface == interface && endpoint.failed.is_none(), first)
            else {
                continue;
            };
            let op = &mut endpoint.ops[place];
            match op.ended {
                Some((result @ Err(Status::OutcomeUnknown), _)) if !op.told => {
                    op.unknown = true;
                    return Some((op.cookie, result, op.failed_part));
                }
                Some((result, _)) => {
                    let op = endpoint.ops.remove(place);
                    if !op.told && (!op.ends_locally() || result == Err(Status::Canceled)) {
                        return Some((op.cookie, result, op.failed_part));
                    }
                    if !op.told {
                        return Some((op.cookie, Ok(0), 0));
                    }
                    return self.completion(interface);
                }
                None => {
                    op.told = true;
                    // The bytes were copied: the operation is carried out later, from the copy.
                    op.due = tick + 1 + self.lanes[self.interfaces[interface].lane].delay;
                    return Some((op.cookie, Ok(0), 0));
                }
            }
        }
        None
    }
}
