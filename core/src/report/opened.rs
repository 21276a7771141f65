//! The beginning of the report that is written while events occur. `docs/running.md` has an example.

use std::sync::{Arc, Weak};

use super::gather::{level_name, wanted_level};
use super::{LogView, Report, ValueView};
use crate::explain::{Record, Verdict};
use crate::journal::Journal;
use crate::setup::Core;
use tieline_explain::LogLine;
use tieline_explain::Origin;
use tieline_plugin_api::raised_rights;

impl Report {
    /// Writes how a context was opened, and from then on every note and log line, if `TIELINE_REPORT` is set.
    pub(crate) fn write_while_made(core: &Core) {
        let Some(journal) = core.journal() else { return };
        // Providers keep the log until the process ends, but only the context keeps its journal, and a forked child writes neither.
        let guard = core.guard();
        let still = move |journal: &Weak<Journal>| {
            let is_ours = guard.upgrade().is_some_and(|guard| guard.same_process());
            journal.upgrade().filter(|_| is_ours)
        };
        let (notes, note_still) = (Arc::downgrade(journal), still.clone());
        core.pass_notes_on(move |note| {
            if let Some(journal) = note_still(&notes) {
                journal.tell(note);
            }
        });
        let (wanted, logged) = (wanted_level(&core.config), Arc::downgrade(journal));
        core.discovery.log.pass_on(move |line: &LogLine| {
            if line.level <= wanted || line.event.is_some() {
                if let Some(journal) = still(&logged) {
                    let LogLine { level, provider, text, .. } = line;
                    journal.tell(&format!("{} {provider}: {text}", level_name(*level)));
                }
            }
        });
        // The text is written after the hooks are set. A line that a provider's thread writes meanwhile appears before it, or
        // twice, and is not lost.
        journal.tell_all(&Report::of(core).opened());
    }

    /// Lists the choices, the refusals, and the operator's settings.
    fn opened(&self) -> Vec<String> {
        let mut lines = vec![format!("Tieline {}, provider ABI {}", self.version, self.abi)];
        for path in &self.paths {
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
        lines.extend(self.records.iter().filter(tells).map(Record::to_string));
        // Text that only root may read must not be shown to the user of a setuid program.
        let hides = |origin: &Origin| matches!(origin, Origin::File(..)) && raised_rights();
        let is_set = |value: &&ValueView| value.origin != Origin::Default && !hides(&value.origin);
        let set = self.config.iter().filter(is_set);
        for value in set {
            let shown = shown_to_all(value);
            lines.push(format!("set: {}={shown} ({})", value.name, value.origin));
        }
        let logged = |line: &LogView| format!("{} {}: {}", line.level, line.provider, line.text);
        lines.extend(self.log.iter().map(logged));
        lines.push(format!("waits: {}", self.waits));
        lines.extend(self.warnings.iter().map(|warning| format!("warning: {warning}")));
        lines
    }
}

/// Returns a value as it may appear in a file or a log of the user. An unknown name may be a misspelt variable that holds a secret.
fn shown_to_all(value: &ValueView) -> &str {
    let may_be_secret = value.name.contains("SECRET") && !value.name.ends_with("_FILE");
    if value.owner == "unknown" || may_be_secret { "(set)" } else { &value.value }
}

#[cfg(test)]
mod tests {
    use crate::Context;

    /// Returns the number of descriptors of this process that refer to this path.
    fn opened(path: &std::path::Path) -> usize {
        let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        all.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == path)).count()
    }

    #[test]
    fn a_context_that_is_gone_has_left_no_file_open() {
        let path = std::env::temp_dir().join(format!("tieline-opened-{}", std::process::id()));
        let open = || {
            let builder = Context::builder().set("TIELINE_REPORT", path.to_str().unwrap());
            builder.set("TIELINE_PROVIDERS", "shm").open().unwrap()
        };
        let one = open();
        assert_eq!(opened(&path), 1);
        let guard = one.core().guard();
        assert!(guard.upgrade().is_some());
        drop(one);
        assert!(guard.upgrade().is_none(), "nor a page of memory");
        (0..5).for_each(|_| drop(open()));
        assert_eq!(opened(&path), 0);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text.matches("provider ABI").count(), 6, "{text}");
    }

    #[test]
    fn a_context_that_settings_forbid_and_an_address_that_is_none_are_told() {
        let path = std::env::temp_dir().join(format!("tieline-untold-{}", std::process::id()));
        let builder = || Context::builder().set("TIELINE_REPORT", path.to_str().unwrap());
        assert!(builder().set("PATH", "x").open().is_err());
        let context = builder().set("TIELINE_PROVIDERS", "shm").open().unwrap();
        assert!(context.worker().unwrap().connect(b"nonsense").is_err());
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(text.contains("no context: the program set `PATH`"), "{text}");
        assert!(text.contains("this is no worker address"), "{text}");
    }

    #[test]
    fn value_of_unknown_variable_is_hidden() {
        let context = Context::builder()
            .set("TIELINE_PROVIDERS", "shm")
            .set("TIELINE_SECRTE", "hunter2")
            .set("TIELINE_QUEUE_BYTES", "77k")
            .open()
            .unwrap();
        let text = context.report().opened().join("\n");
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.contains("set: TIELINE_SECRTE=(set) (program)"), "{text}");
        assert!(text.contains("set: TIELINE_QUEUE_BYTES=77k (program)"), "{text}");
    }
}
