//! A provider that simulates the network of one process, under the control of a test.
//!
//! Several contexts and workers of one process communicate through a [`World`]. In a world, time is the number of polls and chance
//! is a seeded generator, so a test with one thread runs the same way each time. The world can refuse calls, hold operations, carry
//! them out late, out of order or never, forge messages, and panic. The world also records violations of the ABI by the core
//! ([`World::faults`]).
//!
//! The shared object and the test are built from this crate and share one world. The test passes the world's address as a setting
//! of the provider (`TIELINE_FAKE_WORLD`). The provider therefore needs no exported functions beside the ABI, each test has its own
//! world while other tests run, and two providers can share one world. Sharing is sound because both files contain the same code:
//! the stamp in the setting is a checksum of the sources, and a file that was built from other sources refuses to start.
//!
//! ```no_run
//! use tieline_fake::{Lane, World};
//! let world = World::new(1, vec![Lane::whole("all")]);
//! // Context::builder().set(name, value) for each of `world.settings()`
//! ```

mod calls;
mod connector;
mod files;
mod key;
mod lists;
mod network;
mod provider;
mod sys;
mod world;

pub use calls::{Act, Call, Rule, Slot};
pub use provider::Fake;
pub use world::{Lane, World};

/// The error text of an operation that fails later.
pub const FAILED_WORDS: &str = "the other side of the world said no";
/// The device's error code of an operation that fails later.
pub const FAILED_CODE: u64 = 0x5ad;

/// A checksum of the sources, which must be equal in the test and in the shared object.
const STAMP: u64 = {
    let sources: [&[u8]; 7] = [
        include_bytes!("calls.rs"),
        include_bytes!("connector.rs"),
        include_bytes!("network.rs"),
        include_bytes!("network/operations.rs"),
        include_bytes!("provider.rs"),
        include_bytes!("sys.rs"),
        include_bytes!("world.rs"),
    ];
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut file = 0;
    while file < sources.len() {
        let mut at = 0;
        while at < sources[file].len() {
            hash = (hash ^ sources[file][at] as u64).wrapping_mul(0x0000_0100_0000_01b3);
            at += 1;
        }
        file += 1;
    }
    hash
};
