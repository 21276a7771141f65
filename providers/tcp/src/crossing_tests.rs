//! Tests of all orders of events on both sides of one stream: dials that succeed and fail, connections that arrive late, and breaks
//! that one side sees before the other. Afterwards both sides use the same connection.

use std::collections::{BTreeSet, VecDeque};

use super::{Arrival, Crossing};

/// A connection: its dialler, the dialler's round, and the knowledge of each end.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Connection {
    by_lower: bool,
    round: u32,
    /// Whether the peer's listener has delivered the connection.
    accepted: bool,
    /// Whether the dialler knows that the connection is established.
    dialled: bool,
    /// Whether the connection is open at the lower and at the upper end.
    open: [bool; 2],
    /// A `Start` under way, with its count.
    start: Option<u32>,
    lost: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct World {
    sides: [Model; 2],
    connections: Vec<Connection>,
    breaks_left: u8,
    failures_left: u8,
    dials_left: [u8; 2],
}

/// A side: its state machine, and the connections that it uses, keeps and dials. Side 0 is the lower side.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Model {
    crossing: (u32, bool, bool),
    using: Option<usize>,
    kept: Vec<usize>,
    dialling: Option<usize>,
}

fn machine(side: usize, model: &Model) -> Crossing {
    let (round, dialling, reserve) = model.crossing;
    Crossing { lower: side == 0, round, dialling, reserve }
}

fn facts(crossing: &Crossing) -> (u32, bool, bool) {
    (crossing.round, crossing.dialling, crossing.reserve)
}

impl World {
    fn new() -> World {
        let side = Model { crossing: (0, false, false), using: None, kept: vec![], dialling: None };
        World {
            sides: [side.clone(), side],
            connections: vec![],
            breaks_left: 1,
            failures_left: 2,
            dials_left: [3, 3],
        }
    }

    fn close(&mut self, side: usize, connection: usize) {
        self.connections[connection].open[side] = false;
    }

    /// Makes a side use a connection, and close every other one that it has.
    fn take_into_use(&mut self, side: usize, connection: usize) {
        let model = &mut self.sides[side];
        let mut rest: Vec<usize> = std::mem::take(&mut model.kept);
        rest.extend(model.using.take());
        rest.extend(model.dialling.take());
        model.using = Some(connection);
        for other in rest.into_iter().filter(|&other| other != connection) {
            self.close(side, other);
        }
        if side == 0 {
            self.connections[connection].start = Some(self.sides[0].crossing.0);
        }
    }

    /// Returns every world after one more event.
    fn next(&self) -> Vec<World> {
        let mut all = Vec::new();
        for side in 0..2 {
            self.dial(side, &mut all);
            self.notice_end(side, &mut all);
        }
        self.give_way(&mut all);
        for n in 0..self.connections.len() {
            self.accept(n, &mut all);
            self.dialled(n, &mut all);
            self.start_arrives(n, &mut all);
            self.break_one(n, &mut all);
        }
        all
    }

    fn dial(&self, side: usize, all: &mut Vec<World>) {
        let model = &self.sides[side];
        let free = model.dialling.is_none() && model.using.is_none();
        if !free || self.dials_left[side] == 0 || side == 1 && !model.kept.is_empty() {
            return;
        }
        let mut world = self.clone();
        world.dials_left[side] -= 1;
        let mut crossing = machine(side, model);
        crossing.dial_begun();
        world.sides[side].crossing = facts(&crossing);
        world.sides[side].dialling = Some(self.connections.len());
        world.connections.push(Connection {
            by_lower: side == 0,
            round: crossing.round(),
            accepted: false,
            dialled: false,
            open: [true, true],
            start: None,
            lost: false,
        });
        if self.failures_left > 0 {
            let mut failed = self.clone();
            failed.failures_left -= 1;
            failed.dials_left[side] -= 1;
            let mut crossing = machine(side, model);
            crossing.dial_begun();
            let reserve = crossing.dial_failed();
            failed.sides[side].crossing = facts(&crossing);
            assert!(!reserve || !failed.sides[side].kept.is_empty());
            all.push(failed);
        }
        all.push(world);
    }

    /// Lets the peer's listener deliver a connection.
    fn accept(&self, n: usize, all: &mut Vec<World>) {
        let connection = &self.connections[n];
        let side = usize::from(connection.by_lower);
        // An abandoned connection may have been accepted nevertheless.
        if connection.accepted {
            return;
        }
        let mut world = self.clone();
        world.connections[n].accepted = true;
        let mut crossing = machine(side, &world.sides[side]);
        let arrival = crossing.arrived(connection.round);
        world.sides[side].crossing = facts(&crossing);
        match arrival {
            Arrival::Refuse => world.close(side, n),
            Arrival::Keep => {
                if side == 0 {
                    for old in std::mem::take(&mut world.sides[0].kept) {
                        world.close(0, old);
                    }
                }
                world.sides[side].kept.push(n);
            }
            Arrival::Start => world.take_into_use(0, n),
        }
        all.push(world);
    }

    /// Lets the dialler learn that its connection is established, or was refused.
    fn dialled(&self, n: usize, all: &mut Vec<World>) {
        let connection = &self.connections[n];
        let side = usize::from(!connection.by_lower);
        if connection.dialled || !connection.open[side] || self.sides[side].dialling != Some(n) {
            return;
        }
        let mut world = self.clone();
        world.connections[n].dialled = true;
        world.sides[side].dialling = None;
        let mut crossing = machine(side, &world.sides[side]);
        let start = crossing.dialled();
        world.sides[side].crossing = facts(&crossing);
        if start {
            world.take_into_use(side, n);
        } else {
            world.sides[side].kept.push(n);
        }
        all.push(world);
    }

    /// Lets the lower side abandon its own dial for the connection in reserve, whether the peer has accepted the dial or not.
    fn give_way(&self, all: &mut Vec<World>) {
        let (Some(dial), Some(&reserve)) = (self.sides[0].dialling, self.sides[0].kept.first())
        else {
            return;
        };
        let mut world = self.clone();
        world.close(0, dial);
        world.sides[0].dialling = None;
        world.sides[0].kept.clear();
        let mut crossing = machine(0, &world.sides[0]);
        assert!(crossing.dial_failed());
        world.sides[0].crossing = facts(&crossing);
        world.take_into_use(0, reserve);
        all.push(world);
    }

    fn start_arrives(&self, n: usize, all: &mut Vec<World>) {
        let connection = &self.connections[n];
        let Some(count) = connection.start.filter(|_| !connection.lost) else { return };
        if !connection.open[1] || !self.sides[1].kept.contains(&n) {
            return;
        }
        let mut world = self.clone();
        world.connections[n].start = None;
        world.sides[1].kept.retain(|&kept| kept != n);
        let mut crossing = machine(1, &world.sides[1]);
        let used = crossing.started(count);
        world.sides[1].crossing = facts(&crossing);
        if used {
            world.take_into_use(1, n);
        } else {
            world.close(1, n);
        }
        all.push(world);
    }

    fn break_one(&self, n: usize, all: &mut Vec<World>) {
        let connection = &self.connections[n];
        if self.breaks_left == 0 || connection.lost || !connection.open[0] || !connection.open[1] {
            return;
        }
        let mut world = self.clone();
        world.breaks_left -= 1;
        world.connections[n].lost = true;
        all.push(world);
    }

    /// Lets a side notice that the other end of one of its connections is closed.
    fn notice_end(&self, side: usize, all: &mut Vec<World>) {
        let model = &self.sides[side];
        let held = model.kept.iter().chain(&model.using).copied().collect::<Vec<_>>();
        for n in held {
            let connection = &self.connections[n];
            // Data that was sent before the end is read first.
            let unread = side == 1 && connection.start.is_some() && !connection.lost;
            if connection.open[1 - side] && !connection.lost || unread {
                continue;
            }
            let mut world = self.clone();
            world.close(side, n);
            let mut crossing = machine(side, &world.sides[side]);
            if model.using == Some(n) {
                world.sides[side].using = None;
            } else {
                world.sides[side].kept.retain(|&kept| kept != n);
                if side == 0 && world.sides[0].kept.is_empty() {
                    crossing.reserve_lost();
                }
            }
            world.sides[side].crossing = facts(&crossing);
            all.push(world);
        }
    }
}

#[test]
fn both_sides_use_the_same_connection_in_every_event_order() {
    let mut seen: BTreeSet<World> = BTreeSet::new();
    let mut queue = VecDeque::from([World::new()]);
    let mut ends = 0;
    while let Some(world) = queue.pop_front() {
        let next = world.next();
        let [lower, upper] = &world.sides;
        for (side, model) in world.sides.iter().enumerate() {
            if let Some(using) = model.using {
                assert!(
                    world.connections[using].open[side],
                    "a closed connection in use: {world:#?}"
                );
            }
        }
        if next.is_empty() {
            ends += 1;
            assert_eq!(lower.using, upper.using, "{world:#?}");
            let spent = world.dials_left.contains(&0);
            assert!(
                lower.using.is_some() || spent,
                "nothing more happens, and no connection: {world:#?}"
            );
            let open = world.connections.iter().filter(|c| c.open == [true, true] && c.accepted);
            assert!(open.count() <= 1, "{world:#?}");
        }
        for world in next {
            if !seen.contains(&world) {
                let _ = seen.insert(world.clone());
                queue.push_back(world);
            }
        }
    }
    println!("{} states, {ends} ends", seen.len());
    assert!(ends > 10);
}
