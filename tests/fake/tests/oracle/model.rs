//! The oracle, which defines the meaning of the guarantees. The oracle records the posted and ended operations, and derives the
//! possible contents of the target's memory at any moment.
//!
//! * `Done` of a put with remote completion, of an atomic and of a get: the operation has been carried out.
//! * `Done` of a put with local completion: only the put's bytes were read.
//! * A successful flush: every operation posted on that endpoint before the flush has been carried out.
//! * A notification: its put and every put posted earlier on that endpoint have been carried out. A notification arrives once, and
//!   always if the put succeeded.
//! * A notification with bytes: the operations that it follows have been carried out, and none of them has failed or was cancelled.
//! * A fence: operations posted before it are carried out before operations posted after it.
//! * A cancelled operation: no part of it has been carried out.
//! * An operation that failed, or whose endpoint was dropped or broke: the operation is carried out at most once.

use crate::program::{CELL, CELLS, FIRST_CELL, WORDS};
use std::collections::BTreeSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A put that fills the first `len` bytes of a cell with the operation's number.
    Put { cell: usize, len: usize, local: bool, tells: bool },
    /// A get that reads the first `len` bytes of a cell.
    Get { cell: usize, len: usize },
    /// An atomic that sets a bit of its own in a word.
    Atomic { word: usize, bit: u64, fetch: bool },
}

#[derive(Clone, Debug)]
struct Op {
    kind: Kind,
    end: usize,
    epoch: u64,
    posted: u64,
    ended: bool,
    /// The moment after which the operation is known to have been carried out.
    complete: Option<u64>,
    /// Whether it is unknown that the operation has been, or will be, carried out.
    unknown: bool,
    /// Whether the operation may fail or end as cancelled, and its result is not known.
    doubtful: bool,
    /// Whether a later operation that was carried out implies that this operation was carried out.
    implied: bool,
    /// Whether the provider returned `Again`: the effect of the operation must never be visible.
    refused: bool,
    /// Whether the operation succeeded, so that its notification has to arrive. On a broken end the arrival is uncertain.
    owes: bool,
    told: bool,
    /// Whether a notification has arrived that is sent only if the operation succeeds.
    vouched: bool,
    failed: bool,
}

impl Op {
    fn is_unsure(&self) -> bool {
        self.unknown || self.doubtful
    }
}

#[derive(Default)]
pub(crate) struct Model {
    ops: Vec<Op>,
    clock: u64,
    epochs: Vec<u64>,
    bits: [u32; WORDS],
    doubted: BTreeSet<usize>,
    /// Whether operations without a value have to return 0.
    values: bool,
}

impl Model {
    pub(crate) fn new(values: bool) -> Model {
        Model { values, ..Model::default() }
    }

    pub(crate) fn open_end(&mut self) -> usize {
        self.epochs.push(0);
        self.epochs.len() - 1
    }

    pub(crate) fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Returns a bit that no other operation on that word uses. Only every other bit is used, so that a double addition is visible.
    pub(crate) fn bit(&mut self, word: usize) -> Option<u64> {
        let most = if word % 2 == 0 { 31 } else { 15 };
        let next = self.bits[word];
        self.bits[word] += u32::from(next < most);
        (next < most).then(|| 1 << (2 * next))
    }

    /// Returns the number of operations so far: a put writes its own number as a byte.
    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }

    pub(crate) fn post(&mut self, end: usize, kind: Kind) -> usize {
        let posted = self.now();
        let epoch = self.epochs[end];
        self.ops.push(Op {
            kind,
            end,
            epoch,
            posted,
            ended: false,
            complete: None,
            unknown: false,
            doubtful: self.doubted.contains(&end),
            implied: false,
            refused: false,
            owes: false,
            told: false,
            vouched: false,
            failed: false,
        });
        self.ops.len() - 1
    }

    pub(crate) fn refuse(&mut self, op: usize) {
        (self.ops[op].refused, self.ops[op].ended) = (true, true);
    }

    pub(crate) fn end(&mut self, op: usize, value: u64) -> Result<(), String> {
        let now = self.now();
        let this = &mut self.ops[op];
        if std::mem::replace(&mut this.ended, true) {
            return Err(format!("operation {op} ended twice"));
        }
        let local = matches!(this.kind, Kind::Put { local: true, .. });
        if !local {
            this.complete = Some(now);
        }
        this.doubtful = local && self.doubted.contains(&this.end);
        this.owes = matches!(this.kind, Kind::Put { tells: true, .. });
        match this.kind {
            Kind::Atomic { word, bit, fetch: true } => self.check_fetched(op, word, bit, value),
            _ if value != 0 && self.values => {
                Err(format!("operation {op} brought the value {value:#x}"))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn lose(&mut self, op: usize) {
        let this = &mut self.ops[op];
        if this.complete.is_none() && !this.refused {
            (this.unknown, this.ended) = (true, true);
        }
    }

    pub(crate) fn fence(&mut self, end: usize) {
        self.epochs[end] += 1;
    }

    pub(crate) fn flushed(&mut self, end: usize, posted: u64) {
        let now = self.now();
        for op in self.ops.iter_mut().filter(|op| op.end == end && op.posted < posted) {
            if !op.refused && !op.unknown && op.complete.is_none() {
                op.complete = Some(now);
            }
            op.doubtful = false;
        }
    }

    /// Records that the ended operations of that endpoint have been carried out, including operations that had completed locally.
    pub(crate) fn confirm(&mut self, end: usize) {
        let now = self.now();
        let local = |op: &&mut Op| op.end == end && op.ended && op.complete.is_none();
        for op in self.ops.iter_mut().filter(local).filter(|op| !op.refused && !op.is_unsure()) {
            op.complete = Some(now);
        }
    }

    /// Records that a flush has failed: an earlier operation was not carried out.
    pub(crate) fn flush_failed(&mut self, end: usize, posted: u64) {
        for op in self.ops.iter_mut().filter(|op| op.end == end && op.posted < posted) {
            op.unknown |= !op.refused && op.complete.is_none();
        }
    }

    pub(crate) fn doubt_end(&mut self, end: usize) {
        let _ = self.doubted.insert(end);
        let open = |op: &&mut Op| op.end == end && op.complete.is_none();
        self.ops.iter_mut().filter(open).for_each(|op| op.doubtful = true);
    }

    pub(crate) fn calm(&mut self) {
        self.doubted.clear();
    }

    pub(crate) fn doubt(&mut self, op: usize) {
        self.ops[op].doubtful = true;
    }

    /// Records that an endpoint is gone or has broken: its open operations may or may not be carried out.
    pub(crate) fn lose_end(&mut self, end: usize) {
        for op in 0..self.ops.len() {
            if self.ops[op].end == end && !self.ops[op].ended {
                self.lose(op);
            }
        }
        // Locally completed puts may be lost.
        let local = |op: &&mut Op| op.end == end && op.complete.is_none() && !op.refused;
        self.ops.iter_mut().filter(local).for_each(|op| op.unknown = true);
    }

    /// Records that all other ends have broken, or are gone with queued operations: their notifications may be lost.
    pub(crate) fn silence_all_but(&mut self, stands: Option<usize>) {
        self.ops.iter_mut().filter(|op| Some(op.end) != stands).for_each(|op| op.owes = false);
    }

    pub(crate) fn silence(&mut self, end: usize) {
        self.ops.iter_mut().filter(|op| op.end == end).for_each(|op| op.owes = false);
    }

    /// Records that the notification of an operation has arrived, with these contents of the target's memory.
    pub(crate) fn notified(&mut self, op: usize, memory: &[u8]) -> Result<(), String> {
        let now = self.now();
        let Some(this) = self.ops.get_mut(op) else { return Err(format!("{op} tells nothing")) };
        if !matches!(this.kind, Kind::Put { tells: true, .. }) || this.refused {
            return Err(format!("operation {op} was told, which tells nothing or was not taken"));
        }
        if std::mem::replace(&mut this.told, true) {
            return Err(format!("operation {op} was told twice"));
        }
        let (end, posted) = (this.end, this.posted);
        for op in self.ops.iter_mut().filter(|op| op.end == end && op.posted <= posted) {
            let put = matches!(op.kind, Kind::Put { .. });
            if put && !op.refused && !op.is_unsure() && op.complete.is_none() {
                op.complete = Some(now);
            }
        }
        self.look(memory).map_err(|why| format!("when operation {op} was told: {why}"))
    }

    /// Records that an operation has failed or was cancelled on an endpoint that continues.
    pub(crate) fn fail(&mut self, op: usize) -> Result<(), String> {
        self.ops[op].failed = true;
        match self.ops[op].vouched {
            true => Err(format!("operation {op} failed, and a notification behind it was sent")),
            false => Ok(()),
        }
    }

    /// Returns the operations of an endpoint that a notification follows if it follows everything. Those posted since the moment
    /// `since` have to succeed.
    pub(crate) fn posted_by(&self, end: usize, since: u64) -> Vec<(usize, bool)> {
        let own = self.ops.iter().enumerate().filter(|(_, op)| op.end == end && !op.refused);
        own.map(|(number, op)| (number, op.posted > since)).collect()
    }

    /// Records that a notification has arrived that follows these operations, with these contents of the target's memory.
    pub(crate) fn followed(&mut self, ops: &[(usize, bool)], memory: &[u8]) -> Result<(), String> {
        let now = self.now();
        for (op, succeeds) in ops {
            let this = &mut self.ops[*op];
            if *succeeds && this.failed {
                return Err(format!("it follows operation {op}, which failed"));
            }
            this.vouched |= succeeds;
            if !this.failed && !this.refused && !this.is_unsure() && this.complete.is_none() {
                this.complete = Some(now);
            }
        }
        self.look(memory)
    }

    /// Records the end of an operation that a counter counts. It may have been recorded as lost before.
    pub(crate) fn end_counted(&mut self, op: usize) -> Result<(), String> {
        if self.ops[op].ended { Ok(()) } else { self.end(op, 0) }
    }

    pub(crate) fn untold(&self) -> Option<usize> {
        self.ops.iter().position(|op| op.owes && !op.told && !op.is_unsure())
    }

    /// Checks whether `x` was certainly carried out before `y`, if both are carried out.
    fn before(&self, x: usize, y: usize) -> bool {
        let (x, y) = (&self.ops[x], &self.ops[y]);
        x.end == y.end && x.epoch < y.epoch || x.complete.is_some_and(|done| done < y.posted)
    }

    fn is_known(&self, op: usize) -> bool {
        let op = &self.ops[op];
        (op.complete.is_some() || op.implied) && !op.refused
    }

    /// Checks that the fetched value contains the bits of earlier operations and no other bits.
    fn check_fetched(&self, op: usize, word: usize, own: u64, value: u64) -> Result<(), String> {
        if value & own != 0 {
            return Err(format!("operation {op} found its own bit: it was carried out twice"));
        }
        let mut left = value;
        for (other, that) in self.ops.iter().enumerate() {
            let Kind::Atomic { word: at, bit, .. } = that.kind else { continue };
            if at != word || other == op {
                continue;
            }
            let there = value & bit != 0;
            left &= !bit;
            if there && that.refused {
                return Err(format!("operation {op} saw operation {other}, which was not taken"));
            }
            if there && self.before(op, other) {
                return Err(format!("operation {op} saw operation {other}, which comes behind it"));
            }
            if !there && !that.is_unsure() && !that.refused && self.before(other, op) {
                return Err(format!("operation {op} did not see operation {other} before it"));
            }
        }
        match left {
            0 => Ok(()),
            _ => Err(format!("operation {op} saw bits of nobody: {left:#x}")),
        }
    }

    /// Checks the bytes of a get.
    pub(crate) fn check_got(&self, op: usize, bytes: &[u8]) -> Result<(), String> {
        let Kind::Get { cell, .. } = self.ops[op].kind else { return Ok(()) };
        for (at, &byte) in bytes.iter().enumerate() {
            self.check_byte(cell, at, byte, &|x| self.before(x, op))
                .map_err(|why| format!("get {op} brought at byte {at} of cell {cell}: {why}"))?;
            if let Some(put) = self.put_of(byte).filter(|&put| self.before(op, put)) {
                return Err(format!("get {op} saw put {put}, which comes behind it"));
            }
        }
        Ok(())
    }

    fn put_of(&self, byte: u8) -> Option<usize> {
        (byte != 0).then(|| usize::from(byte) - 1)
    }

    fn covers(&self, op: usize, cell: usize, at: usize) -> bool {
        matches!(self.ops[op].kind, Kind::Put { cell: c, len, .. } if c == cell && at < len)
    }

    /// Checks whether a byte may have its value, given the puts that have certainly been carried out.
    fn check_byte(
        &self,
        cell: usize,
        at: usize,
        byte: u8,
        certain: &dyn Fn(usize) -> bool,
    ) -> Result<(), String> {
        let writer = self.put_of(byte);
        if let Some(put) = writer {
            if put >= self.ops.len() || !self.covers(put, cell, at) {
                return Err(format!("{byte:#x}, which no put has written there"));
            }
            if self.ops[put].refused {
                return Err(format!("put {put}, which was not taken"));
            }
        }
        for x in 0..self.ops.len() {
            let gone = self.ops[x].refused || self.ops[x].is_unsure();
            if gone || !self.covers(x, cell, at) || !certain(x) {
                continue;
            }
            let over = match writer {
                None => true,
                Some(put) => put != x && self.before(put, x),
            };
            if over {
                let what = writer.map_or("nothing".to_string(), |put| format!("put {put}"));
                return Err(format!("{what}, although put {x} has certainly written over it"));
            }
        }
        Ok(())
    }

    pub(crate) fn look(&mut self, memory: &[u8]) -> Result<(), String> {
        let cell = |n: usize| &memory[FIRST_CELL + n * CELL..][..CELL];
        // Each visible put implies that all puts that are ordered before it were carried out.
        let mut seen: BTreeSet<usize> = (0..CELLS)
            .flat_map(|n| cell(n).iter().filter_map(|&byte| self.put_of(byte)).collect::<Vec<_>>())
            .filter(|&put| put < self.ops.len())
            .collect();
        for word in 0..WORDS {
            let value = word_of(memory, word);
            let mut left = value;
            for (op, this) in self.ops.iter().enumerate() {
                let Kind::Atomic { word: at, bit, .. } = this.kind else { continue };
                if at != word {
                    continue;
                }
                left &= !bit;
                if value & bit != 0 {
                    if this.refused {
                        return Err(format!(
                            "atomic {op} was carried out, although it was not taken"
                        ));
                    }
                    let _ = seen.insert(op);
                }
            }
            if left != 0 {
                return Err(format!("word {word} has bits of nobody, or twice: {value:#x}"));
            }
        }
        for x in 0..self.ops.len() {
            let early = |y: &usize| self.before(x, *y);
            if !self.ops[x].is_unsure() && !self.ops[x].implied && seen.iter().any(early) {
                self.ops[x].implied = true;
            }
        }
        for op in 0..self.ops.len() {
            if let (Kind::Atomic { word, bit, .. }, true) = (self.ops[op].kind, self.is_known(op)) {
                if word_of(memory, word) & bit == 0 && !self.ops[op].is_unsure() {
                    return Err(format!(
                        "atomic {op} has certainly been carried out, and is not seen"
                    ));
                }
            }
        }
        for n in 0..CELLS {
            for (at, &byte) in cell(n).iter().enumerate() {
                self.check_byte(n, at, byte, &|x| self.is_known(x))
                    .map_err(|why| format!("byte {at} of cell {n} holds {why}"))?;
            }
        }
        Ok(())
    }
}

pub(crate) fn place_of(word: usize) -> (usize, usize) {
    (16 * word, if word % 2 == 0 { 8 } else { 4 })
}

fn word_of(memory: &[u8], word: usize) -> u64 {
    let (at, width) = place_of(word);
    let mut bytes = [0; 8];
    bytes[..width].copy_from_slice(&memory[at..at + width]);
    u64::from_ne_bytes(bytes)
}
