//! Provider `shm`: messages, put, get and atomics between processes of one host.
//!
//! One domain, `shm`, with one module, `ring`. Nothing in it needs ptrace rights, or asks for a common PID
//! namespace or /dev/shm: memory is anonymous files (memfd), sealed against shrinking, and passed over a Unix
//! socket whose peer is checked by user and by a random cookie. The sockets lie in a directory that no other
//! user can enter (see `directory.rs`); what a killed process leaves there the next one removes.
//!
//! # A channel
//!
//! Every endpoint has a channel of its own, from sender to receiver, which the *sender* makes:
//!
//! ```text
//!  sender's memfd                                          sender's pool (memfds, receiver: read-only)
//!  +--------- page 0 ---------+------ page 1.. ------+     +-----------+-----------+----
//!  | wait | tail | sleep | 32 |       fast box       |     |   chunk   |   chunk   | ...
//!  | flag |      | flag  |cold|  64 slots of 64 B    |     +-----------+-----------+----
//!  +--------------------------+----------------------+          ^
//!     ^      ^       ^     each slot: control word | header | 48 bytes, or {segment, length, offset}
//!  sender  receiver writes
//! ```
//!
//! * A message of up to 48 bytes is one cache line that crosses once: the control word, written last, is
//!   all that the receiver polls, and the receiver never writes to a slot. Longer payloads lie in a chunk
//!   of the sender's pool, and the slot says where.
//! * A channel begins *cold*: 32 slots in one page. The receiver polls it directly until the sender has
//!   mapped the receiver's *doorbell* page, and from then on only when the channel's bit was set. After
//!   `TIELINE_SHM_FASTBOX_THRESHOLD` messages the sender asks for a *fast box*; while fewer than
//!   `TIELINE_SHM_FASTBOX_MAX` are granted the channel moves into one, which is polled directly again, and
//!   a message costs no atomic read-modify-write at all.
//! * The cold rings and their bell stand in for one shared queue per receiver, on purpose: a queue with
//!   many producers has a moment between claiming and publishing a slot in which a killed sender stops all
//!   others. Here a sender that dies at any instruction harms its own channel only.
//! * A receiver that sleeps has set a flag on a line that is otherwise never written; the sender looks at
//!   it after each message (a clean line, in its own cache) and sends a byte over the socket. The fence that
//!   this needs on the sender's side is paid by the sleeper: `membarrier`.
//! * The socket also tells of death: it hangs up. What was published before is still delivered. A receiver that is
//!   told good-bye, or says it, keeps its end open until it reads nothing of the sender's memory any more: with the
//!   end of it all chunks in flight are the sender's again.
//! * Everything read from shared memory is checked before use; what makes no sense ends that channel with
//!   `BAD_DATA` and nothing else.
//!
//! # Memory for put, get and atomics
//!
//! `Domain::alloc` gives memory that peers map and reach by load and store: nothing is asked of the target.
//! Keys are checked on each operation against a table that the owner can revoke from (see `keys.rs`).
//!
//! # Fork
//!
//! Mappings are not inherited by a forked child, which must not use anything of this provider. A child that
//! lives on without exec keeps the sockets open, and the parent's death is then seen only when the child
//! ends too.

#[cfg(not(loom))]
mod asking;
#[cfg(not(loom))]
mod channel;
#[cfg(not(loom))]
mod closer;
#[cfg(not(loom))]
mod config;
#[cfg(not(loom))]
mod copies;
#[cfg(not(loom))]
mod directory;
#[cfg(not(loom))]
mod domain;
#[cfg(not(loom))]
mod endpoint;
#[cfg(all(test, not(loom)))]
mod flood_tests;
#[cfg(all(test, not(loom)))]
mod hang_up_tests;
#[cfg(not(loom))]
mod hello;
#[cfg(all(feature = "test-hooks", not(loom)))]
mod hooks;
#[cfg(not(loom))]
mod host;
#[cfg(all(test, not(loom)))]
mod hostile_tests;
#[cfg(not(loom))]
mod imports;
#[cfg(not(loom))]
mod interface;
#[cfg(not(loom))]
mod kept;
#[cfg(all(test, not(loom)))]
mod key_tests;
#[cfg(not(loom))]
mod keys;
#[cfg(not(loom))]
mod listener;
#[cfg(not(loom))]
mod pool;
#[cfg(not(loom))]
mod provider;
#[cfg(not(loom))]
mod receiver;
mod ring;
#[cfg(not(loom))]
mod sender;
#[cfg(not(loom))]
mod shared;
#[cfg(not(loom))]
mod sys;
#[cfg(all(test, not(loom)))]
mod untaken_tests;
mod wake;

#[cfg(not(loom))]
pub use provider::Shm;
