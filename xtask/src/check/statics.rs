//! Checks locks of the whole process: in a forked child, a lock that another thread held stays locked forever, and so does a value
//! that another thread was initializing. A `static` of such a type must therefore be in a `PerProcess`, or be listed here. Tests
//! and [`ELSEWHERE`] are exempt.

use super::rules::{is_test, without_tests};

const WAITED_FOR: [&str; 6] = ["Mutex<", "RwLock<", "OnceLock<", "LazyLock<", "Once ", "Condvar "];

/// The files with such statics, their number, and the reason why a child does not wait for them.
const KNOWN: &[(&str, usize, &str)] = &[
    ("capi/src/abi/message.rs", 1, "it is tried and never waited for"),
    ("host/src/abi/host.rs", 1, "it is tried and never waited for"),
    ("plugin-api/src/abi/shims/provider.rs", 1, "it is tried and never waited for"),
    ("providers/ofi/src/load.rs", 3, "a child is refused before it comes there"),
    ("providers/shm-cma/src/hooks.rs", 1, "for tests"),
    ("providers/shm/src/hooks.rs", 1, "for tests"),
    ("providers/verbs/src/cm/load.rs", 1, "a child is refused before it comes there"),
    ("tools/src/sys.rs", 1, "the command forks nothing that opens a context"),
];

/// The folders whose code no forked child runs, besides tests.
const ELSEWHERE: [&str; 4] = ["conformance/", "docs/", "tools/templates/", "xtask/"];

pub(super) fn locked_for_ever(texts: &[(String, String)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, text) in texts {
        if ELSEWHERE.iter().any(|place| name.starts_with(place)) || is_test(name) {
            continue;
        }
        let found: Vec<&str> = without_tests(text).lines().filter_map(waited_for).collect();
        let known = KNOWN.iter().find(|(file, ..)| file == name).map_or(0, |(_, count, _)| *count);
        if found.len() > known {
            wrong.push(format!(
                "{name}: a forked child may wait for {} for ever: `PerProcess` gives it its own",
                found.join(", ")
            ));
        }
        if found.len() < known {
            wrong.push(format!("{name} has {} such statics: change xtask's list", found.len()));
        }
    }
    wrong
}

/// Returns the static's name, if a thread may wait for it.
fn waited_for(line: &str) -> Option<&str> {
    let before = line.find("static ")?;
    let is_declared = line[..before].trim().is_empty() || line.trim_start().starts_with("pub");
    let (name, kind) = line[before + "static ".len()..].split_once(':')?;
    let kind = kind.trim_start().trim_start_matches("std::sync::");
    (is_declared && WAITED_FOR.iter().any(|waited| kind.starts_with(waited))).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> [(String, String); 1] {
        [(name.to_owned(), text.to_owned())]
    }

    #[test]
    fn a_static_that_is_a_lock_is_one_of_each_process() {
        for wrong in [
            "static OPEN: Mutex<Vec<u8>> = Mutex::new(Vec::new());\n",
            "    static KNOWN: std::sync::OnceLock<bool> = std::sync::OnceLock::new();\n",
            "pub(crate) static BOTH: RwLock<u8> = RwLock::new(0);\n",
        ] {
            let told = locked_for_ever(&file("net/src/hub.rs", wrong));
            assert!(told.len() == 1 && told[0].contains("PerProcess"), "{told:?}");
        }
        for right in [
            "static OPEN: PerProcess<Mutex<Vec<u8>>> = PerProcess::new();\n",
            "static COUNT: AtomicU64 = AtomicU64::new(0);\n",
            "// A static OPEN: Mutex<u8> would be one.\n",
            "#[cfg(test)]\nmod tests {\n    static OPEN: Mutex<u8> = Mutex::new(0);\n",
        ] {
            assert_eq!(locked_for_ever(&file("net/src/hub.rs", right)), [""; 0], "{right}");
        }
        let fewer = locked_for_ever(&file("providers/shm/src/hooks.rs", ""));
        assert!(fewer[0].contains("change xtask's list"), "{fewer:?}");
    }
}
