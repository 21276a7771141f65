//! Puts that a counter counts, and notifications that follow the counter.

use super::notices::ID;
use super::sends::payload;
use super::{ENDS, MOST, Run, What};
use crate::model::Kind;
use crate::program::{CELL, FIRST_CELL};
use tieline::{After, CompletionCounter};

/// The number of bytes of each put.
const LEN: usize = 5;

#[derive(Default)]
struct Batch {
    counter: Option<CompletionCounter>,
    /// The counted puts whose end is not known.
    puts: Vec<usize>,
    /// Whether a put has failed since the counter's last mark.
    failed: bool,
}

#[derive(Default)]
pub(super) struct Counted {
    /// By the number of the end. An end keeps its counter when it connects again.
    batches: [Batch; ENDS],
}

impl Run {
    pub(super) fn batch(&mut self, end: usize, cell: usize, puts: usize) -> Result<(), String> {
        self.ask_counted()?;
        let worker = self.workers[end].clone();
        if self.counted.batches[end].counter.is_none() {
            let counter = worker.completion_counter().map_err(|error| error.to_string())?;
            self.counted.batches[end].counter = Some(counter);
        }
        for _ in 0..puts.min(MOST.saturating_sub(self.model.len())) {
            let number = self.end(end).number;
            let kind = Kind::Put { cell, len: LEN, local: false, tells: false };
            let op = self.model.post(number, kind);
            let own = self.end(end);
            let at = (FIRST_CELL + cell * CELL) as u64;
            let put = own.endpoint.put_bytes(&[op as u8 + 1; LEN], &own.keys[op % 2], at);
            let put = match put {
                Ok(put) => put,
                refused => {
                    let _ = self.posted(end, What::Memory(op), refused, None, None)?;
                    continue;
                }
            };
            let Batch { counter: Some(counter), puts, .. } = &mut self.counted.batches[end] else {
                return Err("a batch without a counter".into());
            };
            worker.count(&put, counter).map_err(|error| error.to_string())?;
            puts.push(op);
        }
        self.notify_after_counter(end)
    }

    fn notify_after_counter(&mut self, end: usize) -> Result<(), String> {
        let serial = self.next_serial(end);
        let own = self.ends[end].as_ref().expect("an end");
        let batch = &mut self.counted.batches[end];
        let Some(counter) = &batch.counter else { return Ok(()) };
        let failed = counter.failed_since_mark() > 0;
        let sent = own.endpoint.notify(After::Counted(counter), ID, serial, &payload(serial, LEN));
        let follows = batch.puts.iter().map(|put| (*put, true)).collect();
        if failed && sent.as_ref().is_ok_and(|sent| sent.is_done()) {
            return Err("a notification behind a failed put was sent".into());
        }
        batch.failed = failed;
        self.add_notice(end, serial, (follows, Vec::new()), None);
        if self.notice_posted(end, serial, sent)? && failed {
            self.notices.must_fail(serial);
        }
        Ok(())
    }

    /// Asks the counters which puts have ended.
    pub(super) fn ask_counted(&mut self) -> Result<(), String> {
        for batch in &mut self.counted.batches {
            let Some(counter) = &batch.counter else { continue };
            let failed = counter.failed_since_mark() > 0;
            // The counter does not say which put has failed.
            if failed {
                batch.puts.drain(..).for_each(|put| self.model.lose(put));
            }
            if counter.pending() > 0 {
                continue;
            }
            for put in batch.puts.drain(..) {
                self.model.end_counted(put)?;
            }
            // Every other failure stays until the next notification has failed.
            if failed && (batch.failed || counter.failed() % 2 == 0) {
                counter.mark();
                batch.failed = false;
            }
        }
        Ok(())
    }

    pub(super) fn counts_nothing(&self) -> bool {
        let open =
            |batch: &Batch| batch.counter.as_ref().is_some_and(|counter| counter.pending() > 0);
        !self.counted.batches.iter().any(open)
    }
}
