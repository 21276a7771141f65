//! The table, and target/bench/{report,lab}.{json,md,svg}.

use super::groups::Group;
use super::{Row, Series, svg};
use crate::sh::{Outcome, capture, command, make_folder, target, which, write as write_file};
use serde_json::{Value, json};
use std::fmt::Write;

/// What the figures were measured on.
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) kernel: String,
    pub(crate) rivals: String,
    /// Load before the first measurement.
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

    /// Where the figures of this machine are from.
    pub(crate) fn line(&self, rounds: usize) -> String {
        format!(
            "{}, Linux {}; {}; medians of {rounds} rounds in turn, on processors 0 and 1.",
            self.processor, self.kernel, self.rivals
        )
    }
}

/// The table as Markdown, with columns that line up in a terminal too.
pub(crate) fn table(rows: &[Row]) -> String {
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

/// A report's files: target/bench/NAME.{json,md,svg}.
pub(crate) struct Report<'a> {
    pub(crate) name: &'static str,
    pub(crate) machine: &'a Machine,
    /// In a line, what was measured where.
    pub(crate) line: String,
    pub(crate) rounds: usize,
    /// Each as [`group_json`] makes it.
    pub(crate) groups: Vec<Value>,
    pub(crate) rows: &'a [Row],
    /// The table, and what belongs below it.
    pub(crate) text: String,
}

/// Writes all three files.
pub(crate) fn write(report: &Report<'_>) -> Outcome {
    let Report { name, machine, line, rounds, groups, rows, text } = report;
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
        "groups": groups,
        "rows": rows.iter().map(row_json).collect::<Vec<_>>(),
    });
    let pretty = serde_json::to_string_pretty(&json).unwrap_or_default();
    let file = |end: &str| dir.join(format!("{name}.{end}"));
    write_file(file("json"), pretty + "\n")?;
    write_file(file("md"), format!("{text}\n{line}\n"))?;
    write_file(file("svg"), svg::draw(rows, line))?;
    println!("written: {}/{name}.json, {name}.md, {name}.svg", dir.display());
    Ok(())
}

/// A group with every round.
pub(crate) fn group_json<S>(group: &Group<S>, series: &[Series]) -> Value {
    let measured: Vec<Value> = series
        .iter()
        .map(|s| {
            json!({
                "label": s.label,
                "median": s.median(),
                "best": s.best(),
                "rounds": s.rounds,
                "missing": s.missing,
            })
        })
        .collect();
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
