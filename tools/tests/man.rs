//! Tests of the man pages: they must be those that the program writes, and the man program must report no warning. Shells must
//! accept the completions that the program writes.

use std::path::{Path, PathBuf};
use std::process::Command;

const PAGES: [&str; 8] = [
    "tieline",
    "tieline-info",
    "tieline-config",
    "tieline-check",
    "tieline-mpi",
    "tieline-new-provider",
    "tieline-perf",
    "tieline-run",
];

fn committed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/man")
}

/// Makes an empty folder among the build's files, where a failed test leaves it.
fn empty_folder(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

#[test]
fn the_pages_are_fresh_and_complete() {
    let dir = empty_folder("pages");
    let written =
        Command::new(env!("CARGO_BIN_EXE_tieline")).arg("man").arg(&dir).status().unwrap();
    assert!(written.success());
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), PAGES.len());
    for page in PAGES {
        let fresh = std::fs::read_to_string(dir.join(format!("{page}.1"))).unwrap();
        let ours =
            std::fs::read_to_string(committed().join(format!("{page}.1"))).unwrap_or_default();
        assert!(fresh == ours, "{page}.1 is stale: write it with `tieline man packaging/man`");
    }
}

#[test]
fn the_pages_render_without_a_warning() {
    let pages = PAGES.map(|page| format!("{page}.1"));
    for page in pages.iter().map(String::as_str).chain(["fi_tieline.7"]) {
        let file = committed().join(page);
        let mut man = Command::new("man");
        let _ = man.args(["--warnings", "-P", "cat", "-l"]).arg(file).env("MANWIDTH", "80");
        let Ok(output) = man.output() else {
            return println!("skipped: man is not installed (man-db)");
        };
        let warnings = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && warnings.is_empty(), "{page}: {warnings}");
        assert!(!output.stdout.is_empty());
    }
}

#[test]
fn completions_offer_what_a_person_types_and_bash_completes_with_them() {
    let dir = empty_folder("completions");
    let mut tieline = Command::new(env!("CARGO_BIN_EXE_tieline"));
    assert!(tieline.arg("completions").arg(&dir).status().unwrap().success());
    for name in ["tieline", "_tieline", "tieline.fish"] {
        let text = std::fs::read_to_string(dir.join(name)).unwrap();
        assert!(text.contains("perf") && !text.contains("perf-peer"), "{name}: {text}");
    }
    let completed = |words: &[&str]| {
        let script = format!(
            "source '{}'; COMP_WORDS=({}); COMP_CWORD={}; _tieline tieline '{}' '{}'; echo \"${{COMPREPLY[@]}}\"",
            dir.join("tieline").display(),
            words.join(" "),
            words.len() - 1,
            words[words.len() - 1],
            words[words.len() - 2],
        );
        let output = Command::new("bash").args(["-c", &script]).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    };
    match completed(&["tieline", "inf"]) {
        None => println!("skipped: there is no bash"),
        Some(word) => {
            assert_eq!(word, "info");
            assert_eq!(completed(&["tieline", "info", "--wh"]).unwrap(), "--why");
        }
    }
}
