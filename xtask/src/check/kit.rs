//! Checks the development kit: a provider that `tieline new-provider` writes is built, checked and found with only the files that
//! `cargo xtask install` and the development package install under a prefix. `cargo xtask package test` tests the provider's
//! packages in clean roots.

use super::Count;
use crate::sh::{Outcome, capture, make_folder, on, read, root, target, which};
use crate::{install, package};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The name of the provider that the check writes.
const NAME: &str = "vendor-net";
/// The file of the provider that the check writes.
const FILE: &str = "libtieline_vendor_net.so";
const VARIABLE: &str = "TIELINE_VENDOR_NET_ROOM";

const CARGO: [&str; 4] = ["HOME", "CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN"];

pub(super) fn check() -> Count {
    let missing = ["make", "cc", "pkg-config"].into_iter().find(|name| which(name).is_none());
    if let Some(program) = missing {
        return Count::skip(format!("a vendor's provider: there is no {program} here"));
    }
    let checked = Kit::laid(target().join("kit")).map(|kit| {
        let mut total = Count::one(kit.provider_in_c().map_err(|text| format!("in C: {text}")));
        total.add(Count::one(kit.provider_in_rust().map_err(|text| format!("in Rust: {text}"))));
        total.add(match kit.prefix.to_string_lossy().contains(' ') {
            true => Count::skip("docs/c.md: its lines have no quotes for a prefix with a space"),
            false => Count::one(kit.lines_of_docs().map_err(|text| format!("docs/c.md: {text}"))),
        });
        total
    });
    checked.into()
}

/// The installed tree, and the directory of the provider's sources.
struct Kit {
    folder: PathBuf,
    prefix: PathBuf,
}

impl Kit {
    fn laid(folder: PathBuf) -> Outcome<Kit> {
        package::emptied(&folder)?;
        let prefix = folder.join("usr");
        install::lay_what_is_built(&prefix)?;
        package::crate_for_providers(&folder)?;
        Ok(Kit { folder, prefix })
    }

    fn command(&self, program: &str, args: &[&str], place: &Path) -> Command {
        let mut command = Command::new(program);
        let _ = command.args(args).current_dir(place).env_clear();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(self.prefix.join("bin")).chain(std::env::split_paths(&path));
        let _ = command.env("PATH", std::env::join_paths(paths).unwrap_or(path.clone()));
        let _ = command.env("PKG_CONFIG_LIBDIR", self.prefix.join("lib/pkgconfig"));
        let kept = CARGO.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        let _ = command.envs(kept);
        command
    }

    /// Writes a provider in a language; returns the provider's directory.
    fn written(&self, language: &str, more: &[&str]) -> Outcome<PathBuf> {
        let place = self.folder.join(language);
        make_folder(&place)?;
        let words = [&["new-provider", NAME, "--lang", language], more].concat();
        let _ = capture(&mut self.command("tieline", &words, &place))?;
        Ok(place.join(format!("tieline-provider-{NAME}")))
    }

    fn provider_in_c(&self) -> Outcome {
        let made = self.written("c", &[])?;
        let _ = capture(&mut self.command("make", &["check"], &made))?;
        let laid = self.folder.join("c-installed");
        let destination = format!("DESTDIR={}", laid.display());
        let _ = capture(&mut self.command("make", &["install", &destination], &made))?;
        // The directory is that of the prefix's own providers, below that destination.
        let place = self.prefix.strip_prefix("/").unwrap_or(&self.prefix);
        self.is_found(&laid.join(place).join("lib/tieline-1/providers"), &made)
    }

    fn provider_in_rust(&self) -> Outcome {
        let api = self.prefix.join("share/tieline/plugin-api");
        let made = self.written("rust", &["--plugin-api", &api.display().to_string()])?;
        // The lock file selects versions of dependencies that are already downloaded; nothing is fetched.
        let lock = root().join("Cargo.lock");
        let _ = on(&lock, std::fs::copy(&lock, made.join("Cargo.lock")))?;
        let cargo = std::env::var("CARGO").unwrap_or("cargo".into());
        let _ = capture(&mut self.command(&cargo, &["update", "--workspace", "--offline"], &made))?;
        // The directory is kept between runs, so that dependencies are compiled once, and is shared with a test of the command.
        let built = target().join("tmp/new-provider");
        let mut build = self.command(&cargo, &["build", "--offline", "--locked"], &made);
        let _ = capture(build.arg("--target-dir").arg(&built))?;
        let providers = self.folder.join("rust-installed");
        make_folder(&providers)?;
        let from = built.join("debug").join(FILE);
        let _ = on(&from, std::fs::copy(&from, providers.join(FILE)))?;
        self.is_found(&providers, &made)
    }

    /// Checks that the provider in a directory conforms to the ABI, is found together with those of the prefix, and describes
    /// itself correctly.
    fn is_found(&self, providers: &Path, place: &Path) -> Outcome {
        let file = providers.join(FILE).display().to_string();
        let _ = capture(&mut self.command("tieline", &["check", &file], place))?;
        let path = format!("{}:{}", providers.display(), self.providers().display());
        let show = |words: &[&str]| {
            let mut tieline = self.command("tieline", words, place);
            capture(tieline.env("TIELINE_PROVIDER_PATH", &path).env(VARIABLE, "65"))
        };
        // A long path with spaces is printed in several lines.
        let said = show(&["info"])?.replace(&format!("\n{:22}", ""), " ");
        for (name, file) in [(NAME, &*file), ("tcp ", "/libtieline_tcp.so")] {
            if !said.lines().any(|line| line.starts_with(name) && line.ends_with(file)) {
                return Err(format!("`tieline info` has no line of {name} with {file}:\n{said}"));
            }
        }
        let said = show(&["config", VARIABLE])?;
        match said.contains("65") && said.contains("environment") && !said.contains("not known") {
            true => Ok(()),
            false => Err(format!("`tieline config {VARIABLE}` says {said}")),
        }
    }

    fn lines_of_docs(&self) -> Outcome {
        let text = read(root().join("docs/c.md"))?;
        let lines = text.split("```sh\n").find_map(|block| {
            let (block, _) = block.split_once("```")?;
            block.strip_prefix("cargo xtask install ")?.split_once('\n')
        });
        let (_, lines) = lines.ok_or("no block that begins with `cargo xtask install`")?;
        let place = self.folder.join("docs");
        make_folder(&place)?;
        for file in ["hello.c", "job.h", "check.h"] {
            let from = root().join("capi/examples").join(file);
            let _ = on(&from, std::fs::copy(&from, place.join(file)))?;
        }
        let lines = lines.replace("/opt/tieline", &self.prefix.display().to_string());
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut shell = Command::new("sh");
        let shell = shell.args(["-euc", &lines]).current_dir(&place).env_clear();
        capture(shell.env("PATH", path)).map(drop)
    }

    fn providers(&self) -> PathBuf {
        self.prefix.join("lib/tieline-1/providers")
    }
}
