//! The report that is written while it is made: how it begins. `docs/running.md` has an example.

use std::sync::Arc;

use super::Report;
use super::gather::{level_name, wanted_level};
use crate::config::Origin;
use crate::explain::{Record, Verdict};
use crate::registry::abi::host::LogLine;
use crate::setup::Core;

impl Report {
    /// Writes how a context was opened, if `TIELINE_REPORT` asks for it, and has what is noted and logged from now on written too.
    pub(crate) fn write_while_made(core: &Core) {
        let Some(journal) = core.journal() else { return };
        journal.tell(&Report::of(core).opened());
        let (notes, logged) = (Arc::clone(journal), Arc::clone(journal));
        core.pass_notes_on(move |note| notes.tell(note));
        let wanted = wanted_level(&core.config);
        core.discovery.log.pass_on(move |line: &LogLine| {
            if line.level <= wanted || line.event.is_some() {
                logged.tell(&format!(
                    "{} {}: {}",
                    level_name(line.level),
                    line.provider,
                    line.text
                ));
            }
        });
    }

    /// What was chosen, what was refused, and what an operator has set.
    fn opened(&self) -> String {
        let mut text = format!("Tieline {}, provider ABI {}\n", self.version, self.abi);
        for path in &self.paths {
            let words = match &path.disabled {
                Some(because) => format!("disabled: {because}"),
                None => path.composed.clone(),
            };
            text.push_str(&format!("path {}: {words}\n", path.domain));
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
        for record in self.records.iter().filter(tells) {
            text.push_str(&format!("{record}\n"));
        }
        let set = self.config.iter().filter(|value| value.origin != Origin::Default);
        for value in set {
            text.push_str(&format!("set: {}={} ({})\n", value.name, value.value, value.origin));
        }
        for line in &self.log {
            text.push_str(&format!("{} {}: {}\n", line.level, line.provider, line.text));
        }
        text.push_str(&format!("waits: {}\n", self.waits));
        self.warnings.iter().for_each(|warning| text.push_str(&format!("warning: {warning}\n")));
        text
    }
}
