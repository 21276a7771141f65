//! A provider that plays the network of one process, as the test tells it to.
//!
//! Several contexts and workers of one process talk through a [`World`]. Nothing in it happens by itself: time is the
//! number of polls, chance is a seeded generator, so a test that fails does so every time. The world refuses calls,
//! holds operations back, carries them out late, out of order or not at all, says things that no peer sent, panics; and
//! it keeps book of what the core must not do to a provider ([`World::faults`]).
//!
//! The shared object and the test are built from this one crate and share one world, whose address the test hands over
//! as a setting of the provider (`TIELINE_FAKE_WORLD`). That needs no exported control functions beside the ABI, gives
//! each test a world of its own while others run, and lets two providers play in one world. What makes it sound is that
//! both sides are the same code: the stamp in the setting is a checksum of its sources, and a file that was built from
//! others refuses to start.
//!
//! ```no_run
//! use tieline_fake::{Lane, World};
//! let world = World::new(1, vec![Lane::whole("all")]);
//! // Context::builder().set(name, value) for each of `world.settings()`
//! ```

mod calls;
mod connector;
mod files;
mod network;
mod provider;
mod sys;
mod world;

pub use calls::{Act, Call, Rule, Slot};
pub use provider::Fake;
pub use world::{Lane, World};

/// What an operation that fails later says of the reason, besides its status.
pub const FAILED_WORDS: &str = "the other side of the world said no";
/// And the number of it that a device would give.
pub const FAILED_CODE: u64 = 0x5ad;

/// A checksum of what both sides must agree on.
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
