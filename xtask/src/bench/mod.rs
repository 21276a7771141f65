//! `cargo xtask bench`: Tieline beside its rivals, in turn, in one run, on the same two processors.
//!
//! A group is measured round by round (A B C, A B C, ...), so that a disturbance hits all of them. The table
//! has the median of the rounds; the JSON the best and every round too. A rival that is not installed is
//! left out and said to be.

mod groups;
mod report;
mod source;
mod svg;

use crate::setup;
use crate::sh::{Outcome, cargo, heading, is_root, show_time, target};
use groups::{Better, Group, Unit};
use source::Source;
use std::time::Instant;

/// Rounds of each group.
const ROUNDS: usize = 7;
const QUICK_ROUNDS: usize = 3;

/// One measured thing: every round.
pub(crate) struct Series {
    pub(crate) label: String,
    pub(crate) unit: Unit,
    pub(crate) better: Better,
    pub(crate) rounds: Vec<f64>,
    /// Why there is none.
    pub(crate) missing: Option<String>,
}

impl Series {
    pub(crate) fn median(&self) -> Option<f64> {
        let mut sorted = self.rounds.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => None,
            n if n % 2 == 1 => Some(sorted[middle]),
            _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
        }
    }

    pub(crate) fn best(&self) -> Option<f64> {
        let best = |a: f64, b: f64| match self.better {
            Better::Lower => a.min(b),
            Better::Higher => a.max(b),
        };
        self.rounds.iter().copied().reduce(best)
    }
}

/// One line of the table: ours against one of theirs.
pub(crate) struct Row {
    pub(crate) what: &'static str,
    pub(crate) ours: String,
    pub(crate) theirs: String,
    pub(crate) rival: String,
    /// Ours / theirs, of the medians.
    pub(crate) ratio: f64,
    pub(crate) aim: Option<f64>,
    pub(crate) better: Better,
}

impl Row {
    /// Whether the aim is reached, where there is one.
    pub(crate) fn reached(&self) -> Option<bool> {
        self.aim.map(|aim| match self.better {
            Better::Lower => self.ratio <= aim,
            Better::Higher => self.ratio >= aim,
        })
    }
}

pub(crate) fn run(quick: bool) -> Outcome {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return Err("a comparison needs two processors, and this machine has one".into());
    }
    heading("setup");
    if is_root() {
        setup::install_or_say(setup::BENCH);
    }
    crate::sh::run(&mut cargo(&["build", "--release"]))?;
    let started = Instant::now();
    let machine = report::Machine::look();
    if machine.load > 0.5 {
        println!("note: the load is {:.2}; figures from a busy machine mean nothing", machine.load);
    }
    let rounds = if quick { QUICK_ROUNDS } else { ROUNDS };
    let mut measured = Vec::new();
    for group in groups::all() {
        heading(group.what);
        let series = measure(&group, rounds, quick);
        measured.push((group, series));
    }
    let rows: Vec<Row> =
        measured.iter().flat_map(|(group, series)| compare(group, series)).collect();
    heading(&format!(
        "Tieline beside its rivals ({rounds} rounds, {})",
        show_time(started.elapsed())
    ));
    let table = report::table(&rows);
    println!("{table}");
    let dir = target().join("bench");
    report::write(&dir, &machine, rounds, &measured, &rows, &table)?;
    println!("written: {}/report.json, report.md, report.svg", dir.display());
    Ok(())
}

fn measure(group: &Group, rounds: usize, quick: bool) -> Vec<Series> {
    let mut all: Vec<Series> = group
        .sources
        .iter()
        .map(|(label, source)| Series {
            label: (*label).to_owned(),
            unit: group.unit,
            better: group.better,
            rounds: Vec::new(),
            missing: source.missing(),
        })
        .collect();
    for _ in 0..rounds {
        for (series, (_, source)) in all.iter_mut().zip(&group.sources) {
            if series.missing.is_none() {
                match source.measure(quick) {
                    Ok(value) => series.rounds.push(value),
                    Err(why) => series.missing = Some(why),
                }
            }
        }
    }
    for series in &all {
        match (series.median(), &series.missing) {
            (Some(median), None) => println!("{:<34} {}", series.label, series.unit.show(median)),
            (_, why) => println!(
                "{:<34} skipped: {}",
                series.label,
                why.as_deref().unwrap_or("no round was measured")
            ),
        }
    }
    all
}

/// Ours is the first of the group, or the one that a comparison names.
fn compare(group: &Group, series: &[Series]) -> Vec<Row> {
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
            better: group.better,
        })
    };
    group.comparisons.iter().filter_map(row).collect()
}

impl Source {
    /// Why this cannot be measured here.
    fn missing(&self) -> Option<String> {
        let program = self.needs()?;
        crate::sh::which(program).is_none().then(|| format!("{program} is not installed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_one_disturbed_round() {
        let series = |rounds: &[f64]| Series {
            label: String::new(),
            unit: Unit::Time,
            better: Better::Lower,
            rounds: rounds.to_vec(),
            missing: None,
        };
        assert_eq!(series(&[70.0, 900.0, 72.0]).median(), Some(72.0));
        assert_eq!(series(&[70.0, 72.0]).median(), Some(71.0));
        assert_eq!(series(&[70.0, 900.0]).best(), Some(70.0));
        assert_eq!(series(&[]).median(), None);
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
}
