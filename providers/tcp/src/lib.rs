//! Provider `tcp`: messages, puts and gets over TCP.
//!
//! The domain `tcp` registers any memory of the process. It has one module, `stream`, which connects to an endpoint: the core
//! exchanges the two endpoint addresses, then both sides call `connect`.
//!
//! # A connection
//!
//! An endpoint's address holds:
//!
//! * the version of the frames that its side uses; an address of another version is refused,
//! * where the process listens: one listener of the provider for the whole process, crate `tieline-net`,
//! * the interface and the endpoint, and the domain, to which the peer's keys must belong,
//! * the requested number of streams; the smaller number of both sides is used,
//! * whether the side keeps sent data until it is acknowledged.
//!
//! The side with the lower address dials immediately. The other side dials if nothing has arrived for 300 ms, because a firewall
//! may allow only one direction. The lower side sends `Start` on one connection per stream, and both sides use that one even if
//! dials cross (`crossing.rs`). Every TCP connection has passed the handshake of `tieline-net`.
//!
//! ```text
//!  am_short -> head + payload -> send(2)                        one system call, no allocation, if the kernel takes it
//!  the fifth of a burst and all that follow -> gathered, sent by the next poll or at 16 KiB
//!  put      -> head + key | pieces of at most 256 KiB -> sendmsg(2) from the caller's memory
//!  target   -> head, key looked up -> recvmsg(2) into the region, followed by the next head
//! ```
//!
//! Long puts and gets are cut into pieces, so messages pass between them. A fence holds back later operations. After `deregister`
//! has returned 0, no operation accesses the region any more, not even a transfer that had begun.
//!
//! # Guarantees when a connection breaks
//!
//! | | one stream (default) | several streams, or `TIELINE_TCP_RECONNECT=on` |
//! |---|---|---|
//! | sent data | is kept until the kernel has taken it | kept until acknowledged: messages and short operations as a copy, longer puts and gets in place |
//! | a connection breaks | the endpoint fails, with the reason | its unacknowledged data is sent again on the others, and the peer drops duplicates |
//! | one stream delays the others for `TIELINE_TCP_STALL` | - | closed and connected again, like a broken one |
//! | no stream is left | - | connected again until `TIELINE_FAILURE_TIMEOUT`, then the endpoint fails |
//! | messages | once, in order, until the endpoint fails | once, in order, across breaks |
//! | puts and gets | complete or fail | take effect as if once; overlapping puts need a fence between them |
//! | the peer's process has exited | `PEER_FAILED` | `PEER_FAILED`, a second after its listener is gone |
//! | silence of `TIELINE_FAILURE_TIMEOUT` | `TIMED_OUT` | `TIMED_OUT`, if no other stream is left |
//! | the peer closed its endpoint | `CLOSED` | `CLOSED` |
//! | invalid bytes | `BAD_DATA`, that endpoint only | `BAD_DATA`, that endpoint only |
//!
//! Every pending operation on a failed endpoint completes once with the endpoint's status. Then `ENDPOINT_FAILED` reports the
//! reason in words. A wrong key, range or right fails only that operation.
//!
//! # Memory
//!
//! An idle endpoint with one stream takes about 1000 bytes in this process (100 000 of them: 100 MB) and one descriptor. Receive
//! buffers (128 KiB) exist while a stream is read, and for the 16 most recently active streams. A send buffer takes 16 KiB to
//! `TIELINE_TCP_SEND_BUFFER`, rounded up to a power of two. It is freed when it is empty and a stream of its endpoint ceases to be
//! recently active. Up to 64 more receive buffers wait for the next stream, and are freed if they are not needed. On a stream that
//! is not recently active, an incomplete frame takes only the bytes that have arrived. If sent data is kept, a peer can make this
//! side hold frames that overtook a missing one: at most 1024 messages (64 MiB). The memory report includes all of this. The
//! kernel's own memory for an idle socket, 2 to 4 KiB, is additional. A receiver that does not poll stops the sender: at most the
//! kernel's buffers and one send buffer of messages are under way.
//!
//! # Fairness
//!
//! Connections with data to read wait in a queue, unless polls read a few recently active streams directly. Each connection fills
//! at most its share of a poll's events, and reads a limited amount before the next one. Thus a peer that floods blocks no other.
//! Data that needs no event, such as that of puts and gets, is read even if the event array is full. An exception is data behind a
//! message that waits for room in the array.
//!
//! # Not supported
//!
//! The provider does not use MSG_ZEROCOPY: the pages are pinned until the network card has read them. They would outlive a
//! deregistration, which must stop a transfer immediately. Over loopback the kernel would copy nevertheless. The provider does not
//! use io_uring either, because a poll already makes few system calls. The core does atomics with messages.

mod address;
mod buffer;
mod config;
mod conn;
mod crossing;
mod deliver;
mod domain;
mod endpoint;
mod frame;
mod gathered;
mod interface;
mod life;
mod link;
#[cfg(test)]
mod loopback_tests;
mod lost;
mod missing;
mod ops;
mod outbox;
mod poll;
mod pool;
mod probe;
mod provider;
mod receive;
mod regions;
mod ring;
mod send;
#[cfg(test)]
mod session_tests;
mod shared;
mod silence;
mod stream;
mod sys;
mod window;

pub use provider::Tcp;
