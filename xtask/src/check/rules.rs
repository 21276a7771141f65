//! Checks the rules of CONTRIBUTING.md that a compiler does not check: the length of files, sleeps in tests, and the dependencies
//! between parts. An exception is listed here with its reason.

use super::{Count, circles, memory, quotes, statics};
use crate::sh::{read, root};
use std::path::{Path, PathBuf};

/// The maximum number of lines in a file.
const LONGEST: usize = 550;
/// The maximum number of lines in a test's file, which consists of successive cases.
const LONGEST_TEST: usize = 600;

/// The files that may be longer, with their maximum length.
const LONG: &[(&str, usize, &str)] = &[
    ("plugin-api/src/abi.rs", 600, "the whole ABI in one place"),
    ("plugin-api/src/provider.rs", 600, "every trait of a provider"),
    ("providers/shm/src/sys.rs", 600, "every question to the kernel"),
];

/// Tests, and code that only tests use, that sleep: the number of sleeps, and the reason why there is no event to wait for.
const SLEEPS: &[(&str, usize, &str)] = &[
    ("providers/tcp/src/loopback_tests/connecting.rs", 1, "between polls"),
    ("providers/tcp/src/loopback_tests/waiting.rs", 1, "between polls"),
    ("tests/processes/src/runner.rs", 1, "the last resort against a test that hangs"),
    ("tests/processes/tests/jobs.rs", 1, "until a moment that was agreed between processes"),
    ("tools/tests/hosts/sshd.rs", 1, "sshd has no event for outsiders"),
    ("tools/tests/launchers.rs", 1, "mpirun has no event for outsiders"),
    ("tools/tests/launchers/slurm.rs", 1, "Slurm has no event for outsiders"),
    ("tools/tests/bootstrap.rs", 1, "between looks at a process"),
    ("tools/tests/support/mod.rs", 1, "launchers and what they leave have no event for outsiders"),
];

/// The directory of each package, and the packages of this workspace that its `[dependencies]` may name.
const MAY_USE: &str = "
    plugin-api:  net:plugin-api  tag:  tests/testing:  conformance:plugin-api  explain:plugin-api  wireup:plugin-api
    order:explain  config:explain,plugin-api  job:config,explain,net,plugin-api  providers/registration:plugin-api  capi:tieline  xtask:testing
    providers/shm:plugin-api,memory-file  providers/shm-cma:plugin-api,memory-file
    providers/shm-knem:plugin-api,memory-file  providers/shm-xpmem:plugin-api,memory-file
    providers/tcp:plugin-api,net  providers/tcp-connect:plugin-api,net
    providers/ofi:plugin-api,net,registration  providers/verbs:plugin-api,net,registration
    core:plugin-api,explain,config,job,net,order,provider-shm,provider-shm-cma,wireup  tests/runtime:tieline,tag";

/// The directory of a package, and the maximum number of foreign packages on which it may depend. A new machine compiles these
/// before the first line of `cargo xtask demo` and `test`.
const FOREIGN: &[(&str, usize)] = &[("xtask", 1), ("tests/testing", 0)];

const PLACES: &str = "capi config conformance core explain job net order plugin-api providers tag tools tests docs/examples wireup xtask";

pub(super) fn check() -> Count {
    let mut files = Vec::new();
    for place in PLACES.split(' ') {
        sources(&root().join(place), &mut files);
    }
    let texts: Vec<(String, String)> = files
        .iter()
        .filter_map(|file| {
            let name = file.strip_prefix(root()).ok()?.display().to_string();
            Some((name, std::fs::read_to_string(file).ok()?))
        })
        .collect();
    let page = |name: &str| read(root().join(name)).unwrap_or_default();
    let all = [
        lengths(&texts),
        sleeps(&texts),
        circles::backwards(&page("ARCHITECTURE.md"), &texts),
        circles::too_large(&texts),
        dependencies(),
        memory::misusable(&texts),
        memory::plain_copies(&texts),
        statics::locked_for_ever(&texts),
        quotes::nowhere_said(&page("docs/operators.md"), &texts),
    ];
    let mut count = Count::default();
    for wrong in all {
        count.add(Count::one(if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }));
    }
    count
}

pub(super) fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

fn lengths(texts: &[(String, String)]) -> Vec<String> {
    let too_long = |(name, text): &(String, String)| {
        let lines = text.lines().count();
        let exception = LONG.iter().find(|(file, ..)| file == name);
        let usual = if is_test(name) { LONGEST_TEST } else { LONGEST };
        let most = exception.map_or(usual, |(_, most, _)| *most);
        let words = || format!("{name} has {lines} lines, {most} are enough for one thing");
        (lines > most).then(words)
    };
    texts.iter().filter_map(too_long).collect()
}

/// Checks whether a file is a test, or code that only tests use.
pub(super) fn is_test(name: &str) -> bool {
    name.starts_with("tests/")
        || name.contains("/tests/")
        || name.contains("tests.rs")
        || name.contains("_tests/")
        || name.contains("/double/")
}

fn sleeps(texts: &[(String, String)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, text) in texts.iter().filter(|(name, _)| !name.starts_with("xtask/")) {
        // In other files the tests are at the end.
        let tests = match is_test(name) {
            true => text.as_str(),
            false => text.find("#[cfg(test)]").map_or("", |at| &text[at..]),
        };
        let found = tests.matches("thread::sleep(").count();
        let allowed = SLEEPS.iter().find(|(file, ..)| file == name).map_or(0, |(_, n, _)| *n);
        if found > allowed {
            wrong.push(format!("{name} sleeps {found} times where it could wait for an event"));
        }
        if found < allowed {
            wrong.push(format!("{name} sleeps {found} times: take it out of xtask's list"));
        }
    }
    wrong
}

fn dependencies() -> Vec<String> {
    let mut wrong = Vec::new();
    for (folder, allowed) in MAY_USE.split_whitespace().filter_map(|line| line.split_once(':')) {
        let allowed: Vec<&str> = allowed.split(',').collect();
        let file = root().join(folder).join("Cargo.toml");
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        if text.is_empty() {
            wrong.push(format!("{folder} has no Cargo.toml"));
        }
        let section = text.split("\n[dependencies]\n").nth(1).unwrap_or_default();
        let mut foreign = 0;
        for line in section.lines().take_while(|line| !line.starts_with('[')) {
            let name = line.split(['.', ' ', '=']).next().unwrap_or("");
            let ours = name == "tieline" || name.starts_with("tieline-");
            if ours && !allowed.contains(&name.trim_start_matches("tieline-")) {
                wrong.push(format!("{folder} depends on {name}, which it must not know"));
            }
            foreign += usize::from(!ours && !name.is_empty() && !name.starts_with('#'));
        }
        let most = FOREIGN.iter().find(|(named, _)| *named == folder).map(|(_, most)| *most);
        if most.is_some_and(|most| foreign > most) {
            wrong.push(format!("{folder} depends on {foreign} packages of others: it is built before anything is said"));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> Vec<(String, String)> {
        vec![(name.to_owned(), text.to_owned())]
    }

    #[test]
    fn a_file_that_grows_and_a_test_that_sleeps_are_named() {
        assert_eq!(lengths(&file("core/src/new.rs", &"\n".repeat(551))).len(), 1);
        assert!(lengths(&file("core/src/new.rs", &"\n".repeat(550))).is_empty());
        let sleep = "std::thread::sleep(Duration::from_secs(1));";
        assert_eq!(sleeps(&file("core/tests/new.rs", sleep)).len(), 1);
        assert!(sleeps(&file("core/src/new.rs", sleep)).is_empty());
        assert_eq!(sleeps(&file("core/src/new.rs", &format!("#[cfg(test)] {sleep}"))).len(), 1);
    }
}
