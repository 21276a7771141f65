//! docs/checks.md, generated from the list of checks.

use crate::checks::{CHECKS, Check};
use crate::promises::promise_of;
use core::fmt::Write;
use tieline_plugin_api::role;

const HEAD: &str = "\
# The checks

This page lists the checks of `tieline check PROVIDER.so`, in the order in which they run. A module is tested against its own claims:
a check of a capability that the module lacks is skipped by name. A file that finds no device on this machine is skipped as a whole,
with the provider's text and exit status 3. A failed check gives exit status 1. The last column quotes the pages and the header: no
check requires more than they state. [`abi.md`](abi.md) has the rules,
[`writing-a-provider.md`](writing-a-provider.md) explains how to keep them.

Made by `cargo test -p tieline-conformance --test mutations -- --page`. Do not edit.
";

/// Returns the text of docs/checks.md.
#[must_use]
pub fn page() -> String {
    let mut text = HEAD.to_string();
    let parts = [
        ("Every module", true, true),
        ("Modules that move data", true, false),
        ("Connectors", false, true),
    ];
    for (title, data, connectors) in parts {
        let _ = write!(
            text,
            "\n## {title}\n\n| check | needs | what it protects | what it rests on |\n|---|---|---|---|\n"
        );
        let here = |check: &&Check| {
            data == check.is_for(role::DATA) && connectors == check.is_for(role::CONNECTION_ONLY)
        };
        for check in CHECKS.iter().filter(here) {
            let (name, protects) = (check.name, check.protects);
            let promise = promise_of(name);
            let _ = writeln!(text, "| `{name}` | {} | {protects} | {promise} |", check.needed());
        }
    }
    text
}
