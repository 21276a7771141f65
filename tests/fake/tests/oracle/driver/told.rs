//! Completions of pending operations: every third operation is tracked by its worker, and the other operations are tested.

use super::{Open, Run, What};
use crate::driver::closing::Own;
use std::collections::{HashMap, HashSet};
use tieline::{CompletionError, Outcome, Request};

#[derive(Default)]
pub(super) struct Told {
    posted: u64,
    /// The words of operations whose completion was not reported.
    waiting: HashSet<u64>,
    ended: HashMap<u64, Result<u64, CompletionError>>,
}

impl Run {
    pub(super) fn pends(
        &mut self,
        end: usize,
        what: What,
        request: Request,
        [landing, source]: [Option<Own>; 2],
    ) -> Result<(), String> {
        self.told.posted += 1;
        let word = (self.told.posted % 3 == 0).then_some(self.told.posted);
        let outcome = Outcome::Pending(request);
        if let Some(word) = word {
            self.workers[end].track(&outcome, word).map_err(|error| error.to_string())?;
            let _ = self.told.waiting.insert(word);
        }
        self.end(end).open.push(Open { what, outcome, word, landing, source });
        Ok(())
    }

    pub(super) fn take_told(&mut self) -> Result<(), String> {
        let (told, mut trouble) = (&mut self.told, None);
        for worker in &self.workers {
            let _ = worker.take_completed(usize::MAX, |word, result| {
                if !told.waiting.remove(&word) {
                    trouble = Some(word);
                }
                let _ = told.ended.insert(word, result);
            });
        }
        trouble.map_or(Ok(()), |word| Err(format!("{word} was told and not awaited")))
    }

    pub(super) fn all_told(&mut self) -> Result<(), String> {
        self.take_told()?;
        let Told { waiting, ended, .. } = &self.told;
        match (waiting.is_empty(), ended.is_empty()) {
            (true, true) => Ok(()),
            _ => Err(format!("not told: {waiting:?}; told, and nobody waits: {ended:?}")),
        }
    }

    /// Returns the result of an operation, if it has ended.
    pub(super) fn how(
        &mut self,
        end: usize,
        open: &Open,
    ) -> Result<Option<Result<u64, CompletionError>>, String> {
        if let Some(word) = open.word {
            self.take_told()?;
            return Ok(self.told.ended.remove(&word));
        }
        let result = self.workers[end].test(open.request());
        // The result stays the same until the request is dropped.
        match result.is_some() && self.workers[end].test(open.request()) != result {
            false => Ok(result),
            true => Err(format!("{:?} ended in two ways", open.what)),
        }
    }
}
