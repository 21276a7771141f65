//! Tests of a user's first commands: a list that names one transport, a misspelt name, `tieline info --why`, and a command line
//! with an invalid value.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use tieline_testing::built;

const TIELINE: &str = env!("CARGO_BIN_EXE_tieline");

/// The providers that the tests build as files; `shm` and `shm-cma` are linked in.
const ALL: [built::Made<'static>; 6] = [
    built::TCP[0],
    built::TCP[1],
    ("tieline-provider-verbs-plugin", "libtieline_verbs.so"),
    ("tieline-provider-ofi-plugin", "libtieline_ofi.so"),
    ("tieline-provider-shm-knem-plugin", "libtieline_shm_knem.so"),
    ("tieline-provider-shm-xpmem-plugin", "libtieline_shm_xpmem.so"),
];

struct Providers(PathBuf);

impl Providers {
    fn of(files: &[built::Made<'_>]) -> Providers {
        Providers(built::folder(files).expect("the providers of this build"))
    }

    fn tieline(&self, args: &[&str], settings: &[(&str, &str)]) -> Output {
        let mut command = Command::new(TIELINE);
        let _ = command.args(args).env("TIELINE_PROVIDER_PATH", &self.0).env("COLUMNS", "100");
        command.envs(settings.iter().copied()).stdin(Stdio::null()).output().unwrap()
    }

    fn report(&self, settings: &[(&str, &str)]) -> Value {
        serde_json::from_slice(&self.tieline(&["info", "--json"], settings).stdout).unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn list_with_tcp_alone_adds_its_connector_and_two_processes_talk() {
    let providers = Providers::of(&built::TCP);
    for list in ["tcp", "shm,tcp", "required:tcp"] {
        let report = providers.report(&[("TIELINE_PROVIDERS", list)]);
        let paths = report["paths"].as_array().unwrap();
        let tcp = paths.iter().find(|path| path["domain"] == "tcp").unwrap();
        assert_eq!(tcp["connection"], "tcp-connect/stream", "{list}: {tcp}");
        let records = report["records"].as_array().unwrap().iter();
        let of = |r: &&Value| r["provider"] == "tcp-connect" && r["domain"].is_null();
        let used = records.filter(of).find(|record| record["verdict"]["is"] == "chosen_for");
        let because = used.unwrap()["verdict"]["because"].as_str().unwrap();
        let words = format!(
            "added automatically: TIELINE_PROVIDERS={list} names no other provider that forms"
        );
        assert!(because.starts_with(&words), "{because}");
    }
    let run = ["run", "-n", "2", "--", TIELINE, "perf", "--all-pairs", "--size", "8"];
    let run = [&run[..], &["--iterations", "10", "--verify"]].concat();
    let output = providers.tieline(&run, &[("TIELINE_PROVIDERS", "tcp")]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("tcp/stream"), "{}", text(&output.stdout));
}

#[test]
fn connector_excluded_by_a_list_stays_out_and_its_absence_is_explained() {
    let providers = Providers::of(&built::TCP);
    let barred = [("TIELINE_PROVIDERS", "tcp"), ("TIELINE_CONNECT", "^tcp-connect")];
    let excluded = [("TIELINE_PROVIDERS", "^tcp-connect")];
    for settings in [&barred[..], &excluded] {
        let report = providers.report(settings);
        let paths = report["paths"].as_array().unwrap();
        let tcp = paths.iter().find(|path| path["domain"] == "tcp").unwrap();
        assert!(tcp["disabled"].is_string() && tcp["connection"].is_null(), "{tcp}");
    }
    let output = providers.tieline(&["info"], &barred);
    let errors = text(&output.stderr);
    let cause = "usable: tcp: disabled: tcp/stream needs another module to form its connections";
    assert!(errors.contains(cause), "{errors}");
}

#[test]
fn a_slip_in_any_list_comes_first_with_the_name_that_was_meant() {
    let providers = Providers::of(&built::TCP);
    for (variable, slip, meant) in [
        ("TIELINE_PROVIDERS", "shmm", "shm"),
        ("TIELINE_DOMAINS", "shmm", "shm"),
        ("TIELINE_MODULES", "shm/rign", "shm/ring"),
    ] {
        let output = providers.tieline(&["info"], &[(variable, slip)]);
        let errors = text(&output.stderr);
        let first = format!("usable: {slip}: not found: did you mean {meant}? ");
        assert!(errors.contains(&first), "{errors}");
        assert!(errors.contains(&format!("{variable}={slip} does not name ")), "{errors}");
        assert!(errors.trim_end().ends_with(&format!("; write {meant} for {slip}")), "{errors}");
    }
    let output = providers.tieline(&["perf", "--path", "shmm"], &[]);
    assert!(text(&output.stderr).contains("shmm: not found: did you mean shm?"));
}

#[test]
fn without_accelerators_reasons_fit_thirty_lines_and_name_no_fault() {
    let is_bare = |path: &str| std::fs::read_dir(path).map_or(true, |mut all| all.next().is_none());
    let devices =
        ["/dev/knem", "/dev/xpmem"].iter().any(|path| std::path::Path::new(path).exists());
    if devices || !is_bare("/sys/class/infiniband") {
        return println!("skipped: this machine has an accelerator");
    }
    let providers = Providers::of(&ALL);
    let output = providers.tieline(&["info", "--why"], &[]);
    let said = text(&output.stdout);
    let shown: usize = said.lines().map(|line| line.chars().count().div_ceil(100).max(1)).sum();
    assert!(shown <= 30, "{shown} lines:\n{said}");
    for fault in ["refused", "warn", "WARNINGS", "outranked"] {
        assert!(!said.contains(fault), "{fault}:\n{said}");
    }
    for line in ["shm-knem     not used  there is no /dev/knem\n", "`tieline info --why --all`"] {
        assert!(said.contains(line), "{line}:\n{said}");
    }
    let all = text(&providers.tieline(&["info", "--why", "--all"], &[]).stdout);
    let whole = all.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in ["(`modprobe knem`)", "WAITS", "shm/ring used for message"] {
        assert!(whole.contains(words), "{words}:\n{all}");
    }
    let report = providers.report(&[]);
    let states = report["records"].as_array().unwrap().iter().map(|r| &r["verdict"]["is"]);
    assert!(states.clone().all(|state| state != "refused"), "{report}");
    assert_eq!(report["log"].as_array().unwrap().len(), 0, "{}", report["log"]);
    // A provider that the user names must be usable.
    let named = providers.report(&[("TIELINE_PROVIDERS", "shm,shm-knem")]);
    let warnings = named["warnings"].as_array().unwrap();
    let said =
        warnings.iter().filter_map(Value::as_str).any(|w| w.starts_with("shm-knem is named"));
    assert!(said, "{warnings:?}");
}

#[test]
fn missing_device_hinders_a_measurement_only_if_it_was_named() {
    if std::path::Path::new("/dev/knem").exists() {
        return println!("skipped: this machine has knem");
    }
    let providers = Providers::of(&ALL[4..5]);
    let perf = ["perf", "--test", "am_lat", "--size", "8", "--iterations", "10", "--json"];
    let hindrances = |settings: &[(&str, &str)]| {
        let output = providers.tieline(&perf, settings);
        let record: Value = serde_json::from_slice(&output.stdout).unwrap();
        record["hindrances"].as_array().unwrap().clone()
    };
    assert_eq!(hindrances(&[]), [Value::Null; 0]);
    let named = hindrances(&[("TIELINE_PROVIDERS", "shm,shm-knem")]);
    assert!(named[0].as_str().unwrap().starts_with("shm-knem: not used: there is no"), "{named:?}");
}

#[test]
fn values_that_make_no_sense_are_refused_with_what_does() {
    let refused = |args: &[&str]| {
        let output = Command::new(TIELINE).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        text(&output.stderr)
    };
    for seconds in ["0", "inf", "nan", "-1"] {
        let said = refused(&["perf", "--seconds", seconds]);
        assert!(said.contains(&format!("`{seconds}` is no number of seconds above 0")), "{said}");
    }
    let said = refused(&["run", "-n", "-1", "--", "true"]);
    assert!(said.contains("-1 is not in 1..=4096") && !said.contains("tip:"), "{said}");
    let output = Command::new(TIELINE).args(["config", "fastbx"]).output().unwrap();
    assert!(text(&output.stderr).contains("did you mean fastbox?"), "{}", text(&output.stderr));
}

#[test]
fn help_reports_and_settings_keep_to_the_width_that_is_given() {
    for args in [&["run", "--help"][..], &["perf", "--help"], &["config"], &["info"]] {
        let output = Command::new(TIELINE).args(args).env("COLUMNS", "80").output().unwrap();
        let said = text(&output.stdout);
        // Lines must not be broken inside the command of an example, a path or a name.
        let whole = |line: &str| ["tieline ", "/", "_"].iter().any(|mark| line.contains(mark));
        let long = said.lines().find(|line| line.chars().count() > 80 && !whole(line));
        assert!(output.status.success() && long.is_none(), "{args:?}: {long:?}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error_of_any_command() {
    let commands: [&[&str]; 4] = [
        &["info", "--why"],
        &["config"],
        &["perf", "--test", "am_lat", "--size", "8,16,32", "--iterations", "5"],
        &["perf", "--help"],
    ];
    for args in commands {
        let mut command = Command::new(TIELINE);
        let _ = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (output.status.code(), text(&output.stderr)),
            (Some(0), String::new()),
            "{args:?}"
        );
    }
}

#[test]
fn message_too_long_for_one_is_skipped_with_the_true_reason() {
    let args = ["perf", "--test", "am_lat", "--size", "8,1m", "--iterations", "5", "--path", "shm"];
    let output = Command::new(TIELINE).args(args).output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("am_lat of 1m skipped: it measures messages that go as one"), "{said}");
}

#[test]
fn the_demo_of_a_file_without_end_stops_with_a_reason() {
    let args = ["run", "-n", "2", "--", TIELINE, "demo", "/dev/zero"];
    let output = Command::new(TIELINE).args(args).output().unwrap();
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("cannot move /dev/zero"), "{said}");
}
