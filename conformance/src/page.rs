//! docs/checks.md, generated from the list of checks.

use crate::checks::{CHECKS, Check};
use crate::promises::promise_of;
use core::fmt::Write;
use tieline_plugin_api::role;

const HEAD: &str = "\
# The checks

What `tieline check PROVIDER.so` asks of a provider, in the order in which it is asked. A module is held to what it claims: a check
that needs a capability which the module lacks is skipped by name. A file that finds no device here is skipped as a whole, with the
provider's words and exit status 3; a failed check is exit status 1. The last column quotes what the pages and the header promise: no
check asks for more than stands there. [`abi.md`](abi.md) has the rules that these come from,
[`writing-a-provider.md`](writing-a-provider.md) the way to keep them.

Made by `cargo test -p tieline-conformance --test mutations -- --page`. Do not edit.
";

/// The text of docs/checks.md.
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
