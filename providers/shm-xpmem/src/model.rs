//! The cost model: when attaching memory pays off.
//!
//! Warm memory (attached, with its pages faulted in) is copied by loads and stores without a system call. Warming it costs an
//! attachment and one fault per 132 KiB, usually many times the price of one kernel copy of cold memory. The number of future uses
//! of a range is unknown: this is the rent-or-buy (ski rental) problem. Each access to a cold window is left to the next lane, and
//! the savings of warm memory are recorded. When they reach the cost of warming, the window is warmed. This rule costs about twice
//! the optimum with known future uses in the worst case.
//!
//! The costs are measured on this machine, on memory of this process, when the first interface that may decline accesses is opened
//! (`measure`).

use core::fmt;
use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Instant;

use tieline_memory_file::Piece;
use tieline_plugin_api::process::PerProcess;

use crate::settings::{Reach, Settings};
use crate::sys::{self, Direction, Errno, Kernel};

/// Bytes per fault: the page, 32 pages after it and 16 before it, of 4 KiB. The pages before it usually came with the previous
/// fault.
const FAULT: f64 = 33.0 * 4096.0;
/// The maximum number of windows with records per key.
const MOST: usize = 4096;
/// The factor by which a route must be cheaper to be preferred: the difference exceeds the measurement error.
const MARGIN: f64 = 0.8;

/// The measured costs, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Costs {
    /// The cost of an attach and a detach.
    pub(crate) attach: f64,
    /// The cost of one fault.
    pub(crate) fault: f64,
    /// The cost of one byte of warm memory.
    pub(crate) warm_byte: f64,
    /// The fixed cost of one kernel copy.
    pub(crate) call: f64,
    /// The cost of one byte of a kernel copy.
    pub(crate) call_byte: f64,
}

impl Costs {
    fn warm(&self, len: u64) -> f64 {
        self.warm_byte * len as f64
    }

    fn by_the_kernel(&self, len: u64) -> f64 {
        self.call + self.call_byte * len as f64
    }

    fn warming(&self, len: u64) -> f64 {
        self.attach + self.fault * (len as f64 / FAULT).ceil()
    }

    /// Checks whether the kernel copies faster than loads and stores, by the margin.
    pub(crate) fn leaves(&self, len: u64) -> bool {
        self.by_the_kernel(len) < MARGIN * self.warm(len)
    }
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Costs { attach, fault, warm_byte, call, call_byte } = self;
        write!(
            f,
            "measured here, in ns: attaching {attach:.0}, a fault {fault:.0}, a warm byte {warm_byte:.5}, a copy by the kernel \
             {call:.0} and {call_byte:.5} a byte; cold memory is attached once that would have saved what it costs"
        )
    }
}

/// The savings of warm memory so far, per window, for one key.
#[derive(Default)]
pub(crate) struct Accounts {
    saved: HashMap<u64, f64>,
}

impl Accounts {
    /// Checks whether an access to these cold windows, with this number of bytes each, pays for warming them. If not, its savings
    /// are recorded.
    pub(crate) fn pays(&mut self, costs: &Costs, cold: &[(u64, u64)]) -> bool {
        let saved = |number: &u64| self.saved.get(number).copied().unwrap_or(0.0);
        let so_far: f64 = cold.iter().map(|(number, _)| saved(number)).sum();
        let price: f64 = cold.iter().map(|(_, len)| costs.warming(*len)).sum();
        if so_far >= price {
            for (number, _) in cold {
                let _ = self.saved.remove(number);
            }
            return true;
        }
        if self.saved.len() + cold.len() > MOST {
            self.saved.clear();
        }
        for (number, len) in cold {
            let would = (costs.by_the_kernel(*len) - costs.warm(*len)).max(0.0);
            *self.saved.entry(*number).or_default() += would;
        }
        false
    }
}

/// Returns the costs in this process, measured at the first call. Returns `None` if nothing is declined, or if the measurement
/// failed.
pub(crate) fn costs(kernel: &dyn Kernel, settings: &Settings) -> Option<Costs> {
    static MEASURED: PerProcess<OnceLock<Option<Costs>>> = PerProcess::new();
    if settings.reach == Reach::Copy || !settings.declines {
        return None;
    }
    // Without a measurement nothing is known to be better, so nothing is declined.
    *MEASURED.get_or_init(|| measure(kernel, settings.page).ok())
}

/// The number of pages of the memory for measurements.
const PAGES: usize = 256;
/// The number of bytes of one long copy.
const LONG: usize = 256 << 10;

/// A segment and a permit that are released on drop.
struct Ours<'a> {
    kernel: &'a dyn Kernel,
    segment: i64,
    permit: Option<i64>,
}

impl Drop for Ours<'_> {
    fn drop(&mut self) {
        if let Some(permit) = self.permit {
            let _ = self.kernel.release(permit);
        }
        let _ = self.kernel.remove(self.segment);
    }
}

/// Measures the costs on memory of this process.
pub(crate) fn measure(kernel: &dyn Kernel, page: u64) -> Result<Costs, Errno> {
    let page = page as usize;
    let len = PAGES * page;
    let mut memory = vec![1u8; len + page];
    let mut here = vec![1u8; LONG];
    let start = memory.as_mut_ptr().expose_provenance().next_multiple_of(page) as u64;
    let segment = kernel.make(start, len as u64)?;
    let mut ours = Ours { kernel, segment, permit: None };
    let permit = kernel.get(segment)?;
    ours.permit = Some(permit);
    let attach = best_of(4, || {
        let at = kernel.attach(permit, 0, len as u64)?;
        kernel.detach(at)
    })?;
    let at = kernel.attach(permit, 0, len as u64)?;
    let mut touch = |offset: usize, len: usize| {
        let piece = Piece::of(&mut here[..len]);
        sys::carry(Direction::Get, piece, at + offset as u64);
        Ok::<(), Errno>(())
    };
    let step = FAULT as usize / page * page;
    let faults = len / step;
    let fault = best_of(1, || (0..faults).try_for_each(|n| touch(n * step, 1)))? / faults as f64;
    (0..PAGES).try_for_each(|n| touch(n * page, 1))?;
    let long = LONG.min(len);
    let warm_byte = best_of(4, || touch(0, long))? / long as f64;
    // As between two processes, the kernel looks up the pages of the other side.
    let first = start as usize - memory.as_ptr().addr();
    let mut call = |len: usize| {
        let piece = Piece::of(&mut memory[first..first + len]);
        let copied = kernel.copy(
            Direction::Put,
            &[piece],
            here.as_mut_ptr().expose_provenance() as u64,
            len,
        );
        copied.map(drop)
    };
    let short = best_of(8, || call(8))?;
    let call_byte = (best_of(4, || call(long))? - short).max(0.0) / long as f64;
    Ok(Costs { attach, fault, warm_byte, call: short, call_byte })
}

/// Returns the shortest of `times` runs, in nanoseconds.
fn best_of(times: usize, mut work: impl FnMut() -> Result<(), Errno>) -> Result<f64, Errno> {
    let mut best = f64::INFINITY;
    for _ in 0..times {
        let start = Instant::now();
        work()?;
        best = best.min(start.elapsed().as_nanos() as f64);
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs =
        Costs { attach: 2000.0, fault: 5000.0, warm_byte: 0.1, call: 700.0, call_byte: 0.11 };

    #[test]
    fn memory_is_warmed_when_savings_reach_the_cost() {
        let mut accounts = Accounts::default();
        // Each access would save about 700 ns, and warming takes 7000 ns.
        let uses = (1..100).find(|_| accounts.pays(&COSTS, &[(3, 8)]));
        assert_eq!(uses, Some(11));
        assert!(accounts.pays(&Costs { attach: 0.0, fault: 0.0, ..COSTS }, &[(3, 8)]));
    }

    #[test]
    fn cost_of_a_range_is_the_sum_of_its_parts() {
        let costs =
            Costs { attach: 100.0, fault: 10.0, warm_byte: 0.5, call: 20.0, call_byte: 0.25 };
        let reach = 33 * 4096;
        for (len, warming) in [(0, 100.0), (1, 110.0), (reach, 110.0), (reach + 1, 120.0)] {
            assert_eq!(costs.warming(len), warming, "{len}");
        }
        assert_eq!((costs.warm(80), costs.by_the_kernel(80)), (40.0, 40.0));
        assert_eq!((costs.leaves(133), costs.leaves(134)), (false, true));
        // Each access to warm memory would save 110 ns; warming the window costs as much.
        let even = Costs { call: 110.5, call_byte: 0.0, ..costs };
        let mut accounts = Accounts::default();
        assert_eq!([(); 4].map(|()| accounts.pays(&even, &[(7, 1)])), [false, true, false, true]);
    }

    #[test]
    fn costs_are_printed_as_measured() {
        let said = COSTS.to_string();
        for words in
            ["attaching 2000,", "a fault 5000,", "warm byte 0.10000,", "kernel 700 and 0.11000 a"]
        {
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn windows_record_savings_separately_and_are_warmed_together() {
        let mut accounts = Accounts::default();
        for _ in 0..10 {
            assert!(!accounts.pays(&COSTS, &[(1, 8)]));
        }
        assert!(!accounts.pays(&COSTS, &[(1, 8), (2, 8)]), "the second has saved nothing yet");
        assert!(accounts.pays(&COSTS, &[(1, 8)]));
    }

    #[test]
    fn window_without_savings_is_never_warmed() {
        let slow = Costs { warm_byte: 1.0, ..COSTS };
        let mut accounts = Accounts::default();
        assert!((0..10_000).all(|_| !accounts.pays(&slow, &[(1, 1 << 20)])));
        assert!(slow.leaves(1 << 20) && !slow.leaves(8));
        assert!(!COSTS.leaves(1 << 20), "within what a measurement is wrong by");
        let close = Costs { warm_byte: 1.0, call: 850.0, call_byte: 0.0, ..COSTS };
        assert!(!close.leaves(1000) && close.leaves(1100), "a fifth has to be gained");
    }

    #[test]
    fn accounts_of_many_windows_are_bounded() {
        let mut accounts = Accounts::default();
        for window in 0..100_000 {
            assert!(!accounts.pays(&COSTS, &[(window, 8)]));
            assert!(accounts.saved.len() <= MOST);
        }
    }

    #[test]
    fn costs_are_not_measured_for_kernel_copies_or_served_cold_memory() {
        let played = crate::double::Played::default();
        played.take_any_address();
        let copying = crate::double::pair::settings();
        assert_eq!(copying.reach, Reach::Copy);
        let direct = Settings { reach: Reach::Direct, ..copying.clone() };
        for settings in [&copying, &Settings { declines: true, ..copying.clone() }, &direct] {
            assert_eq!(costs(&played, settings), None);
        }
        assert!(costs(&played, &Settings { declines: true, ..direct }).is_some());
    }

    #[test]
    fn costs_are_positive_and_leave_nothing_behind() {
        let played = crate::double::Played::default();
        played.take_any_address();
        let costs = measure(&played, 4096).unwrap();
        assert!(costs.warm_byte > 0.0 && costs.attach > 0.0, "{costs:?}");
        let Costs { attach, fault, warm_byte, call, call_byte } = costs;
        assert!([attach, fault, call].iter().all(|cost| cost.is_finite()), "{costs:?}");
        // No machine needs a millisecond per byte, so a larger value would be a total instead of a quotient.
        assert!(warm_byte < 1e6 && call_byte < 1e6, "{costs:?}");
        assert_eq!(played.there(), crate::double::There::default());
        played.fail(crate::double::Command::Attach, libc::ENOMEM);
        assert_eq!(measure(&played, 4096), Err(libc::ENOMEM));
        assert_eq!(played.there(), crate::double::There::default());
    }
}
