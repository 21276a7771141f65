//! Tests of `tieline check`, in the form in which an author of a provider uses it.

mod support;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use support::{ended, until};

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn example() -> PathBuf {
    let file = "libloopback_rust.so";
    let folder = tieline_testing::built::folder(&[("tieline-example-loopback", file)]);
    folder.unwrap_or_else(|reason| panic!("{reason}")).join(file)
}

fn check(file: &Path, arguments: &[&str]) -> (Output, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tieline"));
    let output = command.arg("check").arg(file).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    (output, out, errors)
}

/// Compiles the C example with a `put` that never returns; returns `None` without a compiler.
fn hanging(name: &str) -> Option<(PathBuf, PathBuf)> {
    let good = "int32_t status = TIELINE_OK;\n    struct tieline_region *r;";
    changed(name, good, &format!("for (;;) ;\n    {good}"))
}

fn changed(name: &str, from: &str, to: &str) -> Option<(PathBuf, PathBuf)> {
    let text = std::fs::read_to_string(source().join("docs/examples/loopback.c")).unwrap();
    assert_eq!(text.matches(from).count(), 1);
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (file, object) = (folder.join("changed.c"), folder.join("libtieline_loopback.so"));
    std::fs::write(&file, text.replace(from, to)).unwrap();
    let mut cc = Command::new("cc");
    let cc = cc.args(["-std=c11", "-w", "-shared", "-fPIC", "-I"]).arg(source().join("include"));
    match cc.arg("-o").arg(&object).arg(&file).status() {
        Ok(status) => assert!(status.success(), "{cc:?}"),
        Err(_) => return None,
    }
    Some((folder, object))
}

#[test]
fn a_file_that_is_no_provider_is_one_line() {
    for (file, words) in [
        (source().join("Cargo.toml"), "no ELF header"),
        (PathBuf::from("/nowhere/libtieline_none.so"), "No such file"),
    ] {
        let (output, _, errors) = check(&file, &[]);
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.contains(words), "{errors}");
    }
}

#[test]
fn missing_provider_is_named_with_those_that_exist() {
    let (output, _, errors) = check(&example(), &["--module", "rc"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(errors.contains("no module rc; there is loopback-rust/self"), "{errors}");
    let (output, _, errors) = check(&example(), &["--filter", "nonsense"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(errors.contains("no check has `nonsense` in its name"), "{errors}");
}

#[test]
fn list_names_modules_and_checks() {
    let (output, text, _) = check(&example(), &["--list"]);
    assert!(output.status.success());
    assert!(text.contains("module loopback-rust/self\n"), "{text}");
    assert!(text.contains("check a_revoked_key_is_rejected put, get, checks_keys\n"), "{text}");
    assert!(!text.contains("datagram"), "{text}");
}

#[test]
fn json_has_every_check_with_verdict_words_and_duration() {
    let (output, text, _) = check(&example(), &["--json", "--filter", "a_message_"]);
    assert!(output.status.success());
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["provider"], "loopback-rust");
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    let checks = report["checks"].as_array().unwrap();
    let named = |name: &str| checks.iter().find(|check| check["name"] == name).unwrap();
    let passed = named("a_message_to_oneself_arrives");
    assert_eq!((&passed["verdict"], &passed["words"]), (&"ok".into(), &"".into()));
    assert_eq!(passed["module"], "loopback-rust/self");
    assert!(passed["seconds"].as_f64().unwrap() > 0.0);
    let skipped = named("a_message_wakes_a_sleeping_interface");
    assert_eq!(skipped["verdict"], "skipped");
    assert_eq!(skipped["words"], "lacks capability event_fd");
    assert_eq!(report["failed"], 0);
}

#[test]
fn a_provider_without_its_device_is_skipped_with_its_words() {
    let from = "(void)state;\n    *count = 1;";
    let to = "(void)state, (void)attr;\n    return *count = 0, fail(TIELINE_NO_DEVICE, \"no card in any slot\");";
    let Some((folder, object)) = changed("no-device", from, to) else {
        return println!("skipped: there is no C compiler");
    };
    let (plain, text, _) = check(&object, &[]);
    let (json, report, _) = check(&object, &["--json"]);
    std::fs::remove_dir_all(folder).unwrap();
    assert_eq!((plain.status.code(), json.status.code()), (Some(3), Some(3)));
    assert_eq!(text, "loopback: skipped: no device here: no card in any slot\n");
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["no_device"], "no card in any slot");
    assert_eq!((&report["failed"], &report["passed"]), (&0.into(), &0.into()));
}

#[test]
fn a_hang_is_named_with_the_slot_that_did_not_return() {
    let Some((folder, object)) = hanging("hang") else {
        return println!("skipped: there is no C compiler");
    };
    let (output, text, _) = check(&object, &["--filter", "a_put_writes", "--limit", "1"]);
    std::fs::remove_dir_all(folder).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("within 1s, found that it hung: put did not return"), "{text}");
    assert!(text.contains("\n0 passed, 1 failed, 0 skipped\n"), "{text}");
}

/// The process that runs the check is in `put`: it uses its processor, and would end by itself long after this test.
#[test]
fn a_check_ends_with_the_program_that_runs_it() {
    let Some((folder, object)) = hanging("orphan") else {
        return println!("skipped: there is no C compiler");
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_tieline"));
    let command =
        command.arg("check").arg(&object).args(["--filter", "a_put_writes", "--limit", "600"]);
    let mut tool = command.stdout(Stdio::null()).spawn().unwrap();
    let children = format!("/proc/{0}/task/{0}/children", tool.id());
    let words =
        |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut child = String::new();
    until(|| {
        child = std::fs::read_to_string(&children).unwrap_or_default().trim().to_owned();
        words(&child).contains("a_put_writes_exactly_its_range")
    });
    tool.kill().unwrap();
    drop(ended(tool));
    until(|| !words(&child).contains("a_put_writes"));
    std::fs::remove_dir_all(folder).unwrap();
}

/// Runs `tieline check` without a file, with these variables.
fn check_here(variables: &[(&str, &str)]) -> (Output, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tieline"));
    for name in ["TIELINE_PROVIDERS", "TIELINE_PROVIDER_PATH", "TIELINE_CONFIG"] {
        let _ = command.env_remove(name);
    }
    let output = command.arg("check").envs(variables.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

#[test]
fn without_a_file_every_way_is_tried_to_this_process_and_to_another() {
    let (output, text) = check_here(&[]);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for with in ["itself", "another process"] {
        for path in ["as set", "shm "] {
            let works = text
                .lines()
                .any(|line| line.starts_with("ok ") && line.contains(path) && line.contains(with));
            assert!(works, "{path} with {with}: {text}");
        }
    }
    assert!(text.contains("messages shm/ring"), "{text}");
}

#[test]
fn a_message_that_does_not_arrive_fails_the_way_within_its_limit() {
    let good = "    e->interface->tail++;\n    return TIELINE_OK;\n}\n\nstatic int64_t am_packed";
    let to = "    return TIELINE_OK;\n}\n\nstatic int64_t am_packed";
    let Some((folder, object)) = changed("swallows", good, to) else {
        return println!("skipped: there is no C compiler");
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_tieline"));
    let _ = command.args(["check", "--limit", "1"]).env_remove("TIELINE_CONFIG");
    let _ = command.env("TIELINE_PROVIDER_PATH", &folder).env("TIELINE_PROVIDERS", "loopback");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(object.exists());
    std::fs::remove_dir_all(folder).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let missing = |line: &&str| line.contains("with itself") && line.contains("missing after 1 s");
    assert!(
        text.lines().filter(|line| line.starts_with("FAILED")).any(|line| missing(&line)),
        "{text}"
    );
}

#[test]
fn a_worker_that_cannot_be_opened_fails_the_check_with_its_cause() {
    // The settings, providers and paths are all valid.
    let program = env!("CARGO_BIN_EXE_tieline");
    let limited = "ulimit -n 9; exec \"$0\" check";
    let output = Command::new("sh").args(["-c", limited, program]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let failed = text.lines().find(|line| line.starts_with("FAILED")).expect("it fails");
    assert!(failed.contains("open files") || failed.contains("descriptor"), "{text}");
}
