//! The oldest Rust that Cargo.toml promises compiles what we ship, where that toolchain is installed.

use super::{Count, quiet};
use crate::sh::{capture, command, root, target, which};

pub(super) fn check() -> Count {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap_or_default();
    let promised = manifest.lines().find_map(|line| line.strip_prefix("rust-version = "));
    let Some(promised) = promised.map(|version| version.trim_matches('"').to_owned()) else {
        return Count::one(Err("Cargo.toml promises no rust-version".into()));
    };
    if which("rustup").is_none() {
        return Count::skip(format!("Rust {promised}: there is no rustup to bring it"));
    }
    let installed = capture(&mut command("rustup", &["toolchain", "list"])).unwrap_or_default();
    let toolchain = installed.lines().find(|line| line.starts_with(&promised));
    let Some(toolchain) = toolchain.and_then(|line| line.split_whitespace().next()) else {
        return Count::skip(format!(
            "Rust {promised} is not installed (rustup toolchain install {promised} --profile minimal)"
        ));
    };
    let mut cargo = command("cargo", &[&format!("+{toolchain}"), "check", "--locked"]);
    // What this cargo told us about itself is not for the other one.
    let _ = cargo.env_remove("RUSTUP_TOOLCHAIN").env_remove("RUSTC").env_remove("CARGO");
    quiet(cargo.arg("--target-dir").arg(target().join("oldest")))
}
