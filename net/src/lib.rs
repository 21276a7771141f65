//! The common parts of connections over TCP: the choice of interfaces and routes, the listener, the authenticating handshake, and
//! the datagrams of connectors ([`datagrams`]). [`touch`] copies from and to memory that may be unmapped. The providers `tcp`,
//! `tcp-connect`, `ofi` and `verbs`, the bootstrap of jobs, the lookup of workers, the core and the tools use this crate.
//!
//! One side listens and publishes its contact, and the other side dials it:
//!
//! ```
//! use std::time::{Duration, Instant};
//! use tieline_net::{Contact, Dial, Hello, Hub, Key, Progress, Settings, routes};
//!
//! let hub = Hub::open(&Settings { secret: b"job 17".to_vec(), ..Settings::default() })?;
//! let mailbox = hub.register([7; 16])?;
//! let address = hub.contact([7; 16]).pack(); // these bytes travel to the peer by any means
//!
//! let contact = Contact::parse(&address)?;
//! let key = Key::derive(b"job 17", &contact.cookie);
//! let hello = Hello::new(1, contact.target, b"who I am and what I want")?;
//! let deadline = Instant::now() + Duration::from_secs(20);
//! let mut dial = Dial::start(routes(hub.local(), &contact)?, key, hello, deadline);
//! let arrived = loop {
//!     hub.poll();
//!     match dial.advance(Instant::now()) {
//!         Progress::Waiting => std::thread::yield_now(), // or sleep until dial.fd() is ready
//!         Progress::Done(stream) => break stream,
//!         Progress::Failed(words) => return Err(words),
//!     }
//! };
//! let incoming = mailbox.take().ok_or("nothing arrived")?;
//! assert_eq!(incoming.hello.payload(), b"who I am and what I want");
//! assert_eq!(arrived.peer_addr().ok(), incoming.stream.local_addr().ok());
//! # Ok::<(), String>(())
//! ```

pub mod admission;
mod auth;
mod contact;
pub mod datagrams;
mod dial;
mod filter;
mod hub;
mod interfaces;
mod options;
mod routes;
mod sys;
pub mod touch;

pub use auth::{
    Acceptor, Dialler, HandshakeError, Hello, Key, MAX_HELLO_PAYLOAD, Refusal, VERSION, target_of,
};
pub use contact::{Contact, ListenAddress, Malformed};
pub use dial::{Dial, Progress, dial_blocking};
pub use filter::Filter;
pub use hub::{Counters, Hub, Incoming, Listen, Mailbox, Settings, SharedHub};
pub use interfaces::{LocalAddress, check_addresses, local_addresses};
pub use options::{Ports, reset, stop_listening, tune, tune_for_streams};
pub use routes::{Route, here, routes};
pub use sys::{Interest, Poller, Ready, Timer, Waker, is_crowded, random};
