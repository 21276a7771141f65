//! Both processes increment one counter at the same time, each a fixed number of times or until a time limit. Every increment must
//! be counted.

use super::pair::Pair;
use super::show::Show;
use crate::perf::scaled;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tieline::{Error, Status};

/// The most increments of one process.
const EACH: u64 = 200_000;

/// The time after which a process ends its increments. Under emulation or on a slow network, an increment may take milliseconds.
const LIMIT: Duration = Duration::from_secs(10);

/// Counts the increments of one process until they end.
struct Count {
    done: u64,
    began: Instant,
}

impl Count {
    fn goes_on(&mut self) -> bool {
        // Reading the clock takes as long as an increment in shared memory, so it is read at every 64th.
        let is_late = self.done % 64 == 0 && self.began.elapsed() >= LIMIT;
        if self.done == EACH || is_late {
            return false;
        }
        self.done += 1;
        true
    }
}

pub(super) fn contend(pair: &Pair<'_>, show: &Show) -> Result<(), Error> {
    let what = "atomics, contended";
    let region = pair.context.alloc(64)?;
    let other = pair.exchange_keys(&region)?;
    // Both processes use an endpoint: rank 0 uses an endpoint to itself.
    let myself = pair.worker_to_itself()?;
    let (endpoint, key) = match pair.is_source() {
        true => (&myself, myself.import_key(&region.remote_key()?)?),
        false => (&pair.endpoint, other),
    };
    let _ = pair.agree(0)?;
    let began = Instant::now();
    let mut progress = show.progress(what, EACH as usize);
    let mut seen = 0_u64;
    let mut count = Count { done: 0, began };
    while count.goes_on() {
        let outcome = pair.post(|| endpoint.fetch_add(&key, 0, 1))?;
        seen = seen.wrapping_add(pair.finish(outcome)?);
        progress.at(count.done as usize);
    }
    drop(progress);
    let (first, second) = pair.agree(seen)?;
    let took = began.elapsed();
    let (mine, others) = pair.agree(count.done)?;
    let all = mine + others;
    let total = pair.agree(region.atomic_u64(0)?.load(Ordering::SeqCst))?.0;
    if !is_sum_of_fetched(first.wrapping_add(second), all) || total != all {
        return Err(Error::new(
            Status::BadData,
            "atomics: the sum is wrong",
            format!("{all} increments were made and the counter is {total}"),
            "please report it with the output of `tieline info --json`",
        ));
    }
    let path = pair.chosen_for("atomic");
    let rate = all as f64 / took.as_secs_f64().max(1e-9);
    show.step(
        what,
        took,
        &scaled(rate, "/s"),
        "sum ok",
        &path,
        &format!("{all} fetch-adds, none lost"),
    );
    Ok(())
}

/// Checks whether a sum is that of the values from 0 to `all` - 1, of which each was fetched exactly once.
fn is_sum_of_fetched(sum: u64, all: u64) -> bool {
    sum == all * all.saturating_sub(1) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn increments_end_at_their_number_or_at_the_time_limit() {
        let mut count = Count { done: 0, began: Instant::now() };
        assert!(count.goes_on() && count.done == 1);
        count.done = EACH;
        assert!(!count.goes_on() && count.done == EACH);
        let long_ago = Instant::now().checked_sub(LIMIT);
        let began = long_ago.expect("a clock that is that old");
        let mut slow = Count { done: 63, began };
        assert!(slow.goes_on() && !slow.goes_on() && slow.done == 64);
    }

    #[test]
    fn sum_of_fetched_values_depends_on_the_number_that_was_made() {
        assert!(is_sum_of_fetched(0, 0) && is_sum_of_fetched(0, 1) && is_sum_of_fetched(10, 5));
        assert!(!is_sum_of_fetched(11, 5) && is_sum_of_fetched(79_999_800_000, 400_000));
    }
}
