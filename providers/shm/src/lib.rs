//! Provider `shm`: messages, puts, gets and atomics between processes of one host.
//!
//! The domain `shm` has one module, `ring`. The module needs no ptrace rights, and neither a common PID namespace nor /dev/shm.
//! Memory consists of anonymous files (memfd), sealed against changes of their size. They are passed over a Unix socket, whose peer
//! is authenticated by user and by a random cookie. The sockets are in a directory that no other user can enter (see
//! `directory.rs`); without such a directory they have abstract names. Processes that start or end there remove the sockets that
//! killed processes left.
//!
//! # A channel
//!
//! Every endpoint has its own channel, from sender to receiver, which the *sender* creates:
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
//! * A message of up to 48 bytes occupies one cache line, which crosses once. The receiver polls only the control word, which is
//!   written last, and never writes to a slot. Longer payloads are in a chunk of the sender's pool, whose position is in the slot.
//! * A channel begins *cold*: 32 slots in one page. The receiver polls it directly until the sender has mapped the receiver's
//!   *doorbell* page. From then on the receiver polls it when the channel's bit was set, and in rare sweeps. After
//!   `TIELINE_SHM_FASTBOX_THRESHOLD` messages the sender requests a *fast box*. While fewer than `TIELINE_SHM_FASTBOX_MAX` fast
//!   boxes are granted, the channel moves into a fast box, which is polled directly again. In a fast box a message costs no atomic
//!   read-modify-write, and no fence if both sides have `membarrier`.
//! * Each channel has its own ring. In a queue that senders share, a sender that is killed between claiming and publishing a slot
//!   would block all others. With separate rings, a sender that dies at any instruction harms only its own channel.
//! * A receiver that sleeps has set a flag on a line that is otherwise never written. The sender reads the flag after each message
//!   (a clean line, in its own cache) and sends a byte over the socket. The sleeper provides the fence that the sender would need,
//!   by `membarrier`, if both sides have that call.
//! * The socket also reports death: it is disconnected. Data that was published before is still delivered. A receiver that receives
//!   or sends a goodbye keeps its end open while it still reads the sender's memory. When that end closes, the sender owns all
//!   chunks in flight again.
//! * Everything read from shared memory is checked before use. Invalid data ends that channel with `BAD_DATA`, and has no other
//!   effect.
//!
//! # Memory for put, get and atomics
//!
//! `Domain::alloc` allocates memory that peers map and access by load and store, without any action of the target. Each put, get
//! and atomic checks its key against a table in which the owner can revoke it (see `keys.rs`).
//!
//! # Fork
//!
//! A forked child does not inherit the mappings, and must not use anything that its parent opened. A child that does not call
//! `exec` keeps copies of the sockets open. Peers then notice the parent's death only when the child has ended, too.

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
mod fast_box_tests;
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
mod order;
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
#[cfg(all(test, not(loom)))]
mod short_poll_tests;
#[cfg(all(test, not(loom)))]
mod slot_order_tests;
#[cfg(not(loom))]
mod sys;
#[cfg(all(test, not(loom)))]
mod untaken_tests;
mod wake;
#[cfg(all(test, not(loom)))]
mod watch_tests;

#[cfg(not(loom))]
pub use provider::Shm;
