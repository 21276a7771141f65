//! The role `hostile`: a peer that implements shm's wire format independently and violates its rules. The answers have the form of
//! a node's answers.
//!
//! The order `aim` selects a worker's address. The peer then makes connections to this worker, and applies most orders to all of
//! them:
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
