//! Tests with processes that are killed, confined, hostile or passive: see the crate's documentation.

mod composition;
mod connecting;
mod containers;
mod diagnosis;
mod faults;
mod following;
mod forks;
mod hostile_shm;
mod hosts;
mod jobs;
mod killed;
mod leaving;
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
mod refusals;
mod scale;
mod settings;
mod strangers;
mod versions;

use std::process::ExitCode;
use tieline_processes::{Role, family, hostile, inherited, interpreter, runner, stranger};

const ROLES: &[Role] = &[
    ("node", interpreter::node),
    ("stranger", stranger::stranger),
    ("hostile", hostile::hostile),
    ("family", family::family),
    ("inherited", inherited::inherited),
];

fn main() -> ExitCode {
    runner::main(
        &[
            killed::TESTS,
            leaving::TESTS,
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
            following::TESTS,
            jobs::TESTS,
            settings::TESTS,
            out_of_band::TESTS,
            network_strangers::TESTS,
            network_kills::TESTS,
            libfabric::TESTS,
            live::TESTS,
            diagnosis::TESTS,
            forks::TESTS,
            faults::TESTS,
            refusals::TESTS,
        ],
        &[ROLES],
    )
}
