//! Of everything that is compiled: a licence that deny.toml allows, a source that it allows, and no demand for a newer
//! Rust than the one we promise. cargo-deny, where it is installed, looks at the same file and knows advisories, too.

use super::{Count, quiet};
use crate::sh::{Outcome, capture, cargo, root, which};
use serde_json::Value;

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

pub(super) fn check() -> Count {
    // Not `--offline`: on a fresh machine it fetches what nothing has needed until now.
    let args = ["metadata", "--format-version", "1", "--locked"];
    let mut metadata = cargo(&args);
    let metadata = metadata.args(["--filter-platform", "x86_64-unknown-linux-gnu"]);
    let file = root().join("deny.toml");
    let rules = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()));
    let outcome = rules.and_then(|rules| {
        let said = capture(metadata)?;
        let said: Value =
            serde_json::from_str(&said).map_err(|e| format!("cargo metadata: {e}"))?;
        all_fit(&Rules::parse(&rules), &said)
    });
    let mut count = Count::one(outcome);
    count.add(Count::one(texts_are_packaged()));
    if which("cargo-deny").is_some() {
        count.add(quiet(&mut cargo(&["deny", "check"])));
    } else {
        count
            .add(Count::skip("advisories: cargo-deny is not installed (cargo install cargo-deny)"));
    }
    count
}

/// Every crate that others may get has both licences' texts in its package.
fn texts_are_packaged() -> Outcome {
    let metadata = ["metadata", "--no-deps", "--format-version", "1", "--offline"];
    let metadata: serde_json::Value =
        serde_json::from_str(&capture(&mut cargo(&metadata))?).map_err(|e| e.to_string())?;
    let all = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let mut list = cargo(&["package", "--list", "--allow-dirty", "--offline"]);
    // Those that are published nowhere say so: `publish = false`.
    for package in all.iter().filter(|package| package["publish"].is_null()) {
        let _ = list.arg("--package").arg(package["name"].as_str().unwrap_or_default());
    }
    let listed = capture(&mut list)?;
    let times = |file: &str| listed.lines().filter(|line| *line == file).count();
    // Each package's list has one manifest.
    let packages = times("Cargo.toml");
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        if packages == 0 || times(licence) != packages {
            let having = times(licence);
            return Err(format!("{having} of {packages} crates have {licence} in their package"));
        }
    }
    Ok(())
}

/// What deny.toml says of licences.
struct Rules {
    allowed: Vec<String>,
    /// A crate, and the licences that are allowed to it beside.
    exceptions: Vec<(String, Vec<String>)>,
}

impl Rules {
    /// The lines `allow = [...]` and `exceptions = [{ crate = "...", allow = [...] }]` of its section of licences.
    fn parse(text: &str) -> Rules {
        let mut rules = Rules { allowed: Vec::new(), exceptions: Vec::new() };
        let section = text.split("[licenses]").nth(1).unwrap_or("");
        let section = section.split("\n[").next().unwrap_or("");
        for line in section.lines().map(str::trim) {
            if line.starts_with("allow =") {
                rules.allowed = quoted(line);
            } else if line.starts_with("exceptions =") {
                for exception in line.split("crate =").skip(1) {
                    let mut words = quoted(exception);
                    if !words.is_empty() {
                        let name = words.remove(0);
                        rules.exceptions.push((name, words));
                    }
                }
            }
        }
        rules
    }

    fn allow(&self, name: &str, licence: &str) -> bool {
        let beside = self.exceptions.iter().filter(|(of, _)| of == name).flat_map(|(_, all)| all);
        self.allowed.iter().chain(beside).any(|allowed| allowed == licence)
    }

    /// Whether an SPDX expression can be fulfilled: one side of every OR, both of every AND.
    fn fulfil(&self, name: &str, expression: &str) -> bool {
        let expression = expression.replace(['(', ')'], " ").replace('/', " OR ");
        // AND binds more closely; parentheses stand in no crate around an OR that is part of an AND, but for
        // unicode-ident's, where both sides of the AND are allowed in themselves.
        expression
            .split(" OR ")
            .any(|side| side.split(" AND ").all(|licence| self.allow(name, licence.trim())))
    }
}

fn quoted(text: &str) -> Vec<String> {
    text.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

fn all_fit(rules: &Rules, metadata: &Value) -> Outcome {
    let none = Vec::new();
    let packages = metadata["packages"].as_array().unwrap_or(&none);
    let ours = packages.iter().find(|package| package["name"] == "tieline");
    let promised = ours.and_then(|package| version(&package["rust_version"])).unwrap_or_default();
    let mut wrong = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or("");
        let licence = package["license"].as_str().unwrap_or("none");
        if !rules.fulfil(name, licence) {
            wrong.push(format!("{name}: the licence {licence} is not allowed"));
        }
        match package["source"].as_str() {
            None | Some(CRATES_IO) => {}
            Some(other) => wrong.push(format!("{name} comes from {other}")),
        }
        if version(&package["rust_version"]).is_some_and(|needed| needed > promised) {
            let needed = package["rust_version"].as_str().unwrap_or("");
            wrong.push(format!("{name} needs Rust {needed}, a newer one than we promise"));
        }
    }
    match (packages.len(), wrong.is_empty()) {
        (0..10, _) => Err("cargo metadata names no packages".into()),
        (_, true) => Ok(()),
        (_, false) => Err(wrong.join("; ")),
    }
}

/// `1.85` or `1.85.0`.
fn version(value: &Value) -> Option<(u32, u32)> {
    let mut numbers = value.as_str()?.split('.').map(|number| number.parse().unwrap_or(0));
    Some((numbers.next()?, numbers.next().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOML: &str = "[licenses]\nallow = [\"MIT\", \"Apache-2.0\"]\n\
                        exceptions = [{ crate = \"cbindgen\", allow = [\"MPL-2.0\"] }]\n[bans]\nallow = [\"GPL-3.0\"]\n";

    #[test]
    fn an_expression_is_fulfilled_by_one_side_of_or_and_by_both_of_and() {
        let rules = Rules::parse(TOML);
        assert!(rules.fulfil("a", "GPL-3.0 OR MIT"));
        assert!(rules.fulfil("a", "MIT/Apache-2.0"));
        assert!(!rules.fulfil("a", "MIT AND GPL-3.0"));
        assert!(rules.fulfil("a", "(MIT OR GPL-3.0)"));
        assert!(!rules.fulfil("a", "MPL-2.0"));
        assert!(rules.fulfil("cbindgen", "MPL-2.0"));
    }

    #[test]
    fn a_crate_with_another_licence_source_or_need_is_named() {
        let package = |name: &str, licence: &str, source: &str, needs: &str| serde_json::json!({ "name": name, "license": licence, "source": source, "rust_version": needs });
        let mut packages = vec![package("good", "MIT", CRATES_IO, "1.60"); 10];
        packages.push(package("tieline", "MIT", CRATES_IO, "1.85"));
        packages.push(package("newer", "MIT", CRATES_IO, "1.90.0"));
        packages.push(package("viral", "GPL-3.0", CRATES_IO, "1.60"));
        packages.push(package("forked", "MIT", "git+https://example.org/x", "1.60"));
        let wrong = all_fit(&Rules::parse(TOML), &serde_json::json!({ "packages": packages }));
        let wrong = wrong.unwrap_err();
        for name in ["newer", "viral", "forked"] {
            assert!(wrong.contains(name), "{wrong}");
        }
        assert!(!wrong.contains("good"), "{wrong}");
    }
}
