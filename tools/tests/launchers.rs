//! Tests with the launchers of other projects: mpirun with its PMIx server, and a real Slurm of two nodes that the test starts. The
//! tests start their own program again for the ranks.

#[path = "launchers/slurm.rs"]
mod slurm;

use slurm::Slurm;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;
use tieline::{Status, job::Job};

/// Returns the command of the named test as a rank, which follows a launcher's own arguments.
fn itself(test: &str) -> Vec<String> {
    let program = std::env::current_exe().unwrap();
    let rank = [&program.to_string_lossy()[..], test, "--exact", "--nocapture", "--test-threads=1"];
    rank.map(str::to_owned).to_vec()
}

/// Checks whether this process is a rank: it was started with this variable.
fn am_rank() -> bool {
    std::env::var_os("TIELINE_TEST_RANK").is_some()
}

fn installed(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).map(|dir| dir.join(program)).find(|f| f.is_file());
    found.or_else(|| Some(PathBuf::from("/usr/sbin").join(program)).filter(|f| f.is_file()))
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// Runs the test as `n` ranks of Open MPI's launcher. If there is no such launcher, prints the reason and returns `None`.
fn mpirun(n: usize, test: &str, set: &[(&str, &OsStr)]) -> Option<Output> {
    if installed("mpirun").is_none() {
        println!("skipped: mpirun is not installed (openmpi-bin)");
        return None;
    }
    let mut command = Command::new("mpirun");
    let _ = command
        .args(["--allow-run-as-root", "--oversubscribe", "-np", &n.to_string()])
        .args(itself(test))
        .env("TIELINE_TEST_RANK", "1")
        .envs(set.iter().copied());
    Some(command.output().unwrap())
}

fn exchange_and_check(job: &Job, size: usize) {
    assert_eq!(job.size(), size);
    for round in 0..10 {
        let mine = vec![job.rank() as u8; job.rank() * 1000 * (round % 3)];
        for (from, part) in job.exchange(&mine).unwrap().iter().enumerate() {
            assert_eq!(*part, vec![from as u8; from * 1000 * (round % 3)]);
        }
        job.barrier().unwrap();
    }
    // A lookup needs no collective call: each rank looks up a value of the next rank, and then a key that no rank publishes in
    // time.
    let (rank, next) = (job.rank(), (job.rank() + 1) % size);
    job.publish(1, &[]).unwrap();
    job.publish(2, format!("bytes of {rank}").as_bytes()).unwrap();
    assert_eq!(job.lookup(next, 2).unwrap(), format!("bytes of {next}").as_bytes());
    assert!(job.lookup(next, 1).unwrap().is_empty());
    assert_eq!(job.lookup(rank, 2).unwrap(), format!("bytes of {rank}").as_bytes());
    job.barrier().unwrap();
}

#[test]
fn under_mpirun_a_key_not_published_in_time_is_an_error_naming_the_rank() {
    if am_rank() {
        let mut job = Job::from_env().unwrap();
        job.set_deadline(Duration::from_secs(1));
        let error = job.lookup(1 - job.rank(), 7).unwrap_err();
        assert_eq!(error.status(), Status::TimedOut, "{error}");
        let says = format!("rank {} has not published 7 in time", 1 - job.rank());
        assert!(error.to_string().contains(&says), "{error}");
        job.set_deadline(Duration::from_secs(60));
        job.barrier().unwrap();
        return println!("rank done");
    }
    let test = "under_mpirun_a_key_not_published_in_time_is_an_error_naming_the_rank";
    let Some(output) = mpirun(2, test, &[]) else { return };
    assert_eq!(text(&output).matches("rank done").count(), 2, "{}", text(&output));
}

#[test]
fn mpirun_gives_ranks_local_ranks_and_an_exchange() {
    if am_rank() {
        let job = Job::from_env().unwrap();
        assert_eq!((job.local_rank(), job.local_size()), (job.rank(), 4));
        assert!(!job.id().is_empty());
        exchange_and_check(&job, 4);
        // The contributions have the maximum length. A second Job in one process must be an error, and must not wait.
        let all = job.exchange(&vec![job.rank() as u8; 1 << 20]).unwrap();
        assert!(all.iter().enumerate().all(|(r, p)| *p == vec![r as u8; 1 << 20]));
        assert_eq!(Job::from_env().unwrap_err().status(), Status::Busy);
        job.barrier().unwrap();
        return println!("rank done");
    }
    let Some(output) = mpirun(4, "mpirun_gives_ranks_local_ranks_and_an_exchange", &[]) else {
        return;
    };
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(text(&output).matches("rank done").count(), 4, "{}", text(&output));
}

#[test]
fn under_mpirun_a_rank_that_does_not_call_exchange_is_named() {
    if am_rank() {
        let mut job = Job::from_env().unwrap();
        job.barrier().unwrap();
        let dir = PathBuf::from(std::env::var_os("TIELINE_TEST_DIR").unwrap());
        if job.rank() == 2 {
            // The rank stays until the other ranks have timed out.
            while !["0", "1"].iter().all(|rank| dir.join(rank).exists()) {
                std::thread::sleep(Duration::from_millis(10));
            }
            return;
        }
        job.set_deadline(Duration::from_secs(1));
        let error = job.barrier().unwrap_err();
        assert_eq!(error.status(), Status::TimedOut, "{error}");
        assert!(error.to_string().contains("rank 2 of 3 has not called exchange"), "{error}");
        assert_eq!(job.barrier().unwrap_err(), error, "a broken exchange stays broken");
        std::fs::write(dir.join(job.rank().to_string()), "").unwrap();
        return println!("rank done");
    }
    let dir = std::env::temp_dir().join(format!("tieline-mpirun-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let test = "under_mpirun_a_rank_that_does_not_call_exchange_is_named";
    let output = mpirun(3, test, &[("TIELINE_TEST_DIR", dir.as_os_str())]);
    let _ = std::fs::remove_dir_all(&dir);
    let Some(output) = output else { return };
    assert_eq!(text(&output).matches("rank done").count(), 2, "{}", text(&output));
}

#[test]
fn under_mpirun_a_rank_that_leaves_is_an_error_for_those_who_go_on() {
    if am_rank() {
        let mut job = Job::from_env().unwrap();
        job.barrier().unwrap();
        if job.rank() > 0 {
            job.set_deadline(Duration::from_secs(10));
            let error = job.barrier().unwrap_err();
            // The launcher's server reports the end of the rank. If the rank left before the other ranks joined, the time limit
            // ends the wait.
            let says = match error.status() {
                Status::PeerFailed => "a rank has ended or left",
                Status::TimedOut => "rank 0 of 3 has not called exchange",
                _ => panic!("{error}"),
            };
            assert!(error.to_string().contains(says), "{error}");
            println!("rank done");
        }
        return;
    }
    let Some(output) =
        mpirun(3, "under_mpirun_a_rank_that_leaves_is_an_error_for_those_who_go_on", &[])
    else {
        return;
    };
    assert_eq!(text(&output).matches("rank done").count(), 2, "{}", text(&output));
}

#[test]
fn the_environment_of_pmix_without_its_server_is_one_clear_error() {
    if am_rank() {
        let error = Job::from_env().unwrap_err();
        let text = error.to_string();
        assert!(text.contains("PMIx"), "{text}");
        return;
    }
    let program = itself("the_environment_of_pmix_without_its_server_is_one_clear_error");
    let output = Command::new(&program[0])
        .args(&program[1..])
        .env("TIELINE_TEST_RANK", "1")
        .env("PMIX_NAMESPACE", "nowhere")
        .env("PMIX_RANK", "0")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn slurm_with_pmix_gives_ranks_and_an_exchange_across_two_nodes() {
    if am_rank() {
        return exchange_and_check(&Job::from_env().unwrap(), 4);
    }
    let Some(slurm) = Slurm::start_or_say() else { return };
    if !slurm.has_pmix() {
        return println!("skipped: this Slurm has no plugin for PMIx");
    }
    let test = itself("slurm_with_pmix_gives_ranks_and_an_exchange_across_two_nodes");
    let output = slurm.srun(&["--mpi=pmix", "-N2", "-n4"], &test, &[]);
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(text(&output).matches("test result: ok").count(), 4, "{}", text(&output));
}

#[test]
fn slurm_without_pmix_meets_at_the_first_node() {
    if am_rank() {
        let job = Job::from_env().unwrap();
        assert_eq!(job.local_size(), 4, "both nodes are this host");
        return exchange_and_check(&job, 4);
    }
    let Some(slurm) = Slurm::start_or_say() else { return };
    let test = itself("slurm_without_pmix_meets_at_the_first_node");
    let secret = ("TIELINE_SECRET", "sesame");
    for nodes in ["-N2", "-N1"] {
        let output = slurm.srun(&["--mpi=none", nodes, "-n4"], &test, &[secret]);
        assert!(output.status.success(), "{}", text(&output));
        assert_eq!(text(&output).matches("test result: ok").count(), 4, "{}", text(&output));
    }
    // The address is set by hand; all other values come from Slurm.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let given = ("TIELINE_BOOTSTRAP", address.as_str());
    let output = slurm.srun(&["--mpi=none", "-N2", "-n4"], &test, &[given]);
    assert!(output.status.success(), "{}", text(&output));
}
