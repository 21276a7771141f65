//! Tests of a bootstrap with real processes: over TCP if they have a secret, and over a local socket otherwise. The tests start
//! their own program again for the ranks: a process with `TIELINE_TEST_RANK` is a rank, and the process without it observes the
//! ranks.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tieline::{Status, job::Job};

fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Returns the command that runs the named test of this file as one rank.
fn rank(test: &str, rank: usize, size: usize, port: u16) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let _ = command
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env("TIELINE_TEST_RANK", rank.to_string())
        .env("TIELINE_RANK", rank.to_string())
        .env("TIELINE_SIZE", size.to_string())
        .env("TIELINE_BOOTSTRAP", format!("127.0.0.1:{port}"))
        .env("TIELINE_BOOTSTRAP_TIMEOUT", "60s")
        .env("TIELINE_SECRET", "sesame")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Returns the rank of this process, if it is a rank.
fn am() -> Option<usize> {
    std::env::var("TIELINE_TEST_RANK").ok().map(|rank| rank.parse().unwrap())
}

/// Runs the ranks over TCP, with a secret, and over a local socket, without a secret.
fn over_both(start: impl Fn(&dyn Fn(usize, &mut Command)) -> Vec<Child>) {
    ends_well(start(&|_, _| {}));
    ends_well(start(&|_, command| {
        let _ = command.env_remove("TIELINE_SECRET");
    }));
}

fn ends_well(children: Vec<Child>) {
    for (index, child) in children.into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "process {index}: {}", text(&output));
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// Starts every rank of `ranks`, in this order; `change` modifies each command.
fn start(
    test: &str,
    ranks: impl IntoIterator<Item = usize>,
    size: usize,
    port: u16,
    change: impl Fn(usize, &mut Command),
) -> Vec<Child> {
    let ranks = ranks.into_iter().map(|number| {
        let mut command = rank(test, number, size, port);
        change(number, &mut command);
        command.spawn().unwrap()
    });
    ranks.collect()
}

#[test]
fn ranks_that_start_in_any_order_get_everybodys_bytes() {
    let Some(rank) = am() else {
        // Rank 0, which listens, is started last.
        let name = "ranks_that_start_in_any_order_get_everybodys_bytes";
        return over_both(|change| start(name, [3, 1, 4, 2, 0], 5, port(), change));
    };
    let job = Job::from_env().unwrap();
    assert_eq!((job.rank(), job.size()), (rank, 5));
    assert_eq!((job.local_rank(), job.local_size()), (rank, 5));
    for round in 0..50 {
        let mine = vec![rank as u8; rank * 1000 * (round % 3)];
        for (from, part) in job.exchange(&mine).unwrap().iter().enumerate() {
            assert_eq!(*part, vec![from as u8; from * 1000 * (round % 3)]);
        }
        job.barrier().unwrap();
    }
    // A value is sent to the rank that looks it up; no collective call is needed.
    job.publish(1, &[rank as u8; 700]).unwrap();
    assert_eq!(job.lookup((rank + 1) % 5, 1).unwrap(), [((rank + 1) % 5) as u8; 700]);
    job.barrier().unwrap();
}

#[test]
fn the_largest_contributions_arrive_while_rank_0_computes() {
    let Some(rank) = am() else {
        let name = "the_largest_contributions_arrive_while_rank_0_computes";
        return over_both(|change| start(name, 0..3, 3, port(), change));
    };
    let job = Job::from_env().unwrap();
    let all = job.exchange(&vec![rank as u8; 1 << 20]).unwrap();
    assert!(all.iter().enumerate().all(|(r, p)| p.len() == 1 << 20 && p[p.len() - 1] == r as u8));
}

#[test]
fn a_rank_that_never_starts_is_named_to_all_others() {
    let Some(rank) = am() else {
        let name = "a_rank_that_never_starts_is_named_to_all_others";
        return ends_well(start(name, [0, 1, 3], 5, port(), |_, command| {
            let _ = command.env("TIELINE_BOOTSTRAP_TIMEOUT", "2s");
        }));
    };
    let error = Job::from_env().unwrap_err();
    assert_eq!(error.status(), Status::TimedOut, "{error}");
    assert!(
        error.to_string().contains("ranks 2 and 4 of 5 have not come within 2s"),
        "{rank}: {error}"
    );
}

#[test]
fn a_rank_0_that_never_starts_is_an_error_that_says_where_it_was_awaited() {
    let Some(_) = am() else {
        let name = "a_rank_0_that_never_starts_is_an_error_that_says_where_it_was_awaited";
        return over_both(|change| {
            start(name, [1], 2, port(), |rank, command| {
                let _ = command.env("TIELINE_BOOTSTRAP_TIMEOUT", "500ms");
                change(rank, command);
            })
        });
    };
    let error = Job::from_env().unwrap_err();
    assert_eq!(error.status(), Status::TimedOut, "{error}");
    let text = error.to_string();
    assert!(text.contains("rank 0, which serves the bootstrap, at 127.0.0.1:"), "{text}");
    assert!(text.contains("refused"), "{text}");
}

#[test]
fn rank_that_does_not_call_exchange_is_named_at_the_jobs_deadline() {
    let Some(rank) = am() else {
        let name = "rank_that_does_not_call_exchange_is_named_at_the_jobs_deadline";
        let dir = std::env::temp_dir().join(format!("tieline-rendezvous-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let ranks = start(name, 0..3, 3, port(), |_, command| {
            let _ = command.env("TIELINE_TEST_DIR", &dir);
        });
        let outcome = std::panic::catch_unwind(|| ends_well(ranks));
        std::fs::remove_dir_all(&dir).unwrap();
        return outcome.unwrap();
    };
    let mut job = Job::from_env().unwrap();
    let dir = PathBuf::from(std::env::var_os("TIELINE_TEST_DIR").unwrap());
    if rank == 2 {
        // The rank stays until the other ranks have timed out: then its own call returns the reason.
        let end = Instant::now() + Duration::from_secs(60);
        while !["0", "1"].iter().all(|rank| dir.join(rank).exists()) {
            assert!(Instant::now() < end, "the others never give up");
            std::thread::sleep(Duration::from_millis(10));
        }
    } else {
        job.set_deadline(Duration::from_millis(500));
    }
    let error = job.barrier().unwrap_err();
    std::fs::write(dir.join(rank.to_string()), "").unwrap();
    assert_eq!(error.status(), Status::TimedOut, "{error}");
    assert!(error.to_string().contains("rank 2 of 3 has not called exchange"), "{error}");
}

#[test]
fn a_second_process_of_one_rank_is_turned_away_and_the_first_goes_on() {
    let Some(_) = am() else {
        let name = "a_second_process_of_one_rank_is_turned_away_and_the_first_goes_on";
        return ends_well(start(name, 0..2, 2, port(), |_, _| {}));
    };
    if std::env::var_os("TIELINE_TEST_SECOND").is_some() {
        let error = Job::from_env().unwrap_err();
        assert_eq!(error.status(), Status::Invalid, "{error}");
        assert!(error.to_string().contains("rank 1 has joined already, as pid "), "{error}");
        return;
    }
    let job = Job::from_env().unwrap();
    if job.rank() == 0 {
        let name = "a_second_process_of_one_rank_is_turned_away_and_the_first_goes_on";
        let address = std::env::var("TIELINE_BOOTSTRAP").unwrap();
        let port = address.rsplit(':').next().unwrap().parse().unwrap();
        ends_well(start(name, [1], 2, port, |_, command| {
            let _ = command.env("TIELINE_TEST_SECOND", "1");
        }));
    }
    job.barrier().unwrap();
}

#[test]
fn different_sizes_end_the_job_for_everybody_at_once() {
    let Some(_) = am() else {
        let name = "different_sizes_end_the_job_for_everybody_at_once";
        // The test starts no third rank, which could arrive after the job has ended.
        return ends_well(start(name, [0, 2], 4, port(), |rank, command| {
            if rank == 2 {
                let _ = command.env("TIELINE_SIZE", "3");
            }
        }));
    };
    let error = Job::from_env().unwrap_err();
    assert_eq!(error.status(), Status::Invalid, "{error}");
    assert!(error.to_string().contains("has size 3, rank 0 has 4"), "{error}");
}

#[test]
fn a_rank_that_is_killed_in_the_middle_is_named_with_its_process() {
    let Some(rank) = am() else {
        let name = "a_rank_that_is_killed_in_the_middle_is_named_with_its_process";
        return over_both(|change| {
            let mut children = start(name, 0..3, 3, port(), change);
            let killed = children.remove(1).wait_with_output().unwrap();
            assert!(!killed.status.success(), "{}", text(&killed));
            children
        });
    };
    let job = Job::from_env().unwrap();
    if rank == 1 {
        let _ = Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
    }
    let error = job.barrier().unwrap_err();
    assert_eq!(error.status(), Status::PeerFailed, "{error}");
    let said = error.to_string();
    assert!(said.contains("rank 1 (pid ") && said.contains("has left the exchange"), "{said}");
    assert_eq!(job.barrier().unwrap_err(), error, "a broken exchange stays broken");
}

#[test]
fn a_rank_0_that_is_killed_is_named_too() {
    let Some(rank) = am() else {
        let name = "a_rank_0_that_is_killed_is_named_too";
        return over_both(|change| {
            let mut children = start(name, 0..3, 3, port(), change);
            let _ = children.remove(0).wait_with_output().unwrap();
            children
        });
    };
    let job = Job::from_env().unwrap();
    if rank == 0 {
        let _ = Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
    }
    let error = job.barrier().unwrap_err();
    assert_eq!(error.status(), Status::PeerFailed, "{error}");
    assert!(error.to_string().contains("rank 0, which serves the bootstrap, is gone"), "{error}");
}

#[test]
fn the_others_hear_the_last_exchange_though_rank_0_leaves_at_once() {
    let Some(rank) = am() else {
        let name = "the_others_hear_the_last_exchange_though_rank_0_leaves_at_once";
        return over_both(|change| start(name, 0..4, 4, port(), change));
    };
    let job = Job::from_env().unwrap();
    let all = job.exchange(&vec![rank as u8; 300_000]).unwrap();
    assert_eq!(all.len(), 4);
}

#[test]
fn a_wrong_secret_is_an_error_that_names_the_variable_and_not_the_secret() {
    let Some(rank) = am() else {
        let name = "a_wrong_secret_is_an_error_that_names_the_variable_and_not_the_secret";
        return ends_well(start(name, 0..2, 2, port(), |rank, command| {
            let _ = command.env("TIELINE_SECRET", format!("sesame {rank}"));
            if rank == 0 {
                let _ = command.env("TIELINE_BOOTSTRAP_TIMEOUT", "3s");
            }
        }));
    };
    let error = Job::from_env().unwrap_err();
    let said = error.to_string();
    assert!(!said.contains("sesame"), "{said}");
    if rank == 1 {
        assert_eq!(error.status(), Status::Permission, "{said}");
        assert!(said.contains("TIELINE_SECRET"), "{said}");
    } else {
        assert_eq!(error.status(), Status::TimedOut, "{said}");
        assert!(said.contains("rank 1 of 2 has not come within 3s"), "{said}");
        assert!(said.contains("turned away: a process with another secret"), "{said}");
    }
}

#[test]
fn a_secret_from_a_file_is_the_same_as_one_from_the_variable() {
    let Some(_) = am() else {
        let name = "a_secret_from_a_file_is_the_same_as_one_from_the_variable";
        let file = std::env::temp_dir().join(format!("tieline-secret-{}", std::process::id()));
        std::fs::write(&file, "sesame\n").unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        ends_well(start(name, 0..2, 2, port(), |rank, command| {
            let _ = match rank {
                0 => command,
                _ => command.env_remove("TIELINE_SECRET").env("TIELINE_SECRET_FILE", &file),
            };
        }));
        return std::fs::remove_file(&file).unwrap();
    };
    Job::from_env().unwrap().barrier().unwrap();
}

#[test]
fn an_address_that_other_hosts_reach_needs_a_secret() {
    let Some(_) = am() else {
        let name = "an_address_that_other_hosts_reach_needs_a_secret";
        return ends_well(start(name, 0..2, 2, port(), |_, command| {
            let _ = command.env("TIELINE_BOOTSTRAP", format!("0.0.0.0:{}", port()));
            let _ = command.env_remove("TIELINE_SECRET");
        }));
    };
    let error = Job::from_env().unwrap_err();
    assert_eq!(error.status(), Status::Invalid, "{error}");
    assert!(error.to_string().contains("TIELINE_SECRET"), "{error}");
}

#[test]
fn a_taken_port_is_one_line_that_says_so_on_both_sides() {
    let Some(rank) = am() else {
        let name = "a_taken_port_is_one_line_that_says_so_on_both_sides";
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        // The listener exists until both ranks have ended: rank 1 may connect and leave before rank 0 checks the port.
        let listener = taken.try_clone().unwrap();
        let speaker = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.write_all(b"220 mail.example ESMTP: something else listens here\r\n");
            let _ = stream.read(&mut [0; 512]);
        });
        ends_well(start(name, 0..2, 2, port, |_, _| {}));
        drop(taken);
        return speaker.join().unwrap();
    };
    let error = Job::from_env().unwrap_err();
    let says = if rank == 0 { "in use" } else { "something else listens there" };
    assert!(error.to_string().contains(says), "{error}");
    assert!(error.to_string().contains("choose another port"), "{error}");
}

#[test]
fn strangers_on_the_port_are_closed_and_the_job_does_not_notice() {
    let Some(rank) = am() else {
        let name = "strangers_on_the_port_are_closed_and_the_job_does_not_notice";
        return ends_well(start(name, 0..3, 3, port(), |_, _| {}));
    };
    let job = Job::from_env().unwrap();
    if rank == 1 {
        let address = std::env::var("TIELINE_BOOTSTRAP").unwrap();
        for garbage in [&b"GET / HTTP/1.0\r\n\r\n"[..], &[0; 4096], &[0xff; 4096], b"T"] {
            let mut stream = TcpStream::connect(&address).unwrap();
            let _ = stream.write_all(garbage);
            if garbage.len() > 1 {
                // The connection is closed without an answer.
                assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap_or(0), 0);
            }
        }
        let idle: Vec<_> = (0..300).map(|_| TcpStream::connect(&address)).collect();
        job.barrier().unwrap();
        drop(idle);
    } else {
        job.barrier().unwrap();
    }
    job.barrier().unwrap();
}

#[test]
fn rank_joins_although_strangers_took_all_room_first() {
    let Some(rank) = am() else {
        let name = "rank_joins_although_strangers_took_all_room_first";
        return ends_well(start(name, 0..2, 2, port(), |_, _| {}));
    };
    let mut strangers = Vec::new();
    if rank == 1 {
        let address = std::env::var("TIELINE_BOOTSTRAP").unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while strangers.len() < 600 {
            match TcpStream::connect(&address) {
                Ok(stream) => strangers.push(stream),
                Err(e) => assert!(Instant::now() < end, "rank 0 does not listen: {e}"),
            }
        }
    }
    Job::from_env().unwrap().barrier().unwrap();
}

#[test]
fn rank_and_size_may_come_from_launchers_that_are_known() {
    let Some(rank) = am() else {
        let name = "rank_and_size_may_come_from_launchers_that_are_known";
        return ends_well(start(name, 0..3, 3, port(), |rank, command| {
            let names = [
                ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS"],
                ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
                ["RANK", "WORLD_SIZE"],
            ];
            let [number, size] = names[rank];
            let _ = command.env_remove("TIELINE_RANK").env_remove("TIELINE_SIZE");
            let _ = command.env(number, rank.to_string()).env(size, "3");
        }));
    };
    let job = Job::from_env().unwrap();
    assert_eq!((job.rank(), job.size(), job.local_rank()), (rank, 3, rank));
}
