//! Litmus tests: every outcome that a weakly ordered processor permits for a few accesses of two or three threads.
//!
//! The model is that of 64-bit Arm as compilers use it, or weaker. A store becomes visible to all other threads at once. Accesses of
//! one thread take effect in any order, except for these rules:
//!
//! * Accesses to one word keep their order. A load may take the value of an earlier store of its own thread before other threads
//!   see it.
//! * An acquire load precedes all later accesses, and a release store follows all earlier ones. A later acquire load may precede a
//!   release store; both must be sequentially consistent to keep their order.
//! * An acquire fence orders earlier loads, and a release fence orders later stores. A sequentially consistent fence orders all
//!   accesses.
//! * An atomic exchange is a load and a store. No other store to the word comes between them. A later load may precede the store.
//! * A [membarrier](Step::Membarrier) takes effect at one time, between two accesses of each other thread.
//!
//! The model ignores that a store may depend on an earlier load, so it permits more outcomes than a processor.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

/// A step of a thread. Words are zero at the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Stores a value in the word of this name.
    Store(&'static str, u64, Ordering),
    /// Loads a word. The second name is that of the result.
    Load(&'static str, &'static str, Ordering),
    /// Exchanges the value of a word, and names the result.
    Swap(&'static str, u64, &'static str, Ordering),
    /// A fence of this thread; a relaxed one has no effect.
    Fence(Ordering),
    /// A full fence of all threads.
    Membarrier,
}

/// The results of one execution, by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outcome(BTreeMap<&'static str, u64>);

impl Outcome {
    /// Returns the result of this name.
    ///
    /// # Panics
    /// No step has a result of this name.
    #[must_use]
    pub fn of(&self, name: &str) -> u64 {
        self.0[name]
    }
}

/// The effect of a step, or of one half of an exchange.
#[derive(Clone, Copy)]
enum Effect {
    Load { word: &'static str, result: &'static str },
    Store { word: &'static str, value: u64 },
    Membarrier,
}

#[derive(Clone, Copy)]
struct Event {
    thread: usize,
    /// The number of the step in its thread.
    step: usize,
    order: Ordering,
    effect: Effect,
    /// Whether the event is a half of an exchange.
    is_half: bool,
}

impl Event {
    fn is_load(&self) -> bool {
        matches!(self.effect, Effect::Load { .. })
    }

    fn is_store(&self) -> bool {
        matches!(self.effect, Effect::Store { .. })
    }

    fn word(&self) -> Option<&'static str> {
        match self.effect {
            Effect::Load { word, .. } | Effect::Store { word, .. } => Some(word),
            Effect::Membarrier => None,
        }
    }
}

fn acquires(order: Ordering) -> bool {
    matches!(order, Ordering::Acquire | Ordering::AcqRel | Ordering::SeqCst)
}

fn releases(order: Ordering) -> bool {
    matches!(order, Ordering::Release | Ordering::AcqRel | Ordering::SeqCst)
}

/// Returns every outcome of these threads.
///
/// # Panics
/// There are more than 32 accesses, or two results have one name.
#[must_use]
pub fn outcomes(threads: &[Vec<Step>]) -> Vec<Outcome> {
    let mut events = Vec::new();
    for (thread, steps) in threads.iter().enumerate() {
        for (number, step) in steps.iter().enumerate() {
            events.extend(events_of(thread, number, *step));
        }
    }
    assert!(events.len() <= 32, "{} accesses are too many", events.len());
    let named = events.iter().filter_map(|event| match event.effect {
        Effect::Load { result, .. } => Some(result),
        _ => None,
    });
    let names: BTreeSet<&str> = named.clone().collect();
    assert_eq!(names.len(), named.count(), "each result has a name of its own");
    let predecessors = |at: usize| {
        let earlier = events[..at].iter().enumerate();
        let ordered = earlier.filter(|(_, event)| is_ordered(event, &events[at], threads));
        ordered.fold(0, |bits, (one, _)| bits | 1 << one)
    };
    let before: Vec<u32> = (0..events.len()).map(predecessors).collect();
    let mut search = Search { events, before, seen: BTreeSet::new(), found: BTreeSet::new() };
    search.go(&State::default());
    search.found.into_iter().collect()
}

fn events_of(thread: usize, number: usize, step: Step) -> Vec<Event> {
    let event = |order, effect, is_half| Event { thread, step: number, order, effect, is_half };
    match step {
        Step::Store(word, value, order) => vec![event(order, Effect::Store { word, value }, false)],
        Step::Load(word, result, order) => vec![event(order, Effect::Load { word, result }, false)],
        Step::Swap(word, value, result, order) => vec![
            event(order, Effect::Load { word, result }, true),
            event(order, Effect::Store { word, value }, true),
        ],
        Step::Fence(_) => Vec::new(),
        Step::Membarrier => vec![event(Ordering::SeqCst, Effect::Membarrier, false)],
    }
}

/// Checks whether an event takes effect before a later one of its thread.
fn is_ordered(a: &Event, b: &Event, threads: &[Vec<Step>]) -> bool {
    if a.thread != b.thread {
        return false;
    }
    let forwards = a.is_store() && b.is_load() && !a.is_half && !b.is_half;
    let same_word = a.word() == b.word() && !forwards;
    let is_full = [a, b].iter().any(|event| matches!(event.effect, Effect::Membarrier));
    let acquired = a.is_load() && acquires(a.order);
    let released = b.is_store() && releases(b.order);
    let strict = [a, b].iter().all(|event| event.order == Ordering::SeqCst);
    let strict = strict && a.is_store() && b.is_load();
    // An acquire fence orders earlier loads, and a release fence later stores.
    let fenced = threads[a.thread][a.step..b.step].iter().any(|step| match step {
        Step::Fence(Ordering::SeqCst) => true,
        Step::Fence(order) => acquires(*order) && a.is_load() || releases(*order) && b.is_store(),
        _ => false,
    });
    same_word || is_full || acquired || released || strict || fenced
}

#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    /// The events that have taken effect, as bits.
    done: u32,
    memory: BTreeMap<&'static str, u64>,
    results: BTreeMap<&'static str, u64>,
}

struct Search {
    events: Vec<Event>,
    before: Vec<u32>,
    seen: BTreeSet<State>,
    found: BTreeSet<Outcome>,
}

impl Search {
    fn go(&mut self, state: &State) {
        if !self.seen.insert(state.clone()) {
            return;
        }
        let mut is_over = true;
        for at in 0..self.events.len() {
            if state.done & 1 << at != 0 {
                continue;
            }
            is_over = false;
            if state.done & self.before[at] == self.before[at] && self.may_happen(state, at) {
                let next = self.after(state, at);
                self.go(&next);
            }
        }
        if is_over {
            let _ = self.found.insert(Outcome(state.results.clone()));
        }
    }

    /// Checks the rules that depend on other threads.
    fn may_happen(&self, state: &State, at: usize) -> bool {
        let event = &self.events[at];
        let is_done = |other: usize| state.done & 1 << other != 0;
        match event.effect {
            // No other store comes between the halves of an exchange.
            Effect::Store { word, .. } => !(1..self.events.len()).any(|half| {
                let store = &self.events[half];
                let is_open =
                    store.is_half && store.is_store() && is_done(half - 1) && !is_done(half);
                is_open && half != at && store.word() == Some(word)
            }),
            // Each other thread is between two of its steps.
            Effect::Membarrier => !(1..self.events.len()).any(|other| {
                let pair = [&self.events[other - 1], &self.events[other]];
                let is_theirs = pair.iter().all(|one| one.thread == pair[0].thread);
                is_theirs && pair[0].thread != event.thread && is_done(other) && !is_done(other - 1)
            }),
            Effect::Load { .. } => true,
        }
    }

    fn after(&self, state: &State, at: usize) -> State {
        let mut next = state.clone();
        next.done |= 1 << at;
        match self.events[at].effect {
            Effect::Store { word, value } => drop(next.memory.insert(word, value)),
            Effect::Load { word, result } => {
                let value = self.own_store(state, at, word);
                let value = value.or_else(|| state.memory.get(word).copied()).unwrap_or(0);
                let _ = next.results.insert(result, value);
            }
            Effect::Membarrier => {}
        }
        next
    }

    /// Returns the value of the last earlier store of this thread to the word, if other threads do not see the store yet.
    fn own_store(&self, state: &State, at: usize, word: &str) -> Option<u64> {
        let thread = self.events[at].thread;
        let last = (0..at).rev().find(|&other| {
            let event = &self.events[other];
            event.thread == thread && event.is_store() && event.word() == Some(word)
        })?;
        match self.events[last].effect {
            Effect::Store { value, .. } if state.done & 1 << last == 0 => Some(value),
            _ => None,
        }
    }
}

/// The accesses of a protocol between threads, and the outcome that must not occur.
pub struct Protocol {
    /// The orderings of the protocol's accesses, by name.
    pub orders: &'static [(&'static str, Ordering)],
    /// Returns the threads' steps, given an ordering for each name of the list, in its order.
    pub threads: fn(&[Ordering]) -> Vec<Vec<Step>>,
    /// Whether an outcome must not occur.
    pub is_wrong: fn(&Outcome) -> bool,
}

impl Protocol {
    /// Checks that the wrong outcome cannot occur, and that it can occur if any one of the orderings is relaxed.
    ///
    /// # Panics
    /// The outcome can occur, or an ordering has no effect.
    pub fn check(&self) {
        let orders: Vec<Ordering> = self.orders.iter().map(|(_, order)| *order).collect();
        let wrong = |orders: &[Ordering]| {
            outcomes(&(self.threads)(orders)).into_iter().find(|outcome| (self.is_wrong)(outcome))
        };
        assert_eq!(wrong(&orders), None, "with {:?}", self.orders);
        for (at, (name, _)) in self.orders.iter().enumerate() {
            let mut weaker = orders.clone();
            weaker[at] = Ordering::Relaxed;
            assert!(wrong(&weaker).is_some(), "{name} has no effect");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Step::{Fence, Load, Membarrier, Store, Swap};
    use super::*;
    use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

    fn can(threads: &[Vec<Step>], results: &[(&str, u64)]) -> bool {
        let is_it =
            |outcome: &Outcome| results.iter().all(|(name, value)| outcome.of(name) == *value);
        outcomes(threads).iter().any(is_it)
    }

    fn message(store: [Ordering; 2], load: [Ordering; 2]) -> Vec<Vec<Step>> {
        vec![
            vec![Store("data", 1, store[0]), Store("flag", 1, store[1])],
            vec![Load("flag", "flag", load[0]), Load("data", "data", load[1])],
        ]
    }

    const STALE: [(&str, u64); 2] = [("flag", 1), ("data", 0)];

    #[test]
    fn message_needs_release_and_acquire_on_its_flag() {
        assert!(!can(&message([Relaxed, Release], [Acquire, Relaxed]), &STALE));
        assert!(can(&message([Relaxed, Relaxed], [Acquire, Relaxed]), &STALE));
        assert!(can(&message([Relaxed, Release], [Relaxed, Relaxed]), &STALE));
        assert!(can(&message([Release, Relaxed], [Relaxed, Acquire]), &STALE), "on the wrong word");
    }

    #[test]
    fn message_may_use_fences_instead_and_each_kind_on_its_own_side() {
        let with = |writer, reader| {
            let [mut first, mut second]: [Vec<Step>; 2] =
                message([Relaxed; 2], [Relaxed; 2]).try_into().unwrap();
            first.insert(1, Fence(writer));
            second.insert(1, Fence(reader));
            vec![first, second]
        };
        assert!(!can(&with(Release, Acquire), &STALE));
        assert!(!can(&with(SeqCst, SeqCst), &STALE));
        assert!(can(&with(Acquire, Acquire), &STALE));
        assert!(can(&with(Release, Release), &STALE));
        assert!(can(&with(Relaxed, Acquire), &STALE));
    }

    fn stores_then_loads(middle: &[Step], order: Ordering) -> Vec<Vec<Step>> {
        let side = |own, other, result| {
            let (store, load) = (Store(own, 1, order), Load(other, result, order));
            [&[store][..], middle, &[load]].concat()
        };
        vec![side("x", "y", "first"), side("y", "x", "second")]
    }

    const NEITHER: [(&str, u64); 2] = [("first", 0), ("second", 0)];

    #[test]
    fn store_before_load_needs_full_fence_or_sequential_consistency() {
        assert!(can(&stores_then_loads(&[], Relaxed), &NEITHER));
        assert!(can(&stores_then_loads(&[Fence(AcqRel)], Relaxed), &NEITHER));
        assert!(!can(&stores_then_loads(&[Fence(SeqCst)], Relaxed), &NEITHER));
        assert!(!can(&stores_then_loads(&[], SeqCst), &NEITHER));
    }

    #[test]
    fn exchange_does_not_order_its_store_before_a_later_load() {
        for order in [AcqRel, SeqCst] {
            let side = |own, other, own_result, result| {
                vec![Swap(own, 1, own_result, order), Load(other, result, Relaxed)]
            };
            let sides = vec![side("x", "y", "a", "first"), side("y", "x", "b", "second")];
            assert!(can(&sides, &NEITHER), "{order:?}");
        }
    }

    #[test]
    fn exchanges_of_one_word_come_one_after_the_other() {
        let swap = |value, result| vec![Swap("x", value, result, Relaxed)];
        let both = vec![swap(1, "a"), swap(2, "b")];
        assert!(can(&both, &[("a", 0), ("b", 1)]) && can(&both, &[("a", 2), ("b", 0)]));
        assert!(!can(&both, &[("a", 0), ("b", 0)]) && !can(&both, &[("a", 2), ("b", 1)]));
    }

    #[test]
    fn membarrier_of_one_side_replaces_the_other_sides_fence() {
        let waker = vec![Store("x", 1, Relaxed), Load("y", "first", Relaxed)];
        let with = |middle| {
            vec![waker.clone(), vec![Store("y", 1, Relaxed), middle, Load("x", "second", Relaxed)]]
        };
        assert!(!can(&with(Membarrier), &NEITHER));
        assert!(can(&with(Fence(SeqCst)), &NEITHER));
    }

    #[test]
    fn thread_sees_its_own_store_early_and_the_word_in_one_order() {
        // Each thread sees its own store and not that of the other thread.
        let side = |own, other, own_result, result| {
            vec![
                Store(own, 1, Relaxed),
                Load(own, own_result, Acquire),
                Load(other, result, Relaxed),
            ]
        };
        let sides = vec![side("x", "y", "own a", "first"), side("y", "x", "own b", "second")];
        assert!(can(&sides, &[("own a", 1), ("own b", 1), ("first", 0), ("second", 0)]));
        assert!(!can(&sides, &[("own a", 0)]));
        let twice = vec![
            vec![Store("x", 1, Relaxed), Store("x", 2, Relaxed)],
            vec![Load("x", "early", Relaxed), Load("x", "late", Relaxed)],
        ];
        assert!(!can(&twice, &[("early", 2), ("late", 1)]));
    }

    #[test]
    fn store_is_seen_by_all_other_threads_at_once() {
        let reader = |words: [&'static str; 2], results: [&'static str; 2]| {
            vec![Load(words[0], results[0], Acquire), Load(words[1], results[1], Relaxed)]
        };
        let threads = vec![
            vec![Store("x", 1, Relaxed)],
            vec![Store("y", 1, Relaxed)],
            reader(["x", "y"], ["a", "b"]),
            reader(["y", "x"], ["c", "d"]),
        ];
        assert!(!can(&threads, &[("a", 1), ("b", 0), ("c", 1), ("d", 0)]));
        assert!(can(&threads, &[("a", 1), ("b", 0), ("c", 0), ("d", 0)]));
    }

    #[test]
    #[should_panic(expected = "idle has no effect")]
    fn protocol_with_an_idle_ordering_is_found() {
        Protocol {
            orders: &[("publish", Release), ("take", Acquire), ("idle", Release)],
            threads: |order| message([order[2], order[0]], [order[1], Relaxed]),
            is_wrong: |outcome| (outcome.of("flag"), outcome.of("data")) == (1, 0),
        }
        .check();
    }
}
