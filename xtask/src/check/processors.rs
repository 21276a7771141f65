//! Processors that nobody here has: what is for them is compiled as far as types go, where Rust's library for them is installed.

use super::{Count, quiet};
use crate::sh::{capture, cargo, command, target, which};

const TARGET: &str = "aarch64-unknown-linux-gnu";

pub(super) fn check() -> Count {
    if which("rustup").is_none() {
        return Count::skip(format!("{TARGET}: there is no rustup to bring it"));
    }
    let list = ["target", "list", "--installed"];
    let installed = capture(&mut command("rustup", &list)).unwrap_or_default();
    if !installed.lines().any(|line| line == TARGET) {
        return Count::skip(format!("{TARGET} is not installed (rustup target add {TARGET})"));
    }
    let mut check = cargo(&["check", "--locked", "--target", TARGET]);
    quiet(check.arg("--target-dir").arg(target().join("processors")))
}
