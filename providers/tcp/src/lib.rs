//! Provider `tcp`: messages, put and get over TCP.
//!
//! One domain, `tcp`, which registers any memory of the process, with one module, `stream`, which connects to an
//! endpoint: the core carries the two endpoint addresses, then both sides call `connect`.
//!
//! # A connection
//!
//! An endpoint's address says which version of the frames its side speaks, where the process listens (one listener for
//! all of it, crate `tieline-net`), which interface and endpoint are meant, and how many streams it asks for; the smaller
//! number of both is used. A peer of another version is not reachable. The side
//! with the lower address dials at once, the other one when nothing has come for 300 ms: a firewall may let only
//! one direction through. When dials cross, the lower side says `Start` on one connection per stream, and both use
//! that one (`crossing.rs`). Every connection has passed the handshake of `tieline-net`.
//!
//! ```text
//!  am_short -> head + payload -> send(2)                        one system call, nothing copied, nothing allocated
//!  the fifth of a burst and all that follow -> gathered, sent by the next poll or when it is 16 KiB
//!  put      -> head + key | pieces of at most 256 KiB -> sendmsg(2) from the caller's memory
//!  target   -> head, key looked up -> recvmsg(2) into the region, and behind it the next head
//! ```
//!
//! Long puts and gets are cut into pieces, so messages pass between them; a fence holds back what comes after it.
//! A region that is deregistered is not touched any more when `deregister` returns, in mid-transfer too.
//!
//! # What is promised when a connection breaks
//!
//! | | one stream (default) | several streams, or `TIELINE_TCP_RECONNECT=on` |
//! |---|---|---|
//! | what is sent | leaves the caller's memory for the kernel; nothing is kept | kept until acknowledged: messages as a copy, puts and gets where they lie |
//! | a connection breaks | the endpoint fails, with the reason | what was on it is sent again on the others, and the peer drops what it has seen |
//! | one holds up the others for `TIELINE_TCP_STALL` | - | given up and connected again, like a broken one |
//! | none is left | - | connected again until `TIELINE_FAILURE_TIMEOUT`, then the endpoint fails |
//! | messages | once, in order, until it fails | once, in order, across breaks |
//! | puts and gets | complete or fail | take effect as if once; puts that overlap need a fence between them |
//! | the process there is gone | `PEER_FAILED` | `PEER_FAILED`, as soon as nobody listens there any more |
//! | silence of `TIELINE_FAILURE_TIMEOUT` | `TIMED_OUT` | `TIMED_OUT`, when no other stream is left |
//! | the peer closed its endpoint | `CLOSED` | `CLOSED` |
//! | bytes that make no sense | `BAD_DATA`, that endpoint only | `BAD_DATA`, that endpoint only |
//!
//! Everything under way on a failed endpoint completes once with its status, then `ENDPOINT_FAILED` tells the
//! reason in words. A wrong key, range or right ends that one operation.
//!
//! # Memory
//!
//! An idle endpoint with one stream takes about 1000 bytes here (100 000 of them: 100 MB) and one descriptor;
//! receive buffers (129 KiB) and send buffers (16 KiB to `TIELINE_TCP_SEND_BUFFER`) are there while something is
//! in them, and for the 16 streams that were active last; up to 64 receive buffers more wait for the next stream, and
//! are given back when they are not needed. The beginning of a frame takes what has come of it. With several streams
//! a peer can make this side hold what overtook a frame that is missing, at most 1024 messages (64 MiB). All of it is in
//! the memory report. The kernel's own memory for an idle socket, 2 to 4 KiB,
//! comes on top. A receiver that does not poll stops the sender: what the kernel's buffers and one send buffer
//! hold is all that is on its way.
//!
//! # Whose turn it is
//!
//! Connections that have something to read stand in a queue. In one poll each fills its share of the events and reads
//! at most a mebibyte or 1024 frames before it is the next one's turn, so that a peer that floods keeps nobody from being
//! heard; what needs no event, such as data of puts and gets, is read when there is room for none, too.
//!
//! # Left out
//!
//! MSG_ZEROCOPY: pages that are pinned until the network card has read them outlive a deregistration, which must
//! cut a transfer off at once; over loopback the kernel copies all the same. io_uring: a poll is one system call
//! already. Atomics: the core does them with messages.

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
