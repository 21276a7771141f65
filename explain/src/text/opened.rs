//! The lines with which a journal begins.

use crate::record::{Record, Verdict};
use crate::setting::{Origin, ValueView};
use crate::snapshot::{LogView, Report};
use tieline_plugin_api::raised_rights;

/// Lists the paths, the decisions that exclude something, the values that were set, the log lines so far, the first phase of waits,
/// and the warnings. Values from files are omitted in a setuid program.
#[must_use]
pub fn opened(report: &Report) -> Vec<String> {
    let mut lines = vec![format!("Tieline {}, provider ABI {}", report.version, report.abi)];
    for path in &report.paths {
        let words = match &path.disabled {
            Some(because) => format!("disabled: {because}"),
            None => path.composed.clone(),
        };
        lines.push(format!("path {}: {words}", path.domain));
    }
    let tells = |record: &&Record| {
        let is_silent = matches!(
            record.verdict,
            Verdict::Found { .. }
                | Verdict::ChosenFor { .. }
                | Verdict::OutrankedBy { .. }
                | Verdict::LacksCapability { .. }
                | Verdict::NotNeeded { .. }
        );
        !is_silent
    };
    lines.extend(report.records.iter().filter(tells).map(Record::to_string));
    // Text that only root may read must not be shown to the user of a setuid program.
    let hides = |origin: &Origin| matches!(origin, Origin::File(..)) && raised_rights();
    let is_set = |value: &&ValueView| value.origin != Origin::Default && !hides(&value.origin);
    let set = report.config.iter().filter(is_set);
    for value in set {
        let shown = shown_to_all(value);
        lines.push(format!("set: {}={shown} ({})", value.name, value.origin));
    }
    lines.extend(report.log.iter().map(log_line));
    lines.push(format!("waits: {}", report.waits));
    lines.extend(report.warnings.iter().map(|warning| format!("warning: {warning}")));
    lines
}

/// Formats a line of a log.
#[must_use]
pub fn log_line(line: &LogView) -> String {
    format!("{} {}: {}", line.level, line.provider, line.text)
}

/// Returns a value, or `(set)` if it may be a secret. An unknown name may be a misspelt variable that holds a secret.
fn shown_to_all(value: &ValueView) -> &str {
    let may_be_secret = value.name.contains("SECRET") && !value.name.ends_with("_FILE");
    if value.owner == "unknown" || may_be_secret { "(set)" } else { &value.value }
}
