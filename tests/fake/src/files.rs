//! The directory of the two shared objects, where a context finds them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Returns a directory that contains the two files under their providers' names and no other file. The directory is never removed.
///
/// # Panics
/// Panics if the files were not built: `cargo test -p tieline-fake` builds them, `--test` alone does not.
pub(crate) fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(link)
}

fn link() -> PathBuf {
    let program = std::env::current_exe().expect("the running program");
    let target = program.parent().and_then(Path::parent).expect("target/debug/deps/program");
    let directory = target.join("fake-providers");
    fs::create_dir_all(&directory).expect("a directory beside the programs");
    for (built, name) in [("fake_provider", "fake"), ("fake_other_provider", "other")] {
        let built = target.join(format!("examples/lib{built}.so"));
        let linked = directory.join(format!("libtieline_{name}.so"));
        let identity = |path: &Path| {
            use std::os::unix::fs::MetadataExt;
            fs::metadata(path).map(|m| (m.dev(), m.ino())).ok()
        };
        let wanted = identity(&built);
        assert!(wanted.is_some(), "{}: run `cargo test -p tieline-fake`", built.display());
        if wanted == identity(&linked) {
            continue;
        }
        // Tests run concurrently, so the file must be complete when it becomes visible.
        let fresh = directory.join(format!("{name}-{}", std::process::id()));
        let _ = fs::remove_file(&fresh);
        let placed = fs::hard_link(&built, &fresh).and_then(|()| fs::rename(&fresh, &linked));
        assert!(placed.is_ok(), "{}: {placed:?}", linked.display());
    }
    directory
}
