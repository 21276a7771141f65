//! The minimum number of tests of each suite. A suite whose tests were not found must not count as passed, and a test that reports
//! that it cannot run has not run.

use super::Count;
use std::collections::BTreeMap;

/// The packages whose tests nextest runs, with their minimum. The minimum holds for a machine without root's rights, compilers or
/// other programs. The numbers are raised when many tests are added, and are lowered only with a reason in the commit.
const PACKAGES: &[(&str, usize)] = &[
    ("tieline", 357),
    ("tieline-bad-providers", 54),
    ("tieline-capi", 14),
    ("tieline-choose", 76),
    ("tieline-conformance", 3),
    ("tieline-config", 56),
    ("tieline-explain", 4),
    ("tieline-fake", 235),
    ("tieline-host", 75),
    ("tieline-job", 50),
    ("tieline-libfabric", 10),
    // Its only test needs libfabric's headers.
    ("tieline-libfabric-abi", 0),
    ("tieline-lookup", 30),
    ("tieline-memory-file", 23),
    ("tieline-net", 57),
    ("tieline-order", 55),
    ("tieline-plugin-api", 29),
    ("tieline-provider-ofi", 145),
    ("tieline-provider-shm", 103),
    ("tieline-provider-shm-cma", 18),
    ("tieline-provider-shm-knem", 19),
    ("tieline-provider-shm-xpmem", 62),
    ("tieline-provider-tcp", 116),
    ("tieline-provider-tcp-connect", 23),
    ("tieline-provider-verbs", 235),
    ("tieline-registration", 15),
    ("tieline-runtime", 21),
    ("tieline-single-copy", 5),
    ("tieline-tag", 23),
    ("tieline-testing", 4),
    ("tieline-tools", 106),
    ("tieline-trial", 20),
    ("tieline-wireup", 60),
    ("xtask", 32),
    ("xtask-header", 5),
];

const SUITES: &[(&str, usize)] = &[
    // The number for all packages together, if the runner does not distinguish packages.
    ("tests", 1900),
    ("processes", 20),
    ("conformance", 12),
    ("mutations", 4),
    ("page of checks", 1),
    ("doctests", 10),
    ("loom", 2),
    ("jobs", 4),
    ("instructions", 13),
    // The number for each provider.
    ("yardstick", 3),
];

/// Returns the count of a suite, which fails if fewer tests ran than the minimum.
pub(super) fn or_failed(suite: &str, mut count: Count) -> Count {
    let least = SUITES.iter().find(|(name, _)| *name == suite).map_or(usize::MAX, |found| found.1);
    if count.failed.is_empty() && count.passed < least {
        count
            .failed
            .push(format!("{} tests of {suite} ran: there are at least {least}", count.passed));
    }
    count
}

pub(super) fn missing(ran: &BTreeMap<String, usize>) -> Vec<String> {
    let ran = |package: &str| ran.get(package).copied().unwrap_or(0);
    let few = PACKAGES.iter().filter(|(package, least)| ran(package) < *least);
    few.map(|(package, least)| {
        format!("{} tests of {package} ran: there are at least {least}", ran(package))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::package::known_to_git;
    use crate::sh::root;

    #[test]
    fn skips_do_not_count_as_run() {
        let skipped = vec!["needs root".to_owned(); 100];
        let count = or_failed("processes", Count { passed: 19, skipped, ..Count::default() });
        assert_eq!(count.failed, ["19 tests of processes ran: there are at least 20"]);
        assert!(or_failed("processes", Count { passed: 20, ..Count::default() }).failed.is_empty());
    }

    #[test]
    fn every_package_that_has_tests_is_known() {
        let manifest =
            |folder: &str| std::fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
        let (workspace, files) = (manifest(""), known_to_git().unwrap());
        let members = workspace.split_once("\nmembers = [").unwrap().1.split_once(']').unwrap().0;
        for folder in members.split('"').skip(1).step_by(2) {
            let manifest = manifest(folder);
            let name = manifest.split('"').nth(1).unwrap(); // name = "..." comes first
            let is_own = |file: &&String| {
                let inside = ["src", "tests"].map(|part| format!("{folder}/{part}/"));
                file.ends_with(".rs") && inside.iter().any(|inside| file.starts_with(inside))
            };
            let has_tests = files.iter().filter(is_own).any(|file| {
                let text = std::fs::read_to_string(root().join(file)).unwrap();
                text.lines().any(|line| line.trim() == "#[test]")
            });
            let known = PACKAGES.iter().any(|(package, _)| *package == name);
            assert!(known || !has_tests, "{name} has tests, and nobody says how many");
        }
    }

    #[test]
    fn a_package_whose_tests_are_gone_is_named() {
        let mut ran: BTreeMap<String, usize> =
            PACKAGES.iter().map(|(package, least)| ((*package).to_owned(), *least)).collect();
        assert!(missing(&ran).is_empty());
        let _ = ran.remove("tieline-net");
        assert_eq!(missing(&ran).len(), 1);
        assert!(missing(&ran)[0].contains("tieline-net"));
    }
}
