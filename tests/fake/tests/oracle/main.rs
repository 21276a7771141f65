//! Random programs of puts, gets, atomics, messages, flushes and fences, over lanes that refuse, delay, reorder, break
//! and lie; held against an oracle that knows what each promise means.
//!
//! The programs are the same in every run. `TIELINE_ORACLE_PROGRAMS=5000` runs so many instead, and
//! `TIELINE_ORACLE_SEED=7` others. A failure prints the shortest program that still fails.

mod driver;
mod model;
mod program;

use driver::Providers;
use program::{Program, Wants};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use tieline_fake::{Lane, World};
use tieline_testing::built;

/// What the core keeps its promises under today: what is false here waits for a repair.
const TODAY: Wants = Wants::ALL;

fn number(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Runs programs over what `providers` makes of each.
fn hold(wants: Wants, programs: u32, providers: impl Fn(&Program) -> Providers) {
    let cases = number("TIELINE_ORACLE_PROGRAMS", programs);
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: 4_000, ..Config::default() };
    let mut seed = [0; 32];
    seed[..4].copy_from_slice(&number("TIELINE_ORACLE_SEED", 1).to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let result = runner.run(&program::programs(wants, 60), |program| {
        driver::run(&program, &providers(&program)).map_err(TestCaseError::fail)
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, program)) => panic!("{why}\n{program:?}"),
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
}

#[test]
fn programs_keep_to_the_promises_over_lanes_of_any_character() {
    hold(TODAY, 1500, |program| {
        let world = World::new(program.seed, program.lanes());
        world.meanwhile(driver::meanwhile);
        Providers { settings: world.settings(), world: Some(world), alloc: false }
    });
}

/// What a lane to memory states that it costs, so that up to 8, 64 and 256 bytes are quicker by messages.
const SLOW_NS: [f64; 3] = [531.0, 550.0, 615.0];

fn polls_often() -> (&'static str, String) {
    ("TIELINE_POLLS_OFTEN", "on".into())
}

#[test]
fn programs_keep_to_the_promises_where_small_puts_and_gets_go_by_messages() {
    hold(TODAY, 700, |program| {
        let slow_ns = SLOW_NS[(program.seed % 3) as usize];
        let lanes = program.lanes().into_iter().map(|lane| Lane { slow_ns, ..lane });
        let world = World::new(program.seed, lanes.collect());
        world.meanwhile(driver::meanwhile);
        let settings = [world.settings(), vec![polls_often()]].concat();
        Providers { settings, world: Some(world), alloc: false }
    });
}

#[test]
fn programs_keep_to_the_promises_over_shared_memory() {
    hold(Wants { fake: false, ..TODAY }, 100, |program| {
        let mut settings = vec![("TIELINE_PROVIDERS", "shm,shm-cma".to_string())];
        settings.extend((program.seed % 4 == 1).then(polls_often));
        Providers { settings, world: None, alloc: program.seed % 2 == 0 }
    });
}

/// `sockets` is left out: its threads take longer than what waits here by turns allows.
#[test]
fn programs_keep_to_the_promises_over_rxm_of_libfabric() {
    let folder = match built::libfabric() {
        Ok(folder) => folder,
        Err(why) => return println!("skipped: {why}"),
    };
    hold(Wants { fake: false, ..TODAY }, 60, |program| {
        let mut settings = vec![
            ("TIELINE_PROVIDER_PATH", folder.display().to_string()),
            ("TIELINE_PROVIDERS", "ofi".to_string()),
            ("TIELINE_OFI_PROVIDERS", "tcp".to_string()),
            ("TIELINE_OFI_INTERFACES", "lo".to_string()),
            // Who closes waits for a peer that is closed behind it.
            ("TIELINE_CLOSE_TIMEOUT", "20ms".to_string()),
        ];
        settings.extend((program.seed % 4 == 1).then(polls_often));
        Providers { settings, world: None, alloc: program.seed % 3 == 0 }
    });
}
