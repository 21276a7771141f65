//! `tieline run` with real processes. Each test starts itself again as the program of the job: with
//! `TIELINE_RANK` set it is a rank, without it the one who looks on.

use std::process::{Command, Output};
use tieline::{Status, job::Job};

/// Runs the named test of this file as a job of `n`.
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

/// The stranger of the test above; on its own there is nothing to do.
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
fn a_program_starts_with_no_signal_blocked() {
    let output = shell(1, &[], "grep SigBlk /proc/self/status");
    assert_eq!(text(&output.stdout), "SigBlk:\t0000000000000000\n");
}
