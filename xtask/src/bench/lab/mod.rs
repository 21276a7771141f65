//! `cargo xtask bench --lab`: compares Tieline with perftest and UCX on the same soft RoCE device, between two hosts of the lab. On
//! one host, it compares the single-copy providers with loops without Tieline (`copies.rs`). The hosts are emulated, so the ratio
//! of two figures of one run is meaningful, and a time is not.
//!
//! All rounds of a group are one script, so that the hosts do not change between two measurements. A figure of speed is the
//! program's own value (its median time, its average bandwidth); the table contains the median of the rounds.

mod copies;
mod groups;
mod pair;

use super::groups::{Comparison, Group, Unit};
use super::report::{self, Machine};
use super::source::compiled;
use super::{QUICK_ROUNDS, ROUNDS, Series, say};
use crate::lab::Hosts;
use crate::setup;
use crate::sh::{Outcome, cargo, heading, run, show_time};
use pair::Pair;
use std::path::Path;
use std::time::{Duration, Instant};

/// The time limit of one measurement in seconds, on a busy machine.
const PATIENCE: u64 = 60;

/// The functions of the scripts. A pair that failed once is omitted in the following rounds.
const FUNCTIONS: &str = r#"
export TIELINE_PROVIDER_PATH="$TARGET/release" TIELINE_SECRET=lab TIELINE_ATOMICS=device
export UCX_IB_GID_INDEX="$GID"
offer() {
    local pair=$1 round=$2 port=$3
    shift 3
    [ -e "$RESULTS/signals/broken-$pair" ] ||
        serve "$port" timeout "$PATIENCE" "$@" > "$RESULTS/$pair-$round.server" 2>&1
}
take() {
    local pair=$1 round=$2 port=$3
    shift 3
    [ ! -e "$RESULTS/signals/broken-$pair" ] || return
    await "port-$port" > /dev/null
    timeout "$PATIENCE" "$@" > "$RESULTS/$pair-$round.out" 2> "$RESULTS/$pair-$round.err" ||
        signal "broken-$pair"
}
"#;

type Measured = super::Measured<Pair>;

pub(super) fn measure(quick: bool, only: &str) -> Outcome {
    let is_wanted = |what: &str| what.contains(only);
    let (mut speed, mut instructions) = (groups::speed(), groups::instructions());
    speed.retain(|beside| is_wanted(beside.group.what));
    instructions.retain(|kind| is_wanted(kind.turn.group.what));
    if speed.is_empty() && instructions.is_empty() && !is_wanted(copies::WHAT) {
        return Err(format!("no group has `{only}` in its name"));
    }
    heading("setup");
    setup::install_or_say(setup::BENCH);
    let packages = ["-p", "tieline-tools", "-p", "tieline-provider-verbs-plugin"];
    run(cargo(&["build", "--release"]).args(packages))?;
    if is_wanted(copies::WHAT) {
        copies::build()?;
    }
    // If the program that counts instructions is missing, the other figures are still measured.
    if let Err(text) = compiled("cc", "xtask/src/steps.c", "", "linux-libc-dev") {
        println!("instructions are not counted: {text}");
    }
    let machine = Machine::look();
    let started = Instant::now();
    let mut hosts = match Hosts::boot() {
        Ok(hosts) => hosts,
        Err(why) => {
            println!("skipped: {why}");
            return Ok(());
        }
    };
    println!("2 hosts up in {}", show_time(started.elapsed()));
    let rounds = if quick { QUICK_ROUNDS } else { ROUNDS };
    let mut all = Vec::new();
    for beside in speed {
        all.push(one_group(&mut hosts, beside, rounds)?);
    }
    for kind in instructions {
        let turn = one_group(&mut hosts, kind.turn, 1)?;
        let post = one_group(&mut hosts, kind.post, 1)?;
        let rest = rest(kind.rest, &turn, &post);
        all.extend([turn, post, rest]);
    }
    drop(hosts);
    if is_wanted(copies::WHAT) {
        all.extend(copies::measure(rounds)?);
    }
    let title = format!(
        "Tieline beside perftest and UCX in the lab ({rounds} rounds, {})",
        show_time(started.elapsed())
    );
    let line = format!(
        "Two emulated hosts (qemu TCG, one processor each) with soft RoCE, on {}; medians of {rounds} rounds in \
         turn. Only the ratios mean something.",
        machine.processor
    );
    report::finish(("lab", &title), &line, rounds, &machine, &all)
}

fn one_group(hosts: &mut Hosts, beside: Measured, rounds: usize) -> Outcome<Measured> {
    let Measured { group, note, .. } = beside;
    heading(group.what);
    let new = |(label, pair): &(&str, Pair)| Series::new(label, group.unit, pair.needs());
    let mut series: Vec<Series> = group.sources.iter().map(new).collect();
    let there: Vec<bool> = series.iter().map(|one| one.missing.is_none()).collect();
    let script = script(&group, &there, rounds);
    let name: String =
        group.what.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let measurements = (group.sources.len() * rounds) as u64;
    // Output after the timeout is dropped; output before the timeout counts.
    let timeout = Duration::from_secs(30 + measurements * PATIENCE / 2);
    let ended = hosts.run(&name, &script, timeout);
    let results = hosts.results(&name);
    for (at, ((_, pair), series)) in group.sources.iter().zip(&mut series).enumerate() {
        for round in 0..rounds {
            if series.missing.is_none() {
                series.add(read(&results, at, round, pair));
            }
        }
    }
    if let Err(why) = ended {
        println!("{why}");
    }
    say(&series);
    Ok(Measured { group, series, note })
}

fn read(results: &Path, pair: usize, round: usize, of: &Pair) -> Outcome<f64> {
    let text = |end: &str| {
        std::fs::read_to_string(results.join(format!("{pair}-{round}.{end}"))).unwrap_or_default()
    };
    of.read(&text("out")).map_err(|why| match text("err").lines().last() {
        Some(last) => format!("{why}: {last}"),
        None => why,
    })
}

fn script(group: &Group<Pair>, there: &[bool], rounds: usize) -> String {
    let part = |offers: bool| {
        let mut text = String::new();
        for round in 0..rounds {
            let sources = group.sources.iter().enumerate().filter(|(at, _)| there[*at]);
            for (at, (_, pair)) in sources {
                let port = 20_000 + (round * group.sources.len() + at) as u16;
                let (word, command) =
                    if offers { ("offer", pair.server(port)) } else { ("take", pair.client(port)) };
                text.push_str(&format!("    {word} {at} {round} {port} {command}\n"));
            }
        }
        text + "    true\n"
    };
    let (offers, takes) = (part(true), part(false));
    format!("PATIENCE={PATIENCE}\n{FUNCTIONS}\nh0() {{\n{offers}}}\nh1() {{\n{takes}}}\n")
}

/// Computes the instructions of a turn without those of its post.
fn rest(what: &'static str, turn: &Measured, post: &Measured) -> Measured {
    let series = turn.series.iter().zip(&post.series).map(|(turn, post)| {
        let mut series = Series::new(&turn.label, Unit::Instructions, None);
        let rest = turn.median().zip(post.median()).map(|(turn, post)| turn - post);
        series.add(rest.ok_or_else(|| "a part of it is missing".to_owned()));
        series
    });
    let group = &turn.group;
    let comparisons = group.comparisons.iter().map(|c| Comparison { what: None, aim: None, ..*c });
    let (sources, comparisons) = (Vec::new(), comparisons.collect());
    let group = Group { what, unit: Unit::Instructions, sources, comparisons };
    Measured { group, series: series.collect(), note: "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_offers_and_takes_the_same_ports_in_the_same_order() {
        for beside in groups::speed() {
            let there = vec![true; beside.group.sources.len()];
            let script = script(&beside.group, &there, 3);
            let ports = |word: &str| -> Vec<String> {
                let lines = script.lines().filter(|line| line.starts_with(&format!("    {word} ")));
                lines.filter_map(|line| line.split_whitespace().nth(3)).map(str::to_owned).collect()
            };
            assert_eq!(ports("offer"), ports("take"));
            assert_eq!(ports("offer").len(), 3 * there.len());
        }
    }
}
