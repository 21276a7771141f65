//! Tests of `tieline new-provider`: the files that it writes must build, conform to the ABI and describe themselves correctly.
//! `cargo xtask package test` tests its packages in clean roots.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// A directory that belongs to this test and is removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("{name}-{}", std::process::id());
        let folder = Folder(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
        let _ = std::fs::remove_dir_all(&folder.0);
        std::fs::create_dir_all(&folder.0).unwrap();
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn tieline(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tieline"));
    command.current_dir(folder).args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Checks that the file conforms to the ABI, and that `tieline config` shows its variable.
fn is_good(folder: &Path, file: &Path, name: &str, variable: &str) {
    let checked = tieline(folder, &["check", file.to_str().unwrap()]);
    assert!(checked.status.success(), "{}{}", text(&checked.stdout), text(&checked.stderr));
    let shown = Command::new(env!("CARGO_BIN_EXE_tieline"))
        .args(["config", variable])
        .env("TIELINE_PROVIDER_PATH", file.parent().unwrap())
        .env("TIELINE_PROVIDERS", name)
        .env(variable, "65")
        .output()
        .unwrap();
    let shown = text(&shown.stdout) + &text(&shown.stderr);
    assert!(shown.contains("65") && shown.contains("environment"), "{shown}");
    assert!(!shown.contains("not known"), "{shown}");
}

#[test]
fn a_provider_in_c_builds_and_keeps_the_contract_with_its_own_makefile() {
    let folder = Folder::new("new-c");
    let written = tieline(&folder.0, &["new-provider", "vendor-net", "--lang", "c"]);
    assert!(written.status.success(), "{}", text(&written.stderr));
    let made = folder.0.join("tieline-provider-vendor-net");
    for file in ["README.md", "debian/rules", "tieline-provider-vendor-net.spec"] {
        assert!(made.join(file).exists(), "{file}");
    }
    // The description has the form of that in the development package.
    let described = format!(
        "providersdir=/usr/lib/tieline-1/providers\nName: tieline-provider\nDescription: x\nVersion: 1\nCflags: -I\"{}\"\n",
        source().join("include").display()
    );
    std::fs::write(folder.0.join("tieline-provider.pc"), described).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_tieline")).parent().unwrap().to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([program].into_iter().chain(std::env::split_paths(&path)));
    let mut make = Command::new("make");
    let _ = make.arg("-C").arg(&made).arg("check").env("PATH", path.unwrap());
    let _ = make.env("PKG_CONFIG_PATH", &folder.0).env_remove("MAKEFLAGS");
    let missing = |program: &str| Command::new(program).arg("--version").output().is_err();
    if let Some(program) = ["make", "cc", "pkg-config"].into_iter().find(|p| missing(p)) {
        return println!("skipped: there is no {program}");
    }
    let output = make.output().unwrap();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let file = made.join("libtieline_vendor_net.so");
    is_good(&folder.0, &file, "vendor-net", "TIELINE_VENDOR_NET_ROOM");
}

#[test]
fn a_provider_in_rust_builds_and_keeps_the_contract() {
    let folder = Folder::new("new-rust");
    let api = source().join("plugin-api");
    let words = ["new-provider", "vendor-net", "--lang", "rust", "--plugin-api"];
    let written = tieline(&folder.0, &[&words[..], &[api.to_str().unwrap()]].concat());
    assert!(written.status.success(), "{}", text(&written.stderr));
    let made = folder.0.join("tieline-provider-vendor-net");
    // The workspace's lock file selects versions that are already downloaded.
    let _ = std::fs::copy(source().join("Cargo.lock"), made.join("Cargo.lock")).unwrap();
    // The directory is kept between runs, so that dependencies are compiled once.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("new-provider");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let _ = cargo.current_dir(&made).args(["build", "--quiet", "--offline", "--target-dir"]);
    let built = cargo.arg(&target).output().unwrap();
    assert!(built.status.success(), "{}", text(&built.stderr));
    let file = made.join("libtieline_vendor_net.so");
    let _ = std::fs::copy(target.join("debug/libtieline_vendor_net.so"), &file).unwrap();
    is_good(&folder.0, &file, "vendor-net", "TIELINE_VENDOR_NET_ROOM");
}

#[test]
fn existing_files_are_kept_and_invalid_names_are_refused() {
    let folder = Folder::new("new-twice");
    let words = ["new-provider", "mine", "--lang", "c"];
    assert!(tieline(&folder.0, &words).status.success());
    let changed = folder.0.join("tieline-provider-mine/provider.c");
    std::fs::write(&changed, "mine").unwrap();
    let again = tieline(&folder.0, &words);
    assert!(!again.status.success());
    assert_eq!(text(&again.stderr).lines().count(), 1, "{}", text(&again.stderr));
    assert_eq!(std::fs::read_to_string(&changed).unwrap(), "mine");
    let odd = tieline(&folder.0, &["new-provider", "my_net", "--lang", "c"]);
    assert!(text(&odd.stderr).contains("is no name for a provider"), "{}", text(&odd.stderr));
}
