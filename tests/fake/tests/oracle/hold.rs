//! Runs programs and compares them with the oracle.

use crate::driver::{self, Providers};
use crate::program::{self, Program, Wants};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use tieline_testing::is_whole;

fn number(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

pub(crate) fn hold(wants: Wants, programs: u32, providers: impl Fn(&Program) -> Providers) {
    let programs = if is_whole() { programs } else { programs / 2 };
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

pub(crate) fn polls_often() -> (&'static str, String) {
    ("TIELINE_POLLS_OFTEN", "on".into())
}

/// Returns the providers for one program over a real transport, with these settings and those of the environment.
pub(crate) fn providers_of(settings: &[(&'static str, &str)], program: &Program) -> Providers {
    // Each close would otherwise wait for a peer that the test closes later.
    let mut all = vec![("TIELINE_CLOSE_TIMEOUT", "20ms".to_string())];
    all.extend(settings.iter().map(|(name, value)| (*name, (*value).to_string())));
    all.extend((program.seed % 4 == 1).then(polls_often));
    Providers { settings: all, world: None, alloc: program.seed % 3 == 0 }
}
