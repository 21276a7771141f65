//! The report in short tables.

use super::columns::{WIDTH, columns};
use super::why::listed;
use crate::record::{Record, Verdict};
use crate::snapshot::Report;
use std::collections::BTreeSet;

impl Report {
    /// Returns the providers, modules and paths in three short tables, followed by the warnings and the number of unused subjects.
    #[must_use]
    pub fn table(&self) -> String {
        self.table_within(WIDTH)
    }

    /// Returns the tables of [`Report::table`] for a terminal of `width` columns.
    #[must_use]
    pub fn table_within(&self, width: usize) -> String {
        let mut text = self.title();
        text.push_str(&section("PROVIDER  VERSION  FROM", &self.providers, width, |p| {
            let from = p.not_used.as_ref().map(|because| format!("not used: {because}"));
            vec![p.name.clone(), p.version.clone(), from.unwrap_or_else(|| p.origin.clone())]
        }));
        text.push_str(&section(
            "MODULE  PRIORITY  USED FOR  CONNECTS TO  CAN",
            &self.modules,
            width,
            |m| {
                vec![
                    format!("{}/{}", m.domain, m.module),
                    m.priority.to_string(),
                    or_dash(m.used_for.join(", ")),
                    m.connects_to.clone(),
                    if m.can.is_empty() { "connect".into() } else { m.can.join(", ") },
                ]
            },
        ));
        text.push_str(&section(
            "PATH  MESSAGE  RMA  ATOMIC  CONNECTION  PASSIVE TARGET",
            &self.paths,
            width,
            |p| {
                let name = |module: &Option<String>| {
                    let short = |m: &String| {
                        m.strip_prefix(&format!("{}/", p.domain)).unwrap_or(m).to_owned()
                    };
                    or_dash(module.as_ref().map(short).unwrap_or_default())
                };
                let passive = match &p.disabled {
                    Some(_) => "disabled".into(),
                    None => or_dash(p.passive_target.join(", ")),
                };
                let modules = [&p.message, &p.rma, &p.atomic, &p.connection].map(name);
                [vec![p.domain.clone()], modules.to_vec(), vec![passive]].concat()
            },
        ));
        let mut warnings = self.warnings.clone();
        let missing = self.records.iter().filter(|r| matches!(r.verdict, Verdict::NotFound { .. }));
        warnings.extend(missing.map(|r| format!("{} is {}", r.subject(), r.verdict)));
        text.push_str(&listed("WARNINGS", &warnings, width));
        let idle = self.not_used();
        if idle > 0 {
            text.push_str(&format!("{idle} not used: `tieline info --why` says why\n"));
        }
        text
    }

    pub(super) fn title(&self) -> String {
        format!("Tieline {}, provider ABI {}\n\n", self.version, self.abi)
    }

    /// Returns the number of subjects that are used for no role, by the records.
    fn not_used(&self) -> usize {
        let subjects = |which: &dyn Fn(&Verdict) -> bool| -> BTreeSet<String> {
            let those = self.records.iter().filter(|record| which(&record.verdict));
            those.map(Record::subject).collect()
        };
        let used = subjects(&Verdict::is_used);
        let idle =
            subjects(&|verdict| !verdict.is_used() && !matches!(verdict, Verdict::Found { .. }));
        // A module may be used in one role and outranked in another.
        idle.difference(&used).count()
    }
}

/// Formats a heading, whose words two blanks separate, and a row for each item.
fn section<T>(heading: &str, items: &[T], width: usize, row: impl Fn(&T) -> Vec<String>) -> String {
    let heading: Vec<String> = heading.split("  ").map(str::to_owned).collect();
    if items.is_empty() {
        return format!("{}\nnone\n\n", heading[0]);
    }
    let rows: Vec<Vec<String>> = std::iter::once(heading).chain(items.iter().map(row)).collect();
    columns(&rows, 0, width) + "\n"
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".into() } else { text }
}
