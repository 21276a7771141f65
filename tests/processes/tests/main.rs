//! Processes that are killed, confined, hostile or passive. See the crate's documentation.

mod composition;
mod connecting;
mod containers;
mod diagnosis;
mod faults;
mod hostile_shm;
mod hosts;
mod jobs;
mod killed;
mod libfabric;
mod links;
mod live;
mod long_messages;
mod memory;
mod misuse;
mod names;
mod network_kills;
mod network_strangers;
mod out_of_band;
mod progress;
mod random_kills;
mod scale;
mod settings;
mod strangers;
mod versions;

use std::process::ExitCode;
use tieline_processes::{Role, hostile, interpreter, runner, stranger};

const ROLES: &[Role] =
    &[("node", interpreter::node), ("stranger", stranger::stranger), ("hostile", hostile::hostile)];

fn main() -> ExitCode {
    runner::main(
        &[
            killed::TESTS,
            random_kills::TESTS,
            strangers::TESTS,
            versions::TESTS,
            hostile_shm::TESTS,
            misuse::TESTS,
            names::TESTS,
            memory::TESTS,
            progress::TESTS,
            containers::TESTS,
            scale::TESTS,
            hosts::TESTS,
            composition::TESTS,
            connecting::TESTS,
            links::TESTS,
            long_messages::TESTS,
            jobs::TESTS,
            settings::TESTS,
            out_of_band::TESTS,
            network_strangers::TESTS,
            network_kills::TESTS,
            libfabric::TESTS,
            live::TESTS,
            diagnosis::TESTS,
            faults::TESTS,
        ],
        &[ROLES],
    )
}
