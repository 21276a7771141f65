//! The random programs of the oracle over the providers that the environment names. This is a separate program, which the lab
//! starts on its hosts.
//!
//! ```sh
//! TIELINE_PROVIDERS=verbs,tcp-connect TIELINE_ORACLE_PROGRAMS=20 oracle
//! ```

#[allow(dead_code, reason = "what is only for providers that are played")]
mod driver;
#[allow(dead_code, reason = "what the tests need of it")]
mod hold;
mod model;
#[allow(dead_code, reason = "what is only for providers that are played")]
mod program;

use program::{Program, Shape, Step, Wants};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

/// Runs the programs that once broke a promise over a real transport.
fn hold_known(wants: Wants) {
    let long = Step::SendLong { end: 1, more: 0 };
    let turn = |who| Step::Turn { who, times: 1 };
    let withdrawn = Step::Reconnect { end: 1 };
    // The target receives the RTS, and reads the message after its sender's endpoint has ended.
    let known = [vec![long, turn(2), withdrawn], vec![long, turn(1), turn(2), withdrawn]];
    let mut runner = TestRunner::deterministic();
    for steps in known {
        let any = program::programs(wants, 60).new_tree(&mut runner).expect("a program").current();
        let program = Program { steps, seed: 0, shape: Shape::Whole, ..any };
        driver::run(&program, &hold::providers_of(&[], &program))
            .unwrap_or_else(|why| panic!("{why}\n{program:?}"));
    }
}

fn main() {
    let wants = Wants { fake: false, ..Wants::ALL };
    hold_known(wants);
    hold::hold(wants, 60, |program| hold::providers_of(&[], program));
    println!("the programs keep to the promises");
}
