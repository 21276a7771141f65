//! Tests of several connectors over an in-memory network. Connections open, carry data and close in any order.

use super::*;
use proptest::prelude::*;

/// The network: pending events of each member, in order, and the frames in each direction of a connection.
#[derive(Default)]
struct Network {
    /// The pending events of each member, each with its connection.
    inbox: Vec<VecDeque<Told>>,
    /// The two ends of each connection, and whether each end has closed.
    cables: HashMap<u64, Cable>,
    next: u64,
}

struct Cable {
    ends: [usize; 2],
    closed: [bool; 2],
}

/// A pending event of a member.
enum Told {
    Event(LinkEvent),
    /// A frame over a cable, lost if the receiver has closed its end.
    Datagram(u64, Vec<u8>),
    Note(u64, Note),
    /// The other end is closed.
    Closed(u64),
    /// A dial arrives.
    Requested {
        cable: u64,
        from: usize,
        dial: u64,
    },
}

/// A member's view of the network.
struct Member<'a> {
    network: &'a mut Network,
    me: usize,
    room: bool,
}

fn name(member: usize) -> Vec<u8> {
    vec![member as u8; 4]
}

impl Member<'_> {
    fn other(&self, link: u64) -> Option<usize> {
        let cable = self.network.cables.get(&link)?;
        let side = usize::from(cable.ends[1] == self.me);
        (!cable.closed[side]).then_some(cable.ends[1 - side])
    }

    fn tell(&mut self, link: u64, told: Told) {
        if let Some(other) = self.other(link) {
            self.network.inbox[other].push_back(told);
        }
    }
}

impl Links for Member<'_> {
    fn dial(&mut self, peer: &[u8]) -> u64 {
        self.network.next += 1;
        let cable = self.network.next;
        let to = usize::from(peer[0]);
        let ends = [self.me, to];
        let _ = self.network.cables.insert(cable, Cable { ends, closed: [false; 2] });
        self.network.inbox[to].push_back(Told::Requested { cable, from: self.me, dial: cable });
        cable
    }

    fn unreachable(&self) -> &'static str {
        "the peer cannot be reached"
    }

    fn when(&self, phase: Phase) -> String {
        format!(" in phase {phase:?}")
    }

    fn has_room(&self, link: u64) -> bool {
        self.room && self.other(link).is_some()
    }

    fn send(&mut self, link: u64, datagram: &[u8]) {
        self.tell(link, Told::Datagram(link, datagram.to_vec()));
    }

    fn note(&mut self, link: u64, note: Note) {
        self.tell(link, Told::Note(link, note));
    }

    fn close(&mut self, link: u64) {
        self.tell(link, Told::Closed(link));
        if let Some(cable) = self.network.cables.get_mut(&link) {
            cable.closed[usize::from(cable.ends[1] == self.me)] = true;
        }
    }

    fn finish(&mut self, link: u64) {
        // A frame counts as received once it is in the inbox.
        self.close(link);
        self.network.inbox[self.me].push_back(Told::Event(LinkEvent::Finished { link }));
    }
}

struct World {
    network: Network,
    connectors: Vec<Datagrams>,
    seen: Vec<Vec<u32>>,
    sent: Vec<Vec<u32>>,
    clock: Duration,
    rooms: bool,
}

impl World {
    fn new(members: usize, most: usize) -> World {
        let inbox = (0..members).map(|_| VecDeque::new()).collect();
        World {
            network: Network { inbox, ..Network::default() },
            connectors: (0..members)
                .map(|m| Datagrams::new(name(m), most, Duration::from_secs(1)))
                .collect(),
            seen: vec![vec![0; members]; members],
            sent: vec![vec![0; members]; members],
            clock: Duration::ZERO,
            rooms: true,
        }
    }

    fn with<R>(&mut self, me: usize, act: impl FnOnce(&mut Datagrams, &mut Member<'_>) -> R) -> R {
        let mut member = Member { network: &mut self.network, me, room: self.rooms };
        let result = act(&mut self.connectors[me], &mut member);
        let peers = &mut self.connectors[me];
        while let Some(notice) = peers.notices.pop_front() {
            match notice {
                Notice::Datagram(hash, bytes) => {
                    let from = usize::from(bytes[0]);
                    assert_eq!(hash, address_hash(&name(from)), "who sent it");
                    let number = u32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]);
                    assert_eq!(number, self.seen[from][me], "from {from} to {me}");
                    self.seen[from][me] += 1;
                }
                Notice::Left { words, .. } => panic!("nobody leaves: {words}"),
            }
        }
        result
    }

    fn send(&mut self, from: usize, to: usize) {
        let mut bytes = vec![from as u8];
        bytes.extend_from_slice(&self.sent[from][to].to_le_bytes());
        if self.with(from, |peers, net| peers.send(net, &name(to), &bytes)).is_ok() {
            self.sent[from][to] += 1;
        }
    }

    /// Delivers one event to a member. Returns `false` if there was none.
    fn step(&mut self, me: usize) -> bool {
        let Some(told) = self.network.inbox[me].pop_front() else { return false };
        let open = |network: &Network, link: u64| {
            let cable = network.cables.get(&link);
            cable.is_some_and(|c| !c.closed[usize::from(c.ends[1] == me)])
        };
        let event = match told {
            Told::Event(event) => event,
            Told::Requested { cable, from, dial } => {
                let up = LinkEvent::Up { link: cable, peer: name(me), dial: Some(dial) };
                self.network.inbox[from].push_back(Told::Event(up));
                LinkEvent::Up { link: cable, peer: name(from), dial: None }
            }
            Told::Datagram(link, bytes) if open(&self.network, link) => {
                LinkEvent::Datagram { link, bytes }
            }
            Told::Note(link, note) if open(&self.network, link) => LinkEvent::Note { link, note },
            Told::Closed(link) if open(&self.network, link) => {
                let words = "closed".to_string();
                LinkEvent::Lost { link, status: Status::Closed, words }
            }
            _ => return true,
        };
        self.with(me, |peers, net| peers.handle(net, event));
        true
    }

    fn deliver_all(&mut self) {
        self.rooms = true;
        for me in 0..self.connectors.len() {
            let links: Vec<u64> = self.connectors[me].links.keys().copied().collect();
            for link in links {
                self.with(me, |peers, net| peers.handle(net, LinkEvent::Room { link }));
            }
        }
        for round in 0.. {
            assert!(round < 100_000, "it never ends");
            // Every member takes a step, even if an earlier one has already made progress.
            let moved = (0..self.connectors.len()).filter(|me| self.step(*me)).count();
            if moved == 0 {
                break;
            }
        }
        assert_eq!(self.seen, self.sent);
    }
}

proptest! {
    #[test]
    fn datagrams_arrive_once_and_in_order_across_reconnections(
        most in 1usize..4,
        steps in prop::collection::vec((0u8..8, 0usize..4, 0usize..4), 0..300),
    ) {
        let mut world = World::new(4, most);
        for (what, a, b) in steps {
            match what {
                0..=2 => world.send(a, b),
                3..=5 => drop(world.step(a)),
                6 => {
                    world.clock += Duration::from_millis(700);
                    let now = world.clock;
                    world.with(a, |peers, net| peers.close_idle(net, now));
                }
                _ => world.rooms = b != 0,
            }
        }
        world.deliver_all();
        // An idle member must have no connection at the end.
        for _ in 0..4 {
            world.clock += Duration::from_secs(5);
            let now = world.clock;
            for me in 0..4 {
                world.with(me, |peers, net| peers.close_idle(net, now));
            }
            world.deliver_all();
        }
        for peers in &world.connectors {
            prop_assert!(!peers.has_links() && peers.peers() == 0);
        }
    }
}

#[test]
fn simultaneous_dials_lose_nothing() {
    let mut world = World::new(2, 8);
    for _ in 0..5 {
        world.send(0, 1);
        world.send(1, 0);
    }
    world.deliver_all();
    assert_eq!(world.connectors[0].links.len(), 2, "one each way");
}

/// Returns the number of connections of each of two members, after the members in `who` have closed connections that are idle at
/// this time.
fn after_a_look(world: &mut World, ms: u64, who: &[usize]) -> [usize; 2] {
    for &me in who {
        world.with(me, |peers, net| peers.close_idle(net, Duration::from_millis(ms)));
    }
    world.deliver_all();
    [0, 1].map(|me| world.connectors[me].links.len())
}

#[test]
fn connection_is_closed_after_the_configured_idle_time() {
    let mut world = World::new(2, 8);
    world.send(0, 1);
    world.deliver_all();
    assert!(world.connectors.iter().all(Datagrams::has_links), "they look at the clock");
    assert_eq!(after_a_look(&mut world, 999, &[0, 1]), [1, 1]);
    world.send(0, 1);
    world.deliver_all();
    assert_eq!(after_a_look(&mut world, 1998, &[0, 1]), [1, 1], "it was used in between");
    assert_eq!(after_a_look(&mut world, 1999, &[0, 1]), [0, 0]);
    assert!(world.connectors.iter().all(|peers| !peers.has_links() && peers.peers() == 0));
}

#[test]
fn dialled_side_waits_half_as_long_again_before_closing() {
    let mut world = World::new(2, 8);
    world.send(0, 1);
    world.deliver_all();
    assert_eq!(after_a_look(&mut world, 1499, &[1]), [1, 1]);
    assert_eq!(after_a_look(&mut world, 1500, &[1]), [0, 0]);
}

/// Received data counts as use.
#[test]
fn receiving_peer_keeps_its_connection_while_data_arrives() {
    let mut world = World::new(2, 8);
    world.send(0, 1);
    world.deliver_all();
    for step in 1..5 {
        assert_eq!(after_a_look(&mut world, step * 900, &[1]), [1, 1]);
        world.send(0, 1);
        world.deliver_all();
    }
}

fn left(peers: &mut Datagrams) -> Vec<(u64, Status)> {
    let notice = peers.notices.drain(..).map(|notice| match notice {
        Notice::Left { hash, status, .. } => (hash, status),
        Notice::Datagram(..) => panic!("nothing was sent"),
    });
    notice.collect()
}

#[test]
fn unreachable_peer_is_reported_once_and_can_be_retried() {
    let mut world = World::new(2, 8);
    let mut net = Member { network: &mut world.network, me: 0, room: true };
    let peers = &mut world.connectors[0];
    for dial in 1..4 {
        peers.send(&mut net, &name(1), b"hello").expect("room");
        peers.send(&mut net, &name(1), b"hello").expect("room");
        let words = "no route".to_string();
        peers.handle(&mut net, LinkEvent::DialFailed { dial, status: Status::Unreachable, words });
        assert_eq!(left(peers), [(address_hash(&name(1)), Status::Unreachable)]);
    }
    assert_eq!(peers.peers(), 0);
}

#[test]
fn broken_connection_is_reported_and_next_datagram_reconnects() {
    let mut world = World::new(2, 8);
    let mut net = Member { network: &mut world.network, me: 0, room: true };
    let peers = &mut world.connectors[0];
    peers.send(&mut net, &name(1), b"hello").expect("room");
    peers.handle(&mut net, LinkEvent::Up { link: 1, peer: name(1), dial: Some(1) });
    let words = "killed".to_string();
    peers.handle(&mut net, LinkEvent::Lost { link: 1, status: Status::PeerFailed, words });
    assert_eq!(left(peers), [(address_hash(&name(1)), Status::PeerFailed)]);
    peers.send(&mut net, &name(1), b"again").expect("room");
    assert_eq!(peers.dials.len(), 1);
}

#[test]
fn messages_queued_for_departed_peer_are_dropped() {
    let lost = |link| LinkEvent::Lost { link, status: Status::PeerFailed, words: String::new() };
    let gone = |link| LinkEvent::Note { link, note: Note::Gone };
    for end in [lost, gone] {
        let mut world = World::new(2, 8);
        let mut net = Member { network: &mut world.network, me: 0, room: false };
        let peers = &mut world.connectors[0];
        for link in [1, 2] {
            let fill = (0..).take_while(|_| peers.send(&mut net, &name(1), &[9; 4096]).is_ok());
            assert_eq!(fill.count(), QUEUE / 4096, "connection {link}");
            peers.handle(&mut net, LinkEvent::Up { link, peer: name(1), dial: Some(link) });
            peers.handle(&mut net, end(link));
            assert_eq!(left(peers).len(), 1);
        }
        peers.send(&mut net, &name(1), b"the first that counts").expect("room");
        net.room = true;
        peers.handle(&mut net, LinkEvent::Up { link: 3, peer: name(1), dial: Some(3) });
        let came = net.network.inbox[1].iter().filter_map(|told| match told {
            Told::Datagram(_, bytes) => Some(bytes.as_slice()),
            _ => None,
        });
        assert_eq!(came.collect::<Vec<_>>(), [b"the first that counts"]);
    }
}

#[test]
fn datagrams_queued_for_unreachable_peer_are_dropped() {
    let mut world = World::new(2, 8);
    let mut net = Member { network: &mut world.network, me: 0, room: false };
    let peers = &mut world.connectors[0];
    for dial in [1, 2] {
        let fill = (0..).take_while(|_| peers.send(&mut net, &name(1), &[9; 4096]).is_ok());
        assert_eq!(fill.count(), QUEUE / 4096, "dial {dial}");
        let words = "no route".to_string();
        peers.handle(&mut net, LinkEvent::DialFailed { dial, status: Status::Unreachable, words });
        assert_eq!(left(peers), [(address_hash(&name(1)), Status::Unreachable)]);
    }
}

#[test]
fn queue_of_broken_connection_is_dropped_and_accepts_more() {
    let mut world = World::new(2, 8);
    let mut net = Member { network: &mut world.network, me: 0, room: false };
    let peers = &mut world.connectors[0];
    for (link, dial) in [(1, Some(1)), (2, None)] {
        let fill = (0..).take_while(|_| peers.send(&mut net, &name(1), &[9; 4096]).is_ok());
        assert_eq!(fill.count(), if link == 1 { QUEUE / 4096 } else { 0 });
        peers.handle(&mut net, LinkEvent::Up { link, peer: name(1), dial });
    }
    let words = "killed".to_string();
    peers.handle(&mut net, LinkEvent::Lost { link: 1, status: Status::PeerFailed, words });
    assert_eq!(left(peers).len(), 1);
    let fill = (0..).take_while(|_| peers.send(&mut net, &name(1), &[9; 4096]).is_ok());
    assert_eq!(fill.count(), QUEUE / 4096);
}

#[test]
fn flood_without_room_gets_again() {
    let mut world = World::new(2, 8);
    let mut net = Member { network: &mut world.network, me: 0, room: false };
    let taken =
        (0..).take_while(|_| world.connectors[0].send(&mut net, &name(1), &[0; 4096]).is_ok());
    assert_eq!(taken.count(), QUEUE / 4096);
}

#[test]
fn queued_datagrams_are_bounded_by_count_for_peers_and_self() {
    let mut world = World::new(2, 8);
    let mut net = Member { network: &mut world.network, me: 0, room: false };
    let peers = &mut world.connectors[0];
    for to in [0, 1] {
        let taken = (0..).take_while(|_| peers.send(&mut net, &name(to), b"").is_ok());
        assert_eq!(taken.count(), WAITING, "to {to}");
        assert_eq!(peers.send(&mut net, &name(to), b""), Err(Status::Again));
    }
    let hash = address_hash(&name(0));
    assert_eq!(peers.notices.pop_front(), Some(Notice::Datagram(hash, Vec::new())));
    assert_eq!(peers.send(&mut net, &name(0), b"x"), Ok(()), "there is room again");
    assert_eq!(peers.notices.pop_back(), Some(Notice::Datagram(hash, b"x".to_vec())));
}

#[test]
fn frame_invalid_in_closing_phase_ends_connection() {
    let hello = || Some(Notice::Datagram(address_hash(&name(1)), b"hello".to_vec()));
    let told = |status, words: String| {
        let hash = address_hash(&name(1));
        Some(Notice::Left { hash, status, words })
    };
    let wrong = |what, phase: Phase| {
        let text = format!(
            "the connection to the peer broke: the peer broke the protocol: {what} in phase {phase:?}"
        );
        told(Status::BadData, text)
    };
    for from in [Phase::Open, Phase::Asked, Phase::Done, Phase::Last] {
        let (closes, may_close) = match from {
            Phase::Open => (Some(Phase::Done), None),
            Phase::Asked => (Some(Phase::Last), None),
            Phase::Done | Phase::Last => (None, wrong("a note", from)),
        };
        let takes = matches!(from, Phase::Open | Phase::Asked);
        let datagram = || LinkEvent::Datagram { link: 1, bytes: b"hello".to_vec() };
        let note = |note| LinkEvent::Note { link: 1, note };
        let bye = if from == Phase::Asked { None } else { wrong("a note", from) };
        let closed = told(Status::Closed, "the peer has closed its connector".into());
        let arrives = if takes { hello() } else { wrong("a datagram", from) };
        for (event, phase, heard) in [
            (datagram(), takes.then_some(from), arrives),
            (note(Note::MayClose), closes, may_close),
            (note(Note::Bye), None, bye),
            (note(Note::Gone), None, closed),
        ] {
            let what = format!("{event:?} in {from:?}");
            let inbox = (0..2).map(|_| VecDeque::new()).collect();
            let mut network = Network { inbox, ..Network::default() };
            let mut net = Member { network: &mut network, me: 0, room: true };
            let mut peers = Datagrams::new(name(0), 8, Duration::from_secs(1));
            peers.handle(&mut net, LinkEvent::Up { link: 1, peer: name(1), dial: None });
            peers.links.get_mut(&1).unwrap().phase = from;
            peers.handle(&mut net, event);
            assert_eq!(peers.links.get(&1).map(|link| link.phase), phase, "{what}");
            assert_eq!(
                peers.notices.drain(..).collect::<Vec<_>>(),
                Vec::from_iter(heard),
                "{what}"
            );
        }
    }
}
