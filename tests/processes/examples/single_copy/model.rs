//! Tests of memory that is cold to xpmem, and of the access that attaches it. The library reports the measured costs of this
//! machine, and the test derives the expected access from these costs.

use crate::provider::{CMA, COLD, launch, make_faults_longer, open};
use tieline_processes::{Node, Test, Verdict, named};

pub(crate) const TESTS: &[Test] = named![cold_memory_is_attached_according_to_measured_costs];

fn cold_memory_is_attached_according_to_measured_costs() -> Verdict {
    if let Some(why) = COLD.is_missing() {
        return Verdict::Skipped(why);
    }
    let mut owner = start("owner");
    let mut fast = 0;
    for (microseconds, name) in [(0, "fast"), (1000, "slow")] {
        make_faults_longer(microseconds);
        let mut accessor = start(name);
        let costs = Costs::of(&mut accessor);
        println!("    faults that take {microseconds} us longer: {costs:?}");
        accessor.connect(&mut owner);
        let accesses = SIZES.map(|len| tried(&costs, &mut accessor, &mut owner, len));
        match microseconds {
            0 => fast = accesses[0].expect("a call for 8 bytes costs more than a load"),
            _ => {
                assert!(accesses[0].is_none_or(|slow| slow > 2 * fast), "{accesses:?}, not {fast}")
            }
        }
        accessor.nothing_was_wrong();
        accessor.end();
    }
    make_faults_longer(0);
    owner.end();
    Verdict::Passed
}

const SIZES: [usize; 4] = [8, 4096, 64 << 10, 150_000];
/// The number of accesses after which memory counts as permanently cold.
const MOST: usize = 600;

fn start(name: &str) -> Node {
    let both = format!("TIELINE_PROVIDERS=shm,{},{}", COLD.name, CMA.name);
    open(launch(name), &format!("{both} {}", COLD.settings))
}

/// Makes puts to fresh memory until the memory is attached. Returns the number of puts, or `None` if a bound is exceeded.
fn tried(costs: &Costs, accessor: &mut Node, owner: &mut Node, len: usize) -> Option<usize> {
    let _ = owner.must(&format!("register memory {len}"));
    let _ = accessor.must(&format!("register here {len}"));
    assert_eq!(accessor.import(owner, "memory"), COLD.path);
    let expected = costs.accesses(len);
    let most = expected.map_or(MOST, |expected| 2 * expected + 10).min(MOST);
    let before = attached(accessor);
    let mut came = None;
    for access in 1..=most {
        // All bytes arrive on either path, by a copy or by attached memory.
        let checked = access == 1 || attached(accessor) > before;
        if checked {
            let _ = accessor.must(&format!("fill here {access}"));
        }
        let _ = accessor.must(&format!("put owner.memory here 0 {len} 0"));
        if checked {
            assert_eq!(owner.must(&format!("check memory 0 {len} {access} 0")), "same");
        }
        if came.is_some() {
            break;
        }
        came = (attached(accessor) > before).then_some(access);
    }
    println!(
        "    {len} bytes: attached by access {came:?}, and what was measured says {expected:?}"
    );
    match (came, expected) {
        // The reported costs are rounded.
        (Some(came), Some(expected)) => assert!(came.abs_diff(expected) <= 1 + expected / 50),
        (None, Some(expected)) => assert!(expected > MOST - MOST / 50),
        (None, None) => {}
        (Some(came), None) => panic!("what is better left cold is attached after {came} accesses"),
    }
    let _ = accessor.must("forget-key owner.memory");
    let _ = (accessor.must("close here"), owner.must("close memory"));
    came
}

/// Returns the number of attached bytes of this process.
fn attached(node: &mut Node) -> u64 {
    let memory = node.must("memory");
    let line = memory.split(';').find(|line| line.starts_with(COLD.path)).expect("an interface");
    line.split(' ').nth(3).and_then(|bytes| bytes.parse().ok()).expect("bytes of peers")
}

/// The costs in nanoseconds, as the library reports them.
#[derive(Debug)]
struct Costs {
    attaching: f64,
    fault: f64,
    warm_byte: f64,
    copy: f64,
    copied_byte: f64,
}

impl Costs {
    fn of(node: &mut Node) -> Costs {
        let report = node.must("context-report");
        let (_, said) = report.split_once("measured here, in ns: ").expect("what was measured");
        let number = |words: &str| -> f64 {
            let (_, rest) =
                said.split_once(words).unwrap_or_else(|| panic!("no `{words}`: {said}"));
            let number = rest.trim_start().split([' ', ',']).next();
            number.and_then(|number| number.parse().ok()).expect("a number")
        };
        Costs {
            attaching: number("attaching"),
            fault: number("a fault"),
            warm_byte: number("a warm byte"),
            copy: number("by the kernel"),
            copied_byte: number("and"),
        }
    }

    /// Returns the number of the access that attaches memory of `len` bytes, if all accesses are equal; `None` if attaching never
    /// reduces the cost.
    fn accesses(&self, len: usize) -> Option<usize> {
        let bytes = len as f64;
        let (warm, copied) = (self.warm_byte * bytes, self.copy + self.copied_byte * bytes);
        let saved = copied - warm;
        // A fault brings in 33 pages.
        let price = self.attaching + self.fault * (bytes / (33.0 * 4096.0)).ceil();
        (saved > 0.0).then(|| (price / saved).ceil() as usize + 1)
    }
}
