//! The report as lines with reasons: long, and short for a first look.

use super::columns::{self, WIDTH, columns};
use crate::record::{Record, Verdict};
use crate::snapshot::{LaneView, LogView, PathView, Report};
use std::path::Path;

impl Report {
    /// Returns the recorded decisions about providers, domains and modules with their reasons, then paths, lanes, waits, warnings
    /// and log lines.
    #[must_use]
    pub fn why(&self) -> String {
        self.why_within(WIDTH)
    }

    /// Does the same as [`Report::why`], for a terminal of `width` columns.
    #[must_use]
    pub fn why_within(&self, width: usize) -> String {
        self.reasons(width, true)
    }

    /// Returns the main reasons, for a terminal of `width` columns. The text omits the modules that are used, the searched
    /// directories, lanes that are never used, and the first phase of waits. It omits log lines below `warn` except device events,
    /// and all but the first clause about a missing device. The last line names the command that shows the longer text.
    #[must_use]
    pub fn why_briefly_within(&self, width: usize) -> String {
        self.reasons(width, false) + "\n`tieline info --why --all` shows the rest\n"
    }

    fn reasons(&self, width: usize, all: bool) -> String {
        let (modules, providers): (Vec<&Record>, Vec<&Record>) =
            self.records.iter().partition(|record| record.domain.is_some());
        let folder = common_folder(&providers).filter(|_| !all);
        let files = folder.map(|folder| format!(", files in {}", folder.display()));
        let mut text = format!("{}PROVIDERS{}\n", self.title(), files.unwrap_or_default());
        text += &match &providers[..] {
            [] => format!("  none; looked in {}\n", self.searched),
            _ if all => lines_of(providers, width, Verdict::detail),
            _ => lines_of(providers, width, |verdict| in_short(verdict, folder)),
        };
        text.push('\n');
        if all {
            let searched = self.searched.split(':').filter(|directory| !directory.is_empty());
            let searched: Vec<String> = searched.map(str::to_owned).collect();
            text += &listed("DIRECTORIES SEARCHED FOR PROVIDERS, IN ORDER", &searched, width);
        }
        let shown: Vec<&Record> =
            modules.into_iter().filter(|record| all || !record.verdict.is_used()).collect();
        let heading =
            if all { "DOMAINS AND MODULES" } else { "DOMAINS AND MODULES THAT ARE NOT USED" };
        if !shown.is_empty() {
            text += &format!("{heading}\n{}\n", lines_of(shown, width, Verdict::detail));
        } else if all {
            text += &format!("{heading}\n  none\n\n");
        }
        let paths: Vec<Vec<String>> = self.paths.iter().flat_map(path_lines).collect();
        text += &section("PATHS", &columns::lines(&paths, 2));
        let lanes = self.lanes.iter().filter(|lane| all || self.matters(lane));
        let lanes = columns(&lane_rows(lanes), 2, width);
        text += &section("ORDER, FOR A PEER THAT EVERY MODULE REACHES", &lanes);
        if all {
            text += &listed("WAITS", std::slice::from_ref(&self.waits), width);
        }
        text += &listed("WARNINGS", &self.warnings, width);
        let told = |line: &&LogView| {
            all || line.event.is_some() || matches!(line.level.as_str(), "error" | "warn")
        };
        let log: Vec<Vec<String>> = self.log.iter().filter(told).map(log_row).collect();
        text += &section("LOG", &columns(&log, 2, width));
        text.trim_end().to_owned() + "\n"
    }

    /// Checks whether a lane is ever used: if another lane reaches all memory, emulation is not.
    fn matters(&self, lane: &LaneView) -> bool {
        let covers = |other: &LaneView| {
            other.via != "emulated"
                && other.role == lane.role
                && other.memory.as_deref() == Some("any")
        };
        lane.via != "emulated" || !self.lanes.iter().any(covers)
    }
}

/// Returns the folder of the providers' files, if all files lie in one folder. Providers that are built in do not count.
fn common_folder<'a>(providers: &[&'a Record]) -> Option<&'a Path> {
    let mut folders = providers.iter().filter_map(|record| match &record.verdict {
        Verdict::Found { origin, .. } if origin.starts_with('/') => Path::new(origin).parent(),
        _ => None,
    });
    let first = folders.next()?;
    folders.all(|folder| folder == first).then_some(first)
}

/// Formats the facts of a verdict on a provider. A file that lies in `folder` is shown by its name. The reason for a missing device
/// is cut to its first clause.
fn in_short(verdict: &Verdict, folder: Option<&Path>) -> String {
    match verdict {
        Verdict::Found { origin, version } => {
            let path = Path::new(origin);
            match path.file_name().filter(|_| folder.is_some() && path.parent() == folder) {
                Some(name) => format!("version {version}, {}", name.to_string_lossy()),
                None => verdict.detail(),
            }
        }
        Verdict::NotUsed { because } => {
            let end = [": ", "; "].iter().filter_map(|mark| because.find(mark)).min();
            because[..end.unwrap_or(because.len())].to_owned()
        }
        _ => verdict.detail(),
    }
}

/// Formats records as aligned lines of subject, decision and reason.
#[must_use]
pub fn record_lines<'a>(records: impl IntoIterator<Item = &'a Record>) -> String {
    lines_of(records, WIDTH, Verdict::detail)
}

/// Formats records as [`record_lines`] does, for a terminal of `width` columns; `detail` formats the reason.
fn lines_of<'a>(
    records: impl IntoIterator<Item = &'a Record>,
    width: usize,
    detail: impl Fn(&Verdict) -> String,
) -> String {
    let mut rows: Vec<Vec<String>> = records
        .into_iter()
        .map(|r| vec![r.subject(), r.verdict.state().to_owned(), detail(&r.verdict)])
        .collect();
    rows.sort_by(|a, b| a[0].cmp(&b[0])); // a stable sort keeps the order of one subject's records
    // A short reason omits where a provider lies, so two files of one provider may have the same line.
    rows.dedup();
    for at in (1..rows.len()).rev() {
        if rows[at][0] == rows[at - 1][0] {
            rows[at][0].clear();
        }
    }
    columns(&rows, 2, width)
}

/// Formats a heading above lines; empty without lines.
fn section(heading: &str, lines: &str) -> String {
    if lines.is_empty() { String::new() } else { format!("{heading}\n{lines}\n") }
}

/// Formats a heading and a line for each text; empty without texts.
pub(super) fn listed(heading: &str, texts: &[String], width: usize) -> String {
    let rows: Vec<Vec<String>> = texts.iter().map(|text| vec![text.clone()]).collect();
    section(heading, &columns(&rows, 2, width))
}

/// Returns the composed path, whose line is never broken, and then the reason that the path cannot be used, if there is one.
fn path_lines(path: &PathView) -> Vec<Vec<String>> {
    let composed = vec![path.domain.clone(), path.composed.clone()];
    let disabled = path.disabled.iter().map(|why| vec![String::new(), format!("disabled: {why}")]);
    std::iter::once(composed).chain(disabled).collect()
}

/// Returns a row for each lane; the first row of a role contains its name.
fn lane_rows<'a>(lanes: impl Iterator<Item = &'a LaneView>) -> Vec<Vec<String>> {
    let mut role = "";
    let row = |lane: &'a LaneView| {
        let first = if lane.role == role { String::new() } else { lane.role.clone() };
        role = &lane.role;
        vec![first, lane.via.clone(), lane.because.clone()]
    };
    lanes.map(row).collect()
}

fn log_row(line: &LogView) -> Vec<String> {
    let event = line.event.as_ref().map(|event| event.replace('_', " ") + ": ");
    let words = event.unwrap_or_default() + &line.text;
    vec![line.level.clone(), line.provider.clone(), words]
}
