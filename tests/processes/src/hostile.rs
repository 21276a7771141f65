//! The role `hostile`: a peer that speaks the wire of shm by hand and keeps to none of its rules. Answers are as a
//! node's.
//!
//! It is *aimed* at a worker's address, makes connections, and does something with all of them:
//!
//! ```text
//! let mut hostile = Hostile::start();          // tests/hostile.rs
//! hostile.must(&format!("aim {}", victim.must("address")));
//! hostile.must("greet 400");
//! hostile.must("say 04 100");
//! ```

mod impostor;
mod orders;
pub mod wire;

pub use orders::hostile;
