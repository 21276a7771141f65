//! The beginning of the report that is written while events occur. `docs/running.md` has an example.

use std::sync::{Arc, Weak};

use super::LogView;
use super::gather::{report, wanted_level};
use crate::setup::Core;
use tieline_explain::journal::Journal;
use tieline_explain::{LogLine, text};

/// Writes how a context was opened, and from then on each note, and each log line of the chosen levels, if `TIELINE_REPORT` is set.
pub(crate) fn write_while_made(core: &Core) {
    let Some(journal) = core.journal() else { return };
    // Providers keep the log until the process ends, but the context alone keeps its journal. A forked child writes neither notes
    // nor log lines.
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
        if let Some(journal) = still(&logged).filter(|_| line.is_shown_at(wanted)) {
            journal.tell(&text::log_line(&LogView::from(line.clone())));
        }
    });
    // The text is written after the hooks are set. A line that a provider's thread writes meanwhile appears before it, or
    // twice, and is not lost.
    journal.tell_all(&text::opened(&report(core)));
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let text = text::opened(&context.report()).join("\n");
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.contains("set: TIELINE_SECRTE=(set) (program)"), "{text}");
        assert!(text.contains("set: TIELINE_QUEUE_BYTES=77k (program)"), "{text}");
    }
}
