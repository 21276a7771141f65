//! Runs tests one after another, or runs this process in its role.

use crate::parent::Parent;
use crate::{leftovers, peer};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tieline_testing::hang::{self, Limit};

/// The time limit of a test: several times the duration of the longest test on a busy machine. Single steps have shorter limits.
const LIMIT: Duration = Duration::from_secs(300);
/// The time within which a test has to fail after its processes were ended.
const TO_FAIL: Duration = Duration::from_secs(30);

/// The variable with the role of a process that a test started.
pub const ROLE: &str = "PROCESSES_ROLE";

/// The result of a test that did not panic.
#[must_use]
pub enum Verdict {
    /// The test has passed.
    Passed,
    /// The test could not run on this machine.
    Skipped(String),
}

/// A test and its name.
pub type Test = (&'static str, fn() -> Verdict);
/// A role and its name.
pub type Role = (&'static str, fn(Parent));

/// Makes a list of functions with their names.
#[macro_export]
macro_rules! named {
    ($($function:ident),* $(,)?) => { &[$((stringify!($function), $function)),*] };
}

/// Runs a test program as its `main`; understands the arguments that cargo and nextest pass.
#[must_use]
pub fn main(tests: &[&[Test]], roles: &[&[Role]]) -> ExitCode {
    if let Ok(name) = std::env::var(ROLE) {
        let role = roles.iter().copied().flatten().find(|(known, _)| *known == name);
        return match role {
            Some((_, role)) => run_role(*role),
            None => {
                eprintln!("there is no role {name}");
                ExitCode::FAILURE
            }
        };
    }
    let mut exact = false;
    let mut list = false;
    let mut ignored = false;
    let mut filters = Vec::new();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--exact" => exact = true,
            "--list" => list = true,
            "--ignored" => ignored = true,
            other if other.starts_with("--") => {}
            _ => filters.push(argument),
        }
    }
    let wanted = |name: &str| {
        let fits = |filter: &String| if exact { name == filter } else { name.contains(filter) };
        filters.is_empty() || filters.iter().any(fits)
    };
    let chosen: Vec<&Test> =
        tests.iter().copied().flatten().filter(|(name, _)| !ignored && wanted(name)).collect();
    if list {
        for (name, _) in chosen {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    run_tests(&chosen)
}

fn run_tests(tests: &[&Test]) -> ExitCode {
    println!("running {} tests", tests.len());
    let (mut passed, mut skipped) = (0, 0);
    let mut failed = Vec::new();
    for &&(name, test) in tests {
        let before = leftovers::Before::look(name);
        let started = Instant::now();
        let limit = Limit::new(LIMIT, move || expired(name));
        let outcome = catch_unwind(AssertUnwindSafe(test));
        let in_time = started.elapsed() < LIMIT;
        drop(limit);
        let seconds = started.elapsed().as_secs_f32();
        let outcome = outcome.and_then(|verdict| {
            catch_unwind(AssertUnwindSafe(|| before.check())).map(|()| verdict)
        });
        match outcome {
            Ok(_) if !in_time => {
                println!("test {name} ... FAILED");
                failed.push(name);
            }
            Ok(Verdict::Passed) => {
                passed += 1;
                println!("test {name} ... ok");
            }
            Ok(Verdict::Skipped(why)) => {
                skipped += 1;
                println!("skipped: {why}");
                println!("test {name} ... ignored");
            }
            Err(_) => {
                println!("{}", peer::collected_reports());
                println!("test {name} ... FAILED");
                failed.push(name);
            }
        }
        println!("    {seconds:.1} s");
        peer::forget_reports();
    }
    let result = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "test result: {result}. {passed} passed; {} failed; {skipped} ignored; 0 measured; 0 filtered out",
        failed.len()
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Reports a test that hangs, with the operations that its processes wait for, and ends these processes, so that the test fails. If
/// the test still continues, the whole run ends.
fn expired(name: &'static str) {
    println!("test {name} does not end after {} s; what waits for what:", LIMIT.as_secs());
    let built = std::env::current_exe().unwrap_or_default();
    let built = built.ancestors().nth(2).unwrap_or(Path::new("/"));
    print!("{}", hang::told(std::process::id(), built));
    println!("{}", peer::collected_reports());
    hang::end(std::process::id());
    // This call returns before that limit: the test may end in between, and the next test begin.
    let _ = std::thread::spawn(move || {
        std::thread::sleep(TO_FAIL);
        if leftovers::current().0.ends_with(name) {
            println!("test {name} ... FAILED");
            println!("test result: FAILED. {name} does not end; the tests behind it were not run");
            std::process::exit(1);
        }
    });
}

fn run_role(role: fn(Parent)) -> ExitCode {
    let outcome = catch_unwind(|| role(Parent::default()));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("a panic without words");
            Parent::default().say(&format!("panicked {text}"));
            ExitCode::FAILURE
        }
    }
}
