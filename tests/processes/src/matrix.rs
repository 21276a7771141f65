//! The matrix of memory: the kinds of memory, filled before and after their key was made, while either side forks or starts
//! programs. Peers must read the owner's last stores, their puts must arrive at the owner, and a child must keep its own bytes.

use crate::mapped::{KINDS, Kind};
use crate::peer::DEADLINE;
use crate::{Launch, Node};
use std::time::Instant;

/// The length of the memory in bytes: more than one page, and less than three pages.
const LEN: usize = 9_001;

/// The route between the two processes.
pub struct Over<'a> {
    /// A function that returns the launch of a process of this name.
    pub launch: &'a dyn Fn(&str) -> Launch,
    /// The settings of both processes.
    pub settings: &'a [&'a str],
    /// The path of every key, or the beginning of the path.
    pub path: &'a str,
    /// The kinds of memory whose keys may fall back to messages.
    pub or_messages: &'a [Kind],
    /// Whether a signal ends a process that accesses the memory of a dead owner.
    pub dies_with_owner: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Nothing,
    /// The owner forks before its memory has a key.
    ForkBeforeKey,
    /// The owner forks when the peer has the key. The child lives until the end of the row.
    Fork,
    /// The owner forks when the peer has the key, and the child has ended when the owner stores.
    ForkAndEnd,
    /// The owner starts a program by fork and exec.
    ForkAndExec,
    /// The owner starts a program without a copy of itself.
    Spawn,
    /// The peer forks.
    PeerForks,
}

const EVENTS: [Event; 7] = [
    Event::Nothing,
    Event::ForkBeforeKey,
    Event::Fork,
    Event::ForkAndEnd,
    Event::ForkAndExec,
    Event::Spawn,
    Event::PeerForks,
];

/// Tests the rows that are possible on this machine.
///
/// # Panics
/// Panics if a byte is wrong, or if a key has another path.
pub fn every_kind_is_right(over: &Over<'_>) {
    let mut pair = Pair::start(over);
    let mut tried = 0;
    for (name, kind) in KINDS {
        let (mut path, first) = (String::new(), tried);
        for row in Row::all(name, kind) {
            let Some(taken) = pair.row(&row) else { continue };
            tried += 1;
            let by_messages = over.or_messages.contains(&kind) && taken.starts_with("emulated");
            assert!(taken.starts_with(over.path) || by_messages, "{row:?} went by {taken}");
            path = taken;
        }
        let by = if path.is_empty() { "not here" } else { &path };
        println!("    {name}: {} rows by {by}", tried - first);
    }
    // Reserved huge pages are not available on every machine.
    assert!(tried >= (KINDS.len() - 1) * 20, "{tried} rows were tried");
    pair.end();
    if !over.dies_with_owner {
        becomes_another(over, true);
    }
    becomes_another(over, false);
}

#[derive(Debug)]
struct Row {
    name: &'static str,
    kind: Kind,
    rights: &'static str,
    filled: bool,
    event: Event,
}

impl Row {
    /// Returns all rows of a kind. Most events do not depend on the peers' right to write.
    fn all(name: &'static str, kind: Kind) -> Vec<Row> {
        let mut rows = Vec::new();
        for filled in [false, true] {
            let row = |rights, event| Row { name, kind, rights, filled, event };
            rows.extend(EVENTS.map(|event| row("both", event)));
            rows.extend(EVENTS[..3].iter().map(|event| row("read", *event)));
        }
        rows
    }
}

struct Pair {
    owner: Node,
    peer: Node,
}

impl Pair {
    fn start(over: &Over<'_>) -> Pair {
        let start = |name: &str| Node::open((over.launch)(name), over.settings);
        let (owner, mut peer) = (start("owner"), start("peer"));
        let mut pair = {
            let _ = peer.must(&format!("register here {LEN}"));
            Pair { owner, peer }
        };
        pair.peer.connect(&mut pair.owner);
        pair
    }

    /// Tests one row, and returns the path. Returns `None` if this kind of memory is not available on this machine.
    fn row(&mut self, row: &Row) -> Option<String> {
        let Row { name, kind, rights, filled, event } = row;
        let first = if *filled { "1" } else { "fresh" };
        let mapped = self.owner.ask(&format!("map memory {LEN} {name} {rights} {first}"));
        if let Err(failed) = mapped {
            assert_eq!((*kind, &*failed.status), (Kind::Huge, "NoMemory"), "{row:?}: {failed:?}");
            return None;
        }
        let forks = "fork-aside-same memory";
        if *event == Event::ForkBeforeKey {
            let _ = self.owner.must(forks);
        }
        let path = self.peer.import(&mut self.owner, "memory");
        let _ = match event {
            Event::Fork | Event::ForkAndEnd => self.owner.must(forks),
            Event::ForkAndExec => self.owner.must("start fork"),
            Event::Spawn => self.owner.must("start spawn"),
            Event::PeerForks => self.peer.must("fork-aside-same here"),
            Event::Nothing | Event::ForkBeforeKey => String::new(),
        };
        if *event == Event::ForkAndEnd {
            self.child_has_its_own(row);
        }
        for seed in [2, 5] {
            let _ = self.owner.must(&format!("fill memory {seed}"));
            let _ = self.peer.must(&format!("get owner.memory here 0 {LEN} 0"));
            let got = self.peer.must(&format!("check here 0 {LEN} {seed} 0"));
            assert_eq!(got, "same", "{row:?}: what the peer got by {path}");
            if *rights == "both" {
                let _ = self.peer.must(&format!("fill here {}", seed + 1));
                let _ = self.peer.must(&format!("put owner.memory here 0 {LEN} 0"));
                let _ = self.peer.must("flush owner");
                let put = self.owner.must(&format!("check memory 0 {LEN} {} 0", seed + 1));
                assert_eq!(put, "same", "{row:?}: what the peer put by {path}");
            }
        }
        match event {
            Event::Fork | Event::ForkBeforeKey => self.child_has_its_own(row),
            Event::ForkAndExec | Event::Spawn => drop(self.owner.must("start-ended")),
            Event::PeerForks => assert_eq!(self.peer.must("fork-joined"), "Some(0)", "{row:?}"),
            Event::Nothing | Event::ForkAndEnd => {}
        }
        let _ = self.peer.must("forget-key owner.memory");
        close(&mut self.owner);
        Some(path)
    }

    /// Ends the child, which must have kept the bytes of the moment of the fork, unless both processes share the memory.
    fn child_has_its_own(&mut self, row: &Row) {
        let said = self.owner.must("fork-joined");
        if !row.kind.is_shared() {
            assert_eq!(said, "Some(0)", "{row:?}: the child's bytes are its own");
        }
    }

    fn end(self) {
        for mut node in [self.owner, self.peer] {
            node.nothing_was_wrong();
            node.end();
        }
    }
}

fn close(owner: &mut Node) {
    let late = Instant::now() + DEADLINE;
    while let Err(failed) = owner.ask("close memory") {
        assert!(failed.status == "Busy" && Instant::now() < late, "{failed:?}");
    }
}

/// Tests an exec, which ends the process for its peers: their accesses fail and return no byte of the new program. The process's
/// own operations end in an orderly manner.
fn becomes_another(over: &Over<'_>, is_owner: bool) {
    let mut pair = Pair::start(over);
    let _ = pair.owner.must(&format!("map memory {LEN} private both 1"));
    assert!(pair.peer.import(&mut pair.owner, "memory").starts_with(over.path));
    let _ = pair.peer.must(&format!("get owner.memory here 0 {LEN} 0"));
    let gone = if is_owner { &mut pair.owner } else { &mut pair.peer };
    gone.peer.tell("become-another");
    let late = Instant::now() + DEADLINE;
    let comm = format!("/proc/{}/comm", gone.peer.pid());
    while std::fs::read_to_string(&comm).is_ok_and(|name| name.trim() != "sleep") {
        assert!(Instant::now() < late, "it does not become another program");
        std::thread::yield_now();
    }
    if is_owner {
        while pair.peer.ask(&format!("get owner.memory here 0 {LEN} 0")).is_ok() {
            assert_eq!(pair.peer.must(&format!("check here 0 {LEN} 1 0")), "same");
            assert!(Instant::now() < late, "its memory is reached still");
        }
    } else {
        close(&mut pair.owner);
    }
    let (mut left, mut gone) =
        if is_owner { (pair.peer, pair.owner) } else { (pair.owner, pair.peer) };
    let _ = gone.kill();
    left.nothing_was_wrong();
    left.end();
}
