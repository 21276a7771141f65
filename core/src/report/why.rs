//! The report as lines with reasons: complete, and short for a first look.

use std::path::Path;

use super::{LaneView, LogView, PathView, Report, text};
use crate::explain::{Record, Verdict};

impl Report {
    /// Returns one line with a reason for each module and provider that is used, and for each that is not.
    #[must_use]
    pub fn why(&self) -> String {
        self.why_within(text::WIDTH)
    }

    /// Does the same as [`Report::why`], for a terminal of `width` columns.
    #[must_use]
    pub fn why_within(&self, width: usize) -> String {
        let mut text = self.title();
        let (modules, providers): (Vec<&Record>, Vec<&Record>) =
            self.records.iter().partition(|record| record.domain.is_some());
        text.push_str("PROVIDERS\n");
        text.push_str(&if providers.is_empty() {
            format!("  none; looked in {}\n", self.searched)
        } else {
            record_lines_within(providers, width, Verdict::detail)
        });
        let searched: Vec<String> = self
            .searched
            .split(':')
            .filter(|directory| !directory.is_empty())
            .map(str::to_owned)
            .collect();
        text.push('\n');
        text.push_str(&listed("DIRECTORIES SEARCHED FOR PROVIDERS, IN ORDER", &searched, width));
        text.push_str("DOMAINS AND MODULES\n");
        text.push_str(&if modules.is_empty() {
            "  none\n".to_owned()
        } else {
            record_lines_within(modules, width, Verdict::detail)
        });
        text.push('\n');
        text.push_str(&self.path_section());
        text.push_str(&order_section(self.lanes.iter(), width));
        text.push_str(&listed("WAITS", std::slice::from_ref(&self.waits), width));
        text.push_str(&listed("WARNINGS", &self.warnings, width));
        text.push_str(&log_section(self.log.iter(), width));
        text.trim_end().to_owned() + "\n"
    }

    /// Returns the main reasons, for a terminal of `width` columns. The text omits the reasons for the use of a module, the time
    /// that waits spend in each state, and all but the first clause about a missing device. The last line names the command that
    /// shows the complete text.
    #[must_use]
    pub fn why_briefly_within(&self, width: usize) -> String {
        let mut text = self.title();
        let (modules, providers): (Vec<&Record>, Vec<&Record>) =
            self.records.iter().partition(|record| record.domain.is_some());
        let folder = common_folder(&providers);
        text.push_str(&match folder {
            Some(folder) => format!("PROVIDERS, files in {}\n", folder.display()),
            None => "PROVIDERS\n".to_owned(),
        });
        text.push_str(&if providers.is_empty() {
            format!("  none; looked in {}\n", self.searched)
        } else {
            record_lines_within(providers, width, |verdict| in_short(verdict, folder))
        });
        text.push('\n');
        let idle: Vec<&Record> = modules.into_iter().filter(|r| !r.verdict.is_used()).collect();
        if !idle.is_empty() {
            text.push_str("DOMAINS AND MODULES THAT ARE NOT USED\n");
            text.push_str(&record_lines_within(idle, width, Verdict::detail));
            text.push('\n');
        }
        text.push_str(&self.path_section());
        // If a lane reaches all memory, emulation is not used.
        let matters = |lane: &&LaneView| {
            let covers = |other: &LaneView| {
                other.role == lane.role && other.memory.as_deref() == Some("any")
            };
            lane.via != "emulated"
                || !self.lanes.iter().any(|other| other.via != "emulated" && covers(other))
        };
        text.push_str(&order_section(self.lanes.iter().filter(matters), width));
        text.push_str(&listed("WARNINGS", &self.warnings, width));
        let told = |line: &&LogView| {
            line.event.is_some() || matches!(line.level.as_str(), "error" | "warn")
        };
        text.push_str(&log_section(self.log.iter().filter(told), width));
        text.trim_end().to_owned() + "\n\n`tieline info --why --all` shows the rest\n"
    }

    fn path_section(&self) -> String {
        if self.paths.is_empty() {
            return String::new();
        }
        let paths: Vec<Vec<String>> = self.paths.iter().flat_map(path_lines).collect();
        format!("PATHS\n{}\n", text::lines(&paths, 2))
    }
}

/// Returns the folder of the providers' files, if all of them lie in one folder.
fn common_folder<'a>(providers: &[&'a Record]) -> Option<&'a Path> {
    let mut folders = providers.iter().filter_map(|record| match &record.verdict {
        Verdict::Found { origin, .. } if origin.starts_with('/') => Path::new(origin).parent(),
        _ => None,
    });
    let first = folders.next()?;
    folders.all(|folder| folder == first).then_some(first)
}

/// Formats the facts of a verdict on a provider. A file that lies in `folder` is shown by its name. A missing device is
/// shown without details.
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

/// Formats records as aligned lines of subject, decision and reason, for a terminal of this width.
pub(super) fn record_lines_within<'a>(
    records: impl IntoIterator<Item = &'a Record>,
    width: usize,
    detail: impl Fn(&Verdict) -> String,
) -> String {
    let mut rows: Vec<Vec<String>> = records
        .into_iter()
        .map(|r| vec![r.subject(), r.verdict.state().to_owned(), detail(&r.verdict)])
        .collect();
    rows.sort_by(|a, b| a[0].cmp(&b[0])); // a stable sort keeps the order of one subject's records
    for at in (1..rows.len()).rev() {
        if rows[at][0] == rows[at - 1][0] {
            rows[at][0].clear();
        }
    }
    text::columns(&rows, 2, width)
}

/// Formats a heading and a line for each text; empty without texts.
pub(super) fn listed(heading: &str, texts: &[String], width: usize) -> String {
    if texts.is_empty() {
        return String::new();
    }
    let rows: Vec<Vec<String>> = texts.iter().map(|text| vec![text.clone()]).collect();
    format!("{heading}\n{}\n", text::columns(&rows, 2, width))
}

/// Formats the composed path in a line that is never broken, and then the reason that the path cannot be used, if there is one.
fn path_lines(path: &PathView) -> Vec<Vec<String>> {
    let composed = vec![path.domain.clone(), path.composed.clone()];
    let disabled = path.disabled.iter().map(|why| vec![String::new(), format!("disabled: {why}")]);
    std::iter::once(composed).chain(disabled).collect()
}

/// Formats a row for each lane; the first row of a role contains its name.
fn order_section<'a>(lanes: impl Iterator<Item = &'a LaneView>, width: usize) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut role = "";
    for lane in lanes {
        let first = if lane.role == role { String::new() } else { lane.role.clone() };
        role = &lane.role;
        rows.push(vec![first, lane.via.clone(), lane.because.clone()]);
    }
    if rows.is_empty() {
        return String::new();
    }
    format!("ORDER, FOR A PEER THAT EVERY MODULE REACHES\n{}\n", text::columns(&rows, 2, width))
}

fn log_section<'a>(lines: impl Iterator<Item = &'a LogView>, width: usize) -> String {
    let words = |line: &LogView| match &line.event {
        Some(event) => format!("{}: {}", event.replace('_', " "), line.text),
        None => line.text.clone(),
    };
    let rows = lines.map(|line| vec![line.level.clone(), line.provider.clone(), words(line)]);
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    format!("LOG\n{}", text::columns(&rows, 2, width))
}
