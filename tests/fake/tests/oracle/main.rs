//! Random programs of puts, gets, atomics, messages, flushes and fences over lanes that refuse, delay, reorder, break and lie.
//! Results are compared with an oracle that defines the guarantees.
//!
//! By default the programs are the same in every run. `TIELINE_ORACLE_PROGRAMS=5000` sets the number of programs, and
//! `TIELINE_ORACLE_SEED=7` selects other programs. A failure prints the shortest program that still fails. `over.rs` runs the
//! programs over the providers that the environment names.

mod driver;
mod hold;
mod model;
mod program;

use driver::Providers;
use hold::{hold, polls_often, providers_of};
use program::Wants;
use tieline_fake::{Lane, World};
use tieline_testing::built;

#[test]
fn programs_keep_to_the_promises_over_lanes_of_any_character() {
    hold(Wants::ALL, 1500, |program| {
        let world = World::new(program.seed, program.lanes());
        world.meanwhile(driver::meanwhile);
        Providers { settings: world.settings(), world: Some(world), alloc: false }
    });
}

/// The stated costs of a lane to memory for which messages are faster up to 8, 64 and 256 bytes.
const SLOW_NS: [f64; 3] = [531.0, 550.0, 615.0];

#[test]
fn programs_keep_to_the_promises_where_small_puts_and_gets_go_by_messages() {
    hold(Wants::ALL, 700, |program| {
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
    hold(Wants { fake: false, ..Wants::ALL }, 100, |program| {
        let mut settings = vec![("TIELINE_PROVIDERS", "shm,shm-cma".to_string())];
        settings.extend((program.seed % 4 == 1).then(polls_often));
        Providers { settings, world: None, alloc: program.seed % 2 == 0 }
    });
}

fn over_libfabric(provider: &str, programs: u32) {
    let folder = match built::libfabric() {
        Ok(folder) => folder.display().to_string(),
        Err(why) => return println!("skipped: {why}"),
    };
    let settings = [
        ("TIELINE_PROVIDER_PATH", folder.as_str()),
        ("TIELINE_PROVIDERS", "ofi"),
        ("TIELINE_OFI_PROVIDERS", provider),
        ("TIELINE_OFI_INTERFACES", "lo"),
    ];
    hold(Wants { fake: false, ..Wants::ALL }, programs, |program| providers_of(&settings, program));
}

#[test]
fn programs_keep_to_the_promises_over_rxm_of_libfabric() {
    over_libfabric("tcp", 60);
}

#[test]
fn programs_keep_to_the_promises_over_sockets_of_libfabric() {
    over_libfabric("sockets", 20);
}

#[test]
fn programs_keep_to_the_promises_over_tcp() {
    let folder = match built::folder(&built::TCP) {
        Ok(folder) => folder.display().to_string(),
        Err(why) => return println!("skipped: {why}"),
    };
    hold(Wants { fake: false, ..Wants::ALL }, 60, |program| {
        let settings = [
            ("TIELINE_PROVIDER_PATH", folder.as_str()),
            ("TIELINE_PROVIDERS", "tcp,tcp-connect"),
            ("TIELINE_TCP_INTERFACES", "lo"),
            ("TIELINE_TCP_STREAMS", if program.seed % 2 == 0 { "1" } else { "2" }),
        ];
        providers_of(&settings, program)
    });
}
