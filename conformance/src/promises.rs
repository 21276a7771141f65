//! The sentences on which the checks rest: quotations from two pages of the documentation and from the provider's header.

/// The list of quotations. Each line has a check, a bar, and a quotation from docs/abi.md, docs/writing-a-provider.md or
/// include/tieline_provider.h.
const PROMISES: &str = include_str!("promises.txt");

fn promises() -> impl Iterator<Item = (&'static str, &'static str)> {
    PROMISES.lines().filter_map(|line| line.split_once('|'))
}

pub(crate) fn promise_of(check: &str) -> &'static str {
    promises().find(|(name, _)| *name == check).map_or("", |(_, words)| words)
}

#[cfg(test)]
mod tests {
    use super::promises;
    use crate::checks::CHECKS;
    use std::path::Path;

    const PAGES: [&str; 3] =
        ["docs/abi.md", "docs/writing-a-provider.md", "include/tieline_provider.h"];

    /// Returns the text with single blanks between words, without the stars of comments.
    fn plain(text: &str) -> String {
        let lines = text.lines().map(|line| {
            let line = line.trim();
            line.strip_prefix("* ").or(line.strip_prefix("/* ")).unwrap_or(line)
        });
        lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn every_check_rests_on_words_that_stand_on_a_page() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let read = |page| plain(&std::fs::read_to_string(root.join(page)).unwrap());
        let pages = PAGES.map(read);
        for (check, words) in promises() {
            let found = pages.iter().any(|page| page.contains(words));
            assert!(found, "no page says what {check} rests on: {words}");
            assert!(words.len() > 10, "{check}: {words}");
        }
    }

    #[test]
    fn every_check_has_its_words_and_no_others_have() {
        for check in CHECKS {
            let count = promises().filter(|(name, _)| *name == check.name).count();
            assert_eq!(count, 1, "{} has {count} lines in promises.txt", check.name);
        }
        assert_eq!(promises().count(), CHECKS.len(), "one line for each check");
    }
}
