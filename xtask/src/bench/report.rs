//! Writes the table, and target/bench/{report,lab}.{json,md,svg}.

use super::groups::Group;
use super::{Measured, Row, Series, compare, svg};
use crate::sh::{self, Outcome, capture, command, heading, make_folder, target, which};
use serde_json::{Value, json};
use std::fmt::Write;

pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) kernel: String,
    pub(crate) rivals: String,
    pub(crate) load: f64,
}

impl Machine {
    pub(crate) fn look() -> Machine {
        let read = |file| std::fs::read_to_string(file).unwrap_or_default();
        let cpus = read("/proc/cpuinfo");
        let model =
            cpus.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
        let count = cpus.lines().filter(|line| line.starts_with("processor")).count();
        let load = read("/proc/loadavg");
        let first = |program: &str, args: &[&str]| {
            let _ = which(program)?;
            let said = capture(&mut command(program, args)).ok()?;
            let line = said.lines().find(|line| line.chars().any(|c| c.is_ascii_digit()))?;
            Some(line.trim_start_matches(['#', ' ']).to_owned())
        };
        let rivals = [first("ucx_info", &["-v"]), first("mpirun", &["--version"])];
        Machine {
            processor: format!("{} ({count} processors)", model.unwrap_or("unknown").trim()),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            rivals: rivals.into_iter().flatten().collect::<Vec<_>>().join("; "),
            load: load.split(' ').next().and_then(|l| l.parse().ok()).unwrap_or(0.0),
        }
    }
}

fn table(rows: &[Row]) -> String {
    let head =
        ["what", "tieline", "beside", "it has", "ratio", "aim", "reached"].map(str::to_owned);
    let mut cells = vec![head];
    for row in rows {
        let sign = if row.is_better_lower { "<=" } else { ">=" };
        cells.push([
            row.what.to_owned(),
            row.ours.clone(),
            row.rival.clone(),
            row.theirs.clone(),
            format!("{:.2}", row.ratio),
            row.aim.map_or("-".into(), |aim| format!("{sign} {aim:.2}")),
            row.reached().map_or("-", |yes| if yes { "yes" } else { "no" }).to_owned(),
        ]);
    }
    let width = |column: usize| cells.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..7).map(width).collect();
    let mut out = String::new();
    for (number, row) in cells.iter().enumerate() {
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let _ = match column {
                0 | 2 | 6 => write!(out, "| {cell:<width$} "),
                _ => write!(out, "| {cell:>width$} "),
            };
        }
        out.push_str("|\n");
        if number == 0 {
            for (column, width) in widths.iter().enumerate() {
                let right = if matches!(column, 0 | 2 | 6) { "-" } else { ":" };
                let _ = write!(out, "|{}{right}", "-".repeat(width + 1));
            }
            out.push_str("|\n");
        }
    }
    out
}

/// Prints the table and writes target/bench/NAME.{json,md,svg}; `line` describes the machine.
pub(crate) fn finish<S>(
    (name, title): (&str, &str),
    line: &str,
    rounds: usize,
    machine: &Machine,
    all: &[Measured<S>],
) -> Outcome {
    let rows: Vec<Row> = all.iter().flat_map(|one| compare(&one.group, &one.series)).collect();
    heading(title);
    let notes = notes(all);
    let text = table(&rows) + if notes.is_empty() { "" } else { "\n" } + &notes;
    println!("{text}");
    let dir = target().join("bench");
    make_folder(&dir)?;
    let json = json!({
        "machine": {
            "processor": machine.processor,
            "kernel": machine.kernel,
            "rivals": machine.rivals,
            "load": machine.load,
        },
        "rounds": rounds,
        "groups": all.iter().map(|one| group_json(&one.group, &one.series)).collect::<Vec<_>>(),
        "rows": rows.iter().map(row_json).collect::<Vec<_>>(),
    });
    let pretty = serde_json::to_string_pretty(&json).unwrap_or_default();
    let file = |end: &str| dir.join(format!("{name}.{end}"));
    sh::write(file("json"), pretty + "\n")?;
    sh::write(file("md"), format!("{text}\n{line}\n"))?;
    sh::write(file("svg"), svg::draw(&rows, line))?;
    println!("written: {}/{name}.json, {name}.md, {name}.svg", dir.display());
    Ok(())
}

/// Returns the number of rounds of a group in each placement of the processors: `near 2, far 5`.
fn placements(series: &[Series]) -> String {
    let Some(longest) = series.iter().map(|s| &s.placements).max_by_key(|all| all.len()) else {
        return String::new();
    };
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for word in longest.iter().map(|place| place.word()) {
        match counts.iter_mut().find(|(known, _)| *known == word) {
            Some((_, count)) => *count += 1,
            None => counts.push((word, 1)),
        }
    }
    let words: Vec<String> = counts.iter().map(|(word, n)| format!("{word} {n}")).collect();
    words.join(", ")
}

/// Returns a list of the properties that the rows have in common and of their differences.
fn notes<S>(all: &[Measured<S>]) -> String {
    let mut text = String::new();
    let mut by_placement: Vec<(String, Vec<&str>)> = Vec::new();
    for one in all {
        let placed = placements(&one.series);
        match by_placement.iter_mut().find(|(known, _)| *known == placed) {
            _ if placed.is_empty() => {}
            Some((_, groups)) => groups.push(one.group.what),
            None => by_placement.push((placed, vec![one.group.what])),
        }
    }
    let is_one = by_placement.len() == 1;
    for (placed, groups) in by_placement {
        let groups = if is_one { "every row".to_owned() } else { groups.join("; ") };
        text.push_str(&format!("* rounds by distance of the processors: {placed} ({groups})\n"));
    }
    for one in all.iter().filter(|one| !one.note.is_empty()) {
        if !text.contains(one.note) {
            text.push_str(&format!("* {}: {}\n", one.group.what, one.note));
        }
    }
    text
}

fn group_json<S>(group: &Group<S>, series: &[Series]) -> Value {
    let one = |s: &Series| {
        json!({
            "label": s.label,
            "median": s.median(),
            "best": s.best(),
            "rounds": s.rounds,
            "placements": s.placements.iter().map(|place| place.word()).collect::<Vec<_>>(),
            "missing": s.missing,
        })
    };
    let measured: Vec<Value> = series.iter().map(one).collect();
    json!({ "what": group.what, "unit": format!("{:?}", group.unit).to_lowercase(), "series": measured })
}

fn row_json(row: &Row) -> Value {
    json!({
        "what": row.what,
        "rival": row.rival,
        "ratio": row.ratio,
        "aim": row.aim,
        "lower_is_better": row.is_better_lower,
        "reached": row.reached(),
    })
}
