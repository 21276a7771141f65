//! Processes that copy each other's memory by the single-copy providers, over the kernel's interfaces: a process is killed, a copy
//! is forbidden, or the device is removed. Tests of the lab start these programs by name.

mod direct;
mod fallback;
mod figures;
mod forks;
mod kills;
mod memory;
mod model;
mod provider;

use std::process::ExitCode;
use tieline_processes::{Role, interpreter, runner};

const ROLES: &[Role] = &[("node", interpreter::node)];

fn main() -> ExitCode {
    if std::env::var(runner::ROLE).is_err() && std::env::args().nth(1).as_deref() == Some("figures")
    {
        return figures::print();
    }
    runner::main(
        &[kills::TESTS, direct::TESTS, forks::TESTS, memory::TESTS, model::TESTS, fallback::TESTS],
        &[ROLES],
    )
}
