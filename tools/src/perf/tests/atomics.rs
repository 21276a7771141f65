//! The tests add_lat (posted), fadd_lat, swap_lat and cswap_lat (which wait for each operation), on one 64-bit word that starts at
//! 0.

use super::Asked;
use crate::perf::args::Test;
use crate::perf::side::Side;
use crate::perf::stats::{Samples, measure};
use tieline::{AtomicOp, Error, RemoteKey, Width};

pub(super) fn posted_add(
    side: &Side<'_>,
    asked: &Asked<'_>,
    key: &RemoteKey,
) -> Result<Samples, Error> {
    let endpoint = side.endpoint()?;
    let add = |_| side.post(|| endpoint.atomic(AtomicOp::Add, Width::Bits64, key, 0, 1)).map(drop);
    measure(asked.limit, add, |posted| {
        side.flush()?;
        if asked.spec.verify {
            let outcome = side.post(|| endpoint.fetch_add(key, 0, 0))?;
            expect(posted, side.finish(outcome)?)?;
        }
        Ok(())
    })
}

/// Every operation leaves its number plus one in the word, so that each must fetch its own number.
pub(super) fn fetching(
    side: &Side<'_>,
    asked: &Asked<'_>,
    key: &RemoteKey,
) -> Result<Samples, Error> {
    let endpoint = side.endpoint()?;
    let (test, verify) = (asked.spec.test, asked.spec.verify);
    let one = |number: u64| {
        let outcome = side.post(|| match test {
            Test::SwapLat => endpoint.fetch(AtomicOp::Swap, Width::Bits64, key, 0, number + 1),
            Test::CswapLat => endpoint.compare_swap(Width::Bits64, key, 0, number, number + 1),
            _ => endpoint.fetch_add(key, 0, 1),
        })?;
        let before = side.finish(outcome)?;
        if verify { expect(number, before) } else { Ok(()) }
    };
    measure(asked.limit, one, |_| Ok(()))
}

fn expect(expected: u64, found: u64) -> Result<(), Error> {
    if expected == found {
        return Ok(());
    }
    Err(super::differs(format!("the word should be {expected} and is {found}")))
}
