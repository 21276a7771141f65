//! The cost of a post and a match, compared with a list that is searched from its beginning:
//!
//! ```text
//! cargo run --release -p tieline-tag --example matching
//! ```
//!
//! The column `waiting` is the number of waiting receives, or of waiting messages in the lines that begin with `messages`. Each
//! step ends one entry and adds another. The other columns are the time of a step, the best of several rounds.

use std::hint::black_box;
use std::time::{Duration, Instant};
use tieline_tag::{Arrival, Matcher, Pattern, Post};

const ROUNDS: usize = 7;
const SOURCES: u64 = 16;

/// The waiting receives or messages, and the order in which they end.
const CASES: &[(&str, Case)] = &[
    ("receives, as posted", Case { any: false, ignore: 0, chance: false, messages: false }),
    ("receives, by chance", Case { any: false, ignore: 0, chance: true, messages: false }),
    ("receives of any source", Case { any: true, ignore: 0, chance: true, messages: false }),
    ("receives of all", Case { any: true, ignore: u64::MAX, chance: true, messages: false }),
    ("messages, as they arrived", Case { any: false, ignore: 0, chance: false, messages: true }),
    ("messages, by chance", Case { any: false, ignore: 0, chance: true, messages: true }),
    ("messages of any source", Case { any: true, ignore: 0, chance: true, messages: true }),
];

#[derive(Clone, Copy)]
struct Case {
    any: bool,
    ignore: u64,
    /// Whether a random entry ends next; otherwise the oldest entry ends next.
    chance: bool,
    messages: bool,
}

impl Case {
    /// Returns the key of the entry that ends in this step and is added again.
    fn key(self, step: u64, waiting: u64) -> (u64, u64) {
        let mixed = step.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 32;
        let n = if self.chance { mixed } else { step } % waiting;
        (n % SOURCES, n)
    }

    fn pattern(self, (source, tag): (u64, u64)) -> Pattern {
        let source = if self.any { None } else { Some(source) };
        Pattern { source, tag, ignore: self.ignore }
    }
}

trait Matching {
    fn new() -> Self;
    /// Posts a receive that matches no message.
    fn post(&mut self, pattern: Pattern, word: u64);
    /// Delivers a message that matches a waiting receive.
    fn arrive(&mut self, source: u64, tag: u64) -> u64;
    /// Delivers a message that matches no receive.
    fn keep(&mut self, source: u64, tag: u64, payload: u64);
    /// Posts a receive that matches a message.
    fn receive(&mut self, pattern: Pattern) -> u64;
}

impl Matching for Matcher<u64> {
    fn new() -> Self {
        Matcher::new()
    }

    fn post(&mut self, pattern: Pattern, word: u64) {
        assert!(matches!(Matcher::post(self, pattern, word), Post::Waiting(_)));
    }

    fn arrive(&mut self, source: u64, tag: u64) -> u64 {
        match Matcher::arrive(self, source, tag, (), |()| 0) {
            Arrival::Matched(receive, ()) => receive.word,
            Arrival::Kept(_) => unreachable!("a receive waits"),
        }
    }

    fn keep(&mut self, source: u64, tag: u64, payload: u64) {
        assert!(matches!(Matcher::arrive(self, source, tag, (), |()| payload), Arrival::Kept(_)));
    }

    fn receive(&mut self, pattern: Pattern) -> u64 {
        match Matcher::post(self, pattern, 0) {
            Post::Matched(message, _) => message.payload,
            Post::Waiting(_) => unreachable!("a message waits"),
        }
    }
}

/// The simplest implementation: lists that are searched from their beginning.
struct Lists {
    receives: Vec<(Pattern, u64)>,
    messages: Vec<(u64, u64, u64)>,
}

impl Matching for Lists {
    fn new() -> Self {
        Lists { receives: Vec::new(), messages: Vec::new() }
    }

    fn post(&mut self, pattern: Pattern, word: u64) {
        assert!(!self.messages.iter().any(|(source, tag, _)| pattern.fits(*source, *tag)));
        self.receives.push((pattern, word));
    }

    fn arrive(&mut self, source: u64, tag: u64) -> u64 {
        let fits = |(pattern, _): &(Pattern, u64)| pattern.fits(source, tag);
        let at = self.receives.iter().position(fits).unwrap_or_default();
        self.receives.remove(at).1
    }

    fn keep(&mut self, source: u64, tag: u64, payload: u64) {
        assert!(!self.receives.iter().any(|(pattern, _)| pattern.fits(source, tag)));
        self.messages.push((source, tag, payload));
    }

    fn receive(&mut self, pattern: Pattern) -> u64 {
        let fits = |(source, tag, _): &(u64, u64, u64)| pattern.fits(*source, *tag);
        let at = self.messages.iter().position(fits).unwrap_or_default();
        self.messages.remove(at).2
    }
}

fn ns<M: Matching>(case: Case, waiting: u64, steps: u64) -> f64 {
    let mut matching = M::new();
    for n in 0..waiting {
        let (source, tag) = (n % SOURCES, n);
        match case.messages {
            true => matching.keep(source, tag, n),
            false => matching.post(case.pattern((source, tag)), n),
        }
    }
    let mut best = Duration::MAX;
    let mut step = 0;
    for _ in 0..ROUNDS {
        let began = Instant::now();
        for _ in 0..steps {
            let (source, tag) = black_box(case.key(step, waiting));
            let pattern = case.pattern((source, tag));
            if case.messages {
                let _ = black_box(matching.receive(pattern));
                matching.keep(source, tag, step);
            } else {
                let _ = black_box(matching.arrive(source, tag));
                matching.post(pattern, step);
            }
            step += 1;
        }
        best = best.min(began.elapsed());
    }
    best.as_nanos() as f64 / steps as f64
}

fn main() {
    println!("{:26} {:>8} {:>10} {:>10}", "post + match, ns", "waiting", "matcher", "list");
    for (name, case) in CASES {
        for waiting in [1, 10, 100, 10_000] {
            let matcher = ns::<Matcher<u64>>(*case, waiting, 200_000);
            let list = ns::<Lists>(*case, waiting, 2_000_000 / (waiting + 10));
            println!("{name:26} {waiting:8} {matcher:10.1} {list:10.1}");
        }
    }
}
