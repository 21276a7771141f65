//! Processes that are killed, confined, hostile or passive. See the crate's documentation.

mod killed;
mod random_kills;

use std::process::ExitCode;
use tieline_processes::{Role, interpreter, runner};

const ROLES: &[Role] = &[("node", interpreter::node)];

fn main() -> ExitCode {
    runner::main(&[killed::TESTS, random_kills::TESTS], &[ROLES])
}
