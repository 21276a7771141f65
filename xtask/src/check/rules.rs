//! Checks rules that a compiler does not check: the length of files, sleeps in tests, memory, statics, and the quotes of the page for
//! operators. Exceptions are listed with their reasons. The manifests state which package may use which.

use super::{Count, memory, quotes, statics};
use crate::package::known_to_git;
use crate::sh::{read, root};

const LONGEST: usize = 550;
/// The maximum number of lines in the file of a test, or of code that only tests use.
const LONGEST_TEST: usize = 600;

/// The files that may be longer, with their maximum length and the reason.
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

pub(super) fn check() -> Count {
    let names = match known_to_git() {
        Ok(names) => names,
        Err(text) => return Count::one(Err(text)),
    };
    let sources = names.into_iter().filter(|name| name.ends_with(".rs"));
    let texts: Vec<(String, String)> =
        sources.filter_map(|name| Some((name.clone(), read(root().join(name)).ok()?))).collect();
    let page = |name: &str| read(root().join(name)).unwrap_or_default();
    let all = [
        lengths(&texts),
        sleeps(&texts),
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

pub(super) fn is_test(name: &str) -> bool {
    name.starts_with("tests/")
        || name.contains("/tests/")
        || name.contains("tests.rs")
        || name.contains("_tests/")
        || name.contains("/double/")
}

pub(super) fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text)
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
