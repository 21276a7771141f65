//! Tests of `tieline perf` with its real peer process.

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn perf(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tieline"));
    command.arg("perf").args(args).output().unwrap()
}

/// Returns the JSON objects of a run that must succeed.
fn records(args: &[&str]) -> Vec<Value> {
    let output = perf(&[args, &["--json", "--iterations", "200"]].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_test_verifies_every_payload_in_both_kinds_of_memory() {
    for memory in ["ordinary", "alloc"] {
        let args = ["--test", "all", "--size", "1,8,300,5000", "--verify", "--memory", memory];
        let records = records(&args);
        assert_eq!(records.len(), 6 * 4 + 4);
        for record in records {
            assert_eq!(record["iterations"], 200, "{record}");
            assert!(record["p50_ns"].as_f64().unwrap() > 0.0, "{record}");
            assert!(record["p99_ns"].as_f64() >= record["p50_ns"].as_f64(), "{record}");
        }
    }
}

#[test]
fn nothing_is_left_behind() {
    let place = std::env::temp_dir().join(format!("tieline-perf-{}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&place).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tieline"));
    let _ = command.args(["perf", "--test", "am_lat", "--size", "8", "--iterations", "200"]);
    let output = command.env("XDG_RUNTIME_DIR", &place).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let left: Vec<_> =
        std::fs::read_dir(&place).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(left, Vec::<std::path::PathBuf>::new());
    std::fs::remove_dir(&place).unwrap();
}

#[test]
fn a_forced_path_is_the_path_that_is_taken() {
    let path = |args: &[&str]| records(args)[0]["path"].as_str().unwrap().to_owned();
    let put = ["--test", "put_bw", "--size", "64k"];
    assert!(path(&[&put[..], &["--path", "emulated"]].concat()).starts_with("emulated over shm/"));
    assert!(
        path(&[&put[..], &["--path", "shm", "--memory", "alloc"]].concat()).starts_with("shm/")
    );
}

#[test]
fn a_path_that_cannot_be_is_refused_with_what_would_be_taken() {
    let output =
        perf(&["--test", "put_bw", "--size", "8", "--path", "emulated", "--memory", "alloc"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.starts_with("tieline: cannot force the path emulated: "), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

#[test]
fn a_provider_that_is_not_there_is_one_line() {
    let output = perf(&["--path", "required:nowhere"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.starts_with("tieline: ") && errors.contains("nowhere"), "{errors}");
}

#[test]
fn a_peer_that_is_killed_ends_the_measurement_with_one_line() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tieline"));
    let _ = command.args([
        "perf",
        "--json",
        "--test",
        "am_lat,am_lat",
        "--size",
        "8,8,8,8",
        "--seconds",
        "1",
    ]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let _ = lines.next().unwrap().unwrap(); // it measures: the peer is there
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let peer = std::fs::read_to_string(children).unwrap();
    let killed = Command::new("kill").args(["-9", peer.trim()]).status().unwrap();
    assert!(killed.success());
    while lines.next().is_some() {}
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.starts_with("tieline: "), "{errors}");
}

#[test]
fn a_plot_is_written_where_it_was_asked_for() {
    let file = std::env::temp_dir().join(format!("tieline-plot-{}.svg", std::process::id()));
    let _ = records(&["--test", "am_lat", "--size", "8:64", "--plot", file.to_str().unwrap()]);
    let svg = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(svg.contains("am_lat") && svg.ends_with("</svg>\n"));
}

/// A `perf --listen` process on loopback. Dropping this value ends the process.
struct Listener {
    child: std::process::Child,
    address: String,
    secret: String,
}

impl Listener {
    fn start(secret: Option<&str>) -> Listener {
        Listener::start_with(secret, &[])
    }

    fn start_with(secret: Option<&str>, options: &[&str]) -> Listener {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tieline"));
        let _ = command.args(["perf", "--listen", "127.0.0.1:0"]).args(options);
        let _ = command.stdout(Stdio::piped());
        if let Some(secret) = secret {
            let _ = command.env("TIELINE_SECRET", secret);
        }
        let (ours, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let _ = command.stderr(std::os::fd::OwnedFd::from(ours));
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        let address = first.strip_prefix("listening on ").unwrap().to_owned();
        let secret = secret.map_or_else(
            || {
                let line = lines.next().unwrap().unwrap();
                let (_, rest) = line.split_once("TIELINE_SECRET=").unwrap();
                rest.split_once(' ').unwrap().0.to_owned()
            },
            str::to_owned,
        );
        // After this line no process reads the output of the listener, which continues to serve.
        drop(lines);
        Listener { child, address, secret }
    }

    fn connect(&self, secret: &str, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tieline"));
        let _ = command.args(["perf", "--connect", &self.address, "--json"]).args(args);
        let _ = command.env("TIELINE_SECRET", secret).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn listener_serves_clients_in_turn_and_survives_those_that_vanish() {
    let listener = Listener::start(None);
    let all = ["--test", "all", "--size", "8,5000", "--iterations", "100", "--verify"];
    let output = listener.connect(&listener.secret, &all).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 6 * 2 + 4);

    // The clients are: a silent one, one with another protocol, one without the secret, and one that is killed.
    drop(std::net::TcpStream::connect(&listener.address).unwrap());
    let mut stranger = std::net::TcpStream::connect(&listener.address).unwrap();
    let _ = std::io::Write::write_all(&mut stranger, b"GET / HTTP/1.0\r\n\r\n");
    let output = listener.connect("sesame", &[]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("another secret") && errors.contains("TIELINE_SECRET"), "{errors}");
    let long = ["--test", "am_lat", "--size", "8,9", "--seconds", "0.3"];
    let mut child = listener.connect(&listener.secret, &long).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let _ = lines.next().unwrap().unwrap(); // the first one is measured, it is in the middle of the second
    child.kill().unwrap();
    let _ = child.wait();

    let output = listener.connect(&listener.secret, &["--iterations", "100"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_listener_that_is_killed_ends_the_measurement_with_one_line() {
    let mut listener = Listener::start(Some("sesame"));
    let endless = ["--test", "am_lat,am_lat", "--size", "8,8,8", "--seconds", "1"];
    let mut child = listener.connect("sesame", &endless).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let _ = lines.next().unwrap().unwrap(); // it measures
    listener.child.kill().unwrap();
    while lines.next().is_some() {}
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.starts_with("tieline: ") && !errors.contains("sesame"), "{errors}");
}

#[test]
fn missing_listener_is_one_line_that_names_the_command_to_start() {
    let output = perf(&["--connect", "127.0.0.1:1"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("start `tieline perf --listen` there"), "{errors}");
}

#[test]
fn silent_strangers_do_not_keep_a_client_out() {
    let listener = Listener::start(Some("sesame"));
    let strangers: Vec<_> =
        (0..100).map(|_| std::net::TcpStream::connect(&listener.address).unwrap()).collect();
    let output = listener.connect("sesame", &["--iterations", "100"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    drop(strangers);
}

#[test]
fn a_client_that_is_stopped_does_not_hold_the_listener() {
    let listener = Listener::start_with(Some("sesame"), &["--patience", "4"]);
    let endless = ["--test", "put_bw,put_bw,put_bw", "--size", "8,8,8,8", "--seconds", "1"];
    let mut stopped = listener.connect("sesame", &endless).spawn().unwrap();
    let mut lines = BufReader::new(stopped.stdout.take().unwrap()).lines();
    let _ = lines.next().unwrap().unwrap(); // it measures
    let tell = |signal: &str| {
        let _ = Command::new("kill").args([signal, &stopped.id().to_string()]).status();
    };
    tell("-STOP");
    let output = listener.connect("sesame", &["--iterations", "100"]).output().unwrap();
    tell("-KILL");
    let _ = stopped.wait();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_size_that_no_memory_holds_is_one_line_and_not_the_end_of_the_process() {
    for test in ["memcpy", "self_lat", "am_bw", "put_bw", "get_lat"] {
        for size in ["100000g", "17179869183g"] {
            let output = perf(&["--test", test, "--size", size]);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{test} {size}: {errors}");
            assert_eq!(errors.lines().count(), 1, "{errors}");
            assert!(errors.contains("--size"), "{errors}");
        }
    }
}

#[test]
fn one_thread_measures_messages_to_itself() {
    let args = ["--json", "--test", "self_lat", "--size", "8,1k", "--iterations", "1000"];
    let output = perf(&args);
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{text}");
    for line in lines {
        assert_eq!(line["test"], "self_lat");
        assert_eq!(line["path"], "shm/ring");
        assert_eq!(line["iterations"], 1000);
    }
    let too_long = perf(&["--test", "self_lat", "--size", "1g", "--iterations", "1"]);
    let said = String::from_utf8_lossy(&too_long.stderr);
    assert!(said.contains("give --size less"), "{said}");
}

#[test]
fn two_processes_on_one_processor_do_not_spin_it_away() {
    // A spinning wait uses a tick of the kernel, which is some milliseconds, for each operation; the limit is in processor time.
    let perf =
        "ulimit -t 3; exec \"$0\" perf --json --cpus 0,0 --size 8 --iterations 5000 --memory alloc";
    for test in ["am_lat", "put_lat"] {
        let mut shell = Command::new("sh");
        let _ = shell.args(["-c", &format!("{perf} --test {test}")]);
        let output = shell.arg(env!("CARGO_BIN_EXE_tieline")).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{test}: {}: {errors}", output.status);
    }
}

#[test]
fn a_flush_behind_more_adds_than_there_is_room_for_waits_for_room() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let place = std::env::temp_dir().join(format!("tieline-adds-{}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&place).unwrap();
    // The program handles one event per poll: operations complete more slowly than they are posted.
    let mut cc = Command::new("cc");
    let _ = cc.args(["-std=c11", "-O1", "-w", "-shared", "-fPIC", "-DODD=LEAST_LIMITS", "-I"]);
    let _ = cc.arg(source.join("include")).arg("-o").arg(place.join("libtieline_rings.so"));
    match cc.arg(source.join("conformance/subjects/rings.c")).status() {
        Ok(status) => assert!(status.success(), "{cc:?}"),
        Err(error) => {
            std::fs::remove_dir_all(&place).unwrap();
            return println!("skipped: no C compiler: {error}");
        }
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_tieline"));
    let _ = command.env("TIELINE_PROVIDER_PATH", &place).env("TIELINE_PROVIDERS", "rings");
    let _ = command.args(["perf", "--test", "add_lat", "--memory", "alloc", "--verify"]);
    let output = command.args(["--iterations", "20000"]).output().unwrap();
    std::fs::remove_dir_all(&place).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn duration_of_a_run_is_written_to_the_requested_report() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tieline"));
    let _ =
        command.args(["perf", "--test", "am_lat", "--size", "8", "--iterations", "200", "--json"]);
    let output = command.env("TIELINE_REPORT", "stderr").output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    // Both processes report the lane that leads to the other.
    let lanes: Vec<_> = told.lines().filter(|line| line.contains("] to process ")).collect();
    assert_eq!(lanes.len(), 2, "{told}");
    assert!(lanes.iter().all(|line| line.starts_with("tieline[") && line.contains("shm/ring")));
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(record["preempted"].is_u64() && record["stolen_ms"].is_u64(), "{record}");
    assert!(record["hindrances"].is_array(), "{record}");
}

#[test]
fn all_pairs_of_a_job_are_measured_and_the_slowest_is_named() {
    let tieline = env!("CARGO_BIN_EXE_tieline");
    let run = |more: &[&str]| {
        let mut command = Command::new(tieline);
        let perf = ["run", "-n", "3", "--", tieline, "perf", "--all-pairs", "--test", "am_lat"];
        let rest = ["--size", "8", "--iterations", "100", "--verify"];
        let output = command.args(perf).args(rest).args(more).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = run(&[]);
    for pair in ["0 - 1", "0 - 2", "1 - 2", "slowest: ranks "] {
        assert!(text.contains(pair), "{text}");
    }
    assert!(text.contains("shm/ring"), "{text}");
    let records: Vec<Value> =
        run(&["--json"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let pairs: Vec<_> =
        records.iter().map(|r| (r["from"].as_u64().unwrap(), r["to"].as_u64().unwrap())).collect();
    assert_eq!(pairs, [(0, 1), (0, 2), (1, 2)]);
    assert!(records.iter().all(|record| record["iterations"] == 100), "{records:?}");
}

#[test]
fn all_pairs_without_a_job_says_how_to_start_one() {
    let output = perf(&["--all-pairs"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("tieline run -n N"), "{errors}");
}

/// A longer message would become a rendezvous message, and the measurement is one of eager messages.
#[test]
fn all_pairs_refuse_a_message_that_is_too_long_and_name_the_limit() {
    let tieline = env!("CARGO_BIN_EXE_tieline");
    let perf = ["run", "-n", "2", "--", tieline, "perf", "--all-pairs", "--test", "am_bw"];
    let output = Command::new(tieline).args(perf).args(["--size", "64m"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    for words in ["cannot measure messages of 64m", "at most ", "give --size with less"] {
        assert!(errors.contains(words), "{errors}");
    }
}
