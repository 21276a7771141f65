//! Every example of the library runs as its own documentation says: `tieline run -n N -- ...`.

use super::{Count, quiet, suite};
use crate::sh::{root, target};

/// Measured, not run: see [`super::instructions`].
const NOT_A_JOB: &str = "instructions";

pub(super) fn run() -> Count {
    let mut total = Count::default();
    let Ok(entries) = std::fs::read_dir(root().join("core/examples")) else {
        return Count::skip("there are no examples yet");
    };
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    for file in files.iter().filter(|file| file.extension().is_some_and(|e| e == "rs")) {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if name == NOT_A_JOB {
            continue;
        }
        let source = std::fs::read_to_string(file).unwrap_or_default();
        let Some(processes) = processes(&source) else {
            total.add(Count::one(Err(format!(
                "{name} does not say `tieline run -n N -- ...` in its docs"
            ))));
            continue;
        };
        let program = target().join("debug/examples").join(&name);
        let mut launch = suite::tieline(&["run", "-n", &processes.to_string(), "--"]);
        let count = quiet(launch.arg(program));
        println!("{name}: {}", if count.failed.is_empty() { "ok" } else { "FAILED" });
        total.add(count);
    }
    total
}

/// The N of the first `tieline run -n N` in a `//!` line.
fn processes(source: &str) -> Option<usize> {
    let docs = source.lines().filter(|line| line.starts_with("//!"));
    let rest = docs.filter_map(|line| line.split("tieline run -n ").nth(1)).next()?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_processes_comes_from_the_examples_own_docs() {
        assert_eq!(
            processes("//! A ring.\n//! tieline run -n 4 -- target/ring\nfn main() {}"),
            Some(4)
        );
        assert_eq!(processes("// tieline run -n 4 -- target/ring"), None);
    }
}
