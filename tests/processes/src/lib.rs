//! Tests with real processes, through the public interface of Tieline.
//!
//! A test is a script in the parent process, which opens no context of Tieline and therefore cannot hang in one. The peers of the
//! test are further processes of the same program, each with a role. Most peers are a [`node::Node`], which executes orders from a
//! pipe, one after another, and reports the result and the time of each.
//!
//! ```text
//! let mut a = Node::start("a");
//! let mut b = Node::start("b");
//! a.connect(&mut b);
//! a.send("b", 1, 100).unwrap();
//! b.kill();
//! assert_eq!(a.send("b", 1, 100).unwrap_err().status, "PeerFailed");
//! ```
//!
//! Several hosts are network namespaces with links between them that can be cut ([`Hosts`]):
//!
//! ```text
//! let hosts = or_skip!(Hosts::two());
//! let mut a = hosts[0].node("a", &[]);
//! let mut b = hosts[1].node("b", &[]);
//! hosts[1].link(0).cut();
//! ```
//!
//! A wait for a report has a deadline. When the deadline passes, the test fails with the last reports of every process, and the
//! processes are killed. After each test no process and no file may be left.

/// The time within which events without a timeout happen even on a busy machine, in milliseconds. The time is below the default
/// timeouts (20 s for silence, 30 s for connecting).
pub const BOUND_MS: f64 = 15_000.0;

pub mod exchange;
pub mod family;
pub mod forge;
pub mod fork;
pub mod hostile;
pub mod hosts;
pub mod inherited;
pub mod interpreter;
pub mod leftovers;
pub mod mapped;
pub mod matrix;
pub mod node;
pub mod parent;
pub mod peer;
pub mod plugins;
pub mod random;
pub mod runner;
pub mod spoiled;
pub mod stranger;
pub mod sys;
pub mod trap;

pub use hosts::{Host, Hosts, Link};
pub use node::{Failed, Node};
pub use parent::Parent;
pub use peer::{Launch, Peer};
pub use random::Random;
pub use runner::{Role, Test, Verdict};
