//! Tests of streams that break and stall, and of peers that are killed.

use std::process::{Child, Command, Stdio};

use super::*;

/// Sends numbered messages and a large put while streams are cut. Every message and the put must arrive once.
fn survives_cuts(streams: &str, cuts: usize) {
    let domain = domain(&[("TIELINE_TCP_STREAMS", streams), ("TIELINE_TCP_RECONNECT", "on")]);
    let mut sides = pair_in([&domain, &domain]);
    let count: usize = streams.parse().unwrap();
    await_streams(&mut sides, count);
    let mut source = pattern(16 << 20, 3);
    let mut target = vec![0u8; source.len()];
    let (region, packed) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    let (mut sent, mut received) = (0u64, 0u64);
    for n in 0..cuts {
        target.fill(0);
        rma(&mut sides, true, &key, &mut source, 0, 100);
        for step in 0..400 {
            let payload = pattern((sent as usize * 131) % 5000, sent);
            if sides[0].endpoint().am_short(7, sent, &payload).is_ok() {
                sent += 1;
            }
            if step == 3 + 2 * n {
                let side = n % 2;
                let live: Vec<usize> = live_streams(&sides[side]);
                if let Some(&victim) = live.get(n % live.len().max(1)) {
                    cut(&sides[side], victim);
                }
            }
            turn(&mut sides);
        }
        assert_eq!(await_completion(&mut sides, 100), 0);
        assert!(target == source, "cut {n}: the target differs");
        let mut back = vec![0u8; 3 << 20];
        rma(&mut sides, false, &key, &mut back, 77, 101);
        if let Some(&victim) = live_streams(&sides[1]).first() {
            cut(&sides[1], victim);
        }
        assert_eq!(await_completion(&mut sides, 101), 0);
        assert!(back[..] == source[77..77 + back.len()], "cut {n}: what was got differs");
    }
    while received < sent {
        let (_, header, data) = receive(&mut sides);
        assert_eq!(header, received, "messages in order");
        assert_eq!(data, pattern((received as usize * 131) % 5000, received));
        received += 1;
    }
    for _ in 0..200 {
        turn(&mut sides);
    }
    assert!(sides[1].messages.is_empty(), "nothing twice");
    assert!(sides.iter().all(|side| side.failed.is_none()));
    await_streams(&mut sides, count);
    let blocked = sides.iter().map(|side| side.interface.shared().blocked.get()).sum::<usize>();
    assert_eq!(blocked, 0, "streams that are gone wait for no room");
    domain.deregister(region).unwrap();
}

fn live_streams(side: &Side) -> Vec<usize> {
    let conn = side.endpoint().conn();
    let inner = conn.inner.borrow();
    (0..inner.links.len()).filter(|&n| inner.links[n].stream.is_some()).collect()
}

#[test]
fn with_two_streams_one_that_is_cut_in_mid_transfer_costs_nothing() {
    survives_cuts("2", 6);
}

#[test]
fn with_three_streams_one_that_is_cut_in_mid_transfer_costs_nothing() {
    survives_cuts("3", 6);
}

#[test]
fn one_stream_that_keeps_what_it_sends_comes_back_after_a_cut() {
    survives_cuts("1", 4);
}

#[test]
fn stalled_stream_is_closed_and_its_frames_arrive_on_the_other() {
    let variables = [("TIELINE_TCP_STREAMS", "2"), ("TIELINE_TCP_STALL", "100ms")];
    let mut sides = pair(&variables);
    await_streams(&mut sides, 2);
    {
        let conn = sides[1].endpoint().conn();
        conn.inner.borrow_mut().links[1].stream.as_mut().unwrap().frozen = true;
    }
    for n in 0..3000 {
        send(&mut sides, n, &pattern(30_000, n));
    }
    for n in 0..3000 {
        assert_eq!(receive(&mut sides), (7, n, pattern(30_000, n)));
    }
    // Another connection replaces the frozen one.
    let is_frozen = |side: &Side| {
        let inner = side.endpoint().conn().inner.borrow();
        inner.links[1].stream.as_ref().is_none_or(|stream| stream.frozen)
    };
    while is_frozen(&sides[1]) {
        turn(&mut sides);
    }
    assert!(sides.iter().all(|side| side.failed.is_none()));
}

/// Neither data nor an end arrives any more: only the side's own send reports the failure.
#[test]
fn data_received_before_write_error_is_read_before_failure() {
    let mut sides = pair(&[]);
    await_streams(&mut sides, 1);
    let fd = streams_of(&sides[0])[0];
    assert_eq!(sides[1].endpoint().am_short(7, 41, b"the last word"), Ok(Posting::Done));
    while !super::moving::readable(fd, 0) {
        sides[1].turn();
    }
    sys::end_sending(fd);
    let _ = sides[0].endpoint().am_short(7, 1, &[0; 600]);
    for _ in 0..10_000 {
        if sides[0].failed.is_some() {
            break;
        }
        sides[0].turn();
    }
    let heard = sides[0].messages.pop_front();
    assert_eq!(heard, Some((7, 41, b"the last word".to_vec())), "it was there before");
    let (status, words) = sides[0].failed.clone().expect("it cannot be written to");
    assert_eq!(status, Status::PeerFailed, "{words}");
    assert!(sides[0].endpoint().am_short(7, 2, b"").is_err());
}

#[test]
fn cut_without_reconnect_fails_endpoint_and_pending_operations() {
    let domain = domain(&[]);
    let mut sides = pair_in([&domain, &domain]);
    await_streams(&mut sides, 1);
    let mut source = vec![1u8; 8 << 20];
    let mut target = vec![0u8; source.len()];
    let (region, packed) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    rma(&mut sides, true, &key, &mut source, 0, 40);
    let mut back = vec![0u8; 1 << 20];
    rma(&mut sides, false, &key, &mut back, 0, 41);
    assert_eq!(sides[0].endpoint().flush(42), Ok(Posting::Pending));
    cut(&sides[0], 0);
    while sides.iter().any(|side| side.failed.is_none()) {
        turn(&mut sides);
    }
    for side in &sides {
        let (status, words) = side.failed.as_ref().unwrap();
        assert_eq!(*status, Status::PeerFailed, "{words}");
        assert!(words.contains("127.0.0.1") || words.contains("[::1]"), "{words}");
    }
    let mut cookies: Vec<u64> = sides[0].completions.iter().map(|c| c.0).collect();
    cookies.sort_unstable();
    assert_eq!(cookies, [40, 41, 42]);
    assert!(sides[0].completions.iter().all(|c| c.1 == Status::PeerFailed as i32));
    assert_eq!(sides[0].endpoint().am_short(1, 1, b"?"), Err(Status::PeerFailed));
    domain.deregister(region).unwrap();
}

const ROLE: &str = "TIELINE_TCP_TEST_PEER";

/// Runs as the other process: connects, then sends for ever.
#[test]
fn the_peer_process() {
    let Ok(address) = std::env::var(ROLE) else { return };
    let mut side = Side::new(&domain(&[]));
    let bytes: Vec<u8> = (0..address.len() / 2)
        .map(|n| u8::from_str_radix(&address[2 * n..2 * n + 2], 16).unwrap())
        .collect();
    let own: String = side.endpoint().address().iter().map(|b| format!("{b:02x}")).collect();
    println!("\naddress {own}");
    side.endpoint().connect(&bytes).unwrap();
    let mut n = 0;
    while side.failed.is_none() {
        if side.endpoint().am_short(7, n, &pattern(2000, n)).is_ok() {
            n += 1;
        }
        side.turn();
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn a_killed_process(variables: &[(&str, &str)]) {
    use std::io::BufRead;
    let mut side = Side::new(&domain(variables));
    let own: String = side.endpoint().address().iter().map(|b| format!("{b:02x}")).collect();
    let mut child = Killed(
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "loopback_tests::breaking::the_peer_process", "--nocapture"])
            .env(ROLE, own)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let output = std::io::BufReader::new(child.0.stdout.take().unwrap());
    let line = output
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("address ").map(str::to_string))
        .unwrap();
    let address: Vec<u8> = (0..line.len() / 2)
        .map(|n| u8::from_str_radix(&line[2 * n..2 * n + 2], 16).unwrap())
        .collect();
    side.endpoint().connect(&address).unwrap();
    let mut next = 0;
    while next < 5000 {
        side.turn();
        while let Some((_, header, data)) = side.messages.pop_front() {
            assert_eq!(header, next);
            assert!(data == pattern(2000, next), "a whole message");
            next += 1;
        }
    }
    drop(child);
    while side.failed.is_none() {
        side.turn();
    }
    for (_, header, data) in &side.messages {
        assert_eq!(*header, next);
        assert!(*data == pattern(2000, next), "a whole message");
        next += 1;
    }
    let (status, words) = side.failed.unwrap();
    assert_eq!(status, Status::PeerFailed, "{words}");
    assert!(words.contains("127.0.0.1") || words.contains("[::1]"), "{words}");
}

#[test]
fn a_killed_peer_is_a_failed_peer_and_leaves_whole_messages() {
    a_killed_process(&[]);
}

#[test]
fn a_killed_peer_is_told_from_a_broken_connection_when_reconnecting() {
    a_killed_process(&[("TIELINE_TCP_RECONNECT", "on")]);
}
