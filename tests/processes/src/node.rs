//! The test's handle of a process in the role `node`: see [`crate::interpreter`].

use crate::peer::{Launch, Peer};
use crate::sys;

/// An operation that failed in a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The name of the failure's status.
    pub status: String,
    /// The name of the failure's kind.
    pub kind: String,
    /// The error text.
    pub text: String,
    /// The time of the failure, in nanoseconds.
    pub at: u64,
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The value or text of the result.
    pub text: String,
    /// The time of the result, in nanoseconds.
    pub at: u64,
}

/// A character that represents a space within a word of an order, such as a path.
pub const SPACE: &str = "\u{1f}";

/// A process that executes orders.
pub struct Node {
    /// The process of the node.
    pub peer: Peer,
}

impl Node {
    /// Starts a node with an open context and worker.
    #[must_use]
    pub fn start(name: &str) -> Node {
        Node::open(Launch::new(name, "node"), &[])
    }

    /// Starts a node with settings: `TIELINE_PROVIDERS=^shm-cma`.
    #[must_use]
    pub fn with(name: &str, settings: &[&str]) -> Node {
        Node::open(Launch::new(name, "node"), settings)
    }

    /// Starts a node by a given launch.
    ///
    /// # Panics
    /// Panics if the context does not open.
    #[must_use]
    pub fn open(launch: Launch, settings: &[&str]) -> Node {
        let mut node = Node::bare(launch);
        let words: Vec<String> = settings.iter().map(|s| s.replace(' ', SPACE)).collect();
        let _ = node.ask(&format!("open {}", words.join(" "))).expect("opening a context");
        node
    }

    /// Starts a node without a context.
    #[must_use]
    pub fn bare(launch: Launch) -> Node {
        Node { peer: launch.start() }
    }

    /// Gives an order and waits for the result.
    ///
    /// # Errors
    /// Returns an error if the order failed.
    pub fn try_ask(&mut self, order: &str) -> Result<Done, Failed> {
        self.peer.tell(order);
        self.answer()
    }

    /// Gives an order and returns the text of its result.
    ///
    /// # Errors
    /// Returns an error if the order failed.
    pub fn ask(&mut self, order: &str) -> Result<String, Failed> {
        self.try_ask(order).map(|done| done.text)
    }

    /// Gives an order that has to succeed.
    ///
    /// # Panics
    /// Panics if the order failed.
    pub fn must(&mut self, order: &str) -> String {
        match self.ask(order) {
            Ok(text) => text,
            Err(failed) => panic!("{}: `{order}`: {failed:?}", self.peer.name),
        }
    }

    /// Waits for the result of the last order.
    ///
    /// # Errors
    /// Returns an error if the order failed.
    ///
    /// # Panics
    /// Panics if the report is no result.
    pub fn answer(&mut self) -> Result<Done, Failed> {
        loop {
            let line = self.peer.hear();
            let mut words = line.splitn(3, ' ');
            let first = words.next().unwrap_or_default();
            let at = words.next().and_then(|w| w.parse().ok());
            let text = words.next().unwrap_or_default().to_string();
            match (first, at) {
                ("begins" | "watching" | "streaming", _) => {}
                ("ok", Some(at)) => return Ok(Done { text, at }),
                ("error", Some(at)) => {
                    let mut words = text.splitn(3, ' ').map(str::to_string);
                    let mut word = || words.next().unwrap_or_default();
                    return Err(Failed { status: word(), kind: word(), text: word(), at });
                }
                _ => panic!("{} says `{line}`", self.peer.name),
            }
        }
    }

    /// Stops a stream and returns the stream's result.
    ///
    /// # Errors
    /// Returns an error if the stream had failed.
    pub fn stop(&mut self) -> Result<Done, Failed> {
        self.peer.tell("stop");
        let ended = self.answer();
        let _ = self.answer();
        ended
    }

    /// Waits until a stream is running that [`Peer::tell`] has ordered.
    pub fn streams(&mut self) {
        let _ = self.peer.expect("streaming");
    }

    /// Connects an endpoint to `other`; the endpoint gets the name of `other`.
    pub fn connect(&mut self, other: &mut Node) {
        let address = other.must("address");
        let _ = self.must(&format!("connect {} {address}", other.peer.name));
    }

    /// Imports a region of `other`, and returns the path. The key's name is `OTHER.REGION`.
    pub fn import(&mut self, other: &mut Node, region: &str) -> String {
        let key = other.must(&format!("key {region}"));
        self.must(&format!("import {} {region} {key}", other.peer.name))
    }

    /// Checks that the node has recorded no error: no message out of order or with wrong bytes, no failed reply, no wrong result
    /// of a put, get or atomic. Messages missing at the end are not detected.
    ///
    /// # Panics Panics if the node has recorded an error.
    pub fn nothing_was_wrong(&mut self) {
        assert_eq!(self.must("wrong"), "", "at {}", self.peer.name);
    }

    /// Kills the process, and returns the time in nanoseconds.
    pub fn kill(&mut self) -> u64 {
        self.peer.kill()
    }

    /// Lets the process end by itself.
    pub fn end(self) {
        self.peer.end();
    }
}

impl Node {
    /// Returns the number of descriptors and the KiB that each node holds.
    pub fn footprints(nodes: &mut [Node]) -> Vec<(u64, u64)> {
        nodes.iter_mut().map(Node::footprint).collect()
    }

    /// Returns the number of descriptors and the KiB that the node holds.
    pub fn footprint(&mut self) -> (u64, u64) {
        let mut number = |what: &str| self.must(what).parse().expect("a number");
        (number("descriptors"), number("resident"))
    }
}

/// Compares the resources of processes early and late.
///
/// # Panics
/// Panics if the processes hold more resources at the end.
pub fn nothing_leaks(early: &[(u64, u64)], late: &[(u64, u64)]) {
    assert_eq!(early.len(), late.len(), "both were measured");
    for (early, late) in early.iter().zip(late) {
        assert!(late.0 <= early.0 + 4, "descriptors leak: {} became {}", early.0, late.0);
        assert!(late.1 <= early.1 + 8 * 1024, "memory leaks: {} KiB became {}", early.1, late.1);
    }
}

/// Returns the milliseconds between two times.
#[must_use]
pub fn milliseconds(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1e6
}

/// Returns the milliseconds since a time.
#[must_use]
pub fn milliseconds_since(from: u64) -> f64 {
    milliseconds(from, sys::now_ns())
}
