//! Tests of every interleaving of two workers, up to a number of faults: no wrong state is reachable, and every state leads to an
//! end.

use super::world::World;
use crate::message::{Parsed, parse};
use crate::{ConnectionKey, Limits, Phase};
use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

/// The numbers of events that are still allowed.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct Budget {
    connects: [u8; 2],
    /// The number of times that the time of either side advances to its next timer.
    ticks: [u8; 2],
    /// The number of datagrams lost or duplicated. Delivery in another order is not counted.
    faults: u8,
    /// The number of endpoints closed by either application.
    closes: u8,
    /// The number of processes that die, start again and connect once more.
    crashes: u8,
    /// The number of endpoints that cannot be made or connected.
    refusals: u8,
}

#[derive(Clone)]
enum Event {
    Connect(u8),
    Deliver(u8, Vec<u8>),
    Double(u8, Vec<u8>),
    Lose(u8, Vec<u8>),
    Make(u8, ConnectionKey),
    Refuse(u8, ConnectionKey),
    Bind(u8, ConnectionKey),
    FailToBind(u8, ConnectionKey),
    Close(u8, ConnectionKey),
    Crash(u8),
    Tick(u8),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Connect(who) => write!(f, "{who} connects"),
            Event::Deliver(to, datagram) => write!(f, "{to} receives {}", words(datagram)),
            Event::Double(to, datagram) => write!(f, "{to} receives a copy of {}", words(datagram)),
            Event::Lose(to, datagram) => write!(f, "lost on the way to {to}: {}", words(datagram)),
            Event::Make(who, key) => write!(f, "{who} has made {}", key.n),
            Event::Refuse(who, key) => write!(f, "{who} cannot make {}", key.n),
            Event::Bind(who, key) => write!(f, "{who} has bound {}", key.n),
            Event::FailToBind(who, key) => write!(f, "{who} cannot bind {}", key.n),
            Event::Close(who, key) => write!(f, "{who} closes {}", key.n),
            Event::Crash(who) => write!(f, "{who} crashes and restarts"),
            Event::Tick(who) => write!(f, "time passes for {who}"),
        }
    }
}

fn words(datagram: &[u8]) -> String {
    match parse(datagram) {
        Ok(Parsed::Message(h, body)) => {
            format!("{} (life {} to {}) {body:?}", h.n, h.from_epoch, h.to_epoch)
        }
        other => format!("{other:?}"),
    }
}

/// A hash of 128 bits, so that two states practically never have the same one.
struct Fingerprint(u128);

impl Hasher for Fingerprint {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word) ^ ((chunk.len() as u64) << 56));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let mixed =
            (self.0 ^ u128::from(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        self.0 = mixed ^ (mixed >> 67);
    }

    fn finish(&self) -> u64 {
        self.0 as u64
    }
}

/// The last step to a state, and the steps before it.
struct Step {
    event: Event,
    before: Path,
}

type Path = Option<Rc<Step>>;

fn print_path(path: &Path) {
    let mut lines = Vec::new();
    let mut at = path.as_ref();
    while let Some(step) = at {
        lines.push(step.event.to_string());
        at = step.before.as_ref();
    }
    for line in lines.iter().rev() {
        println!("  {line}");
    }
}

#[derive(Clone)]
struct State {
    path: Path,
    world: World,
    left: Budget,
    /// The number of times that each application has called `connect`.
    asked: [u8; 2],
}

impl State {
    fn events(&self) -> Vec<Event> {
        let mut out = Vec::new();
        let left = &self.left;
        for (to, datagram) in &self.world.wire {
            out.push(Event::Deliver(*to, datagram.clone()));
            if left.faults > 0 {
                out.push(Event::Double(*to, datagram.clone()));
                out.push(Event::Lose(*to, datagram.clone()));
            }
        }
        for side in &self.world.sides {
            let who = side.me;
            if left.connects[usize::from(who)] > 0 {
                out.push(Event::Connect(who));
            }
            for key in &side.to_make {
                out.push(Event::Make(who, key.clone()));
                if left.refusals > 0 {
                    out.push(Event::Refuse(who, key.clone()));
                }
            }
            for key in &side.to_bind {
                out.push(Event::Bind(who, key.clone()));
                if left.refusals > 0 {
                    out.push(Event::FailToBind(who, key.clone()));
                }
            }
            if left.closes > 0 {
                out.extend(side.endpoints.keys().map(|key| Event::Close(who, key.clone())));
            }
            if left.crashes > 0 {
                out.push(Event::Crash(who));
            }
            if left.ticks[usize::from(who)] > 0 && side.machine.next_timer().is_some() {
                out.push(Event::Tick(who));
            }
        }
        out
    }

    fn apply(&mut self, event: Event) {
        let State { world, left, asked, .. } = self;
        match event {
            Event::Connect(who) => {
                left.connects[usize::from(who)] -= 1;
                asked[usize::from(who)] += 1;
                world.connect(who, 1 - who);
            }
            Event::Deliver(to, datagram) => {
                let entry = (to, datagram);
                let _ = world.wire.remove(&entry);
                world.deliver(entry.0, &entry.1);
            }
            Event::Double(to, datagram) => {
                left.faults -= 1;
                world.deliver(to, &datagram);
            }
            Event::Lose(to, datagram) => {
                left.faults -= 1;
                let _ = world.wire.remove(&(to, datagram));
            }
            Event::Make(who, key) => world.make(who, &key, Ok(())),
            Event::Refuse(who, key) => {
                left.refusals -= 1;
                world.make(who, &key, Err("no more endpoints"));
            }
            Event::Bind(who, key) => world.bind(who, &key, Ok(())),
            Event::FailToBind(who, key) => {
                left.refusals -= 1;
                world.bind(who, &key, Err("unreachable"));
            }
            Event::Close(who, key) => {
                left.closes -= 1;
                world.close(who, &key);
            }
            Event::Crash(who) => {
                left.crashes -= 1;
                left.connects[usize::from(who)] = 1;
                world.crash(who);
            }
            Event::Tick(who) => {
                left.ticks[usize::from(who)] -= 1;
                let side = &world.sides[usize::from(who)];
                let at = side.machine.next_timer().expect("a timer");
                let passed = at.saturating_sub(side.now);
                world.tick(who, passed);
            }
        }
    }

    fn fingerprint(&self) -> u128 {
        let mut out = Fingerprint(0x243f_6a88_85a3_08d3_1319_8a2e_0370_7344);
        self.world.hash(&mut out);
        (self.left, self.asked).hash(&mut out);
        out.0
    }

    /// Checks that the run ends without further faults, and successfully unless there was a fault.
    fn ends(mut self, known: &mut HashSet<u128>) {
        self.left = Budget::default();
        // A side that is about to time out may do so; every other side must become ready.
        let time_enough = self.world.sides.iter().all(|side| {
            let mut unfinished = side.machine.connections.values();
            unfinished.all(|c| c.phase == Phase::Ready || c.deadline >= side.now + 3)
        });
        let calm = time_enough && !self.world.troubled;
        for _ in 0..500 {
            // A state that was settled without a fault has a stronger guarantee, so it is a separate entry.
            if !known.insert(self.fingerprint() ^ u128::from(calm)) {
                return;
            }
            if self.world.settle_once() {
                continue;
            }
            self.world.check_at_rest();
            if calm {
                assert!(!self.world.troubled, "it failed without a reason to");
                // The order of the requests does not change the number of connections, unless the second request of a
                // side overtakes its first.
                let [a, b] = self.asked;
                let most = if a.max(b) > 1 { a + b } else { a.max(b) };
                for side in &self.world.sides {
                    let formed = side.endpoints.len();
                    assert!((usize::from(a.max(b))..=usize::from(most)).contains(&formed));
                }
            }
            return;
        }
        panic!("it does not come to rest");
    }
}

/// Visits every state, and prints the numbers of states and of transitions.
fn explore(name: &str, budget: Budget) {
    let limits = Limits {
        first_retry: 1,
        last_retry: 1,
        deadline: 3,
        max_connections: 16,
        max_unfinished_per_peer: 2,
        max_early: 2,
        max_renumbered: 1,
    };
    let mut world = World::new(2, &limits);
    world.capacity = 3;
    world.sides.iter_mut().for_each(|side| side.prompt = budget.refusals == 0);
    let start = State { path: None, world, left: budget, asked: [0; 2] };
    let mut settled = HashSet::new();
    let mut seen = HashSet::from([start.fingerprint()]);
    let mut open = vec![start];
    let mut steps = 0;
    while let Some(state) = open.pop() {
        for event in state.events() {
            steps += 1;
            let mut next = state.clone();
            next.path = Some(Rc::new(Step { event: event.clone(), before: next.path.take() }));
            let path = next.path.clone();
            let reached = catch_unwind(AssertUnwindSafe(|| {
                next.apply(event);
                next.world.check_pairs();
                if seen.insert(next.fingerprint()) {
                    next.clone().ends(&mut settled);
                    open.push(next);
                }
            }));
            if let Err(panic) = reached {
                println!("{name}: this leads to the failure below:");
                print_path(&path);
                resume_unwind(panic);
            }
        }
    }
    println!("{name}: {} states, {steps} transitions", seen.len());
}

#[test]
fn one_side_connects_and_datagrams_get_lost_or_doubled() {
    explore(
        "one connects, 3 faults",
        Budget { connects: [1, 0], faults: 3, ticks: [3, 3], ..Budget::default() },
    );
}

#[test]
fn both_sides_connect_and_datagrams_get_lost_or_doubled() {
    explore(
        "both connect, 2 faults",
        Budget { connects: [1, 1], faults: 2, ticks: [1, 1], ..Budget::default() },
    );
    explore(
        "both connect, time passes",
        Budget { connects: [1, 1], ticks: [2, 2], ..Budget::default() },
    );
}

#[test]
fn several_connections_of_one_pair_never_mix() {
    explore("two and one", Budget { connects: [2, 1], ticks: [1, 1], ..Budget::default() });
    explore("two and two", Budget { connects: [2, 2], ..Budget::default() });
}

#[test]
fn an_end_is_closed_at_any_moment() {
    explore(
        "one connects, 2 closes, 1 fault",
        Budget { connects: [1, 0], faults: 1, closes: 2, ticks: [2, 2], ..Budget::default() },
    );
    explore(
        "both connect, 1 close",
        Budget { connects: [1, 1], closes: 1, ticks: [1, 1], ..Budget::default() },
    );
    explore(
        "both connect, 1 close, 1 fault",
        Budget { connects: [1, 1], closes: 1, faults: 1, ..Budget::default() },
    );
    explore("both connect, 2 closes", Budget { connects: [1, 1], closes: 2, ..Budget::default() });
}

#[test]
fn a_process_crashes_and_restarts_at_any_moment() {
    explore(
        "one connects, 1 crash",
        Budget { connects: [1, 0], crashes: 1, ticks: [1, 1], ..Budget::default() },
    );
    explore(
        "one connects, 1 crash, 1 fault",
        Budget { connects: [1, 0], crashes: 1, faults: 1, ..Budget::default() },
    );
    explore(
        "one connects, 2 crashes",
        Budget { connects: [1, 0], crashes: 2, ..Budget::default() },
    );
    explore(
        "both connect, 1 crash",
        Budget { connects: [1, 1], crashes: 1, ticks: [0, 1], ..Budget::default() },
    );
    explore(
        "one connects, 1 crash, 1 close",
        Budget { connects: [1, 0], crashes: 1, closes: 1, ..Budget::default() },
    );
}

#[test]
fn an_endpoint_cannot_be_made_or_connected() {
    explore(
        "one connects, 2 refusals, 2 faults",
        Budget { connects: [1, 0], faults: 2, refusals: 2, ticks: [2, 2], ..Budget::default() },
    );
    explore(
        "both connect, 1 refusal, 1 fault",
        Budget { connects: [1, 1], faults: 1, refusals: 1, ticks: [1, 1], ..Budget::default() },
    );
}
