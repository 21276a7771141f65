//! The licences of what is linked into the binaries: each crate with its own, and each text once.

use crate::sh::{Outcome, capture, cargo};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Beginnings of the names of files that hold a licence's text.
const NAMES: [&str; 5] = ["licen", "copying", "notice", "copyright", "unlicense"];

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
        for text in licences(folder) {
            let _ = texts.entry(text).or_default().insert(name.clone());
        }
    }
    if crates.is_empty() {
        return Err("cargo metadata names nothing that is linked".into());
    }
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
        if !found.insert(id) {
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

fn licences(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let is_licence = |name: &str| NAMES.iter().any(|begin| name.starts_with(begin));
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        file.is_file() && is_licence(&name)
    });
    files.sort();
    let texts = files.iter().filter_map(|file| std::fs::read_to_string(file).ok());
    texts.map(|text| text.replace('\r', "").trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_tests_or_for_building_is_not_linked() {
        let dep = |to: &str, kind: Value| serde_json::json!({ "pkg": to, "dep_kinds": [{ "kind": kind }] });
        let metadata = serde_json::json!({
            "packages": [{ "name": "tool", "id": "tool" }, { "name": "other", "id": "other" }],
            "resolve": { "nodes": [
                { "id": "tool", "deps": [dep("a", Value::Null), dep("b", "dev".into()), dep("c", "build".into())] },
                { "id": "a", "deps": [dep("d", Value::Null)] },
                { "id": "other", "deps": [dep("e", Value::Null)] },
            ] },
        });
        let linked: Vec<_> = linked(&metadata, &["tool".into()]).into_iter().collect();
        assert_eq!(linked, ["a", "d", "tool"]);
    }
}
