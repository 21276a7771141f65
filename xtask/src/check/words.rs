//! Checks generated files that are committed: each must equal its generated text.

use super::Count;
use crate::sh::{capture, command, read, root, target};

pub(super) fn header() -> Count {
    let program = target().join("debug/xtask-header");
    super::quiet(&mut command(program, &["--check"]))
}

pub(super) fn configuration() -> Count {
    let file = root().join("docs/configuration.md");
    let tieline = target().join("debug/tieline");
    let mut tieline = command(tieline, &["config", "--markdown"]);
    let generated =
        capture(tieline.env_clear().env("TIELINE_PROVIDER_PATH", target().join("debug")));
    Count::one(generated.and_then(|generated| {
        let committed =
            read(&file)?;
        if committed == generated {
            return Ok(());
        }
        let same = committed.lines().zip(generated.lines()).take_while(|(a, b)| a == b).count();
        let line = same + 1;
        Err(format!(
            "docs/configuration.md is stale from line {line} on; write it with \
             `TIELINE_PROVIDER_PATH=target/debug target/debug/tieline config --markdown > docs/configuration.md`"
        ))
    }))
}
