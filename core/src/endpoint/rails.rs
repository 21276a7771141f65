//! Rails: dividing a large transfer between the domains that reach the same memory.
//!
//! Rails get bytes about in proportion to their bandwidths. Cuts are at multiples of the page size from the beginning of the remote
//! region. In an aligned region, no two rails therefore write the same cache line. A rail whose rounded share would be less than a
//! page carries nothing.

/// The minimum length of a transfer that is divided.
pub(super) const SHARED_FROM: usize = 256 << 10;

/// The alignment of cuts, and the minimum share of a rail.
const PAGE: usize = 4096;

/// Divides `len` bytes that begin at `offset` of the remote region: returns a length for each rail, in order. A bandwidth that is
/// not a positive, finite number is unknown and is replaced by the slowest known one. If none is known, the shares are equal.
pub(super) fn split(bandwidths: &[f64], offset: u64, len: usize) -> Vec<usize> {
    let stated = |speed: &f64| speed.is_finite() && *speed > 0.0;
    let all = || bandwidths.iter().copied().filter(stated);
    let (slowest, fastest) =
        (all().fold(f64::INFINITY, f64::min).min(f64::MAX), all().fold(0.0, f64::max));
    // The speeds are relative to the fastest one, so that no sum overflows.
    let relative = |speed: &f64| match (fastest > 0.0, stated(speed)) {
        (false, _) => 1.0,
        (true, false) => slowest / fastest,
        (true, true) => speed / fastest,
    };
    let total: f64 = bandwidths.iter().map(relative).sum();
    let (mut begin, mut sum) = (0, 0.0);
    let mut shares = Vec::with_capacity(bandwidths.len());
    for (place, speed) in bandwidths.iter().enumerate() {
        sum += relative(speed);
        let end = match place + 1 == bandwidths.len() {
            true => len,
            false => cut(offset, len, begin, sum / total),
        };
        shares.push(end - begin);
        begin = end;
    }
    shares
}

/// Returns the end of the share that begins at `begin`, rounded to the nearest page. `part`: the fraction of the transfer assigned
/// up to that end.
fn cut(offset: u64, len: usize, begin: usize, part: f64) -> usize {
    let wished = ((len as f64 * part) as usize).min(len);
    let into_page = (offset % PAGE as u64) as usize;
    let beyond = (into_page + wished % PAGE + PAGE / 2) % PAGE;
    let at = (wished + PAGE / 2).saturating_sub(beyond);
    match at {
        at if at < begin + PAGE => begin,
        at if at + PAGE > len => len,
        at => at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn equal_rails_get_equal_shares() {
        assert_eq!(split(&[5e9, 5e9], 0, MIB), [MIB / 2, MIB / 2]);
        assert_eq!(split(&[1.0; 4], 0, MIB), [MIB / 4; 4]);
    }

    #[test]
    fn a_rail_of_three_times_the_bandwidth_carries_three_quarters() {
        assert_eq!(split(&[12e9, 4e9], 0, MIB), [3 * MIB / 4, MIB / 4]);
        assert_eq!(split(&[4e9, 12e9], 0, MIB), [MIB / 4, 3 * MIB / 4]);
    }

    #[test]
    fn cuts_lie_at_pages_of_the_remote_region() {
        let shares = split(&[1.0, 1.0], 100, MIB);
        assert_eq!((100 + shares[0]) % PAGE, 0);
        assert_eq!(shares.iter().sum::<usize>(), MIB);
        let shares = split(&[1.0, 2.0], 4095, MIB + 7);
        assert_eq!((4095 + shares[0]) % PAGE, 0);
    }

    #[test]
    fn a_tiny_remainder_is_no_operation_of_its_own() {
        // A millionth of a MiB is a byte.
        assert_eq!(split(&[1e6, 1.0], 0, MIB + 1), [MIB + 1, 0]);
        assert_eq!(split(&[1.0, 1e6], 0, MIB + 1), [0, MIB + 1]);
        assert_eq!(split(&[1.0, 1e6, 1.0], 0, MIB + 1), [0, MIB + 1, 0]);
        assert_eq!(split(&[1.0, 1.0], 0, PAGE + 1), [PAGE + 1, 0]);
        assert_eq!(split(&[1.0, 1.0], 0, 0), [0, 0]);
    }

    #[test]
    fn a_bandwidth_that_nobody_stated_counts_as_that_of_the_slowest() {
        assert_eq!(split(&[0.0, 0.0], 0, MIB), [MIB / 2, MIB / 2]);
        assert_eq!(split(&[3e9, 0.0, 1e9, 3e9], 0, MIB), split(&[3.0, 1.0, 1.0, 3.0], 0, MIB));
        for nonsense in [f64::NAN, -1.0, f64::INFINITY] {
            assert_eq!(split(&[nonsense, 1e9], 0, MIB), [MIB / 2, MIB / 2]);
        }
        assert_eq!(split(&[f64::MAX, f64::MAX], 0, MIB), [MIB / 2, MIB / 2]);
        assert_eq!(split(&[1.0, f64::MIN_POSITIVE], 0, MIB), [MIB, 0]);
    }

    proptest! {
        #[test]
        fn shares_are_whole_and_either_nothing_or_at_least_a_page(
            bandwidths in proptest::collection::vec(prop_oneof![Just(0.0), 0.0..1e12f64], 1..6),
            offset in any::<u32>(),
            len in PAGE..(1usize << 34),
        ) {
            let shares = split(&bandwidths, u64::from(offset), len);
            prop_assert_eq!(shares.len(), bandwidths.len());
            prop_assert_eq!(shares.iter().sum::<usize>(), len);
            let mut at = offset as usize;
            for share in &shares {
                prop_assert!(*share == 0 || *share >= PAGE);
                at += share;
                let end = at == offset as usize + len;
                prop_assert!(*share == 0 || end || at % PAGE == 0);
            }
            // No rail carries more than two pages per rail beyond its exact share.
            let stated: Vec<f64> = bandwidths.iter().copied().filter(|b| *b > 0.0).collect();
            let slowest = stated.iter().copied().fold(f64::MAX, f64::min);
            let due = |b: &f64| if stated.is_empty() { 1.0 } else if *b > 0.0 { *b } else { slowest };
            let total: f64 = bandwidths.iter().map(due).sum();
            for (share, bandwidth) in shares.iter().zip(&bandwidths) {
                let fair = len as f64 * due(bandwidth) / total;
                prop_assert!((*share as f64) <= fair + 2.0 * PAGE as f64 * shares.len() as f64);
            }
        }
    }

    #[test]
    fn a_share_of_one_page_is_carried() {
        assert_eq!(split(&[1.0, 1.0], 0, 2 * PAGE), [PAGE, PAGE]);
        assert_eq!(split(&[1.0, 1.0], 0, 2 * PAGE - 1), [2 * PAGE - 1, 0]);
        assert_eq!(split(&[1.0, 1.0, 1.0], 0, 3 * PAGE), [PAGE; 3]);
        assert_eq!(split(&[1.0, 3.0], 0, 4 * PAGE), [PAGE, 3 * PAGE]);
        assert_eq!(split(&[3.0, 1.0], 0, 4 * PAGE), [3 * PAGE, PAGE]);
    }
}
