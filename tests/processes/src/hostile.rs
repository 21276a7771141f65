//! The role `hostile`: a peer that implements the wire of shm by hand and breaks all of its rules. Answers are like those of a
//! node.
//!
//! It is *aimed* at a worker's address, makes connections, and applies each order to all of them:
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
