//! Tests of many peers on one interface over the device double: floods, and fairness to the other peers.

use crate::double::clock::pass;
use crate::double::world::fault;
use crate::double::{Side, Told, connect, side, side_of};
use crate::{UD, VerbsEndpoint, VerbsInterface};
use core::time::Duration;
use tieline_plugin_api::{Endpoint, Interface, Posting};

/// One receiver and many senders. A message's header is its sender's number.
struct Crowd {
    receiver: Side,
    senders: Vec<Side>,
    endpoints: Vec<VerbsEndpoint>,
    _ends: Vec<VerbsEndpoint>,
}

impl Crowd {
    fn reliable(count: usize, settings: &[(&str, &str)]) -> Crowd {
        let mut crowd = Crowd::empty(side(settings));
        for _ in 0..count {
            let mut sender = side(settings);
            let (here, there) = connect(&mut sender, &mut crowd.receiver);
            crowd.senders.push(sender);
            crowd.endpoints.push(here);
            crowd._ends.push(there);
        }
        crowd
    }

    fn datagrams(count: usize, settings: &[(&str, &str)]) -> Crowd {
        let mut crowd = Crowd::empty(side_of(UD, settings));
        for n in 0..count {
            let sender = side_of(UD, &[]);
            let address = crowd.receiver.interface.address();
            crowd.endpoints.push(sender.interface.connect(&address, &[n as u8], 1).unwrap());
            crowd.senders.push(sender);
            while crowd.receiver.told.arrived.len() <= n {
                crowd.receiver.poll();
                crowd.senders[n].poll();
            }
        }
        crowd
    }

    fn empty(receiver: Side) -> Crowd {
        Crowd { receiver, senders: Vec::new(), endpoints: Vec::new(), _ends: Vec::new() }
    }

    /// Returns the number of receive buffers with early datagrams, and the limit on this number.
    fn early(&self) -> (usize, usize) {
        let VerbsInterface::Ud(ud) = &self.receiver.interface else { panic!("datagrams") };
        ud.early()
    }

    /// Makes every sender send its whole window; the first datagram of each is lost.
    fn lose_first(&self) {
        for n in 0..self.senders.len() {
            fault(|faults| faults.cut = true);
            assert!(self.send(n, 10));
            fault(|faults| faults.cut = false);
            while self.send(n, 10) {}
        }
    }

    fn send(&self, n: usize, len: usize) -> bool {
        self.endpoints[n].am_short(7, n as u64, &vec![1; len]) == Ok(Posting::Done)
    }

    /// Polls every side once. Returns the senders of the arrived messages.
    fn turn(&mut self) -> Vec<usize> {
        self.receiver.poll();
        self.senders.iter_mut().for_each(Side::poll);
        let told = core::mem::take(&mut self.receiver.told);
        assert!(told.failed.is_empty(), "{:?}", told.failed);
        told.messages.iter().map(|(header, _)| *header as usize).collect()
    }

    /// Lets all senders but the last send as much as they can. The last one sends a message whenever its previous message has
    /// arrived. Returns the number of messages of each sender in `polls` polls.
    fn flood(&mut self, polls: usize, len: usize) -> Vec<usize> {
        let (honest, mut waits) = (self.senders.len() - 1, false);
        let mut shares = vec![0; self.senders.len()];
        for _ in 0..polls {
            for n in 0..honest {
                while self.send(n, len) {}
            }
            waits = waits || self.send(honest, 10);
            for n in self.turn() {
                waits &= n != honest;
                shares[n] += 1;
            }
        }
        shares
    }
}

#[test]
fn flooding_reliable_peers_do_not_starve_a_low_rate_peer() {
    for (flooders, windows) in [(4, "64"), (24, "16")] {
        let settings = [("TIELINE_VERBS_WINDOW", windows), ("TIELINE_VERBS_MAX_WINDOW", windows)];
        let mut crowd = Crowd::reliable(flooders + 1, &settings);
        let polls = 600;
        let shares = crowd.flood(polls, 100);
        // A message waits at most for the windows of all other senders; one poll reports sixteen messages.
        let wait = flooders * windows.parse::<usize>().unwrap() / 16 + 2;
        assert!(shares[flooders] >= polls / wait / 2, "{shares:?} in {polls} polls");
        let fair = shares[..flooders].iter().sum::<usize>() / flooders;
        assert!(shares[..flooders].iter().all(|share| *share >= fair / 2), "{shares:?}");
    }
}

#[test]
fn flooding_datagram_peers_do_not_starve_a_low_rate_peer() {
    for flooders in [4, 24] {
        let mut crowd = Crowd::datagrams(flooders + 1, &[]);
        let polls = 1000;
        // The test runs until every channel knows its share of the receives, after the initial losses.
        let mut heard = vec![0; flooders + 1];
        let mut rounds = 0;
        while heard.iter().any(|count| *count < 20) {
            rounds += 1;
            assert!(rounds < 1000, "some are hardly ever heard: {heard:?}");
            let more = crowd.flood(100, 100);
            heard.iter_mut().zip(more).for_each(|(count, more)| *count += more);
        }
        // A suspension of all sides makes every channel retransmit everything.
        pass(Duration::from_millis(100));
        let _ = crowd.flood(polls, 100);
        let shares = crowd.flood(polls, 100);
        // A message waits at most for all receives; one poll reports sixteen messages.
        assert!(shares[flooders] >= polls / (256 / 16 + 2) / 2, "{shares:?} in {polls} polls");
        let fair = shares[..flooders].iter().sum::<usize>() / flooders;
        assert!(shares[..flooders].iter().all(|share| *share >= fair / 4), "{shares:?}");
    }
}

#[test]
fn peer_exceeding_its_window_is_disconnected_and_others_continue() {
    let settings = [("TIELINE_VERBS_WINDOW", "16"), ("TIELINE_VERBS_MAX_WINDOW", "16")];
    let mut crowd = Crowd::reliable(3, &settings);
    // Two senders with more credits than the receiver has buffers.
    for liar in &crowd.senders[..2] {
        let VerbsInterface::Rc(rc) = &liar.interface else { panic!("reliable") };
        let mut state = rc.state.borrow_mut();
        state.connections.iter_mut().flatten().for_each(|c| c.credits.open(100_000));
    }
    let (mut heard, mut waits) = (0, false);
    let mut failed = Vec::new();
    for _ in 0..600 {
        for n in 0..2 {
            for _ in 0..200 {
                if !crowd.send(n, 100) {
                    break;
                }
            }
        }
        waits = waits || crowd.send(2, 10);
        crowd.receiver.poll();
        crowd.senders.iter_mut().for_each(Side::poll);
        let told: Told = core::mem::take(&mut crowd.receiver.told);
        failed.extend(told.failed);
        if told.messages.iter().any(|(header, _)| *header == 2) {
            heard += 1;
            waits = false;
        }
    }
    assert_eq!(failed.len(), 2, "both are cut off: {failed:?}");
    for (_, status, words) in &failed {
        assert_eq!(*status, tieline_plugin_api::Status::BadData, "{words}");
        assert!(words.contains("more messages than it was granted"), "{words}");
    }
    assert!(heard >= 300, "{heard} of 600 polls");
}

/// Every sender has lost its first datagram and sent the rest of its window.
#[test]
fn early_datagrams_leave_receives_for_expected_ones() {
    const SENDERS: usize = 8;
    let mut crowd = Crowd::datagrams(SENDERS, &[]);
    crowd.lose_first();
    for _ in 0..100 {
        crowd.receiver.poll();
        let (waiting, most) = crowd.early();
        assert!(waiting <= most, "{waiting} wait");
    }
    let (waiting, most) = crowd.early();
    assert_eq!(waiting, most, "as many as may");
    // Lost datagrams are retransmitted. Every early one is delivered exactly once.
    let mut heard = [0; SENDERS];
    while heard.iter().any(|count| *count < 20) {
        pass(Duration::from_millis(10));
        crowd.turn().into_iter().for_each(|n| heard[n] += 1);
        (0..SENDERS).for_each(|n| {
            let _ = crowd.send(n, 10);
        });
    }
    for _ in 0..100 {
        pass(Duration::from_millis(10));
        let _ = crowd.turn();
    }
    assert_eq!(crowd.early().0, 0, "all have had their turn");
}

#[test]
fn early_datagrams_of_silent_peers_are_dropped_and_retransmitted() {
    let mut crowd = Crowd::datagrams(5, &[("TIELINE_FAILURE_TIMEOUT", "1s")]);
    crowd.lose_first();
    (0..20).for_each(|_| crowd.receiver.poll());
    let (waiting, most) = crowd.early();
    assert_eq!(waiting, most, "as many as may");
    let look = |crowd: &mut Crowd| {
        pass(Duration::from_millis(500));
        (0..40).for_each(|_| crowd.receiver.poll());
        crowd.early().0
    };
    for _ in 0..3 {
        assert_eq!(look(&mut crowd), most, "they may only be slow");
    }
    assert!((0..8).any(|_| look(&mut crowd) == 0), "{:?} wait for the dead", crowd.early());
    // These peers are alive: nothing is lost.
    let mut heard = [0; 5];
    for _ in 0..200 {
        pass(Duration::from_millis(10));
        crowd.turn().into_iter().for_each(|n| heard[n] += 1);
    }
    assert!(heard.iter().all(|count| *count > 20), "{heard:?}");
}

#[test]
fn roce_v1_and_v2_do_not_reach_each_other_and_are_named() {
    let (v1, v2) = (side(&[("TIELINE_VERBS_GID_INDEX", "2")]), side(&[]));
    for (from, to, words) in [(&v1, &v2, "v1, the peer's v2"), (&v2, &v1, "v2, the peer's v1")] {
        let refused = from.interface.reachable(&to.interface.address()).unwrap_err();
        assert!(refused.text.contains(words), "{refused:?}");
    }
    let again = side(&[("TIELINE_VERBS_GID_INDEX", "2")]);
    v1.interface.reachable(&again.interface.address()).unwrap();
}
