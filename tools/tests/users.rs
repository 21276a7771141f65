//! Tests of ranks of a bootstrap on one host that start as other users, or that belong to another job. The tests start their own
//! program again for the ranks. Tests that need a second user need root.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tieline::job::wire::{Decoder, Frame};
use tieline::{Status, job::Job};

const STRANGER: u32 = 65_534;

fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// A copy of this program that every user may start. Dropping this value removes the copy.
struct Copy(PathBuf, #[allow(dead_code)] MutexGuard<'static, ()>); // held, not read

/// The lock that runs one test at a time: a child of another test would inherit the file while it is written, and then no process
/// could execute the file.
static ONE: Mutex<()> = Mutex::new(());

impl Copy {
    fn new() -> Copy {
        let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let place = std::env::temp_dir().join(format!("tieline-users-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        let program = place.join("ranks");
        let _ = std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        for path in [&place, &program] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
        }
        Copy(place, alone)
    }

    fn rank(&self, test: &str, rank: usize, set: &[(&str, &str)]) -> Command {
        let mut command = Command::new(self.0.join("ranks"));
        let _ = command
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env("TIELINE_TEST_RANK", rank.to_string())
            .env("TIELINE_BOOTSTRAP_TIMEOUT", "3s")
            .envs(set.iter().copied())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn am() -> Option<usize> {
    std::env::var("TIELINE_TEST_RANK").ok().map(|rank| rank.parse().unwrap())
}

fn ends_well(children: Vec<Child>) {
    for (index, child) in children.into_iter().enumerate() {
        let output: Output = child.wait_with_output().unwrap();
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        assert!(output.status.success(), "process {index}: {}", String::from_utf8_lossy(&said));
    }
}

#[test]
fn ranks_of_two_users_do_not_become_one_job_whoever_serves() {
    if let Some(rank) = am() {
        let error = Job::from_env().unwrap_err();
        let missing = format!("rank {} of 2 has not come within 3s", 1 - rank);
        let unreached = "could not be reached within 3s";
        let says = if rank == 0 { &missing[..] } else { unreached };
        assert_eq!(error.status(), Status::TimedOut, "{error}");
        assert!(error.to_string().contains(says), "{error}");
        return;
    }
    if !root() {
        return println!("skipped: a process of another user is only started by root");
    }
    let copy = Copy::new();
    for serving in [0, STRANGER] {
        let name = "ranks_of_two_users_do_not_become_one_job_whoever_serves";
        let address = format!("127.0.0.1:{}", port());
        let ranks = [0, 1].map(|rank| {
            let number = rank.to_string();
            let set = [
                ("TIELINE_RANK", &number[..]),
                ("TIELINE_SIZE", "2"),
                ("TIELINE_BOOTSTRAP", &address),
            ];
            let user = if (rank == 0) == (serving == 0) { 0 } else { STRANGER };
            copy.rank(name, rank, &set).uid(user).spawn().unwrap()
        });
        ends_well(ranks.into());
    }
}

/// Occupies the socket of rank 0 before rank 0 listens, and answers every client as rank 0 would.
fn squat(name: &str) {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    println!("squatting");
    let _ = listener.set_nonblocking(false);
    // The process stays until it is killed: rank 0 may start after the other rank has left.
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let mut decoder = Decoder::new(1 << 20);
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = std::io::Read::read(&mut stream, &mut buffer) {
            decoder.push(&buffer[..n]);
            while let Ok(Some(frame)) = decoder.next() {
                if let Frame::Contribute { round, bytes } = frame {
                    let parts = vec![b"from the squatter".to_vec(), bytes];
                    let answer = Frame::Gathered { round, parts }.encode();
                    let _ = std::io::Write::write_all(&mut stream, &answer);
                }
            }
        }
    }
}

#[test]
fn another_user_in_the_place_of_rank_0_is_refused_and_named() {
    let name = "another_user_in_the_place_of_rank_0_is_refused_and_named";
    match am() {
        Some(7) => return squat(&std::env::var("TIELINE_TEST_NAME").unwrap()),
        Some(rank) => {
            let error = Job::from_env().unwrap_err();
            let says = if rank == 0 { "in use" } else { "user 65534" };
            assert!(error.to_string().contains(says), "{error}");
            assert!(error.to_string().contains("TIELINE_BOOTSTRAP"), "{error}");
            if rank == 1 {
                assert_eq!(error.status(), Status::Permission, "{error}");
            }
            return;
        }
        None => {}
    }
    if !root() {
        return println!("skipped: a process of another user is only started by root");
    }
    let copy = Copy::new();
    let address = format!("127.0.0.1:{}", port());
    let place = format!("tieline-rendezvous-0-{address}");
    let mut squatter =
        copy.rank(name, 7, &[("TIELINE_TEST_NAME", &place)]).uid(STRANGER).spawn().unwrap();
    // The file exists when the process has reported it.
    let mut lines =
        std::io::BufRead::lines(std::io::BufReader::new(squatter.stdout.take().unwrap()));
    assert!(lines.any(|line| line.unwrap().contains("squatting")));
    let ranks = [1, 0].map(|rank| {
        let number = rank.to_string();
        let set =
            [("TIELINE_RANK", &number[..]), ("TIELINE_SIZE", "2"), ("TIELINE_BOOTSTRAP", &address)];
        copy.rank(name, rank, &set).spawn().unwrap()
    });
    let outcome = std::panic::catch_unwind(|| ends_well(ranks.into()));
    let _ = squatter.kill();
    let _ = squatter.wait();
    outcome.unwrap();
}

/// Returns the variables that Slurm sets in rank `rank` of a step with two ranks.
fn step<'a>(job: &'a str, rank: &'a str, nodes: &'a str) -> [(&'a str, &'a str); 6] {
    [
        ("SLURM_JOB_ID", job),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", rank),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_STEP_NUM_NODES", nodes),
        ("SLURM_STEP_NODELIST", "127.0.0.1"),
    ]
}

#[test]
fn two_steps_of_slurm_whose_numbers_give_one_port_run_side_by_side() {
    let name = "two_steps_of_slurm_whose_numbers_give_one_port_run_side_by_side";
    if let Some(rank) = am() {
        let job = Job::from_env().unwrap();
        let mine = std::env::var("SLURM_JOB_ID").unwrap();
        assert_eq!((job.rank(), job.size()), (rank, 2));
        assert!(job.id().contains(&mine), "{}", job.id());
        let all = job.exchange(mine.as_bytes()).unwrap();
        assert!(all.iter().all(|theirs| *theirs == mine.as_bytes()), "{all:?}");
        return;
    }
    let copy = Copy::new();
    // The ports are equal, because 64 times 626 is 64 times 1 plus 40 000.
    let ranks = [("1", "0"), ("626", "1"), ("1", "1"), ("626", "0")];
    let ranks = ranks.map(|(job, rank)| {
        copy.rank(name, rank.parse().unwrap(), &step(job, rank, "1"))
            .env("TIELINE_BOOTSTRAP_TIMEOUT", "60s")
            .spawn()
            .unwrap()
    });
    ends_well(ranks.into());
}

#[test]
fn a_rank_of_another_step_is_turned_away_though_it_knows_the_secret() {
    let name = "a_rank_of_another_step_is_turned_away_though_it_knows_the_secret";
    if let Some(rank) = am() {
        let error = Job::from_env().unwrap_err();
        let says = "its Slurm job and step (or TIELINE_JOB) are not this job's";
        assert!(error.to_string().contains(says), "{error}");
        let status = if rank == 0 { Status::TimedOut } else { Status::Invalid };
        assert_eq!(error.status(), status, "{error}");
        return;
    }
    let copy = Copy::new();
    let port = port().to_string();
    let ranks = [("1", "0"), ("626", "1")].map(|(job, rank)| {
        copy.rank(name, rank.parse().unwrap(), &step(job, rank, "2"))
            .env("TIELINE_SECRET", "sesame")
            .env("TIELINE_BOOTSTRAP_PORT", &port)
            .spawn()
            .unwrap()
    });
    ends_well(ranks.into());
}
