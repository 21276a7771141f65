//! Processes that are killed, confined, hostile or passive. See the crate's documentation.

mod containers;
mod hosts;
mod killed;
mod misuse;
mod progress;
mod random_kills;
mod scale;
mod strangers;

use std::process::ExitCode;
use tieline_processes::{Role, interpreter, runner, stranger};

const ROLES: &[Role] = &[("node", interpreter::node), ("stranger", stranger::stranger)];

fn main() -> ExitCode {
    runner::main(
        &[
            killed::TESTS,
            random_kills::TESTS,
            strangers::TESTS,
            misuse::TESTS,
            progress::TESTS,
            containers::TESTS,
            scale::TESTS,
            hosts::TESTS,
        ],
        &[ROLES],
    )
}
