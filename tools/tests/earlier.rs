//! Tests of compatibility: a process of an earlier commit and a process of this build communicate over the wire protocol.
//!
//! The earlier command is built from the history of this checkout, so the test runs only with `TESTS_WHOLE`.

#![allow(unsafe_code)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use tieline::{After, Context, KeyLookup, Outcome, PostError, SendOptions, Status, Worker};

/// The last commit before leave messages (goodbyes) of version 1.1 of the interface.
const EARLIER: &str = "d8429438609de6ffda0f3be2f47ae938de2ad222";

/// The version of the library's own messages at that commit.
const MESSAGES: &str = "1.3";

/// A program of that commit that serves a peer.
const PEER: &str = include_str!("earlier/peer.rs");

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
    // `tieline perf` refuses a peer whose program has another version. This test is about the wire, so both get the same one.
    let manifest = sources.join("Cargo.toml");
    let text = std::fs::read_to_string(&manifest).unwrap();
    let version = text.lines().find(|line| line.starts_with("version = ")).unwrap();
    let this = format!("version = \"{}\"", env!("CARGO_PKG_VERSION"));
    if version != this {
        std::fs::write(&manifest, text.replace(version, &this)).unwrap();
    }
    let programs = sources.join("tools/src/bin");
    std::fs::create_dir_all(&programs).unwrap();
    std::fs::write(programs.join("earlier_peer.rs"), PEER).unwrap();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    let _ = cargo.args(["build", "--quiet", "-p", "tieline-tools"]);
    let _ = cargo.args([
        "-p",
        "tieline-provider-tcp-plugin",
        "-p",
        "tieline-provider-tcp-connect-plugin",
    ]);
    let _ =
        cargo.args(["-p", "tieline-provider-shm-plugin", "-p", "tieline-provider-shm-cma-plugin"]);
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

/// An `earlier_peer` process, with its answers. Dropping this value ends the process.
struct EarlierPeer(Child, BufReader<ChildStdout>);

impl EarlierPeer {
    fn start(built: &Path, providers: &str) -> EarlierPeer {
        let mut command = Command::new(built.join("earlier_peer"));
        let _ = command.env("TIELINE_PROVIDER_PATH", built).env("TIELINE_PROVIDERS", providers);
        let _ = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        EarlierPeer(child, output)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.1.read_line(&mut line).unwrap();
        assert!(read > 0, "the earlier peer has ended");
        line.trim().to_owned()
    }
}

impl Drop for EarlierPeer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn unhex(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
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
        refuses_only_new_calls(&earlier, now, providers);
    }
}

/// Checks that a process of this build refuses the new calls towards the earlier one in words that name both versions, and that all
/// other calls succeed.
fn refuses_only_new_calls(earlier: &Path, now: &Path, providers: &str) {
    let mut peer = EarlierPeer::start(earlier, providers);
    let first = peer.line();
    let (address, key) = first.split_once(' ').unwrap();
    let context = Context::builder().set("TIELINE_PROVIDERS", providers);
    let context = context.set("TIELINE_PROVIDER_PATH", &now.display().to_string()).open().unwrap();
    let worker = context.worker().unwrap();
    let there = worker.connect(&unhex(address)).unwrap();
    let key = there.import_key(&unhex(key)).unwrap();
    let delivered = SendOptions::new().delivered();
    let headed = SendOptions::new().header_bytes(b"head");
    let number = there.key_by_number(17).map(|found| match found {
        KeyLookup::Asked(asked) => asked,
        KeyLookup::Known(_) => Outcome::Done(0),
    });
    let new: [Result<Outcome, PostError>; 3] = [
        there.send_with(7, 1, b"delivered", &delivered),
        there.send_with(7, 2, b"headed", &headed),
        number,
    ];
    for refused in new {
        let error = refused.unwrap_err();
        assert_eq!(error.status(), Status::Unsupported, "{providers}: {error}");
        let words = error.to_string();
        assert!(words.contains(MESSAGES) && words.contains("1.4"), "{providers}: {words}");
    }
    let source = context.register(vec![3; 16]).unwrap();
    let ends = |worker: &Worker, posted: Result<Outcome, PostError>| {
        let ended = worker.finish(posted.unwrap());
        assert!(ended.is_ok(), "{providers}: {ended:?}");
    };
    ends(&worker, there.send_with(7, 3, b"plain", &SendOptions::new()));
    let list = [tieline::Descriptor::new(&source, 0..8, &key, 0)];
    let put = there.put_list(&list).unwrap();
    let raw = [4; 8];
    // SAFETY: the array lives until the operation has ended.
    ends(&worker, unsafe { there.put_raw(raw.as_ptr(), raw.len(), &key, 8) });
    ends(&worker, there.notify(After::Operations(&[&put]), 7, 4, b"behind"));
    ends(&worker, Ok(put));
    ends(&worker, there.flush_messages());
    assert_eq!([peer.line(), peer.line()], ["3 706c61696e", "4 626568696e64"], "{providers}");
    drop(peer.0.stdin.take());
    assert_eq!(peer.line(), format!("{}{}{}", "03".repeat(8), "04".repeat(8), "00".repeat(48)));
}
