//! Tests of the runtime over shared memory, TCP and libfabric, with two to thirty-two ranks, more than there are processors. The
//! example `parts` runs the same parts under other launchers, in the check of examples and in the tests of the lab.
//!
//! Each test starts its own program again for the ranks: a process with `TIELINE_RANK` is a rank, and the process without it
//! observes the ranks.

use parts::Part;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tieline::Error;
use tieline::job::server::Server;
use tieline_runtime::Runtime;
use tieline_testing::{built, is_whole};

mod parts;

/// The sizes of a short run: even, odd, and a power of two. `cargo xtask test --all` runs every size from the first to the last.
const FEW: &[usize] = &[2, 3, 5, 8];
const MANY: &[usize] = &[32];
const SHARED_MEMORY: &[(&str, &str)] = &[("TIELINE_PROVIDERS", "shm,shm-cma")];
const TCP: &[(&str, &str)] = &[("TIELINE_PROVIDERS", "tcp,tcp-connect")];
const LIBFABRIC: &[(&str, &str)] = &[
    ("TIELINE_PROVIDERS", "ofi"),
    ("TIELINE_OFI_PROVIDERS", "tcp"),
    ("TIELINE_OFI_INTERFACES", "lo"),
];

/// Runs a part, if this process is a rank. Returns whether it is one.
fn was_rank(part: Part, way: &str) -> bool {
    let is_rank = std::env::var_os("TIELINE_RANK").is_some();
    if is_rank {
        let runtime = Runtime::start().unwrap();
        let path = runtime.path((runtime.rank() + 1) % runtime.size()).unwrap();
        assert!(path.contains(way), "{path} is not by {way}");
        part(&runtime).unwrap();
        runtime.finish().unwrap();
    }
    is_rank
}

fn play(test: &str, sizes: &[usize], settings: &[(&str, &str)]) {
    let (first, last) = (sizes[0], sizes[sizes.len() - 1]);
    for size in (first..=last).filter(|size| is_whole() || sizes.contains(size)) {
        let mut server = Server::new(size, "runtime").unwrap();
        let exchange = server.listen_unix().unwrap();
        let start = |rank: usize| -> Child {
            let mut command = Command::new(std::env::current_exe().unwrap());
            let _ = command
                .args([test, "--exact", "--nocapture", "--test-threads=1"])
                .env("TIELINE_RANK", rank.to_string())
                .env("TIELINE_SIZE", size.to_string())
                .env("TIELINE_EXCHANGE", &exchange)
                .env("TIELINE_JOB", "runtime")
                .env("TIELINE_SECRET", "sesame")
                .envs(settings.iter().copied())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            command.spawn().unwrap()
        };
        let mut ranks: Vec<Child> = (0..size).map(start).collect();
        let mut running = vec![true; size];
        while running.contains(&true) {
            server.turn(&[], Some(Duration::from_millis(10))).unwrap();
            for ((rank, child), running) in ranks.iter_mut().enumerate().zip(&mut running) {
                let Some(status) = child.try_wait().unwrap() else { continue };
                if std::mem::take(running) && !status.success() {
                    server.ended(rank, &format!("rank {rank} has ended: {status}"));
                }
            }
        }
        let ended: Vec<_> = ranks.into_iter().map(|r| r.wait_with_output().unwrap()).collect();
        let said = |output: &std::process::Output| {
            [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat()
        };
        let failed = ended.iter().enumerate().filter(|(_, output)| !output.status.success());
        let failed: String =
            failed.map(|(rank, output)| format!("rank {rank}: {}", said(output))).collect();
        assert!(failed.is_empty(), "of {size} ranks failed\n{failed}");
    }
}

fn over_shared_memory(test: &str, part: Part) {
    if !was_rank(part, "shm/ring") {
        play(test, FEW, SHARED_MEMORY);
    }
}

fn over_tcp(test: &str, part: Part) {
    if !was_rank(part, "tcp/stream") {
        play_with(test, FEW, built::folder(&built::TCP), TCP);
    }
}

fn play_with(
    test: &str,
    sizes: &[usize],
    folder: Result<PathBuf, String>,
    settings: &[(&str, &str)],
) {
    match folder {
        Ok(folder) => {
            let path = ("TIELINE_PROVIDER_PATH", folder.to_str().unwrap());
            play(test, sizes, &[settings, &[path]].concat());
        }
        Err(why) => println!("skipped: {why}"),
    }
}

fn death(runtime: &Runtime) -> Result<(), Error> {
    let everyone = runtime.allgather(&[runtime.rank() as u8])?;
    assert_eq!(everyone.len(), runtime.size());
    // The dying rank has passed the barrier; other ranks may still be in it.
    let met = runtime.barrier();
    if runtime.rank() != 1 {
        let waited = met.and_then(|()| runtime.wait(runtime.receive(None, 7, 0)?));
        let error = waited.expect_err("nobody sends anything");
        // A rank that was notified of the death also ends, so other ranks may be notified of its end first.
        let text = error.to_string();
        // The text is the runtime's text, or the library's text if a post fails before the report of the death.
        assert!(["has died", "is gone"].iter().any(|words| text.contains(words)), "{text}");
        assert!(runtime.barrier().is_err());
    }
    // An exec replaces the process: nothing is closed, and no leave message is sent as at `exit`.
    panic!("executing `true`: {}", Command::new("true").exec())
}

/// Two messages arrive together, and the destination of the first is too small: the second message is received nevertheless.
fn failure_beside(runtime: &Runtime) -> Result<(), Error> {
    const LEN: usize = 300_000;
    let me = runtime.rank();
    runtime.wait_sent(runtime.send(me, 1, b"the way stands")?)?;
    let _ = runtime.wait(runtime.receive(Some(me), 1, 0)?)?;
    let (out, room) = (runtime.lend(vec![7; LEN])?, runtime.lend(vec![0; LEN])?);
    let short = runtime.receive_lent(Some(me), 2, 0, (&room, 0..LEN - 1))?;
    let fits = runtime.receive_lent(Some(me), 3, 0, (&room, 0..LEN))?;
    let refused = runtime.send_lent(me, 2, (&out, 0..LEN))?;
    let sending = runtime.send_lent(me, 3, (&out, 0..LEN))?;
    assert!(runtime.wait(short).is_err(), "it has no room");
    // The sender, which is the same runtime, is notified that the first message was refused.
    let mut failures = 0;
    while failures == 0 || room.to_vec(0..LEN)? != [7; LEN] {
        failures += usize::from(runtime.probe(None, 0, u64::MAX).is_err());
    }
    assert_eq!((runtime.wait(fits)?.len, failures), (LEN, 1));
    assert!(runtime.wait_sent(refused).is_err(), "it has ended, and nobody took it");
    runtime.wait_sent(sending)
}

fn all(runtime: &Runtime) -> Result<(), Error> {
    parts::ALL.iter().try_for_each(|(_, part)| part(runtime).and_then(|()| runtime.barrier()))
}

#[test]
fn everything_goes_well_with_32_ranks() {
    if !was_rank(all, "shm/ring") {
        play("everything_goes_well_with_32_ranks", MANY, SHARED_MEMORY);
    }
}

#[test]
fn everything_goes_well_with_32_ranks_over_tcp() {
    if !was_rank(all, "tcp/stream") {
        let test = "everything_goes_well_with_32_ranks_over_tcp";
        play_with(test, MANY, built::folder(&built::TCP), TCP);
    }
}

#[test]
fn everything_goes_well_over_libfabric() {
    if !was_rank(all, "ofi:") {
        let test = "everything_goes_well_over_libfabric";
        play_with(test, &[2, 3, 5], built::libfabric(), LIBFABRIC);
    }
}

macro_rules! both_ways {
    ($($part:path: $over_shared_memory:ident, $over_tcp:ident;)*) => { $(
        #[test]
        fn $over_shared_memory() {
            over_shared_memory(stringify!($over_shared_memory), $part);
        }

        #[test]
        fn $over_tcp() {
            over_tcp(stringify!($over_tcp), $part);
        }
    )* };
}

both_ways! {
    parts::messages::expected:
        receives_that_are_posted_first_get_what_was_sent_to_them,
        receives_that_are_posted_first_get_what_was_sent_to_them_over_tcp;
    parts::messages::unexpected:
        messages_that_nobody_waits_for_are_received_in_any_order,
        messages_that_nobody_waits_for_are_received_in_any_order_over_tcp;
    parts::messages::wildcards:
        receives_of_any_source_and_of_masked_tags_keep_the_order_of_each_pair,
        receives_of_any_source_and_of_masked_tags_keep_the_order_of_each_pair_over_tcp;
    parts::messages::lent:
        messages_go_from_lent_memory_to_where_they_belong_and_nowhere_else,
        messages_go_from_lent_memory_to_where_they_belong_and_nowhere_else_over_tcp;
    parts::messages::probes:
        a_probe_finds_what_comes_and_a_cancelled_receive_takes_nothing,
        a_probe_finds_what_comes_and_a_cancelled_receive_takes_nothing_over_tcp;
    death:
        a_rank_that_dies_ends_what_the_others_wait_for,
        a_rank_that_dies_ends_what_the_others_wait_for_over_tcp;
    failure_beside:
        a_message_without_room_keeps_no_other_from_being_taken,
        a_message_without_room_keeps_no_other_from_being_taken_over_tcp;
    parts::collectives::all:
        collectives_agree_on_every_rank,
        collectives_agree_on_every_rank_over_tcp;
    parts::windows::put_and_get:
        puts_gets_and_accumulates_of_all_ranks_reach_the_window,
        puts_gets_and_accumulates_of_all_ranks_reach_the_window_over_tcp;
    parts::windows::locks:
        a_lock_lets_one_rank_at_a_time_change_what_it_guards,
        a_lock_lets_one_rank_at_a_time_change_what_it_guards_over_tcp;
}
