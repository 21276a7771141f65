//! Both processes increment one counter at the same time. Every increment must be counted.

use super::pair::Pair;
use super::show::Show;
use crate::perf::scaled;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tieline::{Error, Status};

const EACH: u64 = 200_000;

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
    for number in 0..EACH {
        let outcome = pair.post(|| endpoint.fetch_add(&key, 0, 1))?;
        seen = seen.wrapping_add(pair.finish(outcome)?);
        progress.at(number as usize);
    }
    drop(progress);
    let (first, second) = pair.agree(seen)?;
    let took = began.elapsed();
    let total = pair.agree(region.atomic_u64(0)?.load(Ordering::SeqCst))?.0;
    // Each value from 0 to 2 EACH - 1 was fetched exactly once, so their sum is known.
    let all = 2 * EACH;
    if total != all || first.wrapping_add(second) != all * (all - 1) / 2 {
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
