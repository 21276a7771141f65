//! Checks the crates that are compiled on x86-64 and on 64-bit Arm: each has a licence that deny.toml allows, comes from crates.io or
//! this workspace, and states no newer Rust than this project's oldest. Checks that the texts of the licences are packaged.
//!
//! cargo-deny reads the same file and also checks advisories. cargo-deny is not required, because a new machine needs minutes to
//! compile it.

use super::{Count, quiet};
use crate::sh::{Outcome, capture, cargo, packages, read, root, which};
use serde_json::Value;

/// The processors for which packages are made.
const PLATFORMS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

pub(super) fn check() -> Count {
    let mut count = Count::one(all_are_allowed());
    count.add(Count::one(texts_are_packaged()));
    count.add(match which("cargo-deny") {
        Some(_) => quiet(&mut cargo(&["deny", "check"])),
        None => Count::skip("advisories: cargo-deny is not installed (cargo install cargo-deny)"),
    });
    count
}

fn all_are_allowed() -> Outcome {
    let rules = read(root().join("deny.toml"))?;
    // The call does not use `--offline`: a new machine fetches crates that no earlier command has needed.
    let mut options = vec!["--locked"];
    options.extend(PLATFORMS.iter().flat_map(|platform| ["--filter-platform", platform]));
    let packages = packages(&options)?;
    let own = packages.iter().find(|package| package["name"] == "tieline");
    let newest = own.map(minor).ok_or("cargo metadata does not name tieline")?;
    let wrong: Vec<_> = packages.iter().filter_map(|one| refused(&rules, newest, one)).collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

/// Returns the reason why a package may not be used, if there is one.
fn refused(rules: &str, newest: u32, package: &Value) -> Option<String> {
    let text = |field: &str| package[field].as_str().unwrap_or("none");
    let (name, licence, source) = (text("name"), text("license"), text("source"));
    if !is_fulfilled(licence, &allowed(rules, name)) {
        return Some(format!("{name}: the licence {licence} is not allowed"));
    }
    if !["none", CRATES_IO].contains(&source) {
        return Some(format!("{name} comes from {source}"));
    }
    let is_new = minor(package) > newest;
    is_new.then(|| format!("{name} needs Rust {}, which is too new", text("rust_version")))
}

/// Returns the minor version: 85 for `1.85` or `1.85.0`.
fn minor(package: &Value) -> u32 {
    let version = package["rust_version"].as_str().unwrap_or_default();
    version.split('.').nth(1).map_or(0, |minor| minor.parse().unwrap_or(u32::MAX))
}

/// Returns the licences that the section `[licenses]` of deny.toml allows for all crates, and for this crate.
fn allowed<'a>(rules: &'a str, name: &str) -> Vec<&'a str> {
    let quoted = |text: &'a str| text.split('"').skip(1).step_by(2);
    let section = rules.split("[licenses]\n").nth(1).and_then(|rest| rest.split("\n[").next());
    let section = section.unwrap_or_default();
    let for_all = section.lines().find(|line| line.starts_with("allow = "));
    let mut exceptions = section.split("{ crate = ").skip(1);
    let own = exceptions.find(|exception| quoted(exception).next() == Some(name));
    for_all.into_iter().chain(own).flat_map(quoted).collect()
}

/// Checks whether an SPDX expression is fulfilled: one side of an OR, both sides of an AND. An AND binds more closely; the
/// parentheses that crates have enclose licences of which each is allowed.
fn is_fulfilled(expression: &str, allowed: &[&str]) -> bool {
    let expression = expression.replace(['(', ')'], " ").replace('/', " OR ");
    let mut sides = expression.split(" OR ");
    sides.any(|side| side.split(" AND ").all(|licence| allowed.contains(&licence.trim())))
}

fn texts_are_packaged() -> Outcome {
    let list = ["package", "--workspace", "--list", "--allow-dirty", "--offline"];
    let listed = capture(&mut cargo(&list))?;
    let times = |file: &str| listed.lines().filter(|line| *line == file).count();
    // The list of each package has one manifest.
    let counts = ["Cargo.toml", "LICENSE-MIT", "LICENSE-APACHE"].map(times);
    let are_equal = counts[0] > 0 && counts.iter().all(|count| *count == counts[0]);
    are_equal.then_some(()).ok_or(format!("packages, with LICENSE-MIT, -APACHE: {counts:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_with_another_licence_source_or_need_is_refused() {
        let rules = "[licenses]\nallow = [\"MIT\", \"ISC\"]\n\
                     exceptions = [{ crate = \"bindings\", allow = [\"MPL-2.0\"] }]\n[bans]\nallow = [\"GPL-3.0\"]\n";
        let is_refused = |name: &str, license: &str, source: &str, rust_version: &str| {
            let package = serde_json::json!({ "name": name, "license": license, "source": source,
                "rust_version": rust_version });
            refused(rules, 85, &package).is_some()
        };
        for licence in ["GPL-3.0 OR MIT", "MIT/Apache-2.0", "(MIT OR GPL-3.0)", "MIT AND ISC"] {
            assert!(!is_refused("a", licence, CRATES_IO, "1.85.0"), "{licence}");
        }
        for licence in ["MIT AND GPL-3.0", "GPL-3.0", "MPL-2.0"] {
            assert!(is_refused("a", licence, CRATES_IO, "1.85"), "{licence}");
        }
        assert!(!is_refused("bindings", "MPL-2.0", CRATES_IO, "1.85"));
        assert!(is_refused("a", "MIT", CRATES_IO, "1.90.0"));
        assert!(is_refused("a", "MIT", "git+https://example.org/x", "1.60"));
    }
}
