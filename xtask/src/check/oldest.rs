//! Checks with the oldest Rust that Cargo.toml promises, and for another processor architecture: both type-check the released
//! packages, in a root of Debian trixie, whose rustc is that Rust.

use super::{Count, told};
use crate::package::{clean_root, vendor};
use crate::sh::{Outcome, command, listened, root};
use std::path::Path;

/// The Debian release with the promised Rust, and the packages to install.
const RELEASE: (&str, &str) = ("trixie", "cargo,rustc");

/// Rust's standard library for this processor is a Debian package, which is unpacked but not installed, because none of its
/// programs is needed.
const OTHER: &str = "
    dpkg --add-architecture arm64
    apt-get update -qq
    mkdir /other && cd /other
    apt-get download -qq libstd-rust-dev:arm64
    dpkg-deb -x libstd-rust-dev_*.deb /
    cd /tree
    cargo check --target aarch64-unknown-linux-gnu $ARGUMENTS";

pub(super) fn check() -> Count {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap_or_default();
    let promised = manifest.lines().find_map(|line| line.strip_prefix("rust-version = "));
    let Some(promised) = promised.map(|version| version.trim_matches('"')) else {
        return Count::one(Err("Cargo.toml promises no rust-version".into()));
    };
    crate::setup::install_or_say(crate::setup::ROOTS);
    let folder = match clean_root(RELEASE.0, RELEASE.1) {
        Ok(Ok(folder)) => folder,
        Ok(Err(reason)) => return Count::skip(format!("Rust {promised}: {reason}")),
        Err(text) => return Count::one(Err(text)),
    };
    let is_promised = format!("rustc --version | grep -q '^rustc {promised}\\.'");
    let mut count = Count::one(
        vendor(&folder.join("vendor"))
            .and_then(|()| inside(&folder, &format!("{is_promised}\ncargo check $ARGUMENTS"))),
    );
    if count.failed.is_empty() {
        count.add(Count::one(inside(&folder, OTHER)));
    }
    let _ = std::fs::remove_dir_all(&folder);
    count
}

/// Runs a script in the root, which contains this tree at `/tree` and must not write to the tree.
fn inside(folder: &Path, script: &str) -> Outcome {
    let mount = "mkdir -p \"$1/tree\" && cp /etc/resolv.conf \"$1/etc/\" && mount --bind -o ro \"$2\" \"$1/tree\" && mount -t proc proc \"$1/proc\" && \
                 chroot \"$1\" bash -euxc \"$3\"";
    let mut unshare = command("unshare", &["--mount", "--pid", "--fork", "--kill-child"]);
    let _ = unshare.args(["bash", "-euc", mount, "bash"]).arg(folder).arg(root());
    let sources = "--config source.crates-io.replace-with='vendored' --config source.vendored.directory='/vendor'";
    let script = format!("ARGUMENTS=\"--locked --offline {sources}\"\ncd /tree\n{script}");
    let kept = ["http_proxy", "https_proxy", "no_proxy"];
    let kept = kept.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    let _ = unshare.arg(script).env_clear().envs(kept);
    let _ = unshare.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/root");
    let _ = unshare.env("CARGO_TARGET_DIR", "/built").env("DEBIAN_FRONTEND", "noninteractive");
    let (outcome, said) = listened(&mut unshare);
    told(outcome, &said)
}
