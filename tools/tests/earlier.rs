//! Tests of compatibility: a process of an earlier commit and a process of this build communicate over the wire protocol.
//!
//! The earlier command is built from the history of this checkout, so the test runs only with `TESTS_WHOLE`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The last commit before leave messages (goodbyes) of version 1.1 of the interface.
const EARLIER: &str = "d8429438609de6ffda0f3be2f47ae938de2ad222";

const SECRET: &str = "sesame";

/// Returns the directory of the earlier command and its providers, or the reason why the command cannot be built.
fn earlier() -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("earlier");
    let sources = place.join("sources");
    if !sources.join("Cargo.toml").is_file() {
        std::fs::create_dir_all(&sources).unwrap();
        let mut archive = Command::new("git");
        let _ = archive.arg("-C").arg(&root).args(["archive", EARLIER]);
        let archive = archive.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut archive = archive.map_err(|error| format!("no git: {error}"))?;
        let mut unpack = Command::new("tar");
        let _ = unpack.arg("-xC").arg(&sources).stdin(archive.stdout.take().unwrap());
        let unpacked = unpack.stderr(Stdio::null()).status().unwrap().success();
        if !archive.wait().unwrap().success() || !unpacked {
            let _ = std::fs::remove_dir_all(&place);
            return Err(format!("this checkout has no commit {EARLIER}"));
        }
    }
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    let _ = cargo.args(["build", "--quiet", "--locked", "-p", "tieline-tools"]);
    let _ = cargo.args(["-p", "tieline-provider-tcp", "-p", "tieline-provider-tcp-connect"]);
    let _ = cargo.args(["-p", "tieline-provider-shm", "-p", "tieline-provider-shm-cma"]);
    let _ = cargo.current_dir(&sources).env("CARGO_TARGET_DIR", place.join("built"));
    let _ = cargo.env_remove("RUSTFLAGS");
    assert!(cargo.status().unwrap().success(), "{cargo:?}");
    Ok(place.join("built/debug"))
}

/// A `perf --listen` process of one build. Dropping this value ends the process.
struct Listener(Child, String);

impl Listener {
    fn start(built: &Path, providers: &str) -> Listener {
        let mut command = perf(built, providers);
        let _ = command.args(["--listen", "127.0.0.1:0"]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut first = String::new();
        let read = BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        assert!(read > 0, "{command:?}");
        let address = first.trim().strip_prefix("listening on ").unwrap().to_owned();
        Listener(child, address)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn perf(built: &Path, providers: &str) -> Command {
    let mut command = Command::new(built.join("tieline"));
    let _ = command.arg("perf").env("TIELINE_PROVIDER_PATH", built);
    let _ = command.env("TIELINE_PROVIDERS", providers).env("TIELINE_SECRET", SECRET);
    command
}

#[test]
fn process_of_an_earlier_commit_exchanges_data_with_one_of_this_build() {
    if !tieline_testing::is_whole() {
        return println!("skipped: it builds an earlier commit, with TESTS_WHOLE alone");
    }
    let earlier = match earlier() {
        Ok(earlier) => earlier,
        Err(why) => return println!("skipped: {why}"),
    };
    let now = Path::new(env!("CARGO_BIN_EXE_tieline")).parent().unwrap();
    let names = ["am_lat", "am_bw", "put_lat", "put_bw", "get_lat", "get_bw"];
    for providers in ["shm", "shm,shm-cma", "tcp,tcp-connect"] {
        for (there, here) in [(earlier.as_path(), now), (now, earlier.as_path())] {
            let listener = Listener::start(there, providers);
            let mut command = perf(here, providers);
            let _ = command.args(["--connect", &listener.1, "--json", "--verify"]);
            // One size is sent inline, one is eager, and one exceeds the longest eager message.
            let _ =
                command.args(["--test", "all", "--size", "8,5000,300000", "--iterations", "50"]);
            let output = command.output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{providers}, {command:?}: {errors}");
            for name in names {
                let measured = text.matches(&format!("\"{name}\"")).count();
                assert!(measured >= 2, "{providers}, {command:?}: {name} in {text}");
            }
        }
    }
}
