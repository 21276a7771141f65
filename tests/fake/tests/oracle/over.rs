//! The random programs of the oracle over the providers that the environment names. This is a separate program, which the lab
//! starts on its hosts.
//!
//! ```sh
//! TIELINE_PROVIDERS=verbs,tcp-connect TIELINE_ORACLE_PROGRAMS=20 oracle
//! ```

#[allow(dead_code, reason = "what is only for providers that are played")]
mod driver;
#[allow(dead_code, reason = "what the tests need of it")]
mod hold;
mod model;
#[allow(dead_code, reason = "what is only for providers that are played")]
mod program;

use program::Wants;

fn main() {
    hold::hold(Wants { fake: false, ..Wants::ALL }, 60, |program| hold::providers_of(&[], program));
    println!("the programs keep to the promises");
}
