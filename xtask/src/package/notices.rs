//! The licences of what is linked into the binaries: each crate with its own, and each text once.

use crate::sh::{Outcome, capture, cargo, root};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What the names of files that hold a licence's text have in them.
const NAMES: [&str; 4] = ["licen", "copying", "notice", "copyright"];

/// The texts of crates whose packages have none, each in a file of the crate's name.
const OTHERS: &str = "packaging/licences";

/// The text for the standard library, which is linked and no crate of cargo's.
const STANDARD: &str = "rust-std";

/// The text of `NOTICES`, for what these packages of the workspace link.
pub(super) fn text(packages: &[String]) -> Outcome<String> {
    let args = ["metadata", "--format-version", "1", "--locked"];
    let said = capture(cargo(&args).args(["--filter-platform", "x86_64-unknown-linux-gnu"]))?;
    let metadata: Value =
        serde_json::from_str(&said).map_err(|e| format!("cargo metadata: {e}"))?;
    let linked = linked(&metadata, packages);
    let mut crates = String::new();
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in list(&metadata["packages"]) {
        let id = package["id"].as_str().unwrap_or("");
        if !linked.contains(id) || package["source"].is_null() || is_macro(package) {
            continue;
        }
        let word = |field: &str| package[field].as_str().unwrap_or("");
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
    let standard = root().join(OTHERS).join(STANDARD);
    let text = std::fs::read_to_string(&standard);
    let text = text.map_err(|e| format!("{}: {e}", standard.display()))?.trim().to_owned();
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

/// The crates that end up in a binary: dependencies that are neither for tests nor for building.
fn linked<'a>(metadata: &'a Value, packages: &[String]) -> BTreeSet<&'a str> {
    let nodes = list(&metadata["resolve"]["nodes"]);
    let edges: BTreeMap<&str, &Value> =
        nodes.iter().filter_map(|node| Some((node["id"].as_str()?, &node["deps"]))).collect();
    let all = list(&metadata["packages"]);
    let named = |package: &&Value| packages.iter().any(|name| package["name"] == name.as_str());
    let mut left: Vec<&str> =
        all.iter().filter(named).filter_map(|package| package["id"].as_str()).collect();
    let mut found = BTreeSet::new();
    while let Some(id) = left.pop() {
        let is_new = found.insert(id);
        // What a macro uses runs in the compiler as well.
        if !is_new || all.iter().any(|package| package["id"] == id && is_macro(package)) {
            continue;
        }
        for dep in edges.get(id).map_or(&[][..], |deps| list(deps)) {
            let kinds = list(&dep["dep_kinds"]);
            if kinds.iter().any(|kind| kind["kind"].is_null()) {
                left.extend(dep["pkg"].as_str());
            }
        }
    }
    found
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A macro runs in the compiler, and no line of it is in a binary.
fn is_macro(package: &Value) -> bool {
    let targets = package["targets"].as_array();
    targets.is_some_and(|all| all.iter().any(|target| target["kind"][0] == "proc-macro"))
}

/// The texts in the folder of a crate, or that in the file which is there for it.
fn licences(folder: &Path, other: &Path) -> Outcome<Vec<String>> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let is_licence = |name: &str| NAMES.iter().any(|part| name.contains(part));
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        file.is_file() && is_licence(&name)
    });
    files.sort();
    if files.is_empty() {
        files.push(other.to_owned());
    }
    let read = |file: &PathBuf| {
        let text = std::fs::read_to_string(file);
        let text = text.map_err(|e| {
            format!("{} has no licence's text: {}: {e}", folder.display(), file.display())
        })?;
        Ok(text.replace('\r', "").trim().to_owned())
    };
    files.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_tests_or_for_building_is_not_linked() {
        let dep = |to: &str, kind: Value| serde_json::json!({ "pkg": to, "dep_kinds": [{ "kind": kind }] });
        let metadata = serde_json::json!({
            "packages": [{ "name": "tool", "id": "tool" }, { "name": "other", "id": "other" },
                { "name": "macro", "id": "macro", "targets": [{ "kind": ["proc-macro"] }] }],
            "resolve": { "nodes": [
                { "id": "tool", "deps": [dep("a", Value::Null), dep("b", "dev".into()), dep("c", "build".into())] },
                { "id": "a", "deps": [dep("d", Value::Null), dep("macro", Value::Null)] },
                { "id": "macro", "deps": [dep("syn", Value::Null)] },
                { "id": "other", "deps": [dep("e", Value::Null)] },
            ] },
        });
        let linked: Vec<_> = linked(&metadata, &["tool".into()]).into_iter().collect();
        assert_eq!(linked, ["a", "d", "macro", "tool"]);
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
