//! Tests of `tieline run` with real processes. A job is a shell script or this program: a process of it with `TIELINE_RANK` is a
//! rank, and the process without it observes the ranks.

mod support;

#[path = "../../core/examples/hello.rs"]
mod hello;

#[path = "../../core/examples/halo.rs"]
mod halo;

use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use support::{ended, until};
use tieline::{Status, job::Job};

fn job(n: usize, test: &str, options: &[&str]) -> Output {
    let itself = std::env::current_exe().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tieline"));
    let _ = command.args(["run", "-n", &n.to_string()]).args(options).arg("--").arg(itself);
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).output().unwrap()
}

fn shell(n: usize, options: &[&str], script: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tieline"));
    let _ = command.args(["run", "-n", &n.to_string()]).args(options);
    command.args(["--", "sh", "-c", script]).output().unwrap()
}

/// Starts `tieline run` with a shell script; [`ended`] waits for its end.
fn started(n: usize, options: &[&str], script: &str, argument: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tieline"));
    let _ = command.args(["run", "-n", &n.to_string()]).args(options);
    let _ = command.args(["--", "sh", "-c", script, argument]);
    let _ = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn closed() -> Stdio {
    let (ours, _) = UnixStream::pair().unwrap();
    Stdio::from(OwnedFd::from(ours))
}

/// Returns the path of a file for this test, which does not exist yet.
fn file(name: &str) -> PathBuf {
    let file = std::env::temp_dir().join(format!("tieline-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&file);
    file
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn rank() -> Option<Job> {
    std::env::var_os("TIELINE_RANK").map(|_| Job::from_env().unwrap())
}

#[test]
fn everybody_gets_everybodys_bytes_in_rank_order() {
    let Some(job) = rank() else {
        let output = job(5, "everybody_gets_everybodys_bytes_in_rank_order", &[]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout).matches("rank done").count(), 5);
        return;
    };
    assert_eq!((job.size(), job.local_rank()), (5, job.rank()));
    for round in 0..50 {
        let mine = vec![job.rank() as u8; job.rank() * 1000 * (round % 3)];
        for (from, part) in job.exchange(&mine).unwrap().iter().enumerate() {
            assert_eq!(*part, vec![from as u8; from * 1000 * (round % 3)]);
        }
        job.barrier().unwrap();
    }
    println!("rank done");
}

#[test]
fn three_hundred_ranks_join_and_exchange() {
    let Some(job) = rank() else {
        let output = job(300, "three_hundred_ranks_join_and_exchange", &[]);
        let said = text(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_eq!(text(&output.stdout).matches("rank done").count(), 300, "{said}");
        return;
    };
    let all = job.exchange(&[job.rank() as u8; 660]).unwrap();
    assert!(all.iter().enumerate().all(|(rank, part)| *part == [rank as u8; 660]));
    job.publish(1, &[job.rank() as u8; 660]).unwrap();
    for distance in [1, 7, 150] {
        let other = (job.rank() + distance) % 300;
        assert_eq!(job.lookup(other, 1).unwrap(), [other as u8; 660]);
    }
    job.barrier().unwrap();
    println!("rank done");
}

#[test]
fn rank_that_left_is_named_when_its_unpublished_key_is_looked_up() {
    let Some(job) = rank() else {
        let output = job(2, "rank_that_left_is_named_when_its_unpublished_key_is_looked_up", &[]);
        assert_eq!(
            text(&output.stdout).matches("rank done").count(),
            1,
            "{}",
            text(&output.stderr)
        );
        return;
    };
    if job.rank() == 1 {
        job.publish(1, b"this").unwrap();
        assert_eq!(job.lookup(0, 1).unwrap(), b"both are here");
        return;
    }
    job.publish(1, b"both are here").unwrap();
    assert_eq!(job.lookup(1, 1).unwrap(), b"this");
    let error = job.lookup(1, 2).unwrap_err();
    assert_eq!(error.status(), Status::PeerFailed);
    assert!(error.to_string().contains("rank 1 ended"), "{error}");
    println!("rank done");
}

#[test]
fn rank_that_ends_before_joining_is_named_immediately_to_lookups() {
    let name = "rank_that_ends_before_joining_is_named_immediately_to_lookups";
    match std::env::var("TIELINE_RANK").as_deref() {
        Ok("1") => return,
        Ok(_) => {}
        Err(_) => {
            let output = job(2, name, &[]);
            assert!(text(&output.stdout).contains("rank done"), "{}", text(&output.stderr));
            return;
        }
    }
    let error = rank().unwrap().lookup(1, 1).unwrap_err();
    assert_eq!(error.status(), Status::PeerFailed, "{error}");
    assert!(error.to_string().contains("rank 1 ended"), "{error}");
    println!("rank done");
}

#[test]
fn a_rank_that_is_killed_is_named_to_those_who_wait_for_it() {
    let Some(job) = rank() else {
        let output = job(3, "a_rank_that_is_killed_is_named_to_those_who_wait_for_it", &[]);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(128 + 9), "{errors}");
        assert!(errors.contains("tieline: rank 1 failed: pid "), "{errors}");
        assert!(errors.contains("was ended by signal 9 (SIGKILL)"), "{errors}");
        return;
    };
    job.barrier().unwrap();
    if job.rank() == 1 {
        let _ = Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
    }
    let error = job.lookup(1, 1).unwrap_err();
    assert_eq!(error.status(), Status::PeerFailed);
    assert!(error.to_string().contains("rank 1 was ended by signal 9"), "{error}");
    let error = job.barrier().unwrap_err();
    assert_eq!(error.status(), Status::PeerFailed);
    assert!(error.to_string().contains("rank 1 was ended by signal 9"), "{error}");
    assert_eq!(job.barrier().unwrap_err(), error, "a broken exchange stays broken");
}

#[test]
fn a_rank_that_leaves_early_is_named_to_those_who_wait_for_it() {
    let Some(job) = rank() else {
        let output = job(2, "a_rank_that_leaves_early_is_named_to_those_who_wait_for_it", &[]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        return;
    };
    if job.rank() == 0 {
        let error = job.barrier().unwrap_err();
        assert!(error.to_string().contains("rank 1"), "{error}");
    }
}

#[test]
fn a_stranger_without_the_jobs_identity_is_told_and_left_out() {
    let Some(job) = rank() else {
        let output = job(2, "a_stranger_without_the_jobs_identity_is_told_and_left_out", &[]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        return;
    };
    if job.rank() == 0 {
        let script =
            "env TIELINE_JOB=0123 TIELINE_RANK=1 \"$0\" a_stranger_says_hello --exact --nocapture";
        let itself = std::env::current_exe().unwrap();
        let status = Command::new("sh").args(["-c", script]).arg(itself).status().unwrap();
        assert!(status.success());
    }
    job.barrier().unwrap();
}

/// This test is the foreign process of another test; without that test it does nothing.
#[test]
fn a_stranger_says_hello() {
    if std::env::var("TIELINE_JOB").as_deref() == Ok("0123") {
        let error = Job::from_env().and_then(|job| job.barrier()).unwrap_err();
        assert!(error.to_string().contains("TIELINE_JOB is not this job's"), "{error}");
    }
}

#[test]
fn the_first_failure_is_the_exit_code_and_the_others_are_ended() {
    let output = shell(4, &[], "if [ $TIELINE_RANK = 2 ]; then exit 7; fi; exec sleep 1000");
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{errors}");
    assert!(
        errors.contains("exited with code 7; the 3 others that still ran were ended"),
        "{errors}"
    );
}

#[test]
fn with_keep_going_the_job_survives_a_rank_and_ends_as_the_last_one_does() {
    let lost = file("lost");
    let script = |code: u32| {
        let lost = lost.display();
        format!(
            "if [ $TIELINE_RANK = 2 ]; then kill -9 $$; fi; if [ $TIELINE_RANK = 1 ]; then exit 0; fi; until [ -e {lost} ]; do sleep \
             0.01; done; exit {code}"
        )
    };
    for code in [0, 7] {
        let _ = std::fs::remove_file(&lost);
        let mut job = started(3, &["--keep-going"], &script(code), "").spawn().unwrap();
        let mut errors = BufReader::new(job.stderr.take().unwrap());
        let mut line = String::new();
        let _ = errors.read_line(&mut line).unwrap();
        assert!(line.contains("rank 2") && line.contains("SIGKILL"), "{line}");
        assert!(line.contains("goes on") || line.contains("go on"), "{line}");
        std::fs::write(&lost, "").unwrap();
        assert_eq!(job.wait().unwrap().code(), Some(code as i32));
    }
    std::fs::remove_file(&lost).unwrap();
}

#[test]
fn a_rank_that_ignores_sigterm_is_killed() {
    let script =
        "if [ $TIELINE_RANK = 0 ]; then trap '' TERM; while :; do sleep 0.1; done; fi; exit 3";
    assert_eq!(shell(2, &[], script).status.code(), Some(3));
}

#[test]
fn tags_are_put_before_each_line_when_asked_for() {
    let output = shell(2, &["--tag"], "echo one; printf two");
    let mut lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["[0] one", "[0] two", "[1] one", "[1] two"]);
    assert_eq!(text(&shell(1, &[], "echo one").stdout), "one\n");
}

#[test]
fn a_signal_to_the_launcher_reaches_every_rank() {
    let script = "trap 'echo caught; exit 0' TERM; kill -TERM $PPID; while :; do sleep 0.05; done";
    let output = shell(1, &[], script);
    assert_eq!(text(&output.stdout), "caught\n");
    assert!(output.status.success());
}

#[test]
fn a_program_that_is_not_there_is_one_line() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tieline"));
    let output = command.args(["run", "-n", "2", "--", "./no-such-program"]).output().unwrap();
    let errors = text(&output.stderr);
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(
        errors.starts_with("tieline: cannot start `./no-such-program` as rank 0: "),
        "{errors}"
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn without_descriptors_the_limit_is_named_and_not_the_path() {
    let limited = "ulimit -n 8; exec \"$0\" run -n 16 --tag -- true";
    let mut shell = Command::new("sh");
    let output = shell.args(["-c", limited, env!("CARGO_BIN_EXE_tieline")]).output().unwrap();
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("limit"), "{errors}");
    assert!(!errors.contains("path"), "{errors}");
}

#[test]
fn a_program_starts_with_no_signal_blocked() {
    let output = shell(1, &[], "grep SigBlk /proc/self/status");
    assert_eq!(text(&output.stdout), "SigBlk:\t0000000000000000\n");
}

fn env_can_ignore_signals() -> bool {
    let env = Command::new("env").args(["--ignore-signal=CHLD", "true"]).status();
    env.is_ok_and(|status| status.success())
}

#[test]
fn a_launcher_whose_parent_ignores_dead_children_ends_with_its_ranks() {
    if !env_can_ignore_signals() {
        return println!("skipped: this env(1) cannot have signals ignored");
    }
    let launcher = env!("CARGO_BIN_EXE_tieline");
    let child = Command::new("env")
        .args(["--ignore-signal=CHLD", launcher, "run", "-n", "2", "--", "sh", "-c"])
        .arg("if [ $TIELINE_RANK = 1 ]; then exit 3; fi; exec sleep 1000")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = ended(child);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
}

#[test]
fn launcher_with_sigchld_ignored_ends_after_sigterm_if_ranks_ignore_it() {
    if !env_can_ignore_signals() {
        return println!("skipped: this env(1) cannot have signals ignored");
    }
    let script = "trap '' TERM; echo $$ > $0.$TIELINE_RANK.new; \
                  mv $0.$TIELINE_RANK.new $0.$TIELINE_RANK; while :; do sleep 0.05; done";
    let place = file("ignored");
    let name = place.display().to_string();
    let run = started(2, &["--kill-after", "0.2"], script, &name);
    let mut deaf = Command::new("env");
    let _ = deaf.arg("--ignore-signal=CHLD").arg(run.get_program()).args(run.get_args());
    let _ = deaf.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = deaf.spawn().unwrap();
    let files = ["0", "1"].map(|rank| PathBuf::from(format!("{name}.{rank}")));
    until(|| files.iter().all(|file| file.exists()));
    // env(1) has executed the launcher, so the process number is that of the launcher.
    let _ = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    let output = ended(child);
    assert_eq!(output.status.code(), Some(128 + 9), "{}", text(&output.stderr));
    for file in files {
        let pid = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(file).unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        assert!(stat.map_or(true, |stat| stat.contains(") Z ")), "rank {pid} goes on");
    }
}

#[test]
fn rank_that_ignores_sigterm_to_the_launcher_is_killed_after_a_while() {
    let script = "trap '' TERM; touch $0.$TIELINE_RANK; while :; do sleep 0.05; done";
    let place = file("stubborn");
    let name = place.display().to_string();
    let child = started(2, &["--kill-after", "0.2"], script, &name).spawn().unwrap();
    let files = ["0", "1"].map(|rank| PathBuf::from(format!("{name}.{rank}")));
    until(|| files.iter().all(|file| file.exists()));
    let _ = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    let output = ended(child);
    files.iter().for_each(|file| std::fs::remove_file(file).unwrap());
    assert_eq!(output.status.code(), Some(128 + 9), "{}", text(&output.stderr));
}

#[test]
fn process_left_by_a_rank_neither_blocks_the_launcher_nor_survives() {
    for options in [&[][..], &["--tag"]] {
        let left = file("left");
        let script = "sleep 1000 & echo $! > $0.new; mv $0.new $0; echo said";
        // The output is a file: the test would wait for a pipe that a remaining process holds.
        let printed = file("printed");
        let mut child = started(1, options, script, left.to_str().unwrap());
        let _ = child.stdout(std::fs::File::create(&printed).unwrap()).stderr(Stdio::null());
        let output = ended(child.spawn().unwrap());
        assert!(output.status.success());
        assert!(std::fs::read_to_string(&printed).unwrap().ends_with("said\n"));
        let pid = std::fs::read_to_string(&left).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        until(|| std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z ")));
        for file in [left, printed] {
            std::fs::remove_file(file).unwrap();
        }
    }
}

#[test]
fn output_without_a_newline_is_passed_on_in_pieces_and_not_kept() {
    let size = 64 << 20;
    let script =
        format!("head -c {size} /dev/zero | tr '\\0' x; grep VmHWM /proc/$PPID/status >&2");
    let mut child = started(1, &["--tag"], &script, "").spawn().unwrap();
    let mut from = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let (mut buffer, mut seen) = ([0; 64 << 10], 0);
        loop {
            match from.read(&mut buffer).unwrap() {
                0 => return seen,
                n => seen += buffer[..n].iter().filter(|byte| **byte == b'x').count(),
            }
        }
    });
    let output = ended(child);
    assert_eq!(reader.join().unwrap(), size, "every byte is passed on");
    let said = text(&output.stderr);
    let kb: u64 = said.split_whitespace().nth(2).unwrap().parse().unwrap();
    assert!(kb < 40 << 10, "the launcher grew to {said}");
}

#[test]
fn a_prompt_appears_before_its_line_ends() {
    let answer = file("answer");
    let script = "printf 'name? '; while ! [ -e $0 ]; do sleep 0.05; done; echo thanks";
    let mut child = started(1, &["--tag"], script, answer.to_str().unwrap()).spawn().unwrap();
    let mut from = child.stdout.take().unwrap();
    let (to_us, said) = mpsc::channel();
    let _ = std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(n) = from.read(&mut buffer) {
            if n == 0 || to_us.send(buffer[..n].to_vec()).is_err() {
                return;
            }
        }
    });
    let mut seen = said.recv_timeout(Duration::from_secs(30)).unwrap_or_default();
    std::fs::write(&answer, "").unwrap();
    let _ = ended(child);
    std::fs::remove_file(&answer).unwrap();
    assert_eq!(text(&seen), "[0] name? ", "the prompt comes first");
    seen.extend(said.iter().flatten());
    assert_eq!(text(&seen), "[0] name? thanks\n");
}

#[test]
fn a_closed_output_neither_panics_nor_changes_the_exit_code() {
    for options in [&[][..], &["--tag"]] {
        let script = "exit 7";
        let mut command = started(1, options, script, "sh");
        let _ = command.stderr(closed());
        assert_eq!(ended(command.spawn().unwrap()).status.code(), Some(7));
        let _ = command.stdout(closed()).stderr(closed());
        assert_eq!(ended(command.spawn().unwrap()).status.code(), Some(7));
    }
    // The launcher continues to read the output of ranks, so that each rank determines its own end.
    let script = "i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i + 1)); done; exit 5";
    let mut command = started(1, &["--tag"], script, "sh");
    let _ = command.stdout(closed()).stderr(closed());
    assert_eq!(ended(command.spawn().unwrap()).status.code(), Some(5));
}

/// Returns the ranks' report about their waits. The launcher pins the ranks to these processors.
fn waits(n: usize, cpus: &str) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tieline"));
    let _ = command.args(["run", "-n", &n.to_string(), "--cpus", cpus, "--"]);
    let _ = command.args([env!("CARGO_BIN_EXE_tieline"), "info", "--json"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    said.lines()
        .filter_map(|line| line.trim().strip_prefix("\"waits\": "))
        .map(str::to_owned)
        .collect()
}

#[test]
fn ranks_that_outnumber_their_processors_yield_at_once_and_say_why() {
    let crowded = waits(3, "0");
    assert_eq!(crowded.len(), 3, "{crowded:?}");
    for said in crowded {
        assert!(said.contains("yield their processor at once"), "{said}");
        assert!(said.contains("3 processes of the job on this host, 1 processor"), "{said}");
    }
    let alone = waits(1, "0");
    assert!(alone[0].contains("spin for"), "{alone:?}");
    assert!(alone[0].contains("1 process of the job on this host, 1 processor"), "{alone:?}");
}

/// In each step, a wait that spins for a neighbour would keep the processor from that neighbour for a tick of the kernel, which is
/// some milliseconds.
#[test]
fn ranks_of_halo_that_share_a_processor_do_not_spin_it_away() {
    const NAME: &str = "ranks_of_halo_that_share_a_processor_do_not_spin_it_away";
    if std::env::var_os("TIELINE_RANK").is_some() {
        return halo::main().unwrap();
    }
    let limited = "ulimit -t 5; exec \"$@\"";
    let mut command = Command::new("sh");
    let _ = command.args(["-c", limited, "sh", env!("CARGO_BIN_EXE_tieline"), "run", "-n", "4"]);
    let _ = command.args(["--cpus", "0", "--"]).arg(std::env::current_exe().unwrap());
    // The first word is the number of steps; no test has this name.
    let output = command.args(["4000", NAME, "--exact", "--nocapture"]).output().unwrap();
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}: {errors}", output.status);
    assert!(said.contains("4000 steps on 4 ranks verified"), "{said}");
}

#[test]
fn a_job_that_is_short_of_descriptors_says_so_and_ends() {
    if std::env::var_os("TIELINE_RANK").is_some() {
        return hello::main().unwrap();
    }
    let itself = std::env::current_exe().unwrap();
    let said = |descriptors: u64| {
        let script = format!("ulimit -n {descriptors}; exec \"$@\"");
        let mut command = Command::new("sh");
        let _ =
            command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_tieline"), "run", "-n", "3"]);
        let _ = command.arg("--").arg(&itself).env("TIELINE_PROVIDERS", "shm");
        let test = "a_job_that_is_short_of_descriptors_says_so_and_ends";
        let _ = command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
        let output = command.output().unwrap();
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    };
    let mut refused = 0;
    for descriptors in 10..64 {
        let (done, said) = said(descriptors);
        if done {
            assert_eq!(said.matches("says: hello").count(), 3, "{said}");
            assert!(refused > 0, "nobody was turned away");
            return;
        }
        let words = ["ulimit -n", "Too many open files"];
        assert!(words.iter().any(|words| said.contains(words)), "{descriptors}: {said}");
        refused += usize::from(said.contains("refused the connection"));
    }
    panic!("64 descriptors do not suffice");
}
