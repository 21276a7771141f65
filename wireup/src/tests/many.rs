//! Tests of several workers with several connections of each pair, in random orders of events and faults.

use super::world::World;
use crate::{Limits, Phase};
use proptest::prelude::*;
use proptest::sample::Index;

#[derive(Clone, Debug)]
enum Event {
    Connect(u8, u8),
    Deliver(Index),
    Double(Index),
    Lose(Index),
    Make(u8, Index),
    Refuse(u8, Index),
    Bind(u8, Index),
    FailToBind(u8, Index),
    Close(u8, Index),
    Unclaim(u8, Index),
    Crash(u8),
    Lost(u8, Index),
    Tick(u8),
}

fn event(workers: u8) -> impl Strategy<Value = Event> {
    let (who, which) = (0..workers, any::<Index>());
    let each = (who.clone(), which);
    prop_oneof![
        6 => (who.clone(), 1..workers).prop_map(move |(a, by)| Event::Connect(a, (a + by) % workers)),
        20 => any::<Index>().prop_map(Event::Deliver),
        2 => any::<Index>().prop_map(Event::Double),
        2 => any::<Index>().prop_map(Event::Lose),
        8 => each.clone().prop_map(|(a, i)| Event::Make(a, i)),
        1 => each.clone().prop_map(|(a, i)| Event::Refuse(a, i)),
        8 => each.clone().prop_map(|(a, i)| Event::Bind(a, i)),
        1 => each.clone().prop_map(|(a, i)| Event::FailToBind(a, i)),
        2 => each.clone().prop_map(|(a, i)| Event::Close(a, i)),
        1 => each.clone().prop_map(|(a, i)| Event::Unclaim(a, i)),
        1 => who.clone().prop_map(Event::Crash),
        1 => each.prop_map(|(a, i)| Event::Lost(a, i)),
        4 => who.prop_map(Event::Tick),
    ]
}

/// Selects one of some keys, by index.
macro_rules! pick {
    ($keys:expr, $index:expr) => {{
        let keys: Vec<_> = $keys.cloned().collect();
        if keys.is_empty() { None } else { Some(keys[$index.index(keys.len())].clone()) }
    }};
}

fn apply(world: &mut World, event: &Event) {
    match event {
        Event::Connect(who, peer) => world.connect(*who, *peer),
        Event::Deliver(index) | Event::Double(index) | Event::Lose(index) => {
            let Some((to, datagram)) = pick!(world.wire.iter(), index) else { return };
            if !matches!(event, Event::Double(_)) {
                let _ = world.wire.remove(&(to, datagram.clone()));
            }
            if !matches!(event, Event::Lose(_)) {
                world.deliver(to, &datagram);
            }
        }
        Event::Make(who, index) | Event::Refuse(who, index) => {
            if let Some(key) = pick!(world.sides[usize::from(*who)].to_make.iter(), index) {
                let refused = matches!(event, Event::Refuse(..));
                world.make(*who, &key, if refused { Err("no room") } else { Ok(()) });
            }
        }
        Event::Bind(who, index) | Event::FailToBind(who, index) => {
            if let Some(key) = pick!(world.sides[usize::from(*who)].to_bind.iter(), index) {
                let fails = matches!(event, Event::FailToBind(..));
                world.bind(*who, &key, if fails { Err("no route") } else { Ok(()) });
            }
        }
        Event::Close(who, index) => {
            if let Some(key) = pick!(world.sides[usize::from(*who)].endpoints.keys(), index) {
                world.close(*who, &key);
            }
        }
        Event::Unclaim(who, index) => {
            let side = &mut world.sides[usize::from(*who)];
            if let Some(key) = pick!(side.wanted.iter(), index) {
                side.machine.unclaim(&key);
                let _ = side.wanted.remove(&key);
            }
        }
        Event::Crash(who) => world.crash(*who),
        Event::Lost(who, index) => {
            let side = &mut world.sides[usize::from(*who)];
            if let Some(key) = pick!(side.endpoints.keys(), index) {
                side.machine.transport_lost(side.now, &key);
            }
        }
        Event::Tick(who) => {
            let side = &world.sides[usize::from(*who)];
            if let Some(at) = side.machine.next_timer() {
                let passed = at.saturating_sub(side.now);
                world.tick(*who, passed);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_runs_of_several_workers_end_and_keep_invariants(
        (workers, events) in (3..6_u8).prop_flat_map(|workers| {
            (Just(workers), proptest::collection::vec(event(workers), 1..250))
        }),
        few in any::<bool>(),
    ) {
        let (max_unfinished_per_peer, max_early) = if few { (1, 2) } else { (100, 100) };
        let limits = Limits { max_unfinished_per_peer, max_early, ..Limits::default() };
        let mut world = World::new(workers, &limits);
        world.sides.iter_mut().for_each(|side| side.prompt = !few);
        for event in &events {
            apply(&mut world, event);
            world.check_pairs();
        }
        world.settle();
        world.check_at_rest();
        world.check_pairs();
    }

    #[test]
    fn without_trouble_everybody_is_connected_with_everybody_who_asked(
        workers in 3..6_u8,
        each in 1..5_usize,
        seed in proptest::collection::vec(any::<Index>(), 200),
    ) {
        let mut world = World::new(workers, &Limits::default());
        for who in 0..workers {
            for peer in (0..workers).filter(|peer| *peer != who) {
                (0..each).for_each(|_| world.connect(who, peer));
            }
        }
        // All workers have sent requests; the order of arrival is random.
        for index in &seed {
            apply(&mut world, &Event::Deliver(*index));
        }
        world.settle();
        world.check_at_rest();
        prop_assert!(!world.troubled);
        for side in &world.sides {
            prop_assert_eq!(side.endpoints.len(), each * usize::from(workers - 1));
            let ready = side.machine.connections.values().all(|c| c.phase == Phase::Ready);
            prop_assert!(ready);
        }
    }
}
