//! Gets of another process's memory by each single-copy provider, compared with a loop over the same kernel interface without
//! Tieline.
//!
//! Two programs print a line for each size and provider, with the same names: `single_copy figures` of `tests/processes` uses
//! Tieline, and `bare_copies` of `tests/lab/programs` does not.

use super::Measured;
use crate::bench::groups::{Comparison, Group, Unit};
use crate::bench::{Series, say};
use crate::lab::Hosts;
use crate::sh::{Outcome, cargo, heading, run};
use std::path::Path;
use std::time::Duration;

/// The sizes that the programs measure, and the label of each row.
const SIZES: [(u64, &str); 6] = [
    (8, "8 B"),
    (512, "512 B"),
    (4096, "4 KiB"),
    (64 << 10, "64 KiB"),
    (1 << 20, "1 MiB"),
    (16 << 20, "16 MiB"),
];
/// The providers. The first four are also compared with [`CMA`], both with Tieline.
const WAYS: [&str; 6] = [
    "xpmem direct, warm",
    "xpmem direct, cold",
    "xpmem copy, warm",
    "knem",
    "xpmem copy, cold",
    CMA,
];
const BESIDE: &[&str] = WAYS.split_at(4).0;
const CMA: &str = "cma";
const NOTE: &str = "A process gets memory that another one has registered, by Tieline and by a bare loop over the same kernel \
    interface. Warm: what is got is attached and its pages are there. Cold: each get attaches a window (Tieline 2 MiB, the loop as much as it \
    gets), brings its pages in, and detaches another one. copy: the kernel copies from what is attached; direct: loads. The interfaces of xpmem and knem are doubles.";
/// The time limit for one round of all measurements.
const PATIENCE: Duration = Duration::from_secs(300);

pub(super) fn build() -> Outcome {
    let packages = [
        "tieline-processes",
        "tieline-lab-programs",
        "tieline-provider-shm-xpmem-plugin",
        "tieline-provider-shm-knem-plugin",
    ];
    let mut build = cargo(&["build", "--release", "--lib", "--examples"]);
    run(build.args(packages.iter().flat_map(|name| ["-p", name])))
}

pub(super) const WHAT: &str = "gets within a host";

/// Measures all sizes, in ascending order. Without the kernel modules, the result is empty.
pub(super) fn measure(rounds: usize) -> Outcome<Vec<Measured>> {
    heading(WHAT);
    let mut hosts = match Hosts::with_modules() {
        Ok(hosts) => hosts,
        Err(why) => {
            println!("skipped: {why}");
            return Ok(Vec::new());
        }
    };
    let ended = hosts.run("gets-within-a-host", &script(rounds), PATIENCE * rounds as u32);
    if let Err(why) = ended {
        println!("{why}");
    }
    let results = hosts.results("gets-within-a-host");
    Ok(SIZES.iter().map(|size| at_size(*size, rounds, &results)).collect())
}

fn script(rounds: usize) -> String {
    format!(
        "h0() {{\n    load xpmem\n    load knem\n    yama 0\n    for round in $(seq 0 {}); do\n        \
         \"$TARGET/release/examples/single_copy\" figures > \"$RESULTS/tieline-$round\" 2>&1\n        \
         \"$TARGET/release/examples/bare_copies\" > \"$RESULTS/bare-$round\" 2>&1\n    done\n    \
         unload knem\n    unload xpmem\n}}\n",
        rounds - 1
    )
}

fn at_size((size, name): (u64, &'static str), rounds: usize, results: &Path) -> Measured {
    let mut all = Vec::new();
    for program in ["tieline", "bare"] {
        for way in WAYS {
            let label = format!("{program}: {way}");
            let mut series = Series::new(&label, Unit::Time, None);
            for round in 0..rounds {
                let said = std::fs::read_to_string(results.join(format!("{program}-{round}")));
                let time = figure(&said.unwrap_or_default(), size, way);
                series.add(time.ok_or_else(|| "it printed no figure".to_owned()));
            }
            all.push(series);
        }
    }
    say(&all);
    let named = |text: String| -> &'static str { text.leak() };
    let compared = |ours: &str, program: &str, rival: &str| Comparison {
        what: Some(named(format!("{name} get by {ours}"))),
        ours: named(format!("tieline: {ours}")),
        rival: named(format!("{program}: {rival}")),
        aim: None,
    };
    let bare = WAYS.iter().map(|way| compared(way, "bare", way));
    let beside = BESIDE.iter().map(|way| compared(way, "tieline", CMA));
    let (sources, comparisons) = (Vec::new(), bare.chain(beside).collect());
    let group = Group { what: name, unit: Unit::Time, sources, comparisons };
    Measured { group, series: all, note: NOTE }
}

/// Returns the nanoseconds of a line `figure SIZE NANOSECONDS WAY`.
fn figure(said: &str, size: u64, way: &str) -> Option<f64> {
    said.lines().find_map(|line| {
        let mut words = line.strip_prefix("figure ")?.splitn(3, ' ');
        let at_size = words.next()?.parse() == Ok(size);
        let time = words.next()?.parse().ok()?;
        (at_size && words.next()? == way).then_some(time)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_that_of_its_size_and_way() {
        let said = "skipped\nfigure 8 120 cma\nfigure 64 300 cma\nfigure 8 99 xpmem copy, warm\n";
        assert_eq!(figure(said, 8, "cma"), Some(120.0));
        assert_eq!(figure(said, 8, "xpmem copy, warm"), Some(99.0));
        assert_eq!(figure(said, 64, "knem"), None);
    }

    #[test]
    fn every_way_is_held_against_a_bare_loop_and_names_what_is_measured() {
        let one = at_size(SIZES[0], 1, Path::new("/nowhere"));
        assert_eq!(one.group.comparisons.len(), WAYS.len() + BESIDE.len());
        for comparison in &one.group.comparisons {
            for label in [comparison.ours, comparison.rival] {
                assert!(one.series.iter().any(|series| series.label == label), "{label}");
            }
        }
    }
}
