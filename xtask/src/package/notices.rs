//! Collects the licences of all code that is linked into the binaries: each crate with its licences, and each text once.

use crate::foreign;
use crate::sh::{self, Outcome, capture, cargo, entries, name_of, read, root};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The words in the names of files that contain a licence's text.
const NAMES: [&str; 4] = ["licen", "copying", "notice", "copyright"];

/// The directory with the texts of crates whose packages contain none; each file has the name of its crate.
const OTHERS: &str = "packaging/licences";

/// The file for the standard library, which is linked but is no crate of cargo.
const STANDARD: &str = "rust-std";

/// Returns the text of `NOTICES` for the crates that these packages of the workspace link.
pub(super) fn text(packages: &[String]) -> Outcome<String> {
    let linked = linked(packages)?;
    let mut crates = String::new();
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in sh::packages(&["--locked", "--filter-platform", &foreign::triple()])? {
        let word = |field: &str| package[field].as_str().unwrap_or("");
        if !linked.contains(&format!("{} v{}", word("name"), word("version"))) {
            continue;
        }
        let name = format!("{} {}", word("name"), word("version"));
        crates.push_str(&format!("{name}: {}; {}\n", word("license"), word("repository")));
        let folder = Path::new(word("manifest_path")).parent().unwrap_or(Path::new("."));
        for text in licences(folder, &root().join(OTHERS).join(word("name")))? {
            let _ = texts.entry(text).or_default().insert(name.clone());
        }
    }
    if crates.is_empty() {
        return Err("cargo metadata names nothing that is linked".into());
    }
    crates.push_str(
        "Rust's standard library: (MIT OR Apache-2.0) AND Unicode-3.0; https://github.com/rust-lang/rust\n",
    );
    let text = read(root().join(OTHERS).join(STANDARD))?.trim().to_owned();
    let _ = texts.entry(text).or_default().insert("Rust's standard library".into());
    let mut all = format!(
        "Tieline's binaries contain code of these crates, each under its own licence.\n\n{crates}"
    );
    for (text, of) in texts {
        let of = of.into_iter().collect::<Vec<_>>().join(", ");
        all.push_str(&format!("\n{}\nOf {of}:\n\n{text}\n", "-".repeat(78)));
    }
    Ok(all)
}

/// Returns the crates that are linked into a binary, as `name vVERSION`; crates of this workspace also have a path. Macros, and
/// crates for tests or builds, are excluded, because they are not linked.
fn linked(packages: &[String]) -> Outcome<BTreeSet<String>> {
    let target = foreign::triple();
    let args = ["tree", "--locked", "--edges", "normal,no-proc-macro", "--target", &target];
    let mut tree = cargo(&args);
    let _ = tree.args(["--prefix", "none", "--no-dedupe", "--format", "{p}"]);
    for package in packages {
        let _ = tree.args(["--package", package]);
    }
    Ok(capture(&mut tree)?.lines().map(str::to_owned).collect())
}

/// Returns the texts in the directory of a crate, or the text in the file that replaces them.
fn licences(folder: &Path, other: &Path) -> Outcome<Vec<String>> {
    let is_licence = |name: &str| NAMES.iter().any(|part| name.contains(part));
    let mut files = entries(folder)?;
    files.retain(|file| file.is_file() && is_licence(&name_of(file).to_lowercase()));
    if files.is_empty() {
        files.push(other.to_owned());
    }
    let text = |file: &PathBuf| {
        let text = read(file);
        let text = text.map_err(|e| format!("{} has no licence's text: {e}", folder.display()));
        Ok(text?.replace('\r', "").trim().to_owned())
    };
    files.iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_for_tests_or_for_building_are_not_linked() {
        let linked = linked(&["tieline-tools".into(), "tieline-capi".into()]).unwrap();
        let has = |name: &str| linked.iter().any(|one| one.split(' ').next() == Some(name));
        assert!(has("clap") && has("libc"), "{linked:?}");
        assert!(["proptest", "syn", "tieline-testing"].iter().all(|name| !has(name)), "{linked:?}");
    }

    #[test]
    fn a_crate_without_a_licences_text_needs_one_of_ours() {
        let folder = std::env::temp_dir().join(format!("tieline-notices-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("crate")).unwrap();
        let (of, other) = (folder.join("crate"), folder.join("other"));
        let refused = licences(&of, &other).unwrap_err();
        assert!(refused.contains("has no licence's text"), "{refused}");
        std::fs::write(&other, "ours\n").unwrap();
        assert_eq!(licences(&of, &other), Ok(vec!["ours".to_owned()]));
        std::fs::write(of.join("MIT_license"), "its\r\n").unwrap();
        assert_eq!(licences(&of, &other), Ok(vec!["its".to_owned()]));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
