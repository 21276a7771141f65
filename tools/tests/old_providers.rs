//! Providers that were built when an ABI was frozen, and never since: `tests/old-providers`.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The files of all versions: a folder of its own for each, which only this user can write.
fn files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/old-providers");
    let entries = |folder: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect()
    };
    let versions = entries(&root).into_iter().filter(|path| path.is_dir());
    let is_provider = |path: &PathBuf| path.extension().is_some_and(|end| end == "so");
    versions.flat_map(|version| entries(&version)).filter(is_provider).collect()
}

/// A copy of a file alone in a folder, gone when this is dropped.
struct Installed(PathBuf);

impl Installed {
    fn of(file: &Path) -> Installed {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let folder = std::env::temp_dir().join(format!("old-{name}-{}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
        let _ = std::fs::copy(file, folder.join(file.file_name().unwrap())).unwrap();
        Installed(folder)
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {errors}{text}");
    text
}

#[test]
fn a_provider_that_was_built_for_an_earlier_minor_is_loaded_and_passes_every_check() {
    if !cfg!(target_arch = "x86_64") {
        return println!("skipped: the files are for x86-64");
    }
    let files = files();
    assert!(files.len() >= 2, "{files:?}");
    for file in files {
        let installed = Installed::of(&file);
        let file = installed.0.join(file.file_name().unwrap());
        let text = succeeds(Command::new(env!("CARGO_BIN_EXE_tieline")).arg("check").arg(&file));
        assert!(text.contains(" 0 failed"), "{text}");
    }
}

#[test]
fn one_that_was_built_for_an_earlier_minor_carries_messages_puts_and_adds_between_processes() {
    if !cfg!(target_arch = "x86_64") {
        return println!("skipped: the files are for x86-64");
    }
    let rings = files().into_iter().filter(|file| file.ends_with("libtieline_rings.so"));
    for file in rings {
        let installed = Installed::of(&file);
        for test in ["am_lat", "put_lat", "get_lat", "add_lat"] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_tieline"));
            let _ = command.env("TIELINE_PROVIDER_PATH", &installed.0);
            let _ = command.env("TIELINE_PROVIDERS", "rings");
            let _ = command.args(["perf", "--test", test, "--memory", "alloc", "--verify"]);
            let _ = succeeds(command.args(["--iterations", "2000"]));
        }
    }
}
