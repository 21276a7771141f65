//! Tests of providers that were built when an ABI was frozen, and were not rebuilt: `tests/old-providers`.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns the files of all versions. Each file is in a directory that only this user can write.
fn files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/old-providers");
    let entries = |folder: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect()
    };
    let versions = entries(&root).into_iter().filter(|path| path.is_dir());
    let is_provider = |path: &PathBuf| path.extension().is_some_and(|end| end == "so");
    versions.flat_map(|version| entries(&version)).filter(is_provider).collect()
}

/// A copy of a file in a separate directory. Dropping this value removes the directory.
struct Installed(PathBuf);

impl Installed {
    fn of(file: &Path) -> Installed {
        // Tests run at the same time, some of them in one process.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let folder = format!("old-{name}-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
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
fn provider_built_for_an_earlier_minor_loads_and_passes_every_check() {
    if !cfg!(target_arch = "x86_64") {
        return println!("skipped: the files are for x86-64");
    }
    let files = files();
    // Of each minor, two providers are in C, and one is in Rust.
    assert!(files.len() >= 6 && files.len() % 3 == 0, "{files:?}");
    let check = |file: &Path| {
        // The files stay in the repository permanently, so they must be small.
        assert!(std::fs::metadata(file).unwrap().len() < 600 << 10, "{}", file.display());
        let installed = Installed::of(file);
        let file = installed.0.join(file.file_name().unwrap());
        let text = succeeds(Command::new(env!("CARGO_BIN_EXE_tieline")).arg("check").arg(&file));
        assert!(text.contains(" 0 failed"), "{text}");
    };
    // Many checks wait for another process, so the files are checked concurrently.
    std::thread::scope(|scope| {
        let running: Vec<_> = files.iter().map(|file| scope.spawn(|| check(file))).collect();
        running.into_iter().for_each(|check| check.join().unwrap());
    });
}

/// The test uses the core in one process, in contrast to `tieline check`, which works without the core.
#[test]
fn each_old_provider_carries_a_message_put_and_get_to_oneself() {
    if !cfg!(target_arch = "x86_64") {
        return println!("skipped: the files are for x86-64");
    }
    for file in files() {
        let installed = Installed::of(&file);
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let name = name.trim_start_matches("libtieline_").replace('_', "-");
        let context = tieline::Context::builder()
            .set("TIELINE_PROVIDER_PATH", installed.0.to_str().unwrap())
            .set("TIELINE_PROVIDERS", &name)
            .set("TIELINE_PROBE", "nocache")
            .open();
        let context = context.unwrap_or_else(|error| panic!("{name}: {error}"));
        let loaded: Vec<String> =
            context.report().providers.into_iter().map(|view| view.origin).collect();
        assert!(loaded.iter().any(|origin| origin.ends_with(".so")), "{name}: {loaded:?}");
        let worker = context.worker().unwrap();
        let arrived = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let seen = arrived.clone();
        worker
            .on_message(1, move |message| seen.borrow_mut().extend_from_slice(message.payload()))
            .unwrap();
        let endpoint = worker.connect(&worker.address().unwrap()).unwrap();
        let _ = worker.finish(endpoint.send(1, 0, b"from a newer core").unwrap()).unwrap();
        while arrived.borrow().is_empty() {
            let _ = worker.progress();
        }
        assert_eq!(*arrived.borrow(), b"from a newer core", "{name}");
        let (there, here) = (context.alloc(4096).unwrap(), context.alloc(4096).unwrap());
        let key = endpoint.import_key(&there.remote_key().unwrap()).unwrap();
        here.write(0, b"put by a newer core").unwrap();
        let _ = worker.finish(endpoint.put(&here, 0..19, &key, 77).unwrap()).unwrap();
        assert_eq!(there.to_vec(77..96).unwrap(), b"put by a newer core", "{name}");
        let _ = worker.finish(endpoint.get(&here, 100..119, &key, 77).unwrap()).unwrap();
        assert_eq!(here.to_vec(100..119).unwrap(), b"put by a newer core", "{name}");
    }
}

#[test]
fn provider_of_an_earlier_minor_carries_traffic_between_processes() {
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
            let _ = succeeds(command.args(["--size", "8,4k,64k", "--iterations", "500"]));
        }
    }
}
