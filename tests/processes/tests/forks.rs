//! Tests of processes that fork: the children open their own contexts, and the processes of the family exchange messages.

use std::collections::BTreeSet;
use tieline_processes::{Launch, Test, Verdict, named, plugins};

pub(crate) const TESTS: &[Test] = named![
    a_family_of_nine_talks_over_shm,
    a_family_of_nine_talks_over_shm_cma,
    a_family_of_nine_talks_over_tcp,
    a_child_of_a_process_that_uses_libfabric_does_without_it_and_says_why,
    the_list_has_all_that_a_child_has_of_its_parents,
];

const WAYS: [&str; 4] = ["before", "after", "thread", "posting"];

fn talks(path: &str, settings: &str) -> Verdict {
    for way in WAYS {
        let mut parent = Launch::new(way, "family").start();
        parent.tell(&format!("{way} {path} {settings}"));
        assert_eq!(parent.hear(), "well", "forked {way}");
        parent.end();
    }
    Verdict::Passed
}

fn a_family_of_nine_talks_over_shm() -> Verdict {
    talks("emulated_over_shm/ring", "TIELINE_PROVIDERS=shm")
}

fn a_family_of_nine_talks_over_shm_cma() -> Verdict {
    talks("shm-cma/copy", "TIELINE_PROVIDERS=shm,shm-cma")
}

fn a_family_of_nine_talks_over_tcp() -> Verdict {
    let folder = match plugins::folder() {
        Ok(folder) => folder.display(),
        Err(why) => return Verdict::Skipped(why),
    };
    let settings = format!("TIELINE_PROVIDERS=tcp,tcp-connect TIELINE_PROVIDER_PATH={folder}");
    talks("tcp/stream", &settings)
}

fn a_child_of_a_process_that_uses_libfabric_does_without_it_and_says_why() -> Verdict {
    let folder = match plugins::libfabric() {
        Ok(folder) => folder.display(),
        Err(why) => return Verdict::Skipped(why),
    };
    let mut parent = Launch::new("parent", "family").start();
    let settings =
        format!("TIELINE_PROVIDERS=ofi TIELINE_OFI_PROVIDERS=tcp TIELINE_PROVIDER_PATH={folder}");
    parent.tell(&format!("refused ofi:tcp {settings}"));
    let why = parent.hear();
    println!("    {why}");
    let words =
        ["this is a forked child, and its parent has loaded libfabric", "fork before a context"];
    assert!(words.iter().all(|words| why.contains(words)), "{why}");
    parent.end();
    Verdict::Passed
}

/// Returns the rows of a table of docs/fork.md: the first cell without its quotes, and the second cell.
fn listed(title: &str) -> Vec<(String, String)> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/fork.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    let section = page.split("\n## ").find_map(|section| section.strip_prefix(title));
    let rows = section.expect("the page has that section").lines();
    let cells = |row: &str| {
        let mut cells = row.strip_prefix("| `")?.split(" | ");
        Some((cells.next()?.trim_end_matches('`').to_owned(), cells.next()?.to_owned()))
    };
    rows.filter_map(cells).collect()
}

fn the_list_has_all_that_a_child_has_of_its_parents() -> Verdict {
    let folder = match plugins::folder() {
        Ok(folder) => folder.display(),
        Err(why) => return Verdict::Skipped(why),
    };
    let (descriptors, mappings) = (listed("Descriptors"), listed("Mappings"));
    let mut unseen: BTreeSet<_> = [&descriptors, &mappings].into_iter().flatten().collect();
    for settings in [
        "TIELINE_PROVIDERS=shm,shm-cma".to_string(),
        format!("TIELINE_PROVIDERS=tcp,tcp-connect TIELINE_PROVIDER_PATH={folder}"),
    ] {
        let mut parent = Launch::new("parent", "inherited").start();
        parent.tell(&settings);
        loop {
            let line = parent.hear();
            let words: Vec<&str> = line.split(' ').collect();
            let row = match words[..] {
                ["end"] => break,
                ["descriptor", kind, closed_by_exec] => {
                    assert_eq!(closed_by_exec, "true", "{line}");
                    descriptors.iter().find(|(row, _)| kind.starts_with(row.as_str()))
                }
                ["mapping", kind, whose] => {
                    let is_it = |row: &&(String, String)| kind.contains(&row.0) && row.1 == whose;
                    mappings.iter().find(is_it)
                }
                _ => panic!("{line}"),
            };
            let _ =
                unseen.remove(row.unwrap_or_else(|| panic!("docs/fork.md has no row of {line}")));
        }
        parent.end();
    }
    assert!(unseen.is_empty(), "docs/fork.md has what no child has: {unseen:?}");
    Verdict::Passed
}
