//! Compares the C declarations of the providers verbs and ofi with crates that generate their declarations from the headers:
//! `tests/yardstick`.

use super::{Count, least, suite};
use crate::setup;
use crate::sh::{capture, cargo, command, root, target};
use std::path::{Path, PathBuf};

pub(super) fn check() -> Count {
    if let Err(text) = setup::install(setup::YARDSTICK) {
        return Count::skip(text);
    }
    let mut count = compare("verbs", None);
    let newer = command("pkg-config", &["--atleast-version=2", "libfabric"]).status();
    let headers = match newer.is_ok_and(|status| status.success()) {
        true => Ok(None),
        false => unpacked_headers().map(Some),
    };
    count.add(match headers {
        Ok(root) => compare("libfabric", root.as_deref()),
        Err(text) => Count::skip(format!("headers of libfabric 2.x, of 1.17 here: {text}")),
    });
    count
}

fn unpacked_headers() -> Result<PathBuf, String> {
    let folder = target().join("yardstick/libfabric");
    let script = root().join("tests/yardstick/libfabric-headers.sh");
    let _ = capture(command(script, &[]).arg(&folder))?;
    Ok(folder.join("root"))
}

/// Runs the tests of one provider with the headers below `root`, or with those of the machine.
fn compare(name: &str, root: Option<&Path>) -> Count {
    let mut test = cargo(&["test", "--locked", "--manifest-path", "tests/yardstick/Cargo.toml"]);
    let _ = test.args(["--features", name, "--test", name]);
    let _ = test.env("CARGO_TARGET_DIR", target().join("yardstick"));
    if let Some(root) = root {
        let files = format!("usr/lib/{}-linux-gnu/pkgconfig", std::env::consts::ARCH);
        let _ = test.env("PKG_CONFIG_SYSROOT_DIR", root).env("PKG_CONFIG_PATH", root.join(files));
    }
    least::or_failed("yardstick", suite::libtest(&mut test))
}
