//! `cargo xtask bench`: compares Tieline with its rivals, in turn, in one run, on the same two processors. With `--lab`, the
//! comparison uses the same RDMA device of two hosts of the lab.
//!
//! A group is measured round by round (A B C, A B C, ...), so that a disturbance affects all members of the group. The table
//! contains the median of the rounds; the JSON also contains the best and every round. A rival whose program is not installed is
//! omitted and reported as missing.

mod groups;
mod lab;
mod ranks;
mod report;
mod source;
mod svg;

use crate::setup;
use crate::sh::{Outcome, cargo, heading, is_root, show_time, which};
use groups::{Group, Unit};
use source::Source;
use std::time::Instant;

const ROUNDS: usize = 7;
const QUICK_ROUNDS: usize = 3;

/// The distance of the two processors in a round. A virtual machine's processors may move between rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    Near,
    Far,
    Moved,
    Unknown,
}

impl Placement {
    fn between(before: Option<bool>, after: Option<bool>) -> Placement {
        match (before, after) {
            (Some(false), Some(false)) => Placement::Near,
            (Some(true), Some(true)) => Placement::Far,
            (Some(_), Some(_)) => Placement::Moved,
            _ => Placement::Unknown,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Placement::Near => "near",
            Placement::Far => "far",
            Placement::Moved => "moved",
            Placement::Unknown => "unknown",
        }
    }
}

/// The figures of one source: every round.
pub(crate) struct Series {
    pub(crate) label: String,
    pub(crate) unit: Unit,
    pub(crate) rounds: Vec<f64>,
    /// The placement of the processors during each round that was measured.
    pub(crate) placements: Vec<Placement>,
    pub(crate) missing: Option<String>,
}

impl Series {
    /// Makes a series without rounds. If the required program is not installed, the series is missing.
    fn new(label: &str, unit: Unit, needs: Option<&str>) -> Series {
        let missing = needs.filter(|program| which(program).is_none());
        let missing = missing.map(|program| format!("{program} is not installed"));
        Series {
            label: label.to_owned(),
            unit,
            rounds: Vec::new(),
            placements: Vec::new(),
            missing,
        }
    }

    fn add(&mut self, round: Outcome<f64>) {
        match round {
            Ok(value) => self.rounds.push(value),
            Err(why) => self.missing = Some(why),
        }
    }

    pub(crate) fn median(&self) -> Option<f64> {
        median(self.rounds.clone())
    }

    /// Returns the median of the rounds of each placement, as text; empty if all rounds had one placement.
    fn by_placement(&self) -> String {
        let mut text = String::new();
        for placement in [Placement::Near, Placement::Far, Placement::Moved] {
            let of_it = self.rounds.iter().zip(&self.placements).filter(|(_, p)| **p == placement);
            let rounds: Vec<f64> = of_it.map(|(round, _)| *round).collect();
            let count = rounds.len();
            if let Some(median) = median(rounds).filter(|_| count < self.rounds.len()) {
                let (word, median) = (placement.word(), self.unit.show(median));
                text.push_str(&format!("; {word} ({count} rounds): {median}"));
            }
        }
        text
    }

    pub(crate) fn best(&self) -> Option<f64> {
        let best = if self.unit.is_better_lower() { f64::min } else { f64::max };
        self.rounds.iter().copied().reduce(best)
    }
}

fn median(mut rounds: Vec<f64>) -> Option<f64> {
    rounds.sort_by(f64::total_cmp);
    let last = rounds.len().checked_sub(1)?;
    Some((rounds[last / 2] + rounds[last.div_ceil(2)]) / 2.0)
}

struct Measured<S> {
    group: Group<S>,
    series: Vec<Series>,
    note: &'static str,
}

/// One row of the table: a figure of Tieline against one of a rival.
pub(crate) struct Row {
    pub(crate) what: &'static str,
    pub(crate) ours: String,
    pub(crate) theirs: String,
    pub(crate) rival: String,
    pub(crate) ratio: f64,
    pub(crate) aim: Option<f64>,
    pub(crate) is_better_lower: bool,
}

impl Row {
    /// Checks whether the aim is reached; `None` if there is no aim.
    pub(crate) fn reached(&self) -> Option<bool> {
        let is_lower = self.is_better_lower;
        self.aim.map(|aim| if is_lower { self.ratio <= aim } else { self.ratio >= aim })
    }
}

const HELP: &str = "\
cargo xtask bench [--quick] [--only WORDS]
                                    tieline perf beside the rivals that are installed (UCX, Open MPI, sockperf, iperf3, libfabric) on
                                    this machine: shared memory, single copy, TCP on loopback, start-up, memory,
                                    more ranks than processors.
                                    Needs two quiet processors. Writes target/bench/report.{json,md,svg}
cargo xtask bench --lab [--quick] [--only WORDS]
                                    tieline perf beside perftest (ib_write_lat, ib_write_bw, ib_send_lat, ...) and
                                    ucx_perftest -x rc_verbs on the same soft RoCE device, between two emulated hosts
                                    (docs/lab.md), and the instructions of a post and a poll of each. Only the ratios
                                    mean something. Writes target/bench/lab.{json,md,svg}

  --quick         3 rounds instead of 7, and shorter ones on this machine
  --only WORDS    only the groups whose name has these words: --only oversubscribed, --lab --only '8 B put'

Both build what they measure (release), and leave out what is not installed.
";

pub(crate) fn run(words: &[&str]) -> Outcome {
    let (mut quick, mut in_the_lab, mut only) = (false, false, "");
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            "--quick" => quick = true,
            "--only" => only = words.next().ok_or("--only needs words of a group's name")?,
            "--lab" => in_the_lab = true,
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(());
            }
            _ => return Err(format!("no such option: {word}; see cargo xtask bench --help")),
        }
    }
    if in_the_lab { lab::measure(quick, only) } else { here(quick, only) }
}

fn here(quick: bool, only: &str) -> Outcome {
    let mut groups = groups::all();
    groups.retain(|group| group.what.contains(only));
    if groups.is_empty() {
        return Err(format!("no group has `{only}` in its name"));
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return Err("a comparison needs two processors, and this machine has one".into());
    }
    heading("setup");
    if is_root() {
        setup::install_or_say(setup::BENCH);
    }
    crate::sh::run(&mut cargo(&["build", "--release"]))?;
    let examples = ["--example", "halo", "--example", "counter"];
    crate::sh::run(cargo(&["build", "--release", "-p", "tieline"]).args(examples))?;
    let runtime = ["build", "--release", "-p", "tieline-runtime", "--example", "tags"];
    crate::sh::run(&mut cargo(&runtime))?;
    let started = Instant::now();
    let machine = report::Machine::look();
    if machine.load > 0.5 {
        println!("note: the load is {:.2}; figures from a busy machine mean nothing", machine.load);
    }
    let rounds = if quick { QUICK_ROUNDS } else { ROUNDS };
    let mut measured = Vec::new();
    for group in groups {
        heading(group.what);
        let series = measure(&group, rounds, quick);
        measured.push(Measured { group, series, note: "" });
    }
    let title =
        format!("Tieline beside its rivals ({rounds} rounds, {})", show_time(started.elapsed()));
    let line = format!(
        "{}, Linux {}; {}; medians of {rounds} rounds in turn, on processors 0 and 1.",
        machine.processor, machine.kernel, machine.rivals
    );
    report::finish(("report", &title), &line, rounds, &machine, &measured)
}

fn measure(group: &Group, rounds: usize, quick: bool) -> Vec<Series> {
    let new = |(label, source): &(&str, Source)| Series::new(label, group.unit, source.needs);
    let mut all: Vec<Series> = group.sources.iter().map(new).collect();
    let mut before = source::is_far();
    for _ in 0..rounds {
        let counts: Vec<usize> = all.iter().map(|series| series.rounds.len()).collect();
        for (series, (_, source)) in all.iter_mut().zip(&group.sources) {
            if series.missing.is_none() {
                series.add((source.measure)(group.unit, quick));
            }
        }
        let after = source::is_far();
        for (series, count) in all.iter_mut().zip(counts) {
            if series.rounds.len() > count {
                series.placements.push(Placement::between(before, after));
            }
        }
        before = after;
    }
    say(&all);
    all
}

fn say(all: &[Series]) {
    for series in all {
        match (series.median(), &series.missing) {
            (Some(median), None) => {
                let (median, by_place) = (series.unit.show(median), series.by_placement());
                println!("{:<34} {median}{by_place}", series.label);
            }
            (_, Some(why)) => println!("{:<34} skipped: {why}", series.label),
            (None, None) => println!("{:<34} skipped: no round was measured", series.label),
        }
    }
}

/// Compares the series of a group. The series of Tieline is the first of the group, or the one that a comparison names.
fn compare<S>(group: &Group<S>, series: &[Series]) -> Vec<Row> {
    let find = |label: &str| series.iter().find(|s| s.label == label);
    let row = |c: &groups::Comparison| {
        let (ours, theirs) = (find(c.ours)?, find(c.rival)?);
        let (a, b) = (ours.median()?, theirs.median()?);
        Some(Row {
            what: c.what.unwrap_or(group.what),
            ours: group.unit.show(a),
            theirs: group.unit.show(b),
            rival: theirs.label.clone(),
            ratio: a / b,
            aim: c.aim,
            is_better_lower: group.unit.is_better_lower(),
        })
    };
    group.comparisons.iter().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_one_disturbed_round() {
        let series = |rounds: &[f64]| Series {
            rounds: rounds.to_vec(),
            ..Series::new("", Unit::Time, None)
        };
        assert_eq!(series(&[70.0, 900.0, 72.0]).median(), Some(72.0));
        assert_eq!(series(&[70.0, 72.0]).median(), Some(71.0));
        assert_eq!(series(&[70.0, 900.0]).best(), Some(70.0));
        assert_eq!(series(&[]).median(), None);
    }

    #[test]
    fn rounds_of_another_placement_have_their_own_median() {
        let placements = |words: &[Placement]| Series {
            rounds: vec![50.0, 150.0, 52.0],
            placements: words.to_vec(),
            ..Series::new("", Unit::Time, None)
        };
        use Placement::{Far, Moved, Near};
        assert_eq!(placements(&[Near, Near, Near]).by_placement(), "");
        let mixed = placements(&[Near, Far, Near]).by_placement();
        assert_eq!(mixed, "; near (2 rounds): 51 ns; far (1 rounds): 150 ns");
        assert_eq!(Placement::between(Some(true), Some(false)), Moved);
        assert_eq!(Placement::between(Some(true), None), Placement::Unknown);
    }

    #[test]
    fn every_comparison_names_what_its_group_measures() {
        for group in groups::all() {
            for comparison in &group.comparisons {
                for label in [comparison.ours, comparison.rival] {
                    assert!(
                        group.sources.iter().any(|(l, _)| *l == label),
                        "{label} in {}",
                        group.what
                    );
                }
            }
        }
    }

    /// Returns the minimum and the maximum value that a printed figure can represent: `52.5 M/s` or `3.10`.
    fn range(figure: &str) -> (f64, f64) {
        let (number, unit) = figure.split_once(' ').unwrap_or((figure, ""));
        let decimals = number.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        let value: f64 = number.parse().unwrap_or_else(|_| panic!("{figure} is no figure"));
        let scale = match unit {
            "ns" | "" | "/s" | "B/s" => 1.0,
            "us" | "k/s" | "kB/s" => 1e3,
            "ms" | "M/s" | "MB/s" => 1e6,
            "G/s" | "GB/s" => 1e9,
            "KiB" => 1024.0,
            _ => panic!("{figure} has no unit of the table"),
        };
        // The factor is slightly more than half of the last digit, because a value such as 1.005 is not exact in binary.
        let half = 0.5001 / 10f64.powi(decimals as i32);
        ((value - half) * scale, (value + half) * scale)
    }

    #[test]
    fn published_bench_table_matches_comparisons() {
        let readme = std::fs::read_to_string(crate::sh::root().join("docs/benchmarks.md")).unwrap();
        let (_, rest) = readme.split_once("<!-- bench table -->\n").unwrap();
        let (table, _) = rest.split_once("<!-- end of bench table -->").unwrap();
        let mut lines = table.lines().map(|line| {
            let cells = line.trim_matches('|').split('|').map(str::trim);
            <[&str; 7]>::try_from(cells.collect::<Vec<_>>()).expect("seven columns")
        });
        let head = lines.next().unwrap();
        assert_eq!(head, ["what", "tieline", "beside", "it has", "ratio", "aim", "reached"]);
        assert!(lines.next().unwrap()[0].starts_with('-'));

        let groups = groups::all();
        let known =
            groups.iter().flat_map(|group| group.comparisons.iter().map(move |c| (group, c)));
        let known: Vec<_> = known.map(|(g, c)| (c.what.unwrap_or(g.what), c, g.unit)).collect();
        let mut rows = 0;
        for [what, ours, beside, theirs, ratio, aim, reached] in lines {
            let (_, comparison, unit) = known
                .iter()
                .find(|(name, comparison, _)| *name == what && comparison.rival == beside)
                .unwrap_or_else(|| panic!("{what} beside {beside} is measured no more"));
            let is_lower = unit.is_better_lower();
            let sign = if is_lower { "<=" } else { ">=" };
            let bound = comparison.aim.map_or("-".to_owned(), |aim| format!("{sign} {aim:.2}"));
            assert_eq!(aim, bound, "{what} beside {beside}");

            let ((low, high), (ours, theirs)) = (range(ratio), (range(ours), range(theirs)));
            let fits = ours.0 / theirs.1 <= high && low <= ours.1 / theirs.0;
            assert!(fits, "{what} beside {beside}: the ratio is not {ratio}");
            // If a figure and its aim are printed as the same number, either verdict is right.
            let said = |ratio: f64| match comparison.aim {
                None => "-",
                Some(aim) if ratio == aim || is_lower == (ratio < aim) => "yes",
                _ => "no",
            };
            assert!([said(low), said(high)].contains(&reached), "{what} beside {beside}: {ratio}");
            rows += 1;
        }
        assert!(rows > 0, "the table is empty");
    }
}
